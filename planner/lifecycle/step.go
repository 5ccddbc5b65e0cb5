package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
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

// version keeps track of the version that the user submitted. It gives the
// effects that are needed before anything else.
func (g *Gang) version(v Seen) []Effect {
	if v.Job == nil || v.Job.Gang == nil {
		return nil
	}
	job := v.Job.Gang
	switch {
	case g.User != nil:
	case g.Saved.Index == 0 && job.Mark() == 0 && (job.VersionTag != nil && job.VersionTag.Name == contract.VersionTag || !g.describedByUs(job)):
		g.take(job, v.Now)
		g.tagged = job.VersionTag != nil && job.VersionTag.Name == contract.VersionTag
	case g.Saved.Index == job.JobModifyIndex:
		g.setUser(job)
	case len(g.Saved.Text) > 0:
		if text, err := jobspec.Parse(g.Saved.Text); err == nil {
			g.setUser(text)
			break
		}
		fallthrough
	default:
		if g.Saved.Phase == Over {
			return nil
		}
		return []Effect{ReadUser{g.Saved.Version}}
	}
	if g.foreign(job) {
		return g.changed(v, job)
	}
	if by := g.submitter; by.index == g.Saved.Index && by.name != g.Saved.User && g.Saved.Phase != Over {
		next := g.Saved
		next.User = by.name
		return []Effect{Save{next}}
	}
	if !g.tagged && g.set.Tags && len(g.Saved.Text) == 0 && g.Saved.Phase != Over {
		return []Effect{Tag{g.Saved.Version}}
	}
	return nil
}

// describedByUs tells whether a held job that is not tagged may be a version
// that the planner made of the user's, by a description for Nomad's UI.
func (g *Gang) describedByUs(job *jobspec.Job) bool {
	return job.UI != nil && isDescription(job.UI.Description)
}

// foreign tells whether a version of the job is neither the user's nor ours.
func (g *Gang) foreign(job *jobspec.Job) bool {
	if i := job.JobModifyIndex; i == g.Saved.Index || i == g.heldIndex || i == g.Saved.Base || job.Stop {
		return false
	}
	if g.Saved.Phase == Over {
		return false // a new submission; see over
	}
	if mark := job.Mark(); mark > 0 && mark == g.Saved.Attempt && (g.Saved.Phase == Reserving || g.Saved.Phase == Released || g.Saved.Phase == Stopping) {
		// Ours, or ours scaled.
		return g.pinned != nil && job.JobModifyIndex > g.pinned.JobModifyIndex
	}
	if g.Saved.Phase == Stopping && job.IsHeld() && job.Members() == 0 {
		return false // emptied; see stopping
	}
	if g.heldIndex == 0 && job.IsHeld() && (g.Saved.Phase == Waiting || g.Saved.Phase == Stopping) && jobspec.SameButUI(job, g.User) {
		// Held or described by this planner's earlier life.
		g.heldIndex = job.JobModifyIndex
		return false
	}
	return true
}

// take makes a version the user's: the first one seen of a gang.
func (g *Gang) take(job *jobspec.Job, now time.Time) {
	g.setUser(job)
	submit(&g.Saved, job, now, false)
	if !g.set.Tags {
		g.Saved.Text = job.Raw()
	}
	g.enter(contract.StageSubmitted, g.Saved.Submitted, "")
}

// changed handles a version that somebody else registered: an update of the
// gang. Equal to what was submitted it changes nothing but that the job has to
// be stopped at the attempt's end; otherwise it is what the next attempt runs.
func (g *Gang) changed(v Seen, job *jobspec.Job) []Effect {
	next := g.Saved
	running := next.Phase != Waiting
	next.Foreign = next.Foreign || running
	user := job
	if job.Mark() > 0 {
		// Scaled, reverted or started again: what the planner wrote is in it, so
		// only its counts are the user's.
		raw, _, ok := g.User.Rescaled(job)
		if !ok || g.pinned != nil && sameCounts(job, g.pinned) {
			raw = g.User.Raw() // the counts are the planner's
		}
		var err error
		if user, err = jobspec.Parse(raw); err != nil {
			user = g.User
		}
		user.Version, user.JobModifyIndex = job.Version, job.JobModifyIndex
	}
	if job.Mark() > 0 && g.pinned != nil {
		g.pinned = job
	}
	if jobspec.Same(user, g.User) {
		// The tag stays on the version that has it; this one is as good.
		g.heldIndex = job.JobModifyIndex
		if !running || next.Foreign == g.Saved.Foreign {
			return nil
		}
		return []Effect{Save{next}}
	}
	submit(&next, user, v.Now, user.Members() == g.User.Members() && user.Meta[contract.MetaQueue] == g.User.Meta[contract.MetaQueue])
	next.NotBefore, next.NotBeforeWhy, next.Retries, next.SiteFailures = time.Time{}, "", 0, 0
	next.Text, next.Dry = nil, false
	if !g.set.Tags || job.Mark() > 0 {
		next.Text = user.Raw()
	}
	g.update = user
	return []Effect{Save{next}}
}

