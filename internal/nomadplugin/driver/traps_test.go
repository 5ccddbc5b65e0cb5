package driver_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
)

// Nomad's agent panics on stats without the aggregate usage, and logs an error
// for a time it cannot read.
func TestTaskStatsAreComplete(t *testing.T) {
	t.Parallel()
	bad := map[string]*driver.TaskUsage{
		"nil":                   nil,
		"NaN":                   {CPU: driver.CPUUsage{Percent: math.NaN()}},
		"infinite part":         {ByPID: map[string]driver.TaskUsage{"1": {CPU: driver.CPUUsage{UserMode: math.Inf(1)}}}},
		"unknown field":         {Memory: driver.MemoryUsage{Measured: []string{"Mapped"}}},
		"time out of range":     {At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"empty process id":      {ByPID: map[string]driver.TaskUsage{"": {}}},
		"process id not UTF-8":  {ByPID: map[string]driver.TaskUsage{"\xff": {}}},
		"unknown field of part": {ByPID: map[string]driver.TaskUsage{"1": {CPU: driver.CPUUsage{Measured: []string{"?"}}}}},
	}
	before := time.Now()
	client := raw(t, &fake{stats: func(ctx context.Context, _ string, _ time.Duration, send func(*driver.TaskUsage) error) error {
		for name, u := range bad {
			if send(u) == nil {
				t.Errorf("%s was sent", name)
			}
		}
		must.NoError(t, send(&driver.TaskUsage{ByPID: map[string]driver.TaskUsage{"1": {}}}))
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: "a/b/c", CollectionInterval: durationpb.New(time.Second)})
	must.NoError(t, err)
	m, err := stream.Recv()
	must.NoError(t, err)
	must.NotNil(t, m.GetStats())
	must.Eq(t, "a/b/c", m.GetStats().GetId())
	must.False(t, m.GetStats().GetTimestamp().AsTime().Before(before))
	for _, part := range []*driverpb.TaskResourceUsage{m.GetStats().GetAggResourceUsage(), m.GetStats().GetResourceUsageByPid()["1"]} {
		must.NotNil(t, part)
		must.NotNil(t, part.GetCpu())
		must.NotNil(t, part.GetMemory())
	}
}

// The end of a task's stats is quiet; their failure is an error, after which
// Nomad waits before it asks again.
func TestTaskStatsEnd(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	client := raw(t, &fake{stats: func(_ context.Context, id string, _ time.Duration, send func(*driver.TaskUsage) error) error {
		switch id {
		case "over":
			go func() { <-over; _ = send(&driver.TaskUsage{}) }() // too late
			return nil
		case "panic":
			panic("no cgroup")
		}
		return fmt.Errorf("%w: %s", driver.ErrTaskNotFound, id)
	}})
	for id, want := range map[string]string{"unknown": "not known to the driver: unknown", "panic": "panicked: no cgroup"} {
		stream, err := client.TaskStats(t.Context(), &driverpb.TaskStatsRequest{TaskId: id})
		must.NoError(t, err)
		_, err = stream.Recv()
		must.Eq(t, codes.Unknown, status.Code(err))
		must.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stream, err := client.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: "over"})
	must.NoError(t, err)
	close(over)
	_, err = stream.Recv()
	must.Eq(t, codes.DeadlineExceeded, status.Code(err)) // open until the caller ended it
	stream, err = client.TaskStats(t.Context(), &driverpb.TaskStatsRequest{CollectionInterval: durationpb.New(-1)})
	must.NoError(t, err)
	_, err = stream.Recv()
	must.Eq(t, codes.InvalidArgument, status.Code(err))
}

// Nomad's agent panics on an inspection without times or result.
func TestInspectIsComplete(t *testing.T) {
	t.Parallel()
	var answer *driver.TaskStatus
	client := raw(t, &fake{inspect: func(string) (*driver.TaskStatus, error) { return answer, nil }})
	answer = &driver.TaskStatus{Name: "a\xff", DriverAttributes: map[string]string{"pid\xff": "1\x00"}}
	resp, err := client.InspectTask(t.Context(), &driverpb.InspectTaskRequest{})
	must.NoError(t, err)
	must.NotNil(t, resp.GetTask().GetResult())
	must.NoError(t, resp.GetTask().GetStartedAt().CheckValid())
	must.NoError(t, resp.GetTask().GetCompletedAt().CheckValid())
	must.NotNil(t, resp.GetDriver())
	must.Eq(t, map[string]string{"pid\uFFFD": "1\uFFFD"}, resp.GetDriver().GetAttributes())
	for want, bad := range map[string]*driver.TaskStatus{
		"no task status":  nil,
		"unknown state 9": {State: 9},
		"start time":      {Started: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"exit exit code 4294967296 does not fit 32 bits": {Exit: &driver.ExitResult{ExitCode: 1 << 32}},
	} {
		answer = bad
		_, err := client.InspectTask(t.Context(), &driverpb.InspectTaskRequest{})
		must.ErrorContains(t, err, want)
	}
}

// Nomad looks at neither result nor message of a start: a failure is a gRPC
// error, with a detail where it may try again.
func TestStartFailuresAreErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err         error
		code        codes.Code
		recoverable bool
	}{
		"plain":               {errors.New("script: is empty\nnproc_per_node: is 0"), codes.Unknown, false},
		"recoverable":         {&base.RecoverableError{Err: errors.New("consul is away")}, codes.FailedPrecondition, true},
		"wrapped recoverable": {fmt.Errorf("start: %w", &base.RecoverableError{Err: errors.New("consul is away")}), codes.FailedPrecondition, true},
		"not UTF-8":           {errors.New("a\xff"), codes.Unknown, false},
		"very long":           {errors.New(strings.Repeat("x", 32<<20)), codes.Unknown, false},
		"canceled by itself":  {context.Canceled, codes.Unknown, false},
		"another's status":    {status.Error(codes.Unavailable, "x"), codes.Unknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := raw(t, &fake{start: func(*driver.TaskConfig) (*driver.TaskHandle, error) { return nil, c.err }})
			_, err := client.StartTask(t.Context(), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "a"}})
			st := status.Convert(err)
			must.Eq(t, c.code, st.Code())
			if !c.recoverable {
				must.SliceEmpty(t, st.Details())
				return
			}
			must.Len(t, 1, st.Details())
			must.True(t, st.Details()[0].(*structspb.RecoverableError).GetRecoverable())
		})
	}
	_, err := raw(t, &fake{}).StartTask(t.Context(), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "a"}})
	must.ErrorContains(t, err, "panicked")
	for _, task := range []*driverpb.TaskConfig{nil, {}, {Name: "x"}} {
		_, err := raw(t, &fake{}).StartTask(t.Context(), &driverpb.StartTaskRequest{Task: task})
		must.Eq(t, codes.InvalidArgument, status.Code(err))
	}
}

