//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// untilFile is a preflight command that holds a gang before its release until
// the folder's file "go" exists.
func untilFile(dir string) string {
	return fmt.Sprintf("        preflight_command = [\"/bin/sh\", \"-c\", \"until [ -e %s/go ]; do sleep 0.1; done\"]\n", dir)
}

// Stopped at whatever stage, a gang leaves no process, no entry in Consul and
// no taken card: the end of each scenario checks that the cluster is empty.
func TestStopWhileQueued(t *testing.T) {
	ctx, l := shared(t)
	blocker, dir := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "blocker", members: 4, cards: 4, config: shellRanks(t, blocker, 1)}.hcl())
	awaitStarted(ctx, t, blocker, 1, 4)
	l.submit(ctx, t, gangJob{name: "stop-queued", members: 4, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	l.awaitStage(ctx, t, "stop-queued", contract.StageQueued)
	l.stop(ctx, t, "stop-queued")
	l.await(ctx, t, "stop-queued", "its end", stage(contract.StageCancelled))
	must.SliceEmpty(t, l.allocations(ctx, t, "stop-queued"))
	touch(t, blocker, "end", "")
	l.awaitStage(ctx, t, "blocker", contract.StageComplete)
	must.NoError(t, l.awaitEmpty(ctx))
	noneStarted(t, dir)
}

func TestStopWhileHeldOnItsNodes(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "stop-held", members: 4, cards: 4, config: shellRanks(t, dir, 1) + untilFile(dir)}.hcl())
	l.awaitHeld(ctx, t, "stop-held", 4)
	l.stop(ctx, t, "stop-held")
	l.await(ctx, t, "stop-held", "its end", stage(contract.StageCancelled))
	must.NoError(t, l.awaitEmpty(ctx))
	noneStarted(t, dir)
}

func TestStopAfterTheStart(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "stop-started", members: 4, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 8)
	l.stop(ctx, t, "stop-started")
	l.await(ctx, t, "stop-started", "its end", stage(contract.StageCancelled))
	must.NoError(t, l.awaitEmpty(ctx))
	startedOnce(t, dir, 1, 8)
}

