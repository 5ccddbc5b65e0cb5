// Package httpapitest has a planner in memory for tests of the API's clients:
// it holds what a test puts into it and records what is asked of it.
package httpapitest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
)

// Planner implements all that httpapi asks of one. Its functions may be
// replaced before the first request.
type Planner struct {
	Feed *httpapi.Feed
	// Specs gives each HCL text its job in Nomad's JSON; any other text is
	// refused as Nomad would.
	Specs map[string]string
	// PlanFunc answers Plan; by default a gang starts at once.
	PlanFunc func(by httpapi.Caller, job json.RawMessage) (view.Plan, error)
	// RegisterFunc answers Register; by default the job is taken and becomes a
	// gang that waits.
	RegisterFunc func(by httpapi.Caller, job json.RawMessage, source view.Submission) (view.Submitted, error)
	// StopFunc answers Stop; by default the gang is cancelled.
	StopFunc func(by httpapi.Caller, namespace, job string, how view.StopRequest) (view.Stopped, error)

	mu     sync.Mutex
	gangs  map[string]view.Gang
	queues []view.Queue
	nodes  []view.Node
	cards  []view.CardState
	usage  view.Usage
	waste  view.Waste
	top    view.Top
	demand []view.Demand
	check  view.LedgerCheck
	orders []view.CardOrder
	broken view.CardBreaker
	status view.Status
	calls  []string
}

// New is a planner without gangs.
func New() *Planner {
	return &Planner{Feed: httpapi.NewFeed(1024, 0), Specs: map[string]string{}, gangs: map[string]view.Gang{},
		status: view.Status{State: "active", Version: "test", Region: "global", Gangs: map[string]int{}, Cards: []view.CardCount{}, Problems: []view.Problem{}}}
}

// Serve starts an API server with a configuration; it ends with the test.
func (p *Planner) Serve(t *testing.T, cfg *config.Config) *httptest.Server {
	t.Helper()
	api := httpapi.New(httpapi.Options{Config: func() *config.Config { return cfg }, Gangs: p, Cluster: p, Jobs: p, Stopper: p, Capture: p, Cards: p, Books: p, Reports: p, Feed: p.Feed})
	server := httptest.NewServer(api)
	// A waiting read would hold up the close.
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

// Open is the default configuration with everything open to this machine.
func Open() *config.Config {
	cfg := config.Default()
	cfg.API.Anonymous = view.RoleOperator
	return cfg
}

// Set puts a gang in, or replaces the one of its name, and publishes event.
func (p *Planner) Set(g view.Gang, event view.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.ID = g.Namespace + "/" + g.Job
	event.Gang, event.Queue, event.Stage = g.ID, g.Queue, g.Stage
	if event.Kind == "" {
		event.Kind = view.EventStage
	}
	// The index is known before the event is out, so that whoever it wakes sees
	// the new gang.
	g.Index = p.Feed.Index() + 1
	p.gangs[g.ID] = g
	p.Feed.Publish(event)
}

// Change sets a gang to what change makes of it.
func (p *Planner) Change(namespace, job string, change func(*view.Gang)) {
	g, _ := p.Gang(namespace, job)
	change(&g)
	p.Set(g, view.Event{Text: string(g.Stage)})
}

// Remove forgets a gang.
func (p *Planner) Remove(namespace, job string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.gangs, namespace+"/"+job)
	p.Feed.Publish(view.Event{Kind: view.EventUpdate, Gang: namespace + "/" + job, Text: "removed"})
}

// SetCluster puts in everything that is no gang.
func (p *Planner) SetCluster(queues []view.Queue, nodes []view.Node, change func(*view.Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queues, p.nodes = queues, nodes
	if change != nil {
		change(&p.status)
	}
}

// Calls that changed something or would have, in order.
func (p *Planner) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *Planner) called(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

// Gangs implements httpapi.Gangs.
func (p *Planner) Gangs() []view.Gang {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []view.Gang{}
	for _, g := range p.gangs {
		g.Detail = nil
		out = append(out, g)
	}
	return out
}

// Gang implements httpapi.Gangs.
func (p *Planner) Gang(namespace, job string) (view.Gang, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.gangs[namespace+"/"+job]
	return g, ok
}

// Queues implements httpapi.Cluster.
func (p *Planner) Queues() []view.Queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queues
}

