package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// statuses gives each code of an error its HTTP status.
var statuses = map[view.Code]int{
	view.CodeInvalid: http.StatusBadRequest, view.CodeUnauthorized: http.StatusUnauthorized, view.CodeForbidden: http.StatusForbidden,
	view.CodeNotFound: http.StatusNotFound, view.CodeConflict: http.StatusConflict, view.CodeTooLarge: http.StatusRequestEntityTooLarge,
	view.CodeRejected: http.StatusUnprocessableEntity, view.CodeUnavailable: http.StatusServiceUnavailable, view.CodeInternal: http.StatusInternalServerError,
}

// write sends one JSON document.
func (s *Server) write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.Log.Error("an answer cannot be written as JSON", "error", err)
		status, body = http.StatusInternalServerError, []byte(`{"code":"internal","operation":"answer","cause":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// fail answers with an error. What is no *view.Error is the planner's own
// fault, and is logged.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, err error) {
	var e *view.Error
	if !errors.As(err, &e) {
		e = &view.Error{Code: view.CodeInternal, Operation: req.Method + " " + req.URL.Path, Cause: err.Error()}
		if errors.Is(err, context.DeadlineExceeded) {
			e.Code, e.Hint = view.CodeUnavailable, "try again; GET /v1/status says how the planner is"
		}
	}
	status := statuses[e.Code]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	if status == http.StatusInternalServerError && req.Context().Err() == nil {
		s.Log.Error("a request failed", "method", req.Method, "path", req.URL.Path, "error", err)
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	s.write(w, status, e)
}

// operation is what the route does, for errors: "submit job".
func (r *Route) operation() string {
	return articles.Replace(strings.ToLower(r.Summary[:1]) + r.Summary[1:])
}

var articles = strings.NewReplacer(" a ", " ", " the ", " ", " this ", " the ")

// invalid is an error of the request itself.
func (q *request) invalid(cause, hint string) error {
	return &view.Error{Code: view.CodeInvalid, Operation: q.route.operation(), Cause: cause, Hint: hint}
}

// body reads a request's JSON document. An empty body is an empty document
// where the route says so.
func (q *request) body(into any) error {
	media, _, err := mime.ParseMediaType(q.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return q.invalid("the Content-Type is not application/json", "")
	}
	dec := json.NewDecoder(http.MaxBytesReader(q.w, q.Body, q.route.limit()))
	dec.DisallowUnknownFields()
	err = dec.Decode(into)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON document")
			var large *http.MaxBytesError
			if errors.As(more, &large) {
				err = more
			}
		}
	}
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &large):
		return &view.Error{Code: view.CodeTooLarge, Operation: q.route.operation(), Cause: "the body has more than " + strconv.FormatInt(large.Limit, 10) + " bytes",
			Hint: "large files belong into an artifact, not into the job specification"}
	case errors.Is(err, io.EOF):
		return q.invalid("the body is empty", "")
	}
	return q.invalid("read body: "+err.Error(), "")
}

// number and duration read parameters of the query.
func (q *request) number(name string) (uint64, error) {
	text := q.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, q.invalid(name+"="+text+" is not a whole number", "")
	}
	return n, nil
}

func (q *request) duration(name string, fallback, most time.Duration) (time.Duration, error) {
	text := q.URL.Query().Get(name)
	if text == "" {
		return fallback, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, q.invalid(name+"="+text+` is not a duration such as "30s"`, "")
	}
	return min(d, most), nil
}

func (q *request) boolean(name string) (bool, error) {
	text := q.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, q.invalid(name+"="+text+" is neither true nor false", "")
	}
	return b, nil
}
