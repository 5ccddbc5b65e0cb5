package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// stop ends the attempt: on record first, then the members are told, then the
// job is held again (or stopped for good), then every allocation is asked to
// end; see stopping. Saved is the state with whatever else changed.
func (g *Gang) stop(v Seen, next Saved, why Stop) []Effect {
	why.At = v.Now
	told := next.Attempt > 0 && (next.Phase == Reserving || next.Phase == Released) && (g.published != "" || next.Record != nil || next.Phase == Reserving && !g.firstLook(v))
	if why.Final == "" && next.Cancel != nil {
		why.Final = contract.StageCancelled
	}
	if why.Final == "" && why.Exit != nil && !why.Site && next.Retries >= g.Meta.Retries {
		why.Final = contract.StageFailed
	}
	if why.Final == "" && why.Site && charged(why.Reason) && next.SiteFailures+1 >= g.set.MaxAttempts {
		why.Final = contract.StageFailed
		why.Text = fmt.Sprintf("%s (given up after %d failures of the site)", why.Text, next.SiteFailures+1)
	}
	if why.Final == "" && why.Reason == ReasonTimeLimit {
		why.Final = contract.StageFailed
	}
	effects := []Effect{}
	if told && g.User != nil && !g.Service() {
		ended := &contract.Record{V: contract.RecordVersion, Gang: g.Channel(), Attempt: next.Attempt, Phase: contract.PhaseEnded, Queue: g.QueueName(), Reason: why.Sentence()}
		if next.Record != nil {
			ended.Members, ended.Worlds = next.Record.Members, next.Record.Worlds
		} else {
			roster, _ := g.roster(g.live(v, next.Base))
			ended.Members = g.record(roster, v).Members
		}
		effects = append(effects, Publish{ended})
	}
	next.Phase, next.Stop, next.Stages = Stopping, &why, g.Saved.Stages
	delete(g.since, "hold")
	delete(g.since, "hold-again")
	delete(g.since, "emptied")
	return append([]Effect{Save{next}}, effects...)
}

// Sentence is why the attempt is being ended, in words: the text, after the
// reason where it does not begin with that itself.
func (s *Stop) Sentence() string {
	if strings.HasPrefix(s.Text, s.Reason+" ") {
		return s.Text
	}
	return s.Reason + ": " + s.Text
}

// firstLook: no member can know of the attempt yet, since it has no record.
func (g *Gang) firstLook(v Seen) bool { return len(g.live(v, g.Saved.Base)) == 0 }

// charged tells whether a reason counts against the attempts that the site may
// fail: what the gang's own users and the planner's policy do does not.
func charged(reason string) bool {
	switch reason {
	case ReasonPreempted, ReasonUpdated, ReasonStopped, ReasonDrain, ReasonAdopted, ReasonUnplaced:
		return false
	}
	return true
}

// stopped is the end that a job gets whose user stopped it.
func (g *Gang) stopped(v Seen, text string) Stop {
	if v.Job == nil {
		text = "its job was removed from Nomad"
	}
	return Stop{Reason: ReasonStopped, Text: text, Final: contract.StageCancelled, Member: -1}
}

