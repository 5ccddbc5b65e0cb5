package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// heartbeat keeps idle streams alive through proxies, and lets a client tell
// silence from a lost connection.
const heartbeat = 10 * time.Second

// events streams server-sent events: id is the event's index, event its kind,
// data its JSON.
func (s *Server) events(q *request) (any, error) {
	index, err := q.number("index")
	if err != nil {
		return nil, err
	}
	from := q.URL.Query().Has("index")
	if last := q.Header.Get("Last-Event-ID"); last != "" {
		if index, err = strconv.ParseUint(last, 10, 64); err != nil {
			return nil, q.invalid("Last-Event-ID "+last+" is not a whole number", "")
		}
		from = true
	}
	if !from {
		index = s.Feed.Index()
	}
	gang, queue := q.URL.Query().Get("gang"), q.URL.Query().Get("queue")
	keep := func(e view.Event) bool { return (gang == "" || e.Gang == gang) && (queue == "" || e.Queue == queue) }

	control := http.NewResponseController(q.w)
	q.streamed = true
	q.w.Header().Set("Content-Type", "text/event-stream")
	q.w.Header().Set("X-Accel-Buffering", "no")
	q.w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		tail := s.Feed.After(index)
		index = tail.Last
		if tail.Gap {
			_, err = fmt.Fprintf(q.w, "event: %s\ndata: {}\n\n", view.EventGap)
		}
		for _, e := range tail.Events {
			if err == nil && keep(e) {
				err = writeEvent(q.w, e)
			}
		}
		if err == nil {
			err = control.Flush()
		}
		if err != nil {
			return nil, nil // the reader is gone
		}
		select {
		case <-tail.Next:
		case <-beat.C:
			if _, err = io.WriteString(q.w, ": still here\n\n"); err != nil {
				return nil, nil
			}
		case <-q.Context().Done():
			return nil, nil
		}
	}
}

func writeEvent(w io.Writer, e view.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.Index, e.Kind, data)
	return err
}
