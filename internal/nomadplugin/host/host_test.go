package host_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"google.golang.org/protobuf/proto"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/host"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
)

var agent = base.Agent{ClientMinPort: 14000, ClientMaxPort: 14512}

var errEnough = errors.New("enough")

// pluginDir has the test binary under each name.
func pluginDir(t *testing.T, names ...string) string {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	dir := t.TempDir()
	for _, name := range names {
		must.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	return dir
}

// discover finds the one plugin of a role; calls is the file of its calls.
func discover(t *testing.T, role string, config map[string]any) (p *host.Plugin, calls string) {
	t.Helper()
	calls = filepath.Join(t.TempDir(), "calls")
	plugins, err := host.Discover(t.Context(), host.Options{
		Dir: pluginDir(t, "plugin"), Configs: []host.Config{{Name: "plugin", Config: config}},
		Env: []string{envRole + "=" + role, envCalls + "=" + calls}, Logger: logger(t),
	})
	must.NoError(t, err)
	must.Len(t, 1, plugins)
	return plugins[0], calls
}

func logger(t *testing.T) hclog.Logger {
	if !testing.Verbose() {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug})
}

func newHostDriver(t *testing.T) (*host.Driver, string) {
	t.Helper()
	p, calls := discover(t, "driver", nil)
	d, err := p.Driver(agent)
	must.NoError(t, err)
	t.Cleanup(d.Close)
	return d, calls
}

func newHostDevice(t *testing.T, role string) (*host.Device, string) {
	t.Helper()
	p, calls := discover(t, role, nil)
	d, err := p.Device(agent)
	must.NoError(t, err)
	t.Cleanup(d.Close)
	return d, calls
}

func kill(t *testing.T, pid int) {
	t.Helper()
	must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// The launches and their calls are those that were recorded with a real Nomad
// client. Info is asked more often in our own process, by Serve itself: it is
// left out here.
func TestLaunchesAreThoseOfNomad(t *testing.T) {
	t.Parallel()
	recorded := func(file string, last string) (launches [][]string) {
		data, err := os.ReadFile("../testdata/nomad-recordings/" + file)
		must.NoError(t, err)
		for line := range bytes.Lines(data) {
			var r struct {
				Launch  int
				RPC     string
				Stream  string
				Request struct{ Hex string }
			}
			must.NoError(t, json.Unmarshal(line, &r))
			if r.Launch > len(launches) {
				launches = append(launches, nil)
			}
			name := r.RPC[strings.LastIndex(r.RPC, "/")+1:]
			switch {
			case r.Stream == "to_nomad", name == "PluginInfo":
				continue
			case name == "SetConfig":
				wire, err := hex.DecodeString(r.Request.Hex)
				must.NoError(t, err)
				name += describe(t, wire)
			}
			launches[r.Launch-1] = append(launches[r.Launch-1], name)
			if name == last {
				return launches
			}
		}
		return nil
	}
	ours := func(file string) (out [][]string) {
		for _, calls := range launches(t, file) {
			out = append(out, slices.DeleteFunc(calls, func(c string) bool { return c == "PluginInfo" }))
		}
		return out
	}

	t.Run("driver", func(t *testing.T) {
		t.Parallel()
		p, calls := discover(t, "driver", map[string]any{"enabled": true})
		d, err := p.Driver(agent)
		must.NoError(t, err)
		defer d.Close()
		must.ErrorIs(t, d.Fingerprint(t.Context(), func(driver.Fingerprint) error { return errEnough }), errEnough)
		must.ErrorIs(t, d.TaskEvents(t.Context(), func(*driver.TaskEvent) error { return errEnough }), errEnough)
		want := recorded("plugin_nomad-driver-torchrun.jsonl", "TaskEvents")
		got := ours(calls)
		// The trial driver had one attribute in its config, ours has two.
		for _, launch := range got {
			for i := range launch {
				launch[i] = strings.Replace(launch[i], "82a7656e61626c6564c3a46661696cc0", "81a7656e61626c6564c3", 1)
			}
		}
		must.Eq(t, want, got)
	})
	t.Run("device", func(t *testing.T) {
		t.Parallel()
		d, calls := newHostDevice(t, "device")
		must.ErrorIs(t, d.Fingerprint(t.Context(), func([]device.Group) error { return errEnough }), errEnough)
		must.Eq(t, recorded("plugin_nomad-device-gpu.jsonl", "Fingerprint"), ours(calls))
	})
}

func describe(t *testing.T, wire []byte) string {
	t.Helper()
	req := &basepb.SetConfigRequest{}
	unmarshal(t, wire, req)
	agent := "without agent"
	if d := req.GetNomadConfig().GetDriver(); d != nil {
		agent = fmt.Sprintf("ports %d-%d", d.GetClientMinPort(), d.GetClientMaxPort())
	}
	return fmt.Sprintf(" %x %s", req.GetMsgpackConfig(), agent)
}

func TestDiscoverListsAllFaults(t *testing.T) {
	t.Parallel()
	dir := pluginDir(t, "good", "twin", "exits", "configured")
	must.NoError(t, os.WriteFile(filepath.Join(dir, "text"), []byte("x"), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte("#!/bin/sh\nexit 4\n"), 0o755))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	_, err := host.Discover(t.Context(), host.Options{
		Dir: dir, Env: []string{envRole + "=device"},
		Configs: []host.Config{
			{Name: "good"}, {Name: "twin"}, {Name: "text"}, {Name: "folder"}, {Name: "script"}, {Name: "nobody"}, {Name: "../good"}, {},
			{Name: "configured", Config: map[string]any{}},
		},
	})
	for _, want := range []string{
		`plugin "twin": "good" is a device plugin named "test-device" too`, `plugin "text"`, "is not an executable file", `plugin "folder"`,
		`plugin "script": launch`, `plugin "nobody"`, "no such file", `plugin "../good": its name is not a file name`, `plugin "": its name`,
		`plugin "configured": configuration not allowed but config passed`,
	} {
		must.ErrorContains(t, err, want)
	}
	must.StrNotContains(t, err.Error(), `plugin "good"`)
}

func TestDiscoverRefusesInvalidPlugins(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{
		"invalid":      "launch", // our own Serve ends at once
		"exits":        "launch",
		"bad version":  `plugin version "latest"`,
		"unknown type": "unknown type 0",
		"schema fails": "no schema today",
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			_, err := host.Discover(t.Context(), host.Options{
				Dir: pluginDir(t, "p"), Configs: []host.Config{{Name: "p"}}, Env: []string{envRole + "=" + role},
			})
			must.ErrorContains(t, err, want)
		})
	}
	plugins, err := host.Discover(t.Context(), host.Options{
		Dir: pluginDir(t, "p"), Configs: []host.Config{{Name: "p"}}, Env: []string{envRole + "=other API"},
	})
	must.NoError(t, err)
	must.SliceEmpty(t, plugins)
}

func TestDiscoverChecksConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config map[string]any
		want   string
	}{
		"unknown key": {map[string]any{"bogus": 1}, `No argument or block type is named "bogus"`},
		"wrong type":  {map[string]any{"enabled": "maybe"}, `Inappropriate value for attribute "enabled"`},
		"refused":     {map[string]any{"fail": "state_dir: no such directory"}, "set its config: state_dir: no such directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := host.Discover(t.Context(), host.Options{
				Dir: pluginDir(t, "p"), Configs: []host.Config{{Name: "p", Config: c.config}}, Env: []string{envRole + "=driver"},
			})
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestDeviceSurvivesCrashes(t *testing.T) {
	t.Parallel()
	d, _ := newHostDevice(t, "device")
	_, running := d.Process()
	must.False(t, running)
	var pids []int
	must.ErrorIs(t, d.Fingerprint(t.Context(), func(got []device.Group) error {
		must.Eq(t, groups, got)
		process, running := d.Process()
		must.True(t, running)
		pids = append(pids, process.PID)
		if len(pids) == 2 {
			return errEnough
		}
		kill(t, process.PID)
		return nil
	}), errEnough)
	must.NotEq(t, pids[0], pids[1])

	r, err := d.Reserve(t.Context(), []string{"b", "a"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{"CARDS": "b,a", "PID": strconv.Itoa(pids[1])}, r.Env)

	var seen []int64
	must.ErrorIs(t, d.Stats(t.Context(), time.Second, func(g []device.GroupStats) error {
		if seen = append(seen, *g[0].Devices["a"].Summary.Int); len(seen) == 2 {
			return errEnough
		}
		kill(t, pids[1])
		return nil
	}), errEnough)
	must.NotEq(t, seen[0], seen[1])
}

// As Nomad does, the host drops a device plugin for good whose stream ends or
// that sends one invalid group.
func TestDeviceIsLost(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{
		"ends": "ended its fingerprint stream", "fails": "no cards today", "lies": "vendor is empty",
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			d, _ := newHostDevice(t, role)
			var reports []int
			err := d.Fingerprint(t.Context(), func(g []device.Group) error { reports = append(reports, len(g)); return nil })
			must.ErrorContains(t, err, want)
			must.Eq(t, []int{1, 0}, reports)
			_, running := d.Process()
			must.False(t, running)
			_, again := d.Reserve(t.Context(), []string{"a"})
			must.ErrorContains(t, again, "is lost until the agent restarts")
		})
	}
	d, _ := newHostDevice(t, "ends")
	must.NoError(t, d.Stats(t.Context(), time.Second, func([]device.GroupStats) error { return nil }))
}

