package placement

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

// one finds the best single node for n members; -1 where none takes them all.
// Of nodes with the same score, the one in the innermost domain with the least
// room.
func (s *search) one(v *view, k scope, n int) int32 {
	c := s.p.c
	best, room := int32(-1), 0
	better := func(a, b int32) bool {
		if s.opt.Bias != nil && s.opt.Bias[a] != s.opt.Bias[b] {
			return s.opt.Bias[a] < s.opt.Bias[b]
		}
		return v.score[a] < v.score[b]
	}
	for b := k.first; b < k.last; b++ {
		if int(v.total[b]) < n || v.total[b] == 0 || v.most[b] < uint16(min(n, most)) {
			continue
		}
		at := v.best[b]
		if s.slow || s.opt.Bias != nil || int(v.fit[at]) < n {
			at = -1
			block := &c.Blocks[b]
			for m := block.First; m < block.First+block.Count; m++ {
				if s.fit(v, m) >= n && (at < 0 || better(m, at)) {
					at = m
				}
			}
			if at < 0 {
				continue
			}
		}
		if best >= 0 && better(best, at) {
			continue
		}
		around := int(v.total[b])
		if l := len(c.Levels); l > 0 {
			if d := &c.Levels[l-1].Domains[c.Blocks[b].Domain[l-1]]; d.Last-d.First > 1 {
				around = s.room(v, scope{d.First, d.Last})
			}
		}
		if best < 0 || better(at, best) || around < room {
			best, room = at, around
		}
	}
	return best
}

// nodes deals n members over the nodes of a scope: the fewest nodes, best
// scores first, distinct_property kept.
func (s *search) nodes(v *view, k scope, n int) []pick {
	c := s.p.c
	var all []int32
	for b := k.first; b < k.last; b++ {
		if v.total[b] == 0 {
			continue
		}
		block := &c.Blocks[b]
		for m := block.First; m < block.First+block.Count; m++ {
			if s.fit(v, m) > 0 {
				all = append(all, m)
			}
		}
	}
	slices.SortFunc(all, func(a, b int32) int {
		order := 0
		if s.opt.Bias != nil {
			order = cmp.Compare(s.opt.Bias[a], s.opt.Bias[b])
		}
		return cmp.Or(order, cmp.Compare(min(s.fit(v, b), n), min(s.fit(v, a), n)), cmp.Compare(v.score[a], v.score[b]), cmp.Compare(a, b))
	})
	limits := s.properties(v)
	var out []pick
	for i, node := range all {
		take := min(s.fit(v, node), n)
		if len(limits) == 0 && s.opt.Bias == nil && s.fit(v, node) > n {
			// The rest fits on one node: the best of those.
			for _, other := range all[i:] {
				if s.fit(v, other) >= n && v.score[other] < v.score[node] {
					node = other
				}
			}
		}
		for j := range limits {
			take = min(take, limits[j].left(c.Nodes[node].Src))
		}
		if take <= 0 {
			continue
		}
		for j := range limits {
			limits[j].use(c.Nodes[node].Src, take)
		}
		out = append(out, pick{node, take})
		if n -= take; n == 0 {
			return out
		}
	}
	return nil
}

