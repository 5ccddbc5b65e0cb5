package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// mostShares bounds the shares of one card.
const mostShares = 1 << 16

// Hold is one claim with what its end would free. A card that another claim
// holds as well, as one that is asked for over an allocation that is stopping,
// is freed by neither alone and is not in Use, nor are the other resources of
// such a pair.
type Hold struct {
	Claim core.Claim
	Gang  int32 // number of the gang's id, see Gang; -1: not a gang's
	Use   Use   // Use.Node is -1 where the node is not known
	// CardsOf counts what it is charged for, by place among the node's cards,
	// whether its end would free them or not.
	CardsOf []int32
	// Odd is what contradicts something else in the snapshot about it; "": nothing.
	Odd string
}

// updateClaims takes over who holds what, and computes the nodes again on
// which anything changed.
func (c *Cluster) updateClaims(claims []core.Claim, changed []bool, all bool, notices *[]core.Notice) {
	old := c.holds
	if len(c.gangs) > 2*len(claims)+4096 { // most of them are over: number anew
		c.gangs, c.gangIDs, all = map[core.GangID]int32{}, nil, true
		for i := range old {
			if n := old[i].Use.Node; n >= 0 {
				changed[n] = true
			}
		}
	}
	c.holds = slices.Grow(c.spare[:0], len(claims))
	touch := func(n int32) {
		if n >= 0 {
			changed[n] = true
		}
	}
	// The claims of two cycles are mostly the same in the same order: walk
	// both, and where they differ mark the nodes of both sides.
	i := 0
	for j := range claims {
		k := &claims[j]
		if !all {
			for i < len(old) && old[i].Claim.Alloc != k.Alloc && i+1 < len(old) && old[i+1].Claim.Alloc == k.Alloc {
				touch(old[i].Use.Node) // gone: the old order is ahead by one
				i++
			}
			if i < len(old) && sameClaim(&old[i].Claim, k) {
				c.holds = append(c.holds, old[i])
				c.holds[j].Claim = *k
				i++
				continue
			}
			if i < len(old) && old[i].Claim.Alloc == k.Alloc {
				touch(old[i].Use.Node)
				i++
			}
		}
		h := Hold{Claim: *k, Gang: -1, Use: Use{Node: c.Number(k.Node)}}
		if k.Gang != "" {
			h.Gang = c.intern(k.Gang)
		}
		touch(h.Use.Node)
		c.holds = append(c.holds, h)
	}
	for ; i < len(old); i++ {
		touch(old[i].Use.Node)
	}
	clear(old)
	c.spare = old
	for n := range c.on {
		c.on[n] = c.on[n][:0]
	}
	for h := range c.holds {
		if n := c.holds[h].Use.Node; n >= 0 {
			c.on[n] = append(c.on[n], int32(h))
		} else {
			k := &c.holds[h].Claim
			c.holds[h].Odd = "is on node " + string(k.Node) + ", which is not known"
			*notices = append(*notices, core.Notice{Object: "allocation " + k.Alloc, Text: c.holds[h].Odd})
		}
	}
	for n := range c.Nodes {
		if !all && !changed[n] {
			continue
		}
		delete(c.odd, int32(n))
		var odd []core.Notice
		if c.compute(int32(n), &odd); len(odd) > 0 {
			c.odd[int32(n)] = odd
		}
	}
	for _, odd := range c.odd { // Update orders them
		*notices = append(*notices, odd...)
	}
}

// sameClaim compares what a node's state is computed from.
func sameClaim(a, b *core.Claim) bool {
	return a.Alloc == b.Alloc && a.Node == b.Node && a.Gang == b.Gang && a.Member == b.Member && a.Attempt == b.Attempt && a.Stopping == b.Stopping && a.Asked == b.Asked &&
		a.Use == b.Use && slices.Equal(a.Cards, b.Cards) && slices.Equal(a.Shares, b.Shares) && slices.Equal(a.Ports, b.Ports)
}