func taskConfig(t testing.TB, d *host.Driver, seconds any) *driver.TaskConfig {
	t.Helper()
	config, err := d.EncodeTaskConfig(t.Context(), map[string]any{"seconds": seconds}, nil)
	must.NoError(t, err)
	return &driver.TaskConfig{ID: "alloc/task/0a1b2c3d", Name: "task", AllocID: "alloc", MsgPackConfig: config}
}

func TestTaskLifecycle(t *testing.T) {
	t.Parallel()
	d, _ := newHostDriver(t)
	caps, err := d.Capabilities(t.Context())
	must.NoError(t, err)
	must.True(t, caps.SendSignals)
	for name, config := range map[string]map[string]any{
		"Missing required argument": {"bogus": 2}, `named "bogus"`: {"seconds": 1, "bogus": 2}, "Root value must be object": {},
	} {
		_, err := d.EncodeTaskConfig(t.Context(), config, nil)
		must.ErrorContains(t, err, name)
	}

	task, err := d.StartTask(t.Context(), taskConfig(t, d, 0.01))
	must.NoError(t, err)
	must.Eq(t, "alloc/task/0a1b2c3d", task.ID())
	must.NoError(t, task.Signal(t.Context(), "MUSTER_RELEASE attempt=1"))
	status, err := task.Inspect(t.Context())
	must.NoError(t, err)
	must.Eq(t, driver.TaskStateRunning, status.State)
	must.ErrorIs(t, task.Stats(t.Context(), time.Second, func(u *driver.TaskUsage) error {
		must.Eq(t, 42, u.Memory.RSS)
		return errEnough
	}), errEnough)
	var out bytes.Buffer
	exit, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"echo", "x"}, Stdout: &out})
	must.NoError(t, err)
	must.Eq(t, 0, exit.ExitCode)
	must.Eq(t, "echo x", out.String())
	exit, err = task.Wait(t.Context())
	must.NoError(t, err)
	must.Eq(t, 5, exit.ExitCode)
	must.NoError(t, task.Destroy(t.Context(), true))
	must.NoError(t, task.Stop(t.Context(), time.Second, ""))
}

// A task outlives the driver's process; its Task does not, so that nobody asks
// a new process for a task that it was not given.
func TestTaskSurvivesDriverCrash(t *testing.T) {
	t.Parallel()
	d, calls := newHostDriver(t)
	task, err := d.StartTask(t.Context(), taskConfig(t, d, 1000))
	must.NoError(t, err)
	waited := make(chan error)
	go func() { _, err := task.Wait(t.Context()); waited <- err }()
	process, _ := d.Process()
	kill(t, process.PID)
	must.ErrorIs(t, <-waited, host.ErrExited)
	must.ErrorIs(t, task.Stop(t.Context(), 0, ""), host.ErrExited)

	again, err := d.RecoverTask(t.Context(), task.Handle())
	must.NoError(t, err)
	must.NoError(t, again.Stop(t.Context(), 0, "SIGKILL"))
	exit, err := again.Wait(t.Context())
	must.NoError(t, err)
	must.Eq(t, 5, exit.ExitCode)
	last := launches(t, calls)
	must.SliceContains(t, last[len(last)-1], "Init")
	must.SliceContains(t, last[len(last)-1], "RecoverTask")

	_, err = d.RecoverTask(t.Context(), nil)
	must.ErrorContains(t, err, "no task configuration")
	must.NoError(t, again.Destroy(t.Context(), true))
	_, err = d.RecoverTask(t.Context(), task.Handle())
	must.ErrorContains(t, err, "is over")
}

