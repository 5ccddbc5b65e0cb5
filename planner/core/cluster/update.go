package cluster

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// Update brings the cluster to a snapshot's state and tells of contradictions
// in it, ordered by object. It must not be called between a Mark and its
// Rollback.
func (c *Cluster) Update(s *core.Snapshot) []core.Notice {
	var notices []core.Notice
	changed, rebuilt := c.updateNodes(s, &notices)
	claims := s.Claims
	if c.Ideal {
		claims = nil
	}
	c.updateClaims(claims, changed, rebuilt, &notices)
	slices.SortStableFunc(notices, func(a, b core.Notice) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Text, b.Text))
	})
	return slices.Compact(notices)
}

// updateNodes returns the nodes whose state must be computed again, and
// whether all were numbered anew.
func (c *Cluster) updateNodes(s *core.Snapshot, notices *[]core.Notice) (changed []bool, rebuilt bool) {
	levels := levelNames(s.Config.Levels)
	key := levels + "\x00" + strings.Join(cardTypes(s.Config), "\x00")
	same := len(s.Nodes) == len(c.Nodes) && key == c.levelKey && c.byID != nil
	changed = make([]bool, len(c.Nodes))
	for i := 0; same && i < len(s.Nodes); i++ {
		n := &s.Nodes[i]
		at := c.at[i] // where the node of this place was the last time
		if c.Nodes[at].id != n.ID {
			var ok bool
			if at, ok = c.byID[n.ID]; !ok {
				same = false // a new node
				break
			}
			c.at[i] = at
		}
		if changed[at] {
			same = false // it is listed twice
			break
		}
		old := &c.Nodes[at]
		if old.Version == n.Version && old.Src.ID == n.ID {
			continue
		}
		if !slices.Equal(old.Src.Domains, n.Domains) || !sameDevices(old.Src, n) {
			same = false
			break
		}
		c.fillNode(at, n)
		c.Blocks[old.Block].Static++
		c.changed++
		changed[at] = true
	}
	if same {
		return changed, false
	}
	c.rebuild(s, key, notices)
	return make([]bool, len(c.Nodes)), true
}

// sameDevices tells whether two versions of a node have the same cards in the
// same places, so that only their health may differ.
func sameDevices(a, b *core.Node) bool {
	return slices.EqualFunc(a.Devices, b.Devices, func(x, y core.DeviceGroup) bool {
		return x.Vendor == y.Vendor && x.Type == y.Type && x.Name == y.Name &&
			slices.EqualFunc(x.Cards, y.Cards, func(k, l core.Card) bool { return k.ID == l.ID && k.Shares == l.Shares })
	})
}

func levelNames(levels []core.Level) string {
	names := make([]string, len(levels))
	for i, l := range levels {
		names[i] = l.Name
	}
	return strings.Join(names, "\x01")
}

func cardTypes(c *core.Config) []string {
	if len(c.CardTypes) == 0 {
		return []string{"gpu", "mig", "npu"}
	}
	return c.CardTypes
}

