package driver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// needTorch skips where there is no Python with torch.
func needTorch(t *testing.T) {
	python, err := preflight.FindPython(t.Context(), preflight.Place{Run: runProgram}, "", defaultPath)
	if err != nil {
		t.Skip(err)
	}
	if python.Torch == "" {
		t.Skipf("%s has no torch (Debian: python3-torch)", python.Path)
	}
}

// long skips what the same suite tests in another way, unless MUSTER_TEST_LONG
// is set.
func long(t *testing.T, instead string) {
	t.Helper()
	if os.Getenv("MUSTER_TEST_LONG") == "" {
		t.Skip("only with MUSTER_TEST_LONG=1: ", instead)
	}
}

// withScript puts a script into the task's local folder.
func withScript(t *testing.T, name, text string) func(*driver.TaskConfig) {
	return func(cfg *driver.TaskConfig) {
		must.NoError(t, os.WriteFile(filepath.Join(cfg.AllocDir, cfg.Name, "local", name), []byte(text), 0o644))
	}
}

// withExample puts scripts of jobspecs/scripts there.
func withExample(t *testing.T, names ...string) func(*driver.TaskConfig) {
	return func(cfg *driver.TaskConfig) {
		for _, name := range names {
			text, err := os.ReadFile(filepath.Join("../jobspecs/scripts", name))
			must.NoError(t, err)
			withScript(t, name, string(text))(cfg)
		}
	}
}

func TestTorchrunAllReduce(t *testing.T) {
	needTorch(t)
	t.Parallel()
	tr := newTrial(t, 2, map[string]any{"script": "local/allreduce.py", "nproc_per_node": 2, "log_prefix": true, "log_files": true}, withExample(t, "allreduce.py"))
	tr.run()
	for i, m := range tr.members {
		must.Eq(t, 0, tr.wait(i).ExitCode)
		m.log.await(t, tr.ctx, "5 steps over 4 ranks, every sum right; the last is 50")
		m.log.await(t, tr.ctx, "run "+tr.gang.RunID(1, "rank"))
		must.Eq(t, contract.OutcomeComplete, tr.exit(i).Outcome)
		for _, told := range []string{"held: waits", "preflight passed: 2 ranks, 0 cards, reached at 127.0.0.1 on lo", "released: attempt 1", "first progress", "ended: all ranks ended with 0"} {
			tr.awaitEvent(m, told)
		}
		must.LessEq(t, 5, strings.Count(tr.eventsOf(m), "\n")+1, must.Sprint(tr.eventsOf(m))) // Nomad keeps ten, and has some of its own
		// Every rank's end stands in the record, and its output by itself on request.
		must.SliceLen(t, 2, tr.exit(i).Ranks)
		for local, rank := range tr.exit(i).Ranks {
			must.Eq(t, contract.RankExit{Rank: 2*i + local, At: rank.At}, rank)
			text, err := os.ReadFile(filepath.Join(m.dir, "alloc", "logs", fmt.Sprintf("train.rank-%d.log", rank.Rank)))
			must.NoError(t, err)
			must.StrContains(t, string(text), fmt.Sprintf("rank %d of 4 started", rank.Rank))
			must.StrNotContains(t, string(text), fmt.Sprintf("rank %d ", 2*i+1-local))
		}
	}
	must.StrContains(t, tr.members[1].log.text(), "[3] rank 3")
}

// The failing rank's own code, not torchrun's 1.
func TestTorchrunFailingRank(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = `
import os, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, flush=True)
if rank == 1:
    time.sleep(0.3)
    if sys.argv[1] == "signal":
        os.kill(os.getpid(), 11)
    sys.exit(42)
time.sleep(300)
`
	for _, how := range []string{"code", "signal"} {
		tr := newTrial(t, 1, map[string]any{"script": "local/fail.py", "args": []any{how}, "nproc_per_node": 2}, withScript(t, "fail.py", script))
		tr.run()
		x := tr.exit(0)
		must.Eq(t, contract.OutcomeFailed, x.Outcome)
		must.Eq(t, 1, x.Rank)
		if how == "code" {
			must.Eq(t, 42, x.Code)
			must.Eq(t, 42, tr.wait(0).ExitCode)
		} else {
			must.Eq(t, 11, x.Signal)
			must.Eq(t, 139, tr.wait(0).ExitCode)
			must.Eq(t, 11, tr.wait(0).Signal)
		}
	}
}

func TestTorchrunThatCannotStart(t *testing.T) {
	needTorch(t)
	t.Parallel()
	tr := newTrial(t, 1, map[string]any{"module": "no.such.module", "nproc_per_node": 1})
	tr.run()
	x := tr.exit(0)
	must.Eq(t, contract.OutcomeFailed, x.Outcome)
	must.Eq(t, 1, x.Code)
	must.Eq(t, 0, x.Rank)
}

