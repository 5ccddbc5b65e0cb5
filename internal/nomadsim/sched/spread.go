package sched

import (
	"fmt"
	"strconv"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// property counts a job's (or a group's) allocations by the value that an attribute has on their nodes.
type property struct {
	target string
	max    int
	counts map[string]int
	err    string
}

// counted walks the allocations of the job as they would be with the plan: group "" is every group.
func (s *stack) counted(target, group string) map[string]int {
	counts := map[string]int{}
	seen := map[string]bool{}
	count := func(a *wire.Allocation) {
		if a.JobID != s.job.ID || a.Namespace != s.job.Namespace || group != "" && a.TaskGroup != group || seen[a.ID] || a.Terminal() {
			return
		}
		seen[a.ID] = true
		if n := s.w.snap.Node(a.NodeID); n != nil {
			if v, ok := resolve(target, n); ok {
				counts[v]++
			}
		}
	}
	for _, u := range s.w.usage {
		for _, a := range u.allocs {
			count(a)
		}
	}
	for a := range s.w.snap.AllocsByJob(s.job.Namespace, s.job.ID) {
		if s.w.usage[a.NodeID] == nil {
			count(a)
		}
	}
	return counts
}

// properties are the distinct_property constraints that hold for a group.
func (s *stack) properties(g *wire.TaskGroup) []*property {
	var out []*property
	add := func(c *wire.Constraint, group string) {
		if c.Operand != opDistinctProperty {
			return
		}
		p := &property{target: c.LTarget, max: 1}
		if c.RTarget != "" {
			n, err := strconv.ParseUint(c.RTarget, 10, 64)
			if err != nil {
				p.err = fmt.Sprintf("failed to convert RTarget %q to uint64: %v", c.RTarget, err)
			}
			p.max = int(n)
		}
		p.counts = s.counted(c.LTarget, group)
		out = append(out, p)
	}
	for _, c := range s.job.Constraints {
		add(c, "")
	}
	for _, c := range g.Constraints {
		add(c, g.Name)
	}
	for _, t := range g.Tasks {
		for _, c := range t.Constraints {
			add(c, g.Name)
		}
	}
	return out
}

func (p *property) allows(n *wire.Node) (bool, string) {
	if p.err != "" {
		return false, p.err
	}
	v, ok := resolve(p.target, n)
	if !ok {
		return false, fmt.Sprintf("missing property %q", p.target)
	}
	if used := p.counts[v]; used >= p.max {
		return false, fmt.Sprintf("distinct_property: %s=%s used by %d allocs", p.target, v, used)
	}
	return true, ""
}

// spread scores nodes so that allocations spread over the values of an attribute.
type spread struct {
	target  string
	weight  float64 // share of all weights
	desired map[string]float64
	counts  map[string]int
}

const otherValues = "*"

func (s *stack) spreads(g *wire.TaskGroup) []*spread {
	all := append(append([]*wire.Spread{}, g.Spreads...), s.job.Spreads...)
	sum := 0
	for _, sp := range all {
		sum += sp.Weight
	}
	var out []*spread
	for _, sp := range all {
		x := &spread{target: sp.Attribute, desired: map[string]float64{}, counts: s.counted(sp.Attribute, g.Name)}
		if sum > 0 {
			x.weight = float64(sp.Weight) / float64(sum)
		}
		total := 0.0
		for _, t := range sp.SpreadTarget {
			d := float64(t.Percent) / 100 * float64(g.Count)
			x.desired[t.Value] = d
			total += d
		}
		if total > 0 && total < float64(g.Count) {
			x.desired[otherValues] = float64(g.Count) - total
		}
		out = append(out, x)
	}
	return out
}

func (x *spread) boost(n *wire.Node) float64 {
	v, ok := resolve(x.target, n)
	if !ok {
		return -1
	}
	if len(x.desired) == 0 {
		return x.even(v)
	}
	used := float64(x.counts[v] + 1)
	want, ok := x.desired[v]
	if !ok {
		if want, ok = x.desired[otherValues]; !ok {
			return -1
		}
		used = 1
		for value, c := range x.counts {
			if _, named := x.desired[value]; !named {
				used += float64(c)
			}
		}
	}
	if want == 0 {
		return -1
	}
	return (want - used) / want * x.weight
}

// even is the boost where no targets are given: the least used value is best.
func (x *spread) even(v string) float64 {
	if len(x.counts) == 0 {
		return 0
	}
	low, high := 0, 0
	for _, c := range x.counts {
		if low == 0 || c < low {
			low = c
		}
		high = max(high, c)
	}
	switch at := x.counts[v]; {
	case at != low:
		return float64(low-at) / float64(low)
	case low == high:
		return -1
	default:
		return float64(high-low) / float64(low)
	}
}
