package placement

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
)

// search is one attempt at placing.
type search struct {
	p      *Placer
	r      *Request
	o      *Option
	opt    Options
	used   map[int32]bool             // nodes taken, where no two members share one
	counts []int32                    // scratch
	steps  int                        // left for placing groups together
	sets   int                        // of domains tried
	limits map[core.Constraint]*limit // of the whole job
	slow   bool                       // some nodes are out: rooms are counted node by node
}

// scope is a run of blocks.
type scope struct{ first, last int32 }

// pick is a node with the members that it is to take.
type pick struct {
	node    int32
	members int
}

func (s *search) prepare() {
	for _, v := range s.o.views {
		v.refresh()
	}
	s.slow, s.steps = s.opt.Deny != nil, trySteps
	if len(s.opt.Near) > 0 && (s.r.distinct || s.o.views[0].single) {
		s.used = map[int32]bool{}
		for _, n := range s.opt.Near {
			s.used[n] = true
		}
		s.slow = true
	} else if s.r.distinct {
		s.used = map[int32]bool{}
		s.slow = true
	}
}

// fit is how many members of a view a node may take in this search.
func (s *search) fit(v *view, n int32) int {
	if s.slow && (s.opt.Deny != nil && s.opt.Deny[n] || s.used[n]) {
		return 0
	}
	return int(v.fit[n])
}

// room is how many members the blocks of a scope take.
func (s *search) room(v *view, k scope) int {
	sum := 0
	for b := k.first; b < k.last; b++ {
		if !s.slow || v.total[b] == 0 {
			sum += int(v.total[b])
			continue
		}
		block := &s.p.c.Blocks[b]
		for n := block.First; n < block.First+block.Count; n++ {
			sum += s.fit(v, n)
		}
	}
	return sum
}

// want is how many members of a group are to be placed.
func (s *search) want(group int) int {
	if group == 0 && s.opt.Members > 0 {
		return s.opt.Members
	}
	return s.r.Gang.Groups[group].Count
}

func (s *search) run() []Member {
	c := s.p.c
	s.prepare()
	everything := scope{0, int32(len(c.Blocks))}
	switch {
	case s.r.Required && s.r.Level < 0 && s.r.Gang.Level != core.LevelLink:
		return nil // a level that is not configured: the gang is refused before
	case s.r.Required && s.r.Level == len(c.Levels):
		return s.oneNode()
	case len(s.opt.Near) > 0:
		return s.near()
	case len(s.o.views) == 1 && !s.o.views[0].property():
		if s.r.Required && s.r.Level >= 0 {
			if m := s.inDomains(s.r.Level); m != nil || !s.unknown(s.r.Level) {
				return m
			}
			return s.oneNode() // one node is within any level, known or not
		}
		return s.fill(everything)
	}
	// Several groups, or members bound to each other: the innermost domain that
	// takes them all.
	if !s.r.spread && len(s.o.views) > 1 {
		if m := s.oneNode(); m != nil {
			return m
		}
	}
	outermost := 0
	if s.r.Required {
		outermost = max(0, s.r.Level)
	}
	for l := len(c.Levels) - 1; l >= outermost; l-- {
		if m := s.inDomains(l); m != nil {
			return m
		}
	}
	if s.r.Required && s.r.Level >= 0 {
		return nil
	}
	if m := s.fill(everything); m != nil {
		return m
	}
	return s.together(everything)
}

// unknown tells whether the domain of some node is not known.
func (s *search) unknown(level int) bool {
	return slices.ContainsFunc(s.p.c.Levels[level].Domains, func(d cluster.Domain) bool { return d.Unknown })
}

// near adds members to a gang: in the innermost domain that it lies in and
// that has the room, outwards as far as its required level.
func (s *search) near() []Member {
	c := s.p.c
	outermost := 0
	if s.r.Required {
		outermost = s.r.Level
	}
	for l := len(c.Levels) - 1; l >= max(outermost, 0); l-- {
		d := c.Blocks[c.Nodes[s.opt.Near[0]].Block].Domain[l]
		inside := true
		for _, n := range s.opt.Near {
			inside = inside && c.Blocks[c.Nodes[n].Block].Domain[l] == d
		}
		domain := &c.Levels[l].Domains[d]
		if !inside || domain.Unknown {
			continue
		}
		if m := s.fill(scope{domain.First, domain.Last}); m != nil {
			return m
		}
	}
	if s.r.Required && s.r.Level >= 0 {
		return nil
	}
	return s.fill(scope{0, int32(len(c.Blocks))})
}

