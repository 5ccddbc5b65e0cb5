package agent_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// ran is what Nomad says that a gang's allocations held, in card-seconds.
func (b *bench) ran(id string, cards int) (sum int64) {
	b.t.Helper()
	var list []struct {
		ID, ClientStatus       string
		CreateTime, ModifyTime int64
		TaskStates             map[string]struct{ FinishedAt time.Time }
	}
	b.get("/v1/job/"+id+"/allocations?all=true&task_states=true", &list)
	for _, a := range list {
		end := int64(0)
		for _, s := range a.TaskStates {
			end = max(end, s.FinishedAt.Unix())
		}
		if end <= 0 {
			end = a.ModifyTime / 1e9
		}
		sum += int64(cards) * (max(end, a.CreateTime/1e9) - a.CreateTime/1e9)
	}
	return sum
}

// used is what the books have of a gang.
func (b *bench) used(id string) view.UsageLine {
	b.t.Helper()
	u, err := b.agent.Usage(context.Background(), view.UsageQuery{From: time.Now().Add(-time.Hour), To: time.Now(), Gang: "default/" + id})
	if err != nil || len(u.Lines) == 0 {
		return view.UsageLine{}
	}
	must.Len(b.t, 1, u.Lines)
	must.Eq(b.t, u.Lines[0].CardSeconds, u.Lines[0].Guaranteed+u.Lines[0].Borrowed)
	must.Eq(b.t, u.Lines[0].CardSeconds, u.Lines[0].Held+u.Lines[0].Training)
	return u.Lines[0]
}

