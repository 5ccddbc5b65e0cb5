package cards

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
)

// Store keeps what must survive the planner.
type Store interface {
	// LoadCards gives what was saved; nil: nothing was.
	LoadCards(ctx context.Context) ([]byte, error)
	SaveCards(ctx context.Context, data []byte) error
}

// Holder tells who holds a card.
type Holder struct {
	contract.CardHolder
	Job, Alloc string
}

// Holders give who holds each card of a node; nil: nobody.
type Holders func(node core.NodeID) map[string]Holder

// Options of a Service.
type Options struct {
	Settings Settings
	Store    Store
	Log      *slog.Logger
	// Changed is told of what changed, in order; it must not call the service
	// while it runs, nor block.
	Changed func(Changes)
	Now     func() time.Time // nil: time.Now
}

// Service is a Book with a lock, a clock and its effects. Its methods may be
// called from any goroutine.
type Service struct {
	o Options

	mu     sync.Mutex
	book   *Book
	loaded bool
	gen    uint64 // of what is to be saved
	dirty  chan struct{}
	counts Counts
	// holders by node, for the answers.
	holders map[core.NodeID]map[string]Holder

	saveMu sync.Mutex
	saved  uint64
}

// Counts are what the metrics show.
type Counts struct {
	Reports, Repeated, Refused uint64
}

// ErrStarting is for reports and orders before what was saved is loaded.
var ErrStarting = errors.New("the planner is starting and has not read yet what it knew of cards")

// New makes a service; Load starts it.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func(Changes) {}
	}
	return &Service{o: o, book: NewBook(o.Settings), dirty: make(chan struct{}, 1)}
}

// Load reads what was saved. Until it has, reports and orders are refused.
func (s *Service) Load(ctx context.Context) error {
	data, err := s.o.Store.LoadCards(ctx)
	if err != nil {
		return fmt.Errorf("load what was known of cards: %w", err)
	}
	saved := newSaved()
	if data != nil {
		if err := json.Unmarshal(data, &saved); err != nil || saved.V != 1 {
			// Without it an order is lost and a quarantine is told twice; that is
			// better than no planner.
			s.o.Log.Error("what was saved of cards cannot be read: open orders, suspicions and the breaker's state are lost", "version", saved.V, "error", err)
			saved = newSaved()
		}
	}
	s.do(func(b *Book, now time.Time) Changes {
		s.loaded = true
		return b.Restore(saved, now)
	})
	return nil
}

// do works on the book and tells what changed.
func (s *Service) do(f func(b *Book, now time.Time) Changes) {
	s.mu.Lock()
	changes := f(s.book, s.o.Now())
	s.note(&changes)
	s.mu.Unlock()
	s.tell(changes)
}

// note sees to what is to be saved; the lock is held.
func (s *Service) note(c *Changes) {
	if !c.Save {
		return
	}
	s.gen++
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

func (s *Service) tell(c Changes) {
	for _, e := range c.Events {
		switch {
		case e.Kind == BreakerOpened:
			s.o.Log.Error("the cards' circuit breaker opened: nothing is quarantined by itself until a person closes it", "why", e.Text)
		case e.Kind == BreakerClosed:
			s.o.Log.Warn("the cards' circuit breaker closed", "why", e.Text)
		case !e.Told:
			s.o.Log.Info("card", "node", e.NodeName, "card", e.Card, "state", StateName(e.State), "was", StateName(e.Was), "why", e.Text)
		}
	}
	if len(c.Nodes) > 0 || len(c.Events) > 0 {
		s.o.Changed(c)
	}
}

// Run looks at what time changes, and saves, until ctx ends.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	pause := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.do(func(b *Book, now time.Time) Changes { return b.Pass(now) })
			continue
		case <-s.dirty:
		}
		if err := s.save(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("what is known of cards could not be saved: it is tried again", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, 30*time.Second)
			select {
			case s.dirty <- struct{}{}:
			default:
			}
			continue
		}
		pause = time.Second
	}
}

// save writes what must survive, if it is not written yet.
func (s *Service) save(ctx context.Context) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	gen, saved := s.gen, s.book.Saved()
	// The lists are replaced, never changed in place, so they can be read without
	// the lock.
	s.mu.Unlock()
	if gen == s.saved {
		return nil
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encode what is known of cards: %w", err)
	}
	if err := s.o.Store.SaveCards(ctx, data); err != nil {
		return err
	}
	s.saved = gen
	return nil
}

// Configure puts other settings in force.
func (s *Service) Configure(set Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Configure(set)
}

