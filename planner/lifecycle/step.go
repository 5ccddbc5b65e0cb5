package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// Times that are not settings.
const (
	// staleAfter is how long the picture may lag behind a write of ours before
	// the job is read anew.
	staleAfter = 2 * time.Second
	// evalAfter is how long an evaluation's end is awaited from the stream.
	evalAfter = 3 * time.Second
	// stopAgain is when an allocation that does not end is asked again.
	stopAgain = 15 * time.Second
	// exitAfter is how long the report of a member that ended is awaited.
	exitAfter = 15 * time.Second
	// pauseFirst and pauseMost bound the pause after failures of the site, which
	// doubles with each.
	pauseFirst, pauseMost = 2 * time.Second, 10 * time.Minute
	// checkpointsEvery is how often a training gang's checkpoints are read.
	checkpointsEvery = 2 * time.Minute
	// leaveSlack is what members get beyond the end of their grace to end by
	// themselves: their supervisors stop them then.
	leaveSlack = 15 * time.Second
	// roomWithin is how long after the last leaver has gone Nomad is given to
	// place those who take over.
	roomWithin = 30 * time.Second
	// attemptsKept of those that ended.
	attemptsKept = 20
)

// Step takes an event and gives the effects to carry out. Until their Done
// comes, the gang is given no other event.
func (g *Gang) Step(e Event) []Effect {
	switch e := e.(type) {
	case Done:
		g.done(e)
		return nil
	case Seen:
		return g.see(e)
	case Start:
		return g.start(e)
	case Evict:
		return g.evict(e)
	case Withdraw:
		return g.withdraw(e)
	case Shrink:
		return g.shrink(e)
	case Grow:
		return g.grow(e)
	case Cancel:
		return g.cancel(e)
	case GiveUp:
		return g.giveUp(e)
	}
	panic(fmt.Sprintf("lifecycle: event %T is not known", e))
}

// see looks at what there is and says what is to be done next.
func (g *Gang) see(v Seen) []Effect {
	g.Wake = time.Time{}
	g.absorb(v)
	if g.hold.After(v.Now) {
		g.wake(g.hold)
		return nil
	}
	if g.unsure {
		return g.refresh(v.Now)
	}
	if stale, effects := g.stale(v); stale {
		return effects
	}
	if effects := g.version(v); effects != nil {
		return effects
	}
	switch g.Saved.Phase {
	case Waiting:
		return g.waiting(v)
	case Reserving:
		return g.reserving(v)
	case Released:
		return g.follow(v)
	case Stopping:
		return g.stopping(v)
	case Over:
		return g.over(v)
	}
	panic(fmt.Sprintf("lifecycle: gang %s is in phase %q", g.ID, g.Saved.Phase))
}

// absorb takes over reports and evaluations.
func (g *Gang) absorb(v Seen) {
	for _, e := range v.Evals {
		if old := g.evals[e.ID]; old == nil || old.Index < e.Index {
			g.evals[e.ID] = e
		}
	}
	if len(g.evals) > 32 {
		g.forgetEvals()
	}
	for _, r := range v.Reports {
		g.report(r)
	}
	for _, a := range v.Allocs {
		if a.CreateIndex <= g.Saved.Base {
			continue
		}
		for _, t := range a.Tasks {
			for _, r := range t.Reports {
				g.report(r)
			}
		}
	}
	was := g.unread
	if g.unread = ""; v.Job != nil && v.Job.Unread != nil {
		g.unread = fmt.Sprintf("the version of its job that was registered at index %d cannot be read: %v: register one that can be, or stop the job", v.Job.JobModifyIndex, v.Job.Unread)
	}
	if was != g.unread && g.User != nil {
		g.read()
	}
	if v.Fresh {
		g.refreshed, g.unsure, g.floor = false, false, 0
	}
	if v.Job != nil && v.Job.Gang != nil && v.Job.Gang.Mark() > 0 && v.Job.Gang.Mark() == g.Saved.Attempt && g.pinned == nil {
		g.pinned = v.Job.Gang
	}
}

