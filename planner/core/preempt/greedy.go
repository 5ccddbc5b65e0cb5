package preempt

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/nomad-muster/muster/planner/core/placement"
)

// state is a greedy search under way.
type state struct {
	p       *Problem
	out     []bool
	taken   []bool
	members map[int]int   // members taken of elastic gangs
	whole   map[int]bool  // gangs taken as a whole
	on      [][]int32     // units of each node
	cost    []int64       // of the next member on each node; -1: impossible
	need    [][]int32     // units to be taken for it
	used    map[int32]int // members placed on a node
}

// greedy places members one by one where the next costs least. Where the
// choice as a whole is not admissible it returns the unit to do without.
func (p *Problem) greedy(out []bool) (*Solution, int) {
	s := &state{p: p, out: out, on: make([][]int32, len(p.Cluster.Nodes))}
	for i := range p.Units {
		if out[i] {
			continue
		}
		for u := range p.Units[i].Uses {
			if n := p.Units[i].Uses[u].Node; n >= 0 && (len(s.on[n]) == 0 || s.on[n][len(s.on[n])-1] != int32(i)) {
				s.on[n] = append(s.on[n], int32(i))
			}
		}
	}
	if p.Placer.Bound(p.Option) {
		return s.finish(s.placed())
	}
	// The domains to try, the one that promises to cost least first.
	type scope struct {
		first, last int32
		cost        int64
	}
	everything := scope{0, int32(len(p.Cluster.Nodes)), 0}
	scopes := []scope{everything}
	level, levels := p.Request.Level, p.Cluster.Levels
	s.reset()
	s.evaluate(0, everything.first, everything.last)
	if level >= 0 {
		var inner []scope
		switch {
		case level == len(levels):
			for n := range p.Cluster.Nodes {
				inner = append(inner, scope{int32(n), int32(n) + 1, 0})
			}
		default:
			for i := range levels[level].Domains {
				d := &levels[level].Domains[i]
				if !d.Unknown {
					last := &p.Cluster.Blocks[d.Last-1]
					inner = append(inner, scope{p.Cluster.Blocks[d.First].First, last.First + last.Count, 0})
				}
			}
		}
		want := p.want(0)
		promise := func(k *scope) bool {
			var costs []int64
			for n := k.first; n < k.last; n++ {
				if s.cost[n] >= 0 {
					costs = append(costs, s.cost[n])
				}
			}
			slices.Sort(costs)
			k.cost = 0
			for _, c := range costs[:min(len(costs), want)] {
				k.cost += c
			}
			return len(costs) > 0
		}
		inner = slices.DeleteFunc(inner, func(k scope) bool { return !promise(&k) })
		for i := range inner {
			promise(&inner[i])
		}
		slices.SortStableFunc(inner, func(a, b scope) int { return cmp.Compare(a.cost, b.cost) })
		if p.Request.Required {
			scopes = inner
		} else {
			promise(&everything)
			inner = slices.DeleteFunc(inner, func(k scope) bool { return k.cost > everything.cost+p.Prefer })
			scopes = append(inner, everything)
		}
	}
	bad := -1
	for _, k := range scopes {
		members := s.fill(k.first, k.last)
		if members == nil {
			continue
		}
		sol, without := s.finish(members)
		if sol != nil {
			return sol, -1
		}
		if bad < 0 {
			bad = without
		}
	}
	return nil, bad
}

func (p *Problem) want(group int) int {
	if group == 0 && p.Members > 0 {
		return p.Members
	}
	return p.Request.Gang.Groups[group].Count
}

func (s *state) reset() {
	n := len(s.p.Cluster.Nodes)
	s.taken = make([]bool, len(s.p.Units))
	s.members, s.whole, s.used = map[int]int{}, map[int]bool{}, map[int32]int{}
	s.cost, s.need = make([]int64, n), make([][]int32, n)
}

// evaluate finds the cost of the next member on each of some nodes.
func (s *state) evaluate(group int, first, last int32) {
	for n := first; n < last; n++ {
		s.cost[n], s.need[n] = s.next(group, n)
	}
}

