// Package feasible answers, for one node and one task group, the questions
// that Nomad's scheduler asks before it counts free resources, and answers
// them as Nomad does, so that a plan never fails in Nomad for a reason that
// the snapshot held.
//
// The filters in their order, the first that fails being the reason given:
//
//  1. datacenter: one of the group's patterns matches ("*" for any text);
//  2. node pool: equal, or the group asks for "all";
//  3. drivers: each is detected and healthy;
//  4. constraints of job, group and tasks over ${node.*}, ${attr.*} and
//     ${meta.*}, with every operator that Nomad has. distinct_hosts and
//     distinct_property speak of several members and are kept by package
//     placement;
//  5. host volumes by name; a read-only one never serves a writer;
//  6. devices: for each ask at least one device group matches by vendor, type,
//     name and constraints over ${device.*}, with units.
//
// Whether a node is ready, eligible, draining or excluded, and what is free on
// it, is not asked here: it changes by the second and is kept by package
// cluster.
package feasible

import (
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// Check returns why the node cannot hold a member of the group whatever is
// free on it, and ReasonFits where it can.
func Check(n *core.Node, g *core.Group) (core.Reason, string) {
	if !datacenter(n.Datacenter, g.Datacenters) {
		return core.ReasonConstraint, "datacenter " + n.Datacenter + " is not among " + strings.Join(g.Datacenters, ", ")
	}
	if !pool(n.Pool, g.Pool) {
		return core.ReasonConstraint, "node pool " + n.Pool + " is not " + g.Pool
	}
	for _, d := range g.Drivers {
		if !n.Drivers[d] {
			return core.ReasonConstraint, "driver " + d + " is missing or unhealthy"
		}
	}
	for i := range g.Constraints {
		if !Constraint(n, g.Constraints[i]) {
			return core.ReasonConstraint, Text(g.Constraints[i])
		}
	}
	for _, v := range g.Volumes {
		readOnly, ok := n.Volumes[v.Source]
		if !ok {
			return core.ReasonConstraint, "host volume " + v.Source + " is missing"
		}
		if readOnly && !v.ReadOnly {
			return core.ReasonConstraint, "host volume " + v.Source + " is read-only"
		}
	}
	for i := range g.Devices {
		found := false
		for j := range n.Devices {
			if Device(&n.Devices[j], &g.Devices[i]) {
				found = true
				break
			}
		}
		if !found {
			return core.ReasonConstraint, "no device matches " + DeviceText(&g.Devices[i])
		}
	}
	return core.ReasonFits, ""
}

// datacenter matches patterns as Nomad does; none means any.
func datacenter(dc string, patterns []string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, p := range patterns {
		if glob(p, dc) {
			return true
		}
	}
	return false
}

// pool compares node pools; "" is Nomad's "default" on both sides.
func pool(have, want string) bool {
	if want == "all" {
		return true
	}
	if have == "" {
		have = "default"
	}
	if want == "" {
		want = "default"
	}
	return have == want
}

// glob matches a pattern in which "*" stands for any text, also none.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		at := strings.Index(text, p)
		if at < 0 {
			return false
		}
		text = text[at+len(p):]
	}
	return true
}

// Text is a constraint as people read it.
func Text(c core.Constraint) string {
	switch c.Operand {
	case "is_set", "is_not_set", "distinct_hosts":
		return strings.TrimSpace(c.Left + " " + c.Operand)
	}
	return strings.TrimSpace(c.Left + " " + c.Operand + " " + c.Right)
}

// DeviceText is a device ask as people read it, without its count.
func DeviceText(a *core.DeviceAsk) string {
	name := a.Type
	if a.Vendor != "" {
		name = a.Vendor + "/" + name
	}
	if a.Name != "" {
		name += "/" + a.Name
	}
	for _, c := range a.Constraints {
		name += " with " + Text(c)
	}
	return name
}
