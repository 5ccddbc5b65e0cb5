package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

const h100 core.Model = "NVIDIA H100 80GB HBM3"

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// nodes makes n nodes of cards each, in leaves of two.
func nodes(n, cards int) []core.Node {
	out := make([]core.Node, n)
	for i := range out {
		id := fmt.Sprintf("n%d", i+1)
		g := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: h100}
		for k := range cards {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-g%d", id, k)), Healthy: true, NUMA: -1})
		}
		out[i] = core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true, Domains: []string{fmt.Sprintf("leaf%d", i/2+1)},
			Drivers: map[string]bool{"torchrun": true}, Capacity: core.Resources{CPU: 64000, MemoryMB: 1 << 20, DiskMB: 1 << 20}, Devices: []core.DeviceGroup{g}}
	}
	return out
}

func gang(id string, members, cards int) core.Gang {
	return core.Gang{ID: core.GangID(id), Queue: "q", Priority: 50, Submitted: noon.Add(-time.Hour), Groups: []core.Group{{Name: "rank", Count: members, Drivers: []string{"torchrun"},
		Use: core.Resources{CPU: 1000, MemoryMB: 1024}, Devices: []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: "gpu", Count: cards}}}}}
}

func snapshot(nodes []core.Node, gangs ...core.Gang) *core.Snapshot {
	for i := range gangs {
		gangs[i].Sequence = int64(i)
	}
	return &core.Snapshot{Now: noon, Nodes: nodes, Gangs: gangs, Config: config()}
}

func TestGangStartsWholeWithinOneLeaf(t *testing.T) {
	t.Parallel()
	plan := decide.New().Decide(snapshot(nodes(4, 8), gang("a", 2, 8), gang("b", 1, 4), gang("c", 2, 8)))
	must.SliceLen(t, 2, plan.Starts)
	must.Eq(t, "n1", plan.Starts[0].Members[0].Node)
	must.Eq(t, "n2", plan.Starts[0].Members[1].Node)
	must.SliceLen(t, 8, plan.Starts[0].Members[1].Cards[0])
	must.Eq(t, "n3", plan.Starts[1].Members[0].Node)
	must.Eq(t, core.ActionWait, plan.Verdicts[2].Action)
	must.Eq(t, core.ReasonCards, plan.Verdicts[2].Reason)
	must.Eq(t, 4, plan.Verdicts[2].Blockers[0].Missing)
}

func TestGangThatNeverFitsIsRefused(t *testing.T) {
	t.Parallel()
	plan := decide.New().Decide(snapshot(nodes(4, 8), gang("huge", 64, 8), gang("wide", 1, 9), gang("ok", 4, 8)))
	must.Eq(t, core.ActionRefuse, plan.Verdicts[0].Action)
	must.Eq(t, core.ActionStart, plan.Verdicts[1].Action)
	must.Eq(t, core.ActionRefuse, plan.Verdicts[2].Action)
}

func config() *core.Config {
	c := core.Defaults()
	c.Levels = []core.Level{{Name: "leaf"}}
	c.Queues = []core.Queue{core.DefaultQueue("q")}
	return &c
}
