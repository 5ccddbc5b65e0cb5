package placement

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/feasible"
	"github.com/nomad-muster/muster/planner/core/topology"
)

// view is how one kind of member sees the cluster: how many of it each node
// can take now, and how well. It follows the cluster block by block and looks
// only at blocks that have changed since.
type view struct {
	p     *Placer
	group *core.Group
	// model of each device ask; -1: any device, the ask is not for cards.
	model  []int32
	whole  bool              // the cards of a member lie in one NVLink domain
	single bool              // at most one member a node
	spread bool              // members are to be spread out
	unique []core.Constraint // over unique attributes: asked node by node
	named  []bool            // asks that name single cards
	avoid  map[int32]bool    // nodes
	avoidK map[core.CardID]bool
	cards  int   // of one member
	order  []int // asks in the order of assigning: cards first

	distinctProperty bool

	classes []class
	static  []uint64 // of each block: nodes that could take a member when empty
	seenS   []uint64 // Block.Static + 1 at the last look
	seen    []uint64 // Block.Seq + 1 at the last look
	at      []uint64 // Stamp + 1 of each node at the last look
	fit     []uint16 // members that each node takes now
	score   []int64  // of a member on it
	total   []int32  // of each block
	most    []uint16 // the most that a node of each block takes
	best    []int32  // node of the lowest score in each block
	scratch free
	later   []uint64 // see Options.Later
	used    uint64   // age when a request was last seen to have it
}

// free is a copy of a node's free cards, to be used up while choosing.
type free struct {
	words []uint64
	parts []int32
	node  *cluster.Node
	part0 int32 // Share of the first device group with shares
}

// class is what a view knows of a node class.
type class struct {
	known, ok bool
	reason    core.Reason
	text      string
	asks      [][]int8 // device groups that serve each ask
	plain     bool     // each ask has one device group to itself
}

// most is a bound for members of one group on one node.
const most = 1 << 12

func newView(p *Placer, g *core.Group, model []int32, gang *core.Gang) *view {
	c := p.c
	v := &view{p: p, group: g, model: model, avoid: map[int32]bool{}, avoidK: map[core.CardID]bool{},
		whole: gang.Required && gang.Level == core.LevelLink, spread: gang.Spread || gang.Service}
	for _, k := range g.Constraints {
		switch {
		case k.Operand == "distinct_property":
			v.distinctProperty = true
		case feasible.Unique(k.Left) || feasible.Unique(k.Right):
			v.unique = append(v.unique, k)
		}
	}
	v.single = distinctHosts(g) || len(g.StaticPorts) > 0
	for _, id := range gang.AvoidNodes {
		if n := c.Number(id); n >= 0 {
			v.avoid[n] = true
		}
	}
	for _, id := range gang.AvoidCards {
		v.avoidK[id] = true
	}
	for i := range g.Devices {
		v.named = append(v.named, feasible.NamesCards(&g.Devices[i]))
		if model[i] >= 0 {
			v.cards += max(1, g.Devices[i].Count)
			v.order = append(v.order, i)
		}
	}
	for i := range g.Devices {
		if model[i] < 0 {
			v.order = append(v.order, i)
		}
	}
	blocks := len(c.Blocks)
	v.static, v.seen, v.seenS = make([]uint64, blocks), make([]uint64, blocks), make([]uint64, blocks)
	v.total, v.best, v.most = make([]int32, blocks), make([]int32, blocks), make([]uint16, blocks)
	v.at, v.fit, v.score = make([]uint64, len(c.Nodes)), make([]uint16, len(c.Nodes)), make([]int64, len(c.Nodes))
	return v
}

// refresh looks at every block that has changed.
func (v *view) refresh() {
	for b := range v.p.c.Blocks {
		block := &v.p.c.Blocks[b]
		if v.seen[b] != block.Seq+1 || v.seenS[b] != block.Static+1 {
			v.look(int32(b))
		}
	}
}

// again makes all nodes be scored again.
func (v *view) again() {
	clear(v.seen)
	clear(v.at)
}

