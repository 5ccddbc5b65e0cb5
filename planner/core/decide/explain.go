package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// explainer keeps what many verdicts of one cycle share.
type explainer struct {
	holders map[int32][]core.Holder
	bounds  map[bound]charges
	known   map[cause][]core.Blocker
	outOf   []outOfUse
	booked  []int // cards taken for bookings, by model
	odd     []int // cards in claims that contradict something, by model
	largest []int // cards of the largest node, by model
}

// cause names a need whose blockers are the same whoever has it.
type cause struct {
	option  *placement.Option
	members int
}

// outOfUse counts cards of a model that nobody may be given.
type outOfUse struct {
	cards int
	why   map[string]int
}

// finish gives every gang its verdict and lists reservations and demand.
func (c *cycle) finish() {
	e := &c.explain
	e.holders, e.known = map[int32][]core.Holder{}, map[cause][]core.Blocker{}
	c.reservations()
	for q := range c.waiting {
		for _, i := range c.waiting[q] {
			c.waits(&c.gangs[i])
		}
	}
	holds := c.live.Holds()
	for i := range c.gangs {
		g := &c.gangs[i]
		for _, h := range g.holds {
			if odd := holds[h].Odd; odd != "" {
				g.block(core.Blocker{Reason: core.ReasonContradicted, Text: "allocation " + holds[h].Claim.Alloc + " " + odd, Remedy: "compare with nomad alloc status; what it is said to hold is given to nobody"})
			}
		}
		g.v.Blockers = g.kept
		if g.v.Action == core.ActionRun && g.v.Sentence == "" {
			g.v.Sentence = c.runs(g)
		}
		if len(g.v.Blockers) > 0 && g.v.Sentence == "" {
			g.v.Sentence, g.v.Reason = g.v.Blockers[0].Text, g.v.Blockers[0].Reason
		}
	}
	c.demandSignal()
}

func (c *cycle) runs(g *gang) string {
	switch {
	case g.State == core.GangPlacing && c.waitsForVictims(g):
		return "its places are kept until those who hold them have left"
	case g.State == core.GangPlacing:
		return "placed; not released yet"
	case g.Damaged:
		return "runs with the members it has left"
	}
	return "runs"
}

// waits explains a gang that goes on waiting.
func (c *cycle) waits(g *gang) {
	if g.start != nil || g.v.Action == core.ActionFail || g.v.Action == core.ActionRefuse {
		return
	}
	g.v.Action = core.ActionWait
	for _, o := range g.req.Options {
		if !c.tree.Allowed(g.queue, c.need(g, o, g.least())) {
			if len(g.kept) == 0 {
				for _, l := range c.tree.Blocked(g.queue, c.need(g, o, g.least())) {
					c.overLimit(g, o, l)
				}
			}
			continue
		}
		g.kept = append(g.kept, c.causes(g, o)...)
	}
	if len(g.kept) == 0 {
		g.kept = []core.Blocker{{Reason: core.ReasonBehind, Text: "others of its queue come first", Remedy: "raise its priority"}}
	}
	c.rankBlockers(g)
	c.eta(g)
}

// rankOfReason orders blockers: what a person decided, then what the queue's
// limits say, then that it fits and waits for a better place, then what the
// cluster lacks, then what will pass by itself.
var rankOfReason = map[core.Reason]int{
	core.ReasonPaused: 1, core.ReasonHeld: 2, core.ReasonPause: 3, core.ReasonBudget: 4, core.ReasonMaxGangs: 5, core.ReasonMax: 6, core.ReasonUserLimit: 7, core.ReasonLend: 8, core.ReasonPrefer: 9,
	core.ReasonCards: 10, core.ReasonNIC: 11, core.ReasonCPU: 12, core.ReasonMemory: 13, core.ReasonDisk: 14, core.ReasonPorts: 15, core.ReasonShape: 16, core.ReasonTopology: 17,
	core.ReasonBlast: 18, core.ReasonConstraint: 19, core.ReasonReserved: 20, core.ReasonExcluded: 21, core.ReasonContradicted: 21, core.ReasonBehind: 30,
}

func (c *cycle) rankBlockers(g *gang) {
	slices.SortStableFunc(g.kept, func(a, b core.Blocker) int { return cmp.Compare(rankOfReason[a.Reason], rankOfReason[b.Reason]) })
	g.kept = slices.CompactFunc(g.kept, func(a, b core.Blocker) bool { return a.Reason == b.Reason && a.Text == b.Text })
	if g.v.Reason != core.ReasonGiveUp {
		g.v.Reason, g.v.Sentence = g.kept[0].Reason, g.kept[0].Text
	}
}

