package decide_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/simulate"
)

// wide is a history of everything that a configuration and a job can say: three
// levels of queues in every order, with budgets, loans, urgency and giving up;
// nodes that come, go and drain, with cards in shares, slices and NICs; gangs of
// several groups, of cards in shares, services, gangs that save, that are slow to
// be released, that lose members.
type wide struct {
	*history
	release map[core.GangID]time.Time // when a placed gang is released
	gone    []core.Node
}

const mig core.Model = "1g.10gb"

func newWide(t *rapid.T) *wide {
	h := newHistory(t)
	w := &wide{h, map[core.GangID]time.Time{}, nil}
	any := func(name string, in ...int) int { return rapid.SampledFrom(in).Draw(t, name) }
	often := func(name string) bool { return rapid.IntRange(0, 5).Draw(t, name) == 5 }
	for i := range h.w.Nodes {
		n := &h.w.Nodes[i]
		d := &n.Devices[0]
		switch any("kind of node", 0, 0, 0, 1, 2, 3) {
		case 1: // cards in shares
			for k := range d.Cards {
				d.Cards[k].Shares = 4
			}
		case 2: // slices
			d.Type, d.Name = "mig", mig
		case 3:
			nics := core.DeviceGroup{Vendor: "mellanox", Type: "nic", Name: "CX7"}
			for k := range 2 {
				nics.Cards = append(nics.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-nic%d", n.ID, k)), Healthy: true, NUMA: k})
			}
			n.Devices = append(n.Devices, nics)
		}
		n.Datacenter = rapid.SampledFrom([]string{"dc1", "dc1", "dc2"}).Draw(t, "datacenter")
	}
	h.w = simulate.NewWorld(noon, &h.cfg, h.w.Nodes)
	c := &h.cfg
	c.Reservations, c.QueueReservations = any("reservations", 8, 8, 1, 0), any("queue_reservations", 1, 2)
	c.Packing = rapid.SampledFrom([]core.Packing{core.PackAuto, core.PackBin, core.PackSpread}).Draw(t, "packing")
	c.FixedSize, c.Preemption = often("fixed size"), !often("no preemption")
	if often("limit of each user") {
		c.UserLimits = append(c.UserLimits, core.UserLimit{User: "*", MaxCards: any("cards", 0, 16), MaxGangs: any("gangs", 0, 2)})
	}
	if often("blast limit") {
		c.Blast = []core.BlastLimit{{Level: rapid.SampledFrom([]string{"leaf", core.LevelNode}).Draw(t, "level"), Gangs: any("gangs", 0, 2), Share: any("share", 0, 50)}}
	}
	lab, d := core.DefaultQueue("lab"), core.DefaultQueue("d")
	lab.Parent, d.Parent = "team", "lab"
	lab.Max = core.Amounts{Any: any("max of the lab", -1, -1, 16)}
	d.Preempt.MinRuntime = 0
	c.Queues = append(c.Queues, lab, d)
	for i := range c.Queues {
		q := &c.Queues[i]
		if q.Name == "c" {
			q.Parent = "lab"
		}
		if q.Name == "team" || q.Name == "lab" {
			continue
		}
		q.Order = rapid.SampledFrom([]core.Order{core.OrderPriority, core.OrderPriority, core.OrderFIFO, core.OrderShortest, core.OrderAttained}).Draw(t, "order")
		q.Lend = core.Amounts{Any: any("lend", -1, -1, -1, 0, 4)}
		q.Guaranteed.Any = any("any guaranteed", 0, 0, 0, 8)
		q.Weight = any("weight", 1, 2)
		q.Preempt.Ratio = rapid.SampledFrom([]float64{0, 0.5, 1, 2}).Draw(t, "ratio")
		q.TimeLimit = time.Duration(any("queue's limit", 0, 0, 2)) * time.Hour
		q.Urgent, q.LimitReport = often("urgent"), often("limits reported")
		if often("on_preempt") {
			q.OnPreempt = "d"
		}
		if often("gives up") {
			q.GiveUp = core.GiveUp{After: time.Hour, Action: rapid.SampledFrom([]string{"min", "split", "fail"}).Draw(t, "action")}
		}
		if often("budget") {
			q.Budget = core.Budget{CardSeconds: 16 * 3600, Period: "day"}
		}
	}
	return w
}

// arrive submits a gang of any shape.
func (w *wide) arrive() {
	t := w.t
	any := func(name string, in ...int) int { return rapid.SampledFrom(in).Draw(t, name) }
	w.next++
	members := any("members", 1, 1, 2, 3, 4)
	group := core.Group{Name: "rank", Count: members, Drivers: []string{"torchrun"}, Use: core.Resources{CPU: int64(any("cpu", 500, 1000, 3000)), MemoryMB: 1024},
		Devices: []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: "gpu", Count: any("cards of a member", 1, 2, 4, 4, 8)}}}
	g := core.Gang{ID: core.GangID(fmt.Sprintf("g%02d", w.next)), Queue: rapid.SampledFrom([]core.QueueName{"a", "b", "c", "d"}).Draw(t, "queue"),
		User: rapid.SampledFrom([]string{"", "", "ann", "bob"}).Draw(t, "user"), Priority: any("priority", 40, 50, 60),
		Want: core.Want{Preemptible: any("preemptible", 0, 1, 1, 1) > 0, TimeLimit: time.Duration(any("limit", 0, 1, 4)) * time.Hour}}
	ask := &group.Devices[0]
	switch any("kind of gang", 0, 0, 0, 1, 2, 3, 4, 5, 6, 7) {
	case 1:
		ask.Count, ask.Shares = 0, any("shares", 1, 2, 3)
	case 2:
		ask.Type = "mig"
	case 3: // a learner and its actors
		more := group
		more.Name, more.Count, more.Devices = "actor", any("actors", 1, 2, 4), nil
		if n := any("cards of an actor", 0, 1, 2); n > 0 {
			more.Devices = []core.DeviceAsk{{Task: "act", Vendor: "nvidia", Type: "gpu", Name: rapid.SampledFrom([]string{"", string(a100)}).Draw(t, "model of the actors"), Count: n}}
		}
		g.Groups = []core.Group{more}
	case 4:
		group.Devices = append(group.Devices, core.DeviceAsk{Task: "train", Vendor: "mellanox", Type: "nic", Count: 1})
	case 5:
		g.Service, g.Preemptible = true, false
	case 6:
		group.Devices = nil
	case 7:
		g.Models = []core.Model{a100, short}
	}
	g.Groups = append(g.Groups, group)
	switch any("shape", 0, 0, 1, 1, 2, 3, 4, 5, 6, 7) {
	case 1:
		if len(g.Groups) == 1 && !g.Service {
			g.Min = rapid.IntRange(1, members).Draw(t, "min")
		}
	case 2:
		g.Level, g.Required = "leaf", true
	case 3:
		g.Level, g.Required = core.LevelNode, rapid.Bool().Draw(t, "required")
	case 4:
		g.Level, g.Required = core.LevelLink, true
	case 5:
		for i := range g.Groups {
			g.Groups[i].Constraints = []core.Constraint{{Operand: "distinct_hosts"}}
		}
	case 6:
		g.Groups[0].StaticPorts, g.Groups[0].Ports = []int{any("port", 7000, 7001)}, 1
	case 7:
		g.Groups[0].Datacenters = []string{"dc2"}
	}
	switch any("more", 0, 0, 0, 1, 2, 3, 4, 5) {
	case 1:
		g.SaveTime, g.RestartTime = time.Minute, time.Minute
	case 2:
		g.Deadline = w.w.Now.Add(time.Duration(any("deadline in hours", 1, 4)) * time.Hour)
	case 3:
		g.Split = true
	case 4:
		g.NotBefore, g.NotBeforeWhy = w.w.Now.Add(time.Hour), "failed before"
	case 5:
		g.AvoidNodes = []core.NodeID{"n1"}
	}
	x, err := w.w.Submit(g)
	if err != nil {
		t.Fatal(err)
	}
	x.Hold = any("released later", 0, 0, 0, 1) > 0
}

