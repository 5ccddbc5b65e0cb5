package decide

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/topology"
)

// failure names an attempt at placing that came to nothing. While gangs are
// only added to the cluster it comes to nothing again; for the queue see blastQueue.
type failure struct {
	queue   int32
	option  *placement.Option
	members int
	lifted  backfill.Set
}

// block notes something that is in a gang's way.
func (g *gang) block(b core.Blocker) { g.kept = append(g.kept, b) }

// consider places a waiting gang whole, makes room for it, promises it places,
// or notes what is in its way.
func (c *cycle) consider(g *gang) {
	if c.held(g) {
		c.keepPlace(g)
		return
	}
	capacity := false // the cluster's state is in the way, not the queue's
	for _, o := range c.options(g) {
		members := c.allowed(g, o)
		if members == 0 {
			continue
		}
		res, lifted, why := c.tryPlace(g, o, members)
		if res != nil {
			c.started(g, o, res, lifted)
			return
		}
		if why != core.ReasonPrefer {
			capacity = true
		}
	}
	if c.makeRoom(g, capacity) || c.giveUp(g) {
		return
	}
	if !capacity {
		return
	}
	for _, o := range g.req.Options[:1] {
		for _, m := range o.Cards {
			c.wanted[m.Model] = true
		}
	}
	c.reserve(g)
}

// options are a gang's models in the order in which they are tried: as it
// named them, or by the place that each offers now, the best first.
func (c *cycle) options(g *gang) []*placement.Option {
	if len(g.Models) > 0 || len(g.req.Options) < 2 {
		return g.req.Options
	}
	type offer struct {
		option *placement.Option
		place  *placement.Result // nil: none now
	}
	offers := make([]offer, len(g.req.Options))
	for i, o := range g.req.Options {
		offers[i].option = o
		members := g.members
		if !c.mayAdd(g, o, members) {
			if members = 0; g.elastic() && c.mayAdd(g, o, g.Min) {
				members = g.Min
			}
		}
		if members == 0 || c.failed[failure{c.blastQueue(g), o, members, 0}] {
			continue
		}
		mark := c.live.Mark()
		if res, ok := c.fit(g, o, members, placement.Options{Deny: c.deny(g, o)}); ok {
			offers[i].place = res
		}
		c.live.Rollback(mark)
	}
	slices.SortStableFunc(offers, func(a, b offer) int {
		switch {
		case a.place == nil && b.place == nil:
			return 0
		case a.place == nil:
			return 1
		case b.place == nil:
			return -1
		}
		return a.place.Compare(b.place)
	})
	out := make([]*placement.Option, len(offers))
	for i := range offers {
		out[i] = offers[i].option
	}
	return out
}

// held notes what keeps a gang from being looked at at all.
func (c *cycle) held(g *gang) bool {
	held := len(g.kept) > 0
	if c.s.Paused {
		g.block(core.Blocker{Reason: core.ReasonPaused, Text: "admissions are paused: " + c.s.PausedWhy, Remedy: "muster resume"})
		held = true
	}
	if g.NotBefore.After(c.now) {
		g.block(core.Blocker{Reason: core.ReasonPause, Text: "pauses until " + stamp(g.NotBefore) + ": " + g.NotBeforeWhy, Remedy: "correct the cause, or muster requeue " + string(g.ID)})
		held = true
	}
	for at := g.queue; at > 0; at = c.tree.Queues[at].Parent {
		q := c.tree.Queues[at].Conf
		if b := q.Budget.CardSeconds; b > 0 && c.s.History.UsedCardSeconds[q.Name] >= b {
			c.full(g, core.Blocker{Reason: core.ReasonBudget, Text: fmt.Sprintf("queue %s has used its budget of %d card-hours per %s", q.Name, b/3600, q.Budget.Period), Remedy: "wait for the next period, or raise the budget"})
			held = true
		}
	}
	if l, ok := c.userLimit(g.User); ok {
		u := c.user(g.User)
		if l.MaxGangs > 0 && u.gangs+1 > l.MaxGangs {
			g.block(core.Blocker{Reason: core.ReasonUserLimit, Missing: 1, Text: fmt.Sprintf("user %s runs %d gangs, the limit is %d", g.User, u.gangs, l.MaxGangs), Remedy: "wait for one of them to end"})
			held = true
		}
		if need := total(c.firstNeed(g)); l.MaxCards > 0 && u.cards+need > l.MaxCards {
			g.block(core.Blocker{Reason: core.ReasonUserLimit, Missing: u.cards + need - l.MaxCards,
				Text: fmt.Sprintf("user %s holds %s and would hold %d, the limit is %d", g.User, cards(u.cards), u.cards+need, l.MaxCards), Remedy: "wait for one of the user's gangs to end"})
			held = true
		}
	}
	return held
}

