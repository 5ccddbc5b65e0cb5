package agent_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// B9 of docs/benchmarks.md, in gangs of four members a second: the same jobs
// bare, without a hold and without a planner, from the first registration to
// the last task started; as gangs that wait in their queue, held, from the
// moment that the planner may start them to the last rank released; and as
// gangs from their submission on. Each on a server that has no log to write,
// the worst case for a planner that shares the machine with it, and on one
// whose writes and plans take the time that they take a real one (nomadsim's
// CommitTime and SignTime). Run with:
// go test ./planner/agent -run xxx -bench Gangs -benchtime 1x
func BenchmarkGangs(b *testing.B) {
	for _, size := range []struct{ nodes, gangs int }{{10, 300}, {1250, 300}, {10000, 100}} {
		for _, real := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/log=%v", size.nodes, real), func(b *testing.B) {
				for range b.N {
					benchGangs(b, size.nodes, size.gangs, real)
				}
			})
		}
	}
}

func benchGangs(b *testing.B, nodes, gangs int, log bool) {
	const members = 4
	n := newBench(b, nodes, 8, func(o *nomadsim.Options) {
		// Nodes that are alike are of one class, as where every client lists its
		// signals in the same order (docs/planner.md).
		o.SharedClasses = os.Getenv("MUSTER_BENCH_CLASSES") == ""
		if log { // as measured of a real server on two cores: docs/nomadsim.md
			o.CommitTime, o.SignTime, o.Schedulers = 1200*time.Microsecond, time.Millisecond, 2
		}
	}).direct()
	n.cfg.Core.Levels = []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}}
	gate := &gatedDecider{core: decide.New()}
	n.decider = gate
	launched := func(prefix string, started func(job string) int) {
		at := 0
		n.eventually("all of "+prefix+" ran", func() bool {
			for at < gangs && started(fmt.Sprintf("%s%03d", prefix, at)) >= members {
				at++
			}
			return at == gangs
		})
	}
	ranks := func(job string) int { return n.members.launches("default/"+job, 1) }

	start, cpu := time.Now(), processorTime()
	rate := func(name string) float64 {
		each := float64(gangs)
		b.ReportMetric((processorTime()-cpu).Seconds()*1000/each, name+"-cpu-ms")
		return each / time.Since(start).Seconds()
	}
	each(gangs, func(i int) {
		n.put("/v1/jobs", map[string]any{"Job": job{id: fmt.Sprintf("bare%03d", i), count: members, cards: 1, driver: "mock_driver", unheld: true,
			more: func(j map[string]any) { delete(j, "Meta") }}.json()})
	})
	launched("bare", n.members.plainStarts)
	bare := rate("bare")

	n.start()
	warm(n)
	submit := func(prefix string) {
		each(gangs, func(i int) {
			n.submit(job{id: fmt.Sprintf("%s%03d", prefix, i), count: members, cards: 1, args: []string{"run=1ms"}})
		})
	}
	submit("held")
	for i := range gangs {
		n.eventually("all jobs are held and known", func() bool { return n.jobInfo(fmt.Sprintf("held%03d", i)).VersionTag != nil })
	}
	start, cpu = time.Now(), processorTime()
	gate.open.Store(true)
	launched("held", ranks)
	held := rate("held")

	start, cpu = time.Now(), processorTime()
	submit("new")
	launched("new", ranks)
	submitted := rate("new")
	b.ReportMetric(bare, "bare/s")
	b.ReportMetric(held, "held-gangs/s")
	b.ReportMetric(held/bare, "held/bare")
	b.ReportMetric(submitted, "new-gangs/s")
	b.ReportMetric(submitted/bare, "new/bare")
}

// submitters is how many users submit at once: one alone would wait for each
// answer, and be what is measured where writes take their time.
const submitters = 8

// each calls f for 0 to n-1, from all submitters.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range submitters {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// processorTime is what this process has used: the servers and the planner.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// gatedDecider starts nothing until it is opened.
type gatedDecider struct {
	core core.Decider
	open atomic.Bool
}

func (g *gatedDecider) Decide(s *core.Snapshot) *core.Plan {
	plan := g.core.Decide(s)
	if !g.open.Load() {
		plan.Starts = nil
	}
	return plan
}

// From the placement of a gang's last member to the release of its last rank,
// in milliseconds.
func BenchmarkRelease(b *testing.B) {
	for _, members := range []int{4, 32, 128} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			n := newBench(b, members, 1).direct().start()
			warm(n)
			var took []float64
			for i := range max(b.N, 20) {
				id := fmt.Sprintf("r%04d", i)
				n.submit(job{id: id, count: members, cards: 1, args: []string{"run=1ms"}})
				g := n.stage(id, contract.StageComplete)
				var placed, released time.Time
				for _, s := range g.Detail.Attempts[0].Stages {
					if s.Stage == contract.StagePlaced {
						placed = s.Entered
					}
				}
				n.members.mu.Lock()
				for _, a := range n.allocs(id) {
					if at := n.members.launched[a.ID]; at.After(released) {
						released = at
					}
				}
				n.members.mu.Unlock()
				took = append(took, released.Sub(placed).Seconds()*1000)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "p50-ms")
			b.ReportMetric(took[(len(took)-1)*99/100], "p99-ms")
		})
	}
}

// warm waits until the planner has its whole picture.
func warm(n *bench) {
	n.t.Helper()
	for end := time.Now().Add(5 * time.Minute); n.agent.Status().State != "active"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("the planner has no picture after 5 minutes: %+v", n.agent.Status())
		}
	}
	must.NotEq(n.t, view.Status{}, n.agent.Status())
}

// A gang of 1,300 members: its state does not fit one of Nomad's variables,
// and a planner that starts again has all of it.
func BenchmarkLargeGang(t *testing.B) {
	const members = 1300
	b := newBench(t, members, 1).direct().start()
	b.submit(job{id: "large", count: members, cards: 1})
	b.stage("large", contract.StageTraining)
	must.Eq(t, members, b.members.launches("default/large", 1))
	var vars []struct{ Path string }
	b.get("/v1/vars?prefix="+contract.VariablePrefix, &vars)
	must.Greater(t, 2, len(vars))
	b.stop()
	b.start()
	g := b.until("large", "running", func(g view.Gang) bool { return g.Running == members })
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, members, b.members.launches("default/large", 1))
	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "large", view.StopRequest{Purge: true})
	must.NoError(t, err)
	b.eventually("every variable is gone", func() bool {
		b.get("/v1/vars?prefix="+contract.VariablePrefix, &vars)
		return len(vars) == 0
	})
	must.True(t, b.members.channel.Empty())
}
