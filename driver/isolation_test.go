package driver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// standInCards makes nodes that open, in place of cards: those of FUSE and of
// the tunnel driver under other names.
func standInCards(t *testing.T) string {
	if err := isolation.CanEnter(); err != nil {
		t.Skip("private devices are not to be had here: ", err)
	}
	dev := t.TempDir()
	for name, minor := range map[string]uint32{"card0": 229, "card1": 200} {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, minor))); err != nil {
			t.Skip("no device node may be made here: ", err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Skip("no driver answers on the stand-ins for cards: ", err)
		}
		f.Close()
	}
	return dev
}

// grant hands a stand-in to a task the way a device plugin does.
func grant(dev, card string) func(*driver.TaskConfig) {
	return func(cfg *driver.TaskConfig) {
		cfg.DeviceEnv = map[string]string{"NVIDIA_VISIBLE_DEVICES": card}
		cfg.Devices = []device.DeviceNode{{HostPath: filepath.Join(dev, card), TaskPath: "/dev/" + card, Permissions: "rw"}}
	}
}

// unified gives the unified hierarchy, which machines on version 1 mostly have
// beside the others.
func unified(t *testing.T) isolation.Hierarchy {
	if unix.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	data, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" && os.MkdirAll(filepath.Join(f[1], "muster"), 0o755) == nil {
			return isolation.Hierarchy{Version: 2, Mounts: map[string]string{"": f[1]}}
		}
	}
	t.Skip("no unified cgroup hierarchy may be written to here")
	return isolation.Hierarchy{}
}

// Each of two tasks opens the card that it was granted. The other's it finds
// neither in /dev nor at its place on the host, and root may not make one. A task
// that asked for no card has none.
func TestCardsOfTwoTasks(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(map[int]string{1: "version 1", 2: "version 2"}[version], func(t *testing.T) {
			dev := standInCards(t)
			script := `for c in card0 card1; do
  (exec 3</dev/$c) 2>/dev/null && echo "$c: opened"
  (exec 3<` + dev + `/$c) 2>/dev/null && echo "$c: opened on the host"
done
mknod /dev/mine c 10 229 2>/dev/null && echo "made a node"
ls /dev/fuse /dev/kmsg /dev/sd* 2>/dev/null
echo "sees [$NVIDIA_VISIBLE_DEVICES] done"`
			tr := newTrial(t, 3, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", script}, "nproc_per_node": 1})
			if version == 2 {
				tr.plugin.hierarchy = unified(t)
			} else if tr.plugin.hierarchy.Version != 1 {
				t.Skip("cgroups are not of version 1 here")
			}
			grant(dev, "card0")(tr.members[0].cfg)
			grant(dev, "card1")(tr.members[1].cfg)
			tr.run()
			for i, want := range []string{"card0: opened\ncard0: opened on the host\nsees [card0] done", "card1: opened\ncard1: opened on the host\nsees [card1] done", "sees [] done"} {
				must.Eq(t, 0, tr.wait(i).ExitCode)
				tr.members[i].log.await(t, tr.ctx, "done")
				must.Eq(t, want, tr.members[i].log.text())
			}
		})
	}
}

// Version 2: all of a task's life in a cgroup of the unified hierarchy, children
// in sessions of their own included.
func TestUnifiedHierarchy(t *testing.T) {
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "setsid sleep 300 & (setsid sleep 300 &); cat /proc/self/cgroup; echo up; wait"}, "nproc_per_node": 1})
	tr.plugin.hierarchy = unified(t)
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "up")
	written, err := tr.task(0).start.ReadShim()
	must.NoError(t, err)
	must.StrContains(t, tr.members[0].log.text(), "0::/muster/"+filepath.Base(written.Cgroups[0]))
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, 0, ""))
	tr.wait(0)
	_, err = os.Stat(written.Cgroups[0])
	must.ErrorIs(t, err, os.ErrNotExist)
}

