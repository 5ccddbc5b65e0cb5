package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// bench is a cluster of equal nodes that a test changes first.
type bench struct {
	t    *testing.T
	snap core.Snapshot
	c    *cluster.Cluster
	p    *placement.Placer
}

func newBench(t *testing.T, nodes, cards int, edit func(i int, n *core.Node)) *bench {
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "leaf"}}
	b := &bench{t: t, snap: core.Snapshot{Config: &cfg}}
	for i := range nodes {
		id := fmt.Sprintf("n%d", i+1)
		g := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: model}
		for k := range cards {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-%d", id, k)), Healthy: true, NUMA: -1})
		}
		n := core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true, Domains: []string{fmt.Sprintf("l%d", i/2+1)}, Meta: map[string]string{},
			Capacity: core.Resources{CPU: 16, Cores: 4, MemoryMB: 64, DiskMB: 64}, Devices: []core.DeviceGroup{g}}
		if edit != nil {
			edit(i, &n)
		}
		b.snap.Nodes = append(b.snap.Nodes, n)
	}
	return b
}

func (b *bench) start() *bench {
	b.c = &cluster.Cluster{}
	must.SliceEmpty(b.t, b.c.Update(&b.snap))
	b.p = placement.New(b.c)
	b.p.Configure(b.snap.Config.Packing, []core.Shape{{Members: 1, Cards: 8, Weight: 1}, {Members: 1, Cards: 1, Weight: 1}})
	return b
}

// gang asks for members with cards each; edit changes its group.
func gang(members, cards int, edit func(*core.Group)) *core.Gang {
	g := core.Group{Name: "rank", Count: members, Use: core.Resources{CPU: 1, MemoryMB: 1}}
	if cards > 0 {
		g.Devices = []core.DeviceAsk{{Type: "gpu", Count: cards}}
	}
	if edit != nil {
		edit(&g)
	}
	return &core.Gang{ID: "g", Groups: []core.Group{g}}
}

// on places a gang and tells its nodes with the number of members on each, or
// "nowhere". It takes the places.
func (b *bench) on(g *core.Gang) string {
	r := b.p.Request(g)
	if len(r.Options) == 0 {
		return "no model"
	}
	res, ok := b.p.Place(r, r.Options[0], placement.Options{})
	if !ok {
		return "nowhere"
	}
	var out []string
	count := map[core.NodeID]int{}
	for i := range res.Members {
		id := b.c.Nodes[res.Members[i].Use.Node].Src.ID
		if count[id]++; count[id] == 1 {
			out = append(out, string(id))
		}
	}
	for i, id := range out {
		if n := count[core.NodeID(id)]; n > 1 {
			out[i] += fmt.Sprintf("x%d", n)
		}
	}
	return strings.Join(out, " ")
}

func constraint(left, operand, right string) func(*core.Group) {
	return func(g *core.Group) {
		g.Constraints = append(g.Constraints, core.Constraint{Left: left, Operand: operand, Right: right})
	}
}

// What bounds the members of one gang beside each other.
func TestMembersBesideEachOther(t *testing.T) {
	t.Parallel()
	racks := func(i int, n *core.Node) {
		n.Meta["rack"] = []string{"r1", "r1", "r2", "r3"}[i]
		if i == 3 {
			delete(n.Meta, "rack")
		}
	}
	for _, test := range []struct {
		name string
		gang *core.Gang
		want string
	}{
		{"together on one node", gang(4, 2, nil), "n1x4"},
		{"distinct_hosts", gang(3, 1, constraint("", "distinct_hosts", "")), "n1 n2 n3"},
		{"distinct_hosts, too many", gang(5, 1, constraint("", "distinct_hosts", "")), "nowhere"},
		{"distinct_property: one a rack, none where there is no rack", gang(2, 1, constraint("${meta.rack}", "distinct_property", "")), "n1 n3"},
		{"distinct_property, too many", gang(3, 1, constraint("${meta.rack}", "distinct_property", "")), "nowhere"},
		{"distinct_property: two a rack", gang(4, 1, constraint("${meta.rack}", "distinct_property", "2")), "n1x2 n3x2"},
		{"distinct_property, on one node", func() *core.Gang {
			g := gang(2, 1, constraint("${meta.rack}", "distinct_property", ""))
			g.Level, g.Required = core.LevelNode, true
			return g
		}(), "nowhere"},
		{"distinct_property that Nomad refuses", gang(1, 1, constraint("${meta.rack}", "distinct_property", "few")), "nowhere"},
		{"a static port is a node's only once", gang(2, 1, func(g *core.Group) { g.StaticPorts = []int{8080} }), "n1 n2"},
		{"one node by id", gang(1, 1, constraint("${node.unique.id}", "=", "n3")), "n3"},
		{"one of two nodes by name", gang(2, 5, constraint("${node.unique.name}", "regexp", "^n[24]$")), "n2 n4"},
	} {
		must.Eq(t, test.want, newBench(t, 4, 8, racks).start().on(test.gang), must.Sprint(test.name))
	}
}

