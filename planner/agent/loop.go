package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
)

// leastPause between two looks at a gang that wants to be woken at once.
const leastPause = 20 * time.Millisecond

// leastRest between two decisions gathers news that come together; a decision
// that took long is followed by twice as long a rest, so that deciding never
// takes more than a third of the loop's time.
const leastRest = 4 * time.Millisecond

// loop runs until ctx ends; what it starts is counted in wg.
func (a *Agent) loop(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	run := func(e *entry, effects []lifecycle.Effect) {
		e.busy = true
		twin := a.state.twinOf(e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			a.inbox.outcome(a.carryOut(ctx, e.key, e.gang.ID, twin, effects))
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.inbox.inboxState.wake:
		case <-timer.C:
		}
		now := time.Now()
		a.mu.Lock()
		a.receive(a.inbox.take())
		var snapshot *core.Snapshot
		// A picture that cannot be trusted is not acted on.
		if a.state.whole && a.state.loaded && a.state.contact.OK {
			a.step(ctx, now, run)
			a.room(ctx, now, run)
			if a.due(now) {
				snapshot = a.snapshot(now)
			}
		}
		a.mu.Unlock()
		if snapshot != nil {
			start := time.Now()
			plan := a.decider.Decide(snapshot)
			took := time.Since(start)
			a.mu.Lock()
			a.carry(ctx, plan, time.Now(), run)
			a.state.cycles++
			a.state.lastCycle, a.state.lastTook = start, took
			end := time.Now()
			a.state.nextCycle = end.Add(max(2*end.Sub(now), leastRest))
			a.metrics.cycle.Observe(took.Seconds())
			a.mu.Unlock()
		}
		a.mu.Lock()
		a.hold(time.Now())
		timer.Reset(a.next(time.Now()))
		a.mu.Unlock()
	}
}

// receive takes what came in.
func (a *Agent) receive(m mail) {
	s := &a.state
	for _, d := range m.deltas {
		s.apply(d)
	}
	for _, r := range m.reports {
		if e := s.gangs[r.key]; e != nil && e.gang.Saved.Attempt == r.attempt {
			e.reports = append(e.reports, r.reports...)
			s.stir(e)
		}
	}
	for _, o := range m.done {
		if e := s.gangs[o.key]; e != nil {
			a.took(e, o)
		}
	}
	for _, f := range m.calls {
		f(s)
	}
}

// took tells a gang how its effects went.
func (a *Agent) took(e *entry, o outcome) {
	attempt := e.gang.Saved.Attempt
	if o.reloaded != nil {
		a.log.Warn("a gang's variable was written by somebody else; going on from what stands there", "gang", e.gang.ID.String())
		e.gang = lifecycle.Restore(e.gang.ID, a.state.set, o.reloaded.saved, o.reloaded.index)
	} else {
		e.gang.Step(o.done)
	}
	if e.wish != nil && e.wish.given {
		err := o.done.Err
		if e.gang.Saved.Cancel != nil {
			err = nil // it is saved; what else failed is tried again
		}
		e.answer(err)
	}
	starting := e.starting != nil || e.adding != nil
	e.busy, e.starting, e.leavers, e.adding = false, nil, nil, nil
	a.state.stir(e)
	if o.done.Err != nil {
		a.log.Warn("an effect failed", "gang", e.gang.ID.String(), "error", o.done.Err)
	}
	moved := e.gang.Saved.Attempt != attempt || e.gang.Saved.Phase != e.phase
	if moved {
		a.state.reclaim(e.key)
	}
	// Nothing else that a gang does by itself changes what the core decides.
	if moved || starting || o.done.Err != nil || o.reloaded != nil {
		a.state.decideSoon = true
	}
}

