package jobspec

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/shoenig/test/must"
)

// The texts in testdata were recorded from a real Nomad 2.0.6.
func load(t testing.TB, name string) *Job {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	must.NoError(t, err)
	j, err := Parse(raw)
	must.NoError(t, err)
	return j
}

func edit(t testing.TB, j *Job, f func(map[string]any)) *Job {
	t.Helper()
	tree := j.tree()
	f(tree)
	out, err := Parse(encode(tree))
	must.NoError(t, err)
	return out
}

var pin = Pin{Attempt: 3, Priority: 100, KillTimeout: time.Minute, Levels: []LevelPin{{"${meta.spine}", []string{"s1"}}, {"${meta.leaf}", []string{"l2", "l1"}}},
	Groups: map[string]GroupPin{"rank": {Nodes: []string{"b", "a"}, PerNode: 2, Cards: []CardPin{{Task: "train", Place: 0, IDs: []string{"GPU-2", "GPU-1"}}}}}}

func TestHeldAndPinned(t *testing.T) {
	t.Parallel()
	user := load(t, "held.json")
	must.True(t, user.IsHeld())
	must.Eq(t, 0, user.Mark())
	must.Eq(t, 4, user.Members())
	raw, err := user.Pinned(pin)
	must.NoError(t, err)
	pinned, err := Parse(raw)
	must.NoError(t, err)
	must.False(t, pinned.IsHeld())
	must.Eq(t, 3, pinned.Mark())
	must.True(t, pinned.IsGang())
	must.Eq(t, 100, pinned.Priority)
	must.Eq(t, []Constraint{{contract.HoldAttribute, "attempt-3", "!="}, {"${meta.spine}", "s1", "set_contains_any"}, {"${meta.leaf}", "l1,l2", "set_contains_any"}}, pinned.Constraints)
	must.Eq(t, []Constraint{{"${node.unique.id}", "a,b", "set_contains_any"}, {"${node.unique.id}", "2", "distinct_property"}}, pinned.TaskGroups[0].Constraints)
	must.Eq(t, []Constraint{{"${device.ids}", "GPU-1,GPU-2", "set_contains_any"}}, pinned.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints)
	must.Eq(t, time.Minute, pinned.TaskGroups[0].Tasks[0].KillTimeout)

	must.Eq(t, 0, pinned.Step())
	again := pin
	again.Step = 12
	raw, err = user.Pinned(again)
	must.NoError(t, err)
	later, err := Parse(raw)
	must.NoError(t, err)
	must.Eq(t, 3, later.Mark())
	must.Eq(t, 12, later.Step())

	// The way back: the user's text is what is held, whatever was pinned.
	back, err := Parse(user.Held())
	must.NoError(t, err)
	must.True(t, back.IsHeld())
	must.True(t, Same(back, user))
	must.False(t, Same(pinned, user))

	// What Nomad sets is not sent back to it.
	for _, field := range serverFields {
		must.StrNotContains(t, string(user.Held()), `"`+field+`":`)
	}
}

// Fields that this build does not know, and numbers of any size, survive.
func TestUnknownFieldsSurvive(t *testing.T) {
	t.Parallel()
	user := edit(t, load(t, "held.json"), func(j map[string]any) {
		j["FieldOfANewerNomad"] = map[string]any{"Deep": json.Number("9007199254740993"), "HTML": "<&>"}
		object(list(j["TaskGroups"])[0])["AlsoNew"] = []any{"x"}
	})
	raw, err := user.Pinned(pin)
	must.NoError(t, err)
	must.StrContains(t, string(raw), `"FieldOfANewerNomad":{"Deep":9007199254740993,"HTML":"<&>"}`)
	must.StrContains(t, string(raw), `"AlsoNew":["x"]`)
}

