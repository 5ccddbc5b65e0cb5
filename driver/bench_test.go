package driver

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/internal/contract"
)

// program builds the driver as it is shipped.
func program(b *testing.B) string {
	binary := filepath.Join(b.TempDir(), "nomad-driver-torchrun")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "../cmd/nomad-driver-torchrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(b, err, must.Sprint(string(out)))
	return binary
}

// BenchmarkStart measures what the driver adds between Nomad's StartTask and
// the first instruction of a rank, without waiting for anybody: the start of
// the supervisor, the preflight, and the launch.
//
//	go test ./driver -run '^$' -bench Start -benchtime 20x
func BenchmarkStart(b *testing.B) {
	binary := program(b)
	var start, check, launch time.Duration
	for range b.N {
		s, c, l := startOnce(b, binary)
		start, check, launch = start+s, check+c, launch+l
	}
	n := float64(b.N)
	b.ReportMetric(float64(start.Microseconds())/1000/n, "ms-StartTask")
	b.ReportMetric(float64(check.Microseconds())/1000/n, "ms-preflight")
	b.ReportMetric(float64(launch.Microseconds())/1000/n, "ms-release-to-exec")
	b.ReportMetric(float64((start+launch).Microseconds())/1000/n, "ms-start-and-launch")
}

func startOnce(b *testing.B, binary string) (start, check, launch time.Duration) {
	gang := contract.GangID{Region: "global", Namespace: "default", Job: "bench"}
	plugin := newPlugin(b, map[string]any{"rendezvous": "signal", "interface": "lo"})
	plugin.binary = binary
	cfg := taskConfig(b, gang, "n1", map[string]any{"launcher": "ranks", "command": []any{"/bin/date", "+%s.%N"}, "nproc_per_node": 1})
	m := newMember(b, cfg)
	began := time.Now()
	_, err := plugin.StartTask(cfg)
	must.NoError(b, err)
	start = time.Since(began)
	record := contract.Record{V: 1, Gang: gang, Attempt: 1, Phase: contract.PhasePlaced, Members: []contract.Member{{Alloc: cfg.AllocID, Task: "train", Group: "rank", Node: "n1"}}}
	send := func() time.Time {
		text, err := json.Marshal(record)
		must.NoError(b, err)
		at := time.Now()
		must.NoError(b, plugin.SignalTask(cfg.ID, contract.SignalRecord+" "+string(text)))
		return at
	}
	placed := send()
	port := 0
	for port == 0 {
		status, err := plugin.InspectTask(cfg.ID)
		must.NoError(b, err)
		if status.DriverAttributes["stage"] == "ready" {
			port = 18000
		}
	}
	check = time.Since(placed)
	record.Phase = contract.PhaseReleased
	record.Members[0].Start, record.Members[0].Address, record.Members[0].Ranks = 1, "127.0.0.1", 1
	record.Worlds = []contract.World{{Name: "rank", Members: []int{0}, Host: "127.0.0.1", Port: port}}
	released := send()
	r, err := plugin.WaitTask(b.Context(), cfg.ID)
	must.NoError(b, err)
	must.Eq(b, 0, r.ExitCode)
	for m.log.text() == "" {
		time.Sleep(time.Millisecond)
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(m.log.text()), 64)
	must.NoError(b, err)
	launch = time.UnixMicro(int64(seconds * 1e6)).Sub(released)
	must.NoError(b, plugin.DestroyTask(cfg.ID, true))
	return start, check, launch
}

// stamps reads the times in seconds that a member's ranks printed after a word.
func (l *logReader) stamps(b testing.TB, word string, n int) (out []time.Time) {
	for deadline := time.Now().Add(30 * time.Second); len(out) < n; time.Sleep(time.Millisecond) {
		must.True(b, time.Now().Before(deadline), must.Sprint(l.text()))
		out = nil
		for line := range strings.Lines(l.text()) {
			if text, ok := strings.CutPrefix(line, word+" "); ok {
				seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				must.NoError(b, err)
				out = append(out, time.UnixMicro(int64(seconds*1e6)))
			}
		}
	}
	return out
}

func last(times []time.Time) (t time.Time) {
	for _, other := range times {
		if other.After(t) {
			t = other
		}
	}
	return t
}

