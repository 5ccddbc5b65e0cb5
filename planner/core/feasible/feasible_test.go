package feasible_test

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

func node() *core.Node {
	return &core.Node{ID: "6f0a", Name: "gpu-1", Datacenter: "dc1", Pool: "gpu", Class: "h100",
		Attributes: map[string]string{"kernel.name": "linux", "nomad.version": "1.9.3", "cpu.numcores": "64", "memory": "9", "empty": "", "odd.version": "one", "driver.torchrun.version": "2.1.0-rc1"},
		Meta:       map[string]string{"rack": "r7", "flags": "a, b,c", "price": "2.50"},
		Drivers:    map[string]bool{"torchrun": true, "docker": false},
		Volumes:    map[string]bool{"scratch": false, "data": true}}
}

// Every operator, with values that are there, missing, of other kinds and badly
// written; each line is what Nomad's scheduler answers.
func TestConstraints(t *testing.T) {
	t.Parallel()
	n := node()
	for _, test := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${attr.kernel.name}", "=", "linux", true},
		{"${attr.kernel.name}", "==", "linux", true},
		{"${attr.kernel.name}", "is", "linux", true},
		{"${attr.kernel.name}", "=", "windows", false},
		{"linux", "=", "${attr.kernel.name}", true},
		{"${attr.kernel.name}", "=", "${attr.kernel.name}", true},
		{"${attr.gone}", "=", "", false},              // missing is not empty
		{"${attr.empty}", "=", "", true},              // empty is
		{"${attr.gone}", "=", "${attr.gone}", false},  // nor equal to missing
		{"${attr.gone}", "!=", "${meta.gone}", false}, // nor different from it
		{"${attr.gone}", "!=", "x", true},
		{"${attr.gone}", "!=", "", false}, // Nomad compares the text of what is missing, which is empty
		{"${attr.kernel.name}", "!=", "windows", true},
		{"${attr.kernel.name}", "not", "linux", false},

		{"${attr.cpu.numcores}", ">=", "64", true},
		{"${attr.cpu.numcores}", ">", "64", false},
		{"${attr.memory}", "<", "10", true}, // as numbers, not as text
		{"${attr.memory}", "<", "9.5", true},
		{"${meta.price}", "<=", "2.5", true},
		{"${attr.kernel.name}", "<", "windows", true}, // as text
		{"${attr.kernel.name}", "<", "10", false},
		{"${attr.gone}", "<", "10", false},
		{"${attr.gone}", ">=", "0", false},

		{"${attr.kernel.name}", "is_set", "", true},
		{"${attr.empty}", "is_set", "", true},
		{"${attr.gone}", "is_set", "", false},
		{"${attr.gone}", "is_not_set", "", true},
		{"${meta.rack}", "is_not_set", "", false},
		{"${node.unheard.of}", "is_set", "", false},

		{"${attr.nomad.version}", "version", ">= 1.8, < 2", true},
		{"${attr.nomad.version}", "version", "~> 1.9.0", true},
		{"${attr.nomad.version}", "version", "~> 1.8", true},
		{"${attr.nomad.version}", "version", "~> 1.8.0", false},
		{"${attr.nomad.version}", "version", ">= 1.10", false}, // not as text
		{"${attr.driver.torchrun.version}", "version", ">= 2.0", false},
		{"${attr.driver.torchrun.version}", "semver", ">= 2.0.0", true},
		{"${attr.driver.torchrun.version}", "semver", ">= 2.1.0", false},
		{"${attr.nomad.version}", "semver", "~> 1.9", false}, // not known there
		{"${attr.odd.version}", "version", ">= 0", false},
		{"${attr.nomad.version}", "version", "soon", false},
		{"${attr.gone}", "version", ">= 0", false},

		{"${attr.kernel.name}", "regexp", "^lin", true},
		{"${attr.kernel.name}", "regexp", "nu", true},
		{"${attr.kernel.name}", "regexp", "^nu", false},
		{"${attr.kernel.name}", "regexp", "(", false},
		{"${attr.gone}", "regexp", ".*", false},

		{"${meta.flags}", "set_contains", "a,c", true},
		{"${meta.flags}", "set_contains", " b , a ", true},
		{"${meta.flags}", "set_contains", "a,d", false},
		{"${meta.flags}", "set_contains_all", "a,b,c", true},
		{"${meta.flags}", "set_contains_any", "d,c", true},
		{"${meta.flags}", "set_contains_any", "d,e", false},
		{"${meta.flags}", "set_contains", "", false}, // the empty item is not there
		{"${meta.gone}", "set_contains", "a", false},
		{"${meta.gone}", "set_contains_any", "a", false},

		{"${node.unique.id}", "=", "6f0a", true},
		{"${node.unique.name}", "=", "gpu-1", true},
		{"${node.datacenter}", "=", "dc1", true},
		{"${node.class}", "=", "h100", true},
		{"${node.pool}", "=", "gpu", true},
		{"${node.class", "=", "h100", false},
		{"${meta.rack", "=", "r7", true}, // Nomad cuts the brace where there is one

		{"", "distinct_hosts", "", true}, // kept by package placement
		{"${meta.rack}", "distinct_property", "2", true},
		{"${meta.rack}", "magic", "r7", false},
		{"${meta.rack}", "", "r7", false},
	} {
		c := core.Constraint{Left: test.left, Operand: test.operand, Right: test.right}
		must.Eq(t, test.want, feasible.Constraint(n, c), must.Sprint(feasible.Text(c)))
	}
}

