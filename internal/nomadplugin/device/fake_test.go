package device_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
)

// fake is a device plugin of functions; those left nil wait for their context.
type fake struct {
	info        base.Info
	schema      *hclspec.Spec
	setConfig   func(base.Config) error
	fingerprint func(context.Context, func([]device.Group) error) error
	reserve     func(context.Context, []string) (*device.Reservation, error)
	stats       func(context.Context, time.Duration, func([]device.GroupStats) error) error
}

var _ device.Plugin = (*fake)(nil)

func (f *fake) Info() base.Info                    { return f.info }
func (f *fake) ConfigSchema() *hclspec.Spec        { return f.schema }
func (f *fake) SetConfig(config base.Config) error { return f.setConfig(config) }

func (f *fake) Fingerprint(ctx context.Context, send func([]device.Group) error) error {
	if f.fingerprint == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.fingerprint(ctx, send)
}

func (f *fake) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	return f.reserve(ctx, ids)
}

func (f *fake) Stats(ctx context.Context, interval time.Duration, send func([]device.GroupStats) error) error {
	if f.stats == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.stats(ctx, interval, send)
}

// raw serves p and gives the messages as they are on the wire.
func raw(t *testing.T, p device.Plugin) (basepb.BasePluginClient, devicepb.DevicePluginClient) {
	t.Helper()
	log := plugintest.Logger(t)
	_, conn := plugintest.Serve(t, log, func(s grpc.ServiceRegistrar) {
		base.Register(s, p, log)
		device.Register(s, p, log)
	})
	return basepb.NewBasePluginClient(conn), devicepb.NewDevicePluginClient(conn)
}

// good is a valid list of groups.
func good() []device.Group {
	return []device.Group{{
		Vendor: "nvidia", Type: "gpu", Name: "H200",
		Devices:    []device.Device{{ID: "GPU-0", Healthy: true, PCIBusID: "0000:00:00.0"}, {ID: "GPU-1", HealthDescription: "Xid 79"}},
		Attributes: map[string]device.Attribute{"memory": device.Int(141, "GiB"), "driver": device.String("570.12")},
	}}
}