// Nodes implements httpapi.Cluster.
func (p *Planner) Nodes() []view.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes
}

// Status implements httpapi.Cluster.
func (p *Planner) Status() view.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Index = p.Feed.Index()
	return s
}

// Parse implements httpapi.Jobs.
func (p *Planner) Parse(_ context.Context, _ httpapi.Caller, spec view.Spec) (json.RawMessage, error) {
	job, known := p.Specs[spec.HCL]
	if !known {
		return nil, &view.Error{Code: view.CodeRejected, Operation: "parse job", Cause: "input.hcl:1,1-2: Argument or block definition required", Hint: "correct the file"}
	}
	return json.RawMessage(job), nil
}

// name reads the little that the fake needs of a job.
func name(job json.RawMessage) (namespace, id string) {
	var j struct{ Namespace, ID string }
	_ = json.Unmarshal(job, &j)
	return j.Namespace, j.ID
}

// Plan implements httpapi.Jobs.
func (p *Planner) Plan(_ context.Context, by httpapi.Caller, job json.RawMessage) (view.Plan, error) {
	namespace, id := name(job)
	p.called("plan %s/%s by %s", namespace, id, by.Name)
	if p.PlanFunc != nil {
		return p.PlanFunc(by, job)
	}
	return view.Plan{ID: namespace + "/" + id, Verdict: view.Verdict{Action: core.ActionStart, Reason: core.ReasonFits, Blockers: []view.Blocker{}},
		Start: &view.Start{Members: []view.Placed{}, After: []string{}}, Evictions: []view.Eviction{}}, nil
}

// Register implements httpapi.Jobs.
func (p *Planner) Register(_ context.Context, by httpapi.Caller, job json.RawMessage, source view.Submission) (view.Submitted, error) {
	namespace, id := name(job)
	p.called("register %s/%s by %s", namespace, id, by.Name)
	if p.RegisterFunc != nil {
		return p.RegisterFunc(by, job, source)
	}
	_, update := p.Gang(namespace, id)
	p.Set(view.Gang{Namespace: namespace, Job: id, Queue: "default", Type: "batch", Stage: "queued", Models: []string{}, Position: 1}, view.Event{Text: "submitted"})
	return view.Submitted{Update: update, JobModifyIndex: 7, EvalID: "e1", Index: p.Feed.Index() - 1}, nil
}

// Capture implements httpapi.Capturer: one waiting gang and its verdict.
func (p *Planner) Capture() (*core.Snapshot, *core.Plan, error) {
	cfg := config.Default()
	snap := &core.Snapshot{Now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Config: &cfg.Core, Gangs: []core.Gang{{ID: "default/train", Queue: "default", State: core.GangWaiting,
		Priority: 50, Sequence: 1, Groups: []core.Group{{Name: "rank", Count: 2, Datacenters: []string{"*"}, Devices: []core.DeviceAsk{{Task: "t", Type: "gpu", Count: 4}}}}}}}
	return snap, decide.New().Decide(snap), nil
}

// Stop implements httpapi.Stopper.
func (p *Planner) Stop(_ context.Context, by httpapi.Caller, namespace, job string, how view.StopRequest) (view.Stopped, error) {
	p.called("stop %s/%s by %s", namespace, job, by.Name)
	if p.StopFunc != nil {
		return p.StopFunc(by, namespace, job, how)
	}
	g, _ := p.Gang(namespace, job)
	out := view.Stopped{ID: g.ID, Stage: string(g.Stage), Index: p.Feed.Index()}
	p.Change(namespace, job, func(g *view.Gang) { g.Stage, g.Sentence = "cancelled", "stopped by "+by.Name })
	return out, nil
}

// NewServer serves any handler until the test ends.
func NewServer(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}
