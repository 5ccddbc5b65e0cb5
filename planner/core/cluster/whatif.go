package cluster

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// Use is what one member holds on its node.
type Use struct {
	Node    int32
	Res     core.Resources
	Cards   []int32 // places among the node's cards, of whole cards
	Parts   []Part
	Ports   []int // static
	Dynamic int   // number of dynamic ports
}

// Part is a number of shares of a card, by its place among the node's cards.
type Part struct{ Card, Shares int32 }

// Mark is a point to which Rollback returns.
type Mark struct{ journal, bits, parts int }

type saved struct {
	node  int32
	free  Free
	ports []int
	bits  int    // where its words start in savedBits
	parts int    // likewise in savedPart
	seq   uint64 // of its block
	stamp uint64
}

// Mark starts a what-if; marks nest.
func (c *Cluster) Mark() Mark {
	c.mark++
	return Mark{len(c.journal), len(c.savedBits), len(c.savedPart)}
}

// Rollback undoes everything since the mark.
func (c *Cluster) Rollback(m Mark) {
	for i := len(c.journal) - 1; i >= m.journal; i-- {
		s := &c.journal[i]
		node := &c.Nodes[s.node]
		c.free[s.node], c.ports[s.node] = s.free, s.ports
		at, part := s.bits, s.parts
		for d := range node.Devices {
			dev := &node.Devices[d]
			copy(c.words[dev.Word:dev.Word+dev.Words], c.savedBits[at:])
			at += int(dev.Words)
			if dev.Parts != nil {
				copy(c.parts[dev.Share:int(dev.Share)+len(dev.Parts)], c.savedPart[part:])
				part += len(dev.Parts)
			}
		}
		c.Blocks[node.Block].Seq, c.stamp[s.node] = s.seq, s.stamp
		s.ports = nil
	}
	c.journal, c.savedBits, c.savedPart = c.journal[:m.journal], c.savedBits[:m.bits], c.savedPart[:m.parts]
	c.mark++
}

// touch saves a node before its first change since the last mark.
func (c *Cluster) touch(n int32) {
	node := &c.Nodes[n]
	block := &c.Blocks[node.Block]
	before, stamp := block.Seq, c.stamp[n]
	c.seq++
	block.Seq, c.stamp[n] = c.seq, c.seq
	if c.savedAt[n] == c.mark {
		return
	}
	c.savedAt[n] = c.mark
	c.journal = append(c.journal, saved{n, c.free[n], c.ports[n], len(c.savedBits), len(c.savedPart), before, stamp})
	for d := range node.Devices {
		dev := &node.Devices[d]
		c.savedBits = append(c.savedBits, c.words[dev.Word:dev.Word+dev.Words]...)
		if dev.Parts != nil {
			c.savedPart = append(c.savedPart, c.FreeShares(dev)...)
		}
	}
}

// Take lets a member hold what it uses. The caller knows that it is free.
func (c *Cluster) Take(u *Use) {
	c.touch(u.Node)
	f := &c.free[u.Node]
	f.CPU -= u.Res.CPU
	f.Cores -= u.Res.Cores
	f.MemoryMB -= u.Res.MemoryMB
	f.DiskMB -= u.Res.DiskMB
	f.DynamicPorts -= u.Dynamic
	for _, place := range u.Cards {
		c.clear(&c.Nodes[u.Node], place)
	}
	for _, p := range u.Parts {
		c.takePart(&c.Nodes[u.Node], p)
	}
	if len(u.Ports) > 0 {
		ports := append(slices.Clone(c.ports[u.Node]), u.Ports...)
		slices.Sort(ports)
		c.ports[u.Node] = slices.Compact(ports)
	}
}

