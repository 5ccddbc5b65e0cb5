package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// The twin places gangs on clusters of up to four nodes by trying everything:
// every way to deal the members of every group over the nodes. It is slow and
// plain, and the real placement has to agree with it on what fits and on the
// first rules of the objective.

const model core.Model = "H100"

// small is a small cluster with a gang.
type small struct {
	snap *core.Snapshot
	gang core.Gang
}

func (s *small) nodes() []core.Node { return s.snap.Nodes }

// drawSmall draws nodes in two spines and up to four leaves, some of their cards
// and processors in use, and a gang of one or two groups.
func drawSmall(t *rapid.T, groups int) *small {
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "spine"}, {Name: "leaf"}}
	cfg.Packing = rapid.SampledFrom([]core.Packing{core.PackAuto, core.PackBin, core.PackSpread}).Draw(t, "packing")
	s := &small{snap: &core.Snapshot{Config: &cfg}}
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		id := fmt.Sprintf("n%d", i)
		spine := rapid.SampledFrom([]string{"s1", "s1", "s2"}).Draw(t, "spine")
		leaf := spine + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "leaf")
		if rapid.IntRange(0, 9).Draw(t, "leaf known") == 0 {
			leaf = ""
		}
		n := core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: rapid.IntRange(0, 9).Draw(t, "ready") > 0, Eligible: true, Domains: []string{spine, leaf},
			Drivers: map[string]bool{"torchrun": true}, Capacity: core.Resources{CPU: int64(rapid.SampledFrom([]int{4, 16}).Draw(t, "cpu")), MemoryMB: 64, DiskMB: 64}}
		g := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: model}
		cards := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "cards")
		for k := range cards {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%s-%d", id, k)), Healthy: rapid.IntRange(0, 15).Draw(t, "healthy") > 0, NUMA: k / 2, Domain: fmt.Sprint(k / 4)})
		}
		n.Devices = []core.DeviceGroup{g}
		s.snap.Nodes = append(s.snap.Nodes, n)
		if used := rapid.IntRange(0, cards).Draw(t, "cards in use"); used > 0 {
			k := core.Claim{Node: n.ID, Member: -1, Alloc: "other-" + id, Job: "other", Use: core.Resources{CPU: int64(rapid.IntRange(0, 4).Draw(t, "cpu in use"))}}
			for c := range used {
				k.Cards = append(k.Cards, g.Cards[(c*3)%cards].ID)
			}
			slices.Sort(k.Cards)
			k.Cards = slices.Compact(k.Cards)
			s.snap.Claims = append(s.snap.Claims, k)
		}
	}
	s.gang = core.Gang{ID: "g", Queue: "q"}
	distinct := rapid.IntRange(0, 3).Draw(t, "distinct_hosts") == 0
	for i := range groups {
		group := core.Group{Name: fmt.Sprintf("group%d", i), Count: rapid.IntRange(1, 4).Draw(t, "members"), Drivers: []string{"torchrun"}, Use: core.Resources{CPU: int64(rapid.IntRange(0, 3).Draw(t, "cpu of a member")), MemoryMB: 1}}
		if cards := rapid.SampledFrom([]int{0, 1, 2, 3, 4, 8}).Draw(t, "cards of a member"); cards > 0 || groups == 1 {
			group.Devices = []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: "gpu", Count: max(1, cards)}}
		}
		if distinct {
			group.Constraints = []core.Constraint{{Operand: "distinct_hosts"}}
		}
		s.gang.Groups = append(s.gang.Groups, group)
	}
	switch rapid.IntRange(0, 4).Draw(t, "level") {
	case 0:
		s.gang.Level, s.gang.Required = "spine", true
	case 1:
		s.gang.Level, s.gang.Required = "leaf", true
	case 2:
		s.gang.Level, s.gang.Required = core.LevelNode, true
	case 3:
		s.gang.Level, s.gang.Required = core.LevelLink, true
	}
	return s
}

// dealing is a number of members of each group for each node.
type dealing [][]int

// all tries every dealing that fits.
func (s *small) all() []dealing {
	var out []dealing
	d := make(dealing, len(s.gang.Groups))
	for i := range d {
		d[i] = make([]int, len(s.nodes()))
	}
	var deal func(group, node, left int)
	deal = func(group, node, left int) {
		switch {
		case group == len(d):
			if s.within(d) && s.fits(d) {
				c := make(dealing, len(d))
				for i := range d {
					c[i] = slices.Clone(d[i])
				}
				out = append(out, c)
			}
		case node == len(s.nodes()):
			if left == 0 {
				next := 0
				if group+1 < len(d) {
					next = s.gang.Groups[group+1].Count
				}
				deal(group+1, 0, next)
			}
		default:
			for n := range left + 1 {
				d[group][node] = n
				deal(group, node+1, left-n)
			}
			d[group][node] = 0
		}
	}
	deal(0, 0, s.gang.Groups[0].Count)
	return out
}

