package driver

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// Config is the operator's configuration of the driver: the config of the
// agent's `plugin "nomad-driver-torchrun"` block.
type Config struct {
	// Rendezvous: auto (Consul where one is named or answers, else signals),
	// consul, signal.
	Rendezvous string
	Consul     rendezvous.ConsulConfig
	StateDir   string // absolute; empty: in each task's own folder
	PortLow    int
	PortHigh   int
	HoldLimit  time.Duration // a member that nobody releases gives its cards back
	// MaxKillTimeout is that of the agent's client block, which Nomad does not
	// tell its drivers; 0: not stated, so that Nomad's default is to be expected.
	MaxKillTimeout time.Duration
	Python         string
	Interface      string
	Path           string // search path of ranks
	Isolation      string // contract.IsolationAuto or IsolationNone, for all tasks
	Images         ImageConfig
	Devices        []string // nodes that every task may use, beside what it is granted; absolute
}

// ImageConfig is how tasks run in images.
type ImageConfig struct {
	Engine   string // of image.Names, or image.Auto
	AuthFile string // registries' credentials, in podman's format; absolute
	Cache    string // folder of the files that Apptainer and Enroot make
	Mounts   []isolation.Mount
}

// RendezvousAuto chooses between Consul and signals.
const RendezvousAuto = "auto"

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// configMessage is the plugin block as Nomad encodes it.
type configMessage struct {
	Rendezvous string         `codec:"rendezvous"`
	Consul     *consulMessage `codec:"consul"`
	StateDir   string         `codec:"state_dir"`
	PortRange  string         `codec:"port_range"`
	HoldLimit  string         `codec:"hold_limit"`
	MaxKill    string         `codec:"max_kill_timeout"`
	Python     string         `codec:"python"`
	Interface  string         `codec:"interface"`
	Path       string         `codec:"path"`
	Isolation  string         `codec:"isolation"`
	Devices    []string       `codec:"devices"`
	Image      *imageMessage  `codec:"image"`
}

type imageMessage struct {
	Engine   string   `codec:"engine"`
	AuthFile string   `codec:"auth_file"`
	Cache    string   `codec:"cache"`
	Mounts   []string `codec:"mounts"`
}

type consulMessage struct {
	Address    string `codec:"address"`
	Token      string `codec:"token"`
	TokenFile  string `codec:"token_file"`
	Auth       string `codec:"auth"`
	Datacenter string `codec:"datacenter"`
	Namespace  string `codec:"namespace"`
	Partition  string `codec:"partition"`
	TLS        bool   `codec:"ssl"`
	CAFile     string `codec:"ca_file"`
	CAPath     string `codec:"ca_path"`
	CertFile   string `codec:"cert_file"`
	KeyFile    string `codec:"key_file"`
	ServerName string `codec:"tls_server_name"`
	Verify     *bool  `codec:"verify_ssl"`
}

// schemaOf makes an object specification of a message's fields: text, truth
// and lists by their Go types.
func schemaOf(message reflect.Type, nested map[string]*hclspec.Spec) *hclspec.Spec {
	object := map[string]*hclspec.Spec{}
	for i := range message.NumField() {
		name := message.Field(i).Tag.Get("codec")
		if spec, ok := nested[name]; ok {
			object[name] = spec
			continue
		}
		kind := message.Field(i).Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		object[name] = &hclspec.Spec{Attr: &hclspec.Attr{Name: name, Type: map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "bool", reflect.Slice: "list(string)"}[kind.Kind()]}}
	}
	return &hclspec.Spec{Object: object}
}

var configSchema = schemaOf(reflect.TypeFor[configMessage](), map[string]*hclspec.Spec{
	"consul": {BlockValue: &hclspec.Block{Name: "consul", Nested: schemaOf(reflect.TypeFor[consulMessage](), nil)}},
	"image":  {BlockValue: &hclspec.Block{Name: "image", Nested: schemaOf(reflect.TypeFor[imageMessage](), nil)}},
})

// DefaultConfig is what holds where the operator says nothing.
func DefaultConfig() (Config, error) { return ParseConfig(nil) }

