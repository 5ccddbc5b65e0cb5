package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/core/estimate"
)

// Options say what to simulate.
type Options struct {
	Name   string // of the policy, for the report
	Seed   uint64 // of faults; printed in every report
	Config *core.Config
	Nodes  []core.Node
	Jobs   []Job // ordered by Submit
	// Oracle tells the planner every job's true run time as its time limit.
	Oracle bool
	// Save is how long a gang that is asked takes to save before it leaves,
	// and Restart how long it takes to be where it was once it starts again.
	// Work done before the ask is kept; without Save, all of it is lost.
	Save, Restart time.Duration
	// Checkpoints: gangs save by themselves so often; 0: never.
	Checkpoints time.Duration
	// Slowdown is the factor by which a gang runs longer for each level of the
	// topology, outermost first, of which it spans several domains; absent: 1.
	Slowdown []float64
	Faults   Faults
	// Until ends the simulation though jobs are left; 0: when all are over.
	Until time.Duration
	// Decider is used instead of the planner's own where it is stated.
	Decider core.Decider
	// Watch is called after every cycle; it must not change anything.
	Watch func(s *core.Snapshot, p *core.Plan)
	// Progress is called now and then.
	Progress func(done, all int, now time.Duration)
	// Check looks for what must never be after each cycle; slow.
	Check bool
}

// epoch is when every simulation begins: a Monday at midnight UTC.
var epoch = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// event is something that happens at an instant; equal instants in the order
// of their making.
type event struct {
	at   time.Time
	seq  int64
	kind eventKind
	job  *job
	tag  int // attempt that it belongs to; others ignore it
	node int
}

type eventKind uint8

const (
	eventSubmit eventKind = iota
	eventEnd
	eventLeft
	eventWake
	eventFault
	eventRepair
)

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// job is a job under way.
type job struct {
	*Job
	gang   *Gang
	left   time.Duration // of its run, at full size
	from   time.Time     // since when it makes progress
	rate   float64       // of progress; 1 is full size, all near
	tag    int
	out    Outcome
	queued time.Time
	hit    time.Time // by a fault that is not made good yet
	row    int       // hits since it last got as far as a checkpoint
	// displaced: it was hit and is not back yet, or had to leave for one that was;
	// aside: the latter.
	displaced, aside bool
	chain            int // how many had to leave, one for another, since the fault
	running          bool
}

// engine is one simulation under way.
type engine struct {
	o       *Options
	w       *World
	q       events
	seq     int64
	decider core.Decider
	learner estimate.Learner
	learned int
	jobs    map[core.GangID]*job
	done    int
	res     *Result
	wake    time.Time
	faults  *faults
	busy    int64 // thousandths of cards held
}

// Run simulates until every job is over.
func Run(ctx context.Context, o Options) (*Result, error) {
	if !slices.IsSortedFunc(o.Jobs, func(a, b Job) int { return cmp.Compare(a.Submit, b.Submit) }) {
		return nil, fmt.Errorf("simulate %s: the jobs are not ordered by their submit times", o.Name)
	}
	e := &engine{o: &o, w: NewWorld(epoch, o.Config, slices.Clone(o.Nodes)), decider: o.Decider, jobs: make(map[core.GangID]*job, len(o.Jobs))}
	if e.decider == nil {
		e.decider = decide.New()
	}
	e.res = newResult(&o)
	for i := range o.Jobs {
		j := &job{Job: &o.Jobs[i], left: o.Jobs[i].Run}
		e.push(event{at: epoch.Add(j.Submit), kind: eventSubmit, job: j})
	}
	e.faults = newFaults(e)
	for len(e.q) > 0 && e.done < len(o.Jobs) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("simulate %s: stopped after %d of %d jobs: %w", o.Name, e.done, len(o.Jobs), err)
		}
		now := e.q[0].at
		if o.Until > 0 && now.Sub(epoch) > o.Until {
			break
		}
		e.res.advance(e, now)
		e.w.Now = now
		act := false
		for len(e.q) > 0 && !e.q[0].at.After(now) {
			ev := heap.Pop(&e.q).(event)
			acted, err := e.handle(ev)
			if err != nil {
				return nil, err
			}
			act = act || acted
		}
		if !act {
			continue
		}
		if err := e.cycle(); err != nil {
			return nil, fmt.Errorf("simulate %s at %s: %w", o.Name, now.Sub(epoch), err)
		}
	}
	e.res.finish(e)
	return e.res, nil
}

