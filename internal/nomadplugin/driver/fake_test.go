package driver_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a driver of functions; a stream left nil waits for its context, any
// other call left nil panics, which the server half must stand.
type fake struct {
	schema       *hclspec.Spec
	capabilities driver.Capabilities
	fingerprint  func(context.Context, func(driver.Fingerprint) error) error
	start        func(*driver.TaskConfig) (*driver.TaskHandle, error)
	recover      func(*driver.TaskHandle) error
	wait         func(context.Context, string) (*driver.ExitResult, error)
	stop         func(string, time.Duration, string) error
	destroy      func(string, bool) error
	inspect      func(string) (*driver.TaskStatus, error)
	stats        func(context.Context, string, time.Duration, func(*driver.TaskUsage) error) error
	events       func(context.Context, func(*driver.TaskEvent) error) error
	signal       func(string, string) error
	exec         func(context.Context, string, driver.ExecRequest) (*driver.ExitResult, error)
}

var _ driver.Plugin = (*fake)(nil)

func (f *fake) Info() base.Info {
	return base.Info{Type: base.TypeDriver, Name: "fake", Version: "1.0.0"}
}
func (f *fake) ConfigSchema() *hclspec.Spec       { return nil }
func (f *fake) SetConfig(base.Config) error       { return nil }
func (f *fake) TaskConfigSchema() *hclspec.Spec   { return f.schema }
func (f *fake) Capabilities() driver.Capabilities { return f.capabilities }

func (f *fake) Fingerprint(ctx context.Context, send func(driver.Fingerprint) error) error {
	return f.fingerprint(ctx, send)
}
func (f *fake) StartTask(c *driver.TaskConfig) (*driver.TaskHandle, error) { return f.start(c) }
func (f *fake) RecoverTask(h *driver.TaskHandle) error                     { return f.recover(h) }
func (f *fake) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	return f.wait(ctx, id)
}
func (f *fake) StopTask(id string, timeout time.Duration, signal string) error {
	return f.stop(id, timeout, signal)
}
func (f *fake) DestroyTask(id string, force bool) error           { return f.destroy(id, force) }
func (f *fake) InspectTask(id string) (*driver.TaskStatus, error) { return f.inspect(id) }
func (f *fake) SignalTask(id, signal string) error                { return f.signal(id, signal) }
func (f *fake) TaskStats(ctx context.Context, id string, interval time.Duration, send func(*driver.TaskUsage) error) error {
	return f.stats(ctx, id, interval, send)
}
func (f *fake) TaskEvents(ctx context.Context, send func(*driver.TaskEvent) error) error {
	return f.events(ctx, send)
}
func (f *fake) ExecTask(ctx context.Context, id string, req driver.ExecRequest) (*driver.ExitResult, error) {
	return f.exec(ctx, id, req)
}

// raw serves p and gives the messages as they are on the wire.
func raw(t *testing.T, p driver.Plugin) driverpb.DriverClient {
	t.Helper()
	log := plugintest.Logger(t)
	_, conn := plugintest.Serve(t, log, func(s grpc.ServiceRegistrar) { driver.Register(s, p, log) })
	return driverpb.NewDriverClient(conn)
}

// stream makes a report function that sends what it is fed until its context
// ends.
func stream[T any](t *testing.T) (feed chan<- T, report func(context.Context, func(T) error) error) {
	next := make(chan T)
	return next, func(ctx context.Context, send func(T) error) error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case v := <-next:
				if err := send(v); err != nil {
					t.Errorf("send: %v", err)
				}
			}
		}
	}
}
