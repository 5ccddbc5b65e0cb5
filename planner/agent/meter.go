package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/utilisation"
	"github.com/nomad-muster/muster/planner/view"
)

// How often the meter looks at gangs that something happened to, notes the
// state of the cluster and closes hours, and stores what samples said so far.
const (
	meterEvery   = 200 * time.Millisecond
	tickEvery    = time.Minute
	figuresEvery = time.Second // or longer, where they take long
	spentEvery   = 10 * time.Second
	keepEvery    = 5 * time.Minute
)

// meter keeps the books of what the planner sees. It has a goroutine of its
// own and only ever looks: whatever becomes of it, scheduling goes on.
type meter struct {
	ledger atomic.Pointer[accounting.Ledger] // nil: it cannot be opened
	spent  atomic.Pointer[map[core.QueueName]int64]
	// learned is what decisions are told of earlier gangs; nil: nothing yet.
	learned atomic.Pointer[learned]
	// figures are the gauges as they were worked out last; nil: not yet.
	figures atomic.Pointer[figures]

	looking sync.Mutex

	mu     sync.Mutex
	marked map[picture.Key]bool // gangs to look at
	all    bool                 // all of them
	gone   []accounting.Gang    // that are forgotten
	failed error                // why there is no ledger
	since  time.Time

	// samples has its own lock: reports of 10,000 nodes come all the time.
	samples sync.Mutex
	use     *utilisation.Meter
	held    map[string]heldBy // by allocation
	kept    map[utilisation.Attempt][]byte
}

// learned from the ledger. The lists are not changed afterwards.
type learned struct {
	recent    []core.Shape
	estimates []core.Estimate
	ended     int64 // as Ledger.Estimates counts
	at        time.Time
	took      time.Duration
}

// heldBy is the cards of an allocation that samples are booked by.
type heldBy struct {
	attempt utilisation.Attempt
	cards   []string
}

func newMeter() *meter {
	return &meter{marked: map[picture.Key]bool{}, all: true, use: utilisation.New(), held: map[string]heldBy{}}
}

// mark has the meter look at a gang.
func (m *meter) mark(key picture.Key) {
	m.mu.Lock()
	m.marked[key] = true
	m.mu.Unlock()
}

// depart has it look at a gang for the last time.
func (m *meter) depart(g accounting.Gang) {
	m.mu.Lock()
	m.gone = append(m.gone, g)
	m.mu.Unlock()
}

// decide books a decision.
func (m *meter) decide(d accounting.Decision) {
	if l := m.ledger.Load(); l != nil {
		l.Decide(d)
	}
}

// Sample takes what a node's device plugin measured of its cards. It never
// waits for anything but other samples.
func (m *meter) Sample(r contract.CardReport, received time.Time) {
	samples := make([]utilisation.Sample, 0, len(r.Cards))
	for i := range r.Cards {
		c := &r.Cards[i]
		if c.Measured == nil {
			continue
		}
		activity := c.Measured.Utilization
		if c.Measured.Activity != nil {
			activity = *c.Measured.Activity
		}
		samples = append(samples, utilisation.Sample{Card: c.ID, Activity: int(activity * 10), MemoryUsed: int(c.Measured.MemoryUsed), MemoryTotal: int(c.Measured.MemoryTotal), Power: int(c.Measured.Power)})
	}
	m.samples.Lock()
	m.use.Report(r.Node, r.Reporter, r.Seq, received, samples)
	m.samples.Unlock()
}