// spread deals n members out one by one, each to where it adds the least to
// what stands or falls together: by Nomad's spread blocks, then by the members
// in each domain from the outside in, then on the node, then the score.
func (s *search) spread(v *view, k scope, n int) []pick {
	c := s.p.c
	limits := s.properties(v)
	members := map[int32]int{}
	inDomain := make([]map[int32]int, len(c.Levels))
	for l := range inDomain {
		inDomain[l] = map[int32]int{}
	}
	byValue := make([]map[string]int, len(v.group.Spreads))
	for i := range byValue {
		byValue[i] = map[string]int{}
	}
	var all []int32
	for b := k.first; b < k.last; b++ {
		block := &c.Blocks[b]
		for m := block.First; m < block.First+block.Count; m++ {
			if s.fit(v, m) > 0 {
				all = append(all, m)
			}
		}
	}
	before := func(a, b int32) bool {
		for i := range v.group.Spreads {
			x, y := deviation(&v.group.Spreads[i], byValue[i], c.Nodes[a].Src, n), deviation(&v.group.Spreads[i], byValue[i], c.Nodes[b].Src, n)
			if x != y {
				return x < y
			}
		}
		for l := range inDomain {
			x, y := inDomain[l][c.Blocks[c.Nodes[a].Block].Domain[l]], inDomain[l][c.Blocks[c.Nodes[b].Block].Domain[l]]
			if x != y {
				return x < y
			}
		}
		return cmp.Or(cmp.Compare(members[a], members[b]), cmp.Compare(v.score[a], v.score[b]), cmp.Compare(a, b)) < 0
	}
	for range n {
		best := int32(-1)
	next:
		for _, m := range all {
			if members[m] >= s.fit(v, m) {
				continue
			}
			for j := range limits {
				if limits[j].left(c.Nodes[m].Src) < 1 {
					continue next
				}
			}
			if best < 0 || before(m, best) {
				best = m
			}
		}
		if best < 0 {
			return nil
		}
		members[best]++
		for l := range inDomain {
			inDomain[l][c.Blocks[c.Nodes[best].Block].Domain[l]]++
		}
		for i := range byValue {
			value, _ := feasible.Value(c.Nodes[best].Src, v.group.Spreads[i].Attribute)
			byValue[i][value]++
		}
		for j := range limits {
			limits[j].use(c.Nodes[best].Src, 1)
		}
	}
	var out []pick
	for _, m := range all {
		if members[m] > 0 {
			out = append(out, pick{m, members[m]})
		}
	}
	return out
}

// deviation is how full a node's value of a spread block would be with one member
// more, in thousandths of what is wished for it: of its target's share, or of an
// equal one.
func deviation(b *core.Spread, have map[string]int, n *core.Node, members int) int {
	value, ok := feasible.Value(n, b.Attribute)
	if !ok {
		return 1 << 30
	}
	with := have[value] + 1
	if len(b.Targets) == 0 {
		return with * 1000
	}
	stated := 0
	for _, t := range b.Targets {
		if t.Value == value {
			return with * 100_000 / max(1, t.Percent*members)
		}
		stated += t.Percent
	}
	return with * 100_000 / max(1, (100-stated)*members)
}

// property tells whether the members are bound by distinct_property.
func (v *view) property() bool { return v.distinctProperty }

// limit is a distinct_property constraint: so many members for each value.
type limit struct {
	target string
	most   int
	used   map[string]int
}

// properties are the distinct_property constraints of a view. One that all groups
// of the gang have is the job's and counts over all of them.
func (s *search) properties(v *view) []*limit {
	if !v.distinctProperty {
		return nil
	}
	var out []*limit
	for _, k := range v.group.Constraints {
		if k.Operand != "distinct_property" {
			continue
		}
		if l := s.limits[k]; l != nil {
			out = append(out, l)
			continue
		}
		most := 1
		if k.Right != "" {
			n, err := strconv.Atoi(k.Right)
			if err != nil || n < 1 {
				n = 0 // Nomad refuses the job; nothing is placed
			}
			most = n
		}
		l := &limit{k.Left, most, map[string]int{}}
		out = append(out, l)
		if len(s.o.views) > 1 && !slices.ContainsFunc(s.o.views, func(o *view) bool { return !slices.Contains(o.group.Constraints, k) }) {
			if s.limits == nil {
				s.limits = map[core.Constraint]*limit{}
			}
			s.limits[k] = l
		}
	}
	return out
}

// left is 0 on a node that has no such property: Nomad places nothing there.
func (l *limit) left(n *core.Node) int {
	value, ok := feasible.Value(n, l.target)
	if !ok {
		return 0
	}
	return l.most - l.used[value]
}

func (l *limit) use(n *core.Node, members int) {
	value, _ := feasible.Value(n, l.target)
	l.used[value] += members
}