func (e *engine) push(ev event) {
	e.seq++
	ev.seq = e.seq
	heap.Push(&e.q, ev)
}

// handle lets an event happen; it tells whether there is something to decide.
func (e *engine) handle(ev event) (bool, error) {
	j := ev.job
	switch ev.kind {
	case eventSubmit:
		g := j.Job.gang(epoch)
		if e.o.Oracle {
			g.TimeLimit = j.Run
		}
		x, err := e.w.Submit(g)
		if err != nil {
			return false, err
		}
		j.gang, j.queued = x, e.w.Now
		j.out = Outcome{Job: j.Job}
		e.jobs[g.ID] = j
	case eventEnd:
		if ev.tag != j.tag || !j.running {
			return false, nil
		}
		e.ended(j)
	case eventLeft:
		if ev.tag != j.tag {
			return false, nil
		}
		e.leave(j)
	case eventWake:
		if !ev.at.Equal(e.wake) {
			return false, nil
		}
		e.wake = time.Time{}
	case eventFault, eventRepair:
		return true, e.faults.handle(ev)
	}
	return true, nil
}

// ended books a job that is over.
func (e *engine) ended(j *job) {
	j.running = false
	j.tag++
	j.out.End = e.w.Now.Sub(epoch)
	j.out.Done = true
	e.hold(j, -1)
	e.learner.Ended(&j.gang.Gang, j.cards(), e.w.Now, j.Run)
	e.learned++
	started := e.w.End(j.gang, "complete")
	e.res.over(j)
	delete(e.jobs, j.gang.ID)
	e.done++
	e.started(started)
}

func (j *job) cards() int {
	return max(1, j.Members) * max(1, j.Cards)
}

// hold counts what is held.
func (e *engine) hold(j *job, sign int64) {
	held := int64(0)
	for i := range j.gang.Claims {
		held += e.claimMilli(j, &j.gang.Claims[i])
	}
	e.busy += sign * held
}

func (e *engine) claimMilli(j *job, c *core.Claim) int64 {
	if j.Shares > 0 {
		return int64(j.Shares)
	}
	return int64(len(c.Cards)) * 1000
}

// leave puts a gang that was asked back into its queue.
func (e *engine) leave(j *job) {
	j.tag++
	e.hold(j, -1)
	j.queued = e.w.Now
	over := j.gang.kind == core.EvictTimeLimit
	started := e.w.Left(j.gang)
	if over {
		j.out.End = e.w.Now.Sub(epoch)
		e.res.over(j)
		delete(e.jobs, j.gang.ID)
		e.done++
	}
	e.started(started)
}