// The kernel's kill for want of memory is told apart: of the rank itself, of a
// rank below a shell, and of a process that a rank cannot do without. tail keeps
// what may be the last line, and that line has no end.
func TestOutOfMemory(t *testing.T) {
	for name, c := range map[string]struct {
		script, text string
		oom          bool
	}{
		"the rank":      {"exec tail /dev/zero", "rank 0 ended by signal 9 (SIGKILL): out of memory, killed by the kernel at the task's limit", true},
		"below a shell": {"tail /dev/zero; exit $?", "rank 0 ended with code 137: out of memory, killed by the kernel at the task's limit", true},
		"a helper":      {"tail /dev/zero || exit 3", "rank 0 ended with code 3; out of memory, the kernel killed 1 of the task's other processes at the task's limit", false},
		"another kill":  {"kill -9 $$", "rank 0 ended by signal 9 (SIGKILL)", false},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", c.script}, "nproc_per_node": 1}, func(cfg *driver.TaskConfig) {
				cfg.Resources.LinuxMemoryLimitBytes = 100 << 20
				cfg.Resources.LinuxOOMScoreAdj = 500
			})
			if h := tr.plugin.hierarchy; h.Version == 0 || h.Version == 1 && h.Mounts["memory"] == "" {
				t.Skip("no memory limit may be set here")
			}
			tr.run()
			must.Eq(t, c.oom, tr.wait(0).OOMKilled)
			x := tr.exit(0)
			must.Eq(t, contract.OutcomeFailed, x.Outcome)
			must.Eq(t, c.oom, x.OOM)
			must.Eq(t, c.text, x.Text)
		})
	}
}

// isolation = "none" leaves the host's devices and files in sight.
func TestNoIsolation(t *testing.T) {
	dev := standInCards(t)
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "(exec 3<" + dev + "/card1) && echo opened; grep NoNewPrivs /proc/self/status; readlink /proc/self/ns/mnt"}, "nproc_per_node": 1, "isolation": "none"}, grant(dev, "card0"))
	tr.run()
	must.Eq(t, 0, tr.wait(0).ExitCode)
	own, err := os.Readlink("/proc/self/ns/mnt")
	must.NoError(t, err)
	tr.members[0].log.await(t, tr.ctx, "opened\nNoNewPrivs:\t0\n"+own)
}

// A task's /tmp, its shared memory and its volumes.
func TestFilesOfATask(t *testing.T) {
	standInCards(t)
	data := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(data, "set"), []byte("the data\n"), 0o666))
	hidden, err := os.CreateTemp("/tmp", "hidden-*")
	must.NoError(t, err)
	t.Cleanup(func() { os.Remove(hidden.Name()) })
	name := filepath.Base(hidden.Name())
	script := "cd /tmp; cat volume/set; echo x >volume/set; ls " + name + "; echo mine >/tmp/mine; echo mine >/dev/shm/" + name + "; echo up; sleep 300"
	volume := func(cfg *driver.TaskConfig) {
		cfg.Mounts = []driver.Mount{{HostPath: data, TaskPath: "/tmp/volume", ReadOnly: true}}
	}
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", script}, "nproc_per_node": 1}, volume)
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "the data\nup")
	tr.members[0].err.await(t, tr.ctx, "Read-only file system")
	tr.members[0].err.await(t, tr.ctx, "No such file")
	temporary := filepath.Join(string(tr.task(0).start), "tmp")
	text, err := os.ReadFile(filepath.Join(temporary, "mine"))
	must.NoError(t, err)
	must.Eq(t, "mine\n", string(text))
	_, err = os.Stat("/dev/shm/" + name)
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, 0, ""))
	tr.wait(0)
	for _, err = os.Stat(temporary); err == nil; _, err = os.Stat(temporary) {
		must.NoError(t, tr.ctx.Err(), must.Sprint("what it left in /tmp goes with it"))
		time.Sleep(20 * time.Millisecond)
	}
	must.ErrorIs(t, err, os.ErrNotExist)

	tr = newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1, "isolation": "none"}, volume)
	_, err = tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, "volume_mount.destination")
}

