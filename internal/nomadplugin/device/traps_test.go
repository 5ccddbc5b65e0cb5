package device_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Nomad's agent panics on an answer without a reservation.
func TestReserveIsNeverWithoutReservation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reserve func(context.Context, []string) (*device.Reservation, error)
		code    codes.Code
		want    string
	}{
		"empty": {func(context.Context, []string) (*device.Reservation, error) { return &device.Reservation{}, nil }, codes.OK, ""},
		"nil":   {func(context.Context, []string) (*device.Reservation, error) { return nil, nil }, codes.Unknown, "no reservation"},
		"error": {func(context.Context, []string) (*device.Reservation, error) {
			return nil, errors.New("GPU-9 is unknown")
		}, codes.Unknown, "GPU-9 is unknown"},
		"both": {func(context.Context, []string) (*device.Reservation, error) {
			return &device.Reservation{}, errors.New("no")
		}, codes.Unknown, "no"},
		"panic": {func(context.Context, []string) (*device.Reservation, error) { panic("index out of range") }, codes.Unknown, "panicked: index out of range"},
		"nil pointer": {func(context.Context, []string) (*device.Reservation, error) {
			var e *base.RecoverableError
			return nil, e
		}, codes.Unknown, "panicked"},
		"invalid": {func(context.Context, []string) (*device.Reservation, error) {
			return &device.Reservation{Env: map[string]string{"A": "\xff"}}, nil
		}, codes.Unknown, "not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := raw(t, &fake{reserve: c.reserve})
			resp, err := client.Reserve(t.Context(), &devicepb.ReserveRequest{DeviceIds: []string{"GPU-0"}})
			must.Eq(t, c.code, status.Code(err))
			if c.code == codes.OK {
				must.NotNil(t, resp.GetContainerRes())
			} else {
				must.ErrorContains(t, err, c.want)
			}
		})
	}
	_, client := raw(t, &fake{})
	_, err := client.Reserve(t.Context(), &devicepb.ReserveRequest{})
	must.Eq(t, codes.InvalidArgument, status.Code(err))
}

// Nomad drops the devices of a plugin whose fingerprint stream ends, in any
// way, until its agent restarts.
func TestFingerprintStreamStaysOpen(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"nil":         func() error { return nil },
		"error":       func() error { return errors.New("nvml went away") },
		"panic":       func() error { panic("nvml went away") },
		"canceled":    func() error { return context.Canceled },
		"nil pointer": func() error { var e *base.RecoverableError; return e },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			starts := 0
			_, client := raw(t, &fake{fingerprint: func(ctx context.Context, send func([]device.Group) error) error {
				starts++
				groups := good()
				groups[0].Attributes["start"] = device.Int(int64(starts), "")
				must.NoError(t, send(groups))
				if starts == 2 {
					<-ctx.Done()
				}
				return end()
			}})
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := client.Fingerprint(ctx, &devicepb.FingerprintRequest{})
			must.NoError(t, err)
			for want := range int64(2) { // the second report comes from the second start, on the same stream
				m, err := stream.Recv()
				must.NoError(t, err)
				must.Eq(t, want+1, m.GetDeviceGroup()[0].GetAttributes()["start"].GetIntVal())
			}
			cancel()
			_, err = stream.Recv()
			must.Eq(t, codes.Canceled, status.Code(err))
		})
	}
}

// A plugin that cannot fingerprint any more does not leave healthy cards
// standing.
func TestFailingFingerprintMakesDevicesUnhealthy(t *testing.T) {
	t.Parallel()
	starts := 0
	client := plugintest.Device(t, &fake{fingerprint: func(_ context.Context, send func([]device.Group) error) error {
		if starts++; starts == 1 {
			must.NoError(t, send(good()))
		}
		return errors.New("nvml went away")
	}})
	enough := errors.New("enough")
	reports := 0
	err := client.Fingerprint(t.Context(), func(groups []device.Group) error {
		if reports++; reports == 1 {
			must.Eq(t, good(), groups)
			return nil
		}
		for _, d := range groups[0].Devices {
			must.False(t, d.Healthy)
			must.Eq(t, "fingerprinting fails: nvml went away", d.HealthDescription)
		}
		return enough
	})
	must.ErrorIs(t, err, enough)
}

