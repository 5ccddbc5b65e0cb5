package nomadsim_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/internal/nomadsim/clock"
	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
)

// put registers a job and waits until the scheduler is through with it.
func put(t *testing.T, sim *nomadsim.Cluster, j *api.Job) *api.Evaluation {
	t.Helper()
	resp, _, err := sim.Client().Jobs().Register(j, nil)
	must.NoError(t, err)
	return waitEval(t, sim.Client(), resp.EvalID)
}

// rest waits until nothing happens any more.
func rest(t *testing.T, sim *nomadsim.Cluster) {
	t.Helper()
	calm := 0
	eventually(t, "the cluster is at rest", func() bool {
		if calm++; !sim.Settled() {
			calm = 0
		}
		return calm > 5
	})
}

func ended(n int, sim *nomadsim.Cluster, t *testing.T, job, status string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d allocations of %s %s", n, job, status), func() bool { return statuses(t, sim.Client(), job)[status] == n })
}

// TestWhatWakesHeldJobs plays the table of how often the scheduler looks again at a job that is held one way or another.
func TestWhatWakesHeldJobs(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name                       string
		hold                       func(*api.Job)
		status                     string
		allocEnds, eligible, class int
	}{
		{"a constraint on meta that no node has", func(j *api.Job) { j.Constrain(hold) }, "pending", 0, 0, 1},
		{"a constraint on the node's id", func(j *api.Job) { j.Constrain(api.NewConstraint("${node.unique.id}", "=", "none")) }, "pending", 1, 1, 1},
		{"both", func(j *api.Job) {
			j.Constrain(hold)
			j.TaskGroups[0].Constrain(api.NewConstraint("${node.unique.name}", "=", "n1"))
		}, "pending", 1, 1, 1},
		{"a node pool without nodes", func(j *api.Job) { j.NodePool = ptr("empty") }, "pending", 1, 1, 1},
		{"a datacenter without nodes", func(j *api.Job) { j.Datacenters = []string{"dc9"} }, "pending", 1, 1, 1},
		{"count 0", func(j *api.Job) { j.TaskGroups[0].Count = ptr(0) }, "dead", 0, 0, 0},
		{"stop", func(j *api.Job) { j.Stop = ptr(true) }, "dead", 0, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 4), ClientSync: time.Millisecond, SharedClasses: true})
			_, err := sim.Client().NodePools().Register(&api.NodePool{Name: "empty"}, nil)
			must.NoError(t, err)
			j := gang("held", 1, 1)
			c.hold(j)
			put(t, sim, j)
			got, _, err := sim.Client().Jobs().Info("held", nil)
			must.NoError(t, err)
			must.Eq(t, c.status, *got.Status)
			woken := func(what string, want, most int, f func()) {
				t.Helper()
				before := sim.Wakes("default", "held")
				f()
				rest(t, sim)
				must.Between(t, want, sim.Wakes("default", "held")-before, most, must.Sprint(what))
			}
			woken("an allocation ends", c.allocEnds, c.allocEnds, func() {
				put(t, sim, gang("other", 1, 0))
				ended(1, sim, t, "other", "running")
				_, _, err := sim.Client().Jobs().Deregister("other", false, nil)
				must.NoError(t, err)
				ended(1, sim, t, "other", "complete")
			})
			woken("a node is eligible again", c.eligible, c.eligible, func() {
				for _, on := range []bool{false, true} {
					_, err := sim.Client().Nodes().ToggleEligibility(sim.Node("n1"), on, nil)
					must.NoError(t, err)
				}
			})
			// A new node registers twice, which wakes what escapes classes twice if it was looked at in between.
			woken("a node of a new class", c.class, c.class+c.eligible, func() {
				_, err := sim.AddNode(nomadsim.NodeConfig{Name: "new", Meta: map[string]string{"new": "yes"}})
				must.NoError(t, err)
			})
		})
	}
}

