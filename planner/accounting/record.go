package accounting

import (
	"errors"
	"fmt"
	"time"
)

// record is one thing to be written.
type record interface {
	write(w *writer) error
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

type recAttempt struct{ Attempt }

func (r recAttempt) write(w *writer) error {
	_, err := w.attempt(r.Attempt.Key, &r.Attempt)
	return err
}

// attempt gives the id of an attempt. One that is not known is booked: as it
// was seen, or, where that came late, by its name alone.
func (w *writer) attempt(k Key, a *Attempt) (int64, error) {
	if id, ok := w.attempts[k]; ok {
		return id, nil
	}
	var id int64
	found, err := w.row("SELECT id FROM attempt WHERE gang = ? AND number = ? AND base = ?", []any{k.Gang, k.Number, int64(k.Base)}, &id)
	if err != nil {
		return 0, err
	}
	if !found {
		if a == nil {
			a = &Attempt{Key: k}
		}
		queue, user := w.name(a.Queue), w.name(a.User)
		if id, _, err = w.insert("INSERT INTO attempt (gang, number, base, queue, user, members, cards, submitted, queued, planned, eta_made, eta_from, eta_to) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
			k.Gang, k.Number, int64(k.Base), queue, user, a.Members, a.Cards, millis(a.Submitted), millis(a.Queued), millis(a.Planned),
			millis(a.Foretold.Made), millis(a.Foretold.From), millis(a.Foretold.To)); err != nil {
			return 0, err
		}
		if !a.Planned.IsZero() && !a.Queued.IsZero() {
			w.observe(TallyWait, a.Planned.Sub(a.Queued), a.Queue, SizeClass(a.Cards))
		}
		if e := a.Foretold; !e.From.IsZero() && !a.Planned.IsZero() {
			off, side := e.Error(a.Planned)
			w.observe(TallyETA, off, side)
		}
	}
	w.attempts[k] = id
	return id, nil
}

// Error is how far a start was from the range that was foretold, and on which
// side: early, within or late.
func (e ETA) Error(started time.Time) (time.Duration, string) {
	switch {
	case started.Before(e.From):
		return e.From.Sub(started), "early"
	case started.After(latest(e.From, e.To)):
		return started.Sub(latest(e.From, e.To)), "late"
	}
	return 0, "within"
}

// SizeClass is the class of a gang's size, by its cards.
func SizeClass(cards int) string {
	switch {
	case cards <= 1:
		return "1"
	case cards <= 8:
		return "2-8"
	case cards <= 32:
		return "9-32"
	case cards <= 128:
		return "33-128"
	case cards <= 512:
		return "129-512"
	}
	return "513+"
}

// SizeClasses are all of them, smallest first.
var SizeClasses = []string{"1", "2-8", "9-32", "33-128", "129-512", "513+"}

type recPiece struct {
	key   Key
	alloc string
	piece
}

func (r recPiece) write(w *writer) error {
	attempt, err := w.attempt(r.key, nil)
	if err != nil {
		return err
	}
	id, added, err := w.insert("INSERT OR IGNORE INTO allocation (attempt, alloc, node, model, cards, created) VALUES (?,?,?,?,?,?)", attempt, r.alloc, w.name(r.node), w.name(r.model), r.cards, r.created)
	if err != nil || !added {
		return err
	}
	if _, _, err := w.insert("INSERT OR IGNORE INTO pending VALUES (?)", id); err != nil {
		return err
	}
	if r.created/hour >= w.booked {
		return nil
	}
	// Its first hours were booked without it.
	launched, err := w.launched(attempt)
	if err != nil {
		return err
	}
	s := span{model: r.model, cards: r.cards, created: r.created, ended: none, launched: launched}
	return w.correct(attempt, nil, &s)
}

// launched is when an attempt's ranks were, in seconds.
func (w *writer) launched(attempt int64) (int64, error) {
	at := none
	var ms int64
	found, err := w.row("SELECT entered FROM stage WHERE attempt = ? AND stage = ?", []any{attempt, w.name("started")}, &ms)
	if found {
		at = ms / 1000
	}
	return at, err
}

type recEnd struct {
	key          Key
	alloc, model string
	ended        int64
	exact        bool
	how          string
}

func (r recEnd) write(w *writer) error {
	var id, attempt, created int64
	var cards int
	found, err := w.row("SELECT id, attempt, created, cards FROM allocation WHERE alloc = ? AND model = ?", []any{r.alloc, w.name(r.model)}, &id, &attempt, &created, &cards)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("book the end of allocation %s: it is not in the ledger", r.alloc)
	}
	before := none
	var ended, exact int64
	found, err = w.row("SELECT ended, exact FROM allocation_end WHERE allocation = ? ORDER BY exact DESC LIMIT 1", []any{id}, &ended, &exact)
	if err != nil {
		return err
	}
	if found {
		if exact == 1 || !r.exact {
			return nil
		}
		before = ended
	}
	isExact := 0
	if r.exact {
		isExact = 1
	}
	if _, _, err := w.insert("INSERT INTO allocation_end (allocation, exact, ended, how) VALUES (?,?,?,?)", id, isExact, r.ended, w.name(r.how)); err != nil {
		return err
	}
	if min(r.ended, before)/hour >= w.booked {
		return nil
	}
	launched, err := w.launched(attempt)
	if err != nil {
		return err
	}
	was := span{model: r.model, cards: cards, created: created, ended: before, launched: launched}
	is := was
	is.ended = r.ended
	if err := w.correct(attempt, &was, &is); err != nil {
		return err
	}
	if r.ended/hour < w.booked {
		_, _, err = w.insert("DELETE FROM pending WHERE allocation = ?", id)
	}
	return err
}

