package cards

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// SuspicionRule says when failures are laid on a place rather than on the gang.
//
// An attempt that failed names the place where its first member failed: a node,
// and the cards that the member held there. Within Window:
//
//   - a gang that failed on two nodes carries its fault with it: none of its
//     failures counts against a place;
//   - a card on which Suspect gangs failed, or one gang twice, is suspect: it is
//     given out last, so the next attempt shows whose fault it is. Quarantine
//     gangs quarantine it, and only a person clears it. There the scripts of one
//     user count once, where they ended by themselves with a code of their own:
//     a script that is being written fails often;
//   - where several cards of one node would be marked, the failures do not tell
//     them apart, and the node is marked in their place: suspect, then excluded;
//   - a gang that ran to its end on a card, and for at least Clean, speaks for
//     the card: what was before it no longer counts.
//
// A failure that the card's own health explains is not counted: the card is out
// already.
type SuspicionRule struct {
	Window              time.Duration
	Suspect, Quarantine int // gangs; 0: off
	Clean               time.Duration
}

// Place is where a member ran.
type Place struct {
	Node  core.NodeID `json:"node"`
	Name  string      `json:"name,omitempty"`
	Cards []string    `json:"cards,omitempty"`
}

// Outcome is the end of an attempt.
type Outcome struct {
	Gang    string
	Attempt int
	At      time.Time
	// Failed is where the attempt's first member failed; nil: it did not fail
	// anywhere in particular.
	Failed *Place
	// By is whose script it was, where it failed by itself with a code of its own;
	// "": a signal, a hang, a lost node.
	By string
	// Clean are the places of an attempt that ran to its end, for Ran.
	Clean []Place
	Ran   time.Duration
}

// Suspicions are the failures that still count, and the marks that they made.
type Suspicions struct {
	Fails []Fail `json:"fails,omitempty"` // oldest first
	Marks []Mark `json:"marks,omitempty"` // sorted by node and card
	// Until is the latest end that was taken. A planner that starts is told of
	// ends again: what lies before was counted, and may have been cleared since;
	// what lies after was not saved in time.
	Until time.Time `json:"until,omitzero"`
}

// Fail is one failure.
type Fail struct {
	Gang    string    `json:"gang"`
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	By      string    `json:"by,omitempty"` // see Outcome
	Place
}

// Mark is a place that failures follow. Card "": the whole node.
type Mark struct {
	Node        core.NodeID `json:"node"`
	Card        string      `json:"card,omitempty"`
	Quarantined bool        `json:"quarantined,omitempty"` // stays until a person clears it
	Since       time.Time   `json:"since"`
	Why         string      `json:"why"`
}

const mostFails = 100

func (s *Suspicions) card(node core.NodeID, card string) *Mark {
	for i := range s.Marks {
		if m := &s.Marks[i]; m.Card == card && m.Node == node {
			return m
		}
	}
	return nil
}

func (s *Suspicions) node(id core.NodeID) *Mark { return s.card(id, "") }

func (s *Suspicions) nodes() map[core.NodeID]bool {
	out := map[core.NodeID]bool{}
	for i := range s.Marks {
		out[s.Marks[i].Node] = true
	}
	return out
}

// forgetCard ends what is held against one card.
func (s *Suspicions) forgetCard(node core.NodeID, card string) {
	s.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool { return m.Node == node && m.Card == card })
	s.Fails = slices.DeleteFunc(slices.Clone(s.Fails), func(f Fail) bool { return f.Node == node && slices.Contains(f.Cards, card) })
}

// ClearNode ends what is held against a node and its cards; false: nothing was.
func (b *Book) ClearNode(id core.NodeID, now time.Time) (Changes, bool) {
	s := &b.saved.Suspicion
	had := len(s.Marks) + len(s.Fails)
	s.Marks = slices.DeleteFunc(slices.Clone(s.Marks), func(m Mark) bool { return m.Node == id })
	s.Fails = slices.DeleteFunc(slices.Clone(s.Fails), func(f Fail) bool { return f.Node == id })
	if len(s.Marks)+len(s.Fails) == had {
		return Changes{}, false
	}
	changes := Changes{Save: true, Nodes: []core.NodeID{id}}
	if n := b.nodes[id]; n != nil {
		changes.add(b.judge(n, now))
	}
	return changes, true
}

