// Package nomadsim is a simulated Nomad cluster behind Nomad's real HTTP API, for tests and trials where there is no Nomad.
//
// Users talk to it through github.com/hashicorp/nomad/api or the nomad command; nothing outside needs to know what is
// inside. Start makes a cluster, New one for a test:
//
//	sim := nomadsim.New(t, nomadsim.Options{Nodes: []nomadsim.NodeConfig{{Name: "n1"}, {Name: "n2"}}})
//	client := sim.Client() // or NOMAD_ADDR=sim.URL()
//
// # What it models
//
// Jobs, evaluations, allocations, nodes, deployments, variables with locks, namespaces, node pools, the event stream,
// blocking queries, filters and pages, as a single server of version Version answers them, with ACLs off. Package store
// is the state, package sched the schedulers, wire.go's types the shapes of the answers. A request that is not modelled
// is answered with 501, noted in Unmodelled, and fails the test that owns the cluster.
//
// # Nodes
//
// Virtual nodes run tasks by script, without processes: DefaultScript understands Nomad's mock_driver and a few commands,
// a Script of one's own decides start delays, run times, exits, and what happens on signals and stops. They are cheap: ten
// thousand of them and as many tasks are no trouble. Live nodes launch real plugin binaries as a Nomad client does.
//
// # Time
//
// Options.Clock gives all timers: run times, restarts, heartbeats, deadlines. clock.Scaled runs them faster than the wall
// clock, clock.Manual stands still until a test moves it. Waits of blocking queries and stream heartbeats are in wall
// clock time, since a client waits for them.
//
// # Faults
//
// Hooks delays, fails, drops, holds, repeats and reorders answers, refuses plans and cuts event streams. KillAgent,
// StopAgent, StartAgent and Partition do to nodes what happens to nodes; SetDeviceHealth what happens to cards.
//
// How like a real Nomad it is, and where it differs, is told in docs/nomadsim.md and tested by playing recorded scenes.
package nomadsim
