package nomadsim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
)

// request is one call of the API.
type request struct {
	c         *Cluster
	w         http.ResponseWriter
	r         *http.Request
	q         url.Values
	namespace string // "*": all
	minIndex  uint64
	wait      time.Duration
}

// coded is an error with the status that it is answered with. Others are answered with 500, as by a server.
type coded struct {
	status int
	text   string
	body   any // if not nil the answer instead of the text
}

func (e *coded) Error() string { return e.text }

func fail(status int, format string, args ...any) error {
	return &coded{status: status, text: fmt.Sprintf(format, args...)}
}

var (
	errMethod     = fail(http.StatusMethodNotAllowed, "Invalid method")
	errUnmodelled = errors.New("not modelled")
	errHandled    = errors.New("answered already")
)

type handler func(q *request, rest string) (any, error)

// route is a path, or the beginning of one where it ends in a slash.
type route struct {
	path string
	f    handler
}

func (c *Cluster) handler() http.Handler {
	routes := []route{
		{"/v1/jobs", (*request).jobs},
		{"/v1/jobs/parse", (*request).parse},
		{"/v1/jobs/statuses", (*request).unmodelled},
		{"/v1/job/", (*request).job},
		{"/v1/validate/job", (*request).validate},
		{"/v1/evaluations", (*request).evaluations},
		{"/v1/evaluation/", (*request).evaluation},
		{"/v1/allocations", (*request).allocations},
		{"/v1/allocation/", (*request).allocation},
		{"/v1/deployments", (*request).deployments},
		{"/v1/deployment/", (*request).deployment},
		{"/v1/nodes", (*request).nodes},
		{"/v1/node/", (*request).node},
		{"/v1/node/pools", (*request).nodePools},
		{"/v1/node/pool/", (*request).nodePool},
		{"/v1/event/stream", (*request).eventStream},
		{"/v1/vars", (*request).variables},
		{"/v1/var/", (*request).variable},
		{"/v1/namespaces", (*request).namespaces},
		{"/v1/namespace", (*request).namespaceCreate},
		{"/v1/namespace/", (*request).namespaceOne},
		{"/v1/client/", (*request).client},
		{"/v1/search", (*request).search},
		{"/v1/status/leader", (*request).leader},
		{"/v1/status/peers", (*request).peers},
		{"/v1/regions", (*request).regions},
		{"/v1/agent/self", (*request).agentSelf},
		{"/v1/agent/health", (*request).agentHealth},
		{"/v1/agent/members", (*request).agentMembers},
		{"/v1/agent/servers", (*request).agentServers},
		{"/v1/operator/scheduler/configuration", (*request).schedulerConfiguration},
		{"/v1/operator/raft/configuration", (*request).raft},
		{"/v1/operator/license", (*request).license},
		{"/v1/system/gc", (*request).systemGC},
		{"/v1/system/reconcile/summaries", (*request).reconcileSummaries},
		{"/v1/scaling/policies", (*request).scalingPolicies},
		{"/v1/services", (*request).services},
		{"/v1/metrics", (*request).metrics},
	}
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var best *route
		for i := range routes {
			rt := &routes[i]
			if r.URL.Path == rt.path || strings.HasSuffix(rt.path, "/") && strings.HasPrefix(r.URL.Path, rt.path) {
				if best == nil || len(rt.path) > len(best.path) {
					best = rt
				}
			}
		}
		c.serve(w, r, best)
	})
	return c.hooks.around(c.limit(serve))
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request, rt *route) {
	q := &request{c: c, w: w, r: r, q: r.URL.Query()}
	q.namespace = q.q.Get("namespace")
	if q.namespace == "" {
		q.namespace = r.Header.Get("X-Nomad-Namespace")
	}
	if q.namespace == "" {
		q.namespace = "default"
	}
	err := q.common()
	var v any
	switch {
	case err != nil:
	case rt == nil:
		err = errUnmodelled
	default:
		rest := strings.TrimPrefix(r.URL.Path, rt.path)
		v, err = rt.f(q, rest)
	}
	if errors.Is(err, errHandled) {
		return
	}
	if errors.Is(err, errUnmodelled) {
		what := r.Method + " " + r.URL.Path
		c.mu.Lock()
		c.unmodelled = append(c.unmodelled, what)
		c.mu.Unlock()
		c.logf("request not modelled: %s", what)
		http.Error(w, "the simulated Nomad does not model "+what, http.StatusNotImplemented)
		return
	}
	if err != nil {
		status := http.StatusInternalServerError
		var ce *coded
		if errors.As(err, &ce) {
			status = ce.status
			if ce.body != nil {
				q.json(status, ce.body, "text/plain; charset=utf-8")
				return
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		io.WriteString(w, err.Error())
		return
	}
	q.json(http.StatusOK, v, "application/json")
}

// json answers with a value; nothing at all where a server has nothing to say.
func (q *request) json(status int, v any, contentType string) {
	if v == nil {
		q.w.WriteHeader(status)
		return
	}
	if raw, ok := v.([]byte); ok {
		q.w.WriteHeader(status)
		q.w.Write(raw)
		return
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if _, pretty := q.q["pretty"]; pretty {
		enc.SetIndent("", "    ")
	}
	if err := enc.Encode(v); err != nil {
		http.Error(q.w, err.Error(), http.StatusInternalServerError)
		return
	}
	q.w.Header().Set("Content-Type", contentType)
	q.w.WriteHeader(status)
	q.w.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// common reads what every request may carry.
func (q *request) common() error {
	if region := q.q.Get("region"); region != "" && region != q.c.opts.Region {
		return fail(http.StatusInternalServerError, "No path to region")
	}
	if s := q.q.Get("index"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fail(http.StatusBadRequest, "Invalid index")
		}
		q.minIndex = n
	}
	q.wait = 5 * time.Minute
	if s := q.q.Get("wait"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			return fail(http.StatusBadRequest, "Invalid wait time")
		}
		if d > 0 {
			q.wait = min(d, 10*time.Minute)
		}
	}
	return nil
}

// query answers a read: at once, or, if the caller has seen the index already, when one of the tables has changed and
// the answer's index is higher, or when the wait is over. f returns the answer and its index.
func (q *request) query(f func(*store.Snapshot) (any, uint64, error), tables ...store.Table) (any, error) {
	timeout := time.NewTimer(q.wait + q.wait/16)
	defer timeout.Stop()
	for {
		snap := q.c.store.Snapshot()
		v, index, err := f(snap)
		if q.minIndex > 0 && index <= q.minIndex {
			again, merge := mergeWatches(snap, tables)
			select {
			case <-again:
				merge()
				continue
			case <-timeout.C:
				merge()
			case <-q.r.Context().Done():
				merge()
				return nil, errHandled
			case <-q.c.ctx.Done():
				merge()
				return nil, fail(http.StatusInternalServerError, "server is shutting down")
			}
		}
		q.meta(index)
		return v, err
	}
}

func mergeWatches(snap *store.Snapshot, tables []store.Table) (<-chan struct{}, func()) {
	if len(tables) == 1 {
		return snap.Watch(tables[0]), func() {}
	}
	out := make(chan struct{})
	done := make(chan struct{})
	var once sync.Once
	for _, t := range tables {
		w := snap.Watch(t)
		go func() {
			select {
			case <-w:
				once.Do(func() { close(out) })
			case <-done:
			}
		}()
	}
	return out, func() { close(done) }
}

// meta sets the headers of a read.
func (q *request) meta(index uint64) {
	h := q.w.Header()
	h.Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	h.Set("X-Nomad-LastContact", "0")
	h.Set("X-Nomad-KnownLeader", "true")
}

// index sets the header of a write.
func (q *request) index(index uint64) {
	q.w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
}

func (q *request) decode(v any) error {
	if err := json.NewDecoder(q.r.Body).Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return fail(http.StatusBadRequest, "Request body is empty")
		}
		return fail(http.StatusBadRequest, "%v", err)
	}
	return nil
}

