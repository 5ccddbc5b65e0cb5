package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// How room is made for a gang: package lifecycle, evict.go. The loop's part is
// to bring the two sides together, whatever the planner did before: a
// reservation names the gangs that are to leave, and each of them is asked once
// the reservation is registered; a gang that was asked for a reservation that
// is not there any more is told that it may stay.

// leavers are the gangs that a start waits for, with how those are asked that
// the same plan evicts for it.
func (s *state) leavers(start *core.Start, plan *core.Plan) []lifecycle.Leaver {
	var out []lifecycle.Leaver
	for _, id := range start.After {
		e := s.gangs[gangKey(id)]
		if e == nil {
			continue
		}
		l := lifecycle.Leaver{Gang: string(id), Attempt: e.gang.Saved.Attempt}
		for i := range plan.Evictions {
			if ev := &plan.Evictions[i]; ev.Gang == id && ev.For == start.Gang {
				l.Evict, l.Attempt = ev, ev.Attempt
			}
		}
		for i := range plan.Resizes {
			if r := &plan.Resizes[i]; r.Gang == id && r.For == start.Gang {
				l.Allocs, l.Grace = s.members(e, r.Remove), s.graceOf(e)
			}
		}
		out = append(out, l)
	}
	return out
}

// members are the live allocations of a gang that the core knows by these
// numbers.
func (s *state) members(e *entry, numbers []int) (ids []string) {
	for _, a := range s.list(e.key) {
		if a.CreateIndex > e.gang.Saved.Base && !a.Terminal() && slices.Contains(numbers, max(a.NameIndex(), 0)) {
			ids = append(ids, a.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// graceOf is how long a gang may take to save.
func (s *state) graceOf(e *entry) time.Duration {
	if g := e.gang.Meta.Grace; g > 0 {
		return g
	}
	return s.set.Grace(e.gang.QueueName())
}

// membersLeave tells whether members that a gang gives up are there yet.
func (s *state) membersLeave(e *entry, l *lifecycle.Leaver) (lifecycle.Leaving, bool) {
	still, here := lifecycle.Leaving{Gang: l.Gang, Members: len(l.Allocs)}, false
	for _, id := range l.Allocs {
		if a := s.allocs[id]; a == nil || a.Terminal() {
			continue
		}
		here = true
		still.Until, still.Asked = e.gang.LeftOut(id)
	}
	return still, here
}

// leaving are those of a reservation's leavers that still hold something.
func (s *state) leaving(e *entry) []lifecycle.Leaving {
	var out []lifecycle.Leaving
	for _, l := range e.gang.Saved.Leavers {
		other := s.gangs[gangKey(core.GangID(l.Gang))]
		if other == nil {
			continue
		}
		still, ok := other.gang.Present(l.Attempt)
		if ok && len(l.Allocs) > 0 {
			still, ok = s.membersLeave(other, &l)
		}
		if ok {
			out = append(out, still)
		}
	}
	return out
}

// track keeps the lists of gangs that room is made for, that were asked to make
// it, and whose past counts.
func (s *state) track(e *entry) {
	saved := &e.gang.Saved
	in := func(list map[picture.Key]*entry, is bool) {
		if is {
			list[e.key] = e
		} else {
			delete(list, e.key)
		}
	}
	in(s.makingRoom, saved.Phase == lifecycle.Reserving && len(saved.Leavers) > 0 && !e.gang.Gone)
	in(s.remembered, len(saved.Evicted) > 0 || saved.RestartTime > 0)
	in(s.askedFor, saved.Phase == lifecycle.Released && saved.Ask != nil && saved.Ask.For != "" && !e.gang.Gone)
}

// departing are the gangs that are leaving, or are to: nobody else may count on
// what they hold, and they are nobody's victims any more. Their claims say so.
func (s *state) departing() map[picture.Key]bool {
	out, leave := map[picture.Key]bool{}, map[string]bool{}
	note := func(leavers []lifecycle.Leaver) {
		for _, l := range leavers {
			key := gangKey(core.GangID(l.Gang))
			if e := s.gangs[key]; e != nil {
				switch _, ok := e.gang.Present(l.Attempt); {
				case ok && len(l.Allocs) > 0:
					for _, id := range l.Allocs {
						leave[id] = true
					}
				case ok:
					out[key] = true
				}
			}
		}
	}
	for _, e := range s.makingRoom {
		note(e.gang.Saved.Leavers)
	}
	for _, e := range s.order() {
		if e.starting != nil {
			note(e.leavers)
		}
		if e.gang.Saved.Phase == lifecycle.Stopping || e.gang.Asking() {
			out[e.key] = true
		}
	}
	for _, e := range s.order() {
		if e.departs != out[e.key] {
			e.departs = out[e.key]
			s.reclaim(e.key)
			s.settle(e)
		}
	}
	before := s.givenUp
	s.givenUp = leave
	for _, ids := range []map[string]bool{before, leave} {
		for id := range ids {
			if a := s.allocs[id]; a != nil && before[id] != leave[id] {
				s.claim(id, a)
			}
		}
	}
	return out
}

// room asks those to leave whose places are reserved, shows reservations who is
// gone, and withdraws what nobody asks for any more.
func (a *Agent) room(ctx context.Context, now time.Time, run func(*entry, []lifecycle.Effect)) {
	s := &a.state
	act := func(e *entry, event lifecycle.Event) {
		if effects := e.gang.Step(event); len(effects) > 0 {
			run(e, effects)
		}
		a.observe(ctx, e, now)
	}
	for _, e := range byName(s.makingRoom) {
		if !slices.Equal(e.leaving, s.leaving(e)) {
			s.stir(e)
		}
		if e.busy || e.dirty {
			continue
		}
		for _, l := range e.gang.Asks() {
			victim := s.gangs[gangKey(core.GangID(l.Gang))]
			if victim == nil || victim.busy || victim.dirty {
				continue
			}
			still, ok := victim.gang.Present(l.Attempt)
			switch {
			case !ok || still.Asked:
			case l.Evict != nil:
				act(victim, lifecycle.Evict{Seen: s.seen(victim, now), Plan: *l.Evict, Queue: e.gang.QueueName()})
			default:
				if still, ok := s.membersLeave(victim, &l); ok && !still.Asked {
					act(victim, lifecycle.Shrink{Seen: s.seen(victim, now), Attempt: l.Attempt, Allocs: l.Allocs, Grace: l.Grace})
				}
			}
		}
	}
	for _, e := range byName(s.askedFor) {
		if e.busy || e.dirty {
			continue
		}
		if why := s.unneeded(e); why != "" {
			act(e, lifecycle.Withdraw{Seen: s.seen(e, now), Why: why})
		}
	}
}

// unneeded tells why nobody needs the cards of a gang that was asked to leave
// for another; "": somebody does.
func (s *state) unneeded(e *entry) string {
	ask := e.gang.Saved.Ask
	other := s.gangs[gangKey(core.GangID(ask.For))]
	switch {
	case ask.Kind == contract.AskWithdrawn:
		return ""
	case other == nil:
		return ask.For + " is gone"
	case other.busy || other.dirty || other.gang.Needs(e.key.String(), e.gang.Saved.Attempt):
		return ""
	case ask.Cause == core.EvictPromise && (other.gang.Saved.Phase == lifecycle.Waiting || other.gang.Saved.Phase == lifecycle.Reserving):
		return "" // its promise is the core's to keep or to drop
	case other.gang.Saved.Phase == lifecycle.Over || other.gang.Saved.Phase == lifecycle.Stopping:
		return ask.For + " does not take its places: it was stopped"
	}
	return ask.For + " does not take its places any more"
}

// history is what earlier cycles left, as far as gangs and the last plan tell.
func (s *state) history(now time.Time) core.History {
	h := core.History{EvictionsToday: map[core.QueueName]int{}, TopEvictionsToday: map[core.QueueName]int{}, Reservations: s.reservations}
	count := func(queue core.QueueName, aged bool) {
		h.EvictionsToday[queue]++
		if aged {
			h.TopEvictionsToday[queue]++
		}
	}
	var restarts, unsaved []time.Duration
	for _, e := range s.remembered {
		e.gang.EvictionsToday(now, count)
		if d := e.gang.Saved.RestartTime; d > 0 {
			restarts = append(restarts, d)
		}
	}
	for _, e := range s.order() {
		if e.gang.Saved.Phase == lifecycle.Released {
			if at := e.gang.Checkpoint(); !at.IsZero() {
				unsaved = append(unsaved, now.Sub(at))
			}
		}
	}
	// Those that are decided and not asked yet count as well.
	for _, e := range s.makingRoom {
		for _, l := range e.gang.Saved.Leavers {
			if victim := s.gangs[gangKey(core.GangID(l.Gang))]; l.Evict != nil && victim != nil {
				if still, ok := victim.gang.Present(l.Attempt); ok && !still.Asked {
					count(core.QueueName(e.gang.QueueName()), l.Evict.Kind == core.EvictAged)
				}
			}
		}
	}
	h.RestartMedian, h.CheckpointMedian = median(restarts), median(unsaved)
	return h
}

func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}
