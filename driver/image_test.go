package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// driverProgram builds the driver as it is shipped: in an image there are no
// libraries of the host's.
var driverProgram = sync.OnceValues(func() (string, error) {
	if programs != "" {
		return filepath.Join(programs, "nomad-driver-torchrun"), nil
	}
	path := filepath.Join(built, "nomad-driver-torchrun")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/nomad-driver-torchrun")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the driver: %w\n%s", err, out)
	}
	return path, nil
})

// testImage builds an image from a folder: the example rank, a shell and nothing
// else; there is no registry here.
var testImage = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-test-image-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	rank, err := allreduce()
	if err != nil {
		return "", err
	}
	for from, to := range map[string]string{rank: "muster-allreduce-rank", "/bin/busybox": "busybox"} {
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o755); err != nil {
			return "", err
		}
	}
	// Its entry point is not there, which is none of ours.
	recipe := "FROM scratch\nCOPY busybox /bin/busybox\nCOPY muster-allreduce-rank /opt/rank/muster-allreduce-rank\n" +
		"ENV PATH=/opt/rank:/bin OF_IMAGE=yes HOME=/of/image\nENTRYPOINT [\"/not/there\"]\nUSER 77\n"
	for _, applet := range []string{"sh", "cat", "sleep", "id", "grep", "ls", "setsid", "mount", "mknod", "stty", "tty", "pwd", "head", "tr", "touch", "true"} {
		if err := os.Symlink("busybox", filepath.Join(dir, applet)); err != nil && !os.IsExist(err) {
			return "", err
		}
		recipe = strings.Replace(recipe, "ENV PATH", "COPY "+applet+" /bin/"+applet+"\nENV PATH", 1)
	}
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(recipe), 0o644); err != nil {
		return "", err
	}
	name := fmt.Sprintf("localhost/muster-test-%d", os.Getpid())
	if out, err := exec.Command("podman", "build", "--network=none", "--layers=false", "--tag", name, dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test's image: %w\n%s", err, out)
	}
	imageBuilt = name
	return name, nil
})

var imageBuilt string

func removeTestImage() {
	if imageBuilt != "" {
		_ = exec.Command("podman", "rmi", "--force", imageBuilt).Run()
	}
}

// needsPodman gives the test's image, where containers can run.
func needsPodman(t *testing.T) string {
	if unix.Geteuid() != 0 {
		t.Skip("images with podman need root")
	}
	for _, program := range []string{"podman", "crun", "/bin/busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs podman, crun and busybox-static (apt-get install podman crun busybox-static): ", err)
		}
	}
	if _, err := allreduce(); err != nil { // makes the folder, too
		t.Fatal(err)
	}
	name, err := testImage()
	if err != nil {
		t.Skip("podman does not work here: ", err)
	}
	return name
}

// newImageTrial is a gang whose ranks run in an image.
func newImageTrial(t *testing.T, members int, config map[string]any, change ...func(*driver.TaskConfig)) *trial {
	if config["image"] == nil {
		config["image"] = needsPodman(t)
	}
	if config["launcher"] == nil {
		config["launcher"] = "ranks"
	}
	if config["nproc_per_node"] == nil {
		config["nproc_per_node"] = 1
	}
	program, err := driverProgram()
	must.NoError(t, err)
	var tr *trial
	t.Cleanup(func() { // after all is destroyed
		if tr != nil {
			tr.noContainer()
		}
	})
	tr = newTrial(t, members, config, change...)
	tr.plugin.binary = program
	return tr
}