// decide is a cycle with all that happens after it.
func (w *wide) decide() *core.Plan {
	before := w.w.Snapshot()
	plan := w.cycle()
	conservative(w.t, before, plan)
	w.capacity()
	for _, g := range w.w.Active() {
		if _, known := w.release[g.ID]; g.Hold && g.State == core.GangPlacing && len(g.After) == 0 && !known {
			w.release[g.ID] = w.w.Now.Add(time.Duration(rapid.SampledFrom([]int{1, 5, 30}).Draw(w.t, "released after minutes")) * time.Minute)
		}
		if g.SaveTime > 0 && g.State == core.GangRunning {
			g.Checkpoint = w.w.Now
		}
	}
	return plan
}

// elapse lets time go by.
func (w *wide) elapse(d time.Duration) {
	w.pass(d)
	for _, g := range slices.Clone(w.w.Active()) {
		at, ok := w.release[g.ID]
		if !ok || g.State == core.GangPlacing && at.After(w.w.Now) {
			continue
		}
		delete(w.release, g.ID)
		if g.State == core.GangPlacing && len(g.After) == 0 {
			w.w.Release(g)
			w.ends[g.ID] = w.w.Now.Add(time.Duration(rapid.IntRange(1, 400).Draw(w.t, "runs for minutes")) * time.Minute)
		}
	}
}

