package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// What the preflight finds between members names the peer, and the member is
// reported refused; the planner would not release it.
func TestPeersOutOfReachAreNamed(t *testing.T) {
	t.Parallel()
	answer := func(t *testing.T, state map[string]any) int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = json.NewEncoder(conn).Encode(state)
				conn.Close()
			}
		}()
		return l.Addr().(*net.TCPAddr).Port
	}
	for name, c := range map[string]struct {
		port func(*testing.T) int
		what string
		text string
	}{
		"nobody there": {func(t *testing.T) int {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must.NoError(t, err)
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}, "peer", "member 1 on n2 cannot be reached"},
		"a stranger": {func(t *testing.T) int {
			return answer(t, map[string]any{"v": 1, "alloc": "somebody", "task": "train", "at": time.Now()})
		}, "peer", "another member answers there"},
		"another time": {func(t *testing.T) int {
			return answer(t, map[string]any{"v": 1, "alloc": "peer", "task": "train", "at": time.Now().Add(-time.Hour)})
		}, "clock", "the clocks of n1 and n2 are"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, 1, ranksConfig(t, "-steps", "1"))
			tr.start()
			record := contract.Record{V: 1, Gang: tr.gang, Attempt: 1, Phase: contract.PhasePlaced, Members: []contract.Member{
				{Index: 0, Alloc: tr.members[0].cfg.AllocID, Task: "train", Group: "rank", Node: "n1"}, {Index: 1, Alloc: "peer", Task: "train", Group: "rank", Node: "n2"}}}
			tr.planner.Write(record)
			key := tr.members[0].cfg.AllocID + ".train"
			tr.planner.Await(tr.ctx, 1, "checking", func(all map[string]contract.Report) bool { return all[key].State == contract.StateChecking })
			report, err := json.Marshal(contract.Report{V: 1, Gang: tr.gang, Attempt: 1, Alloc: "peer", Task: "train", State: contract.StateChecking, Address: "127.0.0.1", Supervisor: c.port(t)})
			must.NoError(t, err)
			rendezvoustest.Shared(t).Put(t, tr.gang.ReportKey(1, "peer", "train"), string(report))
			all := tr.planner.Await(tr.ctx, 1, "refused", func(all map[string]contract.Report) bool { return all[key].State == contract.StateRefused })
			p := all[key].Problems[0]
			must.Eq(t, c.what, p.What)
			must.Eq(t, "n2", p.Peer)
			must.True(t, p.Site)
			must.StrContains(t, p.Text, c.text)
			tr.awaitEvent(tr.members[0], "preflight refused")
		})
	}
}

// withoutTorch is an interpreter that runs and finds no torch.
func withoutTorch(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "python3")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho\n"), 0o755))
	return path
}

func plainFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "program")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o644))
	return path
}

// A script that the task's user may not read is found before a card is used,
// with the field and the user named.
func TestScriptThatTheUserMayNotRead(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start tasks as another user")
	}
	t.Parallel()
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "script": "local/secret.py", "python": withoutTorch(t), "nproc_per_node": 1}, withScript(t, "secret.py", "print()\n"), func(cfg *driver.TaskConfig) {
		cfg.User = "nobody"
		must.NoError(t, os.Chmod(filepath.Join(cfg.AllocDir, cfg.Name, "local", "secret.py"), 0o600))
	})
	tr.start()
	tr.place(1)
	p := tr.refusal(tr.members[0])
	must.Eq(t, "script", p.What)
	must.False(t, p.Site)
	must.StrContains(t, p.Text, `script = "local/secret.py": user nobody may not read it`)
}

