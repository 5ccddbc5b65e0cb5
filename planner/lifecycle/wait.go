package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// waiting: the gang is in its queue.
func (g *Gang) waiting(v Seen) []Effect {
	live := g.present(v)
	switch {
	case v.Job == nil && g.Stored == 0:
		g.Gone = len(live) == 0
		return nil
	case v.Job == nil:
		if len(live) > 0 {
			return nil
		}
		return g.forget()
	case v.Job.Stop:
		return g.finish(v, End{Stage: contract.StageCancelled, At: v.Now, Text: "its job was stopped while it waited", Member: -1}, nil)
	case v.Job.Unread != nil:
		return nil // refused; see unreadable
	case v.Job.Gang == nil:
		// It names no queue any more and is not held: it is nobody's business.
		return g.forget()
	case g.User == nil:
		return nil
	}
	job := v.Job.Gang
	if !slices.ContainsFunc(g.Saved.Stages, func(st Stage) bool { return st.Stage == contract.StageQueued }) {
		g.enter(contract.StageQuotaChecked, v.Now, "")
		g.enter(contract.StageQueued, v.Now, "")
	}
	g.refused = ""
	if mark := job.Mark(); mark > 0 {
		next := g.Saved
		next.Attempt = max(next.Attempt, mark)
		next.Base = 0
		return g.stop(v, next, Stop{Reason: ReasonReservation, Text: fmt.Sprintf("a version that is pinned for attempt %d was found; nothing of that attempt is known", mark), Site: true, Member: -1})
	}
	if !job.IsHeld() {
		return g.unheld(v, live)
	}
	if g.Saved.NotBefore.After(v.Now) {
		g.wake(g.Saved.NotBefore)
	}
	if len(live) > 0 {
		return g.stopLive(v, live)
	}
	return nil
}

// Ready tells whether the gang can be started: it waits, its job is held, and
// nothing of an earlier attempt is left. What it gives otherwise is why not.
func (g *Gang) Ready(v Seen) (string, bool) {
	switch {
	case g.Saved.Phase != Waiting || g.User == nil:
		return "", false
	case v.Job == nil || v.Job.Stop || v.Job.Gang == nil:
		return "its job is not there", false
	case v.Job.JobModifyIndex < g.floor:
		return "Nomad's answer to the last write is awaited", false
	case !v.Job.Gang.IsHeld():
		return "Nomad has placed it by itself; it is being adopted", false
	}
	if n := len(g.present(v)); n > 0 {
		return fmt.Sprintf("%d allocations of an earlier attempt are still ending", n), false
	}
	return "", true
}

// Adoptable tells whether Nomad has placed the whole gang by itself, so that
// it waits for the core's word alone.
func (g *Gang) Adoptable(v Seen) bool {
	return g.Saved.Phase == Waiting && g.User != nil && v.Job != nil && !v.Job.Stop && v.Job.Gang != nil && !v.Job.Gang.IsHeld() &&
		v.Job.Gang.Mark() == 0 && g.whole(g.live(v, 0))
}

// unheld: the job names a queue and was not held. Its ranks are, by the driver
// (a gang without Muster's driver has a fault and is taken back). Placed whole
// it waits for the core to admit it; otherwise it is taken back and held.
func (g *Gang) unheld(v Seen, live []*picture.Alloc) []Effect {
	why := ""
	if !g.hasRanks() && !g.Service() {
		return nil // its tasks run already; the fault says what is missing
	}
	if len(live) == 0 && (len(v.Allocs) > 0 || v.Job.Status == "dead") {
		return g.finish(v, unattended(v), nil)
	}
	switch {
	case len(g.Faults) > 0:
		why = "what it asks for has faults: " + g.Faults[0].String()
	case g.whole(live):
		if g.admitted {
			return g.adopt(v, live)
		}
		if !g.elapsed("adopt", v.Now, 10*time.Second) {
			return nil
		}
		why = "it was placed by Nomad, and its queue does not admit it now"
	default:
		e := g.evalOf(v.Job.JobModifyIndex)
		if e == nil && !g.elapsed("adopt-eval", v.Now, evalAfter) {
			return nil
		}
		if e == nil {
			return g.refresh(v.Now)
		}
		if !e.Ended() {
			return nil
		}
		if len(e.Failed) == 0 && !g.elapsed("adopt-lag", v.Now, evalAfter) {
			return nil // its allocations are on their way
		}
		why = fmt.Sprintf("it was not held, and Nomad placed %d of its %d members", len(live), g.User.Members())
	}
	next := g.Saved
	next.Base = 0
	if g.User.IsChild() {
		return g.stop(v, next, Stop{Reason: ReasonAdopted, Final: contract.StageCancelled, Member: -1,
			Text: fmt.Sprintf("%s; it was started by job %s and cannot be held afterwards: give that job the hold constraint", why, g.User.ParentID)})
	}
	return g.stop(v, next, Stop{Reason: ReasonAdopted, Text: why + "; it is held from now on", Site: true, Member: -1})
}