// userLimit is the limit of a user: the user's own, else the one for everybody.
func (c *cycle) userLimit(user string) (core.UserLimit, bool) {
	for _, name := range []string{user, "*"} {
		if at := slices.IndexFunc(c.cfg.UserLimits, func(l core.UserLimit) bool { return l.User == name }); at >= 0 {
			return c.cfg.UserLimits[at], true
		}
	}
	return core.UserLimit{}, false
}

// mayAdd tells whether the limits of a gang's queue and user let it add so many
// members on a model.
func (c *cycle) mayAdd(g *gang, o *placement.Option, members int) bool {
	need := c.need(g, o, members)
	return c.userMay(g, need) && c.tree.Allowed(g.queue, need)
}

func (c *cycle) userMay(g *gang, need []fairshare.Need) bool {
	l, ok := c.userLimit(g.User)
	return !ok || l.MaxCards == 0 || c.user(g.User).cards+total(need) <= l.MaxCards
}

// userMost is the most members of an elastic gang, up to a number, that its
// user's limit lets it have, and the gang's least at least.
func (c *cycle) userMost(g *gang, o *placement.Option, members int) int {
	for g.elastic() && members > g.Min && !c.userMay(g, c.need(g, o, members)) {
		members--
	}
	return members
}

// full notes that a queue's max or budget is used up; a queue that refuses
// then refuses.
func (c *cycle) full(g *gang, b core.Blocker) {
	g.block(b)
	if c.conf(g).RefuseFull {
		g.v.Action, g.v.Reason, g.v.Sentence = core.ActionRefuse, b.Reason, "refused: "+b.Text
	}
}

// allowed is how many members of a gang its queue and its user's limit may add
// on a model: all, the most that an elastic one may, or 0 with the bounds
// noted.
func (c *cycle) allowed(g *gang, o *placement.Option) int {
	most := g.members
	if g.elastic() {
		most = g.Min + sort.Search(g.members-g.Min, func(i int) bool { return !c.mayAdd(g, o, g.Min+i+1) })
	}
	if c.mayAdd(g, o, most) {
		return most
	}
	for _, l := range c.tree.Blocked(g.queue, c.need(g, o, g.least())) {
		c.overLimit(g, o, l)
	}
	return 0
}

