package cards

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Bounds of what is saved: Nomad's variables hold 64 KiB.
const (
	mostOrders    = 96
	mostOpen      = 64 // of persons
	mostOwn       = 32 // open ones of the planner itself
	mostAnnounced = 1000
	keepDone      = 24 * time.Hour
	keepOpen      = 7 * 24 * time.Hour
)

// Order is what a person or the planner wants done with a card, on its way or
// done.
type Order struct {
	contract.CardOrder
	// NodeID is where the card was when the order was given; "": the planner
	// knows it by reports only.
	NodeID   core.NodeID `json:"node_id,omitempty"`
	NodeName string      `json:"node,omitempty"`
	At       time.Time   `json:"at"`
	Done     time.Time   `json:"done,omitzero"`
	Error    string      `json:"error,omitempty"` // why it was not carried out
}

// Open tells whether the node has not answered yet.
func (o *Order) Open() bool { return o.Done.IsZero() }

// Saved is what survives a restart of the planner. Reports do not have to.
type Saved struct {
	V         int        `json:"v"`
	Orders    []Order    `json:"orders,omitempty"` // oldest first
	Breaker   Breaker    `json:"breaker"`
	Suspicion Suspicions `json:"suspicion"`
	// Announced are the quarantines that were told: a digest of node and card, and
	// since when in Unix seconds.
	Announced []string `json:"announced,omitempty"`
	// Out are the cards that may not be used, so that a planner which starts does
	// not take Nomad's older word for them.
	Out []Out `json:"out,omitempty"`
}

// Out is a card that may not be used.
type Out struct {
	Node  core.NodeID `json:"node"`
	Card  string      `json:"card"`
	State string      `json:"state"`
	Why   string      `json:"why,omitempty"`
	Since time.Time   `json:"since,omitzero"`
}

// mostOut are kept; where more are out at once, Nomad's word counts for the
// others after a restart.
const (
	mostOut    = 300
	mostOutWhy = 80 // bytes
)

// note keeps what is saved of cards that are out in step with a verdict, and
// tells whether it changed.
func (b *Book) note(node core.NodeID, card string, v Verdict) bool {
	at := slices.IndexFunc(b.saved.Out, func(o Out) bool { return o.Node == node && o.Card == card })
	if v.Usable() || v.From == "planner" { // suspicions are saved as such
		if at < 0 {
			return false
		}
		b.saved.Out = slices.Delete(slices.Clone(b.saved.Out), at, at+1)
		return true
	}
	o := Out{Node: node, Card: card, State: StateName(v.State), Why: v.Why, Since: v.Since}
	if len(o.Why) > mostOutWhy {
		o.Why = strings.ToValidUTF8(o.Why[:mostOutWhy], "") + "..."
	}
	out := slices.Clone(b.saved.Out)
	switch {
	case at >= 0:
		out[at] = o
	case len(out) < mostOut:
		out = append(out, o)
	default:
		return false
	}
	b.saved.Out = out
	return true
}

func newSaved() Saved { return Saved{V: 1} }

// Saved is what to keep; it must not be changed.
func (b *Book) Saved() Saved { return b.saved }

// Restore takes what was kept.
func (b *Book) Restore(s Saved, now time.Time) Changes {
	if s.V != 1 {
		return Changes{}
	}
	b.saved, b.endedBefore = s, s.Suspicion.Until
	b.inherited, b.inheritedUntil = map[core.NodeID]map[string]Out{}, now.Add(Inherit)
	for _, o := range s.Out {
		if b.inherited[o.Node] == nil {
			b.inherited[o.Node] = map[string]Out{}
		}
		b.inherited[o.Node][o.Card] = o
	}
	var changes Changes
	for id, n := range b.nodes {
		changes.add(b.judge(n, now))
		changes.Nodes = append(changes.Nodes, id)
	}
	return changes
}

// Errors of orders.
var (
	ErrNoCard  = errors.New("no card has this id")
	ErrSeveral = errors.New("several nodes have a card of this id")
	ErrTooMany = errors.New("too many orders wait for their nodes")
)

