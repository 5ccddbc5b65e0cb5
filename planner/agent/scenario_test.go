package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// get reads from Nomad's API.
func (b *bench) get(path string, out any) {
	b.t.Helper()
	r, err := http.Get(b.sim.URL() + path)
	must.NoError(b.t, err)
	defer r.Body.Close()
	must.Eq(b.t, http.StatusOK, r.StatusCode, must.Sprint(path))
	must.NoError(b.t, json.NewDecoder(r.Body).Decode(out))
}

// put writes to it.
func (b *bench) put(path string, body any) {
	b.t.Helper()
	raw, err := json.Marshal(body)
	must.NoError(b.t, err)
	r, err := http.Post(b.sim.URL()+path, "application/json", bytes.NewReader(raw))
	must.NoError(b.t, err)
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	must.Eq(b.t, http.StatusOK, r.StatusCode, must.Sprintf("%s: %s", path, text))
}

type allocInfo struct {
	ID, NodeID, NodeName, ClientStatus, DesiredStatus string
	ModifyIndex                                       uint64
}

func (b *bench) allocs(id string) []allocInfo {
	b.t.Helper()
	var list []allocInfo
	b.get("/v1/job/"+id+"/allocations?all=true", &list)
	return list
}

// live counts a job's allocations whose tasks have not ended.
func (b *bench) live(id string) int {
	n := 0
	for _, a := range b.allocs(id) {
		if a.ClientStatus == "pending" || a.ClientStatus == "running" || a.ClientStatus == "unknown" {
			n++
		}
	}
	return n
}

func (b *bench) jobInfo(id string) *jobspec.Job {
	b.t.Helper()
	var raw json.RawMessage
	b.get("/v1/job/"+id, &raw)
	j, err := jobspec.Parse(raw)
	must.NoError(b.t, err)
	return j
}

func (b *bench) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(max(b.longer, patience)); time.Now().Before(end); time.Sleep(3 * time.Millisecond) {
		if f() {
			return
		}
	}
	b.t.Fatalf("not so in time: %s", what)
}

func TestFailedMemberFailsTheGang(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "f", count: 3, cards: 1, args: []string{"run=20ms", "exit=42"}})
	g := b.stage("f", contract.StageFailed)
	must.Eq(t, 42, g.Exit.Code)
	must.Eq(t, contract.OutcomeFailed, g.Exit.Outcome)
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, 0, b.live("f"))
	must.True(t, b.jobInfo("f").Stop)
}

func TestRetriesTheWholeGang(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "r", count: 3, cards: 1, args: []string{"run=20ms", "exit=42", "attempts=1"}, meta: map[string]string{contract.MetaRetries: "1"}})
	g := b.stage("r", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	must.Len(t, 2, g.Detail.Attempts)
	must.Eq(t, 42, g.Detail.Attempts[0].Exit.Code)
	must.Eq(t, 3, b.members.launches("default/r", 1))
	must.Eq(t, 3, b.members.launches("default/r", 2))
	must.Eq(t, 6, len(b.allocs("r")))
}

// Neither of two gangs that do not fit together ever holds a part of the
// cluster, and both finish.
func TestTwoGangsTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "a", count: 3, cards: 1, args: []string{"run=80ms"}})
	b.submit(job{id: "b", count: 3, cards: 1, args: []string{"run=80ms"}})
	b.stage("a", contract.StageComplete)
	b.stage("b", contract.StageComplete)
	must.Eq(t, 3, len(b.allocs("a")))
	must.Eq(t, 3, len(b.allocs("b")))
}

func TestRefusedGangSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	b.submit(job{id: "big", count: 3, cards: 1})
	g := b.stage("big", contract.StageRefused)
	must.Eq(t, core.ReasonTooLarge, g.Reason)
	b.submit(job{id: "queue", count: 1, cards: 1, meta: map[string]string{contract.MetaQueue: "nowhere", "muster_colour": "red"}})
	g = b.stage("queue", contract.StageRefused)
	must.Eq(t, core.ReasonFaults, g.Reason)
	must.StrContains(t, g.Sentence, "nowhere")
	must.StrContains(t, g.Sentence, "muster_colour")
	must.Len(t, 0, b.allocs("queue"))
}

