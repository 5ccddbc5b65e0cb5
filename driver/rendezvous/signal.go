package rendezvous

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/nomad-muster/muster/internal/contract"
)

// Signal is the board of a member without Consul: records are delivered by
// whoever received Nomad's signal, reports leave through emit.
type Signal struct {
	self Self
	emit func(contract.Report) error

	mu     sync.Mutex
	record *contract.Record
	last   contract.Report
	wake   chan struct{} // closed and replaced at each change
}

// NewSignal makes a board whose reports go to emit.
func NewSignal(self Self, emit func(contract.Report) error) *Signal {
	return &Signal{self: self, emit: emit, wake: make(chan struct{})}
}

// Deliver takes the JSON of a record that came with a signal. Unlike a key, a
// signal can overtake another: an older attempt or an earlier phase is refused.
func (s *Signal) Deliver(data []byte) error {
	r, err := contract.DecodeRecord(data)
	if err != nil {
		return err
	}
	if r.Gang.Namespace != s.self.Gang.Namespace || r.Gang.Job != s.self.Gang.Job {
		return fmt.Errorf("take gang record: it is of %s, and this member belongs to %s", r.Gang, s.self.Gang)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.record; old != nil {
		if r.Attempt < old.Attempt {
			return fmt.Errorf("take gang record: it is of attempt %d, and attempt %d is known already", r.Attempt, old.Attempt)
		}
		if r.Attempt == old.Attempt && phaseOrder[r.Phase] < phaseOrder[old.Phase] {
			return fmt.Errorf("take gang record: it is of phase %q, and phase %q of attempt %d is known already", r.Phase, old.Phase, old.Attempt)
		}
	}
	s.record = r
	close(s.wake)
	s.wake = make(chan struct{})
	return nil
}

var phaseOrder = map[contract.Phase]int{contract.PhasePlaced: 1, contract.PhaseReleased: 2, contract.PhaseEnded: 3}

// Follow is described at Board. Reports of peers are never seen; a store that
// moved is seen as the record's own endpoint.
func (s *Signal) Follow(ctx context.Context, see func(Sight), _ func(error)) {
	for {
		s.mu.Lock()
		record, wake := s.record, s.wake
		s.mu.Unlock()
		see(Sight{Record: record})
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
	}
}

// Publish is described at Board.
func (s *Signal) Publish(_ context.Context, r contract.Report) error {
	if err := checkReport(s.self, r); err != nil {
		return err
	}
	s.mu.Lock()
	s.last = r
	s.mu.Unlock()
	return s.emit(r)
}

// Move is described at Board: the last report goes out again with the new
// port, and the planner sends everybody the record with it.
func (s *Signal) Move(_ context.Context, attempt int, _ string, e contract.Endpoint) error {
	s.mu.Lock()
	r := s.last
	s.mu.Unlock()
	if r.Attempt != attempt {
		return fmt.Errorf("report the moved store of attempt %d: the last report was of attempt %d", attempt, r.Attempt)
	}
	r.Port, r.At = e.Port, e.At
	return s.Publish(context.Background(), r)
}

// Close is described at Board.
func (s *Signal) Close(context.Context) error { return nil }

// Annotation gives a report as a task event's annotation.
func Annotation(r contract.Report) (map[string]string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return map[string]string{contract.AnnotationReport: string(text)}, nil
}
