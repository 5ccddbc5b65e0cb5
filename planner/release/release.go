// Package release carries the records of gangs to their members and the
// members' reports back. There are two ways: Consul, where a record is one key
// that the members' supervisors watch, and Nomad's signals, whose text is the
// record, where there is no Consul; reports then come as task events, which the
// planner sees anyway. Router uses each where it is needed.
//
// A record that was published may be published again; members take the same
// record twice without harm.
package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nomad-muster/muster/internal/contract"
)

// Channel is one way to the members of gangs.
type Channel interface {
	// Publish makes the record known. It replaces an older one of the gang, and
	// is an error where a newer attempt's is there.
	Publish(ctx context.Context, record *contract.Record) error
	// Reports reads what the members of an attempt have reported.
	Reports(ctx context.Context, gang contract.GangID, attempt int) ([]contract.Report, error)
	// Remove deletes everything of an attempt.
	Remove(ctx context.Context, gang contract.GangID, attempt int) error
}

// Watcher is a Channel whose reports can be followed.
type Watcher interface {
	// Watch calls deliver with the reports that are there and whenever some
	// change, until ctx ends.
	Watch(ctx context.Context, gang contract.GangID, attempt int, deliver func([]contract.Report))
}

// ErrNewer says that a newer attempt of the gang has a record.
var ErrNewer = errors.New("a newer attempt of the gang has a record")

// Signaller sends a text to a task: Nomad's signal call.
type Signaller interface {
	Signal(ctx context.Context, namespace, alloc, task, text string) error
}

// Signals is the Channel over Nomad's signals.
type Signals struct {
	Nomad Signaller
	// Sent, if set, keeps a record that is tried again from the members that it
	// has reached: every signal takes a place among the few events that Nomad
	// keeps of a task, and the member's reports are among those.
	Sent *Sent
}

// Sent remembers, of the last record of each gang that did not reach all of its
// members, whom it reached. The zero value is ready to use.
type Sent struct {
	mu sync.Mutex
	of map[contract.GangID]*sent
}

type sent struct {
	text string // of the record
	to   map[string]bool
}

// begin gives the members that the record has not reached.
func (s *Sent) begin(record *contract.Record, text string, members []contract.Member) []contract.Member {
	if s == nil {
		return members
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.of[record.Gang]
	if before == nil || before.text != text {
		delete(s.of, record.Gang)
		return members
	}
	var left []contract.Member
	for _, m := range members {
		if !before.to[m.Alloc+"."+m.Task] {
			left = append(left, m)
		}
	}
	return left
}

// end takes down whom the record has reached; all: nothing is left to be done.
func (s *Sent) end(record *contract.Record, text string, reached []contract.Member, all bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		delete(s.of, record.Gang)
		return
	}
	if s.of == nil {
		s.of = map[contract.GangID]*sent{}
	}
	at := s.of[record.Gang]
	if at == nil || at.text != text {
		at = &sent{text: text, to: map[string]bool{}}
		s.of[record.Gang] = at
	}
	for _, m := range reached {
		at.to[m.Alloc+"."+m.Task] = true
	}
}

// signalsAtOnce bounds the calls on their way.
const signalsAtOnce = 16

// Publish sends the record to every member that it lists. That an attempt
// ended is told as far as that goes: its allocations are stopped as well.
func (s Signals) Publish(ctx context.Context, record *contract.Record) error {
	return s.publish(ctx, record, record.Members)
}

func (s Signals) publish(ctx context.Context, record *contract.Record, members []contract.Member) error {
	plain := *record
	plain.Ask = nil
	body, err := json.Marshal(&plain)
	if err != nil {
		return fmt.Errorf("encode record of gang %s: %w", record.Gang, err)
	}
	texts := []string{contract.SignalRecord + " " + string(body)}
	if record.Ask != nil {
		ask, err := json.Marshal(record.Ask)
		if err != nil {
			return fmt.Errorf("encode ask of gang %s: %w", record.Gang, err)
		}
		texts = append(texts, contract.SignalAsk+" "+string(ask))
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		fails   []error
		reached []contract.Member
		slots   = make(chan struct{}, signalsAtOnce)
		whole   = strings.Join(texts, "\n")
	)
	for _, m := range s.Sent.begin(record, whole, members) {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			for _, text := range texts {
				if err := s.Nomad.Signal(ctx, record.Gang.Namespace, m.Alloc, m.Task, text); err != nil {
					mu.Lock()
					fails = append(fails, fmt.Errorf("member %d on node %s: %w", m.Index, m.Node, err))
					mu.Unlock()
					return
				}
			}
			mu.Lock()
			reached = append(reached, m)
			mu.Unlock()
		}()
	}
	wg.Wait()
	s.Sent.end(record, whole, reached, len(fails) == 0 || record.Phase == contract.PhaseEnded)
	if len(fails) == 0 || record.Phase == contract.PhaseEnded {
		return nil
	}
	return fmt.Errorf("send record of gang %s, attempt %d (%s): %d of %d members not reached: %w", record.Gang, record.Attempt, record.Phase, len(fails), len(members), fails[0])
}

// Reports gives none: they come as task events.
func (s Signals) Reports(context.Context, contract.GangID, int) ([]contract.Report, error) {
	return nil, nil
}

// Remove has nothing to remove.
func (s Signals) Remove(context.Context, contract.GangID, int) error { return nil }

// Router uses Consul where there is one, and signals for the members that do
// not listen to it.
type Router struct {
	Consul  *Consul // nil: there is none
	Signals Signals
	// BySignal tells whether a member is reached by signal; only asked where
	// there is a Consul.
	BySignal func(m contract.Member) bool
}

// Publish implements Channel.
func (r Router) Publish(ctx context.Context, record *contract.Record) error {
	if r.Consul == nil {
		return r.Signals.Publish(ctx, record)
	}
	var signalled []contract.Member
	for _, m := range record.Members {
		if r.BySignal(m) {
			signalled = append(signalled, m)
		}
	}
	if len(signalled) < len(record.Members) || len(record.Members) == 0 {
		if err := r.Consul.Publish(ctx, record); err != nil {
			return err
		}
	}
	if len(signalled) > 0 {
		return r.Signals.publish(ctx, record, signalled)
	}
	return nil
}

// Reports implements Channel.
func (r Router) Reports(ctx context.Context, gang contract.GangID, attempt int) ([]contract.Report, error) {
	if r.Consul == nil {
		return nil, nil
	}
	return r.Consul.Reports(ctx, gang, attempt)
}

// Remove implements Channel.
func (r Router) Remove(ctx context.Context, gang contract.GangID, attempt int) error {
	if r.Consul == nil {
		return nil
	}
	return r.Consul.Remove(ctx, gang, attempt)
}

// Watch implements Watcher; without Consul there is nothing to watch.
func (r Router) Watch(ctx context.Context, gang contract.GangID, attempt int, deliver func([]contract.Report)) {
	if r.Consul != nil {
		r.Consul.Watch(ctx, gang, attempt, deliver)
	}
}