// Holds are the claims of the snapshot, in its order, and On those of a node.
func (c *Cluster) Holds() []Hold      { return c.holds }
func (c *Cluster) On(n int32) []int32 { return c.on[n] }
func (c *Cluster) Gang(id core.GangID) int32 {
	if n, ok := c.gangs[id]; ok {
		return n
	}
	return -1
}

// IsGang tells whether a number is that of a gang id.
func (c *Cluster) IsGang(ref int32, id core.GangID) bool {
	return int(ref) < len(c.gangIDs) && c.gangIDs[ref] == id
}

// Gangs is the number of gang ids that were ever numbered.
func (c *Cluster) Gangs() int { return len(c.gangs) }

func (c *Cluster) intern(id core.GangID) int32 {
	n, ok := c.gangs[id]
	if !ok {
		n = int32(len(c.gangs))
		c.gangs[id] = n
		c.gangIDs = append(c.gangIDs, id)
	}
	return n
}

// compute derives what is free on a node from its capacity and claims, and
// what the end of each claim would free.
func (c *Cluster) compute(n int32, notices *[]core.Notice) {
	node := &c.Nodes[n]
	src := node.Src
	lowest, highest := portRange(src)
	f := Free{CPU: src.Capacity.CPU, Cores: src.Capacity.Cores, MemoryMB: src.Capacity.MemoryMB, DiskMB: src.Capacity.DiskMB, DynamicPorts: highest - lowest + 1}
	ports := append([]int(nil), src.ReservedPorts...)
	for i := range node.Devices {
		d := &node.Devices[i]
		copy(c.FreeCards(d), d.Usable)
		for k := range d.Parts {
			c.parts[int(d.Share)+k] = 0
			if d.Usable[k/64]>>(k%64)&1 == 1 {
				c.parts[int(d.Share)+k] = d.Parts[k]
			}
		}
	}
	on := c.on[n]
	slices.SortFunc(on, func(a, b int32) int { return compareClaims(&c.holds[a].Claim, &c.holds[b].Claim) })
	c.owner = slices.Grow(c.owner[:0], int(node.cards))[:node.cards]
	for i := range c.owner {
		c.owner[i] = -1
	}
	shared, unknown := false, 0
	for _, h := range on {
		hold := &c.holds[h]
		k := &hold.Claim
		hold.Use, hold.Odd = Use{Node: n, Res: k.Use}, ""
		// Cards keep their places: those of a claim that was there before are
		// not looked up again.
		known := len(hold.CardsOf) == len(k.Cards)
		if !known {
			hold.CardsOf = make([]int32, 0, len(k.Cards))
		}
		whole := hold.CardsOf[:0]
		if len(k.Shares) > 0 {
			whole = nil
		}
		for at, id := range k.Cards {
			place := int32(0)
			if known {
				place = hold.CardsOf[at]
			} else {
				if place = c.CardPlace(n, id); place < 0 {
					*notices = append(*notices, core.Notice{Object: "card " + string(id), Text: fmt.Sprintf("is held by allocation %s but node %s does not have it; one of its cards is kept back", k.Alloc, src.Name)})
					hold.Odd = fmt.Sprintf("holds card %s, which node %s does not have", id, src.Name)
					unknown++
					continue
				}
				hold.CardsOf = append(hold.CardsOf, place)
			}
			if at < len(k.Shares) && k.Shares[at] > 0 {
				part := Part{place, int32(min(k.Shares[at], mostShares))}
				hold.Use.Parts = append(hold.Use.Parts, part)
				c.takePart(node, part)
				continue
			}
			whole = append(whole, place)
			c.clear(node, place)
			by := c.owner[place]
			if by < 0 {
				c.owner[place] = h
				continue
			}
			shared = true
			other := &c.holds[by].Claim
			if by == h || !(k.Asked && other.Stopping || k.Stopping && other.Asked) {
				*notices = append(*notices, core.Notice{Object: "card " + string(id), Text: fmt.Sprintf("is held by allocations %s and %s of node %s", min(other.Alloc, k.Alloc), max(other.Alloc, k.Alloc), src.Name)})
				hold.Odd = fmt.Sprintf("holds card %s of node %s, which allocation %s holds as well", id, src.Name, other.Alloc)
				c.holds[by].Odd = fmt.Sprintf("holds card %s of node %s, which allocation %s holds as well", id, src.Name, k.Alloc)
			}
		}
		hold.Use.Cards = whole
		for _, p := range k.Ports {
			ports = append(ports, p)
			if p >= lowest && p <= highest {
				hold.Use.Dynamic++
			} else {
				hold.Use.Ports = append(hold.Use.Ports, p)
			}
		}
	}
	if shared {
		c.share(on)
	}
	c.keepBack(node, unknown)
	var stopping, asked core.Resources
	for _, h := range on {
		k := &c.holds[h].Claim
		into := &stopping
		switch {
		case c.holds[h].Use.Res == k.Use:
			f.sub(&k.Use)
			continue
		case k.Asked:
			into = &asked
		}
		into.CPU += k.Use.CPU
		into.Cores += k.Use.Cores
		into.MemoryMB += k.Use.MemoryMB
		into.DiskMB += k.Use.DiskMB
	}
	f.sub(&core.Resources{CPU: max(stopping.CPU, asked.CPU), Cores: max(stopping.Cores, asked.Cores), MemoryMB: max(stopping.MemoryMB, asked.MemoryMB), DiskMB: max(stopping.DiskMB, asked.DiskMB)})
	slices.Sort(ports)
	ports = slices.Compact(ports)
	for _, p := range ports {
		if p >= lowest && p <= highest {
			f.DynamicPorts--
		}
	}
	c.free[n], c.ports[n] = f, ports
	c.seq++
	c.Blocks[node.Block].Seq, c.stamp[n] = c.seq, c.seq
}

