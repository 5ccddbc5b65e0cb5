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
	limits map[core.Constraint]*limit // of the whole job
	slow   bool                       // some nodes are out: rooms are counted node by node
}

// scope is a run of blocks.
type scope struct{ first, last int32 }

// part is a domain with the room it has, and the members that it is to take.
type part struct {
	scope
	room, n int
	inner   span // of its whole room, where that is asked
	unknown bool
}

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
			k.inner = s.domains(s.o.views[0], level+1, k.scope, s.want(0))
		}
		if s.opt.Bias != nil {
			k.bias = s.bias(k.scope)
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

// bias of a scope is the sum over the nodes of least bias that the gang's
// first group would take.
func (s *search) bias(k scope) int {
	v, n := s.o.views[0], s.want(0)
	var of []int32
	for b := k.first; b < k.last; b++ {
		block := &s.p.c.Blocks[b]
		for m := block.First; m < block.First+block.Count; m++ {
			if s.fit(v, m) > 0 {
				of = append(of, m)
			}
		}
	}
	slices.SortFunc(of, func(a, b int32) int { return cmp.Compare(s.opt.Bias[a], s.opt.Bias[b]) })
	sum := 0
	for _, m := range of {
		if n <= 0 {
			break
		}
		sum += int(s.opt.Bias[m])
		n -= s.fit(v, m)
	}
	return sum
}

// span counts the domains that members use at each level from some level
// inwards, the nodes last. Levels beyond the seventh count as nodes.
type span [8]int32

// domains is the span of n members within a scope, from a level inwards.
func (s *search) domains(v *view, level int, k scope, n int) span {
	var out span
	if level >= min(len(s.p.c.Levels), len(out)-1) {
		out[0] = s.leastNodes(v, k, n)
		return out
	}
	for _, part := range s.split(v, level, s.parts(v, level, k), n) {
		out[0]++
		inner := s.domains(v, level+1, part.scope, part.n)
		for i := range inner[:len(inner)-1] {
			out[i+1] += inner[i]
		}
	}
	return out
}

// leastNodes is the least number of nodes of a scope that take n members.
func (s *search) leastNodes(v *view, k scope, n int) int32 {
	largest := 0
	for b := k.first; b < k.last; b++ {
		largest = max(largest, int(v.most[b]))
	}
	switch {
	case largest <= 1:
		return int32(n)
	case largest >= n && !s.slow:
		return 1
	}
	largest = min(largest, n)
	s.counts = append(s.counts[:0], make([]int32, largest+1)...)
	for b := k.first; b < k.last; b++ {
		if v.total[b] == 0 {
			continue
		}
		block := &s.p.c.Blocks[b]
		for m := block.First; m < block.First+block.Count; m++ {
			s.counts[min(s.fit(v, m), largest)]++
		}
	}
	nodes := int32(0)
	for fit := largest; fit > 0 && n > 0; fit-- {
		take := min(s.counts[fit], int32((n+fit-1)/fit))
		nodes += take
		n -= int(take) * fit
	}
	return nodes
}

// parts are the domains of a level within a scope that take any member. Nodes
// whose domain is not known are a part each.
func (s *search) parts(v *view, level int, k scope) []part {
	if k.first >= k.last {
		return nil
	}
	var out []part
	ds := s.p.c.Levels[level].Domains
	for d := s.p.c.Blocks[k.first].Domain[level]; int(d) < len(ds) && ds[d].First < k.last; d++ {
		in := scope{max(ds[d].First, k.first), min(ds[d].Last, k.last)}
		if room := s.room(v, in); room > 0 {
			out = append(out, part{scope: in, room: room, unknown: ds[d].Unknown})
		}
	}
	return out
}

// split deals n members over the fewest domains of a level: the largest are
// filled until the rest fits into one, and that one is the smallest that takes
// it. Of equally large ones those come first that have their room within fewer
// domains further in. Domains that are not known come last.
func (s *search) split(v *view, level int, parts []part, n int) []part {
	slices.SortStableFunc(parts, func(a, b part) int {
		if a.unknown != b.unknown {
			if a.unknown {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.room, a.room)
	})
	if len(parts) > 0 && parts[0].room < n {
		for i := range parts {
			if i > 0 && parts[i-1].room == parts[i].room || i+1 < len(parts) && parts[i+1].room == parts[i].room {
				parts[i].inner = s.domains(v, level+1, parts[i].scope, parts[i].room)
			}
		}
		slices.SortStableFunc(parts, func(a, b part) int {
			if a.unknown || b.unknown {
				return 0
			}
			return cmp.Or(cmp.Compare(b.room, a.room), slices.Compare(a.inner[:], b.inner[:]))
		})
	}
	var out []part
	for i := range parts {
		if parts[i].room >= n {
			at := i
			for j := i; j < len(parts) && parts[j].room >= n && parts[j].unknown == parts[i].unknown; j++ {
				if parts[j].room < parts[at].room {
					at = j
				}
			}
			parts[at].n = n
			return append(out, parts[at])
		}
		parts[i].n = parts[i].room
		n -= parts[i].room
		out = append(out, parts[i])
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
			picks = s.deal(v, 0, k, n)
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

// deal chooses nodes for n members of a view within a scope.
func (s *search) deal(v *view, level int, k scope, n int) []pick {
	levels := len(s.p.c.Levels)
	switch {
	case v.property():
		return s.nodes(v, k, n)
	case s.room(v, k) < n:
		return nil
	}
	if one := s.one(v, k, n); one >= 0 {
		return []pick{{one, n}}
	}
	if level >= levels {
		return s.nodes(v, k, n)
	}
	parts := s.parts(v, level, k)
	best, inner, bias := -1, span{}, 0
	for i := range parts {
		if parts[i].room < n || parts[i].unknown {
			continue
		}
		in, b := s.domains(v, level+1, parts[i].scope, n), 0
		if s.opt.Bias != nil {
			b = s.bias(parts[i].scope)
		}
		if best < 0 || cmp.Or(slices.Compare(in[:], inner[:]), cmp.Compare(b, bias), cmp.Compare(parts[i].room, parts[best].room)) < 0 {
			best, inner, bias = i, in, b
		}
	}
	if best >= 0 {
		return s.deal(v, level+1, parts[best].scope, n)
	}
	var out []pick
	for _, part := range s.split(v, level, parts, n) {
		picks := s.deal(v, level+1, part.scope, part.n)
		if picks == nil {
			return nil
		}
		out = append(out, picks...)
	}
	return out
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
