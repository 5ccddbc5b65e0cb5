// Package httpapi is the planner's own /v1 JSON API: an http.Handler over what
// the running planner gives it (Gangs, Cluster, Jobs, Stopper, a Feed).
//
// # Who may call
//
// A request carries a token of the configuration as "Authorization: Bearer
// ..."; its role decides what it may do (view.Role). Without a token a request
// has the configuration's anonymous role, none by default, and that only if it
// comes from this machine, names it as the host, and no proxy handed it on. A
// browser page of another site can never change anything.
//
// # How it answers
//
// Every answer is one JSON document; an error is a view.Error with the HTTP
// status that belongs to its code, and names the operation, the object, the
// cause, and what to do next. A submission with faults is refused with all of
// them. Bodies are bounded (413), must be application/json, and fields that
// are not known are refused, so that a misspelt one is not ignored.
//
// # Waiting
//
// A read of one gang with ?index=N waits until the gang's index is above N, or
// for ?wait (at most ten minutes). GET /v1/events streams events as they come.
//
// The routes stand in Routes; the OpenAPI document at /v1/openapi.json is made
// of them.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/view"
)

// Options of the API. All but Capture, Cards, Reports, Metrics and Log are needed.
type Options struct {
	// Config gives the configuration in force; it is asked at each request, so
	// that tokens and queues change with a reload.
	Config  func() *config.Config
	Gangs   Gangs
	Cluster Cluster
	Jobs    Jobs
	Stopper Stopper
	Feed    *Feed
	Capture Capturer     // nil: /v1/snapshot is not found
	Cards   Cards        // nil: all about cards is not found
	Reports Reporter     // nil: /v1/report is not found
	Books   Books        // nil: usage, waste, top, demand and the ledger's check are not found
	Metrics http.Handler // nil: /metrics is not found
	Log     *slog.Logger
}

// Server answers the API's requests.
type Server struct {
	Options
	mux  *http.ServeMux
	csrf *http.CrossOriginProtection
	keys *keyring
	// deciding bounds the plans that are made for requests at a time.
	deciding chan struct{}
}

// New makes the API's handler.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{Options: o, mux: http.NewServeMux(), csrf: http.NewCrossOriginProtection(), keys: newKeyring(4096, 24*time.Hour), deciding: make(chan struct{}, 2)}
	for i := range Routes {
		r := &Routes[i]
		s.mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r) })
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, s.noRoute(req))
	})
	return s
}

// ServeHTTP answers one request; a panic in it is logged and is a 500.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.Log.Error("answering a request panicked", "method", req.Method, "path", req.URL.Path, "panic", p, "stack", string(debug.Stack()))
			s.fail(w, req, errors.New("the planner failed while answering; its log has the details"))
		}
	}()
	s.mux.ServeHTTP(w, req)
}

// HTTPServer is a server for the handler with bounds on what a client may make
// it wait for. Answers may take long (events, waiting reads), so they have no
// bound.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn)}
}

// Serve answers on a listener until the context ends, then lets requests in
// flight end for a moment.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := s.HTTPServer()
	// Streams and waiting reads end with the context rather than being waited for.
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err := server.Shutdown(bounded)
		if err != nil {
			err = server.Close()
		}
		<-done
		return err
	}
}

// serve answers one request of a known route.
func (s *Server) serve(w http.ResponseWriter, req *http.Request, r *Route) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if err := s.csrf.Check(req); err != nil {
		s.fail(w, req, &view.Error{Code: view.CodeForbidden, Operation: r.operation(), Cause: "the request comes from a page of another site",
			Hint: "use the planner's own page, the CLI or a token"})
		return
	}
	var by Caller
	if r.Role != view.RoleNone {
		var err error
		if by, err = s.caller(req, r); err != nil {
			s.fail(w, req, err)
			return
		}
	}
	q := &request{Request: req, by: by, route: r, w: w}
	out, err := r.handle(s, q)
	switch {
	case err != nil:
		s.fail(w, req, err)
	case q.streamed:
	default:
		s.write(w, http.StatusOK, out)
	}
	if req.Method != http.MethodGet && r.Changes {
		s.Log.Info("request", "method", req.Method, "path", req.URL.Path, "by", by.Name, "from", req.RemoteAddr, "error", err)
	}
}

// request is one request on its way through a handler.
type request struct {
	*http.Request
	by    Caller
	route *Route
	w     http.ResponseWriter
	// streamed: the handler has written the answer itself.
	streamed bool
}

// noRoute tells a path that does not exist from a method that it does not
// take.
func (s *Server) noRoute(req *http.Request) error {
	operation := req.Method + " " + req.URL.Path
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		probe := req.Clone(req.Context())
		probe.Method = method
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" {
			return &view.Error{Code: view.CodeInvalid, Operation: operation, Cause: "this path takes " + method}
		}
	}
	return &view.Error{Code: view.CodeNotFound, Operation: operation, Cause: "there is no such path", Hint: "see /v1/openapi.json"}
}
