package simulate

import (
	"testing"

	"github.com/shoenig/test/must"
)

// BenchmarkPacking is B1 and B2: the share of the cards that nobody got when
// the pods that came asked for 100 and 130 % of them, mean of 10 seeds.
// References (FGD, ATC'23, by its authors' published runs): default 4.77 /
// 4.61, multigpu50 2.91 / 2.82, gpuspec33 12.16 / 5.45.
func BenchmarkPacking(b *testing.B) {
	for _, set := range []string{"default", "multigpu50", "gpuspec33"} {
		b.Run(set, func(b *testing.B) {
			nodes := dataset(b, "openb/openb_node_list_gpu_node.csv", "openb_nodes.csv")
			pods := dataset(b, "openb/openb_pod_list_"+set+".csv", "openb_pods.csv")
			seeds := pick(10, 2)
			b.Logf("seeds 42 to %d", 41+seeds)
			for range b.N {
				var at100, at130 []float64
				for seed := range seeds {
					o := OpenB{Config: shipped("default"), Nodes: nodes.Nodes, Pods: pods.Jobs, Seed: uint64(42 + seed), Until: 1.3}
					points, err := o.Run()
					must.NoError(b, err)
					at100, at130 = append(at100, 100*Unallocated(points, 1)), append(at130, 100*Unallocated(points, points[len(points)-1].Arrived))
				}
				report(b, "at100_%", mean(at100), "at130_%", mean(at130))
			}
		})
	}
}