// stopping: the attempt is being ended.
func (g *Gang) stopping(v Seen) []Effect {
	s := &g.Saved
	if s.Stop.Final == "" && (v.Job == nil || v.Job.Stop) {
		next := *s
		why := *s.Stop
		why.Final, why.Text = contract.StageCancelled, why.Text+"; its job was stopped"
		next.Stop = &why
		return []Effect{Save{next}}
	}
	if s.Stop.Final == "" && v.Job.Unread != nil {
		// Holding the job would put an older text in the place of what somebody
		// registered, and running it is not possible.
		next := *s
		why := *s.Stop
		why.Final, why.Text = contract.StageCancelled, fmt.Sprintf("%s; its job was replaced by a text that cannot be read: %v", why.Text, v.Job.Unread)
		next.Stop = &why
		return []Effect{Save{next}}
	}
	if v.Job != nil && !v.Job.Stop && v.Job.Gang == nil && v.Job.Unread == nil {
		// It names no queue any more and is not held: what it runs now is nobody's
		// business here.
		stage := s.Stop.Final
		if stage == "" {
			stage = contract.StageCancelled
		}
		g.Saved.Foreign = false // it is not to be stopped either
		return g.finish(v, End{Stage: stage, At: v.Now, Text: s.Stop.Text + "; its job is no gang any more", Exit: s.Stop.Exit, Member: s.Stop.Member}, nil)
	}
	live := g.live(v, 0)
	switch {
	case v.TwinLives && (v.Job == nil || v.Job.Stop):
		// Somebody stopped the handle.
		if at, asked := g.since["twin"]; asked && v.Now.Sub(at) < staleAfter {
			g.wake(at.Add(staleAfter))
			return nil
		}
		g.since["twin"] = v.Now
		return []Effect{Deregister{Purge: v.Job == nil}}
	case v.Job == nil || v.Job.Stop:
	case s.Stop.Final != "":
		return []Effect{Deregister{Purge: s.Cancel != nil && s.Cancel.Purge}}
	case v.Job.Gang == nil || g.Twin() && v.Job.Gang.IsHeld():
	case !v.Job.Gang.IsHeld():
		if g.User == nil {
			return nil
		}
		return []Effect{Register{Job: g.User.Held(), Index: v.Job.JobModifyIndex, Version: s.Version}}
	default:
		// An allocation that is stopped before Nomad evaluated the held job would
		// be replaced.
		if e := g.evalOf(v.Job.JobModifyIndex); e != nil && !e.Ended() {
			return nil
		} else if e == nil && !g.elapsed("hold", v.Now, evalAfter) {
			return nil
		} else if e == nil && !g.elapsed("hold-again", v.Now, 3*evalAfter) {
			return g.refresh(v.Now)
		}
	}
	var holding, away []*picture.Alloc
	for _, a := range live {
		switch {
		case !g.away(v, a):
			holding = append(holding, a)
		case a.Desired == "run":
			away = append(away, a)
		}
	}
	if len(holding) > 0 {
		return g.stopLive(v, live)
	}
	if v.Job != nil && !v.Job.Stop && v.Job.Gang != nil && g.User != nil && !g.Twin() {
		emptied := v.Job.Gang.Members() == 0 && g.User.Members() > 0
		switch {
		case len(away) > 0 && !emptied:
			// Nomad goes on counting members that it lost contact with, whatever is
			// asked of them, and would place that many fewer of the next attempt. With
			// no members wanted at all they are told to stop, and do when their nodes
			// return.
			return []Effect{Register{Job: g.User.Emptied(), Index: v.Job.JobModifyIndex, Version: s.Version}}
		case len(away) > 0 && !g.elapsed("emptied", v.Now, evalAfter):
			return nil // the events that show them stopped are on their way
		case emptied:
			return []Effect{Register{Job: g.User.Held(), Index: v.Job.JobModifyIndex, Version: s.Version}}
		}
	}
	return g.ended(v)
}

// away tells whether an allocation is out of reach, so that nothing waits for
// it: its node is lost beyond the grace. Nomad ends it when the node returns,
// and the attempt's number keeps it out until then.
func (g *Gang) away(v Seen, a *picture.Alloc) bool {
	n := v.Node(a.NodeID)
	if n == nil {
		return true // the node was removed
	}
	if !a.Unknown() && !nodeLost(v, a) {
		return false
	}
	return g.lostFor(v, a, "away/"+a.ID)
}