// step looks at every gang that something happened to, or that wants to be
// woken.
func (a *Agent) step(ctx context.Context, now time.Time, run func(*entry, []lifecycle.Effect)) {
	s := &a.state
	for _, e := range s.order() {
		due := !e.gang.Wake.IsZero() && !now.Before(e.gang.Wake)
		if e.busy || !e.dirty && !due {
			continue
		}
		if e.gang.Saved.Phase == lifecycle.Waiting {
			s.decideSoon = true
		}
		seen := s.seen(e, now)
		e.evals, e.reports, e.fresh, e.dirty = nil, nil, false, false
		phase := e.gang.Saved.Phase
		e.growing = e.gang.Growing(seen)
		if (e.gang.Adoptable(seen) || e.growing) && now.Sub(e.admitAt) > time.Second {
			e.admitAt = now
			if a.admits(e, now) {
				e.gang.Admit()
			}
		}
		var effects []lifecycle.Effect
		if w := e.wish; w != nil && !w.given {
			w.given = true
			effects = e.gang.Step(lifecycle.Cancel{Seen: seen, Why: w.why, Purge: w.purge, Grace: w.grace})
			if len(effects) == 0 {
				e.answer(nil)
			}
		} else {
			effects = e.gang.Step(seen)
		}
		if e.gang.Saved.Phase != phase {
			s.decideSoon = true
		}
		if !e.gang.Wake.IsZero() && e.gang.Wake.Before(now.Add(leastPause)) {
			e.gang.Wake = now.Add(leastPause)
		}
		a.observe(ctx, e, now)
		switch {
		case e.gang.Gone:
			a.forget(e)
		case len(effects) > 0:
			run(e, effects)
		}
		s.settle(e)
	}
}

// observe follows a gang's way from outside: its reports while it is on its
// way to training, and what is told of its stages.
func (a *Agent) observe(ctx context.Context, e *entry, now time.Time) {
	g := e.gang
	a.state.track(e)
	follow := false
	switch g.Saved.Phase {
	case lifecycle.Reserving:
		follow = true
	case lifecycle.Released:
		follow = true
		for _, st := range g.Saved.Stages {
			follow = follow && st.Stage != contract.StageTraining
		}
		// Who is asked to leave tells how that goes.
		follow = follow || g.Saved.Ask != nil || g.Saved.Growth != nil
	}
	if e.watch != nil && (!follow || e.watched != g.Saved.Attempt) {
		e.watch()
		e.watch = nil
	}
	if follow && e.watch == nil && a.follows && !g.Service() && g.Saved.Attempt > 0 {
		watch, cancel := context.WithCancel(ctx)
		e.watch, e.watched = cancel, g.Saved.Attempt
		key, attempt := e.key, g.Saved.Attempt
		go a.channel.Watch(watch, g.Channel(), attempt, func(reports []contract.Report) {
			if len(reports) > 0 {
				a.inbox.report(reported{key, attempt, reports})
			}
		})
	}
	a.tell(e, now)
	a.state.changed(e.key)
	a.ended(e)
	if e.phase != g.Saved.Phase {
		e.phase = g.Saved.Phase
		a.state.reclaim(e.key)
	}
}

// forget drops a gang of which nothing is left.
func (a *Agent) forget(e *entry) {
	if e.watch != nil {
		e.watch()
	}
	if v, ok := a.state.sight(e); ok {
		a.meter.depart(v.gang)
	}
	a.state.drop(e)
	a.dropSubmission(e.gang.ID)
	a.state.reclaim(e.key)
}

// due tells whether it is time to decide.
func (a *Agent) due(now time.Time) bool {
	s := &a.state
	return !now.Before(s.nextCycle) && (s.decideSoon || now.Sub(s.lastCycle) >= a.slow)
}

// next is how long the loop may sleep.
func (a *Agent) next(now time.Time) time.Duration {
	s := &a.state
	wait := a.slow
	sooner := func(at time.Time) {
		if d := max(at.Sub(now), time.Millisecond); d < wait {
			wait = d
		}
	}
	if !s.whole || !s.loaded || !s.contact.OK {
		return wait
	}
	for _, e := range s.order() {
		if !e.busy && !e.gang.Wake.IsZero() {
			sooner(e.gang.Wake)
		}
		if e.dirty && !e.busy {
			sooner(now)
		}
	}
	if s.decideSoon {
		sooner(s.nextCycle)
	}
	if s.claims.changes != s.held {
		sooner(s.holdAgain())
	}
	return wait
}

