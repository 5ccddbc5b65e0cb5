//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/shoenig/test/must"
)

// The planner is killed when members are placed and nobody is released. The
// next one finds the gang as it stands and releases it.
func TestPlannerIsKilledBetweenReserveAndRelease(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "orphan", members: 2, cards: 4, config: shellRanks(t, dir, 2) + untilFile(dir)}.hcl())
	l.awaitHeld(ctx, t, "orphan", 2)
	must.NoError(t, l.Planner.Kill())
	touch(t, dir, "go", "")
	poll(ctx, t, "wait for both members to be ready", func() error { return l.reports(ctx, "orphan", contract.StateReady, 2) })
	noneStarted(t, dir)
	must.NoError(t, l.StartPlanner(ctx))
	awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "end", "")
	g := l.awaitStage(ctx, t, "orphan", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
	must.Len(t, 2, l.allocations(ctx, t, "orphan"))
}

// reports is an error unless so many members of the first attempt report the
// state in Consul.
func (l *lab) reports(ctx context.Context, job string, want contract.State, count int) error {
	id := contract.GangID{Region: "global", Namespace: "default", Job: job}
	var keys []string
	if err := getJSON(ctx, l.ConsulAddr+"/v1/kv/"+id.AttemptPrefix(1)+"members/?keys=true", &keys); err != nil {
		return err
	}
	for _, key := range keys {
		var r contract.Report
		if err := getJSON(ctx, l.ConsulAddr+"/v1/kv/"+key+"?raw=true", &r); err != nil {
			return err
		}
		if r.State == want {
			count--
		}
	}
	if count > 0 {
		return fmt.Errorf("%d members of %s do not report %s", count, job, want)
	}
	return nil
}

// The planner is killed while ranks run and stays away until they have ended.
func TestPlannerIsAwayWhenTheGangEnds(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "alone", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	must.NoError(t, l.Planner.Kill())
	touch(t, dir, "end", "")
	l.awaitAllocations(ctx, t, "alone", "both members ended", func(list []*api.AllocationListStub) bool { return len(list) == 2 && len(alive(list)) == 0 })
	must.NoError(t, l.StartPlanner(ctx))
	g := l.awaitStage(ctx, t, "alone", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
}

// Plugins die, held and running members do not notice.
func TestPluginsAreKilled(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "steady", members: 2, cards: 4, config: shellRanks(t, dir, 2) + untilFile(dir)}.hcl())
	l.awaitHeld(ctx, t, "steady", 2)
	must.NoError(t, l.KillPlugin("n1", trial.DriverPlugin))
	touch(t, dir, "go", "")
	awaitStarted(ctx, t, dir, 1, 4)
	must.NoError(t, l.KillPlugin("n1", trial.DevicePlugin))
	must.NoError(t, l.KillPlugin("n2", trial.DriverPlugin))
	touch(t, dir, "end", "")
	g := l.awaitStage(ctx, t, "steady", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
}

// A client agent dies, the ranks end while it is away, and it comes back in
// time to say how.
func TestClientAgentIsKilled(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "steady", members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	must.NoError(t, l.KillClient("n1"))
	touch(t, dir, "end", "")
	poll(ctx, t, "wait for the ranks to end", func() error {
		left, err := trial.Processes(contract.EnvGang + "=default/steady")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v still run", left)
		}
		return err
	})
	must.NoError(t, l.StartClient("n1"))
	g := l.awaitStage(ctx, t, "steady", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, dir, 1, 4)
}

// Consul dies while ranks run and comes back: an outage is trouble, not the
// end of anybody.
func TestConsulIsKilled(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	first, second := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "steady", members: 2, cards: 4, config: shellRanks(t, first, 2)}.hcl())
	awaitStarted(ctx, t, first, 1, 4)
	must.NoError(t, l.Consul.Kill())
	must.NoError(t, l.StartConsul(ctx))
	touch(t, first, "end", "")
	g := l.awaitStage(ctx, t, "steady", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	startedOnce(t, first, 1, 4)
	l.submit(ctx, t, gangJob{name: "next", members: 2, cards: 4, config: shellRanks(t, second, 2)}.hcl())
	awaitStarted(ctx, t, second, 1, 4)
	touch(t, second, "end", "")
	l.awaitStage(ctx, t, "next", contract.StageComplete)
}

// What Nomad starts by itself inside a released attempt starts no rank: the
// gang is repaired as a whole.
func TestAllocRestartRepairsTheGang(t *testing.T) {
	ctx, l := shared(t)
	l.repaired(ctx, t, func(victim *api.AllocationListStub) {
		full, _, err := l.nomad.Allocations().Info(victim.ID, nil)
		must.NoError(t, err)
		must.NoError(t, l.nomad.Allocations().Restart(full, "train", nil))
	})
}

func TestRefilledAllocationRepairsTheGang(t *testing.T) {
	ctx, l := shared(t)
	l.repaired(ctx, t, func(victim *api.AllocationListStub) {
		full, _, err := l.nomad.Allocations().Info(victim.ID, nil)
		must.NoError(t, err)
		_, err = l.nomad.Allocations().Stop(full, nil)
		must.NoError(t, err)
	})
}

func TestFailedRecoveryRepairsTheGang(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(3, 4)})
	l.repaired(ctx, t, func(victim *api.AllocationListStub) {
		must.NoError(t, l.KillClient(victim.NodeName))
		l.killTask(t, victim.ID)
		must.NoError(t, l.StartClient(victim.NodeName))
	})
}

// repaired runs a gang, does something to one of its members, and checks that
// the second attempt is whole and that the first never started a rank again.
func (l *lab) repaired(ctx context.Context, t *testing.T, harm func(*api.AllocationListStub)) {
	t.Helper()
	name, dir := strings.ToLower(t.Name()), folder(t)
	l.submit(ctx, t, gangJob{name: name, members: 2, cards: 4, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	members := l.allocations(ctx, t, name)
	must.Len(t, 2, members)
	harm(members[0])
	awaitStarted(ctx, t, dir, 2, 4)
	touch(t, dir, "end", "")
	g := l.awaitStage(ctx, t, name, contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	startedOnce(t, dir, 2, 4)
}
