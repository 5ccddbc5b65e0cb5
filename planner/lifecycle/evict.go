package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// How a gang makes room for another:
//
//  1. The other's reservation is saved with everybody who holds its places
//     (Saved.Leavers), and its pinned job registered at the highest priority:
//     whatever comes free there is its own.
//     Where its queue's max has no room for both (Saved.Later), its job is
//     registered only when they have left; until then its places are kept in the
//     planner's plans.
//  2. Once that registration is seen, the leavers are asked (Asks, Evict): the
//     ask is saved with them, then published. A planner that starts again asks
//     those who were not asked yet.
//  3. A leaver ends as soon as its members have saved and left, or is stopped
//     when the grace, and what its members extended it by, is over. It goes back
//     to its queue, or to the one that evicted gangs of it go to.
//  4. Nomad places the reservation as the cards come free. Where it is withdrawn
//     before that, those who still run are told that they may stay (Withdraw).

// Ask is a request to save and leave, on its way.
type Ask struct {
	contract.Ask
	At     time.Time         `json:"at,omitzero"`
	Reason string            `json:"reason"`
	Cause  core.EvictionKind `json:"cause,omitempty"`
	// To is the queue that the gang goes to; "": its own.
	To  string `json:"to,omitempty"`
	For string `json:"for,omitempty"` // the gang that gets its cards
}

