package accounting

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// at is a time of the test's day, in seconds.
func at(s int64) time.Time { return time.Unix(1_800_000_000/86400*86400+s, 0).UTC() }

func open(t must.T, path string) *Ledger {
	t.Helper()
	l, err := Open(context.Background(), Options{Path: path, Linger: time.Microsecond, unsynced: true})
	must.NoError(t, err)
	return l
}

func closed(t must.T, l *Ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	must.NoError(t, l.Close(ctx))
}

func flushed(t must.T, l *Ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	must.NoError(t, l.Flush(ctx))
}

func verified(t must.T, l *Ledger) {
	t.Helper()
	r, err := l.Verify(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, r.Findings)
}

func usage(t must.T, l *Ledger, from, to int64, by ...string) []Line {
	t.Helper()
	u, err := l.Usage(context.Background(), Query{From: at(from), To: at(to), By: by})
	must.NoError(t, err)
	return u.Lines
}

// gang of one attempt that two members with four cards each hold.
func twoByFour(name string, created, launched, ended int64, outcome string) Gang {
	a := Attempt{Key: Key{Gang: name, Number: 1, Base: 10}, Queue: "research", User: "alice", Members: 2, Cards: 8, Submitted: at(created - 60), Queued: at(created - 60), Planned: at(created)}
	a.Stages = []Stage{{contract.StageQueued, at(created - 60)}, {contract.StagePlanned, at(created)}}
	if launched > 0 {
		a.Stages = append(a.Stages, Stage{contract.StageStarted, at(launched)})
	}
	for i := range 2 {
		alloc := Alloc{ID: fmt.Sprintf("%s-%d", name, i), Node: fmt.Sprintf("n%d", i), Created: at(created), Holds: []Hold{{"H100", 4}}}
		if ended > 0 {
			alloc.Ended, alloc.Exact, alloc.How = at(ended), true, "complete"
		}
		a.Allocs = append(a.Allocs, alloc)
	}
	if ended > 0 {
		a.End = &AttemptEnd{At: at(ended), Outcome: outcome, Code: 0}
	}
	return Gang{Name: name, Attempts: []Attempt{a}, Whole: true}
}

func TestOneAttempt(t *testing.T) {
	t.Parallel()
	l := open(t, "")
	defer closed(t, l)
	l.Entitle(map[string]Guarantee{"research": {Models: map[string]int{"H100": 6}}})
	// From 10:59:00 to 11:30:00, launched at 11:01:00.
	const begin, launch, end = 10*hour + 59*60, 11*hour + 60, 11*hour + 30*60
	l.Observe(twoByFour("default/g", begin, 0, 0, ""), at(begin+1))
	l.Observe(twoByFour("default/g", begin, launch, 0, ""), at(launch+1))
	l.Tick(at(11*hour + 10*60)) // books until 11:00
	live := usage(t, l, 0, 11*hour+20*60)
	must.Len(t, 1, live)
	must.Eq(t, Amounts{Guaranteed: 21 * 60 * 6, Borrowed: 21 * 60 * 2, Held: 2 * 60 * 8, Training: 19 * 60 * 8}, live[0].Amounts)
	l.Observe(twoByFour("default/g", begin, launch, end, "failed"), at(end+1))
	l.Tick(at(12*hour + 10*60))
	flushed(t, l)
	want := Amounts{Guaranteed: 31 * 60 * 6, Borrowed: 31 * 60 * 2, Held: 2 * 60 * 8, Training: 29 * 60 * 8}
	for _, by := range [][]string{{}, {ByQueue, ByUser, ByModel}, {ByDay}, {ByMonth}, {ByGang}, {ByAttempt}} {
		lines := usage(t, l, 0, 86400, by...)
		must.Len(t, 1, lines, must.Sprint(by))
		must.Eq(t, want, lines[0].Amounts, must.Sprint(by))
		must.Eq(t, map[string]int64{"failed": 29 * 60 * 8}, lines[0].Lost, must.Sprint(by))
	}
	hours := usage(t, l, 0, 86400, ByHour)
	must.Len(t, 2, hours)
	must.Eq(t, at(10*hour), hours[0].Period)
	must.Eq(t, Amounts{Guaranteed: 60 * 6, Borrowed: 60 * 2, Held: 60 * 8}, hours[0].Amounts)
	verified(t, l)
	must.Eq(t, []Tally{{Labels: []string{"research", "failed"}, Value: 1}}, l.Tallies(TallyAttempts))
	waits := l.Histograms(TallyWait)
	must.Len(t, 1, waits)
	must.Eq(t, []string{"research", "2-8"}, waits[0].Labels)
	must.Eq(t, time.Minute, waits[0].Sum)
}

