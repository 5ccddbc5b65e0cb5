package nomadsim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/host"
	"github.com/nomad-muster/muster/internal/nomadsim/sched"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// LiveConfig makes a node run real processes: its plugins are launched as a Nomad client launches them, and plain jobs
// run on a raw_exec that is built in.
type LiveConfig struct {
	Dir            string // where the client keeps its files; empty: a folder in Options.DataDir
	PluginDir      string
	Plugins        []PluginConfig
	Env            []string      // added to the environment that plugins, and so tasks, see
	MaxKillTimeout time.Duration // upper bound of kill timeouts; 0: 30 s
	Logger         hclog.Logger  // gets the plugins' logs; nil: silent
}

// PluginConfig is a plugin block of the client's configuration.
type PluginConfig struct {
	Name   string // the binary's file name in PluginDir
	Args   []string
	Config map[string]any // nil: the block has no config
}

const (
	firstReports = 10 * time.Second       // how long a client waits for its plugins' first reports
	batchReports = 100 * time.Millisecond // how long changes are collected before the node is registered anew
	statsEvery   = time.Second
)

// liveClient runs tasks by plugins and as processes.
type liveClient struct {
	a   *agent
	c   *Cluster
	cfg LiveConfig
	log hclog.Logger

	mu      sync.Mutex
	gen     int // counts starts of the agent
	ctx     context.Context
	cancel  context.CancelFunc
	drivers map[string]*host.Driver
	devices map[string]*liveDevices        // by plugin name
	stale   map[string]host.Reattach       // processes of an agent that was killed, by plugin name
	info    map[string]*wire.DriverInfo    // last reports of drivers
	base    *wire.Node                     // the node without what plugins report
	update  func()                         // stops a registration that is due
	stats   map[string][]device.GroupStats // last statistics, by plugin name
	wg      sync.WaitGroup
}

type liveDevices struct {
	dev    *host.Device
	groups []device.Group
}

func newLiveClient(a *agent) (*liveClient, error) {
	cfg := *a.cfg.Live
	if cfg.Dir == "" {
		dir, err := a.c.dataDir()
		if err != nil {
			return nil, err
		}
		cfg.Dir = filepath.Join(dir, a.cfg.Name)
	}
	if cfg.MaxKillTimeout == 0 {
		cfg.MaxKillTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "alloc"), 0o711); err != nil {
		return nil, fmt.Errorf("make the client's folder: %w", err)
	}
	return &liveClient{a: a, c: a.c, cfg: cfg, log: cfg.Logger, stale: map[string]host.Reattach{}}, nil
}

// dataDir is the folder for live nodes; one of our own making goes with the cluster.
func (c *Cluster) dataDir() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opts.DataDir == "" {
		dir, err := os.MkdirTemp("", "nomadsim-")
		if err != nil {
			return "", fmt.Errorf("make a folder for live nodes: %w", err)
		}
		c.opts.DataDir, c.ownDir = dir, true
	}
	return c.opts.DataDir, nil
}

