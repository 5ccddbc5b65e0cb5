package decide_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/simulate"
)

// TestScenarios runs the scripts of testdata/scenarios: what an operator does
// and what the planner then decides. testdata/scenarios/README tells the
// commands. The decisions were written by hand from docs/policy.md; after a
// wanted change, -rewrite writes them anew, and the difference is to be
// reviewed line by line.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		if strings.HasSuffix(path, "README") {
			return
		}
		s := &script{decider: decide.New()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := s.run(t, d)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return out
		})
	})
}

// script is a scenario under way.
type script struct {
	world   *simulate.World
	decider core.Decider
	cfg     core.Config
	plan    *core.Plan
}

const short core.Model = "H100"

func (s *script) run(t *testing.T, d *datadriven.TestData) (string, error) {
	a := args{d}
	switch d.Cmd {
	case "cluster":
		return s.cluster(a)
	case "config":
		return "", s.config(a)
	case "queue":
		return "", s.queue(a)
	case "submit":
		return "", s.submit(a)
	case "other":
		return "", s.other(a)
	case "cycle":
		return s.cycle(t, a)
	case "pass":
		d, err := time.ParseDuration(a.first())
		if err != nil {
			return "", err
		}
		s.world.Now = s.world.Now.Add(d)
		return "", nil
	case "end", "left", "damage", "checkpoint", "change", "hold", "withdraw", "release":
		return "", s.gang(a)
	case "node", "card":
		return "", s.node(a)
	case "why":
		return s.why(a), nil
	case "eta":
		return s.eta(a), nil
	case "ranks":
		return s.ranks(a), nil
	case "demand":
		var b strings.Builder
		for _, d := range s.plan.Demand {
			fmt.Fprintf(&b, "%d nodes of %d %s for %s\n", d.Nodes, d.Cards, d.Model, plural(d.Gangs, "gang"))
		}
		return b.String(), nil
	case "learned":
		s.world.History.Estimates = append(slices.Clone(s.world.History.Estimates), core.Estimate{User: a.text("user", ""), Name: a.text("name", ""), Queue: core.QueueName(a.text("queue", "q")),
			Cards: a.number("cards", 8), Median: a.duration("median", 0), Upper: a.duration("upper", 0), Count: a.number("count", 10)})
		return "", nil
	case "pause":
		s.world.Paused, s.world.PausedWhy = true, strings.Join(a.words(), " ")
		return "", nil
	case "resume":
		s.world.Paused = false
		return "", nil
	}
	return "", fmt.Errorf("no command is called %s", d.Cmd)
}

// args reads a command's arguments: bare words and key=value.
type args struct{ *datadriven.TestData }

func (a args) words() []string {
	var out []string
	for _, k := range a.CmdArgs {
		if len(k.Vals) == 0 {
			out = append(out, k.Key)
		}
	}
	return out
}

func (a args) first() string {
	if w := a.words(); len(w) > 0 {
		return w[0]
	}
	return ""
}

func (a args) has(word string) bool { return slices.Contains(a.words(), word) }

func (a args) text(key, otherwise string) string {
	for _, k := range a.CmdArgs {
		if k.Key == key && len(k.Vals) > 0 {
			return strings.Join(k.Vals, ",")
		}
	}
	return otherwise
}

func (a args) list(key string) []string {
	if v := a.text(key, ""); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

func (a args) number(key string, otherwise int) int {
	v := a.text(key, "")
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		panic(fmt.Sprintf("%s: %s=%s is no number", a.Pos, key, v))
	}
	return n
}

func (a args) duration(key string, otherwise time.Duration) time.Duration {
	v := a.text(key, "")
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		panic(fmt.Sprintf("%s: %s=%s is no duration", a.Pos, key, v))
	}
	return d
}

