package sched

import (
	"maps"
	"slices"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// generic plans for service and batch jobs.
func (p *planner) generic() {
	batch := p.eval.Type == wire.TypeBatch
	if !batch {
		p.deployment = p.w.snap.LatestDeployment(p.eval.Namespace, p.eval.JobID)
	}
	allocs := slices.Collect(p.w.snap.AllocsByJob(p.eval.Namespace, p.eval.JobID))
	tainted := p.tainted(allocs)
	p.loseStopped(allocs, tainted)
	r := &reconciler{w: p.w, job: p.job, eval: p.eval, batch: batch, allocs: allocs, tainted: tainted, current: p.deployment, inPlace: p.inPlace}
	out := r.run()
	p.annotations = &wire.PlanAnnotations{DesiredTGUpdates: out.desired}
	p.followups = out.followups
	p.plan.Deployment, p.plan.DeploymentUpdates = out.deployment, out.updates
	if out.deployment != nil {
		p.deployment = out.deployment
	}
	for _, s := range out.stop {
		p.stop(s.alloc, s.clientStatus, s.because, s.followup)
	}
	for _, a := range slices.Concat(out.unknown, out.reconnected) {
		p.put(a, true)
	}
	for _, a := range out.inPlace {
		id := ""
		if p.deployment != nil {
			id = p.deployment.ID
		}
		if a.DeploymentID != id {
			a.DeploymentID, a.DeploymentStatus = id, nil
		}
		p.put(a, true)
	}
	for _, a := range out.attributes {
		p.put(a, true)
	}
	if p.job != nil && len(out.place)+len(out.replace) == 0 {
		for _, g := range p.job.TaskGroups {
			p.queued[g.Name] = 0
		}
		return
	}
	for _, pl := range slices.Concat(out.place, out.replace) {
		p.queued[pl.group.Name]++
	}
	if p.job.Stopped() {
		return
	}
	p.stack.setNodes(p.readyNodes(), true)
	for i, pl := range slices.Concat(out.replace, out.place) {
		if i%64 == 0 && p.env.Cancelled != nil && p.env.Cancelled() {
			return
		}
		p.place(pl, out.names[pl.group.Name])
	}
}

func (p *planner) place(pl placement, idx *names) {
	g := pl.group
	if m := p.failed[g.Name]; m != nil {
		m.CoalescedFailures++
		exhaustedResources(m, g)
		return
	}
	if pl.stop != nil {
		p.stop(pl.stop, "", becauseUpdating, "")
	}
	want := wish{preferred: p.preferred(pl)}
	if prev := pl.previous; prev != nil {
		want.penalty = map[string]bool{}
		if prev.ClientStatus == wire.ClientFailed {
			want.penalty[prev.NodeID] = true
		}
		if prev.RescheduleTracker != nil {
			for _, e := range prev.RescheduleTracker.Events {
				want.penalty[e.PrevNodeID] = true
			}
		}
	}
	c, m := p.stack.choose(g, want)
	if c == nil && p.env.Preemption[p.job.Type] {
		want.preempt = true
		c, m = p.stack.choose(g, want)
	}
	p.complete(m)
	if c == nil {
		exhaustedResources(m, g)
		if p.failed == nil {
			p.failed = map[string]*wire.AllocMetric{}
		}
		p.failed[g.Name] = m
		if pl.stop != nil {
			p.unstop(pl.stop) // what cannot be replaced goes on running
		}
		if pl.previous != nil && pl.reschedule {
			p.failedToReschedule(pl.previous)
		}
		return
	}
	name := pl.name
	if i := indexOf(name); idx.duplicate(i) {
		name = idx.next(1)[0]
		idx.free(i)
	}
	a := p.allocation(g, name, c, m)
	if pl.previous != nil {
		a.PreviousAllocation = pl.previous.ID
		if pl.reschedule {
			a.RescheduleTracker = tracked(pl.previous, p.w.now)
			p.annotatePrevious(pl.previous, lastSuccess)
		}
	}
	if pl.canary && p.deployment != nil {
		a.DeploymentStatus = &wire.AllocDeployment{Canary: true}
	}
	p.evict(a, c, true)
	p.put(a, false)
}

// annotatePrevious notes in the plan's copy of a rescheduled allocation how that went.
func (p *planner) annotatePrevious(prev *wire.Allocation, note string) {
	for _, a := range p.plan.Placed { // what is stopped travels without its tracker
		if a.ID == prev.ID {
			a.RescheduleTracker = annotated(a.RescheduleTracker, note)
			return
		}
	}
}

func annotated(t *wire.RescheduleTracker, note string) *wire.RescheduleTracker {
	c := wire.RescheduleTracker{}
	if t != nil {
		c = *t
	}
	c.LastReschedule = note
	return &c
}

func (p *planner) failedToReschedule(prev *wire.Allocation) {
	p.plan.Stopped = slices.DeleteFunc(p.plan.Stopped, func(s *wire.Allocation) bool { return s.ID == prev.ID })
	for _, a := range p.plan.Placed {
		if a.ID == prev.ID {
			a.RescheduleTracker = annotated(a.RescheduleTracker, lastFailedToPlace)
			return
		}
	}
	c := *prev
	c.RescheduleTracker = annotated(prev.RescheduleTracker, lastFailedToPlace)
	p.plan.Placed = append(p.plan.Placed, &c)
}

// preferred is the node where a sticky disk lies.
func (p *planner) preferred(pl placement) *wire.Node {
	prev := pl.previous
	if prev == nil || prev.Job == nil || prev.Job.NodePool != p.job.NodePool || !slices.Equal(prev.Job.Datacenters, p.job.Datacenters) {
		return nil
	}
	if d := pl.group.EphemeralDisk; !d.Sticky && !d.Migrate {
		return nil
	}
	if n := p.w.snap.Node(prev.NodeID); n != nil && n.Ready() {
		return n
	}
	return nil
}

// inPlace works out the changed allocation where the change needs no restart and the node still suits.
func (p *planner) inPlace(a *wire.Allocation, g *wire.TaskGroup) (*wire.Allocation, bool) {
	n := p.w.snap.Node(a.NodeID)
	if n == nil || !inPool(n, p.job.NodePool) || !inDatacenter(n, p.job.Datacenters) {
		return nil, false
	}
	u := *a
	u.EvalID, u.Job = p.eval.ID, p.job
	// A job whose version so far bounds its run time is never checked again: a real server compares that bound with
	// one that is not there, and calls it a change that needs no check.
	if old := a.Group(); old != nil && old.MaxRunDuration != nil {
		return &u, true
	}
	usage := p.w.node(n.ID)
	usage.remove(a)
	nodes, offset, limit := p.stack.nodes, p.stack.offset, p.stack.limit
	p.stack.setNodes([]*wire.Node{n}, false)
	c, _ := p.stack.choose(g, wish{})
	p.stack.nodes, p.stack.offset, p.stack.limit = nodes, offset, limit
	usage.add(a)
	if c == nil {
		return nil, false
	}
	res := *c.resources
	res.Tasks = maps.Clone(res.Tasks)
	if a.AllocatedResources != nil {
		for name, t := range res.Tasks {
			if was := a.AllocatedResources.Tasks[name]; was != nil {
				x := *t
				x.Networks, x.Devices, x.Cpu.ReservedCores = was.Networks, was.Devices, was.Cpu.ReservedCores
				res.Tasks[name] = &x
			}
		}
		res.Shared.Networks, res.Shared.Ports = a.AllocatedResources.Shared.Networks, a.AllocatedResources.Shared.Ports
	}
	u.AllocatedResources = &res
	u.Resources = combined(&res)
	return &u, true
}