func (q *request) method(allowed ...string) error {
	for _, m := range allowed {
		if q.r.Method == m || q.r.Method == http.MethodHead && m == http.MethodGet {
			return nil
		}
	}
	return errMethod
}

func (q *request) write() error { return q.method(http.MethodPut, http.MethodPost) }

func (q *request) flag(name string) (bool, error) {
	s := q.q.Get(name)
	if s == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, fail(http.StatusBadRequest, "Failed to parse value of %q (%v) as a bool: %v", name, s, err)
	}
	return b, nil
}

// page cuts a list to what the caller asked for. key gives the token of an element.
func page[T any](q *request, list []T, key func(T) string) ([]T, error) {
	if q.q.Get("reverse") == "true" {
		for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
			list[i], list[j] = list[j], list[i]
		}
	}
	if token := q.q.Get("next_token"); token != "" {
		for len(list) > 0 && key(list[0]) != token {
			list = list[1:]
		}
	}
	if s := q.q.Get("per_page"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, fail(http.StatusBadRequest, "Expect a number for `per_page` query string parameter")
		}
		if n > 0 && len(list) > n {
			q.w.Header().Set("X-Nomad-NextToken", key(list[n]))
			list = list[:n]
		}
	}
	return list, nil
}

func (q *request) unmodelled(string) (any, error) { return nil, errUnmodelled }

// connCount counts connections by client address, since a server refuses to have too many from one.
type connCount struct {
	mu sync.Mutex
	n  map[string]int
}

type connKey struct{}

func peer(c net.Conn) string {
	h, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	return h
}

func (cc *connCount) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, peer(c))
}

func (cc *connCount) state(c net.Conn, s http.ConnState) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.n == nil {
		cc.n = map[string]int{}
	}
	switch s {
	case http.StateNew:
		cc.n[peer(c)]++
	case http.StateClosed, http.StateHijacked:
		cc.n[peer(c)]--
	}
}

func (c *Cluster) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.opts.MaxConns > 0 {
			h, _ := r.Context().Value(connKey{}).(string)
			c.conns.mu.Lock()
			n := c.conns.n[h]
			c.conns.mu.Unlock()
			if n > c.opts.MaxConns {
				w.Header().Set("Connection", "close")
				http.Error(w, "Your IP is issuing too many concurrent connections, please rate limit your calls", http.StatusTooManyRequests)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read the body of %s %s: %w", r.Method, r.URL.Path, err)
	}
	return b, nil
}

func newBody(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }
