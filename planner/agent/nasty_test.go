package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// group and task are the first of a job's.
func group(j map[string]any) map[string]any { return j["TaskGroups"].([]any)[0].(map[string]any) }
func task(j map[string]any) map[string]any  { return group(j)["Tasks"].([]any)[0].(map[string]any) }
func with(key string, v any) func(map[string]any) {
	return func(j map[string]any) { j[key] = v }
}
func groupWith(key string, v any) func(map[string]any) {
	return func(j map[string]any) { group(j)[key] = v }
}
func taskWith(key string, v any) func(map[string]any) {
	return func(j map[string]any) { task(j)[key] = v }
}
func metaWith(key string, v any) func(map[string]any) {
	return func(j map[string]any) {
		meta := map[string]any{contract.MetaQueue: "default"}
		meta[key] = v
		j["Meta"] = meta
	}
}
func devices(list ...any) func(map[string]any) {
	return func(j map[string]any) { task(j)["Resources"].(map[string]any)["Devices"] = list }
}

// nasty are job texts that nobody should write, each a change of a proper gang.
var nasty = map[string]func(map[string]any){
	"huge count":           groupWith("Count", 1<<40),
	"count overflows":      groupWith("Count", int64(1)<<62),
	"negative count":       groupWith("Count", -1),
	"count of zero":        groupWith("Count", 0),
	"count is text":        groupWith("Count", "three"),
	"count is null":        groupWith("Count", nil),
	"no groups":            with("TaskGroups", []any{}),
	"groups are null":      with("TaskGroups", nil),
	"a null group":         with("TaskGroups", []any{nil}),
	"groups are text":      with("TaskGroups", "rank"),
	"no tasks":             groupWith("Tasks", []any{}),
	"a null task":          groupWith("Tasks", []any{nil}),
	"group without name":   groupWith("Name", ""),
	"group named oddly":    groupWith("Name", "räñk/.. \"x\"\n"),
	"two groups, one name": func(j map[string]any) { j["TaskGroups"] = []any{group(j), group(j)} },
	"null resources":       taskWith("Resources", nil),
	"negative resources":   taskWith("Resources", map[string]any{"CPU": -100, "MemoryMB": -64, "Devices": []any{map[string]any{"Name": "nvidia/gpu", "Count": -1}}}),
	"huge resources":       taskWith("Resources", map[string]any{"CPU": int64(1) << 62, "MemoryMB": int64(1) << 62}),
	"cards beyond int":     devices(map[string]any{"Name": "nvidia/gpu", "Count": uint64(1<<64 - 1)}),
	"no cards":             devices(map[string]any{"Name": "nvidia/gpu", "Count": 0}),
	"a null device":        devices(nil),
	"device of slashes":    devices(map[string]any{"Name": "////", "Count": 1}),
	"device of nothing":    devices(map[string]any{"Name": "", "Count": 1}),
	"device ids twice":     devices(map[string]any{"Name": "gpu", "Count": 1}, map[string]any{"Name": "nvidia/gpu/H100", "Count": 1}),
	"device constraint": devices(map[string]any{"Name": "gpu", "Count": 1, "Constraints": []any{
		map[string]any{"LTarget": "${device.attr.memory}", "Operand": ">=", "RTarget": "1 parsec"},
		map[string]any{"LTarget": "${device.ids}", "Operand": "set_contains_any", "RTarget": ",,,"}}}),
	"config of wrong types": taskWith("Config", map[string]any{"command": 7, "args": "x", "launcher": []any{1, map[string]any{}}, "nproc_per_node": map[string]any{"a": nil}}),
	"config is null":        taskWith("Config", nil),
	"config is a list":      taskWith("Config", []any{1}),
	"unknown config":        taskWith("Config", map[string]any{"\x00": "\x00", "": nil}),
	"task with dots":        taskWith("Name", "../../train.v1"),
	"task with a slash":     taskWith("Name", "a/b"),
	"task of 4 KiB":         taskWith("Name", strings.Repeat("t", 4096)),
	"driver unknown":        taskWith("Driver", "no-such"),
	"meta of 1 MB":          metaWith("note", strings.Repeat("x", 1<<20)),
	"meta is a list":        with("Meta", []any{"a"}),
	"meta value a number":   metaWith(contract.MetaQueue, 7),
	"every key wrong": func(j map[string]any) {
		meta := map[string]any{}
		for _, k := range []string{contract.MetaQueue, contract.MetaRetries, contract.MetaUser, "muster_time_limit", "muster_topology", "muster_nonsense"} {
			meta[k] = "\u2028-1e999h/../"
		}
		j["Meta"] = meta
	},
	"retries without end": metaWith(contract.MetaRetries, "99999999999999999999"),
	"datacenter globs":    with("Datacenters", []any{"*", "dc[", "", "[!-]", "\\"}),
	"no datacenters":      with("Datacenters", []any{}),
	"node pool":           with("NodePool", "no/such pool"),
	"namespace":           with("Namespace", "nowhere"),
	"priority":            with("Priority", 1<<40),
	"negative priority":   with("Priority", -7),
	"regexp":              with("Constraints", []any{map[string]any{"LTarget": "${attr.kernel.name}", "Operand": "regexp", "RTarget": "(((("}}),
	"null constraint":     with("Constraints", []any{nil}),
	"operand unknown":     with("Constraints", []any{map[string]any{"LTarget": "${", "Operand": "~", "RTarget": "}"}}),
	"version":             with("Constraints", []any{map[string]any{"LTarget": "${attr.nomad.version}", "Operand": "version", "RTarget": "><"}}),
	"distinct_property":   with("Constraints", []any{map[string]any{"LTarget": "${meta.leaf}", "Operand": "distinct_property", "RTarget": "many"}}),
	"null spread":         with("Spreads", []any{nil}),
	"null affinity":       with("Affinities", []any{nil}),
	"periodic":            with("Periodic", map[string]any{"Enabled": true, "Spec": "* * * * * * * *", "SpecType": "cron"}),
	"parameterized":       with("ParameterizedJob", map[string]any{"Payload": "sometimes"}),
	"type":                with("Type", "nightly"),
	"system":              with("Type", "system"),
	"multiregion":         with("Multiregion", map[string]any{"Regions": []any{nil}}),
	"disk":                groupWith("EphemeralDisk", map[string]any{"SizeMB": -5}),
	"null disk":           groupWith("EphemeralDisk", nil),
	"networks":            groupWith("Networks", []any{nil, map[string]any{"Mode": "host", "DynamicPorts": []any{map[string]any{"Label": "", "To": -9}}, "ReservedPorts": []any{map[string]any{"Label": "a", "Value": 1 << 30}}}}),
	"restart":             groupWith("RestartPolicy", map[string]any{"Attempts": -1, "Mode": "never"}),
	"kill timeout":        taskWith("KillTimeout", int64(-1)<<62),
	"null template":       taskWith("Templates", []any{nil}),
	"lifecycle":           taskWith("Lifecycle", map[string]any{"Hook": "sometimes"}),
}

