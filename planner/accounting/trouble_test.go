package accounting

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// writerEnv names the ledger that the test's own program writes to until it is
// killed.
const writerEnv = "MUSTER_TEST_LEDGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		writeForEver(path)
	}
	os.Exit(m.Run())
}

// writeForEver books attempts one after the other and says each that is
// acknowledged.
func writeForEver(path string) {
	l, err := Open(context.Background(), Options{Path: path, Linger: time.Microsecond})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	for n := 0; ; n++ {
		l.Observe(twoByFour(fmt.Sprintf("default/g%d", n), int64(n+1), int64(n+2), int64(n+60), "failed"), at(int64(n+60)))
		if n%10 == 9 {
			l.Tick(at(int64(n)*100 + 4*hour))
		}
		if err := l.Flush(context.Background()); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// A writer that is killed leaves everything that it acknowledged, and nothing
// that is half.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	acknowledged := -1
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+path)
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		highest := -1
		for lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &highest); err != nil {
				t.Fatal(lines.Text())
			}
			if highest == 30+13*round {
				must.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
			}
		}
		_ = cmd.Wait()
		acknowledged = max(acknowledged, highest)
		must.GreaterEq(t, 30+13*round, acknowledged)
		if round == 1 {
			// The machine went down in the middle of a write besides.
			wal, err := os.OpenFile(path+"-wal", os.O_WRONLY|os.O_APPEND, 0)
			must.NoError(t, err)
			_, err = wal.WriteString(strings.Repeat("torn", 700))
			must.NoError(t, errors.Join(err, wal.Close()))
		}
		l := open(t, path)
		r, err := l.Verify(context.Background())
		must.NoError(t, err)
		must.SliceEmpty(t, r.Findings)
		for n := range acknowledged + 1 {
			held, known, err := l.Held(context.Background(), fmt.Sprintf("default/g%d-1", n), "H100", at(hour))
			must.NoError(t, err)
			must.True(t, known, must.Sprintf("allocation of %d is acknowledged and gone", n))
			must.Eq(t, 4*59, held)
		}
		closed(t, l)
	}
}

// A full disk: records wait, the health says so, and are written when there is
// room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	l, err := Open(context.Background(), Options{Path: filepath.Join(t.TempDir(), "l.db"), Linger: time.Microsecond, unsynced: true, Before: func() error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}})
	must.NoError(t, err)
	defer closed(t, l)
	full.Store(true)
	l.Observe(twoByFour("default/g", 100, 200, 300, "failed"), at(400))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err = l.Flush(ctx)
	must.ErrorIs(t, err, syscall.ENOSPC)
	h := l.Health()
	must.False(t, h.OK)
	must.Positive(t, h.Waiting)
	must.ErrorIs(t, h.Err, syscall.ENOSPC)
	full.Store(false)
	flushed(t, l)
	must.True(t, l.Health().OK)
	must.Eq(t, 8*200, sum(usage(t, l, 0, 400)))
	verified(t, l)
}

// The same as SQLite tells it, in the middle of a transaction; what was written
// before is whole.
func TestFullFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "l.db")
	l, err := Open(context.Background(), Options{Path: path, Linger: time.Microsecond, unsynced: true, pages: 80})
	must.NoError(t, err)
	for n := 0; l.Health().OK; n++ {
		must.Less(t, 100_000, n, must.Sprint("the file is never full"))
		l.Observe(twoByFour(fmt.Sprintf("default/g%d", n), 100, 200, 300, "failed"), at(400))
	}
	must.StrContains(t, l.Health().Err.Error(), "full")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must.Error(t, l.Close(ctx))
	l = open(t, path)
	verified(t, l)
	closed(t, l)
}

// Where records find no room to wait, they are dropped and counted, and all is
// told again afterwards.
func TestOverflow(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	l, err := Open(context.Background(), Options{Path: filepath.Join(t.TempDir(), "l.db"), Linger: time.Microsecond, Bound: 50, unsynced: true, Before: func() error {
		if full.Load() {
			return errors.New("no")
		}
		return nil
	}})
	must.NoError(t, err)
	defer closed(t, l)
	tell := func(n int) {
		for i := range n {
			l.Observe(twoByFour(fmt.Sprintf("default/g%d", i), 100, 200, 300, "failed"), at(400))
		}
	}
	full.Store(true)
	tell(20)
	must.Positive(t, l.Health().Dropped)
	must.False(t, l.Health().Resync)
	full.Store(false)
	flushed(t, l)
	must.True(t, l.Health().Resync)
	must.NoError(t, l.Renew(context.Background()))
	must.False(t, l.Health().Resync)
	for i := range 20 {
		l.Observe(twoByFour(fmt.Sprintf("default/g%d", i), 100, 200, 300, "failed"), at(400))
		flushed(t, l)
	}
	l.Tick(at(3 * hour))
	flushed(t, l)
	must.Eq(t, 20*8*200, sum(usage(t, l, 0, 3*hour)))
	verified(t, l)
}

