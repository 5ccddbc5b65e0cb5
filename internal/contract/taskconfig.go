package contract

import (
	"fmt"
	"math"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Launchers.
const (
	LauncherTorchrun = "torchrun" // torchrun starts the ranks
	LauncherRanks    = "ranks"    // the driver starts the ranks itself, with the same variables
)

// Worlds: whose ranks share one rendezvous.
const (
	WorldGroup = "group" // each task group of the job by itself (default)
	WorldGang  = "gang"  // all groups of the job together
)

// Isolation of the ranks.
const (
	IsolationAuto = "auto" // cgroup and private /dev where the agent may make them
	IsolationNone = "none"
)

// TaskConfig is the config block of a torchrun task. ParseTaskConfig fills in
// the defaults.
type TaskConfig struct {
	// Exactly one of Script, Module and Command is set.
	Script  string   // path of a Python file, relative to the task's folder
	Module  string   // a Python module, as python -m takes it
	Command []string // another program: launcher "ranks" runs it once per rank, "torchrun" with --no-python
	Args    []string // appended

	Launcher     string // LauncherTorchrun or LauncherRanks
	Python       string // interpreter; empty: looked for
	NprocPerNode int    // ranks per member; 0: one per card
	World        string // WorldGroup or WorldGang
	Elastic      bool   // torchrun with --nnodes=min:max and the c10d rendezvous
	MaxRestarts  int    // torchrun's own restarts inside an attempt

	Checkpoint  string        // folder that checkpoints go to; passed on, created where missing
	HangTimeout time.Duration // 0: hangs are not looked for
	Interface   string        // network interface between members; empty: the one of Nomad's node address
	AskSignal   string        // sent to the ranks when asked to save and leave

	PreflightCommand []string      // extra check before release
	PreflightTimeout time.Duration //

	LogPrefix bool   // lines start with [rank]
	LogFiles  bool   // each rank's output is kept in a file of its own as well
	SlurmEnv  bool   // SLURM_* aliases
	Isolation string // IsolationAuto or IsolationNone
	Image     string // OCI image that the ranks run in; empty: the host
	// ImagePullTimeout is how long bringing the image to the node may take.
	ImagePullTimeout time.Duration
	PassEnv          []string // names of the agent's variables that ranks may see
}

// taskFields are the config block's attributes, with what each takes; the
// driver's schema and the documentation are made of it.
var taskFields = map[string]struct{ Type, Doc string }{
	"script":             {"string", "Python file to run, relative to the task's folder"},
	"module":             {"string", "Python module to run, as `python -m` takes it"},
	"command":            {"list(string)", "another program and its first arguments"},
	"args":               {"list(string)", "arguments of the script, module or command"},
	"launcher":           {"string", "`torchrun` (default) or `ranks`: the driver starts the ranks itself"},
	"python":             {"string", "interpreter; default: the first of `python3` on the driver's path that has torch"},
	"nproc_per_node":     {"any", "`\"gpu\"` (default): one rank a card; or a number"},
	"world":              {"string", "`group` (default): each task group has its own rendezvous; `gang`: all share one"},
	"elastic":            {"bool", "torchrun's elastic rendezvous: members may come and go between the job's min and count"},
	"max_restarts":       {"number", "torchrun's own restarts inside an attempt (default 0)"},
	"checkpoint":         {"string", "absolute path of the folder for checkpoints"},
	"hang_timeout":       {"string", "no mark and no output for so long is a hang; default: not looked for"},
	"interface":          {"string", "network interface between members; default: that of Nomad's node address"},
	"ask_signal":         {"string", "signal that asks ranks to save and leave (default SIGUSR1)"},
	"preflight_command":  {"list(string)", "extra check before release; must exit 0"},
	"preflight_timeout":  {"string", "bound of preflight_command (default 60s)"},
	"log_files":          {"bool", "each rank's output also in a file of its own, `alloc/logs/<task>.rank-<n>.log`"},
	"log_prefix":         {"bool", "lines of a rank's output start with its number"},
	"slurm_env":          {"bool", "set SLURM_* aliases too"},
	"isolation":          {"string", "`auto` (default) or `none`"},
	"image":              {"string", "OCI image that the ranks run in; default: the host"},
	"image_pull_timeout": {"string", "bound of bringing the image to the node (default 10m)"},
	"pass_env":           {"list(string)", "variables of the agent that ranks may see"},
}

// TaskFields gives the names of the config block's attributes, sorted, with
// their HCL type and one line of explanation each.
func TaskFields() (names []string, typeOf, docOf map[string]string) {
	typeOf, docOf = map[string]string{}, map[string]string{}
	for name, f := range taskFields {
		names = append(names, name)
		typeOf[name], docOf[name] = f.Type, f.Doc
	}
	sort.Strings(names)
	return names, typeOf, docOf
}

// ParseTaskConfig reads a torchrun task's config, as Nomad's API or the
// decoded message of Nomad's client gives it (nil values mean "not set").
// cards is the number of cards that the task asks for, of all its device
// blocks that are cards. It returns every fault, ordered by field; field names
// start with where.
func ParseTaskConfig(where string, raw map[string]any, cards int) (TaskConfig, []Fault) {
	p := &fieldReader{where: where, raw: raw}
	c := TaskConfig{
		Script: p.text("script", ""), Module: p.text("module", ""), Command: p.list("command"), Args: p.list("args"),
		Launcher: p.choice("launcher", LauncherTorchrun, LauncherRanks), Python: p.text("python", ""),
		World: p.choice("world", WorldGroup, WorldGang), Elastic: p.boolean("elastic"), MaxRestarts: p.count("max_restarts", 0),
		Checkpoint: p.text("checkpoint", ""), HangTimeout: p.duration("hang_timeout", 0), Interface: p.text("interface", ""),
		AskSignal: p.text("ask_signal", "SIGUSR1"), PreflightCommand: p.list("preflight_command"),
		PreflightTimeout: p.duration("preflight_timeout", time.Minute), LogPrefix: p.boolean("log_prefix"), LogFiles: p.boolean("log_files"), SlurmEnv: p.boolean("slurm_env"),
		Isolation: p.choice("isolation", IsolationAuto, IsolationNone), Image: p.text("image", ""), ImagePullTimeout: p.duration("image_pull_timeout", 10*time.Minute), PassEnv: p.list("pass_env"),
	}
	c.NprocPerNode = p.ranks(cards)
	p.unknown()

	what := 0
	for _, set := range []bool{c.Script != "", c.Module != "", len(c.Command) > 0} {
		if set {
			what++
		}
	}
	if what != 1 {
		p.fault("script", "", "exactly one of script, module and command says what to run")
	}
	for i, arg := range c.Command {
		if i == 0 && arg == "" {
			p.fault("command", "", "the first element is the program")
		}
	}
	if c.Checkpoint != "" && !path.IsAbs(c.Checkpoint) {
		p.fault("checkpoint", c.Checkpoint, "an absolute path: members on other nodes must find the same folder")
	}
	if strings.HasPrefix(c.Image, "-") || strings.ContainsFunc(c.Image, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		p.fault("image", c.Image, "an image's name such as \"registry.example/team/train:1.4\", without spaces and not beginning with -")
	}
	if c.Image != "" && c.Isolation == IsolationNone {
		p.fault("isolation", c.Isolation, "an image is a file system of its own: with image, isolation must be auto")
	}
	if c.Image == "" && p.raw["image_pull_timeout"] != nil {
		p.fault("image_pull_timeout", fmt.Sprint(p.raw["image_pull_timeout"]), "no use without image: leave it out, or name an image")
	}
	if !signalNames[c.AskSignal] {
		p.fault("ask_signal", c.AskSignal, "a signal that a program can catch, such as SIGUSR1, SIGUSR2, SIGTERM")
	}
	if c.Elastic && c.MaxRestarts > 0 {
		p.fault("max_restarts", strconv.Itoa(c.MaxRestarts), "0 with elastic = true: an elastic world meets anew when a member goes, and a rank that fails by itself ends its member")
	}
	if c.Launcher == LauncherRanks {
		if c.Elastic {
			p.fault("elastic", "true", `only torchrun can resize a running world: launcher = "ranks" cannot be elastic`)
		}
		if c.MaxRestarts > 0 {
			p.fault("max_restarts", strconv.Itoa(c.MaxRestarts), `only torchrun restarts ranks by itself: with launcher = "ranks" it must be 0`)
		}
	}
	sort.SliceStable(p.faults, func(i, j int) bool { return p.faults[i].Field < p.faults[j].Field })
	return c, p.faults
}

// signalNames are the signals that an ask may use.
var signalNames = map[string]bool{"SIGUSR1": true, "SIGUSR2": true, "SIGTERM": true, "SIGINT": true, "SIGHUP": true, "SIGQUIT": true, "SIGALRM": true,
	"SIGVTALRM": true, "SIGPROF": true, "SIGXCPU": true, "SIGWINCH": true, "SIGCONT": true}

// fieldReader takes typed values out of a loosely typed map and collects what
// is wrong with them.
type fieldReader struct {
	where  string
	raw    map[string]any
	faults []Fault
}

func (p *fieldReader) fault(name, value, want string) {
	field := name
	if p.where != "" {
		field = p.where + "." + name
	}
	p.faults = append(p.faults, Fault{Field: field, Value: value, Want: want})
}

func (p *fieldReader) wrong(name string, value any, want string) {
	p.fault(name, fmt.Sprint(value), want)
}

func (p *fieldReader) text(name, fallback string) string {
	switch v := p.raw[name].(type) {
	case nil:
		return fallback
	case string:
		if strings.ContainsRune(v, 0) {
			p.wrong(name, v, "text without a NUL byte")
			return fallback
		}
		if v == "" {
			return fallback
		}
		return v
	default:
		p.wrong(name, v, "a text")
		return fallback
	}
}

func (p *fieldReader) choice(name, fallback string, others ...string) string {
	v := p.text(name, fallback)
	for _, known := range append([]string{fallback}, others...) {
		if v == known {
			return v
		}
	}
	p.fault(name, v, "one of "+strings.Join(append([]string{fallback}, others...), ", "))
	return fallback
}

func (p *fieldReader) list(name string) []string {
	var out []string
	switch v := p.raw[name].(type) {
	case nil:
	case []string:
		out = v
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				p.wrong(name, v, "a list of texts")
				return nil
			}
			out = append(out, s)
		}
	default:
		p.wrong(name, v, "a list of texts")
	}
	for _, s := range out {
		if strings.ContainsRune(s, 0) {
			p.wrong(name, s, "texts without a NUL byte")
			return nil
		}
	}
	return out
}