// tryPlace finds places for a gang beside what is promised to others. One that
// ends before some of it is due takes those places first, and leaves the others
// to gangs that could not use them; one that leaves when it is asked takes them
// last. The place is left taken, together with the bookings that were shared.
func (c *cycle) tryPlace(g *gang, o *placement.Option, members int) (*placement.Result, backfill.Set, core.Reason) {
	limit := c.limit(g)
	var before, all backfill.Set
	if len(c.times.Bookings) > 0 && limit > 0 && !g.Service {
		before = c.times.Before(c.now.Add(limit))
	}
	if c.rides(g) {
		all = c.times.All()
	}
	why := core.ReasonShape
	for i, lifted := range [...]backfill.Set{before, 0, all} {
		k := failure{c.blastQueue(g), o, members, lifted}
		if i > 0 && lifted == before || i == 2 && lifted == 0 || c.failed[k] {
			continue
		}
		opt := placement.Options{Deny: c.deny(g, o)}
		if i == 0 && lifted != 0 {
			opt.Bias, opt.Later = c.times.Promised(lifted)
		}
		mark := c.live.Mark()
		c.times.Lift(lifted)
		res, ok := c.fit(g, o, members, opt)
		if !ok {
			c.live.Rollback(mark)
			c.failed[k] = true
			if i == 0 { // without those places it fits even less
				c.failed[failure{c.blastQueue(g), o, members, 0}] = true
			}
			continue
		}
		if !c.content(g, res) {
			c.live.Rollback(mark)
			why = core.ReasonPrefer
			continue
		}
		if lifted != 0 {
			c.live.Rollback(mark)
			for i := range res.Members {
				c.times.Share(lifted, &res.Members[i].Use)
			}
		}
		return res, lifted, core.ReasonFits
	}
	return nil, 0, why
}

// rides tells whether a gang may use promised places without end, since it
// saves its work and leaves when it is asked.
func (c *cycle) rides(g *gang) bool {
	return c.cfg.Preemption && g.Preemptible && !g.Service && (!g.Checkpoint.IsZero() || g.SaveTime > 0)
}

// fit places as many members as it can, all but of an elastic gang.
func (c *cycle) fit(g *gang, o *placement.Option, members int, opt placement.Options) (*placement.Result, bool) {
	if !g.elastic() {
		return c.place.Place(g.req, o, opt)
	}
	most := min(members, c.place.Most(g.req, o, opt))
	if most < g.Min {
		return nil, false
	}
	for opt.Members = most; ; opt.Members = g.Min {
		if res, ok := c.place.Place(g.req, o, opt); ok || opt.Members == g.Min {
			return res, ok
		}
	}
}

// content tells whether a gang takes a place now, or rather waits for one
// within its preferred level or, where it is too large for that, the next level
// that could hold it: as long as it has not waited prefer_wait, the cluster
// could hold it so, and what is known to end before then would let it.
func (c *cycle) content(g *gang, res *placement.Result) bool {
	r := g.req
	if r.Required || g.Damaged || inside(res, r.Level) {
		return true
	}
	until := c.queued(g).Add(c.preferWait(g))
	if !until.After(c.now) {
		return true
	}
	level := c.tooLarge(g).prefers
	if level == spread || inside(res, level) || !c.helped(g, res, level, until) {
		return true
	}
	name := core.LevelLink
	if level == len(c.live.Levels) {
		name = core.LevelNode
	} else if level >= 0 {
		name = c.live.Levels[level].Name
	}
	g.block(core.Blocker{Reason: core.ReasonPrefer, Text: fmt.Sprintf("would have to be spread now; waits until %s for a place within one %s", stamp(until), name), Remedy: "set a shorter muster_prefer_wait"})
	return false
}

// started notes that a gang starts now.
func (c *cycle) started(g *gang, o *placement.Option, res *placement.Result, lifted backfill.Set) {
	need := c.need(g, o, len(res.Members))
	if len(g.Groups) > 1 {
		need = o.Cards
	}
	before := c.tree.Borrowed(g.queue)
	for _, n := range need {
		c.tree.Add(g.queue, n.Model, n.Cards)
	}
	u := c.user(g.User)
	u.cards += total(need)
	u.gangs++
	start := core.Start{Gang: g.ID, Queue: g.Queue, Model: o.Model, Repair: g.Damaged, Members: c.placements(g.Gang, res.Members, o.Model, 0),
		Backfill: len(c.times.Bookings) > 0, OnPromise: lifted != 0 && (c.limit(g) == 0 || lifted != c.times.Before(c.now.Add(c.limit(g)))), Score: c.score(res)}
	start.Borrowed = c.tree.Borrowed(g.queue) - before
	c.plan.Starts = append(c.plan.Starts, start)
	g.start, g.uses = &start, usesOf(res.Members)
	g.v.Action, g.v.Reason, g.v.Sentence = core.ActionStart, core.ReasonFits, "starts: "+start.Score
	g.kept = nil
	c.blast.add(c, g)
	end := time.Time{}
	if l := c.limit(g); l > 0 && !g.Service {
		end = c.now.Add(l)
	}
	if start.OnPromise {
		end = c.now.Add(c.grace(g))
	}
	c.times.Add(backfill.Release{At: end, Uses: g.uses, Gang: g.number})
}

