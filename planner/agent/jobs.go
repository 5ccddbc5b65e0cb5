package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/view"
)

// as is the client that acts for a caller: with the caller's own token where
// it gave one, so that Nomad's ACLs apply to it.
func (a *Agent) as(by httpapi.Caller) (*nomad.Client, error) {
	if by.NomadToken == "" {
		return a.client, nil
	}
	return a.client.WithToken(by.NomadToken)
}

// Parse implements httpapi.Jobs.
func (a *Agent) Parse(ctx context.Context, by httpapi.Caller, spec view.Spec) (json.RawMessage, error) {
	c, err := a.as(by)
	if err != nil {
		return nil, err
	}
	raw, err := c.Parse(ctx, spec.HCL, spec.Variables)
	if err != nil {
		return nil, apiError("parse job specification", "", err)
	}
	return raw, nil
}

// Register implements httpapi.Jobs.
func (a *Agent) Register(ctx context.Context, by httpapi.Caller, raw json.RawMessage, source view.Submission) (view.Submitted, error) {
	job, err := jobspec.Parse(raw)
	if err != nil {
		return view.Submitted{}, &view.Error{Code: view.CodeInvalid, Operation: "register job", Cause: err.Error()}
	}
	c, err := a.as(by)
	if err != nil {
		return view.Submitted{}, err
	}
	key := picture.Key{Namespace: job.Namespace, Job: job.ID}
	a.mu.RLock()
	e := a.state.gangs[key]
	update, owner := e != nil && e.gang.Saved.Phase != lifecycle.Over, ""
	if update {
		owner = e.gang.UserName()
	}
	a.mu.RUnlock()
	if owner != "" && owner != by.Name && by.Role != view.RoleOperator {
		return view.Submitted{}, &view.Error{Code: view.CodeConflict, Operation: "register job", Object: key.String(), Cause: fmt.Sprintf("a gang of this name is %s's and is not over", owner),
			Hint: "choose another name, or have its owner or an operator stop it"}
	}
	r := nomad.Registration{Job: raw, EnforceIndex: source.ModifyIndex, Fresh: source.EnforceIndex && source.ModifyIndex == 0}
	if !source.EnforceIndex {
		r.EnforceIndex = 0
	}
	if source.HCL != "" {
		r.Submission, err = json.Marshal(map[string]any{"Source": source.HCL, "Format": "hcl2", "Variables": source.Variables})
		if err != nil {
			return view.Submitted{}, fmt.Errorf("encode submission: %w", err)
		}
	}
	index := a.feed.Index()
	out, err := c.Register(ctx, job.Namespace, job.ID, r)
	if err != nil {
		return view.Submitted{}, apiError("register job", key.String(), err)
	}
	if by.Name != "" && by.Role != view.RoleNone && by.Name != "anonymous" {
		a.inbox.do(func(s *state) {
			s.submitters[key] = submitter{by.Name, out.JobModifyIndex}
			s.submitted(key)
		})
	}
	submitted := view.Submitted{ID: key.String(), Namespace: job.Namespace, Job: job.ID, Update: update, JobModifyIndex: out.JobModifyIndex, EvalID: out.EvalID, Index: index, Added: []string{}, Warnings: []string{}}
	submitted.Queue, _ = queueOf(&a.config.Current().Core, job.Meta["muster_queue"], job.Namespace)
	if out.Warnings != "" {
		submitted.Warnings = append(submitted.Warnings, strings.TrimSpace(out.Warnings))
	}
	return submitted, nil
}

