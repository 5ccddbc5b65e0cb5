package decide

import (
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// blast keeps count of what stands or falls with each domain, where the
// configuration bounds it.
type blast struct {
	limits []blastLevel
	filled bool
	deny   []bool
}

// blastLevel is one bound: gangs in each domain, and cards of each queue.
type blastLevel struct {
	core.BlastLimit
	level int // len(Levels): nodes
	gangs []int
	cards []map[int32]int
	all   map[int32]int // cards of each queue
}

func (b *blast) domain(c *cycle, l *blastLevel, n int32) int32 {
	if l.level == len(c.live.Levels) {
		return n
	}
	return c.live.Blocks[c.live.Nodes[n].Block].Domain[l.level]
}

func (b *blast) fill(c *cycle) {
	if b.filled || len(c.cfg.Blast) == 0 {
		return
	}
	b.filled = true
	for _, limit := range c.cfg.Blast {
		l := blastLevel{BlastLimit: limit, level: c.live.Level(limit.Level), all: map[int32]int{}}
		n := len(c.live.Nodes)
		switch {
		case limit.Level == core.LevelNode:
			l.level = len(c.live.Levels)
		case l.level < 0:
			c.plan.Notices = append(c.plan.Notices, core.Notice{Object: "blast limit " + limit.Level, Text: "names a level that is not configured; it bounds nothing"})
			continue
		default:
			n = len(c.live.Levels[l.level].Domains)
		}
		l.gangs, l.cards = make([]int, n), make([]map[int32]int, n)
		b.limits = append(b.limits, l)
	}
	holds := c.live.Holds()
	for i := range c.gangs {
		g := &c.gangs[i]
		for k := range b.limits {
			l := &b.limits[k]
			seen := map[int32]bool{}
			for _, h := range g.holds {
				if n := holds[h].Use.Node; n >= 0 {
					l.count(b.domain(c, l, n), g.queue, c.live.CardCount(n, holds[h].CardsOf), seen)
				}
			}
		}
	}
}

func (l *blastLevel) count(d, queue int32, cards int, seen map[int32]bool) {
	if !seen[d] {
		seen[d] = true
		l.gangs[d]++
	}
	if l.cards[d] == nil {
		l.cards[d] = map[int32]int{}
	}
	l.cards[d][queue] += cards
	l.all[queue] += cards
}

// add counts a gang that starts in this cycle.
func (b *blast) add(c *cycle, g *gang) {
	for k := range b.limits {
		l := &b.limits[k]
		seen := map[int32]bool{}
		for i := range g.uses {
			u := &g.uses[i]
			l.count(b.domain(c, l, u.Node), g.queue, c.live.CardCount(u.Node, u.Cards)+len(u.Parts), seen)
		}
	}
}

// blastQueue is on whose account nodes are denied to a need: with blast limits
// its queue's, whose share of a domain counts; else nobody's, and what is found
// out for one gang holds for all that ask for the same.
func (c *cycle) blastQueue(g *gang) int32 {
	if len(c.cfg.Blast) == 0 {
		return 0
	}
	return g.queue
}

// deny marks the nodes on which a gang may not be placed since too much
// would stand or fall with them; nil: none. A queue's share of a domain counts
// the gang's own cards among the queue's; a domain in which the queue has
// nothing yet is never closed to it.
func (c *cycle) deny(g *gang, o *placement.Option) []bool {
	if len(c.cfg.Blast) == 0 {
		return nil
	}
	b := &c.blast
	b.fill(c)
	if b.deny == nil {
		b.deny = make([]bool, len(c.live.Nodes))
	}
	need := total(o.Cards)
	perMember := total(o.PerMember)
	for n := range b.deny {
		b.deny[n] = false
		for k := range b.limits {
			l := &b.limits[k]
			d := b.domain(c, l, int32(n))
			have := l.cards[d][g.queue]
			if l.Gangs > 0 && l.gangs[d] >= l.Gangs || l.Share > 0 && have > 0 && (have+perMember)*100 > l.Share*(l.all[g.queue]+need) {
				b.deny[n] = true
			}
		}
	}
	return b.deny
}
