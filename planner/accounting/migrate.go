package accounting

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed migrations/*.sql
var migrations embed.FS

// application marks a file as a ledger of ours ("Must").
const application = 0x4d757374

// ErrNewer: the file was written by a newer build.
var ErrNewer = errors.New("the ledger's schema is newer than this build")

// steps are the numbered migrations, from 1.
func steps() ([]string, error) {
	entries, err := fs.ReadDir(migrations, "migrations") // sorted by name
	if err != nil {
		return nil, err
	}
	var out []string
	for i, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s is not number %d", e.Name(), i+1)
		}
		text, err := migrations.ReadFile("migrations/" + e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	}
	return out, nil
}

// version checks that a file is a ledger that this build can read, and gives
// its schema's version; 0: it is empty.
func version(ctx context.Context, conn *sql.Conn, path string) (int, int, error) {
	all, err := steps()
	if err != nil {
		return 0, 0, err
	}
	var have, app, tables int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, 0, notOurs(path, err)
	}
	if err := conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app); err != nil {
		return 0, 0, notOurs(path, err)
	}
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return 0, 0, notOurs(path, err)
	}
	switch {
	case tables == 0:
		return 0, len(all), nil
	case app != application:
		return 0, 0, notOurs(path, fmt.Errorf("its application id is %d", app))
	case have > len(all):
		return 0, 0, fmt.Errorf("open ledger %s: %w: it has version %d, and this build knows up to %d: start the build of Muster that wrote it, or move the file away and a new ledger is begun from what Nomad still has", path, ErrNewer, have, len(all))
	}
	return have, len(all), nil
}

func notOurs(path string, cause error) error {
	return fmt.Errorf("open ledger %s: it is no ledger of Muster's, or it is damaged: %w: restore a backup (muster ledger backup makes them), or move the file away and a new ledger is begun from what Nomad still has", path, cause)
}

// migrate brings the schema up to date, each step in a transaction of its own.
func migrate(ctx context.Context, conn *sql.Conn, path string) error {
	have, _, err := version(ctx, conn, path)
	if err != nil {
		return err
	}
	all, err := steps()
	if err != nil {
		return err
	}
	for i, text := range all {
		if i < have {
			continue
		}
		text = fmt.Sprintf("BEGIN IMMEDIATE; %s; PRAGMA user_version = %d; PRAGMA application_id = %d; COMMIT", text, i+1, application)
		if _, err := conn.ExecContext(ctx, text); err != nil {
			_, _ = conn.ExecContext(ctx, "ROLLBACK")
			return fmt.Errorf("open ledger %s: migrate its schema to version %d: %w", path, i+1, err)
		}
	}
	return nil
}
