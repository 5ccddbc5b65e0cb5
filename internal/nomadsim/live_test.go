package nomadsim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadsim"
)

// TestMain lets the test binary be the plugins of live nodes, too.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "shell-driver":
		driver.Serve(&shellDriver{tasks: map[string]*shellTask{}}, nil)
	case "fake-cards":
		device.Serve(fakeCards{}, nil)
	default:
		os.Exit(m.Run())
	}
}

// shellDriver runs shell commands in sessions of their own, which outlive it.
type shellDriver struct {
	mu     sync.Mutex
	tasks  map[string]*shellTask
	events []func(*driver.TaskEvent) error
}

type shellTask struct {
	pid    int
	status string // file that gets the exit status
}

func (d *shellDriver) Info() base.Info {
	return base.Info{Type: base.TypeDriver, Name: "shell", Version: "v0.1.0"}
}
func (d *shellDriver) ConfigSchema() *hclspec.Spec { return nil }
func (d *shellDriver) SetConfig(base.Config) error { return nil }
func (d *shellDriver) TaskConfigSchema() *hclspec.Spec {
	return &hclspec.Spec{Object: map[string]*hclspec.Spec{"run": {Attr: &hclspec.Attr{Name: "run", Type: "string", Required: true}}}}
}
func (d *shellDriver) Capabilities() driver.Capabilities {
	return driver.Capabilities{SendSignals: true}
}
func (d *shellDriver) Fingerprint(ctx context.Context, send func(driver.Fingerprint) error) error {
	if err := send(driver.Fingerprint{Health: driver.HealthHealthy, Description: "Healthy"}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (d *shellDriver) StartTask(cfg *driver.TaskConfig) (*driver.TaskHandle, error) {
	var c struct {
		Run string `codec:"run"`
	}
	if err := hclspec.Decode(cfg.MsgPackConfig, &c); err != nil {
		return nil, err
	}
	switch c.Run {
	case "refuse":
		return nil, errors.New("no such shell")
	case "refuse for now":
		return nil, &base.RecoverableError{Err: errors.New("no shell just now")}
	}
	status := filepath.Join(cfg.AllocDir, cfg.Name, "private", "status-"+cfg.ID[len(cfg.ID)-8:])
	out, err := os.OpenFile(cfg.StdoutPath, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("( %s ); s=$?; echo $s > %s.new; mv %s.new %s", c.Run, status, status, status))
	cmd.Dir = filepath.Join(cfg.AllocDir, cfg.Name)
	for k, v := range cfg.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go cmd.Wait()
	t := &shellTask{pid: cmd.Process.Pid, status: status}
	d.put(cfg.ID, t)
	d.mu.Lock()
	for _, send := range d.events {
		send(&driver.TaskEvent{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, At: time.Now(), Message: "the shell is up", Annotations: map[string]string{"pid": strconv.Itoa(t.pid)}})
	}
	d.mu.Unlock()
	return &driver.TaskHandle{Version: 1, Config: cfg, State: driver.TaskStateRunning, Driver: []byte(fmt.Sprintf("%d %s", t.pid, status))}, nil
}

func (d *shellDriver) put(id string, t *shellTask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[id] = t
}

func (d *shellDriver) get(id string) (*shellTask, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%s: %w", id, driver.ErrTaskNotFound)
}

func (d *shellDriver) RecoverTask(h *driver.TaskHandle) error {
	pid, status, _ := strings.Cut(string(h.Driver), " ")
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	d.put(h.Config.ID, &shellTask{pid: n, status: status})
	return nil
}

func (d *shellDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		if b, err := os.ReadFile(t.status); err == nil {
			code, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			return &driver.ExitResult{ExitCode: code}, nil
		}
		if syscall.Kill(-t.pid, 0) != nil {
			return &driver.ExitResult{ExitCode: 137, Signal: 9}, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, ctx.Err()
}

func (d *shellDriver) StopTask(id string, timeout time.Duration, signal string) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	return syscall.Kill(-t.pid, syscall.SIGKILL)
}

func (d *shellDriver) DestroyTask(id string, force bool) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	syscall.Kill(-t.pid, syscall.SIGKILL)
	return nil
}
func (d *shellDriver) InspectTask(id string) (*driver.TaskStatus, error) {
	return nil, errors.New("no")
}
func (d *shellDriver) TaskStats(ctx context.Context, id string, _ time.Duration, send func(*driver.TaskUsage) error) error {
	if err := send(&driver.TaskUsage{At: time.Now(), Memory: driver.MemoryUsage{RSS: 4711}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
func (d *shellDriver) TaskEvents(ctx context.Context, send func(*driver.TaskEvent) error) error {
	d.mu.Lock()
	d.events = append(d.events, send)
	d.mu.Unlock()
	<-ctx.Done()
	return nil
}
func (d *shellDriver) SignalTask(id, signal string) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(t.status), "signal"), []byte(signal), 0o644)
}
func (d *shellDriver) ExecTask(context.Context, string, driver.ExecRequest) (*driver.ExitResult, error) {
	return nil, errors.New("no")
}

// fakeCards has two cards.
type fakeCards struct{}

func (fakeCards) Info() base.Info {
	return base.Info{Type: base.TypeDevice, Name: "fake-cards", Version: "v0.1.0"}
}
func (fakeCards) ConfigSchema() *hclspec.Spec { return nil }
func (fakeCards) SetConfig(base.Config) error { return nil }
func (fakeCards) Fingerprint(ctx context.Context, send func([]device.Group) error) error {
	err := send([]device.Group{{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]device.Attribute{"memory": device.Int(80, "GiB")},
		Devices: []device.Device{{ID: "GPU-a", Healthy: true, PCIBusID: "0000:01:00.0"}, {ID: "GPU-b", Healthy: true}}}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
func (fakeCards) Reserve(_ context.Context, ids []string) (*device.Reservation, error) {
	return &device.Reservation{Env: map[string]string{"CARDS": strings.Join(ids, ",")}}, nil
}
func (fakeCards) Stats(ctx context.Context, _ time.Duration, send func([]device.GroupStats) error) error {
	v := int64(7)
	stat := device.Stat{Desc: "load", Int: &v, Unit: "%"}
	err := send([]device.GroupStats{{Vendor: "nvidia", Type: "gpu", Name: "H100", Devices: map[string]device.Stats{
		"GPU-a": {Summary: stat, Values: map[string]device.Stat{"load": stat, "link/0/errors": stat}, At: time.Now()}}}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// live makes a cluster of one live node.
func live(t *testing.T) (*nomadsim.Cluster, *api.Client, string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	must.NoError(t, err)
	for _, name := range []string{"shell-driver", "fake-cards"} {
		must.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	sim := nomadsim.New(t, nomadsim.Options{ClientSync: 5 * time.Millisecond, Heartbeat: 200 * time.Millisecond, DataDir: filepath.Join(dir, "data"), Nodes: []nomadsim.NodeConfig{
		{Name: "n1", Live: &nomadsim.LiveConfig{PluginDir: dir, Plugins: []nomadsim.PluginConfig{{Name: "shell-driver"}, {Name: "fake-cards"}}}}}})
	return sim, sim.Client(), sim.Node("n1")
}

func shellJob(id, run string) *api.Job {
	j := gang(id, 1, 0)
	task := j.TaskGroups[0].Tasks[0]
	task.Driver = "shell"
	task.Config = map[string]any{"run": run}
	return j
}

func register(t *testing.T, c *api.Client, j *api.Job) {
	t.Helper()
	resp, _, err := c.Jobs().Register(j, nil)
	must.NoError(t, err)
	e := waitEval(t, c, resp.EvalID)
	must.MapEmpty(t, e.FailedTGAllocs)
}

func oneAlloc(t *testing.T, c *api.Client, job string) *api.Allocation {
	t.Helper()
	list, _, err := c.Jobs().Allocations(job, true, nil)
	must.NoError(t, err)
	must.Len(t, 1, list)
	a, _, err := c.Allocations().Info(list[0].ID, nil)
	must.NoError(t, err)
	return a
}

func events(a *api.Allocation) (out []string) {
	for _, e := range a.TaskStates["train"].Events {
		out = append(out, e.Type)
	}
	return out
}

func readLog(t *testing.T, c *api.Client, a *api.Allocation) string {
	t.Helper()
	frames, errs := c.AllocFS().Logs(a, false, "train", "stdout", "start", 0, make(chan struct{}), nil)
	var b strings.Builder
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return b.String()
			}
			b.Write(f.Data)
		case err := <-errs:
			must.NoError(t, err)
		}
	}
}

func TestLiveNodeRunsPlugins(t *testing.T) {
	t.Parallel()
	sim, c, node := live(t)
	n, _, err := c.Nodes().Info(node, nil)
	must.NoError(t, err)
	must.True(t, n.Drivers["shell"].Healthy)
	must.Eq(t, "1", n.Attributes["driver.shell"])
	must.Len(t, 2, n.NodeResources.Devices[0].Instances)

	j := shellJob("hello", `echo "$CARDS $NOMAD_TASK_NAME $WHO $NOMAD_META_team"; cat local/note`)
	j.SetMeta("team", "blue")
	task := j.TaskGroups[0].Tasks[0]
	task.Env = map[string]string{"WHO": "${node.unique.name}"}
	task.Templates = []*api.Template{{EmbeddedTmpl: ptr("from {{ env \"NOMAD_JOB_ID\" }}\n"), DestPath: ptr("local/note"), ChangeMode: ptr("noop")}}
	task.Resources.Devices = []*api.RequestedDevice{{Name: "nvidia/gpu", Count: ptr(uint64(1)), Constraints: []*api.Constraint{
		api.NewConstraint("${device.attr.memory}", ">=", "79 GiB"), api.NewConstraint("${device.ids}", "set_contains_any", "GPU-b")}}}
	register(t, c, j)
	eventually(t, "it completes", func() bool { return statuses(t, c, "hello")["complete"] == 1 })
	a := oneAlloc(t, c, "hello")
	must.Eq(t, "GPU-b train n1 blue\nfrom hello\n", readLog(t, c, a))
	must.SliceContains(t, events(a), "Driver")
	files, _, err := c.AllocFS().List(a, "alloc/logs", nil)
	must.NoError(t, err)
	must.Eq(t, "train.stdout.0", files[len(files)-1].Name)
	stats, err := c.Nodes().Stats(node, nil)
	must.NoError(t, err)
	must.Eq(t, "load", stats.DeviceStats[0].InstanceStats["GPU-a"].Summary.Desc)
	_ = sim
}

func TestLiveTaskOutlivesAgentAndPlugin(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"agent killed", "agent stopped", "plugin killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			sim, c, node := live(t)
			register(t, c, shellJob("long", "echo $$; while [ ! -e local/end ]; do sleep 0.02; done; exit 3"))
			eventually(t, "it runs", func() bool { return statuses(t, c, "long")["running"] == 1 })
			switch how {
			case "agent killed":
				must.NoError(t, sim.KillAgent(node))
			case "agent stopped":
				must.NoError(t, sim.StopAgent(node))
			case "plugin killed":
				pid, err := sim.PluginPID(node, "shell")
				must.NoError(t, err)
				must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				eventually(t, "another plugin process runs", func() bool {
					now, err := sim.PluginPID(node, "shell")
					return err == nil && now != pid
				})
			}
			if how != "plugin killed" {
				eventually(t, "it is unknown", func() bool { return statuses(t, c, "long")["unknown"] == 1 })
				must.NoError(t, sim.StartAgent(node))
			}
			eventually(t, "it runs again", func() bool { return statuses(t, c, "long")["running"] == 1 })
			a := oneAlloc(t, c, "long")
			started := 0
			for _, e := range events(a) {
				if e == "Started" {
					started++
				}
			}
			must.Eq(t, 1, started)
			must.NoError(t, c.Allocations().Signal(a, nil, "train", "a word, epoch=3"))
			must.NoError(t, os.WriteFile(filepath.Join(simDir(t, c, a), "local", "end"), nil, 0o644))
			eventually(t, "it fails", func() bool { return statuses(t, c, "long")["failed"] == 1 })
			a = oneAlloc(t, c, "long")
			last := a.TaskStates["train"].Events
			must.Eq(t, 3, last[len(last)-2].ExitCode)
			b, err := os.ReadFile(filepath.Join(simDir(t, c, a), "private", "signal"))
			must.NoError(t, err)
			must.Eq(t, "a word, epoch=3", string(b))
		})
	}
}

// simDir is the task's folder, found by what its own process sees.
func simDir(t *testing.T, c *api.Client, a *api.Allocation) string {
	t.Helper()
	var pid string
	eventually(t, "the process has said who it is", func() bool {
		pid = strings.TrimSpace(readLog(t, c, a))
		return pid != ""
	})
	dir, err := os.Readlink("/proc/" + pid + "/cwd")
	if err == nil {
		dirs.Store(t.Name(), dir)
		return dir
	}
	v, ok := dirs.Load(t.Name()) // it has ended meanwhile
	must.True(t, ok)
	return v.(string)
}

var dirs sync.Map

func TestLiveStartsThatFail(t *testing.T) {
	t.Parallel()
	_, c, _ := live(t)
	register(t, c, shellJob("refuse", "refuse"))
	retry := shellJob("retry", "refuse for now")
	retry.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: ptr(1), Mode: ptr("fail"), Interval: ptr(time.Minute), Delay: ptr(time.Millisecond)}
	register(t, c, retry)
	bogus := shellJob("bogus", "true")
	bogus.TaskGroups[0].Tasks[0].Config["bogus"] = 1
	register(t, c, bogus)
	for job, want := range map[string][]string{
		"refuse": {"Received", "Task Setup", "Driver Failure", "Not Restarting"},
		"retry":  {"Received", "Task Setup", "Driver Failure", "Restarting", "Driver Failure", "Not Restarting"},
		"bogus":  {"Received", "Task Setup", "Failed Validation"},
	} {
		eventually(t, job+" fails", func() bool { return statuses(t, c, job)["failed"] == 1 })
		a := oneAlloc(t, c, job)
		must.Eq(t, want, events(a), must.Sprint(job))
	}
	a := oneAlloc(t, c, "bogus")
	must.StrContains(t, a.TaskStates["train"].Events[2].DisplayMessage, `No argument or block type is named "bogus"`)
}

func TestRawExec(t *testing.T) {
	t.Parallel()
	_, c, _ := live(t)
	j := gang("raw", 1, 0)
	j.TaskGroups[0].Tasks[0].Config = map[string]any{"command": "sh", "args": []string{"-c", "echo ${NOMAD_ALLOC_INDEX}; exec sleep 60"}}
	j.TaskGroups[0].Tasks[0].KillSignal = "SIGTERM" // which no caller of the test can have had ignored
	register(t, c, j)
	eventually(t, "it runs", func() bool { return statuses(t, c, "raw")["running"] == 1 })
	a := oneAlloc(t, c, "raw")
	eventually(t, "it speaks", func() bool { return readLog(t, c, a) == "0\n" })
	_, _, err := c.Jobs().Deregister("raw", false, nil)
	must.NoError(t, err)
	eventually(t, "it ends", func() bool { return statuses(t, c, "raw")["complete"] == 1 })
	a = oneAlloc(t, c, "raw")
	ev := a.TaskStates["train"].Events
	must.Eq(t, "Exit Code: 143, Signal: 15", ev[len(ev)-2].DisplayMessage)
}
