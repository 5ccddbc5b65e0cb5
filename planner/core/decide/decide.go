// Package decide runs one cycle of the planner: a snapshot in, a plan out,
// with a verdict for every gang.
//
// # The cycle, least disruptive first
//
//  1. Account. What is free is what no live allocation holds; queues and users
//     are charged for what their gangs hold, stopping allocations included.
//     Cards of jobs that are no gangs are the cluster's, in use.
//  2. House-keeping, for which nobody needs to be waiting: a gang placed and
//     not released within the reserve timeout gives its cards back; one at its
//     time limit, on a draining node, or damaged below its minimum is stopped
//     as a whole.
//  3. Order. Which queue comes next: package fairshare. Inside a queue: damaged
//     gangs, then effective priority, then those that hold a promise, then the
//     queue's own order; see order.go.
//  4. In that order, each waiting gang is
//     a. checked as it was submitted (refused with every fault listed);
//     b. placed, within its queue's limits, beside what is promised to others;
//     c. or, blocked by capacity, given room by shrinking and evicting others
//     as far as it is entitled to (package preempt), its place being kept
//     for it until they are gone;
//     d. or given a reservation (package backfill): a promised start, or cards
//     that are gathered for it. There are Config.Reservations of them, and
//     Config.QueueReservations for the gangs of one queue on one model.
//     A gang behind it is backfill: it may not touch what is promised, unless
//     it ends before, or is preemptible and reports checkpoints.
//  5. Elastic gangs grow into cards that nobody waits for.
//  6. Where it is configured, gangs are moved out of the way of others; see
//     consolidate.go.
//  7. Verdicts: every gang's blockers, ranked, with holders and remedies.
//
// Evictions of c are decided when the gang is looked at, so that nothing is
// started in the same cycle on cards that it would have to be evicted from.
//
// Units: cards in pieces, work in card-seconds, priorities 1..100 plus what
// aging adds.
package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/estimate"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/recent"
)

// decider keeps what it derived from nodes and claims that did not change, and
// memory to work in.
type decider struct {
	live, ideal   *cluster.Cluster
	place, places *placement.Placer
	large         map[*placement.Request]*tooLarge // what the ideal cluster said
	idealSeen     uint64
	gangs         []gang
	index         []int32
	byRef         []int32
	arena         []int32
	refs          []knownRef
	learned       []core.Estimate // what known was read from
	known         *estimate.Book
}

// New returns a Decider for one cluster. It is not safe for concurrent use. A
// snapshot that was handed over must not be changed afterwards: parts of it
// are kept as long as nodes keep their Version.
func New() core.Decider {
	d := &decider{live: &cluster.Cluster{}, ideal: &cluster.Cluster{Ideal: true}, large: map[*placement.Request]*tooLarge{}}
	d.place, d.places = placement.New(d.live), placement.New(d.ideal)
	return d
}

// cycle is the work on one snapshot.
type cycle struct {
	*decider
	s     *core.Snapshot
	cfg   *core.Config
	now   time.Time
	plan  *core.Plan
	tree  *fairshare.Tree
	book  *estimate.Book
	times *backfill.Table
	users map[string]*userUse
	// promised are the reservations of the last cycle.
	promised map[core.GangID]*core.Reservation
	evicted  map[core.QueueName]*evictions // this cycle's, added to today's
	waiting  [][]int32                     // of each queue, in order; places in gangs
	failed   map[failure]bool
	hopeless map[hopeless]bool
	leaving  []leaver
	preys    [][]int32 // see evictable
	help     map[helpKey]*helpTimes
	reserved map[turn]int // bookings
	// tableFull: the timetable knows of all gangs that hold cards.
	tableFull bool
	capacity  []int  // usable cards, by model
	wanted    []bool // models that gangs blocked by capacity wait for
	explain   explainer
	blast     blast
	before    []ahead // the gangs that wait so far, by model
	aheadOf   []ahead // of each gang
	coming    []forecast
}

// userUse is what one user holds.
type userUse struct{ cards, gangs int }

// Decide implements core.Decider.
func (d *decider) Decide(s *core.Snapshot) *core.Plan {
	c := &cycle{decider: d, s: s, cfg: s.Config, now: s.Now, plan: &core.Plan{}, users: map[string]*userUse{}, promised: map[core.GangID]*core.Reservation{},
		evicted: map[core.QueueName]*evictions{}, failed: map[failure]bool{}, hopeless: map[hopeless]bool{}, help: map[helpKey]*helpTimes{}, reserved: map[turn]int{}}
	c.plan.Notices = d.live.Update(s)
	d.ideal.Update(s)
	mark := d.live.Mark()
	c.run()
	d.live.Rollback(mark)
	d.place.Age()
	d.places.Age()
	return c.plan
}

