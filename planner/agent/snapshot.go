package agent

import (
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/submit"
)

// snapshot is what the core decides on. It shares what does not change with
// the state and with earlier snapshots.
func (a *Agent) snapshot(now time.Time) *core.Snapshot {
	s := &a.state
	s.decideSoon = false
	cfg := a.config.Current()
	departing := s.departing()
	snap := &core.Snapshot{Now: now, Config: &cfg.Core, Nodes: s.nodeList.list(), Claims: s.claims.list(), Paused: s.paused != "", PausedWhy: s.paused, History: s.history(now)}
	snap.History.UsedCardSeconds = a.meter.used()
	snap.History.Recent, snap.History.Estimates = a.meter.history()
	order := s.order()
	snap.Gangs = make([]core.Gang, 0, len(order))
	var ask []core.Claim
	for _, e := range order {
		g, ok := e.gang.Core(now)
		if !ok {
			continue
		}
		v := s.seen(e, now)
		if g.State == core.GangWaiting {
			if _, ready := e.gang.Ready(v); !ready && e.starting == nil && len(e.gang.Faults) == 0 {
				g.State = core.GangStopping
				if e.gang.Adoptable(v) {
					g.State = core.GangPlacing
				}
			}
		}
		if e.starting != nil {
			g.State, g.Placement = core.GangPlacing, e.starting.Members
		}
		if g.State != core.GangWaiting && g.Min > 0 && (!e.gang.Resizable() || e.adding != nil || e.gang.MembersLeaving(v.Allocs) > 0) {
			g.Min = 0 // it has the size that it has
		}
		if departing[e.key] && (g.State == core.GangRunning || g.State == core.GangPlacing) {
			g.State = core.GangStopping
		}
		snap.Gangs = append(snap.Gangs, g)
		ask = append(ask, coming(e, &g, v)...)
		if e.starting != nil || e.gang.Saved.Phase == lifecycle.Reserving {
			ask = append(ask, asked(e, &g, v)...)
		}
	}
	if len(ask) > 0 {
		snap.Claims = slices.Concat(snap.Claims, ask)
	}
	return snap
}

// admits tells whether the core would start a gang that Nomad has placed by
// itself, were it not there yet and nobody else waiting.
func (a *Agent) admits(e *entry, now time.Time) bool {
	soon := a.state.decideSoon
	snap := a.snapshot(now)
	a.state.decideSoon = soon
	id := core.GangID(e.key.String())
	var gangs []core.Gang
	for _, g := range snap.Gangs {
		switch {
		case g.ID == id:
			g.State, g.Placement = core.GangWaiting, nil
			gangs = append(gangs, g)
		case g.State != core.GangWaiting:
			gangs = append(gangs, g)
		}
	}
	snap.Gangs = gangs
	snap.Claims = slices.DeleteFunc(slices.Clone(snap.Claims), func(c core.Claim) bool { return c.Gang == id })
	plan := decide.New().Decide(snap)
	return slices.ContainsFunc(plan.Starts, func(s core.Start) bool { return s.Gang == id && len(s.After) == 0 })
}

// asked are the claims of members that Nomad was asked for, or is about to be,
// and that it has not placed yet.
func asked(e *entry, g *core.Gang, v lifecycle.Seen) []core.Claim {
	placed := map[int]bool{}
	switch {
	case e.starting == nil:
		for _, m := range e.gang.Members(v.Allocs) {
			if placed[m.Index] = m.Alloc != nil; m.Alloc != nil && e.gang.Service() {
				return nil // the others may go anywhere
			}
		}
	case !e.gang.Service():
		// Nomad has placed some before it answered.
		for _, a := range v.Allocs {
			for i, p := range g.Placement {
				if !placed[i] && !a.Terminal() && p.Group == a.Group && string(p.Node) == a.NodeID {
					placed[i] = true
					break
				}
			}
		}
	}
	var out []core.Claim
	for i, p := range g.Placement {
		if placed[i] {
			continue
		}
		c := core.Claim{Node: p.Node, Gang: g.ID, Attempt: g.Attempt, Member: i, Job: string(g.ID), Asked: true, Priority: g.Priority}
		if at := slices.IndexFunc(g.Groups, func(group core.Group) bool { return group.Name == p.Group }); at >= 0 {
			c.Use = g.Groups[at].Use
		}
		for _, ids := range p.Cards {
			c.Cards = append(c.Cards, ids...)
		}
		out = append(out, c)
	}
	return out
}

// coming are the claims of members that a running gang is to take in and that
// Nomad has not placed yet.
func coming(e *entry, g *core.Gang, v lifecycle.Seen) []core.Claim {
	var out []core.Claim
	for i, p := range e.gang.Coming(v.Allocs, e.adding) {
		c := core.Claim{Node: p.Node, Gang: g.ID, Attempt: g.Attempt, Member: len(g.Placement) + i, Job: string(g.ID), Asked: true, Priority: g.Priority}
		for k := range g.Groups {
			if g.Groups[k].Name == p.Group {
				c.Use = g.Groups[k].Use
			}
		}
		for _, ids := range p.Cards {
			c.Cards = append(c.Cards, ids...)
		}
		out = append(out, c)
	}
	return out
}

// gangKey is the job of a gang id; a namespace has no slash.
func gangKey(id core.GangID) picture.Key {
	namespace, job, _ := strings.Cut(string(id), "/")
	return picture.Key{Namespace: namespace, Job: job}
}

// queueOf finds the queue of a job that came past the API: its namespace is
// what Nomad's ACLs let its submitter use.
func queueOf(cfg *core.Config, named, namespace string) (string, []contract.Fault) {
	queue, faults := submit.Queue(cfg, namespace, named, submit.Submitter{Any: true})
	return string(queue), faults
}