// rebuild numbers all nodes, domains, models and classes anew.
func (c *Cluster) rebuild(s *core.Snapshot, key string, notices *[]core.Notice) {
	*c = Cluster{Ideal: c.Ideal, Shape: c.Shape + 1, levelKey: key, cardTypes: cardTypes(s.Config), scratch: c.scratch, mark: c.mark, seq: c.seq, changed: c.changed + 1, gangs: map[core.GangID]int32{}, odd: map[int32][]core.Notice{},
		byID: make(map[core.NodeID]int32, len(s.Nodes)), at: make([]int32, len(s.Nodes)), cards: map[cardKey]int32{}, modelNum: map[core.Model]int32{}, classes: map[string]int32{}}
	levels := len(s.Config.Levels)
	c.Levels = make([]Level, levels)
	for l := range c.Levels {
		c.Levels[l].Name = s.Config.Levels[l].Name
	}
	order := make([]*core.Node, 0, len(s.Nodes))
	for i := range s.Nodes {
		order = append(order, &s.Nodes[i])
	}
	slices.SortStableFunc(order, func(a, b *core.Node) int {
		for l := range levels {
			if d := strings.Compare(domainName(a, l), domainName(b, l)); d != 0 {
				return d
			}
		}
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Version, b.Version))
	})
	models := map[core.Model]bool{}
	for _, n := range order {
		for i := range n.Devices {
			if c.IsCard(n.Devices[i].Type) {
				models[n.Devices[i].Name] = true
			}
		}
	}
	for m := range models {
		c.Models = append(c.Models, m)
	}
	slices.Sort(c.Models)
	for i, m := range c.Models {
		c.modelNum[m] = int32(i)
	}
	var last *core.Node
	for _, n := range order {
		if _, twice := c.byID[n.ID]; twice {
			*notices = append(*notices, core.Notice{Object: "node " + string(n.ID), Text: "is listed twice; the first by domains is used"})
			continue
		}
		at := int32(len(c.Nodes))
		c.byID[n.ID] = at
		from := levels // outermost level at which this node starts a new domain
		if last == nil {
			from = 0
		} else {
			for l := range levels {
				if domainName(last, l) != domainName(n, l) {
					from = l
					break
				}
			}
		}
		if last == nil || from < levels || c.Blocks[len(c.Blocks)-1].Count == BlockSize {
			c.newBlock(n, at, from)
		}
		last = n
		b := &c.Blocks[len(c.Blocks)-1]
		c.Nodes = append(c.Nodes, Node{id: n.ID, Block: int32(len(c.Blocks) - 1), Bit: uint8(b.Count)})
		b.Count++
		c.placeCards(at, n)
		c.fillNode(at, n)
	}
	c.free = make([]Free, len(c.Nodes))
	c.ports = make([][]int, len(c.Nodes))
	c.savedAt, c.stamp = make([]uint64, len(c.Nodes)), make([]uint64, len(c.Nodes))
	c.on = make([][]int32, len(c.Nodes))
}

func domainName(n *core.Node, level int) string {
	if level < len(n.Domains) {
		return n.Domains[level]
	}
	return ""
}

func (c *Cluster) newBlock(n *core.Node, at int32, from int) {
	number := int32(len(c.Blocks))
	block := Block{First: at, Domain: make([]int32, len(c.Levels))}
	for l := range c.Levels {
		ds := c.Levels[l].Domains
		if l >= from {
			unknown := domainName(n, l) == "" || l > 0 && c.Levels[l-1].Domains[block.Domain[l-1]].Unknown
			ds = append(ds, Domain{Name: domainName(n, l), First: number, Unknown: unknown})
		}
		ds[len(ds)-1].Last = number + 1
		c.Levels[l].Domains = ds
		block.Domain[l] = int32(len(ds) - 1)
	}
	c.Blocks = append(c.Blocks, block)
}

// placeCards gives a node's cards their places and words.
func (c *Cluster) placeCards(at int32, n *core.Node) {
	devices := make([]Device, len(n.Devices))
	first := int32(0)
	for i := range n.Devices {
		d := &n.Devices[i]
		words := int32((len(d.Cards) + 63) / 64)
		devices[i] = Device{Model: -1, First: first, Cards: int32(len(d.Cards)), Word: int32(len(c.words)), Words: words}
		if c.IsCard(d.Type) {
			devices[i].Model = c.modelNum[d.Name]
		}
		for range words {
			c.words = append(c.words, 0)
		}
		if slices.ContainsFunc(d.Cards, func(k core.Card) bool { return k.Shares > 0 }) {
			devices[i].Share, devices[i].Parts = int32(len(c.parts)), make([]int32, len(d.Cards))
			c.parts = append(c.parts, devices[i].Parts...)
		}
		for k := range d.Cards {
			if _, twice := c.cards[cardKey{n.ID, d.Cards[k].ID}]; !twice {
				c.cards[cardKey{n.ID, d.Cards[k].ID}] = first + int32(k)
			}
		}
		first += int32(len(d.Cards))
	}
	c.Nodes[at].Devices, c.Nodes[at].cards = devices, first
}

