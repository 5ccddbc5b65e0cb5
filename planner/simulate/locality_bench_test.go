package simulate

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

// switches counts, as plans are made, the access switches (level 2 of the
// hosts' domains) and aggregation switches (level 1) that gangs of several
// nodes span, and the fewest that would have done at that moment.
//
// The fewest are counted exactly, for each kind of switch by itself, by taking
// those with the most nodes; and, for access switches, within as few
// aggregation switches as do, by trying every set of these. Possible are the
// nodes that were free and not promised to a gang that comes before; "any" are
// all that were free.
type switches struct {
	index map[core.NodeID]int
	of    [2][]int // number of the switch of each node: access, aggregation
	count [2]int
	taken []bool

	gangs, victims       int // counted, and left out: on places that others leave for them
	one, canOne          [2]int
	spanned, fewest, any [2]int
	within               int // access switches, within the fewest aggregation switches
}

func newSwitches(nodes []core.Node) *switches {
	w := &switches{index: map[core.NodeID]int{}, taken: make([]bool, len(nodes))}
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
	clear(w.taken)
	for i := range s.Claims {
		w.taken[w.index[s.Claims[i].Node]] = true
	}
	place := map[core.GangID]int{} // in the one queue
	for i := range p.Verdicts {
		place[p.Verdicts[i].Gang] = p.Verdicts[i].Position
	}
	for i := range p.Starts {
		start := &p.Starts[i]
		switch n := len(start.Members); {
		case n > 1 && len(start.After) > 0:
			w.victims++
		case n > 1:
			promised := make([]bool, len(w.taken))
			for r := range p.Reservations {
				if r := &p.Reservations[r]; place[r.Gang] < place[start.Gang] {
					for m := range r.Members {
						promised[w.index[r.Members[m].Node]] = true
					}
				}
			}
			w.add(start, promised)
		}
		for m := range start.Members {
			w.taken[w.index[start.Members[m].Node]] = true
		}
	}
}

// add counts a start, before its nodes are taken.
func (w *switches) add(start *core.Start, promised []bool) {
	w.gangs++
	n, all := len(start.Members), 1<<w.count[1]-1
	for k := range w.of {
		used := map[int]bool{}
		for m := range start.Members {
			used[w.of[k][w.index[start.Members[m].Node]]] = true
		}
		fewest := w.least(k, n, promised, all)
		w.spanned[k] += len(used)
		w.fewest[k] += fewest
		w.any[k] += w.least(k, n, make([]bool, len(promised)), all)
		if len(used) == 1 {
			w.one[k]++
		}
		if fewest == 1 {
			w.canOne[k]++
		}
	}
	least := [2]int{math.MaxInt, math.MaxInt} // aggregation, access
	for set := 1; set <= all; set++ {
		at := [2]int{bits.OnesCount(uint(set)), w.least(0, n, promised, set)}
		if at[1] > 0 && slices.Compare(at[:], least[:]) < 0 {
			least = at
		}
	}
	w.within += least[1]
}

// least is the fewest switches with n nodes that are neither taken nor denied,
// below a set of aggregation switches; 0: there are not so many nodes.
func (w *switches) least(k, n int, deny []bool, set int) int {
	free := make([]int, w.count[k])
	for node, at := range w.of[k] {
		if !w.taken[node] && !deny[node] && set>>w.of[1][node]&1 == 1 {
			free[at]++
		}
	}
	slices.SortFunc(free, func(a, b int) int { return b - a })
	for few := range free {
		if n -= free[few]; n <= 0 {
			return few + 1
		}
	}
	return 0
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
			if os.Getenv("MUSTER_FULL") == "" {
				jobs = jobs[:min(len(jobs), 3000)]
			}
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
					"could_aggregation_%", 100*float64(w.canOne[1])/all, "access_of_fewest", float64(w.spanned[0])/float64(w.fewest[0]), "access_of_fewest_within", float64(w.spanned[0])/float64(w.within),
					"aggregation_of_fewest", float64(w.spanned[1])/float64(w.fewest[1]), "access_of_any", float64(w.spanned[0])/float64(w.any[0]), "aggregation_of_any", float64(w.spanned[1])/float64(w.any[1]),
					"access/gang", float64(w.spanned[0])/all, "aggregation/gang", float64(w.spanned[1])/all)
				b.Logf("%d gangs of several nodes counted; %d more on places that others left for them", w.gangs, w.victims)
				if form == "required" {
					must.Eq(b, w.gangs, w.one[1])
				}
			}
		})
	}
}
