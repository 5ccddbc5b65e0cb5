//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// queueConfig has a queue that is guaranteed half of the cluster, one that only
// borrows and one that does not wait; nobody is spared for having run for a
// short time.
const queueConfig = `
queue "prod" {
  guaranteed = { any = 8 }
  namespaces = ["default"]
  shared     = true
  preempt {
    grace       = "30s"
    min_runtime = "1ms"
  }
}
queue "lab" {
  namespaces = ["default"]
  shared     = true
  preempt {
    grace       = "30s"
    min_runtime = "1ms"
  }
}
queue "now" {
  namespaces = ["default"]
  shared     = true
  class      = 90
  urgent     = true
  preempt { min_runtime = "1ms" }
}
`

// queues gives a cluster with these queues that scenarios share which kill no
// part of it.
func queues(t *testing.T) (context.Context, *lab) {
	t.Helper()
	scenario(t)
	suite.mu.Lock()
	l := suite.queued
	suite.mu.Unlock()
	if l == nil || l.Planner.Pid() == 0 {
		l = start(t, trial.Options{PlannerConfig: queueConfig + strangers})
		suite.mu.Lock()
		suite.queued = l
		suite.mu.Unlock()
	}
	return l.begin(t), l
}

// why is what the command line says of a gang.
func (l *lab) why(ctx context.Context, t *testing.T, job string) string {
	t.Helper()
	r, err := l.Muster(ctx, "why", job)
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprint(r.Stderr))
	return r.Stdout
}

// awaitAsked returns when a gang was asked to leave.
func (l *lab) awaitAsked(ctx context.Context, t *testing.T, job string) *view.Gang {
	t.Helper()
	return l.await(ctx, t, job, "the ask to leave", func(g *view.Gang) bool { return g.Reason == core.ReasonEvicted })
}

// evicted checks that attempt 1 of a gang ended because it was asked to.
func evicted(t *testing.T, g *view.Gang, outcome contract.Outcome, by string) {
	t.Helper()
	must.SliceNotEmpty(t, g.Detail.Attempts, must.Sprint(describe(g)))
	first := g.Detail.Attempts[0]
	must.Eq(t, outcome, first.Exit.Outcome, must.Sprint(describe(g)))
	must.Eq(t, "preempted", first.Reason)
	must.Eq(t, "default/"+by, first.For)
}

// A queue gets its guarantee back: the training that borrowed the whole cluster
// is asked, saves and leaves, the gang that is entitled runs, and the training
// goes on after the last step that it saved.
func TestGuaranteeIsTakenBack(t *testing.T) {
	ctx, l := queues(t)
	needTorch(t)
	train, dir := folder(t), folder(t)
	touch(t, train, "wait", "3")
	touch(t, train, "linger", "")
	config := python(t, "ddp.py", 1, train, "6") + fmt.Sprintf("        checkpoint = %q\n", filepath.Join(train, "checkpoints"))
	l.submit(ctx, t, gangJob{name: "borrower", queue: "lab", members: 4, cards: 4, config: config}.hcl())
	poll(ctx, t, "wait for step 3 of all ranks", func() error {
		for rank := range 4 {
			if steps := stepsOf(train, 1, rank); len(steps) < 3 {
				return fmt.Errorf("rank %d of attempt 1 has done %v", rank, steps)
			}
		}
		return nil
	})
	submitted := l.await(ctx, t, "borrower", "training", stage(contract.StageTraining)).Submitted
	l.submit(ctx, t, gangJob{name: "entitled", queue: "prod", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	l.awaitAsked(ctx, t, "borrower")
	l.await(ctx, t, "entitled", "its reservation", func(g *view.Gang) bool {
		return g.Reason == core.ReasonVictims && strings.Contains(g.Sentence, "asked;")
	})

	// Both say what goes on, and nobody is stopped who is still saving.
	must.StrContains(t, l.why(ctx, t, "borrower"), "default/entitled of queue prod takes back its guarantee")
	must.StrContains(t, l.why(ctx, t, "entitled"), "default/borrower (asked; its grace ends at")
	must.Len(t, 4, alive(l.allocations(ctx, t, "borrower")))
	job, _, err := l.nomad.Jobs().Info("entitled", (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	must.Greater(t, 50, *job.Priority, must.Sprint("its place is registered before anybody leaves it"))
	noneStarted(t, dir)

	must.NoError(t, os.Remove(filepath.Join(train, "linger")))
	awaitStarted(ctx, t, dir, 1, 4)
	g := l.await(ctx, t, "borrower", "its queue", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Attempt == 1 })
	evicted(t, g, contract.OutcomeCheckpointed, "entitled")
	must.Eq(t, submitted, g.Submitted)
	must.StrContains(t, l.why(ctx, t, "borrower"), "entitled")
	touch(t, train, "wait", "6")
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "entitled", contract.StageComplete)

	g = l.awaitStage(ctx, t, "borrower", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	for rank := range 4 {
		must.Eq(t, []string{"1", "2", "3"}, stepsOf(train, 1, rank), must.Sprintf("rank %d", rank))
		must.Eq(t, []string{"4", "5", "6"}, stepsOf(train, 2, rank), must.Sprintf("rank %d", rank))
	}
	startedOnce(t, dir, 1, 4)
}

// Inside a queue the higher priority runs first; who was asked and does not
// care is killed when its grace is over.
func TestPriorityEvictsInsideAQueue(t *testing.T) {
	ctx, l := queues(t)
	low, high := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "low", queue: "lab", members: 4, cards: 4, meta: map[string]string{contract.MetaGrace: "1s"}, config: shellRanks(t, low, 1)}.hcl())
	awaitStarted(ctx, t, low, 1, 4)
	l.submit(ctx, t, gangJob{name: "high", queue: "lab", prio: 70, members: 3, cards: 4, config: shellRanks(t, high, 1)}.hcl())
	awaitStarted(ctx, t, high, 1, 3)
	evicted(t, l.await(ctx, t, "low", "its queue", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Attempt == 1 }), contract.OutcomeKilled, "high")
	touch(t, low, "end", "")
	touch(t, high, "end", "")
	l.awaitStage(ctx, t, "high", contract.StageComplete)
	must.Eq(t, 2, l.awaitStage(ctx, t, "low", contract.StageComplete).Attempt)
}

