package nomad

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
)

// fakeNomad has tables, and an event stream that says what a test tells it to.
type fakeNomad struct {
	*httptest.Server
	mu         sync.Mutex
	index      uint64
	nodes      map[string]map[string]any
	jobs       map[string]map[string]any
	allocs     map[string]map[string]any
	namespaces []string
	// Each subscription takes the next of these.
	streams []stream
	opened  int
	lists   int
	send    chan string
}

// stream is one life of the event stream: what it says at once, and whether
// it then stays (and says what comes over send) or ends.
type stream struct {
	lines  []string
	stays  bool
	silent bool // not even the first sign of life
}

func newFakeNomad(t *testing.T, streams ...stream) *fakeNomad {
	f := &fakeNomad{index: 100, nodes: map[string]map[string]any{}, jobs: map[string]map[string]any{}, allocs: map[string]map[string]any{}, namespaces: []string{"default"}, streams: streams, send: make(chan string)}
	mux := http.NewServeMux()
	list := func(table *map[string]map[string]any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if r.URL.Query().Get("per_page") == "" {
				f.lists++
			}
			out := []map[string]any{}
			for _, v := range *table {
				out = append(out, v)
			}
			f.answer(w, out)
		}
	}
	one := func(table *map[string]map[string]any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			v, ok := (*table)[r.PathValue("id")]
			if !ok {
				http.Error(w, "not found", http.StatusNotFound)
				return
			}
			f.answer(w, v)
		}
	}
	mux.HandleFunc("/v1/nodes", list(&f.nodes))
	mux.HandleFunc("/v1/node/{id}", one(&f.nodes))
	mux.HandleFunc("/v1/jobs", list(&f.jobs))
	mux.HandleFunc("/v1/job/{id}", one(&f.jobs))
	mux.HandleFunc("/v1/allocations", list(&f.allocs))
	mux.HandleFunc("/v1/namespaces", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		out := []map[string]any{}
		for _, n := range f.namespaces {
			out = append(out, map[string]any{"Name": n})
		}
		f.answer(w, out)
	})
	mux.HandleFunc("/v1/event/stream", f.stream)
	f.Server = httptest.NewServer(mux)
	t.Cleanup(func() { f.Server.CloseClientConnections(); f.Server.Close() })
	return f
}

func (f *fakeNomad) answer(w http.ResponseWriter, v any) {
	w.Header().Set("X-Nomad-Index", fmt.Sprint(f.index))
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fakeNomad) stream(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	s := stream{stays: true}
	if f.opened < len(f.streams) {
		s = f.streams[f.opened]
	}
	f.opened++
	f.mu.Unlock()
	flush := w.(http.Flusher)
	if s.silent {
		flush.Flush()
		<-r.Context().Done()
		return
	}
	fmt.Fprintln(w, "{}")
	for _, l := range s.lines {
		fmt.Fprint(w, l)
	}
	flush.Flush()
	if !s.stays {
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case l := <-f.send:
			fmt.Fprint(w, l)
			flush.Flush()
		}
	}
}

// set changes the tables, as a server does, without a word on the stream.
func (f *fakeNomad) set(index uint64, change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	change()
}

func node(id, status string, index uint64) map[string]any {
	return map[string]any{"ID": id, "Name": id, "Datacenter": "dc1", "Status": status, "SchedulingEligibility": "eligible", "ModifyIndex": index, "Meta": map[string]string{"leaf": "l1"}}
}

func gangJob(id, status string, index, modify uint64) map[string]any {
	return map[string]any{"ID": id, "Name": id, "Namespace": "default", "Type": "batch", "Status": status, "Priority": 50, "JobModifyIndex": index, "ModifyIndex": modify,
		"Meta": map[string]string{"muster_queue": "default"}, "TaskGroups": []any{map[string]any{"Name": "rank", "Count": 1}}}
}

func event(index uint64, topic, kind string, object map[string]any, more string) string {
	key := map[string]string{"Node": "Node", "Job": "Job", "Allocation": "Allocation"}[topic]
	raw, _ := json.Marshal(object)
	return fmt.Sprintf(`{"Index":%d,"Events":[{"Topic":%q,"Type":%q,"Index":%d,"Payload":{%q:%s%s}}]}`+"\n", index, topic, kind, index, key, raw, more)
}

