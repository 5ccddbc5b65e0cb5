package placement

import (
	"cmp"
	"slices"
)

// The domains for a gang are chosen level by level, from the outside in: at
// each level the fewest that have the room, within those chosen further out,
// and of as few, those within which it spans the fewest further in. Which set
// of domains that is has to be tried. At a level at most mostSets are, those
// with the most room first, so that the choice is exact for two of up to eleven
// domains, or three of eight; at the innermost level it always is.
const (
	mostSets  = 64
	mostTries = 256 // in one search, over all levels
)

// part is a domain with the room it has, and the members that it is to take.
type part struct {
	scope
	room, n int
	inner   span // of its whole room, where that is asked
	unknown bool
}

// span counts the domains that members use at each level from some level
// inwards, the nodes last. Levels beyond the seventh count as nodes.
type span [8]int32

// span is that of n members within scopes, from a level inwards.
func (s *search) span(v *view, level int, in []scope, n int) span {
	var out span
	levels := len(s.p.c.Levels)
	if level >= min(levels, len(out)-1) {
		out[0] = s.leastNodes(v, in, n)
		return out
	}
	chosen := s.choose(v, level, in, n)
	out[0] = int32(len(chosen))
	if level+1 < levels {
		inner := s.span(v, level+1, scopes(chosen), n)
		copy(out[1:], inner[:])
		return out
	}
	for _, part := range chosen {
		out[1] += s.leastNodes(v, []scope{part.scope}, part.n)
	}
	return out
}

func scopes(parts []part) []scope {
	out := make([]scope, len(parts))
	for i := range parts {
		out[i] = parts[i].scope
	}
	return out
}