// ended: nothing of the attempt is left. Its reports are read a last time, and
// what it was is noted.
func (g *Gang) ended(v Seen) []Effect {
	s := &g.Saved
	if _, read := g.since["last-reports"]; s.Record != nil && !read && !g.Service() {
		g.since["last-reports"] = v.Now
		return []Effect{ReadReports{s.Attempt}}
	}
	why := *s.Stop
	if g.Service() {
		why.Exit = &contract.Exit{Outcome: contract.OutcomeKilled, Rank: -1, Code: -1, Asked: true, Text: why.Text, At: v.Now}
	} else if s.Record != nil {
		g.progress(v)
		ends := g.ends(v)
		// What really happened may have come in while the attempt was stopped:
		// every member ended by itself (C15), or a cause behind the first sign.
		if e := g.concluded(v, ends); e != nil && s.Stop.Final != contract.StageComplete {
			return e
		}
		if why.Exit == nil && why.Reason != ReasonNodeLost {
			why.Exit, why.Member = g.together(ends)
		}
	}
	if why.Reason == ReasonTimeLimit && why.Final == contract.StageFailed {
		why.Exit = overLimit(v.Now, why)
	}
	if why.Final != "" {
		return g.finish(v, End{Stage: why.Final, At: v.Now, Text: why.Sentence(), Exit: why.Exit, Member: why.Member}, &why)
	}
	return g.requeue(v, why)
}

// overLimit is the exit of a gang that its time limit ended, with what its
// members made of it.
func overLimit(now time.Time, why Stop) *contract.Exit {
	x := contract.Exit{Code: -1, Rank: -1, Asked: true, Text: why.Text, At: now}
	if why.Exit != nil {
		x = *why.Exit
		x.Text = fmt.Sprintf("%s (%s)", why.Text, x.Outcome)
	}
	x.Outcome = contract.OutcomeTimeLimit
	return &x
}

// together is the exit that stands for all members of an attempt that was
// asked to end.
func (g *Gang) together(ends []ending) (*contract.Exit, int) {
	var worst *ending
	for i := range ends {
		e := &ends[i]
		if e.exit != nil && (worst == nil || later(e.exit.Outcome, worst.exit.Outcome)) {
			worst = e
		}
	}
	if worst == nil {
		return nil, -1
	}
	return worst.exit, worst.index
}

// later orders what an asked member may have done, from what loses nothing to
// what loses most.
func later(a, b contract.Outcome) bool {
	order := []contract.Outcome{contract.OutcomeComplete, contract.OutcomeCheckpointed, contract.OutcomeYielded, contract.OutcomePeer, contract.OutcomeKilled}
	place := func(o contract.Outcome) int {
		if i := slices.Index(order, o); i >= 0 {
			return i
		}
		return len(order)
	}
	return place(a) > place(b)
}

// requeue puts the gang back into its queue.
func (g *Gang) requeue(v Seen, why Stop) []Effect {
	next := g.close(v, why)
	next.Phase = Waiting
	next.Damaged = why.Site && charged(why.Reason) && why.Reason != ReasonReservation
	switch {
	case why.Reason == ReasonUnplaced:
		next.Dry = true
		next.NotBefore, next.NotBeforeWhy = v.Now.Add(pauseFirst), why.Text
	case why.Exit != nil && !why.Site:
		next.Retries++
	case why.Site && charged(why.Reason):
		next.SiteFailures++
		pause := min(pauseFirst<<min(next.SiteFailures-1, 20), pauseMost)
		next.NotBefore, next.NotBeforeWhy = v.Now.Add(pause), why.Sentence()
	}
	g.leave(v, &next, why)
	next.Stages = g.backInQueue(v.Now, why.Sentence())
	effects := []Effect{}
	if g.Saved.Attempt > 0 {
		effects = append(effects, Remove{g.Saved.Attempt})
	}
	return append(effects, Save{next})
}

// backInQueue are the stages of a gang that is queued again.
func (g *Gang) backInQueue(now time.Time, text string) []Stage {
	out := []Stage{{Stage: contract.StageQueued, At: now, Text: text}}
	for _, s := range g.Saved.Stages {
		if s.Stage == contract.StageSubmitted {
			out = append([]Stage{s}, out...)
		}
	}
	return out
}

