package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// service is an ordinary service of replicas with a card each.
func service(id, queue string, replicas int) job {
	return job{id: id, count: replicas, cards: 1, driver: "raw_exec", args: []string{"3600"}, meta: in(queue), more: func(j map[string]any) {
		j["Type"] = "service"
		j["Update"] = map[string]any{"MaxParallel": 1, "AutoRevert": true, "MinHealthyTime": 0, "HealthyDeadline": time.Minute, "HealthCheck": "task_states"}
	}}
}

func (b *bench) serves(id string, replicas int) view.Gang {
	b.t.Helper()
	return b.until(id, "serving", func(g view.Gang) bool { return g.Stage == contract.StageStarted && g.Running == replicas })
}

// A service is admitted whole: it waits until there is room for all of its
// replicas, is nowhere pinned, and frees its cards when it is stopped.
func TestServiceIsAdmittedWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).twoQueues(0).start()
	b.submit(job{id: "g", count: 2, cards: 1, meta: in("prod")})
	b.training("g", 1)
	b.submit(service("s", "prod", 2))
	g := b.until("s", "waiting", func(g view.Gang) bool { return g.Reason == core.ReasonCards })
	must.Eq(t, "service", g.Type)
	must.StrContains(t, g.Detail.Verdict.Blockers[0].Text, "card")
	must.Len(t, 0, b.allocs("s"))
	b.members.completeAll("g")
	g = b.serves("s", 2)
	must.Len(t, 2, g.Detail.Members)
	must.Eq(t, 50, g.Priority)
	var raw struct {
		Constraints []struct{ LTarget, Operand, RTarget string }
		Priority    int
		Update      struct{ AutoRevert bool }
		TaskGroups  []struct {
			Constraints      []any
			Update           struct{ AutoRevert bool }
			ReschedulePolicy struct{ Unlimited bool }
		}
	}
	must.NoError(t, json.Unmarshal(b.jobInfo("s").Raw(), &raw))
	must.Len(t, 1, raw.Constraints)
	must.Eq(t, "attempt-1", raw.Constraints[0].RTarget)
	must.Eq(t, 100, raw.Priority)
	must.False(t, raw.Update.AutoRevert)
	must.False(t, raw.TaskGroups[0].Update.AutoRevert)
	must.Len(t, 0, raw.TaskGroups[0].Constraints)
	must.True(t, raw.TaskGroups[0].ReschedulePolicy.Unlimited)
	queue := func() view.Quota {
		for _, q := range b.agent.Queues() {
			if q.Name == "prod" {
				return q.Quota[0]
			}
		}
		return view.Quota{}
	}
	must.Eq(t, 2, queue().Used)

	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "s", view.StopRequest{})
	must.NoError(t, err)
	b.stage("s", contract.StageCancelled)
	must.Eq(t, 0, b.live("s"))
	b.eventually("its cards are free", func() bool { return queue().Used == 0 })
}

// A service's room is made by its right like anybody's; it is nobody's victim.
func TestRoomIsMadeForAService(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(2).start()
	b.submit(job{id: "borrows", count: 2, cards: 1, meta: in("lab")})
	b.training("borrows", 1)
	b.submit(service("s", "prod", 1))
	b.serves("s", 1)
	must.Eq(t, "default/s", b.until("borrows", "queued again", func(g view.Gang) bool { return g.Stage == contract.StageQueued }).Detail.Attempts[0].For)
	b.submit(job{id: "high", count: 2, cards: 1, meta: in("prod"), more: func(j map[string]any) { j["Priority"] = 90 }})
	b.until("high", "waiting", func(g view.Gang) bool { return g.Reason == core.ReasonCards })
	must.Eq(t, 1, b.live("s"))
}

// Nomad replaces a replica that fails; the planner looks on, and a planner that
// starts again knows it.
func TestNomadReplacesReplicas(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).twoQueues(0).start()
	b.submit(service("s", "prod", 2))
	b.serves("s", 2)
	version := b.jobInfo("s").Version
	b.stop()
	b.start()
	b.serves("s", 2)
	lost := b.allocs("s")[0].ID
	b.put("/v1/allocation/"+lost+"/stop", nil)
	b.eventually("another takes its place", func() bool { return len(b.allocs("s")) == 3 && b.live("s") == 2 })
	b.serves("s", 2)
	must.Eq(t, version, b.jobInfo("s").Version, must.Sprint("the planner leaves the job alone"))
}

// A new version that asks for no more is let through at once; one that asks for
// more waits for room, and the old one serves until then.
func TestServiceIsUpdated(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).twoQueues(0).start()
	b.submit(service("s", "prod", 2))
	b.serves("s", 2)
	b.submit(job{id: "g", count: 1, cards: 1, meta: in("prod")})
	b.training("g", 1)

	b.submit(service("s", "prod", 2)) // the same
	b.eventually("it is admitted again", func() bool { return b.jobInfo("s").Mark() == 1 })
	must.Eq(t, 2, b.live("s"))

	b.submit(service("s", "prod", 3))
	b.until("s", "waiting for room", func(g view.Gang) bool { return g.Members == 3 && strings.Contains(g.Sentence, "waits for room") })
	must.True(t, b.jobInfo("s").IsHeld())
	must.Eq(t, 2, b.live("s"))
	b.members.completeAll("g")
	b.serves("s", 3)
	must.Eq(t, 1, b.jobInfo("s").Mark())

	b.submit(service("s", "prod", 1))
	b.serves("s", 1)
	b.eventually("two have ended", func() bool { return b.live("s") == 1 })
}

// Replicas of a service that was not held are admitted as they stand, or taken
// back.
func TestServiceThatWasNotHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).twoQueues(0).start()
	s := service("s", "prod", 2)
	s.unheld = true
	b.submit(s)
	b.serves("s", 2)
	must.Eq(t, 2, len(b.allocs("s")), must.Sprint("nobody restarted them"))
	other := service("other", "prod", 1)
	other.unheld = true
	b.submit(other)
	b.eventually("it is held", func() bool { return b.jobInfo("other").IsHeld() })
}

// Ranks are no replicas.
func TestServiceOfRanksIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	b.submit(job{id: "s", count: 1, cards: 1, more: func(j map[string]any) { j["Type"] = "service" }})
	must.StrContains(t, b.stage("s", contract.StageRefused).Sentence, "ranks start together")
}