func (v *view) look(b int32) {
	block := &v.p.c.Blocks[b]
	if v.seenS[b] != block.Static+1 {
		set := uint64(0)
		for i := range block.Count {
			if v.feasible(block.First+i) == core.ReasonFits {
				set |= 1 << i
			}
			v.at[block.First+i] = 0
		}
		v.static[b], v.seenS[b] = set, block.Static+1
	}
	v.seen[b] = block.Seq + 1
	total, best, largest := int32(0), int32(-1), uint16(0)
	for i := range block.Count {
		n := block.First + i
		if stamp := v.p.c.Stamp(n) + 1; v.at[n] != stamp {
			v.at[n], v.fit[n] = stamp, 0
			if v.static[b]>>i&1 == 1 {
				v.fit[n] = uint16(v.fits(n))
			}
			if v.fit[n] > 0 {
				v.score[n] = v.rate(n)
			}
		}
		if v.fit[n] == 0 {
			continue
		}
		total += int32(v.fit[n])
		largest = max(largest, v.fit[n])
		if best < 0 || v.score[n] < v.score[best] {
			best = n
		}
	}
	v.total[b], v.best[b], v.most[b] = total, best, largest
}

// feasible tells whether a node could take a member if it were empty.
func (v *view) feasible(n int32) core.Reason {
	node := &v.p.c.Nodes[n]
	if !node.Usable || v.avoid[n] {
		return core.ReasonExcluded
	}
	k := v.class(node.Class)
	if !k.ok {
		return k.reason
	}
	for _, c := range v.unique {
		if !feasible.Constraint(node.Src, c) {
			return core.ReasonConstraint
		}
	}
	return core.ReasonFits
}

func (v *view) class(number int32) *class {
	for int(number) >= len(v.classes) {
		v.classes = append(v.classes, class{})
	}
	k := &v.classes[number]
	if k.known {
		return k
	}
	k.known = true
	c := v.p.c
	rep := c.Representative(number)
	group := *v.group
	if len(v.unique) > 0 {
		group.Constraints = slices.DeleteFunc(slices.Clone(group.Constraints), func(c core.Constraint) bool {
			return feasible.Unique(c.Left) || feasible.Unique(c.Right)
		})
	}
	if k.reason, k.text = feasible.Check(rep, &group); k.reason != core.ReasonFits {
		return k
	}
	used := make([]int, len(rep.Devices))
	k.plain = true
	for i := range group.Devices {
		var serve []int8
		for d := range rep.Devices {
			if (v.model[i] < 0 || c.Models[v.model[i]] == rep.Devices[d].Name) && feasible.Device(&rep.Devices[d], &group.Devices[i]) {
				serve = append(serve, int8(d))
				used[d]++
			}
		}
		if len(serve) == 0 {
			k.reason, k.text = core.ReasonConstraint, "no device matches "+feasible.DeviceText(&group.Devices[i])
			if v.model[i] >= 0 {
				k.text = "no card of model " + string(c.Models[v.model[i]])
			}
			return k
		}
		k.plain = k.plain && len(serve) == 1
		k.asks = append(k.asks, serve)
	}
	k.plain = k.plain && !slices.ContainsFunc(used, func(n int) bool { return n > 1 }) && !slices.Contains(v.named, true) && len(v.avoidK) == 0
	k.ok = true
	return k
}

// resources tells whether a node has what one member uses beside devices.
func (v *view) resources(n int32) bool { return v.byResources(n) > 0 }

