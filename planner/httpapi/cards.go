package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
)

// Cards tells of the nodes' cards, takes their reports, and hands orders on to
// them. Errors that are a *view.Error reach the caller as they are.
type Cards interface {
	Report(ctx context.Context, by Caller, r contract.CardReport) (contract.CardReply, error)
	Cards(node string) []view.CardState
	Card(card, node string) (view.CardState, error)
	// OrderCard has something done with a card: kind is confirm, clear or note.
	OrderCard(ctx context.Context, by Caller, card, node, kind string, how view.CardRequest) (view.CardOrder, error)
	CardOrder(id string) (view.CardOrder, bool)
	Breaker() view.CardBreaker
	SetBreaker(ctx context.Context, by Caller, how view.BreakerRequest) (view.CardBreaker, error)
	// ClearNode ends what the planner itself holds against a node.
	ClearNode(ctx context.Context, by Caller, node string, how view.NodeRequest) (view.NodeCleared, error)
}

// cardRoutes are the routes about cards; they are part of Routes.
var cardRoutes = []Route{
	{Method: http.MethodPost, Path: contract.PathCardReports, Role: view.RoleReporter, Summary: "Report a node's cards", Body: contract.CardReport{}, Answer: contract.CardReply{},
		Most: contract.CardReportLimit, handle: (*Server).report},
	{Method: http.MethodGet, Path: "/v1/cards", Role: view.RoleViewer, Summary: "List cards", Answer: view.CardList{}, handle: (*Server).listCards, Query: []Param{
		{"node", "string", "only of this node (name or id)"},
		{"state", "string", "only in this state: healthy, suspect, draining, quarantined; bad is any but healthy"},
	}},
	{Method: http.MethodGet, Path: "/v1/card/{card}", Role: view.RoleViewer, Summary: "Read a card", Answer: view.CardState{}, handle: (*Server).readCard, Query: onNode},
	{Method: http.MethodPost, Path: "/v1/card/{card}/confirm", Role: view.RoleOperator, Changes: true, Summary: "Confirm a card's fault", Body: view.CardRequest{}, Answer: view.CardOrder{},
		handle: orderCard(contract.OrderConfirm), Query: onNode},
	{Method: http.MethodPost, Path: "/v1/card/{card}/clear", Role: view.RoleOperator, Changes: true, Summary: "Clear a card", Body: view.CardRequest{}, Answer: view.CardOrder{},
		handle: orderCard(contract.OrderClear), Query: onNode},
	{Method: http.MethodPost, Path: "/v1/card/{card}/note", Role: view.RoleOperator, Changes: true, Summary: "Note on a card", Body: view.CardRequest{}, Answer: view.CardOrder{},
		handle: orderCard(contract.OrderNote), Query: onNode},
	{Method: http.MethodGet, Path: "/v1/cards/order/{order}", Role: view.RoleViewer, Summary: "Read a card order", Answer: view.CardOrder{}, handle: (*Server).readCardOrder},
	{Method: http.MethodGet, Path: "/v1/cards/breaker", Role: view.RoleViewer, Summary: "Read the cards' breaker", Answer: view.CardBreaker{}, handle: (*Server).readBreaker},
	{Method: http.MethodPost, Path: "/v1/cards/breaker", Role: view.RoleOperator, Changes: true, Summary: "Set the cards' breaker", Body: view.BreakerRequest{}, Answer: view.CardBreaker{},
		handle: (*Server).setBreaker},
	{Method: http.MethodPost, Path: "/v1/node/{node}/clear", Role: view.RoleOperator, Changes: true, Summary: "Clear a node", Body: view.NodeRequest{}, Answer: view.NodeCleared{},
		handle: (*Server).clearNode},
}

var onNode = []Param{{"node", "string", "the card's node (name or id), where several have a card of this id"}}

