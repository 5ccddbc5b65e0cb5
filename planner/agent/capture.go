package agent

import (
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/view"
)

// Capture implements httpapi.Capturer: the snapshot as the core sees it now,
// and what it decides on it; nothing is carried out.
func (a *Agent) Capture() (*core.Snapshot, *core.Plan, error) {
	a.mu.Lock()
	s := &a.state
	if !s.whole || !s.loaded {
		a.mu.Unlock()
		return nil, nil, &view.Error{Code: view.CodeUnavailable, Operation: "capture decision", Cause: "the picture of the cluster is not complete yet", Hint: "try again in a moment"}
	}
	soon := s.decideSoon
	snap := a.snapshot(time.Now().UTC())
	s.decideSoon = soon
	a.mu.Unlock()
	return snap, decide.New().Decide(snap), nil
}
