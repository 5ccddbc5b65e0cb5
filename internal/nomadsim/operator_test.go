package nomadsim_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/internal/nomadsim/clock"
)

// What operators and workflow tools do to jobs, through the API alone: the same that TestNomadCommand does with the real
// command, where there is one.

// `system gc` takes what is over, with the allocations of earlier attempts, and leaves what waits, what runs, and a job
// with a tagged version.
func TestGarbageCollection(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 0)})
	c := sim.Client()
	held := gang("held", 2, 0).Constrain(hold)
	put(t, sim, held)
	put(t, sim, gang("runs", 2, 0))
	ended(2, sim, t, "runs", "running")
	for _, id := range []string{"over", "tagged"} {
		j := gang(id, 1, 0)
		j.TaskGroups[0].Tasks[0].SetConfig("command", "true")
		put(t, sim, j)
		ended(1, sim, t, id, "complete")
	}
	_, err := c.Jobs().TagVersion("tagged", 0, "users", "", nil)
	must.NoError(t, err)
	// Allocations of an earlier version of the job that runs.
	again := gang("runs", 2, 0)
	again.TaskGroups[0].Tasks[0].Env = map[string]string{"NEW": "yes"}
	put(t, sim, again)
	ended(2, sim, t, "runs", "complete")
	ended(2, sim, t, "runs", "running")

	must.NoError(t, c.System().GarbageCollect())
	gone := func(id string) bool {
		_, _, err := c.Jobs().Info(id, nil)
		return err != nil && strings.Contains(err.Error(), "404")
	}
	eventually(t, "what is over is gone", func() bool { return gone("over") })
	must.False(t, gone("held"))
	must.False(t, gone("tagged"))
	must.Eq(t, map[string]int{"running": 2}, statuses(t, c, "runs"))
	evals, _, err := c.Jobs().Evaluations("held", nil)
	must.NoError(t, err)
	must.True(t, slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "blocked" }))
}

// A dispatched child is a job of its own with the payload; it cannot be registered again as it is.
func TestDispatch(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0)})
	c := sim.Client()
	j := gang("sweep", 1, 0)
	j.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"rate"}, MetaOptional: []string{"seed"}}
	_, _, err := c.Jobs().Register(j, nil)
	must.NoError(t, err)
	for _, bad := range []struct {
		meta    map[string]string
		payload string
	}{{map[string]string{"rate": "1"}, ""}, {nil, "x"}, {map[string]string{"rate": "1", "other": "2"}, "x"}} {
		_, _, err := c.Jobs().Dispatch("sweep", bad.meta, []byte(bad.payload), "", nil)
		must.Error(t, err, must.Sprint(bad))
	}
	d, _, err := c.Jobs().Dispatch("sweep", map[string]string{"rate": "0.1"}, []byte("the payload"), "", nil)
	must.NoError(t, err)
	must.StrHasPrefix(t, "sweep/dispatch-", d.DispatchedJobID)
	child, _, err := c.Jobs().Info(d.DispatchedJobID, nil)
	must.NoError(t, err)
	must.True(t, child.Dispatched)
	must.Eq(t, "sweep", *child.ParentID)
	must.Eq(t, "0.1", child.Meta["rate"])
	ended(1, sim, t, d.DispatchedJobID, "running")
	parent, _, err := c.Jobs().Info("sweep", nil)
	must.NoError(t, err)
	must.Eq(t, "running", *parent.Status)
	child.Dispatched = false
	_, _, err = c.Jobs().Register(child, nil)
	must.ErrorContains(t, err, "read-only")
}

func TestPeriodicForce(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0)})
	c := sim.Client()
	j := gang("nightly", 1, 0)
	j.Periodic = &api.PeriodicConfig{Enabled: ptr(true), SpecType: ptr("cron"), Spec: ptr("0 3 * * *"), ProhibitOverlap: ptr(false), TimeZone: ptr("UTC")}
	_, _, err := c.Jobs().Register(j, nil)
	must.NoError(t, err)
	must.MapEmpty(t, statuses(t, c, "nightly"))
	eval, _, err := c.Jobs().PeriodicForce("nightly", nil)
	must.NoError(t, err)
	e := waitEval(t, c, eval)
	must.StrHasPrefix(t, "nightly/periodic-", e.JobID)
	ended(1, sim, t, e.JobID, "running")
	_, _, err = c.Jobs().PeriodicForce("missing", nil)
	must.Error(t, err)
}

