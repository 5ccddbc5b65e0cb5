package nomadsim

import (
	"container/heap"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/clock"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// broker hands evaluations to the scheduler: by priority, then age, one of a job at a time. Later ones of the job wait,
// and all but the newest of those that waited are cancelled.
type broker struct {
	mu      sync.Mutex
	cond    *sync.Cond
	clock   clock.Clock
	ready   evalHeap
	running map[jobKey]bool
	waiting map[jobKey][]*wire.Evaluation
	known   map[string]bool
	delayed map[string]func()
	// out are the evaluations that the scheduler has; again are those of them that
	// were woken meanwhile, to be let in once that run is over.
	out    map[string]bool
	again  map[string]*wire.Evaluation
	paused bool
	closed bool
	busy   int
}

type jobKey struct{ namespace, id string }

func keyOf(e *wire.Evaluation) jobKey { return jobKey{e.Namespace, e.JobID} }

func newBroker(c clock.Clock) *broker {
	b := &broker{clock: c, running: map[jobKey]bool{}, waiting: map[jobKey][]*wire.Evaluation{}, known: map[string]bool{}, out: map[string]bool{}, again: map[string]*wire.Evaluation{}, delayed: map[string]func(){}}
	b.cond = sync.NewCond(&b.mu)
	return b
}

type evalHeap []*wire.Evaluation

func (h evalHeap) Len() int { return len(h) }
func (h evalHeap) Less(i, j int) bool {
	if h[i].Priority != h[j].Priority {
		return h[i].Priority > h[j].Priority
	}
	return h[i].CreateIndex < h[j].CreateIndex
}
func (h evalHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *evalHeap) Push(x any)   { *h = append(*h, x.(*wire.Evaluation)) }
func (h *evalHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// enqueue takes an evaluation in; one that is to wait is kept until it is due.
func (b *broker) enqueue(e *wire.Evaluation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if b.known[e.ID] {
		if b.out[e.ID] {
			b.again[e.ID] = e
		}
		return
	}
	b.known[e.ID] = true
	b.take(e)
}

// take admits a known evaluation, now or when its time comes.
func (b *broker) take(e *wire.Evaluation) {
	wait := e.Wait
	if !e.WaitUntil.IsZero() {
		wait = e.WaitUntil.Sub(b.clock.Now())
	}
	if wait > 0 {
		b.delay(e, wait)
		return
	}
	b.admit(e)
}

func (b *broker) delay(e *wire.Evaluation, wait time.Duration) {
	b.delayed[e.ID] = b.clock.AfterFunc(wait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, ok := b.delayed[e.ID]; ok && !b.closed {
			delete(b.delayed, e.ID)
			b.admit(e)
		}
	})
}

func (b *broker) admit(e *wire.Evaluation) {
	k := keyOf(e)
	if b.running[k] {
		b.waiting[k] = append(b.waiting[k], e)
		return
	}
	b.running[k] = true
	heap.Push(&b.ready, e)
	b.cond.Broadcast()
}

// next waits for an evaluation; nil when the broker is closed.
func (b *broker) next() *wire.Evaluation {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && (b.paused || len(b.ready) == 0) {
		b.cond.Wait()
	}
	if b.closed {
		return nil
	}
	b.busy++
	e := heap.Pop(&b.ready).(*wire.Evaluation)
	b.out[e.ID] = true
	return e
}

// done lets the job's next evaluation in, and returns those that it makes unneeded.
func (b *broker) done(e *wire.Evaluation) (unneeded []*wire.Evaluation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy--
	delete(b.known, e.ID)
	delete(b.out, e.ID)
	k := keyOf(e)
	delete(b.running, k)
	list := b.waiting[k]
	delete(b.waiting, k)
	if n := len(list); n > 0 {
		newest := 0
		for i, w := range list {
			if w.Priority > list[newest].Priority || w.Priority == list[newest].Priority && w.ModifyIndex >= list[newest].ModifyIndex {
				newest = i
			}
		}
		for i, w := range list {
			if i != newest {
				unneeded = append(unneeded, w)
				delete(b.known, w.ID)
			}
		}
		b.admit(list[newest])
	}
	if again := b.again[e.ID]; again != nil {
		delete(b.again, e.ID)
		b.known[e.ID] = true
		b.take(again)
	}
	b.cond.Broadcast()
	return unneeded
}

// drop forgets an evaluation that waits for its time.
func (b *broker) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if stop := b.delayed[id]; stop != nil {
		stop()
		delete(b.delayed, id)
		delete(b.known, id)
	}
}

