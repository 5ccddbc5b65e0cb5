package nomadsim

import (
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// taskEnv is the environment of a task as Nomad's client builds it.
type taskEnv struct {
	env    map[string]string // what the process gets
	device map[string]string // the part of it that device plugins gave
	vars   map[string]string // what ${...} may name in the job: env and the node's facts
}

// hidden from tasks of what the agent's own environment has.
var deniedEnv = []string{"CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "NOMAD_TOKEN", "NOMAD_LICENSE", "VAULT_TOKEN", "AWS_ACCESS_KEY_ID",
	"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"}

func agentEnv(extra []string) map[string]string {
	out := map[string]string{}
	for _, kv := range append(os.Environ(), extra...) {
		if k, v, ok := strings.Cut(kv, "="); ok {
			out[k] = v
		}
	}
	for _, k := range deniedEnv {
		delete(out, k)
	}
	return out
}

// buildEnv makes a task's environment. devices is what Reserve answered, dirs where the task lives.
func buildEnv(n *wire.Node, a *wire.Allocation, t *wire.Task, region string, agent, devices map[string]string, dirs taskDirs) taskEnv {
	env := map[string]string{
		"NOMAD_ALLOC_DIR": dirs.shared, "NOMAD_TASK_DIR": dirs.local, "NOMAD_SECRETS_DIR": dirs.secrets,
		"NOMAD_ALLOC_ID": a.ID, "NOMAD_SHORT_ALLOC_ID": a.ID[:8], "NOMAD_ALLOC_NAME": a.Name, "NOMAD_GROUP_NAME": a.TaskGroup,
		"NOMAD_TASK_NAME": t.Name, "NOMAD_JOB_ID": a.JobID, "NOMAD_JOB_NAME": a.Job.Name, "NOMAD_DC": n.Datacenter,
		"NOMAD_NAMESPACE": a.Namespace, "NOMAD_REGION": region, "NOMAD_PARENT_CGROUP": n.CgroupParent,
	}
	if i := strings.LastIndexByte(a.Name, '['); i >= 0 {
		env["NOMAD_ALLOC_INDEX"] = strings.TrimSuffix(a.Name[i+1:], "]")
	}
	if a.Job.ParentID != "" {
		env["NOMAD_JOB_PARENT_ID"] = a.Job.ParentID
	}
	if r := a.AllocatedResources.Tasks[t.Name]; r != nil {
		env["NOMAD_CPU_LIMIT"] = strconv.FormatInt(r.Cpu.CpuShares, 10)
		env["NOMAD_MEMORY_LIMIT"] = strconv.FormatInt(r.Memory.MemoryMB, 10)
		if r.Memory.MemoryMaxMB > 0 {
			env["NOMAD_MEMORY_MAX_LIMIT"] = strconv.FormatInt(r.Memory.MemoryMaxMB, 10)
		}
		env["NOMAD_CPU_CORES"] = coreList(r.Cpu.ReservedCores)
		for _, nw := range r.Networks {
			for _, p := range append(append([]wire.Port{}, nw.ReservedPorts...), nw.DynamicPorts...) {
				portEnv(env, p.Label, nw.IP, p.Value, p.To)
			}
		}
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		portEnv(env, p.Label, p.HostIP, p.Value, p.To)
	}
	facts := nodeFacts(n)
	g := a.Group()
	meta := map[string]string{}
	for _, m := range []map[string]string{a.Job.Meta, g.Meta, t.Meta} {
		maps.Copy(meta, m)
	}
	for k, v := range meta {
		v = interpolate(v, facts, env)
		env["NOMAD_META_"+cleanName(k)] = v
		env["NOMAD_META_"+strings.ToUpper(cleanName(k))] = v
	}
	for k, v := range agent {
		if _, ok := env[k]; !ok {
			env[k] = interpolate(v, facts, env)
		}
	}
	known := maps.Clone(env)
	for k, v := range t.Env {
		env[k] = interpolate(v, facts, known)
	}
	var dev map[string]string
	for k, v := range devices {
		if dev == nil {
			dev = map[string]string{}
		}
		dev[k] = interpolate(v, facts, known)
		env[k] = dev[k]
	}
	vars := maps.Clone(facts)
	maps.Copy(vars, env)
	return taskEnv{env: env, device: dev, vars: vars}
}

// coreList is a list of cores as the kernel writes it; a lone space where none are reserved, as Nomad has it.
func coreList(cores []uint16) string {
	if len(cores) == 0 {
		return " "
	}
	parts := make([]string, len(cores))
	for i, c := range cores {
		parts[i] = strconv.Itoa(int(c))
	}
	return strings.Join(parts, ",")
}

func portEnv(env map[string]string, label, ip string, value, to int) {
	label = cleanName(label)
	port := strconv.Itoa(value)
	inside := port
	if to > 0 {
		inside = strconv.Itoa(to)
	}
	env["NOMAD_IP_"+label], env["NOMAD_HOST_IP_"+label] = ip, ip
	env["NOMAD_ADDR_"+label], env["NOMAD_HOST_ADDR_"+label] = net.JoinHostPort(ip, port), net.JoinHostPort(ip, port)
	env["NOMAD_PORT_"+label], env["NOMAD_HOST_PORT_"+label] = inside, port
	env["NOMAD_ALLOC_PORT_"+label] = inside
}

// cleanName makes a name fit for a variable.
func cleanName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, s)
}

// nodeFacts are what a job may name of its node.
func nodeFacts(n *wire.Node) map[string]string {
	out := map[string]string{"node.unique.id": n.ID, "node.unique.name": n.Name, "node.datacenter": n.Datacenter, "node.class": n.NodeClass,
		"node.pool": n.NodePool, "node.region": ""}
	for k, v := range n.Attributes {
		out["attr."+k] = v
	}
	for k, v := range n.Meta {
		out["meta."+k] = v
	}
	return out
}

var reference = regexp.MustCompile(`\$\{[a-zA-Z0-9_\-\.]+\}|\$[a-zA-Z_][a-zA-Z0-9_]*`)

// interpolate replaces ${name} and ${env["name"]}; a name that is not known becomes nothing in braces, and stays otherwise.
func interpolate(s string, maps ...map[string]string) string {
	if !strings.Contains(s, "$") {
		return s
	}
	return reference.ReplaceAllStringFunc(s, func(m string) string {
		braces := strings.HasPrefix(m, "${")
		name := strings.Trim(m, "${}")
		for _, x := range maps {
			if v, ok := x[name]; ok {
				return v
			}
		}
		if braces {
			return ""
		}
		return m
	})
}

func envList(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, fmt.Sprintf("%s=%s", k, v))
	}
	return out
}
