package nomadsim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/host"
	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// liveTask is what a live client keeps of a task, in taskRun.data.
type liveTask struct {
	mu     sync.Mutex
	start  int
	driver string
	dirs   taskDirs
	task   *host.Task // of a plugin
	proc   *rawProcess
	logs   *logPair
	usage  *driver.TaskUsage
}

func (lt *liveTask) current() *host.Task {
	lt.mu.Lock()
	defer lt.mu.Unlock()
	return lt.task
}

const rawExec = "raw_exec"

func (l *liveClient) of(t *taskRun) *liveTask {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	lt, _ := t.data.(*liveTask)
	return lt
}

func (l *liveClient) generation() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen
}

// setupFailed is an event of what failed before the driver was asked.
func (l *liveClient) setupFailed(what string, err error) *wire.TaskEvent {
	e := taskstate.SetupFailed(l.c.clock.Now(), fmt.Sprintf("%s: %v", what, err))
	e.FailsTask = false
	delete(e.Details, "fails_task")
	return e
}

// start prepares the task's surroundings and has its driver start it. As in Nomad, the call to the driver has no
// deadline, and nothing cuts it short.
func (l *liveClient) start(t *taskRun, start int) {
	gen := l.generation()
	t.r.mu.Lock()
	al, spec := t.r.alloc, t.spec
	old, _ := t.data.(*liveTask)
	t.r.mu.Unlock()
	now := l.c.clock.Now
	lt := &liveTask{start: start, driver: spec.Driver, dirs: l.dirs(al.ID, spec.Name)}
	if old != nil {
		lt.logs = old.logs // the collector outlives restarts
	}
	if err := lt.dirs.build(); err != nil {
		t.startFailed(start, false, l.setupFailed("failed to build task directory", err))
		return
	}
	if len(spec.Artifacts) > 0 {
		t.startFailed(start, false, l.setupFailed("failed to download artifacts", errors.New("the simulated client fetches none")))
		return
	}
	res, err := l.reserve(al, spec)
	if err != nil {
		t.startFailed(start, false, l.setupFailed("prestart hook \"devices\" failed", err))
		return
	}
	node := l.c.store.Snapshot().Node(l.a.cfg.ID)
	if node == nil {
		t.startFailed(start, true, l.setupFailed("failed to start", errors.New("the node is not registered")))
		return
	}
	env := buildEnv(node, al, spec, l.c.opts.Region, agentEnv(l.cfg.Env), res.Env, lt.dirs)
	if spec.DispatchPayload != nil && spec.DispatchPayload.File != "" && len(al.Job.Payload) > 0 {
		path, err := lt.dirs.inTask(filepath.Join("local", spec.DispatchPayload.File))
		if err == nil {
			err = os.WriteFile(path, unsnapped(al.Job.Payload), 0o644)
		}
		if err != nil {
			t.startFailed(start, false, l.setupFailed("failed to write the payload", err))
			return
		}
	}
	vars, err := lt.dirs.render(spec.Templates, env)
	if err != nil {
		t.startFailed(start, false, l.setupFailed("Template failed", err))
		return
	}
	for k, v := range vars {
		env.env[k], env.vars[k] = v, v
	}
	stdout, stderr := os.DevNull, os.DevNull
	if spec.LogConfig == nil || !spec.LogConfig.Disabled {
		if lt.logs == nil {
			if lt.logs, err = openLogs(lt.dirs.logs, spec.Name, spec.LogConfig, l.log); err != nil {
				t.startFailed(start, false, l.setupFailed("prestart hook \"logmon\" failed", err))
				return
			}
		}
		stdout, stderr = lt.logs.out.fifo, lt.logs.err.fifo
	}
	t.r.mu.Lock()
	t.data = lt
	t.r.mu.Unlock()
	if spec.Driver == rawExec {
		l.startRaw(t, lt, spec, env, stdout, stderr)
		return
	}
	l.mu.Lock()
	d := l.drivers[spec.Driver]
	ctx := l.ctx
	l.mu.Unlock()
	if d == nil {
		t.startFailed(start, false, taskstate.DriverFailed(now(), fmt.Sprintf("failed to initialize driver: driver %q not found", spec.Driver)))
		return
	}
	config, err := d.EncodeTaskConfig(ctx, spec.Config, hclspec.Variables(env.vars))
	if l.generation() != gen {
		return // the agent is gone: the next one starts the task again
	}
	if err != nil {
		t.startFailed(start, false, taskstate.Invalid(now(), err.Error()))
		return
	}
	cfg := l.taskConfig(node, al, spec, env, res, lt.dirs, config, stdout, stderr)
	ht, err := d.StartTask(context.WithoutCancel(ctx), cfg)
	if l.generation() != gen && err != nil {
		return
	}
	if err != nil {
		var rec *base.RecoverableError
		code := "Unknown"
		if errors.As(err, &rec) {
			code = "FailedPrecondition"
		}
		t.startFailed(start, rec != nil, taskstate.DriverFailed(now(), fmt.Sprintf("rpc error: code = %s desc = %v", code, err)))
		return
	}
	lt.mu.Lock()
	lt.task = ht
	lt.mu.Unlock()
	t.started(start)
	go l.wait(t, lt, ht, gen)
}

