package host_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/host"
)

func TestMain(m *testing.M) {
	switch os.Getenv("TEST_PLUGIN") {
	case "device":
		device.Serve(testDevice{}, nil)
	case "driver":
		driver.Serve(&testDriver{}, nil)
	default:
		os.Exit(m.Run())
	}
}

type testDevice struct{}

func (testDevice) Info() base.Info {
	return base.Info{Type: base.TypeDevice, Name: "d", Version: "1.0.0"}
}
func (testDevice) ConfigSchema() *hclspec.Spec   { return nil }
func (testDevice) SetConfig(c base.Config) error { return nil }
func (testDevice) Fingerprint(ctx context.Context, send func([]device.Group) error) error {
	if err := send([]device.Group{{Vendor: "v", Type: "gpu", Name: "n", Devices: []device.Device{{ID: "a", Healthy: true}}}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
func (testDevice) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	return &device.Reservation{Env: map[string]string{"A": ids[0]}}, nil
}
func (testDevice) Stats(ctx context.Context, i time.Duration, send func([]device.GroupStats) error) error {
	<-ctx.Done()
	return nil
}

type testDriver struct{ driver.Plugin }

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	must.NoError(t, err)
	must.NoError(t, os.Symlink(self, filepath.Join(dir, "dev")))
	ps, err := host.Discover(t.Context(), host.Options{Dir: dir, Configs: []host.Config{{Name: "dev"}}, Env: []string{"TEST_PLUGIN=device"}, Logger: hclog.Default()})
	must.NoError(t, err)
	must.Len(t, 1, ps)
	d, err := ps[0].Device(base.Agent{})
	must.NoError(t, err)
	defer d.Close()
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err = d.Fingerprint(ctx, func(g []device.Group) error {
		n++
		t.Log(g)
		if n == 1 {
			p, ok := d.Process()
			must.True(t, ok)
			pr, _ := os.FindProcess(p.PID)
			pr.Kill()
		} else {
			cancel()
		}
		return nil
	})
	must.ErrorIs(t, err, context.Canceled)
	r, err := d.Reserve(t.Context(), []string{"a"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{"A": "a"}, r.Env)
}
