package sched

import (
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Admit checks a plan against the newest state, node by node, as a leader does before it commits: what no longer fits
// is dropped. Rejected tells the nodes where that was so, with the reason; with allAtOnce one such node drops everything.
func Admit(snap *store.Snapshot, p *store.Plan, allAtOnce bool) (ok *store.Plan, rejected map[string]string) {
	placed := byNode(p.Placed)
	rejected = map[string]string{}
	for id, list := range placed {
		if why := admitNode(snap, id, list, p); why != "" {
			rejected[id] = why
		}
	}
	if len(rejected) == 0 {
		return p, nil
	}
	out := *p
	if allAtOnce {
		out.Placed, out.Stopped, out.Preempted, out.Deployment, out.DeploymentUpdates = nil, nil, nil, nil, nil
		return &out, rejected
	}
	keep := func(list []*wire.Allocation) []*wire.Allocation {
		var k []*wire.Allocation
		for _, a := range list {
			if _, bad := rejected[a.NodeID]; !bad {
				k = append(k, a)
			}
		}
		return k
	}
	out.Placed, out.Stopped, out.Preempted = keep(p.Placed), keep(p.Stopped), keep(p.Preempted)
	return &out, rejected
}

func byNode(list []*wire.Allocation) map[string][]*wire.Allocation {
	m := map[string][]*wire.Allocation{}
	for _, a := range list {
		m[a.NodeID] = append(m[a.NodeID], a)
	}
	return m
}

func admitNode(snap *store.Snapshot, id string, list []*wire.Allocation, p *store.Plan) string {
	n := snap.Node(id)
	switch {
	case n == nil:
		return "node does not exist"
	case n.Status == wire.NodeDisconnected:
		for _, a := range list {
			if a.ClientStatus != wire.ClientUnknown {
				return "node is disconnected and contains invalid updates"
			}
		}
		return ""
	case n.Status == wire.NodeDown:
		for _, a := range list {
			if !(a.ClientStatus == wire.ClientUnknown && !replaceOnDisconnect(a)) && a.ClientStatus != wire.ClientLost {
				return "node is down and contains invalid updates"
			}
		}
		return ""
	case n.Status != wire.NodeReady:
		return "node is not ready for placements"
	}
	existing := map[string]bool{}
	u := newUsage()
	for a := range snap.AllocsByNode(id) {
		if !a.Terminal() {
			existing[a.ID] = true
		}
		// What was stopped in an earlier plan holds its devices and ports until its client says that it has ended.
		if !a.ClientTerminal() {
			u.add(a)
		}
	}
	onlyKnown := true
	for _, a := range list {
		onlyKnown = onlyKnown && existing[a.ID]
	}
	if onlyKnown {
		return ""
	}
	if n.SchedulingEligibility == wire.Ineligible {
		return "node is not eligible"
	}
	for _, stopped := range [][]*wire.Allocation{p.Stopped, p.Preempted} {
		for _, a := range stopped {
			if a.NodeID == id {
				u.remove(a)
			}
		}
	}
	for _, a := range list {
		u.add(a)
	}
	if dim := capacity(n).lacks(amount{u.cpu, u.mem, u.disk}); dim != "" {
		return dim
	}
	for _, c := range u.devices {
		if c > 1 {
			return "device oversubscribed"
		}
	}
	for _, c := range u.ports {
		if c > 1 {
			return "reserved port collision"
		}
	}
	for _, c := range u.cores {
		if c > 1 {
			return "cores"
		}
	}
	return ""
}

// NodeSuits says whether a node is in a job's pool and datacenters.
func NodeSuits(n *wire.Node, j *wire.Job) bool {
	return inPool(n, j.NodePool) && inDatacenter(n, j.Datacenters)
}

// Expired says whether an allocation's client was away for longer than the allocation may be unknown.
func Expired(a *wire.Allocation, now time.Time) bool { return expired(a, now) }
