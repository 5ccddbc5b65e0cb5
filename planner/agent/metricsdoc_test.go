package agent_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/planner/agent"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"
)

var (
	described = regexp.MustCompile(`fqName: "([^"]+)", help: "(?:[^"\\]|\\.)*", (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	tableRow  = regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9_]+)` \\|.*$")
	inTicks   = regexp.MustCompile("`([a-z_]+)`")
)

// docs/metrics.md has every metric of the planner with its labels, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	_, err := agent.New(agent.Options{Config: config.Fixed(config.Default()), Registry: registry})
	must.NoError(t, err)
	descs := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descs)
		close(descs)
	}()
	labels := map[string]map[string]bool{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		must.SliceNotEmpty(t, m, must.Sprint(d.String()))
		if labels[m[1]] == nil {
			labels[m[1]] = map[string]bool{}
		}
		for _, l := range strings.Split(m[3], ",") {
			labels[m[1]][l] = true
		}
		if name, _, ok := strings.Cut(m[2], "="); ok {
			labels[m[1]][name] = true
		}
		delete(labels[m[1]], "")
	}
	must.Greater(t, 40, len(labels))
	page, err := os.ReadFile("../../docs/metrics.md")
	must.NoError(t, err)
	planner, _, ok := strings.Cut(string(page), "## The device plugin")
	must.True(t, ok)
	documented := map[string]map[string]bool{}
	for _, row := range tableRow.FindAllStringSubmatch(planner, -1) {
		documented[row[1]] = map[string]bool{}
		for _, l := range inTicks.FindAllStringSubmatch(strings.Split(row[0], "|")[4], -1) {
			documented[row[1]][l[1]] = true
		}
	}
	must.Eq(t, labels, documented)
}
