package nomadsim

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/sched"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// work runs evaluations until the broker is closed.
func (c *Cluster) work() {
	for {
		e := c.broker.next()
		if e == nil {
			return
		}
		c.evaluate(e)
		for _, u := range c.broker.done(e) {
			c.cancelEval(u, "canceled after more recent eval was processed")
		}
	}
}

func (c *Cluster) cancelEval(e *wire.Evaluation, why string) {
	cur := c.store.Snapshot().Eval(e.ID)
	if cur == nil || cur.Terminal() {
		return
	}
	u := *cur
	u.Status, u.StatusDescription, u.ModifyTime = wire.EvalCancelled, why, c.clock.Now().UnixNano()
	c.putEvals(&u)
}

// putEvals writes evaluations and returns the index.
func (c *Cluster) putEvals(evals ...*wire.Evaluation) uint64 {
	return c.store.Apply(func(tx *store.Txn) {
		tx.Kind("EvaluationUpdated")
		tx.PutEvals(evals...)
	})
}

// env is what the scheduler gets beside the state.
func (c *Cluster) env() sched.Env {
	return sched.Env{Now: c.clock.Now(), Seed: c.opts.Seed, NewID: c.newID, Preemption: c.preemption(), SigningKey: c.signingKey,
		Cancelled: func() bool { return c.ctx.Err() != nil }}
}

func (c *Cluster) preemption() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.schedulerConfig.PreemptionConfig
	return map[string]bool{wire.TypeSystem: p.SystemSchedulerEnabled, wire.TypeSysBatch: p.SysBatchSchedulerEnabled,
		wire.TypeBatch: p.BatchSchedulerEnabled, wire.TypeService: p.ServiceSchedulerEnabled}
}

// evaluate schedules one evaluation and writes down what comes of it.
func (c *Cluster) evaluate(e *wire.Evaluation) {
	eval := c.store.Snapshot().Eval(e.ID)
	if eval == nil || eval.Terminal() {
		return
	}
	next := ""
	var made *wire.Evaluation
	var res *sched.Result
	var index uint64
	followedUp := false
	for attempt := 0; ; attempt++ {
		snap := c.store.Snapshot()
		index = snap.Index()
		start := time.Now()
		env := c.env()
		res = sched.Schedule(snap, eval, env)
		if c.ctx.Err() != nil {
			return
		}
		stampTimes(res, time.Since(start))
		if res.Blocked != nil && made == nil && eval.Status != wire.EvalBlocked {
			made = res.Blocked
			made.SnapshotIndex = index
			c.putEvals(made)
		}
		for _, b := range res.PerNode {
			b.SnapshotIndex = index
			c.putEvals(b)
		}
		if res.Plan.Empty() {
			break
		}
		if len(res.Followups) > 0 && eval.WaitUntil.IsZero() && !followedUp {
			followedUp = true
			for _, f := range res.Followups {
				f.SnapshotIndex, f.CreateTime, f.ModifyTime = index, env.Now.UnixNano(), env.Now.UnixNano()
				c.putEvals(f)
				next = f.ID
			}
		}
		res.Plan.NextEval = next
		job := snap.Job(eval.Namespace, eval.JobID)
		whole, rejected := c.applyPlan(res, job != nil && job.AllAtOnce)
		if whole {
			break
		}
		if attempt+1 < sched.MaxAttempts(eval.Type) {
			continue
		}
		c.logf("evaluation %s of job %s: the plan was refused %d times, last: %v", eval.ID[:8], eval.JobID, attempt+1, rejected)
		made = sched.BlockedFor(eval, res, env)
		made.TriggeredBy, made.StatusDescription, made.SnapshotIndex = wire.TriggerMaxPlans, "created due to placement conflicts", index
		c.putEvals(made)
		c.finish(eval, res, index, made, next, wire.EvalFailed, fmt.Sprintf("maximum attempts reached (%d)", sched.MaxAttempts(eval.Type)))
		return
	}
	if eval.Status == wire.EvalBlocked && len(res.Failed) > 0 {
		// It goes on waiting; a server keeps that in memory only.
		again := *eval
		again.EscapedComputedClass, again.ClassEligibility, again.SnapshotIndex = res.Escaped, res.Classes, index
		c.block(&again)
		return
	}
	c.finish(eval, res, index, made, next, wire.EvalComplete, "")
}

func (c *Cluster) finish(eval *wire.Evaluation, res *sched.Result, index uint64, made *wire.Evaluation, next, status, why string) {
	done := *eval
	done.Status, done.StatusDescription = status, why
	done.FailedTGAllocs, done.PlanAnnotations, done.QueuedAllocations = res.Failed, res.Annotations, res.Queued
	done.SnapshotIndex, done.ModifyTime = index, c.clock.Now().UnixNano()
	if res.Deployment != "" {
		done.DeploymentID = res.Deployment
	}
	if made != nil {
		done.BlockedEval = made.ID
	}
	if next != "" {
		done.NextEval = next
	}
	c.putEvals(&done)
}