// Ended takes the end of an attempt; each counts once, over restarts too.
func (b *Book) Ended(o Outcome) Changes {
	s := &b.saved.Suspicion
	if !o.At.After(b.endedBefore) {
		return Changes{}
	}
	if o.At.After(s.Until) {
		s.Until = o.At
	}
	if b.set.Suspicion.Suspect == 0 && b.set.Suspicion.Quarantine == 0 {
		return Changes{}
	}
	if o.Failed == nil && (len(o.Clean) == 0 || o.Ran < b.set.Suspicion.Clean) {
		return Changes{}
	}
	if slices.ContainsFunc(s.Fails, func(f Fail) bool { return f.Gang == o.Gang && f.Attempt == o.Attempt }) {
		return Changes{}
	}
	before := len(s.Fails)
	fails := slices.Clone(s.Fails)
	for _, p := range o.Clean {
		fails = slices.DeleteFunc(fails, func(f Fail) bool {
			return f.Node == p.Node && f.At.Before(o.At) && (len(f.Cards) == 0 || slices.ContainsFunc(f.Cards, func(c string) bool { return slices.Contains(p.Cards, c) }))
		})
	}
	if o.Failed != nil && !b.explained(o.Failed) {
		fails = append(fails, Fail{Gang: o.Gang, Attempt: o.Attempt, At: o.At, By: o.By, Place: *o.Failed})
		sort.SliceStable(fails, func(i, j int) bool { return fails[i].At.Before(fails[j].At) })
	}
	if len(fails) == before && o.Failed == nil {
		return Changes{}
	}
	s.Fails = fails[max(0, len(fails)-mostFails):]
	changes := b.suspect(o.At)
	changes.Save = true
	return changes
}

// explained tells whether a card of the place is out already.
func (b *Book) explained(p *Place) bool {
	n := b.nodes[p.Node]
	return n != nil && slices.ContainsFunc(p.Cards, func(c string) bool { v, bad := n.verdicts[c]; return bad && !v.Usable() })
}

// suspect derives the marks from the failures. A mark that quarantines stays.
func (b *Book) suspect(now time.Time) Changes {
	rule, s := b.set.Suspicion, &b.saved.Suspicion
	s.Fails = slices.DeleteFunc(slices.Clone(s.Fails), func(f Fail) bool { return now.Sub(f.At) > rule.Window })
	guilty := map[string]map[core.NodeID]bool{}
	for _, f := range s.Fails {
		if guilty[f.Gang] == nil {
			guilty[f.Gang] = map[core.NodeID]bool{}
		}
		guilty[f.Gang][f.Node] = true
	}
	type spot struct {
		node core.NodeID
		card string
	}
	gangs := map[spot]map[string]int{}      // failures by gang
	witnesses := map[spot]map[string]bool{} // whose failures count each for itself
	names := map[core.NodeID]string{}
	for _, f := range s.Fails {
		names[f.Node] = f.Name
		if len(guilty[f.Gang]) > 1 {
			continue
		}
		for _, card := range append([]string{""}, f.Cards...) {
			k := spot{f.Node, card}
			if gangs[k] == nil {
				gangs[k], witnesses[k] = map[string]int{}, map[string]bool{}
			}
			gangs[k][f.Gang]++
			if f.By != "" {
				witnesses[k]["scripts of "+f.By] = true
			} else {
				witnesses[k][f.Gang] = true
			}
		}
	}
	// level of a spot: 0 none, 1 suspect, 2 quarantined.
	level := func(k spot) int {
		by, twice := gangs[k], false
		for _, n := range by {
			twice = twice || n >= 2
		}
		switch {
		case rule.Quarantine > 0 && len(witnesses[k]) >= rule.Quarantine:
			return 2
		case rule.Suspect > 0 && len(by) >= rule.Suspect, rule.Suspect > 0 && twice:
			return 1
		}
		return 0
	}
	next := map[spot]int{}
	marked := map[core.NodeID][]spot{}
	for k := range gangs {
		if k.card != "" && level(k) > 0 {
			next[k] = level(k)
			marked[k.node] = append(marked[k.node], k)
		}
	}
	for id := range names {
		at := level(spot{id, ""})
		switch cards := marked[id]; {
		case len(cards) == 1 && next[cards[0]] == at:
			continue // one card explains it all
		case len(cards) > 1:
			for _, k := range cards {
				delete(next, k)
			}
		}
		if at > 0 {
			next[spot{id, ""}] = at
		}
	}
	var marks []Mark
	for _, m := range s.Marks {
		if m.Quarantined {
			marks = append(marks, m)
			delete(next, spot{m.Node, m.Card})
		}
	}
	for k, at := range next {
		m := Mark{Node: k.node, Card: k.card, Quarantined: at == 2, Since: now, Why: why(names[k.node], k.card, gangs[k])}
		if old := s.card(k.node, k.card); old != nil && old.Quarantined == m.Quarantined {
			m.Since = old.Since
		}
		marks = append(marks, m)
	}
	sort.Slice(marks, func(i, j int) bool {
		if marks[i].Node != marks[j].Node {
			return marks[i].Node < marks[j].Node
		}
		return marks[i].Card < marks[j].Card
	})
	return b.mark(marks, now)
}

