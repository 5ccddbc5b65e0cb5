// Package agent is the running planner: it keeps the picture of the cluster
// (planner/nomad), steps every gang's state machine (planner/lifecycle), asks
// the decision core for plans (planner/core), and carries the effects out.
//
// # How it runs
//
// One goroutine, the loop, owns all state. What happens outside comes to it as
// deltas of the picture, members' reports, and the outcomes of effects; after
// each batch it steps the gangs that these concern, decides where something
// changed that a decision rests on, and sleeps until the next news or the
// earliest time that a gang wants to be woken. A gang's effects are carried out
// by a goroutine of its own, in order, while the gang itself rests; so slow
// calls for one gang hold up no other.
//
// Nothing is decided before the picture is whole and every saved gang is
// loaded. A graceful stop leaves gangs as they are; a new planner goes on.
//
// One instance runs at a time: writes are guarded by the jobs' modify indexes
// and the variables' own, so a second one would be refused rather than do harm.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/release"
	"github.com/prometheus/client_golang/prometheus"
)

// Options make an Agent. Only Config is needed.
type Options struct {
	Config *config.Live
	Log    *slog.Logger
	// Decider decides; nil: the production core.
	Decider core.Decider
	// Registry takes the metrics; nil: one of its own.
	Registry *prometheus.Registry
	// Timing of the watcher, and Slow, the longest time between two decisions
	// (10 s).
	Timing nomad.Timing
	Slow   time.Duration
	// DescribeAfter is how long a gang is refused or waits before its job gets a
	// description for Nomad's UI (10 s).
	DescribeAfter time.Duration
	// Channel takes the place of Consul and signals; nil: those.
	Channel Channel
	// Before, if set, is asked before every call to Nomad and Consul; its error
	// takes the call's place.
	Before func(operation string) error
}

// Channel is the way to the members and back.
type Channel interface {
	release.Channel
	release.Watcher
}

// Agent is the planner. Its exported methods may be called from any goroutine.
type Agent struct {
	config  *config.Live
	log     *slog.Logger
	client  *nomad.Client
	consul  *release.Consul // nil: none
	channel Channel
	follows bool // the channel has reports to watch
	watcher *nomad.Watcher
	decider core.Decider
	feed    *httpapi.Feed
	events  *notify.Sender // nil before Run
	metrics *metrics
	cards   *cards.Service
	meter   *meter
	slow    time.Duration
	// describeAfter: see Options.
	describeAfter time.Duration

	inbox inbox

	storeMu     sync.Mutex
	stored      map[contract.GangID]storedState
	submissions map[contract.GangID]submitted

	// mu guards state: the loop writes it, the API reads it.
	mu    sync.RWMutex
	state state
}

