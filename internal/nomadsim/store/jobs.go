package store

import (
	"fmt"
	"maps"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Job returns a job's current version, or nil.
func (tx *Txn) Job(namespace, id string) *wire.Job {
	return as[wire.Job](tx.get(Jobs, key(namespace, id)))
}

func (tx *Txn) putJob(j *wire.Job) {
	tx.put(Jobs, key(j.Namespace, j.ID), j)
	tx.event("Job", j.Namespace, j.ID, nil, map[string]any{"Job": j})
	tx.changes.Jobs = append(tx.changes.Jobs, j)
}

// PutJob registers a new version of a job, with its text if there is one, and returns what was stored. The version,
// indexes and status of j are set here.
func (tx *Txn) PutJob(j *wire.Job, sub *wire.JobSubmission) *wire.Job {
	job := *j
	old := tx.Job(job.Namespace, job.ID)
	job.CreateIndex, job.ModifyIndex, job.JobModifyIndex = tx.index, tx.index, tx.index
	job.Version = 0
	if old != nil {
		job.CreateIndex = old.CreateIndex
		job.Version = old.Version + 1
		job.Status = tx.jobStatus(&job)
	} else {
		job.Status = tx.jobStatus(&job)
	}
	tx.summaryForJob(&job)
	tx.putVersion(&job)
	if sub != nil {
		s := *sub
		s.Namespace, s.JobID, s.Version, s.JobModifyIndex = job.Namespace, job.ID, job.Version, tx.index
		tx.put(JobSubmissions, versionKey(job.Namespace, job.ID, job.Version), &s)
	}
	tx.putJob(&job)
	return &job
}

// PutJobVersion changes what is kept of a version without making a new one: its tag, or whether it is stable.
func (tx *Txn) PutJobVersion(j *wire.Job) {
	tx.put(JobVersions, versionKey(j.Namespace, j.ID, j.Version), j)
	if cur := tx.Job(j.Namespace, j.ID); cur != nil && cur.Version == j.Version {
		tx.putJob(j)
	}
}

// ScalingHistory are the newest scaling events of a job by group, newest first. It is not changed once it is stored.
type ScalingHistory map[string][]*wire.ScalingEvent

// PutScalingEvent notes that a group was scaled, or why not; the newest twenty are kept.
func (tx *Txn) PutScalingEvent(namespace, job, group string, e *wire.ScalingEvent) {
	e.CreateIndex = tx.index
	next := ScalingHistory{}
	if old, ok := tx.get(ScalingEvents, key(namespace, job)).(ScalingHistory); ok {
		maps.Copy(next, old)
	}
	list := append([]*wire.ScalingEvent{e}, next[group]...)
	next[group] = list[:min(len(list), 20)]
	tx.put(ScalingEvents, key(namespace, job), next)
}

// DeleteJob purges a job: its versions, texts and summary go; its evaluations and allocations stay.
func (tx *Txn) DeleteJob(namespace, id string) {
	job := tx.Job(namespace, id)
	if job == nil {
		return
	}
	tx.delete(Jobs, key(namespace, id))
	tx.delete(JobSummaries, key(namespace, id))
	tx.delete(ScalingEvents, key(namespace, id))
	for _, v := range newestFirst(tx.root(JobVersions), namespace, id) {
		tx.dropVersion(v)
	}
	tx.event("Job", namespace, id, nil, map[string]any{"Job": job, "Deleted": true})
	for d := range scan[wire.Deployment](tx.root(byDeploymentJob), key(namespace, id, "")) {
		tx.delete(Deployments, d.ID)
		tx.delete(byDeploymentJob, key(namespace, id, d.ID))
	}
	for e := range scan[wire.Evaluation](tx.root(byEvalJob), key(namespace, id, "")) {
		if e.Status == wire.EvalPending {
			e := *e
			e.Status, e.StatusDescription = wire.EvalComplete, fmt.Sprintf("job %s deleted", id)
			tx.put(Evals, e.ID, &e)
			tx.put(byEvalJob, key(namespace, id, e.ID), &e)
		}
	}
	var allocs []*wire.Allocation
	for a := range scan[wire.Allocation](tx.root(byAllocJob), key(namespace, id, "")) {
		allocs = append(allocs, a)
	}
	tx.deleteAllocs(allocs)
}

func (tx *Txn) dropVersion(v *wire.Job) {
	tx.delete(JobVersions, versionKey(v.Namespace, v.ID, v.Version))
	tx.delete(JobSubmissions, versionKey(v.Namespace, v.ID, v.Version))
}

// putVersion keeps the version and lets the oldest untagged one beyond the limit go, but not the newest stable one.
func (tx *Txn) putVersion(j *wire.Job) {
	tx.put(JobVersions, versionKey(j.Namespace, j.ID, j.Version), j)
	var all []*wire.Job
	for _, v := range newestFirst(tx.root(JobVersions), j.Namespace, j.ID) {
		if v.VersionTag == nil {
			all = append(all, v)
		}
	}
	if len(all) <= TrackedVersions {
		return
	}
	last := len(all) - 1
	for i, v := range all {
		if v.Stable {
			if i == last {
				last--
			}
			break
		}
	}
	tx.dropVersion(all[last])
}

// jobStatus works out a job's status from what the transaction sees.
func (tx *Txn) jobStatus(j *wire.Job) string {
	if j.Type == wire.TypeSystem || j.IsParameterized() || j.IsPeriodic() {
		if j.Stop {
			return wire.JobDead
		}
		return wire.JobRunning
	}
	prefix := key(j.Namespace, j.ID, "")
	for d := range scan[wire.Deployment](tx.root(byDeploymentJob), prefix) {
		if d.Active() {
			return wire.JobRunning
		}
	}
	for a := range scan[wire.Allocation](tx.root(byAllocJob), prefix) {
		if !a.Terminal() {
			return wire.JobRunning
		}
	}
	any := false
	for e := range scan[wire.Evaluation](tx.root(byEvalJob), prefix) {
		if !e.Terminal() {
			return wire.JobPending
		}
		any = true
	}
	if any || j.Stop {
		return wire.JobDead
	}
	return wire.JobPending
}

// refreshJob sets the status of a job anew; force, if not empty, is the status.
func (tx *Txn) refreshJob(namespace, id, force string) {
	j := tx.Job(namespace, id)
	if j == nil {
		return
	}
	status := force
	if status == "" {
		status = tx.jobStatus(j)
	}
	if status == j.Status {
		return
	}
	job := *j
	job.Status, job.ModifyIndex = status, tx.index
	tx.putVersion(&job)
	tx.putJob(&job)
	tx.childSummary(&job, j.Status)
}

// childSummary counts a child of a periodic or parameterized job at its parent.
func (tx *Txn) childSummary(j *wire.Job, old string) {
	if j.ParentID == "" {
		return
	}
	was := as[wire.JobSummary](tx.get(JobSummaries, key(j.Namespace, j.ParentID)))
	if was == nil {
		return
	}
	s := *was
	c := *s.Children
	step := func(status string, by int64) {
		switch status {
		case wire.JobPending:
			c.Pending += by
		case wire.JobRunning:
			c.Running += by
		case wire.JobDead:
			c.Dead += by
		}
	}
	step(old, -1)
	step(j.Status, 1)
	s.Children, s.ModifyIndex = &c, tx.index
	tx.put(JobSummaries, key(j.Namespace, j.ParentID), &s)
}

func (tx *Txn) summaryForJob(j *wire.Job) {
	k := key(j.Namespace, j.ID)
	was := as[wire.JobSummary](tx.get(JobSummaries, k))
	s := &wire.JobSummary{JobID: j.ID, Namespace: j.Namespace, Summary: map[string]wire.GroupSummary{},
		Children: &wire.ChildrenSummary{}, CreateIndex: tx.index}
	changed := was == nil
	if was != nil {
		*s = *was
		s.Summary = maps.Clone(was.Summary)
	} else if j.ParentID != "" {
		defer tx.childSummary(j, "")
	}
	for _, g := range j.TaskGroups {
		if _, ok := s.Summary[g.Name]; !ok {
			s.Summary[g.Name] = wire.GroupSummary{}
			changed = true
		}
	}
	if changed {
		s.ModifyIndex = tx.index
		tx.put(JobSummaries, k, s)
	}
}

// summaryForAlloc counts a change of an allocation.
func (tx *Txn) summaryForAlloc(a, was *wire.Allocation) {
	k := key(a.Namespace, a.JobID)
	old := as[wire.JobSummary](tx.get(JobSummaries, k))
	if old == nil || a.Job == nil || old.CreateIndex != a.Job.CreateIndex {
		return
	}
	g, ok := old.Summary[a.TaskGroup]
	if !ok {
		return
	}
	switch {
	case was == nil && a.ClientStatus == wire.ClientPending:
		g.Starting++
		if g.Queued > 0 {
			g.Queued--
		}
	case was != nil && was.ClientStatus != a.ClientStatus:
		if n := counter(&g, a.ClientStatus); n != nil {
			*n++
		}
		// What has ended stays counted when it changes its mind.
		if n := counter(&g, was.ClientStatus); n != nil && *n > 0 && was.ClientStatus != wire.ClientComplete && was.ClientStatus != wire.ClientFailed {
			*n--
		}
	default:
		return
	}
	s := *old
	s.Summary = maps.Clone(old.Summary)
	s.Summary[a.TaskGroup] = g
	s.ModifyIndex = tx.index
	tx.put(JobSummaries, k, &s)
}

func counter(g *wire.GroupSummary, status string) *int {
	switch status {
	case wire.ClientPending:
		return &g.Starting
	case wire.ClientRunning:
		return &g.Running
	case wire.ClientComplete:
		return &g.Complete
	case wire.ClientFailed:
		return &g.Failed
	case wire.ClientLost:
		return &g.Lost
	case wire.ClientUnknown:
		return &g.Unknown
	}
	return nil
}

// PutEvals puts evaluations: their indexes are set, queued counts go to the job's summary, a complete evaluation with
// nothing left to place cancels the job's blocked ones, and the job's status is worked out anew.
func (tx *Txn) PutEvals(evals ...*wire.Evaluation) {
	type id struct{ namespace, job string }
	seen := map[id]bool{}
	var jobs []id
	for _, e := range evals {
		tx.putEvalFull(e)
		if k := (id{e.Namespace, e.JobID}); !seen[k] {
			seen[k] = true
			jobs = append(jobs, k)
		}
	}
	for _, k := range jobs {
		tx.refreshJob(k.namespace, k.job, "")
	}
}

func (tx *Txn) putEvalFull(e *wire.Evaluation) {
	eval := *e
	eval.CreateIndex, eval.ModifyIndex = tx.index, tx.index
	if old := as[wire.Evaluation](tx.get(Evals, e.ID)); old != nil {
		eval.CreateIndex = old.CreateIndex
	}
	k := key(e.Namespace, e.JobID)
	if old := as[wire.JobSummary](tx.get(JobSummaries, k)); old != nil {
		s, changed := *old, false
		s.Summary = maps.Clone(old.Summary)
		for name, n := range e.QueuedAllocations {
			if g, ok := s.Summary[name]; ok && g.Queued != n {
				g.Queued = n
				s.Summary[name] = g
				changed = true
			}
		}
		if changed {
			s.ModifyIndex = tx.index
			tx.put(JobSummaries, k, &s)
		}
	}
	if eval.Status == wire.EvalComplete && len(eval.FailedTGAllocs) == 0 {
		var blocked []*wire.Evaluation
		for b := range scan[wire.Evaluation](tx.root(byEvalJob), key(e.Namespace, e.JobID, "")) {
			if b.Status == wire.EvalBlocked {
				blocked = append(blocked, b)
			}
		}
		for _, b := range blocked {
			if b.ID == eval.ID {
				continue
			}
			c := *b
			c.Status, c.StatusDescription = wire.EvalCancelled, fmt.Sprintf("evaluation %q successful", eval.ID)
			c.ModifyIndex, c.ModifyTime = tx.index, eval.ModifyTime
			tx.putEval(&c)
		}
	}
	tx.putEval(&eval)
}

func (tx *Txn) putEval(e *wire.Evaluation) {
	tx.put(Evals, e.ID, e)
	tx.put(byEvalJob, key(e.Namespace, e.JobID, e.ID), e)
	// A server names the deployment even where there is none.
	tx.event("Evaluation", e.Namespace, e.ID, []string{e.JobID, e.DeploymentID}, map[string]any{"Evaluation": e})
	tx.changes.Evals = append(tx.changes.Evals, e)
}

// DeleteEvals removes evaluations, and allocations, for good.
func (tx *Txn) DeleteEvals(evals []*wire.Evaluation, allocs []*wire.Allocation) {
	for _, e := range evals {
		tx.delete(Evals, e.ID)
		tx.delete(byEvalJob, key(e.Namespace, e.JobID, e.ID))
	}
	tx.deleteAllocs(allocs)
}

func (tx *Txn) deleteAllocs(list []*wire.Allocation) {
	tx.changes.Gone = append(tx.changes.Gone, list...)
	for _, a := range list {
		tx.delete(Allocs, a.ID)
		tx.delete(byAllocJob, key(a.Namespace, a.JobID, a.ID))
		tx.delete(byAllocNode, key(a.NodeID, a.ID))
		tx.delete(byAllocEval, key(a.EvalID, a.ID))
	}
}

// DeleteDeployment removes a deployment.
func (tx *Txn) DeleteDeployment(d *wire.Deployment) {
	tx.delete(Deployments, d.ID)
	tx.delete(byDeploymentJob, key(d.Namespace, d.JobID, d.ID))
}

// markStable notes that a version of a job has been rolled out whole.
func (tx *Txn) markStable(d *wire.Deployment) {
	v := as[wire.Job](tx.get(JobVersions, versionKey(d.Namespace, d.JobID, d.JobVersion)))
	if v == nil {
		return
	}
	stable := *v
	stable.Stable = true
	if cur := tx.Job(d.Namespace, d.JobID); cur != nil && cur.Version == v.Version {
		stable.Status, stable.ModifyIndex = cur.Status, cur.ModifyIndex
	}
	tx.PutJobVersion(&stable)
}