// Nomad accepts a handle without a configuration and starts the task a second
// time after an agent's restart. Such a start fails, and what it started is
// ended.
func TestUnusableHandlesAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func(*driver.TaskConfig) *driver.TaskHandle
		want   string
	}{
		"nil":       {func(*driver.TaskConfig) *driver.TaskHandle { return nil }, "no task handle"},
		"no config": {func(*driver.TaskConfig) *driver.TaskHandle { return &driver.TaskHandle{Version: 1} }, "without the task's configuration"},
		"config without id": {func(*driver.TaskConfig) *driver.TaskHandle {
			return &driver.TaskHandle{Version: 1, Config: &driver.TaskConfig{}}
		}, `of task ""`},
		"another task's": {func(*driver.TaskConfig) *driver.TaskHandle {
			return &driver.TaskHandle{Version: 1, Config: &driver.TaskConfig{ID: "b"}}
		}, `of task "b"`},
		"nomad's version": {func(c *driver.TaskConfig) *driver.TaskHandle { return &driver.TaskHandle{Config: c} }, "version 0"},
		"unknown state": {func(c *driver.TaskConfig) *driver.TaskHandle {
			return &driver.TaskHandle{Version: 1, Config: c, State: 7}
		}, "unknown state 7"},
		"config not sendable": {func(c *driver.TaskConfig) *driver.TaskHandle {
			spoiled := *c
			spoiled.User = "\xff"
			return &driver.TaskHandle{Version: 1, Config: &spoiled}
		}, "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var destroyed []string
			f := &fake{}
			f.start = func(cfg *driver.TaskConfig) (*driver.TaskHandle, error) { return c.handle(cfg), nil }
			f.destroy = func(id string, force bool) error {
				must.True(t, force)
				destroyed = append(destroyed, id)
				return nil
			}
			client := raw(t, f)
			_, err := client.StartTask(t.Context(), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "a"}})
			must.ErrorContains(t, err, c.want)
			must.Eq(t, []string{"a"}, destroyed)

			f.destroy = func(string, bool) error { return errors.New("shim does not answer") }
			_, err = client.StartTask(t.Context(), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "a"}})
			must.ErrorContains(t, err, "may still run")
			must.ErrorContains(t, err, "shim does not answer")
		})
	}
}

