package agent_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/capture"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/core/estimate"
	"github.com/nomad-muster/muster/planner/core/recent"
	"github.com/shoenig/test/must"
)

// The planner decides by what gangs asked for lately and how long they took,
// from its ledger: after a restart it knows the same though Nomad has none of
// them any more, and a captured decision replays with it.
func TestHistoryIsOfTheLedger(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 4).direct()
	b.cfg.DataDir = t.TempDir()
	b.start()
	for i := range recent.Few {
		b.submit(job{id: fmt.Sprint("g", i), count: 1, cards: 1 + i%2, args: []string{"run=1ms"}})
	}
	known := func() (h core.History) {
		b.eventually("history", func() bool {
			s, _, err := b.agent.Capture()
			if err != nil {
				return false // the picture is not whole yet
			}
			h = s.History
			return len(h.Recent) > 0 && len(h.Estimates) > 0 && h.Estimates[0].Count == recent.Few
		})
		return h
	}
	was := known()
	must.Len(t, 2, was.Recent)
	must.Eq(t, 1<<15, was.Recent[0].Weight)
	for i := range recent.Few {
		_, _, err := b.sim.Client().Jobs().Deregister(fmt.Sprint("g", i), true, nil)
		must.NoError(t, err)
	}
	b.eventually("all are forgotten", func() bool { return len(b.agent.Gangs()) == 0 })
	b.stop()
	b.start()
	b.submit(job{id: "waits", count: 3, cards: 4})
	b.eventually("the last one counts", func() bool {
		s, _, err := b.agent.Capture()
		return err == nil && len(s.Gangs) == 1 && len(s.History.Recent) == 3
	})
	is := known()
	must.Eq(t, was.Estimates, is.Estimates)
	s, p, err := b.agent.Capture()
	must.NoError(t, err)
	must.Len(t, 3, s.History.Recent)
	var file bytes.Buffer
	must.NoError(t, capture.Write(&file, s, p))
	d, err := capture.Read(&file)
	must.NoError(t, err)
	must.Eq(t, s.History.Recent, d.Snapshot.History.Recent)
	_, same, err := d.Replay(decide.New())
	must.NoError(t, err)
	must.True(t, same)
}

// A queue that says order = "shortest" goes by what gangs like these took, as
// the ledger has it, also after a restart; nobody stated a time limit.
func TestShortestIsLearned(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, 2).direct()
	b.cfg.DataDir = t.TempDir()
	b.queue("default").Order = core.OrderShortest
	b.start()
	learned := func() {
		b.eventually("both kinds are known", func() bool {
			s, _, err := b.agent.Capture()
			if err != nil {
				return false // Nomad is not seen yet
			}
			known := map[int]bool{}
			for _, e := range s.History.Estimates {
				known[e.Cards] = known[e.Cards] || e.Count >= estimate.Enough
			}
			return known[1] && known[2]
		})
	}
	for i := range estimate.Enough {
		quick, slow := fmt.Sprint("quick", i), fmt.Sprint("slow", i)
		b.submit(job{id: quick, count: 1, cards: 1, args: []string{"run=1ms"}})
		b.submit(job{id: slow, count: 2, cards: 1, args: []string{"run=1500ms"}})
		b.stage(quick, contract.StageComplete)
		b.stage(slow, contract.StageComplete)
	}
	learned()
	b.submit(job{id: "holds", count: 2, cards: 1})
	b.training("holds", 1)
	b.stop()
	b.start()
	learned()
	b.submit(job{id: "slow", count: 2, cards: 1})
	b.stage("slow", contract.StageQueued)
	b.submit(job{id: "quick", count: 1, cards: 1})
	b.stage("quick", contract.StageQueued)
	b.members.completeAll("holds")
	b.training("quick", 1)
	g, _ := b.agent.Gang("default", "slow")
	must.Eq(t, contract.StageQueued, g.Stage, must.Sprint("it came first and takes longer"))
	b.members.completeAll("quick")
	b.training("slow", 1)
}
