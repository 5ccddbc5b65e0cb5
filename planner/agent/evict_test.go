package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// twoQueues are prod, which is guaranteed so many cards, and lab, which has
// nothing but what it borrows; graces are a minute, and nobody is spared for
// having run for a short time.
func (b *bench) twoQueues(guaranteed int) *bench {
	queue := func(name core.QueueName, change func(*core.Queue)) core.Queue {
		q := core.DefaultQueue(name)
		q.Namespaces, q.Shared = []string{"default"}, true
		q.Preempt.MinRuntime, q.Preempt.Grace = 0, time.Minute
		if change != nil {
			change(&q)
		}
		return q
	}
	b.cfg.Core.Queues = []core.Queue{
		queue("prod", func(q *core.Queue) { q.Guaranteed = core.Amounts{Any: guaranteed} }),
		queue("lab", nil), queue("spare", nil),
	}
	return b
}

func (b *bench) queue(name core.QueueName) *core.Queue {
	at := slices.IndexFunc(b.cfg.Core.Queues, func(q core.Queue) bool { return q.Name == name })
	return &b.cfg.Core.Queues[at]
}

func in(queue string, more ...string) map[string]string {
	m := map[string]string{contract.MetaQueue: queue}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func (b *bench) training(id string, attempt int) view.Gang {
	b.t.Helper()
	return b.until(id, "training", func(g view.Gang) bool {
		return g.Attempt == attempt && g.Stage == contract.StageTraining && g.Reason == core.ReasonRunning
	})
}

// history of a job's versions and of its allocations' changes, by index.
func (b *bench) pinnedAt(id string) uint64 {
	b.t.Helper()
	var list struct{ Versions []json.RawMessage }
	b.get("/v1/job/"+id+"/versions", &list)
	for _, raw := range slices.Backward(list.Versions) {
		var v struct {
			JobModifyIndex uint64
			Constraints    []struct{ RTarget string }
		}
		must.NoError(b.t, json.Unmarshal(raw, &v))
		for _, c := range v.Constraints {
			if strings.HasPrefix(c.RTarget, "attempt-") {
				return v.JobModifyIndex
			}
		}
	}
	b.t.Fatalf("job %s was never pinned", id)
	return 0
}

// A guarantee is enforced: the gang that borrows is asked, saves and leaves,
// the one that is entitled takes its cards, and the other goes on when it may.
func TestGuaranteeIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1).twoQueues(2)
			if channel == "channel" {
				b.direct()
			}
			b.start()
			b.submit(job{id: "borrows", count: 2, cards: 1, meta: in("lab"), args: []string{"save=slowly"}})
			before := b.training("borrows", 1)
			// A job that is no gang waits for a card all the time, and has none in
			// the end.
			plain := job{id: "plain", count: 1, cards: 1, driver: "mock_driver", unheld: true, more: func(j map[string]any) { delete(j, "Meta"); j["Priority"] = 90 }}
			_, err := b.agent.Register(context.Background(), httpapi.Caller{}, plain.json(), view.Submission{})
			must.NoError(t, err)
			b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod")})

			waits := b.until("entitled", "waiting for the other to leave", func(g view.Gang) bool {
				return g.Reason == core.ReasonVictims && strings.Contains(g.Sentence, "(asked;")
			})
			must.StrContains(t, waits.Sentence, "default/borrows")
			must.Eq(t, core.ReasonVictims, waits.Detail.Verdict.Blockers[0].Reason)
			must.Eq(t, "default/borrows", string(waits.Detail.Verdict.Blockers[0].Holders[0].Gang))
			asked := b.until("borrows", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
			must.StrContains(t, asked.Sentence, "default/entitled of queue prod takes back its guarantee")
			must.Eq(t, 2, b.live("borrows"), must.Sprint("nobody is stopped who saves"))

			close(b.members.saved)
			b.training("entitled", 1)
			after := b.until("borrows", "queued again", func(g view.Gang) bool { return g.Stage == contract.StageQueued })
			must.Eq(t, contract.OutcomeCheckpointed, after.Detail.Attempts[0].Exit.Outcome)
			must.Eq(t, "preempted", after.Detail.Attempts[0].Reason)
			must.Eq(t, "default/entitled", after.Detail.Attempts[0].For)
			must.Eq(t, before.Submitted, after.Submitted)
			must.Eq(t, "lab", after.Queue)
			must.Eq(t, 0, b.members.launches("default/borrows", 2))
			for _, a := range b.allocs("borrows") {
				must.Less(t, a.ModifyIndex, b.pinnedAt("entitled"), must.Sprint("the place is registered before anybody leaves it"))
			}
			must.Eq(t, 0, b.live("plain"))

			_, _, err = b.sim.Client().Jobs().Deregister("plain", false, nil)
			must.NoError(t, err)
			_, err = b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "entitled", view.StopRequest{})
			must.NoError(t, err)
			b.training("borrows", 2)
		})
	}
}

