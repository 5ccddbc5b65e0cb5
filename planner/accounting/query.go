package accounting

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Dimensions that usage can be asked by.
const (
	ByQueue   = "queue"
	ByUser    = "user"
	ByModel   = "model"
	ByGang    = "gang"
	ByAttempt = "attempt" // of a gang
	ByHour    = "hour"
	ByDay     = "day"
	ByMonth   = "month"
)

// Dimensions are all of them, in the order in which lines are sorted by them.
var Dimensions = []string{ByMonth, ByDay, ByHour, ByQueue, ByUser, ByModel, ByGang, ByAttempt}

// Query asks for usage in [From, To), by dimensions, of what the filters name
// ("": all).
type Query struct {
	From, To                 time.Time
	By                       []string
	Queue, User, Model, Gang string
}

// Usage answers it. From and To are what the answer is of: booked hours are
// whole.
type Usage struct {
	From, To time.Time
	Lines    []Line
}

// Line is one combination of the dimensions; those that were not asked for are
// empty.
type Line struct {
	Period                   time.Time // begin of the hour, day or month; zero: all of the time
	Queue, User, Model, Gang string
	Attempt                  int
	Amounts
	Lost map[string]int64 // card-seconds by cause
}

// LostTotal is what was lost for all causes.
func (l *Line) LostTotal() (sum int64) {
	for _, n := range l.Lost {
		sum += n
	}
	return sum
}

type lineKey struct {
	period                   int64
	queue, user, model, gang string
	attempt                  int
}

// Usage sums up.
func (l *Ledger) Usage(ctx context.Context, q Query) (Usage, error) {
	if q.To.Before(q.From) {
		return Usage{}, fmt.Errorf("sum up usage: it ends at %s, before it begins at %s", q.To.UTC().Format(time.RFC3339), q.From.UTC().Format(time.RFC3339))
	}
	by := map[string]bool{}
	for _, d := range q.By {
		if !slices.Contains(Dimensions, d) {
			return Usage{}, fmt.Errorf("sum up usage: %q is none of %s", d, strings.Join(Dimensions, ", "))
		}
		by[d] = true
	}
	by[ByGang] = by[ByGang] || by[ByAttempt]
	first, last := q.From.Unix()/hour, (q.To.Unix()+hour-1)/hour
	sum := map[lineKey]*Line{}
	line := func(k lineKey) *Line {
		if sum[k] == nil {
			sum[k] = &Line{Queue: k.queue, User: k.user, Model: k.model, Gang: k.gang, Attempt: k.attempt, Lost: map[string]int64{}}
			if k.period >= 0 {
				sum[k].Period = time.Unix(k.period, 0).UTC()
			}
		}
		return sum[k]
	}
	// What is not in the ledger yet is taken first: an hour that is booked
	// meanwhile is then not missing, and not counted twice.
	rows := l.book.unbooked(first*hour, min(last*hour, q.To.Unix()))
	booked, err := l.bookedHours(ctx)
	if err != nil {
		return Usage{}, err
	}
	for _, r := range rows {
		if r.Hour < booked || q.Queue != "" && q.Queue != r.Queue || q.User != "" && q.User != r.User || q.Model != "" && q.Model != r.Model || q.Gang != "" && q.Gang != r.Gang {
			continue
		}
		line(q.key(by, r.Hour*hour, r.Queue, r.User, r.Model, r.Gang, r.Number)).add(r.Amounts)
	}
	for _, p := range q.parts(by, first, min(last, booked)) {
		if err := l.scan(ctx, q, by, p, func(k lineKey, a Amounts) { line(k).add(a) }); err != nil {
			return Usage{}, err
		}
	}
	if err := l.losses(ctx, q, by, first, last, func(k lineKey, cause string, n int64) { line(k).Lost[cause] += n }); err != nil {
		return Usage{}, err
	}
	out := Usage{From: time.Unix(first*hour, 0).UTC(), To: time.Unix(min(last*hour, max(q.To.Unix(), booked*hour)), 0).UTC()}
	for _, v := range sum {
		if v.Total() != 0 || len(v.Lost) > 0 {
			out.Lines = append(out.Lines, *v)
		}
	}
	slices.SortFunc(out.Lines, func(a, b Line) int {
		return cmp.Or(a.Period.Compare(b.Period), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.User, b.User), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Attempt, b.Attempt))
	})
	return out, nil
}

// bookedHours is the first hour that the file does not have.
func (l *Ledger) bookedHours(ctx context.Context) (int64, error) {
	var booked int64
	if err := l.readers.QueryRowContext(ctx, "SELECT value FROM state WHERE name = 'booked'").Scan(&booked); err != nil {
		return 0, fmt.Errorf("read ledger %s: %w", l.path, err)
	}
	return booked, nil
}

