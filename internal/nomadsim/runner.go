package nomadsim

import (
	"maps"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// taskDriver starts and stops the processes of tasks. Calls return soon; what comes of them is told to the task:
// started or startFailed after start, exited once the process has ended. Each start has a number that these carry.
type taskDriver interface {
	start(t *taskRun, start int)
	signal(t *taskRun, signal string) error
	// stop asks the process to end and kills it after the timeout.
	stop(t *taskRun, start int, signal string, timeout time.Duration)
	// recover finds the process of a task again after the agent was away; false: it is gone, start it anew.
	recover(t *taskRun, start int) bool
	// discard removes what is left of a task; one that still runs is killed.
	discard(t *taskRun)
}

// allocRun runs one allocation on a client.
type allocRun struct {
	a  *agent
	id string

	mu       sync.Mutex
	alloc    *wire.Allocation
	tasks    map[string]*taskRun
	order    []string
	begun    bool
	stopping bool
	over     bool
	health   *wire.AllocDeployment
	healthAt func()
	waiters  []func() // called once the allocation has ended
}

// taskRun runs one task. Its fields are guarded by its allocation's lock.
type taskRun struct {
	r        *allocRun
	name     string
	state    *wire.TaskState
	restarts taskstate.Restarts
	start    int // number of the last start; 0: none
	live     bool
	killing  bool
	again    bool // a restart was asked for
	timer    func()
	spec     *wire.Task // as it was when the task last started
	data     any        // the driver's
}

func newAllocRun(a *agent, al *wire.Allocation) *allocRun {
	r := &allocRun{a: a, id: al.ID, alloc: al, tasks: map[string]*taskRun{}}
	g := al.Group()
	now := a.c.clock.Now()
	for _, t := range g.Tasks {
		always := al.Job.Type == wire.TypeService || al.Job.Type == wire.TypeSystem
		policy := t.RestartPolicy
		if policy == nil {
			policy = g.RestartPolicy
		}
		if t.Lifecycle != nil && !t.Lifecycle.Sidecar {
			always = false
		}
		r.tasks[t.Name] = &taskRun{r: r, name: t.Name, spec: t, state: taskstate.New(now), restarts: taskstate.Restarts{Policy: policy, Always: always, Jitter: a.c.jitter}}
		r.order = append(r.order, t.Name)
	}
	return r
}

// begin starts the tasks, once the allocation that this one replaces on the same node has ended.
func (r *allocRun) begin() {
	r.mu.Lock()
	prev := r.alloc.PreviousAllocation
	r.mu.Unlock()
	if prev != "" {
		if p := r.a.run(prev); p != nil && p.whenOver(r.begin) {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun || r.stopping {
		return
	}
	r.begun = true
	now := r.a.c.clock.Now()
	for _, t := range r.tasks {
		t.state = taskstate.Append(t.state, taskstate.Setup(now))
	}
	r.tell()
	r.startDue()
}

// whenOver has f called when the allocation has ended; false if it has.
func (r *allocRun) whenOver(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.done() {
		return false
	}
	r.waiters = append(r.waiters, f)
	return true
}

// hook is when a task runs: "" for main tasks.
func (t *taskRun) hook() string {
	if t.spec.Lifecycle == nil {
		return ""
	}
	return t.spec.Lifecycle.Hook
}

// startDue starts the tasks whose time has come: prestart tasks first, main tasks once these are through, poststart
// tasks once the main tasks run, poststop tasks when they have ended. It is called with the lock held.
func (r *allocRun) startDue() {
	if r.over {
		return
	}
	preDone, mainUp, mainDead := true, true, true
	for _, t := range r.tasks {
		switch t.hook() {
		case "prestart":
			if sidecar := t.spec.Lifecycle.Sidecar; sidecar && t.state.State == wire.TaskPending || !sidecar && t.state.State != wire.TaskDead {
				preDone = false
			}
		case "":
			mainUp = mainUp && t.state.State == wire.TaskRunning
			mainDead = mainDead && t.state.State == wire.TaskDead
		}
	}
	for _, name := range r.order {
		t := r.tasks[name]
		if t.start != 0 || t.state.State != wire.TaskPending || t.timer != nil {
			continue
		}
		due := false
		switch t.hook() {
		case "prestart":
			due = !r.stopping
		case "":
			due = preDone && !r.stopping
		case "poststart":
			due = mainUp && !r.stopping
		case "poststop":
			due = mainDead
		}
		if due {
			t.launch()
		}
	}
}

// launch starts the task's process. It is called with the lock held.
func (t *taskRun) launch() {
	t.timer = nil
	if g := t.r.alloc.Group(); g != nil {
		if s := g.Task(t.name); s != nil {
			t.spec = s
		}
	}
	t.start++
	start := t.start
	t.r.a.c.spawn(func() { t.r.a.driver.start(t, start) })
}

// currentStart is the number of the last start.
func (t *taskRun) currentStart() int {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	return t.start
}

// started tells that the process runs.
func (t *taskRun) started(start int) {
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if start != t.start || r.over {
		return
	}
	now := r.a.c.clock.Now()
	t.live = true
	t.state = taskstate.Append(t.state, taskstate.Event(taskstate.Started, now, nil))
	t.state.State, t.state.StartedAt = wire.TaskRunning, wire.Time{Time: now}
	r.tell()
	r.startDue()
	r.checkHealth()
	if t.killing || r.stopping && t.hook() != "poststop" {
		t.askToEnd()
	}
}

// startFailed tells that the process could not be started.
func (t *taskRun) startFailed(start int, recoverable bool, event *wire.TaskEvent) {
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if start != t.start || r.over {
		return
	}
	t.live = false
	t.state = taskstate.Append(t.state, event)
	if event.FailsTask {
		t.die(true)
		return
	}
	again, delay, why := t.restarts.StartFailed(r.a.c.clock.Now(), recoverable, event.DriverError)
	t.after(again && !t.killing, delay, why, true)
}

// note adds an event to the task.
func (t *taskRun) note(e *wire.TaskEvent) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.r.over {
		return
	}
	t.state = taskstate.Append(t.state, e)
	t.r.tell()
}

func (t *taskRun) driverEvent(message string, annotations map[string]string) {
	t.note(taskstate.FromDriver(t.r.a.c.clock.Now(), message, annotations))
}

// exited tells that the process of a start has ended.
func (t *taskRun) exited(start int, exit taskstate.Exit) {
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if start != t.start || !t.live || r.over {
		return
	}
	t.live = false
	now := r.a.c.clock.Now()
	t.state = taskstate.Append(t.state, taskstate.Ended(now, exit))
	if t.again && !r.stopping {
		t.again, t.killing = false, false
		t.after(true, 0, "", false)
		return
	}
	if t.killing {
		t.state = taskstate.Append(t.state, taskstate.Event(taskstate.Killed, now, nil))
		t.die(false)
		return
	}
	again, delay, why := t.restarts.Decide(now, exit)
	t.after(again, delay, why, exit.Failed() || t.restarts.Always)
}

// after restarts the task, or lets it be dead. It is called with the lock held.
func (t *taskRun) after(again bool, delay time.Duration, why string, failed bool) {
	r := t.r
	now := r.a.c.clock.Now()
	if !again {
		if failed && !t.killing {
			t.state = taskstate.Append(t.state, taskstate.NoRestart(now, why))
		}
		t.die(failed && !t.killing)
		return
	}
	t.state = taskstate.Append(t.state, taskstate.Restart(now, why, delay))
	t.state.State, t.state.Restarts, t.state.LastRestart = wire.TaskPending, t.state.Restarts+1, wire.Time{Time: now}
	r.tell()
	t.timer = r.a.c.clock.AfterFunc(delay, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if t.timer == nil || r.over {
			return
		}
		if t.killing || r.stopping {
			t.timer = nil
			t.die(false)
			return
		}
		t.launch()
	})
}

// die ends the task for good and draws the consequences for the others. It is called with the lock held.
func (t *taskRun) die(failed bool) {
	r := t.r
	now := r.a.c.clock.Now()
	s := *t.state
	s.State, s.FinishedAt = wire.TaskDead, wire.Time{Time: now}
	s.Failed = s.Failed || failed
	t.state = &s
	switch {
	case s.Failed && !r.stopping:
		for _, o := range r.tasks {
			if o != t && o.state.State != wire.TaskDead && o.hook() != "poststop" {
				o.state = taskstate.Append(o.state, taskstate.Event(taskstate.SiblingFailed, now, func(e *wire.TaskEvent) {
					e.FailedSibling = t.name
					e.Details["failed_sibling"] = t.name
				}))
				o.kill()
			}
		}
	case t.spec.Leader:
		for _, o := range r.tasks {
			if o != t && o.state.State != wire.TaskDead && o.hook() != "poststop" {
				o.state = taskstate.Append(o.state, taskstate.Event(taskstate.LeaderDead, now, nil))
				o.kill()
			}
		}
	case t.hook() == "" && r.mainsDead():
		for _, o := range r.tasks {
			if o.state.State != wire.TaskDead && o.spec.Lifecycle != nil && o.spec.Lifecycle.Sidecar {
				o.state = taskstate.Append(o.state, taskstate.Event(taskstate.MainTasksDead, now, nil))
				o.kill()
			}
		}
	}
	r.tell()
	r.startDue()
	r.checkHealth()
	if r.done() {
		for _, f := range r.waiters {
			r.a.c.spawn(f)
		}
		r.waiters = nil
	}
}

func (r *allocRun) mainsDead() bool {
	for _, t := range r.tasks {
		if t.hook() == "" && t.state.State != wire.TaskDead {
			return false
		}
	}
	return true
}

func (r *allocRun) done() bool {
	for _, t := range r.tasks {
		if t.state.State != wire.TaskDead {
			return false
		}
	}
	return true
}

// kill ends the task for good. It is called with the lock held.
func (t *taskRun) kill() {
	if t.killing || t.state.State == wire.TaskDead {
		return
	}
	t.killing = true
	switch {
	case t.live:
		t.askToEnd()
	case t.start > 0 && t.timer == nil:
		// The driver is starting it: that cannot be cut short. It is asked to end once it runs.
		t.state = taskstate.Append(t.state, taskstate.Kill(t.r.a.c.clock.Now(), t.spec.KillTimeout))
		t.r.tell()
	default:
		if t.timer != nil {
			t.timer()
			t.timer = nil
		}
		t.die(false)
	}
}

// askToEnd sends the kill signal. It is called with the lock held.
func (t *taskRun) askToEnd() {
	r := t.r
	t.killing = true
	timeout := t.spec.KillTimeout
	last := ""
	if n := len(t.state.Events); n > 1 {
		last = t.state.Events[n-2].Type
	}
	if last != taskstate.Killing { // told already while it started
		t.state = taskstate.Append(t.state, taskstate.Kill(r.a.c.clock.Now(), timeout))
	}
	r.tell()
	start := t.start
	signal := t.spec.KillSignal
	r.a.c.spawn(func() { r.a.driver.stop(t, start, signal, timeout) })
}

// update follows a change that the server made.
func (r *allocRun) update(al *wire.Allocation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if al.DeploymentID != r.alloc.DeploymentID { // updated in place by a new rollout, which judges it anew
		if r.healthAt != nil {
			r.healthAt()
		}
		r.health, r.healthAt = nil, nil
	}
	r.alloc = al
	if al.ServerTerminal() && !r.stopping {
		r.stopping = true
		if !r.begun {
			r.begun = true
			for _, t := range r.tasks {
				t.die(false)
			}
			return
		}
		for _, name := range r.order {
			if t := r.tasks[name]; t.hook() != "poststop" {
				t.kill()
			}
		}
	}
	r.checkHealth()
}

// orphaned ends an allocation that the server no longer knows, and says whether it has ended.
func (r *allocRun) orphaned() bool {
	r.mu.Lock()
	done, al := r.done(), *r.alloc
	r.mu.Unlock()
	if done {
		return true
	}
	al.DesiredStatus = wire.DesiredStop
	r.update(&al)
	return false
}

// tell reports how the allocation is. It is called with the lock held.
func (r *allocRun) tell() {
	if r.over {
		return
	}
	states := map[string]*wire.TaskState{}
	for name, t := range r.tasks {
		states[name] = t.state
	}
	status, description := taskstate.AllocStatus(states)
	r.a.report(&store.ClientUpdate{ID: r.id, NodeID: r.a.cfg.ID, ClientStatus: status, ClientDescription: description, TaskStates: states,
		NetworkStatus: &wire.AllocNetworkStatus{}, DeploymentStatus: r.health, ModifyTime: r.a.c.clock.Now()})
}

// reconnect tells the server anew; with an event if it had taken the allocation for unknown.
func (r *allocRun) reconnect(wasUnknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun {
		return
	}
	now := r.a.c.clock.Now()
	if wasUnknown {
		for _, t := range r.tasks {
			t.state = taskstate.Append(t.state, taskstate.Event(taskstate.Reconnected, now, nil))
		}
	}
	r.tell()
}

// checkHealth judges the allocation of a service for its deployment, or for a drain: healthy after its tasks have run
// for a while, unhealthy if it fails before. It is called with the lock held.
func (r *allocRun) checkHealth() {
	g := r.alloc.Group()
	if g == nil || r.alloc.Job.Type != wire.TypeService || r.health != nil && r.health.Healthy != nil {
		return
	}
	var healthyAfter time.Duration
	switch {
	case r.alloc.DeploymentID != "" && g.Update != nil:
		healthyAfter = g.Update.MinHealthyTime
	case r.alloc.DeploymentID == "" && g.Migrate != nil:
		healthyAfter = g.Migrate.MinHealthyTime
	default:
		return
	}
	set := func(ok bool) {
		r.health = &wire.AllocDeployment{Healthy: &ok, Timestamp: wire.Time{Time: r.a.c.clock.Now()}}
		if s := r.alloc.DeploymentStatus; s != nil {
			r.health.Canary = s.Canary
		}
		r.tell()
	}
	up := true
	for _, t := range r.tasks {
		if t.state.State == wire.TaskDead && t.state.Failed {
			if r.healthAt != nil {
				r.healthAt()
			}
			set(false)
			return
		}
		if t.hook() == "" && t.state.State != wire.TaskRunning {
			up = false
		}
	}
	switch {
	case up && r.healthAt == nil:
		r.healthAt = r.a.c.clock.AfterFunc(healthyAfter, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.healthAt != nil && !r.over && (r.health == nil || r.health.Healthy == nil) {
				set(true)
			}
		})
	case !up && r.healthAt != nil:
		r.healthAt()
		r.healthAt = nil
	}
}

// abandon forgets the allocation; what still runs is killed.
func (r *allocRun) abandon() {
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.over = true
	tasks := maps.Clone(r.tasks)
	if r.healthAt != nil {
		r.healthAt()
	}
	r.mu.Unlock()
	for _, t := range tasks {
		if t.timer != nil {
			t.timer()
		}
		r.a.driver.discard(t)
	}
}

// restore finds the tasks again after the agent was away.
func (r *allocRun) restore() {
	r.mu.Lock()
	var look []*taskRun
	for _, name := range r.order {
		switch t := r.tasks[name]; {
		case t.live:
			look = append(look, t)
		case t.start > 0 && t.state.State == wire.TaskPending && t.timer == nil && !r.over:
			t.launch() // its start was cut short: there is no handle, so it starts again
		}
	}
	r.mu.Unlock()
	for _, t := range look {
		start := t.currentStart()
		if r.a.driver.recover(t, start) {
			continue
		}
		r.mu.Lock()
		if t.start == start && t.live && !r.over {
			t.live = false
			if t.killing {
				t.die(false)
			} else {
				t.launch()
			}
		}
		r.mu.Unlock()
	}
}