// A grace that ends while a checkpoint is being written is extended.
func TestGraceIsExtendedWhileSaving(t *testing.T) {
	ctx, l := queues(t)
	lab, prod := folder(t), folder(t)
	touch(t, lab, "saves", "")
	touch(t, lab, "saving", "")
	l.submit(ctx, t, gangJob{name: "slow", queue: "lab", members: 4, cards: 4, meta: map[string]string{contract.MetaGrace: "5s"}, config: shellRanks(t, lab, 1)}.hcl())
	awaitStarted(ctx, t, lab, 1, 4)
	l.submit(ctx, t, gangJob{name: "patient", queue: "prod", members: 2, cards: 4, config: shellRanks(t, prod, 1)}.hcl())
	for _, a := range l.allocations(ctx, t, "slow") {
		l.awaitEvent(ctx, t, a.ID, "a checkpoint is being written: 5s more")
	}
	must.NoError(t, os.Remove(filepath.Join(lab, "saving")))
	awaitStarted(ctx, t, prod, 1, 2)
	evicted(t, l.await(ctx, t, "slow", "its queue", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Attempt == 1 }), contract.OutcomeCheckpointed, "patient")
	touch(t, prod, "end", "")
	touch(t, lab, "end", "")
	must.Eq(t, 2, l.awaitStage(ctx, t, "slow", contract.StageComplete).Attempt)
	l.awaitStage(ctx, t, "patient", contract.StageComplete)
}

// A gang of an urgent queue waits for nobody's grace, and for no guarantee.
func TestUrgentQueueTakesItsPlaceAtOnce(t *testing.T) {
	ctx, l := queues(t)
	prod, now := folder(t), folder(t)
	touch(t, prod, "saves", "")
	touch(t, prod, "linger", "")
	l.submit(ctx, t, gangJob{name: "guaranteed", queue: "prod", members: 4, cards: 2, config: shellRanks(t, prod, 1)}.hcl())
	l.submit(ctx, t, gangJob{name: "filler", queue: "prod", members: 4, cards: 2, config: shellRanks(t, prod, 1)}.hcl())
	for _, job := range []string{"guaranteed", "filler"} {
		l.await(ctx, t, job, "its start", stage(contract.StageStarted, contract.StageTraining))
	}
	l.submit(ctx, t, gangJob{name: "urgent", queue: "now", members: 2, cards: 2, config: shellRanks(t, now, 1)}.hcl())
	awaitStarted(ctx, t, now, 1, 2)
	touch(t, prod, "end", "")
	touch(t, now, "end", "")
	attempts := 0
	for _, job := range []string{"guaranteed", "filler"} {
		g := l.awaitStage(ctx, t, job, contract.StageComplete)
		attempts += g.Attempt
		if g.Attempt == 2 {
			must.Eq(t, "default/urgent", g.Detail.Attempts[0].For)
			must.NotEq(t, contract.OutcomeCheckpointed, g.Detail.Attempts[0].Exit.Outcome)
		}
	}
	must.Eq(t, 3, attempts, must.Sprint("one of the two had to go"))
	l.awaitStage(ctx, t, "urgent", contract.StageComplete)
}