// meterLoop runs until ctx ends, and closes the books then.
func (a *Agent) meterLoop(ctx context.Context, cfg *config.Config) {
	m := a.meter
	path := ""
	if cfg.DataDir != "" {
		path = filepath.Join(cfg.DataDir, accounting.FileName)
	}
	beat := time.NewTicker(meterEvery)
	defer beat.Stop()
	var tried, ticked, spent, kept, figured time.Time
	reconciled, pause := false, time.Duration(0)
	for {
		now := time.Now()
		l := m.ledger.Load()
		if l == nil && now.Sub(tried) >= tickEvery {
			tried = now
			l = a.openLedger(ctx, path)
		}
		if now.Sub(figured) >= pause {
			took := a.refigure(l, now)
			figured = time.Now()
			// At most half a hundredth of a core, where that does not make them old.
			pause = min(max(figuresEvery, 200*took), 10*figuresEvery)
		}
		if l != nil {
			all, ok := a.look(l, now)
			m.learn(l)
			if ok && all && !reconciled {
				reconciled = true
				l.Reconcile(a.gangNames())
			}
			if ok && reconciled && now.Sub(ticked) >= tickEvery {
				a.tick(l, now, ticked)
				ticked = now
			}
			if now.Sub(spent) >= spentEvery {
				spent = now
				a.readSpent(ctx, l, now)
			}
			if kept.IsZero() {
				kept = now
			}
			if now.Sub(kept) >= keepEvery {
				kept = now
				m.keep(l)
			}
			if l.Health().Resync {
				if err := l.Renew(ctx); err == nil {
					m.mu.Lock()
					m.all = true
					m.mu.Unlock()
					reconciled = false
				}
			}
		}
		select {
		case <-ctx.Done():
			if l != nil {
				m.ledger.Store(nil)
				a.look(l, time.Now())
				m.flushSums(l, time.Now())
				m.keep(l)
				bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				if err := l.Close(bounded); err != nil {
					a.log.Error("the ledger's last records were not written; they are booked again from what Nomad has", "error", err)
				}
				cancel()
			}
			return
		case <-beat.C:
		}
	}
}

// openLedger tries to open the ledger; where it cannot be, the planner goes on
// without and says so.
func (a *Agent) openLedger(ctx context.Context, path string) *accounting.Ledger {
	m := a.meter
	l, err := accounting.Open(ctx, accounting.Options{Path: path, Log: a.log})
	var kept map[accounting.Key][]byte
	if err == nil {
		kept, err = l.Kept(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return nil // the planner ends: that says nothing of the ledger
	}
	if err != nil {
		if m.failed == nil || m.failed.Error() != err.Error() {
			a.log.Error("there is no ledger; scheduling goes on, and usage is not booked until it can be opened", "error", err)
			m.since = time.Now()
		}
		m.failed = err
		return nil
	}
	m.failed, m.all = nil, true
	l.Entitle(guarantees(&a.config.Current().Core))
	m.samples.Lock()
	m.kept = map[utilisation.Attempt][]byte{}
	for k, state := range kept {
		m.kept[utilisation.Attempt{Gang: k.Gang, Number: k.Number, Base: k.Base}] = state
	}
	m.samples.Unlock()
	m.ledger.Store(l)
	return l
}

// guarantees of the leaf queues; "any" guarantees the sum over models, so that
// what goes beyond the named models is left of it.
func guarantees(cfg *core.Config) map[string]accounting.Guarantee {
	out := map[string]accounting.Guarantee{}
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		g := accounting.Guarantee{Models: map[string]int{}, Any: max(q.Guaranteed.Any, 0)}
		for model, n := range q.Guaranteed.Models {
			g.Models[string(model)] = max(n, 0)
			g.Any -= max(n, 0)
		}
		g.Any = max(g.Any, 0)
		out[string(q.Name)] = g
	}
	return out
}

