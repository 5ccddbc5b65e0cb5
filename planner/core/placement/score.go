package placement

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

// The score of a node for one more member, lower is better, in the order of
// its parts:
//
//	bit  60      the node is suspect
//	bit  58      the member's cards would lie in several NVLink domains
//	bits 45..57  Nomad's affinities, the sum of weights met, turned round
//	bits 14..44  fragmentation: by how much the free cards grow that the mix of
//	             gangs seen lately cannot use
//	bits  0..13  free cards left, in fractions; the fewest, or the most where
//	             members are spread out
//
// With packing = "binpack" the last two change places; with "spread" only the
// last counts, the most left being best. "auto" packs by fragmentation, and
// spreads among equals where less than a tenth of the demand seen lately is
// for whole nodes.
const (
	suspectBit  = 60
	linkBit     = 58
	affinityBit = 45
	fragmentBit = 14
)

// milli is one card in the units of fragmentation.
const milli = 1000

// mix is what gangs lately asked for.
type mix struct {
	kinds  []kind
	spread bool // few need whole nodes
}

// kind is one shape of member, with its weight in thousandths of all.
type kind struct {
	use    core.Resources
	cards  int
	shares int // thousandths of a card; 0: whole cards
	models []core.Model
	on     uint64 // of the placer's models, the first 64: that it accepts
	weight int64
}

// mostKinds bounds the mix: the most frequent shapes are kept.
const mostKinds = 128

func newMix(recent []core.Shape) mix {
	var m mix
	total := int64(0)
	for _, s := range recent {
		if s.Weight <= 0 || s.Cards <= 0 && s.Shares <= 0 {
			continue
		}
		k := kind{use: s.Use, cards: s.Cards, shares: s.Shares, models: s.Models, weight: int64(s.Weight) * int64(max(1, s.Members))}
		total += k.weight
		m.kinds = append(m.kinds, k)
	}
	slices.SortFunc(m.kinds, func(a, b kind) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.cards, b.cards), cmp.Compare(a.shares, b.shares), cmp.Compare(a.use.CPU, b.use.CPU),
			cmp.Compare(a.use.MemoryMB, b.use.MemoryMB), cmp.Compare(a.use.Cores, b.use.Cores), slices.Compare(a.models, b.models))
	})
	m.kinds = m.kinds[:min(len(m.kinds), mostKinds)]
	demand, whole := int64(0), int64(0)
	for i := range m.kinds {
		k := &m.kinds[i]
		k.weight = max(1, k.weight*1000/max(1, total))
		cards := k.weight * int64(k.cards) * milli
		if k.shares > 0 {
			cards = k.weight * int64(k.shares)
		}
		demand += cards
		if k.cards >= 8 {
			whole += cards
		}
	}
	m.spread = demand > 0 && whole*10 < demand && false
	return m
}

func (m *mix) equal(o *mix) bool {
	return m.spread == o.spread && slices.EqualFunc(m.kinds, o.kinds, func(a, b kind) bool {
		return a.use == b.use && a.cards == b.cards && a.shares == b.shares && a.weight == b.weight && slices.Equal(a.models, b.models)
	})
}

// rate scores a node that takes at least one member.
func (v *view) rate(n int32) int64 {
	c := v.p.c
	node := &c.Nodes[n]
	score := int64(0)
	if node.Src.Suspect {
		score |= 1 << suspectBit
	}
	k := v.class(node.Class)
	left, device := int64(0), (*cluster.Device)(nil)
	for i := range v.group.Devices {
		if v.model[i] < 0 || len(k.asks[i]) == 0 {
			continue
		}
		d := &node.Devices[k.asks[i][0]]
		free := c.FreeCards(d)
		if device == nil {
			device = d
		}
		if d.Parts != nil {
			for at, f := range c.FreeShares(d) {
				left += int64(f) * milli / int64(d.Parts[at])
			}
		} else {
			left += int64(cluster.Count(free)) * milli
		}
		if v.group.Devices[i].Count > 1 && !d.Flat && !inOne(d, free, v.group.Devices[i].Count) {
			score |= 1 << linkBit
		}
	}
	if len(v.group.Affinities) > 0 {
		wish := 0
		for _, a := range v.group.Affinities {
			if feasible.Constraint(node.Src, a.Constraint) {
				wish += a.Weight
			}
		}
		score += int64(1<<11-max(-1<<11, min(wish, 1<<11))) << affinityBit
	}
	const most = 1<<14 - 1
	left = min(left/8, most)
	spread := v.p.packing == core.PackSpread || v.spread && v.p.packing != core.PackBin
	if spread {
		return score + most - left
	}
	fragment := int64(0)
	if device == nil { // no cards are asked for, but those of the node may become useless
		for d := range node.Devices {
			if node.Devices[d].Model >= 0 {
				device = &node.Devices[d]
				left = int64(cluster.Count(c.FreeCards(device)))
				break
			}
		}
	}
	if device != nil && len(v.p.mix.kinds) > 0 {
		fragment = v.fragment(n, device)
	}
	const half = 1 << 29
	fragment = half + max(-half, min(fragment, half-1))
	if v.p.packing == core.PackBin {
		return score + left<<30 + fragment
	}
	if v.p.mix.spread {
		left = most - left
	}
	return score + fragment<<fragmentBit + left
}

