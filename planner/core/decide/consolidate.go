package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/preempt"
)

// Consolidation, where it is configured, is the last resort: a gang for which
// cards enough are free, but not where it needs them, may have one other gang
// moved out of its way. The other is asked to leave like any victim, is spared
// like any victim, counts against the same daily caps and the same ratio, and
// is chosen only where both then have a place: its new one is kept for it from
// now on. Rights do not matter, since it gives up nothing but its place: it may
// be of any queue, class and priority. One that does not run yet stays: it would
// be fetched twice and start later for somebody else's sake.
//
// One gang is moved for another, never several. A gang that is promised its
// start within its grace time waits for that instead.
const (
	movers = 4  // gangs that are helped, or tried, in one cycle
	moves  = 64 // gangs whose moving is tried for each
)

// consolidate moves gangs for those that go on waiting, in their order.
func (c *cycle) consolidate() {
	if !c.cfg.Consolidate || !c.cfg.Preemption || c.s.Paused {
		return
	}
	tried := 0
	for q := range c.waiting {
		for _, at := range c.waiting[q] {
			g := &c.gangs[at]
			if g.start != nil || g.v.Action != "" || g.v.Reason == core.ReasonGiveUp || len(g.kept) > 0 || c.evictionsLeft(g) <= 0 {
				continue
			}
			if b := c.times.Booking(g.number); b != nil && !b.At.IsZero() && !b.At.After(c.now.Add(c.grace(g))) {
				continue
			}
			if tried++; tried > movers {
				return
			}
			c.moveFor(g)
		}
	}
}

// evictionsLeft is how many evictions a gang's queue may still cause today.
func (c *cycle) evictionsLeft(g *gang) int {
	q := c.conf(g)
	return q.Preempt.EvictionsPerDay - c.s.History.EvictionsToday[q.Name] - c.queueEvictions(q.Name).all
}

// moveFor moves the gang that loses the least work of those whose moving lets g
// start.
func (c *cycle) moveFor(g *gang) {
	o, members := g.req.Options[0], g.least()
	need := c.need(g, o, members)
	short := func(n fairshare.Need) bool { return c.live.FreeOf(n.Model) < n.Cards }
	mark := c.live.Mark()
	c.times.LiftFor(g.number)
	hopeless := !c.mayAdd(g, o, members) || slices.ContainsFunc(need, short)
	c.live.Rollback(mark)
	if hopeless {
		return
	}
	type candidate struct {
		gang *gang
		cost int64
	}
	var all []candidate
	most := c.mostCards(g, need)
	for i := range c.gangs {
		v := &c.gangs[i]
		if v.State == core.GangRunning && !c.spared(g, v) && v.queue >= 0 && v.model == o.MainModel() && (most == 0 || v.cards <= most) && c.alive(v) == v.members {
			all = append(all, candidate{v, c.cost(v)})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.gang.cards, b.gang.cards), cmp.Compare(a.gang.number, b.gang.number))
	})
	for _, k := range all[:min(len(all), moves)] {
		if c.move(g, o, members, need, k.gang) {
			return
		}
	}
}

// move places g with v gone, and v beside it, where both fit.
func (c *cycle) move(g *gang, o *placement.Option, members int, need []fairshare.Need, v *gang) bool {
	if c.request(v) == nil {
		return false
	}
	at := slices.IndexFunc(v.req.Options, func(o *placement.Option) bool { return o.MainModel() == v.model })
	if at < 0 {
		return false
	}
	opt := placement.Options{Deny: c.deny(g, o)}
	if g.elastic() {
		opt.Members = members
	}
	uses := c.usesOf(v)
	mark := c.live.Mark()
	c.times.LiftFor(g.number)
	for i := range uses {
		c.live.Give(&uses[i])
	}
	there, ok := c.place.Place(g.req, o, opt)
	var then *placement.Result
	if ok {
		then, ok = c.place.Place(v.req, v.req.Options[at], placement.Options{Deny: c.deny(v, v.req.Options[at])})
	}
	c.live.Rollback(mark)
	if !ok {
		return false
	}
	c.times.Drop(g.number)
	g.booking = 0
	p := &preempt.Problem{Cluster: c.live, Units: []preempt.Unit{{Gang: int(v.number), Member: -1, Uses: uses, Cards: v.cards, Cost: c.cost(v)}}}
	c.carryOut(g, o, p, &preempt.Solution{Units: []int{0}, Members: there.Members}, []core.EvictionKind{core.EvictConsolidate}, need)
	c.keepFor(v, v.req.Options[at], then.Members, c.now.Add(c.grace(v)), rest(uses, takersOf(there.Members)))
	return true
}

// keepFor books places for a gang that is leaving its old ones.
func (c *cycle) keepFor(v *gang, o *placement.Option, members []placement.Member, at time.Time, freed []cluster.Use) {
	c.times.Keep(v.number, at, c.limit(v), members, freed)
	v.booking, v.bookedOn = int32(len(c.times.Bookings)), o
}

// keepMoved goes on keeping the places of gangs that are being moved: those that
// are leaving and hold a promise.
func (c *cycle) keepMoved() {
	for i := range c.gangs {
		v := &c.gangs[i]
		p := c.promised[v.ID]
		if p == nil || v.State != core.GangStopping || p.At.IsZero() {
			continue
		}
		if c.request(v) == nil {
			continue
		}
		at := slices.IndexFunc(v.req.Options, func(o *placement.Option) bool { return len(p.Members) > 0 && o.Model == p.Members[0].Model })
		members, ok := c.membersAt(v, p.Members)
		if at < 0 || !ok {
			continue
		}
		freed := c.usesOf(v)
		mark := c.live.Mark()
		for u := range freed {
			c.live.Give(&freed[u])
		}
		uses := make([]cluster.Use, len(members))
		for m := range members {
			uses[m] = members[m].Use
		}
		free := c.live.Free(uses)
		c.live.Rollback(mark)
		if free {
			until := p.At
			if until.Before(c.now) {
				until = c.end(v)
			}
			c.keepFor(v, v.req.Options[at], members, until, freed)
		}
	}
}

// membersAt finds promised places again; false where one of them is gone.
func (c *cycle) membersAt(g *gang, places []core.Placement) ([]placement.Member, bool) {
	out := make([]placement.Member, len(places))
	for i := range places {
		p := &places[i]
		n := c.live.Number(p.Node)
		at := slices.IndexFunc(g.Groups, func(k core.Group) bool { return k.Name == p.Group })
		if n < 0 || at < 0 || !c.live.Nodes[n].Usable || len(p.Cards) != len(g.Groups[at].Devices) {
			return nil, false
		}
		group := &g.Groups[at]
		m := placement.Member{Group: at, Use: cluster.Use{Node: n, Res: group.Use, Ports: group.StaticPorts, Dynamic: group.Ports}, Asks: make([][]int32, len(p.Cards))}
		for a, ids := range p.Cards {
			for _, id := range ids {
				place := c.live.CardPlace(n, id)
				if place < 0 {
					return nil, false
				}
				m.Asks[a] = append(m.Asks[a], place)
				if shares := group.Devices[a].Shares; shares > 0 {
					m.Use.Parts = append(m.Use.Parts, cluster.Part{Card: place, Shares: int32(shares)})
				} else {
					m.Use.Cards = append(m.Use.Cards, place)
				}
			}
		}
		out[i] = m
	}
	return out, true
}