// cluster nodes=4 cards=8 [nics=2] [leaf=2] [spine=4] [model=H100] [prefix=n]
// [cpu=..] adds nodes.
func (s *script) cluster(a args) (string, error) {
	if s.world == nil {
		s.cfg = core.Defaults()
		s.cfg.Levels = []core.Level{{Name: "leaf"}}
		if a.number("spine", 0) > 0 {
			s.cfg.Levels = []core.Level{{Name: "spine"}, {Name: "leaf"}}
		}
		s.cfg.PreferWait = 0
		s.world = simulate.NewWorld(noon, &s.cfg, nil)
	}
	leaf, model, prefix, typ := a.number("leaf", 1<<20), a.text("model", string(short)), a.text("prefix", "n"), a.text("type", "gpu")
	nodes := slices.Clone(s.world.Nodes)
	name := "%s%d"
	if a.number("nodes", 1) > 9 {
		name = "%s%02d"
	}
	for i := range a.number("nodes", 1) {
		id := fmt.Sprintf(name, prefix, i+1)
		g := core.DeviceGroup{Vendor: "nvidia", Type: typ, Name: core.Model(model)}
		for k := range a.number("cards", 8) {
			card := core.Card{ID: core.CardID(fmt.Sprintf("%s-%d", id, k)), Healthy: true, NUMA: -1, Shares: a.number("shares", 0)}
			if islands := a.number("islands", 0); islands > 0 {
				card.Domain = fmt.Sprintf("%s-link%d", id, k*islands/a.number("cards", 8))
			}
			g.Cards = append(g.Cards, card)
		}
		devices := []core.DeviceGroup{g}
		if n := a.number("nics", 0); n > 0 {
			nics := core.DeviceGroup{Vendor: "mellanox", Type: "nic", Name: "CX7"}
			for k := range n {
				nics.Cards = append(nics.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-nic%d", id, k)), Healthy: true, NUMA: -1})
			}
			devices = append(devices, nics)
		}
		domains := []string{fmt.Sprintf("%s-leaf%d", prefix, i/leaf+1)}
		if spine := a.number("spine", 0); spine > 0 {
			domains = []string{fmt.Sprintf("%s-spine%d", prefix, i/spine+1), domains[0]}
		}
		nodes = append(nodes, core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true,
			Domains: domains, Meta: map[string]string{"prefix": prefix}, Drivers: map[string]bool{"torchrun": true},
			Capacity: core.Resources{CPU: int64(a.number("cpu", 64000)), MemoryMB: 1 << 20, DiskMB: 1 << 20}, Devices: devices})
	}
	s.world = simulate.NewWorld(noon, &s.cfg, nodes)
	return "", nil
}

func (s *script) config(a args) error {
	c := &s.cfg
	c.Reservations = a.number("reservations", c.Reservations)
	c.QueueReservations = a.number("queue_reservations", c.QueueReservations)
	c.GatherAfter = a.duration("gather_after", c.GatherAfter)
	c.PreferWait = a.duration("prefer_wait", c.PreferWait)
	c.ReserveTimeout = a.duration("reserve_timeout", c.ReserveTimeout)
	c.Preemption = c.Preemption && !a.has("no-preemption")
	c.Consolidate = c.Consolidate || a.has("consolidate")
	c.FixedSize = c.FixedSize || a.has("fixed-size")
	c.Packing = core.Packing(a.text("packing", string(c.Packing)))
	if u := a.text("user", ""); u != "" {
		c.UserLimits = append(c.UserLimits, core.UserLimit{User: u, MaxCards: a.number("cards", 0), MaxGangs: a.number("gangs", 0)})
	}
	if l := a.text("blast", ""); l != "" {
		c.Blast = append(c.Blast, core.BlastLimit{Level: l, Gangs: a.number("gangs", 0), Share: a.number("share", 0)})
	}
	return nil
}

