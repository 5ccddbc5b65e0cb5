package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/capture"
	"github.com/nomad-muster/muster/planner/view"
)

// known is an error while the planner has no picture of the cluster yet: an
// empty list would read as "there is nothing".
func (s *Server) known(q *request) error {
	status := s.Cluster.Status()
	if status.State != "starting" {
		return nil
	}
	e := &view.Error{Code: view.CodeUnavailable, Operation: q.route.operation(), Cause: "the planner is starting and does not know the cluster yet", Hint: "try again in a moment"}
	if n := status.Nomad; !n.OK && n.Error != "" {
		e.Cause = "the planner has not reached Nomad yet, at " + n.Address + ": " + n.Error
		e.Hint = "the nomad block of its configuration, or NOMAD_ADDR in its environment, says where it looks"
	}
	return e
}

func (s *Server) listGangs(q *request) (any, error) {
	if err := s.known(q); err != nil {
		return nil, err
	}
	query := q.URL.Query()
	ended, err := q.boolean("ended")
	if err != nil {
		return nil, err
	}
	stage := contract.Stage(query.Get("stage"))
	keep := func(g view.Gang) bool {
		ns, queue := query.Get("namespace"), query.Get("queue")
		return (ended || stage.Ended() || !g.Stage.Ended()) && (ns == "" || ns == "*" || ns == g.Namespace) && (queue == "" || queue == g.Queue) &&
			strings.HasPrefix(g.Job, query.Get("prefix")) && (stage == "" || stage == g.Stage)
	}
	return view.GangList{Index: s.Feed.Index(), Gangs: s.gangs(keep)}, nil
}

// gangs are those that keep lets through, in the order in which people read
// them: by queue; what runs, then what waits by position, then the rest.
func (s *Server) gangs(keep func(view.Gang) bool) []view.Gang {
	out := []view.Gang{}
	for _, g := range s.Gangs.Gangs() {
		if keep(g) {
			out = append(out, g)
		}
	}
	rank := func(g view.Gang) int {
		switch {
		case g.Stage.Ended():
			return 3
		case g.Stage == contract.StageRefused:
			return 2
		case g.Position > 0:
			return 1
		}
		return 0
	}
	slices.SortFunc(out, func(a, b view.Gang) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Position, b.Position), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// gang reads the one that the path names, or says that there is none.
func (s *Server) gang(q *request) (view.Gang, error) {
	namespace, job := q.PathValue("namespace"), q.PathValue("job")
	g, ok := s.Gangs.Gang(namespace, job)
	if !ok {
		if err := s.known(q); err != nil {
			return g, err
		}
		return g, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Object: namespace + "/" + job, Cause: "not found",
			Hint: "muster queue -all (GET /v1/gangs?ended=true) lists what is there; a job that names no queue is no gang"}
	}
	return g, nil
}

const (
	defaultWait = 5 * time.Minute
	mostWait    = 10 * time.Minute
)

func (s *Server) readGang(q *request) (any, error) {
	index, err := q.number("index")
	if err != nil {
		return nil, err
	}
	wait, err := q.duration("wait", defaultWait, mostWait)
	if err != nil {
		return nil, err
	}
	if index == 0 {
		return s.gang(q)
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		// The feed is asked before the gang, so that no change falls between.
		tail := s.Feed.After(index)
		g, err := s.gang(q)
		if err != nil || g.Index > index || index > tail.Last {
			return g, err
		}
		select {
		case <-tail.Next:
		case <-timeout.C:
			return g, nil
		case <-q.Context().Done():
			return nil, fmt.Errorf("wait for gang: %w", q.Context().Err())
		}
	}
}

func (s *Server) why(q *request) (any, error) {
	g, err := s.gang(q)
	if err != nil {
		return nil, err
	}
	out := view.Why{ID: g.ID, Queue: g.Queue, Stage: string(g.Stage)}
	if g.Detail != nil {
		out.Verdict = g.Detail.Verdict
	}
	return out, nil
}

func (s *Server) listQueues(q *request) (any, error) {
	if err := s.known(q); err != nil {
		return nil, err
	}
	return view.QueueList{Index: s.Feed.Index(), Queues: orEmpty(s.Cluster.Queues())}, nil
}

func (s *Server) readQueue(q *request) (any, error) {
	if err := s.known(q); err != nil {
		return nil, err
	}
	name := q.PathValue("queue")
	for _, queue := range s.Cluster.Queues() {
		if queue.Name == name {
			return view.QueueDetail{Index: s.Feed.Index(), Queue: queue, Gangs: s.gangs(func(g view.Gang) bool { return g.Queue == name && !g.Stage.Ended() })}, nil
		}
	}
	return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Object: name, Cause: "not found", Hint: "muster queue status (GET /v1/queues) lists what is there"}
}

func (s *Server) listNodes(q *request) (any, error) {
	if err := s.known(q); err != nil {
		return nil, err
	}
	nodes := slices.Clone(s.Cluster.Nodes())
	slices.SortFunc(nodes, func(a, b view.Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return view.NodeList{Index: s.Feed.Index(), Nodes: orEmpty(nodes)}, nil
}

func (s *Server) status(*request) (any, error) { return s.Cluster.Status(), nil }

// health is for checks without a token: it tells nothing but whether to worry.
func (s *Server) health(q *request) (any, error) {
	state := s.Cluster.Status().State
	out := view.Health{State: state, OK: state == "active" || state == "paused" || state == "standby"}
	if !out.OK {
		q.streamed = true
		s.write(q.w, http.StatusServiceUnavailable, out)
	}
	return out, nil
}

func (s *Server) metrics(q *request) (any, error) {
	if s.Metrics == nil {
		return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Cause: "this planner has no metrics"}
	}
	q.streamed = true
	s.Metrics.ServeHTTP(q.w, q.Request)
	return nil, nil
}

// snapshot hands out the snapshot of this moment with its plan, as package
// capture writes them.
func (s *Server) snapshot(q *request) (any, error) {
	if s.Capture == nil {
		return nil, &view.Error{Code: view.CodeNotFound, Operation: q.route.operation(), Cause: "this planner captures nothing"}
	}
	snap, plan, err := s.Capture.Capture()
	if err != nil {
		return nil, err
	}
	q.streamed = true
	q.w.Header().Set("Content-Type", "application/json")
	if err := capture.Write(q.w, snap, plan); err != nil && q.Context().Err() == nil {
		s.Log.Error("a decision could not be captured", "error", err)
	}
	return nil, nil
}

// orEmpty makes a list that is never null in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
