package decide

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/placement"
	"github.com/nomad-muster/muster/planner/core/preempt"
)

// carryOut evicts and shrinks what was chosen and starts the gang behind it.
func (c *cycle) carryOut(g *gang, o *placement.Option, p *preempt.Problem, s *preempt.Solution, kinds []core.EvictionKind, need []fairshare.Need) {
	q := c.conf(g)
	wait := time.Duration(0)
	shrink := map[int][]int{}
	var after []int32
	for _, i := range s.Units {
		u := &p.Units[i]
		v := &c.gangs[u.Gang]
		if u.Member >= 0 {
			shrink[u.Gang] = append(shrink[u.Gang], u.Member)
			c.tree.Leave(v.queue, v.model, u.Cards)
			v.givesUp = append(v.givesUp, u.Member)
		} else {
			e := core.Eviction{Kind: kinds[i], For: g.ID, Cost: u.Cost, Immediate: q.Urgent, Why: c.rightText(g, v, kinds[i])}
			c.evict(v, e)
			c.queueEvictions(q.Name).all++
			if kinds[i] == core.EvictAged {
				c.queueEvictions(q.Name).top++
			}
		}
		wait = max(wait, c.grace(v))
		if !slices.Contains(after, int32(u.Gang)) {
			after = append(after, int32(u.Gang))
		}
	}
	// What those that leave anyway hold counts as well where the gang takes
	// it over.
	for _, l := range p.Leaving {
		if overlaps(l.Uses, s.Members) && !slices.Contains(after, int32(l.Gang)) {
			after = append(after, int32(l.Gang))
			wait = max(wait, c.grace(&c.gangs[l.Gang]))
		}
	}
	slices.Sort(after)
	for i := range c.gangs {
		if m := shrink[i]; len(m) > 0 {
			slices.Sort(m)
			c.plan.Resizes = append(c.plan.Resizes, core.Resize{Gang: c.gangs[i].ID, Remove: m, For: g.ID, Why: fmt.Sprintf("gives up %s to %s", count(len(m), "member"), g.ID)})
		}
	}
	c.takeOver(p, s)
	start := core.Start{Gang: g.ID, Queue: g.Queue, Model: o.Model, Repair: g.Damaged, Members: c.placements(g.Gang, s.Members, o.Model, 0),
		Score: "takes over the places of " + count(len(after), "gang")}
	for _, v := range after {
		start.After = append(start.After, c.gangs[v].ID)
	}
	start.Waits = !c.tree.Allowed(g.queue, need)
	before := c.tree.Borrowed(g.queue)
	for _, n := range need {
		c.tree.Add(g.queue, n.Model, n.Cards)
	}
	start.Borrowed = max(0, c.tree.Borrowed(g.queue)-before)
	u := c.user(g.User)
	u.cards += total(need)
	u.gangs++
	c.plan.Starts = append(c.plan.Starts, start)
	g.start, g.uses, g.kept = &start, usesOf(s.Members), nil
	c.blast.add(c, g)
	g.v.Action, g.v.Reason = core.ActionStart, core.ReasonVictims
	g.v.Sentence = fmt.Sprintf("starts when %s has left; its places are kept", c.names(after))
	g.v.ETA = core.ETA{From: c.now, To: c.now.Add(wait), Assumption: "those asked leave within their grace"}
	end := time.Time{}
	if l := c.limit(g); l > 0 && !g.Service {
		end = c.now.Add(wait + l)
	}
	c.times.Add(backfill.Release{At: end, Uses: g.uses, Gang: g.number})
}