// queue NAME [key=value...] adds a queue, or changes it.
func (s *script) queue(a args) error {
	name := core.QueueName(a.first())
	at := slices.IndexFunc(s.cfg.Queues, func(q core.Queue) bool { return q.Name == name })
	s.cfg.Queues = slices.Clone(s.cfg.Queues)
	if at < 0 {
		at = len(s.cfg.Queues)
		q := core.DefaultQueue(name)
		q.Preempt.MinRuntime = 0
		s.cfg.Queues = append(s.cfg.Queues, q)
	}
	q := &s.cfg.Queues[at]
	q.Parent = core.QueueName(a.text("parent", string(q.Parent)))
	amounts := func(key string, into *core.Amounts) {
		if v := a.text(key, ""); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				panic(fmt.Sprintf("%s: %s=%s is no number", a.Pos, key, v))
			}
			if key == "guaranteed" {
				*into = core.Amounts{Models: map[core.Model]int{short: n}}
				return
			}
			*into = core.Amounts{Any: n}
		}
	}
	amounts("guaranteed", &q.Guaranteed)
	amounts("max", &q.Max)
	amounts("lend", &q.Lend)
	if n := a.number("guaranteed_any", -1); n >= 0 {
		q.Guaranteed.Any = n
	}
	q.Weight, q.Class, q.MaxGangs = a.number("weight", q.Weight), a.number("class", q.Class), a.number("max_gangs", q.MaxGangs)
	q.Order = core.Order(a.text("order", string(q.Order)))
	q.TimeLimit = a.duration("time_limit", q.TimeLimit)
	q.Urgent, q.RefuseFull, q.LimitReport = q.Urgent || a.has("urgent"), q.RefuseFull || a.has("refuse"), q.LimitReport || a.has("report")
	q.OnPreempt = core.QueueName(a.text("on_preempt", string(q.OnPreempt)))
	q.Preempt.MinRuntime, q.Preempt.Grace = a.duration("min_runtime", q.Preempt.MinRuntime), a.duration("grace", q.Preempt.Grace)
	q.Preempt.EvictionsPerDay, q.Preempt.PerVictimPerDay = a.number("evictions_per_day", q.Preempt.EvictionsPerDay), a.number("per_victim_per_day", q.Preempt.PerVictimPerDay)
	q.TopPerDay = a.number("top_evictions_per_day", q.TopPerDay)
	if a.has("no-aging") {
		q.Aging = nil
	}
	if r := a.text("ratio", ""); r != "" {
		f, err := strconv.ParseFloat(r, 64)
		if err != nil {
			return err
		}
		q.Preempt.Ratio = f
	}
	q.GiveUp = core.GiveUp{After: a.duration("give_up", q.GiveUp.After), Action: a.text("action", q.GiveUp.Action)}
	if h := a.number("budget", -1); h >= 0 {
		q.Budget = core.Budget{CardSeconds: int64(h) * 3600, Period: "month"}
	}
	if h := a.number("used", -1); h >= 0 {
		s.world.History.UsedCardSeconds = map[core.QueueName]int64{name: int64(h) * 3600}
	}
	return nil
}

// submit NAME [key=value...] queues a gang.
func (s *script) submit(a args) error {
	if len(s.cfg.Queues) == 0 {
		q := core.DefaultQueue("q")
		q.Preempt.MinRuntime = 0
		s.cfg.Queues = append(s.cfg.Queues, q)
	}
	g := core.Gang{ID: core.GangID(a.first()), Queue: core.QueueName(a.text("queue", string(s.cfg.Queues[0].Name))), User: a.text("user", ""), Priority: a.number("priority", 50)}
	group := core.Group{Name: "rank", Count: a.number("members", 1), Drivers: []string{"torchrun"}, Use: core.Resources{CPU: int64(a.number("cpu", 1000)), MemoryMB: int64(a.number("memory", 1024))},
		Devices: []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: a.text("type", "gpu"), Name: a.text("card", ""), Count: a.number("cards", 8), Shares: a.number("shares", 0)}}}
	switch {
	case a.number("shares", 0) > 0:
		group.Devices[0].Count = 0
	case a.number("cards", 8) == 0:
		group.Devices = nil
	}
	if n := a.number("nics", 0); n > 0 {
		group.Devices = append(group.Devices, core.DeviceAsk{Task: "train", Vendor: "mellanox", Type: "nic", Count: n})
	}
	if p := a.text("prefix", ""); p != "" {
		group.Constraints = append(group.Constraints, core.Constraint{Left: "${meta.prefix}", Operand: "=", Right: p})
	}
	if a.has("distinct") {
		group.Constraints = append(group.Constraints, core.Constraint{Operand: "distinct_hosts"})
	}
	g.Groups = []core.Group{group}
	if n := a.number("second", 0); n > 0 {
		more := group
		more.Name, more.Count = "second", n
		more.Devices = slices.Clone(group.Devices)
		more.Devices[0].Count = a.number("second_cards", 1)
		g.Groups = append(g.Groups, more)
	}
	g.Min, g.TimeLimit, g.Grace = a.number("min", 0), a.duration("limit", 0), a.duration("grace", 0)
	for _, m := range a.list("models") {
		g.Models = append(g.Models, core.Model(m))
	}
	if l := a.text("level", ""); l != "" {
		g.Level, g.Required = l, !a.has("preferred")
	}
	g.PreferWait = a.duration("prefer_wait", 0)
	g.Preemptible, g.Split, g.Service, g.Spread = !a.has("fixed"), a.has("split"), a.has("service"), a.has("spread")
	if a.has("saves") {
		g.SaveTime = time.Minute
	}
	if d := a.duration("deadline", 0); d > 0 {
		g.Deadline = s.world.Now.Add(d)
	}
	if d := a.duration("pause", 0); d > 0 {
		g.NotBefore, g.NotBeforeWhy = s.world.Now.Add(d), "failed before"
	}
	g.Ran, g.Name = a.duration("ran", 0), a.text("name", "")
	g.Faults = append(g.Faults, a.list("fault")...)
	x, err := s.world.Submit(g)
	if err == nil {
		x.Hold = a.has("hold")
	}
	return err
}

