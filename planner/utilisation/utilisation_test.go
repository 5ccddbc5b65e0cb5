package utilisation_test

import (
	"testing"
	"time"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/utilisation"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var (
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	owner = utilisation.Owner{Attempt: utilisation.Attempt{Gang: "default/g", Number: 1, Base: 7}, Queue: "research", User: "alice"}
)

func sample(card string, activity, memory int) utilisation.Sample {
	return utilisation.Sample{Card: card, Activity: activity, MemoryUsed: memory, MemoryTotal: 80_000, Power: 500}
}

// meter with one node whose two cards an attempt holds.
func meter() *utilisation.Meter {
	m := utilisation.New()
	m.Assign(owner, "alloc", "H100", []string{"a", "b"})
	return m
}

func TestTimeWeighted(t *testing.T) {
	t.Parallel()
	m := meter()
	// 10 s at 100 %, then 30 s at 20 %; card b is idle all the time.
	for i, s := range []struct {
		after    time.Duration
		activity int
		memory   int
	}{{0, 0, 0}, {10 * time.Second, 1000, 10_000}, {40 * time.Second, 200, 20_000}} {
		m.Report("n1", "life", uint64(i+1), noon.Add(s.after), []utilisation.Sample{sample("a", s.activity, s.memory), sample("b", 5, 0), sample("unheld", 1000, 0)})
	}
	live := m.Live(noon.Add(41 * time.Second))
	must.Len(t, 1, live)
	u := live[0]
	must.Eq(t, 80_000, u.Figures.Sampled)
	must.Eq(t, int64(10_000*1000+30_000*200+40_000*5), u.Figures.Activity)
	must.Eq(t, 40_000, u.Figures.Idle)
	must.Eq(t, int64(10*10_000+30*20_000), u.Figures.Memory)
	must.Eq(t, 80*80_000, u.Figures.MemoryTotal)
	must.Eq(t, 80*500*1000, u.Figures.Energy)
	must.Eq(t, 1, u.NeverBusy)
	must.Eq(t, 60_000+80_000, u.Untouched)
	must.Eq(t, 2_000, u.Now.Sampled)
	mean, ok := u.Now.Mean()
	must.True(t, ok)
	must.Eq(t, (.2+.005)/2, mean)
	median, _ := u.Figures.Quantile(.5)
	must.Eq(t, 0, median)
	high, _ := u.Figures.Quantile(1)
	must.Eq(t, 1, high)
	sums := m.Sums()
	must.MapLen(t, 1, sums)
	must.Eq(t, u.Figures, *sums[utilisation.Sum{Queue: "research", User: "alice", Model: "H100"}])
	must.MapEmpty(t, m.Sums())
	ended := m.End(owner.Attempt)
	must.Len(t, 1, ended)
	must.Eq(t, u.Figures, ended[0].Figures)
	must.SliceEmpty(t, m.Live(noon.Add(41*time.Second)))
	must.SliceEmpty(t, m.End(owner.Attempt))
}

// Reports that come twice, late, or after the plugin's restart; a node's clock
// plays no part.
func TestOrder(t *testing.T) {
	t.Parallel()
	m := meter()
	report := func(life string, seq uint64, after time.Duration, activity int) {
		m.Report("n1", life, seq, noon.Add(after), []utilisation.Sample{sample("a", activity, 0)})
	}
	report("one", 1, 0, 0)
	report("one", 3, 20*time.Second, 500)
	report("one", 2, 21*time.Second, 1000) // late
	report("one", 3, 22*time.Second, 1000) // again
	must.Eq(t, 2, m.Ignored())
	report("two", 1, 30*time.Second, 300)
	report("two", 2, 25*time.Second, 900) // the time of the planner went back
	report("two", 3, 35*time.Second, 100)
	f := m.Live(noon)[0].Figures
	must.Eq(t, int64(20_000+10_000+10_000), f.Sampled)
	must.Eq(t, int64(20_000*500+10_000*300+10_000*100), f.Activity)
}

// A card that vanishes counts for nothing while it is away, and goes on when it
// is back.
func TestCardThatVanishes(t *testing.T) {
	t.Parallel()
	m := meter()
	m.Report("n1", "life", 1, noon, []utilisation.Sample{sample("a", 1000, 0), sample("b", 1000, 0)})
	m.Report("n1", "life", 2, noon.Add(10*time.Second), []utilisation.Sample{sample("a", 1000, 0), sample("b", 1000, 0)})
	m.Report("n1", "life", 3, noon.Add(20*time.Second), []utilisation.Sample{sample("a", 1000, 0)})
	m.Report("n1", "life", 4, noon.Add(time.Hour), []utilisation.Sample{sample("a", 1000, 0), sample("b", 1000, 0)})
	f := m.Live(noon.Add(time.Hour))[0].Figures
	must.Eq(t, int64(20_000)+10_000+2*utilisation.Reach.Milliseconds(), f.Sampled)
}

