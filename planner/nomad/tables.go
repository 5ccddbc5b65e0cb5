package nomad

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// tables mirror Nomad's, ordered by modify index: whatever is not newer than
// what is known changes nothing, so lines may come twice, late or beside a
// list. What a list does not have is gone unless it is newer than the list.
type tables struct {
	mu     sync.Mutex // a list reads the indexes beside the stream
	nodes  map[string]*picture.Node
	allocs map[string]*picture.Alloc
	jobs   map[picture.Key]*picture.Job
	// gone is what events deleted, with the event's index, until the next list
	// that is newer.
	gone map[string]uint64
	// Indexes of the last list, and of the last event.
	nodesAt, allocsAt, jobsAt uint64
	seen                      uint64
}

func newTables() *tables {
	return &tables{nodes: map[string]*picture.Node{}, allocs: map[string]*picture.Alloc{}, jobs: map[picture.Key]*picture.Job{}, gone: map[string]uint64{}}
}

func (t *tables) size() int { return len(t.nodes) + len(t.allocs) + len(t.jobs) }

// copyIndexes gives what a list needs to know of the tables while they go on
// changing.
func (t *tables) copyIndexes() *tables {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &tables{nodes: maps.Clone(t.nodes), jobs: maps.Clone(t.jobs), nodesAt: t.nodesAt, allocsAt: t.allocsAt, jobsAt: t.jobsAt}
}

func newDelta() Delta {
	return Delta{Nodes: map[string]*picture.Node{}, Allocs: map[string]*picture.Alloc{}, Jobs: map[picture.Key]*picture.Job{}}
}

// replace takes a list. First in a session, it wins over everything; later it
// ran beside the stream, and the newer one wins.
func (t *tables) replace(l *list, first bool) Delta {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := newDelta()
	merge(t.nodes, l.nodes, d.Nodes, first, l.nodesAt, func(n *picture.Node) uint64 { return n.Index }, func(id string) uint64 { return t.gone["node/"+id] })
	merge(t.allocs, l.allocs, d.Allocs, first, l.allocsAt, func(a *picture.Alloc) uint64 { return a.Index }, func(string) uint64 { return 0 })
	merge(t.jobs, l.jobs, d.Jobs, first, l.jobsAt, func(j *picture.Job) uint64 { return j.Index }, func(k picture.Key) uint64 { return t.gone["job/"+k.String()] })
	t.nodesAt, t.allocsAt, t.jobsAt = l.nodesAt, l.allocsAt, l.jobsAt
	if first {
		t.seen = 0
		clear(t.gone)
	}
	for k, index := range t.gone {
		if index <= min(l.nodesAt, l.jobsAt) {
			delete(t.gone, k)
		}
	}
	t.drop(&d)
	return d
}

func merge[K comparable, V comparable](have, list, delta map[K]V, first bool, at uint64, index func(V) uint64, gone func(K) uint64) {
	var none V
	for k, v := range list {
		old, known := have[k]
		if known && (old == v || !first && index(old) >= index(v)) {
			continue
		}
		if !first && gone(k) > at {
			continue
		}
		have[k], delta[k] = v, v
	}
	for k, old := range have {
		if _, ok := list[k]; !ok && (first || index(old) <= at) {
			delete(have, k)
			delta[k] = none
		}
	}
}

// drop forgets ended allocations of jobs that are no gangs: they hold nothing,
// and nobody asks for them. A job that is purged takes its allocations along,
// of which no event tells.
func (t *tables) drop(d *Delta) {
	purged := map[picture.Key]uint64{}
	for key, j := range d.Jobs {
		if j == nil {
			purged[key] = t.gone["job/"+key.String()]
		}
	}
	if len(purged) > 0 {
		for id, a := range t.allocs {
			if at, ok := purged[a.Key()]; ok && a.CreateIndex <= at {
				delete(t.allocs, id)
				d.Allocs[id] = nil
			}
		}
	}
	for id, a := range d.Allocs {
		if a == nil || !a.Terminal() {
			continue
		}
		if j := t.jobs[a.Key()]; j == nil || j.Gang == nil {
			delete(t.allocs, id)
			d.Allocs[id] = nil
		}
	}
}

// lines takes lines of the stream, in order. An error means that the stream
// cannot be followed any further.
func (t *tables) lines(batch [][]byte, levels []core.Level) (Delta, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := newDelta()
	for _, line := range batch {
		e, err := decodeLine(line)
		if err != nil {
			return d, err
		}
		if e == nil {
			continue
		}
		if e.Index < t.seen {
			return d, fmt.Errorf("the event stream went back from index %d to %d: the servers were restored", t.seen, e.Index)
		}
		t.seen = e.Index
		for i := range e.Events {
			event := &e.Events[i]
			if event.Topic == "Node" && event.Type == "AllocationUpdated" && t.nodes[event.Key] != nil {
				continue // the node itself is the same; it comes along with each of its allocations
			}
			if err := t.event(&d, event, levels); err != nil {
				return d, err
			}
		}
	}
	t.drop(&d)
	return d, nil
}

