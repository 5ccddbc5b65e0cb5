package simulate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

// The benchmarks of the published traces read them below the folder that
// MUSTER_DATA names (docs/benchmarks.md says where the files come from), and
// small extracts in testdata where it names none, so that every run of the
// tests' benchmarks sees that they work. A figure of an extract is none.

// dataset reads a trace: the whole one, or its extract.
func dataset(tb testing.TB, whole, extract string) *Trace {
	path := filepath.Join("testdata", extract)
	if dir := os.Getenv("MUSTER_DATA"); dir != "" {
		path = filepath.Join(dir, whole)
	}
	t, err := ReadTrace(path)
	must.NoError(tb, err)
	tb.Logf("%s, sha256 %s, %d cores, %s", filepath.Base(path), t.SHA256, runtime.GOMAXPROCS(0), runtime.Version())
	return t
}

func whole() bool { return os.Getenv("MUSTER_DATA") != "" }

// pick is the first value for a whole trace and the second for an extract.
func pick[T any](full, small T) T {
	if whole() {
		return full
	}
	return small
}

// shipped is the default configuration with one queue, as every figure uses it.
func shipped(queue core.QueueName) *core.Config {
	cfg := core.Defaults()
	cfg.Queues = []core.Queue{core.DefaultQueue(queue)}
	return &cfg
}

// replay runs a simulation and tells its bounds.
func replay(b *testing.B, o Options) (*Result, Figures) {
	began, cpu := time.Now(), cpuTime()
	r, err := Run(context.Background(), o)
	must.NoError(b, err)
	f := r.Figures()
	must.Eq(b, len(o.Jobs), f.Done)
	must.GreaterEq(b, f.Bounds.Makespan*(1-1e-9), f.Makespan)
	must.GreaterEq(b, f.Bounds.MeanJCT*(1-1e-9), f.MeanJCT)
	b.Logf("%s: bounds: makespan %.0f s (is %.0f s, %.3f of it), mean JCT %.0f s; %d cycles, p99 %.2f ms; took %s, %s CPU", o.Name, f.Bounds.Makespan, f.Makespan, f.Makespan/f.Bounds.Makespan,
		f.Bounds.MeanJCT, f.Cycles, f.CycleP99, time.Since(began).Round(time.Second), (cpuTime() - cpu).Round(time.Second))
	return r, f
}

// report publishes figures under their names.
func report(b *testing.B, pairs ...any) {
	b.ReportMetric(0, "ns/op")
	for i := 0; i < len(pairs); i += 2 {
		b.ReportMetric(pairs[i+1].(float64), fmt.Sprint(pairs[i]))
	}
}
