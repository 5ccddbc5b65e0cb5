package lifecycle

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
)

// version keeps track of the version that the user submitted. It gives the
// effects that are needed before anything else.
func (g *Gang) version(v Seen) []Effect {
	if v.Job != nil && v.Job.Unread != nil {
		return g.unreadable()
	}
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
	if !g.tagged && g.set.Tags && len(g.Saved.Text) == 0 && g.Saved.Phase != Over && !g.Twin() {
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
		if gr := g.Saved.Growth; gr != nil && job.JobModifyIndex > gr.Index && job.Step() == gr.Pin.Step {
			g.heldIndex = job.JobModifyIndex // registered, and the answer was lost
			return false
		}
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
	defer func() {
		if g.unread != "" {
			g.Faults = append(g.Faults, contract.Fault{Field: "job", Value: g.ID.Job, Want: "a text that can be read: " + g.unread})
		}
	}()
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