// taskConfig is what the client tells a driver of a task.
func (l *liveClient) taskConfig(n *wire.Node, a *wire.Allocation, t *wire.Task, env taskEnv, res *device.Reservation, dirs taskDirs,
	config []byte, stdout, stderr string) *driver.TaskConfig {
	r := a.AllocatedResources.Tasks[t.Name]
	out := &driver.Resources{CPUShares: r.Cpu.CpuShares, MemoryMB: r.Memory.MemoryMB, MemoryMaxMB: r.Memory.MemoryMaxMB, LinuxCPUShares: r.Cpu.CpuShares,
		LinuxMemoryLimitBytes: max(r.Memory.MemoryMB, r.Memory.MemoryMaxMB) << 20, CPUSetCgroup: l.cpuset()}
	if total := n.NodeResources.Cpu.CpuShares; total > 0 {
		out.PercentTicks = float64(r.Cpu.CpuShares) / float64(total)
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		out.Ports = append(out.Ports, driver.Port{Label: p.Label, Value: int32(p.Value), To: int32(p.To), HostIP: p.HostIP})
	}
	cfg := &driver.TaskConfig{
		ID: fmt.Sprintf("%s/%s/%s", a.ID, t.Name, l.c.newID()[:8]), Name: t.Name, JobName: a.Job.Name, JobID: a.JobID, TaskGroupName: a.TaskGroup,
		Namespace: a.Namespace, NodeName: n.Name, NodeID: n.ID, AllocID: a.ID, Env: env.env, DeviceEnv: env.device, Resources: out,
		User: t.User, AllocDir: dirs.alloc, MsgPackConfig: config, StdoutPath: stdout, StderrPath: stderr, Devices: res.Devices,
	}
	for _, m := range res.Mounts {
		cfg.Mounts = append(cfg.Mounts, driver.Mount{TaskPath: m.TaskPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly})
	}
	g := a.Group()
	for _, vm := range t.VolumeMounts {
		if v := g.Volumes[vm.Volume]; v != nil && n.HostVolumes[v.Source] != nil {
			cfg.Mounts = append(cfg.Mounts, driver.Mount{TaskPath: vm.Destination, HostPath: n.HostVolumes[v.Source].Path, ReadOnly: vm.ReadOnly || v.ReadOnly, RequestName: vm.Volume})
		}
	}
	return cfg
}

// cpuset is the cgroup that drivers put their tasks into; none where this process may make none.
func (l *liveClient) cpuset() string {
	const share = "/sys/fs/cgroup/cpuset/nomad/share"
	if _, err := os.Stat(share); err != nil {
		return ""
	}
	return share
}

