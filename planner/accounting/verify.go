package accounting

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"
)

// Finding is one thing that is wrong in a ledger.
type Finding struct {
	What string `json:"what"`
	Text string `json:"text"`
}

// Report is what Verify found.
type Report struct {
	Path         string    `json:"path"`
	Schema       int       `json:"schema"`
	Booked       time.Time `json:"booked"` // hours before this are
	Attempts     int64     `json:"attempts"`
	Allocations  int64     `json:"allocations"`
	UsageRows    int64     `json:"usage_rows"`
	CardSeconds  int64     `json:"card_seconds"` // booked
	Inexact      int64     `json:"inexact"`      // allocations whose end was concluded rather than told
	Findings     []Finding `json:"findings"`
	findingsMost int
}

// OK: nothing is wrong.
func (r *Report) OK() bool { return len(r.Findings) == 0 }

// Verify checks a ledger's file, also one that a planner is writing: SQLite's
// own structure, that the hours which are booked are what the facts say, and that
// the sums are those of the hours.
func Verify(ctx context.Context, path string) (*Report, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("verify ledger: %w", err)
	}
	db, err := openReaders(path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return verify(ctx, db, path)
}

// Verify checks the ledger as far as it is written.
func (l *Ledger) Verify(ctx context.Context) (*Report, error) { return verify(ctx, l.readers, l.path) }

func verify(ctx context.Context, db *sql.DB, path string) (*Report, error) {
	r := &Report{Path: path, Findings: []Finding{}, findingsMost: 20}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, notOurs(path, err)
	}
	defer conn.Close()
	if r.Schema, _, err = version(ctx, conn, path); err != nil {
		return nil, err
	}
	// One picture of everything, whatever is written meanwhile.
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return nil, fmt.Errorf("verify ledger %s: %w", path, err)
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") }()
	if err := r.structure(ctx, conn); err != nil {
		return nil, fmt.Errorf("verify ledger %s: %w", path, err)
	}
	if !r.OK() {
		return r, nil // what is torn has no sums
	}
	var booked int64
	for _, c := range []struct {
		text string
		into *int64
	}{
		{"SELECT value FROM state WHERE name = 'booked'", &booked},
		{"SELECT count(*) FROM attempt", &r.Attempts}, {"SELECT count(*) FROM allocation", &r.Allocations}, {"SELECT count(*) FROM usage", &r.UsageRows},
		{"SELECT coalesce(sum(held + training), 0) FROM usage_day", &r.CardSeconds},
		{"SELECT count(*) FROM allocation_end e WHERE exact = 0 AND NOT EXISTS (SELECT 1 FROM allocation_end x WHERE x.allocation = e.allocation AND x.exact = 1)", &r.Inexact},
	} {
		if err := conn.QueryRowContext(ctx, c.text).Scan(c.into); err != nil {
			return nil, fmt.Errorf("verify ledger %s: %w", path, err)
		}
	}
	r.Booked = time.Unix(booked*hour, 0).UTC()
	for _, check := range []func(context.Context, *sql.Conn, int64) error{r.attempts, r.sums} {
		if err := check(ctx, conn, booked); err != nil {
			return nil, fmt.Errorf("verify ledger %s: %w", path, err)
		}
	}
	return r, nil
}

func (r *Report) found(what, format string, args ...any) {
	if len(r.Findings) < r.findingsMost {
		r.Findings = append(r.Findings, Finding{what, fmt.Sprintf(format, args...)})
	}
}

