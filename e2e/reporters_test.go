//go:build e2e && linux

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/kernlog/kernlogtest"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/report"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/agent"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// B7 of docs/benchmarks.md: from a line in a node's kernel log to the first
// plan that refuses the card. Each node is a device plugin of its own (monitor,
// parser, fold, state on disk) with a reporter of its own, which posts over an
// authenticated HTTP connection of its own; each reads one line somewhere within
// 30 s. The planner is the production one on a simulated Nomad. Run with:
// go test -tags e2e ./e2e -run xxx -bench Reporters -benchtime 1x
func BenchmarkReporters(b *testing.B) {
	for _, nodes := range []int{150, 375, 750} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for range b.N {
				reporters(b, nodes, 30*time.Second)
			}
		})
	}
}

// The same at a small size, so that the suite runs it.
func TestReportersInAHurry(t *testing.T) {
	scenario(t)
	reporters(t, 20, time.Second)
}

// reporterSecret is the nodes' token.
const reporterSecret = "the-nodes-own-token-0123456789"

func reporters(t testing.TB, nodes int, within time.Duration) {
	const cards = 8
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute+within)
	defer cancel()
	var cfgs []nomadsim.NodeConfig
	for i := range nodes {
		g := nomadsim.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for k := range cards {
			g.IDs = append(g.IDs, cardID(i, k))
		}
		cfgs = append(cfgs, nomadsim.NodeConfig{Name: fmt.Sprintf("node-%d", i), Devices: []nomadsim.DeviceGroup{g}})
	}
	sim := nomadsim.New(t, nomadsim.Options{Nodes: cfgs, EventBuffer: 4096})
	cfg := config.Default()
	cfg.Nomad.Address, cfg.Consul.Disabled = sim.URL(), true
	cfg.Cards.Breaker.Share = 0 // every node errs: that is the point here
	cfg.Tokens = []config.Token{{Name: "nodes", Role: view.RoleReporter, Hash: sha256.Sum256([]byte(reporterSecret))}}
	watch := &refusals{core: decide.New(), waiting: map[string]time.Time{}}
	planner, err := agent.New(agent.Options{Config: config.Fixed(cfg), Decider: watch})
	must.NoError(t, err)
	api := httptest.NewServer(httpapi.New(httpapi.Options{Config: func() *config.Config { return cfg }, Gangs: planner, Cluster: planner, Jobs: planner, Stopper: planner, Cards: planner, Feed: planner.Feed()}))
	defer api.Close()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = planner.Run(ctx) })

	logs := make([]*kernlogtest.Log, nodes)
	// Each node has a disk of its own, and here they share one: in memory, where
	// there is room.
	dir, err := os.MkdirTemp("/dev/shm", "muster-reporters-")
	if err != nil {
		dir = t.TempDir()
	}
	defer os.RemoveAll(dir)
	for i := range nodes {
		logs[i] = kernlogtest.New("boot")
		p := device.New(func(ctx context.Context, c device.Config, m *device.Monitor, log hclog.Logger) device.Parts {
			client, err := report.New(report.Options{Config: c.Report, Node: fmt.Sprintf("node-%d", i), Boot: "boot", Cards: m, Log: log})
			if err != nil {
				t.Error(err)
				return device.Parts{}
			}
			running.Go(func() { client.Run(ctx) })
			return device.Parts{Sources: []device.Source{still{i, cards}}, Logs: []device.Log{logs[i].Reader()}, Reporter: client, Boot: "boot"}
		}, hclog.NewNullLogger())
		packed, err := hclspec.Encode(p.ConfigSchema(), map[string]any{"state_dir": fmt.Sprintf("%s/%d", dir, i), "report": map[string]any{"address": api.URL, "token": reporterSecret}}, nil)
		must.NoError(t, err)
		must.NoError(t, p.SetConfig(base.Config{MsgPack: packed}))
		defer p.Close()
		running.Go(func() { _ = p.Fingerprint(ctx, func([]nomad.Group) error { return nil }) })
	}
	for {
		heard := 0
		for _, n := range planner.Nodes() {
			if n.Reporting != nil {
				heard++
			}
		}
		if heard == nodes {
			break
		}
		must.NoError(t, ctx.Err(), must.Sprintf("%d of %d nodes are heard of", heard, nodes))
		time.Sleep(50 * time.Millisecond)
	}
	before := processCPU()
	var writing sync.WaitGroup
	for i := range nodes {
		writing.Go(func() {
			time.Sleep(rand.N(within))
			watch.expect(cardID(i, 3))
			logs[i].Write(time.Now(), "NVRM: Xid (PCI:0000:23:00): 48, pid=1234, name=python3, DBE")
		})
	}
	writing.Wait()
	for watch.left() > 0 {
		must.NoError(t, ctx.Err(), must.Sprintf("%d cards are not refused", watch.left()))
		time.Sleep(10 * time.Millisecond)
	}
	took := watch.took
	slices.Sort(took)
	must.Len(t, nodes, took)
	at := func(q float64) time.Duration { return took[min(int(q*float64(len(took))), len(took)-1)] }
	t.Logf("%d reporters, a line each within %s: to the plan that refuses the card p50 %s, p99 %s, most %s; %d plans; %.1f s of CPU for planner, reporters and cluster", nodes, within,
		at(0.5).Round(100*time.Microsecond), at(0.99).Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond), watch.plans, (processCPU() - before).Seconds())
	if bench, ok := t.(*testing.B); ok {
		bench.ReportMetric(at(0.5).Seconds()*1000, "p50-ms")
		bench.ReportMetric(at(0.99).Seconds()*1000, "p99-ms")
		bench.ReportMetric(0, "ns/op")
	}
}

func cardID(node, card int) string { return fmt.Sprintf("GPU-%05d-%d", node, card) }

// still is a source of cards that never change.
type still struct{ node, cards int }

func (s still) Name() string { return "nvml" }

func (s still) Scan(context.Context) (card.Scan, error) {
	var scan card.Scan
	for k := range s.cards {
		bus, err := pci.Parse(fmt.Sprintf("0000:2%d:00.0", k))
		if err != nil {
			return scan, err
		}
		scan.Cards = append(scan.Cards, card.Card{ID: cardID(s.node, k), Index: k, Bus: bus, NUMA: -1, Group: card.Group{Vendor: "nvidia", Type: "gpu", Model: "H100"}})
	}
	return scan, nil
}

func (s still) Sample(context.Context) (map[string]card.Sample, error) { return nil, nil }

// processCPU is the processor time of this process.
func processCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// refusals decides, and sees which cards a plan's snapshot refuses.
type refusals struct {
	core core.Decider

	mu      sync.Mutex
	waiting map[string]time.Time
	took    []time.Duration
	plans   int
}

func (r *refusals) expect(card string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[card] = time.Now()
}

func (r *refusals) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

func (r *refusals) Decide(s *core.Snapshot) *core.Plan {
	plan := r.core.Decide(s)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plans++
	if len(r.waiting) == 0 {
		return plan
	}
	for i := range s.Nodes {
		for _, g := range s.Nodes[i].Devices {
			for _, c := range g.Cards {
				if c.Healthy && c.State <= core.CardSuspect {
					continue
				}
				if at, ok := r.waiting[string(c.ID)]; ok {
					r.took = append(r.took, now.Sub(at))
					delete(r.waiting, string(c.ID))
				}
			}
		}
	}
	return plan
}
