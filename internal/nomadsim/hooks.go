package nomadsim

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
)

// Fault is what a hook does to one request. The zero value lets it pass.
type Fault struct {
	Delay  time.Duration // before it is handled
	Fail   int           // answer with this status instead of handling it
	Text   string        // of the failure
	Drop   bool          // handle it, but cut the connection instead of answering
	Refuse bool          // cut the connection without handling it
	Repeat int           // handle it so many times more before answering, as a retry by the network would
	Hold   <-chan struct{}
	// Hold keeps the answer back until the channel is closed; answers of other requests go past it.
}

// Hooks gets between the cluster and those who talk to it. Its methods may be called at any time.
type Hooks struct {
	mu      sync.Mutex
	request func(r *http.Request, n int) Fault
	plan    func(*store.Plan) []string
	count   map[string]int
	streams map[*streamCut]bool
}

type streamCut struct{ cut chan struct{} }

// OnRequest has f decide what happens to each request. n counts the requests of that method and path, from 1.
func (h *Hooks) OnRequest(f func(r *http.Request, n int) Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.request, h.count = f, map[string]int{}
}

// FailCall has the nth request from now on of a method and path (a prefix) fail with a status.
func (h *Hooks) FailCall(method, path string, n, status int, text string) {
	seen := 0
	var mu sync.Mutex
	h.OnRequest(func(r *http.Request, _ int) Fault {
		if r.Method != method || len(r.URL.Path) < len(path) || r.URL.Path[:len(path)] != path {
			return Fault{}
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen == n {
			return Fault{Fail: status, Text: text}
		}
		return Fault{}
	})
}

// OnPlan has f look at each plan before it is committed; what f returns are nodes for which the plan is refused.
func (h *Hooks) OnPlan(f func(*store.Plan) []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plan = f
}

func (h *Hooks) planHook() func(*store.Plan) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.plan
}

// CutStreams cuts all event streams in the middle, as a server that dies does.
func (h *Hooks) CutStreams() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		close(s.cut)
		delete(h.streams, s)
	}
}

func (h *Hooks) stream() (s *streamCut, end func()) {
	s = &streamCut{cut: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == nil {
		h.streams = map[*streamCut]bool{}
	}
	h.streams[s] = true
	return s, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.streams, s)
	}
}

// around applies the request hook to a handler.
func (h *Hooks) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		f := h.request
		n := 0
		if f != nil {
			k := r.Method + " " + r.URL.Path
			h.count[k]++
			n = h.count[k]
		}
		h.mu.Unlock()
		if f == nil {
			next.ServeHTTP(w, r)
			return
		}
		fault := f(r, n)
		if fault.Delay > 0 {
			select {
			case <-time.After(fault.Delay):
			case <-r.Context().Done():
				return
			}
		}
		switch {
		case fault.Refuse:
			panic(http.ErrAbortHandler)
		case fault.Fail != 0:
			http.Error(w, fault.Text, fault.Fail)
			return
		}
		if !fault.Drop && fault.Repeat == 0 && fault.Hold == nil {
			next.ServeHTTP(w, r)
			return
		}
		body, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var rec *recorder
		for range fault.Repeat + 1 {
			again := r.Clone(r.Context())
			again.Body = newBody(body)
			rec = &recorder{header: http.Header{}}
			next.ServeHTTP(rec, again)
		}
		if fault.Hold != nil {
			select {
			case <-fault.Hold:
			case <-r.Context().Done():
				return
			}
		}
		if fault.Drop {
			panic(http.ErrAbortHandler)
		}
		rec.replay(w)
	})
}

// recorder keeps an answer back.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) replay(w http.ResponseWriter) {
	for k, v := range r.header {
		w.Header()[k] = v
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	w.WriteHeader(r.status)
	w.Write(r.body.Bytes())
}
