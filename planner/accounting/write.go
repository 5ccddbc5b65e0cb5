package accounting

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// batch is the most records of one transaction.
const batch = 4000

// writer is the one that writes.
type writer struct {
	ledger *Ledger
	ctx    context.Context // ends with the ledger
	calls  context.Context // of single statements: one that nobody cancels costs the driver less
	conn   *sql.Conn
	stmts  map[string]*sql.Stmt
	booked int64
	err    error // of a name that could not be booked

	// Caches of ids, and of sums and counts of the transaction under way.
	names    map[string]int64
	attempts map[Key]int64
	sums     map[sumKey]Amounts
	counts   map[string]int64
}

type sumKey struct {
	table                      string
	period, queue, user, model int64
}

// begin takes the connection and what the ledger knows of itself.
func (w *writer) begin() error {
	conn, err := w.ledger.db.Conn(w.ctx)
	if err != nil {
		return fmt.Errorf("open ledger %s: %w", w.ledger.path, err)
	}
	w.conn, w.stmts = conn, map[string]*sql.Stmt{}
	w.reset()
	_, err = w.row("SELECT value FROM state WHERE name = 'booked'", nil, &w.booked)
	return err
}

// reset forgets what a transaction that failed has found.
func (w *writer) reset() {
	w.names, w.attempts, w.sums, w.counts, w.err = map[string]int64{}, map[Key]int64{}, map[sumKey]Amounts{}, map[string]int64{}, nil
}

// run writes until the ledger is closed.
func (w *writer) run() {
	defer func() {
		for _, s := range w.stmts {
			_ = s.Close()
		}
		_ = w.conn.Close()
	}()
	pause := time.Second
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.ledger.wake:
		}
		if !w.rest(w.ledger.linger) {
			return
		}
		for {
			records := w.ledger.take()
			if len(records) == 0 {
				break
			}
			refused, err := w.transaction(records)
			w.ledger.took(len(records), refused, err)
			if err == nil {
				pause = time.Second
				continue
			}
			if w.ctx.Err() != nil || !w.rest(pause) {
				return
			}
			pause = min(2*pause, 30*time.Second)
		}
	}
}

func (w *writer) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// take gives the next records, which stay in the queue until they are written.
func (l *Ledger) take() []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), batch)
	return l.queue[:n:n]
}

// took notes how a transaction went.
func (l *Ledger) took(n, refused int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := err == nil
	if l.health.OK != ok || !ok && (l.health.Err == nil || l.health.Err.Error() != err.Error()) {
		if ok {
			l.log.Info("the ledger is written again", "path", l.path)
		} else {
			l.log.Error("the ledger cannot be written; scheduling goes on, records wait in memory", "path", l.path, "error", err)
		}
		l.health.Since = time.Now()
	}
	l.health.OK, l.health.Err = ok, err
	if !ok {
		return
	}
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.written += int64(n)
	l.health.Written += int64(n - refused)
	l.health.Refused += int64(refused)
	close(l.flushed)
	l.flushed = make(chan struct{})
}

// transaction writes records, all or none. Those that the ledger itself refuses
// are left out.
func (w *writer) transaction(records []record) (refused int, err error) {
	bad := map[int]bool{}
	for {
		at, err := w.try(records, bad)
		if err == nil || at < 0 || !constraint(err) {
			return len(bad), err
		}
		w.ledger.log.Error("a record is refused by the ledger", "record", fmt.Sprintf("%+v", records[at]), "error", err)
		bad[at] = true
	}
}

// try writes all records but the bad ones; at is the one that failed.
func (w *writer) try(records []record, bad map[int]bool) (at int, err error) {
	if w.ledger.before != nil {
		if err := w.ledger.before(); err != nil {
			return -1, err
		}
	}
	booked := w.booked
	defer func() {
		if err != nil {
			// A transaction that failed may be over already.
			_, _ = w.conn.ExecContext(context.WithoutCancel(w.ctx), "ROLLBACK")
			w.reset()
			w.booked = booked
		}
	}()
	if _, err := w.conn.ExecContext(w.ctx, "BEGIN IMMEDIATE"); err != nil {
		return -1, err
	}
	if len(w.attempts) > 200_000 || len(w.names) > 200_000 {
		w.reset()
	}
	for i, r := range records {
		if bad[i] {
			continue
		}
		if err := errors.Join(r.write(w), w.err); err != nil {
			return i, err
		}
	}
	if err := w.flushSums(); err != nil {
		return -1, err
	}
	for name, n := range w.counts {
		if _, _, err := w.insert("INSERT INTO tally VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value", name, n); err != nil {
			return -1, err
		}
	}
	if _, err := w.conn.ExecContext(w.ctx, "COMMIT"); err != nil {
		return -1, err
	}
	w.ledger.book.written.Store(w.booked)
	w.ledger.mu.Lock()
	for name, n := range w.counts {
		w.ledger.tallies[name] += n
	}
	w.ledger.mu.Unlock()
	clear(w.counts)
	return -1, nil
}

func (w *writer) stmt(text string) (*sql.Stmt, error) {
	if s := w.stmts[text]; s != nil {
		return s, nil
	}
	s, err := w.conn.PrepareContext(w.calls, text)
	if err != nil {
		return nil, err
	}
	w.stmts[text] = s
	return s, nil
}