// One invalid group would cost Nomad all devices of the plugin: nothing is
// sent, the plugin learns all faults, and the stream goes on.
func TestInvalidGroupsAreNotSent(t *testing.T) {
	t.Parallel()
	spoil := map[string]struct {
		change func(*device.Group)
		want   string
	}{
		"no vendor":          {func(g *device.Group) { g.Vendor = "" }, "vendor is empty"},
		"no type":            {func(g *device.Group) { g.Type = "" }, "type is empty"},
		"no name":            {func(g *device.Group) { g.Name = "" }, "name is empty"},
		"no id":              {func(g *device.Group) { g.Devices[0].ID = "" }, "id of device 0 is empty"},
		"unknown unit":       {func(g *device.Group) { g.Attributes["x"] = device.Int(1, "Gib") }, `unit "Gib"`},
		"no value":           {func(g *device.Group) { g.Attributes["x"] = device.Attribute{} }, "0 values"},
		"NaN":                {func(g *device.Group) { g.Attributes["x"] = device.Float(math.NaN(), "") }, "finite"}, // panics Nomad's servers
		"name not UTF-8":     {func(g *device.Group) { g.Name = "H\xff" }, "UTF-8"},
		"id with NUL":        {func(g *device.Group) { g.Devices[1].ID = "G\x00" }, "control"},
		"key not UTF-8":      {func(g *device.Group) { g.Attributes["\xff"] = device.Bool(true) }, "UTF-8"},
		"string not UTF-8":   {func(g *device.Group) { g.Attributes["x"] = device.String("\xff") }, "UTF-8"},
		"locality not UTF-8": {func(g *device.Group) { g.Devices[0].PCIBusID = "\xff" }, "UTF-8"},
	}
	client := plugintest.Device(t, &fake{fingerprint: func(ctx context.Context, send func([]device.Group) error) error {
		for name, c := range spoil {
			groups := append(good(), device.Group{Vendor: "mellanox", Type: "nic", Name: "cx7", Devices: []device.Device{{ID: "mlx5_0"}}})
			c.change(&groups[0])
			if err := send(groups); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: send said %v", name, err)
			}
		}
		must.NoError(t, send(good()))
		<-ctx.Done()
		return ctx.Err()
	}})
	enough := errors.New("enough")
	err := client.Fingerprint(t.Context(), func(groups []device.Group) error {
		must.Eq(t, good(), groups) // the first to arrive is the valid one
		return enough
	})
	must.ErrorIs(t, err, enough)
}

// Human text is made sendable instead of refused.
func TestHealthDescriptionIsMadeSendable(t *testing.T) {
	t.Parallel()
	groups := good()
	groups[0].Devices[0].HealthDescription = "row \xff\x00 remapped"
	client := plugintest.Device(t, &fake{fingerprint: func(ctx context.Context, send func([]device.Group) error) error {
		must.NoError(t, send(groups))
		<-ctx.Done()
		return nil
	}})
	enough := errors.New("enough")
	must.ErrorIs(t, client.Fingerprint(t.Context(), func(got []device.Group) error {
		must.Eq(t, "row \uFFFD\uFFFD remapped", got[0].Devices[0].HealthDescription)
		return enough
	}), enough)
}

// `nomad node status -stats` panics on a device without summary, stats or time.
func TestStatsAreComplete(t *testing.T) {
	t.Parallel()
	one := int64(1)
	bad := []device.GroupStats{
		{Vendor: "v", Type: "t", Name: "n", Devices: map[string]device.Stats{"a": {}}},
		{Vendor: "v", Type: "t", Name: "n", Devices: map[string]device.Stats{"a": {Summary: device.Stat{String: ptr("\xff")}}}},
		{Vendor: "v", Type: "t", Name: "n", Devices: map[string]device.Stats{"a": {Summary: device.Stat{Float: ptr(math.Inf(1))}}}},
		{Type: "t", Name: "n", Devices: map[string]device.Stats{"a": {Summary: device.Stat{Int: &one}}}},
	}
	before := time.Now()
	_, client := raw(t, &fake{stats: func(ctx context.Context, _ time.Duration, send func([]device.GroupStats) error) error {
		for i, g := range bad {
			if send([]device.GroupStats{g}) == nil {
				t.Errorf("stats %d were sent", i)
			}
		}
		must.NoError(t, send([]device.GroupStats{{
			Vendor: "v", Type: "t", Name: "n",
			Devices: map[string]device.Stats{"a": {Summary: device.Stat{Int: &one, Desc: "used\xff", Unit: "%\x00"}}}, // neither values nor time
		}}))
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(time.Second)})
	must.NoError(t, err)
	m, err := stream.Recv()
	must.NoError(t, err)
	s := m.GetGroups()[0].GetInstanceStats()["a"]
	must.NotNil(t, s.GetSummary())
	must.NotNil(t, s.GetStats())
	must.False(t, s.GetTimestamp().AsTime().Before(before.Truncate(0)))
	must.Eq(t, "used\uFFFD", s.GetSummary().GetDesc())
}

// After a clean end Nomad shows the last statistics for ever.
func TestStatsStreamStaysOpen(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"nil":   func() error { return nil },
		"error": func() error { return errors.New("nvml went away") },
		"panic": func() error { panic("nvml went away") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := int64(0)
			client := plugintest.Device(t, &fake{stats: func(_ context.Context, _ time.Duration, send func([]device.GroupStats) error) error {
				sent++
				must.NoError(t, send([]device.GroupStats{{Vendor: "v", Type: "t", Name: "n", Devices: map[string]device.Stats{"a": {Summary: device.Stat{Int: ptr(sent)}}}}}))
				return end()
			}})
			enough := errors.New("enough")
			must.ErrorIs(t, client.Stats(t.Context(), time.Second, func(g []device.GroupStats) error {
				if *g[0].Devices["a"].Summary.Int == 2 {
					return enough
				}
				return nil
			}), enough)
		})
	}
}

