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
	c     *cluster.Cluster
	group *core.Group
	// model of each device ask; -1: any device, the ask is not for cards.
	model []int32
	// whole: the cards of a member lie in one NVLink domain.
	whole bool
	// single: at most one member a node.
	single bool
	unique []core.Constraint // over unique attributes: asked node by node
	named  []bool            // asks that name single cards
	avoid  map[int32]bool    // nodes
	avoidK map[core.CardID]bool
	cards  int // of one member

	classes []class
	static  []uint64 // of each block: nodes that could take a member when empty
	seenS   []uint64 // Block.Static + 1 at the last look
	seen    []uint64 // Block.Seq + 1 at the last look
	fit     []uint16 // members that each node takes now
	score   []int64  // of a member on it, lower is better
	total   []int32  // of each block
	best    []int32  // node of the lowest score in each block; -1: none
	scratch []uint64
}

// class is what a view knows of a node class.
type class struct {
	known, ok bool
	reason    core.Reason
	text      string
	asks      [][]int8 // device groups that serve each ask
	plain     bool     // each ask has one device group to itself
}

func newView(c *cluster.Cluster, g *core.Group, model []int32, gang *core.Gang) *view {
	v := &view{c: c, group: g, model: model, avoid: map[int32]bool{}, avoidK: map[core.CardID]bool{},
		whole: gang.Required && gang.Level == core.LevelLink}
	for _, k := range g.Constraints {
		if k.Operand == "distinct_hosts" && k.Right != "false" {
			v.single = true
		}
		if feasible.Unique(k.Left) || feasible.Unique(k.Right) {
			v.unique = append(v.unique, k)
		}
	}
	v.single = v.single || len(g.StaticPorts) > 0
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
			v.cards += g.Devices[i].Count
		}
	}
	blocks := len(c.Blocks)
	v.static, v.seen, v.seenS = make([]uint64, blocks), make([]uint64, blocks), make([]uint64, blocks)
	v.total, v.best = make([]int32, blocks), make([]int32, blocks)
	v.fit, v.score = make([]uint16, len(c.Nodes)), make([]int64, len(c.Nodes))
	return v
}

// refresh looks at every block that has changed.
func (v *view) refresh() {
	for b := range v.c.Blocks {
		block := &v.c.Blocks[b]
		if v.seen[b] == block.Seq+1 && v.seenS[b] == block.Static+1 {
			continue
		}
		v.look(int32(b))
	}
}

func (v *view) look(b int32) {
	block := &v.c.Blocks[b]
	if v.seenS[b] != block.Static+1 {
		set := uint64(0)
		for i := range block.Count {
			if v.feasible(block.First+i) == core.ReasonFits {
				set |= 1 << i
			}
		}
		v.static[b], v.seenS[b] = set, block.Static+1
	}
	v.seen[b] = block.Seq + 1
	total, best := int32(0), int32(-1)
	for i := range block.Count {
		n := block.First + i
		fit := 0
		if v.static[b]>>i&1 == 1 {
			fit = v.fits(n)
		}
		v.fit[n] = uint16(fit)
		if fit == 0 {
			continue
		}
		total += int32(fit)
		v.score[n] = v.rate(n)
		if best < 0 || v.score[n] < v.score[best] {
			best = n
		}
	}
	v.total[b], v.best[b] = total, best
}