// score says why a place was chosen, for people.
func (c *cycle) score(res *placement.Result) string {
	text := count(len(res.Members), "member") + " on " + count(res.Nodes, "node")
	for l := len(res.Domains) - 1; l >= 0; l-- {
		text += fmt.Sprintf(", %d x %s", res.Domains[l], c.live.Levels[l].Name)
	}
	return text
}

// placements names the members of a result, numbered from first.
func (c *cycle) placements(g *core.Gang, members []placement.Member, model core.Model, first int) []core.Placement {
	out := make([]core.Placement, len(members))
	for i := range members {
		m := &members[i]
		node := &c.live.Nodes[m.Use.Node]
		p := core.Placement{Group: g.Groups[m.Group].Name, Member: first + i, Node: node.Src.ID, Model: model, Cards: make([][]core.CardID, len(m.Asks))}
		n := 0
		for _, a := range m.Asks {
			n += len(a)
		}
		ids := make([]core.CardID, 0, n)
		for a, places := range m.Asks {
			from := len(ids)
			for _, place := range places {
				if d, at := node.Device(place); d != nil {
					ids = append(ids, topology.ID(d, at))
				}
			}
			p.Cards[a] = ids[from:len(ids):len(ids)]
		}
		out[i] = p
	}
	return out
}

// turn is a queue's demand for one model.
type turn struct{ queue, model int32 }

// reserve gives a gang that is blocked by capacity a booking, if one is left:
// a promised start, or places to gather. The first gangs of each queue and
// model get them; those behind only where they are damaged, lost their places
// before they ran, or hold a promise already.
func (c *cycle) reserve(g *gang) {
	most := c.cfg.Reservations
	if len(c.times.Bookings) >= most || g.Service {
		return
	}
	for _, o := range g.req.Options {
		k := turn{g.queue, o.MainModel()}
		if c.reserved[k] >= c.cfg.QueueReservations && !g.Damaged && !g.displaced() && g.rank.made == 0 {
			continue
		}
		members := g.members
		if g.elastic() && c.gaveUp(g) {
			members = g.Min
		}
		if g.elastic() && !c.mayAdd(g, o, members) {
			members = g.Min
		}
		if !c.mayAdd(g, o, members) {
			continue
		}
		c.fillTable()
		ask := &backfill.Ask{Gang: g.number, Request: g.req, Option: o, Limit: c.limit(g), Deny: c.deny(g, o)}
		if g.elastic() {
			ask.Members = members
		}
		b, ok := c.times.Shadow(ask)
		if !ok {
			if c.waited(g) < c.cfg.GatherAfter && !g.Damaged && !g.displaced() {
				continue
			}
			if b, ok = c.times.Gather(ask, c.ready(g, o)); !ok {
				continue
			}
		}
		c.times.Commit(b)
		c.reserved[k]++
		g.booking = int32(len(c.times.Bookings))
		g.bookedOn = o
		c.riders(g, &b)
		return
	}
}

