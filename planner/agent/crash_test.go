package agent_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

var errCrash = errors.New("the planner was killed")

// crasher ends a planner's life at its nth call to the outside: that call and
// all later ones are not made.
type crasher struct {
	mu    sync.Mutex
	n, at int
	ops   []string
	dead  chan struct{}
}

func (c *crasher) before(operation string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	c.ops = append(c.ops, operation)
	if c.at == 0 || c.n < c.at {
		return nil
	}
	if c.n == c.at {
		close(c.dead)
	}
	return errCrash
}

// arm has the planner die at its kth call from now on.
func (c *crasher) arm(k int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n, c.at = 0, k
}

// wait returns when the planner is dead, or all is done with fewer calls.
func (c *crasher) wait(b *bench, direct bool, jobs ...string) {
	b.t.Helper()
	b.eventually("the planner is dead, or all is done", func() bool {
		select {
		case <-c.dead:
			return true
		default:
		}
		for _, id := range jobs {
			if g, _ := b.agent.Gang("default", id); g.Stage != contract.StageComplete || b.live(id) > 0 {
				return false
			}
		}
		return !direct || b.members.channel.Empty()
	})
}

// C37: the planner is killed before its kth call, for every k on the way of a
// gang that fails once and then completes. A new one goes on, and what comes
// out is what comes out without a crash: each attempt's ranks start once, all
// of them or none, and the gang is complete.
func TestCrashAtEveryCall(t *testing.T) {
	t.Parallel()
	// Over signals reports stay in Nomad's task events; over a channel of their
	// own, as Consul is, they are gone once the attempt's keys are removed.
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			crashEverywhere(t, channel == "channel")
		})
	}
}

func crashEverywhere(t *testing.T, direct bool) {
	spec := job{id: "g", count: 3, cards: 1, args: []string{"run=15ms", "exit=7", "attempts=1"}, meta: map[string]string{contract.MetaRetries: "1"}}
	prepare := func(t *testing.T, c *crasher) *bench {
		b := newBench(t, 3, 1)
		b.before = c.before
		if direct {
			b.direct().members.channel.Fail = c.before
		}
		// The job is there before the planner, which therefore may die at any call.
		b.put("/v1/jobs", map[string]any{"Job": spec.json()})
		return b
	}
	c := &crasher{dead: make(chan struct{})}
	b := prepare(t, c)
	b.start()
	b.stage("g", contract.StageComplete)
	b.stop()
	calls := c.n
	must.Greater(t, 20, calls)
	for k := 1; k <= calls; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			c := &crasher{at: k, dead: make(chan struct{})}
			b := prepare(t, c)
			b.start()
			c.wait(b, direct, "g")
			b.stop()
			crashed := "nothing"
			if len(c.ops) >= k {
				crashed = c.ops[k-1]
			}
			b.before = nil
			if direct {
				b.members.channel.Allow()
			}
			b.start()
			g := b.stage("g", contract.StageComplete)
			where := must.Sprintf("killed before call %d, %q", k, crashed)
			for attempt := 1; attempt <= g.Attempt; attempt++ {
				n := b.members.launches("default/g", attempt)
				// Signals go out one by one: a rank that was released and failed before
				// the new planner could tell the others ends the attempt as well.
				must.True(t, n == 0 || n == 3 || n < 3 && attempt == 1 && strings.HasPrefix(crashed, "signal"),
					must.Sprintf("%d of 3 ranks of attempt %d were started; killed before call %d, %q", n, attempt, k, crashed))
			}
			must.LessEq(t, 3, g.Attempt, where)
			must.Len(t, 0, b.members.problems, where)
			must.Eq(t, 3, b.members.launches("default/g", g.Attempt), where)
			b.eventually("nothing of the gang is left", func() bool { return b.live("g") == 0 && (!direct || b.members.channel.Empty()) })
		})
	}
}