// feasible tells whether a node could take a member if it were empty.
func (v *view) feasible(n int32) core.Reason {
	node := &v.c.Nodes[n]
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
	rep := v.c.Representative(number)
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
			if (v.model[i] < 0 || v.c.Models[v.model[i]] == rep.Devices[d].Name) && feasible.Device(&rep.Devices[d], &group.Devices[i]) {
				serve = append(serve, int8(d))
				used[d]++
			}
		}
		if len(serve) == 0 {
			k.reason, k.text = core.ReasonConstraint, "no device matches "+feasible.DeviceText(&group.Devices[i])
			if v.model[i] >= 0 {
				k.text = "no card of model " + string(v.c.Models[v.model[i]])
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

// most is a bound for members of one group on one node.
const most = 1 << 10

// fits counts the members that a node takes now.
func (v *view) fits(n int32) int {
	u, f := &v.group.Use, v.c.At(n)
	fit := most
	if v.single {
		fit = 1
	}
	for _, r := range [...][2]int64{{u.CPU, f.CPU}, {int64(u.Cores), int64(f.Cores)}, {u.MemoryMB, f.MemoryMB}, {u.DiskMB, f.DiskMB}, {int64(v.group.Ports), int64(f.DynamicPorts)}} {
		if r[0] > 0 {
			if r[1] < r[0] {
				return 0
			}
			fit = min(fit, int(r[1]/r[0]))
		}
	}
	for _, p := range v.group.StaticPorts {
		if v.c.PortTaken(n, p) {
			return 0
		}
	}
	if len(v.group.Devices) == 0 {
		return fit
	}
	node := &v.c.Nodes[n]
	k := v.class(node.Class)
	if k.plain {
		for i := range v.group.Devices {
			d := &node.Devices[k.asks[i][0]]
			count := v.group.Devices[i].Count
			if count == 0 {
				continue
			}
			free := v.c.FreeCards(d)
			if v.whole && v.model[i] >= 0 && count > 1 {
				sum := 0
				for _, island := range d.Islands {
					sum += cluster.CountBoth(free, island) / count
				}
				fit = min(fit, sum)
			} else {
				fit = min(fit, cluster.Count(free)/count)
			}
		}
		return fit
	}
	words := v.words(node)
	for m := range fit {
		if v.assign(node, words) == nil {
			return m
		}
	}
	return fit
}

// words copies a node's free cards, less those that the gang avoids.
func (v *view) words(node *cluster.Node) []uint64 {
	v.scratch = v.scratch[:0]
	for i := range node.Devices {
		d := &node.Devices[i]
		v.scratch = append(v.scratch, v.c.FreeCards(d)...)
		if len(v.avoidK) > 0 {
			words := v.scratch[len(v.scratch)-int(d.Words):]
			for k := range d.Src.Cards {
				if v.avoidK[d.Src.Cards[k].ID] {
					words[k/64] &^= 1 << (k % 64)
				}
			}
		}
	}
	return v.scratch
}

// assign chooses the cards of one more member out of words and takes them out
// of it. It returns, for each ask, the places among the node's cards; nil
// where a member does not fit. Asks are served in their order; an ask that
// several device groups can serve takes the first by affinity, then by the
// fewest free cards, that leaves enough for the asks behind it.
func (v *view) assign(node *cluster.Node, words []uint64) [][]int32 {
	out := make([][]int32, len(v.group.Devices))
	if v.assignFrom(0, node, v.class(node.Class), words, out) {
		return out
	}
	return nil
}

func (v *view) assignFrom(i int, node *cluster.Node, k *class, words []uint64, out [][]int32) bool {
	if i == len(v.group.Devices) {
		return true
	}
	ask := &v.group.Devices[i]
	if ask.Count == 0 {
		return v.assignFrom(i+1, node, k, words, out)
	}
	order := k.asks[i]
	if len(order) > 1 {
		order = slices.Clone(order)
		slices.SortStableFunc(order, func(a, b int8) int {
			da, db := &node.Devices[a], &node.Devices[b]
			if x, y := affinity(da.Src, ask), affinity(db.Src, ask); x != y {
				return y - x
			}
			return cluster.Count(v.of(node, da, words)) - cluster.Count(v.of(node, db, words))
		})
	}
	for _, at := range order {
		d := &node.Devices[at]
		free := v.of(node, d, words)
		if v.named[i] {
			free = slices.Clone(free)
			for c := range d.Src.Cards {
				if free[c/64]>>(c%64)&1 == 1 && !feasible.Card(d.Src, d.Src.Cards[c].ID, ask) {
					free[c/64] &^= 1 << (c % 64)
				}
			}
		}
		chosen := topology.Choose(d, free, ask.Count, v.whole && v.model[i] >= 0)
		if chosen == nil {
			continue
		}
		all := v.of(node, d, words)
		for _, c := range chosen {
			all[c/64] &^= 1 << (c % 64)
		}
		if v.assignFrom(i+1, node, k, words, out) {
			for j := range chosen {
				chosen[j] += d.First
			}
			out[i] = chosen
			return true
		}
		for _, c := range chosen {
			all[c/64] |= 1 << (c % 64)
		}
	}
	return false
}

// of is the part of a copy of a node's words that belongs to a device group.
func (v *view) of(node *cluster.Node, d *cluster.Device, words []uint64) []uint64 {
	from := d.Word - node.Devices[0].Word
	return words[from : from+d.Words]
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

// rate scores a node that takes at least one member; lower is better.
func (v *view) rate(n int32) int64 {
	node := &v.c.Nodes[n]
	s := int64(0)
	if node.Src.Suspect {
		s |= 1 << 60
	}
	wish := 0
	for _, a := range v.group.Affinities {
		if feasible.Constraint(node.Src, a.Constraint) {
			wish += a.Weight
		}
	}
	s += int64(1<<12-max(-1<<11, min(wish, 1<<11))) << 40
	left := 0
	k := v.class(node.Class)
	for i := range v.group.Devices {
		if v.model[i] >= 0 {
			left += cluster.Count(v.c.FreeCards(&node.Devices[k.asks[i][0]]))
		}
	}
	return s + int64(left)<<20
}