// event takes one event.
func (t *tables) event(d *Delta, event *wireEvent, levels []core.Level) error {
	switch topic := event.Topic; {
	case topic == "Node" && event.Node != nil:
		return t.nodeEvent(d, event.Type, event.Index, event.Node, levels)
	case topic == "Allocation" && event.Allocation != nil:
		a, err := picture.UpdateAlloc(event.Allocation, func(id string) *picture.Alloc { return t.allocs[id] })
		if err != nil {
			return err
		}
		if old := t.allocs[a.ID]; a.Index <= t.allocsAt || old != nil && old.Index >= a.Index {
			return nil
		}
		t.allocs[a.ID], d.Allocs[a.ID] = a, a
	case topic == "Job" && event.Job != nil:
		return t.jobEvent(d, event.Deleted, event.Index, event.Job)
	case topic == "Evaluation" && event.Evaluation != nil:
		e, err := event.eval()
		if err != nil {
			return err
		}
		if j := t.jobs[picture.Key{Namespace: e.Namespace, Job: e.JobID}]; j != nil && j.Gang != nil {
			d.Evals = append(d.Evals, e)
		}
	}
	return nil
}

func (t *tables) nodeEvent(d *Delta, kind string, index uint64, raw []byte, levels []core.Level) error {
	var head struct {
		ID          string
		ModifyIndex uint64
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return fmt.Errorf("read Node event: %w", err)
	}
	old := t.nodes[head.ID]
	if kind == "NodeDeregistration" {
		if index > t.nodesAt && (old == nil || old.Index < index) {
			delete(t.nodes, head.ID)
			d.Nodes[head.ID], t.gone["node/"+head.ID] = nil, index
		}
		return nil
	}
	if head.ModifyIndex <= t.nodesAt || old != nil && old.Index >= head.ModifyIndex || t.gone["node/"+head.ID] >= head.ModifyIndex {
		return nil
	}
	n, err := picture.DecodeNode(raw, levels)
	if err != nil {
		return err
	}
	t.nodes[head.ID], d.Nodes[head.ID] = n, n
	return nil
}

func (t *tables) jobEvent(d *Delta, deleted bool, index uint64, raw []byte) error {
	// Most events of a job tell of its status: its text is read when it is new.
	head, err := picture.DecodeJobHead(raw)
	if err != nil {
		return fmt.Errorf("read Job event: %w", err)
	}
	key := head.Key()
	old := t.jobs[key]
	if !deleted && (head.ModifyIndex <= t.jobsAt || old != nil && old.Index >= head.ModifyIndex || t.gone["job/"+key.String()] >= head.ModifyIndex) {
		return nil
	}
	if !deleted && old != nil && old.JobModifyIndex == head.JobModifyIndex {
		j := *old
		j.Status, j.Stop, j.Index = head.Status, head.Stop, head.ModifyIndex
		t.jobs[key], d.Jobs[key] = &j, &j
		return nil
	}
	j, err := picture.DecodeJob(raw)
	if err != nil {
		return err
	}
	if deleted {
		if index > t.jobsAt && (old == nil || old.Index < index) {
			delete(t.jobs, j.Key)
			d.Jobs[j.Key], t.gone["job/"+j.Key.String()] = nil, index
		}
		return nil
	}
	t.jobs[j.Key], d.Jobs[j.Key] = j, j
	return nil
}

// refreshed takes a job that was read anew.
func (t *tables) refreshed(r refreshed) Delta {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := newDelta()
	d.Fresh = []picture.Key{r.key}
	if r.err != nil {
		return d
	}
	switch old := t.jobs[r.key]; {
	case r.job == nil && old != nil:
		// A job that is gone while an event of a newer one is on its way comes
		// back with that event.
		delete(t.jobs, r.key)
		d.Jobs[r.key] = nil
		t.gone["job/"+r.key.String()] = old.Index
	case r.job != nil && (old == nil || old.Index < r.job.Index):
		t.jobs[r.key], d.Jobs[r.key] = r.job, r.job
	}
	listed := map[string]bool{}
	for _, a := range r.allocs {
		listed[a.ID] = true
		if old := t.allocs[a.ID]; old == nil || old.Index < a.Index {
			t.allocs[a.ID], d.Allocs[a.ID] = a, a
		}
	}
	// Nomad collects what has ended, and a purged job's, without an event.
	for id, a := range t.allocs {
		if a.Key() == r.key && !listed[id] && a.Index <= r.allocsAt {
			delete(t.allocs, id)
			d.Allocs[id] = nil
		}
	}
	d.Evals = r.evals
	t.drop(&d)
	return d
}
