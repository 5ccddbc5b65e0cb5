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
	for _, start := range p.Starts {
		g := byID[start.Gang]
		ask := &g.Groups[0]
		least := ask.Count
		if g.Min > 0 {
			least = g.Min
		}
		if len(start.Members) < least || len(start.Members) > ask.Count {
			h.t.Fatalf("gang %s starts with %d of %d members", g.ID, len(start.Members), ask.Count)
		}
		leaves := map[string]bool{}
		for i, m := range start.Members {
			n := nodes[m.Node]
			if m.Member != i || n == nil || !n.Ready || !n.Eligible || n.Draining || n.Excluded {
				h.t.Fatalf("gang %s, member %d goes to node %s", g.ID, m.Member, m.Node)
			}
			leaves[n.Domains[0]] = true
			if len(m.Cards) != 1 || len(m.Cards[0]) != ask.Devices[0].Count {
				h.t.Fatalf("gang %s, member %d gets cards %v", g.ID, m.Member, m.Cards)
			}
			for _, id := range m.Cards[0] {
				at := slices.IndexFunc(n.Devices[0].Cards, func(c core.Card) bool { return c.ID == id })
				if at < 0 || !n.Devices[0].Cards[at].Healthy || n.Devices[0].Cards[at].State >= core.CardDraining {
					h.t.Fatalf("gang %s gets card %s, which is not to be used", g.ID, id)
				}
				if n.Devices[0].Name != start.Model {
					h.t.Fatalf("gang %s of model %s gets a card of %s", g.ID, start.Model, n.Devices[0].Name)
				}
			}
		}
		if g.Level == "leaf" && g.Required && len(leaves) > 1 {
			h.t.Fatalf("gang %s, which must stay in one leaf, is on %d", g.ID, len(leaves))
		}
	}
}

