package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// longest stands for ends that nobody can guess.
const longest = 1 << 24 // seconds

// ready says, by node and in seconds, when one member of a gang will probably
// fit: when so many of the gangs on it have ended as have its cards, by what
// gangs like them took. Nothing is promised from it: it is where cards are
// gathered for the gang. Nodes of which nothing is known come last, those with
// the most free cards first. Nodes on which they were gathered for it before
// count half, so that it stays with them unless others are much sooner.
func (c *cycle) ready(g *gang, o *placement.Option) []int32 {
	need := 1
	for _, n := range o.PerMember {
		if n.Model == o.MainModel() {
			need = n.Cards
		}
	}
	out := make([]int32, len(c.live.Nodes))
	holds := c.live.Holds()
	type release struct{ at, cards int }
	var ends []release
	// What starts in this cycle holds its cards, and those that it takes over.
	starts := map[int32][]release{}
	for i := range c.gangs {
		if v := &c.gangs[i]; v.start != nil {
			at := c.freeIn(v, v.members)
			for u := range v.uses {
				starts[v.uses[u].Node] = append(starts[v.uses[u].Node], release{at, len(v.uses[u].Cards) + len(v.uses[u].Parts)})
			}
		}
	}
	for n := range out {
		free := 0
		for d := range c.live.Nodes[n].Devices {
			if dev := &c.live.Nodes[n].Devices[d]; dev.Model == o.MainModel() {
				free += cluster.Count(c.live.FreeCards(dev))
			}
		}
		if free >= need {
			continue
		}
		ends = append(ends[:0], starts[int32(n)]...)
		for _, h := range c.live.On(int32(n)) {
			at := longest
			if ref := holds[h].Gang; ref >= 0 && c.byRef[ref] >= 0 {
				v := &c.gangs[c.byRef[ref]]
				if v.gone && len(starts[int32(n)]) > 0 {
					continue
				}
				at = c.freeIn(v, v.cards)
			}
			ends = append(ends, release{at, len(holds[h].CardsOf)})
		}
		slices.SortFunc(ends, func(a, b release) int { return cmp.Compare(a.at, b.at) })
		have := free
		for _, e := range ends {
			out[n] = int32(e.at)
			if free += e.cards; free >= need {
				break
			}
		}
		if out[n] == longest { // the one with the most free already
			out[n] -= int32(have)
		}
	}
	if p := c.promised[g.ID]; p != nil && p.Gathering {
		var before []int32
		for i := range p.Members {
			if n := c.live.Number(p.Members[i].Node); n >= 0 {
				before = append(before, n)
			}
		}
		slices.Sort(before)
		for _, n := range slices.Compact(before) {
			out[n] /= 2
		}
	}
	return out
}

// freeIn is in how many seconds a gang of so many cards will probably give them
// back.
func (c *cycle) freeIn(g *gang, cards int) int {
	likely, _, _ := c.left(g, cards)
	if likely == 0 {
		return longest
	}
	return int(min(likely/time.Second, longest-1))
}