// Everything told twice, by two planners, or again after a restart, is booked
// once.
func TestToldTwice(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	const begin, launch, end = 1000, 1100, 9000
	g := twoByFour("default/g", begin, launch, end, "failed")
	for range 2 {
		for range 2 {
			l.Observe(g, at(end+1))
			l.Tick(at(4 * hour))
			l.Forget("default/g", at(end+2))
		}
		flushed(t, l)
		before := l.Tallies(TallyUsage)
		closed(t, l)
		l = open(t, path)
		l.Observe(g, at(end+1))
		l.Tick(at(4 * hour))
		flushed(t, l)
		must.Eq(t, before, l.Tallies(TallyUsage))
	}
	must.Eq(t, 8*(end-begin), usage(t, l, 0, 86400)[0].Total())
	must.Eq(t, int64(8*(end-launch)), usage(t, l, 0, 86400)[0].LostTotal())
	verified(t, l)
	closed(t, l)
}

// An allocation that was taken to run, and had ended before, is corrected in
// hours that were booked.
func TestLateCorrection(t *testing.T) {
	t.Parallel()
	l := open(t, "")
	defer closed(t, l)
	l.Entitle(map[string]Guarantee{"research": {Models: map[string]int{"H100": 4}}})
	g := twoByFour("default/g", 100, 0, 0, "")
	l.Observe(g, at(200))
	l.Tick(at(5*hour + 200))
	flushed(t, l)
	must.Eq(t, int64(8*(5*hour-100)), sum(usage(t, l, 0, 5*hour)))
	// Launch and end come hours late.
	g = twoByFour("default/g", 100, 160, 2*hour+50, "failed")
	g.Attempts[0].Allocs[1].Ended, g.Attempts[0].Allocs[1].Exact = at(4*hour), false
	l.Observe(g, at(5*hour+300))
	l.Tick(at(6*hour + 200))
	flushed(t, l)
	first, second := int64(4*(2*hour+50-100)), int64(4*(4*hour-100))
	must.Eq(t, first+second, sum(usage(t, l, 0, 86400)))
	verified(t, l)
	// The node is back and tells the second one's end.
	g.Attempts[0].Allocs[1].Ended, g.Attempts[0].Allocs[1].Exact = at(3*hour), true
	l.Observe(g, at(7*hour))
	l.Tick(at(8 * hour))
	flushed(t, l)
	must.Eq(t, first+4*(3*hour-100), sum(usage(t, l, 0, 86400)))
	lines := usage(t, l, 0, 86400)
	must.Eq(t, 8*60, lines[0].Held)
	verified(t, l)
}

func sum(lines []Line) (n int64) {
	for i := range lines {
		n += lines[i].Total()
	}
	return n
}

// The gap of a planner that was away is filled from what Nomad has, and what is
// gone meanwhile ended when it was last known.
func TestGap(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	l.Observe(twoByFour("default/goes-on", 100, 110, 0, ""), at(200))
	l.Observe(twoByFour("default/vanishes", 100, 110, 0, ""), at(200))
	l.Tick(at(300))
	closed(t, l)
	l = open(t, path)
	l.Observe(twoByFour("default/goes-on", 100, 110, 0, ""), at(10*hour))
	l.Observe(twoByFour("default/came-and-went", hour, hour+10, 3*hour, "complete"), at(10*hour))
	l.Reconcile(map[string]bool{"default/goes-on": true, "default/came-and-went": true})
	l.Tick(at(10*hour + 200))
	flushed(t, l)
	totals := map[string]int64{}
	for _, line := range usage(t, l, 0, 10*hour, ByGang) {
		totals[line.Gang] = line.Total()
	}
	must.Eq(t, map[string]int64{"default/goes-on": 8 * (10*hour - 100), "default/vanishes": 8 * (300 - 100), "default/came-and-went": 8 * 2 * hour}, totals)
	verified(t, l)
	closed(t, l)
}

