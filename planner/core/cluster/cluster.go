// Package cluster is the cluster as the algorithms see it: nodes in the order
// of the topology, with dense numbers, and what is free on each, as integers
// and bit sets.
//
// It is brought up to date from each snapshot and keeps what it derived from
// nodes whose Version did not change and from allocations that are still
// there, so that a cycle costs what has changed. A what-if is marked and
// rolled back: a node is copied when it is first touched after a mark, and no
// trace of it remains.
//
// Units: CPU in MHz, memory and disk in MB, cores and cards in pieces.
//
// What is not known free is not free: a card that two allocations claim, that
// Nomad calls unhealthy or that is draining or quarantined is given to nobody,
// and an allocation that names an unknown card of a node blocks one card of it
// for each. Each contradiction is told as a notice.
package cluster

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// BlockSize is the most nodes of a block. Nodes of one block lie in the same
// domain of every level.
const BlockSize = 64

// Cluster is the dense state. Its zero value is empty and ready for Update.
type Cluster struct {
	// Ideal makes it the cluster as it would be empty and healthy: every node
	// takes members, every card is good, nothing is claimed.
	Ideal bool

	Nodes  []Node // ordered by domains, then by id
	Blocks []Block
	// Levels are the topology levels from the outside in; Domains of level l
	// are consecutive ranges of blocks.
	Levels []Level
	// Models of cards, by name; a Model number is a place in it.
	Models []core.Model
	// Shape changes whenever nodes, domains or models come or go: everything
	// derived by node number is void then.
	Shape uint64

	cardTypes []string
	levelKey  string
	byID      map[core.NodeID]int32
	at        []int32           // the number of the node at each place of the last snapshot, as a guess
	cards     map[cardKey]int32 // place of a card in its node
	modelNum  map[core.Model]int32
	classes   map[string]int32
	classRep  []*core.Node // a node of each class, as it was then

	free  []Free
	words []uint64 // cards that are wholly free, by Device.Word
	parts []int32  // free shares of each card, by Device.Share
	ports [][]int  // static ports in use, ordered
	stamp []uint64 // of each node: see Stamp

	gangs   map[core.GangID]int32
	gangIDs []core.GangID           // by number
	owner   []int32                 // scratch
	holds   []Hold                  // claims of the last snapshot, in its order
	on      [][]int32               // holds of each node
	odd     map[int32][]core.Notice // what is odd about the claims on a node
	spare   []Hold

	changed uint64
	seq     uint64 // last block state given out; never given out twice

	journal   []saved
	savedBits []uint64
	savedPart []int32
	savedAt   []uint64
	mark      uint64

	scratch []byte
}

// Node is one node with its dense numbers.
type Node struct {
	Src     *core.Node
	id      core.NodeID
	Version uint64
	Class   int32 // nodes of one class differ in nothing but unique attributes, cards and capacity
	Block   int32
	Bit     uint8
	Usable  bool // ready, eligible, not draining, not excluded
	Devices []Device
	cards   int32 // of all devices
}

// Device is one device group of a node.
type Device struct {
	Src     *core.DeviceGroup
	Model   int32 // -1: its type is not a card
	First   int32 // place of its first card among the node's cards
	Cards   int32
	Word    int32    // first word of its free cards
	Words   int32    //
	Usable  []uint64 // cards that may be given out when free
	Suspect []uint64
	// Islands are the sets of cards that reach each other over NVLink, in the
	// order of their first card. A card without a domain is in none.
	Islands [][]uint64
	// Links is the matrix of link counts, row by row; nil where none is known.
	Links []uint8
	// Flat: no card of the group is nearer to another than any other is.
	Flat bool
	// Parts is the number of shares of each card; nil where all are given out
	// whole only. Share is the place of the first card's free shares.
	Parts []int32
	Share int32
}

// Block is a run of at most BlockSize nodes.
type Block struct {
	First, Count int32
	Domain       []int32 // of each level
	Seq          uint64  // names the free state of its nodes: equal numbers, equal states
	Static       uint64  // changes with any of its nodes
}

// Level is one topology level.
type Level struct {
	Name    string
	Domains []Domain
}

// Domain is a run of blocks. Nodes for which the level is not known form
// domains that are marked Unknown: nothing is sure to be near on them.
type Domain struct {
	Name        string
	First, Last int32 // blocks, Last excluded
	Unknown     bool
}

// Free is what is free on a node beside cards and static ports.
type Free struct {
	CPU, MemoryMB, DiskMB int64
	Cores, DynamicPorts   int
}

type cardKey struct {
	node core.NodeID
	id   core.CardID
}

// At gives what is free on a node.
func (c *Cluster) At(n int32) Free { return c.free[n] }

