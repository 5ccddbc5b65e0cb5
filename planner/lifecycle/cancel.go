package lifecycle

import (
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// A user who stops a gang through the planner has its members asked first, as
// an eviction does: they save and leave, or are stopped when the grace is over,
// and only then is the job stopped in Nomad. The wish is saved with the gang,
// so that another planner goes on with it. One who stops the job in Nomad
// itself has asked for no grace but the tasks' own.

// Cancelled is a user's wish that the gang ends.
type Cancelled struct {
	At time.Time `json:"at"`
	// Why says who wishes it, and what for.
	Why string `json:"why"`
	// Purge removes the job from Nomad.
	Purge bool `json:"purge,omitempty"`
}

// cancel asks the members of a gang that runs; any other is stopped at once.
func (g *Gang) cancel(e Cancel) []Effect {
	g.absorb(e.Seen)
	s := &g.Saved
	if s.Phase == Over || g.Gone {
		return nil
	}
	next := *s
	next.Cancel = &Cancelled{At: e.Now, Why: e.Why, Purge: e.Purge}
	grace := e.Grace
	if grace <= 0 {
		grace = g.Grace()
	}
	switch {
	case s.Phase == Stopping:
		why := *s.Stop
		if why.Final == "" {
			why.Final, why.Text = contract.StageCancelled, why.Text+"; "+e.Why
		}
		next.Stop = &why
		return []Effect{Save{next}}
	case s.Phase == Released && len(s.Record.Members) > 0 && grace > 0:
		by := e.Now.Add(grace)
		if s.asking() && s.Ask.By.Before(by) {
			by = s.Ask.By
		}
		next.Ask = &Ask{Ask: contract.Ask{Kind: contract.AskStop, By: by, Grace: grace, Why: e.Why}, At: e.Now, Reason: ReasonStopped}
		return []Effect{Save{next}, Publish{withAsk(s.Record, next.Ask.Ask)}}
	}
	return g.stop(e.Seen, next, Stop{Reason: ReasonStopped, Text: e.Why, Final: contract.StageCancelled, Member: -1})
}

// Grace is how long the gang's members get to save and leave: as it states, or
// else as its queue does. 0: they are not asked.
func (g *Gang) Grace() time.Duration {
	if g.Meta.Grace > 0 || g.set.Grace == nil {
		return g.Meta.Grace
	}
	return g.set.Grace(g.QueueName())
}

// purging: a gang that is over, and whose user wanted its job removed.
func (g *Gang) purging(v Seen) bool {
	c := g.Saved.Cancel
	return c != nil && c.Purge && v.Job != nil && v.Job.JobModifyIndex <= max(g.Saved.EndIndex, g.floor)
}
