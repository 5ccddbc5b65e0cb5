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

// A split is not carried out: nothing is kept for it, and the verdict says so.
func TestSplitIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(0)
	b.queue("lab").GiveUp = core.GiveUp{After: 100 * time.Millisecond, Action: "split"}
	b.start()
	b.submit(job{id: "holds", count: 1, cards: 1, meta: in("prod")})
	b.training("holds", 1)
	b.submit(job{id: "sweep", count: 2, cards: 1, meta: in("lab", contract.MetaSplit, "true")})
	g := b.until("sweep", "told", func(g view.Gang) bool { return g.Reason == core.ReasonNotCarried })
	must.True(t, strings.HasPrefix(g.Sentence, "not carried out"), must.Sprint(g.Sentence))
	must.Eq(t, contract.StageQueued, g.Stage)
	b.submit(job{id: "small", count: 1, cards: 1, meta: in("prod"), args: []string{"run=20ms"}})
	b.stage("small", contract.StageComplete)
	b.members.completeAll("holds")
	b.training("sweep", 1)
}
