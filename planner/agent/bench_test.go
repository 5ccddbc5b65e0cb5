package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
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
				n := newBench(b, nodes, 8).direct()
				n.cfg.Core.Levels = []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}}
				n.within(3 * time.Minute).start()
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
					n.put("/v1/jobs", map[string]any{"Job": job{id: fmt.Sprintf("bare%03d", i), count: members, cards: 1, driver: "mock_driver", unheld: true,
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
	b.within(time.Minute).stage("large", contract.StageTraining)
	must.Eq(t, members, b.members.launches("default/large", 1))
	var vars []struct{ Path string }
	b.get("/v1/vars?prefix="+contract.VariablePrefix, &vars)
	must.Greater(t, 2, len(vars))
	b.stop()
	b.start()
	g := b.within(time.Minute).until("large", "running", func(g view.Gang) bool { return g.Running == members })
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
