//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// plainJob is a job that has nothing to do with Muster.
func plainJob(name, kind string, priority, count, cards int) string {
	device := ""
	if cards > 0 {
		device = fmt.Sprintf("        device \"nvidia/gpu\" {\n          count = %d\n        }\n", cards)
	}
	group := ""
	if kind != "system" {
		group = fmt.Sprintf("    count = %d\n", count)
	}
	return fmt.Sprintf(`job %q {
  type     = %q
  priority = %d
  group "plain" {
%s    task "sleep" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
      resources {
        cpu    = 100
        memory = 64
%s      }
    }
  }
}
`, name, kind, priority, group, device)
}

// A system job of the highest priority and a plain job that waits for cards
// leave a gang's cards alone.
func TestPinnedCardsAreNotTaken(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "owner", members: 4, cards: 4, config: shellRanks(t, dir, 1) + untilFile(dir)}.hcl())
	l.awaitHeld(ctx, t, "owner", 4)

	l.register(ctx, t, plainJob("everywhere", "system", 100, 0, 1))
	l.register(ctx, t, plainJob("greedy", "batch", 100, 1, 4))
	l.awaitEvaluated(ctx, t, "everywhere")
	l.awaitEvaluated(ctx, t, "greedy")
	must.SliceEmpty(t, alive(l.allocations(ctx, t, "everywhere")))
	must.SliceEmpty(t, alive(l.allocations(ctx, t, "greedy")))

	touch(t, dir, "go", "")
	awaitStarted(ctx, t, dir, 1, 4)
	for _, a := range l.allocations(ctx, t, "owner") {
		must.Eq(t, api.AllocDesiredStatusRun, a.DesiredStatus)
		must.Eq(t, "", a.PreemptedByAllocation)
	}
	touch(t, dir, "end", "")
	g := l.awaitStage(ctx, t, "owner", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
	// The waiting ones get what it left.
	l.awaitAllocations(ctx, t, "greedy", "it runs", func(list []*api.AllocationListStub) bool { return len(alive(list)) == 1 })
}

// awaitEvaluated returns when Nomad has decided about a job, one way or the
// other.
func (l *lab) awaitEvaluated(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	poll(ctx, t, "wait for an evaluation of "+job, func() error {
		evals, _, err := l.nomad.Jobs().Evaluations(job, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		for _, e := range evals {
			if e.Status == "complete" {
				return nil
			}
		}
		return fmt.Errorf("none is complete")
	})
}

// Nomad's garbage collection takes no gang that waits.
func TestGarbageCollectionLosesNoQueuedGang(t *testing.T) {
	ctx, l := shared(t)
	first, second := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "first", members: 4, cards: 4, config: shellRanks(t, first, 1)}.hcl())
	awaitStarted(ctx, t, first, 1, 4)
	l.submit(ctx, t, gangJob{name: "second", members: 4, cards: 4, meta: map[string]string{contract.MetaRetries: "1"}, config: shellRanks(t, second, 1)}.hcl())
	l.awaitStage(ctx, t, "second", contract.StageQueued)
	must.NoError(t, l.nomad.System().GarbageCollect())
	touch(t, first, "end", "")
	awaitStarted(ctx, t, second, 1, 4)
	// Once more between two attempts, when allocations of the first are over.
	touch(t, second, "1.0.exit", "1")
	l.awaitAttempt(ctx, t, "second", 1)
	must.NoError(t, l.nomad.System().GarbageCollect())
	awaitStarted(ctx, t, second, 2, 4)
	must.NoError(t, l.nomad.System().GarbageCollect())
	touch(t, second, "end", "")
	g := l.awaitStage(ctx, t, "second", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	startedOnce(t, second, 2, 4)
}

// awaitAttempt returns when an attempt is over.
func (l *lab) awaitAttempt(ctx context.Context, t *testing.T, job string, attempt int) {
	t.Helper()
	l.await(ctx, t, job, fmt.Sprintf("the end of attempt %d", attempt), func(g *view.Gang) bool {
		for _, a := range g.Detail.Attempts {
			if a.Number == attempt && !a.Ended.IsZero() {
				return true
			}
		}
		return false
	})
}

