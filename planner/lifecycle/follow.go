package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// follow: the ranks were released. The attempt ends when all members have; one
// that ends otherwise than complete ends the whole gang.
func (g *Gang) follow(v Seen) []Effect {
	s := &g.Saved
	if g.User == nil && v.Job != nil {
		return nil
	}
	if g.Service() {
		return g.serve(v)
	}
	g.progress(v)
	if g.publishAfter.After(v.Now) {
		g.wake(g.publishAfter)
	}
	ends := g.ends(v)
	if e := g.readReports(v); e != nil {
		return e
	}
	if e := g.concluded(v, ends); e != nil {
		return e
	}
	if v.Job == nil || v.Job.Stop {
		return g.stop(v, *s, g.stopped(v, "its job was stopped"))
	}
	if e := g.broken(v, ends); e != nil {
		return e
	}
	if g.published != contract.PhaseReleased && len(s.Record.Members) > 0 && !g.publishAfter.After(v.Now) {
		return []Effect{Publish{g.asking(s.Record)}}
	}
	if e := g.asked(v); e != nil {
		return e
	}
	if e := g.moved(v); e != nil {
		return e
	}
	if e := g.takeIn(v); e != nil {
		return e
	}
	if e := g.readCheckpoints(v); e != nil {
		return e
	}
	// An allocation that is not on the list: its rank is held or refused by the
	// driver, and it only takes room.
	if surplus := g.unlisted(v); len(surplus) > 0 {
		return g.stopLive(v, surplus)
	}
	return g.keepStages(v)
}

// keepStages saves the times of the stages that the reports showed, since
// later reports of the same members do not. It waits a little: others may
// follow, and an attempt that ends soon is saved then anyway.
func (g *Gang) keepStages(v Seen) []Effect {
	n := len(g.Saved.Stages)
	if n <= g.storedStages || !g.elapsed(fmt.Sprint("stages/", g.storedStages), v.Now, stagesAfter) {
		return nil
	}
	return []Effect{Save{g.Saved}}
}

// stagesAfter is how long the stages that reports showed wait to be saved.
const stagesAfter = 3 * time.Second

// readReports reads the reports of members whose end Nomad shows before their
// report came, every few seconds until exit takes Nomad's word.
func (g *Gang) readReports(v Seen) []Effect {
	if !g.wantReports {
		return nil
	}
	g.wantReports = false
	if at, ok := g.since["reports"]; ok && v.Now.Sub(at) < 2*time.Second {
		g.wake(at.Add(2 * time.Second))
		return nil
	}
	g.since["reports"] = v.Now
	return []Effect{ReadReports{g.Saved.Attempt}}
}

// readCheckpoints reads what members report of their checkpoints, now and then:
// what it costs to evict a gang rests on it.
func (g *Gang) readCheckpoints(v Seen) []Effect {
	if !g.elapsed("checkpoints", v.Now, checkpointsEvery) {
		return nil
	}
	g.since["checkpoints"] = v.Now
	g.wake(v.Now.Add(checkpointsEvery))
	return []Effect{ReadReports{g.Saved.Attempt}}
}

// moved publishes the record again where a world's host says, after the
// release, that its store had to take another port.
func (g *Gang) moved(Seen) []Effect {
	rec := g.Saved.Record
	for i, w := range rec.Worlds {
		m := rec.Members[w.HostMember]
		r, ok := g.reports[member{m.Alloc, m.Task}]
		if !ok || r.State != contract.StateReady || r.Start != m.Start || r.Port == 0 || r.Port == w.Port {
			continue
		}
		next := g.Saved
		again := *rec
		again.Worlds = slices.Clone(rec.Worlds)
		again.Worlds[i].Port = r.Port
		next.Record = &again
		return []Effect{Save{next}, Publish{g.asking(&again)}}
	}
	return nil
}

// ending is how one member stands.
type ending struct {
	index int
	alloc *picture.Alloc // nil: Nomad does not have it any more
	exit  *contract.Exit // nil: not ended
}