// startPlugins launches the plugins, takes up the drivers that a killed agent left, and completes the description of
// the node with what they report.
func (l *liveClient) startPlugins(n *wire.Node) error {
	ctx, cancel := context.WithCancel(context.Background()) // ended by stopPlugins
	configs := make([]host.Config, len(l.cfg.Plugins))
	for i, p := range l.cfg.Plugins {
		configs[i] = host.Config{Name: p.Name, Args: p.Args, Config: p.Config}
	}
	plugins, err := host.Discover(ctx, host.Options{Dir: l.cfg.PluginDir, Configs: configs, Env: l.cfg.Env, Logger: l.log})
	if err != nil {
		cancel()
		return fmt.Errorf("plugins of node %s: %w", l.a.cfg.Name, err)
	}
	l.mu.Lock()
	l.gen++
	l.ctx, l.cancel = ctx, cancel
	l.drivers, l.devices = map[string]*host.Driver{}, map[string]*liveDevices{}
	l.info, l.stats = map[string]*wire.DriverInfo{}, map[string][]device.GroupStats{}
	l.base = n
	stale := l.stale
	l.stale = map[string]host.Reattach{}
	l.mu.Unlock()

	agentInfo := base.Agent{ClientMinPort: 14000, ClientMaxPort: 14512}
	var first []<-chan struct{}
	var all error
	for _, p := range plugins {
		name := p.Info().Name
		old, isStale := stale[name]
		switch p.Info().Type {
		case base.TypeDriver:
			d, err := p.Driver(agentInfo)
			if err != nil {
				all = errors.Join(all, err)
				continue
			}
			if isStale {
				if err := d.Attach(ctx, old); err != nil {
					l.log.Warn("could not take up the driver that the last agent left", "driver", name, "error", err)
				}
			}
			l.mu.Lock()
			l.drivers[name] = d
			l.mu.Unlock()
			first = append(first, l.followDriver(ctx, name, d))
		case base.TypeDevice:
			if isStale {
				if err := p.EndStale(ctx, old); err != nil {
					l.log.Warn("could not end the device plugin that the last agent left", "plugin", name, "error", err)
				}
			}
			d, err := p.Device(agentInfo)
			if err != nil {
				all = errors.Join(all, err)
				continue
			}
			ld := &liveDevices{dev: d}
			l.mu.Lock()
			l.devices[name] = ld
			l.mu.Unlock()
			first = append(first, l.followDevices(ctx, name, ld))
		}
	}
	if all != nil {
		l.stopPlugins(true)
		return fmt.Errorf("plugins of node %s: %w", l.a.cfg.Name, all)
	}
	deadline := time.NewTimer(firstReports)
	defer deadline.Stop()
	for _, f := range first {
		select {
		case <-f:
		case <-deadline.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s: %w", l.a.cfg.Name, ctx.Err())
		}
	}
	l.describe(n)
	return nil
}

// followDriver keeps up with a driver's health and events. The channel is closed after the first report.
func (l *liveClient) followDriver(ctx context.Context, name string, d *host.Driver) <-chan struct{} {
	first := make(chan struct{})
	var once sync.Once
	l.wg.Add(2)
	go func() {
		defer l.wg.Done()
		err := d.Fingerprint(ctx, func(f driver.Fingerprint) error {
			info := &wire.DriverInfo{Attributes: map[string]string{}, Detected: f.Health != driver.HealthUndetected,
				Healthy: f.Health == driver.HealthHealthy, HealthDescription: f.Description, UpdateTime: wire.Time{Time: l.c.clock.Now()}}
			for k, v := range f.Attributes {
				info.Attributes[k] = attributeText(v)
			}
			if info.Detected {
				info.Attributes["driver."+name] = "1"
			}
			l.mu.Lock()
			l.info[name] = info
			l.mu.Unlock()
			once.Do(func() { close(first) })
			l.changed()
			return nil
		})
		if ctx.Err() == nil && !errors.Is(err, host.ErrClosed) {
			l.log.Error("driver reports no more", "driver", name, "error", err)
		}
	}()
	go func() {
		defer l.wg.Done()
		err := d.TaskEvents(ctx, func(e *driver.TaskEvent) error {
			r := l.a.run(e.AllocID)
			if r == nil {
				l.log.Warn("event of an allocation that is not known", "alloc", e.AllocID)
				return nil
			}
			t := r.task(e.TaskName)
			if t == nil {
				l.log.Warn("event of a task that is not known", "alloc", e.AllocID, "task", e.TaskName)
				return nil
			}
			t.driverEvent(e.Message, e.Annotations)
			return nil
		})
		if ctx.Err() == nil && !errors.Is(err, host.ErrClosed) {
			l.log.Error("driver sends no more events", "driver", name, "error", err)
		}
	}()
	return first
}

// followDevices keeps up with a plugin's devices and their statistics.
func (l *liveClient) followDevices(ctx context.Context, name string, ld *liveDevices) <-chan struct{} {
	first := make(chan struct{})
	var once sync.Once
	l.wg.Add(2)
	go func() {
		defer l.wg.Done()
		err := ld.dev.Fingerprint(ctx, func(groups []device.Group) error {
			l.mu.Lock()
			ld.groups = groups
			l.mu.Unlock()
			once.Do(func() { close(first) })
			l.changed()
			return nil
		})
		if ctx.Err() == nil && !errors.Is(err, host.ErrClosed) {
			l.log.Error("devices are lost", "plugin", name, "error", err)
		}
	}()
	go func() {
		defer l.wg.Done()
		err := ld.dev.Stats(ctx, statsEvery, func(groups []device.GroupStats) error {
			l.mu.Lock()
			l.stats[name] = groups
			l.mu.Unlock()
			return nil
		})
		if ctx.Err() == nil && err != nil && !errors.Is(err, host.ErrClosed) {
			l.log.Error("device statistics ended", "plugin", name, "error", err)
		}
	}()
	return first
}

