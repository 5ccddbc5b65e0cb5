package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// outcome is how a gang's effects went.
type outcome struct {
	key      picture.Key
	done     lifecycle.Done
	reloaded *loaded // the variable holds something else than the gang thought
}

// stopsAtOnce bounds the calls that stop a gang's allocations.
const stopsAtOnce = 16

// carryOut carries effects out in order, up to the first that fails.
func (a *Agent) carryOut(ctx context.Context, key picture.Key, id contract.GangID, twin *twin, effects []lifecycle.Effect) outcome {
	o := outcome{key: key}
	for _, e := range effects {
		start := time.Now()
		err := a.effect(ctx, key, id, twin, e, &o)
		a.log.Debug("effect", "gang", id.String(), "effect", fmt.Sprintf("%T", e), "took", time.Since(start), "error", err)
		if err != nil {
			o.done.Failed, o.done.Err, o.done.Refused = e, err, nomad.Refused(err)
			var wrong *checkError
			if errors.As(err, &wrong) {
				o.done.Refused = true
			}
			break
		}
		o.done.Effects = append(o.done.Effects, e)
	}
	o.done.Now = time.Now()
	return o
}

func (a *Agent) effect(ctx context.Context, key picture.Key, id contract.GangID, twin *twin, e lifecycle.Effect, o *outcome) error {
	switch e := e.(type) {
	case lifecycle.Tag:
		err := a.client.Tag(ctx, key.Namespace, key.Job, contract.VersionTag, e.Version)
		if err == nil {
			// Read while nothing waits for it; what cannot be is read again.
			a.dropSubmission(id)
			_, _ = a.submission(ctx, key, id, e.Version)
		}
		return err
	case lifecycle.Untag:
		err := a.client.Untag(ctx, key.Namespace, key.Job, contract.VersionTag)
		if nomad.NotFound(err) || nomad.Refused(err) {
			return nil // the job or the version is gone, and the tag with it
		}
		return err
	case lifecycle.Save:
		if e.Saved.Phase == lifecycle.Waiting {
			a.dropSubmission(id) // the next version may be another one of the same number
		}
		return a.save(ctx, id, e.Saved, o)
	case lifecycle.Forget:
		return a.forgetSaved(ctx, id)
	case lifecycle.ReadUser:
		user, err := a.readUser(ctx, key, e.Version)
		o.done.User = user
		return err
	case lifecycle.Check:
		if twin != nil {
			text, err := jobspec.Twin(e.Job)
			if err != nil {
				return err
			}
			e.Job, e.Index, key = text, twin.index, twin.key
		}
		return a.check(ctx, key, e)
	case lifecycle.Register:
		if twin != nil {
			return a.registerTwin(ctx, twin, e, o)
		}
		submission, err := a.submission(ctx, key, id, e.Version)
		if err != nil {
			return err
		}
		r, err := a.client.Register(ctx, key.Namespace, key.Job, nomad.Registration{Job: e.Job, EnforceIndex: e.Index, Submission: submission})
		o.done.Registered = r.JobModifyIndex
		return err
	case lifecycle.Deregister:
		if twin != nil {
			if err := a.stopTwin(ctx, twin, e.Purge, o); err != nil {
				return err
			}
		}
		r, err := a.client.Deregister(ctx, key.Namespace, key.Job, e.Purge)
		o.done.Registered = r.JobModifyIndex
		if nomad.NotFound(err) {
			return nil
		}
		return err
	case lifecycle.StopAllocs:
		return a.stopAllocs(ctx, key.Namespace, e.IDs)
	case lifecycle.Publish:
		return a.channel.Publish(ctx, e.Record)
	case lifecycle.Remove:
		return a.channel.Remove(ctx, channelOf(id, twin), e.Attempt)
	case lifecycle.Refresh:
		if twin != nil {
			a.watcher.Refresh(ctx, twin.key)
		}
		a.watcher.Refresh(ctx, key)
		return nil
	case lifecycle.ReadReports:
		reports, err := a.channel.Reports(ctx, channelOf(id, twin), e.Attempt)
		o.done.Reports = reports
		return err
	}
	panic(fmt.Sprintf("agent: effect %T is not known", e))
}

// submitted is what the user wrote for a version of a job; nil: Nomad has none.
type submitted struct {
	version uint64
	text    json.RawMessage
}

