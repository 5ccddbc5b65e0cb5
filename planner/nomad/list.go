package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// list is everything at one time.
type list struct {
	index  uint64 // the highest of the tables' indexes
	nodes  map[string]*picture.Node
	allocs map[string]*picture.Alloc
	jobs   map[picture.Key]*picture.Job
	// at is each table's index: what is not in the list and not newer is gone.
	nodesAt, allocsAt, jobsAt uint64
}

type nodeStub struct {
	ID          string
	ModifyIndex uint64
}

type jobStub struct {
	ID, Namespace, Type, Status, ParentID string
	Priority                              int
	Stop, Periodic, ParameterizedJob      bool
	Meta                                  map[string]string
	JobModifyIndex, ModifyIndex           uint64
}

// readers is how many objects are read at once beside the lists.
const readers = 24

// list reads all nodes, allocations and jobs. What did not change since the
// picture is not read again; where Nomad's indexes went back (a server was
// restored), everything is.
func (w *Watcher) list(ctx context.Context, session bool) (*list, error) {
	known := w.tables.copyIndexes()
	l := &list{nodes: map[string]*picture.Node{}, allocs: map[string]*picture.Alloc{}, jobs: map[picture.Key]*picture.Job{}}
	var stubs []nodeStub
	var err error
	if l.nodesAt, err = w.client.get(ctx, "list nodes", "/v1/nodes", "", nil, &stubs); err != nil {
		return nil, err
	}
	back := l.nodesAt < known.nodesAt
	var mu sync.Mutex
	err = each(ctx, stubs, func(s nodeStub) error {
		if old := known.nodes[s.ID]; old != nil && old.Index == s.ModifyIndex && !back {
			mu.Lock()
			l.nodes[s.ID] = old
			mu.Unlock()
			return nil
		}
		n, err := w.node(ctx, s.ID)
		if n != nil {
			mu.Lock()
			l.nodes[s.ID] = n
			mu.Unlock()
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	var allocs []picture.WireAlloc
	if l.allocsAt, err = w.client.get(ctx, "list allocations", "/v1/allocations", "*", map[string]string{"resources": "true", "task_states": "true"}, &allocs); err != nil {
		return nil, err
	}
	for i := range allocs {
		a, err := allocs[i].Alloc()
		if err != nil {
			return nil, err
		}
		l.allocs[a.ID] = a
	}

	var jobs []jobStub
	if l.jobsAt, err = w.client.get(ctx, "list jobs", "/v1/jobs", "*", map[string]string{"meta": "true"}, &jobs); err != nil {
		return nil, err
	}
	back = l.jobsAt < known.jobsAt
	err = each(ctx, jobs, func(s jobStub) error {
		j, err := w.job(ctx, s, known.jobs[picture.Key{Namespace: s.Namespace, Job: s.ID}], back)
		if j != nil {
			mu.Lock()
			l.jobs[j.Key] = j
			mu.Unlock()
		}
		return err
	})
	l.index = max(l.nodesAt, l.allocsAt, l.jobsAt)
	return l, err
}

func (w *Watcher) node(ctx context.Context, id string) (*picture.Node, error) {
	var raw json.RawMessage
	_, err := w.client.get(ctx, "read node "+id, "/v1/node/"+id, "", nil, &raw)
	if NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return picture.DecodeNode(raw, w.levels)
}

// job completes a stub. Only jobs that may be gangs are read whole: those that
// name a queue, that were gangs before, or that wait for something.
func (w *Watcher) job(ctx context.Context, s jobStub, old *picture.Job, back bool) (*picture.Job, error) {
	j := &picture.Job{Key: picture.Key{Namespace: s.Namespace, Job: s.ID}, Type: s.Type, Status: s.Status, ParentID: s.ParentID, Priority: s.Priority, Stop: s.Stop,
		JobModifyIndex: s.JobModifyIndex, Index: s.ModifyIndex, Parameterized: s.ParameterizedJob, HasSchedule: s.Periodic}
	if old != nil && old.JobModifyIndex == s.JobModifyIndex && !back {
		if old.Index == s.ModifyIndex {
			return old, nil
		}
		j.Gang = old.Gang
		return j, nil
	}
	candidate := s.Meta[contract.MetaQueue] != "" || old != nil && old.Gang != nil || s.Status == "pending"
	if !candidate || s.Periodic || s.Type != "batch" && s.Type != "service" {
		return j, nil
	}
	if s.ID == "." || s.ID == ".." {
		j.Unread = errors.New("its id is a step in a path, so that Nomad's API gives no access to it: give the job another name")
		return j, nil
	}
	raw, err := w.client.Job(ctx, s.Namespace, s.ID)
	if NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return picture.DecodeJob(raw)
}

// refreshed is one job read anew.
type refreshed struct {
	key    picture.Key
	job    *picture.Job // nil: it is gone
	allocs []*picture.Alloc
	// allocsAt is the index that the list of allocations stands for.
	allocsAt uint64
	evals    []*picture.Eval
	err      error
}

// refreshed reads a job, its allocations and its evaluations.
func (c *Client) refreshed(ctx context.Context, key picture.Key) refreshed {
	r := refreshed{key: key}
	raw, err := c.Job(ctx, key.Namespace, key.Job)
	switch {
	case NotFound(err):
	case err != nil:
		r.err = err
		return r
	default:
		if r.job, r.err = picture.DecodeJob(raw); r.err != nil {
			return r
		}
	}
	var stubs []struct{ ID string }
	if r.allocsAt, r.err = c.get(ctx, "list allocations of job "+key.String(), jobPath(key.Job)+"/allocations", key.Namespace, map[string]string{"all": "true"}, &stubs); r.err != nil {
		return r
	}
	var mu sync.Mutex
	r.err = each(ctx, stubs, func(s struct{ ID string }) error {
		var raw json.RawMessage
		_, err := c.get(ctx, "read allocation "+s.ID, "/v1/allocation/"+s.ID, key.Namespace, nil, &raw)
		if NotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		a, err := picture.DecodeAlloc(raw)
		if err == nil {
			mu.Lock()
			r.allocs = append(r.allocs, a)
			mu.Unlock()
		}
		return err
	})
	if r.err != nil {
		return r
	}
	var evals []picture.WireEval
	_, r.err = c.get(ctx, "list evaluations of job "+key.String(), jobPath(key.Job)+"/evaluations", key.Namespace, nil, &evals)
	for i := range evals {
		r.evals = append(r.evals, evals[i].Eval())
	}
	return r
}

// namespaces are the names that the token sees, as one text.
func (c *Client) namespaces(ctx context.Context) (string, error) {
	var out []struct{ Name string }
	if _, err := c.get(ctx, "list namespaces", "/v1/namespaces", "", nil, &out); err != nil {
		return "", err
	}
	names := make([]string, len(out))
	for i := range out {
		names[i] = out[i].Name
	}
	sort.Strings(names)
	return strings.Join(names, ","), nil
}

// tableIndex is the highest index of Nomad's tables that the picture mirrors.
func (c *Client) tableIndex(ctx context.Context) (uint64, error) {
	var highest uint64
	for _, path := range []string{"/v1/nodes", "/v1/allocations", "/v1/jobs"} {
		namespace := "*"
		if path == "/v1/nodes" {
			namespace = ""
		}
		var none []struct{}
		index, err := c.get(ctx, "read index of "+path, path, namespace, map[string]string{"per_page": "1"}, &none)
		if err != nil {
			return 0, err
		}
		highest = max(highest, index)
	}
	return highest, nil
}

// each calls f for every item, several at once, and gives the first error.
func each[T any](ctx context.Context, items []T, f func(T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan T)
	var wg sync.WaitGroup
	for range min(readers, len(items)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for item := range work {
				if err := f(item); err != nil {
					cancel(err)
				}
			}
		}()
	}
	for _, item := range items {
		select {
		case work <- item:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	close(work)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("read Nomad: %w", err)
	}
	return nil
}