// follower keeps what a Watcher delivers.
type follower struct {
	mu       sync.Mutex
	nodes    map[string]*picture.Node
	jobs     map[picture.Key]*picture.Job
	sessions int
	errs     []string
	deltas   int
}

func follow(t *testing.T, f *fakeNomad, timing Timing) *follower {
	c, err := NewClient(Options{Address: f.URL, Timeout: 5 * time.Second})
	must.NoError(t, err)
	timing.Pause = time.Millisecond
	w := NewWatcher(c, []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}}, timing, slog.New(slog.DiscardHandler))
	o := &follower{nodes: map[string]*picture.Node{}, jobs: map[picture.Key]*picture.Job{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx, o.take) }()
	t.Cleanup(func() { cancel(); <-done })
	return o
}

func (o *follower) take(d Delta) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deltas++
	if d.Whole {
		o.sessions++
	}
	if d.Contact != nil && d.Contact.Err != nil {
		o.errs = append(o.errs, d.Contact.Err.Error())
	}
	for id, n := range d.Nodes {
		if o.nodes[id] = n; n == nil {
			delete(o.nodes, id)
		}
	}
	for k, j := range d.Jobs {
		if o.jobs[k] = j; j == nil {
			delete(o.jobs, k)
		}
	}
}

// text is the picture in one line.
func (o *follower) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var parts []string
	for _, id := range sorted(o.nodes) {
		parts = append(parts, id+"="+o.nodes[id].Status)
	}
	jobs := map[string]*picture.Job{}
	for k, j := range o.jobs {
		jobs[k.Job] = j
	}
	for _, id := range sorted(jobs) {
		parts = append(parts, id+"="+jobs[id].Status)
	}
	return strings.Join(parts, " ")
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j] < out[i] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

func (o *follower) until(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if o.text() == want {
			return
		}
	}
	t.Fatalf("the picture is %q after 10 s, want %q; sessions %d, errors %q", o.text(), want, o.sessions, o.errs)
}

// C33: whatever the stream says when it comes back, the picture equals the
// server's tables. While it was away, job x ended and node n2 went down.
func TestComingBackToTheStream(t *testing.T) {
	t.Parallel()
	after := map[string]struct {
		index uint64 // of the tables
		lines []string
	}{
		"the last event again":     {111, []string{event(110, "Node", "NodeRegistration", node("n1", "initializing", 110), ""), event(111, "Node", "NodeRegistration", node("n3", "ready", 111), "")}},
		"a hole":                   {150, []string{event(150, "Node", "NodeRegistration", node("n3", "ready", 150), "")}},
		"restored from a snapshot": {40, []string{event(40, "Node", "NodeRegistration", node("n3", "ready", 40), "")}},
		"signs of life only":       {120, []string{"{}\n", "{}\n"}},
		"two with one index":       {121, []string{event(121, "Node", "NodeRegistration", node("n3", "ready", 121), ""), event(121, "Node", "NodeRegistration", node("n1", "ready", 121), "")}},
	}
	for name, test := range after {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeNomad(t, stream{lines: []string{event(110, "Node", "NodeRegistration", node("n2", "ready", 110), "")}, stays: true}, stream{lines: test.lines, stays: true})
			f.nodes["n1"], f.nodes["n2"] = node("n1", "ready", 90), node("n2", "initializing", 95)
			f.jobs["x"] = gangJob("x", "running", 80, 85)
			o := follow(t, f, Timing{Probe: time.Hour})
			o.until(t, "n1=ready n2=ready x=running")
			f.set(test.index, func() {
				at := test.index
				f.nodes["n1"], f.nodes["n2"], f.nodes["n3"] = node("n1", "ready", min(90, at)), node("n2", "down", min(at, 112)), node("n3", "ready", at)
				f.jobs["x"] = gangJob("x", "dead", min(80, at-1), min(at, 113))
			})
			f.CloseClientConnections()
			o.until(t, "n1=ready n2=down n3=ready x=dead")
		})
	}
}