// ends looks at every member of the record (or, for groups without ranks of
// ours, at every allocation of the attempt).
func (g *Gang) ends(v Seen) []ending {
	byID := map[string]*picture.Alloc{}
	for _, a := range v.Allocs {
		byID[a.ID] = a
	}
	var out []ending
	listed := map[string]bool{}
	for i, m := range g.Saved.Record.Members {
		a := byID[m.Alloc]
		listed[m.Alloc] = true
		out = append(out, ending{i, a, g.exit(v, a, m.Alloc, m.Task)})
	}
	var mine []*picture.Alloc
	for _, a := range v.Allocs {
		if a.CreateIndex > g.Saved.Base && !listed[a.ID] && g.User != nil && !g.ranks(a.Group) {
			mine = append(mine, a)
		}
	}
	roster, _ := g.roster(mine)
	for i, p := range g.Saved.Places {
		if g.User == nil || g.ranks(p.Group) {
			continue
		}
		e := ending{index: i, alloc: roster[i]}
		if roster[i] != nil {
			e.exit = g.exit(v, roster[i], roster[i].ID, "")
		} else {
			e.exit = &contract.Exit{Outcome: contract.OutcomeLost, Code: -1, Rank: -1, Text: "its allocation is gone", At: v.Now}
		}
		out = append(out, e)
	}
	return out
}

// exit is how a member ended: what it reported, confirmed by Nomad where Nomad
// can, or else what Nomad knows. Nil: it has not.
func (g *Gang) exit(v Seen, a *picture.Alloc, id, task string) *contract.Exit {
	if r, ok := g.reports[member{id, task}]; ok && task != "" && r.State == contract.StateEnded {
		if r.Exit == nil {
			return &contract.Exit{Outcome: contract.OutcomeUnknown, Code: -1, Rank: -1, Text: "it reported its end without an outcome", At: r.At}
		}
		// "Complete" counts once the task is over for Nomad too: the driver may
		// still find processes that it left.
		if r.Exit.Outcome == contract.OutcomeComplete && a != nil && !a.Terminal() {
			return nil
		}
		return r.Exit
	}
	unseen := func(outcome contract.Outcome, at time.Time, format string, args ...any) *contract.Exit {
		return &contract.Exit{Outcome: outcome, Code: -1, Rank: -1, Text: fmt.Sprintf(format, args...), At: at, Asked: a != nil && a.Desired != "run"}
	}
	switch {
	case a == nil:
		return unseen(contract.OutcomeLost, v.Now, "its allocation is gone from Nomad")
	case a.Client == "lost":
		return unseen(contract.OutcomeLost, a.Modified, "node %s was lost", a.NodeName)
	case !a.Terminal():
		return nil
	case task == "":
		return plainExit(a)
	case !g.elapsed("exit/"+id, v.Now, exitAfter):
		g.wantReports = true
		return nil // its report is on its way
	}
	for _, t := range a.Tasks {
		if t.Name == task && t.LastEvent == "Terminated" && (t.ExitCode > 0 || t.Signal > 0) {
			e := unseen(contract.OutcomeFailed, a.Modified, "exit code %d, signal %d, as Nomad saw it; the member left no report", t.ExitCode, t.Signal)
			e.Code, e.Signal, e.OOM = t.ExitCode, t.Signal, t.OOM
			return e
		}
		if t.Name == task && t.Failed {
			return unseen(contract.OutcomeLost, a.Modified, "%s", t.Why)
		}
	}
	return unseen(contract.OutcomeUnknown, a.Modified, "its allocation is %s, and it left no report of how it ended", a.Client)
}