func (b *broker) pause(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = on
	b.cond.Broadcast()
}

func (b *broker) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy == 0 && (b.paused || len(b.ready) == 0)
}

func (b *broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, stop := range b.delayed {
		stop()
	}
	b.cond.Broadcast()
}

// blocked keeps evaluations that wait for room, one a job, and system jobs' ones a node.
type blocked struct {
	mu       sync.Mutex
	byJob    map[jobKey]*wire.Evaluation
	byNode   map[string]map[string]*wire.Evaluation // system jobs: node -> evaluation id
	freed    map[string]uint64                      // class -> index of the last room there
	enqueue  func(*wire.Evaluation)
	wakes    map[jobKey]int // how often a job was woken, for tests
	maxFreed uint64
}

func newBlocked(enqueue func(*wire.Evaluation)) *blocked {
	return &blocked{byJob: map[jobKey]*wire.Evaluation{}, byNode: map[string]map[string]*wire.Evaluation{}, freed: map[string]uint64{},
		enqueue: enqueue, wakes: map[jobKey]int{}}
}

// block takes an evaluation in. It returns one that is no longer needed, if any. Room that was freed since the
// evaluation's snapshot lets it go at once.
func (b *blocked) block(e *wire.Evaluation) (duplicate *wire.Evaluation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.NodeID != "" && e.TriggeredBy == wire.TriggerQueuedAllocs {
		if b.byNode[e.NodeID] == nil {
			b.byNode[e.NodeID] = map[string]*wire.Evaluation{}
		}
		for id, old := range b.byNode[e.NodeID] {
			if keyOf(old) == keyOf(e) && id != e.ID {
				delete(b.byNode[e.NodeID], id)
				duplicate = old
			}
		}
		b.byNode[e.NodeID][e.ID] = e
		return duplicate
	}
	k := keyOf(e)
	if old := b.byJob[k]; old != nil && old.ID != e.ID {
		if max(old.CreateIndex, old.SnapshotIndex) > max(e.CreateIndex, e.SnapshotIndex) {
			return e
		}
		delete(b.byJob, k)
		duplicate = old
	}
	if b.missed(e) {
		b.wakes[k]++
		b.enqueue(e)
		return duplicate
	}
	b.byJob[k] = e
	return duplicate
}

func (b *blocked) missed(e *wire.Evaluation) bool {
	if e.EscapedComputedClass {
		return e.SnapshotIndex < b.maxFreed
	}
	if e.SnapshotIndex >= b.maxFreed {
		return false
	}
	for class, at := range b.freed {
		if e.SnapshotIndex >= at {
			continue
		}
		if ok, seen := e.ClassEligibility[class]; !seen || ok {
			return true
		}
	}
	return false
}

// free tells of room on a node of a class: what escaped classes, has not seen the class, or can use it, is woken.
func (b *blocked) free(class, node string, index uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freed[class] = index
	b.maxFreed = max(b.maxFreed, index)
	for k, e := range b.byJob {
		if !e.EscapedComputedClass {
			if ok, seen := e.ClassEligibility[class]; seen && !ok {
				continue
			}
		}
		delete(b.byJob, k)
		b.wakes[k]++
		b.enqueue(e)
	}
	for id, e := range b.byNode[node] {
		delete(b.byNode[node], id)
		b.wakes[keyOf(e)]++
		b.enqueue(e)
	}
}

// freeFailed wakes what was blocked because its plans were refused.
func (b *blocked) freeFailed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, e := range b.byJob {
		if e.TriggeredBy == wire.TriggerMaxPlans {
			delete(b.byJob, k)
			b.wakes[k]++
			b.enqueue(e)
		}
	}
}

// untrack forgets a job's blocked evaluations.
func (b *blocked) untrack(k jobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byJob, k)
	for _, list := range b.byNode {
		for id, e := range list {
			if keyOf(e) == k {
				delete(list, id)
			}
		}
	}
}
