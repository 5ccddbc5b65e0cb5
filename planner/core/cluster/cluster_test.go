package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
)

// state is everything that can be asked of a cluster.
type state struct {
	Free   []cluster.Free
	Cards  [][]int
	Shares [][]int32
	Ports  []bool
	Holds  []string
}

func look(c *cluster.Cluster) state {
	var s state
	for n := range c.Nodes {
		s.Free = append(s.Free, c.At(int32(n)))
		var cards []int
		for d := range c.Nodes[n].Devices {
			dev := &c.Nodes[n].Devices[d]
			for k := range dev.Src.Cards {
				if c.FreeCards(dev)[k/64]>>(k%64)&1 == 1 {
					cards = append(cards, int(dev.First)+k)
				}
			}
			if dev.Parts != nil {
				s.Shares = append(s.Shares, slices.Clone(c.FreeShares(dev)))
			}
		}
		s.Cards = append(s.Cards, cards)
		for _, p := range []int{22, 8080, 20001} {
			s.Ports = append(s.Ports, c.PortTaken(int32(n), p))
		}
	}
	for _, h := range c.Holds() {
		s.Holds = append(s.Holds, fmt.Sprint(h.Claim.Alloc, h.Use, h.CardsOf, h.Odd))
	}
	slices.Sort(s.Holds)
	return s
}

// drawSnapshot draws a few nodes, some given out in shares, with claims on them
// that may contradict each other.
func drawSnapshot(t *rapid.T, cfg *core.Config, version uint64) *core.Snapshot {
	s := &core.Snapshot{Config: cfg}
	for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		id := fmt.Sprintf("n%d", i)
		n := core.Node{ID: core.NodeID(id), Name: id, Version: version, Ready: true, Eligible: rapid.IntRange(0, 5).Draw(t, "eligible") > 0, Domains: []string{rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "leaf")},
			Capacity: core.Resources{CPU: 100, Cores: 8, MemoryMB: 100, DiskMB: 100}, ReservedPorts: []int{22}}
		g := core.DeviceGroup{Type: "gpu", Name: "H100"}
		for k := range 4 {
			card := core.Card{ID: core.CardID(fmt.Sprintf("%s-%d", id, k)), Healthy: rapid.IntRange(0, 7).Draw(t, "healthy") > 0}
			if i == 1 {
				card.Shares = 4
			}
			g.Cards = append(g.Cards, card)
		}
		n.Devices = []core.DeviceGroup{g, {Type: "nic", Name: "cx7", Cards: []core.Card{{ID: core.CardID(id + "-nic"), Healthy: true}}}}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "claims") {
		k := core.Claim{Node: core.NodeID(rapid.SampledFrom([]string{"n0", "n0", "n1", "n2", "gone"}).Draw(t, "node")), Gang: core.GangID(rapid.SampledFrom([]string{"", "g1", "g2"}).Draw(t, "gang")),
			Alloc: fmt.Sprintf("alloc%d", i), Member: i, Use: core.Resources{CPU: 10, MemoryMB: 5}}
		for _, card := range rapid.SliceOfNDistinct(rapid.IntRange(0, 4), 0, 3, rapid.ID[int]).Draw(t, "cards") {
			k.Cards = append(k.Cards, core.CardID(fmt.Sprintf("%s-%d", k.Node, card))) // 4 is none
			if k.Node == "n1" {
				k.Shares = append(k.Shares, rapid.IntRange(0, 2).Draw(t, "shares"))
			}
		}
		if rapid.Bool().Draw(t, "ports") {
			k.Ports = []int{rapid.SampledFrom([]int{8080, 20001}).Draw(t, "port")}
		}
		k.Stopping = rapid.Bool().Draw(t, "stopping")
		k.Asked = !k.Stopping && rapid.Bool().Draw(t, "asked")
		s.Claims = append(s.Claims, k)
	}
	return s
}

// A cluster that is brought from one snapshot to the next is the one that the
// next alone makes, and tells the same contradictions, whatever the order.
func TestUpdateIsIncremental(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := core.Defaults()
		cfg.Levels = []core.Level{{Name: "leaf"}}
		c := &cluster.Cluster{}
		for i := range rapid.IntRange(1, 5).Draw(t, "snapshots") {
			s := drawSnapshot(t, &cfg, uint64(i+1))
			odd := c.Update(s)
			fresh := &cluster.Cluster{}
			slices.Reverse(s.Claims)
			slices.Reverse(s.Nodes)
			again := fresh.Update(s)
			if diff := cmp.Diff(again, odd); diff != "" {
				t.Fatalf("other contradictions are told:\n%s", diff)
			}
			if diff := cmp.Diff(look(fresh), look(c)); diff != "" {
				t.Fatalf("the state differs:\n%s", diff)
			}
			if again := c.Update(s); cmp.Diff(again, odd) != "" {
				t.Fatalf("told once, and not again: %v, then %v", odd, again)
			}
		}
	})
}