// Nomad leaves the id of a recovery empty; the handle's counts.
func TestRecoverTakesTheHandlesID(t *testing.T) {
	t.Parallel()
	var got *driver.TaskHandle
	client := raw(t, &fake{recover: func(h *driver.TaskHandle) error {
		got = h
		if h.Config.ID == "over" {
			return errors.New("task is over")
		}
		return nil
	}})
	_, err := client.RecoverTask(t.Context(), &driverpb.RecoverTaskRequest{
		TaskId: "", Handle: &driverpb.TaskHandle{Version: 1, State: 99, Config: &driverpb.TaskConfig{Id: "a"}, DriverState: []byte("x")},
	})
	must.NoError(t, err)
	must.Eq(t, driver.TaskHandle{Version: 1, State: driver.TaskStateUnknown, Config: &driver.TaskConfig{ID: "a"}, Driver: []byte("x")}, *got)
	_, err = client.RecoverTask(t.Context(), &driverpb.RecoverTaskRequest{Handle: &driverpb.TaskHandle{Config: &driverpb.TaskConfig{Id: "over"}}})
	must.ErrorContains(t, err, "task is over")
	got = nil
	for _, h := range []*driverpb.TaskHandle{nil, {}, {Config: &driverpb.TaskConfig{}}} {
		_, err := client.RecoverTask(t.Context(), &driverpb.RecoverTaskRequest{TaskId: "a", Handle: h})
		must.Eq(t, codes.InvalidArgument, status.Code(err))
	}
	must.Nil(t, got)
}

// Nomad repeats a failed stop for minutes, and over gRPC it never recognises
// "not found" itself.
func TestStopAndDestroyOfUnknownTasksSucceed(t *testing.T) {
	t.Parallel()
	f := &fake{
		stop: func(id string, _ time.Duration, _ string) error {
			return fmt.Errorf("stop %s: %w", id, driver.ErrTaskNotFound)
		},
		destroy: func(id string, _ bool) error { return fmt.Errorf("destroy %s: %w", id, driver.ErrTaskNotFound) },
	}
	client := raw(t, f)
	_, err := client.StopTask(t.Context(), &driverpb.StopTaskRequest{TaskId: "a", Timeout: durationpb.New(time.Second)})
	must.NoError(t, err)
	_, err = client.StopTask(t.Context(), &driverpb.StopTaskRequest{TaskId: "a"}) // no timeout: at once
	must.NoError(t, err)
	_, err = client.DestroyTask(t.Context(), &driverpb.DestroyTaskRequest{TaskId: "a", Force: true})
	must.NoError(t, err)
	f.stop = func(string, time.Duration, string) error { return errors.New("shim does not answer") }
	f.destroy = func(string, bool) error { return errors.New("task is running") }
	_, err = client.StopTask(t.Context(), &driverpb.StopTaskRequest{TaskId: "a"})
	must.ErrorContains(t, err, "shim does not answer")
	_, err = client.DestroyTask(t.Context(), &driverpb.DestroyTaskRequest{TaskId: "a"})
	must.ErrorContains(t, err, "task is running")
	for _, d := range []*durationpb.Duration{durationpb.New(-time.Second), {Seconds: math.MaxInt64}} {
		_, err = client.StopTask(t.Context(), &driverpb.StopTaskRequest{TaskId: "a", Timeout: d})
		must.Eq(t, codes.InvalidArgument, status.Code(err))
	}
}

