// Package base is what every Nomad plugin has in common: who it is, which
// configuration it takes, and how it is served.
//
// A plugin author implements Plugin (through device.Plugin or driver.Plugin)
// and calls device.Serve or driver.Serve from main; protobuf and gRPC stay
// inside this module's internal/nomadplugin.
package base

import (
	"fmt"
	"regexp"

	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// APIVersion is the only plugin API version that Nomad 1.8 to 2.0 accept.
const APIVersion = "v0.1.0"

// Type is the kind of a plugin, with Nomad's numbers.
type Type int32

// The plugin types that Nomad knows.
const (
	TypeDriver Type = 2
	TypeDevice Type = 3
)

func (t Type) String() string {
	switch t {
	case TypeDriver:
		return "driver"
	case TypeDevice:
		return "device"
	}
	return fmt.Sprintf("unknown type %d", int32(t))
}

// Info is a plugin's answer to "who are you".
type Info struct {
	Type    Type
	Name    string // driver: the name jobs use; device: for logs only
	Version string // must parse as a version, else Nomad skips the plugin
}

// semantic is narrower than what Nomad accepts, so that every version that
// passes here passes there.
var semantic = regexp.MustCompile(`^v?\d{1,9}(\.\d{1,9}){0,2}(-[0-9A-Za-z][0-9A-Za-z.-]*)?(\+[0-9A-Za-z][0-9A-Za-z.-]*)?$`)

// Validate lists what Nomad's agent would refuse; it does not start with a
// plugin whose info is wrong.
func (i Info) Validate() error {
	var f wire.Faults
	if i.Type != TypeDriver && i.Type != TypeDevice {
		f.Add("plugin type: %v", i.Type)
	}
	f.Check("plugin name", wire.CheckName(i.Name))
	if !semantic.MatchString(i.Version) {
		f.Add("plugin version %q is not a version such as 1.2.3", i.Version)
	}
	return f.Err()
}

// Plugin is the part that devices and drivers share.
type Plugin interface {
	// Info names the plugin. Called before any configuration, and often.
	Info() Info
	// ConfigSchema describes the plugin block's config. Nil: none is allowed.
	ConfigSchema() *hclspec.Spec
	// SetConfig takes the operator's configuration. It is called several times
	// in one process, the first time possibly without agent facts.
	SetConfig(Config) error
}

// Config is what Nomad hands a plugin at SetConfig.
type Config struct {
	// MsgPack is the plugin block's config as Nomad encodes it (a msgpack map
	// in which unset attributes are present as nil); empty when there is none.
	// Decode with hclspec.Decode.
	MsgPack []byte
	// APIVersion is the version that Nomad negotiated.
	APIVersion string
	// Agent is nil in Nomad's second launch: a plugin must accept that.
	Agent *Agent
}

// Agent is what a driver is told of the client it runs under.
type Agent struct {
	ClientMinPort, ClientMaxPort uint // the client's range of dynamic plugin ports
}

// RecoverableError marks an error after which Nomad's client may try again:
// the task is restarted by its restart policy instead of failing for good.
type RecoverableError struct{ Err error }

func (e *RecoverableError) Error() string { return e.Err.Error() }
func (e *RecoverableError) Unwrap() error { return e.Err }

// IsRecoverable marks the error for the server half.
func (e *RecoverableError) IsRecoverable() bool { return true }

// ErrExited is the error of a call to a plugin whose process is gone.
var ErrExited = wire.ErrExited
