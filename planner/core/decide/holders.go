package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// mostHolders is how many holders a blocker lists.
const mostHolders = 16

// bound names a queue's bound on a model (-1: any).
type bound struct{ queue, model int32 }

// charges are who is charged against a bound, as of so many starts and evictions
// of the plan: many gangs of a full queue meet the same.
type charges struct {
	starts, evictions int
	holders           []core.Holder
}

// holdersOf lists who holds cards of a model, who ends first first.
func (c *cycle) holdersOf(model int32) []core.Holder {
	if h, ok := c.explain.holders[model]; ok {
		return h
	}
	h := c.holdersUnder(0, model, true)
	c.explain.holders[model] = h
	return h
}

// chargedTo lists who is charged against a queue's bound, who ends first first.
func (c *cycle) chargedTo(of bound) []core.Holder {
	starts, evictions := len(c.plan.Starts), len(c.plan.Evictions)
	if known, ok := c.explain.bounds[of]; ok && known.starts == starts && known.evictions == evictions {
		return known.holders
	}
	if c.explain.bounds == nil {
		c.explain.bounds = map[bound]charges{}
	}
	h := c.holdersUnder(of.queue, of.model, false)
	c.explain.bounds[of] = charges{starts, evictions, h}
	return h
}

// holdersUnder lists the gangs of a queue and of those below it, for the root
// every gang and job, with the cards of a model (-1: any) that count against a
// bound of the queue or, where freed, that others could be given.
func (c *cycle) holdersUnder(queue, model int32, freed bool) []core.Holder {
	held := c.charged
	if freed {
		held = c.holding
	}
	// The first mostHolders are kept in order while all are looked at once.
	best := make([]core.Holder, 0, mostHolders+1)
	for i := range c.gangs {
		g := &c.gangs[i]
		on, cards := held(g)
		if cards == 0 || model >= 0 && on != model || queue != 0 && !c.below(g.queue, queue) {
			continue
		}
		h := core.Holder{Gang: g.ID, Job: string(g.ID), Cards: cards, Until: c.end(g)}
		if len(best) == mostHolders && compareHolders(&h, &best[mostHolders-1]) > 0 {
			continue
		}
		best = insertHolder(best, h)
	}
	if queue == 0 {
		for _, h := range c.otherHolders(model, freed) {
			best = insertHolder(best, h)
		}
	}
	return slices.Clip(best)
}

// charged is what a gang's queue is charged for: all that it holds, in use or
// out of use, until it is gone.
func (c *cycle) charged(g *gang) (model int32, cards int) {
	if g.start == nil {
		return g.model, g.cards
	}
	model = c.live.Model(g.start.Model)
	for i := range g.uses {
		n, _ := c.cardsOf(g.uses[i].Node, g.uses[i].Cards, model)
		cards += n + len(g.uses[i].Parts)
	}
	return model, cards
}

// holding is what a gang holds, or takes in this cycle, of cards that others
// could be given if it ended: those out of use are nobody's, and what it gives
// up in this cycle is another's already; of one that leaves, what nobody takes
// over.
func (c *cycle) holding(g *gang) (model int32, cards int) {
	uses := g.uses
	switch {
	case g.start != nil:
		model = c.live.Model(g.start.Model)
	case g.gone, g.State == core.GangStopping:
		model = g.model
		at := slices.IndexFunc(c.leaving, func(l leaver) bool { return l.gang == g.number })
		if at < 0 {
			uses = c.usesOf(g)
		} else {
			uses = c.leaving[at].uses
		}
	case g.cards > 0 && (len(g.givesUp) > 0 || c.outOfUse(g.model).cards > 0):
		holds := c.live.Holds()
		for _, h := range g.holds {
			if k := &holds[h]; !slices.Contains(g.givesUp, k.Claim.Member) {
				_, usable := c.cardsOf(k.Use.Node, k.CardsOf, g.model)
				cards += usable
			}
		}
		return g.model, cards
	default:
		return g.model, g.cards
	}
	for i := range uses {
		_, usable := c.cardsOf(uses[i].Node, uses[i].Cards, model)
		cards += usable
		for _, p := range uses[i].Parts {
			_, usable = c.cardsOf(uses[i].Node, []int32{p.Card}, model)
			cards += usable
		}
	}
	return model, cards
}

// cardsOf counts the cards of a model among places of a node, and those of them
// that could be given out.
func (c *cycle) cardsOf(n int32, places []int32, model int32) (all, usable int) {
	if n < 0 {
		return 0, 0
	}
	node := &c.live.Nodes[n]
	for _, place := range places {
		d, at := node.Device(place)
		if d == nil || d.Model != model {
			continue
		}
		all++
		if node.Usable && d.Usable[at/64]>>(at%64)&1 == 1 {
			usable++
		}
	}
	return all, usable
}

func insertHolder(best []core.Holder, h core.Holder) []core.Holder {
	at, _ := slices.BinarySearchFunc(best, h, func(a, b core.Holder) int { return compareHolders(&a, &b) })
	best = slices.Insert(best, at, h)
	return best[:min(len(best), mostHolders)]
}

// otherHolders are the jobs that are no gangs, or not known ones, with the cards
// of a model (-1: any) that they hold; where freed, of those in use.
func (c *cycle) otherHolders(model int32, freed bool) []core.Holder {
	jobs := map[string]int{}
	holds := c.live.Holds()
	counts := make([]int, len(c.live.Models))
	for i := range holds {
		h := &holds[i]
		if h.Gang >= 0 && c.byRef[h.Gang] >= 0 || len(h.CardsOf) == 0 {
			continue
		}
		clear(counts)
		c.live.CountCards(h, counts)
		for m, n := range counts {
			if n == 0 || model >= 0 && int32(m) != model {
				continue
			}
			if freed {
				_, n = c.cardsOf(h.Use.Node, h.CardsOf, int32(m))
			}
			if n > 0 {
				jobs[h.Claim.Job] += n
			}
		}
	}
	out := make([]core.Holder, 0, len(jobs))
	for job, n := range jobs {
		out = append(out, core.Holder{Job: job, Cards: n})
	}
	slices.SortFunc(out, func(a, b core.Holder) int { return compareHolders(&a, &b) })
	return out
}

// compareHolders puts those first that end first, then those with more cards.
func compareHolders(a, b *core.Holder) int {
	if a.Until.IsZero() != b.Until.IsZero() {
		if a.Until.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(b.Cards, a.Cards), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Gang, b.Gang))
}

// holderNames are the first holders that together have so many cards.
func (c *cycle) holderNames(h []core.Holder, missing int) string {
	var names []string
	for _, k := range h {
		text := fmt.Sprintf("%s (%s", cmp.Or(string(k.Gang), k.Job), cards(k.Cards))
		if !k.Until.IsZero() {
			text += " until " + stamp(k.Until)
		}
		names = append(names, text+")")
		if missing -= k.Cards; missing <= 0 || len(names) == 4 {
			break
		}
	}
	return strings.Join(names, ", ")
}

func (c *cycle) bookers(model, but int32) []core.Holder {
	var out []core.Holder
	for i := range c.times.Bookings {
		b := &c.times.Bookings[i]
		if n := c.times.Taken(i)[model]; n > 0 && b.Gang != but {
			g := &c.gangs[b.Gang]
			out = append(out, core.Holder{Gang: g.ID, Job: string(g.ID), Cards: n, Until: b.At})
		}
	}
	return out
}