// noContainer checks that no container of the trial's is left, nor a mount.
func (tr *trial) noContainer() {
	tr.t.Helper()
	for _, m := range tr.members {
		out, err := exec.Command("podman", "ps", "--all", "--quiet", "--filter", "label=muster.task="+m.cfg.ID).CombinedOutput()
		must.NoError(tr.t, err)
		must.Eq(tr.t, "", string(out))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(tr.t, err)
	must.StrNotContains(tr.t, string(mounts), "overlay-containers")
	for _, m := range tr.members {
		must.StrNotContains(tr.t, string(mounts), m.dir)
	}
}

// stop ends member 0 and waits for it.
func (tr *trial) stop(grace time.Duration) {
	tr.t.Helper()
	must.NoError(tr.t, tr.plugin.StopTask(tr.members[0].cfg.ID, grace, ""))
	tr.wait(0)
}

// A gang trains in an image: what its ranks find there is the image's, what the
// gang needs is the host's.
func TestGangInAnImage(t *testing.T) {
	tr := newImageTrial(t, 2, map[string]any{"command": []any{"muster-allreduce-rank", "-steps", "5", "-step-time", "1ms"}, "nproc_per_node": 2, "log_prefix": true})
	tr.run()
	for i := range 2 {
		must.Eq(t, 0, tr.wait(i).ExitCode)
		must.Eq(t, contract.OutcomeComplete, tr.exit(i).Outcome)
		tr.awaitEvent(tr.members[i], "first progress")
	}
	tr.members[1].log.await(t, tr.ctx, "[3] ")
}

func TestWhatRanksFindInAnImage(t *testing.T) {
	data := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(data, "set"), []byte("the data\n"), 0o666))
	script := `echo "env [$OF_IMAGE] [$PATH] [$HOME] [$AGENT_SECRET] [$RANK]"; echo "user $(id -u)"; pwd; cat /volume/set; touch /volume/x; ls /usr; grep -E 'CapEff|NoNewPrivs' /proc/self/status
ls /dev; echo mine >/tmp/mine; (head -c 1 /dev/card0 >/dev/null) 2>/dev/null; echo "pid $$"; mount -t tmpfs none /tmp; echo step 1 >>$MUSTER_PROGRESS_FILE; echo hello >/dev/stdout; cat /proc/self/limits | grep open`
	t.Setenv("AGENT_SECRET", "s.12345")
	tr := newImageTrial(t, 1, map[string]any{"command": []any{"sh", "-c", script}}, func(cfg *driver.TaskConfig) {
		cfg.Mounts = []driver.Mount{{HostPath: data, TaskPath: "/volume", ReadOnly: true}}
	})
	delete(tr.members[0].cfg.Env, "PATH") // the agent's, which Nomad passes on
	tr.run()
	tr.wait(0)
	tr.members[0].log.await(t, tr.ctx, "open")
	out, errs := tr.members[0].log.text(), tr.members[0].err.text()
	for _, want := range []string{"env [yes] [/opt/rank:/bin] [/root] [] [0]", "user 0", filepath.Join(tr.members[0].dir, "train"), "the data", "NoNewPrivs:\t1", "hello", "null"} {
		must.StrContains(t, out, want)
	}
	for _, want := range []string{"/volume/x: Read-only", "/usr: No such file", "mount: permission denied"} {
		must.StrContains(t, errs, want)
	}
	for _, not := range []string{"kmsg", "fuse", "loop"} {
		must.StrNotContains(t, out, not)
	}
	must.Eq(t, contract.OutcomeComplete, tr.exit(0).Outcome)
	tr.awaitEvent(tr.members[0], "first progress")
}

// Devices, user and exec with a terminal are the same as without an image.
func TestSemanticsInAnImage(t *testing.T) {
	dev := standInCards(t)
	open := func(cfg *driver.TaskConfig) {
		cfg.User = "nobody"
		for dir := cfg.AllocDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the test's own folders are private
			_ = os.Chmod(dir, 0o755)
		}
	}
	script := `for c in card0 card1; do (exec 3</dev/$c) 2>/dev/null && echo "$c: opened"; done; id -u; echo hello >/dev/stdout; (setsid sleep 300 &) ; trap 'echo asked; exit 0' USR1; echo up; while :; do sleep 0.1; done`
	tr := newImageTrial(t, 1, map[string]any{"command": []any{"sh", "-c", script}}, grant(dev, "card0"), open)
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "card0: opened\n65534\nhello\nup")

	var out buffer
	r, err := tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"sh", "-c", "id -u; tty; echo $OF_IMAGE; ls /opt; exit 4"}, TTY: true, Stdout: &out})
	must.NoError(t, err)
	must.Eq(t, 4, r.ExitCode)
	must.Eq(t, "65534\n/dev/pts/0\nyes\nrank\n", strings.ReplaceAll(out.String(), "\r", ""))
	var errs buffer
	out = buffer{}
	r, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"cat"}, Stdin: strings.NewReader("given"), Stdout: &out, Stderr: &errs})
	must.NoError(t, err)
	must.Eq(t, "given", out.String())
	must.Eq(t, 0, r.ExitCode)

	stats, err := isolation.ReadTable()
	must.NoError(t, err)
	written, err := tr.task(0).start.ReadShim()
	must.NoError(t, err)
	must.Greater(t, 3, len(stats.Below(written.Process.PID)))

	tr.stop(30 * time.Second)
	tr.members[0].log.await(t, tr.ctx, "asked")
	must.Eq(t, contract.OutcomeYielded, tr.exit(0).Outcome)
}