// Leaver is a gang that is to leave places which another takes over.
type Leaver struct {
	Gang    string `json:"gang"`
	Attempt int    `json:"attempt"`
	// Evict is how it is to be asked; nil: it is on its way out already.
	Evict *core.Eviction `json:"evict,omitempty"`
	// Allocs are the members that an elastic gang gives up; empty: it leaves as a
	// whole. Grace is how long they may save.
	Allocs []string      `json:"allocs,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
}

// Leaving is a leaver that still holds something.
type Leaving struct {
	Gang string
	// Members that it gives up; 0: all.
	Members int
	Asked   bool
	// Until is when its grace ends, as far as is known.
	Until time.Time
}

// Evicted is one eviction for another gang.
type Evicted struct {
	At    time.Time         `json:"at"`
	For   string            `json:"for"`
	Queue string            `json:"queue"` // of that gang
	Kind  core.EvictionKind `json:"kind"`
}

// evictedKept is how long evictions are remembered: budgets count by day.
const evictedKept = 48 * time.Hour

// asking tells whether the members are to save and leave.
func (s *Saved) asking() bool { return s.Ask != nil && s.Ask.Kind != contract.AskWithdrawn }

// Asking tells whether the gang runs and was asked to leave.
func (g *Gang) Asking() bool { return g.Saved.Phase == Released && g.Saved.asking() }

// Asks are the leavers that may be asked: once the registration of the
// reservation is in place, or where it has to wait for them, once it is saved.
func (g *Gang) Asks() []Leaver {
	if g.Saved.Phase != Reserving || len(g.Saved.Leavers) == 0 || g.pinned == nil && !g.Saved.Later {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(g.Saved.Leavers), func(l Leaver) bool { return l.Evict == nil && len(l.Allocs) == 0 })
}

// Needs tells whether a gang waits for another's attempt to leave.
func (g *Gang) Needs(gang string, attempt int) bool {
	return g.Saved.Phase == Reserving && slices.ContainsFunc(g.Saved.Leavers, func(l Leaver) bool { return l.Gang == gang && l.Attempt == attempt })
}

// Present tells whether an attempt of the gang holds places, whether it was
// asked to leave them, and until when it may take.
func (g *Gang) Present(attempt int) (l Leaving, present bool) {
	s := &g.Saved
	if s.Attempt != attempt || s.Phase == Waiting || s.Phase == Over {
		return Leaving{}, false
	}
	l.Gang = string(core.GangID(g.ID.String()))
	switch {
	case s.Phase == Stopping:
		l.Asked, l.Until = true, s.Stop.At
	case s.asking():
		l.Asked, l.Until = true, g.leaveBy()
	}
	return l, true
}

// leaveBy is the end of the grace, as far as the members have extended it: at
// most twice, by the grace each, since a checkpoint is being written.
func (g *Gang) leaveBy() time.Time {
	ask := g.Saved.Ask
	by := ask.By
	for _, m := range g.Saved.Record.Members {
		if r, ok := g.reports[member{m.Alloc, m.Task}]; ok && r.State != contract.StateEnded && r.LeaveBy.After(by) {
			by = r.LeaveBy
		}
	}
	if most := ask.By.Add(2 * ask.Grace); by.After(most) {
		return most
	}
	return by
}

// asked sees to the members being asked to save and leave: for a drain or a
// quarantined card, by itself; for an eviction, as saved. Once the grace is over the attempt is
// stopped.
func (g *Gang) asked(v Seen) []Effect {
	s := &g.Saved
	if e := g.draining(v); e != nil {
		return e
	}
	if e := g.quarantined(v); e != nil {
		return e
	}
	if s.Ask == nil {
		return nil
	}
	if s.asking() {
		by := g.leaveBy()
		if !v.Now.Before(by.Add(leaveSlack)) {
			return g.stop(v, *s, Stop{Reason: s.Ask.Reason, Site: true, Member: -1, Text: fmt.Sprintf("%s; the grace of %s is over", s.Ask.Why, by.Sub(s.Ask.By.Add(-s.Ask.Grace)))})
		}
		g.wake(by.Add(leaveSlack))
	}
	if !g.askSent && len(s.Record.Members) > 0 && !g.publishAfter.After(v.Now) {
		return []Effect{Publish{g.asking(s.Record)}}
	}
	return nil
}

// asking is the record with the ask that is in force.
func (g *Gang) asking(record *contract.Record) *contract.Record {
	if g.Saved.Ask == nil {
		return record
	}
	return withAsk(record, g.Saved.Ask.Ask)
}

func withAsk(record *contract.Record, ask contract.Ask) *contract.Record {
	r := *record
	r.Ask = &ask
	return &r
}

// draining asks the whole gang where a node of it drains, with the drain's
// deadline as grace. A drain that ends before an ask that is in force shortens
// its grace.
func (g *Gang) draining(v Seen) []Effect {
	s := &g.Saved
	for _, m := range s.Record.Members {
		for _, a := range v.Allocs {
			if a.ID != m.Alloc || a.Terminal() {
				continue
			}
			n := v.Node(a.NodeID)
			if n == nil || !n.Draining {
				continue
			}
			by := n.DrainBy
			if by.IsZero() {
				by = v.Now.Add(time.Hour)
			}
			if s.asking() && (s.Ask.Kind == contract.AskDrain || !by.Before(s.Ask.By)) {
				return nil
			}
			next := *s
			next.Ask = &Ask{Ask: contract.Ask{Kind: contract.AskDrain, By: by, Grace: by.Sub(v.Now), Why: fmt.Sprintf("node %s drains", n.Name)}, At: v.Now, Reason: ReasonDrain, Cause: core.EvictDrain}
			if s.asking() {
				next.Ask.Reason, next.Ask.Cause, next.Ask.To, next.Ask.For = s.Ask.Reason, s.Ask.Cause, s.Ask.To, s.Ask.For
			}
			return []Effect{Save{next}, Publish{withAsk(s.Record, next.Ask.Ask)}}
		}
	}
	return nil
}

// evict asks a running gang to save and leave, or stops it at once. One that is
// not released has nothing to save.
func (g *Gang) evict(e Evict) []Effect {
	s := &g.Saved
	if s.Phase != Released && s.Phase != Reserving || s.Attempt != e.Plan.Attempt || s.asking() || g.unsure || g.hold.After(e.Now) {
		return nil
	}
	if e.Plan.Kind == core.EvictDrain && s.Growth != nil {
		return nil // perhaps a newcomer's node: see draining and takeIn
	}
	ask := &Ask{Ask: contract.Ask{Kind: contract.AskPreempt, By: e.Now.Add(e.Plan.Grace), Grace: e.Plan.Grace, Why: e.Plan.Why}, At: e.Now, Reason: ReasonPreempted,
		Cause: e.Plan.Kind, To: string(e.Plan.To), For: string(e.Plan.For)}
	switch e.Plan.Kind {
	case core.EvictDrain:
		ask.Kind, ask.Reason = contract.AskDrain, ReasonDrain
	case core.EvictRepair:
		ask.Reason = ReasonDamaged
	case core.EvictTimeLimit:
		ask.Kind, ask.Reason = contract.AskTimeLimit, ReasonTimeLimit
	case core.EvictUnreleased:
		ask.Reason = ReasonReservation
	}
	next := *s
	next.Ask = ask
	next.Evicted = slices.DeleteFunc(slices.Clone(s.Evicted), func(old Evicted) bool { return e.Now.Sub(old.At) > evictedKept })
	if ask.For != "" {
		next.Evicted = append(next.Evicted, Evicted{At: e.Now, For: ask.For, Queue: e.Queue, Kind: e.Plan.Kind})
	}
	if s.Phase == Reserving || e.Plan.Immediate || e.Plan.Grace <= 0 || len(s.Record.Members) == 0 {
		return g.stop(e.Seen, next, Stop{Reason: ask.Reason, Text: e.Plan.Why, Site: true, Member: -1})
	}
	return []Effect{Save{next}, Publish{withAsk(s.Record, ask.Ask)}}
}

// withdraw tells the members that they may stay. Those that have left already
// end the attempt as the ask would have.
func (g *Gang) withdraw(e Withdraw) []Effect {
	s := &g.Saved
	if s.Phase != Released || !s.asking() || s.Ask.For == "" {
		return nil
	}
	next := *s
	ask := *s.Ask
	ask.Kind, ask.Why = contract.AskWithdrawn, e.Why
	next.Ask = &ask
	if n := len(s.Evicted); n > 0 && s.Evicted[n-1].For == ask.For {
		next.Evicted = slices.Clone(s.Evicted[:n-1])
	}
	return []Effect{Save{next}, Publish{withAsk(s.Record, ask.Ask)}}
}

// leave books what an attempt that ended leaves behind: where an evicted gang
// goes, what it has run and what was measured.
func (g *Gang) leave(v Seen, next *Saved, why Stop) {
	s := &g.Saved
	ran := g.ran(why)
	next.Ran += ran
	if ask := s.Ask; ask != nil {
		if why.Reason == ask.Reason && ask.To != "" && ask.To != g.QueueName() {
			next.Queue = ask.To
		}
		if why.Exit != nil && why.Exit.Outcome == contract.OutcomeCheckpointed && !ask.At.IsZero() {
			next.SaveTime = max(0, why.Exit.At.Sub(ask.At))
		}
	}
	var planned, training time.Time
	for _, st := range s.Stages {
		switch st.Stage {
		case contract.StagePlaced:
			planned = st.At
		case contract.StageTraining:
			training = st.At
		}
	}
	if !planned.IsZero() && training.After(planned) {
		next.RestartTime = training.Sub(planned)
	}
	// Aging counts what was waited for this start too, unless it came to
	// something.
	least := time.Duration(0)
	if g.set.MinRuntime != nil {
		least = g.set.MinRuntime(g.QueueName())
	}
	waited := time.Duration(0)
	if !s.Planned.IsZero() && !s.Queued.IsZero() && ran < least {
		waited = max(0, s.Planned.Sub(s.Queued))
	}
	next.Queued = v.Now.Add(-waited)
}

// ran is how long the attempt's ranks ran, up to what they saved last.
func (g *Gang) ran(why Stop) time.Duration {
	var started time.Time
	for _, st := range g.Saved.Stages {
		if st.Stage == contract.StageStarted {
			started = st.At
		}
	}
	if started.IsZero() || why.Exit == nil {
		return 0
	}
	until := why.Exit.At
	switch why.Exit.Outcome {
	case contract.OutcomeComplete, contract.OutcomeCheckpointed, contract.OutcomeYielded:
	default:
		until = g.Checkpoint()
	}
	return max(0, until.Sub(started))
}

// today tells whether two instants are of one day, as budgets count: in UTC.
func today(at, now time.Time) bool {
	return at.UTC().Truncate(24 * time.Hour).Equal(now.UTC().Truncate(24 * time.Hour))
}

// EvictionsToday counts the day's evictions of the gang by the queue of the
// gang that they were for, and tells which were for one aged to the top.
func (g *Gang) EvictionsToday(now time.Time, count func(queue core.QueueName, aged bool)) {
	for _, ev := range g.Saved.Evicted {
		if today(ev.At, now) {
			count(core.QueueName(ev.Queue), ev.Kind == core.EvictAged)
		}
	}
}

// Limit is how long the gang may run: as it states, or else as its queue does.
// 0: it is not known.
func (g *Gang) Limit() time.Duration {
	if g.Meta.TimeLimit > 0 || g.set.TimeLimit == nil {
		return g.Meta.TimeLimit
	}
	return g.set.TimeLimit(g.QueueName())
}
