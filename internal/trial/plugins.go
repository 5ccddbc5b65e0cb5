//go:build linux

package trial

import (
	"fmt"
	"strings"
)

// settings gives the lines of a plugin's config block.
func settings(pairs [][2]any) string {
	var b strings.Builder
	for _, p := range pairs {
		switch v := p[1].(type) {
		case string:
			fmt.Fprintf(&b, "    %s = %q\n", p[0], v)
		default:
			fmt.Fprintf(&b, "    %s = %v\n", p[0], v)
		}
	}
	return b.String()
}

func (n *node) driverConfig() [][2]any                             { return nil }
func (n *node) deviceConfig() [][2]any                             { return nil }
func (n *node) cardsFile() string                                  { return "" }
func newSimulatedNomad(dir string, nodes []*node) (backend, error) { return nil, nil }