// A killed supervisor takes the container with it; so does one that dies
// together with its plugin.
func TestLostInAnImage(t *testing.T) {
	for _, plugin := range []bool{false, true} {
		t.Run(fmt.Sprint("plugin too: ", plugin), func(t *testing.T) {
			tr := newImageTrial(t, 1, map[string]any{"command": []any{"sh", "-c", "setsid sleep 300 & echo up; sleep 300"}})
			tr.run()
			tr.members[0].log.await(t, tr.ctx, "up")
			written, err := tr.task(0).start.ReadShim()
			must.NoError(t, err)
			if plugin {
				tr.again()
			}
			must.NoError(t, unix.Kill(written.Process.PID, unix.SIGKILL))
			if plugin { // nobody is there to look: the ranks go all the same
				tr.awaitNoRanks(t)
				must.NoError(t, tr.plugin.RecoverTask(tr.members[0].handle))
			}
			must.Eq(t, contract.OutcomeLost, tr.exit(0).Outcome)
			for _, path := range written.Cgroups {
				_, err := os.Stat(path)
				must.ErrorIs(t, err, os.ErrNotExist)
			}
		})
	}
}

func (tr *trial) awaitNoRanks(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		pids, err := isolation.WithEntry(contract.EnvTask + "=" + tr.members[0].cfg.ID)
		must.NoError(t, err)
		if len(pids) == 0 {
			return
		}
		must.True(t, time.Now().Before(deadline), must.Sprint("ranks are left: ", pids))
	}
}

// More memory than the task has: the kernel's kill is told apart.
func TestOutOfMemoryInAnImage(t *testing.T) {
	tr := newImageTrial(t, 1, map[string]any{"command": []any{"sh", "-c", `x=$(head -c 400000000 /dev/zero | tr '\000' a); echo done $x`}}, func(cfg *driver.TaskConfig) {
		cfg.Resources.LinuxMemoryLimitBytes = 150 << 20
		cfg.Resources.LinuxOOMScoreAdj = 500
	})
	if tr.plugin.hierarchy.Version == 0 || tr.plugin.hierarchy.Version == 1 && tr.plugin.hierarchy.Mounts["memory"] == "" {
		t.Skip("no memory limit may be set here")
	}
	tr.run()
	r := tr.wait(0)
	must.True(t, r.OOMKilled)
	must.Eq(t, contract.OutcomeFailed, tr.exit(0).Outcome)
}

// What cannot run is refused before the gang is released, with the field named.
func TestImagesThatCannotRun(t *testing.T) {
	name := needsPodman(t)
	for about, c := range map[string]struct {
		config map[string]any
		path   string
		what   string
		texts  []string
	}{
		"not there":           {config: map[string]any{"image": "localhost/muster-no-such-image:1"}, what: "image", texts: []string{`image = "localhost/muster-no-such-image:1" on n1: pull it`}},
		"no file":             {config: map[string]any{"image": "oci-archive:/not/there.tar"}, what: "image", texts: []string{"/not/there.tar"}},
		"no engine":           {config: map[string]any{"image": name}, path: "/usr/local/none", what: "image", texts: []string{"this node has no podman, no apptainer, no enroot on /usr/local/none"}},
		"no such program":     {config: map[string]any{"image": name, "command": []any{"no-such-program"}}, what: "script", texts: []string{`no program "no-such-program": looked in /opt/rank:/bin`}},
		"program on the host": {config: map[string]any{"image": name, "command": []any{"/usr/bin/env"}}, what: "script", texts: []string{"there is no /usr/bin/env"}},
		"no python":           {config: map[string]any{"image": name, "command": nil, "module": "train"}, what: "python", texts: []string{"no Python: looked at /opt/rank/python3, /bin/python3"}},
	} {
		t.Run(about, func(t *testing.T) {
			config := map[string]any{"command": []any{"sh", "-c", "true"}}
			for k, v := range c.config {
				if config[k] = v; v == nil {
					delete(config, k)
				}
			}
			tr := newImageTrial(t, 1, config)
			delete(tr.members[0].cfg.Env, "PATH")
			if c.path != "" {
				tr.plugin.config.Path = c.path
			}
			tr.start()
			tr.place(1)
			p := tr.refusal(tr.members[0])
			must.Eq(t, c.what, p.What)
			for _, text := range c.texts {
				must.StrContains(t, p.Text, text)
			}
		})
	}
}