// The gang that room was made for is withdrawn: who was asked and has not left
// goes on in its attempt.
func TestAskIsTakenBack(t *testing.T) {
	ctx, l := queues(t)
	lab, prod := folder(t), folder(t)
	touch(t, lab, "saves", "")
	touch(t, lab, "linger", "")
	l.submit(ctx, t, gangJob{name: "stays", queue: "lab", members: 4, cards: 4, config: shellRanks(t, lab, 1)}.hcl())
	awaitStarted(ctx, t, lab, 1, 4)
	l.submit(ctx, t, gangJob{name: "withdrawn", queue: "prod", members: 2, cards: 4, config: shellRanks(t, prod, 1)}.hcl())
	l.awaitAsked(ctx, t, "stays")
	l.stop(ctx, t, "withdrawn")
	l.await(ctx, t, "withdrawn", "its end", stage(contract.StageCancelled))
	l.await(ctx, t, "stays", "the word that it may stay", func(g *view.Gang) bool { return g.Reason == core.ReasonRunning })
	for _, a := range l.allocations(ctx, t, "stays") {
		l.awaitEvent(ctx, t, a.ID, "may stay")
	}
	must.NoError(t, os.Remove(filepath.Join(lab, "linger"))) // they look for the preempt file, which is gone
	// What ends within the old grace ends by the ask, unless it says otherwise.
	touch(t, lab, "complete", "")
	touch(t, lab, "end", "")
	must.Eq(t, 1, l.awaitStage(ctx, t, "stays", contract.StageComplete).Attempt)
	noneStarted(t, prod)
}

// A drain asks the whole gang, with the drain's deadline as grace; it goes on
// elsewhere.
func TestDrainAsksTheWholeGang(t *testing.T) {
	ctx, l := queues(t)
	dir := folder(t)
	touch(t, dir, "saves", "")
	touch(t, dir, "linger", "")
	l.submit(ctx, t, gangJob{name: "drained", queue: "lab", members: 2, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 2)
	node := l.allocations(ctx, t, "drained")[0].NodeID
	began := time.Now()
	_, err := l.nomad.Nodes().UpdateDrain(node, &api.DrainSpec{Deadline: 90 * time.Second}, false, nil)
	must.NoError(t, err)
	t.Cleanup(func() {
		_, err := l.nomad.Nodes().UpdateDrain(node, nil, true, nil)
		must.NoError(t, err)
	})
	g := l.awaitAsked(ctx, t, "drained")
	must.StrContains(t, g.Sentence, "drains")
	must.StrContains(t, l.why(ctx, t, "drained"), "drains")
	// Every member has the ask, with the time that is left until the deadline.
	for _, a := range alive(l.allocations(ctx, t, "drained")) {
		l.awaitEvent(ctx, t, a.ID, "asked to save and leave within")
		text := l.eventText(ctx, t, a.ID, "asked to save and leave within")
		within, _, _ := strings.Cut(strings.TrimPrefix(text, "asked to save and leave within "), " ")
		grace, err := time.ParseDuration(within)
		must.NoError(t, err, must.Sprint(text))
		must.Between(t, 90*time.Second-time.Since(began)-5*time.Second, grace, 91*time.Second)
	}
	must.NoError(t, os.Remove(filepath.Join(dir, "linger")))
	awaitStarted(ctx, t, dir, 2, 2)
	g = l.await(ctx, t, "drained", "attempt 2", func(g *view.Gang) bool { return g.Attempt == 2 && len(g.Detail.Members) == 2 })
	must.Eq(t, "drain", g.Detail.Attempts[0].Reason)
	must.Eq(t, contract.OutcomeCheckpointed, g.Detail.Attempts[0].Exit.Outcome)
	for _, m := range g.Detail.Members {
		must.NotEq(t, node, m.NodeID)
	}
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "drained", contract.StageComplete)
}

