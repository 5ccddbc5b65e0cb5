// Package e2e holds the end-to-end suite: the same scenarios on a simulated
// and on a real Nomad, with the real planner, plugins, Consul and ranks as
// processes. docs/e2e.md tells how to run it and what it needs.
//
// A scenario submits through the planner or through Nomad as a user would, and
// judges by what can be seen from outside: Nomad's API, Consul's keys, the
// host's processes, and the files that ranks themselves wrote.
package e2e