// unattended is the end of a job that ran out before the planner had a hand in
// it; registering it in any form would run it again.
func unattended(v Seen) End {
	end := End{Stage: contract.StageComplete, At: v.Now, Text: "it had ended before it was held", Member: -1}
	for _, a := range v.Allocs {
		if a.Client != "complete" {
			end.Stage = contract.StageFailed
		}
		if a.Modified.After(end.At) || end.At.Equal(v.Now) {
			end.At = a.Modified
		}
	}
	return end
}

// Admit says that the core would start a gang that Nomad placed whole; not
// admitted, it is taken back. An adopted gang's cards are not pinned: its
// owner's next registration would replace every rank.
func (g *Gang) Admit() { g.admitted = true }

func (g *Gang) adopt(v Seen, live []*picture.Alloc) []Effect {
	next := g.Saved
	next.Phase, next.Adopted, next.Planned = Reserving, true, v.Now
	next.Attempt++
	next.Base = live[0].CreateIndex - 1
	next.Pin, next.Record, next.Stop, next.Ask = nil, nil, nil, nil
	next.Places = nil
	for _, a := range live {
		next.Base = min(next.Base, a.CreateIndex-1)
		p := Place{Group: a.Group, Node: a.NodeID}
		for _, d := range a.Devices {
			ids := make([]core.CardID, len(d.IDs))
			for i, id := range d.IDs {
				ids[i] = core.CardID(id)
			}
			p.Cards = append(p.Cards, ids)
			if slices.Contains(g.set.CardTypes, d.Type) {
				p.Model = core.Model(d.Name)
			}
		}
		next.Places = append(next.Places, p)
	}
	g.enter(contract.StagePlanned, v.Now, "placed by Nomad before it was held")
	next.Stages = g.Saved.Stages
	g.beginAttempt()
	return []Effect{Save{next}}
}

// whole tells whether the allocations are exactly the gang's members.
func (g *Gang) whole(live []*picture.Alloc) bool {
	if len(live) == 0 || len(live) != g.User.Members() {
		return false
	}
	have := map[string]int{}
	for _, a := range live {
		if a.Desired != "run" || a.Unknown() {
			return false
		}
		have[a.Group]++
	}
	for _, group := range g.User.TaskGroups {
		if have[group.Name] != group.Count {
			return false
		}
	}
	return true
}

// live are the job's allocations that were made after base and have not ended,
// in the order of their names.
func (g *Gang) live(v Seen, base uint64) []*picture.Alloc {
	var out []*picture.Alloc
	for _, a := range v.Allocs {
		if a.CreateIndex > base && !a.Terminal() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, byName)
	return out
}

// present are the live allocations of a gang that waits, without those on
// nodes that Nomad has lost: nothing waits for these.
func (g *Gang) present(v Seen) []*picture.Alloc {
	return slices.DeleteFunc(g.live(v, 0), func(a *picture.Alloc) bool { return a.Unknown() || nodeLost(v, a) || v.Node(a.NodeID) == nil })
}

// evalOf is the evaluation that a registration of the given index made: the
// one that Nomad names by the job's index and that a registration triggered.
func (g *Gang) evalOf(index uint64) *picture.Eval {
	var found *picture.Eval
	for _, e := range g.evals {
		if e.JobModifyIndex == index && (e.TriggeredBy == "job-register" || e.TriggeredBy == "job-scaling") &&
			(found == nil || e.CreateIndex < found.CreateIndex || e.CreateIndex == found.CreateIndex && e.ID < found.ID) {
			found = e
		}
	}
	return found
}

