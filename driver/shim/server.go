package shim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// server answers the plugin.
type server struct {
	listener *net.UnixListener
	handle   func(Request) (Answer, error)
	// exec answers on the connection itself; gone is closed when the plugin
	// hangs up.
	exec func(r Request, conn *net.UnixConn, gone <-chan struct{}) error

	mu     sync.Mutex
	events []Event
	number int
	seen   int // last event that a plugin confirmed
	exit   *contract.Exit
	wake   chan struct{}
	wg     sync.WaitGroup
}

// eventsKept is how many events a plugin that is away can catch up with; Nomad
// itself keeps ten.
const eventsKept = 50

func newServer(l *net.UnixListener, handle func(Request) (Answer, error), exec func(Request, *net.UnixConn, <-chan struct{}) error) *server {
	s := &server{listener: l, handle: handle, exec: exec, wake: make(chan struct{})}
	s.wg.Go(s.accept) // counted, so that no connection is added to an empty group
	return s
}

func (s *server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serve(conn) })
	}
}

func (s *server) serve(conn *net.UnixConn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 4096), messageLimit)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if !lines.Scan() {
		return
	}
	answer := func(a Answer) error {
		a.V = SpecVersion
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
		return json.NewEncoder(conn).Encode(a)
	}
	var r Request
	if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
		_ = answer(Answer{Error: fmt.Sprintf("read request: %v", err)})
		return
	}
	if r.Op == OpWatch {
		_ = conn.SetReadDeadline(time.Time{})
		s.watch(r, lines, answer)
		return
	}
	if r.Op == OpExec {
		_ = conn.SetReadDeadline(time.Time{})
		gone := make(chan struct{})
		go func() { // nothing more is said but the hanging up
			defer close(gone)
			for lines.Scan() {
			}
		}()
		if err := s.exec(r, conn, gone); err != nil {
			_ = answer(Answer{Error: err.Error()})
		}
		return
	}
	a, err := s.handle(r)
	if err != nil {
		a.Error = err.Error()
	}
	_ = answer(a)
}

// watch sends events from where the plugin left off, and the exit at the end.
func (s *server) watch(r Request, lines *bufio.Scanner, answer func(Answer) error) {
	gone := make(chan struct{})
	go func() { // confirmations, until the plugin hangs up
		defer close(gone)
		for lines.Scan() {
			var next Request
			if json.Unmarshal(lines.Bytes(), &next) == nil {
				s.mu.Lock()
				s.seen = max(s.seen, next.Seen)
				s.mu.Unlock()
			}
		}
	}()
	s.mu.Lock()
	sent := max(r.After, s.seen)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		pending := slices.Clone(s.events)
		exit, wake := s.exit, s.wake
		s.mu.Unlock()
		for _, e := range pending {
			if e.Number > sent {
				if answer(Answer{Event: &e}) != nil {
					return
				}
				sent = e.Number
			}
		}
		if exit != nil {
			_ = answer(Answer{Exit: exit})
			return
		}
		select {
		case <-wake:
		case <-gone:
			return
		}
	}
}

// tell adds an event.
func (s *server) tell(text string, annotations map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	s.events = append(s.events, Event{Number: s.number, At: time.Now(), Text: text, Annotations: annotations})
	if len(s.events) > eventsKept {
		s.events = slices.Delete(s.events, 0, len(s.events)-eventsKept)
	}
	s.changed()
}

// finish tells the exit, and waits a moment for those who watch.
func (s *server) finish(e contract.Exit) {
	s.mu.Lock()
	s.exit = &e
	s.changed()
	s.mu.Unlock()
	s.listener.Close()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
}

func (s *server) changed() {
	close(s.wake)
	s.wake = make(chan struct{})
}