func TestStopInEveryStage(t *testing.T) {
	t.Parallel()
	stages := map[string]struct {
		args []string
		when func(b *bench)
	}{
		"queued": {nil, func(b *bench) {
			b.submit(job{id: "other", count: 2, cards: 1})
			b.stage("other", contract.StageTraining)
			b.submit(job{id: "g", count: 2, cards: 1})
			b.until("g", "waiting", func(g view.Gang) bool { return g.Reason == core.ReasonCards })
		}},
		"placed": {[]string{"silent=yes"}, func(b *bench) {
			b.until("g", "placed", func(g view.Gang) bool { return g.Stage == contract.StagePlaced || g.Stage == contract.StageFetched })
		}},
		"training": {nil, func(b *bench) { b.stage("g", contract.StageTraining) }},
	}
	for name, stage := range stages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1).start()
			if name != "queued" {
				b.submit(job{id: "g", count: 2, cards: 1, args: stage.args})
			}
			stage.when(b)
			_, err := b.agent.Stop(context.Background(), httpapi.Caller{Name: "test"}, "default", "g", view.StopRequest{})
			must.NoError(t, err)
			g := b.stage("g", contract.StageCancelled)
			must.Eq(t, 0, b.live("g"))
			must.False(t, g.Ended.IsZero())
		})
	}
	t.Run("purged while it runs", func(t *testing.T) {
		t.Parallel()
		// No event tells of the ends of a purged job's allocations; the next list,
		// which is far off here, is not waited for.
		b := newBench(t, 2, 1)
		b.timing.Probe = time.Hour
		b.start()
		b.submit(job{id: "g", count: 2, cards: 1})
		b.stage("g", contract.StageTraining)
		_, err := b.agent.Stop(context.Background(), httpapi.Caller{Name: "test"}, "default", "g", view.StopRequest{Purge: true})
		must.NoError(t, err)
		b.eventually("the gang is forgotten", func() bool { _, ok := b.agent.Gang("default", "g"); return !ok })
		var list []any
		b.get("/v1/vars?prefix="+contract.VariablePrefix, &list)
		must.Len(t, 0, list)
	})
}

func TestRefusingMemberSendsTheGangBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "script", count: 2, cards: 1, args: []string{"refuse=script"}})
	g := b.stage("script", contract.StageFailed)
	must.StrContains(t, g.Exit.Text, "script is wrong here")
	must.Eq(t, 0, b.members.launches("default/script", 1))

	// A problem of the site: the next attempt goes elsewhere.
	b.submit(job{id: "site", count: 2, cards: 1, args: []string{"refuse=cards"}})
	g = b.until("site", "tried again", func(g view.Gang) bool {
		return len(g.Detail.Attempts) == 2 && g.Detail.Attempts[1].Ended.IsZero() == false
	})
	must.StrContains(t, g.Exit.Text, "cards is wrong here")
	for _, node := range g.Detail.Attempts[1].Nodes {
		must.SliceNotContains(t, g.Detail.Attempts[0].Nodes, node)
	}
	b.eventually("the job is held again", func() bool { return b.jobInfo("site").IsHeld() && b.live("site") == 0 })
}

func TestReserveTimeout(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	b.cfg.Core.ReserveTimeout = 300 * time.Millisecond
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"silent=yes"}})
	g := b.until("g", "back in its queue", func(g view.Gang) bool { return g.Stage == contract.StageQueued && g.Attempt == 1 })
	must.StrContains(t, g.Exit.Text, "not ready within")
}