func TestPinOverrides(t *testing.T) {
	t.Parallel()
	user := edit(t, load(t, "held.json"), func(j map[string]any) {
		g := object(list(j["TaskGroups"])[0])
		g["RestartPolicy"] = map[string]any{"Attempts": 3, "Mode": "delay"}
		g["ReschedulePolicy"] = nil
		g["MaxClientDisconnect"] = 5
		g["Disconnect"] = map[string]any{"StopOnClientAfter": 7, "Replace": true}
		object(list(g["Tasks"])[0])["Templates"] = []any{map[string]any{"ChangeMode": "restart"}}
		object(list(g["Tasks"])[0])["KillTimeout"] = json.Number("3600000000000")
	})
	raw, err := user.Pinned(pin)
	must.NoError(t, err)
	var out struct {
		AllAtOnce  bool
		TaskGroups []struct {
			RestartPolicy, ReschedulePolicy, Disconnect map[string]any
			MaxClientDisconnect                         any
			Tasks                                       []struct {
				KillTimeout   time.Duration
				RestartPolicy map[string]any
				Templates     []map[string]any
			}
		}
	}
	must.NoError(t, json.Unmarshal(raw, &out))
	g := out.TaskGroups[0]
	must.True(t, out.AllAtOnce)
	must.Eq(t, map[string]any{"Attempts": 0.0, "Mode": "fail"}, g.RestartPolicy)
	must.Eq(t, map[string]any{"Attempts": 0.0, "Unlimited": false}, g.ReschedulePolicy)
	must.Eq(t, map[string]any{"LostAfter": float64(24 * time.Hour), "Replace": false, "StopOnClientAfter": nil}, g.Disconnect)
	must.Nil(t, g.MaxClientDisconnect)
	must.Eq(t, time.Hour, g.Tasks[0].KillTimeout, must.Sprint("the user's, which is longer"))
	must.Eq(t, "fail", g.Tasks[0].RestartPolicy["Mode"].(string))
	must.Eq(t, "noop", g.Tasks[0].Templates[0]["ChangeMode"].(string))
}

