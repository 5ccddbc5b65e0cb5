//go:build e2e && linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/trial"
)

// suite is what all scenarios share.
var suite struct {
	kind     trial.Kind
	binaries trial.Binaries
	python   string   // an interpreter with torch; empty: none
	looked   []string // where one was looked for
	nomadCLI string   // the real command line; empty: none

	mu      sync.Mutex
	shared  *lab             // see shared
	queued  *lab             // see queues
	open    []*trial.Cluster // all that were started
	results []result
}

// result is how a scenario ended.
type result struct {
	name, state, why string
	took             time.Duration
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A suite that is interrupted takes its clusters down too.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		cancel()
		suite.mu.Lock()
		for _, c := range suite.open {
			_ = c.Close()
		}
		os.Exit(130)
	}()
	if err := prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	summarize()
	return code
}

// prepare finds or builds what the suite runs. The cluster is the one at
// NOMAD_ADDR where that is set, real where NOMAD_BIN names a Nomad, and
// simulated otherwise; MUSTER_E2E=existing|real|sim says so outright.
func prepare(ctx context.Context) error {
	root, err := trial.ModuleRoot()
	if err != nil {
		return err
	}
	if suite.nomadCLI, err = trial.FindNomad(); err != nil {
		return err
	}
	switch want := os.Getenv("MUSTER_E2E"); want {
	case "existing":
		suite.kind = trial.Existing
	case "real":
		suite.kind = trial.Real
	case "sim":
		suite.kind = trial.Simulated
	case "", "auto":
		suite.kind = trial.Simulated
		switch {
		case os.Getenv("NOMAD_ADDR") != "":
			suite.kind = trial.Existing
		case os.Getenv("NOMAD_BIN") != "":
			suite.kind = trial.Real
		}
	default:
		return fmt.Errorf("MUSTER_E2E=%s: it is existing, real, sim or auto", want)
	}
	cache := filepath.Join(root, ".bin")
	if suite.binaries, err = trial.Build(ctx, root, filepath.Join(cache, "e2e")); err != nil {
		return err
	}
	if suite.binaries.Consul, err = trial.FindConsul(ctx, cache, func(line string) { fmt.Fprintln(os.Stderr, "e2e:", line) }); err != nil {
		return err
	}
	suite.binaries.Nomad = suite.nomadCLI
	suite.python, suite.looked = trial.FindTorch(ctx)
	return nil
}

// skip ends the scenario, with a reason that the summary shows.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...)
	suite.mu.Lock()
	for i := range suite.results {
		if suite.results[i].name == t.Name() {
			suite.results[i].why = why
		}
	}
	suite.mu.Unlock()
	t.Skip(why)
}

// needTorch skips a scenario that trains for real where there is no torch.
func needTorch(t *testing.T) {
	t.Helper()
	if suite.python == "" {
		skip(t, "no Python with torch: looked at %s; MUSTER_PYTHON names another (Debian: python3-torch)", strings.Join(suite.looked, ", "))
	}
}

// scenario enters a test into the summary.
func scenario(t *testing.T) {
	t.Helper()
	began := time.Now()
	suite.mu.Lock()
	suite.results = append(suite.results, result{name: t.Name()})
	suite.mu.Unlock()
	t.Cleanup(func() {
		suite.mu.Lock()
		defer suite.mu.Unlock()
		for i := range suite.results {
			r := &suite.results[i]
			if r.name != t.Name() {
				continue
			}
			r.took = time.Since(began)
			switch {
			case t.Failed():
				r.state = "FAILED"
			case t.Skipped():
				r.state = "skipped"
			default:
				r.state = "passed"
			}
		}
	})
}

// summarize prints the totals, what failed and what was skipped and why, and
// adds the same to artifacts/summary for who runs the suite without its output.
func summarize() {
	suite.mu.Lock()
	defer suite.mu.Unlock()
	count, took := map[string]int{}, time.Duration(0)
	for _, r := range suite.results {
		count[r.state]++
		took += r.took
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\nEnd to end, on a %s Nomad: %d scenarios, %d passed, %d failed, %d skipped, in %s\n", suite.kind, len(suite.results),
		count["passed"], count["FAILED"], count["skipped"], took.Round(time.Second))
	sort.SliceStable(suite.results, func(i, j int) bool { return suite.results[i].state < suite.results[j].state })
	for _, r := range suite.results {
		if r.state != "passed" {
			fmt.Fprintf(&text, "  %-8s %s: %s\n", r.state, r.name, cmp.Or(r.why, "see its output, and its logs in e2e/artifacts"))
		}
	}
	fmt.Print(text.String())
	if err := os.MkdirAll("artifacts", 0o755); err != nil {
		return
	}
	if f, err := os.OpenFile("artifacts/summary", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
		_, _ = f.WriteString(text.String())
		_ = f.Close()
	}
}
