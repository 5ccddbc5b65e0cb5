package nomadsim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// drainer moves allocations off nodes that drain: services a few at a time, batch jobs run on until the deadline and are
// then stopped without a replacement, system jobs go last.
type drainer struct {
	c      *Cluster
	mu     sync.Mutex
	timers map[string]func() // deadlines by node
	poke   chan struct{}
	looks  atomic.Int64 // that are asked for or under way
}

func newDrainer(c *Cluster) *drainer {
	d := &drainer{c: c, timers: map[string]func(){}, poke: make(chan struct{}, 1)}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		for {
			select {
			case <-c.ctx.Done():
				return
			case <-d.poke:
				d.look()
				d.looks.Add(-1)
			}
		}
	}()
	return d
}

func (d *drainer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, stop := range d.timers {
		stop()
	}
}

// again has the drainer look at what drains. It may be called under the store's lock.
func (d *drainer) again() {
	d.looks.Add(1)
	select {
	case d.poke <- struct{}{}:
	default:
		d.looks.Add(-1)
	}
}

func (d *drainer) idle() bool { return d.looks.Load() == 0 }

// begin sets a deadline.
func (d *drainer) begin(node string, s *wire.DrainStrategy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stop := d.timers[node]; stop != nil {
		stop()
		delete(d.timers, node)
	}
	if s == nil {
		return
	}
	switch {
	case s.Deadline < 0:
		d.c.spawn(func() { d.force(node, false) })
	case s.Deadline > 0:
		wait := s.ForceDeadline.Sub(d.c.clock.Now())
		// A server looks at deadlines every now and then only.
		d.timers[node] = d.c.clock.AfterFunc(max(wait, time.Millisecond), func() { d.c.spawn(func() { d.force(node, true) }) })
	}
}

func yes() *bool {
	b := true
	return &b
}

// force stops everything on the node.
func (d *drainer) force(node string, deadline bool) {
	snap := d.c.store.Snapshot()
	n := snap.Node(node)
	if n == nil || n.DrainStrategy == nil {
		return
	}
	var list []*wire.Allocation
	for a := range snap.AllocsByNode(node) {
		if a.Terminal() || a.Job.Type == wire.TypeSystem && n.DrainStrategy.IgnoreSystemJobs {
			continue
		}
		list = append(list, a)
	}
	d.transition(list)
	details := map[string]string{}
	if deadline {
		details["deadline_reached"] = "true"
	}
	d.finish(node, details)
}

// transition asks for allocations to leave; those of batch jobs get no replacement.
func (d *drainer) transition(list []*wire.Allocation) {
	if len(list) == 0 {
		return
	}
	var ts []store.Transition
	seen := map[jobKey]bool{}
	var evals []*wire.Evaluation
	snap := d.c.store.Snapshot()
	for _, a := range list {
		t := store.Transition{ID: a.ID, Desire: wire.DesiredTransition{Migrate: yes()}}
		if a.Job.Type == wire.TypeBatch {
			t.Desire.MigrateDisablePlacement = yes()
		}
		ts = append(ts, t)
		k := jobKey{a.Namespace, a.JobID}
		if seen[k] {
			continue
		}
		seen[k] = true
		j := snap.Job(a.Namespace, a.JobID)
		if j == nil {
			j = a.Job
		}
		evals = append(evals, d.c.evalFor(j, wire.TriggerNodeDrain))
	}
	d.c.store.Apply(func(tx *store.Txn) { tx.SetTransitions(ts, evals) })
}

func (d *drainer) finish(node string, details map[string]string) {
	d.c.store.Apply(func(tx *store.Txn) {
		tx.SetDrain(node, nil, false, "complete", "Node drain complete", nil, details)
	})
	d.begin(node, nil)
}

