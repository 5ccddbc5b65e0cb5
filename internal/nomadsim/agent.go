package nomadsim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// agent is the client agent of a node: it takes allocations from the server, runs them, and tells how they are.
// Tasks outlive their agent: one that is stopped or killed leaves them running and finds them again when it starts.
type agent struct {
	c    *Cluster
	cfg  NodeConfig
	addr string // of its API, which the cluster's own serves

	mu      sync.Mutex
	up      bool
	cut     bool // the network to the server is cut
	seen    map[string]uint64
	runs    map[string]*allocRun
	pending map[string]*store.ClientUpdate
	syncing bool
	lost    func() // stops the server's wait for a heartbeat
	rejoins int    // how often the node came back
	driver  taskDriver
	live    *liveClient
	closed  bool
}

// start brings the agent up: the node registers, is ready, and what was running is found again.
func (a *agent) start() error {
	a.mu.Lock()
	if a.up {
		a.mu.Unlock()
		return nil
	}
	if a.runs == nil {
		a.runs, a.seen, a.pending = map[string]*allocRun{}, map[string]uint64{}, map[string]*store.ClientUpdate{}
	}
	a.mu.Unlock()
	n := a.c.fingerprint(a.cfg, a.addr)
	restarted := a.driver != nil
	if a.cfg.Live != nil {
		if a.live == nil {
			live, err := newLiveClient(a)
			if err != nil {
				return err
			}
			a.live, a.driver = live, live
		}
		if err := a.live.startPlugins(n); err != nil {
			return err
		}
	} else if a.driver == nil {
		a.driver = &virtualDriver{c: a.c, node: a.cfg}
	}
	a.mu.Lock()
	a.up = true
	if a.lost != nil {
		a.lost()
		a.lost = nil
	}
	cut := a.cut
	a.mu.Unlock()
	if restarted {
		a.restore()
	}
	if !cut {
		a.connect(n)
	}
	return nil
}

// connect registers the node, tells of the allocations if the server had given it up, and makes it ready.
func (a *agent) connect(n *wire.Node) {
	c, id := a.c, a.cfg.ID
	old := c.store.Snapshot().Node(id)
	c.register(n)
	if old == nil {
		c.setNodeStatus(id, wire.NodeReady, "")
		c.register(n) // drivers and devices are found a little later
	} else {
		a.rejoin(old.Status)
	}
	c.wake(id)
}

// rejoin brings a node back that the server had given up: it is ready only after its client has told of its allocations,
// and until then the server places nothing there, what already runs there included.
func (a *agent) rejoin(was string) {
	c, id := a.c, a.cfg.ID
	description := ""
	switch was {
	case wire.NodeInit:
		c.setNodeStatus(id, wire.NodeReady, "")
		return
	case wire.NodeDown:
		description = "Node reregistered by heartbeat"
	case wire.NodeDisconnected:
	default:
		return
	}
	a.mu.Lock()
	a.rejoins++
	turn := a.rejoins
	a.mu.Unlock()
	a.steps(turn, []step{
		{beat, func() { c.setNodeStatus(id, wire.NodeInit, description) }},
		{c.opts.ClientSync, func() { a.reconnected(); a.flush() }},
		{4 * beat, func() { c.setNodeStatus(id, wire.NodeReady, "") }},
	})
}

// beat is the pause between two calls that a client makes one after the other.
const beat = 50 * time.Millisecond

type step struct {
	after time.Duration
	do    func()
}

// steps does one thing after the other, as long as the agent is up, not cut off, and has not come back once more.
func (a *agent) steps(turn int, list []step) {
	if len(list) == 0 {
		return
	}
	a.c.clock.AfterFunc(list[0].after, func() {
		a.c.spawn(func() {
			a.mu.Lock()
			on := a.up && !a.cut && !a.closed && a.rejoins == turn
			a.mu.Unlock()
			if on {
				list[0].do()
				a.steps(turn, list[1:])
			}
		})
	})
}

// reconnected tells the server anew of everything that runs here.
func (a *agent) reconnected() {
	a.mu.Lock()
	runs := make([]*allocRun, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	a.mu.Unlock()
	for _, r := range runs {
		known := a.c.store.Snapshot().Alloc(r.id)
		r.reconnect(known != nil && known.ClientStatus == wire.ClientUnknown)
	}
}

// away begins the server's wait for a heartbeat that will not come.
func (a *agent) away() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost != nil || a.closed {
		return
	}
	a.lost = a.c.clock.AfterFunc(a.c.opts.Heartbeat, func() {
		a.mu.Lock()
		gone := a.lost != nil && (!a.up || a.cut) && !a.closed
		a.lost = nil
		a.mu.Unlock()
		if gone {
			a.c.spawn(func() { a.c.heartbeatMissed(a.cfg.ID) })
		}
	})
}

