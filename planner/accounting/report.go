package accounting

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Wait sums up how long attempts of one queue and size class waited, from their
// entry into the queue to their placement.
type Wait struct {
	Queue string        `json:"queue"` // "": of all queues
	Size  string        `json:"size"`  // of SizeClasses
	Count int           `json:"count"`
	Mean  time.Duration `json:"mean"` // nanoseconds in JSON
	// Quantiles at 5, 25, 50, 75 and 95 %.
	Quantiles [5]time.Duration `json:"quantiles"`
}

// Waits of the attempts that were placed in [from, to), by queue and size class,
// all queues together first, sizes in the order of SizeClasses.
func (l *Ledger) Waits(ctx context.Context, from, to time.Time) ([]Wait, error) {
	type key struct {
		queue string
		size  int
	}
	waits := map[key][]time.Duration{}
	err := l.each(ctx, "sum up waits", "SELECT n.text, a.cards, a.planned - a.queued FROM attempt a JOIN name n ON n.id = a.queue WHERE a.planned >= ? AND a.planned < ? AND a.queued > 0",
		[]any{from.UnixMilli(), to.UnixMilli()}, func(rows *sql.Rows) error {
			var queue string
			var cards int
			var ms int64
			if err := rows.Scan(&queue, &cards, &ms); err != nil {
				return err
			}
			wait := time.Duration(max(ms, 0)) * time.Millisecond
			size := slices.Index(SizeClasses, SizeClass(cards))
			for _, q := range []string{"", queue} {
				waits[key{q, size}] = append(waits[key{q, size}], wait)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	var out []Wait
	for _, k := range slices.SortedFunc(maps.Keys(waits), func(a, b key) int { return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.size, b.size)) }) {
		w := Wait{Queue: k.queue, Size: SizeClasses[k.size], Count: len(waits[k])}
		w.Mean, w.Quantiles = meanOf(waits[k]), quantiles(waits[k])
		out = append(out, w)
	}
	return out, nil
}

func meanOf(list []time.Duration) time.Duration {
	sum := 0.0
	for _, d := range list {
		sum += float64(d)
	}
	return time.Duration(sum / float64(len(list)))
}

// quantiles at 5, 25, 50, 75 and 95 % of a list that is not empty; each is one
// of its members.
func quantiles(list []time.Duration) (out [5]time.Duration) {
	slices.Sort(list)
	for i, share := range []int{5, 25, 50, 75, 95} {
		out[i] = list[(len(list)-1)*share/100]
	}
	return out
}

// Foretold sums up how good the expected starts were of attempts that were
// placed in a time: their error is the distance of the placement from the range
// that was told first.
type Foretold struct {
	Within int `json:"within"`
	Early  int `json:"early"`
	Late   int `json:"late"`
	// Median and P95 of the errors of all, those within the range being zero.
	Median time.Duration `json:"median"`
	P95    time.Duration `json:"p95"`
}

// Foretold in [from, to).
func (l *Ledger) Foretold(ctx context.Context, from, to time.Time) (Foretold, error) {
	var f Foretold
	var errors []time.Duration
	err := l.each(ctx, "sum up expected starts", "SELECT eta_from, eta_to, planned FROM attempt WHERE planned >= ? AND planned < ? AND eta_made > 0", []any{from.UnixMilli(), to.UnixMilli()},
		func(rows *sql.Rows) error {
			var first, last, planned int64
			if err := rows.Scan(&first, &last, &planned); err != nil {
				return err
			}
			off, side := ETA{From: time.UnixMilli(first), To: time.UnixMilli(last)}.Error(time.UnixMilli(planned))
			switch side {
			case "within":
				f.Within++
			case "early":
				f.Early++
			default:
				f.Late++
			}
			errors = append(errors, off)
			return nil
		})
	if err == nil && len(errors) > 0 {
		q := quantiles(errors)
		f.Median, f.P95 = q[2], q[4]
	}
	return f, err
}

// Ends counts attempts of a queue that ended for one cause, with what was lost
// by it.
type Ends struct {
	Queue string `json:"queue"`
	Cause string `json:"cause"`
	Count int    `json:"count"`
	Lost  int64  `json:"lost"` // card-seconds
}

// Ends in [from, to), by queue, and by cause as Cause names them.
func (l *Ledger) Ends(ctx context.Context, from, to time.Time) ([]Ends, error) {
	type key struct{ queue, cause string }
	sums := map[key]*Ends{}
	at := func(queue, cause string) *Ends {
		k := key{queue, cause}
		if sums[k] == nil {
			sums[k] = &Ends{Queue: queue, Cause: cause}
		}
		return sums[k]
	}
	err := l.each(ctx, "count ends", "SELECT q.text, o.text, r.text, e.code, count(*) FROM attempt_end e JOIN attempt a ON a.id = e.attempt JOIN name q ON q.id = a.queue "+
		"JOIN name o ON o.id = e.outcome JOIN name r ON r.id = e.reason WHERE e.ended >= ? AND e.ended < ? GROUP BY 1, 2, 3, 4", []any{from.UnixMilli(), to.UnixMilli()},
		func(rows *sql.Rows) error {
			var queue string
			var e AttemptEnd
			var n int
			if err := rows.Scan(&queue, &e.Outcome, &e.Reason, &e.Code, &n); err != nil {
				return err
			}
			at(queue, Cause(&e)).Count += n
			return nil
		})
	if err != nil {
		return nil, err
	}
	err = l.each(ctx, "sum up losses", "SELECT q.text, c.text, sum(l.card_seconds) FROM loss l JOIN name q ON q.id = l.queue JOIN name c ON c.id = l.cause WHERE l.at >= ? AND l.at < ? GROUP BY 1, 2",
		[]any{from.Unix(), to.Unix()}, func(rows *sql.Rows) error {
			var queue, cause string
			var lost int64
			if err := rows.Scan(&queue, &cause, &lost); err != nil {
				return err
			}
			at(queue, cause).Lost += lost
			return nil
		})
	var out []Ends
	for _, e := range sums {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b Ends) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(b.Lost, a.Lost), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause))
	})
	return out, err
}

