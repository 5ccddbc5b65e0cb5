//go:build linux

package trial

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// block is a plugin's configuration; a block within is a block too.
type block map[string]any

// deviceConfig is the configuration of the node's device plugin.
func (n *node) deviceConfig() block {
	b := block{
		"fingerprint_period": "2s",
		"state_dir":          filepath.Join(n.dir, "device"),
		"simulated":          block{"file": n.cardsFile(), "node": n.Name},
		"prometheus":         block{"address": n.metrics()},
	}
	if n.planner != "" {
		b["report"] = block{"address": n.planner, "token_file": n.tokenFile()}
	}
	return b
}

// metrics is where the node's device plugin serves Prometheus.
func (n *node) metrics() string { return fmt.Sprintf("127.0.0.1:%d", n.firstPort+portsPerNode-1) }

// driverConfig is the configuration of the node's task driver.
func (n *node) driverConfig() block {
	b := block{
		"rendezvous":       "consul",
		"interface":        "lo",
		"consul":           block{"address": n.consul},
		"max_kill_timeout": maxKillTimeout.String(),
		"port_range":       fmt.Sprintf("%d-%d", n.firstPort+portsPerNode/2, n.firstPort+portsPerNode-2),
	}
	if n.programs != "" {
		b["path"] = n.programs + ":" + systemPath
	}
	if n.python != "" {
		b["python"] = n.python
	}
	return b
}

// systemPath is where ranks find the system's programs.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// hcl gives the lines of a block's inside.
func (b block) hcl(indent string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if inner, ok := b[name].(block); ok {
			fmt.Fprintf(&text, "%s%s {\n%s%s}\n", indent, name, inner.hcl(indent+"  "), indent)
		} else {
			fmt.Fprintf(&text, "%s%s = %q\n", indent, name, b[name])
		}
	}
	return text.String()
}

// cards describes the node's simulated cards: all alike, linked to each other,
// with one network adapter.
func (n *node) cards() string {
	if n.Preset != "" {
		return fmt.Sprintf("node %q {\n  preset = %q\n}\n", n.Name, n.Preset)
	}
	all := make([]string, n.Cards)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	text := fmt.Sprintf(`node %q {
  gpu "0" {
    count   = %d
    model   = "NVIDIA H100 80GB HBM3"
    memory  = 81559
    numa    = 0
    place   = "b0/s0"
    driver  = "580.95.05"
    cuda    = "13.0"
    compute = "9.0"
  }
  nic "mlx5_0" {
    model = "MT4129 ConnectX-7"
    rate  = 400
    numa  = 0
    place = "b0/s0"
  }
`, n.Name, n.Cards)
	if n.Cards > 1 {
		text += fmt.Sprintf("  link {\n    cards = [%s]\n    count = 18\n  }\n", strings.Join(all, ", "))
	}
	return text + "}\n"
}
