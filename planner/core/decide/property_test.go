package decide_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/simulate"
)

// history is a random life of a small cluster: queues, gangs that come and
// end, nodes and cards that fail and return.
type history struct {
	t     *rapid.T
	w     *simulate.World
	d     core.Decider
	cfg   core.Config
	ends  map[core.GangID]time.Time // when a running gang ends by itself
	leave map[core.GangID]time.Time // when one that was asked has left
	next  int
	// shuffle permutes snapshots; seeded from the drawn history.
	shuffle *rand.Rand
	twin    bool // each plan is held against those of fresh deciders
}

const a100 core.Model = "A100"

func newHistory(t *rapid.T) *history {
	h := &history{t: t, d: decide.New(), ends: map[core.GangID]time.Time{}, leave: map[core.GangID]time.Time{}}
	h.shuffle = rand.New(rand.NewSource(rapid.Int64().Draw(t, "shuffle")))
	var list []core.Node
	for i := range rapid.IntRange(2, 6).Draw(t, "nodes") {
		model := short
		if i > 3 && rapid.Bool().Draw(t, "other model") {
			model = a100
		}
		id := fmt.Sprintf("n%d", i)
		g := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: model}
		for k := range rapid.SampledFrom([]int{4, 8}).Draw(t, "cards") {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-%d", id, k)), Healthy: true, NUMA: k / 4, Domain: fmt.Sprintf("%s-%d", id, k/4)})
		}
		list = append(list, core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true, Domains: []string{fmt.Sprintf("leaf%d", i/2)},
			Drivers: map[string]bool{"torchrun": true}, Capacity: core.Resources{CPU: 8000, MemoryMB: 1 << 20, DiskMB: 1 << 20}, Devices: []core.DeviceGroup{g}})
	}
	h.cfg = core.Defaults()
	h.cfg.Levels = []core.Level{{Name: "leaf"}}
	h.cfg.PreferWait = rapid.SampledFrom([]time.Duration{0, 10 * time.Minute}).Draw(t, "prefer_wait")
	h.cfg.UserLimits = []core.UserLimit{{User: "bob", MaxCards: 8, MaxGangs: 3}}
	team := core.DefaultQueue("team")
	team.Max = core.Amounts{Any: rapid.SampledFrom([]int{-1, -1, 24}).Draw(t, "max of the team")}
	h.cfg.Queues = append(h.cfg.Queues, team)
	for _, name := range []core.QueueName{"a", "b", "c"} {
		q := core.DefaultQueue(name)
		q.Guaranteed = core.Amounts{Models: map[core.Model]int{short: rapid.SampledFrom([]int{0, 4, 8, 16}).Draw(t, "guaranteed")}}
		q.Max = core.Amounts{Any: rapid.SampledFrom([]int{-1, -1, 12, 24}).Draw(t, "max")}
		q.Class = rapid.SampledFrom([]int{50, 50, 60}).Draw(t, "class")
		if name != "a" {
			q.Parent = "team"
		}
		q.Preempt.MinRuntime = rapid.SampledFrom([]time.Duration{0, 15 * time.Minute}).Draw(t, "min_runtime")
		q.Preempt.EvictionsPerDay = rapid.SampledFrom([]int{1, 50}).Draw(t, "evictions_per_day")
		q.Preempt.PerVictimPerDay = rapid.IntRange(1, 3).Draw(t, "per_victim_per_day")
		q.Preempt.Ratio = rapid.SampledFrom([]float64{1, 2}).Draw(t, "ratio")
		q.TopPerDay = rapid.IntRange(0, 2).Draw(t, "top_evictions_per_day")
		q.MaxGangs = rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "max_gangs")
		h.cfg.Queues = append(h.cfg.Queues, q)
	}
	h.cfg.Consolidate = rapid.Bool().Draw(t, "consolidate")
	h.w = simulate.NewWorld(noon, &h.cfg, list)
	return h
}