// An exit that is not known never reads as exit code 0.
func TestWaitIsNeverWithoutExit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait func(context.Context, string) (*driver.ExitResult, error)
		want string
	}{
		"nil": {func(context.Context, string) (*driver.ExitResult, error) { return nil, nil }, "no exit result"},
		"code of 64 bits": {func(context.Context, string) (*driver.ExitResult, error) {
			return &driver.ExitResult{ExitCode: 1 << 32}, nil
		}, "exit code 4294967296 does not fit"},
		"signal too large": {func(context.Context, string) (*driver.ExitResult, error) {
			return &driver.ExitResult{Signal: 1 << 33}, nil
		}, "signal 8589934592 does not fit"},
		"error": {func(context.Context, string) (*driver.ExitResult, error) { return nil, driver.ErrTaskNotFound }, "not known"},
		"panic": {nil, "panicked"},
	} {
		_, err := raw(t, &fake{wait: c.wait}).WaitTask(t.Context(), &driverpb.WaitTaskRequest{TaskId: "a"})
		must.ErrorContains(t, err, c.want, must.Sprint(name))
	}
	resp, err := raw(t, &fake{wait: func(context.Context, string) (*driver.ExitResult, error) {
		return &driver.ExitResult{Err: errors.New("")}, nil
	}}).WaitTask(t.Context(), &driverpb.WaitTaskRequest{TaskId: "a"})
	must.NoError(t, err)
	must.NotEq(t, "", resp.GetErr())
}

// Nomad opens a driver's fingerprint and event streams again at once when they
// end: 14,000 calls in seconds.
func TestDriverStreamsStayOpen(t *testing.T) {
	t.Parallel()
	ends := map[string]func() error{
		"nil":   func() error { return nil },
		"error": func() error { return errors.New("lost") },
		"panic": func() error { panic("lost") },
	}
	enough := errors.New("enough")
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fingerprints, events := 0, 0
			client := plugintest.Driver(t, &fake{
				fingerprint: func(_ context.Context, send func(driver.Fingerprint) error) error {
					fingerprints++
					must.NoError(t, send(driver.Fingerprint{Health: driver.HealthHealthy, Description: fmt.Sprint(fingerprints)}))
					return end()
				},
				events: func(_ context.Context, send func(*driver.TaskEvent) error) error {
					events++
					must.NoError(t, send(&driver.TaskEvent{AllocID: "a", TaskName: "t", Message: fmt.Sprint(events)}))
					return end()
				},
			})
			both := make(chan error)
			go func() {
				both <- client.TaskEvents(t.Context(), func(e *driver.TaskEvent) error {
					if e.Message == "2" {
						return enough
					}
					return nil
				})
			}()
			must.ErrorIs(t, client.Fingerprint(t.Context(), func(f driver.Fingerprint) error {
				if f.Description == "2" {
					return enough
				}
				return nil
			}), enough)
			must.ErrorIs(t, <-both, enough)
		})
	}
}

// A driver that cannot fingerprint any more is not healthy.
func TestFailingFingerprintIsUnhealthy(t *testing.T) {
	t.Parallel()
	starts := 0
	client := plugintest.Driver(t, &fake{fingerprint: func(_ context.Context, send func(driver.Fingerprint) error) error {
		if starts++; starts == 1 {
			must.NoError(t, send(driver.Fingerprint{Health: driver.HealthHealthy, Attributes: map[string]device.Attribute{"driver.x": device.Bool(true)}}))
		}
		return errors.New("python is gone")
	}})
	enough := errors.New("enough")
	reports := 0
	must.ErrorIs(t, client.Fingerprint(t.Context(), func(f driver.Fingerprint) error {
		if reports++; reports == 1 {
			return nil
		}
		must.Eq(t, driver.HealthUnhealthy, f.Health)
		must.Eq(t, "fingerprinting fails: python is gone", f.Description)
		must.MapContainsKey(t, f.Attributes, "driver.x")
		return enough
	}), enough)
}