// Stamp names the free state of a node as Block.Seq does that of a block.
func (c *Cluster) Stamp(n int32) uint64 { return c.stamp[n] }

// FreeCards gives the free cards of a device group as a bit set that must not
// be changed.
func (c *Cluster) FreeCards(d *Device) []uint64 { return c.words[d.Word : d.Word+d.Words] }

// FreeShares gives the free shares of each card of a device group that is
// given out in shares; it must not be changed. A card that is not usable has
// none.
func (c *Cluster) FreeShares(d *Device) []int32 {
	return c.parts[d.Share : int(d.Share)+len(d.Parts)]
}

// PortTaken tells whether a static port of a node is in use.
func (c *Cluster) PortTaken(n int32, port int) bool {
	_, found := slices.BinarySearch(c.ports[n], port)
	return found
}

// Number finds a node by id; -1 where it is unknown.
func (c *Cluster) Number(id core.NodeID) int32 {
	if n, ok := c.byID[id]; ok {
		return n
	}
	return -1
}

// Model finds a model's number; -1 where no node has it.
func (c *Cluster) Model(m core.Model) int32 {
	if n, ok := c.modelNum[m]; ok {
		return n
	}
	return -1
}

// ClassCount is the number of node classes, and Representative a node of one.
func (c *Cluster) ClassCount() int                   { return len(c.classRep) }
func (c *Cluster) Representative(k int32) *core.Node { return c.classRep[k] }

// CardPlace finds a card of a node: its place among the node's cards, or -1.
func (c *Cluster) CardPlace(n int32, id core.CardID) int32 {
	if p, ok := c.cards[cardKey{c.Nodes[n].Src.ID, id}]; ok {
		return p
	}
	return -1
}

// Level finds a topology level by name; -1 where there is none.
func (c *Cluster) Level(name string) int {
	return slices.IndexFunc(c.Levels, func(l Level) bool { return l.Name == name })
}

// IsCard tells whether devices of a type count as cards.
func (c *Cluster) IsCard(typ string) bool { return slices.Contains(c.cardTypes, typ) }

// usable tells whether a node takes new members at all.
func usable(n *core.Node) bool { return n.Ready && n.Eligible && !n.Draining && !n.Excluded }

// CardUsable tells whether a card may be given out when it is free.
func CardUsable(k *core.Card) bool { return k.Healthy && k.State <= core.CardSuspect }

// Count gives the size of a bit set.
func Count(set []uint64) int {
	n := 0
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}

// CountBoth gives the size of the intersection of two sets of one length.
func CountBoth(a, b []uint64) int {
	n := 0
	for i, w := range a {
		n += bits.OnesCount64(w & b[i])
	}
	return n
}

// signature is the text that equal nodes share: everything that a constraint
// or a device ask may look at except unique attributes. Card ids, health and
// links are left out: they are looked at card by card.
func (c *Cluster) signature(n *core.Node) []byte {
	b := c.scratch[:0]
	text := func(s string) {
		b = append(b, s...)
		b = append(b, 0)
	}
	text(n.Datacenter)
	text(n.Pool)
	text(n.Class)
	keys := make([]string, 0, len(n.Attributes)+len(n.Meta))
	for _, m := range []map[string]string{n.Attributes, n.Meta} {
		keys = keys[:0]
		for k := range m {
			if !strings.HasPrefix(k, "unique.") {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			text(k)
			text(m[k])
		}
		b = append(b, 1)
	}
	for _, m := range []map[string]bool{n.Drivers, n.Volumes} {
		keys = keys[:0]
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			text(k)
			if m[k] {
				b = append(b, 't')
			}
		}
		b = append(b, 1)
	}
	for i := range n.Devices {
		d := &n.Devices[i]
		text(d.Vendor)
		text(d.Type)
		text(string(d.Name))
		keys = keys[:0]
		for k := range d.Attributes {
			if k != cardsAttribute {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			text(k)
			b = appendAttribute(b, d.Attributes[k])
		}
		b = append(b, 1)
	}
	c.scratch = b
	return b
}

// cardsAttribute is the structured attribute in which the device plugin tells
// of single cards; a snapshot has it as Cards and Links.
const cardsAttribute = "muster_cards"

// FreeOf counts the free cards of a model on nodes that take members.
func (c *Cluster) FreeOf(model int32) int {
	sum := 0
	for n := range c.Nodes {
		if !c.Nodes[n].Usable {
			continue
		}
		for i := range c.Nodes[n].Devices {
			if d := &c.Nodes[n].Devices[i]; d.Model == model {
				sum += Count(c.FreeCards(d))
			}
		}
	}
	return sum
}

// Bad counts the cards of a group that are not to be given out.
func (d *Device) Bad() int { return len(d.Src.Cards) - Count(d.Usable) }
