package monitoring

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var rewrite = flag.Bool("rewrite", false, "write the dashboards anew")

func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here: scripts/deps installs Debian's prometheus")
	}
	return path
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	for _, args := range [][]string{{"check", "rules", "muster.rules.yml"}, {"test", "rules", "muster.test.yml"}} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = "alerts"
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("promtool %s:\n%s", strings.Join(args, " "), out))
	}
}

// Every alert has a test in which it fires.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	rules, err := Alerts.ReadFile("alerts/muster.rules.yml")
	must.NoError(t, err)
	tests, err := Alerts.ReadFile("alerts/muster.test.yml")
	must.NoError(t, err)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(rules, -1)
	must.Greater(t, 10, len(alerts))
	for _, a := range alerts {
		fires := regexp.MustCompile(`alertname: ` + string(a[1]) + `\n\s+exp_alerts:\n`)
		must.True(t, fires.Match(tests), must.Sprintf("no test has %s fire", a[1]))
	}
}

func TestDashboardsAreTheCode(t *testing.T) {
	t.Parallel()
	made, err := Dashboards()
	must.NoError(t, err)
	for name, want := range made {
		path := filepath.Join("dashboards", name+".json")
		if *rewrite {
			must.NoError(t, os.WriteFile(path, want, 0o644))
		}
		got, err := os.ReadFile(path)
		must.NoError(t, err)
		must.True(t, bytes.Equal(want, got), must.Sprintf("%s is not what the code makes: run with -rewrite", path))
	}
	files, err := filepath.Glob("dashboards/*.json")
	must.NoError(t, err)
	must.Len(t, len(made), files)
}

// Prometheus itself reads every query of the dashboards.
func TestQueriesParse(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	var b strings.Builder
	b.WriteString("groups:\n- name: queries\n  rules:\n")
	n := 0
	for _, list := range Queries() {
		for _, q := range list {
			fmt.Fprintf(&b, "  - record: q%d\n    expr: %q\n", n, q)
			n++
		}
	}
	path := filepath.Join(t.TempDir(), "queries.yml")
	must.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	out, err := exec.Command(tool, "check", "rules", path).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
}

var series = regexp.MustCompile(`\b(muster_[a-z0-9_]+|DCGM_[A-Z0-9_]+)\b`)

// No panel and no alert is on a series that nobody exports: docs/metrics.md has
// them all, and is held to the code.
func TestSeriesExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	must.NoError(t, err)
	known := map[string]bool{}
	for _, name := range series.FindAllString(string(page), -1) {
		known[name] = true
	}
	must.Greater(t, 20, len(known))
	rules, err := Alerts.ReadFile("alerts/muster.rules.yml")
	must.NoError(t, err)
	all := Queries()
	all["alerts"] = []string{string(rules)}
	for where, list := range all {
		var unknown []string
		for _, q := range list {
			for _, name := range series.FindAllString(q, -1) {
				base := name
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					base = strings.TrimSuffix(base, suffix)
				}
				if !known[name] && !known[base] && !slices.Contains(unknown, name) {
					unknown = append(unknown, name)
				}
			}
		}
		must.Eq(t, nil, unknown, must.Sprintf("%s uses series that docs/metrics.md does not have", where))
	}
}
