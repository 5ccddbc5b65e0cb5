package decide

import (
	"fmt"
	"sort"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/estimate"
)

// When a waiting gang will probably start:
//
//   - with a promise, by the promise; where run times were learned perhaps
//     earlier, as those who hold its cards are expected to end;
//   - blocked by a queue's max, when so many of the queue's cards have come
//     back by time limits;
//   - otherwise from the instant at which those who hold cards of its model are
//     expected to have ended so far that it fits by number, as if nobody were
//     ahead of it, to the instant at which nine in ten of such gangs have, or
//     their time limits have passed, and the gangs ahead of it have run on the
//     cards of that model. Where one of those has neither a limit nor an
//     estimate the range has no end, and where not enough ends are known at all
//     there is no range.
//
// Instants of the last kind are rounded to an eighth.

// instants are the bounds of the intervals in which ends are counted, from 30
// seconds up to more than a year from now.
var instants = func() []time.Duration {
	var out []time.Duration
	for d := 30 * time.Second; d < 400*24*time.Hour; d += (d / 8).Truncate(time.Second) {
		out = append(out, d)
	}
	return out
}()

// forecast counts the cards of one model that come free within each interval.
type forecast struct {
	free         int
	likely, most []int
	learned      bool // an estimate is among them
}

// within is the number of the first interval that reaches as far as a duration.
func within(d time.Duration) int {
	return min(sort.Search(len(instants), func(i int) bool { return instants[i] >= d }), len(instants)-1)
}

// forecasts looks at everything that holds cards, once a cycle.
func (c *cycle) forecasts() []forecast {
	if c.coming != nil {
		return c.coming
	}
	c.coming = make([]forecast, len(c.live.Models))
	for m := range c.coming {
		c.coming[m] = forecast{free: c.live.FreeOf(int32(m)), likely: make([]int, len(instants)), most: make([]int, len(instants))}
	}
	for i := range c.gangs {
		g := &c.gangs[i]
		model, cards := c.holding(g)
		if cards == 0 || model < 0 {
			continue
		}
		f := &c.coming[model]
		likely, most, learned := c.left(g, cards)
		f.learned = f.learned || learned
		if likely > 0 {
			f.likely[within(likely)] += cards
		}
		if most > 0 {
			f.most[within(most)] += cards
		}
	}
	return c.coming
}

// left is how much longer a gang that holds cards will probably hold them, and
// at most; 0: not known.
func (c *cycle) left(g *gang, cards int) (likely, most time.Duration, learned bool) {
	if end := c.end(g); !end.IsZero() {
		most = max(time.Second, end.Sub(c.now))
		likely = most
	}
	if g.gone || g.State == core.GangStopping {
		return likely, most, false
	}
	e, ok := c.book.Find(g.Gang, cards)
	if !ok || g.Service {
		return likely, most, false
	}
	l, m := estimate.Left(e, c.ran(g))
	if likely == 0 || l < likely {
		likely = max(time.Second, l)
	}
	if most == 0 || m < most {
		most = max(time.Second, m)
	}
	return likely, most, true
}

// ahead is the work of the gangs that are looked at before one.
type ahead struct {
	gangs   int
	seconds int64 // card-seconds
	unknown bool  // of one of them nothing is known
}

// passed notes a gang that goes on waiting, ahead of those behind it.
func (c *cycle) passed(g *gang) {
	if g.start != nil || g.req == nil || len(g.req.Options) == 0 || g.v.Action == core.ActionFail || g.v.Action == core.ActionRefuse {
		return
	}
	m := g.req.Options[0].MainModel()
	if m < 0 {
		return
	}
	cards := total(c.need(g, g.req.Options[0], g.least()))
	a := &c.before[m]
	a.gangs++
	run := c.limit(g)
	if e, ok := c.book.Find(g.Gang, cards); ok {
		if _, most := estimate.Left(e, g.Ran); run == 0 || most < run {
			run = most
		}
	}
	if run == 0 || g.Service {
		a.unknown = true
	}
	a.seconds += int64(cards) * int64(run/time.Second)
}