// changed has the node registered anew soon.
func (l *liveClient) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.update != nil || l.ctx.Err() != nil {
		return
	}
	gen := l.gen
	l.update = l.c.clock.AfterFunc(batchReports, func() {
		l.mu.Lock()
		l.update = nil
		stale := gen != l.gen || l.ctx.Err() != nil
		base := l.base
		l.mu.Unlock()
		if stale {
			return
		}
		l.a.mu.Lock()
		connected := l.a.up && !l.a.cut
		l.a.mu.Unlock()
		if !connected || l.c.store.Snapshot().Node(l.a.cfg.ID) == nil {
			return
		}
		n := *base
		l.describe(&n)
		l.c.spawn(func() {
			if old := l.c.store.Snapshot().Node(n.ID); old != nil && describedAlike(old, &n) {
				return
			}
			l.c.register(&n)
		})
	})
}

// describe completes a node with what its plugins report.
func (l *liveClient) describe(n *wire.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	attrs := map[string]string{}
	for k, v := range n.Attributes {
		attrs[k] = v
	}
	n.Attributes = attrs
	drivers := map[string]*wire.DriverInfo{}
	for k, v := range n.Drivers {
		drivers[k] = v
	}
	n.Drivers = drivers
	setDriver(n, "raw_exec", &wire.DriverInfo{Attributes: map[string]string{"driver.raw_exec": "true"}, Detected: true, Healthy: true,
		HealthDescription: "Healthy", UpdateTime: wire.Time{Time: time.Unix(0, n.StatusUpdatedAt*1e9)}})
	for name, info := range l.info {
		setDriver(n, name, info)
	}
	res := *n.NodeResources
	res.Devices = nil
	names := make([]string, 0, len(l.devices))
	for name := range l.devices {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, g := range l.devices[name].groups {
			res.Devices = append(res.Devices, nodeDevice(g))
		}
	}
	n.NodeResources = &res
	n.ComputedClass = sched.ComputedClass(n)
}

func nodeDevice(g device.Group) *wire.NodeDevice {
	d := &wire.NodeDevice{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: map[string]*wire.Attribute{}}
	for k, a := range g.Attributes {
		d.Attributes[k] = &wire.Attribute{Int: a.Int, Float: a.Float, String: a.String, Bool: a.Bool, Unit: a.Unit}
	}
	for _, i := range g.Devices {
		in := &wire.DeviceInstance{ID: i.ID, Healthy: i.Healthy, HealthDescription: i.HealthDescription}
		if i.PCIBusID != "" {
			in.Locality = &wire.DeviceLocality{PciBusID: i.PCIBusID}
		}
		d.Instances = append(d.Instances, in)
	}
	return d
}

func attributeText(a device.Attribute) string {
	switch {
	case a.String != nil:
		return *a.String
	case a.Int != nil:
		return fmt.Sprint(*a.Int) + unitText(a.Unit)
	case a.Float != nil:
		return fmt.Sprint(*a.Float) + unitText(a.Unit)
	case a.Bool != nil:
		return fmt.Sprint(*a.Bool)
	}
	return ""
}

func unitText(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}

// stopPlugins ends the plugins with the agent, or leaves them orphaned as a kill does.
func (l *liveClient) stopPlugins(graceful bool) {
	l.mu.Lock()
	if l.cancel == nil {
		l.mu.Unlock()
		return
	}
	cancel := l.cancel
	l.cancel = nil
	l.gen++
	if l.update != nil {
		l.update()
		l.update = nil
	}
	drivers, devices := l.drivers, l.devices
	l.mu.Unlock()
	cancel()
	for name, d := range drivers {
		if graceful {
			d.Close()
		} else if r, ok := d.Detach(); ok {
			l.keep(name, r)
		}
	}
	for name, d := range devices {
		if graceful {
			d.dev.Close()
		} else if r, ok := d.dev.Detach(); ok {
			l.keep(name, r)
		}
	}
	l.wg.Wait()
}

func (l *liveClient) keep(name string, r host.Reattach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stale[name] = r
}

