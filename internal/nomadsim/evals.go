package nomadsim

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func (q *request) evaluations(string) (any, error) {
	switch q.r.Method {
	case http.MethodDelete:
		return nil, errUnmodelled
	case http.MethodGet, http.MethodHead:
	default:
		return nil, errMethod
	}
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	prefix, job, status := q.q.Get("prefix"), q.q.Get("job"), q.q.Get("status")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Evaluation{}
		for e := range s.Evals(prefix) {
			if q.namespace != "*" && e.Namespace != q.namespace || job != "" && e.JobID != job || status != "" && e.Status != status {
				continue
			}
			if ok, err := keep(e); err != nil {
				return nil, 0, err
			} else if ok {
				list = append(list, e)
			}
		}
		list, err := page(q, list, func(e *wire.Evaluation) string { return e.ID })
		return list, s.TableIndex(store.Evals), err
	}, store.Evals)
}

func (q *request) evaluation(rest string) (any, error) {
	if rest == "count" {
		return nil, errUnmodelled
	}
	if id, ok := strings.CutSuffix(rest, "/allocations"); ok {
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			list := []*wire.AllocStub{}
			index := uint64(0)
			for a := range s.AllocsByEval(id) {
				list = append(list, a.Stub(true, false))
				index = max(index, a.ModifyIndex)
			}
			if len(list) == 0 {
				index = s.TableIndex(store.Allocs)
			}
			return list, index, nil
		}, store.Allocs)
	}
	related, err := q.flag("related")
	if err != nil {
		return nil, err
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		e := s.Eval(rest)
		if err := wholeID("failed to lookup eval: eval", rest); err != nil {
			return nil, 0, err
		}
		if e == nil {
			return nil, s.TableIndex(store.Evals), fail(http.StatusNotFound, "eval not found")
		}
		if related {
			c := *e
			c.RelatedEvals = relatedEvals(s, e)
			return &c, e.ModifyIndex, nil
		}
		return e, e.ModifyIndex, nil
	}, store.Evals)
}

// relatedEvals follows what led to an evaluation and what came of it.
func relatedEvals(s *store.Snapshot, e *wire.Evaluation) []*wire.EvaluationStub {
	var out []*wire.EvaluationStub
	seen := map[string]bool{e.ID: true}
	todo := []*wire.Evaluation{e}
	for len(todo) > 0 {
		cur := todo[0]
		todo = todo[1:]
		for _, id := range []string{cur.NextEval, cur.PreviousEval, cur.BlockedEval} {
			if o := s.Eval(id); o != nil && !seen[id] {
				seen[id] = true
				out = append(out, o.Stub())
				todo = append(todo, o)
			}
		}
	}
	return out
}

func (q *request) allocations(string) (any, error) {
	if err := q.method(http.MethodGet); err != nil {
		return nil, err
	}
	resources, err := q.flag("resources")
	if err != nil {
		return nil, err
	}
	states := true
	if q.q.Get("task_states") != "" {
		if states, err = q.flag("task_states"); err != nil {
			return nil, err
		}
	}
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	prefix := q.q.Get("prefix")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.AllocStub{}
		for a := range s.Allocs(prefix) {
			if q.namespace != "*" && a.Namespace != q.namespace {
				continue
			}
			if ok, err := keep(a); err != nil {
				return nil, 0, err
			} else if ok {
				list = append(list, a.Stub(states, resources))
			}
		}
		list, err := page(q, list, func(a *wire.AllocStub) string { return a.ID })
		return list, s.TableIndex(store.Allocs), err
	}, store.Allocs)
}

// wholeID refuses what is no id at all: a server does not look for it.
func wholeID(what, id string) error {
	if len(id) != 36 {
		return fmt.Errorf("%s lookup failed: index error: UUID must be 36 characters", what)
	}
	return nil
}

func (q *request) allocation(rest string) (any, error) {
	id, what, _ := strings.Cut(rest, "/")
	switch what {
	case "":
	case "stop":
		return q.allocStop(id)
	case "services":
		q.meta(q.c.store.Snapshot().Index())
		return []any{}, nil
	case "checks":
		return map[string]any{}, nil
	default:
		return nil, errUnmodelled
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		a := s.Alloc(id)
		if err := wholeID("alloc", id); err != nil {
			return nil, 0, err
		}
		if a == nil {
			return nil, s.TableIndex(store.Allocs), fail(http.StatusNotFound, "alloc not found")
		}
		return a, a.ModifyIndex, nil
	}, store.Allocs)
}