// inOne tells whether one NVLink domain has so many free cards.
func inOne(d *cluster.Device, free []uint64, count int) bool {
	for _, set := range d.Islands {
		if cluster.CountBoth(set, free) >= count {
			return true
		}
	}
	return false
}

// room is what is free on a node, for fragmentation.
type room struct {
	free  cluster.Free
	cards [64]int32 // thousandths free of each card
	n     int
}

// state is what is free on a node, as fragmentation sees it.
func (v *view) state(n int32, d *cluster.Device, r *room) {
	c := v.p.c
	r.free, r.n = c.At(n), min(len(d.Src.Cards), len(r.cards))
	free := c.FreeCards(d)
	if d.Parts != nil {
		for i, f := range c.FreeShares(d)[:r.n] {
			r.cards[i] = f * milli / d.Parts[i]
		}
		return
	}
	for i := range r.n {
		r.cards[i] = milli * int32(free[0]>>i&1)
	}
}

// fragment is the growth of the free cards, in thousandths of a card and of
// the mix, that gangs of the mix could not use, if a member came to the node.
func (v *view) fragment(n int32, d *cluster.Device) int64 {
	var r room
	v.state(n, d, &r)
	model := v.p.model(d)
	before := r.wasted(&v.p.mix, model)
	v.use(&r)
	for i := range v.group.Devices {
		if v.model[i] < 0 {
			continue
		}
		if shares := v.group.Devices[i].Shares; shares > 0 {
			if at := v.shareCard(&r, d, v.p.c.FreeShares(d), shares); at >= 0 {
				r.cards[at] -= int32(shares) * milli / d.Parts[at]
			}
			continue
		}
		for taken, at := 0, 0; at < r.n && taken < v.group.Devices[i].Count; at++ {
			if r.cards[at] == milli {
				r.cards[at] = 0
				taken++
			}
		}
	}
	return r.wasted(&v.p.mix, model) - before
}

// use takes what a member uses beside cards.
func (v *view) use(r *room) {
	r.free.CPU -= v.group.Use.CPU
	r.free.Cores -= v.group.Use.Cores
	r.free.MemoryMB -= v.group.Use.MemoryMB
}

// model is a device group's model as a bit of kind.on.
func (p *Placer) model(d *cluster.Device) uint64 {
	if d.Model < 0 || d.Model > 63 {
		return 1 << 63
	}
	return 1 << d.Model
}

// wasted is what of a node's free cards the mix cannot use: for each kind all
// of it where the node cannot take one, else the cards that are not free
// enough.
func (r *room) wasted(m *mix, model uint64) int64 {
	total, partly, whole, largest := int64(0), int64(0), 0, int32(0)
	for _, f := range r.cards[:r.n] {
		total += int64(f)
		largest = max(largest, f)
		if f == milli {
			whole++
		} else {
			partly += int64(f)
		}
	}
	if total == 0 {
		return 0
	}
	sum := int64(0)
	for i := range m.kinds {
		k := &m.kinds[i]
		switch {
		case k.use.CPU > r.free.CPU || k.use.MemoryMB > r.free.MemoryMB || k.use.Cores > r.free.Cores,
			k.shares > 0 && int32(k.shares) > largest, k.shares == 0 && k.cards > whole,
			k.on&model == 0:
			sum += k.weight * total
		case k.shares == 0:
			sum += k.weight * partly
		default:
			for _, f := range r.cards[:r.n] {
				if f < int32(k.shares) {
					sum += k.weight * int64(f)
				}
			}
		}
	}
	return sum
}

// shareCard chooses the card of a device group for so many shares: not a
// suspect one, the one that leaves the least that the mix cannot use, then the
// one with the fewest shares left; -1: none has enough. The room is what is
// free on the node once the member has what it uses beside cards.
func (v *view) shareCard(r *room, d *cluster.Device, free []int32, shares int) int {
	best, waste := -1, int64(0)
	model := v.p.model(d)
	for i, f := range free {
		if int(f) < shares {
			continue
		}
		suspect := d.Suspect[i/64] >> (i % 64) & 1
		w := int64(suspect) << 60
		if len(v.p.mix.kinds) > 0 && i < r.n {
			before := r.cards[i]
			r.cards[i] -= int32(shares) * milli / d.Parts[i]
			w += r.wasted(&v.p.mix, model)
			r.cards[i] = before
		}
		if best < 0 || w < waste || w == waste && f < free[best] {
			best, waste = i, w
		}
	}
	return best
}