// Give takes back what a member holds. Cards that are not usable stay out.
func (c *Cluster) Give(u *Use) {
	c.touch(u.Node)
	f := &c.free[u.Node]
	f.CPU += u.Res.CPU
	f.Cores += u.Res.Cores
	f.MemoryMB += u.Res.MemoryMB
	f.DiskMB += u.Res.DiskMB
	f.DynamicPorts += u.Dynamic
	node := &c.Nodes[u.Node]
	for _, place := range u.Cards {
		d, at := node.Device(place)
		free := d.Usable[at/64] & (1 << (at % 64))
		c.words[d.Word+at/64] |= free
		if d.Parts != nil && free != 0 {
			c.parts[d.Share+at] = d.Parts[at]
		}
	}
	for _, p := range u.Parts {
		d, at := node.Device(p.Card)
		if free := d.Usable[at/64] & (1 << (at % 64)); free != 0 && d.Parts != nil {
			left := min(d.Parts[at], c.parts[d.Share+at]+p.Shares)
			c.parts[d.Share+at] = left
			if left == d.Parts[at] {
				c.words[d.Word+at/64] |= free
			}
		}
	}
	if len(u.Ports) > 0 {
		c.ports[u.Node] = slices.DeleteFunc(slices.Clone(c.ports[u.Node]), func(p int) bool { return slices.Contains(u.Ports, p) })
	}
}

// Free tells whether all that some members use is free now.
func (c *Cluster) Free(uses []Use) bool {
	mark := c.Mark()
	defer c.Rollback(mark)
	for i := range uses {
		u := &uses[i]
		if u.Node < 0 {
			continue
		}
		f := &c.free[u.Node]
		if f.CPU < u.Res.CPU || f.Cores < u.Res.Cores || f.MemoryMB < u.Res.MemoryMB || f.DiskMB < u.Res.DiskMB || f.DynamicPorts < u.Dynamic {
			return false
		}
		node := &c.Nodes[u.Node]
		for _, place := range u.Cards {
			d, at := node.Device(place)
			if d.Usable[at/64]>>(at%64)&1 == 1 && c.words[d.Word+at/64]>>(at%64)&1 == 0 {
				return false
			}
		}
		for _, p := range u.Parts {
			if d, at := node.Device(p.Card); d.Parts != nil && c.parts[d.Share+at] < p.Shares {
				return false
			}
		}
		for _, p := range u.Ports {
			if c.PortTaken(u.Node, p) {
				return false
			}
		}
		c.Take(u)
	}
	return true
}

// CardFree tells whether a whole card is free, by its place on the node, and
// PartFree how many shares of it are.
func (c *Cluster) CardFree(n, place int32) bool {
	d, at := c.Nodes[n].Device(place)
	return d != nil && c.words[d.Word+at/64]>>(at%64)&1 == 1
}

func (c *Cluster) PartFree(n, place int32) int32 {
	d, at := c.Nodes[n].Device(place)
	if d == nil || d.Parts == nil {
		return 0
	}
	return c.parts[d.Share+at]
}

// Words copies the free cards of all nodes into a buffer, by Device.Word.
func (c *Cluster) Words(buffer []uint64) []uint64 { return append(buffer[:0], c.words...) }

// Capacity counts the usable cards of each model on nodes that take members.
func (c *Cluster) Capacity() []int {
	out := make([]int, len(c.Models))
	for n := range c.Nodes {
		if !c.Nodes[n].Usable {
			continue
		}
		for d := range c.Nodes[n].Devices {
			if dev := &c.Nodes[n].Devices[d]; dev.Model >= 0 {
				out[dev.Model] += Count(dev.Usable)
			}
		}
	}
	return out
}

// CountCards adds the cards that a claim is charged for to counts by model. A
// share of a card counts as a card.
func (c *Cluster) CountCards(h *Hold, counts []int) {
	if h.Use.Node < 0 {
		return
	}
	node := &c.Nodes[h.Use.Node]
	for _, place := range h.CardsOf {
		if d, _ := node.Device(place); d != nil && d.Model >= 0 {
			counts[d.Model]++
		}
	}
}

// CardCount is how many of the devices at some places of a node are cards that
// are charged for. A share of a card counts as a card.
func (c *Cluster) CardCount(n int32, places []int32) int {
	if n < 0 {
		return 0
	}
	count := 0
	for _, place := range places {
		if d, _ := c.Nodes[n].Device(place); d != nil && d.Model >= 0 {
			count++
		}
	}
	return count
}

// Changed changes whenever any node does.
func (c *Cluster) Changed() uint64 { return c.changed }