// Pulling is told, bounded, and ends with the task. The engine is a script that
// never ends.
func TestPullEnds(t *testing.T) {
	fake := func(t *testing.T) string {
		dir := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, "podman"), []byte("#!/bin/sh\n[ \"$1\" = pull ] || exit 1\necho Copying blob 1 of 3 >&2\nexec sleep 3000\n"), 0o755))
		return dir + ":" + defaultPath
	}
	program, err := func() (string, error) { _, err := allreduce(); must.NoError(t, err); return driverProgram() }()
	must.NoError(t, err)
	if unix.Geteuid() != 0 {
		t.Skip("images with podman need root")
	}
	start := func(limit string) *trial {
		tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"true"}, "image": "registry.example/slow:1", "image_pull_timeout": limit, "nproc_per_node": 1})
		tr.plugin.binary, tr.plugin.config.Path = program, fake(t)
		tr.start()
		tr.place(1)
		tr.awaitEvent(tr.members[0], "pulling image registry.example/slow:1 with podman")
		return tr
	}
	tr := start("300ms")
	p := tr.refusal(tr.members[0])
	must.Eq(t, "image", p.What)
	must.StrContains(t, p.Text, `it was not here within 300ms (image_pull_timeout); the last that podman said: "Copying blob 1 of 3"`)

	tr = start("1h")
	tr.stop(time.Hour)
}

// torchrun itself, of the host's Python, inside the container: its ranks' own
// process numbers differ from the host's.
func TestTorchrunInAnImage(t *testing.T) {
	needTorch(t)
	tr := newImageTrial(t, 2, map[string]any{"command": []any{"sh", "-c", `echo "rank $RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"; [ $RANK != 1 ] || exit 3; sleep 300`}, "launcher": "torchrun", "python": "/usr/bin/python3"})
	for _, path := range []string{"/usr", "/etc/alternatives"} {
		tr.plugin.config.Images.Mounts = append(tr.plugin.config.Images.Mounts, isolation.Mount{Host: path, Path: path, ReadOnly: true})
	}
	for _, path := range []string{"/lib", "/lib64"} {
		tr.plugin.config.Images.Mounts = append(tr.plugin.config.Images.Mounts, isolation.Mount{Host: "/usr" + path, Path: path, ReadOnly: true})
	}
	tr.run()
	r := tr.wait(1)
	must.Eq(t, 3, r.ExitCode)
	must.Eq(t, contract.OutcomeFailed, tr.exit(1).Outcome)
	must.StrContains(t, tr.exit(1).Text, "rank 1 ended with code 3")
	must.Eq(t, contract.OutcomePeer, tr.exit(0).Outcome)
	tr.members[0].log.await(t, tr.ctx, "rank 0 of 2, restart 0")
}

// An engine that stays as long as its container: a script in Apptainer's place,
// which runs what it is told to on the host.
func TestEngineThatStays(t *testing.T) {
	needsPodman(t) // for the driver's program, and as root
	dir := t.TempDir()
	fake := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\ncase $1 in pull) echo made >$3; exit;; esac\nwhile [ \"${1##*.}\" != sif ]; do shift; done; shift\nexec \"$@\"\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "apptainer"), []byte(fake), 0o755))
	tr := newImageTrial(t, 1, map[string]any{"image": "registry.example/train:1", "command": []any{"/bin/sh", "-c", "echo up; setsid sleep 300 & exit 5"}})
	tr.plugin.config.Path = dir + ":" + defaultPath
	tr.plugin.config.Images.Engine, tr.plugin.config.Images.Cache = "apptainer", filepath.Join(dir, "cache")
	tr.run()
	must.Eq(t, 5, tr.wait(0).ExitCode)
	tr.members[0].log.await(t, tr.ctx, "up")
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	must.NoError(t, err)
	lines := strings.Split(string(calls), "\n")
	must.StrHasPrefix(t, "pull --force "+dir+"/cache/", lines[0])
	must.StrHasSuffix(t, " docker://registry.example/train:1", lines[0])
	must.StrHasPrefix(t, "exec --no-home --pid --writable-tmpfs --pwd / --mount type=bind,source="+tr.members[0].dir, lines[1])
	must.StrContains(t, tr.eventsOf(tr.members[0]), "pulled image registry.example/train:1")
}

// The image's own files may be read-only for the ranks' user: what they need to
// write, they can.
func TestRanksThatMayNotWriteToTheImage(t *testing.T) {
	script := `touch /bin/x /x 2>/dev/null && echo "wrote to the image"; touch /tmp/x /var/tmp/x && echo "step 1" >>$MUSTER_PROGRESS_FILE && echo "wrote where it may"`
	tr := newImageTrial(t, 1, map[string]any{"command": []any{"sh", "-c", script}}, func(cfg *driver.TaskConfig) {
		cfg.User = "nobody"
		for dir := cfg.AllocDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the test's own folders are private
			_ = os.Chmod(dir, 0o755)
		}
	})
	tr.run()
	must.Eq(t, 0, tr.wait(0).ExitCode)
	tr.members[0].log.await(t, tr.ctx, "wrote where it may")
	must.Eq(t, "wrote where it may", tr.members[0].log.text())
	tr.awaitEvent(tr.members[0], "first progress")
}