// A what-if leaves no trace, however deep; taking and giving the same is nothing.
func TestWhatIf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := core.Defaults()
		c := &cluster.Cluster{}
		c.Update(drawSnapshot(t, &cfg, 1))
		var nest func(depth int)
		nest = func(depth int) {
			before := look(c)
			m := c.Mark()
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				n := int32(rapid.IntRange(0, len(c.Nodes)-1).Draw(t, "node"))
				u := cluster.Use{Node: n, Res: core.Resources{CPU: 1, MemoryMB: 2, DiskMB: 3, Cores: 1}, Dynamic: 1, Ports: []int{8080}}
				place := int32(rapid.IntRange(0, 3).Draw(t, "card"))
				if d, _ := c.Nodes[n].Device(place); d.Parts != nil && rapid.Bool().Draw(t, "share") {
					u.Parts = []cluster.Part{{Card: place, Shares: 1}}
				} else {
					u.Cards = []int32{place}
				}
				if c.Free([]cluster.Use{u}) && rapid.Bool().Draw(t, "take") {
					c.Take(&u)
				} else if rapid.Bool().Draw(t, "give") {
					c.Give(&u)
				}
				if depth < 3 && rapid.Bool().Draw(t, "deeper") {
					nest(depth + 1)
				}
			}
			c.Rollback(m)
			if diff := cmp.Diff(before, look(c)); diff != "" {
				t.Fatalf("a trace is left:\n%s", diff)
			}
		}
		nest(0)
		u := cluster.Use{Node: 0, Res: core.Resources{CPU: 5}, Cards: []int32{0, 1}, Ports: []int{9999}, Dynamic: 2}
		if before := look(c); c.Free([]cluster.Use{u}) {
			c.Take(&u)
			c.Give(&u)
			usable := c.Nodes[0].Devices[0].Usable[0]&3 == 3
			if diff := cmp.Diff(before, look(c)); diff != "" && usable {
				t.Fatalf("taken and given back is not nothing:\n%s", diff)
			}
		}
	})
}

// Of a card that is taken over, neither of the two holders frees it; of two that
// merely claim it, neither either, and that is told.
func TestCardHeldTwice(t *testing.T) {
	t.Parallel()
	cfg := core.Defaults()
	node := core.Node{ID: "n", Name: "n", Ready: true, Eligible: true, Capacity: core.Resources{CPU: 100}, Devices: []core.DeviceGroup{{Type: "gpu", Name: "m", Cards: []core.Card{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}}}}
	old := core.Claim{Node: "n", Gang: "old", Alloc: "1", Cards: []core.CardID{"a", "b"}, Use: core.Resources{CPU: 10}, Stopping: true}
	next := core.Claim{Node: "n", Gang: "next", Alloc: "2", Cards: []core.CardID{"a"}, Use: core.Resources{CPU: 30}, Asked: true}
	c := &cluster.Cluster{}
	must.SliceEmpty(t, c.Update(&core.Snapshot{Config: &cfg, Nodes: []core.Node{node}, Claims: []core.Claim{old, next}}))
	must.Eq(t, []int32{1}, c.Holds()[0].Use.Cards)
	must.SliceEmpty(t, c.Holds()[1].Use.Cards)
	must.Eq(t, 70, c.At(0).CPU) // the larger of the two: one comes after the other
	next.Asked = false
	odd := c.Update(&core.Snapshot{Config: &cfg, Nodes: []core.Node{node}, Claims: []core.Claim{old, next}})
	must.SliceLen(t, 1, odd)
	must.StrContains(t, odd[0].Text, "is held by allocations 1 and 2")
	must.Eq(t, 0, cluster.Count(c.FreeCards(&c.Nodes[0].Devices[0])))
}

// Nodes stand in the order of the topology, in blocks that lie in one domain.
func TestBlocksAndDomains(t *testing.T) {
	t.Parallel()
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "spine"}, {Name: "leaf"}}
	s := &core.Snapshot{Config: &cfg}
	for i := range 150 {
		s.Nodes = append(s.Nodes, core.Node{ID: core.NodeID(fmt.Sprintf("n%03d", i)), Domains: []string{fmt.Sprintf("s%d", i%2), []string{"", "l1"}[i/2%2]}})
	}
	c := &cluster.Cluster{}
	c.Update(s)
	last := ""
	for n := range c.Nodes {
		name := c.Nodes[n].Src.Domains[0] + "/" + c.Nodes[n].Src.Domains[1] + "/" + string(c.Nodes[n].Src.ID)
		must.True(t, last < name)
		last = name
		b := &c.Blocks[c.Nodes[n].Block]
		must.True(t, int32(n) >= b.First && int32(n) < b.First+b.Count && b.Count <= cluster.BlockSize)
		for l := range c.Levels {
			must.Eq(t, c.Nodes[n].Src.Domains[l], c.Levels[l].Domains[b.Domain[l]].Name)
		}
	}
	must.SliceLen(t, 2, c.Levels[0].Domains)
	must.SliceLen(t, 4, c.Levels[1].Domains)
	must.True(t, c.Levels[1].Domains[0].Unknown)
	must.False(t, c.Levels[1].Domains[1].Unknown)
}