// cycle decides and carries the plan out.
func (e *engine) cycle() error {
	if e.learned > 0 && (e.learned < 64 || e.learned%32 == 0) {
		e.w.History.Estimates = e.learner.Estimates()
	}
	if e.o.Checkpoints > 0 {
		e.checkpoint()
	}
	s := e.w.Snapshot()
	began := time.Now()
	p := e.decider.Decide(s)
	e.res.cycle(time.Since(began))
	if e.o.Watch != nil {
		e.o.Watch(s, p)
	}
	for i := range p.Reservations {
		if j := e.jobs[p.Reservations[i].Gang]; j != nil && !p.Reservations[i].At.IsZero() {
			j.out.promise(e.w.Now.Sub(epoch), p.Reservations[i].At.Sub(epoch), p.Reservations[i].Cause)
		}
	}
	for i := range p.Resizes {
		if j := e.jobs[p.Resizes[i].Gang]; j != nil {
			e.progress(j)
			e.hold(j, -1)
		}
	}
	done, err := e.w.Apply(p)
	if err != nil {
		return err
	}
	e.res.plan(p)
	for i := range p.Evictions {
		if j, other := e.jobs[p.Evictions[i].Gang], e.jobs[p.Evictions[i].For]; j != nil && other != nil && other.displaced {
			j.displaced, j.aside = true, true
			j.out.Aside++
			j.chain = other.chain + 1
			j.out.Chain = max(j.out.Chain, j.chain)
		}
	}
	for _, g := range done.Asked {
		e.asked(e.jobs[g.ID])
	}
	for _, g := range done.Resized {
		if j := e.jobs[g.ID]; j != nil {
			if !g.Damaged {
				j.repaired(e.w.Now)
			}
			e.hold(j, 1)
			e.run(j)
		}
	}
	e.started(done.Started)
	for _, g := range done.Ended {
		j := e.jobs[g.ID]
		j.tag++
		j.out.End = e.w.Now.Sub(epoch)
		e.res.over(j)
		delete(e.jobs, g.ID)
		e.done++
	}
	if e.o.Check {
		if err := e.w.Check(); err != nil {
			return err
		}
	}
	e.setWake(p)
	if e.o.Progress != nil && e.res.Cycles%1024 == 0 {
		e.o.Progress(e.done, len(e.o.Jobs), e.w.Now.Sub(epoch))
	}
	return nil
}

// checkpoint notes the last periodic checkpoint of each running gang.
func (e *engine) checkpoint() {
	for _, g := range e.w.Active() {
		if g.State == core.GangRunning {
			n := e.w.Now.Sub(g.Released) / e.o.Checkpoints
			g.Checkpoint = time.Time{}
			if n > 0 {
				g.Checkpoint = g.Released.Add(n * e.o.Checkpoints)
			}
		}
	}
}

// started books gangs that have just got their cards and lets them run.
func (e *engine) started(gangs []*Gang) {
	for _, g := range gangs {
		j := e.jobs[g.ID]
		wait := e.w.Now.Sub(j.queued)
		j.out.Waited += wait
		if !j.out.Started {
			j.out.Started, j.out.Start = true, e.w.Now.Sub(epoch)
		}
		j.out.Nodes, j.out.Domains = e.spans(g)
		j.repaired(e.w.Now)
		e.hold(j, 1)
		e.run(j)
		if g.Attempt > 1 {
			j.from = j.from.Add(e.o.Restart)
			j.lost(e.o.Restart)
			e.schedule(j)
		}
		j.displaced, j.aside = false, false
	}
}

// repaired notes that a gang runs again after a fault.
func (j *job) repaired(now time.Time) {
	if !j.hit.IsZero() {
		j.out.Repairs++
		j.out.Repairing += now.Sub(j.hit)
		j.hit = time.Time{}
	}
}

// lost books time that brings its work no further.
func (j *job) lost(d time.Duration) {
	j.out.Lost += d
	switch {
	case j.gang.kind == core.EvictRepair:
		j.out.LostToFaults += d
	case j.aside:
		j.out.LostAside += d
	}
}

// run sets a gang's speed and when it will end.
func (e *engine) run(j *job) {
	j.running = true
	j.from = e.w.Now
	j.rate = float64(len(j.gang.Claims)) / float64(max(1, j.Members))
	_, domains := e.spans(j.gang)
	for l, f := range e.o.Slowdown {
		if l < len(domains) && domains[l] > 1 && f > 1 {
			j.rate /= f
		}
	}
	e.schedule(j)
}