func (v *view) byResources(n int32) int {
	u, f := &v.group.Use, v.p.c.At(n)
	fit := most
	if v.single {
		fit = 1
	}
	if f.CPU < u.CPU || f.MemoryMB < u.MemoryMB || f.DiskMB < u.DiskMB || f.Cores < u.Cores || f.DynamicPorts < v.group.Ports {
		return 0
	}
	if u.CPU > 0 {
		fit = min(fit, int(f.CPU/u.CPU))
	}
	if u.MemoryMB > 0 {
		fit = min(fit, int(f.MemoryMB/u.MemoryMB))
	}
	if u.DiskMB > 0 {
		fit = min(fit, int(f.DiskMB/u.DiskMB))
	}
	if u.Cores > 0 {
		fit = min(fit, f.Cores/u.Cores)
	}
	if v.group.Ports > 0 {
		fit = min(fit, f.DynamicPorts/v.group.Ports)
	}
	for _, p := range v.group.StaticPorts {
		if v.p.c.PortTaken(n, p) {
			return 0
		}
	}
	return fit
}

// fits counts the members that a node takes now.
func (v *view) fits(n int32) int {
	fit := v.byResources(n)
	if fit == 0 || len(v.group.Devices) == 0 {
		return fit
	}
	c := v.p.c
	node := &c.Nodes[n]
	k := v.class(node.Class)
	if !k.plain {
		free := v.copyFree(node)
		for m := range fit {
			if v.assign(node, free) == nil {
				return m
			}
		}
		return fit
	}
	for i := range v.group.Devices {
		ask := &v.group.Devices[i]
		d := &node.Devices[k.asks[i][0]]
		sum := 0
		switch {
		case ask.Shares > 0:
			if d.Parts == nil {
				return 0
			}
			for _, f := range c.FreeShares(d) {
				sum += int(f) / ask.Shares
			}
		case ask.Count == 0:
			continue
		case v.whole && v.model[i] >= 0 && ask.Count > 1:
			for _, island := range d.Islands {
				sum += cluster.CountBoth(c.FreeCards(d), island) / ask.Count
			}
		default:
			sum = cluster.Count(c.FreeCards(d)) / ask.Count
		}
		if fit = min(fit, sum); fit == 0 {
			return 0
		}
	}
	return fit
}

// copyFree copies a node's free cards, less those that the gang avoids.
func (v *view) copyFree(node *cluster.Node) *free {
	f := &v.scratch
	f.words, f.parts, f.node, f.part0 = f.words[:0], f.parts[:0], node, -1
	for i := range node.Devices {
		d := &node.Devices[i]
		f.words = append(f.words, v.p.c.FreeCards(d)...)
		if d.Parts != nil {
			if f.part0 < 0 {
				f.part0 = d.Share
			}
			f.parts = append(f.parts, v.p.c.FreeShares(d)...)
		}
		if len(v.avoidK) > 0 {
			for k := range d.Src.Cards {
				if v.avoidK[d.Src.Cards[k].ID] {
					f.of(d)[k/64] &^= 1 << (k % 64)
					if d.Parts != nil {
						f.sharesOf(d)[k] = 0
					}
				}
			}
		}
	}
	return f
}

// of is the part of the copy that belongs to a device group.
func (f *free) of(d *cluster.Device) []uint64 {
	from := d.Word - f.node.Devices[0].Word
	return f.words[from : from+d.Words]
}

func (f *free) sharesOf(d *cluster.Device) []int32 {
	from := d.Share - f.part0
	return f.parts[from : int(from)+len(d.Parts)]
}

// assign chooses the cards of one more member out of a copy and takes them out
// of it. It returns, for each ask, the places among the node's cards; nil
// where a member does not fit. Asks for cards come before others; an ask that
// several device groups can serve takes the first by affinity, then by the
// fewest free cards, that leaves enough for the asks behind it.
func (v *view) assign(node *cluster.Node, free *free) [][]int32 {
	out := make([][]int32, len(v.group.Devices))
	if v.assignFrom(0, node, v.class(node.Class), free, out) {
		for i := range out {
			if len(out[i]) == 0 {
				continue
			}
			// places within the device group become places within the node
			first := out[i][0]
			for j := 1; j < len(out[i]); j++ {
				out[i][j] += first
			}
			out[i] = out[i][1:]
		}
		return out
	}
	return nil
}

