package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// ready: all members are placed. Each has to report that it is held and that
// its preflight is green; then the list is frozen and saved, and published.
func (g *Gang) ready(v Seen, roster []*picture.Alloc, late bool) []Effect {
	s := &g.Saved
	record := g.record(roster, v)
	var waiting, refused []string
	stop := Stop{Reason: ReasonReservation, Member: -1}
	next := *s
	for i := range record.Members {
		m := &record.Members[i]
		r, ok := g.reports[member{m.Alloc, m.Task}]
		switch {
		case !ok || r.Attempt != s.Attempt || r.State != contract.StateReady && r.State != contract.StateRefused:
			waiting = append(waiting, fmt.Sprintf("%s on node %s", m.Group, m.Node))
			if ok && r.State == contract.StateEnded {
				stop.Exit, stop.Member = r.Exit, i
				refused = append(refused, fmt.Sprintf("member %d on node %s ended before it was released", i, m.Node))
				stop.Site = true
			}
		case r.State == contract.StateRefused:
			stop.Member = i
			for _, p := range r.Problems {
				refused = append(refused, fmt.Sprintf("node %s: %s: %s", m.Node, p.What, p.Text))
				if stop.Site = stop.Site || p.Site; p.Site {
					next.Avoid = avoid(next.Avoid, roster, m.Alloc, v.Now, p.Text)
				}
			}
			if len(r.Problems) == 0 {
				refused = append(refused, fmt.Sprintf("member %d on node %s refuses to start and does not say why", i, m.Node))
				stop.Site = true
			}
		default:
			m.Start, m.Address, m.Ranks, m.Supervisor = r.Start, r.Address, r.Ranks, r.Supervisor
		}
	}
	for _, a := range roster {
		if !g.ranks(a.Group) && a.Client != "running" {
			waiting = append(waiting, fmt.Sprintf("%s on node %s", a.Group, a.NodeName))
		}
	}
	switch {
	case len(refused) > 0 && len(waiting) > 0 && !g.elapsed("refused", v.Now, refusalsWithin):
		return nil // what the others say belongs to the same sentence
	case len(refused) > 0:
		stop.Text = "preflight: " + some(refused)
		stop.Reason = ReasonReservation
		if stop.Exit == nil {
			stop.Exit = &contract.Exit{Outcome: contract.OutcomeRefused, Code: -1, Rank: -1, Text: stop.Text, At: v.Now}
		}
		return g.stop(v, next, stop)
	case len(waiting) > 0 && late:
		stop.Text = fmt.Sprintf("%d of %d members were not ready within %s: %s", len(waiting), len(roster), g.set.ReserveTimeout, some(waiting))
		stop.Site = true
		return g.stop(v, next, stop)
	case len(waiting) > 0:
		return nil
	}
	return g.release(v, record)
}

// release freezes the record: saved first, then published, so that a planner
// that starts again publishes it.
func (g *Gang) release(v Seen, record *contract.Record) []Effect {
	if err := g.worlds(record); err != nil {
		g.wake(v.Now.Add(time.Second))
		return nil
	}
	record.Phase = contract.PhaseReleased
	if limit := g.Limit(); limit > 0 {
		record.Deadline = v.Now.Add(limit)
	}
	// A report can be here before Nomad's client says that the task runs.
	g.enter(contract.StageFetched, v.Now, "")
	next := g.Saved
	next.Phase, next.Record = Released, record
	if len(record.Members) == 0 {
		g.enter(contract.StageStarted, v.Now, "")
		next.Stages = g.Saved.Stages
		return []Effect{Save{next}}
	}
	return []Effect{Save{next}, Publish{record}}
}

// lostBeforeRelease: an allocation ended, or was asked to, before anything was
// released.
func (g *Gang) lostBeforeRelease(v Seen, a *picture.Alloc) []Effect {
	next := g.Saved
	if exit := plainExit(a); g.User != nil && !g.ranks(a.Group) && a.Desired == "run" && exit.Outcome == contract.OutcomeFailed && (exit.Code > 0 || exit.Signal > 0) {
		// Nothing holds its tasks: they ran, and what became of them is their own
		// doing, on whatever node.
		roster, _ := g.roster([]*picture.Alloc{a})
		i := slices.Index(roster, a)
		return g.stop(v, next, Stop{Reason: ReasonMember, Member: i, Exit: exit, Text: fmt.Sprintf("member %d on node %s: %s", i, a.NodeName, exit.Text)})
	}
	stop := Stop{Reason: ReasonReservation, Site: true, Member: -1,
		Text: fmt.Sprintf("allocation %s (group %s, node %s) is %s before its rank was released", short(a.ID), a.Group, a.NodeName, a.Client)}
	if a.Desired != "run" && !a.Terminal() {
		stop.Text = fmt.Sprintf("allocation %s (group %s, node %s) was told to %s before its rank was released", short(a.ID), a.Group, a.NodeName, a.Desired)
	}
	for _, t := range a.Tasks {
		if t.Why != "" && (t.Failed || a.Client == "failed") {
			stop.Text += fmt.Sprintf(": task %q: %s", t.Name, t.Why)
		}
		if t.LastEvent == "Failed Validation" {
			stop.Site = false // what the job says cannot be run anywhere
			stop.Exit = &contract.Exit{Outcome: contract.OutcomeRefused, Code: -1, Rank: -1, Text: t.Why, At: v.Now}
		}
		if r, ok := g.reports[member{a.ID, t.Name}]; ok && r.State == contract.StateEnded && r.Exit != nil {
			stop.Exit = r.Exit
			stop.Text += ": " + r.Exit.Text
		}
		for _, p := range g.reports[member{a.ID, t.Name}].Problems {
			stop.Text += ": " + p.Text
			stop.Site = stop.Site && p.Site
		}
	}
	if stop.Site && a.Client == "failed" {
		next.Avoid = avoid(next.Avoid, []*picture.Alloc{a}, a.ID, v.Now, stop.Text)
	}
	return g.stop(v, next, stop)
}

// refusalsWithin is how long the others' reports are awaited once one member
// refuses.
const refusalsWithin = time.Second

// avoidFor is how long a gang keeps off a node that it failed on, times the
// failures before.
const avoidFor = 2 * time.Minute

func avoid(list []Avoid, allocs []*picture.Alloc, alloc string, now time.Time, why string) []Avoid {
	for _, a := range allocs {
		if a == nil || a.ID != alloc {
			continue
		}
		d := avoidFor
		out := slices.Clone(list)
		for i := range out {
			if out[i].Node == a.NodeID {
				out[i].Until, out[i].Why = now.Add(2*d), why
				return out
			}
		}
		return append(out, Avoid{Node: a.NodeID, Until: now.Add(d), Why: why})
	}
	return list
}
