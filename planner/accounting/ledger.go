package accounting

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"modernc.org/sqlite" // the driver, and its errors
)

// FileName is the name of a planner's ledger in its data folder.
const FileName = "ledger.db"

// Options of a ledger.
type Options struct {
	// Path of its file; "": a temporary one that is removed at the end.
	Path string
	Log  *slog.Logger
	// Bound is the most records that wait for a disk (100,000).
	Bound int
	// Linger is how long a record waits for others to be written with (50 ms).
	Linger time.Duration
	// Before, if set, is asked before every transaction; its error takes the
	// transaction's place.
	Before func() error

	unsynced bool // tests that stop no machine need not wait for its disk
	pages    int  // the most pages of the file, for tests of a full disk; 0: any
}

// Ledger is the books. Its methods may be called from any goroutine, and those
// that tell it something never wait.
type Ledger struct {
	path      string
	temporary string // folder to remove
	log       *slog.Logger
	bound     int
	linger    time.Duration
	before    func() error
	sync      string
	pages     string
	lock      *os.File
	db        *sql.DB // the writer's
	readers   *sql.DB
	book      *book
	stop      context.CancelFunc
	done      chan struct{}
	wake      chan struct{}

	mu       sync.Mutex
	queue    []record
	taken    int64 // records that were ever queued
	written  int64 // of them: written, refused or dropped
	flushed  chan struct{}
	health   Health
	tallies  map[string]int64
	overflow bool
	lastSeen time.Time
}

// Health of the ledger.
type Health struct {
	OK      bool
	Err     error     // of the last transaction, where it failed
	Since   time.Time // since when it is as it is
	Waiting int       // records that wait to be written
	Written int64     // records since the start
	Dropped int64     // that found no room to wait
	Refused int64     // that the ledger would not take
	Steps   int       // of the machine's clock
	// Resync: records were dropped, and there is room again: Renew, and then
	// everything is to be told again.
	Resync bool
}

// Open opens or begins a ledger.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	l := &Ledger{path: o.Path, log: o.Log, bound: o.Bound, linger: o.Linger, before: o.Before, done: make(chan struct{}), wake: make(chan struct{}, 1), flushed: make(chan struct{}), tallies: map[string]int64{}}
	if l.pages = "1073741823"; o.pages > 0 {
		l.pages = fmt.Sprint(o.pages)
	}
	if l.sync = "FULL"; o.unsynced {
		l.sync = "OFF"
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.bound == 0 {
		l.bound = 100_000
	}
	if l.linger == 0 {
		l.linger = 50 * time.Millisecond
	}
	l.book = newBook(l.put)
	if err := l.open(ctx); err != nil {
		l.shut()
		return nil, err
	}
	l.health = Health{OK: true, Since: time.Now()}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	w := &writer{ledger: l, ctx: run, calls: context.WithoutCancel(ctx)}
	if err := w.begin(); err != nil {
		stop()
		l.shut()
		return nil, err
	}
	go func() {
		defer close(l.done)
		w.run()
	}()
	return l, nil
}

// dsn of a connection.
func dsn(path, mode, more string) string {
	return "file:" + path + "?mode=" + mode + "&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)&_pragma=cache_size(-65536)" + more
}

func (l *Ledger) open(ctx context.Context) error {
	if l.path == "" {
		dir, err := os.MkdirTemp("", "muster-ledger-")
		if err != nil {
			return fmt.Errorf("open ledger: make a temporary folder (data_dir in the configuration names a lasting one): %w", err)
		}
		l.temporary, l.path = dir, filepath.Join(dir, "ledger.db")
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return fmt.Errorf("open ledger %s: %w", l.path, err)
	}
	var err error
	if l.lock, err = lockFile(l.path + ".lock"); err != nil {
		return fmt.Errorf("open ledger %s: %w: another planner writes it; each planner needs a data_dir of its own", l.path, err)
	}
	if l.db, err = sql.Open("sqlite", dsn(l.path, "rwc", "&_pragma=journal_mode(WAL)&_pragma=synchronous("+l.sync+")&_pragma=max_page_count("+l.pages+")&_pragma=wal_autocheckpoint(4000)")); err != nil {
		return fmt.Errorf("open ledger %s: %w", l.path, err)
	}
	l.db.SetMaxOpenConns(1)
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return notOurs(l.path, err)
	}
	defer conn.Close()
	if err := migrate(ctx, conn, l.path); err != nil {
		return err
	}
	if l.readers, err = openReaders(l.path); err != nil {
		return err
	}
	if err := l.load(ctx); err != nil {
		return err
	}
	return l.loadHistory(ctx)
}

func openReaders(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn(path, "ro", "&_pragma=query_only(1)"))
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.SetMaxOpenConns(4)
	return db, nil
}

