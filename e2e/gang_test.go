//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// A job that waits is pending in Nomad, with a constraint in Nomad's own words
// that says who admits it; the planner says what it waits for.
func TestHeldJobExplainsItself(t *testing.T) {
	ctx, l := shared(t)
	first, second := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "holder", members: 4, cards: 4, config: shellRanks(t, first, 1)}.hcl())
	awaitStarted(ctx, t, first, 1, 4)
	l.register(ctx, t, gangJob{name: "waiter", members: 2, cards: 4, config: shellRanks(t, second, 1)}.hcl())

	g := l.await(ctx, t, "waiter", "a verdict while queued", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Sentence != "" })
	must.NotNil(t, g.Detail)
	must.Eq(t, core.ActionWait, g.Detail.Verdict.Action)
	holders := ""
	for _, b := range g.Detail.Verdict.Blockers {
		for _, h := range b.Holders {
			holders += h.Gang + " "
		}
	}
	must.StrContains(t, holders, "default/holder", must.Sprint("the verdict names who has the cards: ", describe(g)))

	job, _, err := l.nomad.Jobs().Info("waiter", nil)
	must.NoError(t, err)
	must.Eq(t, "pending", *job.Status)
	evals, _, err := l.nomad.Jobs().Evaluations("waiter", nil)
	must.NoError(t, err)
	text := ""
	for _, e := range evals {
		for _, m := range e.FailedTGAllocs {
			for why := range m.ConstraintFiltered {
				text += why + "\n"
			}
		}
	}
	must.StrContains(t, text, contract.HoldAttribute+" = "+contract.HoldValue)

	why, err := l.Muster(ctx, "why", "waiter")
	must.NoError(t, err)
	must.Eq(t, 0, why.Code, must.Sprint(why.Stderr))
	must.StrContains(t, why.Stdout, "holder")

	touch(t, first, "end", "")
	awaitStarted(ctx, t, second, 1, 2)
	touch(t, second, "end", "")
	l.awaitStage(ctx, t, "waiter", contract.StageComplete)
}

// Four members on four nodes, one torchrun each, form one world and add up
// their ranks.
func TestFourMembersAllReduce(t *testing.T) {
	ctx, l := shared(t)
	needTorch(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "allreduce", members: 4, cards: 4, config: python(t, "allreduce.py", 1, dir)}.hcl())
	g := l.awaitStage(ctx, t, "allreduce", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
	for rank := range 4 {
		sum, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("1.%d.sum", rank)))
		must.NoError(t, err)
		must.Eq(t, "10", strings.TrimSpace(string(sum)))
	}
	nodes := map[string]bool{}
	for _, m := range g.Detail.Members {
		nodes[m.Node] = true
		must.Len(t, 4, m.Cards)
	}
	must.MapLen(t, 4, nodes)
	for _, s := range contract.Stages {
		must.True(t, slices.ContainsFunc(g.Detail.Attempts[0].Stages, func(st view.StageTime) bool { return st.Stage == s }) || s == contract.StageTraining,
			must.Sprintf("stage %s is not in %+v", s, g.Detail.Attempts[0].Stages))
	}
}

// Two gangs of three nodes on four: one runs, the other holds nothing; both
// finish.
func TestTwoGangsNeverHoldPartsOfTheCluster(t *testing.T) {
	ctx, l := shared(t)
	names, dirs := []string{"alpha", "beta"}, []string{folder(t), folder(t)}
	for i, name := range names {
		l.submit(ctx, t, gangJob{name: name, members: 3, cards: 4, config: shellRanks(t, dirs[i], 1)}.hcl())
	}
	first := 0
	poll(ctx, t, "wait for one of the two", func() error {
		for i, dir := range dirs {
			if all, err := stamps(dir); err == nil && len(all) == 3 {
				first = i
				return nil
			}
		}
		return fmt.Errorf("neither has started")
	})
	second := 1 - first
	l.await(ctx, t, names[second], "a verdict", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Sentence != "" })
	must.SliceEmpty(t, l.allocations(ctx, t, names[second]))
	touch(t, dirs[first], "end", "")
	awaitStarted(ctx, t, dirs[second], 1, 3)
	touch(t, dirs[second], "end", "")
	for _, name := range names {
		l.awaitStage(ctx, t, name, contract.StageComplete)
	}
	// Three allocations each, ever: no part was placed at any time.
	before, after := l.allocations(ctx, t, names[first]), l.allocations(ctx, t, names[second])
	must.Len(t, 3, before)
	must.Len(t, 3, after)
	for _, a := range after {
		for _, b := range before {
			must.Less(t, a.CreateTime, finished(b).UnixNano(), must.Sprint("a member of the second gang was placed before the first had ended"))
		}
	}
	startedOnce(t, dirs[0], 1, 3)
	startedOnce(t, dirs[1], 1, 3)
}

// finished is when the last task of an allocation ended.
func finished(a *api.AllocationListStub) (at time.Time) {
	for _, s := range a.TaskStates {
		if s.FinishedAt.After(at) {
			at = s.FinishedAt
		}
	}
	return at
}

// What can never run is refused with the reason, through both doors.
func TestLargerThanTheClusterIsRefused(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	hcl := gangJob{name: "huge", members: 5, cards: 4, config: shellRanks(t, dir, 1)}.hcl()
	r, err := l.Muster(ctx, "job", "run", "-detach", jobFile(t, hcl))
	must.NoError(t, err)
	must.NotEq(t, 0, r.Code, must.Sprint(r.Stdout))
	must.StrContains(t, r.Stderr+r.Stdout, "20") // cards asked for
	l.register(ctx, t, hcl)
	g := l.await(ctx, t, "huge", "a refusal", stage(contract.StageRefused))
	must.Eq(t, core.ReasonTooLarge, g.Reason)
	must.StrContains(t, g.Sentence, "20")
	must.SliceEmpty(t, l.allocations(ctx, t, "huge"))
	noneStarted(t, dir)
}

// Two gangs side by side on the same nodes, and all on one host: two stores,
// two worlds, two right sums.
func TestTwoGangsOnOneHostNeverMeet(t *testing.T) {
	ctx, l := shared(t)
	needTorch(t)
	names, dirs := []string{"left", "right"}, []string{folder(t), folder(t)}
	for i, name := range names {
		l.submit(ctx, t, gangJob{name: name, members: 2, cards: 2, config: python(t, "allreduce.py", 2, dirs[i])}.hcl())
	}
	stores, cards := map[string]bool{}, map[string]string{}
	for i, name := range names {
		g := l.awaitStage(ctx, t, name, contract.StageComplete)
		startedOnce(t, dirs[i], 1, 4)
		all, err := stamps(dirs[i])
		must.NoError(t, err)
		for _, s := range all {
			must.Eq(t, 4, s.world)
			must.Eq(t, all[0].store, s.store)
			sum, err := os.ReadFile(filepath.Join(dirs[i], fmt.Sprintf("1.%d.sum", s.rank)))
			must.NoError(t, err)
			must.Eq(t, "10", strings.TrimSpace(string(sum)))
		}
		stores[all[0].store] = true
		for _, m := range g.Detail.Members {
			for _, c := range m.Cards {
				must.Eq(t, "", cards[c], must.Sprintf("card %s belongs to %s and %s", c, cards[c], name))
				cards[c] = name
			}
		}
	}
	must.MapLen(t, 2, stores)
	must.MapLen(t, 8, cards)
}