// insert runs a statement and tells the new row's id and whether there is one.
func (w *writer) insert(text string, args ...any) (id int64, added bool, err error) {
	s, err := w.stmt(text)
	if err != nil {
		return 0, false, err
	}
	r, err := s.ExecContext(w.calls, args...)
	if err != nil {
		return 0, false, err
	}
	n, err := r.RowsAffected()
	if err != nil {
		return 0, false, err
	}
	id, err = r.LastInsertId()
	return id, n > 0, err
}

// row reads one row; false: there is none.
func (w *writer) row(text string, args []any, into ...any) (bool, error) {
	s, err := w.stmt(text)
	if err != nil {
		return false, err
	}
	err = s.QueryRowContext(w.calls, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// name gives a name's id; an error is kept in w.err.
func (w *writer) name(text string) int64 {
	if id, ok := w.names[text]; ok {
		return id
	}
	var id int64
	found, err := w.row("SELECT id FROM name WHERE text = ?", []any{text}, &id)
	if err == nil && !found {
		id, _, err = w.insert("INSERT INTO name (text) VALUES (?)", text)
	}
	if err != nil {
		w.err = errors.Join(w.err, err)
		return 0
	}
	w.names[text] = id
	return id
}

func (w *writer) set(name string, value int64) error {
	_, _, err := w.insert("INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", name, value)
	return err
}

func (w *writer) guarantee(queue string) Guarantee {
	w.ledger.book.mu.Lock()
	defer w.ledger.book.mu.Unlock()
	return w.ledger.book.guarantees[queue]
}

func (w *writer) sum(k sumKey, a Amounts) {
	have := w.sums[k]
	have.add(a)
	w.sums[k] = have
}

// flushSums brings the sums of the transaction under way to their tables.
func (w *writer) flushSums() error {
	for k, a := range w.sums {
		period := "hour"
		if k.table == "usage_day" {
			period = "day"
		}
		if _, _, err := w.insert("INSERT INTO "+k.table+" ("+period+", queue, user, model, guaranteed, borrowed, held, training) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "+
			"guaranteed = guaranteed + excluded.guaranteed, borrowed = borrowed + excluded.borrowed, held = held + excluded.held, training = training + excluded.training",
			k.period, k.queue, k.user, k.model, a.Guaranteed, a.Borrowed, a.Held, a.Training); err != nil {
			return err
		}
	}
	clear(w.sums)
	return nil
}

// Names of tallies: counts that are kept with the records that they count, so
// that they go on over restarts. A tally's name is followed by its labels.
const (
	TallyUsage     = "card_seconds"   // queue, model, category
	TallyLost      = "lost"           // cause; card-seconds
	TallyEvictions = "evictions"      // queue, kind, outcome
	TallyAttempts  = "attempts_ended" // queue, outcome
	TallyEnds      = "gangs_ended"    // queue, stage
	TallyDecisions = "decisions"      // action, reason
	TallyStage     = "stage"          // stage; a histogram
	TallyWait      = "wait"           // queue, size class; a histogram
	TallyETA       = "eta"            // side; a histogram
)

// Bounds are the upper bounds of the histograms' buckets in seconds; one more
// has no bound.
var Bounds = []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 1800, 7200, 28800, 86400, 604800}

const separator = "\x1f"

// count adds to a tally.
func (w *writer) count(tally string, n int64, labels ...string) {
	w.counts[tally+separator+strings.Join(labels, separator)] += n
}

// observe adds to a histogram: its bucket, and its sum in milliseconds.
func (w *writer) observe(tally string, d time.Duration, labels ...string) {
	d = max(d, 0)
	bucket, _ := slices.BinarySearch(Bounds, d.Seconds())
	w.count(tally, 1, append(slices.Clone(labels), fmt.Sprintf("b%02d", bucket))...)
	w.count(tally, d.Milliseconds(), append(slices.Clone(labels), "sum")...)
}

// Tally is a count, or a histogram, with its labels.
type Tally struct {
	Labels  []string
	Value   int64
	Buckets []int64 // of a histogram, one more than Bounds
	Sum     time.Duration
}

// Tallies gives all counts of a name, as far as they are written.
func (l *Ledger) Tallies(tally string) []Tally { return l.tallied(tally, false) }

// Histograms gives all histograms of a name.
func (l *Ledger) Histograms(tally string) []Tally { return l.tallied(tally, true) }

func (l *Ledger) tallied(tally string, histogram bool) []Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := map[string]int{}
	var out []Tally
	for name, n := range l.tallies {
		parts := strings.Split(name, separator)
		if parts[0] != tally {
			continue
		}
		labels := parts[1:]
		if !histogram {
			out = append(out, Tally{Labels: labels, Value: n})
			continue
		}
		bucket := labels[len(labels)-1]
		labels = labels[:len(labels)-1]
		key := strings.Join(labels, separator)
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, Tally{Labels: labels, Buckets: make([]int64, len(Bounds)+1)})
		}
		if bucket == "sum" {
			out[i].Sum = time.Duration(n) * time.Millisecond
			continue
		}
		var number int
		if _, err := fmt.Sscanf(bucket, "b%02d", &number); err == nil && number < len(out[i].Buckets) {
			out[i].Buckets[number], out[i].Value = n, out[i].Value+n
		}
	}
	slices.SortFunc(out, func(a, b Tally) int { return slices.Compare(a.Labels, b.Labels) })
	return out
}
