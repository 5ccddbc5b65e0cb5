package driver

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/contract"
)

// Members are started, released, asked, stopped, destroyed, and their
// supervisors, launchers and ranks killed, at random; afterwards no process,
// cgroup, port or Consul key of them is left. MUSTER_SOAK=1000 makes it long;
// MUSTER_SEED repeats one.
func TestSoak(t *testing.T) {
	cycles, seed := 20, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv("MUSTER_SOAK")); err == nil {
		cycles = n
	}
	if n, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("MUSTER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	outcomes := map[contract.Outcome]int{}
	for i := range cycles {
		kind := random.IntN(8)
		t.Run(fmt.Sprintf("%d-%d", i, kind), func(t *testing.T) {
			tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "nproc_per_node": 2,
				"command": []any{"/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & (sleep 60 &) ; echo up; sleep " + strconv.Itoa(random.IntN(3)*20)}})
			tr.start()
			task := tr.task(0)
			pause := time.Duration(random.IntN(60)) * time.Millisecond
			if kind > 0 {
				tr.place(1)
			}
			if kind > 1 {
				tr.release()
			}
			if kind > 2 {
				tr.members[0].log.await(t, tr.ctx, "up")
			}
			time.Sleep(pause)
			shimPID := 0
			if s, err := task.start.ReadShim(); err == nil {
				shimPID = s.Process.PID
			}
			switch random.IntN(4) {
			case 0:
				must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, 50*time.Millisecond, ""))
			case 1:
				must.NoError(t, tr.plugin.DestroyTask(tr.members[0].cfg.ID, true))
			case 2:
				_ = unix.Kill(shimPID, unix.SIGKILL)
			case 3:
				pids, err := isolation.Below(shimPID)()
				must.NoError(t, err)
				for _, pid := range pids {
					if random.IntN(2) == 0 {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				}
				must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, 50*time.Millisecond, ""))
			}
			select {
			case <-task.done:
			case <-tr.ctx.Done():
				tr.dump()
				t.Fatal("the task is not over")
			}
			outcomes[task.exit.Outcome]++
			tr.gone(tr.members[0])
			for _, mount := range tr.plugin.hierarchy.Mounts {
				left, _ := filepath.Glob(filepath.Join(mount, "muster", tr.members[0].cfg.AllocID+"*"))
				must.SliceEmpty(t, left)
			}
			must.SliceEmpty(t, tr.planner.Services())
			_ = tr.plugin.DestroyTask(tr.members[0].cfg.ID, true)
		})
	}
	t.Logf("outcomes: %v", outcomes)
	must.MapNotContainsKey(t, outcomes, "")
}

// BenchmarkStart measures what the driver adds between Nomad's StartTask and
// the first instruction of a rank, without waiting for anybody: the start of
// the supervisor, the preflight, and the launch.
//
//	go test ./driver -run '^$' -bench Start -benchtime 20x
func BenchmarkStart(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "nomad-driver-torchrun")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "../cmd/nomad-driver-torchrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(b, err, must.Sprint(string(out)))
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