// key is the line that an amount belongs to; at is in seconds.
func (q *Query) key(by map[string]bool, at int64, queue, user, model, gang string, attempt int) lineKey {
	k := lineKey{period: -1}
	switch {
	case by[ByHour]:
		k.period = at / hour * hour
	case by[ByDay]:
		k.period = at / 86400 * 86400
	case by[ByMonth]:
		y, m, _ := time.Unix(at, 0).UTC().Date()
		k.period = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC).Unix()
	}
	if by[ByQueue] {
		k.queue = queue
	}
	if by[ByUser] {
		k.user = user
	}
	if by[ByModel] {
		k.model = model
	}
	if by[ByGang] {
		k.gang = gang
	}
	if by[ByAttempt] {
		k.attempt = attempt
	}
	return k
}

// part is a range of periods of one table.
type part struct {
	table       string
	unit        int64 // seconds of a period
	first, last int64 // periods, last excluded
}

// parts cover the hours [first, last) with the largest sums that will do.
func (q *Query) parts(by map[string]bool, first, last int64) []part {
	switch {
	case first >= last:
		return nil
	case by[ByGang] || q.Gang != "":
		return []part{{"usage", hour, first, last}}
	case by[ByHour]:
		return []part{{"usage_hour", hour, first, last}}
	}
	firstDay, lastDay := (first+23)/24, last/24
	if firstDay >= lastDay {
		return []part{{"usage_hour", hour, first, last}}
	}
	out := []part{{"usage_day", 86400, firstDay, lastDay}}
	if first < firstDay*24 {
		out = append(out, part{"usage_hour", hour, first, firstDay * 24})
	}
	if lastDay*24 < last {
		out = append(out, part{"usage_hour", hour, lastDay * 24, last})
	}
	return out
}