// TestInPlaceOrDestructive changes one thing of a running job.
func TestInPlaceOrDestructive(t *testing.T) {
	t.Parallel()
	g := func(j *api.Job) *api.TaskGroup { return j.TaskGroups[0] }
	task := func(j *api.Job) *api.Task { return j.TaskGroups[0].Tasks[0] }
	cases := []struct {
		name    string
		change  func(*api.Job)
		inPlace bool
	}{
		{"a constraint that the node meets", func(j *api.Job) { j.Constrain(api.NewConstraint("${attr.kernel.name}", "=", "linux")) }, true},
		{"an affinity", func(j *api.Job) { j.AddAffinity(api.NewAffinity("${node.class}", "=", "x", 50)) }, true},
		{"priority", func(j *api.Job) { j.Priority = ptr(70) }, true},
		{"kill timeout", func(j *api.Job) { task(j).KillTimeout = ptr(9 * time.Second) }, true},
		{"restart policy", func(j *api.Job) { g(j).RestartPolicy.Attempts = ptr(3) }, true},
		{"reschedule policy", func(j *api.Job) {
			g(j).ReschedulePolicy.Attempts = ptr(1)
			g(j).ReschedulePolicy.Interval = ptr(time.Hour)
		}, true},
		{"disconnect", func(j *api.Job) { g(j).Disconnect.LostAfter = ptr(time.Hour) }, true},
		{"log size", func(j *api.Job) { task(j).LogConfig.MaxFileSizeMB = ptr(2) }, true},
		{"all at once", func(j *api.Job) { j.AllAtOnce = ptr(true) }, true},
		{"meta of the job", func(j *api.Job) { j.Meta = map[string]string{"a": "b"} }, false},
		{"meta of the group", func(j *api.Job) { g(j).Meta = map[string]string{"a": "b"} }, false},
		{"env", func(j *api.Job) { task(j).Env = map[string]string{"A": "b"} }, false},
		{"config", func(j *api.Job) { task(j).Config["command"] = "other" }, false},
		{"driver", func(j *api.Job) { task(j).Driver = "mock_driver" }, false},
		{"user", func(j *api.Job) { task(j).User = "nobody" }, false},
		{"cpu", func(j *api.Job) { task(j).Resources.CPU = ptr(200) }, false},
		{"memory", func(j *api.Job) { task(j).Resources.MemoryMB = ptr(65) }, false},
		{"number of cards", func(j *api.Job) { task(j).Resources.Devices[0].Count = ptr(uint64(2)) }, false},
		{"a constraint on cards", func(j *api.Job) {
			task(j).Resources.Devices[0].Constraints = []*api.Constraint{api.NewConstraint("${device.model}", "=", "H100")}
		}, false},
		{"a template", func(j *api.Job) {
			task(j).Templates = []*api.Template{{EmbeddedTmpl: ptr("x"), DestPath: ptr("local/x")}}
		}, false},
		{"another task", func(j *api.Job) {
			more := *task(j)
			more.Name = "more"
			g(j).AddTask(&more)
		}, false},
		{"the hold, which no node meets", func(j *api.Job) { j.Constrain(hold) }, true}, // the rank keeps running
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 4), ClientSync: time.Millisecond})
			put(t, sim, gang("j", 1, 1))
			ended(1, sim, t, "j", "running")
			next := gang("j", 1, 1)
			c.change(next)
			put(t, sim, next)
			rest(t, sim)
			list, _, err := sim.Client().Jobs().Allocations("j", true, nil)
			must.NoError(t, err)
			stopped := slices.ContainsFunc(list, func(a *api.AllocationListStub) bool { return a.DesiredStatus == "stop" })
			must.Eq(t, c.inPlace, !stopped)
		})
	}
}

// TestBatchRunsAgain: a new version of a batch job runs again what has completed; the same job once more does not.
func TestBatchRunsAgain(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0), ClientSync: time.Millisecond})
	j := func() *api.Job {
		j := gang("j", 1, 0)
		j.TaskGroups[0].Tasks[0].Driver = "mock_driver"
		j.TaskGroups[0].Tasks[0].Config = map[string]any{"run_for": "1ms"}
		return j
	}
	put(t, sim, j())
	ended(1, sim, t, "j", "complete")
	put(t, sim, j())
	rest(t, sim)
	must.Eq(t, 1, statuses(t, sim.Client(), "j")["complete"])
	next := j()
	next.Priority = ptr(60)
	put(t, sim, next)
	ended(2, sim, t, "j", "complete")
}

// TestDevicesAreHeldUntilTheClientIsThrough: a stopped allocation that has not ended holds its cards.
func TestDevicesAreHeldUntilTheClientIsThrough(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 4), ClientSync: time.Millisecond, Script: func(ts nomadsim.TaskStart) nomadsim.Behaviour {
		return nomadsim.Behaviour{OnStop: func(task *nomadsim.Task, _ string) {
			go func() {
				<-release
				task.Exit(taskstate.Exit{Code: 143, Signal: 15})
			}()
		}}
	}})
	first := gang("first", 1, 4)
	first.TaskGroups[0].Tasks[0].KillTimeout = ptr(time.Hour)
	put(t, sim, first)
	ended(1, sim, t, "first", "running")
	_, _, err := sim.Client().Jobs().Deregister("first", false, nil)
	must.NoError(t, err)
	e := put(t, sim, gang("second", 1, 1))
	must.Eq(t, map[string]int{"devices: no devices match request": 1}, e.FailedTGAllocs["rank"].DimensionExhausted)
	close(release)
	ended(1, sim, t, "second", "running")
}