// A lock is one holder's until its time is over without a renewal; nobody else writes meanwhile.
func TestVariableLocks(t *testing.T) {
	t.Parallel()
	manual := clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	sim := nomadsim.New(t, nomadsim.Options{Clock: manual})
	c := sim.Client()
	lock := func() *api.Variable {
		return &api.Variable{Path: "muster/leader", Items: api.VariableItems{"who": "a"}, Lock: &api.VariableLock{TTL: "15s", LockDelay: "5s"}}
	}
	held, _, err := c.Variables().AcquireLock(lock(), nil)
	must.NoError(t, err)
	must.NotEq(t, "", held.LockID())
	_, _, err = c.Variables().AcquireLock(lock(), nil)
	must.Error(t, err)
	_, _, err = c.Variables().Update(&api.Variable{Path: "muster/leader", Items: api.VariableItems{"who": "thief"}}, nil)
	must.Error(t, err)
	read, _, err := c.Variables().Read("muster/leader", nil)
	must.NoError(t, err)
	must.Eq(t, "a", read.Items["who"])
	for range 3 { // renewed in time
		manual.Advance(10 * time.Second)
		_, _, err = c.Variables().RenewLock(held, nil)
		must.NoError(t, err)
	}
	manual.Advance(16 * time.Second)
	eventually(t, "the lock is gone", func() bool {
		v, _, err := c.Variables().Peek("muster/leader", nil)
		must.NoError(t, err)
		return v.Lock == nil
	})
	_, _, err = c.Variables().RenewLock(held, nil)
	must.Error(t, err)
	_, _, err = c.Variables().AcquireLock(lock(), nil) // the delay after a lock that was lost
	must.Error(t, err)
	manual.Advance(6 * time.Second)
	next, _, err := c.Variables().AcquireLock(lock(), nil)
	must.NoError(t, err)
	must.NotEq(t, held.LockID(), next.LockID())
	_, _, err = c.Variables().ReleaseLock(next, nil)
	must.NoError(t, err)
	_, _, err = c.Variables().AcquireLock(lock(), nil)
	must.NoError(t, err)
}

// A system job of a priority that is higher by ten evicts a batch job that is in its way; one at the server's highest
// priority is left alone.
func TestPreemptionBySystemJob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		victim  int
		evicted bool
	}{{50, true}, {100, false}} {
		sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 2)})
		low := gang("low", 1, 2)
		low.Priority = ptr(c.victim)
		put(t, sim, low)
		ended(1, sim, t, "low", "running")
		system := gang("agent", 1, 1)
		system.Type, system.Priority = ptr("system"), ptr(min(c.victim+40, 100))
		system.TaskGroups[0].ReschedulePolicy, system.TaskGroups[0].Disconnect = nil, nil
		e := put(t, sim, system)
		if c.evicted {
			ended(1, sim, t, "agent", "running")
			list, _, err := sim.Client().Jobs().Allocations("low", true, nil)
			must.NoError(t, err)
			must.Eq(t, "evict", list[0].DesiredStatus)
			must.NotEq(t, "", list[0].PreemptedByAllocation)
		} else {
			must.MapNotEmpty(t, e.FailedTGAllocs)
			must.Eq(t, map[string]int{"running": 1}, statuses(t, sim.Client(), "low"))
		}
	}
}

func service(id string, count int) *api.Job {
	j := gang(id, count, 0)
	j.Type = ptr("service")
	g := j.TaskGroups[0]
	g.ReschedulePolicy, g.RestartPolicy, g.Disconnect = nil, nil, nil
	g.Update = &api.UpdateStrategy{MinHealthyTime: ptr(time.Millisecond), HealthyDeadline: ptr(5 * time.Second), ProgressDeadline: ptr(10 * time.Second), HealthCheck: ptr("task_states"), MaxParallel: ptr(1)}
	g.Tasks[0].SetConfig("command", "serve")
	return j
}

func deployment(t *testing.T, c *api.Client, job string) *api.Deployment {
	t.Helper()
	d, _, err := c.Jobs().LatestDeployment(job, nil)
	must.NoError(t, err)
	return d
}

// A rollout ends by an evaluation that the deployment's watcher asks for, and makes its version stable; one that fails
// brings the last stable version back; a canary waits to be promoted.
func TestRollouts(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 0)})
	c := sim.Client()
	state := func(want string) func() bool {
		return func() bool { d := deployment(t, c, "web"); return d != nil && d.Status == want }
	}
	put(t, sim, service("web", 2))
	eventually(t, "the first rollout succeeds", state("successful"))
	evals, _, err := c.Jobs().Evaluations("web", nil)
	must.NoError(t, err)
	must.True(t, slices.ContainsFunc(evals, func(e *api.Evaluation) bool {
		return e.TriggeredBy == "deployment-watcher" && e.DeploymentID == deployment(t, c, "web").ID
	}))
	j, _, err := c.Jobs().Info("web", nil)
	must.NoError(t, err)
	must.True(t, *j.Stable)

	bad := service("web", 2)
	bad.TaskGroups[0].Update.AutoRevert, bad.TaskGroups[0].Update.MinHealthyTime = ptr(true), ptr(time.Minute) // it ends before it is healthy
	bad.TaskGroups[0].Update.HealthyDeadline, bad.TaskGroups[0].Update.ProgressDeadline = ptr(2*time.Minute), ptr(5*time.Minute)
	bad.TaskGroups[0].Tasks[0].SetConfig("command", "false")
	bad.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: ptr(0), Mode: ptr("fail"), Interval: ptr(time.Minute), Delay: ptr(time.Second)}
	put(t, sim, bad)
	eventually(t, "the old version is back", func() bool {
		j, _, err := c.Jobs().Info("web", nil)
		must.NoError(t, err)
		return *j.Version == 2 && j.TaskGroups[0].Tasks[0].Config["command"] == "serve"
	})

	canary := service("web", 2)
	canary.Meta = map[string]string{"v": "3"}
	canary.TaskGroups[0].Update.Canary = ptr(1)
	canary.TaskGroups[0].Tasks[0].Env = map[string]string{"V": "3"}
	put(t, sim, canary)
	eventually(t, "the canary is healthy", func() bool {
		s := deployment(t, c, "web").TaskGroups["rank"]
		return s.DesiredCanaries == 1 && s.HealthyAllocs == 1
	})
	must.Eq(t, "running", deployment(t, c, "web").Status)
	_, _, err = c.Deployments().PromoteAll(deployment(t, c, "web").ID, nil)
	must.NoError(t, err)
	eventually(t, "the promoted rollout succeeds", state("successful"))
}