// Groups that different nodes serve are placed together though no node serves
// all of them.
func TestGroupsOfUnlikeNodes(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 2, func(i int, n *core.Node) {
		if i == 2 {
			n.Devices[0].Type, n.Devices[0].Name = "mig", "1g.10gb"
		}
		n.Capacity.CPU = 4
	}).start()
	// Placed first, both actors go to one node and leave no two with the
	// processors of an evaluator.
	g := gang(2, 1, func(g *core.Group) { g.Use.CPU = 1 })
	learner := g.Groups[0]
	learner.Name, learner.Count, learner.Use.CPU, learner.Devices = "learner", 1, 4, []core.DeviceAsk{{Type: "mig", Count: 1}}
	evaluator := g.Groups[0]
	evaluator.Name, evaluator.Count, evaluator.Use.CPU, evaluator.Devices = "evaluator", 2, 3, nil
	g.Groups = append(g.Groups, learner, evaluator)
	must.Eq(t, "n1x2 n2x2 n3", b.on(g))
}

// distinct_property of a job counts over all its groups.
func TestDistinctPropertyOfTheJob(t *testing.T) {
	t.Parallel()
	racks := func(i int, n *core.Node) { n.Meta["rack"] = fmt.Sprintf("r%d", i/2) }
	g := gang(1, 1, constraint("${meta.rack}", "distinct_property", ""))
	second := g.Groups[0]
	second.Name = "second"
	g.Groups = append(g.Groups, second)
	must.Eq(t, "n1 n3", newBench(t, 4, 8, racks).start().on(g))
	third := g.Groups[0]
	third.Name = "third"
	g.Groups = append(g.Groups, third)
	must.Eq(t, "nowhere", newBench(t, 4, 8, racks).start().on(g))
	// Of one group alone it counts within that group.
	g.Groups = g.Groups[:2]
	g.Groups[1].Constraints = nil
	must.Eq(t, "n1x2", newBench(t, 4, 8, racks).start().on(g))
}

