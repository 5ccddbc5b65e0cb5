package decide_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

// TestBrokenSnapshots breaks snapshots at random: whatever they say, the planner
// decides, gives every gang one verdict, and gives nobody a card that somebody
// is said to hold.
func TestBrokenSnapshots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 3).Draw(t, "cycles") {
			for range rapid.IntRange(1, 3).Draw(t, "arrivals") {
				h.submit()
			}
			h.cycle()
			h.pass(10 * time.Minute)
		}
		for range rapid.IntRange(0, 3).Draw(t, "arrivals") {
			h.submit()
		}
		s := thaw(h.w.Snapshot())
		b := breaker{t, s}
		for range rapid.IntRange(1, 6).Draw(t, "faults") {
			b.anything()
		}
		d := decide.New()
		d.Decide(h.w.Snapshot())
		plan := d.Decide(s)
		if diff := cmp.Diff(decide.New().Decide(s), plan); diff != "" {
			t.Fatalf("a decider that knows earlier snapshots decides otherwise:\n%s", diff)
		}
		conservative(t, s, plan)
	})
}

// conservative: one verdict for each gang, and starts only on cards that exist,
// once, are good, and that nobody else holds.
func conservative(t *rapid.T, s *core.Snapshot, p *core.Plan) {
	ids := map[core.GangID]int{}
	for i := range s.Gangs {
		ids[s.Gangs[i].ID] = 0
	}
	for _, v := range p.Verdicts {
		ids[v.Gang]++
		if v.Sentence == "" {
			t.Fatalf("gang %s is told nothing", v.Gang)
		}
	}
	for id, n := range ids {
		if n != 1 {
			t.Fatalf("gang %s has %d verdicts", id, n)
		}
	}
	type card struct {
		node core.NodeID
		id   core.CardID
	}
	good := map[card]bool{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, d := range n.Devices {
			for _, c := range d.Cards {
				good[card{n.ID, c.ID}] = good[card{n.ID, c.ID}] || n.Ready && n.Eligible && !n.Draining && !n.Excluded && c.Healthy && c.State <= core.CardSuspect
			}
		}
	}
	held := map[card]core.GangID{}
	for _, k := range s.Claims {
		for _, id := range k.Cards {
			if k.Gang == "" {
				held[card{k.Node, id}] = "other"
			} else {
				held[card{k.Node, id}] = k.Gang
			}
		}
	}
	given := map[card]core.GangID{}
	for _, start := range p.Starts {
		shrunk := map[core.GangID]bool{}
		for _, r := range p.Resizes {
			shrunk[r.Gang] = len(r.Remove) > 0
		}
		at := slices.IndexFunc(s.Gangs, func(g core.Gang) bool { return g.ID == start.Gang })
		for _, m := range start.Members {
			group := slices.IndexFunc(s.Gangs[at].Groups, func(k core.Group) bool { return k.Name == m.Group })
			for a, ids := range m.Cards {
				for _, id := range ids {
					k := card{m.Node, id}
					if !good[k] {
						t.Fatalf("gang %s starts on card %s of node %s, which is not there or not good", start.Gang, id, m.Node)
					}
					if s.Gangs[at].Groups[group].Devices[a].Shares > 0 {
						continue // several may have shares of it
					}
					if by := given[k]; by != "" {
						t.Fatalf("card %s is given to %s and %s", id, by, start.Gang)
					}
					given[k] = start.Gang
					if by := held[k]; by != "" && !slices.Contains(start.After, by) {
						t.Fatalf("gang %s starts on card %s, which %s holds", start.Gang, id, by)
					}
				}
			}
		}
	}
}

// thaw copies a snapshot as deep as breaker changes it.
func thaw(s *core.Snapshot) *core.Snapshot {
	c := *s
	cfg := *s.Config
	cfg.Queues, cfg.Levels = slices.Clone(cfg.Queues), slices.Clone(cfg.Levels)
	c.Config = &cfg
	c.Nodes, c.Gangs, c.Claims = slices.Clone(s.Nodes), slices.Clone(s.Gangs), slices.Clone(s.Claims)
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Devices, n.Domains = slices.Clone(n.Devices), slices.Clone(n.Domains)
		for d := range n.Devices {
			n.Devices[d].Cards = slices.Clone(n.Devices[d].Cards)
		}
	}
	for i := range c.Gangs {
		g := &c.Gangs[i]
		g.Groups = slices.Clone(g.Groups)
		for k := range g.Groups {
			g.Groups[k].Devices = slices.Clone(g.Groups[k].Devices)
		}
	}
	for i := range c.Claims {
		c.Claims[i].Cards = slices.Clone(c.Claims[i].Cards)
	}
	return &c
}

