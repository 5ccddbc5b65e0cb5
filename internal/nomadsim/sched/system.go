package sched

import (
	"slices"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// system plans for jobs that run on every node that suits: type system, and sysbatch, which runs once on each. Their
// rollouts are not followed by deployments here.
func (p *planner) system() {
	allocs := slices.Collect(p.w.snap.AllocsByJob(p.eval.Namespace, p.eval.JobID))
	tainted := p.tainted(allocs)
	p.loseStopped(allocs, tainted)
	desired := map[string]*wire.DesiredUpdates{}
	of := func(g string) *wire.DesiredUpdates {
		if desired[g] == nil {
			desired[g] = &wire.DesiredUpdates{}
		}
		return desired[g]
	}
	p.annotations = &wire.PlanAnnotations{DesiredTGUpdates: desired}
	var nodes []*wire.Node
	if !p.job.Stopped() {
		nodes = p.readyNodes()
		p.stack.system = true
		for _, g := range p.job.TaskGroups {
			p.queued[g.Name] = 0
			of(g.Name)
		}
	}
	ready := map[string]bool{}
	for _, n := range nodes {
		ready[n.ID] = true
	}
	type spot struct{ node, group string }
	filled := map[spot]bool{}
	over := map[spot]*wire.Allocation{} // the newest that has ended
	var again []placement
	exists := map[string]bool{}
	for _, a := range allocs {
		k := spot{a.NodeID, a.TaskGroup}
		if a.Terminal() {
			if o := over[k]; o == nil || o.CreateIndex < a.CreateIndex {
				over[k] = a
			}
			continue
		}
		var g *wire.TaskGroup
		if !p.job.Stopped() {
			g = p.job.Group(a.TaskGroup)
		}
		d := of(a.TaskGroup)
		if g == nil || g.Count == 0 {
			p.stop(a, "", becauseNotNeeded, "")
			d.Stop++
			continue
		}
		n, isTainted := tainted[a.NodeID]
		filled[k] = true
		exists[g.Name] = true
		switch {
		case a.DesiredTransition.ShouldMigrate():
			p.stop(a, "", becauseTainted, "")
			d.Migrate++
			filled[k] = false
		case needsReconnect(a) && expired(a, p.w.now), isTainted && (n == nil || n.Terminal()):
			p.stop(a, wire.ClientLost, becauseLost, "")
			d.Stop++
			filled[k] = false
		case a.ClientStatus == wire.ClientUnknown:
			d.Ignore++
		case !isTainted && needsReconnect(a):
			u := *a
			withState(&u, a.ClientStatus, p.w.now)
			p.put(&u, true)
			d.Reconnect++
		case isTainted && n.Status == wire.NodeDisconnected && a.ClientStatus == wire.ClientRunning:
			u := *a
			u.ClientStatus, u.ClientDescription = wire.ClientUnknown, becauseUnknown
			withState(&u, wire.ClientUnknown, p.w.now)
			p.put(&u, true)
			d.Disconnect++
		case isTainted:
			d.Ignore++
		case a.Job.JobModifyIndex != p.job.JobModifyIndex:
			if !ready[a.NodeID] {
				p.stop(a, "", becauseNotNeeded, "")
				d.Stop++
				continue
			}
			if !destructive(p.job, a.Job, g.Name) {
				if u, ok := p.inPlace(a, g); ok {
					p.put(u, true)
					d.InPlaceUpdate++
					continue
				}
			}
			again = append(again, placement{group: g, name: a.Name, previous: a, stop: a})
		case !ready[a.NodeID] && p.w.snap.Node(a.NodeID).Ready():
			p.stop(a, "", becauseNotNeeded, "") // no longer in the job's pool or datacenters
			d.Stop++
		default:
			d.Ignore++
		}
	}
	if p.job.Stopped() {
		return
	}
	limit := len(again)
	if m := p.job.Update.MaxParallel; m > 0 {
		limit = m
	}
	var place []systemPlacement
	for i, pl := range again {
		if i >= limit {
			of(pl.group.Name).Ignore++
			continue
		}
		of(pl.group.Name).DestructiveUpdate++
		place = append(place, systemPlacement{pl, pl.previous.NodeID})
	}
	for _, n := range nodes {
		for _, g := range p.job.TaskGroups {
			k := spot{n.ID, g.Name}
			if g.Count == 0 || filled[k] {
				continue
			}
			if _, bad := tainted[n.ID]; bad {
				continue
			}
			prev := over[k]
			if prev != nil && p.job.Type == wire.TypeSysBatch && prev.Job.JobModifyIndex == p.job.JobModifyIndex {
				of(g.Name).Ignore++
				exists[g.Name] = true
				continue
			}
			place = append(place, systemPlacement{placement{group: g, name: (&names{job: p.job.ID, group: g.Name}).name(0), previous: prev}, n.ID})
		}
	}
	p.placeSystem(place, exists)
}

type systemPlacement struct {
	placement
	node string
}

func (p *planner) placeSystem(list []systemPlacement, exists map[string]bool) {
	placed := map[string]uint64{}
	filteredOut := map[string]*wire.AllocMetric{}
	for _, pl := range list {
		p.queued[pl.group.Name]++
	}
	for _, pl := range list {
		g := pl.group
		if pl.stop != nil {
			p.stop(pl.stop, "", becauseUpdating, "")
		}
		p.stack.setNodes([]*wire.Node{p.w.snap.Node(pl.node)}, false)
		p.stack.elig = newEligibility(p.job) // each node is judged for itself
		c, m := p.stack.choose(g, wish{preempt: p.env.Preemption == nil || p.env.Preemption[p.job.Type]})
		if c == nil {
			if m.NodesFiltered > 0 { // the node is no use to the job: nothing is missing there
				p.queued[g.Name]--
				filteredOut[g.Name] = mergeFiltered(filteredOut[g.Name], m)
				if p.queued[g.Name] <= 0 && !exists[g.Name] {
					p.fail(g.Name, filteredOut[g.Name])
				}
				continue
			}
			if old := p.failed[g.Name]; old != nil {
				old.CoalescedFailures++
				exhaustedResources(old, g)
				continue
			}
			p.complete(m)
			exhaustedResources(m, g)
			p.fail(g.Name, m)
			b := BlockedFor(p.eval, &Result{Failed: p.failed, Escaped: p.stack.elig.escaped(), Classes: p.stack.elig.classes()}, p.env)
			b.NodeID = pl.node
			p.perNode = append(p.perNode, b)
			continue
		}
		m.NodesAvailable, m.NodesInPool = p.available, p.inPool
		a := p.allocation(g, pl.name, c, m)
		if pl.previous != nil {
			a.PreviousAllocation = pl.previous.ID
		}
		p.evict(a, c, p.eval.AnnotatePlan)
		p.put(a, false)
		placed[g.Name]++
	}
	for name, d := range p.annotations.DesiredTGUpdates {
		d.Place = placed[name] + d.Ignore
	}
}

func (p *planner) fail(group string, m *wire.AllocMetric) {
	if p.failed == nil {
		p.failed = map[string]*wire.AllocMetric{}
	}
	p.failed[group] = m
}

func mergeFiltered(acc, m *wire.AllocMetric) *wire.AllocMetric {
	if acc == nil {
		c := *m
		return &c
	}
	acc.NodesEvaluated += m.NodesEvaluated
	acc.NodesFiltered += m.NodesFiltered
	for k, v := range m.ClassFiltered {
		for range v {
			bump(&acc.ClassFiltered, k)
		}
	}
	for k, v := range m.ConstraintFiltered {
		for range v {
			bump(&acc.ConstraintFiltered, k)
		}
	}
	acc.AllocationTime += m.AllocationTime
	return acc
}
