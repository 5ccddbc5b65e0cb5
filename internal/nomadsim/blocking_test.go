package nomadsim_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// A blocking query of each kind answers when what it reads has changed, with a
// higher index and the change in it, and at the end of its wait otherwise.
func TestBlockingQueries(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2, 0)})
	c := sim.Client()
	list, _, err := c.Nodes().List(nil)
	must.NoError(t, err)
	must.Len(t, 2, list)
	job := func(id string, count int) *api.Job {
		task := api.NewTask("t", "mock_driver").SetConfig("run_for", "600s").Require(&api.Resources{CPU: new(100), MemoryMB: new(64)})
		return api.NewBatchJob(id, id, "global", 50).AddTaskGroup(api.NewTaskGroup("g", count).AddTask(task))
	}
	register := func(id string, count int) func() error {
		return func() error { _, _, err := c.Jobs().Register(job(id, count), nil); return err }
	}
	must.NoError(t, register("first", 1)())
	for name, test := range map[string]struct {
		read   func(q *api.QueryOptions) (int, uint64, error)
		change func() error
	}{
		"jobs": {func(q *api.QueryOptions) (int, uint64, error) {
			l, m, err := c.Jobs().List(q)
			return len(l), m.LastIndex, err
		}, register("second", 1)},
		"allocations": {func(q *api.QueryOptions) (int, uint64, error) {
			l, m, err := c.Allocations().List(q)
			return len(l), m.LastIndex, err
		}, register("third", 2)},
		"one job's evaluations": {func(q *api.QueryOptions) (int, uint64, error) {
			l, m, err := c.Jobs().Evaluations("fourth", q)
			return len(l), m.LastIndex, err
		}, register("fourth", 1)},
		"nodes": {func(q *api.QueryOptions) (int, uint64, error) {
			l, m, err := c.Nodes().List(q)
			n := 0
			for _, x := range l {
				if x.SchedulingEligibility == api.NodeSchedulingIneligible {
					n++
				}
			}
			return n, m.LastIndex, err
		}, func() error { _, err := c.Nodes().ToggleEligibility(list[0].ID, false, nil); return err }},
		"variables": {func(q *api.QueryOptions) (int, uint64, error) {
			l, m, err := c.Variables().List(q)
			return len(l), m.LastIndex, err
		}, func() error {
			_, _, err := c.Variables().Create(&api.Variable{Path: "a/b", Items: api.VariableItems{"k": "v"}}, nil)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before, index, err := test.read(nil)
			must.NoError(t, err)
			type answer struct {
				n     int
				index uint64
				err   error
			}
			answers := make(chan answer, 1)
			go func() {
				// Other things may change the table as well, so until the number does.
				a := answer{before, max(index, 1), nil}
				for a.n == before && a.err == nil {
					from := a.index
					a.n, a.index, a.err = test.read(&api.QueryOptions{WaitIndex: from, WaitTime: time.Minute})
				}
				answers <- a
			}()
			select {
			case a := <-answers:
				t.Fatalf("answered before anything changed: %+v", a)
			case <-time.After(50 * time.Millisecond):
			}
			must.NoError(t, test.change())
			select {
			case a := <-answers:
				must.NoError(t, a.err)
				must.Greater(t, before, a.n)
				must.Greater(t, index, a.index)
			case <-time.After(patience):
				t.Fatal("not answered although it changed")
			}
			began := time.Now()
			for {
				_, at, err := test.read(nil)
				must.NoError(t, err)
				_, again, err := test.read(&api.QueryOptions{WaitIndex: at, WaitTime: 30 * time.Millisecond})
				must.NoError(t, err)
				if again == at { // nothing changed: the wait was over
					must.GreaterEq(t, 30*time.Millisecond, time.Since(began))
					return
				}
			}
		})
	}
}