func TestScaleAndRevert(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 0)})
	c := sim.Client()
	j := gang("s", 1, 0)
	j.TaskGroups[0].Scaling = &api.ScalingPolicy{Type: "horizontal", Min: ptr(int64(1)), Max: ptr(int64(3)), Enabled: ptr(true)}
	put(t, sim, j)
	ended(1, sim, t, "s", "running")
	_, _, err := c.Jobs().Scale("s", "rank", ptr(9), "too many", false, nil, nil)
	must.Error(t, err)
	_, _, err = c.Jobs().Scale("s", "rank", ptr(3), "more", false, nil, nil)
	must.NoError(t, err)
	ended(3, sim, t, "s", "running")
	status, _, err := c.Jobs().ScaleStatus("s", nil)
	must.NoError(t, err)
	must.Eq(t, 3, status.TaskGroups["rank"].Desired)
	must.Eq(t, "more", status.TaskGroups["rank"].Events[0].Message)
	_, _, err = c.Jobs().Revert("s", 0, ptr(uint64(7)), nil, "", "")
	must.Error(t, err) // another version is in force
	_, _, err = c.Jobs().Revert("s", 0, nil, nil, "", "")
	must.NoError(t, err)
	eventually(t, "one is left", func() bool { return statuses(t, c, "s")["running"] == 1 })
}

func TestNamespacesSearchAndServers(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0)})
	c := sim.Client()
	_, err := c.Namespaces().Register(&api.Namespace{Name: "research", Description: "of the lab"}, nil)
	must.NoError(t, err)
	j := gang("train", 1, 0)
	j.Namespace = ptr("research")
	put(t, sim, j)
	_, err = c.Namespaces().Delete("research", nil)
	must.ErrorContains(t, err, "research")
	list, _, err := c.Jobs().List(&api.QueryOptions{Namespace: "*"})
	must.NoError(t, err)
	must.Len(t, 1, list)
	none, _, err := c.Jobs().List(nil)
	must.NoError(t, err)
	must.SliceEmpty(t, none)
	found, _, err := c.Search().PrefixSearch("tra", "jobs", &api.QueryOptions{Namespace: "research"})
	must.NoError(t, err)
	must.Eq(t, []string{"train"}, found.Matches["jobs"])
	missing := gang("x", 1, 0)
	missing.Namespace = ptr("nowhere")
	_, _, err = c.Jobs().Register(missing, nil)
	must.ErrorContains(t, err, "nowhere")

	self, err := c.Agent().Self()
	must.NoError(t, err)
	must.MapContainsKey(t, self.Config, "Version")
	leader, err := c.Status().Leader()
	must.NoError(t, err)
	must.NotEq(t, "", leader)
	cfg, _, err := c.Operator().SchedulerGetConfiguration(nil)
	must.NoError(t, err)
	must.True(t, cfg.SchedulerConfig.PreemptionConfig.SystemSchedulerEnabled)
	must.False(t, cfg.SchedulerConfig.PreemptionConfig.BatchSchedulerEnabled)
}

// An allocation that is restarted keeps its id; the evaluation of a node answers as a registration does.
func TestRestartAndNodeEvaluation(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0)})
	c := sim.Client()
	put(t, sim, gang("g", 1, 0))
	ended(1, sim, t, "g", "running")
	list, _, err := c.Jobs().Allocations("g", true, nil)
	must.NoError(t, err)
	info, _, err := c.Allocations().Info(list[0].ID, nil)
	must.NoError(t, err)
	must.NoError(t, c.Allocations().Restart(info, "train", nil))
	eventually(t, "it was restarted", func() bool {
		a, _, err := c.Allocations().Info(info.ID, nil)
		must.NoError(t, err)
		return a.ClientStatus == "running" && a.TaskStates["train"].Restarts == 1
	})
	var told struct {
		EvalIDs               []string
		SchedulingEligibility string
		Servers               []struct{ RPCAdvertiseAddr string }
		NumNodes              int
	}
	_, err = c.Raw().Write("/v1/node/"+info.NodeID+"/evaluate", nil, &told, nil)
	must.NoError(t, err)
	must.Eq(t, "g", waitEval(t, c, told.EvalIDs[0]).JobID)
	must.Eq(t, "eligible", told.SchedulingEligibility)
	must.Eq(t, 1, told.NumNodes)
	must.Len(t, 1, told.Servers)
}