func whole(n int64) core.Attribute               { return core.Attribute{Int: &n} }
func measured(n int64, u string) core.Attribute  { return core.Attribute{Int: &n, Unit: u} }
func part(n float64, unit string) core.Attribute { return core.Attribute{Float: &n, Unit: unit} }
func text(s string) core.Attribute               { return core.Attribute{String: &s} }
func truth(b bool) core.Attribute                { return core.Attribute{Bool: &b} }
func group(attrs map[string]core.Attribute) *core.DeviceGroup {
	return &core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: attrs, Cards: []core.Card{{ID: "GPU-1"}, {ID: "GPU-2"}}}
}

// Device attributes have types and units; a comparison that makes no sense holds
// in no direction.
func TestDeviceConstraints(t *testing.T) {
	t.Parallel()
	d := group(map[string]core.Attribute{"memory": measured(81559, "MiB"), "power": measured(700, "W"), "clock": part(1.98, "GHz"), "cores": whole(132), "driver": text("550.54.15"),
		"mig": truth(false), "major": whole(12), "rate": measured(400, "GB/s"), "bare": whole(80000)})
	for _, test := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${device.attr.memory}", ">=", "80000 MiB", true},
		{"${device.attr.memory}", ">=", "80 GB", true},   // 85.5 GB
		{"${device.attr.memory}", ">=", "80 GiB", false}, // 79.6 GiB
		{"${device.attr.memory}", "<", "1TiB", true},
		{"${device.attr.memory}", ">=", "80000", false}, // a unit against none
		{"${device.attr.bare}", ">=", "80 GB", false},
		{"${device.attr.memory}", ">", "1 W", false}, // units of two kinds
		{"${device.attr.memory}", "!=", "1 W", false},
		{"${device.attr.memory}", "=", "81559 MiB", true},
		{"${device.attr.memory}", "!=", "81560 MiB", true},
		{"${device.attr.rate}", ">=", "400000 MB/s", true},
		{"${device.attr.rate}", ">=", "400 GB", false},
		{"${device.attr.power}", ">=", "0.7 kW", true},
		{"${device.attr.power}", "=", "0.7 kW", false}, // 0.7 has no exact binary fraction
		{"${device.attr.power}", "=", "700000 mW", true},
		{"${device.attr.clock}", ">", "1900 MHz", true},
		{"${device.attr.cores}", ">", "131.5", true},
		{"${device.attr.cores}", "=", "132", true},
		{"${device.attr.cores}", "=", "many", false},
		{"${device.attr.mig}", "=", "false", true},
		{"${device.attr.mig}", "!=", "true", true},
		{"${device.attr.mig}", "<", "true", false}, // unequal truth values are "greater"
		{"${device.attr.driver}", "version", ">= 535", true},
		{"${device.attr.major}", "version", ">= 12", true},
		{"${device.attr.clock}", "version", ">= 1", false}, // a fraction is no version
		{"${device.attr.driver}", "regexp", "^550", true},
		{"${device.attr.cores}", "regexp", "132", false}, // a number is no text
		{"${device.attr.driver}", "set_contains", "550.54.15", true},
		{"${device.attr.driver}", "set_contains_any", "1,550.54.15", true},
		{"${device.attr.gone}", "is_set", "", false},
		{"${device.attr.gone}", "is_not_set", "", true},
		{"${device.attr.gone}", "!=", "1", true},
		{"${device.attr.gone}", "!=", "${device.attr.gone2}", false},
		{"${device.attr.gone}", "=", "1", false},
		{"${device.attr.gone}", "<", "1", false},
		{"${device.model}", "=", "H100", true},
		{"${device.vendor}", "=", "nvidia", true},
		{"${device.type}", "=", "gpu", true},
		{"${device.ids}", "set_contains", "GPU-2", true},
		{"${device.ids}", "set_contains", "GPU-3", false},
		{"GPU-1,GPU-9", "set_contains_any", "${device.ids}", true},
		{"${meta.rack}", "is_set", "", false}, // a node's values are not seen here
		{"${device.attr.cores}", "magic", "132", false},
	} {
		c := core.Constraint{Left: test.left, Operand: test.operand, Right: test.right}
		must.Eq(t, test.want, feasible.DeviceConstraint(d, c), must.Sprint(feasible.Text(c)))
	}
}