// An allocation that somebody stops, in a gang that runs: its replacement is
// never started, and the gang is repaired as a whole.
func TestForeignStopRepairsTheGang(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).start()
	b.submit(job{id: "g", count: 2, cards: 1})
	b.stage("g", contract.StageTraining)
	first := b.allocs("g")
	b.put("/v1/allocation/"+first[0].ID+"/stop", nil)
	g := b.until("g", "training again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	must.Eq(t, 2, b.members.launches("default/g", 1))
	must.Eq(t, 2, b.members.launches("default/g", 2))
	must.Eq(t, 2, g.Running)
	must.Eq(t, 2, b.live("g"))
}

func TestRunAgainWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, unheld := range []bool{false, true} {
		t.Run(fmt.Sprintf("unheld=%v", unheld), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 3, 1).start()
			// Whole nodes, so no card list is pinned.
			spec := job{id: "g", count: 2, cards: 1, args: []string{"run=600ms"}}
			b.submit(spec)
			b.stage("g", contract.StageTraining)
			spec.unheld = unheld
			b.submit(spec)
			g := b.stage("g", contract.StageComplete)
			must.Eq(t, 1, g.Attempt)
			must.Eq(t, 2, b.members.launches("default/g", 1))
			b.eventually("the job is stopped, so that nothing runs again", func() bool { return b.jobInfo("g").Stop })
			must.Eq(t, 2, len(b.allocs("g")))
		})
	}
}

func TestUpdateWhileItRunsIsTheNextAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "g", count: 3, cards: 1})
	b.stage("g", contract.StageTraining)
	// The update is held and smaller: Nomad leaves the running members alone.
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=50ms"}})
	g := b.stage("g", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
	must.Eq(t, 2, b.members.launches("default/g", 2))
}

func TestSubmitAgainAfterTheEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	spec := job{id: "g", count: 2, cards: 1, args: []string{"run=20ms"}}
	for n := 1; n <= 3; n++ {
		b.submit(spec)
		b.until("g", "complete", func(g view.Gang) bool { return g.Stage == contract.StageComplete && g.Attempt == n })
		must.Eq(t, 2, b.members.launches("default/g", n))
		must.Eq(t, 2*n, len(b.allocs("g")))
	}
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	b.submit(job{id: "whole", count: 2, cards: 1, unheld: true, args: []string{"run=30ms"}})
	g := b.stage("whole", contract.StageComplete)
	must.Eq(t, 2, b.members.launches("default/whole", 1))
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, 2, len(b.allocs("whole")))

	b.submit(job{id: "other", count: 1, cards: 1})
	b.stage("other", contract.StageTraining)
	b.submit(job{id: "part", count: 2, cards: 1, unheld: true, args: []string{"run=30ms"}})
	b.eventually("the partly placed job is held", func() bool { return b.jobInfo("part").IsHeld() && b.live("part") == 0 })
	must.Eq(t, 0, b.members.launches("default/part", 1))
	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "other", view.StopRequest{})
	must.NoError(t, err)
	b.stage("part", contract.StageComplete)
}

func TestLostNode(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1)
	b.cfg.LostGrace = 200 * time.Millisecond
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1})
	b.stage("g", contract.StageTraining)
	node := b.allocs("g")[0].NodeID
	must.NoError(t, b.sim.Partition(node, true))
	g := b.until("g", "training again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	for _, m := range g.Detail.Members {
		must.NotEq(t, node, m.NodeID)
	}
	must.StrContains(t, g.Detail.Attempts[0].Exit.Text, "out of contact")
	// The node comes back: its member of attempt 1 ends, the gang goes on.
	must.NoError(t, b.sim.Partition(node, false))
	b.eventually("nothing but attempt 2 is left", func() bool { return b.live("g") == 2 })
	must.Eq(t, 2, b.until("g", "training", func(g view.Gang) bool { return g.Stage == contract.StageTraining }).Attempt)
}

