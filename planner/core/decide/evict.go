package decide

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/preempt"
)

// Who may evict whom:
//
//	reclaim   a gang within its queue's guarantee, from a queue that borrows,
//	          whatever priorities and classes say
//	class     a gang of a higher class, borrowed cards of a lower one; of an
//	          urgent queue, guaranteed cards too
//	priority  inside a queue, a gang of strictly higher effective priority;
//	          where the order is attained, also one that attained a lower level
//	aged      as priority, where only aging to the top makes it so
//
// Spared are: gangs that cannot be preempted, those that have not run
// min_runtime, those evicted per_victim_per_day times today, and those that
// evicted the gang in question within a day. What one eviction costs is its
// cards times what it loses: the time since its last checkpoint, and the time
// that it takes to save and to start again.

// evictions counts a queue's evictions of this cycle.
type evictions struct{ all, top int }

// leaver is what a gang that is leaving still holds and nobody was promised: one
// that was asked in this cycle, or whose places were taken over in it.
type leaver struct {
	gang int32
	uses []cluster.Use
}

// hopeless names a gang's need for which nobody could make room.
type hopeless struct {
	option    *placement.Option
	queue     int32
	effective int
	level     int
	members   int
}

// keepHouse stops gangs that have to stop whoever waits.
func (c *cycle) keepHouse() {
	for i := range c.gangs {
		g := &c.gangs[i]
		if g.State == core.GangStopping {
			c.leave(g)
			continue
		}
		if !g.running() {
			continue
		}
		switch {
		case g.State == core.GangPlacing && c.cfg.ReserveTimeout > 0 && !c.waitsForVictims(g) && c.now.Sub(g.Started) >= c.cfg.ReserveTimeout:
			c.evict(g, core.Eviction{Kind: core.EvictUnreleased, Immediate: true, Why: fmt.Sprintf("was not released within %s of being placed", c.cfg.ReserveTimeout)})
		case g.Damaged && !c.goesOn(g):
			c.evict(g, core.Eviction{Kind: core.EvictRepair, Immediate: true, Why: "lost " + count(max(1, len(g.Lost)), "member") + "; the rest cannot go on"})
		case !g.Service && c.draining(g):
			c.evict(g, core.Eviction{Kind: core.EvictDrain, Why: "a node of it drains"})
		case c.overLimitTime(g):
			c.evict(g, core.Eviction{Kind: core.EvictTimeLimit, Why: "has run for its time limit of " + c.limit(g).String()})
		}
	}
}

// goesOn tells whether a damaged gang runs on with the members it has left.
func (c *cycle) goesOn(g *gang) bool {
	if !g.elastic() {
		return false
	}
	holds, left := c.live.Holds(), map[int]bool{}
	for _, h := range g.holds {
		if m := holds[h].Claim.Member; !slices.Contains(g.Lost, m) {
			left[m] = true
		}
	}
	return len(left) >= g.Min
}

// alive counts the members that hold anything.
func (c *cycle) alive(g *gang) int {
	holds := c.live.Holds()
	seen := map[int]bool{}
	for _, h := range g.holds {
		seen[holds[h].Claim.Member] = true
	}
	return len(seen)
}

// waitsForVictims tells whether a placed gang's cards are held by others that
// are leaving.
func (c *cycle) waitsForVictims(g *gang) bool {
	if g.Waits {
		return true
	}
	holds := c.live.Holds()
	for _, h := range g.holds {
		if k := &holds[h].Claim; k.Asked && len(holds[h].Use.Cards)+len(holds[h].Use.Parts) < len(k.Cards) {
			return true
		}
	}
	return false
}

// drainBy is when the first of a gang's draining nodes is to be empty; zero:
// none has a deadline.
func (c *cycle) drainBy(g *gang) time.Time {
	var first time.Time
	holds := c.live.Holds()
	for _, h := range g.holds {
		n := holds[h].Use.Node
		if n < 0 || !c.live.Nodes[n].Src.Draining {
			continue
		}
		if by := c.live.Nodes[n].Src.DrainBy; !by.IsZero() && (first.IsZero() || by.Before(first)) {
			first = by
		}
	}
	return first
}

// draining tells whether a gang has a member on a draining node.
func (c *cycle) draining(g *gang) bool {
	holds := c.live.Holds()
	for _, h := range g.holds {
		if n := holds[h].Use.Node; n >= 0 && c.live.Nodes[n].Src.Draining {
			return true
		}
	}
	return false
}

