package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// CardPolicy says what becomes of a gang that runs on a card which is
// quarantined.
type CardPolicy struct {
	// Quarantined: ask (to save and leave within Grace), stop, or leave.
	Quarantined string
	Grace       time.Duration
}

// badCard is a card that a member holds and that new work may not have.
type badCard struct {
	member   int
	node, id string
	state    core.CardState
	why      string
}

func (b *badCard) String() string {
	return fmt.Sprintf("member %d: card %s on node %s: %s", b.member, b.id, b.node, cmp.Or(b.why, "it may not be used"))
}

// badCard finds the worst card of the allocations, which stand at their
// members' places; nil: all may be used. Members out of contact are not looked
// at: nobody vouches for their cards, and what becomes of them is decided by
// lost_grace.
func (g *Gang) badCard(v Seen, roster []*picture.Alloc) *badCard {
	var worst *badCard
	for i, a := range roster {
		if a == nil {
			continue
		}
		n := v.Node(a.NodeID)
		if n == nil || !n.Ready {
			continue
		}
		for _, held := range a.Devices {
			for _, id := range held.IDs {
				c := cardOf(n, core.CardID(id))
				if c == nil {
					continue // Nomad's list and the plugin's are a moment apart
				}
				state := c.State
				if !c.Healthy {
					state = max(state, core.CardDraining)
				}
				if state >= core.CardDraining && (worst == nil || state > worst.state) {
					worst = &badCard{i, n.Name, id, state, c.Why}
				}
			}
		}
	}
	return worst
}

func cardOf(n *picture.Node, id core.CardID) *core.Card {
	for i := range n.Devices {
		if at := slices.IndexFunc(n.Devices[i].Cards, func(c core.Card) bool { return c.ID == id }); at >= 0 {
			return &n.Devices[i].Cards[at]
		}
	}
	return nil
}

// attemptAllocs are the attempt's allocations by member.
func (g *Gang) attemptAllocs(v Seen) []*picture.Alloc {
	members := g.Members(v.Allocs)
	out := make([]*picture.Alloc, len(members))
	for i, m := range members {
		out[i] = m.Alloc
	}
	return out
}

// quarantined asks the gang to save and leave, or stops it, where a card that
// it runs on is quarantined. One that only drains is left to the ranks: they go
// on, or end.
func (g *Gang) quarantined(v Seen) []Effect {
	policy := g.set.Cards
	if policy.Quarantined == "" || policy.Quarantined == "leave" || g.Saved.asking() {
		return nil
	}
	bad := g.badCard(v, g.attemptAllocs(v))
	if bad == nil || bad.state < core.CardQuarantined {
		return nil
	}
	s := &g.Saved
	if policy.Quarantined == "stop" || policy.Grace <= 0 || len(s.Record.Members) == 0 {
		return g.stop(v, *s, Stop{Reason: ReasonCard, Text: bad.String(), Site: true, Member: bad.member})
	}
	next := *s
	next.Ask = &Ask{Ask: contract.Ask{Kind: contract.AskCard, By: v.Now.Add(policy.Grace), Grace: policy.Grace, Why: bad.String()}, At: v.Now, Reason: ReasonCard, Cause: core.EvictRepair}
	return []Effect{Save{next}, Publish{withAsk(s.Record, next.Ask.Ask)}}
}

// cardNews is how long the news of a card is awaited after a member failed on
// it: what killed the rank reaches the kernel's log, its node's device plugin
// and the planner within a second.
const cardNews = time.Second

// blameCard lays a failure on a card that went bad under the attempt; wait says
// that the news of one may still be on its way.
func (g *Gang) blameCard(v Seen, stop *Stop) (wait bool) {
	bad := g.badCard(v, g.attemptAllocs(v))
	if bad != nil {
		stop.Reason, stop.Site, stop.Member, stop.Text = ReasonCard, true, bad.member, fmt.Sprintf("%s; %s", bad, stop.Text)
		return false
	}
	if stop.Site || v.Direct == nil {
		return false
	}
	direct := slices.ContainsFunc(g.attemptAllocs(v), func(a *picture.Alloc) bool { return a != nil && v.Direct(a.NodeID) })
	return direct && !g.elapsed("card", v.Now, cardNews)
}
