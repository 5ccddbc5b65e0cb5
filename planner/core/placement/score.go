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
//	bits 14..44  what the place costs the mix of gangs seen lately, in steps of
//	             a fiftieth of a card: see below
//	bits  0..13  free cards left, in fractions; the fewest, or the most where
//	             members are spread out
//
// With packing = "binpack" the last two change places; with "spread" only the
// last counts, the most left being best. "auto" packs by cost, and spreads
// among equals where the mix hardly asks for more than one card of a node.
//
// The cost of a place is the sum of
//
//   - fragmentation (Weng et al., FGD, ATC'23): by how much the free cards grow
//     that the kinds of the mix cannot use, each kind by its frequency: all of a
//     node's where it cannot take one more of the kind, else those cards that
//     are not free enough. It counts nine tenths;
//   - one tenth: the same, if the node were filled with the kind: what is left
//     over then for want of CPU or memory, or as a remainder, is lost too;
//   - the cards taken, times what their model is in demand for: the demand of
//     the kinds that accept it over the cards of all models that they accept,
//     compared with the demand for all cards. So gangs that can run anywhere
//     leave models alone that others cannot do without.
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
	spread bool // hardly any asks for more than one card
	// pressure is the demand for each model, of the first 64, in thousandths of
	// the demand for a card of any model.
	pressure [64]int64
}

// kind is one shape of member, with its weight in parts of all.
type kind struct {
	use    core.Resources
	cards  int
	shares int // thousandths of a card; 0: whole cards
	models []core.Model
	on     uint64 // of the placer's models, the first 64: that it accepts
	weight int64
}

// parts is the sum of all weights.
const parts = 100_000

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
	demand, several := int64(0), int64(0)
	for i := range m.kinds {
		k := &m.kinds[i]
		k.weight = max(1, k.weight*parts/max(1, total))
		cards := k.weight * int64(k.cards) * milli
		if k.shares > 0 {
			cards = k.weight * int64(k.shares)
		}
		demand += cards
		if k.cards > 1 {
			several += cards
		}
	}
	m.spread = demand > 0 && several*100 < demand
	return m
}

// press finds the demand for each model.
func (m *mix) press(capacity []int) {
	all, total := int64(0), int64(0)
	for _, c := range capacity {
		total += int64(c)
	}
	if total == 0 {
		return
	}
	for i := range m.kinds {
		k := &m.kinds[i]
		cards := k.weight * int64(k.cards*milli+k.shares)
		accepted := int64(0)
		for at, c := range capacity {
			if k.on>>min(at, 63)&1 == 1 {
				accepted += int64(c)
			}
		}
		if accepted == 0 {
			continue
		}
		all += cards
		for at := range capacity[:min(len(capacity), 64)] {
			if k.on>>at&1 == 1 {
				m.pressure[at] += cards * total / accepted
			}
		}
	}
	for at := range m.pressure {
		m.pressure[at] = m.pressure[at] * 1000 / max(1, all)
	}
}

func (m *mix) equal(o *mix) bool {
	return m.spread == o.spread && m.pressure == o.pressure && slices.EqualFunc(m.kinds, o.kinds, func(a, b kind) bool {
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
	fragment = half + max(-half, min(floor(fragment, step), half-1))
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

// A cost is in thousandths of a card, of the mix and of a tenth; it is compared
// in steps, since smaller differences mean nothing. Pressure counts three
// tenths of the cards taken.
const (
	lookahead = 1
	pressing  = 3
	step      = 20 * parts * 10
)

// floor divides, rounding down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b != 0 && a < 0 {
		q--
	}
	return q
}

// taken is what a member takes of cards of a device group's model, in
// thousandths.
func (v *view) taken(d *cluster.Device) int64 {
	sum := int64(0)
	for i := range v.group.Devices {
		switch {
		case v.model[i] < 0 || v.model[i] != d.Model:
		case v.group.Devices[i].Shares > 0 && d.Parts != nil:
			sum += int64(v.group.Devices[i].Shares) * milli / int64(max(1, d.Parts[0]))
		default:
			sum += int64(v.group.Devices[i].Count) * milli
		}
	}
	return sum
}

// fragment is what a member's coming to a node costs the mix.
func (v *view) fragment(n int32, d *cluster.Device) int64 {
	var r room
	v.state(n, d, &r)
	model := v.p.model(d)
	before := v.p.waste(n, d, &r)
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
	after := r.wasted(&v.p.mix, model)
	if taken := v.taken(d); taken > 0 && d.Model >= 0 {
		after += pressing * taken * v.p.mix.pressure[min(d.Model, 63)] * (parts / 1000)
	}
	return after - before
}

// waste is what of the free cards of a node's device group the mix cannot use,
// kept as long as nothing on the node changes.
func (p *Placer) waste(n int32, d *cluster.Device, r *room) int64 {
	if len(p.wastes) != len(p.c.Nodes) {
		p.wastes = make([]waste, len(p.c.Nodes))
	}
	w := &p.wastes[n]
	if stamp := p.c.Stamp(n) + 1; w.stamp != stamp || w.first != d.First {
		*w = waste{stamp, d.First, r.wasted(&p.mix, p.model(d))}
	}
	return w.amount
}

// waste is an amount with the state of the node, and the device group, that it
// is of.
type waste struct {
	stamp  uint64
	first  int32
	amount int64
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

// wasted is what of a node's free cards the mix cannot use, nine parts now and
// one part if the node were filled with each kind.
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
		now, times := int64(0), 0
		switch {
		case k.use.CPU > r.free.CPU || k.use.MemoryMB > r.free.MemoryMB || k.use.Cores > r.free.Cores,
			k.shares > 0 && int32(k.shares) > largest, k.shares == 0 && (k.cards > whole || k.cards == 0),
			k.on&model == 0:
			sum += 10 * k.weight * total
			continue
		case k.shares == 0:
			now, times = partly, whole/k.cards
		default:
			for _, f := range r.cards[:r.n] {
				if f < int32(k.shares) {
					now += int64(f)
				}
				times += int(f) / k.shares
			}
		}
		if k.use.CPU > 0 {
			times = min(times, int(r.free.CPU/k.use.CPU))
		}
		if k.use.MemoryMB > 0 {
			times = min(times, int(r.free.MemoryMB/k.use.MemoryMB))
		}
		if k.use.Cores > 0 {
			times = min(times, r.free.Cores/k.use.Cores)
		}
		filled := total - int64(times)*int64(k.cards*milli+k.shares)
		sum += k.weight * ((10-lookahead)*now + lookahead*filled)
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