// stampTimes notes in the metrics how long choosing took.
func stampTimes(res *sched.Result, took time.Duration) {
	n := len(res.Failed)
	for _, a := range res.Plan.Placed {
		if a.CreateIndex == 0 {
			n++
		}
	}
	if n == 0 {
		return
	}
	each := max(took/time.Duration(n), 1)
	for _, m := range res.Failed {
		m.AllocationTime = each
	}
	for _, a := range res.Plan.Placed {
		if a.CreateIndex == 0 && a.Metrics != nil {
			a.Metrics.AllocationTime = each
		}
	}
}

// applyPlan commits what of a plan still fits. It counts down what is queued and says whether all of it went through.
func (c *Cluster) applyPlan(res *sched.Result, allAtOnce bool) (whole bool, rejected map[string]string) {
	c.plans.Lock()
	defer c.plans.Unlock()
	if c.opts.SignTime > 0 {
		time.Sleep(time.Duration(newTasks(res.Plan)) * c.opts.SignTime)
	}
	_, err := c.store.TryApply(func(tx *store.Txn) error {
		// The store is locked: the state that the plan is checked against is the one it is applied to.
		var ok *store.Plan
		ok, rejected = sched.Admit(c.store.Snapshot(), res.Plan, allAtOnce)
		if hook := c.hooks.planHook(); hook != nil {
			refused := map[string]string{}
			for _, node := range hook(ok) {
				refused[node] = "refused by a hook"
			}
			ok = withoutNodes(ok, refused)
			maps.Copy(refused, rejected)
			rejected = refused
		}
		if ok.Empty() {
			return errNothing
		}
		if len(ok.Preempted) > 0 {
			p := *ok
			p.PreemptionEvals = c.preemptionEvals(ok.Preempted)
			ok = &p
		}
		tx.ApplyPlan(ok)
		for _, a := range ok.Placed {
			if a.CreateIndex == 0 {
				res.Queued[a.TaskGroup]--
			}
		}
		return nil
	})
	_ = err // nothing left of the plan: rejected tells why
	return len(rejected) == 0, rejected
}

// newTasks counts the tasks of the allocations that a plan places anew.
func newTasks(p *store.Plan) int {
	n := 0
	for _, a := range p.Placed {
		if g := a.Group(); a.CreateIndex == 0 && g != nil {
			n += len(g.Tasks)
		}
	}
	return n
}

var errNothing = errors.New("nothing to apply")

func withoutNodes(p *store.Plan, nodes map[string]string) *store.Plan {
	if len(nodes) == 0 {
		return p
	}
	out := *p
	keep := func(list []*wire.Allocation) []*wire.Allocation {
		var k []*wire.Allocation
		for _, a := range list {
			if _, bad := nodes[a.NodeID]; !bad {
				k = append(k, a)
			}
		}
		return k
	}
	out.Placed, out.Stopped, out.Preempted = keep(p.Placed), keep(p.Stopped), keep(p.Preempted)
	return &out
}

// preemptionEvals look after the jobs that lost allocations.
func (c *Cluster) preemptionEvals(list []*wire.Allocation) []*wire.Evaluation {
	var out []*wire.Evaluation
	seen := map[jobKey]bool{}
	now := c.clock.Now().UnixNano()
	for _, a := range list {
		k := jobKey{a.Namespace, a.JobID}
		if seen[k] {
			continue
		}
		seen[k] = true
		out = append(out, &wire.Evaluation{ID: c.newID(), Namespace: a.Namespace, Priority: a.Job.Priority, Type: a.Job.Type,
			TriggeredBy: wire.TriggerPreemption, JobID: a.JobID, Status: wire.EvalPending, CreateTime: now, ModifyTime: now})
	}
	return out
}

// block keeps a blocked evaluation, and cancels what that makes unneeded.
func (c *Cluster) block(e *wire.Evaluation) {
	if dup := c.blocked.block(e); dup != nil {
		c.spawn(func() {
			c.cancelEval(dup, fmt.Sprintf("existing blocked evaluation exists for job %q", dup.JobID))
		})
	}
}

// changed follows what was written: new evaluations go to the broker, room goes to who waits for it, allocations to
// their clients. It runs under the store's lock.
func (c *Cluster) changed(ch *store.Changes) {
	c.moves.Add(1)
	for _, e := range ch.Evals {
		switch {
		case e.Status == wire.EvalPending:
			c.broker.enqueue(e)
		case e.Status == wire.EvalBlocked:
			c.block(e)
		case e.Status == wire.EvalCancelled:
			c.broker.drop(e.ID)
		case e.Status == wire.EvalComplete && len(e.FailedTGAllocs) == 0:
			c.blocked.untrack(keyOf(e))
		}
	}
	snap := c.store.Snapshot()
	for _, n := range ch.Nodes {
		if n.Ready() {
			c.blocked.free(n.ComputedClass, n.ID, ch.Index)
		}
	}
	touched := map[string]bool{}
	for _, a := range ch.Allocs {
		if a.Before != nil && !a.Before.ClientTerminal() && a.After.ClientTerminal() {
			if n := snap.Node(a.After.NodeID); n != nil {
				c.blocked.free(n.ComputedClass, n.ID, ch.Index)
			}
		}
		if a.After.AllocModifyIndex == ch.Index {
			touched[a.After.NodeID] = true
		}
	}
	for _, a := range ch.Gone {
		touched[a.NodeID] = true
	}
	for id := range touched {
		c.wake(id)
	}
	c.follow(ch)
}