func TestPinThatDoesNotFitTheJob(t *testing.T) {
	t.Parallel()
	user := load(t, "held.json")
	for name, p := range map[string]Pin{
		"no group":      {Attempt: 1, Groups: map[string]GroupPin{}},
		"unknown group": {Attempt: 1, Groups: map[string]GroupPin{"rank": {}, "other": {}}},
		"unknown block": {Attempt: 1, Groups: map[string]GroupPin{"rank": {Cards: []CardPin{{Task: "train", Place: 1, IDs: []string{"x"}}}}}},
	} {
		_, err := user.Pinned(p)
		must.Error(t, err, must.Sprint(name))
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	user := load(t, "held.json")
	for name, test := range map[string]struct {
		change func(map[string]any)
		same   bool
	}{
		"what Nomad sets":  {func(j map[string]any) { j["Version"], j["Status"], j["JobModifyIndex"] = 9, "dead", 99 }, true},
		"without the hold": {func(j map[string]any) { j["Constraints"] = nil }, true},
		"empty for null":   {func(j map[string]any) { j["Affinities"] = []any{} }, true},
		"another count":    {func(j map[string]any) { object(list(j["TaskGroups"])[0])["Count"] = 5 }, false},
		"another constraint": {func(j map[string]any) {
			j["Constraints"] = append(list(j["Constraints"]), constraint("${attr.x}", "=", "y"))
		}, false},
		"another priority":    {func(j map[string]any) { j["Priority"] = 51 }, false},
		"another description": {func(j map[string]any) { j["UI"] = map[string]any{"Description": "x"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			other := edit(t, user, test.change)
			must.Eq(t, test.same, Same(user, other))
			must.Eq(t, test.same || name == "another description", SameButUI(user, other))
		})
	}
}

func TestDescribedAndEmptied(t *testing.T) {
	t.Parallel()
	user := edit(t, load(t, "held.json"), func(j map[string]any) { j["UI"] = map[string]any{"Description": "mine", "Links": []any{}} })
	described, err := Parse(user.Described("Muster: waits"))
	must.NoError(t, err)
	must.Eq(t, "mine\n\nMuster: waits", described.UI.Description)
	must.True(t, SameButUI(described, user))
	emptied, err := Parse(user.Emptied())
	must.NoError(t, err)
	must.Eq(t, 0, emptied.Members())
	must.True(t, emptied.IsHeld())
	raw, changed, ok := user.Rescaled(emptied)
	must.True(t, ok)
	must.Eq(t, []string{"rank"}, changed)
	again, err := Parse(raw)
	must.NoError(t, err)
	must.Eq(t, 0, again.Members())
}

func TestGroups(t *testing.T) {
	t.Parallel()
	j := edit(t, load(t, "pinned-by-hand.json"), func(j map[string]any) {
		j["Constraints"] = []any{constraint(contract.HoldAttribute, "=", contract.HoldValue), constraint("${attr.kernel.name}", "", "linux")}
		g := object(list(j["TaskGroups"])[0])
		g["Networks"] = []any{map[string]any{"DynamicPorts": []any{map[string]any{"Label": "rendezvous"}}, "ReservedPorts": []any{map[string]any{"Label": "x", "Value": 99}}}}
		g["Tasks"] = append(list(g["Tasks"]),
			map[string]any{"Name": "fetch", "Driver": "exec", "Lifecycle": map[string]any{"Hook": "prestart"}, "Resources": map[string]any{"CPU": 1000, "MemoryMB": 10}},
			map[string]any{"Name": "logs", "Driver": "exec", "Lifecycle": map[string]any{"Hook": "prestart", "Sidecar": true}, "Resources": map[string]any{"CPU": 50, "MemoryMB": 20}})
	})
	g := j.Groups()[0]
	must.Eq(t, core.Resources{CPU: 1050, MemoryMB: 84, DiskMB: 10}, g.Use)
	must.Eq(t, []string{"exec", "raw_exec"}, g.Drivers)
	must.Eq(t, []int{99}, g.StaticPorts)
	must.Eq(t, 1, g.Ports)
	must.Eq(t, "file", g.Devices[0].Type)
	must.Eq(t, "nomad", g.Devices[0].Vendor)
	must.SliceContains(t, g.Constraints, core.Constraint{Left: "${attr.kernel.name}", Operand: "=", Right: "linux"})
	for _, c := range g.Constraints {
		must.NotEq(t, contract.HoldAttribute, c.Left)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	j := edit(t, load(t, "held.json"), func(j map[string]any) {
		j["Constraints"] = nil
		j["Meta"] = map[string]any{"muster_queue": "q", "muster_min": "9", "muster_retries": "x"}
	})
	_, faults := j.Want([]string{"gpu"})
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	for _, want := range []string{"meta.muster_min", "meta.muster_retries", "constraint"} {
		must.True(t, slices.Contains(fields, want), must.Sprintf("no fault of %s in %v", want, fields))
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"held.json", "pinned-by-hand.json"} {
		raw, err := os.ReadFile("testdata/" + name)
		must.NoError(f, err)
		f.Add(string(raw))
	}
	f.Add(`{"ID":"x","TaskGroups":[null,{"Tasks":[null,{"Resources":null}]}],"Constraints":[null,{"LTarget":null}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		j, err := Parse([]byte(text))
		if err != nil {
			return
		}
		// Whatever a user can register is read, rewritten and compared.
		j.Groups()
		j.Want([]string{"gpu"})
		held, err := Parse(j.Held())
		if err != nil {
			t.Fatal(err)
		}
		if !held.IsHeld() || held.Mark() != 0 {
			t.Fatalf("not held: %s", held.Raw())
		}
		j.Described("x")
		j.Emptied()
		groups := map[string]GroupPin{}
		for _, g := range j.TaskGroups {
			groups[g.Name] = GroupPin{Nodes: []string{"a"}, PerNode: 1}
		}
		if raw, err := j.Pinned(Pin{Attempt: 1, Groups: groups}); err == nil && !strings.Contains(string(raw), "attempt-1") {
			t.Fatalf("no mark: %s", raw)
		}
		if !Same(j, j) || !Same(j, held) && !strings.Contains(text, contract.HoldAttribute) {
			t.Fatalf("not the same as itself: %s", text)
		}
	})
}