// Inside a queue a higher priority takes the place of a lower one; an equal one
// waits.
func TestPriorityInsideAQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(0).start()
	b.submit(job{id: "low", count: 2, cards: 1, meta: in("lab")})
	b.training("low", 1)
	b.submit(job{id: "equal", count: 2, cards: 1, meta: in("lab")})
	b.until("equal", "waiting", func(g view.Gang) bool { return g.Reason == core.ReasonCards })
	b.submit(job{id: "high", count: 2, cards: 1, meta: in("lab"), more: func(j map[string]any) { j["Priority"] = 70 }})
	b.training("high", 1)
	low := b.until("low", "queued again", func(g view.Gang) bool { return g.Stage == contract.StageQueued && g.Position == 1 })
	must.Eq(t, "preempted", low.Detail.Attempts[0].Reason)
	// It was submitted before the other that waits.
	equal := b.until("equal", "behind it", func(g view.Gang) bool { return g.Position == 2 })
	must.Eq(t, contract.StageQueued, equal.Stage)
	must.Len(t, 0, b.allocs("equal"))
}

// An urgent queue does not ask: its gang's cards are free at once, those of
// others' guarantees too.
func TestUrgentQueueDoesNotAsk(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(2)
	b.queue("lab").Urgent, b.queue("lab").Class = true, 90
	b.start()
	b.submit(job{id: "guaranteed", count: 2, cards: 1, meta: in("prod"), args: []string{"save=slowly"}})
	b.training("guaranteed", 1)
	b.submit(job{id: "urgent", count: 1, cards: 1, meta: in("lab")})
	b.training("urgent", 1)
	g := b.until("guaranteed", "queued again", func(g view.Gang) bool { return g.Stage == contract.StageQueued })
	must.NotEq(t, contract.OutcomeCheckpointed, g.Detail.Attempts[0].Exit.Outcome)
	must.Eq(t, "default/urgent", g.Detail.Attempts[0].For)
}

// An evicted gang goes to the queue that its own names for that, and is its
// user's again when it is submitted anew.
func TestEvictedGangGoesToAnotherQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(2)
	b.queue("lab").OnPreempt = "spare"
	b.start()
	b.submit(job{id: "borrows", count: 2, cards: 1, meta: in("lab")})
	first := b.training("borrows", 1)
	b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod"), args: []string{"run=50ms"}})
	b.training("borrows", 2)
	b.stop()
	b.start()
	g := b.training("borrows", 2)
	must.Eq(t, "spare", g.Queue)
	must.Eq(t, first.Submitted, g.Submitted)
	b.submit(job{id: "borrows", count: 1, cards: 1, meta: in("lab")})
	b.until("borrows", "in its own queue", func(g view.Gang) bool { return g.Queue == "lab" })
}

// Nobody is stopped for a gang that does not want the room any more: those who
// have not left go on.
func TestAskIsWithdrawn(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1).twoQueues(2)
			if channel == "channel" {
				b.direct()
			}
			b.start()
			b.submit(job{id: "borrows", count: 2, cards: 1, meta: in("lab"), args: []string{"save=slowly"}})
			b.training("borrows", 1)
			b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod")})
			b.until("borrows", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
			_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "entitled", view.StopRequest{})
			must.NoError(t, err)
			b.stage("entitled", contract.StageCancelled)
			g := b.until("borrows", "told that it may stay", func(g view.Gang) bool { return g.Reason == core.ReasonRunning })
			must.Eq(t, 1, g.Attempt)
			must.True(t, slices.ContainsFunc(g.Detail.Events, func(e view.Event) bool { return strings.Contains(e.Text, "may stay") }))
			b.members.eventuallyNotAsked(b, "borrows")
			// The next one that is entitled has it asked again.
			b.submit(job{id: "next", count: 2, cards: 1, meta: in("prod")})
			b.until("borrows", "asked again", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
			close(b.members.saved)
			b.training("next", 1)
			must.Eq(t, contract.OutcomeCheckpointed, b.until("borrows", "queued again", func(g view.Gang) bool { return g.Stage == contract.StageQueued }).Exit.Outcome)
		})
	}
}

