package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

// The variable that holds what must survive of cards (cards.Saved): orders that
// wait for their nodes, suspicions, the breaker.
const (
	cardsNamespace = "default"
	cardsPath      = "muster/cards"
)

// cardSettings are the settings of a configuration.
func cardSettings(cfg *config.Config) cards.Settings {
	set := cfg.Cards.Settings
	set.CardTypes = cfg.Core.CardTypes
	return set
}

// cardStore keeps the cards' state in a Nomad variable.
type cardStore struct {
	client *nomad.Client
	// flush is called before each save, so that a quarantine which counts as told
	// is on its way to the webhooks for sure.
	flush func(context.Context) error
	log   *slog.Logger
	index uint64
}

func (s *cardStore) LoadCards(ctx context.Context) ([]byte, error) {
	v, err := s.client.Load(ctx, cardsNamespace, cardsPath)
	if err != nil || v == nil {
		return nil, err
	}
	s.index = v.Index
	if text := v.Items[itemState]; text != "" {
		return []byte(text), nil
	}
	return unpack(v.Items[itemPacked])
}

func (s *cardStore) SaveCards(ctx context.Context, data []byte) error {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	if err := s.flush(bounded); err != nil && ctx.Err() == nil {
		s.log.Warn("a card's event may be lost if the planner ends now", "error", err)
	}
	cancel()
	items := map[string]string{itemState: string(data)}
	if len(data) > plainMost {
		text, err := pack(data)
		if err != nil {
			return err
		}
		items = map[string]string{itemPacked: text}
	}
	index, err := s.client.Store(ctx, cardsNamespace, cardsPath, items, s.index)
	if errors.Is(err, nomad.ErrConflict) {
		// Only the planner writes it: an answer was lost, or somebody deleted it.
		v, readErr := s.client.Load(ctx, cardsNamespace, cardsPath)
		if readErr != nil {
			return readErr
		}
		s.index = 0
		if v != nil {
			s.index = v.Index
		}
		index, err = s.client.Store(ctx, cardsNamespace, cardsPath, items, s.index)
	}
	if err == nil {
		s.index = index
	}
	return err
}

