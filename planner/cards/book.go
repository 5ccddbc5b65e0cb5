// Package cards is what the planner knows of cards: every node's reports, put
// together with what Nomad says, and what follows from that.
//
// # Two views, one verdict
//
// A device plugin reports its node's cards directly (contract.CardReport) and,
// some seconds later, through Nomad. A card's verdict is the worst of
//
//   - the last report of each reporter that lists it, while that one is heard of
//     (Settings.Stale); a silent reporter's word counts no more than Nomad's,
//     which is at least as new by then;
//   - Nomad's: unhealthy is draining at least, and the state in muster_cards;
//   - the planner's own suspicion (Suspicion).
//
// So whoever says "bad" is believed, and a card is good only when all say so. A
// card that Nomad lists and that a node's report leaves out, while it has others
// of the same vendor and type, is draining: nobody vouches for it. A state that
// is not known is the worst.
//
// # Reports
//
// A report is the whole truth of one node at one time, so nothing has to be
// repeated, and a planner that starts knows a node again with its next report.
// What an earlier life of it knew of bad cards counts until their node has
// reported, or for Inherit: Nomad's word may be older than that. Of each
// reporter the highest sequence number counts; the same report twice changes
// nothing. A reporter of the same node name replaces the one before it,
// unless its report is the older one. Memory is bounded: MostReporters of
// MostCards cards each, and only the last report of each.
//
// # Orders
//
// What a person or the planner wants done with a card goes out with the answer
// to each of the node's reports until the node says what came of it (Order).
//
// # The breaker
//
// More than Settings.Breaker.Share of the cluster's cards turning bad within
// Settings.Breaker.Within, on at least Settings.Breaker.Nodes nodes, is more
// likely one mistake than that many faults: the breaker opens. While it is open
// the device plugins hold what is new at suspect (save what does not answer),
// the planner quarantines nothing by suspicion, and a person is told. Only a
// person closes it. Clearing works all the time.
//
// The Book is pure: it has no clock and calls nobody. Service has the lock, the
// clock and the effects.
package cards

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Bounds of what a Book keeps.
const (
	MostReporters = 20000
	MostCards     = 1024 // of one report
	// Inherit is how long what an earlier life of the planner knew of bad cards
	// counts, where their nodes do not report: Nomad takes 6 to 10 s.
	Inherit = 30 * time.Second
)

// Settings of a Book.
type Settings struct {
	// CardTypes are the device types that count for the breaker.
	CardTypes []string
	// Stale is how long a reporter may be silent before its word counts no more;
	// 0: three times the pause that it was asked to make, and 15 s.
	Stale     time.Duration
	Breaker   BreakerRule
	Suspicion SuspicionRule
}

// DefaultSettings are those without a configuration.
func DefaultSettings() Settings {
	return Settings{CardTypes: []string{"gpu", "mig", "npu"},
		Breaker:   BreakerRule{Share: 0.05, Within: 10 * time.Minute, Nodes: 3},
		Suspicion: SuspicionRule{Window: 24 * time.Hour, Suspect: 2, Quarantine: 3, Clean: 5 * time.Minute}}
}

// Book is the planner's knowledge of cards.
type Book struct {
	set       Settings
	nodes     map[core.NodeID]*node
	reporters map[string]*reporter   // by contract.CardReport.Reporter
	byName    map[string][]*reporter // by the node's name in their reports
	byCard    map[string][]core.NodeID
	total     int // cards of Settings.CardTypes in Nomad
	saved     Saved
	turned    []turn
	// inherited are the cards that were out when the planner started, by node,
	// until inheritedUntil.
	inherited      map[core.NodeID]map[string]Out
	inheritedUntil time.Time
	endedBefore    time.Time // Suspicions.Until as it was restored
}

// node is one of Nomad's nodes.
type node struct {
	of        *core.Node // as Nomad has it
	reporters []*reporter
	verdicts  map[string]Verdict // of cards that are not healthy
	judged    bool
}