func TestDrainAsksTheWholeGang(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).start()
	b.submit(job{id: "g", count: 2, cards: 1})
	b.stage("g", contract.StageTraining)
	node := b.allocs("g")[0].NodeID
	b.put("/v1/node/"+node+"/drain", map[string]any{"DrainSpec": map[string]any{"Deadline": time.Minute}})
	g := b.until("g", "training elsewhere", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	must.Eq(t, contract.OutcomeCheckpointed, g.Detail.Attempts[0].Exit.Outcome)
	for _, m := range g.Detail.Members {
		must.NotEq(t, node, m.NodeID)
	}
}

// Jobs that are no gangs are left alone, and so is a held job's text.
func TestOthersAreUntouched(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	plain := job{id: "plain", count: 1, driver: "raw_exec", unheld: true, args: []string{"3600"}, more: func(j map[string]any) { delete(j, "Meta") }}
	var raw map[string]any
	must.NoError(t, json.Unmarshal(plain.json(), &raw))
	_, err := b.agent.Register(context.Background(), httpapi.Caller{}, plain.json(), view.Submission{})
	must.NoError(t, err)
	b.eventually("it runs", func() bool { return b.live("plain") == 1 })
	before := b.jobInfo("plain").JobModifyIndex
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=20ms"}})
	b.stage("g", contract.StageComplete)
	must.Eq(t, before, b.jobInfo("plain").JobModifyIndex)
	must.Eq(t, 1, b.live("plain"))
	_, ok := b.agent.Gang("default", "plain")
	must.False(t, ok)
}

// The pinned text carries what protects a gang from Nomad's own work, and the
// user's text is what comes back.
func TestPinsAndTheWayBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 2)
	b.cfg.Core.Levels = []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}}
	b.start()
	b.submit(job{id: "g", count: 3, cards: 1, more: func(j map[string]any) { j["Priority"] = 37 }})
	b.stage("g", contract.StageTraining)
	j := b.jobInfo("g")
	must.False(t, j.IsHeld())
	must.Eq(t, 1, j.Mark())
	must.Eq(t, 100, j.Priority)
	has := func(cs []jobspec.Constraint, left, operand, right string) {
		t.Helper()
		must.True(t, slices.ContainsFunc(cs, func(c jobspec.Constraint) bool {
			return c.LTarget == left && c.Operand == operand && (right == "" || c.RTarget == right)
		}), must.Sprintf("no constraint %s %s %s", left, operand, right))
	}
	has(j.Constraints, contract.HoldAttribute, "!=", "attempt-1")
	has(j.Constraints, "${meta.leaf}", "set_contains_any", "leaf1")
	tg := j.TaskGroups[0]
	has(tg.Constraints, "${node.unique.id}", "set_contains_any", "")
	has(tg.Tasks[0].Resources.Devices[0].Constraints, "${device.ids}", "set_contains_any", "")
	var rest struct {
		AllAtOnce  bool
		TaskGroups []struct {
			RestartPolicy struct{ Attempts int }
			Disconnect    struct {
				LostAfter time.Duration
				Replace   bool
			}
		}
	}
	must.NoError(t, json.Unmarshal(j.Raw(), &rest))
	must.True(t, rest.AllAtOnce)
	must.Eq(t, 0, rest.TaskGroups[0].RestartPolicy.Attempts)
	must.Eq(t, 24*time.Hour, rest.TaskGroups[0].Disconnect.LostAfter)
	g, _ := b.agent.Gang("default", "g")
	must.Eq(t, 37, g.Priority)
	must.Eq(t, 3, g.Cards)
}

func TestShortPlacementIsTakenBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, 1).start()
	// The dry run is right, and then a node refuses the plan.
	var refusing atomic.Bool
	refusing.Store(true)
	b.sim.Hooks().OnPlan(func(p *store.Plan) []string {
		if len(p.Placed) > 0 && refusing.Load() {
			return []string{p.Placed[0].NodeID}
		}
		return nil
	})
	b.submit(job{id: "g", count: 3, cards: 1, args: []string{"run=20ms"}})
	b.until("g", "taken back", func(g view.Gang) bool { return g.Attempt == 1 && g.Stage == contract.StageQueued })
	refusing.Store(false)
	must.Eq(t, 0, b.members.launches("default/g", 1))
	g := b.stage("g", contract.StageComplete)
	must.Eq(t, 2, g.Attempt)
}