// loadCards reads what was saved of cards, until it is there or ctx ends.
func (a *Agent) loadCards(ctx context.Context) {
	for pause := time.Second; ; pause = min(2*pause, 15*time.Second) {
		err := a.cards.Load(ctx)
		if err == nil {
			return
		}
		a.log.Warn("cards: reports are not taken yet", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// cardsChanged takes what changed of cards into the loop: the nodes are judged
// anew, the gangs on them look, the next cycle comes at once, and whoever holds
// a card that turned bad is told.
func (a *Agent) cardsChanged(c cards.Changes) {
	a.inbox.do(func(s *state) {
		touched := map[string]bool{}
		for _, id := range c.Nodes {
			if n := s.raw[string(id)]; n != nil && s.judge(n) {
				touched[string(id)] = true
			}
		}
		s.touch(touched)
		for _, e := range c.Events {
			a.cardEvent(e)
		}
	})
}

// cardEvent tells of a card that turned, or of the breaker.
func (a *Agent) cardEvent(e cards.Event) {
	s := &a.state
	event := view.Event{At: e.At.UTC(), Kind: view.EventCard, Node: e.NodeName, Card: e.Card}
	var holder *entry
	var gang string
	switch e.Kind {
	case cards.BreakerOpened:
		event.Text = "the cards' circuit breaker opened: " + e.Text
	case cards.BreakerClosed:
		event.Text = "the cards' circuit breaker closed: " + cmp.Or(e.Text, "no reason given")
	default:
		event.Text = fmt.Sprintf("card %s of node %s is %s", e.Card, e.NodeName, cards.StateName(e.State))
		if e.Text != "" {
			event.Text += ": " + e.Text
		}
		if c := s.holderOf(e.Node, e.Card); c != nil {
			if holder = s.gangs[gangKey(c.Gang)]; c.Gang != "" && holder != nil {
				gang = holder.key.String()
			}
		}
	}
	if e.Told {
		return
	}
	a.publish(holder, event)
	a.announceCard(e, gang)
}

// announcedCard is the data of an event on a card, or on the breaker;
// docs/events.md shows it.
type announcedCard struct {
	At       time.Time           `json:"at"`
	Text     string              `json:"text"`
	Node     string              `json:"node,omitempty"`
	NodeID   string              `json:"node_id,omitempty"`
	Card     string              `json:"card,omitempty"`
	Model    string              `json:"model,omitempty"` // vendor/type/model
	Index    *int                `json:"i,omitempty"`
	Slot     string              `json:"slot,omitempty"`
	Serial   string              `json:"serial,omitempty"`
	State    string              `json:"state,omitempty"`
	Evidence []view.CardEvidence `json:"evidence,omitempty"`
	Gang     string              `json:"gang,omitempty"` // that holds the card
	Link     string              `json:"link"`
}

// announceCard tells the webhooks of a quarantine, of its end, and of the
// breaker.
func (a *Agent) announceCard(e cards.Event, gang string) {
	kind, subject := "", "breaker"
	data := announcedCard{At: e.At.UTC(), Text: e.Text, Link: a.config.Current().API.Base() + "/v1/cards"}
	switch {
	case e.Kind == cards.BreakerOpened:
		kind = notify.BreakerTripped
	case e.Kind != cards.CardTurned:
		return
	case e.State == core.CardQuarantined:
		kind = notify.CardQuarantined
	case e.Was == core.CardQuarantined && e.State <= core.CardSuspect:
		kind = notify.CardReturned
	default:
		return
	}
	if e.Kind == cards.CardTurned {
		subject = e.NodeName + "/" + e.Card
		data.Node, data.NodeID, data.Card, data.Model, data.Slot, data.Serial, data.State, data.Gang = e.NodeName, string(e.Node), e.Card, e.Group, e.Slot, e.Serial, cards.StateName(e.State), gang
		data.Link = a.config.Current().API.Base() + "/v1/card/" + url.PathEscape(e.Card)
		if e.Index >= 0 {
			data.Index = &e.Index
		}
		for _, k := range e.Evidence {
			data.Evidence = append(data.Evidence, view.CardEvidence{State: k.State, What: k.What, Line: k.Line, Since: k.Since.UTC(), Last: k.Last.UTC(), Times: k.Times})
		}
	}
	a.events.Post(notify.Event{ID: e.ID, Type: kind, Subject: subject, Time: e.At, Data: data})
}

// holderOf is the claim on a card; nil: nobody's.
func (s *state) holderOf(node core.NodeID, card string) *core.Claim {
	for i := range s.claims.values {
		if c := &s.claims.values[i]; c.Node == node && slices.Contains(c.Cards, core.CardID(card)) {
			return c
		}
	}
	return nil
}

// judge puts the verdicts on a node's cards in the place of what Nomad says,
// and tells whether that changed anything.
func (s *state) judge(n *picture.Node) bool {
	id := string(n.ID)
	judged := s.cards.Judged(n.Node)
	if old := s.nodes[id]; old != nil && old.Version == judged.Version && s.raw[id] == n {
		return false
	}
	own := *n
	own.Node = judged
	s.raw[id], s.nodes[id] = n, &own
	s.nodeList.put(id, judged)
	s.decideSoon = true
	return true
}

// touch has the gangs look that have a place on one of the nodes.
func (s *state) touch(nodes map[string]bool) {
	if len(nodes) == 0 {
		return
	}
	for _, e := range s.order() {
		if slices.ContainsFunc(e.gang.Saved.Places, func(p lifecycle.Place) bool { return nodes[p.Node] }) {
			s.stir(e)
		}
	}
}

// holdEvery bounds how often it is made up who holds which card: it takes as
// long as there are claims.
func holdEvery(claims int) time.Duration {
	return 2*time.Second + time.Duration(claims)*2*time.Millisecond
}

// holdAgain is when it may be made up again who holds which card.
func (s *state) holdAgain() time.Time { return s.heldAt.Add(holdEvery(len(s.claims.values))) }

// hold lets the nodes know who holds their cards, for the labels of their
// metrics and for whoever looks at cards.
func (a *Agent) hold(now time.Time) {
	s := &a.state
	if s.claims.changes == s.held || now.Before(s.holdAgain()) || !s.whole {
		return
	}
	s.held, s.heldAt = s.claims.changes, now
	out := map[core.NodeID]map[string]cards.Holder{}
	for i := range s.claims.values {
		c := &s.claims.values[i]
		if len(c.Cards) == 0 {
			continue
		}
		h := cards.Holder{Job: c.Job, Alloc: c.Alloc}
		if e := s.gangs[gangKey(c.Gang)]; c.Gang != "" && e != nil {
			h.CardHolder = contract.CardHolder{Gang: string(c.Gang), Queue: e.gang.QueueName(), Attempt: c.Attempt}
		}
		if out[c.Node] == nil {
			out[c.Node] = map[string]cards.Holder{}
		}
		for _, id := range c.Cards {
			out[c.Node][string(id)] = h
		}
	}
	a.cards.Hold(out)
}

// refused tells whether a plan would give out a card that has turned bad since
// the plan's snapshot was made.
func (a *Agent) refused(start *core.Start) (string, bool) {
	for _, m := range start.Members {
		for _, ids := range m.Cards {
			for _, id := range ids {
				if why, bad := a.cards.Refuses(m.Node, id); bad {
					return fmt.Sprintf("card %s: %s", id, why), true
				}
			}
		}
	}
	return "", false
}

// ended lays an attempt's end on the places where it happened. A planner that
// starts lays the last ends of all gangs again; the book knows which it has.
func (a *Agent) ended(e *entry) {
	list := e.gang.Saved.Attempts
	if len(list) == 0 || list[len(list)-1].Number <= e.seenAttempt {
		return
	}
	last := list[len(list)-1]
	e.seenAttempt = last.Number
	if o, ok := outcomeOf(e.key.String(), &last, e.gang.Saved.Last); ok {
		if script(&last) {
			o.By = cmp.Or(e.gang.UserName(), "queue "+string(e.gang.Meta.Queue))
		}
		a.cards.Ended(o)
	}
}

// outcomeOf is an attempt's end as the suspicion takes it; false: it says
// nothing of any place.
func outcomeOf(gang string, at *lifecycle.Attempt, members []lifecycle.Ended) (cards.Outcome, bool) {
	o := cards.Outcome{Gang: gang, Attempt: at.Number, At: at.Ended}
	place := func(m *lifecycle.Ended) cards.Place {
		return cards.Place{Node: core.NodeID(m.NodeID), Name: m.Node, Cards: m.Cards}
	}
	for _, st := range at.Stages {
		if st.Stage == contract.StageStarted {
			o.Ran = at.Ended.Sub(st.At)
		}
	}
	switch {
	case at.Outcome == string(contract.OutcomeComplete):
		for i := range members {
			o.Clean = append(o.Clean, place(&members[i]))
		}
	case at.Member < 0 || at.Member >= len(members):
		return o, false
	case failedThere(at):
		p := place(&members[at.Member])
		o.Failed = &p
	default:
		return o, false
	}
	return o, true
}

// script tells whether an attempt ended because the user's script did, with a
// code of its own.
func script(at *lifecycle.Attempt) bool {
	return at.Reason == lifecycle.ReasonMember && at.Exit != nil && at.Exit.Outcome == contract.OutcomeFailed && at.Exit.Code > 0 && at.Exit.Signal == 0
}

// failedThere tells whether an attempt ended because something failed where its
// named member ran: not because somebody asked it to end, nor because of a card
// that is known to be bad.
func failedThere(at *lifecycle.Attempt) bool {
	if at.Exit != nil && at.Exit.Asked {
		return false
	}
	switch at.Reason {
	case lifecycle.ReasonMember, lifecycle.ReasonNodeLost, lifecycle.ReasonDamaged:
		return true
	}
	return false
}

// Cards implements httpapi.Cards.
func (a *Agent) Cards(node string) []view.CardState { return a.cards.List(node) }

// Card implements httpapi.Cards.
func (a *Agent) Card(card, node string) (view.CardState, error) {
	c, err := a.cards.Card(card, node)
	return c, cardError("read card", card, err)
}

// Report implements httpapi.Cards.
func (a *Agent) Report(ctx context.Context, by httpapi.Caller, r contract.CardReport) (contract.CardReply, error) {
	reply, err := a.cards.Report(ctx, r, by.Name)
	if err == nil {
		a.meter.Sample(r, time.Now())
	}
	if err != nil && !errors.Is(err, cards.ErrStarting) {
		return reply, &view.Error{Code: view.CodeInvalid, Operation: "report cards", Object: r.Node, Cause: err.Error()}
	}
	return reply, cardError("report cards", r.Node, err)
}

// OrderCard implements httpapi.Cards.
func (a *Agent) OrderCard(ctx context.Context, by httpapi.Caller, card, node, kind string, how view.CardRequest) (view.CardOrder, error) {
	o, err := a.cards.Give(ctx, contract.CardOrder{ID: how.ID, Kind: kind, Card: card, Who: by.Name, Why: how.Why, Force: how.Force}, node)
	return o, cardError(kind+" card", card, err)
}

// CardOrder implements httpapi.Cards.
func (a *Agent) CardOrder(id string) (view.CardOrder, bool) { return a.cards.Order(id) }

// Breaker implements httpapi.Cards.
func (a *Agent) Breaker() view.CardBreaker { return a.cards.Breaker() }

// SetBreaker implements httpapi.Cards.
func (a *Agent) SetBreaker(ctx context.Context, by httpapi.Caller, how view.BreakerRequest) (view.CardBreaker, error) {
	return a.cards.SetBreaker(ctx, how.Open, how.Why, by.Name)
}

// ClearNode implements httpapi.Cards.
func (a *Agent) ClearNode(ctx context.Context, by httpapi.Caller, node string, how view.NodeRequest) (view.NodeCleared, error) {
	a.mu.RLock()
	var id, name string
	for _, n := range a.state.nodes {
		if string(n.ID) == node || n.Name == node {
			id, name = string(n.ID), n.Name
		}
	}
	a.mu.RUnlock()
	if id == "" {
		return view.NodeCleared{}, &view.Error{Code: view.CodeNotFound, Operation: "clear node", Object: node, Cause: "not found", Hint: "muster nodes (GET /v1/nodes) lists what is there"}
	}
	cleared, err := a.cards.ClearNode(ctx, core.NodeID(id))
	if cleared {
		a.log.Info("a node was cleared", "node", name, "by", by.Name, "why", how.Why)
		a.feed.Publish(view.Event{At: time.Now().UTC(), Kind: view.EventNode, Node: name, By: by.Name, Text: "node " + name + " was cleared: " + cmp.Or(how.Why, "no reason given")})
	}
	return view.NodeCleared{Node: name, Cleared: cleared}, err
}

// cardError is an error of package cards as the API gives it.
func cardError(operation, object string, err error) error {
	e := &view.Error{Operation: operation, Object: object}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cards.ErrNoCard):
		e.Code, e.Cause, e.Hint = view.CodeNotFound, "not found", "muster cards -all (GET /v1/cards) lists what is there"
	case errors.Is(err, cards.ErrSeveral):
		e.Code, e.Cause, e.Hint = view.CodeConflict, err.Error(), "say <node>/<number> (in the API: ?node=)"
	case errors.Is(err, cards.ErrStarting):
		e.Code, e.Cause, e.Hint = view.CodeUnavailable, err.Error(), "try again in a moment"
	case errors.Is(err, cards.ErrTooMany):
		e.Code, e.Cause, e.Hint = view.CodeUnavailable, err.Error(), "muster cards shows which nodes do not report"
	default:
		return fmt.Errorf("%s %s: %w", operation, object, err)
	}
	return e
}
