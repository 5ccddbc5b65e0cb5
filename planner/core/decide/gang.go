package decide

import (
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// gang is a gang with what the cycle knows of it.
type gang struct {
	*core.Gang
	number  int32 // place in cycle.gangs, the order of ids
	queue   int32
	req     *placement.Request // of gangs that wait or may grow
	v       *core.Verdict
	members int // asked for

	rank rank

	holds []int32 // claims
	count int
	cards int   // held
	model int32 // of them

	gone     bool              // asked to leave in this cycle
	told     bool              // the timetable knows what it frees
	start    *core.Start       // decided in this cycle
	uses     []cluster.Use     // of that start
	booking  int32             // 1 + place of its booking
	bookedOn *placement.Option //
	kept     []core.Blocker    // what is in its way
	givesUp  []int             // members, in this cycle
}

// least is the fewest members that the gang may run with.
func (g *gang) least() int {
	if g.Min > 0 && g.Min < g.members {
		return g.Min
	}
	return g.members
}

// elastic tells whether its size may change.
func (g *gang) elastic() bool { return g.Min > 0 && g.Min < g.members && len(g.Groups) == 1 }

// displaced tells whether it was given places before and lost them before it
// ran: what comes free is gathered for it at once.
func (g *gang) displaced() bool { return g.Attempt > 0 && g.Ran == 0 }

// request is what a gang asks for, made when it is first asked for; nil where no
// job can mean it.
func (c *cycle) request(g *gang) *placement.Request {
	if g.req == nil && len(impossible(g.Gang)) == 0 {
		g.req = c.place.Request(g.Gang)
	}
	return g.req
}

// running tells whether it holds cards and nobody has asked it to leave.
func (g *gang) running() bool {
	return (g.State == core.GangRunning || g.State == core.GangPlacing) && !g.gone
}

// since is when a running gang's time began to count.
func (g *gang) since() time.Time {
	if !g.Released.IsZero() {
		return g.Released
	}
	return g.Started
}

// ran is how long it has run, over all attempts.
func (c *cycle) ran(g *gang) time.Duration {
	ran := g.Ran
	if g.State == core.GangRunning && !g.Released.IsZero() {
		ran += max(0, c.now.Sub(g.Released))
	}
	return ran
}

// conf is the configuration of a gang's queue; a gang whose queue is unknown
// has the root's.
func (c *cycle) conf(g *gang) *core.Queue { return c.tree.Queues[max(g.queue, 0)].Conf }

// limit is how long a gang may run; 0: endless, as far as is known.
func (c *cycle) limit(g *gang) time.Duration {
	if g.TimeLimit > 0 {
		return g.TimeLimit
	}
	return c.conf(g).TimeLimit
}

// grace is how long a gang may take to save and leave.
func (c *cycle) grace(g *gang) time.Duration {
	if g.Grace > 0 {
		return g.Grace
	}
	if q := c.conf(g); q.Preempt.Grace > 0 {
		return q.Preempt.Grace
	}
	return 10 * time.Minute
}

// overrun is how soon a gang is expected to end that should have ended.
const overrun = time.Minute

// end is when a gang that holds cards will have given them back at the latest;
// zero: not known.
func (c *cycle) end(g *gang) time.Time {
	var end time.Time
	if l := c.limit(g); l > 0 && !g.Service {
		end = g.since().Add(l)
		if g.Released.IsZero() || g.start != nil {
			end = c.now.Add(l) // its time has not begun
		}
		switch {
		case end.After(c.now):
		case c.conf(g).LimitReport:
			end = c.now.Add(overrun)
		default:
			end = c.now.Add(c.grace(g))
		}
	}
	if g.gone || g.State == core.GangStopping {
		if by := c.now.Add(c.grace(g)); end.IsZero() || by.Before(end) {
			end = by
		}
	}
	return end
}

// membersOf is the member of each of usesOf.
func (c *cycle) membersOf(g *gang) []int {
	holds := c.live.Holds()
	out := make([]int, 0, len(g.holds))
	for _, h := range g.holds {
		if holds[h].Use.Node >= 0 {
			out = append(out, holds[h].Claim.Member)
		}
	}
	return out
}

// usesOf is what the end of a gang's claims would free.
func (c *cycle) usesOf(g *gang) []cluster.Use {
	holds := c.live.Holds()
	out := make([]cluster.Use, 0, len(g.holds))
	for _, h := range g.holds {
		if holds[h].Use.Node >= 0 {
			out = append(out, holds[h].Use)
		}
	}
	return out
}

// usesOf is what members that are placed take.
func usesOf(members []placement.Member) []cluster.Use {
	out := make([]cluster.Use, len(members))
	for i := range members {
		out[i] = members[i].Use
	}
	return out
}