func TestPreflightRefusesWithReasons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config map[string]any
		cards  int
		what   string
		text   string
	}{
		"no script":         {map[string]any{"launcher": "ranks", "script": "local/absent.py", "nproc_per_node": 1}, 0, "script", "artifact or template"},
		"no program":        {map[string]any{"launcher": "ranks", "command": []any{"no-such-program"}, "nproc_per_node": 1}, 0, "script", "looked in"},
		"site says no":      {map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1, "preflight_command": []any{"/bin/sh", "-c", "echo link is slow >&2; exit 4"}}, 0, "command", "code 4: link is slow"},
		"site never says":   {map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1, "preflight_command": []any{"/bin/sleep", "60"}, "preflight_timeout": "200ms"}, 0, "command", "deadline exceeded"},
		"another interface": {map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1, "interface": "nowhere0"}, 0, "address", "there is no interface"},
		"no interpreter":    {map[string]any{"launcher": "ranks", "module": "train", "python": "/opt/absent/python3", "nproc_per_node": 1}, 0, "python", "/opt/absent/python3"},
		"no torch":          {map[string]any{"module": "train", "python": withoutTorch(t), "nproc_per_node": 1}, 0, "python", "has no torch"},
		"a folder":          {map[string]any{"launcher": "ranks", "script": "local", "nproc_per_node": 1}, 0, "script", "is a folder"},
		"not executable":    {map[string]any{"launcher": "ranks", "command": []any{plainFile(t)}, "nproc_per_node": 1}, 0, "script", "not executable"},
		"cards missing":     {map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1}, 4, "cards", "4 cards were reserved and the task was handed 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, 1, c.config)
			tr.start()
			tr.planner.Write(contract.Record{V: 1, Gang: tr.gang, Attempt: 1, Phase: contract.PhasePlaced, Members: []contract.Member{
				{Alloc: tr.members[0].cfg.AllocID, Task: "train", Group: "rank", Node: "n1", Cards: c.cards}}})
			key := tr.members[0].cfg.AllocID + ".train"
			all := tr.planner.Await(tr.ctx, 1, "refused", func(all map[string]contract.Report) bool { return all[key].State == contract.StateRefused })
			must.Eq(t, c.what, all[key].Problems[0].What)
			must.StrContains(t, all[key].Problems[0].Text, c.text)
		})
	}
}

// A card that somebody else computes on is refused with the process named, and
// one that a stranger uses at the end is told before it goes back.
func TestCardsThatOthersUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var paths []string
	for name, minor := range map[string]uint32{"nvidia0": 7, "nvidia-uvm": 5} { // /dev/full, /dev/zero
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Skip("no device node may be made here: ", err)
		}
		paths = append(paths, path)
	}
	stranger := func() (pid int, end func()) {
		out := filepath.Join(dir, randomID())
		cmd := exec.Command("/bin/sh", "-c", `exec 3<"$1" 4<"$2"; echo > "$3"; exec sleep 300`, "s", paths[0], paths[1], out)
		must.NoError(t, cmd.Start())
		for _, err := os.Stat(out); err != nil; _, err = os.Stat(out) {
			time.Sleep(10 * time.Millisecond)
		}
		end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		t.Cleanup(end)
		return cmd.Process.Pid, end
	}
	hand := func(cfg *driver.TaskConfig) {
		cfg.DeviceEnv = map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
		cfg.Env["NVIDIA_VISIBLE_DEVICES"] = "GPU-0"
		for _, path := range paths {
			cfg.Devices = append(cfg.Devices, device.DeviceNode{TaskPath: path, HostPath: path, Permissions: "rw"})
		}
	}
	config := map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "echo up; sleep 300"}, "isolation": "none"}

	pid, end := stranger()
	tr := newTrial(t, 1, config, hand)
	tr.start()
	tr.place(1)
	p := tr.refusal(tr.members[0])
	must.Eq(t, "cards", p.What)
	must.True(t, p.Site)
	must.StrContains(t, p.Text, fmt.Sprintf("on n1 process %d (sleep, user 0) holds %s", pid, dir))
	end()

	tr = newTrial(t, 1, config, hand)
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "up")
	pid, end = stranger()
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Second, ""))
	tr.awaitEvent(tr.members[0], fmt.Sprintf("process %d (sleep, user 0) holds %s", pid, dir))
	tr.awaitEvent(tr.members[0], "after the task's own processes are gone")
	end()
}