// BenchmarkRelease measures eight members of two ranks on one machine, over
// Consul: from the released record to the first instruction of the last of the
// 16 ranks; from the exit of the last rank of a member that was stopped, to the
// answer to Nomad; and the resident memory of a held and of a running member.
//
//	go test ./driver -run '^$' -bench Release -benchtime 10x
func BenchmarkRelease(b *testing.B) {
	const members, ranks = 8, 2
	binary := program(b)
	var launched, stopped time.Duration
	var held, private, running float64
	for range b.N {
		tr := newTrial(b, members, map[string]any{"launcher": "ranks", "nproc_per_node": ranks,
			"command": []any{"/bin/sh", "-c", `date "+up %s.%N"; trap 'date "+gone %s.%N"; exit 0' TERM; sleep 60 & wait`}})
		tr.plugin.binary = binary
		tr.start()
		tr.place(1)
		tr.freeze()
		for i := range members {
			written, err := tr.task(i).start.ReadShim()
			must.NoError(b, err)
			rss, own := resident(b, written.Process.PID)
			held, private = held+rss/members, private+own/members
		}
		released := time.Now()
		tr.planner.Write(tr.record)
		var up time.Time
		for _, m := range tr.members {
			up = last([]time.Time{up, last(m.log.stamps(b, "up", ranks))})
		}
		launched += up.Sub(released)
		for i := range members {
			written, err := tr.task(i).start.ReadShim()
			must.NoError(b, err)
			rss, _ := resident(b, written.Process.PID)
			running += rss / members
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		worst := time.Duration(0)
		for _, m := range tr.members {
			wg.Go(func() {
				err := tr.plugin.StopTask(m.cfg.ID, time.Minute, "")
				over := time.Now()
				must.NoError(b, err)
				took := over.Sub(last(m.log.stamps(b, "gone", ranks)))
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, took)
			})
		}
		wg.Wait()
		stopped += worst
		tr.destroy()
	}
	n := float64(b.N)
	b.ReportMetric(float64(launched.Microseconds())/1000/n, "ms-release-to-last-rank")
	b.ReportMetric(float64(stopped.Microseconds())/1000/n, "ms-exit-to-stopped")
	b.ReportMetric(held/n, "MiB-held")
	b.ReportMetric(private/n, "MiB-held-private")
	b.ReportMetric(running/n, "MiB-running")
}

// resident gives a process's resident memory in MiB, and what of it is not
// shared with other processes.
func resident(b testing.TB, pid int) (rss, private float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(b, err)
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			rss = kib / 1024
		}
		if _, err := fmt.Sscanf(line, "RssAnon: %f kB", &kib); err == nil {
			private = kib / 1024
		}
	}
	return rss, private
}

// BenchmarkTorchrun runs the same script with two ranks by hand and through the
// driver, one after the other, and gives the ratio of their times: from the
// start of torchrun, or the release, to the end of the launcher, or the task.
//
//	go test ./driver -run '^$' -bench Torchrun -benchtime 5x
func BenchmarkTorchrun(b *testing.B) {
	python, err := preflight.FindPython(b.Context(), preflight.Place{Run: runProgram}, "", defaultPath)
	if err != nil || python.Torch == "" {
		b.Skip("no Python with torch: ", err)
	}
	script, err := filepath.Abs("../jobspecs/scripts/allreduce.py")
	must.NoError(b, err)
	binary := program(b)
	var byHand, ours time.Duration
	for range b.N {
		port, err := preflight.KeepPort(0, 19000, 19999, 0)
		must.NoError(b, err)
		port.Release()
		cmd := exec.Command(python.Path, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", strconv.Itoa(port.Number),
			"--redirects", "9:1", "--tee", "9:1", script, "20")
		cmd.Dir = b.TempDir()
		began := time.Now()
		out, err := cmd.CombinedOutput()
		must.NoError(b, err, must.Sprint(string(out)))
		byHand += time.Since(began)

		tr := newTrial(b, 1, map[string]any{"script": script, "args": []any{"20"}, "nproc_per_node": 2})
		tr.plugin.binary = binary
		tr.start()
		tr.place(1)
		tr.freeze()
		began = time.Now()
		tr.planner.Write(tr.record)
		must.Eq(b, 0, tr.wait(0).ExitCode)
		ours += time.Since(began)
		tr.destroy()
	}
	n := float64(b.N)
	b.ReportMetric(byHand.Seconds()/n, "s-by-hand")
	b.ReportMetric(ours.Seconds()/n, "s-through-the-driver")
	b.ReportMetric(ours.Seconds()/byHand.Seconds(), "ratio")
}
