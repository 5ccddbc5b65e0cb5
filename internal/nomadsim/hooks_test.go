package nomadsim_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// What hooks do to a registration, seen from the caller and from the cluster.
func TestHooks(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(1, 0)})
	c := sim.Client()
	register := func() error {
		task := api.NewTask("t", "mock_driver").Require(&api.Resources{CPU: new(100), MemoryMB: new(64)})
		job := api.NewBatchJob("j", "j", "global", 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task)).SetMeta("at", time.Now().String())
		_, _, err := c.Jobs().Register(job, nil)
		return err
	}
	version := func() int {
		job, _, err := c.Jobs().Info("j", nil)
		if err != nil {
			return -1
		}
		return int(*job.Version)
	}
	// on has f decide about registrations only.
	on := func(f func(n int) nomadsim.Fault) {
		sim.Hooks().OnRequest(func(r *http.Request, n int) nomadsim.Fault {
			if r.Method != http.MethodPut || r.URL.Path != "/v1/jobs" {
				return nomadsim.Fault{}
			}
			return f(n)
		})
	}
	always := func(f nomadsim.Fault) { on(func(int) nomadsim.Fault { return f }) }

	always(nomadsim.Fault{Refuse: true})
	must.Error(t, register())
	must.Eq(t, -1, version(), must.Sprint("refused is not done"))

	always(nomadsim.Fault{Fail: http.StatusServiceUnavailable, Text: "no leader"})
	must.ErrorContains(t, register(), "no leader")
	must.Eq(t, -1, version(), must.Sprint("failed is not done"))

	always(nomadsim.Fault{Drop: true})
	must.Error(t, register())
	must.Eq(t, 0, version(), must.Sprint("dropped is done, and nobody told"))

	always(nomadsim.Fault{Delay: 50 * time.Millisecond})
	began := time.Now()
	must.NoError(t, register())
	must.GreaterEq(t, 50*time.Millisecond, time.Since(began))
	must.Eq(t, 1, version())

	evals := func() int {
		list, _, err := c.Jobs().Evaluations("j", nil)
		must.NoError(t, err)
		n := 0
		for _, e := range list {
			if e.TriggeredBy == "job-register" {
				n++
			}
		}
		return n
	}
	before := evals()
	always(nomadsim.Fault{Repeat: 2})
	must.NoError(t, register())
	must.Eq(t, before+3, evals(), must.Sprint("handled three times"))

	// The first answer is held back, the second overtakes it.
	release := make(chan struct{})
	on(func(n int) nomadsim.Fault {
		if n == 1 {
			return nomadsim.Fault{Hold: release}
		}
		return nomadsim.Fault{}
	})
	at := version()
	first := make(chan error, 1)
	go func() { first <- register() }()
	for version() == at {
		time.Sleep(time.Millisecond)
	}
	must.NoError(t, register())
	must.Eq(t, at+2, version())
	select {
	case err := <-first:
		t.Fatalf("the held answer came: %v", err)
	default:
	}
	close(release)
	must.NoError(t, <-first)

	sim.Hooks().FailCall(http.MethodPut, "/v1/jobs", 2, 500, "the second")
	must.NoError(t, register())
	must.ErrorContains(t, register(), "the second")
	must.NoError(t, register())

	// A cut stream ends for its reader.
	resp, err := http.Get(sim.URL() + "/v1/event/stream?topic=Job")
	must.NoError(t, err)
	defer resp.Body.Close()
	var text strings.Builder
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := resp.Body.Read(buf)
			text.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	sim.Hooks().CutStreams()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
}