func TestDriverStreamsSurviveCrashes(t *testing.T) {
	t.Parallel()
	d, _ := newHostDriver(t)
	var health []driver.Health
	must.ErrorIs(t, d.Fingerprint(t.Context(), func(f driver.Fingerprint) error {
		health = append(health, f.Health)
		process, running := d.Process()
		switch len(health) {
		case 1:
			must.True(t, running)
			kill(t, process.PID)
		case 3:
			return errEnough
		}
		return nil
	}), errEnough)
	must.Eq(t, []driver.Health{driver.HealthHealthy, driver.HealthUnhealthy, driver.HealthHealthy}, health)
}

func TestCloseTellsTheDriver(t *testing.T) {
	t.Parallel()
	p, calls := discover(t, "driver", nil)
	d, err := p.Driver(agent)
	must.NoError(t, err)
	_, err = d.TaskConfigSchema(t.Context())
	must.NoError(t, err)
	process, _ := d.Process()
	streams := make(chan error)
	go func() { streams <- d.TaskEvents(t.Context(), func(*driver.TaskEvent) error { return nil }) }()
	d.Close()
	must.ErrorIs(t, <-streams, host.ErrClosed)
	must.ErrorIs(t, syscall.Kill(process.PID, 0), syscall.ESRCH)
	last := launches(t, calls)
	must.SliceContains(t, last[len(last)-1], "Shutdown")
	_, err = d.StartTask(t.Context(), &driver.TaskConfig{ID: "a"})
	must.ErrorIs(t, err, host.ErrClosed)
	must.ErrorIs(t, d.Fingerprint(t.Context(), func(driver.Fingerprint) error { return nil }), host.ErrClosed)
	_, ok := d.Detach()
	must.False(t, ok)
}

func TestDetachAndAttach(t *testing.T) {
	t.Parallel()
	p, calls := discover(t, "driver", nil)
	first, err := p.Driver(agent)
	must.NoError(t, err)
	task, err := first.StartTask(t.Context(), taskConfig(t, first, 1000))
	must.NoError(t, err)
	waited := make(chan error)
	go func() { _, err := task.Wait(t.Context()); waited <- err }()
	process, ok := first.Detach()
	must.True(t, ok)
	must.ErrorIs(t, <-waited, host.ErrExited)
	must.ErrorIs(t, task.Signal(t.Context(), "x"), host.ErrExited)
	_, err = first.RecoverTask(t.Context(), task.Handle())
	must.ErrorIs(t, err, host.ErrClosed)

	stored, err := json.Marshal(process) // as an agent keeps it
	must.NoError(t, err)
	var found host.Reattach
	must.NoError(t, json.Unmarshal(stored, &found))
	second, err := p.Driver(agent)
	must.NoError(t, err)
	t.Cleanup(second.Close)
	must.NoError(t, second.Attach(t.Context(), found))
	must.ErrorContains(t, second.Attach(t.Context(), found), "there is a process already")
	now, ok := second.Process()
	must.True(t, ok)
	must.Eq(t, process, now)
	again, err := second.RecoverTask(t.Context(), task.Handle())
	must.NoError(t, err)
	must.NoError(t, again.Stop(t.Context(), 0, ""))
	_, err = again.Wait(t.Context())
	must.NoError(t, err)
	last := launches(t, calls)
	must.Eq(t, 2, strings.Count(strings.Join(last[len(last)-1], " "), "Init")) // once for each agent

	third, err := p.Driver(agent)
	must.NoError(t, err)
	defer third.Close()
	err = third.Attach(t.Context(), host.Reattach{PID: 1 << 22, Network: "unix", Address: "/nonexistent/socket"})
	must.ErrorContains(t, err, "attach to process")
	must.Error(t, third.Attach(t.Context(), host.Reattach{Network: "carrier pigeon"}))
	_, err = third.Capabilities(t.Context()) // a new process then
	must.NoError(t, err)
}

func TestEndStale(t *testing.T) {
	t.Parallel()
	p, _ := discover(t, "device", nil)
	d, err := p.Device(agent)
	must.NoError(t, err)
	_, err = d.Reserve(t.Context(), []string{"a"})
	must.NoError(t, err)
	process, ok := d.Detach()
	must.True(t, ok)
	must.NoError(t, p.EndStale(t.Context(), process))
	must.ErrorIs(t, syscall.Kill(process.PID, 0), syscall.ESRCH)
	must.Error(t, p.EndStale(t.Context(), process))
	_, err = p.Driver(agent)
	must.ErrorContains(t, err, "is a device plugin, not a driver")
	drv, _ := discover(t, "driver", nil)
	_, err = drv.Device(agent)
	must.ErrorContains(t, err, "not a device plugin")
}