// overLimit notes a queue's bound that is in a gang's way.
func (c *cycle) overLimit(g *gang, o *placement.Option, l fairshare.Limit) {
	name := "the cluster"
	if l.Queue > 0 {
		name = "queue " + string(c.tree.Queues[l.Queue].Conf.Name)
	}
	b := core.Blocker{Reason: l.Reason, Missing: l.Over}
	if l.Model >= 0 {
		b.Model = c.live.Models[l.Model]
	}
	switch l.Reason {
	case core.ReasonLend:
		b.Text = fmt.Sprintf("%s%s idle, but their owners do not lend so many (%d too many)", cards(l.Over), c.ofModel(l.Model), l.Over)
		b.Remedy = "wait for borrowed cards to come back, or raise lend of the queues that own them"
	default:
		b.Text = fmt.Sprintf("%s may hold %d%s at most and would hold %d", name, l.Bound, strings.Replace(c.ofModel(l.Model), " of ", " ", 1), l.Bound+l.Over)
		b.Remedy = fmt.Sprintf("wait for %s of %s to come back, or raise its max by %d", cards(l.Over), name, l.Over)
		b.Holders = c.chargedTo(bound{l.Queue, l.Model})
		if l.Reason == core.ReasonMax && c.conf(g).RefuseFull {
			c.full(g, b)
			return
		}
	}
	g.block(b)
}

// causes is what of the cluster keeps a need from being placed.
func (c *cycle) causes(g *gang, o *placement.Option) []core.Blocker {
	k := cause{o, g.least()}
	if g.booking > 0 { // what it keeps itself is not in its way
		mark := c.live.Mark()
		defer c.live.Rollback(mark)
		c.times.LiftFor(g.number)
		return c.findCauses(g, o, k.members)
	}
	if b, ok := c.explain.known[k]; ok {
		return b
	}
	b := c.findCauses(g, o, k.members)
	c.explain.known[k] = b
	return b
}

func (c *cycle) findCauses(g *gang, o *placement.Option, members int) []core.Blocker {
	var out []core.Blocker
	need := c.need(g, o, members)
	short := false
	for _, n := range need {
		free := c.live.FreeOf(n.Model)
		if free >= n.Cards {
			continue
		}
		short = true
		model, capacity := c.live.Models[n.Model], c.capacity[n.Model]
		b := core.Blocker{Reason: core.ReasonCards, Model: model, Missing: min(n.Cards, capacity) - free, Holders: c.holdersOf(n.Model),
			Text: fmt.Sprintf("needs %s of %s, %d are free and not promised", cards(n.Cards), model, free)}
		b.Remedy = "wait for " + cards(b.Missing) + " to come free"
		if len(b.Holders) > 0 {
			b.Remedy = "stop, or wait for, " + c.holderNames(b.Holders, b.Missing)
		}
		if b.Missing > 0 { // else all that is in use is free, and more is out of use
			out = append(out, b)
		}
		booked := c.bookedOf(n.Model)
		if at := slices.IndexFunc(c.times.Bookings, func(b backfill.Booking) bool { return b.Gang == g.number }); at >= 0 {
			booked -= c.times.Taken(at)[n.Model]
		}
		if booked > 0 {
			out = append(out, core.Blocker{Reason: core.ReasonReserved, Model: model, Missing: min(booked, b.Missing), Holders: c.bookers(n.Model, g.number),
				Text: fmt.Sprintf("%s of %s are promised to gangs ahead of it", cards(booked), model), Remedy: "raise its priority above theirs, or give it a time limit that ends before they start"})
		}
		if odd := c.contradicted(n.Model); odd > 0 {
			out = append(out, core.Blocker{Reason: core.ReasonContradicted, Model: model, Missing: min(odd, b.Missing), Text: fmt.Sprintf("%s of %s are held by allocations that contradict each other or their nodes", cards(odd), model),
				Remedy: "see the planner's notices, and stop the allocation that should not be there"})
		}
		if u := c.outOfUse(n.Model); u.cards > 0 {
			out = append(out, core.Blocker{Reason: core.ReasonExcluded, Model: model, Missing: min(u.cards, n.Cards-min(free, capacity)), Text: fmt.Sprintf("%s of %s are out of use (%s)", cards(u.cards), model, u.text()), Remedy: "bring them back (muster nodes, muster cards)"})
		}
	}
	if short {
		return out
	}
	for i := range g.Groups {
		want := g.Groups[i].Count
		if i == 0 && g.elastic() {
			want = members
		}
		out = append(out, c.groupCauses(g, o, i, want)...)
	}
	if len(out) > 0 {
		return out
	}
	if g.req.Required && g.req.Level >= 0 {
		name := core.LevelNode
		if g.req.Level < len(c.live.Levels) {
			name = c.live.Levels[g.req.Level].Name
		}
		most := c.place.Most(g.req, o, placement.Options{})
		return append(out, core.Blocker{Reason: core.ReasonTopology, Model: o.Model, Missing: max(1, members-most), Text: fmt.Sprintf("requires %s within one %s; the best %s has room for %d now", count(members, "member"), name, name, most),
			Remedy: fmt.Sprintf("wait for a %s to come free, or prefer the level instead of requiring it", name)})
	}
	if len(c.cfg.Blast) > 0 {
		return append(out, core.Blocker{Reason: core.ReasonBlast, Model: o.Model, Missing: 1, Text: "would put too much on nodes or racks that stand or fall together", Remedy: "raise the blast limit"})
	}
	return out
}