// What is no ledger of ours, or of a later build, is refused with what to do.
func TestRefusedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "newer.db")
	closed(t, open(t, path))
	change := func(path, statement string) {
		db, err := sql.Open("sqlite", dsn(path, "rwc", ""))
		must.NoError(t, err)
		_, err = db.Exec(statement)
		must.NoError(t, errors.Join(err, db.Close()))
	}
	change(path, "PRAGMA user_version = 99")
	_, err := Open(context.Background(), Options{Path: path})
	must.ErrorIs(t, err, ErrNewer)
	must.StrContains(t, err.Error(), "99")
	must.StrContains(t, err.Error(), "start the build of Muster that wrote it")
	_, err = Verify(context.Background(), path)
	must.ErrorIs(t, err, ErrNewer)
	must.ErrorIs(t, Backup(context.Background(), path, filepath.Join(dir, "copy.db")), ErrNewer)

	text := filepath.Join(dir, "text.db")
	must.NoError(t, os.WriteFile(text, []byte(strings.Repeat("no database ", 1000)), 0o600))
	_, err = Open(context.Background(), Options{Path: text})
	must.ErrorContains(t, err, "restore a backup")

	other := filepath.Join(dir, "other.db")
	change(other, "CREATE TABLE x (y)")
	_, err = Open(context.Background(), Options{Path: other})
	must.ErrorContains(t, err, "no ledger of Muster's")

	_, err = Verify(context.Background(), filepath.Join(dir, "missing.db"))
	must.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(filepath.Join(dir, "missing.db"))
	must.ErrorIs(t, err, os.ErrNotExist)
}

// One planner writes a ledger.
func TestSecondWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "l.db")
	l := open(t, path)
	_, err := Open(context.Background(), Options{Path: path})
	must.ErrorContains(t, err, "another planner writes it")
	closed(t, l)
	closed(t, open(t, path))
}

// Records are only ever added, and Verify sees what was changed behind the
// triggers' back.
func TestTamperedLedger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "l.db")
	l := open(t, path)
	l.Observe(twoByFour("default/g", 100, 200, 300, "failed"), at(400))
	l.Tick(at(3 * hour))
	flushed(t, l)
	closed(t, l)
	db, err := sql.Open("sqlite", dsn(path, "rwc", ""))
	must.NoError(t, err)
	defer db.Close()
	for _, table := range []string{"attempt", "allocation", "allocation_end", "stage", "attempt_end", "loss", "usage"} {
		_, err := db.Exec("DELETE FROM " + table)
		must.ErrorContains(t, err, "append-only", must.Sprint(table))
	}
	_, err = db.Exec("UPDATE usage SET held = held + 1, guaranteed = guaranteed + 1")
	must.ErrorContains(t, err, "append-only")
	_, err = db.Exec("DROP TRIGGER usage_kept; UPDATE usage SET held = held + 1, guaranteed = guaranteed + 1")
	must.NoError(t, err)
	r, err := Verify(context.Background(), path)
	must.NoError(t, err)
	must.Len(t, 3, r.Findings) // the attempt, and both directions of the sum
	must.StrContains(t, r.Findings[0].Text, "1600 card-seconds of H100 (800 of them training), and 1601 (800) are booked")
}

// A backup of a ledger in use is whole.
func TestBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, to := filepath.Join(dir, "l.db"), filepath.Join(dir, "copy.db")
	l := open(t, path)
	defer closed(t, l)
	l.Observe(twoByFour("default/g", 100, 200, 300, "failed"), at(400))
	l.Tick(at(3 * hour))
	flushed(t, l)
	must.NoError(t, Backup(context.Background(), path, to))
	must.ErrorContains(t, Backup(context.Background(), path, to), "name a new file")
	r, err := Verify(context.Background(), to)
	must.NoError(t, err)
	must.SliceEmpty(t, r.Findings)
	must.Eq(t, 1600, r.CardSeconds)
	copied := open(t, to)
	must.Eq(t, 1600, sum(usage(t, copied, 0, hour)))
	closed(t, copied)
}

// A clock that steps closes no hour for a while.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	var s steady
	noon := at(12 * hour)
	s.anchor, s.base = noon, noon
	must.True(t, s.judge(noon.Add(time.Minute), time.Minute))
	must.True(t, s.judge(noon.Add(3*time.Minute), 2*time.Minute), must.Sprint("a minute is no step"))
	must.False(t, s.judge(noon.Add(24*time.Hour), 3*time.Minute), must.Sprint("a day ahead"))
	must.False(t, s.judge(noon.Add(24*time.Hour+time.Minute), 4*time.Minute))
	must.False(t, s.judge(noon.Add(5*time.Minute), 5*time.Minute), must.Sprint("and back"))
	must.Eq(t, 2, s.steps)
	must.False(t, s.judge(noon.Add(14*time.Minute), 14*time.Minute))
	must.True(t, s.judge(noon.Add(15*time.Minute), 15*time.Minute))

	// The ledger books nothing of the day that never was.
	l := open(t, "")
	defer closed(t, l)
	l.Observe(twoByFour("default/g", 100, 200, 0, ""), at(300))
	l.Tick(at(300))
	l.book.mu.Lock()
	l.book.clock.judge(at(86400*2), time.Second)
	l.book.mu.Unlock()
	l.Tick(at(86400 * 2))
	l.Observe(twoByFour("default/g", 100, 200, 400, "failed"), at(500))
	flushed(t, l)
	must.Eq(t, 8*300, sum(usage(t, l, 0, 3*86400)))
	must.Positive(t, l.Health().Steps)
}