func (e *engine) schedule(j *job) {
	j.tag++
	need := time.Duration(float64(j.left) / j.rate)
	if j.rate == 1 {
		need = j.left
	}
	e.push(event{at: j.from.Add(need), kind: eventEnd, job: j, tag: j.tag})
}

// progress books what a running gang has done.
func (e *engine) progress(j *job) {
	if d := e.w.Now.Sub(j.from); d > 0 {
		if j.rate != 1 {
			d = time.Duration(float64(d) * j.rate)
		}
		j.left = max(0, j.left-d)
		j.from = e.w.Now
	}
}

// asked lets a gang save and leave.
func (e *engine) asked(j *job) {
	j.out.Evictions++
	if !j.running { // it had not begun
		j.tag++
		e.push(event{at: e.w.Now, kind: eventLeft, job: j, tag: j.tag})
		return
	}
	before := j.left
	e.progress(j)
	save := e.o.Save
	if j.gang.kind == core.EvictRepair {
		save = 0 // a broken gang saves nothing
	}
	if save == 0 {
		kept := time.Duration(0)
		if e.o.Checkpoints > 0 && !j.gang.Checkpoint.IsZero() {
			kept = max(0, before-j.left-e.w.Now.Sub(j.gang.Checkpoint))
		}
		j.lost(before - j.left - kept)
		j.left = before - kept
	} else {
		j.lost(save)
	}
	j.running = false
	j.tag++
	e.push(event{at: e.w.Now.Add(save), kind: eventLeft, job: j, tag: j.tag})
}

// spans counts the nodes, and the domains of each level, that a gang is on.
func (e *engine) spans(g *Gang) (int, []int) {
	if len(e.o.Config.Levels) == 0 && len(e.o.Slowdown) == 0 {
		return 0, nil
	}
	nodes := make([]core.NodeID, 0, len(g.Claims))
	for i := range g.Claims {
		nodes = append(nodes, g.Claims[i].Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	domains := make([]int, len(e.o.Config.Levels))
	for l := range domains {
		seen := map[string]bool{}
		for _, n := range nodes {
			path := ""
			for k := 0; k <= l; k++ {
				path += e.w.Nodes[e.w.index[n]].Domains[k] + "/"
			}
			seen[path] = true
		}
		domains[l] = len(seen)
	}
	return len(nodes), domains
}

// setWake makes sure of a cycle when something changes by time alone.
func (e *engine) setWake(p *core.Plan) {
	next := time.Time{}
	at := func(t time.Time) {
		if t.After(e.w.Now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	cfg := e.o.Config
	queues := map[core.QueueName]*core.Queue{}
	for i := range cfg.Queues {
		queues[cfg.Queues[i].Name] = &cfg.Queues[i]
	}
	for _, g := range e.w.Active() {
		switch g.State {
		case core.GangWaiting, core.GangRefused:
			q := queues[g.Queue]
			if q == nil {
				continue
			}
			for _, s := range q.Aging {
				at(g.Queued.Add(s.After))
			}
			at(g.NotBefore)
			at(g.Queued.Add(cfg.GatherAfter))
			if len(cfg.Levels) > 0 {
				wait := cfg.PreferWait
				if g.PreferWait > 0 {
					wait = g.PreferWait
				}
				at(g.Queued.Add(wait))
			}
			if q.GiveUp.After > 0 {
				at(g.Queued.Add(q.GiveUp.After))
			}
		case core.GangRunning:
			if q := queues[g.Queue]; q != nil {
				if q.Preempt.MinRuntime > 0 && g.Preemptible && cfg.Preemption {
					at(g.Released.Add(q.Preempt.MinRuntime))
				}
				if g.TimeLimit > 0 {
					at(g.Released.Add(g.TimeLimit))
				}
			}
		}
	}
	for i := range p.Reservations {
		at(p.Reservations[i].At)
	}
	if !next.IsZero() && (e.wake.IsZero() || next.Before(e.wake)) {
		e.wake = next
		e.push(event{at: next, kind: eventWake})
	}
}