type recStage struct {
	key    Key
	stage  Stage
	before Stage // the one before it; zero: none
}

func (r recStage) write(w *writer) error {
	attempt, err := w.attempt(r.key, nil)
	if err != nil {
		return err
	}
	_, added, err := w.insert("INSERT OR IGNORE INTO stage (attempt, stage, entered) VALUES (?,?,?)", attempt, w.name(string(r.stage.Stage)), millis(r.stage.At))
	if err != nil || !added {
		return err
	}
	if r.before.Stage != "" {
		w.observe(TallyStage, r.stage.At.Sub(r.before.At), string(r.before.Stage))
	}
	if string(r.stage.Stage) != "started" || r.stage.At.Unix()/hour >= w.booked {
		return nil
	}
	return w.relaunch(attempt, r.stage.At.Unix())
}

// relaunch corrects hours that were booked as held although the ranks ran.
func (w *writer) relaunch(attempt, launched int64) error {
	rows, err := w.conn.QueryContext(w.ctx, "SELECT n.text, a.cards, a.created, coalesce((SELECT e.ended FROM allocation_end e WHERE e.allocation = a.id ORDER BY e.exact DESC LIMIT 1), ?) "+
		"FROM allocation a JOIN name n ON n.id = a.model WHERE a.attempt = ?", none, attempt)
	if err != nil {
		return err
	}
	var spans []span
	for rows.Next() {
		s := span{launched: none}
		if err := rows.Scan(&s.model, &s.cards, &s.created, &s.ended); err != nil {
			return errors.Join(err, rows.Close())
		}
		spans = append(spans, s)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, was := range spans {
		is := was
		is.launched = launched
		if err := w.correct(attempt, &was, &is); err != nil {
			return err
		}
	}
	return nil
}

type recAttemptEnd struct {
	key        Key
	end        AttemptEnd
	queue      string
	eviction   string
	checkpoint time.Time
	last       Stage
}

func (r recAttemptEnd) write(w *writer) error {
	attempt, err := w.attempt(r.key, nil)
	if err != nil {
		return err
	}
	_, added, err := w.insert("INSERT OR IGNORE INTO attempt_end (attempt, ended, outcome, reason, kind, code, checkpoint, text) VALUES (?,?,?,?,?,?,?,?)",
		attempt, millis(r.end.At), w.name(r.end.Outcome), w.name(r.end.Reason), w.name(r.eviction), r.end.Code, millis(r.checkpoint), r.end.Text)
	if err != nil || !added {
		return err
	}
	if r.last.Stage != "" {
		w.observe(TallyStage, r.end.At.Sub(r.last.At), string(r.last.Stage))
	}
	w.count(TallyAttempts, 1, r.queue, r.end.Outcome)
	if r.eviction != "" {
		w.count(TallyEvictions, 1, r.queue, r.eviction, r.end.Outcome)
	}
	return nil
}

type recGangEnd struct {
	gang string
	end  GangEnd
}

func (r recGangEnd) write(w *writer) error {
	e := &r.end
	_, added, err := w.insert("INSERT OR IGNORE INTO gang_end (gang, ended, submitted, stage, queue, user, cards, attempts) VALUES (?,?,?,?,?,?,?,?)",
		r.gang, millis(e.At), millis(e.Submitted), w.name(string(e.Stage)), w.name(e.Queue), w.name(e.User), e.Cards, e.Attempts)
	if added {
		w.count(TallyEnds, 1, e.Queue, string(e.Stage))
	}
	return err
}

type recLoss struct {
	key                       Key
	queue, user, model, cause string
	at, seconds               int64
}

func (r recLoss) write(w *writer) error {
	attempt, err := w.attempt(r.key, nil)
	if err != nil {
		return err
	}
	queue, user, model, cause := w.name(r.queue), w.name(r.user), w.name(r.model), w.name(r.cause)
	_, added, err := w.insert("INSERT OR IGNORE INTO loss (attempt, model, cause, at, queue, user, card_seconds) VALUES (?,?,?,?,?,?,?)", attempt, model, cause, r.at, queue, user, r.seconds)
	if err != nil || !added {
		return err
	}
	w.count(TallyLost, r.seconds, r.cause)
	_, _, err = w.insert("INSERT INTO loss_day VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET card_seconds = card_seconds + excluded.card_seconds", r.at/86400, queue, user, model, cause, r.seconds)
	return err
}

type recDecision struct{ Decision }

func (r recDecision) write(w *writer) error {
	_, added, err := w.insert("INSERT OR IGNORE INTO decision (at, gang, attempt, queue, action, reason, who, text) VALUES (?,?,?,?,?,?,?,?)",
		millis(r.At), r.Gang, r.Attempt, w.name(r.Queue), w.name(r.Action), w.name(r.Reason), r.Who, r.Text)
	if added {
		w.count(TallyDecisions, 1, r.Action, r.Reason)
	}
	return err
}

// recHour books an hour, with allocations that have no more to come.
type recHour struct {
	hour    int64
	rows    []Row
	settled []pieceKey
}

func (r recHour) write(w *writer) error {
	if r.hour+1 <= w.booked {
		return nil
	}
	for i := range r.rows {
		row := &r.rows[i]
		attempt, err := w.attempt(row.Key, nil)
		if err != nil {
			return err
		}
		if err := w.usage(attempt, row.Queue, row.User, row.Model, row.Hour, row.Amounts); err != nil {
			return err
		}
	}
	for _, p := range r.settled {
		if _, _, err := w.insert("DELETE FROM pending WHERE allocation = (SELECT id FROM allocation WHERE alloc = ? AND model = ?)", p.alloc, w.name(p.model)); err != nil {
			return err
		}
	}
	w.booked = r.hour + 1
	return w.set("booked", w.booked)
}

// usage books an amount, or a difference, with its sums.
func (w *writer) usage(attempt int64, queue, user, model string, h int64, a Amounts) error {
	m := w.name(model)
	revision := int64(0)
	if _, err := w.row("SELECT coalesce(max(revision) + 1, 0) FROM usage WHERE attempt = ? AND model = ? AND hour = ?", []any{attempt, m, h}, &revision); err != nil {
		return err
	}
	if _, _, err := w.insert("INSERT INTO usage (attempt, model, hour, revision, guaranteed, borrowed, held, training) VALUES (?,?,?,?,?,?,?,?)",
		attempt, m, h, revision, a.Guaranteed, a.Borrowed, a.Held, a.Training); err != nil {
		return err
	}
	w.sum(sumKey{"usage_hour", h, w.name(queue), w.name(user), m}, a)
	w.sum(sumKey{"usage_day", h / 24, w.name(queue), w.name(user), m}, a)
	for _, c := range []struct {
		category string
		n        int64
	}{{Guaranteed, a.Guaranteed}, {Borrowed, a.Borrowed}, {Held, a.Held}, {Training, a.Training}} {
		if c.n != 0 {
			w.count(TallyUsage, c.n, queue, model, c.category)
		}
	}
	return nil
}

// Categories of card-seconds.
const (
	Guaranteed = "guaranteed"
	Borrowed   = "borrowed"
	Held       = "held"
	Training   = "training"
)

// correct books the difference that a changed fact makes in hours that are
// booked already. Was is nil where the allocation was not known.
func (w *writer) correct(attempt int64, was, is *span) error {
	var queue, user string
	if _, err := w.row("SELECT q.text, u.text FROM attempt a JOIN name q ON q.id = a.queue JOIN name u ON u.id = a.user WHERE a.id = ?", []any{attempt}, &queue, &user); err != nil {
		return err
	}
	for h := is.created / hour; h < w.booked; h++ {
		from, to := h*hour, (h+1)*hour
		held, training := is.within(from, to)
		if was != nil {
			h0, t0 := was.within(from, to)
			held, training = held-h0, training-t0
		} else if held+training == 0 {
			break // past its end
		}
		if held == 0 && training == 0 {
			if was != nil && from >= max(is.ended, was.ended) {
				break
			}
			continue
		}
		a, err := w.divide(attempt, queue, is.model, h, held, training)
		if err != nil {
			return err
		}
		if err := w.usage(attempt, queue, user, is.model, h, a); err != nil {
			return err
		}
	}
	return nil
}

// divide takes a difference from what is left of the hour's guarantee, or off
// what the attempt borrowed in it.
func (w *writer) divide(attempt int64, queue, model string, h, held, training int64) (Amounts, error) {
	a := Amounts{Held: held, Training: training}
	total := a.Total()
	if total < 0 {
		var borrowed int64
		_, err := w.row("SELECT coalesce(sum(borrowed), 0) FROM usage WHERE attempt = ? AND model = ? AND hour = ?", []any{attempt, w.name(model), h}, &borrowed)
		a.Guaranteed = min(0, total+borrowed)
		a.Borrowed = total - a.Guaranteed
		return a, err
	}
	if err := w.flushSums(); err != nil {
		return a, err
	}
	var guaranteed int64
	_, err := w.row("SELECT coalesce(sum(guaranteed), 0) FROM usage_hour WHERE hour = ? AND queue = ? AND model = ?", []any{h, w.name(queue), w.name(model)}, &guaranteed)
	g := w.guarantee(queue)
	a.Guaranteed = min(total, max(0, int64(g.Models[model]+g.Any)*hour-guaranteed))
	a.Borrowed = total - a.Guaranteed
	return a, err
}

type recSeen struct{ at time.Time }

func (r recSeen) write(w *writer) error { return w.set("seen", r.at.Unix()) }