var nastyIDs = []string{"with space", "a/b", "../up", "job%2Fx", "räñk-木", "a?b#c", ".", "..", strings.Repeat("j", 2000), "nul\x00id", "tab\tid", "line\nid", "a.b", "*", ""}

// Nothing that a user can put into a job stops the planner, or the simulated
// cluster that it stands on: neither straight at Nomad's door nor at ours. What
// is refused is refused with words, and a proper gang submitted afterwards runs.
func TestNothingInAJobStopsThePlanner(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 2).direct().start()
	texts := map[string]json.RawMessage{}
	for i, name := range slices.Sorted(maps.Keys(nasty)) {
		texts[name] = job{id: fmt.Sprintf("nasty-%d", i), count: 2, cards: 1, args: []string{"run=5ms"}, more: nasty[name]}.json()
		texts[name+", not held"] = job{id: fmt.Sprintf("loose-%d", i), count: 2, cards: 1, args: []string{"run=5ms"}, more: nasty[name], unheld: true}.json()
	}
	for _, id := range nastyIDs {
		texts[fmt.Sprintf("id %.20q", id)] = job{id: id, count: 2, cards: 1, args: []string{"run=5ms"}}.json()
	}
	texts["not an object"] = json.RawMessage(`[1,2,3]`)
	texts["null"] = json.RawMessage(`null`)
	texts["deep"] = json.RawMessage(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))
	caller := httpapi.Caller{Name: "alice", Role: view.RoleSubmitter}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		raw := texts[name]
		body, err := json.Marshal(map[string]json.RawMessage{"Job": raw})
		must.NoError(t, err)
		// Straight at Nomad.
		for _, path := range []string{"/v1/jobs", "/v1/validate/job"} {
			r, err := http.Post(b.sim.URL()+path, "application/json", bytes.NewReader(body))
			must.NoError(t, err, must.Sprintf("%s: POST %s", name, path))
			text, err := io.ReadAll(r.Body)
			r.Body.Close()
			must.NoError(t, err, must.Sprintf("%s: POST %s", name, path))
			if r.StatusCode != http.StatusOK {
				must.NotEq(t, "", strings.TrimSpace(string(text)), must.Sprintf("%s: POST %s: %s", name, path, r.Status))
			}
		}
		// Through the planner.
		if _, err := b.agent.Register(context.Background(), caller, raw, view.Submission{}); err != nil {
			must.NotEq(t, "", err.Error(), must.Sprint(name))
		}
	}
	b.submit(job{id: "proper", count: 2, cards: 1, args: []string{"run=20ms"}, more: func(j map[string]any) { j["Priority"] = 90 }})
	b.until("proper", "known", func(g view.Gang) bool { return g.Stage != "" })
	// Some of the above is good enough to run; what waits may stand before it.
	b.stage("proper", contract.StageComplete)
}