// noCards is the answer of a planner without them.
func (s *Server) noCards(q *request) error {
	if s.Options.Cards != nil {
		return nil
	}
	return &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Cause: "this planner knows of no cards"}
}

// report takes one report. Fields that are not known are ignored: a device
// plugin may be newer than the planner.
func (s *Server) report(q *request) (any, error) {
	if err := s.noCards(q); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.Body, q.route.limit()))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &view.Error{Code: view.CodeTooLarge, Operation: q.route.operation(), Cause: "a report has at most 256 KiB"}
	case err != nil:
		return nil, q.invalid("read body: "+err.Error(), "")
	case len(bytes.TrimSpace(body)) == 0:
		return nil, q.invalid("the body is empty", "")
	}
	var r contract.CardReport
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, q.invalid("read body: "+err.Error(), "")
	}
	return s.Options.Cards.Report(q.Context(), q.by, r)
}

func (s *Server) listCards(q *request) (any, error) {
	if err := errors.Join(s.noCards(q), s.known(q)); err != nil {
		return nil, err
	}
	query := q.URL.Query()
	state := query.Get("state")
	cards := orEmpty(s.Options.Cards.Cards(query.Get("node")))
	if state != "" {
		cards = slices.DeleteFunc(cards, func(c view.CardState) bool {
			return !(c.State == state || state == "bad" && c.State != contract.CardHealthy)
		})
	}
	return view.CardList{Index: s.Feed.Index(), Cards: cards, Breaker: s.Options.Cards.Breaker()}, nil
}

func (s *Server) readCard(q *request) (any, error) {
	if err := errors.Join(s.noCards(q), s.known(q)); err != nil {
		return nil, err
	}
	return s.Options.Cards.Card(q.PathValue("card"), q.URL.Query().Get("node"))
}

func orderCard(kind string) func(*Server, *request) (any, error) {
	return func(s *Server, q *request) (any, error) {
		if err := s.noCards(q); err != nil {
			return nil, err
		}
		var how view.CardRequest
		if err := q.body(&how); err != nil {
			return nil, err
		}
		how.Why = strings.TrimSpace(how.Why)
		switch {
		case kind == contract.OrderNote && how.Why == "":
			return nil, q.invalid("a note needs its text", `{"why": "..."}`)
		case kind != contract.OrderClear && how.Force:
			return nil, q.invalid("force is for clear only", "")
		case len(how.Why) > 1000:
			return nil, q.invalid("why has more than 1000 bytes", "")
		case len(how.ID) > 64:
			return nil, q.invalid("id has more than 64 bytes", "")
		}
		return s.Options.Cards.OrderCard(q.Context(), q.by, q.PathValue("card"), q.URL.Query().Get("node"), kind, how)
	}
}

func (s *Server) readCardOrder(q *request) (any, error) {
	if err := s.noCards(q); err != nil {
		return nil, err
	}
	o, ok := s.Options.Cards.CardOrder(q.PathValue("order"))
	if !ok {
		return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Object: q.PathValue("order"), Cause: "not found", Hint: "orders are remembered for a day after they were carried out"}
	}
	return o, nil
}

func (s *Server) readBreaker(q *request) (any, error) {
	if err := s.noCards(q); err != nil {
		return nil, err
	}
	return s.Options.Cards.Breaker(), nil
}

func (s *Server) setBreaker(q *request) (any, error) {
	if err := s.noCards(q); err != nil {
		return nil, err
	}
	var how view.BreakerRequest
	if err := q.body(&how); err != nil {
		return nil, err
	}
	return s.Options.Cards.SetBreaker(q.Context(), q.by, how)
}

func (s *Server) clearNode(q *request) (any, error) {
	if err := s.noCards(q); err != nil {
		return nil, err
	}
	var how view.NodeRequest
	if err := q.body(&how); err != nil {
		return nil, err
	}
	return s.Options.Cards.ClearNode(q.Context(), q.by, q.PathValue("node"), how)
}
