package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// Books tell who used what, and what is wanted.
type Books interface {
	Usage(ctx context.Context, q view.UsageQuery) (view.Usage, error)
	Waste(ctx context.Context, from, to time.Time) (view.Waste, error)
	Top() view.Top
	Demand() view.DemandList
	CheckLedger(ctx context.Context) (view.LedgerCheck, error)
}

func (s *Server) books(q *request) (Books, error) {
	if s.Books == nil {
		return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Cause: "this planner keeps no books"}
	}
	return s.Books, nil
}

// knownBooks are the books of a planner that knows its cluster.
func (s *Server) knownBooks(q *request) (Books, error) {
	books, err := s.books(q)
	if err != nil {
		return nil, err
	}
	return books, s.known(q)
}

// usageDimensions are those that usage can be asked by.
var usageDimensions = []string{"queue", "user", "model", "gang", "attempt", "hour", "day", "month"}

func (s *Server) usage(q *request) (any, error) {
	books, err := s.books(q)
	if err != nil {
		return nil, err
	}
	from, to, err := q.span()
	if err != nil {
		return nil, err
	}
	query := q.URL.Query()
	ask := view.UsageQuery{From: from, To: to, By: []string{"queue"}, Queue: query.Get("queue"), User: query.Get("user"), Model: query.Get("model"), Gang: query.Get("gang")}
	if by := query.Get("by"); by != "" {
		ask.By = strings.Split(by, ",")
	}
	for i, d := range ask.By {
		ask.By[i] = strings.TrimSpace(d)
		if !slices.Contains(usageDimensions, ask.By[i]) {
			return nil, q.invalid("by="+query.Get("by")+": "+strconv.Quote(ask.By[i])+" is no dimension", "use some of "+strings.Join(usageDimensions, ", "))
		}
	}
	return books.Usage(q.Context(), ask)
}

func (s *Server) waste(q *request) (any, error) {
	books, err := s.books(q)
	if err != nil {
		return nil, err
	}
	from, to, err := q.span()
	if err != nil {
		return nil, err
	}
	return books.Waste(q.Context(), from, to)
}

func (s *Server) top(q *request) (any, error) {
	books, err := s.knownBooks(q)
	if err != nil {
		return nil, err
	}
	return books.Top(), nil
}

func (s *Server) demand(q *request) (any, error) {
	books, err := s.knownBooks(q)
	if err != nil {
		return nil, err
	}
	return books.Demand(), nil
}

func (s *Server) checkLedger(q *request) (any, error) {
	books, err := s.knownBooks(q)
	if err != nil {
		return nil, err
	}
	return books.CheckLedger(q.Context())
}

// span reads from and to.
func (q *request) span() (from, to time.Time, err error) {
	to = time.Now()
	if text := q.URL.Query().Get("to"); text != "" {
		if to, err = instant(text); err != nil {
			return from, to, q.invalid("to="+text+" is neither a date nor a time", `such as 2026-03-01 or 2026-03-01T12:00:00Z`)
		}
	}
	from = to.Add(-24 * time.Hour)
	if text := q.URL.Query().Get("from"); text != "" {
		if from, err = instant(text); err != nil {
			return from, to, q.invalid("from="+text+" is neither a date nor a time", `such as 2026-03-01 or 2026-03-01T12:00:00Z`)
		}
	}
	if to.Before(from) {
		return from, to, q.invalid(fmt.Sprintf("to (%s) is before from (%s)", to.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339)), "")
	}
	return from, to, nil
}

// instant reads a date (its begin in UTC) or a time.
func instant(text string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, nil
	}
	return time.Parse(time.RFC3339, text)
}

var (
	selector = regexp.MustCompile(`^\s*(?:sum\s*\(\s*)?(muster_demand_nodes|muster_demand_gangs)\s*(?:\{([^}]*)\})?\s*\)?\s*$`)
	matcher  = regexp.MustCompile(`^\s*(model|cards|pool)\s*=\s*"([^"]*)"\s*$`)
)

// demandSeries answers as Prometheus does, so that nomad-autoscaler's
// prometheus plugin can ask the planner itself: one series with one value.
func (s *Server) demandSeries(q *request) (any, error) {
	books, err := s.knownBooks(q)
	if err != nil {
		return nil, err
	}
	q.Body = http.MaxBytesReader(q.w, q.Body, smallBody)
	text := q.FormValue("query")
	parts := selector.FindStringSubmatch(text)
	refuse := func(cause string) (any, error) {
		q.streamed = true
		s.write(q.w, http.StatusBadRequest, map[string]any{"status": "error", "errorType": "bad_data", "error": cause})
		return nil, nil
	}
	if parts == nil {
		return refuse("the query is no selector of muster_demand_nodes or muster_demand_gangs: " + text)
	}
	want := map[string]string{}
	for _, m := range strings.Split(parts[2], ",") {
		if strings.TrimSpace(m) == "" {
			continue
		}
		label := matcher.FindStringSubmatch(m)
		if label == nil {
			return refuse(`labels are matched as model="...", cards="..." and pool="...", by commas; not: ` + m)
		}
		want[label[1]] = label[2]
	}
	sum := 0
	for _, d := range books.Demand().Demand {
		have := map[string]string{"model": d.Model, "cards": strconv.Itoa(d.Cards), "pool": d.Pool}
		matches := true
		for label, value := range want {
			matches = matches && have[label] == value
		}
		switch {
		case !matches:
		case parts[1] == "muster_demand_nodes":
			sum += d.Nodes
		default:
			sum += d.Gangs
		}
	}
	at := float64(time.Now().UnixMilli()) / 1000
	q.streamed = true
	s.write(q.w, http.StatusOK, map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix",
		"result": []any{map[string]any{"metric": want, "values": []any{[]any{at, strconv.Itoa(sum)}}}}}})
	return nil, nil
}