func (r *Report) structure(ctx context.Context, conn *sql.Conn) error {
	for _, pragma := range []string{"PRAGMA integrity_check(20)", "PRAGMA foreign_key_check"} {
		rows, err := conn.QueryContext(ctx, pragma)
		if err != nil {
			return err
		}
		columns, err := rows.Columns()
		if err != nil {
			rows.Close()
			return err
		}
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(sql.NullString)
			}
			if err := rows.Scan(values...); err != nil {
				rows.Close()
				return err
			}
			text := values[0].(*sql.NullString).String
			if pragma == "PRAGMA foreign_key_check" {
				text = "a row of " + text + " names something that is not there"
			}
			if text != "ok" {
				r.found("structure", "%s", text)
			}
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

// attempts holds each attempt's booked hours against its allocations.
func (r *Report) attempts(ctx context.Context, conn *sql.Conn, booked int64) error {
	until := booked * hour
	rows, err := conn.QueryContext(ctx, `
		WITH ends AS (SELECT allocation, ended, max(exact) FROM allocation_end GROUP BY allocation),
		facts AS (SELECT p.attempt, p.model,
			sum(p.cards * max(0, min(coalesce(e.ended, ?1), ?1) - min(p.created, ?1))) total,
			sum(p.cards * max(0, min(coalesce(e.ended, ?1), ?1) - max(p.created, coalesce(s.entered / 1000, ?1)))) training
			FROM allocation p LEFT JOIN ends e ON e.allocation = p.id LEFT JOIN stage s ON s.attempt = p.attempt AND s.stage = (SELECT id FROM name WHERE text = 'started')
			GROUP BY p.attempt, p.model),
		books AS (SELECT attempt, model, sum(held + training) total, sum(training) training FROM usage GROUP BY attempt, model)
		SELECT a.gang, a.number, n.text, f.total, coalesce(b.total, 0), f.training, coalesce(b.training, 0)
		FROM facts f JOIN attempt a ON a.id = f.attempt JOIN name n ON n.id = f.model LEFT JOIN books b ON b.attempt = f.attempt AND b.model = f.model
		WHERE f.total <> coalesce(b.total, 0) OR f.training <> coalesce(b.training, 0)
		UNION ALL
		SELECT a.gang, a.number, n.text, 0, b.total, 0, b.training FROM books b JOIN attempt a ON a.id = b.attempt JOIN name n ON n.id = b.model
		WHERE NOT EXISTS (SELECT 1 FROM allocation p WHERE p.attempt = b.attempt AND p.model = b.model)
		LIMIT 20`, until)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var gang, model string
		var number int
		var total, have, training, booked int64
		if err := rows.Scan(&gang, &number, &model, &total, &have, &training, &booked); err != nil {
			return err
		}
		r.found("usage", "attempt %d of %s: its allocations held %d card-seconds of %s (%d of them training), and %d (%d) are booked", number, gang, total, model, training, have, booked)
	}
	return rows.Err()
}

// sums holds the sums by hour and day against the booked hours.
func (r *Report) sums(ctx context.Context, conn *sql.Conn, _ int64) error {
	for _, c := range []struct{ table, period, text string }{
		{"usage_hour", "hour", `SELECT u.hour, a.queue, a.user, u.model, sum(u.guaranteed), sum(u.borrowed), sum(u.held), sum(u.training) FROM usage u JOIN attempt a ON a.id = u.attempt GROUP BY 1, 2, 3, 4`},
		{"usage_day", "day", `SELECT hour / 24, queue, user, model, sum(guaranteed), sum(borrowed), sum(held), sum(training) FROM usage_hour GROUP BY 1, 2, 3, 4`},
		{"loss_day", "day", `SELECT at / 86400, queue, user, model, cause, sum(card_seconds) FROM loss GROUP BY 1, 2, 3, 4, 5`},
	} {
		for _, d := range []struct{ text, what string }{
			{c.text + " EXCEPT SELECT * FROM " + c.table, "is missing or another in"},
			{"SELECT * FROM " + c.table + " EXCEPT " + c.text, "has no records behind it in"},
		} {
			var n int64
			if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM ("+d.text+")").Scan(&n); err != nil {
				return err
			}
			if n > 0 {
				r.found("sums", "the sum of %d combinations of %s, queue, user and model %s %s", n, c.period, d.what, c.table)
			}
		}
	}
	return nil
}

// Backup copies a ledger, also one that a planner is writing, to a new file.
func Backup(ctx context.Context, path, to string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("back up ledger: %w", err)
	}
	if _, err := os.Stat(to); err == nil {
		return fmt.Errorf("back up ledger %s: %s is there already: name a new file", path, to)
	}
	db, err := openReaders(path)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return notOurs(path, err)
	}
	defer conn.Close()
	if _, _, err := version(ctx, conn, path); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA query_only = 0"); err != nil {
		return fmt.Errorf("back up ledger %s: %w", path, err)
	}
	if _, err := conn.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		_ = os.Remove(to)
		return fmt.Errorf("back up ledger %s to %s: %w", path, to, err)
	}
	return nil
}
