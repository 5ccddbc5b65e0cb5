//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/monitoring"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// prom is a running Prometheus.
type prom struct{ address string }

// query evaluates at this moment: the values by their labels, as JSON.
func (p prom) query(ctx context.Context, expr string) (map[string]string, error) {
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	out := map[string]string{}
	for _, r := range answer.Data.Result {
		labels, err := json.Marshal(r.Metric)
		if err != nil {
			return nil, err
		}
		out[string(labels)] = fmt.Sprint(r.Value[1])
	}
	return out, nil
}

func (p prom) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.address+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// prometheus starts a real one on the cluster's planner and device plugins, with
// the project's alerts.
func (l *lab) prometheus(ctx context.Context, t *testing.T) prom {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		skip(t, "no prometheus here: make deps installs Debian's")
	}
	dir := t.TempDir()
	rules, err := monitoring.Alerts.ReadFile("alerts/muster.rules.yml")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "muster.rules.yml"), rules, 0o644))
	var nodes []string
	for _, address := range l.CardMetrics() {
		nodes = append(nodes, fmt.Sprintf("%q", address))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil, `
global: { scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }
rule_files: [muster.rules.yml]
scrape_configs:
  - { job_name: muster, static_configs: [ { targets: [ %q ] } ] }
  - { job_name: muster-cards, static_configs: [ { targets: [ %s ] } ] }
`, strings.TrimPrefix(l.MusterAddr, "http://"), strings.Join(nodes, ", ")), 0o644))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := listener.Addr().String()
	must.NoError(t, listener.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	must.NoError(t, err)
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("prometheus:\n%s", text)
		}
		_ = log.Close()
	})
	p := prom{"http://" + address}
	poll(ctx, t, "wait for Prometheus", func() error {
		up, err := p.query(ctx, "up == 1")
		if err == nil && len(up) != 1+len(nodes) {
			err = fmt.Errorf("%d of %d targets answer", len(up), 1+len(nodes))
		}
		return err
	})
	return p
}

// A real Prometheus scrapes the planner and the device plugins of a running
// cluster, takes the alerts, and answers every query of the dashboards.
func TestPrometheusScrapes(t *testing.T) {
	ctx, l := shared(t)
	p := l.prometheus(ctx, t)
	ranks := folder(t)
	touch(t, ranks, "mark", "")
	l.submit(ctx, t, gangJob{name: "scraped", members: 4, cards: 4, config: shellRanks(t, ranks, 1)}.hcl())
	l.awaitStage(ctx, t, "scraped", contract.StageTraining)
	l.submit(ctx, t, gangJob{name: "scraped-waits", members: 2, cards: 4, config: shellRanks(t, folder(t), 1)}.hcl())
	l.await(ctx, t, "scraped-waits", "waiting", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Reason != "" })

	want := map[string]int{
		`muster_pending_gangs{queue="default"} == 1`:                    1,
		`sum(muster_gangs{phase!="over"}) == 2`:                         1,
		`muster_cards{state="used"} == 16`:                              1,
		`muster_queue_used{queue="default"} == 16`:                      2, // of the model, and of any
		`muster_nomad_connected == 1`:                                   1,
		`muster_ledger_up == 1`:                                         1,
		`muster_stage_seconds_count{stage="queued"} >= 1`:               1,
		`sum(muster_card_states{state="healthy"}) == 16`:                1,
		`count(DCGM_FI_DEV_GPU_UTIL) == 16`:                             1,
		`count(muster_card_state{state="healthy"} == 1) == 20`:          1, // adapters too
		`count(DCGM_FI_DEV_FB_USED{gang="default/scraped"}) == 16`:      1,
		`muster_card_reporters == 4`:                                    1,
		`ALERTS{alertname=~"Muster.*",alertstate="firing"}`:             0,
		`muster_queue_sampled_cards{queue="default"} == 16`:             1,
		`muster_pending_oldest_seconds{queue="default"} > 0`:            1,
		`muster_demand_nodes > 0`:                                       1,
		`sum(muster_decisions_total{action="start"}) >= 1`:              1,
		`sum(muster_admission_wait_seconds_count{queue="default"}) > 0`: 1, // of all sizes
	}
	poll(ctx, t, "see the cluster's state", func() error {
		var missing []error
		for expr, n := range want {
			got, err := p.query(ctx, expr)
			if err == nil && len(got) != n {
				bare := regexp.MustCompile(` (==|>=|>) .*`).ReplaceAllString(expr, "")
				all, _ := p.query(ctx, bare)
				err = fmt.Errorf("%s: %d series, not %d: %v; without the condition %v", expr, len(got), n, got, all)
			}
			missing = append(missing, err)
		}
		return errors.Join(missing...)
	})
	for board, list := range monitoring.Queries() {
		for _, q := range list {
			_, err := p.query(ctx, q)
			must.NoError(t, err, must.Sprint(board))
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	must.NoError(t, p.get(ctx, "/api/v1/rules", &rules))
	n := 0
	for _, g := range rules.Data.Groups {
		for _, r := range g.Rules {
			must.NotEq(t, "err", r.Health, must.Sprint(r.Name, ": ", r.LastError))
			n++
		}
	}
	must.Greater(t, 15, n)
}
