// Package device is the Go face of Nomad's device plugin protocol.
package device

import (
	"context"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
)

// Plugin is a Nomad device plugin. The server half validates everything that
// is sent, since one invalid group makes Nomad drop all devices of the plugin
// until its agent restarts: an invalid value is an error of send, and nothing
// goes out.
type Plugin interface {
	base.Plugin

	// Fingerprint reports the complete list of groups, first at once and then
	// whenever it changes, until ctx ends. It must not return earlier: Nomad
	// stops the plugin for good at the end of the stream, so the server half
	// keeps the stream open on an early return and logs it.
	Fingerprint(ctx context.Context, send func([]Group) error) error

	// Reserve answers what a task needs to use exactly these devices. An
	// unknown or unhealthy id is an error that names it.
	Reserve(ctx context.Context, ids []string) (*Reservation, error)

	// Stats reports every interval until ctx ends.
	Stats(ctx context.Context, interval time.Duration, send func([]GroupStats) error) error
}

// Group is a set of like devices: Nomad keeps attributes per group, and
// health and locality per device.
type Group struct {
	Vendor, Type, Name string
	Devices            []Device
	Attributes         map[string]Attribute
}

// Device is one allocatable device.
type Device struct {
	ID                string
	Healthy           bool
	HealthDescription string
	PCIBusID          string // empty: no locality is sent
}

// Attribute is a typed value with an optional unit: exactly one of the
// pointers is set, and Unit only beside Int or Float. Units are Nomad's: KiB
// MiB GiB TiB PiB EiB kB KB MB GB TB PB EB, the same with /s, mW W kW MW GW,
// MHz GHz.
type Attribute struct {
	Int    *int64
	Float  *float64
	String *string
	Bool   *bool
	Unit   string
}

// Int, Float, String and Bool make attributes.
func Int(v int64, unit string) Attribute     { return Attribute{Int: &v, Unit: unit} }
func Float(v float64, unit string) Attribute { return Attribute{Float: &v, Unit: unit} }
func String(v string) Attribute              { return Attribute{String: &v} }
func Bool(v bool) Attribute                  { return Attribute{Bool: &v} }

// Reservation is what a task gets with its devices.
type Reservation struct {
	Env     map[string]string
	Mounts  []Mount
	Devices []DeviceNode
}

// Mount is a folder or file of the host made visible to the task.
type Mount struct {
	TaskPath, HostPath string
	ReadOnly           bool
}

// DeviceNode is a device file given to the task; Permissions as in cgroups
// ("rwm").
type DeviceNode struct {
	TaskPath, HostPath, Permissions string
}

// GroupStats are the statistics of one group's devices, by device id.
type GroupStats struct {
	Vendor, Type, Name string
	Devices            map[string]Stats
}

// Stats of one device. Summary, Values and At are always sent: Nomad's CLI
// crashes without them.
type Stats struct {
	Summary Stat
	Values  map[string]Stat // flat names; nested with "/" ("nvlink/0/crc_errors")
	At      time.Time
}

// Stat is one value. Exactly one of the kinds is set: Int (with IntMax as
// denominator where set), Float (likewise), String or Bool.
type Stat struct {
	Desc, Unit string
	Int        *int64
	IntMax     *int64
	Float      *float64
	FloatMax   *float64
	String     *string
	Bool       *bool
}