// groupCauses says which resource keeps a group's members from fitting though
// there are cards enough.
func (c *cycle) groupCauses(g *gang, o *placement.Option, group, want int) []core.Blocker {
	room := c.place.RoomBy(o, group)
	if room.Members >= want {
		return nil
	}
	var out []core.Blocker
	missing := want - room.Members
	name := ""
	if len(g.Groups) > 1 {
		name = fmt.Sprintf("group %q: ", g.Groups[group].Name)
	}
	add := func(r core.Reason, what string, nodes int) {
		if nodes > 0 {
			out = append(out, core.Blocker{Reason: r, Model: o.Model, Missing: missing, Text: fmt.Sprintf("%s%s have the cards for a member but not the %s", name, count(nodes, "node"), what),
				Remedy: "ask for less " + what + " a member, or free it on those nodes"})
		}
	}
	add(core.ReasonCPU, "CPU", room.CPU)
	add(core.ReasonMemory, "memory", room.Memory)
	add(core.ReasonDisk, "disk", room.Disk)
	add(core.ReasonPorts, "ports", room.Ports)
	add(core.ReasonNIC, "other devices", room.Devices)
	if room.Links > 0 {
		return append(out, core.Blocker{Reason: core.ReasonTopology, Model: o.Model, Missing: missing, Text: fmt.Sprintf("%s%s have the cards for a member, but not within one NVLink domain", name, count(room.Links, "node")),
			Remedy: "wait for cards of one domain to come free, or prefer the level instead of requiring it"})
	}
	b := core.Blocker{Reason: core.ReasonShape, Model: o.Model, Missing: missing, Text: fmt.Sprintf("%senough cards are free, but nodes with room for a whole member only for %d of %d", name, room.Members, want),
		Remedy: "wait for nodes to come free, or ask for smaller members"}
	if m := o.MainModel(); m >= 0 {
		b.Holders = c.holdersOf(m)
	}
	return append(out, b)
}

func (c *cycle) bookedOf(model int32) int {
	if c.explain.booked == nil {
		c.explain.booked = make([]int, len(c.live.Models))
		for i := range c.times.Bookings {
			for m, n := range c.times.Taken(i) {
				c.explain.booked[m] += n
			}
		}
	}
	return c.explain.booked[model]
}

// contradicted counts the cards of a model in claims that contradict something.
func (c *cycle) contradicted(model int32) int {
	if c.explain.odd == nil {
		c.explain.odd = make([]int, len(c.live.Models))
		holds := c.live.Holds()
		for i := range holds {
			if holds[i].Odd != "" {
				c.live.CountCards(&holds[i], c.explain.odd)
			}
		}
	}
	return c.explain.odd[model]
}

