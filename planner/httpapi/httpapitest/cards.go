package httpapitest

import (
	"context"
	"fmt"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
)

// SetCards puts cards in; each may have its detail.
func (p *Planner) SetCards(cards []view.CardState, breaker view.CardBreaker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cards, p.broken = cards, breaker
}

// Finish ends every order that waits, with an error where it is not empty.
func (p *Planner) Finish(problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.orders {
		o := &p.orders[i]
		o.State, o.Error, o.Done = view.OrderDone, problem, o.At
		if problem != "" {
			o.State = view.OrderFailed
		}
	}
}

// Report implements httpapi.Cards.
func (p *Planner) Report(_ context.Context, by httpapi.Caller, r contract.CardReport) (contract.CardReply, error) {
	p.called("report %s/%d by %s", r.Node, r.Seq, by.Name)
	return contract.CardReply{Every: 3}, nil
}

// Cards implements httpapi.Cards.
func (p *Planner) Cards(node string) []view.CardState {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []view.CardState{}
	for _, c := range p.cards {
		if node == "" || c.Node == node {
			c.Detail = nil
			out = append(out, c)
		}
	}
	return out
}

// Card implements httpapi.Cards.
func (p *Planner) Card(card, node string) (view.CardState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.cards {
		if c.ID == card && (node == "" || c.Node == node || c.NodeID == node) {
			return c, nil
		}
	}
	return view.CardState{}, &view.Error{Code: view.CodeNotFound, Operation: "read card", Object: card, Cause: "not found"}
}

// OrderCard implements httpapi.Cards: the order waits until Finish.
func (p *Planner) OrderCard(_ context.Context, by httpapi.Caller, card, node, kind string, how view.CardRequest) (view.CardOrder, error) {
	p.called("%s %s force=%t by %s: %s", kind, card, how.Force, by.Name, how.Why)
	c, err := p.Card(card, node)
	if err != nil {
		return view.CardOrder{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := view.CardOrder{ID: fmt.Sprintf("o%d", len(p.orders)+1), Kind: kind, Card: card, Node: c.Node, Who: by.Name, Why: how.Why, State: view.OrderWaiting, At: c.Since, Heard: c.ReportAt}
	p.orders = append(p.orders, o)
	return o, nil
}

// CardOrder implements httpapi.Cards.
func (p *Planner) CardOrder(id string) (view.CardOrder, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.orders {
		if o.ID == id {
			return o, true
		}
	}
	return view.CardOrder{}, false
}

// Breaker implements httpapi.Cards.
func (p *Planner) Breaker() view.CardBreaker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken
}

// SetBreaker implements httpapi.Cards.
func (p *Planner) SetBreaker(_ context.Context, by httpapi.Caller, how view.BreakerRequest) (view.CardBreaker, error) {
	p.called("breaker open=%t by %s: %s", how.Open, by.Name, how.Why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken.Open, p.broken.Why, p.broken.By = how.Open, how.Why, by.Name
	return p.broken, nil
}

// ClearNode implements httpapi.Cards.
func (p *Planner) ClearNode(_ context.Context, by httpapi.Caller, node string, how view.NodeRequest) (view.NodeCleared, error) {
	p.called("clear node %s by %s: %s", node, by.Name, how.Why)
	return view.NodeCleared{Node: node, Cleared: true}, nil
}