// eta says when a waiting gang will probably start.
func (c *cycle) eta(g *gang) {
	if len(g.req.Options) == 0 {
		return
	}
	o := g.req.Options[0]
	if b := c.times.Booking(g.number); g.booking > 0 && b != nil && !b.At.IsZero() {
		g.v.ETA = core.ETA{From: b.At, To: b.At, Promised: true, Assumption: "running gangs end by their time limits"}
		if m := o.MainModel(); m >= 0 && c.forecasts()[m].learned {
			if from, ok := c.coming[m].reach(total(c.need(g, o, g.least())), c.coming[m].likely, true); ok && c.now.Add(from).Before(b.At) {
				g.v.ETA.From = c.now.Add(from)
				g.v.ETA.Assumption = "running gangs end as such gangs did before, and by their time limits at the latest"
			}
		}
		return
	}
	for _, b := range g.kept {
		switch b.Reason {
		case core.ReasonPaused, core.ReasonHeld, core.ReasonBudget, core.ReasonMaxGangs, core.ReasonUserLimit, core.ReasonLend:
			return // nobody knows when a person, or somebody's choice, changes it
		case core.ReasonMax:
			if at, ok := freed(b.Holders, b.Missing); ok {
				g.v.ETA = core.ETA{From: at, To: at, Assumption: "gangs of the queue end by their time limits"}
			}
			return
		case core.ReasonPause:
			g.v.ETA = core.ETA{From: g.NotBefore, Assumption: "its cards are free when its pause ends"}
			return
		}
	}
	m := o.MainModel()
	if m < 0 {
		return
	}
	f := &c.forecasts()[m]
	need := total(c.need(g, o, g.least()))
	switch g.kept[0].Reason {
	case core.ReasonCards, core.ReasonReserved, core.ReasonExcluded, core.ReasonBehind:
	case core.ReasonPrefer:
		g.v.ETA = core.ETA{From: c.now, To: c.queued(g).Add(c.preferWait(g)), Assumption: "it takes a place beyond its preferred level then"}
		return
	default: // cards enough, but not where it needs them: something has to end first
		need = f.free + 1
		defer func() { g.v.ETA.To = time.Time{} }()
	}
	from, ok := f.reach(need, f.likely, false)
	if !ok {
		return
	}
	g.v.ETA = core.ETA{From: c.now.Add(from), Assumption: "running gangs end by their time limits"}
	if f.learned {
		g.v.ETA.Assumption = "running gangs end as such gangs did before"
	}
	a := c.aheadOf[g.number]
	if a.gangs > 0 {
		g.v.ETA.Assumption += fmt.Sprintf(", and %s ahead of it run as long as expected", count(a.gangs, "gang"))
	}
	if to, ok := f.reach(need, f.most, true); ok && !a.unknown {
		wait := time.Duration(a.seconds/int64(max(1, c.ideal.FreeOf(m)))) * time.Second
		g.v.ETA.To = c.now.Add(max(to, from) + wait)
	}
}

// reach is the instant at which so many cards are free: the end of the interval
// in which they come, or its start.
func (f *forecast) reach(cards int, coming []int, end bool) (time.Duration, bool) {
	have := f.free
	if have >= cards {
		return 0, true
	}
	for i, n := range coming {
		if have += n; have >= cards {
			if end {
				return instants[i], true
			}
			if i == 0 {
				return 0, true
			}
			return instants[i-1], true
		}
	}
	return 0, false
}

// freed is when holders, who ends first first, have given so many cards back.
func freed(holders []core.Holder, cards int) (time.Time, bool) {
	for _, h := range holders {
		if h.Until.IsZero() {
			break
		}
		if cards -= h.Cards; cards <= 0 {
			return h.Until, true
		}
	}
	return time.Time{}, false
}
