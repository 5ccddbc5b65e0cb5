package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/submit"
	"github.com/nomad-muster/muster/planner/view"
)

// checked is a job on its way in: parsed, completed, checked.
type checked struct {
	submit.Completed
	spec   *jobspec.Job
	queue  core.QueueName
	faults []contract.Fault
}

func (c *checked) id() string { return c.spec.Namespace + "/" + c.spec.ID }

// check takes a specification as far as it can be judged without the cluster:
// every fault of it is in the answer. The error is for what cannot be read at
// all.
func (s *Server) check(q *request, spec view.Spec) (*checked, error) {
	raw, err := s.bare(q, spec)
	if err != nil {
		return nil, err
	}
	rejected := func(err error) error {
		return &view.Error{Code: view.CodeRejected, Operation: q.route.operation(), Cause: err.Error(), Hint: "this is no job as Nomad's API writes one"}
	}
	out := &checked{}
	if out.Completed, err = submit.Complete(raw, spec.Namespace); err != nil {
		return nil, rejected(err)
	}
	if out.spec, err = jobspec.Parse(out.Job); err != nil {
		return nil, rejected(err)
	}
	cfg := s.Config()
	meta, faults := out.spec.Want(cfg.Core.CardTypes)
	queue, wrong := submit.Queue(&cfg.Core, out.spec.Namespace, meta.Queue, q.by.submitter())
	out.queue, out.faults = queue, append(faults, wrong...)
	// Limits count per user, so nobody submits in another's name.
	if meta.User != "" && meta.User != q.by.Name && !q.by.Role.May(view.RoleOperator) {
		out.faults = append(out.faults, contract.Fault{Field: "meta." + contract.MetaUser, Value: meta.User,
			Want: "the name of the token, " + q.by.Name + ", or nothing: only operators submit for others"})
	}
	return out, nil
}

// bare is the job of a specification in Nomad's JSON.
func (s *Server) bare(q *request, spec view.Spec) (json.RawMessage, error) {
	switch {
	case spec.HCL != "" && len(spec.Job) > 0:
		return nil, q.invalid("hcl and job are both set", "send the one or the other")
	case spec.HCL != "":
		return s.Jobs.Parse(q.Context(), q.by, spec)
	case len(spec.Job) == 0:
		return nil, q.invalid("neither hcl nor job is set", `send {"hcl": "job ..."} or {"job": {...}}`)
	}
	raw, err := submit.Unwrap(spec.Job)
	if err != nil {
		return nil, q.invalid(err.Error(), "")
	}
	return raw, nil
}

// rejected is the error that lists all of a job's faults.
func (q *request) rejected(c *checked) error {
	cause := "1 fault"
	if n := len(c.faults); n != 1 {
		cause = fmt.Sprintf("%d faults", n)
	}
	return &view.Error{Code: view.CodeRejected, Operation: q.route.operation(), Object: c.id(), Cause: cause, Faults: view.FromFaults(c.faults)}
}

func (s *Server) parse(q *request) (any, error) {
	var spec view.Spec
	if err := q.body(&spec); err != nil {
		return nil, err
	}
	raw, err := s.bare(q, spec)
	return view.Parsed{Job: raw}, err
}

func (s *Server) validate(q *request) (any, error) {
	var spec view.Spec
	if err := q.body(&spec); err != nil {
		return nil, err
	}
	c, err := s.check(q, spec)
	if err != nil {
		return nil, err
	}
	faults, warnings := view.FromFaults(c.faults), c.Warnings
	if len(faults) == 0 {
		plan, err := s.decide(q, c.Job)
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, plan.Warnings...)
		faults = view.FromFaults(refusal(plan.Verdict))
	}
	return view.Validation{Valid: len(faults) == 0, Namespace: c.spec.Namespace, Job: c.spec.ID, Queue: string(c.queue), Faults: orEmpty(faults),
		Warnings: orEmpty(warnings), Added: orEmpty(c.Added)}, nil
}

// refusal is why the cluster could never run a gang, as faults; nil where it
// could.
func refusal(v view.Verdict) []contract.Fault {
	if v.Action != core.ActionRefuse {
		return nil
	}
	var faults []contract.Fault
	for _, b := range v.Blockers {
		want := b.Text
		if b.Remedy != "" {
			want = strings.TrimSuffix(want, ".") + ": " + b.Remedy
		}
		faults = append(faults, contract.Fault{Field: "job", Want: want})
	}
	if len(faults) == 0 {
		faults = []contract.Fault{{Field: "job", Want: v.Sentence}}
	}
	return faults
}