// TestDeviceConstraints asks for certain cards.
func TestDeviceConstraints(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, l, op, r string
		count          uint64
		want           string // the ids given, sorted; empty: not placed
	}{
		{"exactly these", "${device.ids}", "set_contains", "GPU-1-1,GPU-1-3", 2, "GPU-1-1,GPU-1-3"},
		{"some of these, of any node", "${device.ids}", "set_contains_any", "GPU-9-9,GPU-1-2", 1, "GPU-1-2"},
		{"more than are listed", "${device.ids}", "set_contains_any", "GPU-1-2", 2, ""},
		{"equal to one of several", "${device.ids}", "=", "GPU-1-1", 1, ""},
		{"a regular expression", "${device.ids}", "regexp", "GPU-1-.", 1, ""},
		{"enough memory", "${device.attr.memory}", ">=", "80 GiB", 4, "GPU-1-0,GPU-1-1,GPU-1-2,GPU-1-3"},
		{"in another unit", "${device.attr.memory}", ">=", "80000 MiB", 1, "?"},
		{"without a unit", "${device.attr.memory}", ">=", "80", 1, ""},
		{"in a wrong unit", "${device.attr.memory}", ">=", "80 W", 1, ""},
		{"more than there is", "${device.attr.memory}", ">", "141 GiB", 1, ""},
		{"the model", "${device.model}", "=", "H200", 1, "?"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nodes(1, 4)
			n[0].Devices[0].Name = "H200"
			n[0].Devices[0].Attributes = otherCast(1).group.Attributes
			sim := nomadsim.New(t, nomadsim.Options{Nodes: n, ClientSync: time.Millisecond})
			j := gang("j", 1, int(c.count))
			j.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints = []*api.Constraint{api.NewConstraint(c.l, c.op, c.r)}
			put(t, sim, j)
			list, _, err := sim.Client().Jobs().Allocations("j", true, nil)
			must.NoError(t, err)
			if c.want == "" {
				must.SliceEmpty(t, list)
				return
			}
			must.SliceLen(t, 1, list)
			a, _, err := sim.Client().Allocations().Info(list[0].ID, nil)
			must.NoError(t, err)
			ids := slices.Sorted(slices.Values(a.AllocatedResources.Tasks["train"].Devices[0].DeviceIDs))
			must.Len(t, int(c.count), ids)
			if c.want != "?" {
				must.Eq(t, c.want, strings.Join(ids, ","))
			}
		})
	}
}

// TestClassTrap: one unsuitable node of a class speaks for all of it when only a device constraint told them apart.
func TestClassTrap(t *testing.T) {
	t.Parallel()
	placed := map[bool]int{}
	for seed := range uint64(12) {
		for _, pinned := range []bool{false, true} {
			sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(4, 4), Seed: seed, SharedClasses: true})
			j := gang("j", 1, 1)
			j.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints = []*api.Constraint{api.NewConstraint("${device.ids}", "set_contains_any", "GPU-2-1")}
			if pinned {
				j.TaskGroups[0].Constrain(api.NewConstraint("${node.unique.id}", "set_contains_any", sim.Node("n2")))
			}
			if e := put(t, sim, j); len(e.FailedTGAllocs) == 0 {
				placed[pinned]++
			}
			sim.Close()
		}
	}
	must.Eq(t, 12, placed[true])
	must.Between(t, 1, placed[false], 11)
}

// TestVersionsAge: six untagged versions are kept, and the tagged ones.
func TestVersionsAge(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{})
	c := sim.Client()
	for i := range 9 {
		j := gang("j", 1, 0)
		j.Constrain(hold)
		j.Priority = ptr(50 + i)
		put(t, sim, j)
		if i == 1 {
			_, err := c.Jobs().TagVersion("j", 1, "keep", "the one to keep", nil)
			must.NoError(t, err)
		}
	}
	list, _, _, err := c.Jobs().Versions("j", false, nil)
	must.NoError(t, err)
	var got []uint64
	for _, j := range list {
		got = append(got, *j.Version)
	}
	must.Eq(t, []uint64{8, 7, 6, 5, 4, 3, 1}, got)
	must.Eq(t, "keep", list[6].VersionTag.Name)
}

