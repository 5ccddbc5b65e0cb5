package cluster

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// Use is what one member holds on its node.
type Use struct {
	Node    int32
	Res     core.Resources
	Cards   []int32 // places among the node's cards
	Ports   []int   // static
	Dynamic int     // number of dynamic ports
}

// Mark is a point to which Rollback returns.
type Mark struct{ journal, bits int }

type saved struct {
	node  int32
	free  Free
	ports []int
	bits  int // where its words start in savedBits
	seq   uint64
}

// Mark starts a what-if; marks nest.
func (c *Cluster) Mark() Mark {
	c.mark++
	return Mark{len(c.journal), len(c.savedBits)}
}

// Rollback undoes everything since the mark.
func (c *Cluster) Rollback(m Mark) {
	for i := len(c.journal) - 1; i >= m.journal; i-- {
		s := &c.journal[i]
		node := &c.Nodes[s.node]
		c.free[s.node], c.ports[s.node] = s.free, s.ports
		at := s.bits
		for d := range node.Devices {
			dev := &node.Devices[d]
			copy(c.words[dev.Word:dev.Word+dev.Words], c.savedBits[at:])
			at += int(dev.Words)
		}
		c.Blocks[node.Block].Seq = s.seq
		s.ports = nil
	}
	c.journal, c.savedBits = c.journal[:m.journal], c.savedBits[:m.bits]
	c.mark++
}

// touch saves a node before its first change since the last mark.
func (c *Cluster) touch(n int32) {
	node := &c.Nodes[n]
	block := &c.Blocks[node.Block]
	before := block.Seq
	c.seq++
	block.Seq = c.seq
	if c.savedAt[n] == c.mark {
		return
	}
	c.savedAt[n] = c.mark
	c.journal = append(c.journal, saved{n, c.free[n], c.ports[n], len(c.savedBits), before})
	for d := range node.Devices {
		dev := &node.Devices[d]
		c.savedBits = append(c.savedBits, c.words[dev.Word:dev.Word+dev.Words]...)
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
		for i := range node.Devices {
			d := &node.Devices[i]
			if at := place - d.First; at >= 0 && at < int32(len(d.Src.Cards)) {
				c.words[d.Word+at/64] |= d.Usable[at/64] & (1 << (at % 64))
				break
			}
		}
	}
	if len(u.Ports) > 0 {
		c.ports[u.Node] = slices.DeleteFunc(slices.Clone(c.ports[u.Node]), func(p int) bool { return slices.Contains(u.Ports, p) })
	}
}
