package device

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// SourceNames are the sources that a configuration can name.
var SourceNames = []string{"nvml", "rdma", "amd", "ascend", "intel", "simulated"}

// Config is the plugin block, checked.
type Config struct {
	Sources        []string
	SourcesNamed   bool // by the operator; else those of all vendors are looked for
	Simulated      Simulated
	StateDir       string
	Period         time.Duration // between two scans
	ScanTimeout    time.Duration // after which a scan counts as hung
	TrustUserspace bool
	Ignore         []string // ids of cards that are not offered
	Shares         []Share
	Report         Report
	Prometheus     string // address to listen on; empty: off
	SelfTest       SelfTest
	Policy         health.Policy
}

// Simulated says where the simulated source's file is and which of its nodes
// this is.
type Simulated struct{ File, Node string }

// Share makes several devices of one card.
type Share struct {
	Model    string // empty: every model
	Replicas int
	// MPS: the site runs an MPS daemon; each share gets its limits.
	MPS           bool
	PipeDirectory string
}

// Report says where the planner takes the news of cards.
type Report struct {
	Address string // base URL; empty: off
	Token   string
	// TokenFile is read at each report, so that it can be replaced.
	TokenFile string
	CAFile    string
}

// SelfTest is the site's own test of a card.
type SelfTest struct {
	Command []string
	Timeout time.Duration
}

type rawConfig struct {
	Sources        []string       `codec:"sources"`
	Simulated      *rawSimulated  `codec:"simulated"`
	StateDir       string         `codec:"state_dir"`
	Period         string         `codec:"fingerprint_period"`
	ScanTimeout    string         `codec:"scan_timeout"`
	TrustUserspace bool           `codec:"trust_userspace"`
	Ignore         []string       `codec:"ignored_cards"`
	Shares         []rawShare     `codec:"shared"`
	Report         *rawReport     `codec:"report"`
	Prometheus     *rawPrometheus `codec:"prometheus"`
	SelfTest       *rawSelfTest   `codec:"self_test"`
	Health         *rawHealth     `codec:"health"`
}

type rawSimulated struct {
	File string `codec:"file"`
	Node string `codec:"node"`
}

type rawShare struct {
	Model         string `codec:"model"`
	Replicas      int    `codec:"replicas"`
	MPS           bool   `codec:"mps"`
	PipeDirectory string `codec:"mps_pipe_directory"`
}

type rawReport struct {
	Address   string `codec:"address"`
	Token     string `codec:"token"`
	TokenFile string `codec:"token_file"`
	CAFile    string `codec:"ca_file"`
}

type rawPrometheus struct {
	Address string `codec:"address"`
}

type rawSelfTest struct {
	Command []string `codec:"command"`
	Timeout string   `codec:"timeout"`
}

type rawHealth struct {
	Probation    string       `codec:"probation"`
	Strikes      *int         `codec:"strikes"`
	StrikeWindow string       `codec:"strike_window"`
	InARow       *int         `codec:"in_a_row"`
	OffBusGrace  string       `codec:"off_bus_grace"`
	FirstStrike  []int        `codec:"first_strike"`
	Xids         []rawXid     `codec:"xid"`
	Classes      []rawRule    `codec:"class"`
	Conditions   []rawRule    `codec:"condition"`
	Counters     []rawCounter `codec:"counter"`
}

type rawXid struct {
	Codes []int  `codec:"codes"`
	Level string `codec:"level"`
	Until string `codec:"until"`
}

type rawRule struct {
	Name  string `codec:"name"`
	Level string `codec:"level"`
	Until string `codec:"until"`
}

type rawCounter struct {
	Name   string `codec:"name"`
	Max    uint64 `codec:"max"`
	Window string `codec:"window"`
	Level  string `codec:"level"`
}

func attr(name, typ string) *hclspec.Spec {
	return &hclspec.Spec{Attr: &hclspec.Attr{Name: name, Type: typ}}
}