// allocStop has an allocation leave its node; a replacement is placed at once.
func (q *request) allocStop(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	no, err := q.flag("no_shutdown_delay")
	if err != nil {
		return nil, err
	}
	resched, err := q.flag("reschedule")
	if err != nil {
		return nil, err
	}
	snap := q.c.store.Snapshot()
	a := snap.Alloc(id)
	if a == nil {
		return nil, fail(http.StatusNotFound, "alloc not found")
	}
	kind, priority := a.Job.Type, a.Job.Priority
	e := q.c.evalFor(a.Job, wire.TriggerAllocStop)
	e.Type, e.Priority, e.JobModifyIndex = kind, priority, a.Job.ModifyIndex
	index := q.c.store.Apply(func(tx *store.Txn) {
		tx.SetTransitions([]store.Transition{{ID: id, Desire: wire.DesiredTransition{Migrate: yes(), NoShutdownDelay: &no, Reschedule: &resched}}}, []*wire.Evaluation{e})
	})
	q.index(index)
	return struct {
		EvalID string
		Index  uint64
	}{e.ID, index}, nil
}

// allocOnClient finds what runs of an allocation. The answers to what is wrong are those of a client.
func (q *request) allocOnClient(id string) (*allocRun, *wire.Allocation, error) {
	al := q.c.store.Snapshot().Alloc(id)
	if al == nil {
		return nil, nil, fail(http.StatusNotFound, "Unknown allocation %q", id)
	}
	a := q.c.agent(al.NodeID)
	if a == nil {
		return nil, nil, fail(http.StatusNotFound, "Unknown node %s", al.NodeID)
	}
	a.mu.Lock()
	reachable := a.up && !a.cut
	a.mu.Unlock()
	if !reachable {
		return nil, nil, fail(http.StatusNotFound, "No path to node")
	}
	r := a.run(id)
	if r == nil {
		return nil, nil, fail(http.StatusNotFound, "Unknown allocation %q", id)
	}
	return r, al, nil
}

// client serves what a server passes on to the clients.
func (q *request) client(rest string) (any, error) {
	switch {
	case rest == "stats":
		return q.clientStats()
	case rest == "metadata":
		return nil, errUnmodelled
	case strings.HasPrefix(rest, "fs/"):
		return q.clientFS(strings.TrimPrefix(rest, "fs/"))
	case strings.HasPrefix(rest, "allocation/"):
		id, what, _ := strings.Cut(strings.TrimPrefix(rest, "allocation/"), "/")
		switch what {
		case "signal":
			return q.allocSignal(id)
		case "restart":
			return q.allocRestart(id)
		case "stats":
			return q.allocStats(id)
		case "gc":
			return nil, nil
		case "checks":
			return map[string]any{}, nil
		}
	}
	return nil, errUnmodelled
}

func (q *request) allocSignal(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct{ Task, Signal string }
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	r, _, err := q.allocOnClient(id)
	if err != nil {
		return nil, err
	}
	if err := r.signal(body.Task, body.Signal); err != nil {
		return nil, err
	}
	return struct{ Index uint64 }{}, nil
}

func (q *request) allocRestart(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		TaskName string
		AllTasks bool
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	r, _, err := q.allocOnClient(id)
	if err != nil {
		return nil, err
	}
	if err := r.restart(body.TaskName, body.AllTasks); err != nil {
		return nil, err
	}
	return struct{ Index uint64 }{}, nil
}

// allocStats tells what an allocation's tasks use; nothing is measured for virtual ones.
func (q *request) allocStats(id string) (any, error) {
	r, _, err := q.allocOnClient(id)
	if err != nil {
		return nil, err
	}
	now := q.c.clock.Now().UnixNano()
	usage := func() map[string]any {
		return map[string]any{
			"CpuStats":    map[string]any{"Measured": nil, "Percent": 0.0, "SystemMode": 0.0, "ThrottledPeriods": 0, "ThrottledTime": 0, "TotalTicks": 0.0, "UserMode": 0.0},
			"MemoryStats": map[string]any{"Cache": 0, "KernelMaxUsage": 0, "KernelUsage": 0, "MappedFile": 0, "MaxUsage": 0, "Measured": nil, "RSS": 0, "Swap": 0, "Usage": 0},
			"DeviceStats": nil,
		}
	}
	tasks := map[string]any{}
	r.mu.Lock()
	for name, t := range r.tasks {
		if t.live {
			u := usage()
			if d := r.a.live; d != nil {
				d.fillStats(t, u)
			}
			tasks[name] = map[string]any{"Pids": nil, "ResourceUsage": u, "Timestamp": now}
		}
	}
	r.mu.Unlock()
	if only := q.q.Get("task"); only != "" {
		if tasks[only] == nil {
			return nil, fail(http.StatusInternalServerError, "unknown task name %q", only)
		}
		tasks = map[string]any{only: tasks[only]}
	}
	return map[string]any{"ResourceUsage": usage(), "Tasks": tasks, "Timestamp": now}, nil
}