// estimates reads a snapshot's estimates, unless they are the very list of the
// last one.
func (d *decider) estimates(all []core.Estimate) *estimate.Book {
	if d.known == nil || len(all) != len(d.learned) || len(all) > 0 && &all[0] != &d.learned[0] {
		d.learned, d.known = all, estimate.New(all)
	}
	return d.known
}

func (c *cycle) run() {
	c.book = c.estimates(c.s.History.Estimates)
	for i := range c.s.History.Reservations {
		r := &c.s.History.Reservations[i]
		c.promised[r.Gang] = r
	}
	c.collect()
	c.place.Configure(c.cfg.Packing, c.mix())
	c.times = backfill.New(c.live, c.place, c.now)
	c.keepHouse()
	c.keepMoved()
	c.order()
	c.admit()
	c.grow()
	c.consolidate()
	c.finish()
}

// admit looks at every waiting gang, queue by queue in turn.
func (c *cycle) admit() {
	turns := c.tree.Turns()
	c.before, c.aheadOf = make([]ahead, len(c.live.Models)), make([]ahead, len(c.gangs))
	at := make([]int, len(c.waiting))
	next := func(q int32) {
		if at[q] == len(c.waiting[q]) {
			turns.Set(q, nil, false, false)
			return
		}
		g := &c.gangs[c.waiting[q][at[q]]]
		turns.Set(q, c.firstNeed(g), true, g.Damaged)
	}
	for q := range c.waiting {
		if len(c.waiting[q]) > 0 {
			next(int32(q))
		}
	}
	for {
		q := turns.Next()
		if q < 0 {
			return
		}
		g := &c.gangs[c.waiting[q][at[q]]]
		at[q]++
		g.v.Position = at[q]
		if g.req != nil && len(g.req.Options) > 0 {
			if m := g.req.Options[0].MainModel(); m >= 0 {
				c.aheadOf[g.number] = c.before[m]
			}
		}
		c.consider(g)
		c.passed(g)
		next(q)
	}
}

// firstNeed is what a gang asks of its queue at the least, on the model that
// it wants most.
func (c *cycle) firstNeed(g *gang) []fairshare.Need {
	if g.req == nil || len(g.req.Options) == 0 {
		return nil
	}
	return c.need(g, g.req.Options[0], g.least())
}

// need is what so many members of a gang take of each model. Gangs of several
// groups are always counted whole.
func (c *cycle) need(g *gang, o *placement.Option, members int) []fairshare.Need {
	if members == g.members || len(g.Groups) > 1 {
		return o.Cards
	}
	out := make([]fairshare.Need, len(o.PerMember))
	for i, m := range o.PerMember {
		out[i] = fairshare.Need{Model: m.Model, Cards: m.Cards * members}
	}
	return out
}

func total(need []fairshare.Need) int {
	n := 0
	for _, k := range need {
		n += k.Cards
	}
	return n
}

// mix is what gangs lately asked for: as it was counted, or else, by the same
// rule, of the gangs of the snapshot.
func (c *cycle) mix() []core.Shape {
	if len(c.s.History.Recent) > 0 || len(c.gangs) < recent.Few {
		return c.s.History.Recent
	}
	var w recent.Window
	for i := range c.gangs {
		if came, ok := recent.Of(c.gangs[i].Gang, c.live.IsCard); ok {
			w.Came(came)
		}
	}
	return w.Shapes()
}