// stopLive asks for the end of allocations that were not asked lately.
func (g *Gang) stopLive(v Seen, live []*picture.Alloc) []Effect {
	var ids []string
	for _, a := range live {
		at, asked := g.stopAsked[a.ID]
		if a.Desired != "run" || asked && v.Now.Sub(at) < stopAgain {
			continue
		}
		ids = append(ids, a.ID)
	}
	g.wake(v.Now.Add(stopAgain))
	if len(ids) == 0 {
		return nil
	}
	return []Effect{StopAllocs{ids}}
}

func (g *Gang) forget() []Effect {
	if g.Stored == 0 {
		g.Gone = true
		return nil
	}
	return []Effect{Forget{}}
}

// giveUp fails a gang that waits.
func (g *Gang) giveUp(e GiveUp) []Effect {
	if _, ready := g.Ready(e.Seen); !ready {
		return nil
	}
	next := g.Saved
	return g.stop(e.Seen, next, Stop{Reason: ReasonGaveUp, Text: e.Reason, Final: contract.StageFailed, Member: -1})
}

// over: the gang has ended. A new version of its job is a new submission.
func (g *Gang) over(v Seen) []Effect {
	if g.Saved.Clean > 0 {
		next := g.Saved
		next.Clean = 0
		return append(g.clean(v, g.Saved.Clean), Save{next})
	}
	switch {
	case g.purging(v):
		return []Effect{Deregister{Purge: true}}
	case v.Job == nil:
		if len(g.live(v, 0)) > 0 {
			return nil
		}
		return g.forget()
	case v.Job.Stop || v.Job.JobModifyIndex <= g.Saved.EndIndex || v.Job.Gang == nil:
		return nil
	}
	job := v.Job.Gang
	next := Saved{V: savedVersion, Phase: Waiting, Attempt: g.Saved.Attempt, Attempts: g.Saved.Attempts, Base: g.Saved.Base}
	user := job
	if job.Mark() > 0 && g.User != nil {
		// Started again as it ran last: what its user wrote is known, and the
		// pinned version is taken back.
		user = g.User
		next.Text = g.User.Raw()
	}
	submit(&next, user, v.Now, false)
	if user != job {
		next.Version, next.Index = job.Version, job.JobModifyIndex
		next.Sequence = int64(job.JobModifyIndex)
		next.Submitted = v.Now
		next.Queued = v.Now
	} else if !g.set.Tags {
		next.Text = job.Raw()
	}
	next.Stages = []Stage{{Stage: contract.StageSubmitted, At: next.Submitted}}
	g.beginAttempt()
	g.User, g.tagged, g.heldIndex, g.described = nil, false, 0, ""
	return []Effect{Save{next}}
}

// descriptionMark starts every description that the planner gives a job for
// Nomad's UI.
const descriptionMark = "Muster: "

func isDescription(text string) bool { return strings.Contains(text, descriptionMark) }

// Describe gives the held job a description for Nomad's UI, where it has
// another one. It makes a version of the job, so it is called when the text
// matters: a gang is refused, or has been queued for a while.
func (g *Gang) Describe(v Seen, text string) []Effect {
	if g.Twin() {
		return nil // its job cannot be registered again
	}
	text = descriptionMark + text
	if _, ready := g.Ready(v); !ready || g.described == text || !g.tagged && len(g.Saved.Text) == 0 {
		return nil
	}
	g.described = text
	if job := v.Job.Gang; job.UI != nil && strings.HasSuffix(job.UI.Description, text) {
		return nil
	}
	return []Effect{Register{Job: g.User.Described(text), Index: v.Job.JobModifyIndex, Version: g.Saved.Version}}
}

// beginAttempt forgets what belongs to the last one.
func (g *Gang) beginAttempt() {
	clear(g.reports)
	clear(g.launched)
	g.trained = time.Time{}
	clear(g.stopAsked)
	clear(g.since)
	g.pinned, g.published, g.askSent, g.refused = nil, "", false, ""
	g.publishAfter, g.wantReports, g.admitted = time.Time{}, false, false
}

func byName(a, b *picture.Alloc) int {
	if c := strings.Compare(a.Group, b.Group); c != 0 {
		return c
	}
	if c := a.NameIndex() - b.NameIndex(); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}