// fillNode takes over a new version of a node whose cards keep their places.
func (c *Cluster) fillNode(at int32, n *core.Node) {
	node := &c.Nodes[at]
	node.Src, node.Version, node.Usable = n, n.Version, c.Ideal || usable(n)
	signature := c.signature(n)
	class, ok := c.classes[string(signature)]
	if !ok {
		class = int32(len(c.classRep))
		c.classes[string(signature)] = class
		c.classRep = append(c.classRep, n)
	}
	node.Class = class
	devices := make([]Device, len(node.Devices))
	copy(devices, node.Devices)
	node.Devices = devices
	for i := range devices {
		d := &devices[i]
		d.Src = &n.Devices[i]
		d.Usable, d.Suspect, d.Islands = make([]uint64, d.Words), make([]uint64, d.Words), nil
		var names []string
		for k := range d.Src.Cards {
			card := &d.Src.Cards[k]
			if c.CardPlaceIs(at, card.ID, d.First+int32(k)) && (c.Ideal || CardUsable(card)) {
				d.Usable[k/64] |= 1 << (k % 64)
			}
			if d.Parts != nil {
				d.Parts[k] = int32(min(max(1, card.Shares), mostShares))
			}
			if card.State == core.CardSuspect {
				d.Suspect[k/64] |= 1 << (k % 64)
			}
			if card.Domain == "" {
				continue
			}
			at := slices.Index(names, card.Domain)
			if at < 0 {
				at = len(names)
				names = append(names, card.Domain)
				d.Islands = append(d.Islands, make([]uint64, d.Words))
			}
			d.Islands[at][k/64] |= 1 << (k % 64)
		}
		d.Links, d.Flat = links(d.Src), flat(d.Src)
	}
}

// links makes the matrix of link counts; counts above 255 are cut.
func links(d *core.DeviceGroup) []uint8 {
	if len(d.Links) == 0 {
		return nil
	}
	n := len(d.Cards)
	m := make([]uint8, n*n)
	for _, l := range d.Links {
		if l.A >= 0 && l.B >= 0 && l.A < n && l.B < n && l.Count > 0 {
			m[l.A*n+l.B], m[l.B*n+l.A] = uint8(min(l.Count, 255)), uint8(min(l.Count, 255))
		}
	}
	return m
}

// flat tells whether nothing distinguishes one card of a group from another.
func flat(d *core.DeviceGroup) bool {
	if len(d.Links) > 0 {
		return false
	}
	for i := range d.Cards {
		a, b := &d.Cards[i], &d.Cards[0]
		if a.State != core.CardHealthy || a.Domain != b.Domain || a.NUMA != b.NUMA || a.Parent != b.Parent || !slices.Equal(a.NICs, b.NICs) {
			return false
		}
	}
	return true
}

// CardPlaceIs tells whether a card stands at a place: an id that a node lists
// twice stands at its first place only.
func (c *Cluster) CardPlaceIs(n int32, id core.CardID, place int32) bool {
	node := c.Nodes[n].Src
	p, ok := c.cards[cardKey{node.ID, id}]
	return ok && p == place
}

// portRange is the range of a node's dynamic ports, Nomad's own by default.
func portRange(n *core.Node) (lowest, highest int) {
	if n.MaxPort == 0 {
		return 20000, 32000
	}
	return n.MinPort, n.MaxPort
}

// Device finds the device group of a card's place, and the card's place in it.
func (n *Node) Device(place int32) (*Device, int32) {
	for i := range n.Devices {
		if d := &n.Devices[i]; place >= d.First && place < d.First+d.Cards {
			return d, place - d.First
		}
	}
	return nil, 0
}

func appendAttribute(b []byte, a core.Attribute) []byte {
	switch {
	case a.Int != nil:
		b = strconv.AppendInt(append(b, 'i'), *a.Int, 10)
	case a.Float != nil:
		b = strconv.AppendFloat(append(b, 'f'), *a.Float, 'g', -1, 64)
	case a.String != nil:
		b = append(append(b, 's'), *a.String...)
	case a.Bool != nil:
		b = strconv.AppendBool(append(b, 'b'), *a.Bool)
	}
	b = append(b, ' ')
	b = append(b, a.Unit...)
	return append(b, 0)
}
