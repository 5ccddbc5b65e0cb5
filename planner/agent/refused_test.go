package agent_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// Where Nomad does not take what the planner must save (a token without the
// right, say), a gang says so while it waits, is tried again ever more seldom,
// and starts when the trouble is over.
func TestStateThatCannotBeSaved(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).direct()
	var tries atomic.Int32
	var denied atomic.Bool
	denied.Store(true)
	b.before = func(operation string) error {
		if !strings.HasPrefix(operation, "write variable") {
			return nil
		}
		tries.Add(1)
		if denied.Load() {
			return errors.New("Nomad answers 403: Permission denied")
		}
		return nil
	}
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=10ms"}})
	b.until("g", "waiting for its state to be saved", func(g view.Gang) bool { return strings.Contains(g.Sentence, "Permission denied") })
	began, before := time.Now(), tries.Load()
	time.Sleep(1500 * time.Millisecond)
	must.LessEq(t, int32(2+time.Since(began)/time.Second), tries.Load()-before, must.Sprint("it is tried all the time"))
	denied.Store(false)
	b.stage("g", contract.StageComplete)
}
