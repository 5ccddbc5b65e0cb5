package host_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/shoenig/test/must"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
)

// The test binary is also each plugin, and the agent, that the tests start: the
// environment says which.
const (
	envRole  = "HOST_TEST_ROLE"
	envCalls = "HOST_TEST_CALLS" // a file for the calls that plugins get
	envDir   = "HOST_TEST_DIR"   // the agent's plugin_dir
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
		goleak.VerifyTestMain(m)
	case "device":
		device.Serve(newDevice(), nil)
	case "driver":
		device := newDriver()
		driver.Serve(device, device.log)
	case "invalid":
		p := newDevice()
		p.info.Version = "latest"
		device.Serve(p, nil)
	case "agent":
		runAgent()
	case "exits":
		os.Exit(3)
	default:
		serveForeign(role)
	}
}

// record writes down a call, with the process that got it.
func record(format string, args ...any) {
	f, err := os.OpenFile(os.Getenv(envCalls), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // nobody asked
	}
	defer f.Close()
	fmt.Fprintf(f, "%d %s\n", os.Getpid(), fmt.Sprintf(format, args...))
}

// launches are the recorded calls, process by process in the order of their
// first call.
func launches(t *testing.T, file string) (calls [][]string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	order := map[string]int{}
	for lines := bufio.NewScanner(strings.NewReader(string(data))); lines.Scan(); {
		pid, call, _ := strings.Cut(lines.Text(), " ")
		if _, known := order[pid]; !known {
			order[pid] = len(order)
			calls = append(calls, nil)
		}
		calls[order[pid]] = append(calls[order[pid]], call)
	}
	return calls
}

type common struct {
	info   base.Info
	schema *hclspec.Spec
	log    hclog.Logger
}

func (c *common) Info() base.Info { record("PluginInfo"); return c.info }

func (c *common) ConfigSchema() *hclspec.Spec { record("ConfigSchema"); return c.schema }

func (c *common) SetConfig(config base.Config) error {
	agent := "without agent"
	if config.Agent != nil {
		agent = fmt.Sprintf("ports %d-%d", config.Agent.ClientMinPort, config.Agent.ClientMaxPort)
	}
	record("SetConfig %x %s", config.MsgPack, agent)
	var c2 struct {
		Enabled *bool  `codec:"enabled"`
		Fail    string `codec:"fail"`
	}
	if c.schema == nil {
		return nil
	}
	if err := hclspec.Decode(config.MsgPack, &c2); err != nil {
		return err
	}
	if c2.Fail != "" {
		return errors.New(c2.Fail)
	}
	return nil
}

type testDevice struct{ common }

func newDevice() *testDevice {
	return &testDevice{common{info: base.Info{Type: base.TypeDevice, Name: "test-device", Version: "1.2.3"}}}
}

var groups = []device.Group{{Vendor: "v", Type: "gpu", Name: "n", Devices: []device.Device{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}}}