// decide asks the planner for a plan. Each one is a whole decision, so only a
// few run at a time; the others wait for their turn.
func (s *Server) decide(q *request, job json.RawMessage) (view.Plan, error) {
	select {
	case s.deciding <- struct{}{}:
		defer func() { <-s.deciding }()
		return s.Jobs.Plan(q.Context(), q.by, job)
	case <-q.Context().Done():
		return view.Plan{}, q.Context().Err()
	}
}

func (s *Server) plan(q *request) (any, error) {
	var spec view.Spec
	if err := q.body(&spec); err != nil {
		return nil, err
	}
	c, err := s.check(q, spec)
	if err != nil {
		return nil, err
	}
	if len(c.faults) > 0 {
		return nil, q.rejected(c)
	}
	plan, err := s.decide(q, c.Job)
	if err != nil {
		return nil, err
	}
	plan.Added, plan.Warnings = orEmpty(c.Added), orEmpty(append(c.Warnings, plan.Warnings...))
	return plan, nil
}

func (s *Server) submit(q *request) (any, error) {
	var in view.Submission
	if err := q.body(&in); err != nil {
		return nil, err
	}
	register := func() (view.Submitted, error) {
		c, err := s.check(q, in.Spec)
		if err != nil {
			return view.Submitted{}, err
		}
		if len(c.faults) > 0 {
			return view.Submitted{}, q.rejected(c)
		}
		starts := ""
		switch {
		case c.spec.Periodic != nil:
			starts = "periodic"
		case c.spec.ParameterizedJob != nil && !c.spec.Dispatched:
			starts = "parameterized"
		case !in.KeepRefused:
			plan, err := s.decide(q, c.Job)
			if err != nil {
				return view.Submitted{}, err
			}
			if c.faults = refusal(plan.Verdict); len(c.faults) > 0 {
				return view.Submitted{}, q.rejected(c)
			}
		}
		// A gang that is there is changed or moved only by who may use its queue.
		if g, ok := s.Gangs.Gang(c.spec.Namespace, c.spec.ID); ok && !g.Stage.Ended() && g.Queue != string(c.queue) {
			if err := s.mayUse(q, g.ID, g.Queue); err != nil {
				return view.Submitted{}, err
			}
		}
		// A caller who hangs up must not leave a job half registered.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), time.Minute)
		defer cancel()
		done, err := s.Jobs.Register(ctx, q.by, c.Job, in)
		if err != nil {
			return done, err
		}
		done.ID, done.Namespace, done.Job, done.Queue = c.id(), c.spec.Namespace, c.spec.ID, string(c.queue)
		done.Starts, done.Added, done.Warnings = starts, orEmpty(c.Added), orEmpty(append(c.Warnings, done.Warnings...))
		return done, nil
	}
	key := q.Header.Get("Idempotency-Key")
	if key == "" {
		return register()
	}
	if len(key) > 256 {
		return nil, q.invalid("the Idempotency-Key has more than 256 bytes", "")
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	done, same, err := s.keys.do(q.Context(), q.by.Name+"\x00"+key, body, register)
	if err == nil && !same {
		return nil, &view.Error{Code: view.CodeConflict, Operation: q.route.operation(), Cause: "the Idempotency-Key " + key + " came with another submission before",
			Hint: "use a new key for a new submission"}
	}
	return done, err
}

func (s *Server) stop(q *request) (any, error) {
	var how view.StopRequest
	if q.ContentLength != 0 || q.Header.Get("Content-Type") != "" {
		if err := q.body(&how); err != nil {
			return nil, err
		}
	}
	g, err := s.gang(q)
	if err != nil {
		return nil, err
	}
	if err := s.mayUse(q, g.ID, g.Queue); err != nil {
		return nil, err
	}
	if g.Stage.Ended() && !how.Purge {
		return nil, &view.Error{Code: view.CodeConflict, Operation: q.route.operation(), Object: g.ID, Cause: "it is over: " + string(g.Stage),
			Hint: "purge removes its job from Nomad"}
	}
	return s.Stopper.Stop(q.Context(), q.by, g.Namespace, g.Job, how)
}