// close notes the attempt that ended.
func (g *Gang) close(v Seen, why Stop) Saved {
	next := g.Saved
	if next.Planned.IsZero() && next.Record == nil {
		next.Stop = nil
		return next
	}
	a := Attempt{Number: next.Attempt, Outcome: why.Reason, Text: why.Text, Exit: why.Exit, Member: why.Member, Stages: next.Stages, Ended: v.Now, Reason: why.Reason, Base: next.Base, Checkpoint: g.Checkpoint()}
	if why.Exit != nil {
		a.Outcome = string(why.Exit.Outcome)
	}
	if ask := next.Ask; ask != nil && ask.Reason == why.Reason {
		a.Cause, a.For = ask.Cause, ask.For
	}
	for _, p := range next.Places {
		name := p.Node
		if n := v.Node(p.Node); n != nil {
			name = n.Name
		}
		a.Nodes = append(a.Nodes, name)
	}
	next.Attempts = append(slices.Clone(next.Attempts), a)
	if extra := len(next.Attempts) - attemptsKept; extra > 0 {
		next.Attempts = next.Attempts[extra:]
	}
	if next.Record != nil && !g.Service() {
		next.StoreDied = g.storesThatDied(v, why)
	}
	next.Last = g.lastMembers(v)
	next.Record, next.Stop, next.Ask, next.Pin, next.Places, next.Leavers, next.LeftOut, next.LeftBy = nil, nil, nil, nil, nil, nil, nil, time.Time{}
	next.Growth, next.GrowAfter = nil, time.Time{}
	next.Planned, next.Room, next.Adopted, next.Foreign, next.Backfilled, next.Untried, next.Later = time.Time{}, time.Time{}, false, false, false, false, false
	return next
}

// lastMembers notes what became of each member.
func (g *Gang) lastMembers(v Seen) []Ended {
	var out []Ended
	for _, m := range g.Members(v.Allocs) {
		e := Ended{Group: m.Place.Group, NodeID: m.Place.Node, Node: m.Place.Node, Model: m.Place.Model, Task: m.Task}
		if n := v.Node(m.Place.Node); n != nil {
			e.Node = n.Name
		}
		if m.Alloc != nil {
			e.Alloc, e.Node, e.Status = m.Alloc.ID, m.Alloc.NodeName, m.Alloc.Client
			for _, d := range m.Alloc.Devices {
				e.Cards = append(e.Cards, d.IDs...)
			}
		}
		if r := m.Report; r != nil {
			e.Address, e.Ranks, e.Step, e.State, e.Exit = r.Address, r.Ranks, r.Step, r.State, r.Exit
		}
		out = append(out, e)
	}
	return out
}

// finish ends the gang. A job that is held, or that somebody registered again
// while it ran, is stopped first: it would wait or run once more. So is one
// whose newcomers have not joined: they would wait on.
func (g *Gang) finish(v Seen, end End, why *Stop) []Effect {
	s := &g.Saved
	if why == nil {
		why = &Stop{At: end.At, Reason: string(end.Stage), Text: end.Text, Exit: end.Exit, Member: end.Member, Final: end.Stage}
	}
	if v.Job != nil && !v.Job.Stop && (s.Foreign || s.Growth != nil || v.Job.Gang != nil && v.Job.Gang.IsHeld()) {
		next := *s
		next.Phase, next.Stop = Stopping, why
		return []Effect{Save{next}}
	}
	next := g.close(v, *why)
	next.Phase, next.End, next.Text = Over, &end, nil
	if v.Job != nil {
		next.EndIndex = v.Job.JobModifyIndex
	}
	next.Stages = append(slices.Clone(s.Stages), Stage{Stage: end.Stage, At: end.At, Text: end.Text})
	if g.Stored == 0 && s.Attempt == 0 {
		// It never ran: nothing has to be known of it by a later planner.
		g.Saved = next
		return g.clean(v, 0)
	}
	// The end is saved before the reports that tell of it are removed: a planner
	// that starts in between would find neither, and run the gang again. That they
	// are removed is not saved: a planner that starts removes them once more.
	next.Clean = s.Attempt
	return append([]Effect{Save{next}}, g.clean(v, s.Attempt)...)
}

// clean removes what an ended gang leaves: its last attempt's keys and the tag.
func (g *Gang) clean(v Seen, attempt int) []Effect {
	var effects []Effect
	if attempt > 0 {
		effects = append(effects, Remove{attempt})
	}
	if g.set.Tags && v.Job != nil && (g.tagged || g.Saved.Phase == Over && attempt > 0) {
		effects = append(effects, Untag{})
	}
	return effects
}