// Every resource bounds what a node takes, and says so.
func TestResources(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		edit func(*core.Group)
		want string
		room placement.Room
	}{
		{"CPU", func(g *core.Group) { g.Use.CPU = 10 }, "n1 n2", placement.Room{Members: 2}},
		{"CPU that no node has", func(g *core.Group) { g.Use.CPU = 17 }, "nowhere", placement.Room{CPU: 2}},
		{"cores", func(g *core.Group) { g.Use.Cores = 3 }, "n1 n2", placement.Room{Members: 2}},
		{"cores that no node has", func(g *core.Group) { g.Use.Cores = 5 }, "nowhere", placement.Room{CPU: 2}},
		{"memory", func(g *core.Group) { g.Use.MemoryMB = 65 }, "nowhere", placement.Room{Memory: 2}},
		{"disk", func(g *core.Group) { g.Use.DiskMB = 65 }, "nowhere", placement.Room{Disk: 2}},
		{"dynamic ports", func(g *core.Group) { g.Ports = 13000 }, "nowhere", placement.Room{Ports: 2}},
		{"a static port in use", func(g *core.Group) { g.StaticPorts = []int{22} }, "nowhere", placement.Room{Ports: 2}},
		{"another device", func(g *core.Group) { g.Devices = append(g.Devices, core.DeviceAsk{Type: "nic", Count: 2}) }, "nowhere", placement.Room{Devices: 2}},
	} {
		b := newBench(t, 2, 8, func(i int, n *core.Node) {
			n.ReservedPorts = []int{22}
			n.Devices = append(n.Devices, core.DeviceGroup{Vendor: "mellanox", Type: "nic", Name: "cx7", Cards: []core.Card{{ID: core.CardID(n.ID + "-nic"), Healthy: true}}})
		}).start()
		g := gang(2, 1, test.edit)
		r := b.p.Request(g)
		must.Eq(t, test.room, b.p.RoomBy(r.Options[0], 0), must.Sprint(test.name))
		must.Eq(t, test.want, b.on(g), must.Sprint(test.name))
	}
}

// Scores in their order: not suspect, affinities, what the place costs the mix.
func TestScores(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 8, func(i int, n *core.Node) {
		n.Suspect = i == 0
		n.Meta["fast"] = fmt.Sprint(i == 2)
	})
	b.snap.Claims = []core.Claim{{Node: "n2", Member: -1, Alloc: "x", Job: "x", Cards: []core.CardID{"n2-0", "n2-1", "n2-2", "n2-3", "n2-4", "n2-5"}}}
	b.start()
	must.Eq(t, "n2", b.on(gang(1, 2, nil))) // fills up, keeps n3 whole, n1 is suspect
	b.start()
	fast := func(weight int) func(*core.Group) {
		return func(g *core.Group) {
			g.Affinities = []core.Affinity{{Constraint: core.Constraint{Left: "${meta.fast}", Operand: "=", Right: "true"}, Weight: weight}}
		}
	}
	must.Eq(t, "n3", b.on(gang(1, 2, fast(50))))
	b.start()
	must.Eq(t, "n2", b.on(gang(1, 2, fast(-50))))
	must.Eq(t, "n3", b.on(gang(1, 8, nil)))
	must.Eq(t, "n1", b.on(gang(1, 8, nil))) // suspect, where there is no other
}

// packing: binpack fills nodes, spread empties none, auto packs while gangs need
// whole nodes.
func TestPacking(t *testing.T) {
	t.Parallel()
	place := func(packing core.Packing, mix ...core.Shape) string {
		b := newBench(t, 4, 8, nil)
		b.snap.Config.Packing = packing
		b.start()
		b.p.Configure(packing, mix)
		out := []string{}
		for range 3 {
			out = append(out, b.on(gang(1, 1, nil)))
		}
		return strings.Join(out, " ")
	}
	whole, single := core.Shape{Members: 2, Cards: 8, Weight: 10}, core.Shape{Members: 1, Cards: 1, Weight: 10}
	must.Eq(t, "n1 n1 n1", place(core.PackBin, single))
	must.Eq(t, "n1 n2 n3", place(core.PackSpread, whole))
	must.Eq(t, "n1 n1 n1", place(core.PackAuto, whole, single))
	must.Eq(t, "n1 n2 n3", place(core.PackAuto, single)) // nobody asks for more than a card
}

// A gang that asks to be spread, one with spread blocks and a service go where
// they add the least to what stands or falls together.
func TestSpread(t *testing.T) {
	t.Parallel()
	g := gang(3, 1, nil)
	g.Spread = true
	must.Eq(t, "n1x2 n3", newBench(t, 4, 8, func(i int, n *core.Node) { n.Eligible = i != 1 && i != 3 }).start().on(g))
	must.Eq(t, "n1 n2 n3", newBench(t, 4, 8, nil).start().on(g))
	service := gang(4, 1, nil)
	service.Service = true
	must.Eq(t, "n1 n2 n3 n4", newBench(t, 4, 8, nil).start().on(service))
	zones := func(i int, n *core.Node) { n.Meta["zone"] = []string{"a", "a", "b", "c"}[i] }
	blocks := gang(4, 1, func(g *core.Group) {
		g.Spreads = []core.Spread{{Attribute: "${meta.zone}", Weight: 100, Targets: []core.SpreadTarget{{Value: "b", Percent: 75}}}}
	})
	must.Eq(t, "n1 n3x2 n4", newBench(t, 4, 8, zones).start().on(blocks))
}