// close ends the client for good: plugins that a killed agent left end too.
func (l *liveClient) close() {
	l.stopPlugins(true)
	l.mu.Lock()
	stale := l.stale
	l.stale = map[string]host.Reattach{}
	l.mu.Unlock()
	for _, r := range stale {
		if p, err := os.FindProcess(r.PID); err == nil {
			p.Kill()
		}
	}
}

// PluginPID is the process of a live node's plugin, so that a test may kill it.
func (c *Cluster) PluginPID(node, plugin string) (int, error) {
	a := c.agent(node)
	if a == nil || a.live == nil {
		return 0, fmt.Errorf("node %s is no live node", node)
	}
	l := a.live
	l.mu.Lock()
	d, dev := l.drivers[plugin], l.devices[plugin]
	l.mu.Unlock()
	var r host.Reattach
	ok := false
	switch {
	case d != nil:
		r, ok = d.Process()
	case dev != nil:
		r, ok = dev.dev.Process()
	}
	if !ok {
		return 0, fmt.Errorf("plugin %q of node %s does not run", plugin, node)
	}
	return r.PID, nil
}

// deviceStats are the last statistics of the node's devices, as the API shows them.
func (l *liveClient) deviceStats() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []any{}
	for _, groups := range l.stats {
		for _, g := range groups {
			out = append(out, groupStats(g, nil))
		}
	}
	return out
}

// groupStats shows a group's statistics; with only, those of some instances.
func groupStats(g device.GroupStats, only []string) map[string]any {
	instances := map[string]any{}
	for id, s := range g.Devices {
		if only != nil && !slices.Contains(only, id) {
			continue
		}
		instances[id] = map[string]any{"Summary": statValue(s.Summary), "Stats": nested(s.Values), "Timestamp": wire.Time{Time: s.At}}
	}
	return map[string]any{"Vendor": g.Vendor, "Type": g.Type, "Name": g.Name, "InstanceStats": instances}
}

// nested turns flat names with slashes into objects within objects.
func nested(values map[string]device.Stat) map[string]any {
	object := func() map[string]any {
		return map[string]any{"Attributes": map[string]any{}, "Nested": map[string]any{}}
	}
	root := object()
	for name, v := range values {
		at := root
		parts := splitPath(name)
		for _, p := range parts[:len(parts)-1] {
			n := at["Nested"].(map[string]any)
			if n[p] == nil {
				n[p] = object()
			}
			at = n[p].(map[string]any)
		}
		at["Attributes"].(map[string]any)[parts[len(parts)-1]] = statValue(v)
	}
	return root
}

func splitPath(s string) []string {
	var out []string
	start := 0
	for i := range s {
		if s[i] == '/' {
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

func statValue(s device.Stat) map[string]any {
	m := map[string]any{}
	if s.Desc != "" {
		m["Desc"] = s.Desc
	}
	if s.Unit != "" {
		m["Unit"] = s.Unit
	}
	switch {
	case s.Int != nil:
		m["IntNumeratorVal"] = *s.Int
		if s.IntMax != nil {
			m["IntDenominatorVal"] = *s.IntMax
		}
	case s.Float != nil:
		m["FloatNumeratorVal"] = *s.Float
		if s.FloatMax != nil {
			m["FloatDenominatorVal"] = *s.FloatMax
		}
	case s.String != nil:
		m["StringVal"] = *s.String
	case s.Bool != nil:
		m["BoolVal"] = *s.Bool
	}
	return m
}

// takeUp finds the tasks of an agent that is down, so that they can be killed.
func (l *liveClient) takeUp(runs []*allocRun) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	node := l.base
	l.mu.Unlock()
	if err := l.startPlugins(node); err != nil {
		l.log.Warn("plugins could not be started to end the node's tasks", "error", err)
		return
	}
	for _, r := range runs {
		r.mu.Lock()
		var tasks []*taskRun
		for _, t := range r.tasks {
			if t.live {
				tasks = append(tasks, t)
			}
		}
		r.mu.Unlock()
		for _, t := range tasks {
			lt := l.of(t)
			if lt == nil || lt.current() == nil {
				continue
			}
			if _, err := l.again(context.Background(), lt, lt.current()); err != nil {
				l.log.Debug("task is over", "alloc", r.id, "error", err)
			}
		}
	}
}