// stop ends the agent. Its tasks go on; with graceful the plugins end with it, without they are orphaned.
func (a *agent) stop(graceful bool) {
	a.mu.Lock()
	if !a.up {
		a.mu.Unlock()
		return
	}
	a.up = false
	a.mu.Unlock()
	if a.live != nil {
		a.live.stopPlugins(graceful)
	}
	a.away()
}

// destroy ends the agent and its tasks, for good.
func (a *agent) destroy() {
	a.mu.Lock()
	wasUp := a.up
	a.closed, a.up = true, false
	if a.lost != nil {
		a.lost()
		a.lost = nil
	}
	runs := make([]*allocRun, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	orphaned := a.live != nil && !wasUp
	a.mu.Unlock()
	if orphaned {
		a.live.takeUp(runs)
	}
	var ending sync.WaitGroup
	for _, r := range runs {
		ending.Go(r.abandon)
	}
	ending.Wait()
	if a.live != nil {
		a.live.close()
	}
}

// pull takes over what the server wants of the node's allocations.
func (a *agent) pull() {
	a.mu.Lock()
	if !a.up || a.cut || a.closed {
		a.mu.Unlock()
		return
	}
	type change struct {
		run   *allocRun
		alloc *wire.Allocation
		fresh bool
	}
	var changes []change
	have := map[string]bool{}
	for al := range a.c.store.Snapshot().AllocsByNode(a.cfg.ID) {
		have[al.ID] = true
		if a.seen[al.ID] >= al.AllocModifyIndex {
			continue
		}
		a.seen[al.ID] = al.AllocModifyIndex
		run := a.runs[al.ID]
		switch {
		case run != nil:
			changes = append(changes, change{run, al, false})
		case !al.Terminal():
			run = newAllocRun(a, al)
			a.runs[al.ID] = run
			changes = append(changes, change{run, al, true})
		case !al.ClientTerminal() && al.ServerTerminal():
			// It was stopped before it began here.
			run = newAllocRun(a, al)
			a.runs[al.ID] = run
			changes = append(changes, change{run, al, false})
		}
	}
	var gone []*allocRun
	for id, r := range a.runs {
		if !have[id] {
			gone = append(gone, r)
		}
	}
	a.mu.Unlock()
	for _, r := range gone {
		if r.orphaned() {
			a.forget(r)
		}
	}
	// Stops come first, so that what takes their place does not wait in vain.
	slices.SortStableFunc(changes, func(x, y change) int {
		switch {
		case x.fresh == y.fresh:
			return 0
		case y.fresh:
			return -1
		}
		return 1
	})
	for _, ch := range changes {
		if ch.fresh {
			ch.run.begin()
		} else {
			ch.run.update(ch.alloc)
		}
	}
}

func (a *agent) forget(r *allocRun) {
	a.mu.Lock()
	delete(a.runs, r.id)
	delete(a.seen, r.id)
	a.mu.Unlock()
	r.abandon()
}

func (a *agent) run(id string) *allocRun {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[id]
}

// report takes a change of an allocation; changes are told to the server together, every so often.
func (a *agent) report(u *store.ClientUpdate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.pending[u.ID] = u
	a.arm()
}

func (a *agent) arm() {
	if a.syncing || !a.up || a.cut {
		return
	}
	a.syncing = true
	a.c.clock.AfterFunc(a.c.opts.ClientSync, func() {
		// One at a time: an update that is slow on its way must not overwrite a
		// newer one.
		a.flush()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.syncing = false
		if len(a.pending) > 0 {
			a.arm()
		}
	})
}

// flush tells the server what has changed.
func (a *agent) flush() {
	a.mu.Lock()
	if !a.up || a.cut || a.closed || len(a.pending) == 0 {
		a.mu.Unlock()
		return
	}
	list := make([]*store.ClientUpdate, 0, len(a.pending))
	for _, u := range a.pending {
		list = append(list, u)
	}
	sent := a.pending
	a.pending = map[string]*store.ClientUpdate{}
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y *store.ClientUpdate) int { return x.ModifyTime.Compare(y.ModifyTime) })
	if err := a.c.updateAllocs(a.cfg.ID, list); err != nil {
		a.mu.Lock()
		for id, u := range sent {
			if a.pending[id] == nil {
				a.pending[id] = u
			}
		}
		a.arm()
		a.mu.Unlock()
	}
}