// evictions: nobody is evicted for a gang that does not then have its place;
// never an equal of its own queue, one that may not be, or one that evicted the
// gang within a day; no queue at or below its guarantee; and all caps are kept.
func (h *history) evictions(s *core.Snapshot, p *core.Plan) {
	byID, confs := map[core.GangID]*core.Gang{}, map[core.QueueName]*core.Queue{}
	for i := range s.Gangs {
		byID[s.Gangs[i].ID] = &s.Gangs[i]
	}
	for i := range h.cfg.Queues {
		confs[h.cfg.Queues[i].Name] = &h.cfg.Queues[i]
	}
	effective := map[core.GangID]int{}
	for _, v := range p.Verdicts {
		effective[v.Gang] = v.Effective
	}
	held, of := map[core.GangID]int{}, map[core.GangID]core.Model{}
	used := map[core.QueueName]map[core.Model]int{"a": {}, "b": {}, "c": {}, "team": {}}
	charge := func(g core.GangID, cards int) {
		for q := byID[g].Queue; q != ""; q = confs[q].Parent {
			used[q][of[g]] += cards
		}
	}
	for _, k := range s.Claims {
		if g := byID[k.Gang]; g != nil {
			held[k.Gang] += len(k.Cards)
			of[k.Gang] = g.Placement[0].Model
		}
	}
	for id, n := range held {
		if byID[id].State != core.GangStopping {
			charge(id, n)
		}
	}
	for _, r := range p.Resizes {
		charge(r.Gang, -len(r.Remove)*byID[r.Gang].Groups[0].Devices[0].Count)
	}
	for _, e := range p.Evictions {
		if e.For == "" {
			charge(e.Gang, -held[e.Gang])
		}
	}
	started := 0
	count, top, taken := map[core.QueueName]int{}, map[core.QueueName]int{}, map[core.GangID]int{}
	for _, r := range p.Resizes {
		if len(r.Remove) == 0 {
			continue
		}
		taken[r.For] += len(r.Remove) * byID[r.Gang].Groups[0].Devices[0].Count
	}
	for _, e := range p.Evictions {
		victim := byID[e.Gang]
		switch e.Kind {
		case core.EvictReclaim, core.EvictClass, core.EvictPriority, core.EvictAged, core.EvictConsolidate:
		default:
			continue
		}
		by := byID[e.For]
		if !victim.Preemptible {
			h.t.Fatalf("gang %s may not be evicted: %s for %s", e.Gang, e.Kind, e.For)
		}
		at := slices.IndexFunc(p.Starts, func(s core.Start) bool { return s.Gang == e.For })
		if at < 0 || !slices.Contains(p.Starts[at].After, e.Gang) {
			h.t.Fatalf("gang %s is evicted for %s, which is not placed on what it leaves", e.Gang, e.For)
		}
		for ; started < at; started++ { // what was started before it may be above a guarantee
			st := &p.Starts[started]
			of[st.Gang] = st.Model
			charge(st.Gang, len(st.Members)*byID[st.Gang].Groups[0].Devices[0].Count)
		}
		if e.Kind == core.EvictPriority && by.Queue == victim.Queue && effective[e.For] <= victim.Priority {
			h.t.Fatalf("gang %s (priority %d) evicts its equal %s (priority %d)", e.For, effective[e.For], e.Gang, victim.Priority)
		}
		if slices.Contains(by.EvictedBy, e.Gang) {
			h.t.Fatalf("gang %s evicts %s, which evicted it within a day", e.For, e.Gang)
		}
		rules := confs[victim.Queue].Preempt
		if ran := s.Now.Sub(victim.Released); !victim.Released.IsZero() && ran < rules.MinRuntime {
			h.t.Fatalf("gang %s is evicted after %s, min_runtime is %s", e.Gang, ran, rules.MinRuntime)
		}
		if victim.EvictionsToday >= rules.PerVictimPerDay {
			h.t.Fatalf("gang %s is evicted once more after %d times today", e.Gang, victim.EvictionsToday)
		}
		if e.Kind == core.EvictReclaim || e.Kind == core.EvictClass {
			excess := 0
			for m, n := range used[victim.Queue] {
				excess += max(0, n-confs[victim.Queue].Guaranteed.Models[m])
			}
			if excess <= 0 {
				h.t.Fatalf("gang %s is evicted (%s) though its queue %s borrows nothing", e.Gang, e.Kind, victim.Queue)
			}
		}
		charge(e.Gang, -held[e.Gang])
		taken[e.For] += held[e.Gang]
		if count[by.Queue]++; s.History.EvictionsToday[by.Queue]+count[by.Queue] > confs[by.Queue].Preempt.EvictionsPerDay {
			h.t.Fatalf("queue %s causes more than %d evictions a day", by.Queue, confs[by.Queue].Preempt.EvictionsPerDay)
		}
		if e.Kind == core.EvictAged {
			if top[by.Queue]++; s.History.TopEvictionsToday[by.Queue]+top[by.Queue] > confs[by.Queue].TopPerDay {
				h.t.Fatalf("aged gangs of queue %s cause more than %d evictions a day", by.Queue, confs[by.Queue].TopPerDay)
			}
		}
	}
	for id, n := range taken {
		g := byID[id]
		at := slices.IndexFunc(p.Starts, func(s core.Start) bool { return s.Gang == id })
		if at < 0 {
			h.t.Fatalf("members are taken for gang %s, which does not start", id)
		}
		asked := len(p.Starts[at].Members) * g.Groups[0].Devices[0].Count
		if most := confs[g.Queue].Preempt.Ratio * float64(asked); float64(n) > most {
			h.t.Fatalf("%d cards are taken for gang %s, which asks for %d: the ratio is %g", n, id, asked, confs[g.Queue].Preempt.Ratio)
		}
	}
}

// limits: no queue above its max, no user above the limit. What a gang takes
// over from one that is leaving counts once it has left.
func (h *history) limits() {
	queues, users := map[core.QueueName]int{}, map[string]int{}
	for _, g := range h.w.Active() {
		for _, c := range g.Claims {
			if c.Asked {
				continue
			}
			queues[g.Queue] += len(c.Cards)
			if g.Queue != "a" {
				queues["team"] += len(c.Cards)
			}
			users[g.User] += len(c.Cards)
		}
	}
	for _, q := range h.cfg.Queues {
		if q.Max.Any >= 0 && queues[q.Name] > q.Max.Any {
			h.t.Fatalf("queue %s holds %d cards of at most %d", q.Name, queues[q.Name], q.Max.Any)
		}
	}
	if users["bob"] > 8 {
		h.t.Fatalf("user bob holds %d cards of at most 8", users["bob"])
	}
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

func TestSafety(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.twin = true
		for range rapid.IntRange(1, 14).Draw(t, "cycles") {
			for range rapid.IntRange(0, 3).Draw(t, "arrivals") {
				h.submit()
			}
			if rapid.IntRange(0, 3).Draw(t, "quiet") == 0 {
				h.trouble()
			}
			h.cycle()
			h.pass(time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute)
		}
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