// carry gives a plan's decisions to the gangs that they are about.
func (a *Agent) carry(ctx context.Context, plan *core.Plan, now time.Time, run func(*entry, []lifecycle.Effect)) {
	s := &a.state
	s.notices, s.reservations, s.demand = plan.Notices, plan.Reservations, plan.Demand
	a.metrics.contradictions(plan.Notices)
	for i := range plan.Verdicts {
		a.judge(&plan.Verdicts[i], now)
	}
	disturbed := s.disturbed(a.inbox.pending())
	act := func(id core.GangID, event func(*entry, lifecycle.Seen) lifecycle.Event) *entry {
		e := s.gangs[gangKey(id)]
		if e == nil || e.busy || e.dirty {
			// Something happened to it while the plan was made: the next cycle
			// decides by what is true then.
			s.decideSoon = s.decideSoon || e != nil
			return nil
		}
		effects := e.gang.Step(event(e, s.seen(e, now)))
		a.observe(ctx, e, now)
		if len(effects) == 0 {
			return nil
		}
		run(e, effects)
		return e
	}
	starts := map[core.GangID]bool{}
	for i := range plan.Starts {
		start := &plan.Starts[i]
		starts[start.Gang] = true
		if why, bad := a.refused(start); bad {
			a.log.Info("a plan is not carried out: a card turned bad while it was made", "gang", string(start.Gang), "why", why)
			s.decideSoon = true
			continue
		}
		leavers := s.leavers(start, plan)
		fresh := !slices.ContainsFunc(start.Members, func(p core.Placement) bool { return disturbed[string(p.Node)] })
		if e := act(start.Gang, func(_ *entry, v lifecycle.Seen) lifecycle.Event {
			return lifecycle.Start{Seen: v, Plan: *start, Leavers: leavers, Fresh: fresh}
		}); e != nil {
			e.starting, e.leavers = start, leavers
		}
	}
	for _, eviction := range plan.Evictions {
		if starts[eviction.For] {
			continue // asked once the start's place is registered; see room
		}
		queue := ""
		if e := s.gangs[gangKey(eviction.For)]; e != nil {
			queue = e.gang.QueueName()
		}
		act(eviction.Gang, func(_ *entry, v lifecycle.Seen) lifecycle.Event {
			return lifecycle.Evict{Seen: v, Plan: eviction, Queue: queue}
		})
	}
	for i := range plan.Resizes {
		if r := &plan.Resizes[i]; len(r.Add) > 0 && len(r.Remove) == 0 {
			if e := act(r.Gang, func(e *entry, v lifecycle.Seen) lifecycle.Event {
				return lifecycle.Grow{Seen: v, Attempt: e.gang.Saved.Attempt, Add: r.Add}
			}); e != nil {
				e.adding = r.Add
			}
		}
	}
	for _, fail := range plan.Fails {
		act(fail.Gang, func(_ *entry, v lifecycle.Seen) lifecycle.Event {
			return lifecycle.GiveUp{Seen: v, Reason: fail.Reason}
		})
	}
	a.tellNotCarried(plan, now)
	a.describe(ctx, now, run)
}

// tellNotCarried marks what this service cannot carry out: who is concerned is
// told.
func (a *Agent) tellNotCarried(plan *core.Plan, now time.Time) {
	for _, id := range plan.Splits {
		if e := a.state.gangs[gangKey(id)]; e != nil {
			e.verdict.Reason = core.ReasonNotCarried
			e.verdict.Sentence = "not carried out: a gang cannot be split into single members yet; it goes on waiting as one (" + e.verdict.Sentence + ")"
		}
	}
	for _, e := range a.state.order() {
		if e.gang.Saved.Phase != lifecycle.Released || !e.gang.Elastic() || len(e.gang.Saved.Places) == e.gang.User.Members() {
			continue
		}
		have, most := len(e.gang.Saved.Places), e.gang.User.Members()
		n := len(e.adding)
		if gr := e.gang.Saved.Growth; gr != nil && gr.Undo == lifecycle.UndoNone {
			n = len(gr.Places)
		}
		why, ok := e.gang.Growable(now)
		switch after := e.gang.Saved.GrowAfter; {
		case n > 0:
			e.verdict.Action, e.verdict.Sentence = core.ActionResize, fmt.Sprintf("runs with %d of %d members; %d more are on their way", have, most, n)
			continue
		case ok:
			e.verdict.Sentence = fmt.Sprintf("runs with %d of %d members; it grows into cards that nobody waits for", have, most)
			continue
		case after.After(now):
			e.verdict.Action = core.ActionRun
			e.verdict.Sentence = fmt.Sprintf("runs with %d of %d members; it may grow from %s on: %s", have, most, after.UTC().Format(time.RFC3339), why)
			continue
		}
		if e.verdict.Action == core.ActionResize {
			e.verdict.Action, e.verdict.Reason, e.verdict.Sentence = core.ActionRun, core.ReasonNotCarried, "runs; not carried out: "+e.verdict.Sentence
		}
		e.verdict.Blockers = []core.Blocker{{Reason: core.ReasonNotCarried, Missing: most - have,
			Text:   fmt.Sprintf("not carried out: growing while it runs: %s; it stays at %d of %d members", why, have, most),
			Remedy: "nothing to do: its next attempt starts with as many as fit then"}}
	}
}
