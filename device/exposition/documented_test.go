package exposition_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/exposition"
)

// docs/metrics.md has every metric of the device plugin, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	descs := make(chan *prometheus.Desc)
	go func() {
		exposition.New(nil, nil, "").Describe(descs)
		close(descs)
	}()
	have := map[string]bool{}
	for d := range descs {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		have[name] = true
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	must.NoError(t, err)
	_, plugin, ok := strings.Cut(string(page), "## The device plugin")
	must.True(t, ok)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9_]+)` \\|").FindAllStringSubmatch(plugin, -1) {
		documented[row[1]] = true
	}
	must.Eq(t, have, documented)
}
