package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// B9 of docs/benchmarks.md: held jobs to released ranks, in gangs per second,
// beside the same jobs without a hold on the same server, placed as Nomad
// does. Run with: go test ./planner/agent -run xxx -bench Gangs -benchtime 1x
func BenchmarkGangs(b *testing.B) {
	const gangs, members = 100, 4
	for _, nodes := range []int{10, 1250, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for range b.N {
				n := newBench(b, nodes, 8).start()
				warm(n)
				b.ResetTimer()
				start := time.Now()
				for i := range gangs {
					n.submit(job{id: fmt.Sprintf("g%03d", i), count: members, cards: 1, args: []string{"run=1ms"}})
				}
				n.eventually("all gangs ran", func() bool {
					done := 0
					for i := range gangs {
						if n.members.launches(fmt.Sprintf("default/g%03d", i), 1) == members {
							done++
						}
					}
					return done == gangs
				})
				muster := gangs / time.Since(start).Seconds()
				b.ReportMetric(muster, "gangs/s")

				start = time.Now()
				for i := range gangs {
					n.put("/v1/jobs", map[string]any{"Job": job{id: fmt.Sprintf("bare%03d", i), count: members, cards: 1, driver: "raw_exec", unheld: true, args: []string{"0"},
						more: func(j map[string]any) { delete(j, "Meta") }}.json()})
				}
				n.eventually("all bare jobs ran", func() bool {
					var list []struct{ ID, Status string }
					n.get("/v1/jobs?prefix=bare", &list)
					done := 0
					for _, j := range list {
						if j.Status == "dead" || j.Status == "running" {
							done++
						}
					}
					return done == gangs
				})
				bare := gangs / time.Since(start).Seconds()
				b.ReportMetric(bare, "bare/s")
				b.ReportMetric(muster/bare, "of_bare")
			}
		})
	}
}

// From the placement of a gang's last member to the release of its last rank,
// in milliseconds.
func BenchmarkRelease(b *testing.B) {
	for _, members := range []int{4, 32, 128} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			n := newBench(b, members, 1).start()
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
