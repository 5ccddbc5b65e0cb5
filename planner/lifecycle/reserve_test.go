package lifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
)

// The pinned job names the domains in use of the topology's levels, the
// outermost first.
func TestLevelsOfThePins(t *testing.T) {
	t.Parallel()
	levels := []core.Level{{Name: "spine", Attribute: "${meta.spine}"}, {Name: "leaf", Attribute: "${meta.leaf}"}}
	for name, test := range map[string]struct {
		first, second []string // domains of the two nodes
		want          []jobspec.Constraint
	}{
		"both levels": {[]string{"s1", "l1"}, []string{"s1", "l2"}, []jobspec.Constraint{
			{LTarget: "${meta.spine}", Operand: "set_contains_any", RTarget: "s1"}, {LTarget: "${meta.leaf}", Operand: "set_contains_any", RTarget: "l1,l2"}}},
		"no spine is known": {[]string{"", "l1"}, []string{"s1", "l2"}, []jobspec.Constraint{{LTarget: "${meta.leaf}", Operand: "set_contains_any", RTarget: "l1,l2"}}},
		"no leaf is known":  {[]string{"s2", "l1"}, []string{"s1", ""}, []jobspec.Constraint{{LTarget: "${meta.spine}", Operand: "set_contains_any", RTarget: "s1,s2"}}},
		"nothing is known":  {nil, []string{"s1", "l1"}, []jobspec.Constraint{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set.Levels = levels
			w.nodes["n0"].Domains, w.nodes["n1"].Domains = test.first, test.second
			w.submit(nil)
			w.start()
			must.Eq(t, test.want, w.job.Constraints[1:]) // the first is the mark
		})
	}
}

// A level of which very many names are in use is left out, but not the
// outermost.
func TestLevelsInUseByTheHundred(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set.Levels = []core.Level{{Name: "spine", Attribute: "${meta.spine}"}, {Name: "leaf", Attribute: "${meta.leaf}"}}
	var members []core.Placement
	for i := range 100 {
		id := string(rune('a'+i/10)) + string(rune('0'+i%10))
		n := *w.nodes["n0"]
		n.ID, n.Domains = core.NodeID(id), []string{"s" + id, "l" + id}
		w.nodes[id] = &n
		members = append(members, core.Placement{Member: i, Node: core.NodeID(id)})
	}
	pins := w.gang.levels(members, w.seen(false))
	must.Len(t, 1, pins)
	must.Eq(t, "${meta.spine}", pins[0].Attribute)
	must.Len(t, 100, pins[0].Values)
}

// startFresh has a fresh plan carried out.
func (w *world) startFresh() {
	w.t.Helper()
	w.settle()
	effects := w.gang.Step(Start{Seen: w.seen(false), Fresh: true, Plan: core.Start{Gang: "default/g", Members: []core.Placement{{Group: "rank", Member: 0, Node: "n0"}, {Group: "rank", Member: 1, Node: "n1"}}}})
	must.SliceNotEmpty(w.t, effects)
	w.carry(effects)
}

// A fresh plan is carried out without a dry run. Where Nomad does something
// else, the gang goes back without being charged for it, and its next place is
// tried dry.
func TestDryRunWhereItTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.startFresh()
	must.False(t, slices.Contains(w.log, "Check"))
	w.settle()
	must.Eq(t, Reserving, w.gang.Saved.Phase)

	w = newWorld(t)
	w.submit(nil)
	w.unplaced = true
	w.startFresh()
	w.evals[len(w.evals)-1].Failed, w.evals[len(w.evals)-1].Why = map[string]bool{"rank": true}, "constraint filtered 4 nodes"
	w.settle()
	must.Eq(t, Waiting, w.gang.Saved.Phase)
	must.True(t, w.gang.Saved.Dry)
	must.Zero(t, w.gang.Saved.SiteFailures)
	must.StrContains(t, w.gang.Saved.NotBeforeWhy, "constraint filtered")
	must.False(t, slices.Contains(w.log, "Check"))
	w.now = w.now.Add(time.Minute)
	w.unplaced = false
	w.startFresh()
	must.True(t, slices.Contains(w.log, "Check"))
	w.settle()
	must.Eq(t, 2, w.gang.Saved.Attempt)

	// A server that may evict others is always asked first.
	w = newWorld(t)
	w.set.Evicts = true
	w.submit(nil)
	w.startFresh()
	must.True(t, slices.Contains(w.log, "Check"))
}

// Tasks of other drivers run as soon as Nomad has placed them, so that their
// failure before the gang is whole is theirs: it is told with its code and
// counts as a retry, and no node is avoided for it.
func TestPlainTaskThatFailsIsNoFaultOfTheNode(t *testing.T) {
	t.Parallel()
	for retries, phase := range map[string]Phase{"0": Over, "1": Waiting} {
		w := newWorld(t)
		w.submit(func(job map[string]any) {
			job["Meta"] = map[string]string{"muster_queue": "q", "muster_retries": retries}
			job["TaskGroups"].([]any)[0].(map[string]any)["Tasks"].([]any)[0].(map[string]any)["Driver"] = "exec"
		})
		w.unplaced = true
		w.start()
		w.place()
		for i := range w.allocs {
			w.allocs[i].Tasks[0].State = "running"
			w.allocs[i].Client = "pending"
		}
		w.end(w.allocs[1].ID, "failed", "run")
		w.allocs[1].Tasks = []picture.Task{{Name: "train", State: "dead", Failed: true, ExitCode: 3, Why: "Policy allows no restarts", LastEvent: "Not Restarting"}}
		w.settle()
		must.Eq(t, phase, w.gang.Saved.Phase, must.Sprint(retries))
		last := w.gang.Saved.Attempts[0]
		must.Eq(t, ReasonMember, last.Reason)
		must.Eq(t, `member 1 on node n1: task "train" ended with code 3`, last.Text)
		must.Eq(t, 3, last.Exit.Code)
		must.Eq(t, 1, last.Member)
		must.SliceEmpty(t, w.gang.Saved.Avoid)
		must.Zero(t, w.gang.Saved.SiteFailures)
		if phase == Over {
			must.Eq(t, contract.StageFailed, w.gang.Saved.End.Stage)
		}
	}
}

// A reason that the text begins with is not said twice.
func TestSentence(t *testing.T) {
	t.Parallel()
	must.Eq(t, "stopped by alice: enough", (&Stop{Reason: ReasonStopped, Text: "stopped by alice: enough"}).Sentence())
	must.Eq(t, "node-lost: node n1 was lost", (&Stop{Reason: ReasonNodeLost, Text: "node n1 was lost"}).Sentence())
}