func (h *history) submit() {
	t := h.t
	h.next++
	members, cards := rapid.SampledFrom([]int{1, 1, 2, 3, 4}).Draw(t, "members"), rapid.SampledFrom([]int{1, 2, 4, 4, 8}).Draw(t, "cards of a member")
	g := core.Gang{ID: core.GangID(fmt.Sprintf("g%02d", h.next)), Queue: rapid.SampledFrom([]core.QueueName{"a", "b", "c"}).Draw(t, "queue"),
		User: rapid.SampledFrom([]string{"", "", "", "bob"}).Draw(t, "user"), Priority: rapid.SampledFrom([]int{40, 50, 60}).Draw(t, "priority"),
		Groups: []core.Group{{Name: "rank", Count: members, Drivers: []string{"torchrun"}, Use: core.Resources{CPU: 1000, MemoryMB: 1024},
			Devices: []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: "gpu", Count: cards}}}},
		Want: core.Want{Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0, TimeLimit: rapid.SampledFrom([]time.Duration{0, time.Hour, 4 * time.Hour}).Draw(t, "limit")}}
	switch rapid.IntRange(0, 4).Draw(t, "shape") {
	case 0:
		g.Level, g.Required = "leaf", true
	case 1:
		g.Min = rapid.IntRange(1, members).Draw(t, "min")
	}
	if _, err := h.w.Submit(g); err != nil {
		t.Fatal(err)
	}
}

// cycle decides, checks what must hold of every plan, and carries it out.
func (h *history) cycle() *core.Plan {
	t, snap := h.t, h.w.Snapshot()
	plan := h.d.Decide(snap)
	if h.twin {
		if diff := cmp.Diff(decide.New().Decide(snap), plan); diff != "" {
			t.Fatalf("a decider that knows earlier snapshots decides otherwise:\n%s", diff)
		}
		if diff := cmp.Diff(decide.New().Decide(h.permuted(snap)), plan); diff != "" {
			t.Fatalf("the order of the snapshot's lists changes the plan:\n%s", diff)
		}
	}
	h.tell(snap, plan)
	h.complete(snap, plan)
	h.evictions(snap, plan)
	done, err := h.w.Apply(plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range done.Started {
		h.ends[g.ID] = h.w.Now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "runs for minutes")) * time.Minute)
	}
	for _, g := range done.Asked {
		delete(h.ends, g.ID)
		h.leave[g.ID] = h.w.Now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "leaves within minutes")) * time.Minute)
	}
	if err := h.w.Check(); err != nil {
		t.Fatal(err)
	}
	h.limits()
	return plan
}

// tell logs a cycle, for the report of a failure.
func (h *history) tell(s *core.Snapshot, p *core.Plan) {
	for _, g := range s.Gangs {
		h.t.Logf("%s: gang %s of queue %s, priority %d, state %d", s.Now.Format("15:04"), g.ID, g.Queue, g.Priority, g.State)
	}
	for _, k := range s.Claims {
		h.t.Logf("  %s holds %v of %s (asked %v, stopping %v)", k.Gang, k.Cards, k.Node, k.Asked, k.Stopping)
	}
	for _, e := range p.Evictions {
		h.t.Logf("  evict %s (%s) for %s", e.Gang, e.Kind, e.For)
	}
	for _, r := range p.Resizes {
		h.t.Logf("  resize %s: %s, less %v for %s", r.Gang, places(r.Add), r.Remove, r.For)
	}
	for _, st := range p.Starts {
		h.t.Logf("  start %s on %s after %v", st.Gang, places(st.Members), st.After)
	}
	for _, r := range p.Reservations {
		h.t.Logf("  reserve %s at %s on %s", r.Gang, r.At, places(r.Members))
	}
}

func (h *history) permuted(s *core.Snapshot) *core.Snapshot {
	p := *s
	p.Nodes, p.Gangs, p.Claims = slices.Clone(s.Nodes), slices.Clone(s.Gangs), slices.Clone(s.Claims)
	h.shuffle.Shuffle(len(p.Nodes), func(i, j int) { p.Nodes[i], p.Nodes[j] = p.Nodes[j], p.Nodes[i] })
	h.shuffle.Shuffle(len(p.Gangs), func(i, j int) { p.Gangs[i], p.Gangs[j] = p.Gangs[j], p.Gangs[i] })
	h.shuffle.Shuffle(len(p.Claims), func(i, j int) { p.Claims[i], p.Claims[j] = p.Claims[j], p.Claims[i] })
	return &p
}