func startOne(ctx context.Context, dir string) (*host.Driver, *host.Task, error) {
	plugins, err := host.Discover(ctx, host.Options{Dir: dir, Configs: []host.Config{{Name: "plugin"}}, Env: []string{envRole + "=driver"}})
	if err != nil {
		return nil, nil, err
	}
	d, err := plugins[0].Driver(agent)
	if err != nil {
		return nil, nil, err
	}
	config, err := d.EncodeTaskConfig(ctx, map[string]any{"seconds": 1000}, nil)
	if err != nil {
		return nil, nil, err
	}
	task, err := d.StartTask(ctx, &driver.TaskConfig{ID: "alloc/task/0a1b2c3d", MsgPackConfig: config})
	return d, task, err
}

type agentReport struct {
	Process host.Reattach
	Handle  *driver.TaskHandle
}

// An agent is killed. Nobody reads the plugin's standard error any more, which
// must not end it at its next log line: the next agent takes up the same
// process with its tasks.
func TestPluginSurvivesItsAgent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must.NoError(t, err)
	dir := pluginDir(t, "plugin")
	dying := exec.CommandContext(t.Context(), self)
	dying.Env = append(os.Environ(), envRole+"=agent", envDir+"="+dir)
	dying.Stderr = os.Stderr
	stdout, err := dying.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, dying.Start())
	var report agentReport
	must.NoError(t, json.NewDecoder(stdout).Decode(&report))
	must.NoError(t, dying.Process.Kill())
	must.Error(t, dying.Wait())

	plugins, err := host.Discover(t.Context(), host.Options{Dir: dir, Configs: []host.Config{{Name: "plugin"}}, Env: []string{envRole + "=driver"}})
	must.NoError(t, err)
	d, err := plugins[0].Driver(agent)
	must.NoError(t, err)
	defer d.Close()
	must.NoError(t, d.Attach(t.Context(), report.Process))
	task, err := d.RecoverTask(t.Context(), report.Handle)
	must.NoError(t, err)
	must.NoError(t, task.Signal(t.Context(), "log"))
	must.NoError(t, task.Signal(t.Context(), "still there?"))
	now, _ := d.Process()
	must.Eq(t, report.Process.PID, now.PID)
	must.NoError(t, task.Destroy(t.Context(), true))
}

var handshake = regexp.MustCompile(`^1\|2\|unix\|[^|]+\|grpc\|$`)

// The first line on standard output is the handshake, nothing follows it, and
// standard error has JSON lines only.
func TestOutputOfAPlugin(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), envRole+"=driver", base.Handshake.MagicCookieKey+"="+base.Handshake.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=2")
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	must.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	must.NoError(t, err)
	must.RegexMatch(t, handshake, strings.TrimSuffix(first, "\n"))
	must.NoError(t, cmd.Process.Kill())
	rest, err := io.ReadAll(lines)
	must.NoError(t, err)
	must.Eq(t, "", string(rest))
	must.Error(t, cmd.Wait())
	n := 0
	for line := range bytes.Lines(stderr.Bytes()) {
		var entry map[string]any
		must.NoError(t, json.Unmarshal(line, &entry), must.Sprint(string(line)))
		must.MapContainsKeys(t, entry, []string{"@level", "@message", "@timestamp"})
		n++
	}
	must.Positive(t, n)
}

// A person who starts the program is told what it is.
func TestPluginStartedByHand(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must.NoError(t, err)
	for role, want := range map[string]string{
		"driver":  "This binary is a plugin",
		"invalid": `serve nomad plugin: plugin version "latest" is not a version`,
	} {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), envRole+"="+role)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		must.Eq(t, 1, cmd.ProcessState.ExitCode(), must.Sprint(err))
		must.Eq(t, "", string(out))
		must.StrContains(t, stderr.String(), want)
	}
}

func unmarshal(t *testing.T, wire []byte, m proto.Message) {
	t.Helper()
	must.NoError(t, proto.Unmarshal(wire, m))
}