// plainExit is how an allocation without ranks of ours ended.
func plainExit(a *picture.Alloc) *contract.Exit {
	e := &contract.Exit{Outcome: contract.OutcomeComplete, Rank: -1, Text: "complete", At: a.Modified, Asked: a.Desired != "run"}
	for _, t := range a.Tasks {
		switch {
		case t.Failed || t.ExitCode > 0 || t.Signal > 0:
			e.Outcome, e.Code, e.Signal, e.OOM, e.Text = contract.OutcomeFailed, t.ExitCode, t.Signal, t.OOM, fmt.Sprintf("task %q: %s", t.Name, t.Why)
			switch {
			case t.OOM:
				e.Text = fmt.Sprintf("task %q ran out of memory", t.Name)
			case t.Signal > 0:
				e.Text = fmt.Sprintf("task %q ended by signal %d", t.Name, t.Signal)
			case t.ExitCode > 0:
				e.Text = fmt.Sprintf("task %q ended with code %d", t.Name, t.ExitCode)
			}
		case t.Killed && e.Outcome == contract.OutcomeComplete:
			e.Outcome, e.Text = contract.OutcomeKilled, fmt.Sprintf("task %q was stopped", t.Name)
		}
	}
	if a.Client == "failed" && e.Outcome != contract.OutcomeFailed {
		e.Outcome, e.Code, e.Text = contract.OutcomeFailed, -1, a.Text
	}
	return e
}

// progress enters the stages that the members' reports show.
func (g *Gang) progress(v Seen) {
	var at time.Time
	for _, m := range g.Saved.Record.Members {
		launched, ok := g.launched[member{m.Alloc, m.Task}]
		if !ok {
			return
		}
		if launched.After(at) {
			at = launched
		}
	}
	if at.IsZero() {
		return
	}
	g.enter(contract.StageStarted, at, "")
	if !g.trained.IsZero() {
		// A member that is slow to start holds the others in their first step.
		if g.trained.Before(at) {
			g.enter(contract.StageTraining, at, "")
		} else {
			g.enter(contract.StageTraining, g.trained, "")
		}
	}
}

// concluded ends the gang where every member has ended complete: each says so,
// and nothing that was asked of it came before (C15: an exit code 0 after a
// stop is not an end of the work).
func (g *Gang) concluded(v Seen, ends []ending) []Effect {
	if len(ends) == 0 {
		return nil
	}
	var last time.Time
	for _, e := range ends {
		if e.exit == nil || e.exit.Outcome != contract.OutcomeComplete {
			return nil
		}
		if e.exit.At.After(last) {
			last = e.exit.At
		}
	}
	text := fmt.Sprintf("all %d members ended complete", len(ends))
	if len(ends) == 1 {
		text = "its only member ended complete"
	}
	end := End{Stage: contract.StageComplete, At: last, Text: text, Member: -1,
		Exit: &contract.Exit{Outcome: contract.OutcomeComplete, Rank: -1, Text: "complete", At: last}}
	return g.finish(v, end, nil)
}

// broken stops the gang where a member ended otherwise, or is lost.
func (g *Gang) broken(v Seen, ends []ending) []Effect {
	s := &g.Saved
	var worst *ending
	var gone []int
	for i := range ends {
		e := &ends[i]
		if e.exit == nil {
			if e.alloc == nil || !e.alloc.Unknown() && !nodeLost(v, e.alloc) {
				delete(g.since, "lost/"+memberKey(e))
				continue
			}
			if g.lostFor(v, e.alloc, "lost/"+memberKey(e)) {
				if next, ok := g.goesOn([]int{i}); ok {
					return []Effect{Save{next}, Publish{g.asking(next.Record)}}
				}
				return g.stop(v, *s, Stop{Reason: ReasonNodeLost, Site: true, Member: e.index,
					Text: fmt.Sprintf("node %s is out of contact for %s", e.alloc.NodeName, g.set.LostGrace)})
			}
			continue
		}
		if e.exit.Outcome != contract.OutcomeComplete {
			gone = append(gone, i)
		}
		if e.exit.Outcome != contract.OutcomeComplete && (worst == nil || worse(e.exit, worst.exit)) {
			worst = e
		}
	}
	if worst == nil {
		return nil
	}
	if next, ok := g.goesOn(gone); ok {
		return []Effect{Save{next}, Publish{g.asking(next.Record)}}
	}
	// Members report one after the other: the first to fail names the cause, so
	// those that were only pulled along are given a moment to be overtaken.
	if worst.exit.Outcome == contract.OutcomePeer && !g.elapsed("peer", v.Now, exitAfter) {
		return nil
	}
	// Ranks that only lost a connection end with code 1 a moment before or after
	// the one that is the cause.
	if worst.exit.Outcome == contract.OutcomeFailed && vague(worst.exit) && !g.elapsed("cause", v.Now, causeWithin) {
		return nil
	}
	stop := g.verdict(worst)
	if !s.asking() && g.blameCard(v, &stop) {
		return nil
	}
	return g.stop(v, *s, stop)
}

