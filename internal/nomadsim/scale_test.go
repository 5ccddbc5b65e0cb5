package nomadsim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// TestManyNodes: a gang of a thousand members on two thousand nodes. BenchmarkManyNodes has ten thousand.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(2000, 8), SharedClasses: true})
	c := sim.Client()
	list, _, err := c.Nodes().List(nil)
	must.NoError(t, err)
	must.SliceLen(t, 2000, list)
	j := gang("wide", 1000, 8)
	start := time.Now()
	e := put(t, sim, j)
	must.MapEmpty(t, e.FailedTGAllocs)
	hosts := map[string]bool{}
	allocs, _, err := c.Jobs().Allocations("wide", true, nil)
	must.NoError(t, err)
	for _, a := range allocs {
		hosts[a.NodeID] = true
	}
	must.MapLen(t, 1000, hosts) // each needs all the cards of a node
	t.Logf("placed in %v", time.Since(start).Round(time.Millisecond))
}

// BenchmarkManyNodes starts ten thousand nodes and ends them again.
func BenchmarkManyNodes(b *testing.B) {
	for range b.N {
		sim, err := nomadsim.Start(b.Context(), nomadsim.Options{Nodes: nodes(10_000, 8), SharedClasses: true})
		must.NoError(b, err)
		sim.Close()
	}
}

func BenchmarkRegisterHeld(b *testing.B) {
	sim, err := nomadsim.Start(b.Context(), nomadsim.Options{Nodes: nodes(1000, 8), SharedClasses: true})
	must.NoError(b, err)
	defer sim.Close()
	for i := range b.N {
		j := gang(fmt.Sprintf("held-%d", i), 16, 8)
		j.Constraints = []*api.Constraint{hold}
		_, _, err := sim.Client().Jobs().Register(j, nil)
		must.NoError(b, err)
	}
}
