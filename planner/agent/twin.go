package agent

import (
	"context"

	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// home is the gang that a job belongs to: the job's own, or that of the child
// whose twin it is.
func (s *state) home(key picture.Key) picture.Key {
	child := picture.Key{Namespace: key.Namespace, Job: jobspec.TwinOf(key.Job)}
	if child.Job == "" {
		return key
	}
	if e := s.gangs[child]; e != nil && e.gang.Twin() {
		return child
	}
	if j := s.jobs[child]; j != nil && j.ParentID != "" && j.Gang != nil && j.Gang.IsHeld() {
		return child
	}
	return key
}

// rehome moves what is kept of a twin to its gang, once that is known.
func (s *state) rehome(child picture.Key) {
	twin := picture.Key{Namespace: child.Namespace, Job: jobspec.TwinID(child.Job)}
	if s.home(twin) != child {
		return
	}
	if e := s.gangs[twin]; e != nil && !e.busy {
		s.drop(e)
	}
	for id, a := range s.byJob[twin] {
		if s.byJob[child] == nil {
			s.byJob[child] = map[string]*picture.Alloc{}
		}
		s.byJob[child][id] = a
	}
	delete(s.byJob, twin)
	s.reclaim(child)
}

// jobOf is the job that a gang is shown.
func (s *state) jobOf(e *entry) *picture.Job {
	j := s.jobs[e.key]
	if !e.gang.Twin() {
		return j
	}
	return e.gang.TwinSeen(j, s.jobs[picture.Key{Namespace: e.key.Namespace, Job: jobspec.TwinID(e.key.Job)}])
}

// twin is the job that a gang's attempts run as, where that is not its own.
type twin struct {
	key   picture.Key
	index uint64 // its JobModifyIndex; 0: Nomad has none
	alive bool
}

func (s *state) twinOf(e *entry) *twin {
	if !e.gang.Twin() {
		return nil
	}
	t := &twin{key: picture.Key{Namespace: e.key.Namespace, Job: jobspec.TwinID(e.key.Job)}}
	if j := s.jobs[t.key]; j != nil {
		t.index, t.alive = j.JobModifyIndex, !j.Stop
	}
	return t
}

// registerTwin writes a pinned text as the twin's; any other text of the gang's
// stops the twin, since the handle is held.
func (a *Agent) registerTwin(ctx context.Context, t *twin, r lifecycle.Register, o *outcome) error {
	text, err := jobspec.Twin(r.Job)
	if err != nil {
		return err
	}
	j, err := jobspec.Parse(text)
	if err != nil {
		return err
	}
	if j.Mark() == 0 {
		return a.stopTwin(ctx, t, false, o)
	}
	done, err := a.client.Register(ctx, t.key.Namespace, t.key.Job, nomad.Registration{Job: text, EnforceIndex: t.index, Fresh: t.index == 0})
	o.done.Registered = done.JobModifyIndex
	return err
}

func (a *Agent) stopTwin(ctx context.Context, t *twin, purge bool, o *outcome) error {
	if t.index == 0 {
		return nil
	}
	done, err := a.client.Deregister(ctx, t.key.Namespace, t.key.Job, purge)
	if nomad.NotFound(err) {
		return nil
	}
	o.done.Registered = done.JobModifyIndex
	return err
}