func required(name, typ string) *hclspec.Spec {
	return &hclspec.Spec{Attr: &hclspec.Attr{Name: name, Type: typ, Required: true}}
}

func object(fields map[string]*hclspec.Spec) *hclspec.Spec { return &hclspec.Spec{Object: fields} }

func block(name string, fields map[string]*hclspec.Spec) *hclspec.Spec {
	return &hclspec.Spec{BlockValue: &hclspec.Block{Name: name, Nested: object(fields)}}
}

func blocks(name string, fields map[string]*hclspec.Spec) *hclspec.Spec {
	return &hclspec.Spec{BlockList: &hclspec.BlockList{Name: name, Nested: object(fields)}}
}

// configSchema describes the plugin block to Nomad. Durations are text such as
// "24h".
func configSchema() *hclspec.Spec {
	rule := map[string]*hclspec.Spec{"name": required("name", "string"), "level": required("level", "string"), "until": attr("until", "string")}
	return object(map[string]*hclspec.Spec{
		"sources":            attr("sources", "list(string)"),
		"simulated":          block("simulated", map[string]*hclspec.Spec{"file": required("file", "string"), "node": required("node", "string")}),
		"state_dir":          attr("state_dir", "string"),
		"fingerprint_period": attr("fingerprint_period", "string"),
		"scan_timeout":       attr("scan_timeout", "string"),
		"trust_userspace":    attr("trust_userspace", "bool"),
		"ignored_cards":      attr("ignored_cards", "list(string)"),
		"shared": blocks("shared", map[string]*hclspec.Spec{"model": attr("model", "string"), "replicas": required("replicas", "number"),
			"mps": attr("mps", "bool"), "mps_pipe_directory": attr("mps_pipe_directory", "string")}),
		"report": block("report", map[string]*hclspec.Spec{"address": required("address", "string"), "token": attr("token", "string"),
			"token_file": attr("token_file", "string"), "ca_file": attr("ca_file", "string")}),
		"prometheus": block("prometheus", map[string]*hclspec.Spec{"address": required("address", "string")}),
		"self_test":  block("self_test", map[string]*hclspec.Spec{"command": required("command", "list(string)"), "timeout": attr("timeout", "string")}),
		"health": block("health", map[string]*hclspec.Spec{
			"probation": attr("probation", "string"), "strikes": attr("strikes", "number"), "strike_window": attr("strike_window", "string"),
			"in_a_row": attr("in_a_row", "number"), "off_bus_grace": attr("off_bus_grace", "string"), "first_strike": attr("first_strike", "list(number)"),
			"xid":       blocks("xid", map[string]*hclspec.Spec{"codes": required("codes", "list(number)"), "level": required("level", "string"), "until": attr("until", "string")}),
			"class":     blocks("class", rule),
			"condition": blocks("condition", rule),
			"counter": blocks("counter", map[string]*hclspec.Spec{"name": required("name", "string"), "max": required("max", "number"),
				"window": required("window", "string"), "level": required("level", "string")}),
		}),
	})
}

// configFaults collects what is wrong with a configuration.
type configFaults struct{ contract.Faults }

func (f *configFaults) add(field, value, want string) {
	f.Faults = append(f.Faults, contract.Fault{Field: field, Value: value, Want: want})
}