// look moves what may move now, and ends the drains that are through.
func (d *drainer) look() {
	snap := d.c.store.Snapshot()
	var draining []*wire.Node
	for n := range snap.Nodes("") {
		if n.DrainStrategy != nil {
			draining = append(draining, n)
		}
	}
	if len(draining) == 0 {
		return
	}
	on := map[string]bool{}
	for _, n := range draining {
		on[n.ID] = true
	}
	var move []*wire.Allocation
	seen := map[jobKey]bool{}
	for _, n := range draining {
		for a := range snap.AllocsByNode(n.ID) {
			k := jobKey{a.Namespace, a.JobID}
			if a.Terminal() || seen[k] || a.Job.Type != wire.TypeService {
				continue
			}
			seen[k] = true
			move = append(move, movable(snap, k, on)...)
		}
	}
	d.transition(move)
	snap = d.c.store.Snapshot()
	for _, n := range draining {
		left, system := 0, []*wire.Allocation(nil)
		for a := range snap.AllocsByNode(n.ID) {
			if a.ClientTerminal() || a.ServerTerminal() && a.Job.Type == wire.TypeSystem {
				continue
			}
			if a.Job.Type == wire.TypeSystem || a.Job.Type == wire.TypeSysBatch {
				if !n.DrainStrategy.IgnoreSystemJobs && !a.DesiredTransition.ShouldMigrate() {
					system = append(system, a)
				}
				continue
			}
			left++
		}
		if left > 0 {
			continue
		}
		d.transition(system)
		d.finish(n.ID, map[string]string{})
	}
}

// movable are the allocations of a service that may leave their draining nodes now: as many as the migrate block lets go
// beyond the healthy ones.
func movable(snap *store.Snapshot, k jobKey, draining map[string]bool) []*wire.Allocation {
	job := snap.Job(k.namespace, k.id)
	var out []*wire.Allocation
	if job == nil {
		return nil
	}
	for _, g := range job.TaskGroups {
		if g.Migrate == nil {
			continue
		}
		healthy := 0
		var may []*wire.Allocation
		for a := range snap.AllocsByJob(k.namespace, k.id) {
			if a.TaskGroup != g.Name {
				continue
			}
			if !a.Terminal() && a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && !a.DesiredTransition.ShouldMigrate() {
				healthy++
			}
			if draining[a.NodeID] && !a.ClientTerminal() && !a.DesiredTransition.ShouldMigrate() {
				may = append(may, a)
			}
		}
		n := min(len(may), healthy-(g.Count-g.Migrate.MaxParallel))
		if n > 0 {
			out = append(out, may[:n]...)
		}
	}
	return out
}

// setDrain begins, changes or ends a node's drain. It returns the index, and the evaluations if the node is used again.
func (c *Cluster) setDrain(node string, spec *wire.DrainSpec, markEligible bool, meta map[string]string) (index uint64, evals []string, evalIndex uint64) {
	var s *wire.DrainStrategy
	message := ""
	old := c.store.Snapshot().Node(node)
	now := c.clock.Now()
	if spec != nil {
		s = &wire.DrainStrategy{DrainSpec: *spec, StartedAt: wire.Time{Time: now}}
		if old != nil && old.DrainStrategy != nil {
			s.StartedAt = old.DrainStrategy.StartedAt
		}
		if spec.Deadline > 0 {
			s.ForceDeadline = wire.Time{Time: now.Add(spec.Deadline)}
		}
		message = "Node drain strategy set"
		if old != nil && old.DrainStrategy != nil {
			message = "Node drain strategy updated"
		}
	} else if old != nil && old.DrainStrategy != nil {
		message = "Node drain canceled"
	}
	status := "canceled"
	index = c.store.Apply(func(tx *store.Txn) { tx.SetDrain(node, s, markEligible, status, message, meta, nil) })
	c.drainer.begin(node, s)
	c.drainer.again()
	if s == nil && markEligible && old != nil && old.SchedulingEligibility == wire.Ineligible {
		evals, evalIndex = c.nodeEvals(node, index)
	}
	return index, evals, evalIndex
}