func (p *fieldReader) boolean(name string) bool {
	switch v := p.raw[name].(type) {
	case nil:
	case bool:
		return v
	case string: // HCL turns "true" into true for a bool attribute; JSON does not
		if b, err := strconv.ParseBool(v); err == nil {
			return b
		}
		p.wrong(name, v, "true or false")
	default:
		p.wrong(name, v, "true or false")
	}
	return false
}

// whole reads a whole number from whatever a decoder made of it.
func whole(v any) (int, bool) {
	switch n := v.(type) {
	case int:
		return n, true
	case int64:
		return int(n), true
	case uint64:
		return int(n), n <= math.MaxInt32
	case float64:
		return int(n), n == math.Trunc(n) && math.Abs(n) <= math.MaxInt32
	case string:
		i, err := strconv.Atoi(n)
		return i, err == nil
	}
	return 0, false
}

func (p *fieldReader) count(name string, fallback int) int {
	v := p.raw[name]
	if v == nil {
		return fallback
	}
	n, ok := whole(v)
	if !ok || n < 0 || n > math.MaxInt32 {
		p.wrong(name, v, "a whole number of at least 0")
		return fallback
	}
	return n
}

func (p *fieldReader) duration(name string, fallback time.Duration) time.Duration {
	text := p.text(name, "")
	if text == "" {
		return fallback
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		p.fault(name, text, `a duration above zero such as "15m"`)
		return fallback
	}
	return d
}

// ranks reads nproc_per_node: 0 stands for one rank a card.
func (p *fieldReader) ranks(cards int) int {
	const name, want = "nproc_per_node", `"gpu" (one rank a card) or a whole number of at least 1`
	switch v := p.raw[name].(type) {
	case nil:
		if cards == 0 {
			return 1
		}
		return 0
	case string:
		if v == "gpu" {
			if cards == 0 {
				p.fault(name, v, "the task asks for no card, so its ranks cannot be counted by cards: state a number or add a device block")
			}
			return 0
		}
	}
	n, ok := whole(p.raw[name])
	if !ok || n < 1 || n > 4096 {
		p.wrong(name, p.raw[name], want)
		return 0
	}
	return n
}

func (p *fieldReader) unknown() {
	for name, v := range p.raw {
		if _, known := taskFields[name]; !known {
			names, _, _ := TaskFields()
			p.wrong(name, v, "no field has this name; known are "+strings.Join(names, ", "))
		}
	}
}
