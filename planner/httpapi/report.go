package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/nomad-muster/muster/planner/report"
	"github.com/nomad-muster/muster/planner/view"
)

// Reporter makes a report of a time from the books.
type Reporter interface {
	MakeReport(ctx context.Context, from, to time.Time) (*report.Report, error)
}

// Forms of a report.
const (
	reportHTML  = "html"  // the page
	reportJSON  = "json"  // its figures
	reportPlots = "plots" // {"<name>": "<svg ...>"}
)

var reportRoutes = []Route{
	{Method: http.MethodGet, Path: "/v1/report", Role: view.RoleViewer, Summary: "Read a report", Media: "text/html", handle: (*Server).readReport, Query: []Param{
		{"from", "string", "begin: a date or an RFC 3339 time; default a day before the end"},
		{"to", "string", "end, excluded; default now"},
		{"format", "string", "html (default): the page; json: its figures; plots: an object of its plots as SVG by name"},
	}},
}

func init() { Routes = append(Routes, reportRoutes...) }

func (s *Server) readReport(q *request) (any, error) {
	if s.Reports == nil {
		return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Cause: "this planner keeps no books", Hint: "name a data_dir in its configuration"}
	}
	from, to, err := q.span()
	if err != nil {
		return nil, err
	}
	if !to.After(from) {
		return nil, q.invalid("to is not after from", "")
	}
	format := q.URL.Query().Get("format")
	switch format {
	case "", reportHTML, reportJSON, reportPlots:
	default:
		return nil, q.invalid("format is none of html, json, plots", "")
	}
	r, err := s.Reports.MakeReport(q.Context(), from, to)
	if err != nil {
		return nil, err
	}
	q.streamed = true
	switch format {
	case reportJSON:
		q.w.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(q.w).Encode(r)
	case reportPlots:
		plots := map[string]string{}
		for _, p := range r.Plots {
			plots[p.Name] = p.SVG
		}
		q.w.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(q.w).Encode(plots)
	default:
		q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		q.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		err = r.HTML(q.w)
	}
	if err != nil && q.Context().Err() == nil {
		s.Log.Error("a report could not be written", "error", err)
	}
	return nil, nil
}