// Plan implements httpapi.Jobs: it decides once more on the present snapshot
// with the job in it, and changes nothing.
func (a *Agent) Plan(_ context.Context, _ httpapi.Caller, raw json.RawMessage) (view.Plan, error) {
	job, err := jobspec.Parse(raw)
	if err != nil {
		return view.Plan{}, &view.Error{Code: view.CodeInvalid, Operation: "plan job", Cause: err.Error()}
	}
	key := picture.Key{Namespace: job.Namespace, Job: job.ID}
	now := time.Now()
	a.mu.Lock()
	s := &a.state
	if !s.whole || !s.loaded {
		a.mu.Unlock()
		return view.Plan{}, &view.Error{Code: view.CodeUnavailable, Operation: "plan job", Object: key.String(), Cause: "the picture of the cluster is not complete yet", Hint: "try again in a moment"}
	}
	soon := s.decideSoon
	snap := a.snapshot(now)
	s.decideSoon = soon
	present := s.gangs[key]
	update := present != nil && present.gang.Saved.Phase != lifecycle.Over
	g := lifecycle.Hypothetical(job, s.set, now)
	names := map[core.NodeID]string{}
	for _, n := range s.nodes {
		names[n.ID] = n.Name
	}
	a.mu.Unlock()

	snap.Gangs = slices.DeleteFunc(slices.Clone(snap.Gangs), func(have core.Gang) bool { return have.ID == g.ID })
	snap.Claims = slices.DeleteFunc(slices.Clone(snap.Claims), func(c core.Claim) bool { return c.Gang == g.ID })
	snap.Gangs = append(snap.Gangs, g)
	plan := decide.New().Decide(snap)
	out := view.Plan{ID: key.String(), Queue: string(g.Queue), Update: update, Evictions: []view.Eviction{}, Added: []string{}, Warnings: []string{}}
	for i := range g.Groups {
		out.Members += g.Groups[i].Count
		for _, d := range g.Groups[i].Devices {
			if slices.Contains(snap.Config.CardTypes, d.Type) {
				out.Cards += d.Count * g.Groups[i].Count
			}
		}
	}
	for _, v := range plan.Verdicts {
		if v.Gang == g.ID {
			out.Verdict = view.FromVerdict(v)
		}
	}
	for _, st := range plan.Starts {
		if st.Gang != g.ID {
			continue
		}
		out.Start = &view.Start{Model: string(st.Model), Borrowed: st.Borrowed, Backfill: st.Backfill, Why: st.Score, After: []string{}}
		for _, id := range st.After {
			out.Start.After = append(out.Start.After, string(id))
		}
		for _, m := range st.Members {
			p := view.Placed{Member: m.Member, Group: m.Group, Node: names[m.Node], NodeID: string(m.Node), Cards: []string{}}
			for _, ids := range m.Cards {
				for _, id := range ids {
					p.Cards = append(p.Cards, string(id))
				}
			}
			out.Start.Members = append(out.Start.Members, p)
		}
	}
	for _, ev := range plan.Evictions {
		if ev.For == g.ID {
			out.Evictions = append(out.Evictions, view.Eviction{Gang: string(ev.Gang), Kind: string(ev.Kind), GraceSeconds: ev.Grace.Seconds(), LostCardSeconds: ev.Cost, Why: ev.Why})
		}
	}
	for _, r := range plan.Reservations {
		if r.Gang == g.ID {
			out.Reservation = &view.Reservation{At: r.At.UTC(), Gathering: r.Gathering, Cause: r.Cause, Nodes: []string{}}
			for _, m := range r.Members {
				out.Reservation.Nodes = append(out.Reservation.Nodes, names[m.Node])
			}
		}
	}
	return out, nil
}

// wish is a user's that a gang ends, until it is saved with the gang.
type wish struct {
	why   string
	purge bool
	grace time.Duration
	given bool // to the gang
	done  []chan error
}

// answer tells those who wished for the gang's end what came of it.
func (e *entry) answer(err error) {
	for _, c := range e.wish.done {
		c <- err
	}
	e.wish = nil
}

// wishWait is how long a wish may take to be saved.
const wishWait = 20 * time.Second