// reporter is one life of one device plugin.
type reporter struct {
	last  contract.CardReport
	heard time.Time
	by    string // whose token
	node  core.NodeID
	quiet bool // it has been silent for too long
}

// Verdict is what a card is taken for.
type Verdict struct {
	State core.CardState
	Why   string
	Since time.Time // zero: not known
	// From says whose word it is: "report", "nomad" or "planner".
	From string
}

// Usable tells whether new work may be placed on the card.
func (v Verdict) Usable() bool { return v.State <= core.CardSuspect }

// Changes are what a call has changed.
type Changes struct {
	Nodes  []core.NodeID // whose verdicts are others now
	Events []Event
	Save   bool // Saved changed
}

func (c *Changes) add(o Changes) {
	c.Nodes, c.Events, c.Save = append(c.Nodes, o.Nodes...), append(c.Events, o.Events...), c.Save || o.Save
}

// NewBook is an empty book.
func NewBook(set Settings) *Book {
	return &Book{set: set, nodes: map[core.NodeID]*node{}, reporters: map[string]*reporter{}, byName: map[string][]*reporter{}, byCard: map[string][]core.NodeID{}, saved: newSaved()}
}

// Configure puts other settings in force.
func (b *Book) Configure(set Settings) { b.set = set }

// every is how often a reporter is asked to report when nothing changes: often
// enough that an order waits a moment only, and no more than some 200 reports a
// second over all nodes.
func (b *Book) every() time.Duration {
	n := len(b.reporters) / 200
	return time.Duration(min(max(n, 3), 60)) * time.Second
}

func (b *Book) stale() time.Duration {
	if b.set.Stale > 0 {
		return b.set.Stale
	}
	return 3*b.every() + 15*time.Second
}

// Nomad takes a node as Nomad has it now; nil: it is gone.
func (b *Book) Nomad(id core.NodeID, n *core.Node, now time.Time) Changes {
	k := b.nodes[id]
	if k != nil {
		b.index(k.of, -1)
	}
	if n == nil {
		if k == nil {
			return Changes{}
		}
		delete(b.nodes, id)
		for _, r := range k.reporters {
			r.node = ""
			b.resolve(r)
		}
		return Changes{}
	}
	if k == nil {
		k = &node{verdicts: map[string]Verdict{}}
		b.nodes[id] = k
	}
	k.of = n
	b.index(n, 1)
	// A report may have come before Nomad knew its cards. One under another name
	// finds its node with its next report.
	for _, r := range b.byName[n.Name] {
		if r.node == "" {
			b.resolve(r)
		}
	}
	return b.judge(k, now)
}

// index keeps the places of card ids.
func (b *Book) index(n *core.Node, by int) {
	for i := range n.Devices {
		g := &n.Devices[i]
		if b.counts(g.Type) {
			b.total += by * len(g.Cards)
		}
		for j := range g.Cards {
			id := string(g.Cards[j].ID)
			if by > 0 {
				if !slices.Contains(b.byCard[id], n.ID) {
					b.byCard[id] = append(b.byCard[id], n.ID)
				}
				continue
			}
			left := slices.DeleteFunc(b.byCard[id], func(o core.NodeID) bool { return o == n.ID })
			if len(left) == 0 {
				delete(b.byCard, id)
			} else {
				b.byCard[id] = left
			}
		}
	}
}

func (b *Book) counts(deviceType string) bool { return slices.Contains(b.set.CardTypes, deviceType) }

