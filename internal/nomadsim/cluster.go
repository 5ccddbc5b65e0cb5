package nomadsim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/clock"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Options are what a cluster is made of. The zero value is a cluster without nodes on the wall clock.
type Options struct {
	Nodes []NodeConfig

	Addr        string        // where the API listens; empty: a free port of the loopback
	Region      string        // empty: "global"
	Clock       clock.Clock   // nil: the wall clock
	Seed        uint64        // varies ids and the order in which the scheduler tries nodes
	EventBuffer int           // lines that the event stream keeps; 0: 100
	Heartbeat   time.Duration // how long a client may be silent before its node is given up; 0: 10 s
	ClientSync  time.Duration // how often a client tells of changes; 0: 200 ms
	Script      Script        // what tasks on virtual nodes do; nil: DefaultScript
	DataDir     string        // where live nodes keep their files; empty: a temporary folder
	MaxConns    int           // connections from one address, beyond which requests are answered 429; 0: 100, negative: no limit
	// CommitTime makes every write wait so long, once the cluster has started, as a server's log does that is written to
	// disk: a wait on the wall clock, one commit after the other, with what comes meanwhile in the next. 0: no wait.
	CommitTime time.Duration
	// SignTime is what a plan waits for each task that it places, one plan after the other: a server signs an identity for
	// each.
	SignTime   time.Duration
	Schedulers int // evaluations that are looked at at once; 0: 1
	// SharedClasses gives nodes that are alike one computed class. By default each node has a class of its own, as on a
	// real agent, whose list of signals comes in a random order.
	SharedClasses bool
	// Before19 is a server that knows no tags of job versions and says so by its version: Nomad 1.8. NoTags refuses tags
	// without saying so.
	Before19, NoTags bool
	Logf             func(format string, args ...any) // nil: silent
}

// TB is the part of testing.TB that New needs.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Cluster is a running simulated cluster.
type Cluster struct {
	opts   Options
	clock  clock.Clock
	store  *store.Store
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	broker  *broker
	blocked *blocked
	hooks   *Hooks
	drainer *drainer
	pump    *pump

	listener net.Listener
	server   *http.Server
	url      string
	client   *api.Client
	conns    connCount

	plans sync.Mutex // one plan is applied at a time

	moves  atomic.Uint64 // what was set going so far
	beside atomic.Int64  // functions that run beside

	mu              sync.Mutex
	rng             *rand.Rand
	agents          map[string]*agent // by node id
	concluded       map[string]bool   // deployments whose last step was looked at
	schedulerConfig *api.SchedulerConfiguration
	unmodelled      []string
	locks           map[string]func()        // variable lock timers
	regular         map[time.Duration]func() // timers of what happens every so often
	signingKey      string
	ownDir          bool // DataDir is of our making
	closed          bool
}

// New starts a cluster for a test. It is closed at the test's end, and a request that it does not model fails the test.
func New(t TB, opts Options) *Cluster {
	t.Helper()
	c, err := Start(context.Background(), opts)
	if err != nil {
		t.Fatalf("start the simulated cluster: %v", err)
	}
	t.Cleanup(func() {
		c.Close()
		for _, u := range c.Unmodelled() {
			t.Errorf("the simulated cluster does not model %s", u)
		}
	})
	return c
}

// Start starts a cluster. It ends when Close is called or ctx ends.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.Region == "" {
		opts.Region = "global"
	}
	if opts.Clock == nil {
		opts.Clock = clock.Real()
	}
	if opts.EventBuffer == 0 {
		opts.EventBuffer = 100
	}
	if opts.Heartbeat == 0 {
		opts.Heartbeat = 10 * time.Second
	}
	if opts.ClientSync == 0 {
		opts.ClientSync = 200 * time.Millisecond
	}
	if opts.MaxConns == 0 {
		opts.MaxConns = 100
	}
	opts.Schedulers = max(opts.Schedulers, 1)
	if opts.Script == nil {
		opts.Script = DefaultScript
	}
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	c := &Cluster{opts: opts, clock: opts.Clock, rng: rand.New(rand.NewPCG(opts.Seed, 0x6e6f6d6164)), agents: map[string]*agent{}, concluded: map[string]bool{},
		hooks: &Hooks{}, locks: map[string]func(){}, regular: map[time.Duration]func(){}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.signingKey = c.newID()
	c.schedulerConfig = &api.SchedulerConfiguration{SchedulerAlgorithm: api.SchedulerAlgorithmBinpack,
		PreemptionConfig: api.PreemptionConfig{SystemSchedulerEnabled: true}}
	c.store = store.New(opts.Clock.Now, opts.EventBuffer)
	c.broker = newBroker(opts.Clock)
	c.blocked = newBlocked(c.broker.enqueue)
	c.drainer = newDrainer(c)
	c.pump = newPump()
	c.store.OnChange(c.changed)
	if err := c.listen(); err != nil {
		c.cancel()
		return nil, err
	}
	for range opts.Schedulers {
		c.wg.Go(c.work)
	}
	c.wg.Go(c.pump.run)
	for _, n := range opts.Nodes {
		if _, err := c.AddNode(n); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.housekeeping()
	c.store.CommitTime(opts.CommitTime)
	context.AfterFunc(c.ctx, c.Close)
	return c, nil
}

func (c *Cluster) listen() error {
	l, err := net.Listen("tcp", c.opts.Addr)
	if err != nil {
		return fmt.Errorf("listen for the simulated Nomad API on %s: %w", c.opts.Addr, err)
	}
	c.listener = l
	c.url = "http://" + l.Addr().String()
	if c.client, err = api.NewClient(&api.Config{Address: c.url}); err != nil {
		return fmt.Errorf("make a client of the simulated Nomad API: %w", err)
	}
	c.server = &http.Server{Handler: c.handler(), ReadHeaderTimeout: 30 * time.Second, ConnContext: c.conns.context, ConnState: c.conns.state}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		c.server.Serve(l)
	}()
	return nil
}