// next is the least that one more member on a node costs, and the units to be
// taken for it: units are given up one by one, the cheapest for its cards
// first, until the member fits, and those that were not needed are taken back.
func (s *state) next(group int, n int32) (int64, []int32) {
	p := s.p
	if p.Deny != nil && p.Deny[n] || s.used[n] > 0 && p.Placer.Single(p.Option, group) {
		return -1, nil
	}
	if p.Placer.Fits(p.Option, group, n) {
		return 0, nil
	}
	if len(s.on[n]) == 0 || !p.Placer.Possible(p.Option, group, n) {
		return -1, nil
	}
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	type candidate struct {
		unit int32
		here int   // cards on this node
		cost int64 // charged here
	}
	var all []candidate
	members := map[int]int{}
	for _, i := range s.on[n] { // members come before their gangs
		u := &p.Units[i]
		if s.taken[i] || s.whole[u.Gang] {
			continue
		}
		if u.Member >= 0 {
			if s.members[u.Gang]+members[u.Gang] >= p.Spare[u.Gang] {
				continue
			}
			members[u.Gang]++
		}
		if u.Member < 0 && s.members[u.Gang]+members[u.Gang] < p.Spare[u.Gang] {
			continue // single members will do
		}
		k := candidate{unit: i}
		for j := range u.Uses {
			if u.Uses[j].Node == n {
				k.here += len(u.Uses[j].Cards) + len(u.Uses[j].Parts)
			}
		}
		k.cost = u.Cost
		if k.here < u.Cards {
			k.cost = u.Cost * int64(max(1, k.here)) / int64(max(1, u.Cards))
		}
		all = append(all, k)
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost*int64(max(1, b.here)), b.cost*int64(max(1, a.here))), cmp.Compare(b.here, a.here))
	})
	given := 0
	fits := false
	for ; given < len(all) && !fits; given++ {
		s.giveHere(all[given].unit, n)
		fits = p.Placer.Fits(p.Option, group, n)
	}
	if !fits {
		return -1, nil
	}
	all = all[:given]
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.cost, a.cost) })
	var cost int64
	var need []int32
	for _, k := range all {
		inner := p.Cluster.Mark()
		s.takeHere(k.unit, n)
		if p.Placer.Fits(p.Option, group, n) {
			continue // not needed
		}
		p.Cluster.Rollback(inner)
		cost += k.cost
		need = append(need, k.unit)
	}
	return cost, need
}

func (s *state) giveHere(unit, n int32) {
	uses := s.p.Units[unit].Uses
	for j := range uses {
		if uses[j].Node == n {
			s.p.Cluster.Give(&uses[j])
		}
	}
}

func (s *state) takeHere(unit, n int32) {
	uses := s.p.Units[unit].Uses
	for j := range uses {
		if uses[j].Node == n {
			s.p.Cluster.Take(&uses[j])
		}
	}
}

// offer is the next member on a node in the heap of fill.
type offer struct {
	cost int64
	node int32
}

type offers []offer

func (o offers) Len() int { return len(o) }
func (o offers) Less(i, j int) bool {
	return o[i].cost < o[j].cost || o[i].cost == o[j].cost && o[i].node < o[j].node
}
func (o offers) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o *offers) Push(x any)   { *o = append(*o, x.(offer)) }
func (o *offers) Pop() any {
	old := *o
	x := old[len(old)-1]
	*o = old[:len(old)-1]
	return x
}

// fill places all members within a range of nodes; nil where they do not fit.
// The cluster is left as it was.
func (s *state) fill(first, last int32) []placement.Member {
	p := s.p
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	s.reset()
	var out []placement.Member
	for _, group := range p.Placer.Order(p.Option) {
		s.evaluate(group, first, last)
		var h offers
		for n := first; n < last; n++ {
			if s.cost[n] >= 0 {
				h = append(h, offer{s.cost[n], n})
			}
		}
		heap.Init(&h)
		for range p.want(group) {
			placed := false
			for len(h) > 0 && !placed {
				o := heap.Pop(&h).(offer)
				if s.cost[o.node] != o.cost {
					continue // an older offer
				}
				if s.spent(s.need[o.node]) {
					s.evaluate(group, o.node, o.node+1)
					if s.cost[o.node] >= 0 {
						heap.Push(&h, offer{s.cost[o.node], o.node})
					}
					continue
				}
				touched := s.take(s.need[o.node])
				m, ok := p.Placer.Take(p.Option, group, o.node)
				if !ok {
					s.cost[o.node] = -1
					continue
				}
				out = append(out, m)
				s.used[o.node]++
				placed = true
				for _, n := range append(touched, o.node) {
					if n < first || n >= last {
						continue
					}
					s.evaluate(group, n, n+1)
					if s.cost[n] >= 0 {
						heap.Push(&h, offer{s.cost[n], n})
					}
				}
			}
			if !placed {
				return nil
			}
		}
	}
	return out
}

// spent tells whether units hold more members of an elastic gang than it can
// still give up.
func (s *state) spent(units []int32) bool {
	members := map[int]int{}
	for _, i := range units {
		u := &s.p.Units[i]
		if u.Member < 0 || s.taken[i] {
			continue
		}
		if members[u.Gang]++; s.members[u.Gang]+members[u.Gang] > s.p.Spare[u.Gang] {
			return true
		}
	}
	return false
}