// complete: every gang has one verdict, and every start is whole: each member
// once, on nodes and cards that may be used, with the cards it asked for.
func (h *history) complete(s *core.Snapshot, p *core.Plan) {
	verdicts := map[core.GangID]int{}
	for _, v := range p.Verdicts {
		verdicts[v.Gang]++
		if v.Sentence == "" {
			h.t.Fatalf("gang %s is told nothing", v.Gang)
		}
		if v.Action == core.ActionWait && len(v.Blockers) == 0 {
			h.t.Fatalf("gang %s waits for no stated reason", v.Gang)
		}
	}
	byID := map[core.GangID]*core.Gang{}
	for i := range s.Gangs {
		byID[s.Gangs[i].ID] = &s.Gangs[i]
		if verdicts[s.Gangs[i].ID] != 1 {
			h.t.Fatalf("gang %s has %d verdicts", s.Gangs[i].ID, verdicts[s.Gangs[i].ID])
		}
	}
	nodes := map[core.NodeID]*core.Node{}
	for i := range s.Nodes {
		nodes[s.Nodes[i].ID] = &s.Nodes[i]
	}
	for i := range p.Starts {
		h.whole(byID[p.Starts[i].Gang], &p.Starts[i], nodes)
	}
}

// whole: a start has every member once, each on a node and cards that may be used,
// with all that it asked for, on one model and within the level it requires.
func (h *history) whole(g *core.Gang, start *core.Start, nodes map[core.NodeID]*core.Node) {
	members := map[string]int{}
	places := map[string]map[string]bool{"leaf": {}, core.LevelNode: {}}
	for i, m := range start.Members {
		n := nodes[m.Node]
		if m.Member != i || n == nil || !n.Ready || !n.Eligible || n.Draining || n.Excluded || slices.Contains(g.AvoidNodes, n.ID) {
			h.t.Fatalf("gang %s, member %d goes to node %s", g.ID, m.Member, m.Node)
		}
		places["leaf"][n.Domains[0]], places[core.LevelNode][n.Name] = true, true
		at := slices.IndexFunc(g.Groups, func(k core.Group) bool { return k.Name == m.Group })
		if at < 0 || len(m.Cards) != len(g.Groups[at].Devices) {
			h.t.Fatalf("gang %s, member %d of group %s gets cards %v", g.ID, m.Member, m.Group, m.Cards)
		}
		members[m.Group]++
		for a, ask := range g.Groups[at].Devices {
			if want := max(ask.Count, min(1, ask.Shares)); len(m.Cards[a]) != want {
				h.t.Fatalf("gang %s, member %d gets cards %v of %d", g.ID, m.Member, m.Cards[a], want)
			}
			links := map[string]bool{}
			for _, id := range m.Cards[a] {
				d, c := device(n, id)
				switch {
				case c == nil || !c.Healthy || c.State >= core.CardDraining || slices.Contains(g.AvoidCards, id) || d.Type != ask.Type:
					h.t.Fatalf("gang %s gets card %s, which is not to be used", g.ID, id)
				case ask.Name != "" && string(d.Name) != ask.Name:
					h.t.Fatalf("gang %s gets a card of %s instead of %s", g.ID, d.Name, ask.Name)
				case d.Type != "nic" && ask.Name == "" && (d.Name != start.Model || len(g.Models) > 0 && !slices.Contains(g.Models, d.Name)):
					h.t.Fatalf("gang %s of model %s gets a card of %s", g.ID, start.Model, d.Name)
				}
				links[c.Domain] = true
			}
			if g.Required && g.Level == core.LevelLink && ask.Type != "nic" && len(links) > 1 {
				h.t.Fatalf("gang %s, member %d gets cards of %d NVLink domains", g.ID, m.Member, len(links))
			}
		}
	}
	for i := range g.Groups {
		k := &g.Groups[i]
		least := k.Count
		if g.Min > 0 {
			least = g.Min
		}
		if n := members[k.Name]; n < least || n > k.Count {
			h.t.Fatalf("gang %s starts with %d of %d members of group %s", g.ID, n, k.Count, k.Name)
		}
	}
	if g.Required && len(places[g.Level]) > 1 {
		h.t.Fatalf("gang %s, which must stay in one %s, is on %d", g.ID, g.Level, len(places[g.Level]))
	}
}

// device finds a card of a node.
func device(n *core.Node, id core.CardID) (*core.DeviceGroup, *core.Card) {
	for i := range n.Devices {
		d := &n.Devices[i]
		if at := slices.IndexFunc(d.Cards, func(c core.Card) bool { return c.ID == id }); at >= 0 {
			return d, &d.Cards[at]
		}
	}
	return nil, nil
}