// look books what is seen of gangs that something happened to. It tells whether
// it looked at all of them, and whether the picture can be trusted.
func (a *Agent) look(l *accounting.Ledger, now time.Time) (all, ok bool) {
	m := a.meter
	// What was seen earlier is never booked after what was seen later.
	m.looking.Lock()
	defer m.looking.Unlock()
	a.mu.RLock()
	s := &a.state
	if ok = s.whole && s.loaded && s.contact.OK; !ok {
		a.mu.RUnlock()
		return false, false
	}
	m.mu.Lock()
	marked, gone := m.marked, m.gone
	all = m.all
	m.marked, m.gone, m.all = map[picture.Key]bool{}, nil, false
	m.mu.Unlock()
	if all {
		for key := range s.gangs {
			marked[key] = true
		}
	}
	sights := make([]sight, 0, len(marked))
	for key := range marked {
		if e := s.gangs[key]; e != nil {
			if v, ok := s.sight(e); ok {
				sights = append(sights, v)
			}
		}
	}
	a.mu.RUnlock()
	for _, g := range gone {
		l.Observe(g, now)
		l.Forget(g.Name, now)
	}
	m.drop(l, gone)
	for i := range sights {
		l.Observe(sights[i].gang, now)
		m.follow(l, &sights[i])
	}
	return all, true
}

// drop books what the cards of gangs that are gone did, and follows them no
// more.
func (m *meter) drop(l *accounting.Ledger, gone []accounting.Gang) {
	if len(gone) == 0 {
		return
	}
	names := map[string]bool{}
	for i := range gone {
		names[gone[i].Name] = true
	}
	m.samples.Lock()
	defer m.samples.Unlock()
	for id, held := range m.held {
		if names[held.attempt.Gang] {
			m.use.Release(id, held.cards)
			delete(m.held, id)
		}
	}
	for _, key := range m.use.Attempts() {
		if names[key.Gang] {
			l.Used(m.use.End(key))
		}
	}
}

// gangNames are all gangs that there are.
func (a *Agent) gangNames() map[string]bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	out := map[string]bool{}
	for key := range a.state.gangs {
		out[key.String()] = true
	}
	return out
}

// follow has samples of the gang's cards booked on it, and books attempts that
// have ended.
func (m *meter) follow(l *accounting.Ledger, s *sight) {
	m.samples.Lock()
	defer m.samples.Unlock()
	for i := range s.gang.Attempts {
		a := &s.gang.Attempts[i]
		key := utilisation.Attempt{Gang: a.Gang, Number: a.Number, Base: a.Base}
		owner := utilisation.Owner{Attempt: key, Queue: a.Queue, User: a.User}
		for _, alloc := range a.Allocs {
			held, known := m.held[alloc.ID]
			switch {
			case !alloc.Ended.IsZero() && known:
				m.use.Release(alloc.ID, held.cards)
				delete(m.held, alloc.ID)
			case alloc.Ended.IsZero() && !known && a.End == nil:
				if state, ok := m.kept[key]; ok {
					delete(m.kept, key)
					_ = m.use.Restore(owner, state) // what cannot be read is begun anew
				}
				for model, cards := range s.cards[alloc.ID] {
					m.use.Assign(owner, alloc.ID, model, cards)
					held.cards = append(held.cards, cards...)
				}
				held.attempt = key
				m.held[alloc.ID] = held
			}
		}
		if a.End != nil {
			l.Used(m.use.End(key))
			delete(m.kept, key)
		}
	}
}

// tick notes the state of the cluster, and closes hours.
func (a *Agent) tick(l *accounting.Ledger, now, last time.Time) {
	m := a.meter
	if lasted := now.Sub(last); !last.IsZero() && lasted < 3*tickEvery {
		if f := m.figures.Load(); f != nil {
			l.Clusters(now, lasted, f.clusterStates())
		}
	}
	m.flushSums(l, now)
	l.Tick(now)
}

func (m *meter) flushSums(l *accounting.Ledger, now time.Time) {
	m.samples.Lock()
	sums := m.use.Sums()
	m.samples.Unlock()
	l.Sampled(now, sums)
}

// refigure works out the gauges anew, and tells how long it worked.
func (a *Agent) refigure(l *accounting.Ledger, now time.Time) time.Duration {
	f := a.figure(now)
	if f == nil {
		return 0
	}
	start := f.begun
	if l != nil {
		known := map[string]bool{}
		cfg := &a.config.Current().Core
		for i := range cfg.Queues {
			known[string(cfg.Queues[i].Name)] = true
		}
		f.usage = l.Totals(now)
		for k := range f.usage {
			if !known[k[0]] {
				delete(f.usage, k)
			}
		}
	}
	a.meter.figures.Store(f)
	return time.Since(start)
}

