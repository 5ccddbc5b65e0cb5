package picture

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/scan"
	"github.com/shoenig/test/must"
)

// The objects in testdata were recorded from a real Nomad 2.0.6.
func read(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	must.NoError(t, err)
	return raw
}

var levels = []core.Level{{Name: "spine", Attribute: "${meta.spine}"}, {Name: "leaf", Attribute: "meta.leaf"}, {Name: "rack", Attribute: "${meta.rack}"}}

func TestNode(t *testing.T) {
	t.Parallel()
	n, err := DecodeNode(read(t, "node.json"), levels)
	must.NoError(t, err)
	must.Eq(t, "n1", n.Name)
	must.True(t, n.Ready && n.Eligible && !n.Draining)
	must.Eq(t, []string{"spine1", "leaf1", ""}, n.Domains)
	must.Eq(t, core.Resources{CPU: 64000, Cores: 2, MemoryMB: 262144, DiskMB: 258019}, n.Capacity)
	must.Eq(t, 20000, n.MinPort)
	must.True(t, n.Drivers["raw_exec"])
	must.False(t, n.Drivers["docker"])
	must.Len(t, 1, n.Devices)
	must.Eq(t, "mock", string(n.Devices[0].Name))
	must.Len(t, 4, n.Devices[0].Cards)
	must.Eq(t, -1, n.Devices[0].Cards[0].NUMA)
	must.Eq(t, "127.0.0.1", n.Address)
}

// What the device plugin tells of cards is taken where it can be read, and said
// where it cannot.
func TestNodeWithCards(t *testing.T) {
	t.Parallel()
	one := 1
	text, err := contract.EncodeCards(contract.CardGroup{
		Cards: []contract.Card{{ID: "GPU-n1-b", NUMA: &one, Domain: "nv0", State: "quarantined", Why: "Xid 79"}, {ID: "GPU-n1-a", Domain: "nv0", NICs: []contract.NIC{{ID: "mlx5_0"}}}, {ID: "GPU-gone"}},
		Links: []contract.Link{{A: 0, B: 1, Count: 18}, {A: 1, B: 2, Count: 1}}})
	must.NoError(t, err)
	with := func(attribute string) *Node {
		var raw map[string]any
		must.NoError(t, json.Unmarshal(read(t, "node.json"), &raw))
		group := raw["NodeResources"].(map[string]any)["Devices"].([]any)[0].(map[string]any)
		group["Attributes"].(map[string]any)[contract.AttrCards] = map[string]any{"String": attribute}
		out, err := json.Marshal(raw)
		must.NoError(t, err)
		n, err := DecodeNode(out, levels)
		must.NoError(t, err)
		return n
	}
	n := with(text)
	cards := n.Devices[0].Cards
	must.Eq(t, "GPU-n1-a", string(cards[0].ID))
	must.Eq(t, []core.CardID{"mlx5_0"}, cards[0].NICs)
	must.Eq(t, core.CardQuarantined, cards[1].State)
	must.Eq(t, "Xid 79", cards[1].Why)
	must.Eq(t, 1, cards[1].NUMA)
	must.Eq(t, []core.Link{{A: 0, B: 1, Count: 18}}, n.Devices[0].Links)
	must.MapNotContainsKey(t, n.Devices[0].Attributes, contract.AttrCards)
	must.Len(t, 0, n.Notices)

	n = with(`{"v":99}`)
	must.Len(t, 4, n.Devices[0].Cards)
	must.Len(t, 1, n.Notices)
	must.StrContains(t, n.Notices[0].Text, "version 99")
	must.Eq(t, core.CardQuarantined, cardState("a state of a newer plugin"))
}

func TestAlloc(t *testing.T) {
	t.Parallel()
	a, err := DecodeAlloc(read(t, "alloc.json"))
	must.NoError(t, err)
	must.Eq(t, 3, a.NameIndex())
	must.False(t, a.Terminal() || a.Stopping() || a.Unknown())
	must.Eq(t, core.Resources{CPU: 100, MemoryMB: 64, DiskMB: 10}, a.Use)
	c := a.Claim()
	must.Eq(t, []core.CardID{"GPU-n3-a", "GPU-n3-b"}, c.Cards)
	must.Eq(t, -1, c.Member)
	must.Len(t, 1, a.Tasks)
	must.Eq(t, "running", a.Tasks[0].State)
	must.Eq(t, -1, a.Tasks[0].ExitCode)
}

func TestAllocEndsAndReports(t *testing.T) {
	t.Parallel()
	report, err := json.Marshal(contract.Report{V: 1, Attempt: 2, Alloc: "a", Task: "train", State: contract.StateEnded})
	must.NoError(t, err)
	event := func(kind, more string) string { return fmt.Sprintf(`{"Type":%q%s}`, kind, more) }
	text := fmt.Sprintf(`{"ID":"a","JobID":"j","Name":"j.rank[x]","ClientStatus":"failed","DesiredStatus":"run","TaskStates":{"train":{"State":"dead","Failed":true,"Events":[%s,%s,%s,%s]},"gone":null}}`,
		event("Driver", fmt.Sprintf(`,"Details":{"muster_report":%q}`, report)), event("Driver", `,"Details":{"muster_report":"{\"v\":77}"}`),
		event("Terminated", `,"ExitCode":137,"Signal":9,"DisplayMessage":"Exit Code: 137","Details":{"oom_killed":"true"}`),
		event("Not Restarting", `,"FailsTask":true,"DisplayMessage":"Policy allows no restarts"`))
	a, err := DecodeAlloc([]byte(text))
	must.NoError(t, err)
	must.True(t, a.Terminal())
	must.Eq(t, -1, a.NameIndex())
	must.Eq(t, "default", a.Namespace)
	task := a.Tasks[0]
	must.Len(t, 1, task.Reports, must.Sprint("a report of a version that is not known is left out"))
	must.Eq(t, 2, task.Reports[0].Attempt)
	must.Eq(t, 137, task.ExitCode)
	must.Eq(t, 9, task.Signal)
	must.True(t, task.OOM)
	must.Eq(t, "Policy allows no restarts", task.Why)
}

