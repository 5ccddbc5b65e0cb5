package torchrun

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
)

// EnvironmentInput is what a rank's base environment is made of.
type EnvironmentInput struct {
	// Task is the environment that Nomad's client sends. Without file system
	// isolation it holds the agent's whole environment beside the task's own.
	Task map[string]string
	// Device is what the device plugin's Reserve answered; it is in Task too.
	Device map[string]string
	// Agent is the environment of the agent, which the plugin inherited.
	Agent map[string]string
	// Strict: the plugin outlived its agent, so what Agent holds may be older
	// than what Task repeats. Then variables that look like secrets go by name.
	Strict bool
	Pass   []string // names that ranks may see although the agent has them
	Home   string   // of the user that ranks run as
	User   string
	Path   string // search path that ranks get
}

// Environment is the base environment of the ranks, without the agent's own
// variables, and the ids of the cards that were reserved.
//
// A variable of Task is the agent's where the agent has one of the same name
// and value. What the task sets itself, or sets anew, stays; so do Nomad's
// variables of the task. HOME, USER, PATH, LANG and TMPDIR get plain values
// where the task does not set them.
func Environment(in EnvironmentInput) (env map[string]string, cards []string, err error) {
	env = map[string]string{"HOME": in.Home, "USER": in.User, "LOGNAME": in.User, "PATH": in.Path, "LANG": "C.UTF-8"}
	for name, value := range in.Task {
		if !agents(in, name, value) {
			env[name] = value
		}
	}
	for name, value := range in.Device { // the reservation wins over the user
		env[name] = value
	}
	cards, err = visibleCards(in.Device)
	if err != nil {
		return nil, nil, err
	}
	// A process on the host that finds no list sees every card.
	for _, name := range visibility {
		if _, reserved := in.Device[name]; !reserved {
			env[name] = ""
		}
	}
	if _, own := in.Device["CUDA_VISIBLE_DEVICES"]; !own && in.Device["NVIDIA_VISIBLE_DEVICES"] != "" {
		// CUDA on the host reads this one only, and numbers cards by its own
		// order where it is not told otherwise.
		env["CUDA_VISIBLE_DEVICES"] = strings.Join(cards, ",")
	}
	if err := passable(env); err != nil {
		return nil, nil, err
	}
	return env, cards, nil
}

// What Linux lets a process be started with: one variable, and all of them
// (a quarter of a stack of 8 MiB, with room for arguments and what is added).
const (
	maxVariable    = 128<<10 - 1
	maxEnvironment = 3 << 19
)

// passable lists the variables that no process can be given: a job's meta goes
// into variables, and may be longer than one. Found only when the ranks are
// started, it would cost the whole gang its attempt.
func passable(env map[string]string) error {
	var faults []contract.Fault
	total := 0
	for name, value := range env {
		size := len(name) + len(value) + 2
		total += size
		switch {
		case size > maxVariable+1:
			faults = append(faults, contract.Fault{Field: "environment variable " + name, Value: fmt.Sprintf("%d bytes", len(value)),
				Want: "at most 128 KiB with its name: put it into a file, by a template or artifact block (meta becomes variables too)"})
		case strings.ContainsRune(name+value, 0):
			faults = append(faults, contract.Fault{Field: fmt.Sprintf("environment variable %q", name), Want: "no NUL byte"})
		case name == "" || strings.Contains(name, "="):
			faults = append(faults, contract.Fault{Field: fmt.Sprintf("environment variable %q", name), Want: "a name without ="})
		}
	}
	if total > maxEnvironment && len(faults) == 0 {
		faults = append(faults, contract.Fault{Field: "environment", Value: fmt.Sprintf("%d bytes", total), Want: "at most 1.5 MiB: put large values into files"})
	}
	slices.SortFunc(faults, func(a, b contract.Fault) int { return strings.Compare(a.Field, b.Field) })
	return contract.Faults(faults).Err()
}

// agents tells whether a variable of the task is only the agent's.
func agents(in EnvironmentInput, name, value string) bool {
	if slices.Contains(in.Pass, name) || nomads(name) {
		return false
	}
	own, has := in.Agent[name]
	if !has {
		// The plugin's own start-up variables, should a client add them.
		return strings.HasPrefix(name, "NOMAD_PLUGIN_") || strings.HasPrefix(name, "PLUGIN_M") || name == "PLUGIN_PROTOCOL_VERSIONS"
	}
	return own == value || in.Strict && secret(name)
}

// nomads tells Nomad's variables of a task from those that configure an agent
// or a client, such as NOMAD_TOKEN: the token of a task's workload identity has
// that name too, but another value than the agent's.
func nomads(name string) bool {
	rest, ok := strings.CutPrefix(name, "NOMAD_")
	if !ok {
		return false
	}
	switch rest {
	case "REGION", "NAMESPACE", "DC", "GROUP_NAME", "PARENT_CGROUP", "SHORT_ALLOC_ID", "TASK_DIR", "SECRETS_DIR", "ALLOC_DIR", "UNIX_ADDR":
		return true
	}
	for _, prefix := range []string{"ALLOC_", "TASK_", "JOB_", "CPU_", "MEMORY_", "META_", "IP_", "PORT_", "HOST_", "ADDR_", "UPSTREAM_"} {
		if strings.HasPrefix(rest, prefix) {
			return true
		}
	}
	return false
}

func secret(name string) bool {
	for _, word := range []string{"TOKEN", "SECRET", "PASSW", "CREDENTIAL", "KEY", "AUTH"} {
		if strings.Contains(strings.ToUpper(name), word) {
			return true
		}
	}
	return false
}

// visibility are the lists that libraries read to learn which cards they may
// use. Each is set, empty where no card was reserved.
var visibility = []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"}

// visibleCards are the ids that the reservation grants.
func visibleCards(device map[string]string) ([]string, error) {
	for _, name := range visibility {
		value, ok := device[name]
		if !ok {
			continue
		}
		switch value {
		case "", "none", "void":
			continue
		case "all":
			return nil, fmt.Errorf("%s = %q from the device plugin: a reservation names its cards; this plugin must be replaced", name, value)
		}
		var cards []string
		for _, id := range strings.Split(value, ",") {
			if id = strings.TrimSpace(id); id != "" {
				cards = append(cards, id)
			}
		}
		return cards, nil
	}
	return nil, nil
}

// Ranks gives how many ranks the member runs, for its config and its cards.
func Ranks(c contract.TaskConfig, cards int) (int, error) {
	if c.NprocPerNode == 0 {
		if cards == 0 {
			return 0, fmt.Errorf(`nproc_per_node = "gpu": no card was handed over for this task`)
		}
		return cards, nil
	}
	if cards > 0 && c.NprocPerNode > cards {
		return 0, fmt.Errorf("nproc_per_node = %d: the task was given %d cards; two ranks on one card would share its memory", c.NprocPerNode, cards)
	}
	return c.NprocPerNode, nil
}