// The books are what Nomad ran, to the second: gangs that complete, fail, are
// retried, evicted and stopped; over a restart, and for a planner that comes
// when all is over.
func TestBooksAreWhatNomadRan(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 2).direct()
	b.cfg.DataDir = t.TempDir()
	b.cfg.Core.Queues = append(b.cfg.Core.Queues, core.DefaultQueue("first"))
	first := &b.cfg.Core.Queues[len(b.cfg.Core.Queues)-1]
	first.Guaranteed = core.Amounts{Models: map[core.Model]int{"H100": 4}}
	first.Shared = true
	for i := range b.cfg.Core.Queues {
		b.cfg.Core.Queues[i].Preempt.MinRuntime, b.cfg.Core.Queues[i].Preempt.Grace = 0, 100*time.Millisecond
	}
	b.start()
	preemptible := map[string]string{contract.MetaPreemptible: "true"}
	b.submit(job{id: "completes", count: 2, cards: 1, args: []string{"run=1500ms"}})
	b.submit(job{id: "retried", count: 2, cards: 1, args: []string{"run=1200ms", "exit=7", "attempts=1"}, meta: map[string]string{contract.MetaRetries: "1"}})
	b.stage("completes", contract.StageComplete)
	b.stage("retried", contract.StageComplete)
	b.submit(job{id: "evicted", count: 4, cards: 2, meta: preemptible})
	b.stage("evicted", contract.StageTraining)
	time.Sleep(1100 * time.Millisecond) // that there is something to book
	b.submit(job{id: "entitled", count: 2, cards: 2, args: []string{"run=1100ms"}, meta: map[string]string{contract.MetaQueue: "first"}})
	b.stage("entitled", contract.StageComplete)
	b.until("evicted", "running again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	b.stop()
	time.Sleep(1100 * time.Millisecond) // while no planner is there
	b.start()
	b.until("evicted", "known again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "evicted", view.StopRequest{Now: true})
	must.NoError(t, err)
	b.stage("evicted", contract.StageCancelled)
	cards := map[string]int{"completes": 1, "retried": 1, "evicted": 2, "entitled": 2}
	check := func() {
		t.Helper()
		for id, n := range cards {
			want := b.ran(id, n)
			must.Positive(t, want)
			b.eventually(fmt.Sprintf("usage of %s is the %d card-seconds that Nomad ran", id, want), func() bool { return b.used(id).CardSeconds == want })
		}
		var k view.LedgerCheck
		b.eventually("the ledger's own check", func() bool {
			var err error
			k, err = b.agent.CheckLedger(context.Background())
			return err == nil
		})
		must.SliceEmpty(t, k.Findings)
		must.Eq(t, 2+4+8+2, k.NomadAllocations)
		must.Positive(t, k.NomadCardSeconds)
		must.Eq(t, 0, k.Unknown)
	}
	check()
	must.MapNotContainsKey(t, b.used("evicted").Lost, "preempted", must.Sprint("its members saved when they were asked to leave"))
	must.Positive(t, b.used("evicted").Lost["stopped"])
	must.Positive(t, b.used("retried").Lost["failed"])
	must.MapEmpty(t, b.used("completes").Lost)
	must.Eq(t, 0, b.used("completes").Guaranteed)
	must.Eq(t, 0, b.used("entitled").Borrowed)

	// Another planner, with nothing but Nomad's history, books the same.
	before := map[string]view.UsageLine{}
	for id := range cards {
		before[id] = b.used(id)
	}
	b.stop()
	b.cfg.DataDir = t.TempDir()
	b.start()
	b.stage("evicted", contract.StageCancelled)
	check()
	for id := range cards {
		must.Eq(t, before[id], b.used(id), must.Sprint(id))
	}
	b.stop()
	r, err := accounting.Verify(context.Background(), filepath.Join(b.cfg.DataDir, accounting.FileName))
	must.NoError(t, err)
	must.SliceEmpty(t, r.Findings)
}

// Where there is no ledger, scheduling goes on and says so.
func TestPlannerWithoutLedger(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	b.cfg.DataDir = "/proc/no/such/folder"
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=5ms"}})
	b.stage("g", contract.StageComplete)
	b.eventually("the status tells it", func() bool {
		for _, p := range b.agent.Status().Problems {
			if p.Object == "ledger" {
				return true
			}
		}
		return false
	})
	_, err := b.agent.Usage(context.Background(), view.UsageQuery{})
	must.ErrorContains(t, err, "/proc/no/such/folder")
}

// A queue that has used its budget up starts nothing more.
func TestBudget(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	b.cfg.Core.Queues[0].Budget = core.Budget{CardSeconds: 1, Period: "day"}
	b.start()
	b.submit(job{id: "first", count: 2, cards: 1, args: []string{"run=1500ms"}})
	b.stage("first", contract.StageComplete)
	b.eventually("the budget is used", func() bool {
		q := b.agent.Queues()[0]
		return q.Budget != nil && q.Budget.UsedCardSeconds >= 1
	})
	b.submit(job{id: "second", count: 1, cards: 1, args: []string{"run=5ms"}})
	b.until("second", "waiting for the budget", func(g view.Gang) bool { return g.Reason == core.ReasonBudget })
}

// Samples of the cards that a gang holds become its figures, live and at its
// end.
func TestSamples(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, 2)
	b.cfg.DataDir = t.TempDir()
	b.start()
	b.submit(job{id: "g", count: 1, cards: 2})
	b.stage("g", contract.StageTraining)
	report := func(seq uint64, busy, idle float64) {
		status := func(id string, util float64) contract.CardStatus {
			return contract.CardStatus{ID: id, Group: "nvidia/gpu/H100", State: contract.CardHealthy, Measured: &contract.CardMeasured{Utilization: 99, Activity: &util, MemoryUsed: 1000, MemoryTotal: 80000, Power: 400}}
		}
		_, err := b.agent.Report(context.Background(), httpapi.Caller{Name: "n1"}, contract.CardReport{V: 1, Reporter: "life", Seq: seq, Node: "n1", At: time.Now(),
			Cards: []contract.CardStatus{status("GPU-1-0", busy), status("GPU-1-1", idle)}})
		must.NoError(t, err)
	}
	seq := uint64(0)
	var top view.Top
	b.eventually("both cards are sampled", func() bool {
		seq++
		report(seq, 80, 0)
		top = b.agent.Top()
		return len(top.Gangs) == 1 && top.Gangs[0].Sampled == 2 && top.Gangs[0].Mean.Known
	})
	g := top.Gangs[0]
	must.Eq(t, "default/g", g.Gang)
	must.Eq(t, 2, g.Cards)
	must.Eq(t, 1, g.IdleNow)
	must.InDelta(t, .4, g.Activity.Mean, 1e-9)
	must.Eq(t, 800, g.Watts)
	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "g", view.StopRequest{Now: true})
	must.NoError(t, err)
	b.stage("g", contract.StageCancelled)
	b.eventually("the waste is booked", func() bool {
		w, err := b.agent.Waste(context.Background(), time.Now().Add(-time.Hour), time.Now())
		return err == nil && len(w.Worst) == 1 && !w.Worst[0].Running && w.Worst[0].NeverBusy == 1 && w.Worst[0].Cards == 2 && w.Worst[0].UntouchedMiB == 158000
	})
	must.SliceEmpty(t, b.agent.Top().Gangs)
}
