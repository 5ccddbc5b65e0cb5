package report

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden page anew")

var (
	from = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	to   = from.AddDate(0, 0, 7)
)

// script answers from its fields; fails names the question that it refuses.
type script struct {
	queues, users []accounting.Line
	waits         []accounting.Wait
	waiting       []accounting.Waiting
	foretold      accounting.Foretold
	ends          []accounting.Ends
	hours         []accounting.ClusterHour
	active        []accounting.Activity
	fails         string
}

func (s *script) err(question string) error {
	if s.fails == question {
		return errors.New("disk I/O error")
	}
	return nil
}

func (s *script) Usage(_ context.Context, q accounting.Query) (accounting.Usage, error) {
	if q.By[0] == accounting.ByUser {
		return accounting.Usage{From: q.From, To: q.To, Lines: s.users}, s.err("users")
	}
	return accounting.Usage{From: q.From, To: q.To, Lines: s.queues}, s.err("queues")
}
func (s *script) Waits(context.Context, time.Time, time.Time) ([]accounting.Wait, error) {
	return s.waits, s.err("waits")
}
func (s *script) Waiting(context.Context, time.Time, time.Time) ([]accounting.Waiting, error) {
	return s.waiting, s.err("waiting")
}
func (s *script) Foretold(context.Context, time.Time, time.Time) (accounting.Foretold, error) {
	return s.foretold, s.err("foretold")
}
func (s *script) Ends(context.Context, time.Time, time.Time) ([]accounting.Ends, error) {
	return s.ends, s.err("ends")
}
func (s *script) ClusterHours(context.Context, time.Time, time.Time) ([]accounting.ClusterHour, error) {
	return s.hours, s.err("hours")
}
func (s *script) Activity(_ context.Context, _, _ time.Time, byQueue bool) (out []accounting.Activity, err error) {
	for _, a := range s.active {
		if byQueue == a.Hour.IsZero() {
			out = append(out, a)
		}
	}
	return out, s.err(fmt.Sprintf("activity %v", byQueue))
}

// week is a week of a cluster of 512 cards.
func week() *script {
	s := &script{foretold: accounting.Foretold{Within: 301, Early: 40, Late: 12, Median: 0, P95: 14 * time.Minute}}
	line := func(queue, user string, g, b, h, lost int64) accounting.Line {
		return accounting.Line{Queue: queue, User: user, Amounts: accounting.Amounts{Guaranteed: g * 3600, Borrowed: b * 3600, Held: h * 3600, Training: (g + b - h) * 3600}, Lost: map[string]int64{"preempted": lost * 3600}}
	}
	s.queues = []accounting.Line{line("production", "", 21000, 400, 210, 90), line("research", "", 14000, 9300, 640, 1210), line("scavenger", "", 0, 4200, 90, 800)}
	s.users = []accounting.Line{line("", "alice", 12000, 4000, 0, 700), line("", "bob <script>", 20000, 9000, 0, 1200), line("", "carol", 3000, 900, 0, 200)}
	for i, size := range accounting.SizeClasses[:5] {
		base := time.Duration(math.Pow(6, float64(i))) * time.Second
		s.waits = append(s.waits, accounting.Wait{Size: size, Count: 400 >> i, Mean: 3 * base, Quantiles: [5]time.Duration{base / 2, base, 2 * base, 5 * base, 20 * base}})
	}
	s.waits = append(s.waits, accounting.Wait{Queue: "research", Size: "2-8", Count: 120, Mean: time.Minute, Quantiles: [5]time.Duration{1e9, 2e9, 3e9, 4e9, 5e9}})
	s.ends = []accounting.Ends{{Queue: "production", Cause: "complete", Count: 44}, {Queue: "research", Cause: "preempted", Count: 31, Lost: 1210 * 3600}, {Queue: "research", Cause: "card-faulted", Count: 2, Lost: 90 * 3600},
		{Queue: "research", Cause: "complete", Count: 280}, {Queue: "scavenger", Cause: "hung", Count: 1, Lost: 800 * 3600}}
	for h := range 7 * 24 {
		at := from.Add(time.Duration(h) * time.Hour)
		day := (math.Sin(float64(h)/24*2*math.Pi) + 1) / 2
		used := int64(260 + 180*day)
		s.hours = append(s.hours, accounting.ClusterHour{Hour: at, Model: "H100", Observed: 3600, Used: used * 3600, Other: 16 * 3600, Free: (512 - 16 - 8 - used) * 3600, Out: 8 * 3600, Fragmented: (512 - 24 - used) * 900})
		s.active = append(s.active, accounting.Activity{Hour: at, Sampled: used * 3600, Mean: 0.55 + 0.3*day, Memory: 0.4 + 0.2*day})
		for i, queue := range []string{"production", "research"} {
			if h%(3+i) == 0 {
				s.waiting = append(s.waiting, accounting.Waiting{At: at, Queue: queue, Gangs: (h*(i+5)/3)%(4+9*i) + i})
			}
		}
	}
	// As the ledger sorts them.
	var sorted []accounting.Waiting
	for _, queue := range []string{"production", "research"} {
		for _, w := range s.waiting {
			if w.Queue == queue {
				sorted = append(sorted, w)
			}
		}
	}
	s.waiting = sorted
	s.active = append(s.active, accounting.Activity{Queue: "production", Sampled: 21400 * 3600, Idle: 900 * 3600, Mean: .81, Memory: .7}, accounting.Activity{Queue: "research", Sampled: 23300 * 3600, Idle: 4000 * 3600, Mean: .62, Memory: .45})
	return s
}

