//go:build linux

package trial

import (
	"fmt"
	"path/filepath"
	"strings"
)

// deviceConfig is the config block of the node's device plugin, in HCL.
func (n *node) deviceConfig() string {
	return fmt.Sprintf(`
    fingerprint_period = "2s"
    state_dir          = %q
    simulated {
      file = %q
      node = %q
    }
`, filepath.Join(n.dir, "device"), n.cardsFile(), n.Name)
}

// cards describes the node's simulated cards: all alike, linked to each other,
// with one network adapter.
func (n *node) cards() string {
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

func (n *node) driverConfig() string                               { return "" }
func newSimulatedNomad(dir string, nodes []*node) (backend, error) { return nil, nil }
