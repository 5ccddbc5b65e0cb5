package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

// Carrying out a verdict's first remedy removes that blocker: what the sentence
// says is done to the snapshot, nobody else takes what comes free, and the gang
// is not kept by the same thing any more.
func TestFirstRemedyHelps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		course{6, 4, 4, func(s *core.Snapshot, p *core.Plan) { tryRemedies(t, s, p) }}.run(t, newHistory(t))
	})
}

// The same whatever gangs, queues and nodes there are.
func TestFirstRemedyOfEverythingHelps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		course{6, 4, 4, func(s *core.Snapshot, p *core.Plan) { tryRemedies(t, s, p) }}.run(t, newWide(t))
	})
}

// tryRemedies tries those of the first gangs that wait.
func tryRemedies(t *rapid.T, snap *core.Snapshot, plan *core.Plan) {
	tried := 0
	for i := range plan.Verdicts {
		if v := &plan.Verdicts[i]; len(v.Blockers) > 0 && (v.Action == core.ActionWait || v.Action == core.ActionRefuse) && tried < 2 {
			tried++
			r := remedy{t: t, s: thaw(snap), plan: plan, v: v}
			r.try()
		}
	}
}

// remedy tries what a verdict says would help.
type remedy struct {
	t    *rapid.T
	s    *core.Snapshot
	plan *core.Plan
	v    *core.Verdict
}

func (r *remedy) gang() *core.Gang {
	at := slices.IndexFunc(r.s.Gangs, func(g core.Gang) bool { return g.ID == r.v.Gang })
	return &r.s.Gangs[at]
}

func (r *remedy) queue(name core.QueueName) *core.Queue {
	at := slices.IndexFunc(r.s.Config.Queues, func(q core.Queue) bool { return q.Name == name })
	return &r.s.Config.Queues[at]
}

func (r *remedy) try() {
	b := r.v.Blockers[0]
	if b.Remedy == "" {
		r.t.Fatalf("gang %s: nothing is said to help against %q", r.v.Gang, b.Text)
	}
	// The others keep what they were given in the same cycle and what they wait
	// for is not what this is about.
	for _, z := range r.plan.Resizes {
		r.s.Claims = slices.DeleteFunc(r.s.Claims, func(k core.Claim) bool { return k.Gang == z.Gang && slices.Contains(z.Remove, k.Member) })
		r.hold(z.Gang, z.Add, false)
	}
	for i := range r.plan.Starts {
		r.run(&r.plan.Starts[i])
	}
	r.s.Gangs = slices.DeleteFunc(r.s.Gangs, func(g core.Gang) bool {
		return g.State == core.GangWaiting && g.ID != r.v.Gang && !slices.ContainsFunc(r.plan.Starts, func(s core.Start) bool { return s.Gang == g.ID })
	})
	for _, o := range slices.Clone(r.s.Gangs) { // those that are leaving have left
		if o.State == core.GangStopping {
			r.end(o.ID)
		}
	}
	g := r.gang()
	switch b.Reason {
	case core.ReasonCards:
		missing := b.Missing
		for _, h := range b.Holders {
			if missing > 0 {
				r.end(h.Gang)
				missing -= h.Cards
			}
		}
		if len(b.Holders) == 0 || missing > 0 { // others hold them, or they are promised: those go, too
			for _, g := range slices.Clone(r.s.Gangs) {
				if g.State != core.GangWaiting {
					r.end(g.ID)
				}
			}
		}
	case core.ReasonShape, core.ReasonTopology, core.ReasonReserved, core.ReasonBehind, core.ReasonExcluded, core.ReasonCPU, core.ReasonMemory, core.ReasonPorts, core.ReasonNIC:
		for _, g := range slices.Clone(r.s.Gangs) {
			if g.State != core.GangWaiting {
				r.end(g.ID)
			}
		}
		r.heal()
	case core.ReasonMax:
		at := slices.IndexFunc(r.s.Config.Queues, func(q core.Queue) bool { return strings.Contains(b.Text, "queue "+string(q.Name)+" ") })
		if at < 0 {
			r.t.Fatalf("gang %s: no queue is named in %q", r.v.Gang, b.Text)
		}
		r.s.Config.Queues[at].Max.Any += b.Missing
	case core.ReasonMaxGangs:
		r.queue(g.Queue).MaxGangs += b.Missing
	case core.ReasonUserLimit:
		user := g.User
		for _, o := range slices.Clone(r.s.Gangs) {
			if o.User == user && o.ID != r.v.Gang {
				r.end(o.ID)
			}
		}
	case core.ReasonPaused:
		r.s.Paused = false
	case core.ReasonPause:
		g.NotBefore = time.Time{}
	case core.ReasonBudget:
		r.s.History.UsedCardSeconds = nil
	case core.ReasonLend:
		for i := range r.s.Config.Queues {
			r.s.Config.Queues[i].Lend = core.Unstated()
		}
	case core.ReasonBlast:
		r.s.Config.Blast = nil
	case core.ReasonConstraint:
		g.AvoidNodes, g.AvoidCards = nil, nil
		for i := range g.Groups {
			g.Groups[i].Constraints, g.Groups[i].Datacenters = nil, nil
			g.Groups[i].Devices = slices.DeleteFunc(g.Groups[i].Devices, func(a core.DeviceAsk) bool { return a.Type == "nic" })
		}
	case core.ReasonPrefer:
		g.PreferWait = time.Nanosecond
	case core.ReasonTooLarge:
		if b.Missing == 0 || len(g.Groups) > 1 || g.Groups[0].Devices == nil || g.Groups[0].Devices[0].Shares > 0 {
			return // a matter of shapes: how much smaller is not said
		}
		per := g.Groups[0].Devices[0].Count
		least := g.Groups[0].Count
		if g.Min > 0 {
			least = g.Min
		}
		if least -= (b.Missing + per - 1) / per; least <= 0 {
			return
		}
		g.Groups[0].Count, g.Min = least, min(g.Min, least)
	default:
		r.t.Fatalf("gang %s: the remedy of %s is not known to the test: %q", r.v.Gang, b.Reason, b.Remedy)
	}
	plan := decide.New().Decide(r.s)
	at := slices.IndexFunc(plan.Verdicts, func(v core.Verdict) bool { return v.Gang == r.v.Gang })
	for _, left := range plan.Verdicts[at].Blockers {
		if left.Reason == b.Reason && left.Model == b.Model && left.Text == b.Text {
			r.t.Fatalf("gang %s: %q is still in its way after %q:\n%+v", r.v.Gang, b.Text, b.Remedy, plan.Verdicts[at])
		}
	}
}