// reserve asks the device plugins what a task needs to use its devices.
func (l *liveClient) reserve(a *wire.Allocation, t *wire.Task) (*device.Reservation, error) {
	all := &device.Reservation{Env: map[string]string{}}
	for _, d := range a.AllocatedResources.Tasks[t.Name].Devices {
		plugin := l.pluginFor(d)
		if plugin == nil {
			return nil, fmt.Errorf("no plugin has the devices %s/%s/%s", d.Vendor, d.Type, d.Name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		r, err := plugin.Reserve(ctx, d.DeviceIDs)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("reserve %v: %w", d.DeviceIDs, err)
		}
		for k, v := range r.Env {
			all.Env[k] = v
		}
		all.Mounts = append(all.Mounts, r.Mounts...)
		all.Devices = append(all.Devices, r.Devices...)
	}
	return all, nil
}

func (l *liveClient) pluginFor(d *wire.AllocatedDevice) *host.Device {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.devices {
		for _, g := range p.groups {
			if g.Vendor == d.Vendor && g.Type == d.Type && g.Name == d.Name {
				return p.dev
			}
		}
	}
	return nil
}

// wait waits for a task's end, and bridges crashes of its plugin. It ends without a word when the agent does.
func (l *liveClient) wait(t *taskRun, lt *liveTask, ht *host.Task, gen int) {
	l.mu.Lock()
	ctx := l.ctx
	l.mu.Unlock()
	stats, stopStats := context.WithCancel(ctx)
	defer stopStats()
	go l.followStats(stats, lt, ht)
	for {
		res, err := ht.Wait(ctx)
		if l.generation() != gen || ctx.Err() != nil {
			return
		}
		if errors.Is(err, host.ErrExited) {
			next, rerr := l.again(ctx, lt, ht)
			if l.generation() != gen || ctx.Err() != nil {
				return
			}
			if rerr == nil {
				ht = next
				go l.followStats(stats, lt, ht)
				continue
			}
			l.log.Error("task is lost with its plugin", "task", ht.ID(), "error", rerr)
			l.ended(t, lt, taskstate.Exit{Err: "plugin is shut down"})
			return
		}
		exit := taskstate.Exit{}
		switch {
		case err != nil:
			exit.Err = err.Error()
		case res != nil:
			exit = taskstate.Exit{Code: res.ExitCode, Signal: res.Signal, OOMKilled: res.OOMKilled}
			if res.Err != nil {
				exit.Err = res.Err.Error()
			}
		}
		if err := ht.Destroy(ctx, true); err != nil {
			l.log.Warn("task could not be destroyed", "task", ht.ID(), "error", err)
		}
		l.ended(t, lt, exit)
		return
	}
}

func (l *liveClient) ended(t *taskRun, lt *liveTask, exit taskstate.Exit) {
	if lt.logs != nil {
		lt.logs.drain()
	}
	t.exited(lt.start, exit)
}

// again gives a task to the next process of its plugin.
func (l *liveClient) again(ctx context.Context, lt *liveTask, ht *host.Task) (*host.Task, error) {
	l.mu.Lock()
	d := l.drivers[lt.driver]
	l.mu.Unlock()
	if d == nil {
		return nil, fmt.Errorf("driver %q not found", lt.driver)
	}
	next, err := d.RecoverTask(ctx, ht.Handle())
	if err != nil {
		return nil, fmt.Errorf("recover task %s: %w", ht.ID(), err)
	}
	lt.mu.Lock()
	lt.task = next
	lt.mu.Unlock()
	return next, nil
}

func (l *liveClient) followStats(ctx context.Context, lt *liveTask, ht *host.Task) {
	err := ht.Stats(ctx, statsEvery, func(u *driver.TaskUsage) error {
		lt.mu.Lock()
		lt.usage = u
		lt.mu.Unlock()
		return nil
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, host.ErrExited) {
		l.log.Debug("statistics of the task ended", "task", ht.ID(), "error", err)
	}
}

// fillStats completes what the API shows of a task's usage. It is called with the allocation's lock held.
func (l *liveClient) fillStats(t *taskRun, usage map[string]any) {
	lt, _ := t.data.(*liveTask)
	if lt == nil {
		return
	}
	lt.mu.Lock()
	u := lt.usage
	lt.mu.Unlock()
	if u != nil {
		c, m := u.CPU, u.Memory
		usage["CpuStats"] = map[string]any{"Measured": c.Measured, "Percent": c.Percent, "SystemMode": c.SystemMode, "ThrottledPeriods": c.ThrottledPeriods,
			"ThrottledTime": c.ThrottledTime, "TotalTicks": c.TotalTicks, "UserMode": c.UserMode}
		usage["MemoryStats"] = map[string]any{"Cache": m.Cache, "KernelMaxUsage": m.KernelMaxUsage, "KernelUsage": m.KernelUsage, "MappedFile": 0,
			"MaxUsage": m.MaxUsage, "Measured": m.Measured, "RSS": m.RSS, "Swap": m.Swap, "Usage": m.Usage}
	}
	var groups []any
	l.mu.Lock()
	for _, d := range t.r.alloc.AllocatedResources.Tasks[t.name].Devices {
		for _, list := range l.stats {
			for _, g := range list {
				if g.Vendor == d.Vendor && g.Type == d.Type && g.Name == d.Name {
					groups = append(groups, groupStats(g, d.DeviceIDs))
				}
			}
		}
	}
	l.mu.Unlock()
	if groups != nil {
		usage["DeviceStats"] = groups
	}
}

// signal passes a signal, or free text, on to the driver.
func (l *liveClient) signal(t *taskRun, signal string) error {
	lt := l.of(t)
	if lt == nil {
		return errors.New("task not found")
	}
	if lt.driver == rawExec {
		return lt.proc.signal(signal)
	}
	return l.onTask(lt, func(ctx context.Context, ht *host.Task) error { return ht.Signal(ctx, signal) })
}

// onTask calls a driver about a task, again if its plugin is just being replaced.
func (l *liveClient) onTask(lt *liveTask, call func(context.Context, *host.Task) error) error {
	l.mu.Lock()
	ctx := l.ctx
	l.mu.Unlock()
	var err error
	for range 20 {
		ht := lt.current()
		if ht == nil {
			return errors.New("task not found")
		}
		if err = call(ctx, ht); !errors.Is(err, host.ErrExited) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return err
}

func (l *liveClient) stop(t *taskRun, start int, signal string, timeout time.Duration) {
	lt := l.of(t)
	if lt == nil || lt.start != start {
		return
	}
	timeout = min(timeout, l.cfg.MaxKillTimeout)
	if lt.driver == rawExec {
		lt.proc.stop(signal, timeout)
		return
	}
	if err := l.onTask(lt, func(ctx context.Context, ht *host.Task) error { return ht.Stop(ctx, timeout, signal) }); err != nil {
		l.log.Error("task could not be stopped", "alloc", t.r.id, "task", t.name, "error", err)
	}
}

// recover takes a task up again after the agent was away.
func (l *liveClient) recover(t *taskRun, start int) bool {
	lt := l.of(t)
	if lt == nil || lt.start != start {
		return false
	}
	if lt.driver == rawExec {
		return true
	}
	ht := lt.current()
	if ht == nil {
		return false
	}
	l.mu.Lock()
	ctx, gen := l.ctx, l.gen
	l.mu.Unlock()
	next, err := l.again(ctx, lt, ht)
	if err != nil {
		l.log.Warn("task could not be recovered and is started again", "alloc", t.r.id, "task", t.name, "error", err)
		return false
	}
	go l.wait(t, lt, next, gen)
	return true
}

// discard kills what still runs of a task and removes its files.
func (l *liveClient) discard(t *taskRun) {
	lt := l.of(t)
	if lt == nil {
		return
	}
	if lt.proc != nil {
		lt.proc.kill()
	}
	if ht := lt.current(); ht != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := ht.Destroy(ctx, true); err != nil && !errors.Is(err, host.ErrExited) {
			l.log.Debug("task could not be destroyed", "task", ht.ID(), "error", err)
		}
	}
	if lt.logs != nil {
		lt.logs.close()
	}
	if err := os.RemoveAll(lt.dirs.alloc); err != nil {
		l.log.Warn("the allocation's files could not be removed", "alloc", t.r.id, "error", err)
	}
}