// Killed supervisors leave nothing mounted, and their tasks' cgroups go.
func TestLostTaskLeavesNoMount(t *testing.T) {
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "echo up; sleep 300"}, "nproc_per_node": 1})
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "up")
	written, err := tr.task(0).start.ReadShim()
	must.NoError(t, err)
	must.NoError(t, unix.Kill(written.Process.PID, unix.SIGKILL))
	must.Eq(t, "lost", string(tr.exit(0).Outcome))
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	must.StrNotContains(t, string(mounts), tr.members[0].dir)
	for _, path := range written.Cgroups {
		_, err := os.Stat(path)
		must.ErrorIs(t, err, os.ErrNotExist)
	}
}

// What cannot be had is off, and the fingerprint says so.
func TestWithoutRoot(t *testing.T) {
	p := newPlugin(t, map[string]any{"rendezvous": "signal"})
	p.noJail, p.hierarchy = errors.New("the agent does not run as root"), isolation.Hierarchy{Why: "no cgroup may be made"}
	f := p.fingerprint(t.Context(), p.config)
	must.StrContains(t, f.Description, "no private /dev and /tmp: the agent does not run as root")
	must.StrContains(t, f.Description, "no cgroups: no cgroup may be made")

	cfg := taskConfig(t, contract.GangID{Region: "global", Namespace: "default", Job: "j"}, "n1", map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1})
	spec, err := p.specOf(p.config, cfg)
	must.NoError(t, err)
	must.False(t, spec.Isolated || spec.Jailed)
	p.hierarchy, p.noJail = isolation.Hierarchy{Version: 2}, nil
	spec, err = p.specOf(p.config, cfg)
	must.NoError(t, err)
	must.True(t, spec.Isolated && spec.Jailed)
	p.config.Isolation = contract.IsolationNone
	spec, err = p.specOf(p.config, cfg)
	must.NoError(t, err)
	must.False(t, spec.Isolated || spec.Jailed)
}

// What tasks may use beside their grants, and where cards are named by variables
// alone.
func TestCommonDevices(t *testing.T) {
	out, err := commonDevices(Config{Devices: []string{"/dev/null", "/dev/not-there"}}, &driver.TaskConfig{}, 0)
	must.NoError(t, err)
	must.Eq(t, []isolation.Device{{Host: "/dev/null"}}, out)
	all, err := isolation.CardNodes("/dev")
	must.NoError(t, err)
	out, err = commonDevices(Config{}, &driver.TaskConfig{}, 2)
	must.NoError(t, err)
	must.Eq(t, len(all), len(out))
}

func TestConfigOfDevicesAndImages(t *testing.T) {
	read := func(config map[string]any) (Config, error) {
		text, err := hclspec.Encode(configSchema, config, nil)
		must.NoError(t, err)
		return ParseConfig(text)
	}
	c, err := read(map[string]any{"devices": []any{"/dev/fuse"}, "image": map[string]any{"engine": "enroot", "auth_file": "/etc/auth.json", "mounts": []any{"/data:ro", "/mnt/a:/b", "/c:/d:ro"}}})
	must.NoError(t, err)
	must.Eq(t, []string{"/dev/fuse"}, c.Devices)
	must.Eq(t, ImageConfig{Engine: "enroot", AuthFile: "/etc/auth.json", Cache: "/var/lib/muster/images",
		Mounts: []isolation.Mount{{Host: "/data", Path: "/data", ReadOnly: true}, {Host: "/mnt/a", Path: "/b"}, {Host: "/c", Path: "/d", ReadOnly: true}}}, c.Images)
	c, err = read(map[string]any{})
	must.NoError(t, err)
	must.Eq(t, image.Auto, c.Images.Engine)
	_, err = read(map[string]any{"devices": []any{"/etc/passwd", "fuse"}, "image": map[string]any{"engine": "docker", "auth_file": "auth", "cache": "c", "mounts": []any{"data", "/a:b", "/a:/b:/c"}}})
	for _, field := range []string{"config.devices", "/etc/passwd", "fuse", "config.image.engine", "docker", "config.image.auth_file", "config.image.cache", "config.image.mounts", "/a:/b:/c"} {
		must.ErrorContains(t, err, field)
	}
}
