package driver_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
)

var (
	name    = rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ019-_./ äß𝔛")), 1, 20, -1)
	text    = rapid.OneOf(rapid.Just(""), name, rapid.Just("line\nline"), rapid.Just(strings.Repeat("x", 500)))
	texts   = rapid.SliceOfN(text, 0, 3)
	textMap = rapid.MapOfN(name, text, 0, 3)
	flag    = rapid.Bool()
	finite  = rapid.Float64().Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) })
	wide    = rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64}))
	narrow  = rapid.OneOf(rapid.Int32(), rapid.SampledFrom([]int32{0, math.MinInt32, math.MaxInt32}))
	count   = rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, math.MaxUint64}))
	blob    = rapid.SliceOfN(rapid.Byte(), 0, 30)
	moment  = rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "s"), rapid.Int64Range(1, 999_999_999).Draw(t, "ns")).UTC()
	})
)

func drawConfig(t *rapid.T) *driver.TaskConfig {
	c := &driver.TaskConfig{
		ID: name.Draw(t, "id"), Name: text.Draw(t, "name"), JobName: text.Draw(t, "job"), JobID: text.Draw(t, "job id"),
		TaskGroupName: text.Draw(t, "group"), Namespace: text.Draw(t, "namespace"), NodeName: text.Draw(t, "node"), NodeID: text.Draw(t, "node id"),
		AllocID: text.Draw(t, "alloc"), ParentJobID: text.Draw(t, "parent"), Env: textMap.Draw(t, "env"), DeviceEnv: textMap.Draw(t, "device env"),
		User: text.Draw(t, "user"), AllocDir: text.Draw(t, "dir"), MsgPackConfig: blob.Draw(t, "config"),
		StdoutPath: text.Draw(t, "stdout"), StderrPath: text.Draw(t, "stderr"),
		Devices: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.DeviceNode {
			return device.DeviceNode{TaskPath: text.Draw(t, "task"), HostPath: text.Draw(t, "host"), Permissions: text.Draw(t, "permissions")}
		}), 0, 2).Draw(t, "devices"),
		Mounts: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) driver.Mount {
			return driver.Mount{
				TaskPath: text.Draw(t, "task"), HostPath: text.Draw(t, "host"), ReadOnly: flag.Draw(t, "ro"),
				PropagationMode: text.Draw(t, "mode"), SELinuxLabel: text.Draw(t, "label"), RequestName: text.Draw(t, "request"),
			}
		}), 0, 2).Draw(t, "mounts"),
	}
	if flag.Draw(t, "has dns") {
		c.DNS = &driver.DNS{Servers: texts.Draw(t, "servers"), Searches: texts.Draw(t, "searches"), Options: texts.Draw(t, "options")}
	}
	if flag.Draw(t, "has isolation") {
		c.NetworkIsolation = &driver.NetworkIsolation{
			Mode: rapid.SampledFrom([]string{"host", "group", "task", "none"}).Draw(t, "mode"), Path: text.Draw(t, "path"),
			Labels: textMap.Draw(t, "labels"), HostName: text.Draw(t, "host name"), HostAddress: text.Draw(t, "host address"),
		}
	}
	if flag.Draw(t, "has resources") {
		ports := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) driver.NetworkPort {
			return driver.NetworkPort{Label: text.Draw(t, "label"), Value: narrow.Draw(t, "port")}
		}), 0, 2)
		c.Resources = &driver.Resources{
			CPUShares: wide.Draw(t, "cpu"), MemoryMB: wide.Draw(t, "memory"), MemoryMaxMB: wide.Draw(t, "max"),
			LinuxCPUPeriod: wide.Draw(t, "period"), LinuxCPUQuota: wide.Draw(t, "quota"), LinuxCPUShares: wide.Draw(t, "shares"),
			LinuxMemoryLimitBytes: wide.Draw(t, "limit"), LinuxOOMScoreAdj: wide.Draw(t, "oom"), CPUSetCPUs: text.Draw(t, "cpus"),
			CPUSetCgroup: text.Draw(t, "cgroup"), PercentTicks: finite.Draw(t, "ticks"),
			Networks: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) driver.Network {
				return driver.Network{
					Device: text.Draw(t, "device"), CIDR: text.Draw(t, "cidr"), IP: text.Draw(t, "ip"), MBits: narrow.Draw(t, "mbits"),
					ReservedPorts: ports.Draw(t, "reserved"), DynamicPorts: ports.Draw(t, "dynamic"),
				}
			}), 0, 2).Draw(t, "networks"),
			Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) driver.Port {
				return driver.Port{Label: text.Draw(t, "label"), Value: narrow.Draw(t, "value"), To: narrow.Draw(t, "to"), HostIP: text.Draw(t, "ip")}
			}), 0, 2).Draw(t, "ports"),
		}
	}
	return c
}

