package decide

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// gaveUp tells whether a gang has waited beyond its queue's give_up.
func (c *cycle) gaveUp(g *gang) bool {
	after := c.conf(g).GiveUp.After
	return after > 0 && c.waited(g) >= after
}

// giveUp ends or splits a gang that has waited for too long and still cannot
// start. An elastic gang goes on waiting: what is promised to it and freed for
// it is its least size from now on.
func (c *cycle) giveUp(g *gang) bool {
	if !c.gaveUp(g) {
		return false
	}
	q := c.conf(g)
	waited := fmt.Sprintf("waited %s, longer than queue %s lets gangs wait (%s)", c.waited(g), q.Name, q.GiveUp.After)
	switch {
	case q.GiveUp.Action == "split" && g.Split && g.members > 1:
		// Until that is done it waits like any other, with what is in its way and
		// a promise.
		c.plan.Splits = append(c.plan.Splits, g.ID)
		g.v.Reason, g.v.Sentence = core.ReasonGiveUp, waited+"; goes on as "+count(g.members, "single member")
		return false
	case q.GiveUp.Action == "min" && g.elastic():
		return false
	default:
		c.plan.Fails = append(c.plan.Fails, core.Fail{Gang: g.ID, Reason: waited})
		g.v.Action, g.v.Reason, g.v.Sentence = core.ActionFail, core.ReasonGiveUp, "given up: "+waited
	}
	return true
}

// grow adds members to elastic gangs: first what they lost, then what fits
// into cards of their model that nobody waits for.
func (c *cycle) grow() {
	if c.cfg.FixedSize || c.s.Paused {
		return
	}
	var all []int32
	for i := range c.gangs {
		g := &c.gangs[i]
		if g.running() && g.State == core.GangRunning && g.elastic() && g.queue >= 0 && len(g.givesUp) == 0 && g.start == nil && len(g.holds) > 0 && c.alive(g) < g.members {
			all = append(all, int32(i))
		}
	}
	slices.SortFunc(all, func(a, b int32) int {
		x, y := &c.gangs[a], &c.gangs[b]
		if x.Damaged != y.Damaged {
			if x.Damaged {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(y.rank.effective, x.rank.effective), x.Submitted.Compare(y.Submitted), cmp.Compare(x.Sequence, y.Sequence), cmp.Compare(x.ID, y.ID))
	})
	for _, i := range all {
		c.growOne(&c.gangs[i])
	}
}

func (c *cycle) growOne(g *gang) {
	holds := c.live.Holds()
	var near []int32
	have := map[int]bool{}
	for _, h := range g.holds {
		have[holds[h].Claim.Member] = true
		if n := holds[h].Use.Node; n >= 0 && !slices.Contains(near, n) {
			near = append(near, n)
		}
	}
	if len(near) == 0 {
		return
	}
	slices.Sort(near)
	if c.request(g) == nil {
		return
	}
	lost := len(g.Lost)
	for _, o := range g.req.Options {
		if o.MainModel() != g.model && len(o.Cards) > 0 {
			continue
		}
		want := g.members - len(have)
		if g.Damaged && lost > 0 {
			want = min(lost, g.members)
		} else if slices.ContainsFunc(o.Cards, func(n fairshare.Need) bool { return c.wanted[n.Model] }) {
			return // somebody waits for such cards
		}
		for want > 0 && !c.mayAdd(g, o, want) {
			want--
		}
		opt := placement.Options{Near: near, Deny: c.deny(g, o)}
		want = min(want, c.place.Most(g.req, o, opt))
		var res *placement.Result
		for ; want > 0 && res == nil; want-- {
			opt.Members = want
			res, _ = c.place.Place(g.req, o, opt)
		}
		if res == nil {
			return
		}
		for _, n := range c.need(g, o, len(res.Members)) {
			c.tree.Add(g.queue, n.Model, n.Cards)
			c.user(g.User).cards += n.Cards
		}
		add := c.placements(g.Gang, res.Members, o.Model, 0)
		free := 0
		for i := range add {
			for have[free] {
				free++
			}
			have[free] = true
			add[i].Member = free
		}
		why := "grows into cards that nobody waits for"
		if g.Damaged {
			why = "replaces what it lost"
		}
		c.plan.Resizes = append(c.plan.Resizes, core.Resize{Gang: g.ID, Add: add, Why: why})
		g.v.Action, g.v.Reason, g.v.Sentence = core.ActionResize, core.ReasonFits, why+": "+count(len(add), "member")+" more"
		return
	}
}