// load takes what goes on into the book.
func (l *Ledger) load(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("read ledger %s: %w", l.path, err) }
	b := l.book
	var seen int64
	if err := l.readers.QueryRowContext(ctx, "SELECT value FROM state WHERE name = 'booked'").Scan(&b.booked); err != nil {
		return fail(err)
	}
	if err := l.readers.QueryRowContext(ctx, "SELECT coalesce((SELECT value FROM state WHERE name = 'seen'), 0)").Scan(&seen); err != nil {
		return fail(err)
	}
	l.lastSeen = time.Unix(seen, 0)
	rows, err := l.readers.QueryContext(ctx, `SELECT a.gang, a.number, a.base, q.text, u.text, coalesce(s.entered / 1000, ?), p.alloc, n.text, m.text, p.cards, p.created,
		coalesce((SELECT e.ended FROM allocation_end e WHERE e.allocation = p.id ORDER BY e.exact DESC LIMIT 1), ?),
		coalesce((SELECT max(e.exact) FROM allocation_end e WHERE e.allocation = p.id), 0)
		FROM pending w JOIN allocation p ON p.id = w.allocation JOIN attempt a ON a.id = p.attempt JOIN name q ON q.id = a.queue JOIN name u ON u.id = a.user
		JOIN name n ON n.id = p.node JOIN name m ON m.id = p.model LEFT JOIN stage s ON s.attempt = a.id AND s.stage = (SELECT id FROM name WHERE text = ?)`,
		none, none, string(contract.StageStarted))
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	for rows.Next() {
		var k Key
		var base, launched int64
		var queue, user, alloc string
		var p piece
		if err := rows.Scan(&k.Gang, &k.Number, &base, &queue, &user, &launched, &alloc, &p.node, &p.model, &p.cards, &p.created, &p.ended, &p.exact); err != nil {
			return fail(err)
		}
		k.Base = uint64(base)
		a := b.attempt(k)
		a.queue, a.user, a.launched = queue, user, launched
		a.pieces[pieceKey{alloc, p.model}] = &p
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	tallies, err := l.readers.QueryContext(ctx, "SELECT name, value FROM tally")
	if err != nil {
		return fail(err)
	}
	defer tallies.Close()
	for tallies.Next() {
		var name string
		var value int64
		if err := tallies.Scan(&name, &value); err != nil {
			return fail(err)
		}
		l.tallies[name] = value
	}
	return tallies.Err()
}

// Close writes what waits, as far as the disk takes it within ctx, and closes
// the ledger.
func (l *Ledger) Close(ctx context.Context) error {
	select {
	case <-l.done:
		return nil // it is closed
	default:
	}
	err := l.Flush(ctx)
	l.stop()
	<-l.done
	l.shut()
	return err
}

func (l *Ledger) shut() {
	if l.readers != nil {
		_ = l.readers.Close()
	}
	if l.db != nil {
		_ = l.db.Close()
	}
	if l.lock != nil {
		unlockFile(l.lock)
	}
	if l.temporary != "" {
		_ = os.RemoveAll(l.temporary)
	}
}

// Path of the ledger's file.
func (l *Ledger) Path() string { return l.path }

// put queues records; where there is no room, they are dropped.
func (l *Ledger) put(records ...record) {
	l.mu.Lock()
	if len(l.queue)+len(records) > l.bound {
		l.health.Dropped += int64(len(records))
		l.overflow = true
	} else {
		l.queue = append(l.queue, records...)
		l.taken += int64(len(records))
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Observe books what is seen of a gang.
func (l *Ledger) Observe(g Gang, now time.Time) { l.book.observe(g, now) }

// Forget ends what is open of a gang that is gone from Nomad.
func (l *Ledger) Forget(gang string, now time.Time) { l.book.forget(gang, now) }

// Reconcile ends what is open of gangs that Nomad does not have any more: to be
// called once, when all that are there were observed. They are taken as ended
// when the ledger was last told that the planner sees Nomad.
func (l *Ledger) Reconcile(there map[string]bool) {
	l.mu.Lock()
	seen := l.lastSeen
	l.mu.Unlock()
	l.book.reconcile(there, seen)
}

// Tick closes hours that are over and notes that the planner sees Nomad; to be
// called every minute or so.
func (l *Ledger) Tick(now time.Time) {
	l.put(recSeen{now})
	l.book.closeHours(now)
}

// Decide books a decision.
func (l *Ledger) Decide(d Decision) { l.put(recDecision{d}) }

// Entitle sets what the queues are guaranteed, from now on.
func (l *Ledger) Entitle(guarantees map[string]Guarantee) {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.book.guarantees = maps.Clone(guarantees)
}

// Flush returns once everything that was told before is written.
func (l *Ledger) Flush(ctx context.Context) error {
	l.mu.Lock()
	want := l.taken
	l.mu.Unlock()
	for {
		l.mu.Lock()
		done, next := l.written >= want, l.flushed
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("write ledger %s: %w", l.path, errors.Join(context.Cause(ctx), l.Health().Err))
		}
	}
}

// Health tells how the ledger is.
func (l *Ledger) Health() Health {
	l.book.mu.Lock()
	steps := l.book.clock.steps
	l.book.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.health
	h.Waiting, h.Steps = int(l.taken-l.written), steps
	h.Resync = l.overflow && h.OK && h.Waiting < l.bound/2
	return h
}

// Renew forgets what is known beside the ledger's file, after records were
// dropped: everything is to be observed again.
func (l *Ledger) Renew(ctx context.Context) error {
	if err := l.Flush(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	l.overflow = false
	l.mu.Unlock()
	fresh := newBook(l.put)
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	old := l.book
	fresh.guarantees, fresh.clock = old.guarantees, old.clock
	shadow := &Ledger{path: l.path, readers: l.readers, book: fresh, tallies: map[string]int64{}}
	if err := shadow.load(ctx); err != nil {
		return err
	}
	old.attempts, old.gangs, old.done, old.over, old.came, old.booked, old.closing = fresh.attempts, fresh.gangs, fresh.done, fresh.over, fresh.came, fresh.booked, nil
	return nil
}

// constraint tells whether the ledger itself refuses a record, rather than the
// disk.
func constraint(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == 19 // SQLITE_CONSTRAINT
}
