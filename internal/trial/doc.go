// Package trial brings up a small Muster cluster on one machine, for trials
// (muster dev) and for the end-to-end suite.
//
// A cluster is: a real Consul server; Nomad, either a real one (one server, a
// client agent a node) or the simulated one with live nodes, each of which
// launches the real plugin binaries; on every node the device plugin with
// simulated cards and the torchrun driver; and the planner as its own process.
// Everything listens on loopback, at ports that were free. Each process has a
// session of its own and a log file in the cluster's folder, can be killed as
// a crash would and started again, and dies with the process that started the
// cluster. Close leaves no process and no mount.
//
// The nodes share the host: what they must not share (ports of allocations,
// the plugins' state) is kept apart by node.
//
// Only Linux: the plugins are. The simulated cluster runs as an ordinary user,
// a real Nomad needs root.
package trial