func sameCounts(a, b *jobspec.Job) bool {
	return slices.EqualFunc(a.TaskGroups, b.TaskGroups, func(x, y jobspec.Group) bool { return x.Name == y.Name && x.Count == y.Count })
}

// submit makes a version the one that the user submitted. One that keeps its
// place in the queue keeps its times.
func submit(s *Saved, job *jobspec.Job, now time.Time, keepPlace bool) {
	s.Version, s.Index, s.User = job.Version, job.JobModifyIndex, ""
	if keepPlace {
		return
	}
	s.Submitted, s.Sequence, s.Queue = now, int64(job.JobModifyIndex), ""
	if job.SubmitTime > 0 {
		s.Submitted = time.Unix(0, job.SubmitTime).UTC()
	}
	s.Queued = s.Submitted
}

// Submitted tells who registered the version of the given index through the
// API.
func (g *Gang) Submitted(name string, index uint64) {
	g.submitter.name, g.submitter.index = name, index
}

// UserName is who usage is booked on: the submitter, or whom the job names.
func (g *Gang) UserName() string { return cmp.Or(g.Saved.User, g.Meta.User) }

func (g *Gang) setUser(job *jobspec.Job) {
	g.User = job
	g.read()
}

// read derives what the user's version asks for.
func (g *Gang) read() {
	g.groups = g.User.Groups()
	g.Meta, g.Faults = g.User.Want(g.set.CardTypes)
	queue, faults := g.set.Queue(g.User.Meta[contract.MetaQueue], g.ID.Namespace)
	g.Faults = append(g.Faults, notCarried(g.User)...)
	g.queue, g.Faults = cmp.Or(queue, g.User.Meta[contract.MetaQueue]), append(g.Faults, faults...)
}

// movedTo tells whether the gang is in the queue that its eviction moved it to.
func (g *Gang) movedTo() bool {
	return g.Saved.Queue != "" && (g.set.HasQueue == nil || g.set.HasQueue(g.Saved.Queue))
}

// notCarried are faults of what this planner cannot run as a gang yet.
func notCarried(job *jobspec.Job) []contract.Fault {
	switch {
	case job.Type == "service" && slices.ContainsFunc(job.TaskGroups, func(g jobspec.Group) bool {
		return slices.ContainsFunc(g.Tasks, func(t jobspec.Task) bool { return t.Driver == contract.DriverName })
	}):
		return []contract.Fault{{Field: "driver", Value: contract.DriverName, Want: "another driver in a job of type service: ranks start together, and Nomad replaces a service's replicas one by one"}}
	case job.Dispatched || job.ParentID != "":
		return []contract.Fault{{Field: "job", Value: job.ID, Want: "a job of its own: Nomad does not let a dispatched or periodic job's child be registered again, " +
			"and the planner does not run it as a twin yet; submit it as a job"}}
	}
	return nil
}

// QueueName is the queue that the gang belongs to; "": none.
func (g *Gang) QueueName() string {
	if g.movedTo() {
		return g.Saved.Queue
	}
	return g.queue
}

// Groups are the task groups of the version that the user submitted; they must
// not be changed.
func (g *Gang) Groups() []core.Group { return g.groups }

// Hypothetical is a gang that would come of submitting a job now.
func Hypothetical(job *jobspec.Job, set *Settings, now time.Time) core.Gang {
	g := New(contract.GangID{Region: set.Region, Namespace: job.Namespace, Job: job.ID}, set)
	g.take(job, now)
	if g.User.Priority == 0 {
		g.User.Priority = 50 // Nomad's default
	}
	out, _ := g.Core(now)
	return out
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
			g.refused = ""
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
		g.pause(d.Now, d.Err.Error())
		return
	case Register:
		// Perhaps it happened, or something else did: look before anything else.
		g.unsure, g.refreshed = true, false
		if g.Saved.Phase == Reserving && d.Refused {
			g.refused = d.Err.Error()
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
	case Publish:
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
		Damaged: s.Damaged, Ran: s.Ran, SaveTime: s.SaveTime, RestartTime: s.RestartTime, Backfilled: s.Backfilled,
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

// Checkpoint is the last one that a member of the attempt reported; zero: none.
func (g *Gang) Checkpoint() (at time.Time) {
	for _, r := range g.reports {
		if r.Checkpoint.After(at) {
			at = r.Checkpoint
		}
	}
	return at
}