func (f *configFaults) duration(field, text string, fallback time.Duration, zeroToo bool) time.Duration {
	if text == "" {
		return fallback
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d == 0 && !zeroToo {
		f.add(field, text, `a duration such as "10s" or "24h"`)
		return fallback
	}
	return d
}

func (f *configFaults) rule(field, level, until string, probation bool) health.Rule {
	r := health.Rule{Level: health.Level(level), Until: health.Until(until), Probation: probation}
	if !r.Level.Known() {
		f.add(field+".level", level, "healthy, suspect, draining or quarantined")
	}
	if until == "" { // what fits the level
		r.Until = map[health.Level]health.Until{health.Healthy: health.UntilTime, health.Suspect: health.UntilTime, health.Draining: health.UntilReset}[r.Level]
		if r.Level == health.Quarantined {
			r.Until = health.UntilOperator
		}
	} else if !r.Until.Known() {
		f.add(field+".until", until, "gone, process, reset, reboot, repair, time or operator")
	}
	return r
}

// ParseConfig reads the plugin block as Nomad encodes it. The error lists every
// fault.
func ParseConfig(msgpack []byte) (Config, error) {
	var raw rawConfig
	if err := hclspec.Decode(msgpack, &raw); err != nil {
		return Config{}, err
	}
	var f configFaults
	c := Config{Sources: raw.Sources, SourcesNamed: len(raw.Sources) > 0, StateDir: raw.StateDir, TrustUserspace: raw.TrustUserspace, Ignore: raw.Ignore, Policy: health.Default()}
	for i, s := range raw.Sources {
		if !slices.Contains(SourceNames, s) {
			f.add("sources", s, "one of "+strings.Join(SourceNames, ", "))
		}
		if slices.Contains(raw.Sources[:i], s) {
			f.add("sources", s, "each source once")
		}
	}
	if raw.Simulated != nil {
		c.Simulated = Simulated(*raw.Simulated)
		if c.Simulated.File == "" {
			f.add("simulated.file", "", "the path of the file that describes the simulated nodes")
		}
		if c.Simulated.Node == "" {
			f.add("simulated.node", "", "the name of this node in the file")
		}
		if len(c.Sources) == 0 {
			c.Sources = []string{"simulated"}
		}
	}
	if slices.Contains(c.Sources, "simulated") && raw.Simulated == nil {
		f.add("simulated", "", "a block with file and node, since the source is named")
	}
	if len(c.Sources) == 0 {
		c.Sources = []string{"nvml", "rdma", "amd", "ascend", "intel"}
	}
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir(c.Simulated)
	} else if !filepath.IsAbs(c.StateDir) {
		f.add("state_dir", c.StateDir, "an absolute path: Nomad starts plugins in a folder of its own")
	}
	c.Period = f.duration("fingerprint_period", raw.Period, 10*time.Second, false)
	c.ScanTimeout = f.duration("scan_timeout", raw.ScanTimeout, time.Minute, false)
	for i, s := range raw.Shares {
		if s.Replicas < 2 || s.Replicas > 64 {
			f.add(fmt.Sprintf("shared[%d].replicas", i), fmt.Sprint(s.Replicas), "2 to 64 shares of a card")
		}
		if s.PipeDirectory != "" && !s.MPS {
			f.add(fmt.Sprintf("shared[%d].mps_pipe_directory", i), s.PipeDirectory, "mps = true beside it")
		}
		if s.MPS && s.PipeDirectory == "" {
			s.PipeDirectory = "/tmp/nvidia-mps"
		}
		c.Shares = append(c.Shares, Share(s))
	}
	if raw.Report != nil {
		c.Report = Report(*raw.Report)
		if u, err := url.Parse(c.Report.Address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			f.add("report.address", c.Report.Address, "the planner's URL, such as https://planner.example:4700")
		}
		if c.Report.Token != "" && c.Report.TokenFile != "" {
			f.add("report.token_file", c.Report.TokenFile, "either token or token_file")
		}
	}
	if raw.Prometheus != nil {
		c.Prometheus = raw.Prometheus.Address
		if _, _, err := net.SplitHostPort(c.Prometheus); err != nil {
			f.add("prometheus.address", c.Prometheus, "host:port to listen on, such as 127.0.0.1:9400")
		}
	}
	if raw.SelfTest != nil {
		c.SelfTest = SelfTest{Command: raw.SelfTest.Command, Timeout: f.duration("self_test.timeout", raw.SelfTest.Timeout, 10*time.Minute, false)}
		if len(c.SelfTest.Command) == 0 || !filepath.IsAbs(c.SelfTest.Command[0]) {
			f.add("self_test.command", strings.Join(c.SelfTest.Command, " "), "a program by its absolute path, and its arguments")
		}
	}
	if raw.Health != nil {
		f.policy(&c.Policy, *raw.Health)
	}
	if err := f.Err(); err != nil {
		return Config{}, fmt.Errorf("plugin %q: %w", contract.DevicePluginName, err)
	}
	return c, nil
}

