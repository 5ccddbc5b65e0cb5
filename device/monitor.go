package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog"
	"github.com/nomad-muster/muster/device/ledger"
)

// Parts are what a Monitor works with.
type Parts struct {
	Sources []Source
	Logs    []Log
	// Parsers find faults in kernel-log records beside NVIDIA's.
	Parsers []kernlog.LineParser
	// Reporter is told of every change. Nil: nobody is.
	Reporter Reporter
	// Tester tests a card before it is cleared. Nil: only what is known of it.
	Tester Tester
	// Owners tells whose processes are. Nil: nobody knows.
	Owners Owners
	// Boot is the host's boot id.
	Boot string
}

// Reporter takes the news of the cards, without blocking.
type Reporter interface {
	// Report gives the present state of all cards; what was told before and is
	// not yet delivered is replaced, so memory is bounded.
	Report(cards []Status)
}

// Tester tests one card.
type Tester interface {
	Test(ctx context.Context, c card.Card) error
}

// Status is one card with its verdict and its place in the health record.
type Status struct {
	Card    card.Card
	Verdict health.Verdict
	Health  health.State
}

const (
	// tickEvery is how often time alone is looked at.
	tickEvery = 5 * time.Second
	// calm is the least time between two fingerprints that say the same of
	// which cards can be used.
	calm = 2 * time.Second
	// softSave is how often readings that change all the time reach the disk.
	softSave = 10 * time.Minute
	// startWithin bounds the wait for the sources at start: whatever answered
	// is told then.
	startWithin = 10 * time.Second
)

// Monitor follows the node's cards: it scans the sources, reads the kernel
// logs, folds what it learns, keeps it on disk and tells it.
type Monitor struct {
	config Config
	parts  Parts
	log    hclog.Logger

	mail   chan func(*registry)
	unlock func()

	mu      sync.Mutex
	view    *view         // nil until the first look
	changed chan struct{} // closed at the next change of view
	stat    []Status
	strange uint64 // faults of unknown devices
	sampler *sampler
}

// NewMonitor prepares a monitor; Run starts it.
func NewMonitor(c Config, p Parts, log hclog.Logger) *Monitor {
	return &Monitor{config: c, parts: p, log: log, mail: make(chan func(*registry), 256), changed: make(chan struct{})}
}

// Run follows the cards until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()

	loaded := m.load(ctx)
	if m.unlock != nil {
		defer m.unlock()
	}
	var names []string
	for _, s := range m.parts.Sources {
		names = append(names, s.Name())
	}
	reg := newRegistry(loaded, m.config.Policy, names, time.Now())
	reg.named = m.config.SourcesNamed

	pokes := map[string]chan struct{}{}
	first := make(chan string, len(names))
	for _, s := range m.parts.Sources {
		poke := make(chan struct{}, 1)
		pokes[s.Name()] = poke
		workers.Go(func() { m.scanLoop(ctx, s, poke, first) })
		if w, ok := s.(Watcher); ok {
			workers.Go(func() { m.watchLoop(ctx, s.Name(), w, poke) })
		}
	}
	pokeAll := func() {
		for _, c := range pokes {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}

	// First the cards, then what the logs say of them, then the news.
	pending := map[string]bool{}
	for _, n := range names {
		pending[n] = true
	}
	late := time.NewTimer(startWithin)
	defer late.Stop()
	for len(pending) > 0 {
		select {
		case <-ctx.Done():
			return
		case do := <-m.mail:
			do(reg)
		case n := <-first:
			delete(pending, n)
		case <-late.C:
			for _, n := range slices.Sorted(maps.Keys(pending)) {
				m.log.Error("source does not answer: its cards are unhealthy until it does", "source", n)
				reg.lost(n, n+" does not answer", time.Now())
			}
			clear(pending)
		}
	}
	var followers []func()
	for _, l := range m.parts.Logs {
		followers = append(followers, m.backlog(ctx, l, reg))
	}
	reg.settle(time.Now())
	for _, f := range followers {
		workers.Go(f)
	}
	if m.config.StateDir != "" {
		workers.Go(func() { m.spool(ctx) })
	}

	saved := time.Now()
	m.tell(reg, &saved)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.save(reg, &saved)
			return
		case do := <-m.mail:
			do(reg)
			for more := true; more; { // whatever waits is one portion
				select {
				case do := <-m.mail:
					do(reg)
				default:
					more = false
				}
			}
		case now := <-tick.C:
			reg.tick(now)
		}
		if reg.poke {
			reg.poke = false
			pokeAll()
		}
		m.tell(reg, &saved)
	}
}

