package placement

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

// Most is the most members of an elastic gang, up to its count, that its
// level has room for now.
func (p *Placer) Most(r *Request, o *Option, opt Options) int {
	s := search{p: p, r: r, o: o, opt: opt}
	s.prepare()
	v := o.views[0]
	most := 0
	switch {
	case r.Required && r.Level == len(p.c.Levels):
		for n := range p.c.Nodes {
			most = max(most, s.fit(v, int32(n)))
		}
	case r.Required && r.Level >= 0:
		for i := range p.c.Levels[r.Level].Domains {
			d := &p.c.Levels[r.Level].Domains[i]
			if !d.Unknown {
				most = max(most, s.room(v, scope{d.First, d.Last}))
			}
		}
	default:
		most = s.room(v, scope{0, int32(len(p.c.Blocks))})
	}
	return min(most, r.Gang.Groups[0].Count)
}

// Room is how many members of the gang's first group the cluster takes now,
// wherever they lie.
func (p *Placer) Room(r *Request, o *Option) int {
	s := search{p: p, r: r, o: o}
	s.prepare()
	return s.room(o.views[0], scope{0, int32(len(p.c.Blocks))})
}

// Nodes counts the nodes that could take a member if they were empty.
func (p *Placer) Nodes(o *Option, group int) int {
	v := o.views[group]
	v.refresh()
	n := 0
	for b := range v.static {
		n += cluster.Count(v.static[b : b+1])
	}
	return n
}

// Fits tells whether a node takes one more member of a group now.
func (p *Placer) Fits(o *Option, group int, n int32) bool {
	v := o.views[group]
	return v.resources(n) && v.feasible(n) == core.ReasonFits && v.fits(n) > 0
}

// Possible tells whether a node could take a member if it were empty.
func (p *Placer) Possible(o *Option, group int, n int32) bool {
	return o.views[group].feasible(n) == core.ReasonFits
}

// Single tells whether no two members of the gang may share a node.
func (p *Placer) Single(o *Option, group int) bool { return o.views[group].single }

// Order is the order in which the groups are placed.
func (p *Placer) Order(o *Option) []int { return o.order }

// Bound tells whether members are bound by more than their own node and the
// topology, so that they cannot be placed one by one.
func (p *Placer) Bound(o *Option) bool {
	return slices.ContainsFunc(o.views, func(v *view) bool { return v.distinctProperty })
}

// MostOn is the most members of a group that any one node takes now.
func (p *Placer) MostOn(o *Option, group int) int {
	v := o.views[group]
	v.refresh()
	n := 0
	for b := range v.most {
		if v.total[b] > 0 {
			n = max(n, int(v.most[b]))
		}
	}
	return n
}

// Why is what rules the most nodes out for a group's members, for people.
func (p *Placer) Why(o *Option, group int) string {
	v := o.views[group]
	count := map[string]int{}
	best := ""
	for n := range p.c.Nodes {
		k := v.class(p.c.Nodes[n].Class)
		text := k.text
		if k.ok {
			for _, u := range v.unique {
				if !feasible.Constraint(p.c.Nodes[n].Src, u) {
					text = feasible.Text(u)
					break
				}
			}
		}
		if text == "" {
			continue
		}
		count[text]++
		if best == "" || count[text] > count[best] || count[text] == count[best] && text < best {
			best = text
		}
	}
	if best == "" {
		return "all nodes are out of use"
	}
	return best
}

// MainModel is the number of the option's model; -1: no cards.
func (o *Option) MainModel() int32 { return o.main }

// Room is why a group's members do not fit: how many do, and on how many nodes
// that have the cards for one what else is short.
type Room struct {
	Members                           int
	CPU, Memory, Disk, Ports, Devices int
	Links                             int // in one NVLink domain
}

// RoomBy counts the room for a group's members by resource.
func (p *Placer) RoomBy(o *Option, group int) Room {
	v := o.views[group]
	v.refresh()
	var r Room
	u := &v.group.Use
	for b := range p.c.Blocks {
		block := &p.c.Blocks[b]
		r.Members += int(v.total[b])
		for i := range block.Count {
			n := block.First + i
			if v.static[b]>>i&1 == 0 || v.fit[n] > 0 || !v.hasCards(n) {
				continue
			}
			f := p.c.At(n)
			switch {
			case f.CPU < u.CPU || f.Cores < u.Cores:
				r.CPU++
			case f.MemoryMB < u.MemoryMB:
				r.Memory++
			case f.DiskMB < u.DiskMB:
				r.Disk++
			case !v.resources(n):
				r.Ports++
			case v.whole && !v.cardsInOne(n):
				r.Links++
			default:
				r.Devices++
			}
		}
	}
	return r
}

// cardsInOne tells whether one NVLink domain of a node has the free cards of one
// member, for each of its asks.
func (v *view) cardsInOne(n int32) bool {
	node := &v.p.c.Nodes[n]
	for i, asks := range v.class(node.Class).asks {
		ask := &v.group.Devices[i]
		if v.model[i] >= 0 && ask.Count > 1 && !slices.ContainsFunc(asks, func(at int8) bool {
			return inOne(&node.Devices[at], v.p.c.FreeCards(&node.Devices[at]), ask.Count)
		}) {
			return false
		}
	}
	return true
}

// hasCards tells whether a node has the free cards of one member, whatever
// else it lacks.
func (v *view) hasCards(n int32) bool {
	node := &v.p.c.Nodes[n]
	k := v.class(node.Class)
	for i := range v.group.Devices {
		if v.model[i] < 0 {
			continue
		}
		free := 0
		for _, at := range k.asks[i] {
			d := &node.Devices[at]
			if v.group.Devices[i].Shares > 0 && d.Parts != nil {
				for _, f := range v.p.c.FreeShares(d) {
					if int(f) >= v.group.Devices[i].Shares {
						free = 1
					}
				}
				continue
			}
			free = max(free, cluster.Count(v.p.c.FreeCards(d)))
		}
		if free < max(1, v.group.Devices[i].Count) && free == 0 || free < v.group.Devices[i].Count {
			return false
		}
	}
	return true
}