// Stop implements httpapi.Stopper. A gang whose ranks run is asked to save and
// leave, and its job is stopped afterwards; of any other the job is stopped in
// Nomad, and the gang follows.
func (a *Agent) Stop(ctx context.Context, by httpapi.Caller, namespace, job string, how view.StopRequest) (view.Stopped, error) {
	key := picture.Key{Namespace: namespace, Job: job}
	a.mu.RLock()
	e := a.state.gangs[key]
	var stage string
	var asks bool
	var raw json.RawMessage
	if e != nil {
		now, _, _ := e.stageNow()
		stage = string(now)
		asks = !how.Now && e.gang.Saved.Phase == lifecycle.Released && !e.gang.Service()
		if e.gang.User != nil {
			raw = e.gang.User.Raw()
		}
	}
	a.mu.RUnlock()
	if e == nil {
		return view.Stopped{}, &view.Error{Code: view.CodeNotFound, Operation: "stop gang", Object: key.String(), Cause: "no gang has this exact name", Hint: "list them with: muster queue"}
	}
	c, err := a.as(by)
	if err != nil {
		return view.Stopped{}, err
	}
	index := a.feed.Index()
	if asks {
		taken, err := a.ask(ctx, c, by, key, raw, how)
		if err != nil {
			return view.Stopped{}, err
		}
		asks = taken
	}
	if !asks {
		if _, err := c.Deregister(ctx, namespace, job, how.Purge); err != nil {
			return view.Stopped{}, apiError("stop job", key.String(), err)
		}
	}
	a.inbox.do(func(s *state) {
		if e := s.gangs[key]; e != nil {
			a.publish(e, view.Event{At: time.Now().UTC(), Kind: view.EventUpdate, By: by.Name, Text: strings.TrimSuffix("asked to stop: "+how.Reason, ": ")})
		}
	})
	return view.Stopped{ID: key.String(), Stage: stage, Index: index}, nil
}

// ask has the gang's members asked to save and leave. It returns once that is
// saved. False: a Nomad token was given that may not write the job, so that
// Nomad has to say what it may.
func (a *Agent) ask(ctx context.Context, c *nomad.Client, by httpapi.Caller, key picture.Key, raw json.RawMessage, how view.StopRequest) (bool, error) {
	if by.NomadToken != "" {
		// A registration that enforces an index which no job has changes nothing, and
		// is refused for that reason only to those who may register the job.
		_, err := c.Register(ctx, key.Namespace, key.Job, nomad.Registration{Job: raw, EnforceIndex: math.MaxInt64})
		if !errors.Is(err, nomad.ErrConflict) {
			return false, nil
		}
	}
	w := wish{why: "stopped", purge: how.Purge, grace: time.Duration(how.GraceSeconds * float64(time.Second))}
	if by.Name != "" {
		w.why += " by " + by.Name
	}
	if how.Reason != "" {
		w.why += ": " + how.Reason
	}
	done := make(chan error, 1)
	a.inbox.do(func(s *state) {
		e := s.gangs[key]
		switch {
		case e == nil:
			done <- nil // it is gone
			return
		case e.wish == nil:
			e.wish = &w
		}
		e.wish.done = append(e.wish.done, done)
		s.stir(e)
	})
	timer := time.NewTimer(wishWait)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
	case <-timer.C:
		err = fmt.Errorf("the planner could not take it down within %s", wishWait)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return true, &view.Error{Code: view.CodeUnavailable, Operation: "stop gang", Object: key.String(), Cause: err.Error(), Hint: "-now stops the job in Nomad without asking the ranks"}
	}
	return true, nil
}

// apiError is a failed call to Nomad in the API's words.
func apiError(operation, object string, err error) error {
	e := &view.Error{Code: view.CodeUnavailable, Operation: operation, Object: object, Cause: err.Error(), Hint: "the nomad block of the planner's configuration, or NOMAD_ADDR in its environment, says where it looks"}
	var call *nomad.CallError
	if errors.As(err, &call) && call.Body != "" {
		e.Cause = "Nomad answers: " + call.Body
	}
	switch {
	case errors.Is(err, nomad.ErrConflict):
		e.Code, e.Hint = view.CodeConflict, "read the job again and submit with its index"
	case nomad.Forbidden(err):
		e.Code, e.Hint = view.CodeForbidden, "use a token of Nomad that may do this"
	case nomad.NotFound(err):
		e.Code, e.Hint = view.CodeNotFound, ""
	case nomad.Refused(err):
		e.Code, e.Hint = view.CodeRejected, ""
	}
	return e
}
