package agent_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/agent"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/release/releasetest"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"
)

// bench is a simulated cluster with virtual nodes, and planners on it.
type bench struct {
	t        testing.TB
	sim      *nomadsim.Cluster
	members  *members
	agent    *agent.Agent
	stop     context.CancelFunc
	done     chan error
	cfg      *config.Config
	before   func(string) error
	describe time.Duration
	decider  core.Decider
	timing   nomad.Timing
	// registry gets the planner's metrics; nil: one of its own.
	registry *prometheus.Registry
	// slow is how often the planner looks without cause; 0: every half second.
	slow time.Duration
	// longer than patience, where a test has much to do.
	longer time.Duration
}

// patience is how long is waited for what should come at once, on whatever
// machine: it only ends tests that hang.
const patience = 3 * time.Minute

func (b *bench) within(d time.Duration) *bench {
	b.longer = d
	return b
}

func newBench(t testing.TB, nodes, cards int, more ...func(*nomadsim.Options)) *bench {
	t.Helper()
	b := &bench{t: t, members: newMembers()}
	var cfgs []nomadsim.NodeConfig
	for i := range nodes {
		n := nomadsim.NodeConfig{Name: fmt.Sprintf("n%d", i+1), Meta: map[string]string{"leaf": fmt.Sprintf("leaf%d", i/32+1)}}
		g := nomadsim.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for k := range cards {
			g.IDs = append(g.IDs, fmt.Sprintf("GPU-%d-%d", i+1, k))
		}
		n.Devices = []nomadsim.DeviceGroup{g}
		cfgs = append(cfgs, n)
	}
	opts := nomadsim.Options{Nodes: cfgs, Script: b.members.script, ClientSync: 5 * time.Millisecond, Heartbeat: time.Second, EventBuffer: 100}
	if _, ok := t.(*testing.B); ok {
		opts.EventBuffer = 4096 // as docs/planner.md advises for large clusters
	}
	for _, f := range more {
		f(&opts)
	}
	b.sim = nomadsim.New(t, opts)
	b.cfg = config.Default()
	b.cfg.Nomad.Address = b.sim.URL()
	b.cfg.Consul.Disabled = true
	return b
}

// direct has records and reports go over a channel in memory, as they do over
// Consul, rather than over signals and task events.
func (b *bench) direct() *bench {
	b.members.channel = &releasetest.Memory{}
	return b
}

func (b *bench) start() *bench {
	b.t.Helper()
	level := slog.LevelWarn
	if os.Getenv("MUSTER_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(testWriter{b.t}, &slog.HandlerOptions{Level: level}))
	var err error
	opts := agent.Options{Config: config.Fixed(b.cfg), Log: log, Before: b.before, Timing: b.timing, Slow: cmp.Or(b.slow, 500*time.Millisecond), DescribeAfter: b.describe, Decider: b.decider, Registry: b.registry}
	if b.members.channel != nil {
		opts.Channel = b.members.channel
	}
	b.agent, err = agent.New(opts)
	must.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	b.done = make(chan error, 1)
	go func() { b.done <- b.agent.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-b.done
		}
	}
	b.t.Cleanup(b.stop)
	return b
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// job is a gang's job as Nomad's JSON.
type job struct {
	id     string
	count  int
	cards  int
	args   []string
	meta   map[string]string
	unheld bool
	driver string
	more   func(map[string]any)
	groups []string // default: rank
}

func (j job) json() json.RawMessage {
	if j.driver == "" {
		j.driver = contract.DriverName
	}
	if len(j.groups) == 0 {
		j.groups = []string{"rank"}
	}
	meta := map[string]string{contract.MetaQueue: "default"}
	for k, v := range j.meta {
		meta[k] = v
	}
	args := make([]any, len(j.args))
	for i := range args {
		args[i] = j.args[i]
	}
	config := map[string]any{"command": []any{"train"}, "args": args, "launcher": "ranks", "nproc_per_node": 1}
	if j.driver != contract.DriverName {
		config = map[string]any{"command": "sleep", "args": args}
		if j.driver == "mock_driver" {
			config = map[string]any{"run_for": "1ms"}
		}
	}
	var groups []any
	for _, name := range j.groups {
		resources := map[string]any{"CPU": 100, "MemoryMB": 64}
		if j.cards > 0 {
			resources["Devices"] = []any{map[string]any{"Name": "nvidia/gpu", "Count": j.cards}}
		}
		groups = append(groups, map[string]any{"Name": name, "Count": j.count, "EphemeralDisk": map[string]any{"SizeMB": 300},
			"Tasks": []any{map[string]any{"Name": "train", "Driver": j.driver, "Config": config, "Resources": resources}}})
	}
	out := map[string]any{"ID": j.id, "Name": j.id, "Type": "batch", "Datacenters": []any{"*"}, "Meta": meta, "TaskGroups": groups, "Priority": 50}
	if !j.unheld {
		out["Constraints"] = []any{map[string]any{"LTarget": contract.HoldAttribute, "Operand": "=", "RTarget": contract.HoldValue}}
	}
	if j.more != nil {
		j.more(out)
	}
	raw, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return raw
}

func (b *bench) submit(j job) {
	b.t.Helper()
	_, err := b.agent.Register(context.Background(), httpapi.Caller{Name: "alice", Role: view.RoleSubmitter}, j.json(), view.Submission{})
	must.NoError(b.t, err)
}

// until waits for a gang to be as f wants it.
func (b *bench) until(id string, what string, f func(g view.Gang) bool) view.Gang {
	b.t.Helper()
	var g view.Gang
	for end := time.Now().Add(max(b.longer, patience)); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		var ok bool
		if g, ok = b.agent.Gang("default", id); ok && f(g) {
			return g
		}
	}
	b.t.Fatalf("gang %s is not %s in time: stage %s, reason %s: %s; attempt %d, %d of %d placed, %d running", id, what, g.Stage, g.Reason, g.Sentence, g.Attempt, g.Placed, g.Members, g.Running)
	return g
}

func (b *bench) stage(id string, s contract.Stage) view.Gang {
	b.t.Helper()
	return b.until(id, "in stage "+string(s), func(g view.Gang) bool { return g.Stage == s })
}

func TestHoldPlanReserveReleaseComplete(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 2).start()
	b.submit(job{id: "g1", count: 4, cards: 2, args: []string{"run=50ms"}})
	g := b.stage("g1", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, 4, b.members.launches("default/g1", 1))
	must.Eq(t, contract.OutcomeComplete, g.Exit.Outcome)
	var stages []contract.Stage
	for _, s := range g.Detail.Stages {
		stages = append(stages, s.Stage)
	}
	must.Eq(t, append(append([]contract.Stage{}, contract.Stages...), contract.StageComplete), stages)
	// Nothing is left to run again, and the version's tag is gone.
	j := b.jobInfo("g1")
	must.Eq(t, "dead", j.Status)
	must.Nil(t, j.VersionTag)
}
