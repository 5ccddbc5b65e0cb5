package config

import (
	"sort"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// Cluster is what is known of the cluster that a configuration is for.
type Cluster struct {
	Models     []string // of its cards
	Namespaces []string // of Nomad; empty: not known
	// Domains tells of each level's attribute how many nodes carry it.
	Domains map[string]int
}

// Against reports what stands in the configuration and not in the cluster:
// unknown models and namespaces, levels whose attribute no node has. A cluster
// changes, so these are warnings to a running planner and faults to whoever
// asks (muster config validate -cluster).
func (c *Config) Against(cluster Cluster) Faults {
	var out Faults
	known := set(cluster.Models)
	for _, q := range c.Core.Queues {
		for _, kind := range []struct {
			name    string
			amounts core.Amounts
		}{{"guaranteed", q.Guaranteed}, {"max", q.Max}, {"lend", q.Lend}} {
			for _, model := range models(kind.amounts) {
				if !known[string(model)] {
					out = append(out, at(c.at.of("queue", string(q.Name), kind.name, string(model)), "queue %q: %s names the model %q, which no node has; nodes have %s",
						q.Name, kind.name, model, list(cluster.Models)))
				}
			}
		}
		if len(cluster.Namespaces) > 0 {
			known := set(cluster.Namespaces)
			for _, ns := range q.Namespaces {
				if !known[ns] {
					out = append(out, at(c.at.of("queue", string(q.Name), "namespaces"), "queue %q: namespace %q does not exist in Nomad; there are %s", q.Name, ns, list(cluster.Namespaces)))
				}
			}
		}
	}
	if cluster.Domains != nil {
		for _, level := range c.Core.Levels {
			if cluster.Domains[level.Attribute] == 0 {
				out = append(out, at(c.at.of("level", level.Name), "level %q: no node has %s", level.Name, level.Attribute))
			}
		}
	}
	_ = out.err() // for its order
	return out
}

func set(names []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	sorted := append([]string(nil), names...)
	sort.Strings(sorted)
	return strings.Join(sorted, ", ")
}