// Whatever the order in which facts become known, however often, and with
// restarts between, the books are what Nomad ran, to the second; two planners
// that saw it differently have the same.
func TestBooksAreWhatNomadRan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		type truth struct{ created, launched, ended int64 }
		n := rapid.IntRange(1, 6).Draw(rt, "gangs")
		all := make([]truth, n)
		var last int64
		for i := range all {
			created := rapid.Int64Range(1, 5*hour).Draw(rt, "created")
			launched := created + rapid.Int64Range(0, 600).Draw(rt, "launch")
			ended := launched + rapid.Int64Range(0, 4*hour).Draw(rt, "run")
			if rapid.IntRange(0, 4).Draw(rt, "never") == 0 {
				launched = 0
			}
			all[i] = truth{created, launched, ended}
			last = max(last, ended)
		}
		guarantee := map[string]Guarantee{"research": {Models: map[string]int{"H100": rapid.IntRange(0, 20).Draw(rt, "guaranteed")}, Any: rapid.IntRange(0, 8).Draw(rt, "any")}}
		watch := func(name string) []Line {
			path := filepath.Join(dir, fmt.Sprintf("%d-%s.db", runs, name))
			l := open(rt, path)
			defer func() { _ = l.Close(context.Background()) }()
			l.Entitle(guarantee)
			now := int64(0)
			for now < last+2*hour {
				now += rapid.Int64Range(1, 2*hour).Draw(rt, "step")
				if rapid.IntRange(0, 5).Draw(rt, "restart") == 0 {
					closed(rt, l)
					l = open(rt, path)
					l.Entitle(guarantee)
				}
				order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5}[:n]).Draw(rt, "order")
				for _, i := range order {
					g := all[i]
					if g.created > now || rapid.IntRange(0, 3).Draw(rt, "miss") == 0 {
						continue
					}
					launched, ended := g.launched, g.ended
					if launched > now {
						launched = 0
					}
					if ended > now {
						ended = 0
					}
					l.Observe(twoByFour(fmt.Sprintf("default/g%d", i), g.created, launched, ended, "failed"), at(now))
				}
				if rapid.Bool().Draw(rt, "tick") {
					l.Tick(at(now))
				}
			}
			for i, g := range all {
				l.Observe(twoByFour(fmt.Sprintf("default/g%d", i), g.created, g.launched, g.ended, "failed"), at(now))
			}
			// Before the hours are closed, and after.
			flushed(rt, l)
			before := usage(rt, l, 0, now, ByGang)
			l.Tick(at(now + 2*hour))
			flushed(rt, l)
			verified(rt, l)
			after := usage(rt, l, 0, now, ByGang)
			phases := func(lines []Line) map[string][2]int64 {
				out := map[string][2]int64{}
				for _, line := range lines {
					out[line.Gang] = [2]int64{line.Held, line.Training}
				}
				return out
			}
			must.Eq(rt, phases(before), phases(after))
			closed(rt, l)
			must.NoError(rt, os.Remove(path))
			return after
		}
		a, b := watch("a"), watch("b")
		var want int64
		for _, g := range all {
			want += 8 * (g.ended - g.created)
		}
		must.Eq(rt, want, sum(a))
		for i := range a {
			must.Eq(rt, a[i].Gang, b[i].Gang)
			must.Eq(rt, a[i].Held, b[i].Held)
			must.Eq(rt, a[i].Training, b[i].Training)
			must.Eq(rt, a[i].Lost, b[i].Lost)
		}
	})
}

// A dumb twin of the sweep, second by second.
func TestSweepAgainstSeconds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		models := []string{"A", "B"}
		spans := make([]span, rapid.IntRange(0, 6).Draw(rt, "spans"))
		for i := range spans {
			s := &spans[i]
			s.alloc, s.model, s.cards = fmt.Sprint(i), rapid.SampledFrom(models).Draw(rt, "model"), rapid.IntRange(1, 5).Draw(rt, "cards")
			s.created = rapid.Int64Range(0, 90).Draw(rt, "created")
			s.ended, s.launched = s.created+rapid.Int64Range(0, 60).Draw(rt, "run"), none
			if rapid.Bool().Draw(rt, "launched") {
				s.launched = s.created + rapid.Int64Range(0, 30).Draw(rt, "launch")
			}
		}
		g := Guarantee{Models: map[string]int{"A": rapid.IntRange(0, 8).Draw(rt, "a")}, Any: rapid.IntRange(0, 5).Draw(rt, "any")}
		const from, to = 20, 80
		want := make([]Amounts, len(spans))
		for s := int64(from); s < to; s++ {
			order := []int{}
			for i := range spans {
				if spans[i].created <= s && s < spans[i].ended {
					order = append(order, i)
				}
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(spans[a].created - spans[b].created) })
			left, anyLeft := map[string]int{"A": g.Models["A"]}, g.Any
			for _, i := range order {
				n := spans[i].cards
				own := min(left[spans[i].model], n)
				left[spans[i].model] -= own
				more := min(anyLeft, n-own)
				anyLeft -= more
				want[i].Guaranteed += int64(own + more)
				want[i].Borrowed += int64(n - own - more)
				if s < spans[i].launched {
					want[i].Held += int64(n)
				} else {
					want[i].Training += int64(n)
				}
			}
		}
		must.Eq(rt, want, sweep(spans, from, to, g))
	})
}