// A gang that ends by itself while it is asked is complete, and its place goes
// to the one that waits for it.
func TestVictimEndsByItself(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(2).start()
	b.submit(job{id: "borrows", count: 2, cards: 1, meta: in("lab"), args: []string{"save=slowly"}})
	b.training("borrows", 1)
	b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod")})
	b.until("borrows", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
	b.members.completeAll("borrows")
	must.Eq(t, 1, b.stage("borrows", contract.StageComplete).Attempt)
	b.training("entitled", 1)
}

// The node of a gang that is asked is lost: the one that waits for its place
// gives up the place, not its claim, and starts when there is room.
func TestVictimsNodeIsLost(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).twoQueues(2)
	b.cfg.LostGrace = 300 * time.Millisecond
	b.start()
	b.submit(job{id: "borrows", count: 3, cards: 1, meta: in("lab"), args: []string{"save=slowly"}})
	b.training("borrows", 1)
	b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod")})
	b.until("borrows", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
	node := b.until("entitled", "placed by plan", func(g view.Gang) bool { return len(g.Detail.Members) == 2 }).Detail.Members[0].NodeID
	must.NoError(t, b.sim.Partition(node, true))
	g := b.until("entitled", "training elsewhere", func(g view.Gang) bool { return g.Stage == contract.StageTraining })
	for _, m := range g.Detail.Members {
		must.NotEq(t, node, m.NodeID)
	}
	must.Eq(t, "node-lost", b.until("borrows", "queued again", func(g view.Gang) bool { return len(g.Detail.Attempts) == 1 && !g.Detail.Attempts[0].Ended.IsZero() }).Detail.Attempts[0].Reason)
}

// A gang that does not leave within its grace is stopped; a time limit ends a
// gang with that outcome.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(0).start()
	b.submit(job{id: "limited", count: 2, cards: 1, meta: in("lab", contract.MetaTimeLimit, "400ms", contract.MetaGrace, "300ms"), args: []string{"deaf=yes"}})
	b.submit(job{id: "saves", count: 2, cards: 1, meta: in("lab", contract.MetaTimeLimit, "400ms")})
	for _, id := range []string{"limited", "saves"} {
		g := b.stage(id, contract.StageFailed)
		must.Eq(t, contract.OutcomeTimeLimit, g.Exit.Outcome, must.Sprint(id))
		must.StrContains(t, g.Exit.Text, "time limit of 400ms")
		must.Eq(t, 1, g.Attempt)
		must.Eq(t, 0, b.live(id))
	}
}

// What one day's budget allows is not exceeded, whatever planner counts.
func TestEvictionsOfADay(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(2)
	b.queue("prod").Preempt.EvictionsPerDay = 1
	b.start()
	b.submit(job{id: "one", count: 1, cards: 1, meta: in("lab")})
	b.submit(job{id: "two", count: 1, cards: 1, meta: in("lab")})
	b.training("one", 1)
	b.training("two", 1)
	b.submit(job{id: "first", count: 1, cards: 1, meta: in("prod")})
	b.training("first", 1)
	b.stop()
	b.start()
	b.submit(job{id: "second", count: 1, cards: 1, meta: in("prod")})
	b.until("second", "waiting", func(g view.Gang) bool { return g.Stage == contract.StageQueued && g.Reason == core.ReasonCards })
	must.Len(t, 0, b.allocs("second"))
}

// Many gangs of two queues and several priorities evict each other while the
// planner is stopped and started again: every one of them is complete in the
// end, none ever starts a part of its ranks, nobody evicts more often than the
// budgets allow, and nothing is left.
func TestManyEvictions(t *testing.T) {
	t.Parallel()
	b := newBench(t, 6, 1).twoQueues(3).direct()
	b.start()
	rnd := rand.New(rand.NewPCG(1, 2))
	// The first holds everything until it is evicted, so that somebody is,
	// whatever runs when the others come.
	size := map[string]int{"borrows": 6, "entitled": 2}
	b.submit(job{id: "borrows", count: 6, cards: 1, meta: in("lab"), args: []string{"run=50ms", "from=2"}})
	b.training("borrows", 1)
	b.submit(job{id: "entitled", count: 2, cards: 1, meta: in("prod"), args: []string{"run=50ms"}})
	for i := range 16 {
		id := fmt.Sprintf("g%02d", i)
		size[id] = 1 + rnd.IntN(4)
		queue := []string{"prod", "lab", "lab"}[rnd.IntN(3)]
		priority := 40 + 10*rnd.IntN(4)
		b.submit(job{id: id, count: size[id], cards: 1, meta: in(queue), args: []string{fmt.Sprintf("run=%dms", 50+rnd.IntN(150))}, more: func(j map[string]any) { j["Priority"] = priority }})
		if i%5 == 4 {
			b.stop()
			b.start()
		}
	}
	evictions := 0
	for id, n := range size {
		g := b.stage(id, contract.StageComplete)
		mine := 0
		for attempt := 1; attempt <= g.Attempt; attempt++ {
			launched := b.members.launches("default/"+id, attempt)
			must.True(t, launched == 0 || launched == n, must.Sprintf("%d of %d ranks of attempt %d of %s were started", launched, n, attempt, id))
		}
		for _, a := range g.Detail.Attempts {
			if a.For != "" {
				mine++
			}
		}
		must.LessEq(t, 3, mine)
		evictions += mine
	}
	must.Positive(t, evictions)
	must.Len(t, 0, b.members.problems)
	b.eventually("nothing is left", func() bool {
		live := 0
		for id := range size {
			live += b.live(id)
		}
		return live == 0 && b.members.channel.Empty()
	})
}
