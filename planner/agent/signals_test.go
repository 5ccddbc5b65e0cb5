package agent_test

import (
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// Without Consul the record goes to each of 128 members as a signal's text,
// which is kept in their tasks' events beside their reports.
func TestManyMembersBySignals(t *testing.T) {
	t.Parallel()
	const members = 128
	b := newBench(t, members, 1).start()
	for _, id := range []string{"first", "second"} {
		b.submit(job{id: id, count: members, cards: 1, args: []string{"run=50ms"}})
		g := b.stage(id, contract.StageComplete)
		must.Eq(t, 1, g.Attempt)
		must.Eq(t, members, b.members.launches("default/"+id, 1))
		var placed, started time.Time
		for _, s := range append([]view.StageTime{}, g.Detail.Stages...) {
			switch s.Stage {
			case contract.StagePlaced:
				placed = s.Entered
			case contract.StageStarted:
				started = s.Entered
			}
		}
		t.Logf("%s: placed to started in %s", id, started.Sub(placed))
	}
	b.members.mu.Lock()
	defer b.members.mu.Unlock()
	must.SliceEmpty(t, b.members.problems)
}