// keep stores what samples said of running attempts.
func (m *meter) keep(l *accounting.Ledger) {
	m.samples.Lock()
	defer m.samples.Unlock()
	for _, key := range m.use.Attempts() {
		if state, err := m.use.Save(key); err == nil && state != nil {
			l.Keep(accounting.Key{Gang: key.Gang, Number: key.Number, Base: key.Base}, state)
		}
	}
}

// readSpent reads what queues with a budget have used of it.
func (a *Agent) readSpent(ctx context.Context, l *accounting.Ledger, now time.Time) {
	cfg := &a.config.Current().Core
	children := map[core.QueueName][]core.QueueName{}
	for i := range cfg.Queues {
		children[cfg.Queues[i].Parent] = append(children[cfg.Queues[i].Parent], cfg.Queues[i].Name)
	}
	spent := map[core.QueueName]int64{}
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		if q.Budget.CardSeconds <= 0 {
			continue
		}
		since := map[string]time.Time{}
		start := accounting.PeriodStart(q.Budget.Period, now)
		var below func(core.QueueName)
		below = func(name core.QueueName) {
			since[string(name)] = start
			for _, c := range children[name] {
				if _, seen := since[string(c)]; !seen {
					below(c)
				}
			}
		}
		below(q.Name)
		used, err := l.Spent(ctx, since, now)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("a budget could not be read; what was read last stays in force", "queue", q.Name, "error", err)
			}
			return
		}
		for _, n := range used {
			spent[q.Name] += n
		}
	}
	a.meter.spent.Store(&spent)
}

// learn takes what the ledger has learned. Working out the estimates takes at
// most a fiftieth of the time.
func (m *meter) learn(l *accounting.Ledger) {
	old := m.learned.Load()
	next := &learned{}
	if old != nil {
		*next = *old
	}
	next.recent = l.Recent()
	if now := time.Now(); now.Sub(next.at) >= 50*next.took {
		if list, ended := l.Estimates(next.ended); ended != next.ended {
			next.estimates, next.ended, next.at, next.took = list, ended, now, time.Since(now)
		}
	}
	m.learned.Store(next)
}

// history is the mix of recent demand, and estimates of run times; nil: not
// known.
func (m *meter) history() ([]core.Shape, []core.Estimate) {
	if p := m.learned.Load(); p != nil {
		return p.recent, p.estimates
	}
	return nil, nil
}

// used is what queues have used of their budgets; nil: not known.
func (m *meter) used() map[core.QueueName]int64 {
	if p := m.spent.Load(); p != nil {
		return *p
	}
	return nil
}

// meterProblems are what an operator should know of the books.
func (a *Agent) meterProblems() []view.Problem {
	m := a.meter
	m.mu.Lock()
	failed, since := m.failed, m.since
	m.mu.Unlock()
	l := m.ledger.Load()
	if l == nil {
		if failed == nil {
			return nil
		}
		return []view.Problem{{Object: "ledger", Since: since, Text: failed.Error(), Hint: "scheduling goes on; usage is booked again from what Nomad has once the ledger can be opened"}}
	}
	h := l.Health()
	var out []view.Problem
	if !h.OK {
		out = append(out, view.Problem{Object: "ledger", Since: h.Since, Text: fmt.Sprintf("%s cannot be written, %d records wait: %v", l.Path(), h.Waiting, h.Err),
			Hint: "free the disk or make it writable; scheduling goes on, and what waits is written then"})
	}
	if h.Refused > 0 {
		out = append(out, view.Problem{Object: "ledger", Text: fmt.Sprintf("%d records contradict what is booked and were left out", h.Refused), Hint: "muster ledger verify shows what is wrong; the log has the records"})
	}
	return out
}
