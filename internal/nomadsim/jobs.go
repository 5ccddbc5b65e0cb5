package nomadsim

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/sched"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// jobWrite is what a write of a job answers.
type jobWrite struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	Index           uint64
	LastContact     int64
	KnownLeader     bool
	NextToken       string
}

// registration is what to register and under which condition.
type registration struct {
	job          *wire.Job
	sub          *wire.JobSubmission
	enforce      bool
	index        uint64
	evalPriority int
	trigger      string
}

// register puts a job, unless it is what is there already, and has it looked at.
func (c *Cluster) registerJob(r registration) (*jobWrite, error) {
	j := r.job
	if f := c.validateJob(j); len(f) > 0 {
		return nil, f
	}
	if j.Dispatched && c.store.Snapshot().Job(j.Namespace, j.ID) == nil {
		return nil, fmt.Errorf("job can't be submitted with 'Dispatched' set")
	}
	if r.trigger == "" {
		r.trigger = wire.TriggerJobRegister
	}
	j.SubmitTime = c.clock.Now().UnixNano()
	eval := c.evalFor(j, r.trigger)
	if r.evalPriority > 0 {
		eval.Priority = r.evalPriority
	}
	out := &jobWrite{EvalID: eval.ID}
	unchanged := false
	if j.IsPeriodic() || j.IsParameterized() {
		eval = nil
		out.EvalID = ""
	}
	var stored *wire.Job
	index, err := c.store.TryApply(func(tx *store.Txn) error {
		old := tx.Job(j.Namespace, j.ID)
		if r.enforce {
			switch {
			case old == nil && r.index != 0:
				return fmt.Errorf("Enforcing job modify index %d: job does not exist", r.index)
			case old != nil && r.index == 0:
				return fmt.Errorf("Enforcing job modify index 0: job already exists")
			case old != nil && r.index != old.JobModifyIndex:
				return fmt.Errorf("Enforcing job modify index %d: job exists with conflicting job modify index: %d", r.index, old.JobModifyIndex)
			}
		}
		snap := c.store.Snapshot()
		if snap.Namespace(j.Namespace) == nil {
			return faults{fmt.Errorf("job %q is in nonexistent namespace %q", j.ID, j.Namespace)}
		}
		if snap.NodePool(j.NodePool) == nil {
			return faults{fmt.Errorf("job %q is in nonexistent node pool %q", j.ID, j.NodePool)}
		}
		if old != nil {
			if err := mayReplace(old, j); err != nil {
				return err
			}
			keepPolicyIDs(old, j)
			if !specChanged(old, j) {
				unchanged = true
				out.JobModifyIndex = old.ModifyIndex
				tx.Kind("EvaluationUpdated")
				if eval != nil {
					tx.PutEvals(eval)
				}
				return nil
			}
		}
		c.policyIDs(j, tx.Index())
		tx.Kind("JobRegistered")
		stored = tx.PutJob(j, r.sub)
		return nil
	}, func(tx *store.Txn) {
		if unchanged || eval == nil {
			return
		}
		tx.Kind("JobRegistered")
		eval.JobModifyIndex = tx.Index()
		tx.PutEvals(eval)
	})
	if err != nil {
		return nil, err
	}
	if !unchanged {
		out.JobModifyIndex = index
	}
	if eval != nil {
		out.EvalCreateIndex = index
	}
	out.Index = index
	if stored != nil {
		c.schedulePeriodic(stored)
	}
	return out, nil
}

// mayReplace refuses changes that a job cannot make.
func mayReplace(old, j *wire.Job) error {
	switch {
	case old.Type != j.Type:
		return fmt.Errorf("cannot update job from type %q to %q", old.Type, j.Type)
	case old.IsPeriodic() != j.IsPeriodic():
		if j.IsPeriodic() {
			return fmt.Errorf("cannot update non-periodic job to being periodic")
		}
		return fmt.Errorf("cannot update periodic job to being non-periodic")
	case old.IsParameterized() != j.IsParameterized() && !old.Dispatched:
		if j.IsParameterized() {
			return fmt.Errorf("cannot update non-parameterized job to being parameterized")
		}
		return fmt.Errorf("cannot update parameterized job to being non-parameterized")
	case old.Dispatched != j.Dispatched:
		return fmt.Errorf("field 'Dispatched' is read-only")
	}
	return nil
}

