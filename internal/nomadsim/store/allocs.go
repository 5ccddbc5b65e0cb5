package store

import (
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Plan is what a scheduler wants done at once.
type Plan struct {
	EvalID            string
	NextEval          string             // the evaluation's, once it is known
	Placed            []*wire.Allocation // new and changed in place
	Stopped           []*wire.Allocation
	Preempted         []*wire.Allocation
	PreemptionEvals   []*wire.Evaluation
	Deployment        *wire.Deployment
	DeploymentUpdates []*wire.Deployment
}

// Empty says whether the plan changes nothing.
func (p *Plan) Empty() bool {
	return len(p.Placed)+len(p.Stopped)+len(p.Preempted)+len(p.DeploymentUpdates) == 0 && p.Deployment == nil
}

// ApplyPlan puts a plan's results.
func (tx *Txn) ApplyPlan(p *Plan) {
	tx.Kind("PlanResult")
	if p.Deployment != nil {
		tx.PutDeployment(p.Deployment)
	}
	for _, d := range p.DeploymentUpdates {
		if d.Status == wire.DeploymentSuccessful {
			tx.markStable(d)
		}
		tx.PutDeployment(d)
	}
	if e := as[wire.Evaluation](tx.get(Evals, p.EvalID)); e != nil {
		c := *e
		c.ModifyIndex = tx.index
		if p.NextEval != "" {
			c.NextEval = p.NextEval
		}
		tx.put(Evals, c.ID, &c)
		tx.put(byEvalJob, key(c.Namespace, c.JobID, c.ID), &c)
		tx.event("Evaluation", c.Namespace, c.ID, []string{c.JobID, c.DeploymentID}, map[string]any{"Evaluation": &c})
	}
	type id struct{ namespace, job string }
	force := map[id]string{}
	var jobs []id
	for _, list := range [][]*wire.Allocation{p.Placed, p.Stopped, p.Preempted} {
		for _, a := range list {
			if !tx.putPlanned(a) {
				continue
			}
			k := id{a.Namespace, a.JobID}
			if _, ok := force[k]; !ok {
				jobs = append(jobs, k)
			}
			force[k] = ""
			if !a.Terminal() {
				force[k] = wire.JobRunning
			}
		}
	}
	for _, k := range jobs {
		tx.refreshJob(k.namespace, k.job, force[k])
	}
	if len(p.PreemptionEvals) > 0 {
		for _, e := range p.PreemptionEvals {
			tx.putEvalFull(e)
		}
	}
}

func (tx *Txn) putPlanned(in *wire.Allocation) bool {
	a := *in
	was := tx.alloc(a.ID)
	a.CreateIndex, a.ModifyIndex, a.AllocModifyIndex = tx.index, tx.index, tx.index
	if was == nil {
		if j := tx.Job(a.Namespace, a.JobID); j.Stopped() {
			return false
		}
		if a.DeploymentStatus != nil {
			d := *a.DeploymentStatus
			d.ModifyIndex = tx.index
			a.DeploymentStatus = &d
		}
	} else {
		a.CreateIndex = was.CreateIndex
		if was.NextAllocation != "" {
			a.NextAllocation = was.NextAllocation
		}
		a.TaskStates = was.TaskStates
		if a.ClientStatus != wire.ClientLost && a.ClientStatus != wire.ClientUnknown {
			a.ClientStatus, a.ClientDescription = was.ClientStatus, was.ClientDescription
		}
		if a.Job == nil {
			a.Job = was.Job
		}
	}
	tx.deploymentForAlloc(&a, was)
	tx.summaryForAlloc(&a, was)
	tx.putAlloc(&a, was)
	if prev := tx.alloc(a.PreviousAllocation); prev != nil && prev.NextAllocation != a.ID {
		p := *prev
		p.NextAllocation, p.ModifyIndex = a.ID, tx.index
		tx.putAlloc(&p, prev)
	}
	return true
}

// Alloc returns an allocation, or nil.
func (tx *Txn) Alloc(id string) *wire.Allocation { return tx.alloc(id) }

func (tx *Txn) alloc(id string) *wire.Allocation {
	if id == "" {
		return nil
	}
	return as[wire.Allocation](tx.get(Allocs, id))
}

func (tx *Txn) putAlloc(a, was *wire.Allocation) {
	if was != nil && was.EvalID != a.EvalID {
		tx.delete(byAllocEval, key(was.EvalID, a.ID))
	}
	tx.put(Allocs, a.ID, a)
	tx.put(byAllocJob, key(a.Namespace, a.JobID, a.ID), a)
	tx.put(byAllocNode, key(a.NodeID, a.ID), a)
	tx.put(byAllocEval, key(a.EvalID, a.ID), a)
	tx.changes.Allocs = append(tx.changes.Allocs, AllocChange{was, a})
	if tx.kind != "" {
		shown := *a
		shown.Job = nil
		tx.event("Allocation", a.Namespace, a.ID, []string{a.JobID, a.DeploymentID}, map[string]any{"Allocation": &shown})
	}
}

// ClientUpdate is what a client tells of an allocation.
type ClientUpdate struct {
	ID, NodeID        string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*wire.TaskState
	NetworkStatus     *wire.AllocNetworkStatus
	DeploymentStatus  *wire.AllocDeployment
	ModifyTime        time.Time
}

// UpdateAllocs takes in what clients tell, and then puts the evaluations that follow from it. Followups of allocations
// that are back are cancelled.
func (tx *Txn) UpdateAllocs(updates []*ClientUpdate, evals []*wire.Evaluation) {
	tx.Kind("AllocationUpdated")
	nodes := map[string]bool{}
	type id struct{ namespace, job string }
	force := map[id]string{}
	var jobs []id
	var order []string
	for _, u := range updates {
		if !nodes[u.NodeID] {
			nodes[u.NodeID] = true
			order = append(order, u.NodeID)
		}
		was := tx.alloc(u.ID)
		if was == nil {
			continue // its job was purged meanwhile
		}
		a := *was
		a.ClientStatus, a.ClientDescription = u.ClientStatus, u.ClientDescription
		a.TaskStates, a.NetworkStatus = u.TaskStates, u.NetworkStatus
		if u.DeploymentStatus != nil {
			d := *u.DeploymentStatus
			if a.DeploymentStatus != nil {
				d.Canary = a.DeploymentStatus.Canary
			}
			d.ModifyIndex = tx.index
			a.DeploymentStatus = &d
		}
		a.ModifyIndex, a.ModifyTime = tx.index, u.ModifyTime.UnixNano()
		tx.deploymentForAlloc(&a, was)
		tx.summaryForAlloc(&a, was)
		if was.ClientStatus == wire.ClientUnknown && a.ClientStatus != wire.ClientUnknown && a.FollowupEvalID != "" {
			tx.cancelFollowups(&a)
		}
		tx.putAlloc(&a, was)
		k := id{a.Namespace, a.JobID}
		if _, ok := force[k]; !ok {
			jobs = append(jobs, k)
		}
		force[k] = ""
		if !a.Terminal() {
			force[k] = wire.JobRunning
		}
	}
	for _, k := range jobs {
		tx.refreshJob(k.namespace, k.job, force[k])
	}
	for _, e := range evals {
		tx.putEvalFull(e)
	}
	for _, n := range order {
		tx.allocUpdateOfNode(n)
	}
}

// cancelFollowups takes an allocation that is back off the evaluation that waits for it, and cancels that one if no other
// allocation waits for it.
func (tx *Txn) cancelFollowups(a *wire.Allocation) {
	id := a.FollowupEvalID
	a.FollowupEvalID = ""
	for other := range scan[wire.Allocation](tx.root(byAllocJob), key(a.Namespace, a.JobID, "")) {
		if other.ID != a.ID && other.FollowupEvalID == id && !other.Terminal() {
			return
		}
	}
	e := as[wire.Evaluation](tx.get(Evals, id))
	if e == nil || e.Terminal() {
		return
	}
	c := *e
	c.Status, c.StatusDescription, c.ModifyIndex = wire.EvalCancelled, "allocs reconnected", tx.index
	tx.putEval(&c)
}

// Transition is a wish for an allocation.
type Transition struct {
	ID     string
	Desire wire.DesiredTransition
}

// SetTransitions notes wishes for allocations and puts the evaluations that see to them.
func (tx *Txn) SetTransitions(list []Transition, evals []*wire.Evaluation) {
	tx.Kind("AllocationUpdateDesiredStatus")
	for _, t := range list {
		was := tx.alloc(t.ID)
		if was == nil {
			continue
		}
		a := *was
		merge := func(to **bool, from *bool) {
			if from != nil {
				*to = from
			}
		}
		merge(&a.DesiredTransition.Migrate, t.Desire.Migrate)
		merge(&a.DesiredTransition.Reschedule, t.Desire.Reschedule)
		merge(&a.DesiredTransition.ForceReschedule, t.Desire.ForceReschedule)
		merge(&a.DesiredTransition.NoShutdownDelay, t.Desire.NoShutdownDelay)
		merge(&a.DesiredTransition.MigrateDisablePlacement, t.Desire.MigrateDisablePlacement)
		a.ModifyIndex, a.AllocModifyIndex = tx.index, tx.index
		tx.putAlloc(&a, was)
	}
	for _, e := range evals {
		tx.putEvalFull(e)
	}
}