// scan sums up one part.
func (l *Ledger) scan(ctx context.Context, q Query, by map[string]bool, p part, take func(lineKey, Amounts)) error {
	period := map[int64]string{hour: "t.hour", 86400: "t.day"}[p.unit]
	from, owner := p.table+" t", "t"
	columns := map[string]string{}
	if p.table == "usage" {
		from, owner = "usage t JOIN attempt a ON a.id = t.attempt", "a"
		columns[ByGang], columns[ByAttempt] = "a.gang", "a.number"
	}
	columns[ByQueue], columns[ByUser], columns[ByModel] = owner+".queue", owner+".user", "t.model"
	var fields []string
	field := func(asked bool, column, otherwise string) {
		if asked {
			fields = append(fields, column)
		} else {
			fields = append(fields, otherwise)
		}
	}
	field(by[ByHour] || by[ByDay] || by[ByMonth], period, "0")
	for _, d := range []string{ByQueue, ByUser, ByModel} {
		field(by[d], columns[d], "0")
	}
	field(by[ByGang], columns[ByGang], "''")
	field(by[ByAttempt], columns[ByAttempt], "0")
	where := []string{period + " >= ?", period + " < ?"}
	args := []any{p.first, p.last}
	for _, f := range []struct{ value, column string }{{q.Queue, columns[ByQueue]}, {q.User, columns[ByUser]}, {q.Model, columns[ByModel]}} {
		if f.value != "" {
			where, args = append(where, f.column+" = (SELECT id FROM name WHERE text = ?)"), append(args, f.value)
		}
	}
	if q.Gang != "" {
		where, args = append(where, "t.attempt IN (SELECT id FROM attempt WHERE gang = ?)"), append(args, q.Gang)
	}
	inner := "SELECT " + fields[0] + " p, " + fields[1] + " q, " + fields[2] + " u, " + fields[3] + " m, " + fields[4] + " g, " + fields[5] + " n, " +
		"sum(t.guaranteed) a1, sum(t.borrowed) a2, sum(t.held) a3, sum(t.training) a4 FROM " + from + " WHERE " + strings.Join(where, " AND ") + " GROUP BY 1, 2, 3, 4, 5, 6"
	text := "SELECT s.p, coalesce(q.text, ''), coalesce(u.text, ''), coalesce(m.text, ''), s.g, s.n, s.a1, s.a2, s.a3, s.a4 FROM (" + inner +
		") s LEFT JOIN name q ON q.id = s.q LEFT JOIN name u ON u.id = s.u LEFT JOIN name m ON m.id = s.m"
	rows, err := l.readers.QueryContext(ctx, text, args...)
	if err != nil {
		return fmt.Errorf("sum up usage: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var at int64
		var attempt int
		var queue, user, model, gang string
		var a Amounts
		if err := rows.Scan(&at, &queue, &user, &model, &gang, &attempt, &a.Guaranteed, &a.Borrowed, &a.Held, &a.Training); err != nil {
			return fmt.Errorf("sum up usage: %w", err)
		}
		take(q.key(by, at*p.unit, queue, user, model, gang, attempt), a)
	}
	return rows.Err()
}

// losses sums up what was lost in the hours [first, last).
func (l *Ledger) losses(ctx context.Context, q Query, by map[string]bool, first, last int64, take func(k lineKey, cause string, n int64)) error {
	read := func(text string, unit int64, args ...any) error {
		for _, f := range []struct{ value, column string }{{q.Queue, "t.queue"}, {q.User, "t.user"}, {q.Model, "t.model"}} {
			if f.value != "" {
				text, args = text+" AND "+f.column+" = (SELECT id FROM name WHERE text = ?)", append(args, f.value)
			}
		}
		if q.Gang != "" {
			text, args = text+" AND a.gang = ?", append(args, q.Gang)
		}
		rows, err := l.readers.QueryContext(ctx, text, args...)
		if err != nil {
			return fmt.Errorf("sum up losses: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var at, n int64
			var attempt int
			var queue, user, model, cause, gang string
			if err := rows.Scan(&at, &queue, &user, &model, &cause, &gang, &attempt, &n); err != nil {
				return fmt.Errorf("sum up losses: %w", err)
			}
			take(q.key(by, at*unit, queue, user, model, gang, attempt), cause, n)
		}
		return rows.Err()
	}
	const names = " JOIN name q ON q.id = t.queue JOIN name u ON u.id = t.user JOIN name m ON m.id = t.model JOIN name c ON c.id = t.cause"
	single := func(first, last int64) error {
		return read("SELECT t.at, q.text, u.text, m.text, c.text, a.gang, a.number, t.card_seconds FROM loss t JOIN attempt a ON a.id = t.attempt"+names+
			" WHERE t.at >= ? AND t.at < ?", 1, first*hour, last*hour)
	}
	firstDay, lastDay := (first+23)/24, last/24
	if by[ByGang] || q.Gang != "" || by[ByHour] || firstDay >= lastDay {
		return single(first, last)
	}
	if err := read("SELECT t.day, q.text, u.text, m.text, c.text, '', 0, t.card_seconds FROM loss_day t"+names+" WHERE t.day >= ? AND t.day < ?", 86400, firstDay, lastDay); err != nil {
		return err
	}
	if first < firstDay*24 {
		if err := single(first, firstDay*24); err != nil {
			return err
		}
	}
	if lastDay*24 < last {
		return single(lastDay*24, last)
	}
	return nil
}

// Spent is each queue's card-seconds from a time that is its own up to now.
func (l *Ledger) Spent(ctx context.Context, since map[string]time.Time, now time.Time) (map[string]int64, error) {
	out := map[string]int64{}
	at := map[time.Time][]string{}
	for queue, t := range since {
		at[t] = append(at[t], queue)
	}
	for t, queues := range at {
		u, err := l.Usage(ctx, Query{From: t, To: now, By: []string{ByQueue}})
		if err != nil {
			return nil, err
		}
		for i := range u.Lines {
			if slices.Contains(queues, u.Lines[i].Queue) {
				out[u.Lines[i].Queue] += u.Lines[i].Total()
			}
		}
	}
	return out, nil
}

// PeriodStart is when a budget's period began: of the day, the week (Monday) or
// the month, in UTC.
func PeriodStart(period string, now time.Time) time.Time {
	now = now.UTC()
	y, m, d := now.Date()
	switch period {
	case "month":
		d = 1
	case "week":
		d -= (int(now.Weekday()) + 6) % 7
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// Totals are card-seconds since the books began, by queue, model and category,
// up to now.
func (l *Ledger) Totals(now time.Time) map[[3]string]int64 {
	out := map[[3]string]int64{}
	written := l.book.written.Load()
	for _, r := range l.book.unbooked(0, now.Unix()) {
		if r.Hour < written {
			continue // it is counted below
		}
		for category, n := range map[string]int64{Guaranteed: r.Guaranteed, Borrowed: r.Borrowed, Held: r.Held, Training: r.Training} {
			out[[3]string{r.Queue, r.Model, category}] += n
		}
	}
	for _, t := range l.Tallies(TallyUsage) {
		if len(t.Labels) == 3 {
			out[[3]string(t.Labels)] += t.Value
		}
	}
	return out
}

// Held is what one allocation held of a model up to now; false: the books do
// not have it.
func (l *Ledger) Held(ctx context.Context, alloc, model string, now time.Time) (int64, bool, error) {
	var n int64
	err := l.readers.QueryRowContext(ctx, `SELECT p.cards * max(0, coalesce((SELECT e.ended FROM allocation_end e WHERE e.allocation = p.id ORDER BY e.exact DESC LIMIT 1), ?) - p.created)
		FROM allocation p WHERE p.alloc = ? AND p.model = (SELECT id FROM name WHERE text = ?)`, now.Unix(), alloc, model).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read ledger %s: %w", l.path, err)
	}
	return n, true, nil
}