// breaker breaks a snapshot.
type breaker struct {
	t *rapid.T
	s *core.Snapshot
}

func (b *breaker) anything() {
	switch kind := rapid.IntRange(0, 9).Draw(b.t, "what is broken"); {
	case kind < 3 && len(b.s.Claims) > 0:
		b.claim(rapid.IntRange(0, len(b.s.Claims)-1).Draw(b.t, "claim"))
	case kind < 5:
		b.node(rapid.IntRange(0, len(b.s.Nodes)-1).Draw(b.t, "node"))
	case kind < 8 && len(b.s.Gangs) > 0:
		b.gang(&b.s.Gangs[rapid.IntRange(0, len(b.s.Gangs)-1).Draw(b.t, "gang")])
	case kind < 9:
		b.config()
	default:
		b.history()
	}
}

// odd numbers.
func (b *breaker) number() int {
	return rapid.SampledFrom([]int{-1, 0, 1, 3, 99, -1 << 40, 1 << 40, math.MaxInt64, math.MinInt64}).Draw(b.t, "number")
}

func (b *breaker) claim(i int) {
	k := &b.s.Claims[i]
	switch rapid.IntRange(0, 13).Draw(b.t, "claim's fault") {
	case 0:
		k.Node = "ghost"
	case 1:
		k.Cards = append(k.Cards, "no-such-card")
	case 2:
		k.Cards = append(k.Cards, k.Cards...)
	case 3:
		b.s.Claims = append(b.s.Claims, *k)
	case 4:
		twin := *k
		twin.Alloc, twin.Gang = "twin of "+k.Alloc, "nobody's"
		b.s.Claims = append(b.s.Claims, twin)
	case 5:
		k.Gang, k.Member = "", -1
	case 6:
		k.Use.CPU, k.Use.Cores = int64(b.number()), b.number()
	case 7:
		k.Shares = []int{b.number()}
	case 8:
		k.Ports = []int{b.number(), 20001, 20001}
	case 9:
		k.Member = b.number()
	case 10:
		k.Asked, k.Stopping = !k.Asked, true
	case 11:
		k.Cards = nil
	case 12:
		k.Attempt, k.Alloc = b.number(), ""
	case 13:
		k.Node = rapid.SampledFrom(b.s.Nodes).Draw(b.t, "another node").ID
	}
}

func (b *breaker) node(i int) {
	n := &b.s.Nodes[i]
	n.Version += 1000
	d := &n.Devices[0]
	if len(d.Cards) < 3 {
		return
	}
	switch rapid.IntRange(0, 12).Draw(b.t, "node's fault") {
	case 0:
		b.s.Nodes = append(b.s.Nodes, *n)
	case 1:
		n.Domains = nil
	case 2:
		n.Domains = []string{"a", "b", "c", "d"}
	case 3:
		n.Capacity = core.Resources{CPU: int64(b.number()), Cores: b.number(), MemoryMB: int64(b.number()), DiskMB: int64(b.number())}
	case 4:
		d.Cards[0].ID = d.Cards[1].ID
	case 5:
		d.Links = []core.Link{{A: 0, B: 99, Count: 1}, {A: -1, B: 0, Count: b.number()}, {A: 0, B: 1, Count: b.number()}}
	case 6:
		d.Cards = nil
	case 7:
		n.Devices = append(n.Devices, *d)
	case 8:
		d.Cards[0].Shares, d.Cards[1].NUMA, d.Cards[2].Parent = b.number(), b.number(), d.Cards[2].ID
	case 9:
		n.MinPort, n.MaxPort = b.number(), b.number()
		n.ReservedPorts = []int{b.number(), 3, 3, 2}
	case 10:
		n.ID = ""
	case 11:
		d.Attributes = map[string]core.Attribute{"memory": {}, "odd": {Unit: "parsec"}}
		n.Attributes = map[string]string{"": ""}
	case 12:
		d.Name, d.Type = "", "fridge"
	}
}