// The next holder of a card starts clean.
func TestNextHolder(t *testing.T) {
	t.Parallel()
	m := meter()
	m.Report("n1", "life", 1, noon, []utilisation.Sample{sample("a", 1000, 70_000)})
	m.Report("n1", "life", 2, noon.Add(10*time.Second), []utilisation.Sample{sample("a", 1000, 70_000)})
	next := owner
	next.Number = 2
	m.Release("alloc", []string{"a", "b"})
	m.Assign(next, "alloc2", "H100", []string{"a"})
	m.Release("alloc", []string{"a"}) // an old word changes nothing
	m.Report("n1", "life", 3, noon.Add(20*time.Second), []utilisation.Sample{sample("a", 0, 1_000)})
	m.Report("n1", "life", 4, noon.Add(30*time.Second), []utilisation.Sample{sample("a", 0, 1_000)})
	used := m.End(next.Attempt)
	must.Len(t, 1, used)
	must.Eq(t, 10_000, used[0].Figures.Sampled)
	must.Eq(t, 10_000, used[0].Figures.Idle)
	must.Eq(t, 1, used[0].NeverBusy)
	must.Eq(t, 79_000, used[0].Untouched)
}

// What was saved goes on after a restart.
func TestSaveAndRestore(t *testing.T) {
	t.Parallel()
	m := meter()
	m.Report("n1", "life", 1, noon, []utilisation.Sample{sample("a", 900, 70_000), sample("b", 0, 5)})
	m.Report("n1", "life", 2, noon.Add(10*time.Second), []utilisation.Sample{sample("a", 900, 70_000), sample("b", 0, 5)})
	saved, err := m.Save(owner.Attempt)
	must.NoError(t, err)
	again := meter()
	must.NoError(t, again.Restore(owner, saved))
	again.Report("n1", "life", 3, noon.Add(20*time.Second), []utilisation.Sample{sample("a", 0, 0), sample("b", 0, 0)})
	again.Report("n1", "life", 4, noon.Add(30*time.Second), []utilisation.Sample{sample("a", 0, 0), sample("b", 0, 0)})
	used := again.End(owner.Attempt)[0]
	must.Eq(t, 40_000, used.Figures.Sampled)
	must.Eq(t, 1, used.NeverBusy)
	must.Eq(t, 10_000+79_995, used.Untouched)
	for _, broken := range []string{"", "[]", `{"H100": null}`, `{"H100": {"cards": null}}`, `{"H100": {"cards": {"a": null}}}`} {
		must.Error(t, meter().Restore(owner, []byte(broken)), must.Sprint(broken))
	}
}

// Quantiles lie within a bucket of the truth, and histograms add up.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		activities := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 50).Draw(rt, "activities")
		m, sum := meter(), utilisation.Figures{}
		for i, a := range append([]int{0}, activities...) {
			m.Report("n1", "life", uint64(i+1), noon.Add(time.Duration(i)*time.Second), []utilisation.Sample{sample("a", a, 0)})
		}
		f := m.Live(noon)[0].Figures
		var packed utilisation.Figures
		must.NoError(rt, packed.Unpack(f.Pack()))
		must.Eq(rt, f.Histogram, packed.Histogram)
		sum.Add(&f)
		sum.Add(&f)
		sorted := append([]int{}, activities...)
		for i := range sorted {
			for k := i; k > 0 && sorted[k] < sorted[k-1]; k-- {
				sorted[k], sorted[k-1] = sorted[k-1], sorted[k]
			}
		}
		q := rapid.Float64Range(0, 1).Draw(rt, "q")
		got, ok := sum.Quantile(q)
		must.True(rt, ok)
		at := min(int(q*float64(len(sorted))), len(sorted)-1)
		low, high := sorted[max(at-1, 0)], sorted[min(at+1, len(sorted)-1)]
		must.GreaterEq(rt, float64(low)/1000-.051, got)
		must.LessEq(rt, float64(high)/1000+.051, got)
	})
}

func FuzzUnpack(f *testing.F) {
	var some utilisation.Figures
	some.Histogram[3], some.Histogram[20] = 1<<40, 7
	f.Add(some.Pack())
	f.Add([]byte{})
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, again utilisation.Figures
		if got.Unpack(b) != nil {
			return
		}
		must.NoError(t, again.Unpack(got.Pack()))
		must.Eq(t, got, again)
	})
}

// A report of one node with eight cards: 10,000 nodes send one every 15 s, 667 a
// second, so 2 % of a core are 30 µs for each.
func BenchmarkReport(b *testing.B) {
	const nodes, cards = 10_000, 8
	m := utilisation.New()
	names := make([]string, nodes)
	samples := make([][]utilisation.Sample, nodes)
	for n := range nodes {
		names[n] = "node-" + time.Duration(n).String()
		ids := make([]string, cards)
		samples[n] = make([]utilisation.Sample, cards)
		for c := range cards {
			ids[c] = "GPU-6f3f8b0e-6f0e-4d0e-9d0e-" + names[n] + "-" + time.Duration(c).String()
			samples[n][c] = sample(ids[c], 100*c, 1000*c)
		}
		o := owner
		o.Number = n / 8
		m.Assign(o, names[n], "H100", ids)
	}
	b.ResetTimer()
	for i := range b.N {
		n := i % nodes
		m.Report(names[n], "life", uint64(i/nodes+1), noon.Add(time.Duration(i/nodes)*15*time.Second), samples[n])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*nodes/15/1e7, "%_of_a_core")
}