// A time limit is enforced: asked when it is reached, and ended with that
// outcome.
func TestTimeLimitIsEnforced(t *testing.T) {
	ctx, l := queues(t)
	dir := folder(t)
	touch(t, dir, "saves", "")
	l.submit(ctx, t, gangJob{name: "limited", queue: "lab", members: 2, cards: 4, meta: map[string]string{contract.MetaTimeLimit: "2s"}, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 2)
	g := l.awaitStage(ctx, t, "limited", contract.StageFailed)
	must.Eq(t, contract.OutcomeTimeLimit, g.Exit.Outcome, must.Sprint(describe(g)))
	must.StrContains(t, g.Exit.Text, "time limit of 2s")
	must.Eq(t, 1, g.Attempt)
	must.NoError(t, l.awaitEmpty(ctx))
}

// The planner is killed while a gang is asked to leave: the next one sees the
// eviction through.
func TestPlannerDiesDuringAnEviction(t *testing.T) {
	ctx, l := own(t, trial.Options{PlannerConfig: queueConfig})
	lab, prod := folder(t), folder(t)
	touch(t, lab, "saves", "")
	touch(t, lab, "linger", "")
	l.submit(ctx, t, gangJob{name: "leaves", queue: "lab", members: 4, cards: 4, config: shellRanks(t, lab, 1)}.hcl())
	awaitStarted(ctx, t, lab, 1, 4)
	l.submit(ctx, t, gangJob{name: "takes", queue: "prod", members: 2, cards: 4, config: shellRanks(t, prod, 1)}.hcl())
	l.awaitAsked(ctx, t, "leaves")
	must.NoError(t, l.Planner.Kill())
	must.NoError(t, os.Remove(filepath.Join(lab, "linger")))
	l.awaitAllocations(ctx, t, "leaves", "all have left", func(list []*api.AllocationListStub) bool { return len(alive(list)) == 0 })
	must.NoError(t, l.StartPlanner(ctx))
	awaitStarted(ctx, t, prod, 1, 2)
	evicted(t, l.await(ctx, t, "leaves", "its queue", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Attempt == 1 }), contract.OutcomeCheckpointed, "takes")
	touch(t, prod, "end", "")
	touch(t, lab, "end", "")
	must.Eq(t, 1, l.awaitStage(ctx, t, "takes", contract.StageComplete).Attempt)
	must.Eq(t, 2, l.awaitStage(ctx, t, "leaves", contract.StageComplete).Attempt)
	startedOnce(t, prod, 1, 2)
}