// Report takes a node's report. Its error is a fault of the report. An answer
// is given to an old report too: what it says is only not news.
func (b *Book) Report(r contract.CardReport, by string, now time.Time) (contract.CardReply, Changes, error) {
	if err := r.Check(); err != nil {
		return contract.CardReply{}, Changes{}, fmt.Errorf("report of node %s: %w", r.Node, err)
	}
	if len(r.Cards) > MostCards {
		return contract.CardReply{}, Changes{}, fmt.Errorf("report of node %s: %d cards, at most %d", r.Node, len(r.Cards), MostCards)
	}
	k := b.reporters[r.Reporter]
	left := map[core.NodeID]bool{} // nodes that the reporter, or the one before it, speaks for no more
	switch {
	case k == nil:
		older, ok := b.predecessors(r)
		if !ok {
			// The report of a life that is over, late: the node has told more since.
			return b.answer(nil), Changes{}, nil
		}
		if len(b.reporters)-len(older) >= MostReporters {
			return contract.CardReply{}, Changes{}, fmt.Errorf("report of node %s: the planner hears of %d reporters already, and keeps no more", r.Node, MostReporters)
		}
		for _, o := range older {
			left[o.node] = true
			b.forget(o)
		}
		k = &reporter{}
		b.reporters[r.Reporter] = k
		b.byName[r.Node] = append(b.byName[r.Node], k)
	case r.Node != k.last.Node:
		return contract.CardReply{}, Changes{}, fmt.Errorf("report of node %s: its reporter spoke for node %s before", r.Node, k.last.Node)
	case r.Seq <= k.last.Seq:
		changes := b.done(k.node, r.Done, now)
		return b.answer(k), changes, nil
	}
	left[k.node] = true
	k.last, k.heard, k.by, k.quiet = r, now, by, false
	k.last.Done = nil
	b.resolve(k)
	changes := b.done(k.node, r.Done, now)
	left[k.node] = true
	delete(b.inherited, k.node)
	for id := range left {
		if n := b.nodes[id]; n != nil {
			changes.add(b.judge(n, now))
		}
	}
	return b.answer(k), changes, nil
}

// predecessors are the reporters that a new one takes the place of; false: one
// of them has told more lately.
func (b *Book) predecessors(r contract.CardReport) (older []*reporter, ok bool) {
	for _, o := range b.byName[r.Node] {
		if len(r.Cards) > 0 && len(o.last.Cards) > 0 && !slices.ContainsFunc(r.Cards, func(c contract.CardStatus) bool {
			return slices.ContainsFunc(o.last.Cards, func(k contract.CardStatus) bool { return k.ID == c.ID })
		}) {
			continue // two machines of one name
		}
		if o.last.At.After(r.At) && !o.quiet {
			return nil, false
		}
		older = append(older, o)
	}
	return older, true
}

// forget drops a reporter.
func (b *Book) forget(r *reporter) {
	delete(b.reporters, r.last.Reporter)
	left := slices.DeleteFunc(b.byName[r.last.Node], func(o *reporter) bool { return o == r })
	if b.byName[r.last.Node] = left; len(left) == 0 {
		delete(b.byName, r.last.Node)
	}
	if n := b.nodes[r.node]; n != nil {
		n.reporters = slices.DeleteFunc(n.reporters, func(o *reporter) bool { return o == r })
	}
}

// resolve finds the node that a reporter is on: the one that Nomad says most of
// its cards are on, and of several the one of its name.
func (b *Book) resolve(r *reporter) {
	votes := map[core.NodeID]int{}
	for i := range r.last.Cards {
		for _, id := range b.byCard[r.last.Cards[i].ID] {
			votes[id]++
		}
	}
	best := core.NodeID("")
	for id, n := range votes {
		better := best == "" || n > votes[best]
		if !better && n == votes[best] {
			mine, other := b.nodes[id].of.Name == r.last.Node, b.nodes[best].of.Name == r.last.Node
			better = mine && !other || mine == other && id < best
		}
		if better {
			best = id
		}
	}
	if best == r.node && best != "" {
		return
	}
	if old := b.nodes[r.node]; old != nil {
		old.reporters = slices.DeleteFunc(old.reporters, func(o *reporter) bool { return o == r })
	}
	r.node = best
	if n := b.nodes[best]; n != nil {
		n.reporters = append(n.reporters, r)
	}
}