// load reads what is on disk, once no other plugin works on it: the one of an
// agent that was just restarted may take a moment to end.
func (m *Monitor) load(ctx context.Context) ledger.Loaded {
	fresh := ledger.Loaded{Content: ledger.New()}
	if m.config.StateDir == "" {
		m.log.Warn("no state_dir is set: what is known of cards is lost when the plugin stops")
		return fresh
	}
	unlock, err := ledger.Lock(m.config.StateDir)
	for tries := 0; errors.Is(err, ledger.ErrLocked) && tries < 20; tries++ {
		select {
		case <-ctx.Done():
			return fresh
		case <-time.After(250 * time.Millisecond):
		}
		unlock, err = ledger.Lock(m.config.StateDir)
	}
	if err != nil {
		m.log.Error("card state cannot be kept: what is known of cards is lost when the plugin stops", "error", err)
		m.config.StateDir = ""
		return fresh
	}
	m.unlock = unlock
	loaded, err := ledger.Load(m.statePath())
	if err != nil {
		m.log.Error("card state is damaged: cards without a record stay unhealthy until they are cleared", "error", err)
	}
	return loaded
}

// post hands work to the loop.
func (m *Monitor) post(ctx context.Context, do func(*registry)) {
	select {
	case m.mail <- do:
	case <-ctx.Done():
	}
}

// scanLoop asks one source for ever. A scan that hangs hangs here, and the
// source's cards are unhealthy meanwhile.
func (m *Monitor) scanLoop(ctx context.Context, s Source, poke <-chan struct{}, first chan<- string) {
	name := s.Name()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-poke:
			// Faults come in bursts: one scan just after the first will do.
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			select {
			case <-poke:
			default:
			}
		}
		hung := time.AfterFunc(m.config.ScanTimeout, func() {
			m.post(ctx, func(r *registry) {
				r.lost(name, fmt.Sprintf("%s has not answered for %s", name, m.config.ScanTimeout), time.Now())
			})
		})
		scan, err := s.Scan(ctx)
		hung.Stop()
		if ctx.Err() != nil {
			return
		}
		if err == nil && scan.Boot == "" {
			scan.Boot = m.parts.Boot
		}
		foreign(&scan, m.parts.Owners)
		m.config.share(&scan)
		m.post(ctx, func(r *registry) {
			key := name + " says error " + fmt.Sprint(err) // forgotten at the next scan that goes well
			if err != nil {
				r.sayOnce(key, "source cannot be asked: its cards are unhealthy", "source", name, "error", err.Error())
				r.lost(name, err.Error(), time.Now())
				return
			}
			r.scan(name, scan, time.Now())
		})
		if round == 0 {
			first <- name
		}
		timer.Reset(m.config.Period)
	}
}

