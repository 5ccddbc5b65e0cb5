package accounting

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Records a second that reach the disk, told one gang after the other: an
// attempt's six stages, two allocations with their ends, its end and its loss
// are 13 records.
func BenchmarkRecords(b *testing.B) {
	l, err := Open(context.Background(), Options{Path: filepath.Join(b.TempDir(), "l.db")})
	must.NoError(b, err)
	b.ResetTimer()
	for i := range b.N {
		l.Observe(twoByFour(fmt.Sprintf("default/g%d", i), int64(i), int64(i+10), int64(i+100), "failed"), at(int64(i+100)))
		if l.Health().Waiting > 50_000 {
			flushed(b, l)
		}
	}
	flushed(b, l)
	b.StopTimer()
	b.ReportMetric(float64(l.Health().Written)/b.Elapsed().Seconds(), "records/s")
	must.Eq(b, 0, l.Health().Dropped)
	closed(b, l)
}

// year is a ledger with a year of attempts: of 20 queues with 10 users each and
// three models, most of them short, as clusters' traces have them.
func year(b *testing.B, attempts int) (string, time.Time) {
	b.Helper()
	dir := os.Getenv("MUSTER_BENCH_DIR") // to keep the file for another run
	if dir == "" {
		dir = b.TempDir()
	}
	path := filepath.Join(dir, "year-"+strconv.Itoa(attempts)+".db")
	end := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	if _, err := os.Stat(path); err == nil {
		return path, end
	}
	l, err := Open(context.Background(), Options{Path: path, unsynced: true})
	must.NoError(b, err)
	closed(b, l)
	l, err = Open(context.Background(), Options{Path: path, unsynced: true})
	must.NoError(b, err)
	w := &writer{ledger: l, ctx: context.Background()}
	l.stop() // its own writer
	<-l.done
	must.NoError(b, w.begin())
	for _, pragma := range []string{"cache_size = -1500000", "foreign_keys = 0", "wal_autocheckpoint = 100000"} {
		must.NoError(b, run(w, "PRAGMA "+pragma))
	}
	random := rand.New(rand.NewPCG(1, 2))
	first := end.AddDate(-1, 0, 0).Unix()
	span := end.Unix() - first
	models := []string{"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"}
	begin := func() { must.NoError(b, run(w, "BEGIN")) }
	commit := func() {
		must.NoError(b, w.flushSums())
		clear(w.counts)
		must.NoError(b, run(w, "COMMIT"))
	}
	begin()
	for i := range attempts {
		queue, person := random.IntN(20), random.IntN(10)
		user := fmt.Sprintf("user-%d", queue*10+person)
		model := models[min(random.IntN(6), 2)]
		cards := 1 << random.IntN(4)
		created := first + span*int64(i)/int64(attempts)
		ended := min(created+30+int64(random.ExpFloat64()*3000), end.Unix())
		k := Key{Gang: fmt.Sprintf("q%d/job-%d", queue, i/2), Number: i%2 + 1, Base: uint64(i + 1)}
		a := Attempt{Key: k, Queue: fmt.Sprintf("queue-%d", queue), User: user, Members: 1, Cards: cards, Submitted: time.Unix(created-60, 0), Queued: time.Unix(created-60, 0), Planned: time.Unix(created, 0)}
		id, _, err := w.insert("INSERT INTO attempt (gang, number, base, queue, user, members, cards, submitted, queued, planned) VALUES (?,?,?,?,?,?,?,?,?,?)",
			k.Gang, k.Number, int64(k.Base), w.name(a.Queue), w.name(user), 1, cards, millis(a.Submitted), millis(a.Queued), millis(a.Planned))
		must.NoError(b, err)
		alloc, _, err := w.insert("INSERT INTO allocation (attempt, alloc, node, model, cards, created) VALUES (?,?,?,?,?,?)", id, strconv.FormatInt(id, 16), w.name("n1"), w.name(model), cards, created)
		must.NoError(b, err)
		_, _, err = w.insert("INSERT INTO allocation_end VALUES (?,1,?,?)", alloc, ended, w.name("complete"))
		must.NoError(b, err)
		_, _, err = w.insert("INSERT INTO attempt_end VALUES (?,?,?,?,?,0,0,'')", id, ended*1000, w.name("complete"), w.name(""), w.name(""))
		must.NoError(b, err)
		_, _, err = w.insert("INSERT INTO stage VALUES (?,?,?)", id, w.name("started"), (created+5)*1000)
		must.NoError(b, err)
		s := lasting(model, cards, created, ended)
		for h := created / hour; h*hour < ended; h++ {
			held, training := s.within(h*hour, (h+1)*hour)
			if held+training == 0 {
				continue
			}
			_, _, err := w.insert("INSERT INTO usage VALUES (?,?,?,0,?,0,?,?)", id, w.name(model), h, held+training, held, training)
			must.NoError(b, err)
			amounts := Amounts{Guaranteed: held + training, Held: held, Training: training}
			w.sum(sumKey{"usage_hour", h, w.name(a.Queue), w.name(user), w.name(model)}, amounts)
			w.sum(sumKey{"usage_day", h / 24, w.name(a.Queue), w.name(user), w.name(model)}, amounts)
		}
		if i%100_000 == 99_999 {
			commit()
			begin()
		}
	}
	must.NoError(b, w.set("booked", end.Unix()/hour))
	commit()
	for _, s := range w.stmts {
		_ = s.Close()
	}
	must.NoError(b, w.conn.Close())
	l.shut()
	return path, end
}

func lasting(model string, cards int, created, ended int64) *span {
	return &span{model: model, cards: cards, created: created, ended: ended, launched: created + 5}
}

func run(w *writer, text string) error {
	_, err := w.conn.ExecContext(w.ctx, text)
	return err
}

// Usage over a year of five million attempts. Run with:
// go test ./planner/accounting -run xxx -bench Usage -benchtime 3x -timeout 30m
func BenchmarkUsage(b *testing.B) {
	attempts := 5_000_000
	if n, err := strconv.Atoi(os.Getenv("MUSTER_BENCH_ATTEMPTS")); err == nil {
		attempts = n
	}
	path, end := year(b, attempts)
	l, err := Open(context.Background(), Options{Path: path})
	must.NoError(b, err)
	defer closed(b, l)
	from := end.AddDate(-1, 0, 0)
	for _, q := range []struct {
		name  string
		query Query
	}{
		{"year/queue,user,model", Query{From: from, To: end, By: []string{ByQueue, ByUser, ByModel}}},
		{"year/month,queue", Query{From: from, To: end, By: []string{ByMonth, ByQueue}}},
		{"year/day,queue=1", Query{From: from.Add(5 * time.Hour), To: end.Add(-5 * time.Hour), By: []string{ByDay}, Queue: "queue-7"}},
		{"week/hour", Query{From: end.AddDate(0, 0, -7), To: end, By: []string{ByHour}}},
		{"day/gang", Query{From: end.AddDate(0, 0, -1), To: end, By: []string{ByGang}}},
		{"year/one gang", Query{From: from, To: end, By: []string{ByAttempt}, Gang: "q3/job-1234"}},
	} {
		b.Run(q.name, func(b *testing.B) {
			for range b.N {
				u, err := l.Usage(context.Background(), q.query)
				must.NoError(b, err)
				if q.query.Gang == "" {
					must.Positive(b, len(u.Lines))
				}
			}
		})
	}
}