// keepBack takes so many of a node's free cards out, the last ones first: some
// allocation holds cards of the node that the node does not name.
func (c *Cluster) keepBack(node *Node, cards int) {
	for i := len(node.Devices) - 1; i >= 0; i-- {
		d := &node.Devices[i]
		for k := int32(len(d.Src.Cards)) - 1; k >= 0 && cards > 0 && d.Model >= 0; k-- {
			if c.words[d.Word+k/64]>>(k%64)&1 == 1 {
				c.clear(node, d.First+k)
				cards--
			}
		}
	}
}

// share takes cards that several claims hold whole out of what each would
// free, and the other resources of those claims.
func (c *Cluster) share(on []int32) {
	count := map[int32]int{}
	for _, h := range on {
		for _, place := range c.holds[h].Use.Cards {
			count[place]++
		}
	}
	for _, h := range on {
		hold := &c.holds[h]
		alone := make([]int32, 0, len(hold.Use.Cards))
		for _, place := range hold.Use.Cards {
			if count[place] == 1 {
				alone = append(alone, place)
			}
		}
		if len(alone) < len(hold.Use.Cards) {
			hold.Use = Use{Node: hold.Use.Node, Cards: alone, Parts: hold.Use.Parts}
		}
	}
}

func (f *Free) sub(r *core.Resources) {
	f.CPU -= r.CPU
	f.Cores -= r.Cores
	f.MemoryMB -= r.MemoryMB
	f.DiskMB -= r.DiskMB
}

func compareClaims(a, b *core.Claim) int {
	return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Member, b.Member), cmp.Compare(a.Alloc, b.Alloc))
}

// clear takes a whole card out of the free ones.
func (c *Cluster) clear(node *Node, place int32) {
	d, at := node.Device(place)
	c.words[d.Word+at/64] &^= 1 << (at % 64)
	if d.Parts != nil {
		c.parts[d.Share+at] = 0
	}
}

// takePart takes shares of a card.
func (c *Cluster) takePart(node *Node, p Part) {
	d, at := node.Device(p.Card)
	c.words[d.Word+at/64] &^= 1 << (at % 64)
	if d.Parts != nil {
		c.parts[d.Share+at] = max(0, c.parts[d.Share+at]-p.Shares)
	}
}
