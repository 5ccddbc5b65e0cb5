package device_test

import (
	"context"
	"math"
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
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
)

var (
	name = rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ019-_. ():äß𝔛")), 1, 20, -1),
		rapid.Just(strings.Repeat("x", 4000)))
	text   = rapid.OneOf(rapid.Just(""), name, rapid.Just("line\nline"))
	finite = rapid.Float64().Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) })
	number = rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, -1, math.MinInt64, math.MaxInt64}))
)

// drawAttribute is any valid attribute.
func drawAttribute(t *rapid.T) device.Attribute {
	unit := rapid.SampledFrom([]string{"", "GiB", "MB", "MHz", "mW", "GB/s", "EiB/s"}).Draw(t, "unit")
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return device.Int(number.Draw(t, "int"), unit)
	case 1:
		return device.Float(finite.Draw(t, "float"), unit)
	case 2:
		return device.String(text.Draw(t, "string"))
	}
	return device.Bool(rapid.Bool().Draw(t, "bool"))
}

func drawGroups(t *rapid.T) []device.Group {
	id := func(g device.Group) string { return g.ID() }
	ids := map[string]bool{}
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) device.Group {
		g := device.Group{
			Vendor: name.Draw(t, "vendor"), Type: name.Draw(t, "type"), Name: name.Draw(t, "name"),
			Attributes: rapid.MapOfN(name, rapid.Custom(drawAttribute), 0, 4).Draw(t, "attributes"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "devices") {
			d := device.Device{
				ID: name.Draw(t, "id"), Healthy: rapid.Bool().Draw(t, "healthy"),
				HealthDescription: text.Draw(t, "health"), PCIBusID: rapid.OneOf(rapid.Just(""), name).Draw(t, "bus"),
			}
			if !ids[d.ID] {
				ids[d.ID] = true
				g.Devices = append(g.Devices, d)
			}
		}
		return g
	}), 0, 3, id).Draw(t, "groups")
}

// Every valid fingerprint arrives as it was sent.
func TestFingerprintRoundTrip(t *testing.T) {
	t.Parallel()
	next := make(chan []device.Group)
	client := plugintest.Device(t, &fake{fingerprint: func(ctx context.Context, send func([]device.Group) error) error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case groups := <-next:
				if err := send(groups); err != nil {
					t.Error(err)
				}
			}
		}
	}})
	arrived := make(chan []device.Group)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- client.Fingerprint(ctx, func(groups []device.Group) error { arrived <- groups; return nil })
	}()
	rapid.Check(t, func(rt *rapid.T) {
		groups := drawGroups(rt)
		if device.ValidateGroups(groups) != nil {
			return // the same id in two groups
		}
		next <- groups
		if diff := cmp.Diff(groups, <-arrived, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
}

func TestReserveRoundTrip(t *testing.T) {
	t.Parallel()
	var answer *device.Reservation
	var asked []string
	client := plugintest.Device(t, &fake{reserve: func(_ context.Context, ids []string) (*device.Reservation, error) {
		asked = ids
		return answer, nil
	}})
	rapid.Check(t, func(rt *rapid.T) {
		answer = &device.Reservation{
			Env: rapid.MapOfN(name, text, 0, 3).Draw(rt, "env"),
			Mounts: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.Mount {
				return device.Mount{TaskPath: name.Draw(t, "task"), HostPath: name.Draw(t, "host"), ReadOnly: rapid.Bool().Draw(t, "ro")}
			}), 0, 3).Draw(rt, "mounts"),
			Devices: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.DeviceNode {
				return device.DeviceNode{
					TaskPath: name.Draw(t, "task"), HostPath: name.Draw(t, "host"),
					Permissions: rapid.SampledFrom([]string{"r", "rw", "rwm", "m"}).Draw(t, "permissions"),
				}
			}), 0, 3).Draw(rt, "devices"),
		}
		ids := rapid.SliceOfN(name, 1, 4).Draw(rt, "ids")
		got, err := client.Reserve(t.Context(), ids)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(answer, got, cmpopts.EquateEmpty()) + cmp.Diff(ids, asked); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
}