// other NAME node=n1 cards=0,1 is a job that is no gang.
func (s *script) other(a args) error {
	k := core.Claim{Node: core.NodeID(a.text("node", "")), Member: -1, Alloc: a.first(), Job: "default/" + a.first(), Use: core.Resources{CPU: int64(a.number("cpu", 0))}}
	for _, c := range a.list("cards") {
		k.Cards = append(k.Cards, core.CardID(string(k.Node)+"-"+c))
	}
	s.world.Others = append(slices.Clone(s.world.Others), k)
	return nil
}

func (s *script) gang(a args) error {
	for _, id := range a.words() {
		if s.world.Gang(core.GangID(id)) == nil {
			continue
		}
		g := s.world.Gang(core.GangID(id))
		switch a.Cmd {
		case "end":
			s.world.End(g, "complete")
		case "withdraw":
			s.world.End(g, "withdrawn")
		case "left":
			s.world.Left(g)
		case "release":
			s.world.Release(g)
		case "damage":
			g.Damaged = true
			for _, m := range a.list("members") {
				n, err := strconv.Atoi(m)
				if err != nil {
					return err
				}
				g.Lost = append(g.Lost, n)
				g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), func(k core.Claim) bool { return k.Member == n })
			}
			for _, n := range a.list("avoid") {
				g.AvoidNodes = append(slices.Clone(g.AvoidNodes), core.NodeID(n))
			}
		case "checkpoint":
			g.Checkpoint = s.world.Now
		case "hold":
			g.State = core.GangHeld
		case "change":
			g.Priority = a.number("priority", g.Priority)
			g.TimeLimit = a.duration("limit", g.TimeLimit)
			g.Min = a.number("min", g.Min)
			if d := a.duration("pause", 0); d > 0 {
				g.NotBefore, g.NotBeforeWhy = s.world.Now.Add(d), "failed before"
			}
		}
	}
	return nil
}

func (s *script) node(a args) error {
	w := a.words()
	if a.Cmd == "card" {
		node, place, _ := strings.Cut(w[0], "-")
		k, err := strconv.Atoi(place)
		if err != nil {
			return err
		}
		return s.world.EditNode(core.NodeID(node), func(n *core.Node) {
			c := &n.Devices[0].Cards[k]
			c.State = map[string]core.CardState{"good": core.CardHealthy, "suspect": core.CardSuspect, "draining": core.CardDraining, "quarantined": core.CardQuarantined}[w[1]]
		})
	}
	return s.world.EditNode(core.NodeID(w[0]), func(n *core.Node) {
		switch w[1] {
		case "down":
			n.Ready = false
		case "up":
			n.Ready, n.Eligible, n.Draining, n.Excluded = true, true, false, false
		case "drain":
			n.Draining, n.Eligible = true, false
			if d := a.duration("by", 0); d > 0 {
				n.DrainBy = s.world.Now.Add(d)
			}
		case "ineligible":
			n.Eligible = false
		case "suspect":
			n.Suspect = true
		case "excluded":
			n.Excluded = true
		}
	})
}

// cycle decides, carries the plan out and prints it; "dry" only prints.
func (s *script) cycle(t *testing.T, a args) (string, error) {
	snap := s.world.Snapshot()
	s.plan = s.decider.Decide(snap)
	if diff := cmp.Diff(decide.New().Decide(snap), s.plan); diff != "" {
		t.Errorf("%s: a decider that knows earlier snapshots decides otherwise:\n%s", a.Pos, diff)
	}
	out := s.render(s.plan)
	if a.has("dry") {
		return out, nil
	}
	if _, err := s.world.Apply(s.plan); err != nil {
		return "", err
	}
	return out, s.world.Check()
}
