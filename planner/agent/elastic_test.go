package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// An elastic gang starts with as many members as fit; what it asks for beside is
// not kept for it, and its verdict says so. Its next attempt may be larger, and
// registering the same file changes nothing.
func TestElasticGangStartsSmaller(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "other", count: 2, cards: 1})
	b.training("other", 1)
	elastic := job{id: "e", count: 4, cards: 1, meta: map[string]string{contract.MetaMin: "2"}}
	b.submit(elastic)
	g := b.training("e", 1)
	must.Eq(t, 2, g.Placed)
	must.Eq(t, 2, b.members.launches("default/e", 1))
	b.members.completeAll("other")
	b.stage("other", contract.StageComplete)
	g = b.until("e", "told what is not done", func(g view.Gang) bool { return len(g.Detail.Verdict.Blockers) == 1 })
	must.Eq(t, core.ReasonNotCarried, g.Detail.Verdict.Blockers[0].Reason)
	must.StrContains(t, g.Detail.Verdict.Blockers[0].Text, "2 of 4 members")
	b.submit(job{id: "fits", count: 2, cards: 1, args: []string{"run=20ms"}}) // nothing is kept
	b.stage("fits", contract.StageComplete)
	b.submit(elastic)
	node := b.allocs("e")[0].NodeID
	b.put("/v1/node/"+node+"/drain", map[string]any{"DrainSpec": map[string]any{"Deadline": time.Minute}})
	g = b.training("e", 2)
	must.Eq(t, 3, g.Placed, must.Sprint("three nodes are left"))
	must.Eq(t, 4, g.Members)
}

// No member of an elastic gang is asked for alone: who needs its cards has the
// gang leave as a whole.
func TestElasticGangIsNotShrunk(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).twoQueues(1)
	b.queue("prod").Preempt.Ratio = 3
	b.start()
	b.submit(job{id: "e", count: 3, cards: 1, meta: in("lab", contract.MetaMin, "1")})
	b.training("e", 1)
	b.submit(job{id: "one", count: 1, cards: 1, meta: in("prod", contract.MetaMin, "1")})
	b.training("one", 1)
	g := b.training("e", 2)
	must.Eq(t, "default/one", g.Detail.Attempts[0].For)
	must.Eq(t, 2, g.Placed)
}

// A gang whose ranks can meet anew while they run gives up members rather than
// leave: those save and go, the others train on in the same attempt, and who
// needed the cards has them.
func TestElasticGangGivesUpMembers(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).twoQueues(2).direct()
	b.start()
	elastic := job{id: "e", count: 4, cards: 1, meta: in("lab", contract.MetaMin, "2"), args: []string{"save=slowly"}, more: func(j map[string]any) {
		group := j["TaskGroups"].([]any)[0].(map[string]any)
		group["Tasks"].([]any)[0].(map[string]any)["Config"] = map[string]any{"script": "train.py", "args": []any{"save=slowly"}, "nproc_per_node": 1, "elastic": true}
	}}
	b.submit(elastic)
	b.training("e", 1)
	b.submit(job{id: "two", count: 2, cards: 1, meta: in("prod")})
	g := b.until("two", "waiting for two members", func(g view.Gang) bool { return strings.Contains(g.Sentence, "2 of default/e (asked;") })
	must.Eq(t, core.ReasonVictims, g.Reason)
	must.Eq(t, 4, b.live("e"), must.Sprint("they are saving"))
	b.stop()
	b.start()
	b.until("two", "waiting still", func(g view.Gang) bool { return strings.Contains(g.Sentence, "2 of default/e (asked;") })
	close(b.members.saved)
	b.training("two", 1)
	g = b.until("e", "training on", func(g view.Gang) bool { return g.Placed == 2 && g.Reason == core.ReasonRunning })
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, 4, b.members.launches("default/e", 1))
	must.Eq(t, 2, b.live("e"))
	b.until("e", "told", func(g view.Gang) bool {
		return strings.Contains(g.Detail.Verdict.Sentence, "2 of 4 members; it grows into cards that nobody waits for")
	})
	// It is at its least: the next one has it leave as a whole.
	b.submit(job{id: "high", count: 1, cards: 1, meta: in("lab"), more: func(j map[string]any) { j["Priority"] = 90 }})
	b.training("high", 1)
	b.until("e", "queued", func(g view.Gang) bool { return g.Stage == contract.StageQueued })
	b.members.completeAll("two")
	b.members.completeAll("high")
	must.GreaterEq(t, 2, b.training("e", 2).Placed)
}

// A split is not carried out: the gang waits on as one, and the verdict says so.
func TestSplitIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(0)
	b.queue("lab").GiveUp = core.GiveUp{After: 100 * time.Millisecond, Action: "split"}
	b.start()
	b.submit(job{id: "holds", count: 1, cards: 1, meta: in("prod")})
	b.training("holds", 1)
	b.submit(job{id: "sweep", count: 2, cards: 1, meta: in("lab", contract.MetaSplit, "true")})
	g := b.until("sweep", "told", func(g view.Gang) bool { return g.Reason == core.ReasonNotCarried && g.Stage == contract.StageQueued })
	must.True(t, strings.HasPrefix(g.Sentence, "not carried out"), must.Sprint(g.Sentence))
	b.submit(job{id: "small", count: 1, cards: 1, meta: in("prod"), args: []string{"run=20ms"}})
	b.stage("small", contract.StageComplete)
	b.members.completeAll("holds")
	b.training("sweep", 1)
}
