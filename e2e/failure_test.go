//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/shoenig/test/must"
)

// A rank that exits 42 fails the whole gang, and 42 is what everybody reads.
func TestExitCodeIsRecorded(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "fails", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "1.3.exit", "42")
	g := l.awaitStage(ctx, t, "fails", contract.StageFailed)
	must.NotNil(t, g.Exit)
	must.Eq(t, contract.OutcomeFailed, g.Exit.Outcome)
	must.Eq(t, 42, g.Exit.Code)
	must.Eq(t, 3, g.Exit.Rank)
	must.Eq(t, 1, g.Exit.Member)
	must.NoError(t, l.awaitEmpty(ctx))
	var codes []int
	for _, a := range l.allocations(ctx, t, "fails") {
		for _, e := range a.TaskStates["train"].Events {
			if e.Type == api.TaskTerminated {
				codes = append(codes, e.ExitCode)
			}
		}
	}
	must.Len(t, 2, codes)
	must.SliceContains(t, codes, 42)
	// The other member was stopped by its peer's end, or by the planner, whoever
	// was quicker.
	must.True(t, slices.Contains(codes, contract.CodePeer) || slices.Contains(codes, contract.CodeAsked), must.Sprint(codes))
	startedOnce(t, dir, 1, 4)
}

// With a retry the whole gang is tried again, and nothing of the first attempt
// is left when the second begins.
func TestRetryIsAWholeNewAttempt(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "again", members: 2, cards: 4, meta: map[string]string{contract.MetaRetries: "1"}, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "1.1.exit", "42")
	second := awaitStarted(ctx, t, dir, 2, 4)

	left, err := trial.Processes(contract.EnvGang+"=default/again", contract.EnvAttempt+"=1\x00", l.Dir)
	must.NoError(t, err)
	must.SliceEmpty(t, left)
	entries, err := l.consulEntries(ctx)
	must.NoError(t, err)
	id := contract.GangID{Region: "global", Namespace: "default", Job: "again"}
	for _, e := range entries {
		must.StrNotContains(t, e, id.AttemptPrefix(1))
	}
	for _, a := range l.allocations(ctx, t, "again") {
		if a.ClientStatus != api.AllocClientStatusRunning {
			must.True(t, second[0].at.After(finished(a)), must.Sprint("attempt 2 began before attempt 1 had ended"))
		}
	}
	touch(t, dir, "end", "")
	g := l.awaitStage(ctx, t, "again", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	must.Len(t, 2, g.Detail.Attempts)
	must.Eq(t, 42, g.Detail.Attempts[0].Exit.Code)
	startedOnce(t, dir, 2, 4)
}

// A real DDP training of two members by two ranks loses a member: the second
// attempt goes on with the step after the last one saved.
func TestTrainingGoesOnFromTheLastCheckpoint(t *testing.T) {
	ctx, l := shared(t)
	needTorch(t)
	dir := folder(t)
	touch(t, dir, "wait", "3")
	config := python(t, "ddp.py", 2, dir, "6") + fmt.Sprintf("        checkpoint = %q\n", filepath.Join(dir, "checkpoints"))
	l.submit(ctx, t, gangJob{name: "ddp", members: 2, cards: 2, config: config}.hcl())
	poll(ctx, t, "wait for step 3 of all ranks", func() error {
		for rank := range 4 {
			if steps := stepsOf(dir, 1, rank); len(steps) < 3 {
				return fmt.Errorf("rank %d of attempt 1 has done %v", rank, steps)
			}
		}
		return nil
	})
	victim := l.allocations(ctx, t, "ddp")[0]
	l.killTask(t, victim.ID)
	touch(t, dir, "wait", "6")

	g := l.awaitStage(ctx, t, "ddp", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	for rank := range 4 {
		must.Eq(t, []string{"1", "2", "3"}, stepsOf(dir, 1, rank), must.Sprintf("rank %d", rank))
		must.Eq(t, []string{"4", "5", "6"}, stepsOf(dir, 2, rank), must.Sprintf("rank %d", rank))
	}
}

// torchrun is killed under its ranks: they do not outlive it, and the gang fails
// as a whole.
func TestRanksDoNotOutliveTheirLauncher(t *testing.T) {
	ctx, l := shared(t)
	needTorch(t)
	dir := folder(t)
	touch(t, dir, "wait", "1")
	config := python(t, "ddp.py", 1, dir, "6") + fmt.Sprintf("        checkpoint = %q\n", filepath.Join(dir, "checkpoints"))
	l.submit(ctx, t, gangJob{name: "launcher", members: 2, cards: 2, config: config}.hcl())
	poll(ctx, t, "wait for step 1 of both ranks", func() error {
		if len(stepsOf(dir, 1, 0)) == 0 || len(stepsOf(dir, 1, 1)) == 0 {
			return fmt.Errorf("not there")
		}
		return nil
	})
	launchers, err := trial.Processes(contract.EnvGang+"=default/launcher", "torch.distributed.run")
	must.NoError(t, err)
	must.Len(t, 2, launchers)
	must.NoError(t, syscall.Kill(launchers[0].Pid, syscall.SIGKILL))
	g := l.awaitStage(ctx, t, "launcher", contract.StageFailed)
	must.Eq(t, contract.OutcomeFailed, g.Exit.Outcome)
	must.NoError(t, l.awaitEmpty(ctx))
}

// stepsOf are the steps that a rank of testdata/ddp.py wrote down.
func stepsOf(dir string, attempt, rank int) []string {
	text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.%d.steps", attempt, rank)))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// killTask kills all processes of an allocation's task, its supervisor too.
func (l *lab) killTask(t *testing.T, alloc string) {
	t.Helper()
	killed := 0
	all, err := l.tasks()
	must.NoError(t, err)
	of, err := trial.Processes(l.Dir, alloc)
	must.NoError(t, err)
	for _, p := range all {
		for _, q := range of {
			if p.Pid == q.Pid {
				_ = syscall.Kill(p.Pid, syscall.SIGKILL)
				killed++
			}
		}
	}
	must.Positive(t, killed, must.Sprintf("no process of allocation %s runs", alloc))
}