// Where finds a card: by its id, and by the node's id or name where several
// have one of that id. A card that only a report names has no node id.
func (b *Book) Where(card, node string) (core.NodeID, string, error) {
	var found []core.NodeID
	for _, id := range b.byCard[card] {
		if node == "" || string(id) == node || b.nodes[id].of.Name == node {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 1:
		return found[0], b.nodes[found[0]].of.Name, nil
	case 0:
		for _, r := range b.reporters {
			if lists(&r.last, card) && (node == "" || string(r.node) == node || r.last.Node == node) {
				return r.node, r.last.Node, nil
			}
		}
		return "", "", ErrNoCard
	}
	return "", "", ErrSeveral
}

// Give takes an order. A person's clear also ends what the planner itself holds
// against the card.
func (b *Book) Give(o contract.CardOrder, node string, now time.Time) (Order, Changes, error) {
	if err := o.Check(); err != nil {
		return Order{}, Changes{}, err
	}
	id, name, err := b.Where(o.Card, node)
	if err != nil {
		return Order{}, Changes{}, err
	}
	open, most := 0, mostOpen
	own := o.Kind == contract.OrderSuspect
	if own {
		most = mostOwn
	}
	for i := range b.saved.Orders {
		if b.saved.Orders[i].ID == o.ID {
			return b.saved.Orders[i], Changes{}, nil
		}
		if k := &b.saved.Orders[i]; k.Open() && (k.Kind == contract.OrderSuspect) == own {
			open++
		}
	}
	if open >= most {
		return Order{}, Changes{}, fmt.Errorf("%w (%d)", ErrTooMany, open)
	}
	order := Order{CardOrder: o, NodeID: id, NodeName: name, At: now}
	b.saved.Orders = append(b.saved.Orders, order)
	b.trim(now)
	changes := Changes{Save: true}
	if o.Kind == contract.OrderClear {
		b.saved.Suspicion.forgetCard(id, o.Card)
		if n := b.nodes[id]; n != nil {
			changes.add(b.judge(n, now))
		}
	}
	return order, changes, nil
}

// trim forgets orders that are over, and the oldest done ones beyond the bound.
func (b *Book) trim(now time.Time) (dropped bool) {
	before := len(b.saved.Orders)
	orders := slices.DeleteFunc(slices.Clone(b.saved.Orders), func(o Order) bool {
		return !o.Open() && now.Sub(o.Done) > keepDone || o.Open() && now.Sub(o.At) > keepOpen
	})
	for len(orders) > mostOrders {
		at := slices.IndexFunc(orders, func(o Order) bool { return !o.Open() })
		orders = slices.Delete(orders, max(at, 0), max(at, 0)+1)
	}
	b.saved.Orders = orders
	return len(orders) != before
}

// done takes the outcomes that a node tells.
func (b *Book) done(node core.NodeID, outcomes []contract.CardOrderDone, now time.Time) Changes {
	var changes Changes
	for _, d := range outcomes {
		for i := range b.saved.Orders {
			if o := &b.saved.Orders[i]; o.ID == d.ID && o.Open() && (o.NodeID == "" || o.NodeID == node) {
				b.saved.Orders = slices.Clone(b.saved.Orders)
				o = &b.saved.Orders[i]
				o.Done, o.Error = now, d.Error
				changes.Save = true
			}
		}
	}
	return changes
}

// Order gives an order by its id.
func (b *Book) Order(id string) (Order, bool) {
	for i := range b.saved.Orders {
		if b.saved.Orders[i].ID == id {
			return b.saved.Orders[i], true
		}
	}
	return Order{}, false
}

// OrdersOf are a card's orders, oldest first.
func (b *Book) OrdersOf(node core.NodeID, card string) []Order {
	var out []Order
	for _, o := range b.saved.Orders {
		if o.Card == card && (o.NodeID == node || o.NodeID == "") {
			out = append(out, o)
		}
	}
	return out
}