func (b *breaker) gang(g *core.Gang) {
	if len(g.Groups) == 0 {
		return
	}
	switch rapid.IntRange(0, 15).Draw(b.t, "gang's fault") {
	case 0:
		g.Groups = nil
	case 1:
		g.Groups[0].Count = b.number()
	case 2:
		g.Groups[0].Devices[0].Count = b.number()
	case 3:
		g.Groups[0].Devices[0].Shares = b.number()
	case 4:
		g.Min = b.number()
	case 5:
		g.Queue = rapid.SampledFrom([]core.QueueName{"", "root", "nowhere"}).Draw(b.t, "queue")
	case 6:
		g.Level, g.Required = "galaxy", rapid.Bool().Draw(b.t, "required")
	case 7:
		g.State = core.GangState(rapid.IntRange(0, 9).Draw(b.t, "state"))
	case 8:
		g.Submitted, g.Queued, g.Released = time.Time{}, time.Time{}, b.s.Now.Add(1<<50)
	case 9:
		g.Priority, g.Sequence = b.number(), int64(b.number())
	case 10:
		g.Damaged, g.Lost = true, []int{b.number(), 0, 0}
	case 11:
		g.Models = []core.Model{"abacus", ""}
	case 12:
		b.s.Gangs = append(b.s.Gangs, *g)
	case 13:
		g.TimeLimit, g.Grace, g.Ran = time.Duration(b.number()), time.Duration(b.number()), time.Duration(b.number())
	case 14:
		g.Groups = append(g.Groups, g.Groups...)
		g.Groups[0].Use.CPU = int64(b.number())
		g.Groups[0].Ports = b.number()
	case 15:
		g.Groups[0].Constraints = []core.Constraint{{Left: "${", Operand: "regexp", Right: "("}, {Operand: "distinct_property", Right: "-3"}, {Left: "${attr.x}", Operand: "magic"}}
		g.Groups[0].Spreads = []core.Spread{{Attribute: "${meta.x}", Targets: []core.SpreadTarget{{Percent: b.number()}}}}
	}
}

func (b *breaker) config() {
	c := b.s.Config
	if len(c.Queues) == 0 {
		return
	}
	q := &c.Queues[rapid.IntRange(0, len(c.Queues)-1).Draw(b.t, "queue")]
	amounts := core.Amounts{Any: b.number(), Models: map[core.Model]int{short: b.number(), "abacus": b.number()}}
	switch rapid.IntRange(0, 11).Draw(b.t, "configuration's fault") {
	case 0:
		for i := range c.Queues {
			c.Queues[i].Parent = c.Queues[(i+1)%len(c.Queues)].Name
		}
	case 1:
		q.Parent = "nowhere"
	case 2:
		c.Queues = append(c.Queues, *q)
	case 3:
		q.Guaranteed = amounts
	case 4:
		q.Max = amounts
	case 5:
		q.Lend = amounts
	case 6:
		q.Weight, q.Class, q.MaxGangs = b.number(), b.number(), b.number()
	case 7:
		q.Preempt = core.Preempt{Grace: -time.Hour, MinRuntime: -1, EvictionsPerDay: b.number(), PerVictimPerDay: b.number(),
			Ratio: rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300}).Draw(b.t, "ratio")}
	case 8:
		c.Reservations, c.BackfillMost, c.GatherAfter, c.PreferWait = b.number(), b.number(), time.Duration(b.number()), time.Duration(b.number())
	case 9:
		c.Levels = []core.Level{{Name: ""}, {Name: "node"}, {Name: ""}}
	case 10:
		c.Blast = []core.BlastLimit{{Level: "galaxy", Gangs: 1}, {Level: core.LevelNode, Gangs: b.number(), Share: b.number()}}
		c.UserLimits = []core.UserLimit{{User: "*", MaxCards: b.number(), MaxGangs: b.number()}}
	case 11:
		c.Queues, c.CardTypes = nil, nil
	}
}

func (b *breaker) history() {
	h := &b.s.History
	switch rapid.IntRange(0, 3).Draw(b.t, "history's fault") {
	case 0:
		h.Reservations = append(slices.Clone(h.Reservations), core.Reservation{Gang: "nobody's", At: b.s.Now}, core.Reservation{Gang: b.gangID(), At: b.s.Now.Add(-1 << 40), Members: []core.Placement{{Node: "ghost", Group: "none", Cards: make([][]core.CardID, 3)}}})
	case 1:
		for range 3 {
			h.Estimates = append(h.Estimates, core.Estimate{Queue: "a", Cards: b.number(), Median: time.Duration(b.number()), Upper: time.Duration(b.number()), Count: b.number()})
		}
	case 2:
		h.Recent = []core.Shape{{Members: b.number(), Cards: b.number(), Shares: b.number(), Weight: b.number()}, {}}
	case 3:
		b.s.Now = time.Time{}
	}
}

func (b *breaker) gangID() core.GangID {
	if len(b.s.Gangs) == 0 {
		return ""
	}
	return rapid.SampledFrom(b.s.Gangs).Draw(b.t, "gang of a promise").ID
}