// What happens while no planner runs is right after the next one's start: a
// gang ends, another is stopped, a node is lost with a third.
func TestWhileNoPlannerRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t, 6, 1)
	b.cfg.LostGrace = 100 * time.Millisecond
	b.start()
	b.submit(job{id: "ends", count: 2, cards: 1, args: []string{"run=300ms"}})
	b.submit(job{id: "stopped", count: 2, cards: 1})
	b.submit(job{id: "loses", count: 2, cards: 1})
	for _, id := range []string{"ends", "stopped", "loses"} {
		b.until(id, "training", func(g view.Gang) bool { return g.Stage == contract.StageTraining })
	}
	b.stop()
	_, _, err := b.sim.Client().Jobs().Deregister("stopped", false, nil)
	must.NoError(t, err)
	must.NoError(t, b.sim.Partition(b.allocs("loses")[0].NodeID, true))
	b.eventually("the first one ended", func() bool { return b.live("ends") == 0 })
	b.start()
	must.Eq(t, 1, b.stage("ends", contract.StageComplete).Attempt)
	b.stage("stopped", contract.StageCancelled)
	b.until("loses", "training again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	must.Eq(t, 2, b.members.launches("default/ends", 1))
	must.Eq(t, 2, b.members.launches("default/loses", 2))
}

// The planner is killed before its kth call, for every k on the way of an
// eviction: the gang that borrows is asked, leaves, and goes on when the one
// that was entitled is complete. Whatever the call, both end right.
func TestCrashAtEveryCallOfAnEviction(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			crashEvicting(t, channel == "channel")
		})
	}
}

func crashEvicting(t *testing.T, direct bool) {
	borrows := job{id: "borrows", count: 2, cards: 1, meta: in("lab"), args: []string{"run=15ms", "from=2"}}
	entitled := job{id: "entitled", count: 2, cards: 1, meta: in("prod"), args: []string{"run=15ms"}}
	// run has a planner without fault start the first gang, and one that dies at
	// its kth call see the second one.
	run := func(t *testing.T, c *crasher) *bench {
		b := newBench(t, 2, 1).twoQueues(2)
		if direct {
			b.direct()
		}
		b.start()
		b.submit(borrows)
		b.training("borrows", 1)
		b.stop()
		b.put("/v1/jobs", map[string]any{"Job": entitled.json()})
		b.before = c.before
		if direct {
			b.members.channel.Fail = c.before
		}
		b.start()
		return b
	}
	ends := func(b *bench) (view.Gang, view.Gang) {
		return b.stage("entitled", contract.StageComplete), b.stage("borrows", contract.StageComplete)
	}
	c := &crasher{dead: make(chan struct{})}
	b := run(t, c)
	ends(b)
	b.stop()
	calls := c.n
	must.Greater(t, 25, calls)
	for k := 1; k <= calls; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			c := &crasher{at: k, dead: make(chan struct{})}
			b := run(t, c)
			c.wait(b, direct, "entitled", "borrows")
			b.stop()
			crashed := "nothing"
			if len(c.ops) >= k {
				crashed = c.ops[k-1]
			}
			b.before = nil
			if direct {
				b.members.channel.Allow()
			}
			b.start()
			first, second := ends(b)
			where := must.Sprintf("killed before call %d, %q", k, crashed)
			must.LessEq(t, 2, first.Attempt, where)
			must.LessEq(t, 3, second.Attempt, where)
			must.Eq(t, contract.OutcomeCheckpointed, second.Detail.Attempts[0].Exit.Outcome, where)
			must.Eq(t, "preempted", second.Detail.Attempts[0].Reason, where)
			must.Eq(t, "default/entitled", second.Detail.Attempts[0].For, where)
			must.Len(t, 0, b.members.problems, where)
			must.Eq(t, 2, b.members.launches("default/entitled", first.Attempt), where)
			must.Eq(t, 2, b.members.launches("default/borrows", second.Attempt), where)
			b.eventually("nothing of the gangs is left", func() bool {
				return b.live("entitled")+b.live("borrows") == 0 && (!direct || b.members.channel.Empty())
			})
		})
	}
}