// Report takes a node's report, from the bearer of a token.
func (s *Service) Report(ctx context.Context, r contract.CardReport, by string) (contract.CardReply, error) {
	s.mu.Lock()
	if !s.loaded {
		s.mu.Unlock()
		return contract.CardReply{}, ErrStarting
	}
	known := s.book.reporters[r.Reporter]
	repeated := known != nil && r.Seq <= known.last.Seq
	reply, changes, err := s.book.Report(r, by, s.o.Now())
	switch {
	case err != nil:
		s.counts.Refused++
	case repeated:
		s.counts.Repeated++
	default:
		s.counts.Reports++
	}
	if k := s.book.reporters[r.Reporter]; err == nil && k != nil {
		reply.Holders = map[string]contract.CardHolder{}
		for id, h := range s.holders[k.node] {
			if h.Gang != "" {
				reply.Holders[id] = h.CardHolder
			}
		}
	}
	s.note(&changes)
	s.mu.Unlock()
	s.tell(changes)
	if err == nil && changes.Save && len(r.Done) > 0 {
		// The node forgets an outcome once it is told.
		if saveErr := s.save(ctx); saveErr != nil {
			s.o.Log.Warn("the outcome of an order could not be saved yet", "error", saveErr)
		}
	}
	return reply, err
}

// Nomad takes nodes as Nomad has them now; nil: gone.
func (s *Service) Nomad(nodes map[core.NodeID]*core.Node) {
	if len(nodes) == 0 {
		return
	}
	s.do(func(b *Book, now time.Time) Changes {
		var changes Changes
		for _, id := range slices.Sorted(maps.Keys(nodes)) {
			changes.add(b.Nomad(id, nodes[id], now))
		}
		return changes
	})
}

// Judged is a node with the verdicts on its cards in the place of Nomad's.
func (s *Service) Judged(n core.Node) core.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.Judged(n)
}

// Refuses tells whether a card may not be given to new work at this moment,
// and why.
func (s *Service) Refuses(node core.NodeID, card core.CardID) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.Refuses(node, card)
}

// Direct tells whether a node's reports come in.
func (s *Service) Direct(node core.NodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.book.nodes[node]
	return n != nil && slices.ContainsFunc(n.reporters, func(r *reporter) bool { return !r.quiet })
}

// Ended takes the end of an attempt.
func (s *Service) Ended(o Outcome) {
	s.do(func(b *Book, _ time.Time) Changes { return b.Ended(o) })
}

// Hold sets who holds which cards, by node.
func (s *Service) Hold(holders map[core.NodeID]map[string]Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders = holders
}

// Give takes an order, and has it saved before it answers.
func (s *Service) Give(ctx context.Context, o contract.CardOrder, node string) (view.CardOrder, error) {
	s.mu.Lock()
	if !s.loaded {
		s.mu.Unlock()
		return view.CardOrder{}, ErrStarting
	}
	if o.ID == "" {
		o.ID = randomID()
	}
	order, changes, err := s.book.Give(o, node, s.o.Now())
	s.note(&changes)
	out := s.book.orderView(&order)
	s.mu.Unlock()
	s.tell(changes)
	if err != nil {
		return out, err
	}
	return out, s.save(ctx)
}

// Order gives an order by its id.
func (s *Service) Order(id string) (view.CardOrder, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.book.Order(id)
	return s.book.orderView(&o), ok
}

// SetBreaker opens or closes the breaker by hand.
func (s *Service) SetBreaker(ctx context.Context, open bool, why, by string) (view.CardBreaker, error) {
	s.do(func(b *Book, now time.Time) Changes { return b.SetBreaker(open, why, by, now) })
	return s.Breaker(), s.save(ctx)
}

// Breaker is the breaker's state.
func (s *Service) Breaker() view.CardBreaker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view.CardBreaker(s.book.Breaker())
}

// ClearNode ends what the planner holds against a node.
func (s *Service) ClearNode(ctx context.Context, node core.NodeID) (bool, error) {
	cleared := false
	s.do(func(b *Book, now time.Time) (c Changes) {
		c, cleared = b.ClearNode(node, now)
		return c
	})
	return cleared, s.save(ctx)
}

// Counts are the figures of the metrics.
func (s *Service) Counts() (c Counts, reporters, silent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.book.reporters {
		if r.quiet {
			silent++
		}
	}
	return s.counts, len(s.book.reporters), silent
}

// Reporting is how a node's device plugin reports; nil: it does not.
func (s *Service) Reporting(node core.NodeID) *view.Reporting {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.book.nodes[node]
	if n == nil || len(n.reporters) == 0 {
		return nil
	}
	r := slices.MaxFunc(n.reporters, func(a, b *reporter) int { return a.heard.Compare(b.heard) })
	return &view.Reporting{At: r.heard.UTC(), Silent: r.quiet, Boot: r.last.Boot, Unattributed: r.last.Unattributed}
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// orderView is an order as the API gives it.
func (b *Book) orderView(o *Order) view.CardOrder {
	out := view.CardOrder{ID: o.ID, Kind: o.Kind, Card: o.Card, Node: cmp.Or(o.NodeName, string(o.NodeID)), Who: o.Who, Why: o.Why, State: view.OrderWaiting, Error: o.Error, At: o.At.UTC(), Done: o.Done.UTC()}
	switch {
	case o.Open():
		out.Done = time.Time{}
	case o.Error != "":
		out.State = view.OrderFailed
	default:
		out.State = view.OrderDone
	}
	if n := b.nodes[o.NodeID]; n != nil {
		for _, r := range n.reporters {
			if lists(&r.last, o.Card) && r.heard.After(out.Heard) {
				out.Heard = r.heard.UTC()
			}
		}
	}
	return out
}