// pass lets time go by: gangs end and leave.
func (h *history) pass(d time.Duration) {
	h.w.Now = h.w.Now.Add(d)
	for _, g := range slices.Clone(h.w.Active()) {
		if at, asked := h.leave[g.ID]; asked && !at.After(h.w.Now) {
			delete(h.leave, g.ID)
			h.begin(h.w.Left(g))
		} else if at, runs := h.ends[g.ID]; runs && !at.After(h.w.Now) && g.State == core.GangRunning {
			delete(h.ends, g.ID)
			h.begin(h.w.End(g, "complete"))
		}
	}
}

// begin gives gangs whose victims have left a time at which they end.
func (h *history) begin(gangs []*simulate.Gang) {
	for _, g := range gangs {
		h.ends[g.ID] = h.w.Now.Add(time.Hour)
	}
}

// trouble changes a node: cards that fail and return, drains, absence.
func (h *history) trouble() {
	n := rapid.SampledFrom(h.w.Nodes).Draw(h.t, "node")
	what := rapid.IntRange(0, 3).Draw(h.t, "trouble")
	if err := h.w.EditNode(n.ID, func(n *core.Node) {
		switch what {
		case 0:
			n.Eligible = !n.Eligible
		case 1:
			c := &n.Devices[0].Cards[rapid.IntRange(0, len(n.Devices[0].Cards)-1).Draw(h.t, "card")]
			c.Healthy = !c.Healthy
		case 2:
			c := &n.Devices[0].Cards[rapid.IntRange(0, len(n.Devices[0].Cards)-1).Draw(h.t, "card")]
			c.State = rapid.SampledFrom([]core.CardState{core.CardHealthy, core.CardSuspect, core.CardQuarantined}).Draw(h.t, "state")
		case 3:
			n.Suspect = !n.Suspect
		}
	}); err != nil {
		h.t.Fatal(err)
	}
}

// life is what a course runs: a history, or a wide one.
type life interface {
	arrive()            // one gang
	happen()            // something to a node, a card or a gang
	decide() *core.Plan // checked and carried out
	elapse(time.Duration)
	world() *simulate.World
}

func (h *history) arrive()                { h.submit() }
func (h *history) happen()                { h.trouble() }
func (h *history) decide() *core.Plan     { return h.cycle() }
func (h *history) elapse(d time.Duration) { h.pass(d) }
func (h *history) world() *simulate.World { return h.w }

// course is how long a life is and how much happens in it: so many cycles at
// most, so many gangs that come before each at most, and something else that
// happens before one in so many. See, where there is one, looks at each plan and
// at what it was made from.
type course struct {
	cycles, arrivals, oneIn int
	see                     func(*core.Snapshot, *core.Plan)
}

func (k course) run(t *rapid.T, l life) {
	for range rapid.IntRange(1, k.cycles).Draw(t, "cycles") {
		for range rapid.IntRange(0, k.arrivals).Draw(t, "arrivals") {
			l.arrive()
		}
		if rapid.IntRange(0, k.oneIn-1).Draw(t, "quiet") == 0 {
			l.happen()
		}
		snap := l.world().Snapshot()
		plan := l.decide()
		if k.see != nil {
			k.see(snap, plan)
		}
		l.elapse(time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute)
	}
}

func TestSafety(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.twin = true
		course{cycles: 14, arrivals: 3, oneIn: 4}.run(t, h)
	})
}

// Once nothing arrives any more, evictions end and every gang that was not
// refused runs to its end: nobody waits for ever.
func TestLiveness(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 10).Draw(t, "gangs") {
			h.submit()
			h.cycle()
			h.pass(time.Duration(rapid.IntRange(0, 30).Draw(t, "minutes")) * time.Minute)
		}
		quiet := 0
		const cycles = 160
		for range cycles {
			plan := h.cycle()
			if quiet++; len(plan.Evictions) > 0 {
				quiet = 0
			}
			h.pass(20 * time.Minute)
		}
		if quiet < cycles/4 {
			t.Fatalf("there are still evictions %d cycles after the last arrival", cycles-quiet)
		}
		plan := h.cycle()
		for _, v := range plan.Verdicts {
			if v.Action != core.ActionRefuse {
				t.Fatalf("gang %s: %s (%s) two days after the last arrival: %s", v.Gang, v.Action, v.Reason, v.Sentence)
			}
		}
	})
}