func TestLiterals(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]core.Attribute{
		"12": whole(12), "-3": whole(-3), "1.5": part(1.5, ""), "80 GiB": measured(80, "GiB"), "80GiB": measured(80, "GiB"), "2.5 GHz": part(2.5, "GHz"), "100 MB/s": measured(100, "MB/s"),
		"3 kB": measured(3, "kB"), "5W": measured(5, "W"), "5 mW": measured(5, "mW"), "true": truth(true), "F": truth(false), "": text(""), "80 parsec": text("80 parsec"), "GiB": text("GiB"), "H100": text("H100"), "12 000": text("12 000"),
	} {
		must.Eq(t, want, feasible.ParseAttribute(in), must.Sprint(in))
	}
}

// A device ask names a type, a vendor and type, or all three, and may pick single
// cards by their ids.
func TestDeviceAsks(t *testing.T) {
	t.Parallel()
	d := group(nil)
	for _, test := range []struct {
		ask  core.DeviceAsk
		want bool
	}{
		{core.DeviceAsk{Type: "gpu"}, true},
		{core.DeviceAsk{Vendor: "nvidia", Type: "gpu"}, true},
		{core.DeviceAsk{Vendor: "nvidia", Type: "gpu", Name: "H100"}, true},
		{core.DeviceAsk{Vendor: "amd", Type: "gpu"}, false},
		{core.DeviceAsk{Type: "npu"}, false},
		{core.DeviceAsk{Vendor: "nvidia", Type: "gpu", Name: "A100"}, false},
		{core.DeviceAsk{Type: "gpu", Constraints: []core.Constraint{{Left: "${device.model}", Operand: "=", Right: "A100"}}}, false},
	} {
		must.Eq(t, test.want, feasible.Device(d, &test.ask), must.Sprint(feasible.DeviceText(&test.ask)))
	}
	pick := &core.DeviceAsk{Type: "gpu", Constraints: []core.Constraint{{Left: "${device.ids}", Operand: "set_contains_any", Right: "GPU-2,GPU-7"}}}
	must.True(t, feasible.Device(d, pick))
	must.True(t, feasible.NamesCards(pick))
	must.False(t, feasible.NamesCards(&core.DeviceAsk{Type: "gpu"}))
	must.False(t, feasible.Card(d, "GPU-1", pick))
	must.True(t, feasible.Card(d, "GPU-2", pick))
	turned := &core.DeviceAsk{Type: "gpu", Constraints: []core.Constraint{{Left: "GPU-1", Operand: "set_contains", Right: "${device.ids}"}}}
	must.True(t, feasible.Card(d, "GPU-1", turned))
	must.False(t, feasible.Card(d, "GPU-2", turned))
}

