package nomad

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/nomad/scan"
)

// A line of the event stream is some ten kilobytes, of which most is not
// wanted: nodes come along with every allocation of theirs, and jobs with every
// plan. So a line is taken apart by a scanner that only looks for where values
// end, and the parts that are wanted are read as JSON, which checks them. A
// line that the scanner cannot follow is an error, as one that is no JSON.

// wireEvents is one line of the stream.
type wireEvents struct {
	Index uint64
	// Error is the last line of a stream that the server gives up: a slow reader
	// fell out of its buffer.
	Error  json.RawMessage
	Events []wireEvent
}

// wireEvent is one event. The parts of its payload are pieces of the line, nil
// where they are not there.
type wireEvent struct {
	Topic, Type, Key, Namespace       string
	Index                             uint64
	Node, Allocation, Job, Evaluation json.RawMessage
	Deleted                           bool
}

// decodeLine takes a line apart; nil: it is only a sign of life.
func decodeLine(line []byte) (*wireEvents, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || bytes.Equal(line, []byte("{}")) {
		return nil, nil
	}
	var e wireEvents
	n, err := scan.Object(line, func(name, rest []byte) (int, error) {
		switch string(name) {
		case "Index":
			return read(rest, &e.Index)
		case "Error":
			return piece(rest, &e.Error)
		case "Events":
			return scan.Array(rest, func(rest []byte) (int, error) {
				event, n, err := decodeEvent(rest)
				e.Events = append(e.Events, event)
				return n, err
			})
		}
		return scan.End(rest), nil
	})
	if err == nil && n != len(line) {
		err = scan.ErrNotJSON
	}
	if err != nil {
		return nil, fmt.Errorf("read a line of the event stream: %w", err)
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		return nil, fmt.Errorf("the server ended the event stream: %s", e.Error)
	}
	if e.Index == 0 && len(e.Events) == 0 {
		return nil, nil
	}
	return &e, nil
}

// decodeEvent takes apart the event that b begins with, and gives its length.
func decodeEvent(b []byte) (e wireEvent, n int, err error) {
	n, err = scan.Object(b, func(name, rest []byte) (int, error) {
		switch string(name) {
		case "Topic":
			return read(rest, &e.Topic)
		case "Type":
			return read(rest, &e.Type)
		case "Key":
			return read(rest, &e.Key)
		case "Namespace":
			return read(rest, &e.Namespace)
		case "Index":
			return read(rest, &e.Index)
		case "Payload":
			return scan.Object(rest, e.payload)
		}
		return scan.End(rest), nil
	})
	return e, n, err
}

func (e *wireEvent) payload(name, rest []byte) (int, error) {
	switch string(name) {
	case "Node":
		return piece(rest, &e.Node)
	case "Allocation":
		return piece(rest, &e.Allocation)
	case "Job":
		return piece(rest, &e.Job)
	case "Evaluation":
		return piece(rest, &e.Evaluation)
	case "Deleted":
		return read(rest, &e.Deleted)
	}
	return scan.End(rest), nil
}

// read reads the value that rest begins with, and gives its length.
func read(rest []byte, into any) (int, error) {
	n := scan.End(rest)
	return n, scan.Read(rest[:n], into)
}

// piece gives the value that rest begins with, unread, and its length. Null
// gives none.
func piece(rest []byte, into *json.RawMessage) (int, error) {
	n := scan.End(rest)
	if value := rest[:n:n]; string(value) != "null" {
		*into = value
	}
	return n, nil
}

func (e *wireEvent) eval() (*picture.Eval, error) {
	var w picture.WireEval
	if err := json.Unmarshal(e.Evaluation, &w); err != nil {
		return nil, fmt.Errorf("read evaluation: %w", err)
	}
	return w.Eval(), nil
}
