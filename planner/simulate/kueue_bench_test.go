package simulate

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/simulate/kueue"
)

// kueueNodes are the clusters of the loads, by name. In Kueue's tests only
// quotas bind but in the one of topology, which has 640 nodes of 96 CPUs.
var kueueNodes = map[string]Shape{
	"baseline": {Count: 1, Cards: 600},
	"topology": {Count: 640, Cards: 96 * 4, Domains: []int{640, 64}},
	"large":    {Count: 1, Cards: 20_000},
}

func kueueJobs(all []kueue.Workload) []Job {
	out := make([]Job, len(all))
	for i := range all {
		w := &all[i]
		out[i] = Job{ID: w.ID, Queue: w.Queue, Name: w.Class.Name, Submit: w.Submit, Run: w.Run, Members: w.Members, Cards: w.Cards, Priority: w.Priority, Level: w.Level, Required: w.Required}
	}
	return out
}

// BenchmarkKueue is B8 in virtual time: no queue and no cohort is ever above
// its quota, no gang starts while one of higher priority of its queue that asks
// for no more waits, and no required rack is ever left. Kueue itself takes 351 s
// (wall) for the baseline, with mean times to admission of 16.5, 76.8 and 215 s
// for the large, medium and small.
func BenchmarkKueue(b *testing.B) {
	for _, k := range kueue.Loads() {
		b.Run(k.Name, func(b *testing.B) {
			all := k.Workloads(pick(1, 25))
			bound := k.Bound(all).Seconds()
			b.Logf("%s, the fluid bound is %.2f s", k.Name, bound)
			for range b.N {
				o := Options{Name: k.Name, Config: k.Config(), Nodes: Nodes(kueueNodes[k.Name]), Jobs: kueueJobs(all)}
				o.Watch = func(s *core.Snapshot, p *core.Plan) { must.NoError(b, k.Check(s, p)) }
				r, f := replay(b, o)
				report(b, "makespan_s", f.Makespan, "of_bound", f.Makespan/bound, "evictions", float64(f.Evictions))
				waits := map[string][]float64{}
				for i := range r.Outcomes {
					o := &r.Outcomes[i]
					waits[o.Job.Name] = append(waits[o.Job.Name], (o.Start - o.Job.Submit).Seconds())
					if o.Job.Required {
						must.Eq(b, 1, o.Domains[1])
					}
				}
				for i := range k.Classes {
					b.ReportMetric(mean(waits[k.Classes[i].Name]), k.Classes[i].Name+"_wait_s")
				}
			}
		})
	}
}