// run makes a gang that started hold its cards.
func (r *remedy) run(st *core.Start) {
	at := slices.IndexFunc(r.s.Gangs, func(g core.Gang) bool { return g.ID == st.Gang })
	g := &r.s.Gangs[at]
	g.State, g.Placement, g.Released, g.Queued = core.GangRunning, st.Members, r.s.Now, time.Time{}
	r.hold(st.Gang, st.Members, len(st.After) > 0)
	for _, id := range st.After { // those that leave for it have left
		if id != r.v.Gang && !slices.ContainsFunc(r.plan.Resizes, func(z core.Resize) bool { return z.Gang == id }) {
			r.end(id)
		}
	}
}

func (r *remedy) hold(id core.GangID, members []core.Placement, asked bool) {
	at := slices.IndexFunc(r.s.Gangs, func(g core.Gang) bool { return g.ID == id })
	for _, m := range members {
		groups := r.s.Gangs[at].Groups
		group := &groups[slices.IndexFunc(groups, func(k core.Group) bool { return k.Name == m.Group })]
		k := core.Claim{Node: m.Node, Gang: id, Member: m.Member, Alloc: fmt.Sprintf("%s.%d", id, m.Member), Use: group.Use, Ports: group.StaticPorts, Asked: asked}
		for a, ids := range m.Cards {
			for _, card := range ids {
				k.Cards, k.Shares = append(k.Cards, card), append(k.Shares, group.Devices[a].Shares)
			}
		}
		r.s.Claims = append(r.s.Claims, k)
	}
}

// end takes a gang away with all that it holds.
func (r *remedy) end(id core.GangID) {
	r.s.Claims = slices.DeleteFunc(r.s.Claims, func(k core.Claim) bool { return k.Gang == id })
	if id != r.v.Gang {
		r.s.Gangs = slices.DeleteFunc(r.s.Gangs, func(g core.Gang) bool { return g.ID == id })
	}
}

// heal brings every node and card back.
func (r *remedy) heal() {
	for i := range r.s.Nodes {
		n := &r.s.Nodes[i]
		n.Ready, n.Eligible, n.Draining, n.Excluded = true, true, false, false
		n.Version += 1000
		for d := range n.Devices {
			for k := range n.Devices[d].Cards {
				n.Devices[d].Cards[k].Healthy, n.Devices[d].Cards[k].State = true, core.CardHealthy
			}
		}
	}
}