// Jobs that are none of Muster's keep their version, their allocations and
// their cards while gangs come and go around them.
func TestPlainJobsAreUntouched(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.register(ctx, t, plainJob("service", "service", 50, 2, 1))
	l.register(ctx, t, plainJob("batch", "batch", 50, 2, 0))
	l.register(ctx, t, plainJob("system", "system", 50, 0, 0))
	type state struct {
		Index  uint64
		Allocs map[string]bool
	}
	look := func() map[string]state {
		out := map[string]state{}
		for name, count := range map[string]int{"service": 2, "batch": 2, "system": 4} {
			list := l.awaitAllocations(ctx, t, name, "its allocations run", func(list []*api.AllocationListStub) bool {
				up := 0
				for _, a := range list {
					if a.ClientStatus == api.AllocClientStatusRunning {
						up++
					}
				}
				return up == count
			})
			job, _, err := l.nomad.Jobs().Info(name, nil)
			must.NoError(t, err)
			s := state{Index: *job.JobModifyIndex, Allocs: map[string]bool{}}
			for _, a := range list {
				s.Allocs[a.ID] = true
			}
			out[name] = s
		}
		return out
	}
	before := look()
	l.submit(ctx, t, gangJob{name: "guest", members: 4, cards: 3, meta: map[string]string{contract.MetaRetries: "1"}, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "1.0.exit", "1")
	awaitStarted(ctx, t, dir, 2, 4)
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "guest", contract.StageComplete)
	must.Eq(t, before, look())
	for _, name := range []string{"service", "batch", "system"} {
		g, err := l.gang(ctx, name, "")
		must.NoError(t, err)
		must.Nil(t, g, must.Sprint("the planner takes a plain job for a gang"))
	}
}

// The same file run again while its gang runs changes nothing, with and
// without the hold.
func TestSameFileAgain(t *testing.T) {
	for name, held := range map[string]bool{"with-the-hold": true, "without-the-hold": false} {
		t.Run(name, func(t *testing.T) {
			ctx, l := shared(t)
			dir := folder(t)
			job := gangJob{name: name, members: 2, cards: 4, noHold: !held, config: shellRanks(t, dir, 2)}
			l.register(ctx, t, job.hcl())
			awaitStarted(ctx, t, dir, 1, 4)
			l.register(ctx, t, job.hcl())
			l.awaitForeign(ctx, t, name)
			touch(t, dir, "end", "")
			g := l.awaitStage(ctx, t, name, contract.StageComplete)
			must.Eq(t, 1, g.Attempt)
			l.awaitDead(ctx, t, name)
			must.NoError(t, l.awaitEmpty(ctx))
			startedOnce(t, dir, 1, 4)
			must.Len(t, 2, l.allocations(ctx, t, name))
		})
	}
}

// The same file run again after its gang has ended runs again, although Nomad
// sees nothing that is new in it.
func TestSameFileAfterTheEnd(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	hcl := gangJob{name: "rerun", members: 2, cards: 4, config: shellRanks(t, dir, 1)}.hcl()
	l.register(ctx, t, hcl)
	awaitStarted(ctx, t, dir, 1, 2)
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "rerun", contract.StageComplete)
	must.NoError(t, os.Remove(filepath.Join(dir, "end")))
	l.register(ctx, t, hcl)
	awaitStarted(ctx, t, dir, 2, 2)
	touch(t, dir, "end", "")
	l.await(ctx, t, "rerun", "its second end", func(g *view.Gang) bool { return g.Stage == contract.StageComplete && g.Attempt == 2 })
	startedOnce(t, dir, 2, 2)
}

// awaitForeign returns when Nomad has worked off all evaluations of a job, so
// that what a registration causes has happened.
func (l *lab) awaitForeign(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	poll(ctx, t, "wait for the evaluations of "+job, func() error {
		evals, _, err := l.nomad.Jobs().Evaluations(job, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		for _, e := range evals {
			if e.Status == "pending" {
				return fmt.Errorf("evaluation %s is pending", e.ID)
			}
		}
		return nil
	})
}

// awaitDead returns when Nomad has nothing left to do for a job.
func (l *lab) awaitDead(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	q := (&api.QueryOptions{}).WithContext(ctx)
	poll(ctx, t, "wait for Nomad to have done with "+job, func() error {
		info, _, err := l.nomad.Jobs().Info(job, q)
		if err != nil {
			return err
		}
		if *info.Status != "dead" {
			return fmt.Errorf("it is %s", *info.Status)
		}
		return nil
	})
}