// take takes units and returns the nodes that they lay on.
func (s *state) take(units []int32) []int32 {
	var nodes []int32
	for _, i := range units {
		if s.taken[i] {
			continue
		}
		u := &s.p.Units[i]
		s.taken[i] = true
		if u.Member >= 0 {
			s.members[u.Gang]++
		} else {
			s.whole[u.Gang] = true
		}
		s.giveUnit(int(i))
		if len(u.Uses) > 1 {
			for j := range u.Uses {
				nodes = append(nodes, u.Uses[j].Node)
			}
		}
	}
	return nodes
}

// giveUnit gives back what a unit holds, less what its gang gave up member by
// member before.
func (s *state) giveUnit(i int) {
	p := s.p
	u := &p.Units[i]
	if u.Member >= 0 || s.members[u.Gang] == 0 {
		give(p.Cluster, p.Units[i:i+1])
		return
	}
	gone := map[int]bool{}
	for j := range p.Units {
		if p.Units[j].Gang == u.Gang && p.Units[j].Member >= 0 && s.taken[j] {
			gone[p.Units[j].Member] = true
		}
	}
	for j := range u.Uses {
		if u.Uses[j].Node >= 0 && (j >= len(u.Members) || !gone[u.Members[j]]) {
			p.Cluster.Give(&u.Uses[j])
		}
	}
}

// placed takes the place that the gang would have with every unit taken.
func (s *state) placed() []placement.Member {
	p := s.p
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	s.reset()
	for i := range p.Units {
		if !s.out[i] && p.Units[i].Member < 0 {
			s.taken[i] = true
			give(p.Cluster, p.Units[i:i+1])
		}
	}
	res, ok := p.Placer.Place(p.Request, p.Option, placement.Options{Members: p.Members, Deny: p.Deny})
	if !ok {
		return nil
	}
	return res.Members
}

// finish lets off what is not needed for the members' places and asks whether
// the rest is admissible.
func (s *state) finish(members []placement.Member) (*Solution, int) {
	if members == nil {
		return nil, -1
	}
	p := s.p
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	var chosen []int
	for i := range p.Units {
		if s.taken[i] = s.taken[i] && (p.Units[i].Member < 0 || !s.whole[p.Units[i].Gang]); s.taken[i] {
			chosen = append(chosen, i)
			give(p.Cluster, p.Units[i:i+1])
		}
	}
	for i := range members {
		p.Cluster.Take(&members[i].Use)
	}
	byCost := slices.Clone(chosen)
	slices.SortStableFunc(byCost, func(a, b int) int {
		return cmp.Or(cmp.Compare(p.Units[b].Cost, p.Units[a].Cost), cmp.Compare(p.Units[b].Cards, p.Units[a].Cards), cmp.Compare(a, b))
	})
	for _, i := range byCost {
		if p.Cluster.Free(p.Units[i].Uses) {
			for u := range p.Units[i].Uses {
				p.Cluster.Take(&p.Units[i].Uses[u])
			}
			s.taken[i] = false
		}
	}
	chosen = slices.DeleteFunc(chosen, func(i int) bool { return !s.taken[i] })
	if p.Enough != nil {
		chosen = s.enough(chosen)
		if chosen == nil {
			return nil, -1
		}
	}
	sol := &Solution{Units: chosen, Members: members}
	cards := 0
	for _, i := range chosen {
		sol.Cost += p.Units[i].Cost
		cards += p.Units[i].Cards
	}
	if p.MaxCards > 0 && cards > p.MaxCards {
		return nil, -1
	}
	if p.Admissible != nil && len(chosen) > 0 {
		if bad := p.Admissible(chosen); bad >= 0 {
			return nil, chosen[bad]
		}
	}
	return sol, -1
}

// enough adds the units that lose the least work for their cards until the
// gang is within its queue's limits; nil where all of them are not enough.
func (s *state) enough(chosen []int) []int {
	p := s.p
	if p.Enough(chosen) {
		return append([]int{}, chosen...)
	}
	var more []int
	for i := range p.Units {
		if !s.taken[i] && !s.out[i] && !s.whole[p.Units[i].Gang] {
			more = append(more, i)
		}
	}
	slices.SortStableFunc(more, func(a, b int) int {
		x, y := &p.Units[a], &p.Units[b]
		return cmp.Or(cmp.Compare(x.Cost*int64(max(1, y.Cards)), y.Cost*int64(max(1, x.Cards))), cmp.Compare(x.Cards, y.Cards))
	})
	for _, i := range more {
		switch u := &p.Units[i]; {
		case s.whole[u.Gang], u.Member < 0 && s.members[u.Gang] > 0, u.Member >= 0 && s.members[u.Gang] >= p.Spare[u.Gang]:
			continue
		case u.Member < 0:
			s.whole[u.Gang] = true
		default:
			s.members[u.Gang]++
		}
		chosen = append(chosen, i)
		s.taken[i] = true
		if p.Enough(chosen) {
			slices.Sort(chosen)
			return chosen
		}
	}
	return nil
}