// keepPlace books places for a gang that is to be placed again after damage and
// pauses first, so that newcomers do not take them meanwhile.
func (c *cycle) keepPlace(g *gang) {
	if !g.Damaged || g.Service || len(c.times.Bookings) >= c.cfg.Reservations || slices.ContainsFunc(g.kept, func(b core.Blocker) bool { return b.Reason != core.ReasonPause }) {
		return
	}
	for _, o := range g.req.Options {
		if !c.mayAdd(g, o, g.least()) {
			continue
		}
		c.fillTable()
		ask := &backfill.Ask{Gang: g.number, Request: g.req, Option: o, Limit: c.limit(g), Deny: c.deny(g, o)}
		if g.elastic() {
			ask.Members = g.Min
		}
		b, ok := c.times.Gather(ask, c.ready(g, o))
		if !ok {
			continue
		}
		uses := make([]cluster.Use, len(b.Members))
		for i := range b.Members {
			uses[i] = b.Members[i].Use
		}
		if c.live.Free(uses) {
			b.At = g.NotBefore
			if l := c.limit(g); l > 0 {
				b.End = b.At.Add(l)
			}
		}
		c.times.Commit(b)
		g.booking, g.bookedOn = int32(len(c.times.Bookings)), o
		return
	}
}

// queued is since when a gang waits, and waited for how long.
func (c *cycle) queued(g *gang) time.Time {
	if g.Queued.IsZero() {
		return g.Submitted
	}
	return g.Queued
}

func (c *cycle) waited(g *gang) time.Duration { return c.now.Sub(c.queued(g)) }

// preferWait is how long a gang waits for a place within its preferred level.
func (c *cycle) preferWait(g *gang) time.Duration {
	if g.PreferWait == 0 {
		return c.cfg.PreferWait
	}
	return g.PreferWait
}

// fillTable tells the timetable of every gang that holds cards, once.
func (c *cycle) fillTable() {
	if c.tableFull {
		return
	}
	c.tableFull = true
	for i := range c.gangs {
		g := &c.gangs[i]
		if len(g.holds) == 0 || g.told {
			continue
		}
		end := c.end(g)
		if g.Backfilled && g.running() {
			if by := c.now.Add(c.grace(g)); end.IsZero() || by.Before(end) {
				end = by
			}
		}
		c.times.Add(backfill.Release{At: end, Uses: c.usesOf(g), Gang: g.number})
	}
}

// helped tells whether what is known to end before an instant would let a gang,
// whose place now is given, be placed within one domain of a level.
// Where some gang's end is not known it may.
func (c *cycle) helped(g *gang, now *placement.Result, level int, until time.Time) bool {
	o := now.Option
	k := helpKey{c.blastQueue(g), o}
	h := c.help[k]
	if h == nil {
		h = &helpTimes{}
		c.help[k] = h
	}
	switch {
	case !h.yes.IsZero() && !until.Before(h.yes):
		return true
	case !until.After(h.no):
		return false
	}
	mark := c.live.Mark()
	defer c.live.Rollback(mark)
	for i := range now.Members {
		c.live.Give(&now.Members[i].Use)
	}
	unknown, given := false, false
	for i := range c.gangs {
		v := &c.gangs[i]
		if len(v.holds) == 0 {
			continue
		}
		switch end := c.end(v); {
		case end.IsZero():
			unknown = true
		case !end.After(until):
			given = true
			uses := c.usesOf(v)
			for u := range uses {
				c.live.Give(&uses[u])
			}
		}
	}
	helped := unknown
	if !helped && given {
		res, ok := c.place.Place(g.req, o, placement.Options{Deny: c.deny(g, o)})
		helped = ok && inside(res, level)
	}
	if helped {
		h.yes = until
	} else {
		h.no = until
	}
	return helped
}

// helpKey is whom and what helped is asked for.
type helpKey struct {
	queue  int32
	option *placement.Option
}

// helpTimes bound the instants of which helped is known: it is true from yes
// on and false up to no.
type helpTimes struct{ yes, no time.Time }

// inside tells whether a place lies in one domain of a level, as requests number
// them.
func inside(res *placement.Result, level int) bool {
	switch {
	case level < 0:
		return !res.Islands
	case level == len(res.Domains):
		return res.Nodes == 1
	default:
		return res.Domains[level] == 1
	}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func cards(n int) string { return count(n, "card") }
