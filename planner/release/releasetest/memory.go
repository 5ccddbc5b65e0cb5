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

// Memory is a Channel and Watcher in memory, with the cost of one gang's change
// to that gang alone, as over Consul. The zero value is ready.
type Memory struct {
	mu      sync.Mutex
	records map[contract.GangID]*contract.Record
	written map[contract.GangID][]*contract.Record // all that ever were
	reports map[attempt]map[string]kept            // by member
	count   int                                    // of reports that came
	changed map[contract.GangID]chan struct{}      // closed with the next change of the gang's record
	news    map[attempt]chan struct{}              // closed with the next report
	// Fail, if set, is asked before every call.
	Fail func(operation string) error
}

// kept is a member's latest report, with its number among all that came.
type kept struct {
	contract.Report
	number int
}

type attempt struct {
	gang   contract.GangID
	number int
}

func (m *Memory) lock() func() {
	m.mu.Lock()
	if m.records == nil {
		m.records, m.reports = map[contract.GangID]*contract.Record{}, map[attempt]map[string]kept{}
		m.written = map[contract.GangID][]*contract.Record{}
		m.changed, m.news = map[contract.GangID]chan struct{}{}, map[attempt]chan struct{}{}
	}
	return m.mu.Unlock
}

// wait gives the channel that the next wake of a key closes; the lock is held.
func wait[K comparable](waiting map[K]chan struct{}, key K) <-chan struct{} {
	if waiting[key] == nil {
		waiting[key] = make(chan struct{})
	}
	return waiting[key]
}

// wake wakes all who wait for a key; the lock is held.
func wake[K comparable](waiting map[K]chan struct{}, key K) {
	if c := waiting[key]; c != nil {
		close(c)
		delete(waiting, key)
	}
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
	m.written[r.Gang] = append(m.written[r.Gang], r)
	wake(m.changed, r.Gang)
	return nil
}

// Reports implements release.Channel.
func (m *Memory) Reports(_ context.Context, gang contract.GangID, number int) ([]contract.Report, error) {
	if err := m.fail("reports"); err != nil {
		return nil, err
	}
	defer m.lock()()
	var out []contract.Report
	for _, r := range m.reports[attempt{gang, number}] {
		out = append(out, r.Report)
	}
	return out, nil
}

// Remove implements release.Channel.
func (m *Memory) Remove(_ context.Context, gang contract.GangID, number int) error {
	if err := m.fail("remove"); err != nil {
		return err
	}
	defer m.lock()()
	delete(m.reports, attempt{gang, number})
	if there := m.records[gang]; there != nil && there.Attempt <= number {
		delete(m.records, gang)
	}
	wake(m.changed, gang)
	return nil
}

// Watch implements release.Watcher.
func (m *Memory) Watch(ctx context.Context, gang contract.GangID, number int, deliver func([]contract.Report)) {
	key, seen := attempt{gang, number}, 0
	for {
		unlock := m.lock()
		var out []contract.Report
		for _, r := range m.reports[key] {
			if r.number > seen {
				out = append(out, r.Report)
			}
		}
		seen = m.count
		news := wait(m.news, key)
		unlock()
		deliver(out)
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
	key := attempt{r.Gang, r.Attempt}
	if m.reports[key] == nil {
		m.reports[key] = map[string]kept{}
	}
	m.count++
	m.reports[key][r.Alloc+"."+r.Task] = kept{r, m.count}
	wake(m.news, key)
}

// Records is a member's: it gives the gang's record, if there is one, to who
// comes new (seen < 0), and after that each that was written since, however
// fast they followed each other; seen is for the next call, and the channel
// closes with the next change.
func (m *Memory) Records(gang contract.GangID, seen int) (list []*contract.Record, now int, changed <-chan struct{}) {
	defer m.lock()()
	all := m.written[gang]
	if seen >= 0 {
		list = all[seen:]
	} else if r := m.records[gang]; r != nil {
		list = []*contract.Record{r}
	}
	return list, len(all), wait(m.changed, gang)
}

// Empty tells whether nothing is kept of any gang.
func (m *Memory) Empty() bool {
	defer m.lock()()
	return len(m.records) == 0 && len(m.reports) == 0
}