// C13: what ranks see of cards, from a rank's own environment.
func TestCardsThatRanksSee(t *testing.T) {
	print := map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", `echo "see [$CUDA_VISIBLE_DEVICES] [$NVIDIA_VISIBLE_DEVICES] rank $RANK of $WORLD_SIZE secret [$AGENT_SECRET]"`}}
	t.Setenv("AGENT_SECRET", "s.12345") // of the agent, which the plugin inherits
	with := func(nproc any, device map[string]string, own map[string]string) (*trial, error) {
		config := map[string]any{}
		for k, v := range print {
			config[k] = v
		}
		if nproc != nil {
			config["nproc_per_node"] = nproc
		}
		tr := newTrial(t, 1, config, func(cfg *driver.TaskConfig) {
			cfg.DeviceEnv = device
			for k, v := range own {
				cfg.Env[k] = v
			}
			for k, v := range device {
				cfg.Env[k] = v
			}
		})
		handle, err := tr.plugin.StartTask(tr.members[0].cfg)
		tr.members[0].handle = handle
		return tr, err
	}
	see := func(tr *trial, want ...string) {
		t.Helper()
		tr.place(1)
		tr.release()
		must.Eq(t, 0, tr.wait(0).ExitCode)
		for _, w := range want {
			tr.members[0].log.await(t, tr.ctx, w)
		}
	}
	four := map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-4,GPU-5,GPU-6,GPU-7"}

	// Base: cards are wanted and none came: again later, and nothing started.
	_, err := with("gpu", nil, nil)
	var again *base.RecoverableError
	must.True(t, errors.As(err, &again))

	// b: the reservation wins over the user's list.
	tr, err := with("gpu", four, map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
	must.NoError(t, err)
	see(tr, "see [GPU-4,GPU-5,GPU-6,GPU-7] [GPU-4,GPU-5,GPU-6,GPU-7] rank 3 of 4 secret []")

	// c: more ranks than cards.
	_, err = with(8, four, nil)
	must.ErrorContains(t, err, "the task was given 4 cards")

	// d: no card asked for.
	tr, err = with(nil, nil, map[string]string{"CUDA_VISIBLE_DEVICES": "0"})
	must.NoError(t, err)
	see(tr, "see [] [] rank 0 of 1 secret []")
}

// Ranks run as the task's user, who can use the output, the marks and the
// preempt file, and not the supervisor's records.
func TestRanksRunAsTheUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start tasks as another user")
	}
	script := `id -un; echo "locked $(ulimit -l)"; grep NoNewPrivs /proc/self/status; echo "oom $(cat /proc/self/oom_score_adj)"; echo hello > /dev/stdout; echo step 1 >> $MUSTER_PROGRESS_FILE; cat ../shim.json 2>&1; cat "$(dirname $MUSTER_PROGRESS_FILE)/../shim.json" 2>&1; sleep 1`
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", script}, "nproc_per_node": 1}, func(cfg *driver.TaskConfig) {
		cfg.User = "nobody"
		cfg.Resources.LinuxOOMScoreAdj = 7
		for dir := cfg.AllocDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the test's own folders are private
			_ = os.Chmod(dir, 0o755)
		}
	})
	tr.run()
	must.Eq(t, 0, tr.wait(0).ExitCode)
	tr.members[0].log.await(t, tr.ctx, "nobody")
	tr.members[0].log.await(t, tr.ctx, "hello")
	tr.members[0].log.await(t, tr.ctx, "oom 7")
	var limit unix.Rlimit
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if must.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)); unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited) == nil { // some roots may not
		must.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
		tr.members[0].log.await(t, tr.ctx, "locked unlimited")
	}
	if tr.plugin.hierarchy.Version > 0 {
		tr.members[0].log.await(t, tr.ctx, "NoNewPrivs:\t1")
	}
	tr.members[0].log.await(t, tr.ctx, "Permission denied")
	tr.awaitEvent(tr.members[0], "first progress")

	tr = newTrial(t, 1, ranksConfig(t), func(cfg *driver.TaskConfig) { cfg.User = "no-such-user" })
	_, err := tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, `user = "no-such-user"`)
}