// eventText is a task event of an allocation that begins with a text; "": none.
func (l *lab) eventText(ctx context.Context, t *testing.T, alloc, begins string) string {
	t.Helper()
	a, _, err := l.nomad.Allocations().Info(alloc, (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	for _, s := range a.TaskStates {
		if at := slices.IndexFunc(s.Events, func(e *api.TaskEvent) bool { return strings.HasPrefix(e.DisplayMessage, begins) }); at >= 0 {
			return s.Events[at].DisplayMessage
		}
	}
	return ""
}

func (l *lab) awaitEvent(ctx context.Context, t *testing.T, alloc, begins string) {
	t.Helper()
	poll(ctx, t, "wait for the event "+begins, func() error {
		if l.eventText(ctx, t, alloc, begins) == "" {
			return fmt.Errorf("allocation %s has none", alloc)
		}
		return nil
	})
}

// A service of a queue is admitted whole where there is room for all of its
// replicas, which its right makes; Nomad replaces a replica that dies, and a stop
// frees its cards.
func TestServiceIsAdmittedWhole(t *testing.T) {
	ctx, l := queues(t)
	lab := folder(t)
	touch(t, lab, "saves", "")
	touch(t, lab, "linger", "")
	l.submit(ctx, t, gangJob{name: "training", queue: "lab", members: 4, cards: 4, config: shellRanks(t, lab, 1)}.hcl())
	awaitStarted(ctx, t, lab, 1, 4)
	hcl := `job "inference" {
  type = "service"
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }
  meta { muster_queue = "prod" }
  update {
    max_parallel     = 1
    min_healthy_time = "1s"
    auto_revert      = true
  }
  group "replica" {
    count = 2
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }
    task "serve" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["3600"]
      }
      resources {
        cpu    = 200
        memory = 128
        device "nvidia/gpu" { count = 4 }
      }
    }
  }
}
`
	l.submit(ctx, t, hcl)
	l.awaitAsked(ctx, t, "training")
	must.StrContains(t, l.why(ctx, t, "training"), "default/inference of queue prod takes back its guarantee")
	must.StrContains(t, l.why(ctx, t, "inference"), "default/training")
	must.SliceEmpty(t, l.allocations(ctx, t, "inference"), must.Sprint("no part of it is placed before there is room"))
	must.NoError(t, os.Remove(filepath.Join(lab, "linger")))

	serving := func(g *view.Gang) bool { return g.Stage == contract.StageStarted && g.Running == 2 }
	l.await(ctx, t, "inference", "its replicas", serving)
	list, err := l.Muster(ctx, "queue")
	must.NoError(t, err)
	must.StrContains(t, list.Stdout, "inference")
	job, _, err := l.nomad.Jobs().Info("inference", (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	must.False(t, *job.Update.AutoRevert)
	must.SliceEmpty(t, job.TaskGroups[0].Constraints)

	// One dies once it was healthy: Nomad sees to it, within the room that the
	// service has.
	poll(ctx, t, "wait for the end of its rollout", func() error {
		d, _, err := l.nomad.Jobs().LatestDeployment("inference", (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && (d == nil || d.Status != api.DeploymentStatusSuccessful) {
			err = fmt.Errorf("its deployment is %+v", d)
		}
		return err
	})
	victim := alive(l.allocations(ctx, t, "inference"))[0]
	l.killTask(t, victim.ID)
	l.awaitAllocations(ctx, t, "inference", "a replacement", func(list []*api.AllocationListStub) bool {
		up := 0
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusRunning && a.ID != victim.ID {
				up++
			}
		}
		return up == 2
	})
	must.Eq(t, 1, l.await(ctx, t, "inference", "its replicas", serving).Attempt)

	l.stop(ctx, t, "inference")
	l.await(ctx, t, "inference", "its end", stage(contract.StageCancelled))
	awaitStarted(ctx, t, lab, 2, 4)
	touch(t, lab, "end", "")
	must.Eq(t, 2, l.awaitStage(ctx, t, "training", contract.StageComplete).Attempt)
}

// An elastic training gives up members rather than leave as a whole: these save
// and go, the others meet anew in the same attempt and go on. Once the cards are
// free again, others take their places and join, in the same attempt still.
func TestElasticGangGivesUpMembers(t *testing.T) {
	ctx, l := queues(t)
	needTorch(t)
	train, prod := folder(t), folder(t)
	config := python(t, "elastic.py", 1, train) + "        elastic = true\n"
	l.submit(ctx, t, gangJob{name: "elastic", queue: "lab", members: 4, cards: 4, meta: map[string]string{contract.MetaMin: "2"}, config: config}.hcl())
	begun := func(world string, ranks int) {
		t.Helper()
		poll(ctx, t, "wait for a world of "+world, func() error {
			if n := strings.Count(worlds(train), world); n < ranks {
				return fmt.Errorf("%d ranks have begun: %q", n, worlds(train))
			}
			return nil
		})
	}
	begun("1 4 False", 4)
	l.awaitStage(ctx, t, "elastic", contract.StageTraining)
	l.submit(ctx, t, gangJob{name: "half", queue: "prod", members: 2, cards: 4, config: shellRanks(t, prod, 1)}.hcl())
	awaitStarted(ctx, t, prod, 1, 2)
	begun("1 2 True", 2)
	g := l.await(ctx, t, "elastic", "two members", func(g *view.Gang) bool { return g.Placed == 2 })
	must.Eq(t, 1, g.Attempt)
	must.StrContains(t, l.why(ctx, t, "elastic"), "runs with 2 of 4 members; it grows into cards that nobody waits for")
	must.Len(t, 4, l.allocations(ctx, t, "elastic"), must.Sprint("Nomad replaces nothing"))
	touch(t, prod, "end", "")
	l.awaitStage(ctx, t, "half", contract.StageComplete)
	begun("1 4 True", 4)
	must.Eq(t, 4, l.await(ctx, t, "elastic", "four members", func(g *view.Gang) bool { return g.Placed == 4 }).Placed)
	must.Len(t, 6, l.allocations(ctx, t, "elastic"), must.Sprint("two that left, two that stayed, and two that joined"))
	touch(t, train, "end", "")
	must.Eq(t, 1, l.awaitStage(ctx, t, "elastic", contract.StageComplete).Attempt)
}
