package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
)

// Order is what an operator or the planner wants done with a card.
type Order struct {
	ID    string // an order is carried out once
	Kind  health.Kind
	Card  string
	Who   string
	Text  string
	Level health.Level // of a suspicion
	Force bool         // clear without a test
}

// maxOrders is how many carried-out orders are remembered.
const maxOrders = 64

// Carry carries out an order. done is called with its outcome once it is
// folded.
func (m *Monitor) Carry(ctx context.Context, o Order, done func(error)) {
	m.post(ctx, func(r *registry) {
		if outcome, carried := r.carried(o.ID); carried {
			done(outcome)
			return
		}
		e := r.Cards[o.Card]
		if e == nil {
			done(fmt.Errorf("card %s is not on this node", o.Card))
			return
		}
		if o.Kind != health.Clear || o.Force || m.parts.Tester == nil {
			r.carry(o, time.Now())
			done(nil)
			return
		}
		c, seen := e.Card, slices.Clone(e.LinksSeen)
		go func() { // a test may take minutes
			err := m.test(ctx, c, seen)
			m.post(ctx, func(r *registry) {
				now := time.Now()
				if err != nil {
					r.carry(Order{ID: o.ID, Kind: health.TestFailed, Card: o.Card, Who: o.Who, Text: err.Error()}, now)
					done(fmt.Errorf("card %s is not cleared: its self-test failed: %w; -force clears it all the same", o.Card, err))
					return
				}
				r.carry(Order{Kind: health.TestPassed, Card: o.Card, Who: o.Who}, now)
				r.carry(o, now)
				done(nil)
			})
		}()
	})
}

// test looks at a card anew and tests it.
func (m *Monitor) test(ctx context.Context, c card.Card, linksSeen []int) error {
	for _, s := range m.parts.Sources {
		if s.Name() != c.Source {
			continue
		}
		scan, err := s.Scan(ctx)
		if err != nil {
			return fmt.Errorf("the source cannot be asked: %w", err)
		}
		m.config.share(&scan)
		at := slices.IndexFunc(scan.Cards, func(now card.Card) bool { return now.ID == c.ID })
		if at < 0 {
			return errors.New("its source does not see it: replace it, or -force forgets it")
		}
		now := scan.Cards[at]
		now.Conditions = append(slices.Clone(now.Conditions), deadLinks(&now, linksSeen)...)
		return m.parts.Tester.Test(ctx, now)
	}
	return fmt.Errorf("its source %q is not configured any more", c.Source)
}

// failedMark parts an order's id from why its self-test failed, in the list of
// orders that were carried out.
const failedMark = "\t"

// carried tells whether an order was carried out before, and what came of it:
// who gave it may not have heard.
func (r *registry) carried(id string) (outcome error, ok bool) {
	for _, o := range r.Node.Orders {
		name, why, failed := strings.Cut(o, failedMark)
		if id == "" || name != id {
			continue
		}
		if failed {
			return errors.New("it is not cleared: its self-test failed: " + why + "; -force clears it all the same"), true
		}
		return nil, true
	}
	return nil, false
}

// carry folds an order.
func (r *registry) carry(o Order, at time.Time) {
	e := r.Cards[o.Card]
	if e == nil {
		return
	}
	r.fold(o.Card, health.Event{Kind: o.Kind, At: at, From: "order", Who: o.Who, Text: o.Text, Level: o.Level})
	if o.Kind == health.Clear {
		e.LinksSeen = nil // what is live now is what counts from here on
		if open(e, health.Unreachable) && !r.reachable[o.Card] {
			// Whoever clears a card that is not there says that it is gone for good.
			r.say(false, "a card that is not there was cleared: it is forgotten", "card", o.Card)
			delete(r.Cards, o.Card)
			delete(r.verdicts, o.Card)
			delete(r.reachable, o.Card)
		}
	}
	if o.ID != "" {
		id := o.ID
		if o.Kind == health.TestFailed {
			id += failedMark + o.Text
		}
		r.Node.Orders = append(r.Node.Orders, id)
		if n := len(r.Node.Orders) - maxOrders; n > 0 {
			r.Node.Orders = r.Node.Orders[n:]
		}
	}
	r.dirty = true
}

// SetBreaker tells that the cluster's circuit breaker opened, and when (zero:
// now), or closed.
func (m *Monitor) SetBreaker(ctx context.Context, open bool, since time.Time) {
	m.post(ctx, func(r *registry) {
		if open != r.policy.BreakerSince.IsZero() {
			return
		}
		r.policy.BreakerSince = time.Time{}
		if open {
			if now := time.Now(); since.IsZero() || since.After(now) {
				since = now // clocks differ: what is known to be older than this moment is not new
			}
			r.policy.BreakerSince = since
		}
		r.Node.BreakerSince = r.policy.BreakerSince
		r.say(true, "the cluster's circuit breaker changed", "open", open)
		r.tick(time.Now())
		r.dirty = true
	})
}