func made(t must.T, s Source) *Report {
	t.Helper()
	r, err := Make(context.Background(), s, from, to, to.Add(time.Hour))
	must.NoError(t, err)
	return r
}

func TestFigures(t *testing.T) {
	t.Parallel()
	r := made(t, week())
	must.Eq(t, int64(48900*3600), r.Totals.Used.Total())
	must.Eq(t, int64(2100*3600), r.Totals.Lost)
	must.Eq(t, 7*24*time.Hour, r.Totals.Observed)
	must.Eq(t, 400+200+100+50+25, r.Totals.Attempts)
	must.InDelta(t, (21400*.81+23300*.62)/44700, r.Totals.Active, 1e-9)
	must.Eq(t, "bob <script>", r.Users[0].Name)
	must.Eq(t, -1.0, r.Queues[2].Active) // never sampled
	must.Len(t, 8, r.Plots)
}

func TestPage(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	must.NoError(t, made(t, week()).HTML(&b))
	must.StrNotContains(t, b.String(), "<script>")
	must.StrNotContains(t, b.String(), "NaN")
	must.StrNotContains(t, b.String(), "src=")
	if *rewrite {
		must.NoError(t, os.WriteFile("testdata/week.html", b.Bytes(), 0o644))
	}
	want, err := os.ReadFile("testdata/week.html")
	must.NoError(t, err)
	must.True(t, bytes.Equal(want, b.Bytes()), must.Sprint("the page has changed: look at it and run with -rewrite"))
}

// A time of which the ledger has nothing gives a page that says so.
func TestNothing(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := made(t, &script{})
	must.NoError(t, r.HTML(&b))
	for _, text := range []string{"no attempt was placed", "none was told", "nothing was used", "none ended", "was not observed"} {
		must.StrContains(t, b.String(), text)
	}
	must.Eq(t, -1, r.Totals.Allocated)
}

// Any question that fails fails the report: a page with a hole would be read as
// one without.
func TestAFailedQuestion(t *testing.T) {
	t.Parallel()
	for _, question := range []string{"waits", "waiting", "foretold", "ends", "hours", "queues", "users", "activity true", "activity false"} {
		s := week()
		s.fails = question
		_, err := Make(t.Context(), s, from, to, to)
		must.ErrorContains(t, err, "disk I/O error", must.Sprint(question))
	}
	_, err := Make(t.Context(), week(), to, from, to)
	must.ErrorContains(t, err, "not after it begins")
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 1, 30, 0, 0, time.FixedZone("east", 2*3600)) // March 1, a Sunday, in UTC
	for name, want := range map[string][2]string{"day": {"2026-02-28", "2026-03-01"}, "week": {"2026-02-16", "2026-02-23"}, "month": {"2026-02-01", "2026-03-01"}} {
		from, to, err := Period(name, now)
		must.NoError(t, err)
		must.Eq(t, want, [2]string{from.Format(time.DateOnly), to.Format(time.DateOnly)}, must.Sprint(name))
	}
	_, _, err := Period("year", now)
	must.ErrorContains(t, err, "day, week, month")
}

// Whatever the ledger answers, the page has no figure that is none.
func TestAnyAnswers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<40)
		s := &script{}
		for i := range rapid.IntRange(0, 4).Draw(t, "hours") {
			s.hours = append(s.hours, accounting.ClusterHour{Hour: from.Add(time.Duration(i/2) * time.Hour), Model: fmt.Sprint(i % 2), Observed: rapid.Int64Range(0, 3600).Draw(t, "o"),
				Free: n.Draw(t, "f"), Used: n.Draw(t, "u"), Other: n.Draw(t, "t"), Out: n.Draw(t, "x"), Fragmented: n.Draw(t, "g")})
			s.active = append(s.active, accounting.Activity{Hour: from.Add(time.Duration(i) * time.Hour), Mean: rapid.Float64Range(0, 1).Draw(t, "a")})
			s.queues = append(s.queues, accounting.Line{Queue: rapid.String().Draw(t, "q"), Amounts: accounting.Amounts{Held: n.Draw(t, "h")}, Lost: map[string]int64{"x": n.Draw(t, "l")}})
			s.waiting = append(s.waiting, accounting.Waiting{At: from.Add(time.Duration(i) * time.Hour), Queue: rapid.String().Draw(t, "w"), Gangs: rapid.IntRange(0, 1e6).Draw(t, "c")})
			s.ends = append(s.ends, accounting.Ends{Queue: "q", Cause: rapid.String().Draw(t, "cause"), Count: 1, Lost: n.Draw(t, "lost")})
		}
		var b bytes.Buffer
		must.NoError(t, made(t, s).HTML(&b))
		for _, bad := range []string{"NaN", "+Inf", "-Inf"} {
			if bytes.Contains(b.Bytes(), []byte(bad)) {
				t.Fatalf("the page has %s", bad)
			}
		}
	})
}
