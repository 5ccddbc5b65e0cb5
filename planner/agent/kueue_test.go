package agent_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/simulate/kueue"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// kueueCluster is what a load runs on: enough cards that only quotas bind, as
// in Kueue's own tests.
type kueueCluster struct{ nodes, cards, rack int }

var kueueClusters = map[string]kueueCluster{"baseline": {60, 20, 60}, "topology": {640, 16, 64}, "large": {1250, 20, 1250}}

// kueueRun is one load's way through the API.
type kueueRun struct {
	kueue.Figures
	late    time.Duration // the latest that a submission was, for want of a server that takes it
	cpu     time.Duration // of servers and planner
	mallocs uint64
	cycles  []time.Duration
	again   []string      // attempts that were not the last, with how they ended
	took    time.Duration // until the planner knew that all was over
}

// watchedDecider looks at every plan of the production core.
type watchedDecider struct {
	core   core.Decider
	load   *kueue.Load
	mu     sync.Mutex
	cycles []time.Duration
	faults []string
}

func (d *watchedDecider) Decide(s *core.Snapshot) *core.Plan {
	began := time.Now()
	p := d.core.Decide(s)
	took := time.Since(began)
	err := d.load.Check(s, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cycles = append(d.cycles, took)
	if err != nil {
		d.faults = append(d.faults, err.Error())
	}
	return p
}

// runKueue submits a load to a planner on a simulated cluster in real time, and
// looks at what the servers placed.
func runKueue(t testing.TB, load kueue.Load, shape kueueCluster, of int, patience time.Duration) kueueRun {
	t.Helper()
	all := load.Workloads(of)
	n := newBench(t, shape.nodes, shape.cards, func(o *nomadsim.Options) {
		o.SharedClasses, o.EventBuffer = true, 4096
		for i := range o.Nodes {
			o.Nodes[i].Meta = map[string]string{"block": "b1", "rack": fmt.Sprintf("r%d", i/shape.rack)}
		}
	}).direct().within(patience)
	cfg := load.Config()
	for i := range cfg.Levels {
		cfg.Levels[i].Attribute = "${meta." + cfg.Levels[i].Name + "}"
	}
	for i := range cfg.Queues {
		cfg.Queues[i].Namespaces = []string{"default"}
	}
	n.cfg.Core = *cfg
	decider := &watchedDecider{core: decide.New(), load: &load}
	n.decider = decider
	n.start()
	warm(n)

	ranks := 0
	for i := range all {
		ranks += all[i].Members
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, cpu := time.Now(), processorTime()
	submitted, late := n.submitAll(all, began)
	n.eventually("all ranks ended", func() bool {
		time.Sleep(20 * time.Millisecond)
		return n.members.ends() >= ranks
	})
	n.eventually("the planner knows all gangs complete", func() bool {
		time.Sleep(100 * time.Millisecond)
		return !slices.ContainsFunc(n.agent.Gangs(), func(g view.Gang) bool { return g.Stage != contract.StageComplete })
	})
	run := kueueRun{took: time.Since(began), cpu: processorTime() - cpu, late: late}
	runtime.ReadMemStats(&after)
	run.mallocs = after.Mallocs - before.Mallocs
	for i := range all {
		g, _ := n.agent.Gang("default", all[i].ID)
		for _, a := range g.Detail.Attempts {
			if a.Number < g.Attempt {
				run.again = append(run.again, fmt.Sprintf("attempt %d of %s ended: %s: %s", a.Number, g.ID, a.Reason, a.Exit.Text))
			}
		}
	}
	n.stop()
	run.cycles = decider.cycles
	slices.Sort(run.cycles)
	run.Figures = load.Audit(all, began, submitted, n.placements(shape.rack))
	run.Breaches = append(run.Breaches, decider.faults...)
	return run
}

// submitAll submits each workload when it is due. It returns when the servers
// took it, and by how much the latest was late.
func (b *bench) submitAll(all []kueue.Workload, began time.Time) (map[string]time.Time, time.Duration) {
	b.t.Helper()
	var (
		mu        sync.Mutex
		wg        sync.WaitGroup
		submitted = make(map[string]time.Time, len(all))
		late      time.Duration
		failed    error
		next      = make(chan *kueue.Workload)
	)
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for w := range next {
				_, err := b.agent.Register(context.Background(), httpapi.Caller{Name: "alice", Role: view.RoleSubmitter}, kueueJob(w).json(), view.Submission{})
				at := time.Now()
				mu.Lock()
				submitted[w.ID], late = at, max(late, at.Sub(began.Add(w.Submit)))
				if failed == nil && err != nil {
					failed = fmt.Errorf("submit %s: %w", w.ID, err)
				}
				mu.Unlock()
			}
		}()
	}
	for i := range all {
		time.Sleep(time.Until(began.Add(all[i].Submit)))
		next <- &all[i]
	}
	close(next)
	wg.Wait()
	must.NoError(b.t, failed)
	return submitted, late
}

func kueueJob(w *kueue.Workload) job {
	j := job{id: w.ID, count: w.Members, cards: w.Cards, args: []string{"run=" + w.Run.String()}, meta: map[string]string{contract.MetaQueue: string(w.Queue)},
		more: func(j map[string]any) { j["Priority"] = w.Priority }}
	if w.Level != "" {
		j.meta[contract.MetaTopology] = "preferred:" + w.Level
		if w.Required {
			j.meta[contract.MetaTopology] = "required:" + w.Level
		}
	}
	return j
}

