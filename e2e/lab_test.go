//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// patience bounds one scenario. Nothing waits for a fixed time: what comes
// earlier is seen earlier.
const patience = 3 * time.Minute

// lab is a cluster with what a scenario needs to look at it.
type lab struct {
	*trial.Cluster
	nomad *api.Client
}

// shared gives the cluster that scenarios share which kill no part of it: four
// nodes of four cards. It is empty when a scenario begins and is checked to be
// empty when it ends.
func shared(t *testing.T) (context.Context, *lab) {
	t.Helper()
	scenario(t)
	suite.mu.Lock()
	l := suite.shared
	suite.mu.Unlock()
	if l == nil || l.Planner.Pid() == 0 {
		l = start(t, trial.Options{PlannerConfig: strangers})
		suite.mu.Lock()
		suite.shared = l
		suite.mu.Unlock()
	}
	return l.begin(t), l
}

// strangers is for the clusters that scenarios share: what fails in one of them
// is not held against the nodes in the next.
const strangers = `
cards {
  suspicion {
    suspect    = 0
    quarantine = 0
  }
}
`

// own gives a cluster to the scenario alone, which may kill parts of it.
func own(t *testing.T, o trial.Options) (context.Context, *lab) {
	t.Helper()
	scenario(t)
	if suite.kind == trial.Existing {
		skip(t, "parts of the cluster are killed, and the one at NOMAD_ADDR is not ours")
	}
	l := start(t, o)
	t.Cleanup(func() { must.NoError(t, l.Close()) })
	return l.begin(t), l
}

func start(t *testing.T, o trial.Options) *lab {
	t.Helper()
	if suite.kind == trial.Real && os.Geteuid() != 0 {
		skip(t, "a real Nomad needs root")
	}
	o.Kind, o.Binaries, o.NomadAddr, o.ConsulAddr = suite.kind, suite.binaries, os.Getenv("NOMAD_ADDR"), "http://127.0.0.1:8500"
	if address := os.Getenv("CONSUL_HTTP_ADDR"); address != "" {
		o.ConsulAddr = address
	}
	o.Progress = func(line string) { t.Log(line) }
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cluster, err := trial.Start(ctx, o)
	must.NoError(t, err)
	suite.mu.Lock()
	suite.open = append(suite.open, cluster)
	suite.mu.Unlock()
	client, err := api.NewClient(&api.Config{Address: cluster.NomadAddr})
	must.NoError(t, err)
	return &lab{Cluster: cluster, nomad: client}
}

// begin gives the scenario its deadline, and keeps what explains a failure.
func (l *lab) begin(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			l.keep(t)
		}
		l.clear(t)
	})
	return ctx
}

// clear stops whatever the scenario left running, and fails where the cluster
// does not get empty.
func (l *lab) clear(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.StopJobs(ctx); err != nil {
		t.Errorf("clear the cluster: %v", err)
		return
	}
	if err := l.awaitEmpty(ctx); err != nil {
		t.Errorf("clear the cluster: %v", err)
	}
}

func closeShared() error {
	suite.mu.Lock()
	open := []*lab{suite.shared, suite.queued}
	suite.shared, suite.queued = nil, nil
	suite.mu.Unlock()
	var errs []error
	for _, l := range open {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// keep copies logs and state to e2e/artifacts.
func (l *lab) keep(t *testing.T) {
	into := filepath.Join("artifacts", strings.ReplaceAll(t.Name(), "/", "_"))
	_ = os.RemoveAll(into)
	if err := os.MkdirAll(into, 0o755); err != nil {
		t.Log(err)
		return
	}
	logs, _ := filepath.Glob(filepath.Join(l.Dir, "*", "*.log"))
	for _, path := range logs {
		if data, err := os.ReadFile(path); err == nil {
			_ = os.WriteFile(filepath.Join(into, filepath.Base(filepath.Dir(path))+"-"+filepath.Base(path)), data, 0o644)
		}
	}
	// Not the pipes beside them: to read one waits for a writer.
	outputs, _ := filepath.Glob(filepath.Join(l.Dir, "*", "data", "alloc", "*", "alloc", "logs", "*.std*.[0-9]*"))
	for _, path := range outputs {
		if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
			alloc := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path))))
			_ = os.WriteFile(filepath.Join(into, alloc+"-"+filepath.Base(path)), data, 0o644)
		}
	}
	for name, url := range map[string]string{
		"gangs.json": l.MusterAddr + "/v1/gangs", "allocations.json": l.NomadAddr + "/v1/allocations?namespace=*&task_states=true",
		"jobs.json": l.NomadAddr + "/v1/jobs?namespace=*", "evaluations.json": l.NomadAddr + "/v1/evaluations?namespace=*",
		"consul.json": l.ConsulAddr + "/v1/kv/?recurse=true", "services.json": l.ConsulAddr + "/v1/agent/services",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if data, err := get(ctx, url); err == nil {
			_ = os.WriteFile(filepath.Join(into, name), data, 0o644)
		}
		cancel()
	}
	running, _ := trial.Processes(l.Dir)
	_ = os.WriteFile(filepath.Join(into, "processes"), []byte(fmt.Sprintln(running)), 0o644)
	t.Logf("logs and state are kept in e2e/%s", into)
}

// get reads a URL; 404 gives nil.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("GET %s: %w", url, err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("GET %s: %s: %s", url, resp.Status, data)
	}
	return data, nil
}

// poll waits until done gives no error: for conditions of the host (files,
// processes) of which no event tells.
func poll(ctx context.Context, t *testing.T, what string, done func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := done()
		if err == nil {
			return
		}
		if ctx.Err() == nil || last == nil { // not that the time is over, but what was missing before
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v: %v", what, ctx.Err(), last)
		}
	}
}

// gang reads a gang from the planner; nil where it knows none.
func (l *lab) gang(ctx context.Context, job string, query string) (*view.Gang, error) {
	data, err := get(ctx, l.MusterAddr+"/v1/gang/default/"+url.PathEscape(job)+query)
	if err != nil || data == nil {
		return nil, err
	}
	var g view.Gang
	if err := json.Unmarshal(data, &g); err != nil {
		return nil, fmt.Errorf("read gang %s: %w", job, err)
	}
	return &g, nil
}

// await returns when the planner shows the gang as the condition wants it. It
// waits by blocking reads.
func (l *lab) await(ctx context.Context, t *testing.T, job, what string, ok func(*view.Gang) bool) *view.Gang {
	t.Helper()
	var last *view.Gang
	query := ""
	for ctx.Err() == nil {
		g, err := l.gang(ctx, job, query)
		switch {
		case err != nil || g == nil:
			// The planner restarts, or has not seen the job yet.
			query = ""
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		case ok(g):
			return g
		}
		last, query = g, fmt.Sprintf("?index=%d&wait=10s", g.Index)
	}
	t.Fatalf("gang %s: waited for: %s; it is: %s", job, what, describe(last))
	return nil
}

func describe(g *view.Gang) string {
	if g == nil {
		return "not known to the planner"
	}
	text, _ := json.MarshalIndent(g, "", " ")
	return string(text)
}
