package cards

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Event is a change that somebody is to be told.
type Event struct {
	// ID is the same for the same change, however often it is told.
	ID   string
	Kind EventKind
	At   time.Time
	// Node and Card are empty for the breaker's.
	Node     core.NodeID
	NodeName string
	Card     string
	Group    string // vendor/type/model
	Index    int    // among its node's cards; -1: not known
	Slot     string // PCI address; "": not known
	Serial   string
	State    core.CardState
	Was      core.CardState
	Text     string
	Evidence []contract.CardEvidence
	// Told: a quarantine that an earlier life of the planner told of.
	Told bool
}

// EventKind sorts events.
type EventKind string

// Kinds of events.
const (
	CardTurned    EventKind = "card"
	BreakerOpened EventKind = "breaker-open"
	BreakerClosed EventKind = "breaker-closed"
)

// BreakerRule says when so many cards turn bad that it is more likely one
// mistake.
type BreakerRule struct {
	Share  float64 // of the cluster's cards; 0: never
	Within time.Duration
	Nodes  int // on at least so many nodes
}

// Breaker is the circuit breaker's state.
type Breaker struct {
	Open  bool      `json:"open"`
	Since time.Time `json:"since,omitzero"` // when it was opened or closed
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by,omitempty"` // a person; "": by itself
}

// turn is one card that turned bad.
type turn struct {
	at   time.Time
	node core.NodeID
	card string
}

// turns tells of a card's new state, and counts it for the breaker. First: the
// node was not known before.
func (b *Book) turns(n *node, id, group string, old, v Verdict, first bool, now time.Time) Changes {
	var changes Changes
	e := Event{Kind: CardTurned, At: now, Node: n.of.ID, NodeName: n.of.Name, Card: id, Group: group, Index: -1, State: v.State, Was: old.State, Text: v.Why, Told: first}
	if k := n.reported(id); k != nil {
		e.Index, e.Slot, e.Serial, e.Evidence = k.Index, k.Slot, k.Serial, slices.Clone(k.Evidence)
	}
	since := v.Since
	if since.IsZero() {
		since = now
	}
	e.ID = digest(string(n.of.ID), id, StateName(v.State), since.UTC().Format(time.RFC3339Nano))
	switch {
	case v.State == core.CardQuarantined:
		told, news := b.announce(digest(string(n.of.ID), id), v.Since)
		e.Told, changes.Save = told, news
	case old.State == core.CardQuarantined:
		b.recall(digest(string(n.of.ID), id))
		changes.Save = true
	}
	changes.Events = append(changes.Events, e)
	if !v.Usable() && old.Usable() && !(first && v.Since.IsZero()) {
		changes.add(b.count(n, id, group, since, now))
	}
	return changes
}

// announce notes that a card's quarantine is told, and tells whether it was
// before: an earlier life of the planner may have. Since is zero where only
// Nomad's word is known, which has no time.
func (b *Book) announce(key string, since time.Time) (told, news bool) {
	at := int64(0)
	if !since.IsZero() {
		at = since.Unix()
	}
	list := slices.Clone(b.saved.Announced)
	i := slices.IndexFunc(list, func(s string) bool { return strings.HasPrefix(s, key+":") })
	entry := key + ":" + strconv.FormatInt(at, 10)
	switch {
	case i >= 0 && (list[i] == entry || at == 0):
		return true, false
	case i >= 0:
		told = strings.HasSuffix(list[i], ":0")
		list[i] = entry
	default:
		list = append(list, entry)
	}
	b.saved.Announced = list[max(0, len(list)-mostAnnounced):]
	return told, true
}

// recall forgets that a card's quarantine was told, now that it is over.
func (b *Book) recall(key string) {
	b.saved.Announced = slices.DeleteFunc(slices.Clone(b.saved.Announced), func(s string) bool { return strings.HasPrefix(s, key+":") })
}

// digest is a short name for a change.
func digest(parts ...string) string {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// reported is the card as a reporter that is heard of has it.
func (n *node) reported(id string) *contract.CardStatus {
	for _, r := range n.reporters {
		if r.quiet {
			continue
		}
		for i := range r.last.Cards {
			if r.last.Cards[i].ID == id {
				return &r.last.Cards[i]
			}
		}
	}
	return nil
}

// count adds a card that turned bad to the breaker's, and opens it where they
// are too many.
func (b *Book) count(n *node, id, group string, since, now time.Time) Changes {
	rule := b.set.Breaker
	kind := strings.Split(group+"//", "/")[1]
	if rule.Share <= 0 || !b.counts(kind) || now.Sub(since) > rule.Within || b.saved.Breaker.Open || !since.After(b.saved.Breaker.Since) {
		return Changes{}
	}
	b.turned = slices.DeleteFunc(b.turned, func(t turn) bool { return now.Sub(t.at) > rule.Within || t.card == id && t.node == n.of.ID })
	b.turned = append(b.turned, turn{now, n.of.ID, id})
	nodes := map[core.NodeID]bool{}
	for _, t := range b.turned {
		nodes[t.node] = true
	}
	if len(nodes) < max(rule.Nodes, 1) || float64(len(b.turned)) <= rule.Share*float64(b.total) {
		return Changes{}
	}
	text := fmt.Sprintf("%d of %d cards turned bad within %s, on %d nodes: more likely one mistake (a driver, a rack's power, a parser) than that many faults", len(b.turned), b.total, rule.Within, len(nodes))
	return b.SetBreaker(true, text, "", now)
}

// SetBreaker opens or closes the breaker; by is the person who does, "" the
// planner itself.
func (b *Book) SetBreaker(open bool, why, by string, now time.Time) Changes {
	if b.saved.Breaker.Open == open {
		return Changes{}
	}
	b.saved.Breaker = Breaker{Open: open, Since: now, Why: why, By: by}
	b.turned = nil
	changes := Changes{Save: true}
	// Marks of the planner's own weigh less while it is open.
	for id := range b.saved.Suspicion.nodes() {
		if n := b.nodes[id]; n != nil {
			changes.add(b.judge(n, now))
		}
		changes.Nodes = append(changes.Nodes, id)
	}
	e := Event{Kind: BreakerClosed, At: now, Text: why, Index: -1}
	if open {
		e.Kind = BreakerOpened
	}
	e.ID = digest(string(e.Kind), now.UTC().Format(time.RFC3339Nano))
	changes.Events = append(changes.Events, e)
	return changes
}

// Breaker is the breaker's state.
func (b *Book) Breaker() Breaker { return b.saved.Breaker }

// marked is the state that a suspicion of the planner's gives.
func (b *Book) marked(m *Mark) core.CardState {
	if m.Quarantined && !(b.saved.Breaker.Open && m.Since.After(b.saved.Breaker.Since)) {
		return core.CardQuarantined
	}
	return core.CardSuspect
}
