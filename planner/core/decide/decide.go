// Package decide runs one cycle of the planner: a snapshot in, a plan out.
package decide

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/topology"
)

// decider keeps what it derived from nodes and claims that did not change.
type decider struct {
	live, ideal   *cluster.Cluster
	place, places *placement.Placer
}

// New returns a Decider for one cluster. It is not safe for concurrent use;
// snapshots must not be changed after they were handed over.
func New() core.Decider {
	d := &decider{live: &cluster.Cluster{}, ideal: &cluster.Cluster{Ideal: true}}
	d.place, d.places = placement.New(d.live), placement.New(d.ideal)
	return d
}

// cycle is the work on one snapshot.
type cycle struct {
	*decider
	s        *core.Snapshot
	plan     *core.Plan
	verdicts map[core.GangID]*core.Verdict
}

// Decide implements core.Decider.
func (d *decider) Decide(s *core.Snapshot) *core.Plan {
	c := &cycle{decider: d, s: s, plan: &core.Plan{}, verdicts: map[core.GangID]*core.Verdict{}}
	c.plan.Notices = d.live.Update(s)
	d.ideal.Update(s)
	mark := d.live.Mark()
	c.run()
	d.live.Rollback(mark)
	return c.plan
}

func (c *cycle) run() {
	gangs := make([]*core.Gang, 0, len(c.s.Gangs))
	for i := range c.s.Gangs {
		gangs = append(gangs, &c.s.Gangs[i])
	}
	slices.SortFunc(gangs, func(a, b *core.Gang) int { return cmp.Compare(a.ID, b.ID) })
	c.plan.Verdicts = make([]core.Verdict, len(gangs))
	var waiting []*core.Gang
	for i, g := range gangs {
		v := &c.plan.Verdicts[i]
		v.Gang, v.Effective = g.ID, g.Priority
		c.verdicts[g.ID] = v
		switch g.State {
		case core.GangHeld:
			v.Action, v.Reason, v.Sentence = core.ActionHold, core.ReasonHeld, "held by hand"
		case core.GangPlacing, core.GangRunning:
			v.Action, v.Reason, v.Sentence = core.ActionRun, core.ReasonRunning, "has its cards"
		case core.GangStopping:
			v.Action, v.Reason, v.Sentence = core.ActionStop, core.ReasonStopping, "is ending"
		default:
			waiting = append(waiting, g)
		}
	}
	slices.SortFunc(waiting, func(a, b *core.Gang) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Submitted.Compare(b.Submitted), cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
	})
	position := map[core.QueueName]int{}
	for _, g := range waiting {
		v := c.verdicts[g.ID]
		if c.refused(g, v) {
			continue
		}
		position[g.Queue]++
		v.Position = position[g.Queue]
		c.consider(g, v)
	}
}

// wait says why a gang waits.
func (v *verdict) wait(b core.Blocker) {
	v.Blockers = append(v.Blockers, b)
	v.Action, v.Reason, v.Sentence = core.ActionWait, v.Blockers[0].Reason, v.Blockers[0].Text
}

type verdict struct{ *core.Verdict }

// consider places a waiting gang whole, or says what is in its way.
func (c *cycle) consider(g *core.Gang, out *core.Verdict) {
	v := &verdict{out}
	if c.s.Paused {
		v.wait(core.Blocker{Reason: core.ReasonPaused, Text: "admissions are paused: " + c.s.PausedWhy, Remedy: "resume admissions"})
		return
	}
	if g.NotBefore.After(c.s.Now) {
		v.wait(core.Blocker{Reason: core.ReasonPause, Text: "waits until " + g.NotBefore.UTC().Format("2006-01-02 15:04:05Z") + ": " + g.NotBeforeWhy})
		return
	}
	r := c.place.Request(g)
	for _, o := range r.Options {
		res, ok := c.place.Place(r, o)
		if !ok {
			continue
		}
		start := core.Start{Gang: g.ID, Queue: g.Queue, Model: o.Model, Repair: g.Damaged, Members: c.placements(g, res)}
		c.plan.Starts = append(c.plan.Starts, start)
		out.Action, out.Reason, out.Sentence = core.ActionStart, core.ReasonFits, "the whole gang fits on "+count(res.Nodes, "node")
		return
	}
	v.wait(c.missing(r))
}

// missing tells what is short for the most wanted model.
func (c *cycle) missing(r *placement.Request) core.Blocker {
	if len(r.Options) == 0 {
		return core.Blocker{Reason: core.ReasonConstraint, Text: "no node satisfies its constraints"}
	}
	o := r.Options[0]
	for _, m := range o.Cards {
		if free := c.live.FreeOf(m.Model); free < m.Cards {
			model := c.live.Models[m.Model]
			return core.Blocker{Reason: core.ReasonCards, Model: model, Missing: m.Cards - free,
				Text: fmt.Sprintf("needs %s of %s, %d are free", count(m.Cards, "card"), model, free)}
		}
	}
	return core.Blocker{Reason: core.ReasonShape, Model: o.Model, Missing: 1, Text: "enough cards are free, but not on nodes that could take the whole gang"}
}

func (c *cycle) placements(g *core.Gang, res *placement.Result) []core.Placement {
	out := make([]core.Placement, len(res.Members))
	for i := range res.Members {
		m := &res.Members[i]
		node := &c.live.Nodes[m.Use.Node]
		p := core.Placement{Group: g.Groups[m.Group].Name, Member: i, Node: node.Src.ID, Model: res.Option.Model, Cards: make([][]core.CardID, len(m.Asks))}
		for a, places := range m.Asks {
			for _, place := range places {
				for d := range node.Devices {
					dev := &node.Devices[d]
					if at := place - dev.First; at >= 0 && at < int32(len(dev.Src.Cards)) {
						p.Cards[a] = append(p.Cards[a], topology.ID(dev, at))
						break
					}
				}
			}
		}
		out[i] = p
	}
	return out
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
