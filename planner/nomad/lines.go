package nomad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nomad-muster/muster/planner/nomad/picture"
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
	err := members(line, func(name string, value []byte) error {
		switch name {
		case "Index":
			return json.Unmarshal(value, &e.Index)
		case "Error":
			e.Error = value
		case "Events":
			return elements(value, func(value []byte) error {
				event, err := decodeEvent(value)
				e.Events = append(e.Events, event)
				return err
			})
		}
		return nil
	})
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

func decodeEvent(raw []byte) (wireEvent, error) {
	var e wireEvent
	err := members(raw, func(name string, value []byte) error {
		switch name {
		case "Topic":
			return json.Unmarshal(value, &e.Topic)
		case "Type":
			return json.Unmarshal(value, &e.Type)
		case "Key":
			return json.Unmarshal(value, &e.Key)
		case "Namespace":
			return json.Unmarshal(value, &e.Namespace)
		case "Index":
			return json.Unmarshal(value, &e.Index)
		case "Payload":
			return members(value, e.payload)
		}
		return nil
	})
	return e, err
}

func (e *wireEvent) payload(name string, value []byte) error {
	if string(value) == "null" {
		return nil
	}
	switch name {
	case "Node":
		e.Node = value
	case "Allocation":
		e.Allocation = value
	case "Job":
		e.Job = value
	case "Evaluation":
		e.Evaluation = value
	case "Deleted":
		return json.Unmarshal(value, &e.Deleted)
	}
	return nil
}

func (e *wireEvent) alloc() (*picture.Alloc, error) { return picture.DecodeAlloc(e.Allocation) }

func (e *wireEvent) eval() (*picture.Eval, error) {
	var w picture.WireEval
	if err := json.Unmarshal(e.Evaluation, &w); err != nil {
		return nil, fmt.Errorf("read evaluation: %w", err)
	}
	return w.Eval(), nil
}

var errNotJSON = errors.New("it is not JSON")

// members calls f for each member of an object; null has none.
func members(raw []byte, f func(name string, value []byte) error) error {
	if string(raw) == "null" {
		return nil
	}
	return parts(raw, '{', '}', func(rest []byte) (int, error) {
		n := valueEnd(rest)
		if n < 2 || rest[0] != '"' {
			return 0, errNotJSON
		}
		name := string(rest[1 : n-1])
		n += spaces(rest[n:])
		if n >= len(rest) || rest[n] != ':' {
			return 0, errNotJSON
		}
		n++
		n += spaces(rest[n:])
		size := valueEnd(rest[n:])
		if size == 0 {
			return 0, errNotJSON
		}
		return n + size, f(name, rest[n:n+size:n+size])
	})
}

// elements calls f for each element of an array; null has none.
func elements(raw []byte, f func(value []byte) error) error {
	if string(raw) == "null" {
		return nil
	}
	return parts(raw, '[', ']', func(rest []byte) (int, error) {
		n := valueEnd(rest)
		if n == 0 {
			return 0, errNotJSON
		}
		return n, f(rest[:n:n])
	})
}

// parts walks what stands between two brackets, with commas between: take says
// how long the next part is.
func parts(raw []byte, open, shut byte, take func(rest []byte) (int, error)) error {
	if len(raw) < 2 || raw[0] != open || raw[len(raw)-1] != shut {
		return errNotJSON
	}
	rest := raw[1 : len(raw)-1]
	rest = rest[spaces(rest):]
	for len(rest) > 0 {
		n, err := take(rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
		rest = rest[spaces(rest):]
		if len(rest) == 0 {
			return nil
		}
		if rest[0] != ',' {
			return errNotJSON
		}
		rest = rest[1:]
		if rest = rest[spaces(rest):]; len(rest) == 0 {
			return errNotJSON
		}
	}
	return nil
}

func spaces(b []byte) int {
	n := 0
	for n < len(b) && (b[n] == ' ' || b[n] == '\t' || b[n] == '\n' || b[n] == '\r') {
		n++
	}
	return n
}

// valueEnd is the length of the JSON value that b begins with; 0: it begins
// with none, or the value does not end. What is inside is not checked.
func valueEnd(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return stringEnd(b)
	case '{', '[':
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				n := stringEnd(b[i:])
				if n == 0 {
					return 0
				}
				i += n - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return 0
	}
	n := bytes.IndexAny(b, ",]} \t\r\n")
	if n < 0 {
		n = len(b)
	}
	return n
}

// stringEnd is the length of the string that b begins with; 0: it does not end.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0
		}
		i += n
		slashes := 0
		for k := i - 1; k > 0 && b[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
	return 0
}
