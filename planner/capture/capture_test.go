package capture_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/capture"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

// busy is a snapshot with something of most things in it.
func busy() *core.Snapshot {
	now := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	cfg := config.Default()
	cfg.Core.Levels = []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}}
	memory := int64(81559)
	snap := &core.Snapshot{Now: now, Config: &cfg.Core}
	for _, id := range []core.NodeID{"n1", "n2", "n3"} {
		group := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]core.Attribute{"memory": {Int: &memory, Unit: "MiB"}}, Links: []core.Link{{A: 0, B: 1, Count: 18}}}
		for _, c := range []string{"a", "b", "c", "d"} {
			group.Cards = append(group.Cards, core.Card{ID: core.CardID(string(id) + c), Healthy: true, NUMA: -1, Domain: "d0"})
		}
		snap.Nodes = append(snap.Nodes, core.Node{ID: id, Name: string(id), Version: 1, Datacenter: "dc1", Pool: "default", Ready: true, Eligible: true, Domains: []string{"l1"},
			Drivers: map[string]bool{"torchrun": true}, Capacity: core.Resources{CPU: 64000, MemoryMB: 262144, DiskMB: 100000}, MinPort: 20000, MaxPort: 32000, Devices: []core.DeviceGroup{group}})
	}
	gang := func(id core.GangID, seq int64, members int) core.Gang {
		return core.Gang{ID: id, Queue: "default", State: core.GangWaiting, Priority: 50, Submitted: now.Add(-time.Hour), Queued: now.Add(-time.Hour), Sequence: seq,
			Groups: []core.Group{{Name: "rank", Count: members, Datacenters: []string{"*"}, Pool: "default", Drivers: []string{"torchrun"}, Use: core.Resources{CPU: 1000, MemoryMB: 1000},
				Devices: []core.DeviceAsk{{Task: "t", Vendor: "nvidia", Type: "gpu", Count: 4, Constraints: []core.Constraint{{Left: "${device.attr.memory}", Operand: ">=", Right: "80000 MiB"}}}}}},
			Want: core.Want{Preemptible: true, TimeLimit: time.Hour}}
	}
	snap.Gangs = []core.Gang{gang("default/big", 1, 3), gang("default/small", 2, 1), gang("default/huge", 3, 99)}
	return snap
}

// A decision comes out of its file as it went in, and is made again the same.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	snap := busy()
	plan := decide.New().Decide(snap)
	must.SliceNotEmpty(t, plan.Starts)
	var file bytes.Buffer
	must.NoError(t, capture.Write(&file, snap, plan))
	d, err := capture.Read(&file)
	must.NoError(t, err)
	must.Eq(t, "", cmp.Diff(snap, d.Snapshot, cmpopts.EquateEmpty()))
	again, same, err := d.Replay(decide.New())
	must.NoError(t, err)
	must.True(t, same, must.Sprint(cmp.Diff(plan, again)))

	d.Plan.Verdicts[0].Sentence = "something else"
	_, same, err = d.Replay(decide.New())
	must.NoError(t, err)
	must.False(t, same)
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "read captured decision",
		"[]":                               "read captured decision",
		`{"v": 2}`:                         "version 2",
		`{"v": 1}`:                         "missing",
		`{"v": 1, "snapshot": {"New": 1}}`: "unknown field",
	} {
		_, err := capture.Read(strings.NewReader(text))
		must.ErrorContains(t, err, want)
	}
}
