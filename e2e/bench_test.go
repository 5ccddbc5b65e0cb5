//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// B9 of docs/benchmarks.md with real plugins, on the simulated cluster or a
// real Nomad: gangs of four members whose ranks end at once, from the
// submission, and out of a queue that waits for the cluster, to the ranks'
// start; beside them the same jobs bare, with Nomad's raw_exec, from the
// registration to the tasks' start. Servers, clients, plugins and planner share
// this machine. Run with:
//
//	NOMAD_BIN=... go test -tags e2e ./e2e -run xxx -bench GangsPerSecond -benchtime 1x
func BenchmarkGangsPerSecond(b *testing.B) {
	if suite.kind == trial.Existing || suite.kind == trial.Real && os.Geteuid() != 0 {
		b.Skip("it starts a cluster of its own, which takes root on a real Nomad")
	}
	const gangs, members = 32, 4
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for range b.N {
		cluster, err := trial.Start(ctx, trial.Options{Kind: suite.kind, Binaries: suite.binaries, Nodes: trial.Nodes(4, 16)})
		must.NoError(b, err)
		defer func() { must.NoError(b, cluster.Close()) }()
		client, err := api.NewClient(&api.Config{Address: cluster.NomadAddr})
		must.NoError(b, err)
		l := &lab{Cluster: cluster, nomad: client}
		register := func(hcl string) {
			job, err := l.nomad.Jobs().ParseHCL(hcl, true)
			must.NoError(b, err)
			_, _, err = l.nomad.Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx))
			must.NoError(b, err)
		}
		all := func(what string, done func() int) {
			for done() < gangs {
				if ctx.Err() != nil {
					b.Fatalf("%s: %v", what, ctx.Err())
				}
				time.Sleep(20 * time.Millisecond)
			}
		}

		start := time.Now()
		for i := range gangs {
			bare := gangJob{name: fmt.Sprintf("bare%02d", i), members: members, cards: 1, noHold: true}.hcl()
			bare = strings.Replace(bare, "  meta {\n    muster_queue = \"default\"\n  }\n", "", 1)
			bare = strings.Replace(bare, "driver = \"torchrun\"", "driver = \"raw_exec\"", 1)
			register(strings.Replace(bare, "config {\n", "config {\n        command = \"/bin/true\"\n", 1))
		}
		all("bare jobs run", func() int {
			allocs, _, err := l.nomad.Allocations().List(&api.QueryOptions{Prefix: ""})
			must.NoError(b, err)
			began := 0
			for _, a := range allocs {
				if strings.HasPrefix(a.JobID, "bare") && a.ClientStatus != "pending" {
					began++
				}
			}
			return began / members
		})
		bare := gangs / time.Since(start).Seconds()

		ranks := "        launcher = \"ranks\"\n        command = [\"/bin/true\"]\n        nproc_per_node = 1\n"
		released := func(prefix string) func() int {
			return func() int {
				data, err := get(ctx, l.MusterAddr+"/v1/gangs?ended=true")
				must.NoError(b, err)
				var list view.GangList
				must.NoError(b, json.Unmarshal(data, &list))
				n := 0
				for _, g := range list.Gangs {
					if strings.HasPrefix(g.Job, prefix) && (g.Stage == contract.StageStarted || g.Stage == contract.StageTraining || g.Stage == contract.StageComplete) {
						n++
					}
				}
				return n
			}
		}
		start = time.Now()
		for i := range gangs {
			register(gangJob{name: fmt.Sprintf("new%02d", i), members: members, cards: 1, config: ranks}.hcl())
		}
		all("gangs are released", released("new"))
		submitted := gangs / time.Since(start).Seconds()

		// A gang with the whole cluster, and others that wait for it.
		register(gangJob{name: "whole", members: 4, cards: 16, config: "        launcher = \"ranks\"\n        command = [\"/bin/sleep\", \"600\"]\n        nproc_per_node = 1\n"}.hcl())
		for released("whole")() == 0 {
			must.NoError(b, ctx.Err())
			time.Sleep(20 * time.Millisecond)
		}
		for i := range gangs {
			register(gangJob{name: fmt.Sprintf("held%02d", i), members: members, cards: 1, config: ranks}.hcl())
		}
		all("gangs are queued", func() int {
			data, err := get(ctx, l.MusterAddr+"/v1/gangs?ended=true")
			must.NoError(b, err)
			return strings.Count(string(data), `"default/held`)
		})
		start = time.Now()
		_, _, err = l.nomad.Jobs().Deregister("whole", false, (&api.WriteOptions{}).WithContext(ctx))
		must.NoError(b, err)
		all("held gangs are released", released("held"))
		held := gangs / time.Since(start).Seconds()
		b.ReportMetric(bare, "bare/s")
		b.ReportMetric(submitted, "new-gangs/s")
		b.ReportMetric(submitted/bare, "new/bare")
		b.ReportMetric(held, "held-gangs/s")
		b.ReportMetric(held/bare, "held/bare")
		must.NoError(b, l.StopJobs(ctx))
	}
}