func TestEval(t *testing.T) {
	t.Parallel()
	var w WireEval
	must.NoError(t, json.Unmarshal(read(t, "eval.json"), &w))
	e := w.Eval()
	must.True(t, e.Ended())
	must.True(t, e.Failed["rank"])
	must.StrContains(t, e.Why, "admits-this-job")
}

func TestPortList(t *testing.T) {
	t.Parallel()
	must.Eq(t, []int{22, 80, 81, 82, 90}, portList("22, 80-82,90,x,5-y"))
	must.Len(t, 0, portList(""))
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"node.json", "alloc.json"} {
		f.Add(read(f, name))
	}
	f.Add([]byte(`{"ID":"x","JobID":"y","TaskStates":{"t":null},"AllocatedResources":{"Tasks":{"t":{}},"TaskLifecycles":{"t":null}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if n, err := DecodeNode(raw, levels); err == nil && n.ID == "" {
			t.Fatal("a node without an id was taken")
		}
		if a, err := DecodeAlloc(raw); err == nil {
			a.Claim()
			if a.ID == "" || a.JobID == "" {
				t.Fatal("an allocation without id or job was taken")
			}
		}
		var w WireAlloc
		if json.Unmarshal(raw, &w) == nil {
			text, err := json.Marshal(w)
			must.NoError(t, err)
			whole, err := DecodeAlloc(text)
			update, wrong := UpdateAlloc(text, func(string) *Alloc { return nil })
			if (err == nil) != (wrong == nil) || !reflect.DeepEqual(whole, update) {
				t.Fatalf("read two ways: %+v, %v; %+v, %v", whole, err, update, wrong)
			}
		}
		_, _ = DecodeJob(raw)
	})
}

// A job that Nomad takes and this build cannot read is known by its name, and
// is nobody's gang.
func TestJobThatCannotBeRead(t *testing.T) {
	t.Parallel()
	j, err := DecodeJob([]byte(`{"ID":"odd","Namespace":"lab","Type":"batch","ModifyIndex":7,"Meta":{"muster_queue":"default"},"TaskGroups":[{"Name":"g","Count":"three"}]}`))
	must.NoError(t, err)
	must.Eq(t, Key{Namespace: "lab", Job: "odd"}, j.Key)
	must.Eq(t, 7, j.Index)
	must.Nil(t, j.Gang)
	must.ErrorContains(t, j.Unread, "Count")

	// Nomad's device counts have 64 bits and no sign.
	j, err = DecodeJob([]byte(`{"ID":"many","Type":"batch","Meta":{"muster_queue":"default"},"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Resources":{"Devices":[{"Name":"gpu","Count":18446744073709551615}]}}]}]}`))
	must.NoError(t, err)
	must.NoError(t, j.Unread)
	must.Eq(t, 1_000_000, j.Gang.Groups()[0].Devices[0].Count)

	for _, text := range []string{`{`, `[]`, `{"ID":""}`, `{"ID":7}`} {
		_, err := DecodeJob([]byte(text))
		must.Error(t, err, must.Sprint(text))
	}
}

// An update reads as the allocation itself does, whatever is known of it; what
// it holds is not read again while no server changed it.
func TestUpdateAlloc(t *testing.T) {
	t.Parallel()
	raw := read(t, "alloc.json")
	whole, err := DecodeAlloc(raw)
	must.NoError(t, err)
	must.Positive(t, whole.AllocIndex)
	none := func(string) *Alloc { return nil }
	first, err := UpdateAlloc(raw, none)
	must.NoError(t, err)
	must.Eq(t, whole, first)
	known := func(id string) *Alloc {
		must.Eq(t, whole.ID, id)
		return whole
	}
	again, err := UpdateAlloc(raw, known)
	must.NoError(t, err)
	must.Eq(t, whole, again)
	older := *whole
	older.AllocIndex, older.Use, older.Devices = whole.AllocIndex-1, core.Resources{}, nil
	again, err = UpdateAlloc(raw, func(string) *Alloc { return &older })
	must.NoError(t, err)
	must.Eq(t, whole, again, must.Sprint("a server changed it since"))
	_, err = UpdateAlloc([]byte(`{"ID":"a"}`), none)
	must.ErrorContains(t, err, "no job")
	_, err = UpdateAlloc([]byte(`{"ID":"a","JobID":"j","TaskStates":[]}`), none)
	must.ErrorContains(t, err, "task states")
	_, err = UpdateAlloc([]byte(`{"ID":"a"`), none)
	must.ErrorIs(t, err, scan.ErrNotJSON)
}

func TestJobHead(t *testing.T) {
	t.Parallel()
	h, err := DecodeJobHead([]byte(`{"Name":"x","ID":"caf\u00e9","Namespace":null,"Status":"dead","Stop":true,"TaskGroups":[{"ID":"no","Stop":false}],"JobModifyIndex":12,"ModifyIndex":18446744073709551615}`))
	must.NoError(t, err)
	must.Eq(t, JobHead{ID: "café", Status: "dead", Stop: true, JobModifyIndex: 12, ModifyIndex: 1<<64 - 1}, h)
	must.Eq(t, Key{"default", "café"}, h.Key())
	_, err = DecodeJobHead([]byte(`{"ID":7}`))
	must.Error(t, err)
}