// ClusterHour is what the cards of one model did in one hour, in card-seconds
// of the Observed seconds of the hour.
type ClusterHour struct {
	Hour                   time.Time
	Model                  string
	Observed               int64 // seconds
	Free, Used, Other, Out int64
	Fragmented             int64 // of Free: what the gangs that waited could not use
	Wanted                 int64 // what they waited for
}

// ClusterHours in [from, to), by hour and model.
func (l *Ledger) ClusterHours(ctx context.Context, from, to time.Time) ([]ClusterHour, error) {
	var out []ClusterHour
	err := l.each(ctx, "read the cluster's hours", "SELECT c.hour, n.text, c.observed, c.free, c.used, c.other, c.out, c.fragmented, c.wanted FROM cluster_hour c JOIN name n ON n.id = c.model "+
		"WHERE c.hour >= ? AND c.hour < ? ORDER BY 1, 2", []any{from.Unix() / hour, (to.Unix() + hour - 1) / hour}, func(rows *sql.Rows) error {
		var c ClusterHour
		var at int64
		if err := rows.Scan(&at, &c.Model, &c.Observed, &c.Free, &c.Used, &c.Other, &c.Out, &c.Fragmented, &c.Wanted); err != nil {
			return err
		}
		c.Hour = time.Unix(at*hour, 0).UTC()
		out = append(out, c)
		return nil
	})
	return out, err
}

// Activity is what samples told of the cards that a queue's gangs held.
type Activity struct {
	Hour  time.Time // zero: of all hours
	Queue string    // "": of all queues
	// Sampled card-seconds, those of them without any activity, and the mean
	// share of the time that the others' chips worked.
	Sampled, Idle int64
	Mean          float64
	// MemoryUsed of MemoryHeld is a share.
	Memory float64
	Energy int64 // joules
}

// Activity in [from, to): by hour over all queues, or by queue over all hours.
func (l *Ledger) Activity(ctx context.Context, from, to time.Time, byQueue bool) ([]Activity, error) {
	what, group := "u.hour, ''", "u.hour"
	if byQueue {
		what, group = "0, n.text", "n.text"
	}
	var out []Activity
	err := l.each(ctx, "sum up activity", "SELECT "+what+", sum(u.sampled), sum(u.idle), sum(u.activity), sum(u.memory), sum(u.memory_total), sum(u.energy) FROM utilisation_hour u JOIN name n ON n.id = u.queue "+
		"WHERE u.hour >= ? AND u.hour < ? GROUP BY "+group+" ORDER BY 1, 2", []any{from.Unix() / hour, (to.Unix() + hour - 1) / hour}, func(rows *sql.Rows) error {
		var a Activity
		var at, activity, used, held int64
		if err := rows.Scan(&at, &a.Queue, &a.Sampled, &a.Idle, &activity, &used, &held, &a.Energy); err != nil {
			return err
		}
		if at > 0 {
			a.Hour = time.Unix(at*hour, 0).UTC()
		}
		if a.Sampled > 0 {
			a.Mean = float64(activity) / 1000 / float64(a.Sampled)
		}
		if held > 0 {
			a.Memory = float64(used) / float64(held)
		}
		out = append(out, a)
		return nil
	})
	return out, err
}

// Waiting is how many gangs of a queue waited, from a time on.
type Waiting struct {
	At    time.Time
	Queue string
	Gangs int
}

// Waiting in [from, to): for each queue its count at from, and each change after
// it, in order of time. Attempts that were never placed do not count.
func (l *Ledger) Waiting(ctx context.Context, from, to time.Time) ([]Waiting, error) {
	type change struct {
		at    int64
		queue string
		by    int
	}
	var changes []change
	err := l.each(ctx, "follow queues", "SELECT n.text, a.queued, a.planned FROM attempt a JOIN name n ON n.id = a.queue WHERE a.planned >= ? AND a.queued < ? AND a.queued > 0",
		[]any{from.UnixMilli(), to.UnixMilli()}, func(rows *sql.Rows) error {
			var queue string
			var queued, planned int64
			if err := rows.Scan(&queue, &queued, &planned); err != nil {
				return err
			}
			changes = append(changes, change{max(queued, from.UnixMilli()), queue, 1})
			if planned < to.UnixMilli() {
				changes = append(changes, change{max(planned, queued), queue, -1})
			}
			return nil
		})
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.at, b.at), cmp.Compare(b.by, a.by))
	})
	var out []Waiting
	n := 0
	for i, c := range changes {
		if i == 0 || changes[i-1].queue != c.queue {
			n = 0
		}
		n += c.by
		if i+1 < len(changes) && changes[i+1].queue == c.queue && changes[i+1].at == c.at {
			continue
		}
		out = append(out, Waiting{time.UnixMilli(c.at).UTC(), c.queue, n})
	}
	return out, err
}

// each reads rows.
func (l *Ledger) each(ctx context.Context, operation, query string, args []any, row func(*sql.Rows) error) error {
	rows, err := l.readers.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return fmt.Errorf("%s: %w", operation, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return nil
}