func TestInvalidReportsAreNotSent(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	client := plugintest.Driver(t, &fake{
		fingerprint: func(ctx context.Context, send func(driver.Fingerprint) error) error {
			for name, f := range map[string]driver.Fingerprint{
				"unknown health": {Health: 5},
				"no value":       {Attributes: map[string]device.Attribute{"x": {}}},
				"NaN":            {Attributes: map[string]device.Attribute{"x": device.Float(math.NaN(), "")}},
				"unknown unit":   {Attributes: map[string]device.Attribute{"x": device.Int(1, "parsec")}},
				"no key":         {Attributes: map[string]device.Attribute{"": device.Bool(true)}},
				"key not UTF-8":  {Attributes: map[string]device.Attribute{"\xff": device.Bool(true)}},
			} {
				if send(f) == nil {
					t.Errorf("%s was sent", name)
				}
			}
			must.NoError(t, send(driver.Fingerprint{Health: driver.HealthHealthy, Description: "a\xff"}))
			<-ctx.Done()
			return nil
		},
		events: func(ctx context.Context, send func(*driver.TaskEvent) error) error {
			for name, e := range map[string]*driver.TaskEvent{
				"nil":               nil,
				"no allocation":     {TaskName: "t"},
				"no task":           {AllocID: "a"},
				"alloc not UTF-8":   {AllocID: "\xff", TaskName: "t"},
				"time out of range": {AllocID: "a", TaskName: "t", At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
			} {
				if send(e) == nil {
					t.Errorf("%s was sent", name)
				}
			}
			must.NoError(t, send(&driver.TaskEvent{AllocID: "a", TaskName: "t", Message: "gang\xff", Annotations: map[string]string{"k\x00": "\xff"}, Err: errors.New("no peer")}))
			<-ctx.Done()
			return nil
		},
	})
	must.ErrorIs(t, client.Fingerprint(t.Context(), func(f driver.Fingerprint) error {
		must.Eq(t, driver.Fingerprint{Health: driver.HealthHealthy, Description: "a\uFFFD"}, f)
		return enough
	}), enough)
	before := time.Now().Add(-time.Minute)
	must.ErrorIs(t, client.TaskEvents(t.Context(), func(e *driver.TaskEvent) error {
		must.Eq(t, "gang\uFFFD: no peer", e.Message)
		must.Eq(t, map[string]string{"k\uFFFD": "\uFFFD"}, e.Annotations)
		must.True(t, e.At.After(before))
		return enough
	}), enough)
}

// Nomad refuses a task whose driver has no schema; the server half says why.
func TestInvalidSchemaAndCapabilitiesAreErrors(t *testing.T) {
	t.Parallel()
	f := &fake{}
	client := raw(t, f)
	for _, spec := range []*hclspec.Spec{nil, {}, {Attr: &hclspec.Attr{Name: "x", Type: "strin"}}} {
		f.schema = spec
		_, err := client.TaskConfigSchema(t.Context(), &driverpb.TaskConfigSchemaRequest{})
		must.ErrorContains(t, err, "invalid description")
	}
	for want, c := range map[string]driver.Capabilities{
		"unknown file system isolation 9": {FSIsolation: 9},
		`mode "bridge"`:                   {NetworkIsolation: []string{"bridge"}},
		"creates networks":                {MustCreateNetwork: true},
	} {
		f.capabilities = c
		_, err := client.Capabilities(t.Context(), &driverpb.CapabilitiesRequest{})
		must.ErrorContains(t, err, want)
	}
}

type prepared struct {
	fake
	calls []string
	err   error
}

func (p *prepared) Init(context.Context) error { p.calls = append(p.calls, "init"); return p.err }
func (p *prepared) Shutdown(context.Context) error {
	p.calls = append(p.calls, "shutdown")
	return p.err
}

// Init and Shutdown are optional on both sides.
func TestInitAndShutdown(t *testing.T) {
	t.Parallel()
	p := &prepared{}
	client := plugintest.Driver(t, p)
	must.NoError(t, client.Init(t.Context()))
	must.NoError(t, client.Shutdown(t.Context()))
	must.Eq(t, []string{"init", "shutdown"}, p.calls)
	p.err = errors.New("no state folder")
	must.ErrorContains(t, client.Init(t.Context()), "no state folder")
	must.ErrorContains(t, client.Shutdown(t.Context()), "no state folder")

	without := plugintest.Driver(t, &fake{})
	must.NoError(t, without.Init(t.Context()))
	must.NoError(t, without.Shutdown(t.Context()))

	_, conn := plugintest.Serve(t, plugintest.Logger(t), func(s grpc.ServiceRegistrar) {
		driverpb.RegisterDriverServer(s, driverpb.UnimplementedDriverServer{}) // an older plugin
	})
	old := driver.NewClient(t.Context(), conn)
	must.NoError(t, old.Init(t.Context()))
	must.NoError(t, old.Shutdown(t.Context()))
}

// careless is a driver of somebody else, which answers with as little as it
// can.
type careless struct {
	driverpb.UnimplementedDriverServer
}

func (careless) InspectTask(context.Context, *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	return &driverpb.InspectTaskResponse{}, nil
}
func (careless) ExecTask(context.Context, *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	return &driverpb.ExecTaskResponse{}, nil
}
func (careless) TaskStats(_ *driverpb.TaskStatsRequest, s grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	return s.Send(&driverpb.TaskStatsResponse{})
}
func (careless) ExecTaskStreaming(s grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]) error {
	return s.Send(&driverpb.ExecTaskStreamingResponse{Exited: true})
}
func (careless) Fingerprint(_ *driverpb.FingerprintRequest, s grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	return s.Send(&driverpb.FingerprintResponse{Health: 77, Err: "no runtime"})
}
func (careless) WaitTask(context.Context, *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	return &driverpb.WaitTaskResponse{Err: "unknown"}, nil
}
func (careless) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	return &driverpb.CapabilitiesResponse{Capabilities: &driverpb.DriverCapabilities{
		FsIsolation: 50, NetworkIsolationModes: []driverpb.NetworkIsolationSpec_NetworkIsolationMode{60}, MustCreateNetwork: true,
	}}, nil
}

