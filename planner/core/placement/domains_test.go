package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// leaves makes a cluster of leaves, each with so many nodes of one card, and a
// placer on it. Domains are those of a leaf, from the outside in.
func leaves(t must.T, levels int, domains [][]string, nodes []int) *placement.Placer {
	cfg := core.Defaults()
	for l := range levels {
		cfg.Levels = append(cfg.Levels, core.Level{Name: fmt.Sprint("level", l)})
	}
	s := core.Snapshot{Config: &cfg}
	for i := range domains {
		for k := range nodes[i] {
			id := fmt.Sprintf("n%d-%d", i, k)
			s.Nodes = append(s.Nodes, core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true, Domains: domains[i],
				Capacity: core.Resources{CPU: 16, MemoryMB: 64, DiskMB: 64},
				Devices:  []core.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: model, Cards: []core.Card{{ID: core.CardID(id), Healthy: true, NUMA: -1}}}}})
		}
	}
	c := &cluster.Cluster{}
	must.SliceEmpty(t, c.Update(&s))
	p := placement.New(c)
	p.Configure(cfg.Packing, nil)
	return p
}

// A gang takes the fewest domains of the outermost level, within these the
// fewest of the next, and so on: no set of leaves that has the room does better.
func TestFewestDomains(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		levels := rapid.IntRange(1, 3).Draw(t, "levels")
		var domains [][]string
		var nodes []int
		room := 0
		for i := range rapid.IntRange(1, 9).Draw(t, "leaves") {
			d := make([]string, levels)
			for l := range levels - 1 {
				d[l] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "domain")
			}
			d[levels-1] = fmt.Sprint(i)
			n := rapid.IntRange(1, 5).Draw(t, "nodes")
			domains, nodes, room = append(domains, d), append(nodes, n), room+n
		}
		members := rapid.IntRange(1, room).Draw(t, "members")
		best := []int(nil)
		for set := 1; set < 1<<len(nodes); set++ {
			has, seen := 0, map[string]bool{}
			spans := make([]int, levels)
			for i := range nodes {
				if set>>i&1 == 0 {
					continue
				}
				has += nodes[i]
				for l := range levels {
					if name := fmt.Sprint(domains[i][:l+1]); !seen[name] {
						seen[name] = true
						spans[l]++
					}
				}
			}
			if has >= members && (best == nil || slices.Compare(spans, best) < 0) {
				best = spans
			}
		}
		p := leaves(t, levels, domains, nodes)
		r := p.Request(gang(members, 1, nil))
		res, ok := p.Place(r, r.Options[0], placement.Options{})
		must.True(t, ok)
		must.Eq(t, best, res.Domains)
	})
}

// Where there are more sets of domains than are tried, the gang is placed all
// the same, in the fewest of the outer level.
func TestManyDomains(t *testing.T) {
	t.Parallel()
	var domains [][]string
	var nodes []int
	for i := range 60 {
		domains, nodes = append(domains, []string{fmt.Sprint(i / 3), fmt.Sprint(i)}), append(nodes, 1+i%4)
	}
	p := leaves(t, 2, domains, nodes)
	r := p.Request(gang(70, 1, nil))
	res, ok := p.Place(r, r.Options[0], placement.Options{})
	must.True(t, ok)
	must.Eq(t, 9, res.Domains[0]) // five of 9 nodes, three of 8, and one more
}