// updateAllocs takes in what a client tells of its allocations.
func (c *Cluster) updateAllocs(node string, list []*store.ClientUpdate) error {
	snap := c.store.Snapshot()
	n := snap.Node(node)
	if n == nil {
		return fmt.Errorf("node %s not found", node)
	}
	if n.Status == wire.NodeDown || n.Status == wire.NodeDisconnected {
		return fmt.Errorf("node %s is not allowed to update allocs while in status %s", node, n.Status)
	}
	now := c.clock.Now()
	seen := map[jobKey]bool{}
	var evals []*wire.Evaluation
	orphans := false // whether one of a purged job has ended
	for _, u := range list {
		u.ModifyTime = now
		al := snap.Alloc(u.ID)
		terminal := u.ClientStatus == wire.ClientComplete || u.ClientStatus == wire.ClientFailed || u.ClientStatus == wire.ClientLost
		if al == nil {
			orphans = orphans || terminal
			continue
		}
		if !terminal && al.ClientStatus != wire.ClientUnknown {
			continue
		}
		job := snap.Job(al.Namespace, al.JobID)
		trigger := ""
		kind, priority := al.Job.Type, al.Job.Priority
		switch {
		case job == nil:
			trigger = wire.TriggerJobDeregister
		case al.ClientStatus == wire.ClientUnknown:
			trigger = wire.TriggerReconnect
		case u.ClientStatus == wire.ClientFailed && al.FollowupEvalID == "":
			if g := job.Group(al.TaskGroup); g != nil && rescheduleEligible(al, g.ReschedulePolicy, now) {
				trigger = wire.TriggerRetryFailedAlloc
			}
		}
		if job != nil {
			kind, priority = job.Type, job.Priority
		}
		k := jobKey{al.Namespace, al.JobID}
		if trigger == "" || seen[k] {
			continue
		}
		seen[k] = true
		evals = append(evals, &wire.Evaluation{ID: c.newID(), Namespace: al.Namespace, Priority: priority, Type: kind, TriggeredBy: trigger,
			JobID: al.JobID, Status: wire.EvalPending, CreateTime: now.UnixNano(), ModifyTime: now.UnixNano()})
	}
	index := c.store.Apply(func(tx *store.Txn) { tx.UpdateAllocs(list, evals) })
	if orphans {
		c.blocked.free(n.ComputedClass, n.ID, index)
		c.wake(node)
	}
	return nil
}

func rescheduleEligible(a *wire.Allocation, p *wire.ReschedulePolicy, failed time.Time) bool {
	if !p.Enabled() {
		return false
	}
	if p.Unlimited || a.RescheduleTracker == nil || len(a.RescheduleTracker.Events) == 0 {
		return true
	}
	tried := 0
	for _, e := range a.RescheduleTracker.Events {
		if failed.UnixNano()-e.RescheduleTime < int64(p.Interval) {
			tried++
		}
	}
	return tried < p.Attempts
}

// restore finds tasks again after the agent was away.
func (a *agent) restore() {
	a.mu.Lock()
	runs := make([]*allocRun, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	a.mu.Unlock()
	for _, r := range runs {
		r.restore()
	}
}

// wake has an agent look at its allocations. It may be called under the store's lock.
func (c *Cluster) wake(node string) {
	a := c.agent(node)
	if a == nil {
		return
	}
	c.pump.push(a)
}

// pump pulls for agents, one after the other.
type pump struct {
	mu     sync.Mutex
	cond   *sync.Cond
	queue  []*agent
	queued map[*agent]bool
	closed bool
	busy   bool
}

func newPump() *pump {
	p := &pump{queued: map[*agent]bool{}}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *pump) push(a *agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && !p.queued[a] {
		p.queued[a] = true
		p.queue = append(p.queue, a)
		p.cond.Signal()
	}
}

func (p *pump) run() {
	for {
		p.mu.Lock()
		p.busy = false
		for len(p.queue) == 0 && !p.closed {
			p.cond.Wait()
		}
		if p.closed {
			p.mu.Unlock()
			return
		}
		a := p.queue[0]
		p.queue = p.queue[1:]
		delete(p.queued, a)
		p.busy = true
		p.mu.Unlock()
		a.pull()
	}
}

func (p *pump) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0 && !p.busy
}

func (p *pump) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.cond.Broadcast()
}