func keepPolicyIDs(old, j *wire.Job) {
	for _, g := range j.TaskGroups {
		if o := old.Group(g.Name); g.Scaling != nil && o != nil && o.Scaling != nil {
			g.Scaling.ID = o.Scaling.ID
		}
	}
}

// policyIDs makes scaling policies what a server keeps: with an id and indexes, which is why a job that has one is
// never found unchanged.
func (c *Cluster) policyIDs(j *wire.Job, index uint64) {
	for _, g := range j.TaskGroups {
		if g.Scaling == nil {
			continue
		}
		if g.Scaling.ID == "" {
			g.Scaling.ID = c.newID()
			g.Scaling.CreateIndex = index
		}
		g.Scaling.ModifyIndex = index
	}
}

// deregister stops a job, or purges it.
func (c *Cluster) deregister(namespace, id string, purge bool, evalPriority int) *jobWrite {
	job := c.store.Snapshot().Job(namespace, id)
	out := &jobWrite{}
	if job == nil {
		return out
	}
	var eval *wire.Evaluation
	if !job.IsPeriodic() && !job.IsParameterized() {
		eval = c.evalFor(job, wire.TriggerJobDeregister)
		eval.Type = wire.TypeService // whatever the job is
		if evalPriority > 0 {
			eval.Priority = evalPriority
		}
		out.EvalID = eval.ID
	}
	index := c.store.Apply(func(tx *store.Txn) {
		tx.Kind("JobDeregistered")
		cur := tx.Job(namespace, id)
		if cur == nil {
			return
		}
		if purge {
			tx.DeleteJob(namespace, id)
			return
		}
		j := *cur
		j.Stop, j.SubmitTime, j.VersionTag = true, c.clock.Now().UnixNano(), nil
		tx.PutJob(&j, nil)
	}, func(tx *store.Txn) {
		if eval == nil {
			return
		}
		tx.Kind("JobDeregistered")
		eval.JobModifyIndex = tx.Index()
		tx.PutEvals(eval)
	})
	c.stopPeriodic(namespace, id)
	out.JobModifyIndex, out.EvalCreateIndex, out.Index = index, index, index
	return out
}

// registerRequest is the body of a registration.
type registerRequest struct {
	Job            *api.Job
	Submission     *wire.JobSubmission
	EnforceIndex   bool
	JobModifyIndex uint64
	PreserveCounts bool
	EvalPriority   int
}

func (q *request) jobs(string) (any, error) {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.jobList()
	case http.MethodPut, http.MethodPost:
		return q.jobRegister("")
	}
	return nil, errMethod
}

func (q *request) jobList() (any, error) {
	meta, err := q.flag("meta")
	if err != nil {
		return nil, err
	}
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	prefix := q.q.Get("prefix")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.JobStub{}
		for j := range s.Jobs(q.namespace, prefix) {
			ok, err := keep(j)
			if err != nil {
				return nil, 0, err
			}
			if ok {
				list = append(list, j.Stub(s.Summary(j.Namespace, j.ID), meta))
			}
		}
		list, err := page(q, list, func(j *wire.JobStub) string { return j.Namespace + "." + j.ID })
		return list, max(s.TableIndex(store.Jobs), s.TableIndex(store.JobSummaries)), err
	}, store.Jobs, store.JobSummaries)
}

func (q *request) jobRegister(id string) (any, error) {
	var body registerRequest
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if body.Job == nil {
		return nil, fail(http.StatusBadRequest, "Job must be specified")
	}
	if body.Job.ID == nil {
		return nil, fail(http.StatusBadRequest, "Job ID hasn't been provided")
	}
	if id != "" && *body.Job.ID != id {
		return nil, fail(http.StatusBadRequest, "Job ID does not match name")
	}
	if r := body.Job.Region; r != nil && *r != "" && *r != q.c.opts.Region {
		return nil, fail(http.StatusInternalServerError, "No path to region")
	}
	j, err := q.c.jobFromAPI(body.Job, q.namespace)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "%v", err)
	}
	if body.PreserveCounts {
		if old := q.c.store.Snapshot().Job(j.Namespace, j.ID); old != nil {
			for _, g := range j.TaskGroups {
				if o := old.Group(g.Name); o != nil {
					g.Count = o.Count
				}
			}
		}
	}
	out, err := q.c.registerJob(registration{job: j, sub: body.Submission, enforce: body.EnforceIndex, index: body.JobModifyIndex, evalPriority: body.EvalPriority})
	if err != nil {
		return nil, err
	}
	out.Warnings = warnings(j)
	q.index(out.Index)
	return out, nil
}