func (v *view) assignFrom(step int, node *cluster.Node, k *class, free *free, out [][]int32) bool {
	if step == len(v.order) {
		return true
	}
	i := v.order[step]
	ask := &v.group.Devices[i]
	if ask.Count == 0 && ask.Shares == 0 {
		return v.assignFrom(step+1, node, k, free, out)
	}
	groups := k.asks[i]
	if len(groups) > 1 {
		groups = slices.Clone(groups)
		slices.SortStableFunc(groups, func(a, b int8) int {
			x, y := &node.Devices[a], &node.Devices[b]
			if p, q := affinity(x.Src, ask), affinity(y.Src, ask); p != q {
				return q - p
			}
			return cluster.Count(free.of(x)) - cluster.Count(free.of(y))
		})
	}
	for _, at := range groups {
		d := &node.Devices[at]
		if ask.Shares > 0 {
			if d.Parts == nil {
				continue
			}
			shares := free.sharesOf(d)
			var r room
			v.state(v.p.c.Number(node.Src.ID), d, &r)
			v.use(&r)
			for c, f := range shares[:r.n] {
				r.cards[c] = f * milli / d.Parts[c]
			}
			card := v.shareCard(&r, d, shares, ask.Shares)
			if card < 0 {
				continue
			}
			was, bit := free.of(d)[card/64], uint64(1)<<(card%64)
			shares[card] -= int32(ask.Shares)
			free.of(d)[card/64] &^= bit
			out[i] = []int32{d.First, int32(card)}
			if v.assignFrom(step+1, node, k, free, out) {
				return true
			}
			shares[card] += int32(ask.Shares)
			free.of(d)[card/64] = was
			continue
		}
		have := free.of(d)
		if v.named[i] {
			have = slices.Clone(have)
			for c := range d.Src.Cards {
				if have[c/64]>>(c%64)&1 == 1 && !feasible.Card(d.Src, d.Src.Cards[c].ID, ask) {
					have[c/64] &^= 1 << (c % 64)
				}
			}
		}
		var chosen []int32
		if v.model[i] < 0 {
			chosen = topology.Nearest(d, have, ask.Count, v.chosenCards(node, out))
		} else {
			chosen = topology.Choose(d, have, ask.Count, v.whole, v.costs(d))
		}
		if chosen == nil {
			continue
		}
		all := free.of(d)
		for _, c := range chosen {
			all[c/64] &^= 1 << (c % 64)
			if d.Parts != nil {
				free.sharesOf(d)[c] = 0
			}
		}
		out[i] = append([]int32{d.First}, chosen...)
		if v.assignFrom(step+1, node, k, free, out) {
			return true
		}
		out[i] = nil
		for _, c := range chosen {
			all[c/64] |= 1 << (c % 64)
			if d.Parts != nil {
				free.sharesOf(d)[c] = d.Parts[c]
			}
		}
	}
	return false
}

// costs are 1 for cards that are free now where a place is sought for later.
func (v *view) costs(d *cluster.Device) []uint8 {
	if v.later == nil {
		return nil
	}
	now := v.later[d.Word : d.Word+d.Words]
	out := make([]uint8, len(d.Src.Cards))
	for k := range out {
		out[k] = uint8(now[k/64] >> (k % 64) & 1)
	}
	return out
}

// chosenCards are the cards that a member was given so far.
func (v *view) chosenCards(node *cluster.Node, out [][]int32) []*core.Card {
	var cards []*core.Card
	for i := range out {
		if v.model[i] < 0 || len(out[i]) == 0 {
			continue
		}
		for d := range node.Devices {
			if dev := &node.Devices[d]; dev.First == out[i][0] && dev.Model == v.model[i] {
				for _, at := range out[i][1:] {
					cards = append(cards, &dev.Src.Cards[at])
				}
				break
			}
		}
	}
	return cards
}

// affinity sums the weights of an ask's affinities that a device group meets.
func affinity(d *core.DeviceGroup, a *core.DeviceAsk) int {
	sum := 0
	for _, f := range a.Affinities {
		if feasible.DeviceConstraint(d, f.Constraint) {
			sum += f.Weight
		}
	}
	return sum
}