// mark puts marks in force, and tells the nodes of what is new.
func (b *Book) mark(marks []Mark, now time.Time) Changes {
	s := &b.saved.Suspicion
	if slices.Equal(marks, s.Marks) {
		return Changes{}
	}
	touched := s.nodes()
	old := s.Marks
	s.Marks = marks
	changes := Changes{Save: true}
	for id := range s.nodes() {
		touched[id] = true
	}
	for i := range marks {
		m := &marks[i]
		if m.Card == "" || slices.Contains(old, *m) || slices.ContainsFunc(old, func(o Mark) bool { return o.Node == m.Node && o.Card == m.Card && o.Quarantined == m.Quarantined }) {
			continue
		}
		o := contract.CardOrder{ID: "suspect-" + digest(string(m.Node), m.Card, fmt.Sprint(m.Quarantined), m.Since.UTC().Format(time.RFC3339Nano)), Kind: contract.OrderSuspect, Card: m.Card,
			Who: "planner", Why: m.Why, State: contract.CardSuspect}
		if b.marked(m) == core.CardQuarantined {
			o.State = contract.CardQuarantined
		}
		if _, more, err := b.Give(o, string(m.Node), now); err == nil {
			changes.add(more)
		}
	}
	for id := range touched {
		changes.Nodes = append(changes.Nodes, id)
		if n := b.nodes[id]; n != nil {
			changes.add(b.judge(n, now))
		}
	}
	return changes
}

// expire ends failures and orders whose time is over.
func (b *Book) expire(now time.Time) Changes {
	var changes Changes
	if s := &b.saved.Suspicion; len(s.Fails) > 0 && now.Sub(s.Fails[0].At) > b.set.Suspicion.Window {
		changes = b.suspect(now)
		changes.Save = true
	}
	if b.trim(now) {
		changes.Save = true
	}
	return changes
}

// why is the sentence of a mark.
func why(node, card string, by map[string]int) string {
	names := make([]string, 0, len(by))
	total := 0
	for g, n := range by {
		names = append(names, g)
		total += n
	}
	sort.Strings(names)
	if len(names) > 4 {
		names = append(names[:4:4], fmt.Sprintf("%d more", len(by)-4))
	}
	what := "this card"
	if card == "" {
		what = "node " + node
	}
	return fmt.Sprintf("failures follow %s: %d of %s", what, total, strings.Join(names, ", "))
}