// answer is what a reporter is told; nil: one whose life is over.
func (b *Book) answer(r *reporter) contract.CardReply {
	reply := contract.CardReply{Breaker: b.saved.Breaker.Open, Every: int(b.every() / time.Second)}
	if reply.Breaker {
		reply.BreakerSince = b.saved.Breaker.Since
	}
	if r == nil {
		return reply
	}
	for i := range b.saved.Orders {
		o := &b.saved.Orders[i]
		if o.Open() && (o.NodeID == r.node || o.NodeID == "") && lists(&r.last, o.Card) {
			reply.Orders = append(reply.Orders, o.CardOrder)
		}
	}
	return reply
}

func lists(r *contract.CardReport, card string) bool {
	return slices.ContainsFunc(r.Cards, func(c contract.CardStatus) bool { return c.ID == card })
}

// Pass looks at what only time changes: reporters that fell silent, suspicions
// and orders that are over.
func (b *Book) Pass(now time.Time) Changes {
	var changes Changes
	stale := b.stale()
	for _, r := range b.reporters {
		silent := now.Sub(r.heard)
		if silent > stale && !r.quiet {
			r.quiet = true
			if n := b.nodes[r.node]; n != nil {
				changes.add(b.judge(n, now))
			}
		}
		if silent > 10*stale && silent > time.Hour {
			b.forget(r) // its node was judged without it when it fell silent
		}
	}
	if len(b.inherited) > 0 && !now.Before(b.inheritedUntil) {
		old := b.inherited
		b.inherited = nil
		for id := range old {
			if n := b.nodes[id]; n != nil {
				changes.add(b.judge(n, now))
			}
		}
	}
	changes.add(b.expire(now))
	return changes
}

// judge renews a node's verdicts.
func (b *Book) judge(n *node, now time.Time) Changes {
	var changes Changes
	next := map[string]Verdict{}
	seen := map[string]bool{}
	each := func(id, group string) {
		if seen[id] {
			return
		}
		seen[id] = true
		v := b.verdict(n, id)
		old, was := n.verdicts[id]
		if v.State != core.CardHealthy {
			next[id] = v
		}
		if v == old || !was && v.State == core.CardHealthy {
			return
		}
		if v.Usable() != old.Usable() || !v.Usable() && v.State != old.State {
			changes.Save = b.note(n.of.ID, id, v) || changes.Save
		}
		if len(changes.Nodes) == 0 {
			changes.Nodes = []core.NodeID{n.of.ID}
		}
		if v.State != old.State || !was {
			changes.add(b.turns(n, id, group, old, v, !n.judged, now))
		}
	}
	for i := range n.of.Devices {
		g := &n.of.Devices[i]
		for j := range g.Cards {
			each(string(g.Cards[j].ID), g.Vendor+"/"+g.Type+"/"+string(g.Name))
		}
	}
	for _, r := range n.reporters {
		for i := range r.last.Cards {
			c := &r.last.Cards[i]
			if c.Hidden == "" {
				each(c.ID, c.Group)
			}
		}
	}
	for id := range n.verdicts {
		if !seen[id] {
			changes.Nodes = []core.NodeID{n.of.ID}
		}
	}
	n.verdicts, n.judged = next, true
	return changes
}

// verdict puts a card's views together.
func (b *Book) verdict(n *node, id string) Verdict {
	var out Verdict
	worse := func(v Verdict) {
		// Of equals the first is kept, so that the reason does not change with who
		// else says so.
		if v.State > out.State {
			out = v
		}
	}
	g, c := find(n.of, id)
	for _, r := range n.reporters {
		if r.quiet {
			continue
		}
		if at := slices.IndexFunc(r.last.Cards, func(k contract.CardStatus) bool { return k.ID == id }); at >= 0 {
			k := &r.last.Cards[at]
			worse(Verdict{State: stateOf(k.State), Why: k.Why, Since: k.Since, From: "report"})
			if k.Hidden != "" && c != nil {
				worse(Verdict{State: core.CardDraining, Why: "it is not offered any more: " + k.Hidden, Since: r.last.At, From: "report"})
			}
		} else if g != nil && speaksFor(&r.last, g) {
			worse(Verdict{State: core.CardDraining, Why: "its node's device plugin does not list it any more", Since: r.last.At, From: "report"})
		}
	}
	if o, ok := b.inherited[n.of.ID][id]; ok {
		worse(Verdict{State: stateOf(o.State), Why: o.Why, Since: o.Since, From: "report"})
	}
	if c != nil {
		v := Verdict{State: c.State, Why: c.Why, From: "nomad"}
		if !c.Healthy && v.State < core.CardDraining {
			v.State, v.Why = core.CardDraining, cmp.Or(c.Why, "Nomad calls it unhealthy")
		}
		worse(v)
	}
	if m := b.saved.Suspicion.card(n.of.ID, id); m != nil {
		worse(Verdict{State: b.marked(m), Why: m.Why, Since: m.Since, From: "planner"})
	}
	return out
}

