package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// philly reads Gavel's Philly trace, run times capped at 7 days.
func philly(b *testing.B) []Job {
	t := dataset(b, "gavel-philly/gavel_philly_vc.csv", "philly_head.csv")
	for i := range t.Jobs {
		t.Jobs[i].Queue, t.Jobs[i].Run = "default", min(t.Jobs[i].Run, 7*24*time.Hour)
	}
	return t.Jobs
}

// BenchmarkPhilly is B3: completion times without knowing any run time, on
// nodes of 8 cards, and the same again with every card a whole node and every
// node a leaf of 8 nodes. References, mean JCT at 64 / 48 nodes: EASY with exact
// times 81,596 / 186,431 s, SJF that knows them 72,548 / 103,715 s. EASY is
// computed here again by code that shares nothing with the planner.
func BenchmarkPhilly(b *testing.B) {
	for _, nodes := range pick([]int{64, 48}, []int{8}) {
		for _, form := range []string{"cards", "nodes"} {
			b.Run(fmt.Sprintf("%s=%d", form, nodes), func(b *testing.B) {
				jobs := philly(b)
				waits := easy(jobs, nodes)
				var jct, largest []float64
				for i, w := range waits {
					jct = append(jct, (w + jobs[i].Run).Seconds())
					if jobs[i].Cards == 8 {
						largest = append(largest, w.Seconds())
					}
				}
				b.Logf("EASY with exact times: mean JCT %.0f s, mean wait of the largest %.0f s", mean(jct), mean(largest))
				o := Options{Name: "default", Config: shipped("default"), Nodes: Nodes(Shape{Count: nodes, Cards: 8}), Jobs: jobs, Save: 5 * time.Minute, Restart: 5 * time.Minute}
				if form == "nodes" {
					o.Config.Levels = []core.Level{{Name: "leaf"}}
					o.Nodes = Nodes(Shape{Count: 8 * nodes, Cards: 8, Domains: []int{8}})
					for i := range jobs {
						j := &jobs[i]
						j.Members, j.Cards, j.Level, j.Required = j.Cards, 8, "leaf", true
					}
				}
				for range b.N {
					_, f := replay(b, o)
					report(b, "jct_s", f.MeanJCT, "jct_p99_s", f.P99JCT, "of_easy", f.MeanJCT/mean(jct), "largest_wait_s", f.LargestWait, "of_easy_largest", f.LargestWait/mean(largest),
						"evictions", float64(f.Evictions), "lost_card_hours", f.LostCardHours)
				}
			})
		}
	}
}

// BenchmarkHPC is B4 and B5: waits under the users' own estimates, and how far
// promised starts were off. The machines are counted in processors, any of
// which will do. References, mean wait / bounded slowdown: SDSC SP2 EASY 17,562
// s / 83.4, CQSim 14,206 / 64.1; KIT FH2 EASY 2,619 / 5.35, CQSim 1,943 / 3.82.
func BenchmarkHPC(b *testing.B) {
	for _, m := range []struct {
		name, whole, extract string
		procs                int
		wait, slowdown       float64
	}{{"sdsc_sp2", "hpc/sdsc_sp2_1998.csv", "sdsc_sp2_head.csv", 128, 17562, 83.4}, {"kit_fh2", "hpc/kit_fh2_2016.csv", "kit_fh2_head.csv", 24048, 2619, 5.35}} {
		b.Run(m.name, func(b *testing.B) {
			jobs := dataset(b, m.whole, m.extract).Jobs
			for i := range jobs {
				jobs[i].Queue = "default"
			}
			for range b.N {
				r, f := replay(b, Options{Name: "default", Config: shipped("default"), Nodes: Nodes(Shape{Count: 1, Cards: m.procs}), Jobs: jobs})
				var share []float64 // of the wait that the first promise was off
				for i := range r.Outcomes {
					if o := &r.Outcomes[i]; o.Promised && o.Waited > 0 {
						share = append(share, (o.PromisedStart-o.Start).Abs().Seconds()/o.Waited.Seconds())
					}
				}
				slices.Sort(share)
				report(b, "wait_s", f.MeanWait, "of_easy", f.MeanWait/m.wait, "slowdown", f.BoundedSlowdown, "of_easy_slowdown", f.BoundedSlowdown/m.slowdown, "promises", float64(f.Promises),
					"late", float64(f.LateStarts), "eta_err_p50_s", f.PromiseErrorP50, "eta_err_p95_s", f.PromiseErrorP95, "eta_err_p50_of_wait", quantile(share, .5), "eta_err_p95_of_wait", quantile(share, .95))
			}
		})
	}
}