// takeOver takes a solution's places, and leaves taken what the victims hold
// beside them until they are gone.
func (c *cycle) takeOver(p *preempt.Problem, s *preempt.Solution) {
	type owner struct {
		gang int32
		uses []cluster.Use
		last bool // the gang leaves as a whole
	}
	var owners []owner
	for i := range c.leaving {
		owners = append(owners, owner{c.leaving[i].gang, c.leaving[i].uses, true})
	}
	c.leaving = c.leaving[:0]
	for _, i := range s.Units {
		u := &p.Units[i]
		owners = append(owners, owner{int32(u.Gang), u.Uses, u.Member < 0})
	}
	for i := range p.Leaving { // that were stopping before this cycle
		if l := &p.Leaving[i]; !c.gangs[l.Gang].told && overlaps(l.Uses, s.Members) {
			owners = append(owners, owner{int32(l.Gang), l.Uses, true})
		}
	}
	for i := range owners {
		for u := range owners[i].uses {
			c.live.Give(&owners[i].uses[u])
		}
	}
	for i := range s.Members {
		c.live.Take(&s.Members[i].Use)
	}
	takers := takersOf(s.Members)
	for i := range owners {
		left := rest(owners[i].uses, takers)
		for u := range left {
			c.live.Take(&left[u])
		}
		v := &c.gangs[owners[i].gang]
		if owners[i].last {
			c.leaving = append(c.leaving, leaver{owners[i].gang, left})
			v.told = true
			c.times.Replace(backfill.Release{At: c.now.Add(c.grace(v)), Uses: left, Gang: v.number})
		}
	}
}

// rest is what of some uses takers do not take over. What a taker takes from one
// use it does not take from another: takers are left with what they still need.
func rest(uses, takers []cluster.Use) []cluster.Use {
	out := make([]cluster.Use, 0, len(uses))
	for _, u := range uses {
		u.Cards, u.Parts = slices.Clone(u.Cards), slices.Clone(u.Parts)
		for i := range takers {
			m := &takers[i]
			if m.Node != u.Node {
				continue
			}
			u.Cards = slices.DeleteFunc(u.Cards, func(k int32) bool { return slices.Contains(m.Cards, k) })
			yield(&u.Res.CPU, &m.Res.CPU)
			yield(&u.Res.Cores, &m.Res.Cores)
			yield(&u.Res.MemoryMB, &m.Res.MemoryMB)
			yield(&u.Res.DiskMB, &m.Res.DiskMB)
			yield(&u.Dynamic, &m.Dynamic)
			for k := range u.Parts {
				for p := range m.Parts {
					if u.Parts[k].Card == m.Parts[p].Card {
						yield(&u.Parts[k].Shares, &m.Parts[p].Shares)
					}
				}
			}
		}
		out = append(out, u)
	}
	return out
}

// yield moves what is needed from one amount to another's need.
func yield[N int | int32 | int64](from, need *N) {
	n := max(0, min(*from, *need))
	*from, *need = *from-n, *need-n
}

// takersOf are the uses of members, to be used up by rest.
func takersOf(members []placement.Member) []cluster.Use {
	out := usesOf(members)
	for i := range out {
		out[i].Parts = slices.Clone(out[i].Parts)
	}
	return out
}

// overlaps tells whether members take over any card of some uses, or sit on a
// node where they leave something.
func overlaps(uses []cluster.Use, members []placement.Member) bool {
	for i := range uses {
		for j := range members {
			if u, m := &uses[i], &members[j].Use; u.Node == m.Node && (len(u.Cards) == 0 || slices.ContainsFunc(u.Cards, func(k int32) bool { return slices.Contains(m.Cards, k) })) {
				return true
			}
		}
	}
	return false
}

func (c *cycle) names(gangs []int32) string {
	if len(gangs) > 3 {
		return fmt.Sprintf("%s and %d others", c.gangs[gangs[0]].ID, len(gangs)-1)
	}
	text := ""
	for i, g := range gangs {
		if i > 0 {
			text += ", "
		}
		text += string(c.gangs[g].ID)
	}
	return text
}

// rightText says by which right a gang takes another's places.
func (c *cycle) rightText(g, v *gang, kind core.EvictionKind) string {
	switch kind {
	case core.EvictReclaim:
		return fmt.Sprintf("%s of queue %s takes back its guarantee, queue %s borrows", g.ID, g.Queue, v.Queue)
	case core.EvictClass:
		return fmt.Sprintf("%s of queue %s has class %d, queue %s %d", g.ID, g.Queue, c.conf(g).Class, v.Queue, c.conf(v).Class)
	case core.EvictConsolidate:
		return fmt.Sprintf("is moved: %s then fits where it is", g.ID)
	case core.EvictAged:
		return fmt.Sprintf("%s has waited since %s and is aged to the top", g.ID, stamp(g.Queued))
	}
	if g.rank.effective == v.rank.effective {
		return fmt.Sprintf("%s has had less service so far", g.ID)
	}
	return fmt.Sprintf("%s has priority %d, this gang %d", g.ID, g.rank.effective, v.rank.effective)
}