// inDomains tries the domains of one level, the one that does best first.
func (s *search) inDomains(level int) []Member {
	type candidate struct {
		scope
		bias, left int
		inner      span
	}
	var all []candidate
	domains := s.p.c.Levels[level].Domains
	for i := range domains {
		d := &domains[i]
		k := candidate{scope: scope{d.First, d.Last}}
		if d.Unknown && s.r.Members > 1 {
			continue
		}
		ok := true
		for g, v := range s.o.views {
			left := s.room(v, k.scope) - s.want(g)
			ok = ok && left >= 0
			k.left += left
		}
		if !ok {
			continue
		}
		if len(s.o.views) == 1 {
			k.inner = s.span(s.o.views[0], level+1, []scope{k.scope}, s.want(0))
		}
		if s.opt.Bias != nil {
			k.bias = s.bias([]scope{k.scope})
		}
		all = append(all, k)
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(slices.Compare(a.inner[:], b.inner[:]), cmp.Compare(a.bias, b.bias), cmp.Compare(a.left, b.left))
	})
	for _, k := range all {
		if m := s.fill(k.scope); m != nil {
			return m
		}
		if m := s.together(k.scope); m != nil {
			return m
		}
	}
	return nil
}

// fill places all groups within a scope and takes what they use; nil, with
// the cluster as it was, where one of them does not fit.
func (s *search) fill(k scope) []Member {
	mark := s.p.c.Mark()
	s.limits = nil
	var members []Member
	var used []int32
	fail := func() []Member {
		s.p.c.Rollback(mark)
		for _, n := range used {
			delete(s.used, n)
		}
		for _, v := range s.o.views { // they may have looked at what is undone now
			v.refresh()
		}
		return nil
	}
	for at, i := range s.o.order {
		v := s.o.views[i]
		if at > 0 {
			v.refresh()
		}
		n := s.want(i)
		var picks []pick
		switch {
		case n == 0:
			continue
		case s.r.spread:
			picks = s.spread(v, k, n)
		default:
			picks = s.deal(v, k, n)
		}
		if picks == nil {
			return fail()
		}
		if members == nil {
			members = make([]Member, 0, n)
		}
		for _, pick := range picks {
			if s.r.distinct {
				s.used[pick.node] = true
				used = append(used, pick.node)
			}
			for range pick.members {
				m, ok := s.take(v, pick.node)
				if !ok {
					return fail()
				}
				m.Group = i
				members = append(members, m)
			}
		}
	}
	return members
}

// oneNode places all groups on a single node.
func (s *search) oneNode() []Member {
	type candidate struct {
		node  int32
		score int64
	}
	var all []candidate
	for n := range int32(len(s.p.c.Nodes)) {
		if len(s.opt.Near) > 0 && n != s.opt.Near[0] {
			continue
		}
		k := candidate{n, 0}
		ok := true
		for i, v := range s.o.views {
			if want := s.want(i); want > 0 {
				ok = ok && s.fit(v, n) >= want
				k.score += v.score[n]
			}
		}
		if s.opt.Bias != nil {
			k.score += int64(s.opt.Bias[n]) << 40
		}
		if ok {
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.score, b.score) })
	for _, k := range all {
		mark := s.p.c.Mark()
		members := []Member{}
		ok := !s.r.distinct && s.alone(k.node)
		for _, i := range s.o.order {
			for range s.want(i) {
				m, fits := s.take(s.o.views[i], k.node)
				m.Group = i
				members = append(members, m)
				if ok = ok && fits; !ok {
					break
				}
			}
		}
		if ok {
			return members
		}
		s.p.c.Rollback(mark)
	}
	return nil
}

// alone tells whether distinct_property lets all members be on one node.
func (s *search) alone(n int32) bool {
	s.limits = nil
	src := s.p.c.Nodes[n].Src
	for i, v := range s.o.views {
		for _, l := range s.properties(v) {
			if l.left(src) < s.want(i) {
				return false
			}
			l.use(src, s.want(i))
		}
	}
	return true
}

// take puts one member on a node.
func (s *search) take(v *view, n int32) (Member, bool) {
	m, ok := v.member(n)
	if ok {
		s.p.c.Take(&m.Use)
	}
	return m, ok
}

// Take puts one member of a group on a node, where it fits; it is for callers
// that chose the node themselves.
func (p *Placer) Take(o *Option, group int, n int32) (Member, bool) {
	m, ok := o.views[group].member(n)
	m.Group = group
	if ok {
		p.c.Take(&m.Use)
	}
	return m, ok
}

// member chooses what one member uses on a node; it takes nothing.
func (v *view) member(n int32) (Member, bool) {
	m := Member{Use: cluster.Use{Node: n, Res: v.group.Use, Ports: v.group.StaticPorts, Dynamic: v.group.Ports}}
	if v.feasible(n) != core.ReasonFits || !v.resources(n) {
		return m, false
	}
	if len(v.group.Devices) == 0 {
		return m, true
	}
	node := &v.p.c.Nodes[n]
	if m.Asks = v.assign(node, v.copyFree(node)); m.Asks == nil {
		return m, false
	}
	total := 0
	for _, a := range m.Asks {
		total += len(a)
	}
	m.Use.Cards = make([]int32, 0, total)
	for i, a := range m.Asks {
		if k := v.group.Devices[i].Shares; k > 0 {
			m.Use.Parts = append(m.Use.Parts, cluster.Part{Card: a[0], Shares: int32(k)})
			continue
		}
		m.Use.Cards = append(m.Use.Cards, a...)
	}
	return m, true
}
