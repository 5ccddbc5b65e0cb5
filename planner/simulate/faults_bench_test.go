package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

// faulty is a cluster whose nodes fail: the Philly trace as gangs of whole
// nodes, within a leaf of 8 nodes each, that save every hour. Each virtual
// cluster of the trace is a queue, guaranteed its part of the work that is
// asked for; what is idle is lent, and taken back by preemption. A node that
// fails is out for four hours.
func faulty(jobs []Job, nodes int, rate float64) Options {
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "leaf"}}
	work, all := map[core.QueueName]float64{}, 0.0
	var names []core.QueueName
	jobs = slices.Clone(jobs) // the trace's stay as they are, for the next run
	for i := range jobs {
		j := &jobs[i]
		j.Run, j.Members, j.Cards, j.Level, j.Required = min(j.Run, 7*24*time.Hour), j.Cards, 8, "leaf", true
		if work[j.Queue] == 0 {
			names = append(names, j.Queue)
		}
		of := j.Run.Hours() * float64(j.milli())
		work[j.Queue] += of
		all += of
	}
	for _, name := range names {
		q := core.DefaultQueue(name)
		q.Guaranteed = core.Amounts{Any: int(float64(nodes) * work[name] / all * 8)}
		cfg.Queues = append(cfg.Queues, q)
	}
	return Options{Name: fmt.Sprintf("%.2f faults per 1,000 node-days", rate), Seed: 11, Config: &cfg, Nodes: Nodes(Shape{Count: nodes, Cards: 8, Domains: []int{8}}), Jobs: jobs,
		Save: 5 * time.Minute, Restart: 5 * time.Minute, Checkpoints: time.Hour, Faults: Faults{PerThousandNodeDays: rate}}
}

// BenchmarkFaults is the part of B7 that is simulated: gangs lost and repaired
// where nodes fail at the rates that are published for two research clusters,
// 3.79 and 6.50 times in 1,000 node-days. To reach: every gang that was hit runs
// again, preemption of the second order at most 5 % of what faults cost, no gang
// hit more than 3 times in a row without getting as far as a checkpoint, and no
// more than 3 that have to leave, one for another, after one fault.
func BenchmarkFaults(b *testing.B) {
	for _, rate := range []float64{0, 3.79, 6.50} {
		b.Run(fmt.Sprintf("rate=%.2f", rate), func(b *testing.B) {
			jobs := dataset(b, "gavel-philly/gavel_philly_vc.csv", "philly_head.csv").Jobs
			for range b.N {
				_, f := replay(b, faulty(jobs, pick(512, 64), rate))
				must.Eq(b, f.Hit, f.Repaired)
				must.LessEq(b, 3, f.InARow)
				must.LessEq(b, 3, f.Chain)
				report(b, "faults", float64(f.Faults), "hit", float64(f.Hit), "repaired", float64(f.Repaired), "repair_s", f.MeanRepair, "lost_card_hours", f.LostCardHours,
					"lost_to_faults_card_hours", f.LostToFaults, "second_order", float64(f.Aside), "second_order_share", f.AsideShare, "hit_in_a_row", float64(f.InARow), "chain", float64(f.Chain), "jct_s", f.MeanJCT, "evictions", float64(f.Evictions))
			}
		})
	}
}