func drawStat(t *rapid.T) device.Stat {
	s := device.Stat{Desc: text.Draw(t, "desc"), Unit: text.Draw(t, "unit")}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		s.Int = rapid.Ptr(number, false).Draw(t, "int")
		s.IntMax = rapid.Ptr(number, true).Draw(t, "max")
	case 1:
		s.Float = rapid.Ptr(finite, false).Draw(t, "float")
		s.FloatMax = rapid.Ptr(finite, true).Draw(t, "max")
	case 2:
		s.String = rapid.Ptr(text, false).Draw(t, "string")
	case 3:
		s.Bool = rapid.Ptr(rapid.Bool(), false).Draw(t, "bool")
	}
	return s
}

func TestStatsRoundTrip(t *testing.T) {
	t.Parallel()
	next := make(chan []device.GroupStats)
	asked := make(chan time.Duration, 1)
	client := plugintest.Device(t, &fake{stats: func(ctx context.Context, interval time.Duration, send func([]device.GroupStats) error) error {
		asked <- interval
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case stats := <-next:
				if err := send(stats); err != nil {
					t.Error(err)
				}
			}
		}
	}})
	arrived := make(chan []device.GroupStats)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- client.Stats(ctx, 1500*time.Millisecond, func(s []device.GroupStats) error { arrived <- s; return nil })
	}()
	must.Eq(t, 1500*time.Millisecond, <-asked)
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 3).Draw(t, "path"), "/")
	})
	stats := rapid.Custom(func(t *rapid.T) device.Stats {
		return device.Stats{
			Summary: drawStat(t), Values: rapid.MapOfN(path, rapid.Custom(drawStat), 0, 4).Draw(t, "values"),
			At: time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "at"), 1).UTC(),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		groups := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.GroupStats {
			return device.GroupStats{
				Vendor: name.Draw(t, "vendor"), Type: name.Draw(t, "type"), Name: name.Draw(t, "name"),
				Devices: rapid.MapOfN(name, stats, 0, 3).Draw(t, "devices"),
			}
		}), 0, 3).Draw(rt, "groups")
		next <- groups
		if diff := cmp.Diff(groups, <-arrived, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("-sent +arrived:\n%s", diff)
		}
	})
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
}

func TestBaseRoundTrip(t *testing.T) {
	t.Parallel()
	schema := &hclspec.Spec{Object: map[string]*hclspec.Spec{"enabled": {Attr: &hclspec.Attr{Name: "enabled", Type: "bool"}}}}
	var got base.Config
	p := &fake{
		info: base.Info{Type: base.TypeDevice, Name: "gpu", Version: "1.2.3-rc.1"}, schema: schema,
		setConfig: func(c base.Config) error { got = c; return nil },
	}
	client := plugintest.Device(t, p)

	info, versions, err := client.Info(t.Context())
	must.NoError(t, err)
	must.Eq(t, p.info, info)
	must.Eq(t, []string{"v0.1.0"}, versions)
	answer, err := client.ConfigSchema(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", cmp.Diff(schema, answer))
	for _, c := range []base.Config{
		{APIVersion: base.APIVersion},
		{APIVersion: base.APIVersion, MsgPack: []byte("\x80")},
		{APIVersion: base.APIVersion, Agent: &base.Agent{}},
		{APIVersion: base.APIVersion, MsgPack: []byte("\x81"), Agent: &base.Agent{ClientMinPort: 14000, ClientMaxPort: math.MaxUint32}},
	} {
		must.NoError(t, client.SetConfig(t.Context(), c))
		must.Eq(t, "", cmp.Diff(c, got, cmpopts.EquateEmpty()))
	}
}
