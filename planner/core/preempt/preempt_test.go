package preempt_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/preempt"
)

// problem draws a small full cluster whose gangs lie on one node or two, some of
// them elastic, and a gang that wants room.
func problem(t *rapid.T, least, most, cards int) *preempt.Problem {
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "leaf"}}
	s := &core.Snapshot{Config: &cfg}
	nodes := rapid.IntRange(2, 4).Draw(t, "nodes")
	if least > 8 {
		nodes = 4
	}
	free := make([]int, nodes)
	for i := range nodes {
		g := core.DeviceGroup{Type: "gpu", Name: "m"}
		for k := range 4 {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%d-%d", i, k)), Healthy: true})
		}
		s.Nodes = append(s.Nodes, core.Node{ID: core.NodeID(fmt.Sprintf("n%d", i)), Name: fmt.Sprintf("n%d", i), Version: 1, Ready: true, Eligible: true, Domains: []string{fmt.Sprintf("l%d", i/2)},
			Capacity: core.Resources{CPU: 100, MemoryMB: 100}, Devices: []core.DeviceGroup{g}})
		free[i] = 4
	}
	take := func(node, cards int) []core.CardID {
		var out []core.CardID
		for ; cards > 0; cards-- {
			out = append(out, core.CardID(fmt.Sprintf("%d-%d", node, 4-free[node])))
			free[node]--
		}
		return out
	}
	var gangs [][]int // claims of each gang
	for range rapid.IntRange(least, most).Draw(t, "gangs") {
		var claims []int
		for range rapid.IntRange(1, 2).Draw(t, "members") {
			node := rapid.IntRange(0, nodes-1).Draw(t, "node")
			cards := rapid.IntRange(1, cards).Draw(t, "cards")
			if cards > free[node] {
				continue
			}
			claims = append(claims, len(s.Claims))
			s.Claims = append(s.Claims, core.Claim{Node: core.NodeID(fmt.Sprintf("n%d", node)), Gang: core.GangID(fmt.Sprintf("g%d", len(gangs))), Member: len(claims) - 1,
				Alloc: fmt.Sprintf("%d.%d", len(gangs), len(claims)), Use: core.Resources{CPU: 1}, Cards: take(node, cards)})
		}
		gangs = append(gangs, claims)
	}
	c := &cluster.Cluster{}
	c.Update(s)
	placer := placement.New(c)
	want := &core.Gang{ID: "p", Groups: []core.Group{{Name: "rank", Count: rapid.IntRange(1, 3).Draw(t, "wanted members"), Use: core.Resources{CPU: 1},
		Devices: []core.DeviceAsk{{Type: "gpu", Count: rapid.IntRange(1, 4).Draw(t, "wanted cards")}}}}}
	if rapid.IntRange(0, 3).Draw(t, "requires a leaf") == 0 {
		want.Level, want.Required = "leaf", true
	}
	r := placer.Request(want)
	p := &preempt.Problem{Cluster: c, Placer: placer, Request: r, Option: r.Options[0], Spare: map[int]int{}}
	for g, claims := range gangs {
		if len(claims) == 0 || rapid.IntRange(0, 5).Draw(t, "stays") == 0 {
			continue
		}
		cost := int64(rapid.IntRange(0, 20).Draw(t, "cost"))
		whole := preempt.Unit{Gang: g, Member: -1, Cost: cost}
		for _, k := range claims {
			h := &c.Holds()[k]
			whole.Uses, whole.Members, whole.Cards = append(whole.Uses, h.Use), append(whole.Members, h.Claim.Member), whole.Cards+len(h.CardsOf)
		}
		if len(claims) > 1 && rapid.Bool().Draw(t, "elastic") {
			p.Spare[g] = 1
			for i, k := range claims {
				h := &c.Holds()[k]
				p.Units = append(p.Units, preempt.Unit{Gang: g, Member: i, Uses: []cluster.Use{h.Use}, Cards: len(h.CardsOf), Cost: cost/4 + 1})
			}
		}
		p.Units = append(p.Units, whole)
	}
	if rapid.IntRange(0, 2).Draw(t, "bounded") == 0 {
		p.MaxCards = rapid.IntRange(1, 12).Draw(t, "at most")
	}
	return p
}

// fits tells whether the gang fits once some units have left.
func fits(p *preempt.Problem, chosen []int) bool {
	m := p.Cluster.Mark()
	defer p.Cluster.Rollback(m)
	for _, i := range chosen {
		for u := range p.Units[i].Uses {
			p.Cluster.Give(&p.Units[i].Uses[u])
		}
	}
	_, ok := p.Placer.Place(p.Request, p.Option, placement.Options{})
	return ok
}

