package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/utilisation"
)

// What the meter does with one node's report of eight cards, once the planner
// has read it: 10,000 nodes send 667 a second, so 2 % of a core are 30 µs.
func BenchmarkSample(b *testing.B) {
	const nodes = 10_000
	m := newMeter()
	now := time.Now()
	reports := make([]contract.CardReport, nodes)
	for n := range nodes {
		r := &reports[n]
		r.Node, r.Reporter = fmt.Sprintf("gpu-node-%05d", n), "0123456789abcdef"
		var ids []string
		for c := range 8 {
			id, activity := fmt.Sprintf("GPU-6f3f8b0e-6f0e-4d0e-%05d-%d", n, c), 70.0
			ids = append(ids, id)
			r.Cards = append(r.Cards, contract.CardStatus{ID: id, Measured: &contract.CardMeasured{Utilization: 90, Activity: &activity, MemoryUsed: 60_000, MemoryTotal: 81_559, Power: 600}})
		}
		m.use.Assign(utilisation.Owner{Attempt: utilisation.Attempt{Gang: fmt.Sprintf("research/train-%d", n/8), Number: 1, Base: 1}, Queue: fmt.Sprintf("team-%d", n%50), User: "alice"}, r.Node, "NVIDIA H100 80GB HBM3", ids)
	}
	round := func(k int) {
		for n := range reports {
			reports[n].Seq = uint64(k + 1)
			m.Sample(reports[n], now.Add(time.Duration(k)*15*time.Second))
		}
	}
	round(0)
	b.ResetTimer()
	for k := range b.N {
		round(k + 1)
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/15*100, "%_of_a_core")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/nodes, "µs/report")
}