// count reads how many hardware errors a rule allows.
func (f *configFaults) count(field string, from, to *int) {
	if from == nil {
		return
	}
	if *from < 0 || *from == 1 || *from > 16 {
		f.add(field, fmt.Sprint(*from), "2 to 16, or 0 for off")
	}
	*to = *from
}

// policy reads the health block into a policy.
func (f *configFaults) policy(p *health.Policy, raw rawHealth) {
	p.Probation = f.duration("health.probation", raw.Probation, p.Probation, true)
	p.StrikeWindow = f.duration("health.strike_window", raw.StrikeWindow, p.StrikeWindow, false)
	p.OffBusGrace = f.duration("health.off_bus_grace", raw.OffBusGrace, p.OffBusGrace, true)
	f.count("health.strikes", raw.Strikes, &p.Strikes)
	f.count("health.in_a_row", raw.InARow, &p.InARow)
	p.FirstStrike = map[int]bool{}
	for _, code := range raw.FirstStrike {
		if code <= 0 {
			f.add("health.first_strike", fmt.Sprint(code), "Xid codes")
		}
		p.FirstStrike[code] = true
	}
	for i, x := range raw.Xids {
		field := fmt.Sprintf("health.xid[%d]", i)
		rule := f.rule(field, x.Level, x.Until, false)
		for _, code := range x.Codes {
			if code <= 0 {
				f.add(field+".codes", fmt.Sprint(code), "Xid codes")
			}
			rule.Probation = xid.ClassOf(code).Hardware()
			p.Codes[code] = rule
		}
		if len(x.Codes) == 0 {
			f.add(field+".codes", "", "at least one Xid code")
		}
	}
	for i, r := range raw.Classes {
		field, class := fmt.Sprintf("health.class[%d]", i), xid.Class(r.Name)
		if !class.Known() {
			f.add(field+".name", r.Name, "informational, application, degraded, contained, reset, restart-machine, contact-support or unknown")
		}
		p.Classes[class] = f.rule(field, r.Level, r.Until, p.Classes[class].Probation)
	}
	for i, r := range raw.Conditions {
		field := fmt.Sprintf("health.condition[%d]", i)
		if _, known := p.Conditions[r.Name]; !known {
			f.add(field+".name", r.Name, "one of "+strings.Join(sortedKeys(p.Conditions), ", "))
		}
		if r.Until == "" {
			r.Until = string(p.Conditions[r.Name].Until)
		}
		p.Conditions[r.Name] = f.rule(field, r.Level, r.Until, p.Conditions[r.Name].Probation)
	}
	for i, r := range raw.Counters {
		field := fmt.Sprintf("health.counter[%d]", i)
		if _, known := p.Counters[r.Name]; !known {
			f.add(field+".name", r.Name, "one of "+strings.Join(sortedKeys(p.Counters), ", "))
		}
		rule := health.CounterRule{Max: r.Max, Window: f.duration(field+".window", r.Window, time.Hour, false), Level: health.Level(r.Level)}
		if !rule.Level.Known() {
			f.add(field+".level", r.Level, "healthy, suspect, draining or quarantined")
		}
		p.Counters[r.Name] = rule
	}
}

// DefaultStateDir is where the state is kept where the operator says nothing:
// beside a simulated file (many trial nodes share a machine), else the
// system's or the user's own place.
func DefaultStateDir(s Simulated) string {
	if s.File != "" {
		return filepath.Join(s.File+".state", filepath.Base(s.Node))
	}
	if os.Geteuid() == 0 {
		return "/var/lib/" + contract.DevicePluginName
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", contract.DevicePluginName)
	}
	return ""
}