func (c *cycle) overLimitTime(g *gang) bool {
	l := c.limit(g)
	return l > 0 && !g.Service && !g.Released.IsZero() && !c.conf(g).LimitReport && !g.Released.Add(l).After(c.now)
}

// evict asks a gang to leave; the eviction's kind, reason and beneficiary are
// stated.
func (c *cycle) evict(g *gang, e core.Eviction) {
	e.Gang, e.Attempt, e.To = g.ID, g.Attempt, g.Queue
	if e.Kind != core.EvictDrain && e.Kind != core.EvictRepair && e.Kind != core.EvictUnreleased && e.Kind != core.EvictConsolidate && c.conf(g).OnPreempt != "" {
		e.To = c.conf(g).OnPreempt
	}
	if !e.Immediate {
		e.Grace = c.grace(g)
	}
	if by := c.drainBy(g); e.Kind == core.EvictDrain && !by.IsZero() {
		e.Grace = max(0, by.Sub(c.now))
	}
	if e.Cost == 0 {
		e.Cost = c.cost(g)
	}
	g.gone = true
	g.v.Action, g.v.Reason = core.ActionEvict, core.ReasonEvicted
	g.v.Sentence = "asked to leave (" + string(e.Kind) + "): " + e.Why
	c.plan.Evictions = append(c.plan.Evictions, e)
	c.leave(g)
}

// leave notes that what a gang holds has been asked back.
func (c *cycle) leave(g *gang) {
	if g.cards > 0 && g.queue >= 0 {
		c.tree.Leave(g.queue, g.model, g.cards)
	}
}

// cost is the work lost when a gang is evicted now.
func (c *cycle) cost(g *gang) int64 {
	if g.Released.IsZero() {
		return 0
	}
	lost := c.now.Sub(g.Released)
	switch {
	case !g.Checkpoint.IsZero() && g.Checkpoint.After(g.Released):
		lost = c.now.Sub(g.Checkpoint)
	case g.Checkpoint.IsZero() && c.s.History.CheckpointMedian > 0:
		lost = min(lost, c.s.History.CheckpointMedian)
	}
	restart := g.RestartTime
	if restart == 0 {
		restart = c.s.History.RestartMedian
	}
	return int64(g.cards) * int64(max(0, lost)+g.SaveTime+restart) / int64(time.Second)
}

// queueEvictions is what a queue's gangs have evicted in this cycle.
func (c *cycle) queueEvictions(q core.QueueName) *evictions {
	e := c.evicted[q]
	if e == nil {
		e = &evictions{}
		c.evicted[q] = e
	}
	return e
}

// may tells by which right, if any, a gang may evict another.
func (c *cycle) may(g, v *gang, need []fairshare.Need) core.EvictionKind {
	if v.queue < 0 {
		return ""
	}
	if v.queue == g.queue {
		switch {
		case g.rank.base > v.rank.base && g.rank.effective > v.rank.effective:
			return core.EvictPriority
		case g.rank.effective > v.rank.effective:
			return core.EvictAged
		case g.rank.effective == v.rank.effective && c.conf(g).Order == core.OrderAttained && g.rank.level < v.rank.level:
			return core.EvictPriority
		}
		return ""
	}
	higher := c.conf(g).Class > c.conf(v).Class
	if c.conf(g).Urgent && higher {
		return core.EvictClass
	}
	common := c.tree.Common(g.queue, v.queue)
	if !c.tree.Borrows(v.queue, common) {
		return ""
	}
	switch {
	case c.tree.Within(g.queue, common, need):
		return core.EvictReclaim
	case higher:
		return core.EvictClass
	}
	return ""
}

// spared tells whether a gang is not to be evicted by another whatever its
// right. One that gives up members in this cycle is left alone until the next,
// which sees what remains of it.
func (c *cycle) spared(g, v *gang) bool {
	q := c.conf(v)
	return !v.running() || !v.Preemptible || v.Service || v.start != nil || len(v.givesUp) > 0 || len(v.holds) == 0 ||
		!v.Released.IsZero() && c.now.Sub(v.Released) < q.Preempt.MinRuntime ||
		v.EvictionsToday >= q.Preempt.PerVictimPerDay || g != nil && slices.Contains(g.EvictedBy, v.ID)
}

// evictable lists, by queue, the gangs that somebody might evict in this
// cycle. Some of them are asked to leave in its course: spared is asked again.
func (c *cycle) evictable() [][]int32 {
	if c.preys == nil {
		c.preys = make([][]int32, len(c.tree.Queues))
		for i := range c.gangs {
			if v := &c.gangs[i]; v.queue >= 0 && len(v.holds) > 0 && !c.spared(nil, v) {
				c.preys[v.queue] = append(c.preys[v.queue], int32(i))
			}
		}
	}
	return c.preys
}