func TestStopWhileTraining(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	touch(t, dir, "mark", "")
	l.submit(ctx, t, gangJob{name: "stop-training", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	l.awaitStage(ctx, t, "stop-training", contract.StageTraining)
	l.stop(ctx, t, "stop-training")
	l.await(ctx, t, "stop-training", "its end", stage(contract.StageCancelled))
	must.NoError(t, l.awaitEmpty(ctx))
}

// nomad job stop is as good as our own.
func TestStopThroughNomad(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "stop-nomad", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	_, _, err := l.nomad.Jobs().Deregister("stop-nomad", false, nil)
	must.NoError(t, err)
	l.await(ctx, t, "stop-nomad", "its end", stage(contract.StageCancelled))
	must.NoError(t, l.awaitEmpty(ctx))
}

// Stopped at once, wherever it has come to by then.
func TestStopDuringAdmission(t *testing.T) {
	ctx, l := shared(t)
	for i := range 5 {
		name, dir := fmt.Sprintf("stop-early-%d", i), folder(t)
		l.submit(ctx, t, gangJob{name: name, members: 4, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
		l.stop(ctx, t, name)
		l.await(ctx, t, name, "its end", stage(contract.StageCancelled))
		must.NoError(t, l.awaitEmpty(ctx))
	}
}

// Ranks that are asked to leave and end with 0 have not completed their work,
// and nobody says so.
func TestStoppedGentlyIsNotComplete(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	touch(t, dir, "gentle", "")
	l.submit(ctx, t, gangJob{name: "gentle", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	l.stop(ctx, t, "gentle")
	g := l.await(ctx, t, "gentle", "its end", stage(contract.StageCancelled))
	must.NotNil(t, g.Exit)
	must.NotEq(t, contract.OutcomeComplete, g.Exit.Outcome)
	must.NoError(t, l.awaitEmpty(ctx))
	for _, a := range l.allocations(ctx, t, "gentle") {
		for _, e := range a.TaskStates["train"].Events {
			if e.Type == api.TaskTerminated {
				must.Eq(t, contract.CodeAsked, e.ExitCode)
			}
		}
	}
}

// A gang whose name is the start of another's is stopped alone.
func TestStopTakesTheExactName(t *testing.T) {
	ctx, l := shared(t)
	short, long := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "name", members: 2, cards: 2, config: shellRanks(t, short, 1)}.hcl())
	l.submit(ctx, t, gangJob{name: "name-2", members: 2, cards: 2, config: shellRanks(t, long, 1)}.hcl())
	awaitStarted(ctx, t, short, 1, 2)
	awaitStarted(ctx, t, long, 1, 2)
	l.stop(ctx, t, "name")
	l.await(ctx, t, "name", "its end", stage(contract.StageCancelled))
	touch(t, long, "end", "")
	g := l.awaitStage(ctx, t, "name-2", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, long, 1, 2)
}

// A member whose node's agent is dead never gets to its start: the gang stays
// placed. Stopped there, it is gone as soon as the agent is back.
func TestStopWhilePlaced(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	dir := folder(t)
	must.NoError(t, l.KillClient("n2"))
	l.submit(ctx, t, gangJob{name: "stop-placed", members: 2, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	l.awaitUp(ctx, t, "stop-placed", 1, 2)
	noneStarted(t, dir)
	l.stop(ctx, t, "stop-placed")
	must.NoError(t, l.StartClient("n2"))
	l.await(ctx, t, "stop-placed", "its end", stage(contract.StageCancelled))
	must.NoError(t, l.awaitEmpty(ctx))
	noneStarted(t, dir)
}

// No rank starts before all members are up: with one node's agent dead the
// others wait, and all start when it is back.
func TestNoRankStartsBeforeAllArePlaced(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(4, 4)})
	dir := folder(t)
	must.NoError(t, l.KillClient("n3"))
	l.submit(ctx, t, gangJob{name: "together", members: 4, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	l.awaitUp(ctx, t, "together", 3, 4)
	noneStarted(t, dir)
	must.NoError(t, l.StartClient("n3"))
	ranks := awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "together", contract.StageComplete)
	// The stamps against Nomad's own account: every rank started after the last
	// member had been placed and its task had been started.
	for _, a := range l.allocations(ctx, t, "together") {
		up := a.TaskStates["train"].StartedAt
		for _, r := range ranks {
			must.Less(t, r.at.UnixNano(), a.CreateTime, must.Sprintf("rank %d against the placement of %s", r.rank, a.NodeName))
			must.True(t, r.at.After(up), must.Sprintf("rank %d started at %s, the task on %s at %s", r.rank, r.at, a.NodeName, up))
		}
	}
}

// A gang that its user stops is asked first: the ranks save, leave, and the job
// is stopped afterwards, by the planner that is there by then.
func TestStopAsksTheRanksFirst(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	// Ranks that mark their progress are known to look for the preempt file, and
	// are spared the signal.
	touch(t, dir, "mark", "")
	touch(t, dir, "saves", "")
	touch(t, dir, "linger", "")
	l.submit(ctx, t, gangJob{name: "stop-asked", members: 4, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	poll(ctx, t, "all members report marks", func() error {
		data, err := get(ctx, l.ConsulAddr+"/v1/kv/?recurse=true")
		if err != nil {
			return err
		}
		var entries []struct{ Value []byte }
		if err := json.Unmarshal(data, &entries); err != nil {
			return err
		}
		n := 0
		for _, e := range entries {
			if strings.Contains(string(e.Value), `"state":"training"`) {
				n++
			}
		}
		if n < 4 {
			return fmt.Errorf("%d of 4 do", n)
		}
		return nil
	})
	r, err := l.Muster(ctx, "job", "stop", "-detach", "-grace=2m", "-reason=enough", "stop-asked")
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprint(r.Stdout, r.Stderr))
	l.await(ctx, t, "stop-asked", "being asked", func(g *view.Gang) bool {
		return g.Reason == core.ReasonEvicted && strings.Contains(g.Sentence, "enough")
	})
	job, _, err := l.nomad.Jobs().Info("stop-asked", nil)
	must.NoError(t, err)
	must.False(t, *job.Stop)
	must.NoError(t, os.Remove(filepath.Join(dir, "linger")))
	g := l.await(ctx, t, "stop-asked", "its end", stage(contract.StageCancelled))
	must.Eq(t, contract.OutcomeCheckpointed, g.Exit.Outcome)
	must.NoError(t, l.awaitEmpty(ctx))
	startedOnce(t, dir, 1, 4)
}