// speaksFor tells whether a report is of a device group's kind, so that a card
// of the group that it leaves out is missing.
func speaksFor(r *contract.CardReport, g *core.DeviceGroup) bool {
	kind := g.Vendor + "/" + g.Type + "/"
	return slices.ContainsFunc(r.Cards, func(c contract.CardStatus) bool { return strings.HasPrefix(c.Group, kind) })
}

func find(n *core.Node, id string) (*core.DeviceGroup, *core.Card) {
	for i := range n.Devices {
		g := &n.Devices[i]
		for j := range g.Cards {
			if string(g.Cards[j].ID) == id {
				return g, &g.Cards[j]
			}
		}
	}
	return nil, nil
}

func stateOf(s string) core.CardState {
	switch s {
	case contract.CardHealthy, "":
		return core.CardHealthy
	case contract.CardSuspect:
		return core.CardSuspect
	case contract.CardDraining:
		return core.CardDraining
	}
	return core.CardQuarantined
}

// StateName is a state's name in the API.
func StateName(s core.CardState) string {
	return [...]string{contract.CardHealthy, contract.CardSuspect, contract.CardDraining, contract.CardQuarantined}[min(s, core.CardQuarantined)]
}

// Refuses tells whether a card may not be given to new work, and why.
func (b *Book) Refuses(id core.NodeID, card core.CardID) (string, bool) {
	n := b.nodes[id]
	if n == nil {
		return "", false
	}
	v, ok := n.verdicts[string(card)]
	return v.Why, ok && !v.Usable()
}

// Judged is a node with the verdicts in the place of what Nomad says: the node
// itself where there is nothing to change.
func (b *Book) Judged(of core.Node) core.Node {
	n := b.nodes[of.ID]
	mark := b.saved.Suspicion.node(of.ID)
	if n == nil || len(n.verdicts) == 0 && mark == nil {
		return of
	}
	h := fnv.New64a()
	out := of
	own := false
	for i := range of.Devices {
		copied := false
		for j := range of.Devices[i].Cards {
			v, ok := n.verdicts[string(of.Devices[i].Cards[j].ID)]
			c := of.Devices[i].Cards[j]
			if !ok || v.State == c.State && v.Usable() == c.Healthy && v.Why == c.Why {
				continue
			}
			if !own {
				out.Devices, own = slices.Clone(of.Devices), true
			}
			if !copied {
				out.Devices[i].Cards, copied = slices.Clone(of.Devices[i].Cards), true
			}
			k := &out.Devices[i].Cards[j]
			k.State, k.Why = v.State, v.Why
			k.Healthy = k.Healthy && v.Usable()
			fmt.Fprintf(h, "%s\x00%d\x00%s\x00", k.ID, k.State, k.Why)
		}
	}
	if mark != nil {
		if b.marked(mark) >= core.CardQuarantined {
			out.Excluded, out.ExcludedWhy = true, mark.Why
		} else {
			out.Suspect, out.SuspectWhy = true, mark.Why
		}
		fmt.Fprintf(h, "\x01%d\x00%s", b.marked(mark), mark.Why)
		own = true
	}
	if own {
		out.Version = of.Version ^ h.Sum64()
	}
	return out
}