// watchLoop lets a source tell of faults, and begins again after a pause when
// it gives up.
func (m *Monitor) watchLoop(ctx context.Context, name string, w Watcher, poke chan<- struct{}) {
	pause := time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := w.Watch(ctx, func(s card.Sighting) {
			m.post(ctx, func(r *registry) { r.sighting("", s) })
		}, func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
		m.log.Warn("watching for faults ended: it begins again", "source", name, "error", err, "in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Minute)
	}
}

// backlog folds what a log holds already, and gives the function that follows
// it.
func (m *Monitor) backlog(ctx context.Context, l Log, reg *registry) func() {
	find := &kernlog.Finder{From: "kernel log", TrustUserspace: m.config.TrustUserspace, Parsers: m.parts.Parsers}
	records, err := l.Next(ctx)
	if err != nil {
		m.log.Error("kernel log cannot be read: faults are seen only through the vendors' libraries", "log", l.Name(), "error", err)
		return func() {}
	}
	for _, rec := range records {
		reg.record(l.Name(), rec, find.Find(rec))
	}
	return func() {
		for {
			records, err := l.Next(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				m.log.Error("kernel log ended: it is tried again", "log", l.Name(), "error", err)
				select {
				case <-ctx.Done():
					return
				case <-time.After(10 * time.Second):
				}
				continue
			}
			told := map[int][]card.Sighting{} // by place in records
			missed := uint64(0)
			for i, rec := range records {
				missed += rec.Missed
				if found := find.Find(rec); len(found) > 0 {
					told[i] = found
				}
			}
			if missed > 0 {
				m.log.Warn("kernel log was faster than its reader: records are lost, so all cards are looked at", "log", l.Name(), "records", missed)
			}
			if len(told) > 0 || missed > 0 {
				m.post(ctx, func(r *registry) {
					for i, rec := range records {
						r.record(l.Name(), rec, told[i])
					}
					r.poke = true
				})
			}
		}
	}
}

// tell logs, saves and publishes what changed, in this order: what is told is
// on disk already.
func (m *Monitor) tell(r *registry, saved *time.Time) {
	for _, n := range r.takeNotes() {
		if n.warn {
			m.log.Warn(n.text, n.args...)
		} else {
			m.log.Info(n.text, n.args...)
		}
	}
	if r.dirty || time.Since(*saved) > softSave {
		m.save(r, saved)
	}
	v := r.look()
	m.mu.Lock()
	same := m.view != nil && reflect.DeepEqual(m.view.groups, v.groups)
	m.view = v
	m.stat, m.strange = r.status(), r.Node.Unattributed
	if !same {
		close(m.changed)
		m.changed = make(chan struct{})
	}
	stat := m.stat
	m.mu.Unlock()
	if r.dirty && m.parts.Reporter != nil {
		m.parts.Reporter.Report(stat)
	}
	r.dirty = false
}

func (r *registry) status() []Status {
	out := []Status{}
	for _, id := range r.ids("") {
		e := r.Cards[id]
		if r.sources[e.Card.Source] {
			out = append(out, Status{Card: e.Card, Verdict: r.verdict(id), Health: e.Health})
		}
	}
	return out
}

func (m *Monitor) statePath() string {
	if m.config.StateDir == "" {
		return ""
	}
	return filepath.Join(m.config.StateDir, "cards")
}

func (m *Monitor) save(r *registry, saved *time.Time) {
	*saved = time.Now()
	path := m.statePath()
	if path == "" {
		return
	}
	if err := ledger.Save(path, r.Content); err != nil {
		m.log.Error("card state is not on disk: a restart would forget what happened since the last time", "error", err)
		*saved = time.Now().Add(tickEvery - softSave) // try again soon
	}
}

// errNotReady is for a question before the first look.
var errNotReady = errors.New("the plugin has not seen its cards yet: try again")

// current gives the view once there is one.
func (m *Monitor) current(ctx context.Context) (*view, <-chan struct{}, error) {
	for {
		m.mu.Lock()
		v, changed := m.view, m.changed
		m.mu.Unlock()
		if v != nil {
			return v, changed, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, errors.Join(errNotReady, ctx.Err())
		}
	}
}

// Unattributed counts the faults of devices that this node does not know.
func (m *Monitor) Unattributed() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.strange
}

// Status gives all cards, those that are not offered included; nil before the
// first look.
func (m *Monitor) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stat
}