// The filters in their order: the first that fails is the reason given.
func TestCheck(t *testing.T) {
	t.Parallel()
	n := node()
	n.Devices = []core.DeviceGroup{*group(nil)}
	all := core.Group{Datacenters: []string{"dc*"}, Pool: "gpu", Drivers: []string{"torchrun"}, Constraints: []core.Constraint{{Left: "${meta.rack}", Operand: "=", Right: "r7"}},
		Volumes: []core.VolumeAsk{{Source: "scratch"}, {Source: "data", ReadOnly: true}}, Devices: []core.DeviceAsk{{Type: "gpu", Count: 1}}}
	reason, _ := feasible.Check(n, &all)
	must.Eq(t, core.ReasonFits, reason)
	for _, test := range []struct {
		change func(*core.Group)
		want   string
	}{
		{func(g *core.Group) { g.Devices = []core.DeviceAsk{{Vendor: "amd", Type: "gpu"}} }, "no device matches amd/gpu"},
		{func(g *core.Group) { g.Volumes = []core.VolumeAsk{{Source: "data"}} }, "host volume data is read-only"},
		{func(g *core.Group) { g.Volumes = []core.VolumeAsk{{Source: "gone"}} }, "host volume gone is missing"},
		{func(g *core.Group) { g.Constraints = []core.Constraint{{Left: "${meta.rack}", Operand: "is_not_set"}} }, "${meta.rack} is_not_set"},
		{func(g *core.Group) { g.Drivers = []string{"torchrun", "docker"} }, "driver docker is missing or unhealthy"},
		{func(g *core.Group) { g.Drivers = []string{"gone"} }, "driver gone is missing or unhealthy"},
		{func(g *core.Group) { g.Pool = "" }, "node pool gpu is not "},
		{func(g *core.Group) { g.Datacenters = []string{"eu-*", "dc2"} }, "datacenter dc1 is not among eu-*, dc2"},
	} {
		g := all
		test.change(&g)
		reason, why := feasible.Check(n, &g)
		must.Eq(t, core.ReasonConstraint, reason)
		must.Eq(t, test.want, why)
	}
	g := all
	g.Pool, g.Datacenters = "all", nil
	reason, _ = feasible.Check(n, &g)
	must.Eq(t, core.ReasonFits, reason)
	n.Pool, g.Pool = "", "default"
	reason, _ = feasible.Check(n, &g)
	must.Eq(t, core.ReasonFits, reason)
}

func TestDatacenterPatterns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dc, pattern string
		want        bool
	}{
		{"dc1", "*", true}, {"dc1", "dc1", true}, {"dc1", "dc", false}, {"dc1", "dc*", true}, {"dc1", "*1", true}, {"dc1", "d*1", true}, {"dc1", "d*c*1", true}, {"dc1", "*x*", false},
		{"eu-west-1a", "eu-*-1?", false}, {"eu-west-1a", "eu-*-1*", true}, {"ab", "ab*b", false}, {"abab", "ab*ab", true}, {"", "*", true}, {"aa", "a*a*a", false},
	} {
		n := &core.Node{Datacenter: test.dc}
		reason, _ := feasible.Check(n, &core.Group{Datacenters: []string{test.pattern}})
		must.Eq(t, test.want, reason == core.ReasonFits, must.Sprint(fmt.Sprintf("%q against %q", test.dc, test.pattern)))
	}
}

func TestUniqueTargets(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{"${node.unique.id}": true, "${attr.unique.hostname}": true, "${meta.unique.x}": true, "${meta.rack}": false, "${node.class}": false, "${attr.cpu.arch}": false} {
		must.Eq(t, want, feasible.Unique(target), must.Sprint(target))
	}
}