// Cards that an ask names, or that a gang avoids.
func TestSingleCards(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 4, nil).start()
	named := gang(1, 2, func(g *core.Group) {
		g.Devices[0].Constraints = []core.Constraint{{Left: "${device.ids}", Operand: "set_contains_any", Right: "n2-1,n2-3,n1-0"}}
	})
	r := b.p.Request(named)
	res, ok := b.p.Place(r, r.Options[0], placement.Options{})
	must.True(t, ok)
	must.Eq(t, []int32{1, 3}, res.Members[0].Use.Cards)
	must.Eq(t, "nowhere", b.on(named))
	avoids := gang(1, 4, nil)
	avoids.AvoidNodes, avoids.AvoidCards = []core.NodeID{"n2"}, []core.CardID{"n1-2"}
	must.Eq(t, "nowhere", b.on(avoids))
	avoids.Groups[0].Devices[0].Count = 3
	must.Eq(t, "n1", b.on(avoids))
}

// Members are added near those that are there, as far as their level allows.
func TestNear(t *testing.T) {
	t.Parallel()
	b := newBench(t, 6, 8, nil).start()
	near := func(level string, required bool, members int, from ...int32) []int32 {
		g := gang(members, 8, nil)
		g.Level, g.Required = level, required
		r := b.p.Request(g)
		m := b.c.Mark()
		defer b.c.Rollback(m)
		for _, n := range from {
			u := cluster.Use{Node: n, Cards: []int32{0, 1, 2, 3, 4, 5, 6, 7}}
			b.c.Take(&u)
		}
		res, ok := b.p.Place(r, r.Options[0], placement.Options{Near: from})
		if !ok {
			return nil
		}
		var out []int32
		for i := range res.Members {
			out = append(out, res.Members[i].Use.Node)
		}
		slices.Sort(out)
		return out
	}
	must.Eq(t, []int32{3}, near("leaf", false, 1, 2))
	must.Eq(t, []int32{3}, near("leaf", true, 1, 2))
	must.Nil(t, near("leaf", true, 2, 2))
	must.SliceLen(t, 2, near("leaf", false, 2, 2))
}

// Members are numbered along the topology, in whatever order their nodes were
// found: a gang that is placed on the same nodes again has the same numbers, and
// where one node is another, the others keep their order.
func TestNumbersFollowTheTopology(t *testing.T) {
	t.Parallel()
	numbers := func(edit func(i int, n *core.Node)) []core.NodeID {
		b := newBench(t, 6, 8, edit).start()
		r := b.p.Request(gang(4, 8, nil))
		res, ok := b.p.Place(r, r.Options[0], placement.Options{})
		must.True(t, ok)
		var out []core.NodeID
		for i := range res.Members {
			out = append(out, b.c.Nodes[res.Members[i].Use.Node].Src.ID)
		}
		return out
	}
	without := func(gone ...int) func(int, *core.Node) {
		return func(i int, n *core.Node) { n.Eligible = !slices.Contains(gone, i+1) }
	}
	first := numbers(without(5, 6))
	must.Eq(t, []core.NodeID{"n1", "n2", "n3", "n4"}, first)
	for i := range 4 {
		must.Eq(t, first, numbers(func(k int, n *core.Node) {
			without(5, 6)(k, n)
			n.Suspect = k == i // it is taken last
		}), must.Sprintf("n%d is suspect", i+1))
	}
	must.Eq(t, []core.NodeID{"n1", "n3", "n4", "n5"}, numbers(without(2, 6)))
}