func drawHandle(t *rapid.T, c *driver.TaskConfig) *driver.TaskHandle {
	return &driver.TaskHandle{
		Version: narrow.Filter(func(v int32) bool { return v != 0 }).Draw(t, "version"), Config: c, Driver: blob.Draw(t, "state"),
		State: rapid.SampledFrom([]driver.TaskState{driver.TaskStateUnknown, driver.TaskStateRunning, driver.TaskStateExited}).Draw(t, "state"),
	}
}

// A configuration reaches the driver as Nomad sent it, and a handle comes back
// to the driver as it gave it.
func TestStartAndRecoverRoundTrip(t *testing.T) {
	t.Parallel()
	var config *driver.TaskConfig
	var handle, recovered *driver.TaskHandle
	client := plugintest.Driver(t, &fake{
		start:   func(c *driver.TaskConfig) (*driver.TaskHandle, error) { config = c; return handle, nil },
		recover: func(h *driver.TaskHandle) error { recovered = h; return nil },
	})
	rapid.Check(t, func(rt *rapid.T) {
		sent := drawConfig(rt)
		handle = drawHandle(rt, sent)
		got, err := client.StartTask(t.Context(), sent)
		if err != nil {
			rt.Fatal(err)
		}
		if err := client.RecoverTask(t.Context(), got); err != nil {
			rt.Fatal(err)
		}
		diff := cmp.Diff(sent, config, cmpopts.EquateEmpty()) + cmp.Diff(handle, got, cmpopts.EquateEmpty()) + cmp.Diff(handle, recovered, cmpopts.EquateEmpty())
		if diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
}

func TestFingerprintRoundTrip(t *testing.T) {
	t.Parallel()
	feed, report := stream[driver.Fingerprint](t)
	client := plugintest.Driver(t, &fake{fingerprint: report})
	arrived := make(chan driver.Fingerprint)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- client.Fingerprint(ctx, func(f driver.Fingerprint) error { arrived <- f; return nil })
	}()
	rapid.Check(t, func(rt *rapid.T) {
		f := driver.Fingerprint{
			Health:      rapid.SampledFrom([]driver.Health{driver.HealthUndetected, driver.HealthUnhealthy, driver.HealthHealthy}).Draw(rt, "health"),
			Description: text.Draw(rt, "description"),
			Attributes: rapid.MapOfN(name, rapid.Custom(func(t *rapid.T) device.Attribute {
				return rapid.SampledFrom([]device.Attribute{
					device.Bool(false), device.Bool(true), device.Int(wide.Draw(t, "int"), "MiB"), device.Float(finite.Draw(t, "float"), ""), device.String(text.Draw(t, "string")),
				}).Draw(t, "attribute")
			}), 0, 3).Draw(rt, "attributes"),
		}
		feed <- f
		if diff := cmp.Diff(f, <-arrived, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
}

func TestTaskEventsRoundTrip(t *testing.T) {
	t.Parallel()
	feed, report := stream[*driver.TaskEvent](t)
	client := plugintest.Driver(t, &fake{events: report})
	arrived := make(chan *driver.TaskEvent)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- client.TaskEvents(ctx, func(e *driver.TaskEvent) error { arrived <- e; return nil })
	}()
	rapid.Check(t, func(rt *rapid.T) {
		e := &driver.TaskEvent{
			TaskID: text.Draw(rt, "id"), AllocID: name.Draw(rt, "alloc"), TaskName: name.Draw(rt, "task"), At: moment.Draw(rt, "at"),
			Message: text.Draw(rt, "message"), Annotations: textMap.Draw(rt, "annotations"),
		}
		feed <- e
		if diff := cmp.Diff(e, <-arrived, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
}

func drawUsage(t *rapid.T) driver.TaskUsage {
	measured := func(names ...string) []string {
		return slices.DeleteFunc(names, func(string) bool { return flag.Draw(t, "measured") })
	}
	return driver.TaskUsage{
		CPU: driver.CPUUsage{
			SystemMode: finite.Draw(t, "system"), UserMode: finite.Draw(t, "user"), TotalTicks: finite.Draw(t, "ticks"), Percent: finite.Draw(t, "percent"),
			ThrottledPeriods: count.Draw(t, "periods"), ThrottledTime: count.Draw(t, "time"),
			Measured: measured("System Mode", "User Mode", "Total Ticks", "Throttled Periods", "Throttled Time", "Percent"),
		},
		Memory: driver.MemoryUsage{
			RSS: count.Draw(t, "rss"), Cache: count.Draw(t, "cache"), MaxUsage: count.Draw(t, "max"), Usage: count.Draw(t, "usage"),
			KernelUsage: count.Draw(t, "kernel"), KernelMaxUsage: count.Draw(t, "kernel max"), Swap: count.Draw(t, "swap"),
			Measured: measured("RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage"),
		},
	}
}

func TestTaskStatsRoundTrip(t *testing.T) {
	t.Parallel()
	feed, report := stream[*driver.TaskUsage](t)
	asked := make(chan time.Duration, 1)
	client := plugintest.Driver(t, &fake{stats: func(ctx context.Context, id string, interval time.Duration, send func(*driver.TaskUsage) error) error {
		must.Eq(t, "a/b/c", id)
		asked <- interval
		return report(ctx, send)
	}})
	arrived := make(chan *driver.TaskUsage)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- client.TaskStats(ctx, "a/b/c", 1500*time.Millisecond, func(u *driver.TaskUsage) error { arrived <- u; return nil })
	}()
	must.Eq(t, 1500*time.Millisecond, <-asked)
	rapid.Check(t, func(rt *rapid.T) {
		u := drawUsage(rt)
		u.At = moment.Draw(rt, "at")
		u.ByPID = rapid.MapOfN(name, rapid.Custom(drawUsage), 0, 2).Draw(rt, "by pid")
		feed <- &u
		if diff := cmp.Diff(&u, <-arrived, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
}

func TestTaskCallsRoundTrip(t *testing.T) {
	t.Parallel()
	var calls []any
	var exit *driver.ExitResult
	var status *driver.TaskStatus
	client := plugintest.Driver(t, &fake{
		wait: func(_ context.Context, id string) (*driver.ExitResult, error) {
			calls = append(calls, id)
			return exit, nil
		},
		stop: func(id string, timeout time.Duration, signal string) error {
			calls = append(calls, id, timeout, signal)
			return nil
		},
		destroy: func(id string, force bool) error { calls = append(calls, id, force); return nil },
		signal:  func(id, signal string) error { calls = append(calls, id, signal); return nil },
		inspect: func(id string) (*driver.TaskStatus, error) { calls = append(calls, id); return status, nil },
	})
	rapid.Check(t, func(rt *rapid.T) {
		calls = nil
		id, signal, force := name.Draw(rt, "id"), text.Draw(rt, "signal"), flag.Draw(rt, "force")
		timeout := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(rt, "timeout"))
		exit = &driver.ExitResult{ExitCode: int(narrow.Draw(rt, "code")), Signal: int(narrow.Draw(rt, "number")), OOMKilled: flag.Draw(rt, "oom")}
		status = &driver.TaskStatus{
			ID: id, Name: text.Draw(rt, "name"), State: driver.TaskStateRunning, Started: moment.Draw(rt, "started"), DriverAttributes: textMap.Draw(rt, "attributes"),
		}
		if flag.Draw(rt, "over") {
			status.State, status.Ended, status.Exit = driver.TaskStateExited, moment.Draw(rt, "ended"), exit
		}
		gotExit, err1 := client.WaitTask(t.Context(), id)
		gotStatus, err2 := client.InspectTask(t.Context(), id)
		err := errors.Join(err1, err2,
			client.StopTask(t.Context(), id, timeout, signal), client.DestroyTask(t.Context(), id, force), client.SignalTask(t.Context(), id, signal))
		if err != nil {
			rt.Fatal(err)
		}
		diff := cmp.Diff(exit, gotExit) + cmp.Diff(status, gotStatus, cmpopts.EquateEmpty()) +
			cmp.Diff([]any{id, id, id, timeout, signal, id, force, id, signal}, calls)
		if diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
}

func TestCapabilitiesAndSchemaRoundTrip(t *testing.T) {
	t.Parallel()
	f := &fake{}
	client := plugintest.Driver(t, f)
	for _, c := range []driver.Capabilities{
		{},
		{SendSignals: true, Exec: true, FSIsolation: driver.FSIsolationUnveil, NoMounts: true, NoLogCollection: true, DynamicUsers: true},
		{FSIsolation: driver.FSIsolationChroot, NetworkIsolation: []string{"host", "group", "task", "none"}},
	} {
		f.capabilities = c
		got, err := client.Capabilities(t.Context())
		must.NoError(t, err)
		must.Eq(t, "", cmp.Diff(c, got))
	}
	f.schema = &hclspec.Spec{Object: map[string]*hclspec.Spec{"args": {Attr: &hclspec.Attr{Name: "args", Type: "list(string)"}}}}
	got, err := client.TaskConfigSchema(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", cmp.Diff(f.schema, got))
}

// Nomad keeps what a driver reported with the exit, and may restart after a
// recoverable failure of the start.
func TestErrorsRoundTrip(t *testing.T) {
	t.Parallel()
	var start error
	client := plugintest.Driver(t, &fake{
		start: func(*driver.TaskConfig) (*driver.TaskHandle, error) { return nil, start },
		wait: func(context.Context, string) (*driver.ExitResult, error) {
			return &driver.ExitResult{ExitCode: 3, Err: errors.New("shim is lost")}, nil
		},
	})
	exit, err := client.WaitTask(t.Context(), "a")
	must.NoError(t, err)
	must.Eq(t, 3, exit.ExitCode)
	must.EqError(t, exit.Err, "shim is lost")

	var recoverable *base.RecoverableError
	start = &base.RecoverableError{Err: errors.New("consul: connection refused")}
	_, err = client.StartTask(t.Context(), &driver.TaskConfig{ID: "a"})
	must.EqError(t, err, "consul: connection refused")
	must.True(t, errors.As(err, &recoverable))
	start = errors.New("script: is empty")
	_, err = client.StartTask(t.Context(), &driver.TaskConfig{ID: "a"})
	must.EqError(t, err, "script: is empty")
	must.False(t, errors.As(err, &recoverable))
}

// A handle with the largest environment that Linux allows, and a state of
// megabytes, goes both ways.
func TestLargeHandle(t *testing.T) {
	t.Parallel()
	var recovered *driver.TaskHandle
	client := plugintest.Driver(t, &fake{recover: func(h *driver.TaskHandle) error { recovered = h; return nil }})
	h := &driver.TaskHandle{
		Version: 1, Driver: make([]byte, 8<<20),
		Config: &driver.TaskConfig{ID: "a", Env: map[string]string{"X": strings.Repeat("x", 2<<20)}},
	}
	must.NoError(t, client.RecoverTask(t.Context(), h))
	must.Eq(t, len(h.Driver), len(recovered.Driver))
	must.Eq(t, len(h.Config.Env["X"]), len(recovered.Config.Env["X"]))
}