// happen changes the cluster or a gang.
func (w *wide) happen() {
	t := w.t
	switch rapid.IntRange(0, 6).Draw(t, "what happens") {
	case 0, 1:
		w.trouble()
	case 2: // a node goes; one that was there comes back
		if len(w.w.Nodes) > 1 && rapid.Bool().Draw(t, "goes") {
			n := rapid.SampledFrom(w.w.Nodes).Draw(t, "node")
			w.gone = append(w.gone, n)
			if err := w.w.RemoveNode(n.ID); err != nil {
				t.Fatal(err)
			}
		} else {
			w.returns()
		}
	case 3: // a drain begins or ends
		n := rapid.SampledFrom(w.w.Nodes).Draw(t, "node")
		deadline := time.Duration(rapid.SampledFrom([]int{0, 5, 60}).Draw(t, "deadline in minutes")) * time.Minute
		if err := w.w.EditNode(n.ID, func(n *core.Node) {
			n.Draining = !n.Draining
			n.Eligible, n.DrainBy = !n.Draining, time.Time{}
			if n.Draining && deadline > 0 {
				n.DrainBy = w.w.Now.Add(deadline)
			}
		}); err != nil {
			t.Fatal(err)
		}
	case 4: // a member is lost
		for _, g := range w.w.Active() {
			if len(g.Claims) > 0 && g.State == core.GangRunning {
				w.w.Lose(g, []int{g.Claims[rapid.IntRange(0, len(g.Claims)-1).Draw(t, "member")].Member})
				break
			}
		}
	case 5: // a budget is used up, or a new period begins
		w.w.History.UsedCardSeconds = map[core.QueueName]int64{"a": 20 * 3600, "c": int64(rapid.IntRange(0, 20).Draw(t, "hours used")) * 3600}
	case 6:
		w.w.Paused = !w.w.Paused
	}
}

func (w *wide) returns() {
	for _, n := range w.gone {
		if err := w.w.AddNode(n); err != nil {
			w.t.Fatal(err)
		}
	}
	w.gone = nil
}

// capacity: what runs fits its nodes beside what leaves, and what takes over
// beside what stays.
func (w *wide) capacity() {
	for i := range w.w.Nodes {
		n := &w.w.Nodes[i]
		for _, takenOver := range []bool{false, true} {
			var use core.Resources
			ports := map[int]core.GangID{}
			for _, g := range w.w.Active() {
				for _, k := range g.Claims {
					if k.Node != n.ID || takenOver && k.Stopping || !takenOver && k.Asked {
						continue
					}
					use.CPU += k.Use.CPU
					use.MemoryMB += k.Use.MemoryMB
					for _, p := range k.Ports {
						if by, ok := ports[p]; ok {
							w.t.Fatalf("port %d of node %s is held by %s and %s", p, n.ID, by, g.ID)
						}
						ports[p] = g.ID
					}
				}
			}
			if use.CPU > n.Capacity.CPU || use.MemoryMB > n.Capacity.MemoryMB {
				w.t.Fatalf("node %s has %+v and is to serve %+v (what leaves gone: %v)", n.ID, n.Capacity, use, takenOver)
			}
		}
	}
}

// Whatever a configuration, a cluster and its gangs may be, no plan breaks a rule.
func TestSafetyOfEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWide(t)
		w.twin = true
		course{cycles: 14, arrivals: 3, oneIn: 3}.run(t, w)
	})
}

// heal brings every node and card back, ends drains, pauses and budgets.
func (w *wide) heal() {
	w.returns()
	for _, n := range w.w.Nodes {
		if err := w.w.EditNode(n.ID, func(n *core.Node) {
			n.Ready, n.Eligible, n.Draining, n.DrainBy, n.Suspect, n.Excluded = true, true, false, time.Time{}, false, false
			for d := range n.Devices {
				for k := range n.Devices[d].Cards {
					n.Devices[d].Cards[k].Healthy, n.Devices[d].Cards[k].State = true, core.CardHealthy
				}
			}
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.w.Paused, w.w.History.UsedCardSeconds = false, nil
}

// Once everything is well again and nothing arrives any more, evictions end and
// every gang that was not refused runs to its end or gives up, unless its queue may
// never hold what it asks for.
func TestLivenessOfEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWide(t)
		course{cycles: 8, arrivals: 3, oneIn: 3}.run(t, w)
		w.heal()
		quiet := 0
		const cycles = 120
		for range cycles {
			for _, g := range w.w.Active() {
				g.Hold = g.Hold && g.State != core.GangWaiting // each is released in time from now on
			}
			plan := w.decide()
			if quiet++; len(plan.Evictions) > 0 {
				quiet = 0
			}
			w.elapse(30 * time.Minute)
		}
		if quiet < cycles/4 {
			t.Fatalf("there are still evictions %d cycles after the last arrival", cycles-quiet)
		}
		for _, v := range w.decide().Verdicts {
			switch {
			case v.Action == core.ActionRefuse:
			case v.Reason == core.ReasonLend && len(w.w.Snapshot().Claims) == 0: // others never lend it so many
			default:
				t.Fatalf("gang %s: %s (%s) two days after the last arrival: %s", v.Gang, v.Action, v.Reason, v.Sentence)
			}
		}
	})
}

// What fits is placed in the cycle that sees it, whatever a gang asks for.
func TestWhatFitsOfEverythingIsPlaced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWide(t)
		w.cfg.Reservations = 0
		course{6, 4, 3, func(_ *core.Snapshot, plan *core.Plan) { w.nothingFits(plan) }}.run(t, w)
	})
}
