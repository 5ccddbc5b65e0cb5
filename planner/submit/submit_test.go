package submit

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// complete completes a job in JSON and gives it back as a tree.
func complete(t *testing.T, job, namespace string) (tree map[string]any, c Completed) {
	t.Helper()
	c, err := Complete(json.RawMessage(job), namespace)
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(c.Job, &tree))
	return tree, c
}

// A job that says everything itself, as Nomad's own parser gives it, comes out
// as it was.
func TestCompleteLeavesStatedBlocks(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/parsed.json")
	must.NoError(t, err)
	var want map[string]any
	must.NoError(t, json.Unmarshal(raw, &want))
	want["Namespace"] = "default"
	got, c := complete(t, string(raw), "")
	must.Eq(t, "", cmp.Diff(want, got))
	must.Nil(t, c.Added)
	must.Nil(t, c.Warnings)
}

func TestCompleteAdds(t *testing.T) {
	t.Parallel()
	got, c := complete(t, `{"ID": "a", "Type": "batch", "TaskGroups": [{"Name": "rank", "Count": null}, {"Name": "eval", "Count": 2}], "Future": {"big": 12345678901234567890}}`, "lab")
	group := func(name string, count float64) any {
		return map[string]any{"Name": name, "Count": count,
			"RestartPolicy": map[string]any{"Attempts": 0.0, "Mode": "fail"}, "ReschedulePolicy": map[string]any{"Attempts": 0.0, "Unlimited": false},
			"Disconnect": map[string]any{"LostAfter": 86400e9, "Replace": false}}
	}
	must.Eq(t, "", cmp.Diff(map[string]any{
		"ID": "a", "Type": "batch", "Namespace": "lab", "Future": map[string]any{"big": 12345678901234567890.0},
		"Constraints": []any{map[string]any{"LTarget": "${meta.muster}", "RTarget": "admits-this-job", "Operand": "="}},
		"TaskGroups":  []any{group("rank", 1), group("eval", 2)},
	}, got))
	must.StrContains(t, string(c.Job), "12345678901234567890")
	must.Eq(t, []string{
		`constraint ${meta.muster} = admits-this-job: holds the job until the whole gang can run`,
		`group "rank" restart { attempts = 0, mode = "fail" }`,
		`group "rank" reschedule { attempts = 0, unlimited = false }`,
		`group "rank" disconnect { lost_after = "24h", replace = false }`,
		`group "eval" restart { attempts = 0, mode = "fail" }`,
		`group "eval" reschedule { attempts = 0, unlimited = false }`,
		`group "eval" disconnect { lost_after = "24h", replace = false }`,
	}, c.Added)

	again, err := Complete(c.Job, "")
	must.NoError(t, err)
	must.Eq(t, string(c.Job), string(again.Job), must.Sprint("what is complete stays as it is"))
	must.Nil(t, again.Added)
}

func TestCompleteWarnsAndLeavesServicesAlone(t *testing.T) {
	t.Parallel()
	job := `{"ID": "a", "Type": "batch", "TaskGroups": [
		{"Name": "g", "RestartPolicy": {"Attempts": 3}, "ReschedulePolicy": {"Attempts": 0, "Unlimited": true}, "Disconnect": {"LostAfter": 60000000000, "Replace": false}},
		{"Name": "h", "MaxClientDisconnect": 1, "RestartPolicy": {"Attempts": 0}, "ReschedulePolicy": {"Attempts": 0}}]}`
	tree, c := complete(t, job, "")
	must.Len(t, 1, c.Added)
	must.Len(t, 4, c.Warnings)
	for i, word := range []string{`"g" restart`, `"g" reschedule`, `"g" disconnect`, `"h" max_client_disconnect`} {
		must.StrContains(t, c.Warnings[i], word)
	}
	groups := tree["TaskGroups"].([]any)
	must.Eq(t, any(3.0), groups[0].(map[string]any)["RestartPolicy"].(map[string]any)["Attempts"], must.Sprint("what is stated stays"))
	must.MapNotContainsKey(t, groups[1].(map[string]any), "Disconnect")

	tree, c = complete(t, `{"ID": "a", "TaskGroups": [{"Name": "web", "Count": 3}]}`, "")
	must.Len(t, 1, c.Added, must.Sprint("only the hold"))
	must.Eq(t, any("service"), tree["Type"])
	must.MapNotContainsKey(t, tree["TaskGroups"].([]any)[0].(map[string]any), "RestartPolicy")
}