// URL is where the API listens, as NOMAD_ADDR wants it.
func (c *Cluster) URL() string { return c.url }

// Client is a client of Nomad's own library for the cluster. It is one and the same each time: a client has connections
// of its own, and the cluster takes so many from one address only.
func (c *Cluster) Client() *api.Client { return c.client }

// Clock is the cluster's clock.
func (c *Cluster) Clock() clock.Clock { return c.clock }

// Hooks lets a test get between the cluster and its users.
func (c *Cluster) Hooks() *Hooks { return c.hooks }

// Unmodelled are the requests that the cluster answered with 501, since it does not model them.
func (c *Cluster) Unmodelled() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.unmodelled...)
}

// Close stops the agents and the API and waits until all has ended. Tasks of live nodes are killed.
func (c *Cluster) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	agents := make([]*agent, 0, len(c.agents))
	for _, a := range c.agents {
		agents = append(agents, a)
	}
	for _, stop := range c.locks {
		stop()
	}
	for _, stop := range c.regular {
		stop()
	}
	c.mu.Unlock()
	c.cancel()
	c.broker.close()
	c.drainer.close()
	c.pump.close()
	c.server.Close()
	var ending sync.WaitGroup
	for _, a := range agents {
		ending.Go(a.destroy)
	}
	ending.Wait()
	c.wg.Wait()
	if c.ownDir {
		if err := os.RemoveAll(c.opts.DataDir); err != nil {
			c.logf("remove %s: %v", c.opts.DataDir, err)
		}
	}
}

// spawn runs f beside, and Close waits for it.
func (c *Cluster) spawn(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.wg.Add(1)
	c.moves.Add(1)
	c.beside.Add(1)
	go func() {
		defer c.wg.Done()
		defer c.beside.Add(-1)
		f()
	}()
}

func (c *Cluster) logf(format string, args ...any) {
	if c.opts.Logf != nil {
		c.opts.Logf(format, args...)
	}
}

// newID makes an id in the form of a UUID.
func (c *Cluster) newID() string {
	c.mu.Lock()
	a, b := c.rng.Uint64(), c.rng.Uint64()
	c.mu.Unlock()
	return formatID(a, b)
}

// jitter is a random duration of at most so long.
func (c *Cluster) jitter(most time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(max(most, 0)) + 1))
}

func formatID(a, b uint64) string {
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// Settled says whether the scheduler and the clients have nothing to do just now; their timers may still go off.
func (c *Cluster) Settled() bool {
	moves := c.moves.Load()
	return c.broker.idle() && c.pump.idle() && c.drainer.idle() && c.beside.Load() == 0 && c.moves.Load() == moves
}

// PauseScheduler keeps evaluations from being looked at, or lets them go again.
func (c *Cluster) PauseScheduler(on bool) { c.broker.pause(on) }

// Wakes counts how often a job's blocked evaluations were woken.
func (c *Cluster) Wakes(namespace, job string) int {
	c.blocked.mu.Lock()
	defer c.blocked.mu.Unlock()
	return c.blocked.wakes[jobKey{namespace, job}]
}

// evalFor is a new evaluation of a job.
func (c *Cluster) evalFor(j *wire.Job, trigger string) *wire.Evaluation {
	now := c.clock.Now().UnixNano()
	return &wire.Evaluation{ID: c.newID(), Namespace: j.Namespace, Priority: j.Priority, Type: j.Type, TriggeredBy: trigger, JobID: j.ID,
		Status: wire.EvalPending, CreateTime: now, ModifyTime: now}
}