// C17, with short times: torchrun's own 30 s are shown to be out of reach by a
// rank that leaves with a failure while the other still saves.
func TestTorchrunCannotCutTheGraceShort(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = `
import os, signal, sys, time
rank = int(os.environ["RANK"])
def save(*_):
    if rank == 0:
        os._exit(1)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        time.sleep(0.1)
    open(sys.argv[2] + "/ckpt_%d" % rank, "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
`
	seconds := "3"
	if os.Getenv("MUSTER_TEST_LONG") != "" {
		seconds = "35"
	}
	dir := t.TempDir()
	tr := newTrial(t, 1, map[string]any{"script": "local/save.py", "args": []any{seconds, dir}, "nproc_per_node": 2}, withScript(t, "save.py", script))
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "ready\nready")
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Hour, ""))
	must.FileExists(t, dir+"/ckpt_1")
	must.Eq(t, contract.OutcomeYielded, tr.exit(0).Outcome)
}

// C18: whatever way the launcher goes, nothing of the task stays.
func TestNoProcessIsLeft(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = `
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "300"])
subprocess.Popen(["sh", "-c", "trap '' TERM; (setsid sh -c 'sleep 300 & wait') & sleep 300"])
print("ready", flush=True)
time.sleep(300)
`
	for name, end := range map[string]func(*trial){
		"launcher killed": func(tr *trial) {
			pids, err := launcherOf(tr.members[0].cfg.ID)
			must.NoError(t, err)
			must.SliceNotEmpty(t, pids)
			for _, pid := range pids {
				must.NoError(t, unix.Kill(pid, unix.SIGKILL))
			}
		},
		"stopped":   func(tr *trial) { must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Second, "")) },
		"destroyed": func(tr *trial) { must.NoError(t, tr.plugin.DestroyTask(tr.members[0].cfg.ID, true)) },
		"shim killed": func(tr *trial) {
			s, err := tr.task(0).start.ReadShim()
			must.NoError(t, err)
			must.NoError(t, unix.Kill(s.Process.PID, unix.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "stopped" || name == "destroyed" {
				long(t, "the soak does the same without torchrun")
			}
			t.Parallel()
			tr := newTrial(t, 1, map[string]any{"script": "local/stay.py", "nproc_per_node": 2}, withScript(t, "stay.py", script))
			tr.run()
			tr.members[0].log.await(t, tr.ctx, "ready\nready")
			task := tr.task(0)
			end(tr)
			select {
			case <-task.done:
			case <-tr.ctx.Done():
				t.Fatal("the task is not over")
			}
			tr.gone(tr.members[0])
			want := map[string]contract.Outcome{"launcher killed": contract.OutcomeFailed, "stopped": contract.OutcomeKilled, "destroyed": contract.OutcomeKilled, "shim killed": contract.OutcomeLost}[name]
			must.Eq(t, want, task.exit.Outcome, must.Sprint(task.exit.Text))
			must.NotEq(t, 0, task.result().ExitCode)
		})
	}
}

// launcherOf finds torchrun's own process among a task's.
func launcherOf(id string) (pids []int, err error) {
	all, err := isolation.WithEntry(contract.EnvTask + "=" + id)
	for _, pid := range all {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if strings.Contains(string(text), "torch.distributed.run") {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// C22 with torchrun: one member's launcher is killed, and the other, whose
// torchrun would wait for long, is ended within seconds.
func TestPeersOfADeadLauncherStop(t *testing.T) {
	needTorch(t)
	t.Parallel()
	tr := newTrial(t, 2, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"))
	tr.run()
	for _, m := range tr.members {
		m.log.await(t, tr.ctx, "ready")
	}
	pids, err := launcherOf(tr.members[1].cfg.ID)
	must.NoError(t, err)
	for _, pid := range pids {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	must.Eq(t, contract.OutcomePeer, tr.exit(0).Outcome)
	must.StrContains(t, tr.exit(0).Text, "member 1 on n2 ended")
	must.Eq(t, contract.CodePeer, tr.wait(0).ExitCode)
}

// IPv6: the store at ::1.
func TestTorchrunOverIPv6(t *testing.T) {
	needTorch(t)
	if os.Getuid() == 0 {
		long(t, "as root TestGangOverIPv6OnOneOfSeveralInterfaces does it between hosts")
	}
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here: ", err)
	} else {
		l.Close()
	}
	t.Parallel()
	tr := newTrial(t, 2, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", "import os\nprint('store', os.environ['MASTER_ADDR'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"))
	tr.start()
	tr.place(1)
	tr.freeze()
	tr.record.Worlds[0].Host = "::1"
	tr.planner.Write(tr.record)
	for i, m := range tr.members {
		must.Eq(t, 0, tr.wait(i).ExitCode)
		m.log.await(t, tr.ctx, "of 2")
		t.Log(m.log.text())
	}
}