// warnings are what a server finds odd but lets pass.
func warnings(j *wire.Job) string {
	var f faults
	for _, g := range j.TaskGroups {
		if g.Update != nil && g.Count > 0 && g.Update.MaxParallel > g.Count {
			f.add("Group %q has warnings: %v", g.Name, faults{fmt.Errorf("Update max parallel count is greater than task group count (%d > %d). A destructive change would result in the simultaneous replacement of all allocations.", g.Update.MaxParallel, g.Count)})
		}
	}
	if j.Periodic != nil && j.Periodic.Spec != "" {
		f.add("cron is deprecated and may be removed in a future release. Use crons instead")
	}
	if len(f) == 0 {
		return ""
	}
	lines := make([]string, len(f))
	for i, e := range f {
		lines[i] = "* " + e.Error()
	}
	noun := "warnings"
	if len(f) == 1 {
		noun = "warning"
	}
	return fmt.Sprintf("%d %s:\n\n%s", len(f), noun, strings.Join(lines, "\n"))
}

// jobPaths are the endings that make a path under /v1/job/ something else than a job's id, which may have slashes.
var jobPaths = []struct {
	suffix string
	f      func(q *request, id string) (any, error)
}{
	{"/evaluate", (*request).jobEvaluate},
	{"/allocations", (*request).jobAllocations},
	{"/evaluations", (*request).jobEvaluations},
	{"/periodic/force", (*request).periodicForce},
	{"/plan", (*request).jobPlan},
	{"/summary", (*request).jobSummary},
	{"/dispatch", (*request).jobDispatch},
	{"/versions", (*request).jobVersions},
	{"/revert", (*request).jobRevert},
	{"/deployments", (*request).jobDeployments},
	{"/deployment", (*request).jobDeployment},
	{"/stable", (*request).jobStable},
	{"/scale", (*request).jobScale},
	{"/services", (*request).jobServices},
	{"/submission", (*request).jobSubmission},
	{"/actions", (*request).jobActions},
}

func (q *request) job(rest string) (any, error) {
	if i := strings.LastIndex(rest, "/versions/"); i >= 0 && strings.HasSuffix(rest, "/tag") {
		if q.c.opts.Before19 || q.c.opts.NoTags {
			return nil, fail(http.StatusNotFound, "Invalid URL path")
		}
		return q.versionTag(rest[:i], strings.TrimSuffix(rest[i+len("/versions/"):], "/tag"))
	}
	for _, p := range jobPaths {
		if id, ok := strings.CutSuffix(rest, p.suffix); ok {
			return p.f(q, id)
		}
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.jobRead(rest)
	case http.MethodPut, http.MethodPost:
		return q.jobRegister(rest)
	case http.MethodDelete:
		return q.jobDelete(rest)
	}
	return nil, errMethod
}

func (q *request) jobDelete(id string) (any, error) {
	purge, err := q.flag("purge")
	if err != nil {
		return nil, err
	}
	if _, err := q.flag("global"); err != nil {
		return nil, err
	}
	if _, err := q.flag("no_shutdown_delay"); err != nil {
		return nil, err
	}
	priority := integer(q.q.Get("eval_priority"))
	out := q.c.deregister(q.namespace, id, purge, priority)
	q.index(out.Index)
	return struct {
		EvalID          string
		EvalCreateIndex uint64
		JobModifyIndex  uint64
		VolumeEvalID    string
		VolumeEvalIndex uint64
		Index           uint64
		LastContact     int64
		KnownLeader     bool
		NextToken       string
	}{EvalID: out.EvalID, EvalCreateIndex: out.EvalCreateIndex, JobModifyIndex: out.JobModifyIndex, Index: out.Index}, nil
}

