package nomadsim

import (
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// How old things are before a server collects them by itself, and how often it looks.
const (
	evalAge       = time.Hour
	batchEvalAge  = 24 * time.Hour
	jobAge        = 4 * time.Hour
	nodeAge       = 24 * time.Hour
	deploymentAge = time.Hour
	gcInterval    = 5 * time.Minute
)

// retryInterval is how often a server looks again at jobs whose plans were refused too often.
const retryInterval = time.Minute

// housekeeping is what a server does every so often.
func (c *Cluster) housekeeping() {
	c.every(gcInterval, func() { c.collect(false) })
	c.every(retryInterval, c.blocked.freeFailed)
}

func (c *Cluster) every(d time.Duration, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.regular[d] = c.clock.AfterFunc(d, func() {
		c.spawn(func() {
			f()
			c.every(d, f)
		})
	})
}

// collect removes what has ended long ago; with force whatever has ended.
func (c *Cluster) collect(force bool) {
	snap := c.store.Snapshot()
	now := c.clock.Now()
	old := func(ns int64, age time.Duration) bool { return force || now.Sub(time.Unix(0, ns)) > age }
	var evals []*wire.Evaluation
	var allocs []*wire.Allocation
	var jobs []*wire.Job
	goneJob := map[jobKey]bool{}
	for j := range snap.Jobs("*", "") {
		if !jobCollectable(j) || !old(j.SubmitTime, jobAge) || tagged(snap, j) {
			continue
		}
		var es []*wire.Evaluation
		var as []*wire.Allocation
		all := true
		for e := range snap.EvalsByJob(j.Namespace, j.ID) {
			ok, list := c.evalCollectable(snap, e, true, func(ns int64) bool { return old(ns, jobAge) })
			all = all && ok
			es, as = append(es, e), append(as, list...)
		}
		if all {
			goneJob[jobKey{j.Namespace, j.ID}] = true
			jobs = append(jobs, j)
			evals, allocs = append(evals, es...), append(allocs, as...)
		}
	}
	for e := range snap.Evals("") {
		if goneJob[keyOf(e)] {
			continue
		}
		age := evalAge
		if e.Type == wire.TypeBatch {
			age = batchEvalAge
		}
		ok, list := c.evalCollectable(snap, e, false, func(ns int64) bool { return old(ns, age) })
		allocs = append(allocs, list...)
		if ok {
			evals = append(evals, e)
		}
	}
	var deployments []*wire.Deployment
	for d := range snap.Deployments("") {
		if !d.Active() && old(d.ModifyTime, deploymentAge) && !inUse(snap, d) {
			deployments = append(deployments, d)
		}
	}
	if len(evals)+len(allocs)+len(jobs)+len(deployments) > 0 {
		c.store.Apply(func(tx *store.Txn) {
			tx.DeleteEvals(evals, allocs)
			for _, j := range jobs {
				tx.Kind("JobDeregistered")
				tx.DeleteJob(j.Namespace, j.ID)
			}
			for _, d := range deployments {
				tx.DeleteDeployment(d)
			}
		})
	}
	for n := range snap.Nodes("") {
		if n.Status != wire.NodeDown || !old(n.StatusUpdatedAt*int64(time.Second), nodeAge) {
			continue
		}
		busy := false
		for a := range c.store.Snapshot().AllocsByNode(n.ID) {
			busy = busy || !a.Terminal()
		}
		if !busy {
			c.store.Apply(func(tx *store.Txn) { tx.DeleteNode(n.ID) })
		}
	}
	for _, a := range allocs {
		c.wake(a.NodeID) // its client forgets it
	}
}

func inUse(snap *store.Snapshot, d *wire.Deployment) bool {
	for a := range snap.AllocsByJob(d.Namespace, d.JobID) {
		if a.DeploymentID == d.ID && !a.Terminal() {
			return true
		}
	}
	return false
}

func jobCollectable(j *wire.Job) bool {
	if j.Status != wire.JobDead {
		return false
	}
	batch := j.Type == wire.TypeBatch || j.Type == wire.TypeSysBatch
	return j.Stop || batch && !j.IsPeriodic() && !j.IsParameterized()
}

func tagged(snap *store.Snapshot, j *wire.Job) bool {
	for _, v := range snap.Versions(j.Namespace, j.ID) {
		if v.VersionTag != nil {
			return true
		}
	}
	return false
}

// evalCollectable says whether an evaluation can go, and which of its allocations can. The allocations of a batch job
// tell what has run: those of its present version stay until the job is over, and with its evaluation alone even then.
func (c *Cluster) evalCollectable(snap *store.Snapshot, e *wire.Evaluation, withJob bool, old func(int64) bool) (bool, []*wire.Allocation) {
	if !e.Terminal() || !old(e.ModifyTime) {
		return false, nil
	}
	job := snap.Job(e.Namespace, e.JobID)
	ok := true
	var list []*wire.Allocation
	olderOnly := e.Type == wire.TypeBatch && job != nil && !(job.Status == wire.JobDead && (job.Stop || withJob))
	for a := range snap.AllocsByEval(e.ID) {
		can := a.Terminal() && old(a.ModifyTime)
		if olderOnly {
			can = can && a.CreateIndex < job.JobModifyIndex
		} else {
			can = can && c.replaceable(a, job)
		}
		if can {
			list = append(list, a)
		} else {
			ok = false
		}
	}
	return ok, list
}

// replaceable says whether nothing would be missed of a terminal allocation: it does not run, and is not one that
// failed and still waits for its replacement.
func (c *Cluster) replaceable(a *wire.Allocation, job *wire.Job) bool {
	if a.ClientStatus == wire.ClientRunning {
		return false
	}
	if job == nil || job.Stop || job.Status == wire.JobDead || a.DesiredStatus == wire.DesiredStop || a.ClientStatus != wire.ClientFailed || a.NextAllocation != "" {
		return true
	}
	g := job.Group(a.TaskGroup)
	if g == nil || !g.ReschedulePolicy.Enabled() {
		return true
	}
	if g.ReschedulePolicy.Unlimited || a.RescheduleTracker == nil || len(a.RescheduleTracker.Events) == 0 {
		return false
	}
	last := a.RescheduleTracker.Events[len(a.RescheduleTracker.Events)-1]
	return c.clock.Now().UnixNano()-last.RescheduleTime > int64(g.ReschedulePolicy.Interval)
}