// best tries every set of units that may be taken together: the least cost, and
// whether no gang as a whole is among them; -1 where nothing makes room.
func best(p *preempt.Problem) (shrink, any int64) {
	shrink, any = -1, -1
next:
	for mask := range 1 << len(p.Units) {
		var chosen []int
		cards, cost, whole := 0, int64(0), map[int]bool{}
		members := map[int]int{}
		for i := range p.Units {
			if mask>>i&1 == 1 {
				u := &p.Units[i]
				chosen, cards, cost = append(chosen, i), cards+u.Cards, cost+u.Cost
				if u.Member < 0 {
					whole[u.Gang] = true
				} else {
					members[u.Gang]++
				}
			}
		}
		for g, n := range members {
			if whole[g] || n > p.Spare[g] {
				continue next
			}
		}
		if p.MaxCards > 0 && cards > p.MaxCards || !fits(p, chosen) {
			continue
		}
		if any < 0 || cost < any {
			any = cost
		}
		if len(whole) == 0 && (shrink < 0 || cost < shrink) {
			shrink = cost
		}
	}
	return shrink, any
}

// With few units the choice is the best there is: members of elastic gangs alone
// where those are enough, and the least work lost.
func TestExactIsBest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := problem(t, 1, 5, 4)
		if len(p.Units) > 8 {
			t.Skip("more units than are tried one by one")
		}
		shrink, any := best(p)
		s := preempt.Solve(p)
		if (s != nil) != (any >= 0) {
			t.Fatalf("solved: %v, possible at a cost of %d", s != nil, any)
		}
		if s == nil {
			return
		}
		valid(t, p, s)
		want := any
		if shrink >= 0 {
			want = shrink
		}
		if s.Cost != want {
			t.Fatalf("a choice that costs %d, the best costs %d", s.Cost, want)
		}
	})
}

// With many the choice is a possible one, without anybody who is not needed.
func TestGreedyIsPossible(t *testing.T) {
	t.Parallel()
	found, missed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := problem(t, 10, 12, 2)
		p.MaxCards = 0
		if len(p.Units) <= 8 || len(p.Units) > 14 {
			t.Skip("tried one by one, or too many for the twin")
		}
		_, any := best(p)
		s := preempt.Solve(p)
		switch {
		case s != nil && any < 0:
			t.Fatalf("solved, and nothing makes room")
		case s == nil && any >= 0:
			missed++
		case s != nil:
			found++
			valid(t, p, s)
			for _, i := range s.Units {
				if fits(p, slices.DeleteFunc(slices.Clone(s.Units), func(j int) bool { return j == i })) && free(p, s, i) {
					t.Fatalf("unit %d is not needed", i)
				}
			}
		}
	})
	if missed > found/20 {
		t.Errorf("the search misses %d places of %d", missed, found+missed)
	}
}

// free tells whether the chosen places are free although a unit stays.
func free(p *preempt.Problem, s *preempt.Solution, stays int) bool {
	m := p.Cluster.Mark()
	defer p.Cluster.Rollback(m)
	for _, i := range s.Units {
		if i != stays {
			for u := range p.Units[i].Uses {
				p.Cluster.Give(&p.Units[i].Uses[u])
			}
		}
	}
	var uses []cluster.Use
	for i := range s.Members {
		uses = append(uses, s.Members[i].Use)
	}
	return p.Cluster.Free(uses)
}

// valid: the members' places are free once the units have left, no member and its
// gang are taken both, no elastic gang gives up more than it can spare.
func valid(t *rapid.T, p *preempt.Problem, s *preempt.Solution) {
	if !free(p, s, -1) {
		t.Fatalf("the gang's places are not free when units %v have left", s.Units)
	}
	if len(s.Members) != p.Request.Members {
		t.Fatalf("%d of %d members have places", len(s.Members), p.Request.Members)
	}
	cards, members, whole := 0, map[int]int{}, map[int]bool{}
	for _, i := range s.Units {
		u := &p.Units[i]
		cards += u.Cards
		if u.Member < 0 {
			whole[u.Gang] = true
		} else {
			members[u.Gang]++
		}
	}
	for g, n := range members {
		if whole[g] || n > p.Spare[g] {
			t.Fatalf("gang %d gives up %d of %d members (whole: %v)", g, n, p.Spare[g], whole[g])
		}
	}
	if p.MaxCards > 0 && cards > p.MaxCards {
		t.Fatalf("%d cards are taken, at most %d may be", cards, p.MaxCards)
	}
}

// The cluster is as it was after every answer.
func TestNoTrace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := problem(t, 1, 8, 4)
		before, at := p.Cluster.Words(nil), p.Cluster.At(0)
		preempt.Solve(p)
		must.Eq(t, before, p.Cluster.Words(nil))
		must.Eq(t, at, p.Cluster.At(0))
	})
}
