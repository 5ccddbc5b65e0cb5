package decide

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/estimate"
)

// The order of gangs inside a queue:
//
//  1. damaged gangs, which are to be placed again;
//  2. the higher effective priority, where the queue's order is not fifo:
//     priority, plus the aging steps passed (a step to the top stands above
//     every other priority), plus up to 50 as the latest start that meets its
//     deadline comes near. In a queue ordered by attained service a gang ages
//     only once it has waited as long as it has run, since waiting after
//     service is what that order is about;
//  3. gangs that hold a promised start, in the order in which it was made: a
//     newcomer of the same priority does not move a promise;
//  4. the queue's order:
//     priority, fifo   -
//     shortest         the least time still expected (package estimate, at
//     most the time limit; where nothing is known as long
//     again as it has run)
//     attained         the lower level of card-seconds attained so far; in
//     one level the least work still expected, where known
//     gangs aged to the top are not ordered by this: nobody passes them;
//  5. submit time, sequence number, id.
//
// Levels of attained service are powers of four from one card-hour on: below
// 1 card-hour, 1..4, 4..16, and so on. A gang is ahead of another only when it
// has had several times less, so that gangs do not take turns by the minute.
type rank struct {
	effective int
	top       bool // aged to the top
	base      int  // without aging
	made      int64
	level     int
	expected  int64 // seconds, or card-seconds where the order is attained
}

// topPriority stands above every priority that can be stated or reached.
const topPriority = 1000

// rankOf computes a waiting or running gang's rank.
func (c *cycle) rankOf(g *gang) rank {
	q := c.conf(g)
	r := rank{base: g.Priority}
	if r.base == 0 {
		r.base = 50
	}
	r.base += c.deadlineRaise(g)
	r.effective = r.base
	waits := g.State == core.GangWaiting || g.State == core.GangRefused
	if waits && !g.Queued.IsZero() {
		waited := c.now.Sub(g.Queued)
		for _, step := range q.Aging {
			if waited < step.After || q.Order == core.OrderAttained && waited < c.ran(g) {
				break
			}
			if r.top = step.Top; r.top {
				r.effective = topPriority
			} else {
				r.effective = r.base + step.Raise
			}
		}
	}
	if q.Order == core.OrderFIFO {
		r.effective, r.top = 0, false
	}
	if p := c.promised[g.ID]; p != nil && !p.At.IsZero() {
		r.made = p.Made.Unix()
	}
	cards := c.demand(g)
	ran := c.ran(g)
	switch q.Order {
	case core.OrderAttained:
		r.level = level(int64(ran/time.Second) * int64(max(1, cards)))
		if left := c.expected(g, cards, ran); left > 0 {
			r.expected = int64(left/time.Second) * int64(max(1, cards))
		}
	case core.OrderShortest:
		left := c.expected(g, cards, ran)
		if left == 0 {
			left = max(ran, time.Hour)
		}
		r.expected = int64(left / time.Second)
	}
	return r
}

// demand is how many cards a gang asks for.
func (c *cycle) demand(g *gang) int {
	if g.req != nil && len(g.req.Options) > 0 {
		return total(c.need(g, g.req.Options[0], g.members))
	}
	return g.cards
}

// level counts powers of four above one card-hour.
func level(cardSeconds int64) int {
	hours := cardSeconds / 3600
	if hours < 1 {
		return 0
	}
	return 1 + (bits.Len64(uint64(hours))-1)/2
}

// expected is how much longer a gang will probably run; 0: not known. A limit
// bounds it, and stands for it where nothing is learned.
func (c *cycle) expected(g *gang, cards int, ran time.Duration) time.Duration {
	left := time.Duration(0)
	if e, ok := c.book.Find(g.Gang, cards); ok {
		left, _ = estimate.Left(e, ran)
	}
	if l := c.limit(g); l > 0 && (left == 0 || left > l) {
		left = l
	}
	return left
}

// deadlineRaise is 0 while the latest start that meets the deadline is further
// off than the gang will run, and grows to 50 as it comes.
func (c *cycle) deadlineRaise(g *gang) int {
	if g.Deadline.IsZero() || !g.Deadline.After(c.now) {
		return 0
	}
	run := c.limit(g)
	if run == 0 {
		run = time.Hour
	}
	slack := g.Deadline.Sub(c.now) - run
	switch {
	case slack >= run:
		return 0
	case slack <= 0:
		return 50
	}
	return int(50 * int64((run-slack)/time.Second) / max(1, int64(run/time.Second)))
}

// before is the order inside a queue.
func before(a, b *gang) int {
	x, y := &a.rank, &b.rank
	if a.Damaged != b.Damaged {
		if a.Damaged {
			return -1
		}
		return 1
	}
	if x.effective != y.effective {
		return cmp.Compare(y.effective, x.effective)
	}
	if (x.made == 0) != (y.made == 0) {
		return cmp.Compare(y.made, x.made)
	}
	if x.made != y.made {
		return cmp.Compare(x.made, y.made)
	}
	order := 0
	if !x.top {
		order = cmp.Or(cmp.Compare(x.level, y.level), cmp.Compare(x.expected, y.expected))
	}
	return cmp.Or(order, a.Submitted.Compare(b.Submitted), cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
}

// order ranks every gang and lines up those that wait, queue by queue.
func (c *cycle) order() {
	for i := range c.gangs {
		g := &c.gangs[i]
		g.v.Effective = g.Priority
		switch {
		case g.gone: // its verdict stands
		case g.State == core.GangHeld:
			g.block(core.Blocker{Reason: core.ReasonHeld, Text: "held by hand", Remedy: "muster unhold " + string(g.ID)})
			g.v.Action = core.ActionHold
		case g.State == core.GangStopping:
			g.v.Action, g.v.Reason, g.v.Sentence = core.ActionStop, core.ReasonStopping, "is ending; its cards are free when its processes are gone"
		case g.running():
			g.v.Action, g.v.Reason = core.ActionRun, core.ReasonRunning
			if g.elastic() || c.cfg.Preemption {
				g.rank = c.rankOf(g)
			}
		default:
			if g.queue >= 0 && !c.refused(g) {
				g.rank = c.rankOf(g)
				g.v.Effective = g.rank.effective
				c.waiting[g.queue] = append(c.waiting[g.queue], g.number)
			} else if g.queue < 0 {
				c.refused(g)
			}
		}
	}
	for q := range c.waiting {
		slices.SortFunc(c.waiting[q], func(a, b int32) int { return before(&c.gangs[a], &c.gangs[b]) })
	}
	c.capGangs()
}
