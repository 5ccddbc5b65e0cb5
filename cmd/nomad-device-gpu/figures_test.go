package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// BenchmarkPlugin measures the plugin as a process on a node of eight cards: its
// resident memory and what a second of idling and one fingerprint pass cost.
//
//	make build
//	MUSTER_PLUGIN=$PWD/bin/nomad-device-gpu go test -run '^$' -bench BenchmarkPlugin -benchtime 1x ./cmd/nomad-device-gpu
func BenchmarkPlugin(b *testing.B) {
	for b.Loop() {
		file := filepath.Join(b.TempDir(), "cards.hcl")
		must.NoError(b, os.WriteFile(file, []byte(`node "n1" { preset = "hgx-h100-8" }`), 0o600))
		d := launch(b, map[string]any{"simulated": map[string]any{"file": file, "node": "n1"}, "fingerprint_period": "1s", "prometheus": map[string]any{"address": "127.0.0.1:0"}})
		ctx, cancel := context.WithCancel(context.Background())
		ready := make(chan struct{}, 16)
		go d.Fingerprint(ctx, func([]nomad.Group) error { ready <- struct{}{}; return nil })
		<-ready
		p, ok := d.Process()
		must.True(b, ok)
		time.Sleep(20 * time.Second) // a steady state is what is measured
		before := cpu(b, p.PID)
		time.Sleep(20 * time.Second)
		spent := cpu(b, p.PID) - before
		b.ReportMetric(float64(rss(b, p.PID))/1024, "RSS-MiB")
		b.ReportMetric(spent.Seconds()*1000/20, "CPU-ms/pass") // one pass a second, and the watching
		cancel()
		d.Close()
	}
}

// cpu is what a process has used, in the kernel's ticks of 10 ms.
func cpu(tb testing.TB, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.NoError(tb, err)
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
	user, err1 := strconv.Atoi(f[12])
	system, err2 := strconv.Atoi(f[13])
	must.NoError(tb, err1)
	must.NoError(tb, err2)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// rss is a process's resident memory in KiB.
func rss(tb testing.TB, pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(tb, err)
	for _, line := range strings.Split(string(text), "\n") {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			must.NoError(tb, err)
			return n
		}
	}
	tb.Fatal("no VmRSS")
	return 0
}