// fits counts what a dealing uses of each node.
func (s *small) fits(d dealing) bool {
	for i := range s.nodes() {
		n := &s.nodes()[i]
		cpu, members := n.Capacity.CPU, 0
		free := map[string]int{} // by NVLink domain
		for _, k := range n.Devices[0].Cards {
			if k.Healthy {
				free[k.Domain]++
			}
		}
		for _, c := range s.snap.Claims {
			if c.Node != n.ID {
				continue
			}
			cpu -= c.Use.CPU
			for _, id := range c.Cards {
				at := slices.IndexFunc(n.Devices[0].Cards, func(k core.Card) bool { return k.ID == id })
				if n.Devices[0].Cards[at].Healthy {
					free[n.Devices[0].Cards[at].Domain]--
				}
			}
		}
		asks := []int{}
		for g := range d {
			group := &s.gang.Groups[g]
			members += d[g][i]
			for range d[g][i] {
				cpu -= group.Use.CPU
				if len(group.Devices) > 0 {
					asks = append(asks, group.Devices[0].Count)
				}
			}
		}
		if members == 0 {
			continue
		}
		if !n.Ready || cpu < 0 || members > 1 && len(s.gang.Groups[0].Constraints) > 0 {
			return false
		}
		if !packs(asks, free, s.gang.Level == core.LevelLink) {
			return false
		}
	}
	return true
}

// packs tells whether asks can be served from what is free in each domain: each
// from one of them, or all from their sum.
func packs(asks []int, free map[string]int, whole bool) bool {
	if !whole {
		sum := 0
		for _, n := range free {
			sum += n
		}
		for _, n := range asks {
			sum -= n
		}
		return sum >= 0
	}
	if len(asks) == 0 {
		return true
	}
	for domain, n := range free {
		if n < asks[0] {
			continue
		}
		free[domain] -= asks[0]
		ok := packs(asks[1:], free, true)
		free[domain] += asks[0]
		if ok {
			return true
		}
	}
	return false
}

// domain is where a node lies at a level: 0 and 1 as configured, 2 the node. A
// place that is not known is nobody else's.
func (s *small) domain(level, node int) string {
	n := &s.nodes()[node]
	name := string(n.ID)
	if level < 2 {
		name = n.Domains[0]
	}
	if level == 1 {
		if name += "/" + n.Domains[1]; n.Domains[1] == "" {
			name += string(n.ID)
		}
	}
	return name
}

// spans counts the domains that a dealing uses at each level, nodes last.
func (s *small) spans(d dealing) [3]int {
	var out [3]int
	for level := range out {
		seen := map[string]bool{}
		for node := range s.nodes() {
			for g := range d {
				if d[g][node] > 0 {
					seen[s.domain(level, node)] = true
				}
			}
		}
		out[level] = len(seen)
	}
	return out
}

// within keeps the required level. A node whose domain is not known serves gangs
// that it holds alone.
func (s *small) within(d dealing) bool {
	level := slices.Index([]string{"spine", "leaf", core.LevelNode}, s.gang.Level)
	return level < 0 || s.spans(d)[level] == 1
}

func (s *small) place(t *rapid.T) (*placement.Result, bool) {
	c := &cluster.Cluster{}
	if n := c.Update(s.snap); len(n) > 0 {
		t.Fatalf("the cluster is told to be odd: %v", n)
	}
	p := placement.New(c)
	p.Configure(s.snap.Config.Packing, []core.Shape{{Members: 1, Cards: 8, Weight: 1}, {Members: 1, Cards: 1, Weight: 3}})
	r := p.Request(&s.gang)
	if len(r.Options) == 0 {
		return nil, false
	}
	before := c.Words(nil)
	res, ok := p.Place(r, r.Options[0], placement.Options{})
	if !ok && !slices.Equal(before, c.Words(nil)) {
		t.Fatalf("a placement that failed left a trace")
	}
	return res, ok
}

func TestTwin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { agree(t, drawSmall(t, 1)) })
}

func TestTwinSeveralGroups(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { agree(t, drawSmall(t, 2)) })
}

func agree(t *rapid.T, s *small) {
	all := s.all()
	res, ok := s.place(t)
	if ok != (len(all) > 0) {
		t.Fatalf("the real placement says %v, the twin knows %d places such as %v", ok, len(all), all[:min(len(all), 2)])
	}
	// Domains that are not known come last, so that what is known is near.
	unknown := func(n core.Node) bool { return n.Domains[1] == "" }
	if !ok || slices.ContainsFunc(s.nodes(), unknown) {
		return
	}
	best := s.spans(all[0])
	for _, d := range all[1:] {
		if v := s.spans(d); slices.Compare(v[:], best[:]) < 0 {
			best = v
		}
	}
	got := [3]int{res.Domains[0], res.Domains[1], res.Nodes}
	// Where a gang is dealt over several leaves its nodes are the fewest of each;
	// where it is dealt group by group, what is further in is the fewest for each.
	if best[1] > 1 || len(s.gang.Groups) > 1 {
		got[2] = best[2]
	}
	if best[0] > 1 && len(s.gang.Groups) > 1 {
		got[1] = best[1]
	}
	if slices.Compare(got[:], best[:]) != 0 {
		t.Fatalf("the real placement spans %v spines, leaves and nodes; %v is possible", got, best)
	}
}
