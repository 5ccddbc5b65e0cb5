package view

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/shoenig/test/must"
)

// A field that the core gains has to reach the API: the two structs have the
// same fields in the same order.
func TestVerdictHasAllOfCore(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]any{
		{core.Verdict{}, Verdict{}}, {core.Blocker{}, Blocker{}}, {core.Holder{}, Holder{}}, {core.ETA{}, ETA{}},
	} {
		var names [2][]string
		for i, v := range pair {
			for f := range reflect.TypeOf(v).NumField() {
				if name := reflect.TypeOf(v).Field(f).Name; name != "Gang" || reflect.TypeOf(v).Name() != "Verdict" {
					names[i] = append(names[i], name)
				}
			}
		}
		must.Eq(t, names[0], names[1])
	}
}

func TestFromVerdict(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("X", 3600))
	got := FromVerdict(core.Verdict{
		Gang: "a/b", Action: core.ActionWait, Reason: core.ReasonCards, Sentence: "waits", Position: 3, Effective: 60,
		ETA: core.ETA{From: at, To: at.Add(time.Hour), Assumption: "limits hold", Promised: true},
		Blockers: []core.Blocker{{Reason: core.ReasonCards, Model: "H100", Missing: 4, Text: "4 cards", Remedy: "wait",
			Holders: []core.Holder{{Gang: "a/c", Job: "a/c", Cards: 4, Until: at}}}},
	})
	want := Verdict{
		Action: core.ActionWait, Reason: core.ReasonCards, Sentence: "waits", Position: 3, Effective: 60,
		ETA: ETA{From: at.UTC(), To: at.UTC().Add(time.Hour), Assumption: "limits hold", Promised: true},
		Blockers: []Blocker{{Reason: core.ReasonCards, Model: "H100", Missing: 4, Text: "4 cards", Remedy: "wait",
			Holders: []Holder{{Gang: "a/c", Job: "a/c", Cards: 4, Until: at.UTC()}}}},
	}
	must.Eq(t, "", cmp.Diff(want, got))
	must.True(t, FromETA(core.ETA{}).From.IsZero(), must.Sprint("the zero time stays absent"))
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	e := &Error{Code: CodeRejected, Operation: "submit job", Object: "a/b", Cause: "2 faults", Hint: "see docs/cli.md",
		Faults: []Fault{{Field: "meta.muster_min", Value: "x", Want: "a number"}, {Field: "group", Want: "at least one"}}}
	must.Eq(t, "submit job a/b: 2 faults\n  meta.muster_min = \"x\": a number\n  group: at least one\nsee docs/cli.md", e.Error())
	e.Faults = nil
	must.Eq(t, "submit job a/b: 2 faults; see docs/cli.md", e.Error())
}