// collect numbers the gangs by id, charges queues and users for what they
// hold, and starts every verdict.
func (c *cycle) collect() {
	s := c.s
	c.index = slices.Grow(c.index[:0], len(s.Gangs))
	ordered := true
	for i := range s.Gangs {
		c.index = append(c.index, int32(i))
		ordered = ordered && (i == 0 || s.Gangs[i-1].ID < s.Gangs[i].ID)
	}
	if !ordered {
		slices.SortFunc(c.index, func(a, b int32) int {
			return cmp.Or(cmp.Compare(s.Gangs[a].ID, s.Gangs[b].ID), cmp.Compare(s.Gangs[a].Sequence, s.Gangs[b].Sequence))
		})
		twice := func(a, b int32) bool { return s.Gangs[a].ID == s.Gangs[b].ID }
		for i := 1; i < len(c.index); i++ {
			if twice(c.index[i-1], c.index[i]) {
				c.plan.Notices = append(c.plan.Notices, core.Notice{Object: "gang " + string(s.Gangs[c.index[i]].ID), Text: "is listed twice; the first by sequence is used"})
			}
		}
		c.index = slices.CompactFunc(c.index, twice)
	}
	clear(c.gangs)
	c.gangs = slices.Grow(c.gangs[:0], len(c.index))[:len(c.index)]
	c.plan.Verdicts = make([]core.Verdict, len(c.index))
	c.byRef = slices.Grow(c.byRef[:0], c.live.Gangs())[:c.live.Gangs()]
	for i := range c.byRef {
		c.byRef[i] = -1
	}
	c.capacity = c.live.Capacity()
	tree, notices := fairshare.New(c.cfg.Queues, c.live.Models, c.capacity)
	c.tree, c.waiting, c.wanted = tree, make([][]int32, len(tree.Queues)), make([]bool, len(c.live.Models))
	c.plan.Notices = append(c.plan.Notices, notices...)
	old, refs := c.refs, make([]knownRef, len(c.index))
	lastQueue, lastNumber := core.QueueName(""), tree.Find("")
	for i, at := range c.index {
		g := &c.gangs[i]
		g.Gang, g.number, g.v = &s.Gangs[at], int32(i), &c.plan.Verdicts[i]
		g.v.Gang = g.ID
		if g.Queue != lastQueue {
			lastQueue, lastNumber = g.Queue, tree.Find(g.Queue)
		}
		g.queue = lastNumber
		for k := range g.Groups {
			g.members += min(max(0, g.Groups[k].Count), mostMembers)
		}
		// Both lists are ordered by id: most gangs are where they were.
		for len(old) > 0 && old[0].id < g.ID {
			old = old[1:]
		}
		refs[i] = knownRef{g.ID, -1}
		if len(old) > 0 && old[0].id == g.ID && old[0].ref >= 0 && c.live.IsGang(old[0].ref, g.ID) {
			refs[i].ref = old[0].ref
		} else {
			refs[i].ref = c.live.Gang(g.ID)
		}
		if ref := refs[i].ref; ref >= 0 {
			c.byRef[ref] = int32(i)
		}
	}
	c.refs = refs
	c.charge()
}

// knownRef is a gang's number in the cluster, -1 where it has none.
type knownRef struct {
	id  core.GangID
	ref int32
}

// charge gives each gang its claims and charges its queue and user.
func (c *cycle) charge() {
	holds := c.live.Holds()
	gangOf := func(h *cluster.Hold) int32 {
		if h.Gang < 0 {
			return -1
		}
		return c.byRef[h.Gang]
	}
	for h := range holds {
		if g := gangOf(&holds[h]); g >= 0 {
			c.gangs[g].count++
		}
	}
	c.arena = slices.Grow(c.arena[:0], len(holds))[:len(holds)]
	from := 0
	for i := range c.gangs {
		g := &c.gangs[i]
		g.holds = c.arena[from : from : from+g.count]
		from += g.count
	}
	cards := make([]int, len(c.live.Models))
	for h := range holds {
		at := gangOf(&holds[h])
		if at >= 0 {
			c.gangs[at].holds = append(c.gangs[at].holds, int32(h))
			continue
		}
		clear(cards)
		c.live.CountCards(&holds[h], cards)
		for m, n := range cards {
			if n > 0 {
				c.tree.Add(0, int32(m), n)
			}
		}
		if holds[h].Gang >= 0 && holds[h].Claim.Gang != "" {
			c.plan.Notices = append(c.plan.Notices, core.Notice{Object: "allocation " + holds[h].Claim.Alloc,
				Text: "belongs to gang " + string(holds[h].Claim.Gang) + ", which is not known; its cards count as in use"})
		}
	}
	for i := range c.gangs {
		g := &c.gangs[i]
		if len(g.holds) > 1 { // the claims came in any order
			byMember := func(a, b int32) int {
				x, y := &holds[a].Claim, &holds[b].Claim
				return cmp.Or(cmp.Compare(x.Member, y.Member), cmp.Compare(x.Alloc, y.Alloc))
			}
			if !slices.IsSortedFunc(g.holds, byMember) {
				slices.SortFunc(g.holds, byMember)
			}
		}
		if len(g.holds) == 0 {
			continue
		}
		clear(cards)
		for _, h := range g.holds {
			c.live.CountCards(&holds[h], cards)
		}
		for m, n := range cards {
			if n > 0 {
				g.model = int32(m)
				g.cards += n
				c.tree.Add(max(g.queue, 0), int32(m), n)
			}
		}
		u := c.user(g.User)
		u.cards += g.cards
		u.gangs++
	}
}

func (c *cycle) user(name string) *userUse {
	u := c.users[name]
	if u == nil {
		u = &userUse{}
		c.users[name] = u
	}
	return u
}