// Where Nomad's agent would panic on an answer, the caller's half has an error.
func TestClientStandsCarelessDrivers(t *testing.T) {
	t.Parallel()
	_, conn := plugintest.Serve(t, plugintest.Logger(t), func(s grpc.ServiceRegistrar) { driverpb.RegisterDriverServer(s, careless{}) })
	client := driver.NewClient(t.Context(), conn)
	_, err := client.InspectTask(t.Context(), "a")
	must.ErrorContains(t, err, "would panic")
	_, err = client.ExecCommand(t.Context(), "a", []string{"true"}, 0)
	must.ErrorContains(t, err, "would panic")
	must.ErrorContains(t, client.TaskStats(t.Context(), "a", time.Second, func(*driver.TaskUsage) error { return nil }), "would panic")
	_, err = client.ExecTask(t.Context(), "a", driver.ExecRequest{Command: []string{"true"}})
	must.ErrorContains(t, err, "without a result")
	must.NoError(t, client.Fingerprint(t.Context(), func(f driver.Fingerprint) error {
		must.Eq(t, driver.Fingerprint{Health: driver.HealthUnhealthy, Description: "no runtime"}, f)
		return nil
	}))
	exit, err := client.WaitTask(t.Context(), "a")
	must.NoError(t, err)
	must.EqError(t, exit.Err, "unknown")
	c, err := client.Capabilities(t.Context())
	must.NoError(t, err)
	must.Eq(t, driver.Capabilities{NetworkIsolation: []string{"host"}, MustCreateNetwork: true}, c)
	err = client.SignalTask(t.Context(), "a", "SIGHUP")
	must.ErrorContains(t, err, "not implemented")
	_, err = driverpb.NewDriverClient(conn).CreateNetwork(t.Context(), &driverpb.CreateNetworkRequest{})
	must.Eq(t, codes.Unimplemented, status.Code(err))
}