func (q *request) jobEvaluate(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		EvalOptions struct{ ForceReschedule bool }
	}
	if q.r.ContentLength != 0 {
		if err := q.decode(&body); err != nil {
			return nil, err
		}
	}
	snap := q.c.store.Snapshot()
	j := snap.Job(q.namespace, id)
	switch {
	case j == nil:
		return nil, fail(http.StatusNotFound, "job not found")
	case j.IsPeriodic():
		return nil, fmt.Errorf("can't evaluate periodic job")
	case j.IsParameterized():
		return nil, fmt.Errorf("can't evaluate parameterized job")
	}
	e := q.c.evalFor(j, wire.TriggerJobRegister)
	e.JobModifyIndex = j.ModifyIndex
	var ts []store.Transition
	if body.EvalOptions.ForceReschedule {
		for a := range snap.AllocsByJob(q.namespace, id) {
			g := j.Group(a.TaskGroup)
			if g != nil && g.ReschedulePolicy.Enabled() && a.NextAllocation == "" && a.ClientStatus == wire.ClientFailed && !a.DesiredTransition.ShouldForceReschedule() {
				ts = append(ts, store.Transition{ID: a.ID, Desire: wire.DesiredTransition{ForceReschedule: yes()}})
			}
		}
	}
	index := q.c.store.Apply(func(tx *store.Txn) { tx.SetTransitions(ts, []*wire.Evaluation{e}) })
	q.index(index)
	return &jobWrite{EvalID: e.ID, EvalCreateIndex: index, JobModifyIndex: j.ModifyIndex, Index: index}, nil
}

// jobPlan is a dry run of a registration.
func (q *request) jobPlan(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		Job  *api.Job
		Diff bool
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if body.Job == nil {
		return nil, fail(http.StatusBadRequest, "Job must be specified")
	}
	if body.Job.ID == nil {
		return nil, fail(http.StatusBadRequest, "Job must have a valid ID")
	}
	if *body.Job.ID != id {
		return nil, fail(http.StatusBadRequest, "Job ID does not match")
	}
	j, err := q.c.jobFromAPI(body.Job, q.namespace)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "%v", err)
	}
	if f := q.c.validateJob(j); len(f) > 0 {
		return nil, f
	}
	snap := q.c.store.Snapshot()
	old := snap.Job(j.Namespace, j.ID)
	plan := *j
	index := uint64(0)
	modified := uint64(0)
	if old != nil {
		keepPolicyIDs(old, &plan)
		index = old.JobModifyIndex
		plan.CreateIndex, plan.ModifyIndex, plan.JobModifyIndex, plan.Version = old.CreateIndex, old.ModifyIndex, old.JobModifyIndex, old.Version
		if specChanged(old, &plan) {
			modified = old.JobModifyIndex + 1
			plan.ModifyIndex, plan.JobModifyIndex, plan.Version = modified, modified, old.Version+1
		}
	} else {
		plan.CreateIndex, plan.ModifyIndex, plan.JobModifyIndex = 100, 100, 100
	}
	eval := q.c.evalFor(&plan, wire.TriggerJobRegister)
	eval.JobModifyIndex, eval.AnnotatePlan = modified, true
	env := q.c.env()
	env.Replaced = &plan
	res := sched.Schedule(snap, eval, env)
	out := planAnswer{Annotations: res.Annotations, FailedTGAllocs: res.Failed, JobModifyIndex: index, Index: index}
	if res.Blocked != nil {
		b := *res.Blocked
		b.JobModifyIndex = modified
		out.CreatedEvals = append(out.CreatedEvals, &b)
	}
	out.CreatedEvals = append(out.CreatedEvals, res.Followups...)
	if body.Diff {
		if out.Diff, err = jobDiff(old, &plan, res.Annotations); err != nil {
			return nil, err
		}
	}
	q.index(index)
	return out, nil
}

type planAnswer struct {
	Annotations        *wire.PlanAnnotations
	FailedTGAllocs     map[string]*wire.AllocMetric
	JobModifyIndex     uint64
	CreatedEvals       []*wire.Evaluation
	Diff               any
	NextPeriodicLaunch wire.Time
	Warnings           string
	Index              uint64
}

func (q *request) validate(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body registerRequest
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if body.Job == nil {
		return nil, fail(http.StatusBadRequest, "Job must be specified")
	}
	j, err := q.c.jobFromAPI(body.Job, q.namespace)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "%v", err)
	}
	out := struct {
		DriverConfigValidated bool
		ValidationErrors      []string
		Error                 string
		Warnings              string
	}{DriverConfigValidated: true, Warnings: warnings(j)}
	if f := q.c.validateJob(j); len(f) > 0 {
		for _, e := range f {
			out.ValidationErrors = append(out.ValidationErrors, e.Error())
		}
		out.Error = f.Error()
	}
	return out, nil
}
