package accounting

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/estimate"
	"github.com/nomad-muster/muster/planner/core/recent"
)

// history is what decisions learn from the gangs that came and those that
// completed: the last ones, read when the ledger is opened and kept up to date
// as they are booked. It is a function of what the ledger has: after a restart
// it says the same.
type history struct {
	mu     sync.Mutex
	recent recent.Window
	runs   estimate.Learner
	ended  int64 // gangs that it learned from since it was opened
}

// Recent is the mix of recent demand; see package recent. The list must not be
// changed.
func (l *Ledger) Recent() []core.Shape {
	h := &l.book.history
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recent.Shapes()
}

// Estimates are run times learned from gangs that completed. The list is
// another one, and changes is higher, only where a gang was booked meanwhile.
func (l *Ledger) Estimates(since int64) (list []core.Estimate, changes int64) {
	h := &l.book.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == since {
		return nil, since
	}
	return h.runs.Estimates(), h.ended
}

func (h *history) came(g recent.Gang) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent.Came(g)
}

func (h *history) ran(r *recRun) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs.Ended(&core.Gang{ID: core.GangID(r.gang), User: r.user, Queue: core.QueueName(r.queue)}, r.cards, r.ended, r.ran)
	h.ended++
}

// learn books what is new of a gang.
func (b *book) learn(g *Gang) {
	if c := g.Came; c != nil && !c.Submitted.IsZero() {
		came := recent.Gang{ID: core.GangID(g.Name), Submitted: wholeMillis(c.Submitted), Shapes: c.Shapes}
		if !b.came[g.Name].Equal(came.Submitted) {
			b.came[g.Name] = came.Submitted
			b.history.came(came)
			b.put(recArrival{came})
		}
	}
	if e := g.End; e != nil && e.Ran > 0 && !b.over[g.Name].Equal(e.At) {
		r := recRun{gang: g.Name, queue: e.Queue, user: e.User, cards: e.Cards, ended: wholeMillis(e.At), ran: e.Ran.Truncate(time.Millisecond)}
		b.history.ran(&r)
		b.put(r)
	}
}

// wholeMillis is a time as the ledger has it.
func wholeMillis(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

type recArrival struct{ recent.Gang }

func (r recArrival) write(w *writer) error {
	shapes, err := json.Marshal(r.Shapes)
	if err != nil {
		return err
	}
	_, _, err = w.insert("INSERT OR IGNORE INTO arrival (submitted, gang, shapes) VALUES (?,?,?)", millis(r.Submitted), string(r.ID), string(shapes))
	return err
}

type recRun struct {
	gang, queue, user string
	cards             int
	ended             time.Time
	ran               time.Duration
}

func (r recRun) write(w *writer) error {
	_, _, err := w.insert("INSERT OR IGNORE INTO run (ended, gang, queue, user, cards, ran) VALUES (?,?,?,?,?,?)", millis(r.ended), r.gang, w.name(r.queue), w.name(r.user), r.cards, r.ran.Milliseconds())
	return err
}

// loadHistory reads the last gangs that came, and that completed.
func (l *Ledger) loadHistory(ctx context.Context) error {
	h := &l.book.history
	var gangs []recent.Gang
	err := l.each(ctx, "read recent demand", "SELECT submitted, gang, shapes FROM arrival ORDER BY submitted DESC, gang DESC LIMIT ?", []any{recent.Most}, func(rows *sql.Rows) error {
		var at int64
		var gang, text string
		if err := rows.Scan(&at, &gang, &text); err != nil {
			return err
		}
		g := recent.Gang{ID: core.GangID(gang), Submitted: time.UnixMilli(at).UTC()}
		if err := json.Unmarshal([]byte(text), &g.Shapes); err != nil {
			return fmt.Errorf("gang %s: %w", gang, err)
		}
		gangs = append(gangs, g)
		return nil
	})
	if err != nil {
		return err
	}
	var runs []recRun
	err = l.each(ctx, "read run times", "SELECT r.ended, r.gang, q.text, u.text, r.cards, r.ran FROM run r JOIN name q ON q.id = r.queue JOIN name u ON u.id = r.user "+
		"ORDER BY r.ended DESC, r.gang DESC LIMIT ?", []any{estimate.Most}, func(rows *sql.Rows) error {
		var r recRun
		var ended, ran int64
		if err := rows.Scan(&ended, &r.gang, &r.queue, &r.user, &r.cards, &ran); err != nil {
			return err
		}
		r.ended, r.ran = time.UnixMilli(ended).UTC(), time.Duration(ran)*time.Millisecond
		runs = append(runs, r)
		return nil
	})
	if err != nil {
		return err
	}
	for _, g := range slices.Backward(gangs) { // the oldest first
		h.came(g)
	}
	for _, r := range slices.Backward(runs) {
		h.ran(&r)
	}
	return nil
}