func TestUnwrap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ in, want string }{
		{`{"ID": "a"}`, `{"ID": "a"}`}, {`{"Job": {"ID": "a"}}`, `{"ID": "a"}`}, {`{"Job": {"ID": "a"}, "EnforceIndex": true}`, `{"ID": "a"}`},
		{`[]`, ""}, {`null`, ""}, {`{"Job": null}`, ""}, {`{"Job": 3}`, ""}, {``, ""}, {`"x"`, ""},
	} {
		got, err := Unwrap([]byte(test.in))
		must.Eq(t, test.want == "", err != nil, must.Sprint(test.in))
		must.Eq(t, test.want, string(got))
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	cfg := &core.Config{Queues: []core.Queue{
		{Name: "teams"},
		{Name: "research", Parent: "teams", Namespaces: []string{"lab"}, Users: []string{"alice", "team-b"}},
		{Name: "prod", Parent: "teams", Namespaces: []string{"prod"}},
		{Name: "prod-low", Parent: "teams", Namespaces: []string{"prod"}},
		{Name: "common", Namespaces: []string{"main"}, Shared: true},
		{Name: "scavenger"},
	}}
	any := Submitter{Any: true}
	tests := []struct {
		name, namespace, named string
		by                     Submitter
		want                   core.QueueName
		fault                  string
	}{
		{"named", "lab", "research", any, "research", ""},
		{"by the namespace", "lab", "", any, "research", ""},
		{"no namespaces: open to all", "elsewhere", "scavenger", any, "scavenger", ""},
		{"shared", "lab", "common", any, "common", ""},
		{"none bound", "elsewhere", "", any, "", `no queue is bound to the namespace "elsewhere", so the job must name one: common, scavenger`},
		{"several bound", "prod", "", any, "", `several queues are bound to the namespace "prod", so the job must name one: prod, prod-low`},
		{"unknown", "lab", "gone", any, "", `no queue has this name; open to the namespace "lab" are: common, research, scavenger`},
		{"an inner queue", "lab", "teams", any, "", "holds queues, not gangs"},
		{"another's", "lab", "prod", any, "", "belongs to the namespaces prod and is not shared"},
		{"a user", "lab", "", Submitter{Name: "alice"}, "research", ""},
		{"a group", "lab", "", Submitter{Name: "bob", Groups: []string{"team-a", "team-b"}}, "research", ""},
		{"a stranger", "lab", "", Submitter{Name: "eve", Groups: []string{"team-c"}}, "research", "is for alice, team-b, and eve is none of them"},
		{"a token for another queue", "lab", "", Submitter{Name: "alice", Queues: []string{"common"}}, "research", "the token of alice is for the queues common"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, faults := Queue(cfg, test.namespace, test.named, test.by)
			must.Eq(t, test.want, got)
			must.Eq(t, test.fault == "", len(faults) == 0, must.Sprint(faults))
			if test.fault != "" {
				must.StrContains(t, contract.Faults(faults).Error(), test.fault)
			}
		})
	}
}

// Whatever a submission is, it is completed, keeps its unknown fields and is
// complete then, or it is refused.
func FuzzComplete(f *testing.F) {
	f.Add([]byte(`{"Job": {"ID": "a", "Type": "batch", "TaskGroups": [{"Name": "g", "Count": 2, "X": 1e999}]}}`))
	f.Add([]byte(`{"TaskGroups": [null], "Constraints": [3, {"LTarget": 7}]}`))
	f.Add([]byte(`{"Type": "batch", "TaskGroups": [{"RestartPolicy": {"Attempts": null}, "Disconnect": {}}], "Reschedule": {}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		job, err := Unwrap(raw)
		if err != nil {
			return
		}
		c, err := Complete(job, "")
		if err != nil {
			return
		}
		if !json.Valid(c.Job) || !strings.Contains(string(c.Job), contract.HoldValue) {
			t.Fatalf("not a held job: %s", c.Job)
		}
		again, err := Complete(c.Job, "")
		if err != nil || string(again.Job) != string(c.Job) || len(again.Added) > 0 {
			t.Fatalf("not complete: %v, %v", err, again.Added)
		}
	})
}
