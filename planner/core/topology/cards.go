// Package topology chooses exact cards inside a node and numbers a gang's
// members along the topology.
//
// Cards are chosen, of all sets of the wanted size, by the first of these that
// differs:
//
//  1. no suspect card, or as few as can be;
//  2. the fewest NVLink domains; cards that are not known to be in one count
//     as one each;
//  3. the cards lie in domains that this uses up best, so that whole domains
//     stay whole;
//  4. the most links between the chosen cards;
//  5. the least cost where the caller states one for each card (a card whose
//     near NICs are in use);
//  6. the fewest NUMA nodes;
//  7. the fewest cards that are a part of a card no other part of which is in
//     use (time shares and the like fill up one card before the next);
//  8. the most links between the cards that stay free;
//  9. the lowest places.
//
// Up to 16 free cards every set is looked at; beyond, cards are taken domain
// by domain and one by one, the best addition first.
package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
)

// exhaustive is the largest number of free cards for which every set is tried.
const exhaustive = 16

// Choose returns the places, within the device group, of count cards out of
// free, ascending; nil where there are not enough, or where whole asks for one
// NVLink domain and none has enough.
func Choose(d *cluster.Device, free []uint64, count int, whole bool, cost []uint8) []int32 {
	n := cluster.Count(free)
	whole = whole && count > 1 // one card is in one domain whatever is known of it
	switch {
	case count > n || whole && len(d.Islands) == 0:
		return nil
	case d.Flat && cost == nil:
		return lowest(free, count)
	case d.Flat && (!whole || len(d.Islands) > 0):
		return cheapest(free, count, cost)
	case count == n && !whole:
		return lowest(free, count)
	}
	if len(d.Src.Cards) <= 64 && n <= exhaustive {
		set := best(d, free[0], count, whole, cost)
		if set == 0 {
			return nil
		}
		return lowest([]uint64{set}, count)
	}
	return greedy(d, free, count, whole)
}

func lowest(set []uint64, count int) []int32 {
	out := make([]int32, 0, count)
	for w, bits64 := range set {
		for ; bits64 != 0 && len(out) < count; bits64 &= bits64 - 1 {
			out = append(out, int32(w*64+bits.TrailingZeros64(bits64)))
		}
	}
	return out
}

// cheapest takes cards that cost nothing before others.
func cheapest(free []uint64, count int, cost []uint8) []int32 {
	set := make([]uint64, len(free))
	for _, wanted := range []bool{true, false} {
		for w, f := range free {
			for ; f != 0 && count > 0; f &= f - 1 {
				if at := bits.TrailingZeros64(f); (cost[w*64+at] == 0) == wanted {
					set[w] |= 1 << at
					count--
				}
			}
		}
	}
	return lowest(set, cluster.Count(set))
}

// score orders sets; the greater is better at each place in turn.
type score [8]int

func (s score) compare(o score) int {
	for i := range s {
		if c := cmp.Compare(s[i], o[i]); c != 0 {
			return c
		}
	}
	return 0
}

// best tries every set of count cards out of free, lowest places first.
func best(d *cluster.Device, free uint64, count int, whole bool, cost []uint8) uint64 {
	var at [exhaustive]int
	n := 0
	for f := free; f != 0; f &= f - 1 {
		at[n] = bits.TrailingZeros64(f)
		n++
	}
	var chosen uint64
	var top score
	// Gosper's walk over all words of n bits with count set.
	for v := uint64(1)<<count - 1; v < uint64(1)<<n; {
		set := uint64(0)
		for f := v; f != 0; f &= f - 1 {
			set |= 1 << at[bits.TrailingZeros64(f)]
		}
		if !whole || oneIsland(d, set) {
			if s := rate(d, set, free, cost); chosen == 0 || s.compare(top) > 0 {
				chosen, top = set, s
			}
		}
		low := v & -v
		next := v + low
		v = ((v^next)>>2)/low | next
	}
	return chosen
}

func oneIsland(d *cluster.Device, set uint64) bool {
	for _, i := range d.Islands {
		if set&^i[0] == 0 {
			return true
		}
	}
	return bits.OnesCount64(set) == 1
}