func TestHalfALine(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{lines: []string{`{"Index":105,"Events":[{"Topic":"Node","Ty`}}, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: time.Hour})
	o.until(t, "n1=ready")
	f.send <- event(120, "Node", "NodeRegistration", node("n1", "down", 120), "")
	o.until(t, "n1=down")
}

// A reader that fell out of the server's buffer is told so, and starts over.
func TestDroppedFromTheBuffer(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{lines: []string{`{"Error":"event dropped from buffer"}` + "\n"}, stays: true}, stream{lines: []string{`{"Index":0,"Error":{"Message":"dropped"}}` + "\n"}, stays: true}, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: time.Hour})
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		sessions, errs := o.sessions, strings.Join(o.errs, "; ")
		o.mu.Unlock()
		if sessions == 3 {
			must.StrContains(t, errs, "dropped")
			break
		}
		must.True(t, time.Now().Before(end), must.Sprintf("%d sessions: %s", sessions, errs))
	}
	o.until(t, "n1=ready")
}

// A line of several megabytes is a line.
func TestLongLine(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: time.Hour})
	o.until(t, "n1=ready")
	long := node("n1", "down", 120)
	long["Meta"] = map[string]string{"text": strings.Repeat("x", 5<<20)}
	f.send <- event(120, "Node", "NodeRegistration", long, "")
	o.until(t, "n1=down")
}

// A stream that lives and says nothing of what changes is found out by the
// tables' own indexes.
func TestStreamThatLeavesThingsOut(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: 20 * time.Millisecond})
	o.until(t, "n1=ready")
	f.set(130, func() { f.nodes["n1"] = node("n1", "down", 130) })
	o.until(t, "n1=down")
	f.set(131, func() { delete(f.nodes, "n1") })
	o.until(t, "")
}

func TestSilentStreamIsOpenedAgain(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{stays: true}, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: time.Hour, Silence: 50 * time.Millisecond})
	o.until(t, "n1=ready")
	f.set(130, func() { f.nodes["n1"] = node("n1", "down", 130) })
	o.until(t, "n1=down")
	o.mu.Lock()
	defer o.mu.Unlock()
	must.StrContains(t, strings.Join(o.errs, "\n"), "no sign of life")
}

// Nomad answers a denied subscription with 200 and silence.
func TestDeniedSubscription(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{silent: true}, stream{}, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: time.Hour, First: 50 * time.Millisecond})
	o.until(t, "n1=ready")
	o.mu.Lock()
	defer o.mu.Unlock()
	must.StrContains(t, o.errs[0], "says nothing")
}

// A subscription to all namespaces holds those that were there.
func TestNewNamespace(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{stays: true}, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	o := follow(t, f, Timing{Probe: 10 * time.Millisecond})
	o.until(t, "n1=ready")
	f.set(100, func() { f.namespaces = append(f.namespaces, "research") })
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		opened := f.opened
		f.mu.Unlock()
		if opened == 2 {
			return
		}
	}
	t.Fatal("the stream was not opened again")
}

// Events and lists are merged by modify index, whatever their order: the
// picture never goes back.
func TestLateAndRepeatedEvents(t *testing.T) {
	t.Parallel()
	f := newFakeNomad(t, stream{stays: true})
	f.nodes["n1"] = node("n1", "ready", 90)
	f.jobs["x"] = gangJob("x", "pending", 80, 85)
	o := follow(t, f, Timing{Probe: time.Hour})
	o.until(t, "n1=ready x=pending")
	f.send <- event(120, "Node", "NodeRegistration", node("n1", "down", 120), "")
	f.send <- event(121, "Node", "AllocationUpdated", node("n1", "ready", 119), "") // an older object in a newer line
	f.send <- event(122, "Job", "JobRegistered", gangJob("x", "running", 122, 122), "")
	f.send <- event(123, "Job", "PlanResult", gangJob("x", "pending", 122, 122), "")
	o.until(t, "n1=down x=running")
	f.send <- event(124, "Job", "JobDeregistered", gangJob("x", "running", 122, 122), `,"Deleted":true`)
	f.send <- event(125, "Node", "NodeDeregistration", node("n1", "down", 120), "")
	o.until(t, "")
}