// TestLostNodes: what becomes of allocations on a node that is no longer heard of.
func TestLostNodes(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, kind string
		disconnect *api.DisconnectStrategy
		node       string
		want       map[string]int
		back       map[string]int
	}{
		{"no disconnect: lost and replaced", "batch", nil, "down", map[string]int{"lost": 1, "running": 1}, map[string]int{"complete": 1, "running": 1}},
		{"kept unknown", "batch", &api.DisconnectStrategy{LostAfter: ptr(time.Hour), Replace: ptr(false)}, "disconnected", map[string]int{"unknown": 1}, map[string]int{"running": 1}},
		{"replaced, after the delay of the reschedule policy", "service", &api.DisconnectStrategy{LostAfter: ptr(time.Hour), Replace: ptr(true)}, "disconnected", map[string]int{"unknown": 1, "running": 1}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 1), Clock: clock.Scaled(20), Heartbeat: time.Second, ClientSync: 20 * time.Millisecond})
			j := gang("j", 1, 1)
			j.Type, j.TaskGroups[0].Disconnect = &c.kind, c.disconnect
			if c.kind == "service" {
				j.Update = &api.UpdateStrategy{MaxParallel: ptr(0)} // no deployment
			}
			j.TaskGroups[0].ReschedulePolicy = nil // the default of the kind of job
			put(t, sim, j)
			ended(1, sim, t, "j", "running")
			list, _, err := sim.Client().Jobs().Allocations("j", true, nil)
			must.NoError(t, err)
			node := list[0].NodeID
			must.NoError(t, sim.Partition(node, true))
			look := func(want map[string]int) {
				t.Helper()
				var got map[string]int
				for end := time.Now().Add(patience); time.Now().Before(end); {
					if got = statuses(t, sim.Client(), "j"); maps.Equal(want, got) {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
				must.Eq(t, want, got)
			}
			look(c.want)
			n, _, err := sim.Client().Nodes().Info(node, nil)
			must.NoError(t, err)
			must.Eq(t, c.node, n.Status)
			must.NoError(t, sim.Partition(node, false))
			eventually(t, "the node is ready", func() bool {
				n, _, err := sim.Client().Nodes().Info(node, nil)
				must.NoError(t, err)
				return n.Status == "ready"
			})
			if c.back != nil {
				look(c.back)
				return
			}
			defer func() {
				if t.Failed() {
					dump(t, sim, "j")
				}
			}()
			eventually(t, "one of the two is stopped", func() bool {
				s := statuses(t, sim.Client(), "j")
				return s["running"] == 1 && s["complete"] == 1
			})
		})
	}
}

// dump tells what became of a job.
func dump(t *testing.T, sim *nomadsim.Cluster, job string) {
	ev, _, err := sim.Client().Jobs().Evaluations(job, nil)
	must.NoError(t, err)
	slices.SortFunc(ev, func(a, b *api.Evaluation) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	for _, e := range ev {
		t.Log(e.CreateIndex, e.ModifyIndex, e.TriggeredBy, e.Status, e.StatusDescription, e.WaitUntil, e.ID[:4], e.SnapshotIndex)
	}
	list, _, err := sim.Client().Jobs().Allocations(job, true, nil)
	must.NoError(t, err)
	for _, a := range list {
		t.Log(a.ID[:4], a.Name, a.ClientStatus, a.DesiredStatus, a.DesiredDescription, a.ModifyIndex, a.NextAllocation, a.FollowupEvalID)
	}
}

// TestNoWakeUpIsLost fills a small cluster many times over with jobs that end at once: room that is freed while a
// blocked evaluation runs lets it run once more, and every job has its turn.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 4), ClientSync: time.Millisecond, Script: func(nomadsim.TaskStart) nomadsim.Behaviour {
		return nomadsim.Behaviour{RunFor: time.Millisecond}
	}})
	const jobs = 120
	for i := range jobs {
		_, _, err := sim.Client().Jobs().Register(gang(fmt.Sprintf("j%d", i), 4, 1), nil)
		must.NoError(t, err)
	}
	eventually(t, "every job is through", func() bool {
		list, _, err := sim.Client().Jobs().List(nil)
		must.NoError(t, err)
		dead := 0
		for _, j := range list {
			if j.Status == "dead" {
				dead++
			}
		}
		return dead == jobs
	})
}