// submissionKept bounds what is kept of submissions between uses.
const submissionKept = 16 << 10

// submission reads what the user wrote for a version, once.
func (a *Agent) submission(ctx context.Context, key picture.Key, id contract.GangID, version uint64) (json.RawMessage, error) {
	a.storeMu.Lock()
	kept, ok := a.submissions[id]
	a.storeMu.Unlock()
	if ok && kept.version == version {
		return kept.text, nil
	}
	text, err := a.client.Submission(ctx, key.Namespace, key.Job, version)
	if err == nil && len(text) <= submissionKept {
		a.storeMu.Lock()
		a.submissions[id] = submitted{version, text}
		a.storeMu.Unlock()
	}
	return text, err
}

func (a *Agent) dropSubmission(id contract.GangID) {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	delete(a.submissions, id)
}

// channelOf is the id under which the members know a gang.
func channelOf(id contract.GangID, twin *twin) contract.GangID {
	if twin != nil {
		id.Job = twin.key.Job
	}
	return id
}

// checkError is a dry run whose result is not what the plan needs.
type checkError struct{ text string }

func (e *checkError) Error() string { return e.text }

// check runs Nomad's scheduler dry: it must place exactly the plan's members
// and evict nobody.
func (a *Agent) check(ctx context.Context, key picture.Key, c lifecycle.Check) error {
	r, err := a.client.Plan(ctx, key.Namespace, key.Job, c.Job)
	if err != nil {
		return err
	}
	wrong := func(format string, args ...any) error {
		return &checkError{fmt.Sprintf("dry run of job "+key.String()+": "+format, args...)}
	}
	switch {
	case r.JobModifyIndex != c.Index:
		return wrong("the job changed since it was planned (index %d, planned at %d)", r.JobModifyIndex, c.Index)
	case r.Annotations == nil:
		return wrong("Nomad gives no account of what it would do")
	case len(r.Annotations.PreemptedAllocs) > 0:
		p := r.Annotations.PreemptedAllocs[0]
		return wrong("Nomad would evict %d allocations of others, the first of job %s/%s", len(r.Annotations.PreemptedAllocs), p.Namespace, p.JobID)
	case len(r.FailedTGAllocs) > 0 && !c.Blocked:
		return wrong("Nomad finds no place for members of %d groups: %s", len(r.FailedTGAllocs), r.WhyNot())
	}
	for group, is := range r.Annotations.DesiredTGUpdates {
		if n := is.DestructiveUpdate + is.Stop + is.Migrate; c.Keep && n > 0 {
			return wrong("Nomad would end %d members of group %q that run", n, group)
		}
	}
	for group, want := range c.Place {
		if got := r.Annotations.DesiredTGUpdates[group].Place; got != want && !c.Blocked {
			return wrong("Nomad would place %d members of group %q, the plan has %d", got, group, want)
		}
	}
	return nil
}

// readUser finds the version that the user submitted among those that Nomad
// keeps: by its tag, or by its number.
func (a *Agent) readUser(ctx context.Context, key picture.Key, version uint64) (*jobspec.Job, error) {
	versions, err := a.client.Versions(ctx, key.Namespace, key.Job)
	if err != nil {
		return nil, err
	}
	var numbered, unpinned *jobspec.Job
	for _, raw := range versions {
		j, err := jobspec.Parse(raw)
		if err != nil {
			continue // another version is looked for
		}
		if j.VersionTag != nil && j.VersionTag.Name == contract.VersionTag {
			return j, nil
		}
		if j.Version == version && j.Mark() == 0 {
			numbered = j
		}
		if j.Mark() == 0 && !j.Stop {
			unpinned = j // the oldest in the end, since newest come first
		}
	}
	if numbered != nil {
		return numbered, nil
	}
	if unpinned != nil {
		return unpinned, nil
	}
	return nil, fmt.Errorf("find what the user of job %s submitted: Nomad keeps %d versions, and all of them are pinned: submit the job again", key, len(versions))
}

// stopAllocs asks for the end of allocations, several at once.
func (a *Agent) stopAllocs(ctx context.Context, namespace string, ids []string) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		slots = make(chan struct{}, stopsAtOnce)
	)
	for _, id := range ids {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			if err := a.client.StopAlloc(ctx, namespace, id); err != nil && !nomad.NotFound(err) {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	return first
}