// lostFor tells whether a member's node has been out of contact for the grace:
// counted from when the node's status changed, where that is known.
func (g *Gang) lostFor(v Seen, a *picture.Alloc, what string) bool {
	if n := v.Node(a.NodeID); n != nil && n.Status != "ready" && !n.StatusAt.IsZero() {
		until := n.StatusAt.Add(g.set.LostGrace)
		if !v.Now.Before(until) {
			return true
		}
		g.wake(until)
		return false
	}
	return g.elapsed(what, v.Now, g.set.LostGrace)
}

func memberKey(e *ending) string { return fmt.Sprint(e.index) }

// worse orders exits by how much they say about the cause: the script's own
// failures before what the site did, before what only followed from it; the
// earlier first.
func worse(a, b *contract.Exit) bool {
	if ra, rb := cause(a.Outcome), cause(b.Outcome); ra != rb {
		return ra < rb
	}
	if vague(a) != vague(b) && a.At.Sub(b.At).Abs() <= causeWithin {
		return vague(b)
	}
	return a.At.Before(b.At)
}

// causeWithin is how far apart the ends of members that have one cause are.
const causeWithin = time.Second

// vague tells whether a code says nothing of the cause: any uncaught error of
// a script is a 1.
func vague(e *contract.Exit) bool { return e.Code == 1 && e.Signal == 0 && !e.OOM }

func cause(o contract.Outcome) int {
	switch o {
	case contract.OutcomeFailed, contract.OutcomeHung:
		return 0
	case contract.OutcomeLost:
		return 1
	case contract.OutcomeRefused:
		return 2
	case contract.OutcomeUnknown:
		return 3
	case contract.OutcomeKilled, contract.OutcomeYielded, contract.OutcomeCheckpointed:
		return 4
	}
	return 5 // peer
}

// verdict says what a member's end means for its gang.
func (g *Gang) verdict(e *ending) Stop {
	node := ""
	if e.alloc != nil {
		node = " on node " + e.alloc.NodeName
	}
	stop := Stop{Reason: ReasonMember, Exit: e.exit, Member: e.index, Text: fmt.Sprintf("member %d%s: %s", e.index, node, e.exit.Text)}
	if ask := g.Saved.Ask; ask != nil && (e.exit.Asked || cause(e.exit.Outcome) >= 4) {
		stop.Reason, stop.Site, stop.Text = ask.Reason, true, ask.Why+"; "+stop.Text
		return stop
	}
	switch e.exit.Outcome {
	case contract.OutcomeFailed, contract.OutcomeHung:
	case contract.OutcomeLost:
		stop.Reason, stop.Site = ReasonNodeLost, true
		if e.alloc != nil && e.alloc.Client != "lost" {
			stop.Reason = ReasonDamaged
		}
	default:
		stop.Reason, stop.Site = ReasonDamaged, true
	}
	return stop
}

// unlisted are the attempt's live allocations that the record does not have.
func (g *Gang) unlisted(v Seen) []*picture.Alloc {
	listed := map[string]bool{}
	for _, m := range g.Saved.Record.Members {
		listed[m.Alloc] = true
	}
	var out []*picture.Alloc
	for _, a := range g.live(v, g.Saved.Base) {
		if gr := g.Saved.Growth; gr != nil && a.CreateIndex > gr.Since {
			continue // see grow.go
		}
		if _, left := g.LeftOut(a.ID); !left && !listed[a.ID] && g.ranks(a.Group) && a.Desired == "run" {
			out = append(out, a)
		}
	}
	return out
}