func rate(d *cluster.Device, set, free uint64, cost []uint8) score {
	var s score
	s[0] = -bits.OnesCount64(set & d.Suspect[0])
	islands, left, inside := 0, 0, uint64(0)
	for _, i := range d.Islands {
		if set&i[0] != 0 {
			islands++
			left += bits.OnesCount64(free & i[0] &^ set)
		}
		inside |= i[0]
	}
	s[1], s[2] = -islands-bits.OnesCount64(set&^inside), -left
	s[3], s[7] = linksWithin(d, set), linksWithin(d, free&^set)
	var numa, parents uint64
	fresh := 0
	for f := set; f != 0; f &= f - 1 {
		k := bits.TrailingZeros64(f)
		card := &d.Src.Cards[k]
		if cost != nil {
			s[4] -= int(cost[k])
		}
		numa |= 1 << (uint(card.NUMA+1) & 63)
		if card.Parent != "" && parents>>k&1 == 0 {
			siblings := uint64(0)
			for j := range d.Src.Cards {
				if d.Src.Cards[j].Parent == card.Parent {
					siblings |= 1 << j
				}
			}
			parents |= siblings
			if siblings&d.Usable[0]&^free == 0 {
				fresh++
			}
		}
	}
	s[5], s[6] = -bits.OnesCount64(numa), -fresh
	return s
}

func linksWithin(d *cluster.Device, set uint64) int {
	if d.Links == nil {
		return 0
	}
	n, sum := len(d.Src.Cards), 0
	for a := set; a != 0; a &= a - 1 {
		i := bits.TrailingZeros64(a)
		for b := a & (a - 1); b != 0; b &= b - 1 {
			sum += int(d.Links[i*n+bits.TrailingZeros64(b)])
		}
	}
	return sum
}

// greedy serves groups of many cards: the domain that count fills best, or
// domains from the fullest on, lowest places first, suspect cards last.
func greedy(d *cluster.Device, free []uint64, count int, whole bool) []int32 {
	type island struct{ free, at int }
	var fit, most island
	fit.at, most.at = -1, -1
	for i, set := range d.Islands {
		n := cluster.CountBoth(set, free)
		if n >= count && (fit.at < 0 || n < fit.free) {
			fit = island{n, i}
		}
		if most.at < 0 || n > most.free {
			most = island{n, i}
		}
	}
	if fit.at >= 0 {
		return pick(d, free, d.Islands[fit.at], count)
	}
	if whole {
		return nil
	}
	var out []int32
	rest := append([]uint64(nil), free...)
	if most.at >= 0 && most.free > 0 {
		out = pick(d, rest, d.Islands[most.at], most.free)
		for _, k := range out {
			rest[k/64] &^= 1 << (k % 64)
		}
		more := greedy(d, rest, count-len(out), false)
		out = append(out, more...)
	} else {
		out = pick(d, rest, nil, count)
	}
	set := make([]uint64, len(free))
	for _, k := range out {
		set[k/64] |= 1 << (k % 64)
	}
	return lowest(set, count)
}

// pick takes count free cards within a set (nil: all), suspect ones last and
// cards that share a parent together.
func pick(d *cluster.Device, free, within []uint64, count int) []int32 {
	var out []int32
	for _, suspect := range []bool{false, true} {
		for k := range d.Src.Cards {
			bit := uint64(1) << (k % 64)
			if len(out) < count && free[k/64]&bit != 0 && (within == nil || within[k/64]&bit != 0) && (d.Suspect[k/64]&bit != 0) == suspect {
				out = append(out, int32(k))
			}
		}
	}
	slices.Sort(out)
	return out
}

// ID gives the id of the card at a place of a device group.
func ID(d *cluster.Device, place int32) core.CardID { return d.Src.Cards[place].ID }

// Nearest returns the places of count devices out of free, ascending: for each
// chosen card in turn the nearest of its NICs that is free, then the lowest
// places.
func Nearest(d *cluster.Device, free []uint64, count int, cards []*core.Card) []int32 {
	if cluster.Count(free) < count {
		return nil
	}
	if len(cards) == 0 {
		return Choose(d, free, count, false, nil)
	}
	rest := append([]uint64(nil), free...)
	set := make([]uint64, len(free))
	taken := 0
	for _, k := range cards {
		if taken == count {
			break
		}
	search:
		for _, id := range k.NICs {
			for at := range d.Src.Cards {
				if d.Src.Cards[at].ID == id && rest[at/64]>>(at%64)&1 == 1 {
					rest[at/64] &^= 1 << (at % 64)
					set[at/64] |= 1 << (at % 64)
					taken++
					break search
				}
			}
		}
	}
	for _, at := range pick(d, rest, nil, count-taken) {
		set[at/64] |= 1 << (at % 64)
	}
	return lowest(set, count)
}