// A held job that cannot run says so in Nomad's UI, where it would read
// "failed" otherwise; the description is gone once it runs.
func TestDescription(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	b.describe = 30 * time.Millisecond
	b.start()
	b.submit(job{id: "big", count: 3, cards: 1})
	b.eventually("the job is described", func() bool {
		j := b.jobInfo("big")
		return j.UI != nil && strings.Contains(j.UI.Description, "Muster: refused") && j.IsHeld()
	})
	version := b.jobInfo("big").Version
	b.stop()
	b.start() // a planner that starts again knows its own version
	b.stage("big", contract.StageRefused)
	time.Sleep(100 * time.Millisecond)
	must.Eq(t, version, b.jobInfo("big").Version)
	b.submit(job{id: "big", count: 2, cards: 1, args: []string{"run=10ms"}})
	g := b.stage("big", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	must.Nil(t, b.jobInfo("big").UI)
}

// The same name by another user is refused while the first one's gang lives.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	spec := job{id: "g", count: 1, cards: 1}
	b.submit(spec)
	b.stage("g", contract.StageTraining)
	b.until("g", "alice's", func(g view.Gang) bool { return g.User == "alice" })
	_, err := b.agent.Register(context.Background(), httpapi.Caller{Name: "bob", Role: view.RoleSubmitter}, spec.json(), view.Submission{})
	var refused *view.Error
	must.True(t, errors.As(err, &refused))
	must.Eq(t, view.CodeConflict, refused.Code)
	must.StrContains(t, refused.Error(), "alice")
	must.Eq(t, 1, len(b.allocs("g")))
	b.submit(spec) // her own update is none
}

// evicting asks one gang to leave, once it runs, for another that waits.
type evicting struct {
	core.Decider
	victim core.GangID
	done   atomic.Bool
}

func (d *evicting) Decide(s *core.Snapshot) *core.Plan {
	p := d.Decider.Decide(s)
	for _, g := range s.Gangs {
		if g.ID == d.victim && g.State == core.GangRunning && !g.Released.IsZero() && d.done.CompareAndSwap(false, true) {
			p.Evictions = append(p.Evictions, core.Eviction{Gang: g.ID, Attempt: g.Attempt, Kind: core.EvictReclaim, Grace: time.Minute, Why: "its cards are taken back"})
		}
	}
	return p
}

// An eviction is asked first: the members save and leave, nothing counts as a
// failure, and the gang is back in its queue with its old place.
func TestEviction(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	b.decider = &evicting{Decider: decide.New(), victim: "default/g"}
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1})
	g := b.until("g", "training again", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	first := g.Detail.Attempts[0]
	must.Eq(t, contract.OutcomeCheckpointed, first.Exit.Outcome)
	must.StrContains(t, first.Exit.Text, "member")
	must.Eq(t, g.Submitted, g.Detail.Stages[0].Entered)
	must.Eq(t, 2, b.live("g"))
}

// C31 e: the same id in another namespace is another gang. (d, another user's
// submission of an id that is in use, is TestNameIsTaken.)
func TestC31SameIDInAnotherNamespace(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1)
	b.cfg.Core.Queues[0].Namespaces = []string{"default", "lab2"}
	b.put("/v1/namespace/lab2", map[string]any{"Name": "lab2"})
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1})
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=5ms"}, more: func(j map[string]any) { j["Namespace"] = "lab2" }})
	b.eventually("the other namespace's gang is complete", func() bool {
		g, ok := b.agent.Gang("lab2", "g")
		return ok && g.Stage == contract.StageComplete
	})
	must.Eq(t, 2, b.members.launches("lab2/g", 1))
	g := b.stage("g", contract.StageTraining)
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, 2, b.live("g"))
}