// candidates are the gangs that might be evicted for a gang, by number, which
// is also the order of ids.
func (c *cycle) candidates(g *gang, need []fairshare.Need, under int32) []int32 {
	var out []int32
	lists := 0
	for q, list := range c.evictable() {
		if len(list) == 0 || under != 0 && !c.below(int32(q), under) {
			continue
		}
		// From another queue it is the queues that give the right or do not.
		if int32(q) != g.queue && c.may(g, &c.gangs[list[0]], need) == "" {
			continue
		}
		out = append(out, list...)
		lists++
	}
	if lists > 1 {
		slices.Sort(out)
	}
	return out
}

// makeRoom shrinks and evicts others for a blocked gang, as far as it is
// entitled to and only where it then fits whole.
func (c *cycle) makeRoom(g *gang, capacity bool) bool {
	if !c.cfg.Preemption {
		return false
	}
	most := g.members
	if g.elastic() && c.gaveUp(g) {
		most = g.Min
	}
	for _, o := range g.req.Options {
		members := c.userMost(g, o, most)
		k := hopeless{o, g.queue, g.rank.effective, g.rank.level, members}
		if c.hopeless[k] {
			continue
		}
		need := c.need(g, o, members)
		under, ok := c.boundBy(g, need, capacity)
		if !ok || c.tree.Never(g.queue, need) != nil {
			continue
		}
		p, kinds := c.problem(g, o, members, need, under)
		if p == nil {
			c.hopeless[k] = true
			continue
		}
		s := preempt.Solve(p)
		if s == nil {
			c.hopeless[k] = true
			continue
		}
		if len(s.Units) == 0 {
			return false // those that are leaving make room: a promise does
		}
		c.carryOut(g, o, p, s, kinds, need)
		return true
	}
	return false
}

// boundBy is the innermost queue whose max keeps a gang out, so that only what
// is below it can make room; 0 where none does. It is false where nobody's
// leaving would help.
func (c *cycle) boundBy(g *gang, need []fairshare.Need, capacity bool) (int32, bool) {
	limits := c.tree.Blocked(g.queue, need)
	for _, l := range limits {
		if l.Reason != core.ReasonMax {
			return 0, false // idle cards that their owner does not lend
		}
	}
	if len(limits) == 0 {
		return 0, capacity
	}
	return limits[0].Queue, true
}

// problem lists what may be taken for a gang; nil where nothing may.
func (c *cycle) problem(g *gang, o *placement.Option, members int, need []fairshare.Need, under int32) (*preempt.Problem, []core.EvictionKind) {
	q := c.conf(g)
	left := c.evictionsLeft(g)
	topLeft := q.TopPerDay - c.s.History.TopEvictionsToday[q.Name] - c.queueEvictions(q.Name).top
	if left <= 0 {
		return nil, nil
	}
	p := &preempt.Problem{Cluster: c.live, Placer: c.place, Request: g.req, Option: o, Deny: c.deny(g, o), Spare: map[int]int{}}
	if g.elastic() {
		p.Members = members
	}
	p.MaxCards = c.mostCards(g, need)
	p.Prefer = int64(total(need)) * int64(c.preferWait(g)/time.Second)
	var kinds []core.EvictionKind
	for _, at := range c.candidates(g, need, under) {
		i := int(at)
		v := &c.gangs[i]
		if v.model != o.MainModel() && v.cards > 0 && len(o.Cards) > 0 || c.spared(g, v) {
			continue
		}
		kind := c.may(g, v, need)
		if kind == "" || kind == core.EvictAged && topLeft <= 0 {
			continue
		}
		holds := c.live.Holds()
		cost := c.cost(v)
		spare := 0
		if v.State == core.GangRunning && v.elastic() && !c.cfg.FixedSize { // one that does not run yet has nobody to ask
			spare = c.alive(v) - v.least()
		}
		if spare > 0 {
			p.Spare[i] = spare
			for _, h := range v.holds {
				hold := &holds[h]
				if hold.Use.Node < 0 {
					continue
				}
				// A member that leaves costs its gang one restart.
				p.Units = append(p.Units, preempt.Unit{Gang: i, Member: hold.Claim.Member, Uses: []cluster.Use{hold.Use}, Cards: c.live.CardCount(hold.Use.Node, hold.CardsOf), Cost: cost / int64(4*max(1, len(v.holds)))})
				kinds = append(kinds, kind)
			}
		}
		u := preempt.Unit{Gang: i, Member: -1, Uses: c.usesOf(v), Cards: v.cards, Cost: cost}
		if p.Spare[i] > 0 {
			u.Members = c.membersOf(v)
		}
		p.Units = append(p.Units, u)
		kinds = append(kinds, kind)
	}
	if len(p.Units) == 0 {
		return nil, nil
	}
	for i := range c.gangs {
		if v := &c.gangs[i]; v.State == core.GangStopping && len(v.holds) > 0 && !v.told {
			p.Leaving = append(p.Leaving, preempt.Unit{Gang: i, Member: -1, Uses: c.usesOf(v)})
		}
	}
	for _, l := range c.leaving {
		p.Leaving = append(p.Leaving, preempt.Unit{Gang: int(l.gang), Member: -1, Uses: l.uses})
	}
	p.Admissible = func(chosen []int) int { return c.admissible(g, p, kinds, chosen, need, left, topLeft) }
	if under != 0 {
		p.Enough = func(chosen []int) bool { return c.enough(g, p, chosen, need) }
	}
	return p, kinds
}