// New makes an Agent; Run starts it.
func New(o Options) (*Agent, error) {
	if o.Config == nil {
		return nil, errors.New("make planner: no configuration")
	}
	cfg := o.Config.Current()
	a := &Agent{config: o.Config, log: o.Log, decider: o.Decider, slow: o.Slow, inbox: newInbox(), meter: newMeter(), stored: map[contract.GangID]storedState{}, submissions: map[contract.GangID]submitted{}}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.decider == nil {
		a.decider = decide.New()
	}
	if a.slow == 0 {
		a.slow = 10 * time.Second
	}
	if a.describeAfter = o.DescribeAfter; a.describeAfter == 0 {
		a.describeAfter = 10 * time.Second
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	a.metrics = newMetrics(o.Registry)
	o.Registry.MustRegister(notify.Metrics(func() []notify.Status {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return a.events.Status()
	}))
	var err error
	n := cfg.Nomad
	a.client, err = nomad.NewClient(nomad.Options{Address: n.Address, Region: n.Region, Token: n.Token, CACert: n.CACert, ClientCert: n.ClientCert, ClientKey: n.ClientKey,
		TLSServerName: n.TLSServerName, TLSSkipVerify: n.TLSSkipVerify, Called: a.metrics.called("nomad"), Before: o.Before})
	if err != nil {
		return nil, err
	}
	if c := cfg.Consul; !c.Disabled {
		a.consul, err = release.NewConsul(release.ConsulOptions{Address: c.Address, Token: c.Token, Namespace: c.Namespace, Partition: c.Partition,
			CACert: c.CACert, ClientCert: c.ClientCert, ClientKey: c.ClientKey, TLSServerName: c.TLSServerName, TLSSkipVerify: c.TLSSkipVerify,
			Called: a.metrics.called("consul"), Before: o.Before, Log: a.log})
		if err != nil {
			return nil, err
		}
	}
	a.follows = a.consul != nil || o.Channel != nil
	if a.channel = o.Channel; a.channel == nil {
		a.channel = release.Router{Consul: a.consul, Signals: release.Signals{Nomad: a.client, Sent: &release.Sent{}}, BySignal: a.bySignal}
	}
	a.watcher = nomad.NewWatcher(a.client, cfg.Core.Levels, o.Timing, a.log)
	a.feed = httpapi.NewFeed(4096, uint64(time.Now().UnixNano()))
	a.cards = cards.New(cards.Options{Settings: cardSettings(cfg), Store: &cardStore{client: a.client, log: a.log, flush: func(ctx context.Context) error { return a.events.Flush(ctx) }}, Log: a.log, Changed: a.cardsChanged})
	a.metrics.reports(o.Registry, a.cards)
	a.state = newState()
	a.state.cards = a.cards
	a.state.changed = a.meter.mark
	o.Registry.MustRegister(newCollector(a))
	return a, nil
}

// Feed is the stream of the planner's events.
func (a *Agent) Feed() *httpapi.Feed { return a.feed }

// Run plans until ctx ends. It returns early only where it cannot start at
// all.
func (a *Agent) Run(ctx context.Context) error {
	a.mu.Lock()
	a.state.started = time.Now()
	a.mu.Unlock()
	server, err := a.connect(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.tellHooks(a.config.Current(), server.Region)
	a.state.server = server
	a.state.set = a.settings(a.config.Current(), server)
	a.mu.Unlock()
	a.log.Info("planner started", "nomad", a.client.Address(), "version", server.Version, "region", server.Region, "consul", a.consul != nil)

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer a.events.Close()
	defer wg.Wait()
	defer cancel()
	wg.Add(1)
	go func() {
		defer wg.Done()
		a.watcher.Run(ctx, a.inbox.delta)
	}()
	a.loadCards(ctx)
	wg.Add(1)
	go func() {
		defer wg.Done()
		a.cards.Run(ctx)
	}()
	saved, err := a.loadAll(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("load what was saved of the gangs: %w", err)
	}
	a.restore(saved)
	wg.Add(1)
	go func() {
		defer wg.Done()
		a.followServer(ctx, server)
	}()
	wg.Add(1)
	go func() {
		defer wg.Done()
		a.meterLoop(ctx, a.config.Current())
	}()
	a.loop(ctx, &wg)
	return nil
}

// connect waits for Nomad: a planner that starts before its servers is no
// error.
func (a *Agent) connect(ctx context.Context) (nomad.Server, error) {
	pause := 500 * time.Millisecond
	for {
		server, err := a.client.Server(ctx)
		if err == nil {
			return server, nil
		}
		if nomad.Forbidden(err) {
			return server, fmt.Errorf("start planner: the token is refused by Nomad at %s: %w", a.client.Address(), err)
		}
		a.log.Warn("waiting for Nomad", "address", a.client.Address(), "error", err)
		a.mu.Lock()
		a.state.contact = nomad.Contact{Err: err, At: time.Now()}
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return server, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// serverEvery is how often the servers' settings are read again: an operator
// may change what Nomad's scheduler may do.
const serverEvery = time.Minute

func (a *Agent) followServer(ctx context.Context, was nomad.Server) {
	tick := time.NewTicker(serverEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := a.client.Server(ctx)
		if err != nil || now == was {
			continue
		}
		was = now
		a.log.Info("the servers' settings changed", "version", now.Version, "batch_preemption", now.Evicts, "max_priority", now.MaxPriority)
		a.inbox.do(func(s *state) { s.server = now })
		a.Reload()
	}
}

// settings are what the state machines need of configuration and server.
func (a *Agent) settings(cfg *config.Config, server nomad.Server) *lifecycle.Settings {
	c := &cfg.Core
	queue := func(name string) core.Queue {
		for i := range c.Queues {
			if string(c.Queues[i].Name) == name {
				return c.Queues[i]
			}
		}
		return core.Queue{}
	}
	return &lifecycle.Settings{
		Region: server.Region, MaxPriority: server.MaxPriority, Levels: c.Levels, CardTypes: c.CardTypes,
		Cards:          lifecycle.CardPolicy{Quarantined: cfg.Cards.OnQuarantine, Grace: cfg.Cards.Grace},
		ReserveTimeout: c.ReserveTimeout, LostGrace: cfg.LostGrace, MaxAttempts: c.MaxAttempts, Tags: server.HasTags(), Evicts: server.Evicts,
		Grace:      func(name string) time.Duration { return queue(name).Preempt.Grace },
		MinRuntime: func(name string) time.Duration { return queue(name).Preempt.MinRuntime },
		TimeLimit:  func(name string) time.Duration { return queue(name).TimeLimit },
		HasQueue:   func(name string) bool { return queue(name).Name != "" },
		// The loop holds the state whenever a gang is stepped.
		BySignal: func(node string) bool { return !a.follows || a.state.signalled(node) },
		Queue:    func(named, namespace string) (string, []contract.Fault) { return queueOf(c, named, namespace) },
	}
}

// Reload puts a configuration in force that config.Live has taken.
func (a *Agent) Reload() {
	a.cards.Configure(cardSettings(a.config.Current()))
	a.inbox.do(func(s *state) {
		s.set = a.settings(a.config.Current(), s.server)
		if l := a.meter.ledger.Load(); l != nil {
			l.Entitle(guarantees(&a.config.Current().Core))
		}
		for _, e := range s.gangs {
			e.gang.Configure(s.set)
			s.stir(e)
		}
		s.decideSoon = true
	})
}

// bySignal tells whether a member's node does not listen to Consul.
func (a *Agent) bySignal(m contract.Member) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	alloc := a.state.allocs[m.Alloc]
	if alloc == nil {
		return false
	}
	return a.state.signalled(alloc.NodeID)
}

// signalled tells whether a node's driver says that it has no Consul.
func (s *state) signalled(node string) bool {
	n := s.nodes[node]
	return n != nil && n.Attributes[contract.AttrDriverRendezvous] == contract.RendezvousSignal
}

// inbox is what the loop is told; it never blocks whoever tells it.
type inbox struct {
	*inboxState
}

type inboxState struct {
	mu      sync.Mutex
	deltas  []nomad.Delta
	done    []outcome
	reports []reported
	calls   []func(*state)
	wake    chan struct{}
}

type reported struct {
	key     picture.Key
	attempt int
	reports []contract.Report
}

type mail struct {
	deltas  []nomad.Delta
	done    []outcome
	reports []reported
	calls   []func(*state)
}

func newInbox() inbox { return inbox{&inboxState{wake: make(chan struct{}, 1)}} }

func (i inbox) put(f func(*inboxState)) {
	i.mu.Lock()
	f(i.inboxState)
	i.mu.Unlock()
	select {
	case i.inboxState.wake <- struct{}{}:
	default:
	}
}

func (i inbox) delta(d nomad.Delta) { i.put(func(s *inboxState) { s.deltas = append(s.deltas, d) }) }
func (i inbox) outcome(o outcome)   { i.put(func(s *inboxState) { s.done = append(s.done, o) }) }
func (i inbox) report(r reported)   { i.put(func(s *inboxState) { s.reports = append(s.reports, r) }) }
func (i inbox) do(f func(*state))   { i.put(func(s *inboxState) { s.calls = append(s.calls, f) }) }

// pending are the deltas that are not taken yet.
func (i inbox) pending() []nomad.Delta {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.deltas[:len(i.deltas):len(i.deltas)]
}

func (i inbox) take() mail {
	i.mu.Lock()
	defer i.mu.Unlock()
	m := mail{i.deltas, i.done, i.reports, i.calls}
	i.deltas, i.done, i.reports, i.calls = nil, nil, nil, nil
	return m
}