// ParseConfig reads the plugin block's config and gives all its faults at once.
func ParseConfig(msgpack []byte) (Config, error) {
	var m configMessage
	if err := hclspec.Decode(msgpack, &m); err != nil {
		return Config{}, err
	}
	var faults contract.Faults
	fault := func(field, value, want string) {
		faults = append(faults, contract.Fault{Field: "config." + field, Value: value, Want: want})
	}
	c := Config{Rendezvous: m.Rendezvous, StateDir: m.StateDir, Python: m.Python, Interface: m.Interface, Path: m.Path, Isolation: m.Isolation, Devices: m.Devices,
		PortLow: 18000, PortHigh: 18999, HoldLimit: 30 * time.Minute}
	choose := func(field string, value *string, others ...string) {
		if *value == "" {
			*value = others[0]
		}
		for _, o := range others {
			if *value == o {
				return
			}
		}
		fault(field, *value, "one of "+strings.Join(others, ", "))
	}
	choose("rendezvous", &c.Rendezvous, RendezvousAuto, contract.RendezvousConsul, contract.RendezvousSignal)
	choose("isolation", &c.Isolation, contract.IsolationAuto, contract.IsolationNone)
	if c.Path == "" {
		c.Path = defaultPath
	}
	if c.StateDir != "" && !filepath.IsAbs(c.StateDir) {
		fault("state_dir", c.StateDir, "an absolute path")
	}
	for _, path := range m.Devices {
		if !strings.HasPrefix(filepath.Clean(path), "/dev/") {
			fault("devices", path, "paths below /dev")
		}
	}
	c.Images = ImageConfig{Engine: image.Auto, Cache: "/var/lib/muster/images"}
	if m.Image != nil {
		c.Images.Engine, c.Images.AuthFile = m.Image.Engine, m.Image.AuthFile
		choose("image.engine", &c.Images.Engine, append([]string{image.Auto}, image.Names...)...)
		if m.Image.Cache != "" {
			c.Images.Cache = m.Image.Cache
		}
		for field, path := range map[string]string{"auth_file": c.Images.AuthFile, "cache": c.Images.Cache} {
			if path != "" && !filepath.IsAbs(path) {
				fault("image."+field, path, "an absolute path")
			}
		}
		for _, text := range m.Image.Mounts {
			mount, err := parseMount(text)
			if err != nil {
				fault("image.mounts", text, `paths such as "/data", "/data:ro" or "/host/data:/data:ro"`)
			}
			c.Images.Mounts = append(c.Images.Mounts, mount)
		}
	}
	if m.PortRange != "" {
		low, high, err := parsePorts(m.PortRange)
		if err != nil {
			fault("port_range", m.PortRange, `two ports such as "18000-18999"`)
		}
		c.PortLow, c.PortHigh = low, high
	}
	duration := func(field, value string, to *time.Duration) {
		if value == "" {
			return
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			fault(field, value, `a duration above zero such as "30m"`)
		}
		*to = d
	}
	duration("hold_limit", m.HoldLimit, &c.HoldLimit)
	duration("max_kill_timeout", m.MaxKill, &c.MaxKillTimeout)
	if m.Consul != nil {
		c.Consul = rendezvous.ConsulConfig{Address: m.Consul.Address, Token: m.Consul.Token, TokenFile: m.Consul.TokenFile, Auth: m.Consul.Auth,
			Datacenter: m.Consul.Datacenter, Namespace: m.Consul.Namespace, Partition: m.Consul.Partition, TLS: m.Consul.TLS, CAFile: m.Consul.CAFile,
			CAPath: m.Consul.CAPath, CertFile: m.Consul.CertFile, KeyFile: m.Consul.KeyFile, ServerName: m.Consul.ServerName,
			NoVerify: m.Consul.Verify != nil && !*m.Consul.Verify}
		if c.Rendezvous == contract.RendezvousSignal {
			fault("consul", "", `a consul block beside rendezvous = "signal" has no use: leave one out`)
		}
		if (m.Consul.CertFile == "") != (m.Consul.KeyFile == "") {
			fault("consul.cert_file", m.Consul.CertFile, "cert_file and key_file go together")
		}
		if m.Consul.Token != "" && m.Consul.TokenFile != "" {
			fault("consul.token_file", m.Consul.TokenFile, "token or token_file, not both")
		}
		for field, path := range map[string]string{"token_file": c.Consul.TokenFile, "ca_file": c.Consul.CAFile, "ca_path": c.Consul.CAPath, "cert_file": c.Consul.CertFile, "key_file": c.Consul.KeyFile} {
			if path != "" && !filepath.IsAbs(path) {
				fault("consul."+field, path, "an absolute path")
			}
		}
	}
	c.Consul = c.Consul.FromEnvironment()
	if len(faults) > 0 {
		return Config{}, fmt.Errorf("configuration of nomad-driver-torchrun: %w", sorted(faults))
	}
	return c, nil
}

// parseMount reads host[:path][:ro].
func parseMount(text string) (isolation.Mount, error) {
	rest, readOnly := strings.CutSuffix(text, ":ro")
	host, path, found := strings.Cut(rest, ":")
	if !found {
		path = host
	}
	if !filepath.IsAbs(host) || !filepath.IsAbs(path) || strings.Contains(path, ":") {
		return isolation.Mount{}, errors.New("no mount")
	}
	return isolation.Mount{Host: host, Path: path, ReadOnly: readOnly}, nil
}

func parsePorts(s string) (low, high int, err error) {
	a, b, ok := strings.Cut(s, "-")
	low, errLow := strconv.Atoi(strings.TrimSpace(a))
	high, errHigh := strconv.Atoi(strings.TrimSpace(b))
	if !ok || errLow != nil || errHigh != nil || low < 1 || high > 65535 || low > high {
		return 0, 0, errors.New("no range of ports")
	}
	return low, high, nil
}
