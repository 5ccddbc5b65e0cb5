package agent_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// parameterized registers a job that gangs are dispatched of.
func (b *bench) parameterized(j job) {
	b.t.Helper()
	more := j.more
	j.more = func(t map[string]any) {
		t["ParameterizedJob"] = map[string]any{"Payload": "optional", "MetaOptional": []any{"size"}}
		task := t["TaskGroups"].([]any)[0].(map[string]any)["Tasks"].([]any)[0].(map[string]any)
		task["DispatchPayload"] = map[string]any{"File": "input.txt"}
		if more != nil {
			more(t)
		}
	}
	b.put("/v1/jobs", map[string]any{"Job": j.json()})
}

func (b *bench) dispatch(parent, payload string) string {
	b.t.Helper()
	r, _, err := b.sim.Client().Jobs().Dispatch(parent, map[string]string{"size": "4"}, []byte(payload), "", nil)
	must.NoError(b.t, err)
	return r.DispatchedJobID
}

// text is a job as Nomad has it.
func (b *bench) text(id string) string {
	b.t.Helper()
	var raw json.RawMessage
	b.get("/v1/job/"+id, &raw)
	return string(raw)
}

// A gang that is dispatched runs as a twin of its held child, with the payload,
// and both are stopped in the end.
func TestDispatchedGang(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1)
			if channel == "channel" {
				b.direct()
			}
			b.start()
			b.parameterized(job{id: "p", count: 2, cards: 1, args: []string{"run=20ms", "exit=3", "attempts=1"}, meta: map[string]string{contract.MetaRetries: "1"}})
			id := b.dispatch("p", "hello")
			g := b.stage(id, contract.StageComplete)
			must.Eq(t, 2, g.Attempt)
			must.Eq(t, 3, g.Detail.Attempts[0].Exit.Code)
			for attempt := 1; attempt <= 2; attempt++ {
				must.Eq(t, 2, b.members.launches("default/"+id+"/run", attempt))
			}
			must.StrContains(t, b.text(id+"/run"), base64.StdEncoding.EncodeToString([]byte("hello")))
			b.eventually("child and twin are stopped", func() bool { return b.jobInfo(id).Stop && b.jobInfo(id+"/run").Stop })
			must.Eq(t, "4", b.jobInfo(id + "/run").Meta["size"])
			must.Eq(t, 0, b.live(id+"/run"))
			must.False(t, b.jobInfo("p").Stop)
			_, known := b.agent.Gang("default", id+"/run")
			must.False(t, known, must.Sprint("the twin is no gang of its own"))
		})
	}
}

// Who stops the child stops the gang, and a planner that starts in between goes
// on with it.
func TestDispatchedGangIsStopped(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(b *bench, id string){
		"the child": func(b *bench, id string) {
			_, _, err := b.sim.Client().Jobs().Deregister(id, false, nil)
			must.NoError(b.t, err)
		},
		"the child, purged": func(b *bench, id string) {
			_, _, err := b.sim.Client().Jobs().Deregister(id, true, nil)
			must.NoError(b.t, err)
		},
		"the twin": func(b *bench, id string) {
			_, _, err := b.sim.Client().Jobs().Deregister(id+"/run", false, nil)
			must.NoError(b.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1).direct().start()
			b.parameterized(job{id: "p", count: 2, cards: 1})
			id := b.dispatch("p", "")
			b.stage(id, contract.StageTraining)
			b.stop()
			b.start()
			g := b.until(id, "running", func(g view.Gang) bool { return g.Running == 2 })
			must.Eq(t, 1, g.Attempt)
			must.Eq(t, 2, b.members.launches("default/"+id+"/run", 1))
			stop(b, id)
			b.eventually("nothing runs any more", func() bool {
				g, known := b.agent.Gang("default", id)
				return b.live(id+"/run") == 0 && (!known || g.Stage == contract.StageCancelled)
			})
			must.True(t, b.members.channel.Empty())
			// The place is free for the next.
			next := b.dispatch("p", "")
			b.stage(next, contract.StageTraining)
			must.NotEq(t, id, next)
		})
	}
}

// A periodic job's child is a gang too.
func TestPeriodicGang(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).direct().start()
	j := job{id: "nightly", count: 2, cards: 1, args: []string{"run=10ms"}, more: func(t map[string]any) {
		t["Periodic"] = map[string]any{"Enabled": true, "Specs": []any{"0 3 1 1 *"}, "SpecType": "cron"}
	}}
	b.put("/v1/jobs", map[string]any{"Job": j.json()})
	_, _, err := b.sim.Client().Jobs().PeriodicForce("nightly", nil)
	must.NoError(t, err)
	id := ""
	b.eventually("the child is there", func() bool {
		list, _, err := b.sim.Client().Jobs().PrefixList("nightly/periodic-")
		must.NoError(t, err)
		for _, j := range list {
			if !strings.HasSuffix(j.ID, "/run") {
				id = j.ID
			}
		}
		return id != ""
	})
	b.stage(id, contract.StageComplete)
	must.Eq(t, 2, b.members.launches(fmt.Sprintf("default/%s/run", id), 1))
}