// forgetEvals keeps the evaluations of the latest versions of the job.
func (g *Gang) forgetEvals() {
	var latest []*picture.Eval
	for _, e := range g.evals {
		latest = append(latest, e)
	}
	slices.SortFunc(latest, func(a, b *picture.Eval) int {
		return cmp.Or(cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range latest[16:] {
		delete(g.evals, e.ID)
	}
}

// report keeps a member's newest report of the current attempt.
func (g *Gang) report(r contract.Report) {
	if r.Attempt != 0 && r.Attempt != g.Saved.Attempt {
		return
	}
	m := member{r.Alloc, r.Task}
	if rank(r.State) >= rank(contract.StateLaunched) {
		// A member's next report takes this one's place; when it was launched, and
		// when the first one trained, is kept.
		if at, ok := g.launched[m]; !ok || r.At.Before(at) {
			g.launched[m] = r.At
		}
		if (r.State == contract.StateTraining || r.Step > 0) && (g.trained.IsZero() || r.At.Before(g.trained)) {
			g.trained = r.At
		}
	}
	old, known := g.reports[m]
	if !known || newer(r, old) {
		g.reports[m] = r
	}
}

// newer orders the reports of one member: by start, then by state, then by
// time.
func newer(a, b contract.Report) bool {
	if a.Start != b.Start {
		return a.Start > b.Start
	}
	if ra, rb := rank(a.State), rank(b.State); ra != rb {
		return ra > rb
	}
	if a.Attempt != b.Attempt {
		return a.Attempt > b.Attempt
	}
	return a.At.After(b.At)
}

// rank orders states; a refused member may become ready, so the two are equal
// and the later one counts.
func rank(s contract.State) int {
	switch s {
	case contract.StateReady, contract.StateRefused:
		return 1
	case contract.StateLaunched:
		return 2
	case contract.StateTraining:
		return 3
	case contract.StateEnded:
		return 4
	}
	return 0
}

// stale tells whether the picture is older than our last write, in which case
// nothing can be concluded from it.
func (g *Gang) stale(v Seen) (bool, []Effect) {
	if g.Twin() && g.Saved.Phase == Stopping && g.Saved.Stop.Final == "" && v.Job != nil && v.Job.Gang != nil && v.Job.Gang.IsHeld() {
		g.floor = 0 // the twin is stopped, and the handle was never written
	}
	// A job that is not there any more was removed after our write: that took it
	// to be there.
	if v.Job == nil || v.Job.JobModifyIndex >= g.floor {
		g.staleSince = time.Time{}
		return false, nil
	}
	if g.staleSince.IsZero() {
		g.staleSince = v.Now
	}
	if v.Now.Sub(g.staleSince) < staleAfter {
		g.wake(g.staleSince.Add(staleAfter))
		return true, nil
	}
	return true, g.refresh(v.Now)
}

// refresh asks for the job to be read anew, once until it comes back.
func (g *Gang) refresh(now time.Time) []Effect {
	g.wake(now.Add(5 * time.Second))
	if g.refreshed && now.Sub(g.since["refresh"]) < 10*time.Second {
		return nil
	}
	g.refreshed = true
	g.since["refresh"] = now
	return []Effect{Refresh{}}
}

func (g *Gang) wake(at time.Time) {
	if at.IsZero() {
		return
	}
	if g.Wake.IsZero() || at.Before(g.Wake) {
		g.Wake = at
	}
}

// elapsed tells whether a state, named by what, has lasted for d; it is called
// again and again while the state lasts, and sees to being woken.
func (g *Gang) elapsed(what string, now time.Time, d time.Duration) bool {
	at, ok := g.since[what]
	if !ok {
		at = now
		g.since[what] = now
	}
	if now.Sub(at) >= d {
		return true
	}
	g.wake(at.Add(d))
	return false
}

// enter notes a stage, once per attempt.
func (g *Gang) enter(s contract.Stage, at time.Time, text string) {
	for _, have := range g.Saved.Stages {
		if have.Stage == s {
			return
		}
	}
	// A full slice expression: a Save on its way keeps its own list.
	g.Saved.Stages = append(g.Saved.Stages[:len(g.Saved.Stages):len(g.Saved.Stages)], Stage{s, at, text})
}

// done takes over what the effects of the last step did.
func (g *Gang) done(d Done) {
	for _, e := range d.Effects {
		switch e := e.(type) {
		case Save:
			g.Saved = e.Saved
			g.Stored, g.storedStages = d.Stored, len(e.Saved.Stages)
			if u := g.update; u != nil && u.JobModifyIndex == g.Saved.Index {
				g.setUser(u)
				g.update, g.tagged, g.heldIndex, g.described = nil, false, 0, ""
			}
		case Forget:
			g.Stored = 0
		case Tag:
			g.tagged = true
		case Register:
			g.floor = max(g.floor, d.Registered)
			g.staleSince = time.Time{}
			if g.Saved.Phase != Reserving {
				g.heldIndex = d.Registered
			}
			g.refused, g.growRefused = "", ""
		case Deregister:
			g.floor = max(g.floor, d.Registered)
		case StopAllocs:
			for _, id := range e.IDs {
				g.stopAsked[id] = d.Now
			}
		case Publish:
			g.published = e.Record.Phase
			g.askSent = e.Record.Ask != nil
		case ReadUser:
			if d.User != nil {
				g.setUser(d.User)
			}
		case ReadReports:
			for _, r := range d.Reports {
				g.report(r)
			}
		}
	}
	if g.Saved.Phase == Over && d.Failed == nil && slices.Contains(d.Effects, Effect(Remove{g.Saved.Clean})) {
		g.Saved.Clean = 0
	}
	g.failed(d)
}

// failed takes over the effect that was not carried out.
func (g *Gang) failed(d Done) {
	switch e := d.Failed.(type) {
	case nil:
		g.failures = 0
		return
	case Check:
		if g.Saved.Phase == Released {
			g.Saved.GrowAfter, g.growWhy = d.Now.Add(growPause), d.Err.Error()
			return
		}
		g.pause(d.Now, d.Err.Error())
		return
	case Register:
		// Perhaps it happened, or something else did: look before anything else.
		g.unsure, g.refreshed = true, false
		if g.Saved.Phase == Reserving && d.Refused {
			g.refused = d.Err.Error()
			return
		}
		if g.Saved.Phase == Released && g.Saved.Growth != nil && d.Refused {
			g.growRefused = d.Err.Error()
			return
		}
	case Deregister:
		g.unsure, g.refreshed = true, false
	case Tag:
		if d.Refused {
			// Without the tag the version is kept as text.
			g.Saved.Text = g.User.Raw()
			g.tagged = true
		}
	case ReadReports:
		return // whoever wants them asks again in its own time
	case Save:
		if e.Saved.Growth != nil && g.Saved.Growth == nil {
			g.Saved.GrowAfter, g.growWhy = d.Now.Add(growPause), d.Err.Error()
		}
	case Publish:
		if g.Saved.Phase == Released {
			g.published = "" // it has not what is saved
		}
		// Nothing else waits for it: an attempt is stopped without a word to its
		// members where there is no way to tell them.
		g.publishAfter = d.Now.Add(time.Second)
		if e.Record.Phase == contract.PhaseEnded {
			g.published = contract.PhaseEnded
		}
		return
	}
	// The next step would most likely want the same again.
	g.failures++
	g.hold, g.holdWhy = d.Now.Add(min(time.Second<<min(g.failures-1, 10), 30*time.Second)), d.Err.Error()
}

// pause keeps a waiting gang from being planned at once again.
func (g *Gang) pause(now time.Time, why string) {
	g.Saved.NotBefore, g.Saved.NotBeforeWhy = now.Add(pauseFirst), why
}

// Core is the gang as the decision core sees it; false: it is over.
func (g *Gang) Core(now time.Time) (core.Gang, bool) {
	s := &g.Saved
	if g.User == nil || s.Phase == Over || g.Gone {
		return core.Gang{}, false
	}
	out := core.Gang{
		ID: core.GangID(g.ID.String()), Queue: core.QueueName(g.QueueName()), User: g.UserName(), Service: g.User.Type == "service",
		Attempt: s.Attempt, Priority: g.User.Priority, Submitted: s.Submitted, Sequence: s.Sequence, Groups: g.groups,
		Want: core.Want{
			Min: g.Meta.Min, Level: g.Meta.TopologyLevel, Required: g.Meta.TopologyRequired, PreferWait: g.Meta.PreferWait, TimeLimit: g.Meta.TimeLimit,
			Deadline: g.Meta.Deadline, Preemptible: g.Meta.Preemptible, Grace: g.Meta.Grace, Split: g.Meta.Split, Spread: g.Meta.Spread,
		},
		Damaged: s.Damaged, Ran: s.Ran, SaveTime: s.SaveTime, RestartTime: s.RestartTime, Backfilled: s.Backfilled, Waits: s.Later && s.Room.IsZero(),
	}
	for _, ev := range s.Evicted {
		if now.Sub(ev.At) < 24*time.Hour {
			out.EvictedBy = append(out.EvictedBy, core.GangID(ev.For))
		}
		if today(ev.At, now) {
			out.EvictionsToday++
		}
	}
	for _, m := range g.Meta.Models {
		out.Models = append(out.Models, core.Model(m))
	}
	for _, f := range g.Faults {
		out.Faults = append(out.Faults, f.String())
	}
	for _, a := range s.Avoid {
		if a.Until.After(now) {
			out.AvoidNodes = append(out.AvoidNodes, core.NodeID(a.Node))
		}
	}
	switch s.Phase {
	case Waiting:
		out.State, out.Queued = core.GangWaiting, s.Queued
		if s.NotBefore.After(now) {
			out.NotBefore, out.NotBeforeWhy = s.NotBefore, s.NotBeforeWhy
			g.wake(s.NotBefore)
		}
		if g.hold.After(now) && g.hold.After(out.NotBefore) {
			out.NotBefore, out.NotBeforeWhy = g.hold, g.holdWhy
			g.wake(g.hold)
		}
	case Reserving:
		out.State = core.GangPlacing
	case Released:
		out.State = core.GangRunning
	case Stopping:
		out.State = core.GangStopping
	}
	if s.Phase != Waiting {
		out.Started = s.Planned
		if s.Room.After(s.Planned) {
			out.Started = s.Room
		}
		for i, p := range s.Places {
			out.Placement = append(out.Placement, core.Placement{Group: p.Group, Member: i, Node: core.NodeID(p.Node), Cards: p.Cards, Model: p.Model})
		}
		for _, st := range s.Stages {
			if st.Stage == contract.StageStarted {
				out.Released = st.At
			}
		}
		out.Checkpoint = g.Checkpoint()
	}
	return out, true
}

// Asked is what the gang asks for, as it was submitted; false: it is not read
// yet.
func (g *Gang) Asked() (core.Gang, bool) {
	if g.User == nil {
		return core.Gang{}, false
	}
	out := core.Gang{ID: core.GangID(g.ID.String()), Submitted: g.Saved.Submitted, Groups: g.groups}
	for _, m := range g.Meta.Models {
		out.Models = append(out.Models, core.Model(m))
	}
	for _, f := range g.Faults {
		out.Faults = append(out.Faults, f.String())
	}
	return out, true
}

// Took is how long the ranks of a gang that completed ran, in all attempts and
// without what was lost; 0: it did not complete.
func (g *Gang) Took() time.Duration {
	s := &g.Saved
	if s.End == nil || s.End.Stage != contract.StageComplete || len(s.Attempts) == 0 {
		return 0
	}
	last := &s.Attempts[len(s.Attempts)-1]
	if last.Exit == nil || last.Exit.Outcome != contract.OutcomeComplete {
		return 0
	}
	for _, st := range last.Stages {
		if st.Stage == contract.StageStarted {
			return max(0, s.Ran+last.Exit.At.Sub(st.At))
		}
	}
	return 0
}

// Checkpoint is the last one that a member of the attempt reported; zero: none.
func (g *Gang) Checkpoint() (at time.Time) {
	for _, r := range g.reports {
		if r.Checkpoint.After(at) {
			at = r.Checkpoint
		}
	}
	return at
}
