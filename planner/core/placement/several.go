package placement

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// Groups of one gang that compete for the same nodes, one for cards and another
// for processors, say, may all fit although the one that is placed first leaves
// no room for the next. What placing group after group does not find is then
// sought member by member, over at most tryNodes nodes and trySteps members
// tried: on small clusters that is everything there is.
const (
	tryNodes = 32
	trySteps = 4096
)

// joint is a search for places for all groups at once within a scope.
type joint struct {
	*search
	nodes   []int32
	left    []int // of each group, to be placed
	members []Member
}

// bound tells whether members of some group are bound to each other.
func (s *search) bound() bool {
	return slices.ContainsFunc(s.o.views, func(v *view) bool { return v.property() })
}

// together returns nil, with the cluster as it was, where it finds nothing.
func (s *search) together(k scope) []Member {
	if len(s.o.views) == 1 || s.steps <= 0 || s.bound() {
		return nil
	}
	t := &joint{search: s, left: make([]int, len(s.o.views))}
	for g, v := range s.o.views {
		v.refresh()
		t.left[g] = s.want(g)
		if s.room(v, k) < t.left[g] {
			return nil
		}
	}
	c := s.p.c
	for b := k.first; b < k.last && len(t.nodes) < tryNodes; b++ {
		block := &c.Blocks[b]
		for n := block.First; n < block.First+block.Count && len(t.nodes) < tryNodes; n++ {
			if slices.ContainsFunc(s.o.views, func(v *view) bool { return s.fit(v, n) > 0 }) {
				t.nodes = append(t.nodes, n)
			}
		}
	}
	mark := c.Mark()
	if t.group(0) {
		return t.members
	}
	c.Rollback(mark)
	return nil
}

// group places the groups from one on.
func (t *joint) group(at int) bool {
	if at == len(t.o.order) {
		return true
	}
	for _, g := range t.o.order[at:] {
		room := 0
		for _, n := range t.nodes {
			room += t.now(g, n)
		}
		if room < t.left[g] {
			return false
		}
	}
	return t.member(at, 0)
}

// now is how many members of a group a node takes in the state of the search.
func (t *joint) now(g int, n int32) int {
	v := t.o.views[g]
	if t.opt.Deny != nil && t.opt.Deny[n] || t.used[n] || v.feasible(n) != core.ReasonFits {
		return 0 // that another group can be on the node says nothing of this one
	}
	return v.fits(n)
}

// member places the next member of a group on one of the nodes from one on:
// members of one group are alike.
func (t *joint) member(at, from int) bool {
	g := t.o.order[at]
	if t.left[g] == 0 {
		return t.group(at + 1)
	}
	c := t.p.c
	for i := from; i < len(t.nodes); i++ {
		if t.steps--; t.steps < 0 {
			return false
		}
		n := t.nodes[i]
		if t.opt.Deny != nil && t.opt.Deny[n] || t.used[n] {
			continue
		}
		mark := c.Mark()
		m, ok := t.take(t.o.views[g], n)
		if !ok {
			continue
		}
		m.Group = g
		t.members = append(t.members, m)
		t.left[g]--
		next := i
		if t.r.distinct {
			t.used[n] = true
		}
		if t.o.views[g].single {
			next++
		}
		if t.member(at, next) {
			return true
		}
		if t.r.distinct {
			delete(t.used, n)
		}
		t.left[g]++
		t.members = t.members[:len(t.members)-1]
		c.Rollback(mark)
	}
	return false
}