func (*testDevice) Fingerprint(ctx context.Context, send func([]device.Group) error) error {
	record("Fingerprint")
	if err := send(groups); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (*testDevice) Reserve(_ context.Context, ids []string) (*device.Reservation, error) {
	return &device.Reservation{Env: map[string]string{"CARDS": strings.Join(ids, ","), "PID": strconv.Itoa(os.Getpid())}}, nil
}

func (*testDevice) Stats(ctx context.Context, interval time.Duration, send func([]device.GroupStats) error) error {
	pid := int64(os.Getpid())
	if err := send([]device.GroupStats{{Vendor: "v", Type: "gpu", Name: "n", Devices: map[string]device.Stats{"a": {Summary: device.Stat{Int: &pid}}}}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// testDriver runs each task as a process of its own session, which it finds
// again by its pid.
type testDriver struct {
	common
	mu    sync.Mutex
	tasks map[string]*testTask
}

type testTask struct {
	pid  int
	over chan struct{}
}

func newDriver() *testDriver {
	return &testDriver{
		common: common{
			info: base.Info{Type: base.TypeDriver, Name: "test-driver", Version: "1.2.3"}, log: base.NewLogger("test-driver"),
			schema: &hclspec.Spec{Object: map[string]*hclspec.Spec{
				"enabled": {Attr: &hclspec.Attr{Type: "bool"}}, "fail": {Attr: &hclspec.Attr{Type: "string"}},
			}},
		},
		tasks: map[string]*testTask{},
	}
}

func (*testDriver) Init(context.Context) error     { record("Init"); return nil }
func (*testDriver) Shutdown(context.Context) error { record("Shutdown"); return nil }

func (*testDriver) TaskConfigSchema() *hclspec.Spec {
	return &hclspec.Spec{Object: map[string]*hclspec.Spec{"seconds": {Attr: &hclspec.Attr{Type: "number", Required: true}}}}
}

func (*testDriver) Capabilities() driver.Capabilities {
	return driver.Capabilities{SendSignals: true, Exec: true}
}

func (*testDriver) Fingerprint(ctx context.Context, send func(driver.Fingerprint) error) error {
	record("Fingerprint")
	if err := send(driver.Fingerprint{Health: driver.HealthHealthy}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (*testDriver) TaskEvents(ctx context.Context, send func(*driver.TaskEvent) error) error {
	record("TaskEvents")
	if err := send(&driver.TaskEvent{AllocID: "a", TaskName: "t", Message: "hello"}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (d *testDriver) StartTask(c *driver.TaskConfig) (*driver.TaskHandle, error) {
	var config struct {
		Seconds float64 `codec:"seconds"`
	}
	if err := hclspec.Decode(c.MsgPackConfig, &config); err != nil {
		return nil, err
	}
	cmd := exec.Command("sleep", fmt.Sprint(config.Seconds))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &testTask{pid: cmd.Process.Pid, over: make(chan struct{})}
	go func() { defer close(t.over); _ = cmd.Wait() }()
	d.put(c.ID, t)
	return &driver.TaskHandle{Version: 1, Config: c, State: driver.TaskStateRunning, Driver: []byte(strconv.Itoa(t.pid))}, nil
}

func (d *testDriver) RecoverTask(h *driver.TaskHandle) error {
	record("RecoverTask")
	if d.get(h.Config.ID) != nil {
		return nil
	}
	pid, err := strconv.Atoi(string(h.Driver))
	if err != nil {
		return err
	}
	if syscall.Kill(pid, 0) != nil {
		return fmt.Errorf("task %s is over", h.Config.ID)
	}
	t := &testTask{pid: pid, over: make(chan struct{})}
	go func() {
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(5 * time.Millisecond)
		}
		close(t.over)
	}()
	d.put(h.Config.ID, t)
	return nil
}

func (d *testDriver) put(id string, t *testTask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[id] = t
}

func (d *testDriver) get(id string) *testTask {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks[id]
}

func (d *testDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t := d.get(id)
	if t == nil {
		return nil, driver.ErrTaskNotFound
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.over:
		return &driver.ExitResult{ExitCode: 5}, nil
	}
}

func (d *testDriver) StopTask(id string, _ time.Duration, _ string) error {
	t := d.get(id)
	if t == nil {
		return driver.ErrTaskNotFound
	}
	return syscall.Kill(t.pid, syscall.SIGKILL)
}

func (d *testDriver) DestroyTask(id string, force bool) error {
	if t := d.get(id); t != nil && force {
		_ = syscall.Kill(t.pid, syscall.SIGKILL)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tasks, id)
	return nil
}

func (d *testDriver) InspectTask(id string) (*driver.TaskStatus, error) {
	return &driver.TaskStatus{ID: id, State: driver.TaskStateRunning}, nil
}

func (d *testDriver) TaskStats(ctx context.Context, _ string, _ time.Duration, send func(*driver.TaskUsage) error) error {
	if err := send(&driver.TaskUsage{Memory: driver.MemoryUsage{RSS: 42}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// SignalTask with "log" writes to the plugin's standard error.
func (d *testDriver) SignalTask(_, signal string) error {
	if signal == "log" {
		for range 100 {
			d.log.Info("a line for whoever reads this")
		}
	}
	return nil
}

func (d *testDriver) ExecTask(_ context.Context, _ string, req driver.ExecRequest) (*driver.ExitResult, error) {
	_, err := fmt.Fprint(req.Stdout, strings.Join(req.Command, " "))
	return &driver.ExitResult{}, err
}

// serveForeign is somebody else's plugin, which does not keep the rules.
func serveForeign(role string) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Logger:          hclog.NewNullLogger(),
		GRPCServer:      plugin.DefaultGRPCServer,
		Plugins:         plugin.PluginSet{"base": foreign{role: role}},
	})
}

type foreign struct {
	plugin.NetRPCUnsupportedPlugin
	basepb.UnimplementedBasePluginServer
	devicepb.UnimplementedDevicePluginServer
	role string
}

func (f foreign) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	basepb.RegisterBasePluginServer(s, f)
	devicepb.RegisterDevicePluginServer(s, f)
	return nil
}

func (foreign) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.ErrUnsupported
}

func (f foreign) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	info := &basepb.PluginInfoResponse{Type: basepb.PluginType_DEVICE, Name: f.role, PluginVersion: "1.0.0", PluginApiVersions: []string{"v0.1.0"}}
	switch f.role {
	case "other API":
		info.PluginApiVersions = []string{"v0.9.0"}
	case "bad version":
		info.PluginVersion = "latest"
	case "unknown type":
		info.Type = basepb.PluginType_UNKNOWN
	}
	return info, nil
}

func (f foreign) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	if f.role == "schema fails" {
		return nil, errors.New("no schema today")
	}
	return &basepb.ConfigSchemaResponse{}, nil
}

func (foreign) SetConfig(context.Context, *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	return &basepb.SetConfigResponse{}, nil
}

func (f foreign) Fingerprint(_ *devicepb.FingerprintRequest, s grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	good := &devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{{Vendor: "v", DeviceType: "t", DeviceName: "n", Devices: []*devicepb.DetectedDevice{{ID: "a"}}}}}
	if err := s.Send(good); err != nil {
		return err
	}
	switch f.role {
	case "ends":
		return nil
	case "fails":
		return errors.New("no cards today")
	}
	good.DeviceGroup[0].Vendor = ""
	return s.Send(good)
}

func (f foreign) Stats(_ *devicepb.StatsRequest, s grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	return s.Send(&devicepb.StatsResponse{})
}

// runAgent starts a driver and a task, tells its parent about both, and waits
// to be killed.
func runAgent() {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	d, task, err := startOne(ctx, os.Getenv(envDir))
	check(err)
	r, _ := d.Process()
	check(json.NewEncoder(os.Stdout).Encode(agentReport{Process: r, Handle: task.Handle()}))
	select {}
}