// placements are all allocations as the servers have them, with so many nodes a
// rack.
func (b *bench) placements(rack int) []kueue.Placed {
	b.t.Helper()
	var nodes []struct{ ID, Name string }
	b.get("/v1/nodes", &nodes)
	racks := map[string]string{}
	for _, n := range nodes {
		i, err := strconv.Atoi(n.Name[1:]) // n1, n2, ...
		must.NoError(b.t, err)
		racks[n.ID] = fmt.Sprintf("r%d", (i-1)/rack)
	}
	var allocs []struct {
		JobID, NodeID      string
		JobVersion         uint64
		CreateTime         int64
		TaskStates         map[string]struct{ FinishedAt time.Time }
		AllocatedResources struct {
			Tasks map[string]struct {
				Devices []struct{ DeviceIDs []string }
			}
		}
	}
	b.get("/v1/allocations?resources=true", &allocs)
	out := make([]kueue.Placed, 0, len(allocs))
	for _, a := range allocs {
		p := kueue.Placed{Workload: a.JobID, Attempt: a.JobVersion, Node: a.NodeID, Rack: racks[a.NodeID], From: time.Unix(0, a.CreateTime), To: a.TaskStates["train"].FinishedAt}
		for _, d := range a.AllocatedResources.Tasks["train"].Devices {
			p.Cards = append(p.Cards, d.DeviceIDs...)
		}
		out = append(out, p)
	}
	return out
}

// Kueue's loads in small, through the API: no quota is ever broken and no card
// given twice as the servers have it, no required rack is left, each gang runs
// once, and each plan starts nobody before one of its queue with a higher
// priority that asks for no more. The times are shorter than the load's own, so
// that queues form.
func TestKueue(t *testing.T) {
	t.Parallel()
	for _, load := range kueue.Loads()[:2] {
		shape := kueueCluster{64, 20, 8}
		t.Run(load.Name, func(t *testing.T) {
			t.Parallel()
			load.Cohorts = 2
			run := runKueue(t, load.Stretched(0.2), shape, 50, time.Minute)
			for _, text := range run.again {
				must.StrContains(t, text, " ended: preempted: ")
			}
			must.SliceEmpty(t, run.Breaches, must.Sprint(strings.Join(run.Breaches, "\n")))
			for i := range load.Classes {
				must.SliceNotEmpty(t, run.Waits[load.Classes[i].Name])
			}
		})
	}
}

// B8 of docs/benchmarks.md through the API, in real time. Kueue's own run of
// the baseline takes 351 s, of topology 401 s, of large 1,179 s. Run with:
//
//	MUSTER_FULL=1 go test ./planner/agent -run xxx -bench Kueue -benchtime 1x -timeout 2h
//
// MUSTER_STRETCH=3 makes arrivals and run times three times as long, and
// MUSTER_PART=10 takes a tenth of the workloads; without MUSTER_FULL it is a
// fiftieth.
func BenchmarkKueue(b *testing.B) {
	of, stretch := 50.0, 1.0
	if os.Getenv("MUSTER_FULL") != "" {
		of = 1
	}
	for name, v := range map[string]*float64{"MUSTER_PART": &of, "MUSTER_STRETCH": &stretch} {
		if text := os.Getenv(name); text != "" {
			var err error
			*v, err = strconv.ParseFloat(text, 64)
			must.NoError(b, err)
			must.Positive(b, *v)
		}
	}
	for _, load := range kueue.Loads() {
		b.Run(load.Name, func(b *testing.B) {
			load := load.Stretched(stretch)
			all := load.Workloads(int(of))
			bound := load.Bound(all)
			b.Logf("%s: %d workloads, the fluid bound is %.2f s; %d cores, %s", load.Name, len(all), bound.Seconds(), runtime.GOMAXPROCS(0), runtime.Version())
			for range b.N {
				run := runKueue(b, load, kueueClusters[load.Name], int(of), time.Hour)
				for _, text := range run.Breaches[:min(len(run.Breaches), 20)] {
					b.Error(text)
				}
				gangs := float64(len(all))
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(run.Makespan.Seconds(), "makespan_s")
				b.ReportMetric(run.Makespan.Seconds()/bound.Seconds(), "of_bound")
				b.ReportMetric(run.late.Seconds(), "late_s")
				b.ReportMetric(run.cpu.Seconds()*1000/gangs, "cpu_ms/gang")
				b.ReportMetric(float64(run.mallocs)/gangs, "allocs/gang")
				b.ReportMetric(float64(len(run.cycles)), "cycles")
				b.ReportMetric(run.cycles[len(run.cycles)*99/100].Seconds()*1000, "cycle_p99_ms")
				b.ReportMetric(float64(len(run.Breaches)), "breaches")
				b.ReportMetric(float64(run.Evicted), "evicted")
				for _, text := range run.again[:min(len(run.again), 20)] {
					b.Log(text)
				}
				slices.Sort(run.Overtaken)
				b.ReportMetric(float64(len(run.Overtaken)), "overtaken")
				if n := len(run.Overtaken); n > 0 {
					b.ReportMetric(run.Overtaken[n*99/100].Seconds()*1000, "overtaken_p99_ms")
				}
				for i := range load.Classes {
					sum := time.Duration(0)
					waits := run.Waits[load.Classes[i].Name]
					for _, w := range waits {
						sum += w
					}
					b.ReportMetric(sum.Seconds()/float64(len(waits)), load.Classes[i].Name+"_wait_s")
				}
			}
		})
	}
}
