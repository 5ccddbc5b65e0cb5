package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

// switches counts, as plans are made, the access switches (level 2 of the
// hosts' domains) and aggregation switches (level 1) that gangs of several
// nodes span, and the fewest that would have done at that moment: the optimum
// of taking the switches with the most free nodes.
type switches struct {
	index map[core.NodeID]int
	of    [2][]int // number of the switch of each node: access, aggregation
	count [2]int

	gangs           int
	one, canOne     [2]int
	spanned, fewest [2]int
}

func newSwitches(nodes []core.Node) *switches {
	w := &switches{index: map[core.NodeID]int{}}
	for k, depth := range []int{3, 2} {
		names := map[string]int{}
		for i := range nodes {
			name := ""
			for _, d := range nodes[i].Domains[:depth] {
				name += d + "/"
			}
			if _, ok := names[name]; !ok {
				names[name] = len(names)
			}
			w.index[nodes[i].ID] = i
			w.of[k] = append(w.of[k], names[name])
		}
		w.count[k] = len(names)
	}
	return w
}

func (w *switches) watch(s *core.Snapshot, p *core.Plan) {
	taken := make([]bool, len(w.index))
	for i := range s.Claims {
		taken[w.index[s.Claims[i].Node]] = true
	}
	for i := range p.Starts {
		start := &p.Starts[i]
		n := len(start.Members)
		if n > 1 && len(start.After) == 0 {
			w.gangs++
			for k := range w.of {
				free, used := make([]int, w.count[k]), map[int]bool{}
				for node, at := range w.of[k] {
					if !taken[node] {
						free[at]++
					}
				}
				for m := range start.Members {
					used[w.of[k][w.index[start.Members[m].Node]]] = true
				}
				slices.SortFunc(free, func(a, b int) int { return b - a })
				fewest := 0
				for left := n; left > 0; fewest++ {
					left -= free[fewest]
				}
				w.spanned[k] += len(used)
				w.fewest[k] += fewest
				if len(used) == 1 {
					w.one[k]++
				}
				if fewest == 1 {
					w.canOne[k]++
				}
			}
		}
		for m := range start.Members {
			taken[w.index[start.Members[m].Node]] = true
		}
	}
}

// BenchmarkLocality is B11: 847 hosts of 8 cards under 119 access switches and
// 3 aggregation switches, the first 3,000 jobs of the Philly trace with n cards as n whole nodes, a
// tenth of its gangs, by seed, of 16 to 64 nodes instead, arrivals scaled to
// 80 % load. The same scheduler without topology is the first fit to compare
// with.
func BenchmarkLocality(b *testing.B) {
	const seed = 11
	hosts, err := ReadTrace("testdata/lingjun_topo.csv")
	must.NoError(b, err)
	for _, form := range []string{"preferred", "required", "first-fit"} {
		b.Run(form, func(b *testing.B) {
			jobs := philly(b)
			jobs = jobs[:min(len(jobs), 3000)]
			b.Logf("lingjun_topo.csv, sha256 %s, seed %d", hosts.SHA256, seed)
			rnd := rand.New(rand.NewPCG(seed, 0x6c6f63))
			work := 0.0
			for i := range jobs {
				j := &jobs[i]
				j.Members, j.Cards = j.Cards, 8
				if rnd.IntN(10) == 0 {
					j.Members = 16 + rnd.IntN(49)
				}
				work += j.Run.Seconds() * float64(j.Members)
				if form == "required" {
					if j.Level, j.Required = "asw", true; j.Members > 8 {
						j.Level = "psw"
					}
				}
			}
			span := jobs[len(jobs)-1].Submit.Seconds()
			scale := work / float64(len(hosts.Nodes)) / 0.8 / span
			for i := range jobs {
				jobs[i].Submit = time.Duration(jobs[i].Submit.Seconds() * scale * float64(time.Second))
			}
			for range b.N {
				cfg := shipped("default")
				if form != "first-fit" {
					cfg.Levels = []core.Level{{Name: "dsw"}, {Name: "psw"}, {Name: "asw"}}
				}
				w := newSwitches(hosts.Nodes)
				_, f := replay(b, Options{Name: form, Config: cfg, Nodes: hosts.Nodes, Jobs: jobs, Save: 5 * time.Minute, Restart: 5 * time.Minute, Watch: w.watch})
				all := float64(w.gangs)
				report(b, "wait_s", f.MeanWait, "one_access_%", 100*float64(w.one[0])/all, "could_%", 100*float64(w.canOne[0])/all, "one_aggregation_%", 100*float64(w.one[1])/all,
					"could_aggregation_%", 100*float64(w.canOne[1])/all, "access_of_fewest", float64(w.spanned[0])/float64(w.fewest[0]), "aggregation_of_fewest", float64(w.spanned[1])/float64(w.fewest[1]))
				if form == "required" {
					must.Eq(b, w.gangs, w.one[1])
				}
			}
		})
	}
}
