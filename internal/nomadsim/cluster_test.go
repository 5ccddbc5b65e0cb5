package nomadsim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

func ptr[T any](v T) *T { return &v }

// nodes makes n virtual nodes with cards each.
func nodes(n, cards int) []nomadsim.NodeConfig {
	var out []nomadsim.NodeConfig
	for i := range n {
		g := nomadsim.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: nil}
		for k := range cards {
			g.IDs = append(g.IDs, fmt.Sprintf("GPU-%d-%d", i+1, k))
		}
		cfg := nomadsim.NodeConfig{Name: fmt.Sprintf("n%d", i+1), Meta: map[string]string{"leaf": fmt.Sprintf("leaf%d", i/2+1)}}
		if cards > 0 {
			cfg.Devices = []nomadsim.DeviceGroup{g}
		}
		out = append(out, cfg)
	}
	return out
}

// gang is a batch job of count members with cards each that run until they are stopped.
func gang(id string, count, cards int) *api.Job {
	task := api.NewTask("train", "raw_exec").SetConfig("command", "serve").Require(&api.Resources{CPU: ptr(100), MemoryMB: ptr(64)})
	task.KillTimeout = ptr(2 * time.Second)
	task.LogConfig = &api.LogConfig{MaxFiles: ptr(1), MaxFileSizeMB: ptr(1)}
	if cards > 0 {
		task.Resources.Devices = []*api.RequestedDevice{{Name: "nvidia/gpu", Count: ptr(uint64(cards))}}
	}
	g := api.NewTaskGroup("rank", count).AddTask(task)
	g.EphemeralDisk = &api.EphemeralDisk{SizeMB: ptr(10)}
	g.RestartPolicy = &api.RestartPolicy{Attempts: ptr(0), Mode: ptr("fail")}
	g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: ptr(0), Unlimited: ptr(false)}
	g.Disconnect = &api.DisconnectStrategy{LostAfter: ptr(24 * time.Hour), Replace: ptr(false)}
	j := api.NewBatchJob(id, id, "global", 50).AddTaskGroup(g)
	j.Datacenters = []string{"*"}
	return j
}

var hold = api.NewConstraint("${meta.muster}", "=", "admits-this-job")

// patience is how long is waited for what should come at once: it only ends
// tests that hang.
const patience = 2 * time.Minute

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not so in time: %s", what)
}

// statuses counts a job's allocations by client status.
func statuses(t *testing.T, c *api.Client, job string) map[string]int {
	t.Helper()
	list, _, err := c.Jobs().Allocations(job, true, nil)
	must.NoError(t, err)
	out := map[string]int{}
	for _, a := range list {
		out[a.ClientStatus]++
	}
	return out
}

func waitEval(t *testing.T, c *api.Client, id string) *api.Evaluation {
	t.Helper()
	var e *api.Evaluation
	eventually(t, "evaluation "+id+" ended", func() bool {
		var err error
		e, _, err = c.Evaluations().Info(id, nil)
		must.NoError(t, err)
		return e.Status == "complete" || e.Status == "failed" || e.Status == "canceled"
	})
	return e
}

func TestHeldPinnedReleasedStopped(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(4, 4), ClientSync: time.Millisecond})
	c := sim.Client()
	j := gang("g1", 4, 2)
	j.Constrain(hold)
	resp, _, err := c.Jobs().Register(j, nil)
	must.NoError(t, err)
	e := waitEval(t, c, resp.EvalID)
	must.Eq(t, "complete", e.Status)
	must.Eq(t, 4, e.QueuedAllocations["rank"])
	must.MapContainsKey(t, e.FailedTGAllocs, "rank")
	b, _, err := c.Evaluations().Info(e.BlockedEval, nil)
	must.NoError(t, err)
	must.Eq(t, "blocked", b.Status)
	got, _, err := c.Jobs().Info("g1", nil)
	must.NoError(t, err)
	must.Eq(t, "pending", *got.Status)

	stream, err := c.EventStream().Stream(t.Context(), map[api.Topic][]string{api.TopicAll: {"*"}}, resp.JobModifyIndex, nil)
	must.NoError(t, err)

	pinned := gang("g1", 4, 2)
	pinned.TaskGroups[0].Constrain(api.NewConstraint("", "distinct_hosts", "true"))
	plan, _, err := c.Jobs().PlanOpts(pinned, &api.PlanOptions{}, nil)
	must.NoError(t, err)
	must.MapEmpty(t, plan.FailedTGAllocs)
	must.Eq(t, 4, plan.Annotations.DesiredTGUpdates["rank"].Place)
	_, _, err = c.Jobs().EnforceRegister(pinned, *got.JobModifyIndex-1, nil)
	must.ErrorContains(t, err, "Enforcing job modify index")
	resp, _, err = c.Jobs().EnforceRegister(pinned, *got.JobModifyIndex, nil)
	must.NoError(t, err)
	waitEval(t, c, resp.EvalID)
	eventually(t, "all run", func() bool { return statuses(t, c, "g1")["running"] == 4 })
	seen := 0
	for seen == 0 {
		ev := <-stream
		must.NoError(t, ev.Err)
		for _, x := range ev.Events {
			if x.Type == "PlanResult" && x.Topic == "Allocation" {
				seen++
			}
		}
	}
	must.Eq(t, 4, seen)
	list, _, err := c.Jobs().Allocations("g1", true, nil)
	must.NoError(t, err)
	hosts := map[string]bool{}
	for _, a := range list {
		hosts[a.NodeID] = true
	}
	must.MapLen(t, 4, hosts)
	_, _, err = c.Jobs().Deregister("g1", false, nil)
	must.NoError(t, err)
	eventually(t, "all ended", func() bool { return statuses(t, c, "g1")["complete"] == 4 })
	got, _, err = c.Jobs().Info("g1", nil)
	must.NoError(t, err)
	must.Eq(t, "dead", *got.Status)
}

func TestUnmodelledRouteFailsLoudly(t *testing.T) {
	t.Parallel()
	sim, err := nomadsim.Start(context.Background(), nomadsim.Options{})
	must.NoError(t, err)
	defer sim.Close()
	_, err = sim.Client().Raw().Query("/v1/quotas", nil, nil)
	must.ErrorContains(t, err, "501")
	must.Eq(t, []string{"GET /v1/quotas"}, sim.Unmodelled())
}
