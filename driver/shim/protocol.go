package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/internal/contract"
)

// Messages between plugin and supervisor are JSON objects, one a line, on the
// supervisor's socket. A connection carries one request and its answers. What a
// side does not know it ignores; an operation that a supervisor does not know it
// refuses, and the plugin says so.

// Operations.
const (
	OpStatus = "status"
	OpWatch  = "watch"  // answers: events from Request.After on, then the exit
	OpRecord = "record" // Text: a gang record's JSON
	OpAsk    = "ask"    // Text: an Ask's JSON
	OpStop   = "stop"   // with Grace and Signal
	OpKill   = "kill"   // stop without grace
	OpSignal = "signal" // Signal, to the ranks
	OpExec   = "exec"   // Exec; answers: ExecNews, twice
)

// messageLimit is the longest line in bytes: a record of some thousand members.
const messageLimit = 8 << 20

// Request from the plugin.
type Request struct {
	V      int           `json:"v"`
	Op     string        `json:"op"`
	Text   string        `json:"text,omitempty"`
	Signal string        `json:"signal,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
	// After is the last event that the plugin has passed on; 0 stands for what
	// the supervisor remembers of that.
	After int `json:"after,omitempty"`
	// Seen, in a further line of a watch, confirms events up to this one.
	Seen int   `json:"seen,omitempty"`
	Exec *Exec `json:"exec,omitempty"`
}

// Answer from the supervisor.
type Answer struct {
	V      int            `json:"v"`
	Error  string         `json:"error,omitempty"`
	Status *Status        `json:"status,omitempty"`
	Event  *Event         `json:"event,omitempty"`
	Exit   *contract.Exit `json:"exit,omitempty"`
	Exec   *ExecNews      `json:"exec,omitempty"`
}

// Status of a supervised task.
type Status struct {
	Stage   member.Stage `json:"stage"`
	Attempt int          `json:"attempt"`
	Version string       `json:"version"`
	PID     int          `json:"pid"`
	Ranks   map[int]int  `json:"ranks,omitempty"` // global number -> process
	Cgroups []string     `json:"cgroups,omitempty"`
	World   string       `json:"world,omitempty"`
	Store   string       `json:"store,omitempty"`
	Started time.Time    `json:"started,omitzero"`
}

// Event for Nomad's list of task events.
type Event struct {
	Number      int               `json:"n"`
	At          time.Time         `json:"at"`
	Text        string            `json:"text"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ErrNoSupervisor is the error of requests to a supervisor that does not
// answer on its socket.
var ErrNoSupervisor = errors.New("the task's supervisor does not answer")

// Call sends a request and reads its one answer.
func Call(socket string, r Request, timeout time.Duration) (Answer, error) {
	conn, err := Dial(socket, timeout)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	r.V = SpecVersion
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	var a Answer
	if err := json.NewDecoder(io.LimitReader(conn, messageLimit)).Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// Watch follows a task: each event goes to see, and the exit is the result. It
// fails with ErrNoSupervisor where the supervisor ends without one; stop ends it
// early.
func Watch(socket string, stop <-chan struct{}, see func(Event)) (*contract.Exit, error) {
	conn, err := Dial(socket, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-stop:
		case <-done:
		}
		conn.Close()
	}()
	enc := json.NewEncoder(conn)
	if err := enc.Encode(Request{V: SpecVersion, Op: OpWatch}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, messageLimit)
	for lines.Scan() {
		var a Answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return nil, fmt.Errorf("read the supervisor's answer: %w", err)
		}
		switch {
		case a.Error != "":
			return nil, errors.New(a.Error)
		case a.Exit != nil:
			return a.Exit, nil
		case a.Event != nil:
			see(*a.Event)
			_ = enc.Encode(Request{V: SpecVersion, Seen: a.Event.Number})
		}
	}
	return nil, ErrNoSupervisor
}
