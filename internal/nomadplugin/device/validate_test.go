package device

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
)

func ptr[T any](v T) *T { return &v }

func TestAttributeValidate(t *testing.T) {
	t.Parallel()
	for unit := range units {
		must.NoError(t, Int(1, unit).Validate())
		must.NoError(t, Float(1, unit).Validate())
	}
	must.MapLen(t, 33, units) // Nomad's list has 33
	for name, c := range map[string]struct {
		attribute Attribute
		want      string
	}{
		"none":             {Attribute{}, "0 values are set"},
		"two":              {Attribute{Int: ptr(int64(1)), Bool: ptr(true)}, "2 values are set"},
		"unknown unit":     {Int(1, "GB/min"), `unit "GB/min" is not one`},
		"unit on string":   {Attribute{String: ptr("x"), Unit: "GiB"}, "beside a string or bool"},
		"unit on bool":     {Attribute{Bool: ptr(true), Unit: "GiB"}, "beside a string or bool"},
		"NaN":              {Float(math.NaN(), ""), "not a finite number"},
		"infinity":         {Float(math.Inf(1), "W"), "not a finite number"},
		"string not UTF-8": {String("\xff"), "not valid UTF-8"},
		"string with NUL":  {String("a\x00"), "NUL"},
	} {
		must.ErrorContains(t, c.attribute.Validate(), c.want, must.Sprint(name))
	}
}

func TestValidateGroupsListsAllFaults(t *testing.T) {
	t.Parallel()
	err := ValidateGroups([]Group{
		{Devices: []Device{{}, {ID: "a\x00", PCIBusID: "\xff"}}, Attributes: map[string]Attribute{"": Int(1, ""), "bad": Int(1, "furlong")}},
		{Vendor: "n/v", Type: "g/u", Name: "fine/name", Devices: []Device{{ID: "twice"}, {ID: "twice"}}},
		{Vendor: "v", Type: "t", Name: "n", Devices: []Device{{ID: "twice"}}},
		{Vendor: "v", Type: "t", Name: "n"},
	})
	for _, want := range []string{
		"vendor is empty", "type is empty", "name is empty", "id of device 0 is empty", `id of device 1 "a\x00" has control`,
		"PCI bus id of device 1", "attribute name is empty", `attribute "bad": unit "furlong"`, `vendor "n/v" contains a slash`,
		`type "g/u" contains a slash`, `device group 1 ("n/v/g/u/fine/name"): device "twice" is listed twice`,
		`device group 2 ("v/t/n"): device "twice" is listed twice (also in "n/v/g/u/fine/name")`, `device group 3 ("v/t/n"): listed twice`,
	} {
		must.ErrorContains(t, err, want)
	}
	must.NoError(t, ValidateGroups(nil))
	must.NoError(t, ValidateGroups([]Group{{Vendor: "v", Type: "t", Name: "n"}}))
}

func TestReservationValidateListsAllFaults(t *testing.T) {
	t.Parallel()
	err := (&Reservation{
		Env:     map[string]string{"": "", "A=B": "", "C": "\x00"},
		Mounts:  []Mount{{}},
		Devices: []DeviceNode{{Permissions: "rwx"}, {TaskPath: "/dev/a", HostPath: "/dev/a"}},
	}).Validate()
	for _, want := range []string{
		"environment variable name is empty", `name "A=B" contains "="`, `environment variable "C"`, "mount: path in the task is empty",
		"mount: path on the host is empty", "device node: path in the task", `permissions "rwx"`, `permissions ""`,
	} {
		must.ErrorContains(t, err, want)
	}
	must.ErrorContains(t, (*Reservation)(nil).Validate(), "no reservation")
	must.NoError(t, (&Reservation{}).Validate())
}

func TestValidateStatsListsAllFaults(t *testing.T) {
	t.Parallel()
	ok := Stat{Int: ptr(int64(1))}
	err := ValidateStats([]GroupStats{
		{Vendor: "", Type: "t", Name: "n"},
		{Vendor: "v", Type: "t", Name: "n", Devices: map[string]Stats{
			"":  {Summary: ok},
			"a": {},
			"b": {Summary: Stat{Int: ptr(int64(1)), Bool: ptr(true)}},
			"c": {Summary: Stat{Float: ptr(math.NaN()), FloatMax: ptr(math.Inf(1)), IntMax: ptr(int64(1))}},
			"d": {Summary: ok, Values: map[string]Stat{"x//y": ok, "": ok, "z": {String: ptr("\xff")}, "m": {FloatMax: ptr(1.0)}}},
			"e": {Summary: ok, At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		}},
	})
	for _, want := range []string{
		"stats of group 0 (/t/n): vendor is empty", "device id is empty", `device "a": summary has 0 values`, `device "b": summary has 2 values`,
		`float NaN is not a finite`, "float maximum +Inf is not a finite", "integer maximum without an integer", `value "x//y": part of the name is empty`,
		`value "": part of the name is empty`, `value "z": string`, `value "m": has 0 values`, "float maximum without a float",
		`device "e": time 10000-01-01`,
	} {
		must.ErrorContains(t, err, want)
	}
	must.NoError(t, ValidateStats(nil))
}

// Whatever attribute a plugin sends: what passes our check is what it was
// after another round, and nothing makes a conversion panic.
func FuzzAttribute(f *testing.F) {
	for _, a := range []Attribute{Int(141, "GiB"), Float(-0.5, "mW"), String("x"), Bool(true), {}, {Unit: "GiB"}} {
		data, err := proto.Marshal(a.toProto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p structspb.Attribute
		if proto.Unmarshal(data, &p) != nil {
			return
		}
		a := attributeFromProto(&p)
		if a.Validate() != nil {
			return
		}
		sent, err := proto.Marshal(a.toProto())
		if err != nil {
			t.Fatalf("a valid attribute cannot be sent: %v", err)
		}
		var back structspb.Attribute
		if err := proto.Unmarshal(sent, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a, attributeFromProto(&back)); diff != "" {
			t.Fatal(diff)
		}
	})
}
