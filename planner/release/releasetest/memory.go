// Package releasetest has a release.Channel in memory, with the members' side
// of it.
package releasetest

import (
	"context"
	"fmt"
	"sync"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/release"
)

// Memory is a Channel and Watcher in memory. The zero value is ready.
type Memory struct {
	mu      sync.Mutex
	records map[contract.GangID]*contract.Record
	reports map[string]map[string]contract.Report // by gang and attempt, by member
	changed chan struct{}                         // closed with the next change of a record
	news    chan struct{}                         // closed with the next report
	// Fail, if set, is asked before every call.
	Fail func(operation string) error
}

func (m *Memory) lock() func() {
	m.mu.Lock()
	if m.records == nil {
		m.records, m.reports, m.changed = map[contract.GangID]*contract.Record{}, map[string]map[string]contract.Report{}, make(chan struct{})
		m.news = make(chan struct{})
	}
	return m.mu.Unlock
}

// wake wakes all who wait; the lock is held.
func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Memory) fail(operation string) error {
	unlock := m.lock()
	fail := m.Fail
	unlock()
	if fail == nil {
		return nil
	}
	return fail(operation)
}

// Allow ends Fail.
func (m *Memory) Allow() {
	defer m.lock()()
	m.Fail = nil
}

func attemptOf(gang contract.GangID, attempt int) string { return fmt.Sprintf("%s/%d", gang, attempt) }

// Publish implements release.Channel.
func (m *Memory) Publish(_ context.Context, r *contract.Record) error {
	if err := m.fail("publish"); err != nil {
		return err
	}
	defer m.lock()()
	if there := m.records[r.Gang]; there != nil && there.Attempt > r.Attempt {
		return fmt.Errorf("write record of gang %s: %w", r.Gang, release.ErrNewer)
	}
	m.records[r.Gang] = r
	m.wake()
	return nil
}

// Reports implements release.Channel.
func (m *Memory) Reports(_ context.Context, gang contract.GangID, attempt int) ([]contract.Report, error) {
	if err := m.fail("reports"); err != nil {
		return nil, err
	}
	defer m.lock()()
	var out []contract.Report
	for _, r := range m.reports[attemptOf(gang, attempt)] {
		out = append(out, r)
	}
	return out, nil
}

// Remove implements release.Channel.
func (m *Memory) Remove(_ context.Context, gang contract.GangID, attempt int) error {
	if err := m.fail("remove"); err != nil {
		return err
	}
	defer m.lock()()
	delete(m.reports, attemptOf(gang, attempt))
	if there := m.records[gang]; there != nil && there.Attempt <= attempt {
		delete(m.records, gang)
	}
	m.wake()
	return nil
}

// Watch implements release.Watcher.
func (m *Memory) Watch(ctx context.Context, gang contract.GangID, attempt int, deliver func([]contract.Report)) {
	seen := -1
	for {
		unlock := m.lock()
		var out []contract.Report
		for _, r := range m.reports[attemptOf(gang, attempt)] {
			out = append(out, r)
		}
		news := m.news
		unlock()
		if len(out) != seen || len(out) > 0 {
			seen = len(out)
			deliver(out)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// Report is a member's: it keeps its report.
func (m *Memory) Report(r contract.Report) {
	defer m.lock()()
	key := attemptOf(r.Gang, r.Attempt)
	if m.reports[key] == nil {
		m.reports[key] = map[string]contract.Report{}
	}
	m.reports[key][r.Alloc+"."+r.Task] = r
	close(m.news)
	m.news = make(chan struct{})
}

// Record is a member's: it gives the gang's record, nil while there is none,
// and a channel that closes with the next change.
func (m *Memory) Record(gang contract.GangID) (*contract.Record, <-chan struct{}) {
	defer m.lock()()
	return m.records[gang], m.changed
}

// Empty tells whether nothing is kept of any gang.
func (m *Memory) Empty() bool {
	defer m.lock()()
	return len(m.records) == 0 && len(m.reports) == 0
}