// leastNodes is the least number of nodes of some scopes that take n members.
func (s *search) leastNodes(v *view, in []scope, n int) int32 {
	largest := 0
	for _, k := range in {
		for b := k.first; b < k.last; b++ {
			largest = max(largest, int(v.most[b]))
		}
	}
	switch {
	case largest <= 1:
		return int32(n)
	case largest >= n && !s.slow:
		return 1
	}
	largest = min(largest, n)
	s.counts = append(s.counts[:0], make([]int32, largest+1)...)
	for _, k := range in {
		for b := k.first; b < k.last; b++ {
			if v.total[b] == 0 {
				continue
			}
			block := &s.p.c.Blocks[b]
			for m := block.First; m < block.First+block.Count; m++ {
				s.counts[min(s.fit(v, m), largest)]++
			}
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

// bias of some scopes is the sum over the nodes of least bias that the gang's
// first group would take.
func (s *search) bias(in []scope) int {
	v, n := s.o.views[0], s.want(0)
	var of []int32
	for _, k := range in {
		for b := k.first; b < k.last; b++ {
			block := &s.p.c.Blocks[b]
			for m := block.First; m < block.First+block.Count; m++ {
				if s.fit(v, m) > 0 {
					of = append(of, m)
				}
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

// parts are the domains of a level within some scopes that take any member.
// Nodes whose domain is not known are a part each.
func (s *search) parts(v *view, level int, in []scope) []part {
	var out []part
	ds := s.p.c.Levels[level].Domains
	for _, k := range in {
		if k.first >= k.last {
			continue
		}
		first := int(s.p.c.Blocks[k.first].Domain[level])
		last := int(s.p.c.Blocks[k.last-1].Domain[level])
		out = slices.Grow(out, last-first+1)
		for _, d := range ds[first : last+1] {
			in := scope{max(d.First, k.first), min(d.Last, k.last)}
			if room := s.room(v, in); room > 0 {
				out = append(out, part{scope: in, room: room, unknown: d.Unknown})
			}
		}
	}
	return out
}

// choose picks the domains of a level, within some scopes, that n members are
// dealt to; nil where they do not fit. At the innermost level it says how many
// each takes.
func (s *search) choose(v *view, level int, in []scope, n int) []part {
	parts := s.parts(v, level, in)
	best, inner, bias := -1, span{}, 0
	in = make([]scope, 1)
	for i := range parts {
		if parts[i].room < n || parts[i].unknown {
			continue
		}
		in[0] = parts[i].scope
		within, b := s.span(v, level+1, in, n), 0
		c := slices.Compare(within[:], inner[:])
		if best >= 0 && c > 0 {
			continue
		}
		if s.opt.Bias != nil {
			b = s.bias(in)
		}
		if best < 0 || cmp.Or(c, cmp.Compare(b, bias), cmp.Compare(parts[i].room, parts[best].room)) < 0 {
			best, inner, bias = i, within, b
		}
	}
	if best >= 0 {
		parts[best].n = n
		return parts[best : best+1]
	}
	// Domains that are not known come last, each node being one.
	slices.SortStableFunc(parts, func(a, b part) int {
		if a.unknown != b.unknown {
			if a.unknown {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.room, a.room)
	})
	if level+1 < len(s.p.c.Levels) {
		if set := s.set(v, level, parts, n); set != nil {
			return set
		}
	}
	return s.split(v, level, parts, n)
}

// set picks the fewest of some domains, ordered by room, that have room for n
// members, such that those span the fewest domains further in; then those that
// are left with the least room. Nil where domains that are not known are
// needed.
func (s *search) set(v *view, level int, parts []part, n int) []part {
	few, room := 0, 0
	for few < len(parts) && room < n && !parts[few].unknown {
		room += parts[few].room
		few++
	}
	if room < n {
		return nil
	}
	var best []part
	var inner span
	bias, left := 0, 0
	at, set := make([]int, few), make([]part, few)
	for i := range at {
		at[i] = i
	}
	for try := 0; try < mostSets && s.sets < mostTries; try++ {
		room = 0
		for i, k := range at {
			set[i] = parts[k]
			room += parts[k].room
		}
		if room >= n {
			s.sets++
			in, b := scopes(set), 0
			within := s.span(v, level+1, in, n)
			c := slices.Compare(within[:], inner[:])
			if s.opt.Bias != nil && (best == nil || c <= 0) {
				b = s.bias(in)
			}
			if best == nil || cmp.Or(c, cmp.Compare(b, bias), cmp.Compare(room, left)) < 0 {
				best, inner, bias, left = append(best[:0], set...), within, b, room
			}
		}
		i := few - 1
		for i >= 0 && (at[i] == len(parts)-few+i || parts[at[i]+1].unknown) {
			i--
		}
		if i < 0 {
			break
		}
		at[i]++
		for k := i + 1; k < few; k++ {
			at[k] = at[k-1] + 1
		}
	}
	if best == nil { // nothing may be tried any more
		return parts[:few]
	}
	return best
}

// split deals n members over the fewest domains of a level: the largest are
// filled until the rest fits into one, and that one is the smallest that takes
// it. Of equally large ones those come first that have their room within fewer
// domains further in. Domains that are not known come last.
func (s *search) split(v *view, level int, parts []part, n int) []part {
	if len(parts) > 0 && parts[0].room < n {
		for i := range parts {
			if i > 0 && parts[i-1].room == parts[i].room || i+1 < len(parts) && parts[i+1].room == parts[i].room {
				parts[i].inner = s.span(v, level+1, []scope{parts[i].scope}, parts[i].room)
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

// deal chooses nodes for n members of a view within a scope.
func (s *search) deal(v *view, k scope, n int) []pick {
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
	if levels == 0 {
		return s.nodes(v, k, n)
	}
	in := []scope{k}
	for level := range levels - 1 {
		in = scopes(s.choose(v, level, in, n))
	}
	var out []pick
	for _, part := range s.choose(v, levels-1, in, n) {
		picks := []pick{}
		if one := s.one(v, part.scope, part.n); one >= 0 {
			picks = append(picks, pick{one, part.n})
		} else if picks = s.nodes(v, part.scope, part.n); picks == nil {
			return nil
		}
		out = append(out, picks...)
	}
	return out
}