func (c *cycle) outOfUse(model int32) *outOfUse {
	e := &c.explain
	if e.outOf == nil {
		e.outOf = make([]outOfUse, len(c.live.Models))
		for n := range c.live.Nodes {
			node := &c.live.Nodes[n]
			for d := range node.Devices {
				dev := &node.Devices[d]
				if dev.Model < 0 {
					continue
				}
				o := &e.outOf[dev.Model]
				lost := len(dev.Src.Cards)
				why := ""
				switch src := node.Src; {
				case node.Usable:
					lost, why = dev.Bad(), "bad cards"
				case !src.Ready:
					why = "nodes down"
				case src.Draining:
					why = "nodes draining"
				case src.Excluded:
					why = "nodes excluded"
				default:
					why = "nodes ineligible"
				}
				if lost > 0 {
					if o.why == nil {
						o.why = map[string]int{}
					}
					o.cards += lost
					o.why[why] += lost
				}
			}
		}
	}
	return &e.outOf[model]
}

func (o *outOfUse) text() string {
	keys := make([]string, 0, len(o.why))
	for k := range o.why {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d: %s", o.why[k], k)
	}
	return strings.Join(keys, ", ")
}

// reservations lists the bookings, with what was promised before.
func (c *cycle) reservations() {
	for i := range c.times.Bookings {
		b := &c.times.Bookings[i]
		g := &c.gangs[b.Gang]
		r := core.Reservation{Gang: g.ID, At: b.At, Gathering: b.At.IsZero(), Members: c.placements(g.Gang, b.Members, g.bookedOn.Model, 0), Made: c.now, Was: b.At}
		if p := c.promised[g.ID]; p != nil && !p.At.IsZero() {
			r.Made, r.Was = p.Made, p.Was
			if b.At.IsZero() || b.At.After(p.At) {
				r.Cause = c.moved(g, p)
			}
		}
		c.plan.Reservations = append(c.plan.Reservations, r)
	}
}

// moved says why a promise is later than it was.
func (c *cycle) moved(g *gang, p *core.Reservation) string {
	for i := range p.Members {
		n := c.live.Number(p.Members[i].Node)
		if n < 0 || !c.live.Nodes[n].Usable {
			return "node " + string(p.Members[i].Node) + " is out of use"
		}
	}
	for i := range c.gangs {
		v := &c.gangs[i]
		if l := c.limit(v); l > 0 && len(v.holds) > 0 && !v.Released.IsZero() && !v.Released.Add(l).After(c.now) {
			return fmt.Sprintf("%s runs over its time limit", v.ID)
		}
	}
	for i := range c.plan.Starts {
		if s := &c.plan.Starts[i]; !s.Backfill {
			return fmt.Sprintf("%s is more entitled", s.Gang)
		}
	}
	for i := range c.times.Bookings {
		if o := &c.gangs[c.times.Bookings[i].Gang]; o.number != g.number {
			return fmt.Sprintf("%s is more entitled", o.ID)
		}
	}
	return "the places it was promised are held longer than was known"
}

// demandSignal counts the nodes that would let the waiting gangs start.
func (c *cycle) demandSignal() {
	type shape struct {
		model int32
		pool  string
	}
	index := map[shape]int{}
	for q := range c.waiting {
		for _, i := range c.waiting[q] {
			g := &c.gangs[i]
			if g.start != nil || g.v.Action != core.ActionWait || len(g.req.Options) == 0 {
				continue
			}
			o := g.req.Options[0]
			if o.MainModel() < 0 || !c.tree.Allowed(g.queue, c.need(g, o, g.least())) {
				continue
			}
			k := shape{o.MainModel(), g.Groups[0].Pool}
			if c.explain.largest == nil {
				c.explain.largest = c.nodeCards()
			}
			per := c.explain.largest[k.model]
			if per == 0 {
				continue
			}
			at, ok := index[k]
			if !ok {
				at = len(c.plan.Demand)
				index[k] = at
				c.plan.Demand = append(c.plan.Demand, core.Demand{Model: o.Model, Cards: per, Pool: k.pool})
			}
			member := max(1, total(o.PerMember))
			nodes := (g.least() + max(1, per/member) - 1) / max(1, per/member)
			c.plan.Demand[at].Nodes += nodes
			c.plan.Demand[at].Gangs++
		}
	}
	slices.SortFunc(c.plan.Demand, func(a, b core.Demand) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Pool, b.Pool))
	})
}

// nodeCards is how many cards of each model the largest node has.
func (c *cycle) nodeCards() []int {
	most := make([]int, len(c.live.Models))
	for n := range c.live.Nodes {
		for d := range c.live.Nodes[n].Devices {
			if dev := &c.live.Nodes[n].Devices[d]; dev.Model >= 0 {
				most[dev.Model] = max(most[dev.Model], len(dev.Src.Cards))
			}
		}
	}
	return most
}