func TestStatsInterval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked *durationpb.Duration
		want  time.Duration
	}{
		"none":     {nil, time.Second},
		"zero":     {durationpb.New(0), time.Second},
		"negative": {durationpb.New(-1), time.Second},
		"invalid":  {&durationpb.Duration{Seconds: math.MaxInt64}, time.Second},
		"given":    {durationpb.New(time.Minute), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan time.Duration, 1)
			_, client := raw(t, &fake{stats: func(ctx context.Context, interval time.Duration, _ func([]device.GroupStats) error) error {
				got <- interval
				<-ctx.Done()
				return nil
			}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := client.Stats(ctx, &devicepb.StatsRequest{CollectionInterval: c.asked})
			must.NoError(t, err)
			must.Eq(t, c.want, <-got)
		})
	}
}

// A plugin that Nomad could not load says so instead of aborting the agent
// with a riddle.
func TestInvalidInfoAndSchemaAreErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		info base.Info
		want string
	}{
		"no name":           {base.Info{Type: base.TypeDevice, Version: "1.0.0"}, "plugin name is empty"},
		"version a word":    {base.Info{Type: base.TypeDevice, Name: "x", Version: "latest"}, `plugin version "latest"`},
		"no version":        {base.Info{Type: base.TypeDevice, Name: "x"}, `plugin version ""`},
		"unknown type":      {base.Info{Type: 7, Name: "x", Version: "1.0.0"}, "unknown type 7"},
		"name not UTF-8":    {base.Info{Type: base.TypeDevice, Name: "\xff", Version: "1.0.0"}, "UTF-8"},
		"version with text": {base.Info{Type: base.TypeDevice, Name: "x", Version: "1.0.0 beta"}, "1.0.0 beta"},
	} {
		client, _ := raw(t, &fake{info: c.info})
		_, err := client.PluginInfo(t.Context(), &basepb.PluginInfoRequest{})
		must.ErrorContains(t, err, c.want, must.Sprint(name))
	}
	client, _ := raw(t, &fake{schema: &hclspec.Spec{}})
	_, err := client.ConfigSchema(t.Context(), &basepb.ConfigSchemaRequest{})
	must.ErrorContains(t, err, "0 of the fields")
	client, _ = raw(t, &fake{})
	resp, err := client.ConfigSchema(t.Context(), &basepb.ConfigSchemaRequest{})
	must.NoError(t, err)
	must.Nil(t, resp.GetSpec())
}

func TestSetConfig(t *testing.T) {
	t.Parallel()
	client, _ := raw(t, &fake{setConfig: func(c base.Config) error {
		if c.Agent == nil {
			return fmt.Errorf("state_dir %q: no such directory\nnode: empty", "/x")
		}
		panic("no")
	}})
	for name, c := range map[string]struct {
		req  *basepb.SetConfigRequest
		want string
	}{
		"all faults of the plugin": {&basepb.SetConfigRequest{PluginApiVersion: base.APIVersion}, "no such directory\nnode: empty"},
		"panic":                    {&basepb.SetConfigRequest{PluginApiVersion: base.APIVersion, NomadConfig: &basepb.NomadConfig{}}, "panicked: no"},
		"another API version":      {&basepb.SetConfigRequest{PluginApiVersion: "v0.2.0"}, `plugin API version "v0.2.0"`},
		"no API version":           {&basepb.SetConfigRequest{}, `plugin API version ""`},
	} {
		_, err := client.SetConfig(t.Context(), c.req)
		must.ErrorContains(t, err, c.want, must.Sprint(name))
	}
}

// The caller's half does not trust a foreign plugin either.
func TestClientRefusesMissingReservation(t *testing.T) {
	t.Parallel()
	_, conn := plugintest.Serve(t, plugintest.Logger(t), func(s grpc.ServiceRegistrar) { devicepb.RegisterDevicePluginServer(s, careless{}) })
	_, err := device.NewClient(t.Context(), conn).Reserve(t.Context(), []string{"a"})
	must.ErrorContains(t, err, "without a reservation")
	ended := device.NewClient(t.Context(), conn).Fingerprint(t.Context(), func([]device.Group) error { return nil })
	must.NoError(t, ended)
	must.NoError(t, device.NewClient(t.Context(), conn).Stats(t.Context(), time.Second, func(g []device.GroupStats) error {
		must.Eq(t, []device.GroupStats{{Devices: map[string]device.Stats{"a": {Values: map[string]device.Stat{}}}}}, g)
		return nil
	}))
}

// careless is a plugin of somebody else.
type careless struct {
	devicepb.UnimplementedDevicePluginServer
}

func (careless) Reserve(context.Context, *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	return &devicepb.ReserveResponse{}, nil
}

func (careless) Fingerprint(*devicepb.FingerprintRequest, devicepb.DevicePlugin_FingerprintServer) error {
	return nil
}

func (careless) Stats(_ *devicepb.StatsRequest, s devicepb.DevicePlugin_StatsServer) error {
	return s.Send(&devicepb.StatsResponse{Groups: []*devicepb.DeviceGroupStats{{InstanceStats: map[string]*devicepb.DeviceStats{"a": {}}}}})
}

func ptr[T any](v T) *T { return &v }