// mostCards is how many cards may be taken from others for a need; 0: no bound.
func (c *cycle) mostCards(g *gang, need []fairshare.Need) int {
	ratio := c.conf(g).Preempt.Ratio
	if ratio <= 0 {
		return 0
	}
	return max(1, int(math.Floor(ratio*float64(total(need)))))
}

// below tells whether a queue is another or lies under it.
func (c *cycle) below(q, top int32) bool {
	for ; q > 0; q = c.tree.Queues[q].Parent {
		if q == top {
			return true
		}
	}
	return false
}

// admissible checks a choice of victims as a whole: budgets, and that no queue
// is reclaimed from that holds no more than its guarantee by then.
func (c *cycle) admissible(g *gang, p *preempt.Problem, kinds []core.EvictionKind, chosen []int, need []fairshare.Need, left, topLeft int) int {
	bad := -1
	done := 0
	evicted, top := map[int]bool{}, 0
	for at, i := range chosen {
		u := &p.Units[i]
		v := &c.gangs[u.Gang]
		if u.Member < 0 {
			evicted[u.Gang] = true
			if kinds[i] == core.EvictAged {
				top++
			}
			if len(evicted) > left || top > topLeft {
				bad = at
				break
			}
		}
		if k := kinds[i]; k == core.EvictReclaim || k == core.EvictClass && !c.conf(g).Urgent {
			if !c.tree.Borrows(v.queue, c.tree.Common(g.queue, v.queue)) {
				bad = at
				break
			}
		}
		c.tree.Leave(v.queue, v.model, u.Cards)
		done++
	}
	for _, i := range chosen[:done] {
		c.tree.Leave(c.gangs[p.Units[i].Gang].queue, c.gangs[p.Units[i].Gang].model, -p.Units[i].Cards)
	}
	return bad
}

// enough tells whether a gang is within its limits once a choice has left.
func (c *cycle) enough(g *gang, p *preempt.Problem, chosen []int, need []fairshare.Need) bool {
	for _, i := range chosen {
		v := &c.gangs[p.Units[i].Gang]
		c.tree.Add(v.queue, v.model, -p.Units[i].Cards)
	}
	ok := c.tree.Allowed(g.queue, need)
	for _, i := range chosen {
		v := &c.gangs[p.Units[i].Gang]
		c.tree.Add(v.queue, v.model, p.Units[i].Cards)
	}
	return ok
}

// riders asks gangs that run on promised places to leave when those are due.
func (c *cycle) riders(g *gang, b *backfill.Booking) {
	if b.At.IsZero() {
		return
	}
	for i := range c.gangs {
		v := &c.gangs[i]
		if !v.Backfilled || !v.running() || b.At.Sub(c.now) > c.grace(v)+slack || !overlaps(c.usesOf(v), b.Members) {
			continue
		}
		if end := c.end(v); !end.IsZero() && !end.After(b.At) {
			continue
		}
		c.evict(v, core.Eviction{Kind: core.EvictPromise, For: g.ID, Why: fmt.Sprintf("runs on places promised to %s from %s", g.ID, stamp(b.At))})
	}
}

// slack is how much earlier than needed a rider is asked, since cycles do not
// come at every instant.
const slack = 30 * time.Second
