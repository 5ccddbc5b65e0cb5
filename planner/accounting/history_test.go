package accounting

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/recent"
	"github.com/shoenig/test/must"
)

// came is a gang that asks for so many cards, and completed after so long.
func came(i, cards int, ran time.Duration) Gang {
	name := fmt.Sprintf("default/g%04d", i)
	g := Gang{Name: name, Whole: true, Came: &recent.Gang{ID: core.GangID(name), Submitted: at(int64(i)).Add(1234567), Shapes: []core.Shape{{Members: 2, Cards: cards, Models: []core.Model{"H100"}, Weight: 1}}}}
	if ran > 0 {
		g.End = &GangEnd{At: at(int64(i)).Add(ran), Stage: contract.StageComplete, Queue: "research", User: "alice", Cards: 2 * cards, Attempts: 1, Ran: ran}
	}
	return g
}

// What decisions learn is the same after a restart, whatever was told twice and
// in whatever order, and not lost where a ledger of the first version is
// opened.
func TestHistoryOverRestarts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	old, err := sql.Open("sqlite", dsn(path, "rwc", ""))
	must.NoError(t, err)
	all, err := steps()
	must.NoError(t, err)
	_, err = old.Exec(all[0] + fmt.Sprintf("; PRAGMA user_version = 1; PRAGMA application_id = %d", application))
	must.NoError(t, err)
	must.NoError(t, old.Close())
	l := open(t, path)
	for i := range 100 {
		at := i ^ 1
		l.Observe(came(at, 1+at%4, 0), time.Now())
		l.Observe(came(at, 1+at%4, time.Duration(at+1)*time.Minute), time.Now())
	}
	l.Observe(came(7, 8, 8*time.Minute), time.Now())
	shapes := l.Recent()
	must.Len(t, 4, shapes)
	must.Eq(t, 1<<14, shapes[0].Weight)
	estimates, n := l.Estimates(0)
	must.Len(t, 9, estimates, must.Sprint("of each size, with the user and without, and of the queue"))
	_, again := l.Estimates(n)
	must.Eq(t, n, again)
	closed(t, l)
	for range 2 {
		l = open(t, path)
		must.Eq(t, shapes, l.Recent())
		read, _ := l.Estimates(0)
		must.Eq(t, estimates, read)
		for i := range 100 { // Nomad still has them
			l.Observe(came(i, 1+i%4, time.Duration(i+1)*time.Minute), time.Now())
		}
		must.Eq(t, shapes, l.Recent())
		closed(t, l)
	}
	db, err := openReaders(path)
	must.NoError(t, err)
	defer db.Close()
	var arrivals, runs int
	must.NoError(t, db.QueryRowContext(context.Background(), "SELECT (SELECT count(*) FROM arrival), (SELECT count(*) FROM run)").Scan(&arrivals, &runs))
	must.Eq(t, 100, arrivals)
	must.Eq(t, 100, runs)
}
