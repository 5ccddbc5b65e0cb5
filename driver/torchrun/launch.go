// Package torchrun turns a task's config and the gang's record into what is
// run: arguments and environments. It is pure: the same input gives the same
// launch, and nothing is looked up.
//
// With launcher "torchrun" a member runs one torchrun with the static
// rendezvous: the record says how many nodes there are, which one this is, and
// at which address and port the store is. Nothing depends on a name lookup, and
// nobody has to guess who the host is. torchrun starts each rank through a
// wrapper (the driver's own binary), which tells the supervisor what became of
// the rank.
//
// An elastic world has the c10d rendezvous instead; see elastic.go.
//
// With launcher "ranks" the driver starts the ranks itself, with the variables
// that torchrun would set.
//
// Node ranks: torchrun's static rendezvous holds the store at node rank 0, so
// the nodes are counted from the store's host on, round the world's order.
// Neighbours in that order stay neighbours.
package torchrun

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// Input is all that a launch is made of.
type Input struct {
	Config contract.TaskConfig
	Record *contract.Record
	Member int // index in Record.Members
	// Endpoint is where the store really is, nil where it did not move.
	Endpoint *contract.Endpoint

	Base      map[string]string // see Environment
	TaskDir   string            // folder that a script's path is relative to, and that ranks start in
	Python    string            // interpreter
	Wrapper   []string          // program and arguments through which torchrun starts a rank
	Preempt   string            // path of the preempt file
	Progress  func(rank int) string
	LogDir    string // where torchrun keeps its files
	ErrorFile string // where torchrun leaves the first failure
	Interface string // network interface of the member's address
	TaskID    string
	Cards     int
	// JoinTimeout is how long members wait for each other at the store.
	JoinTimeout time.Duration
	// Monitor is how often torchrun looks at its ranks.
	Monitor time.Duration
}

// Process to be started.
type Process struct {
	Argv []string
	Env  []string // NAME=value, sorted
	Dir  string
}

// Rank is the place of one rank in its world.
type Rank struct {
	Global int // -1: torchrun will say
	Local  int
	Node   int // of its member; -1: torchrun will say
}

// Launch is what a member runs.
type Launch struct {
	// Launcher is torchrun; nil where the ranks are started directly.
	Launcher *Process
	// Ranks by local number. With a launcher, the processes are nil.
	Ranks []Rank
	// Processes of Ranks, with launcher "ranks".
	Processes []Process
	// Host says that the store is opened on this member.
	Host     bool
	Address  string // of the store
	Port     int
	NodeRank int // -1: torchrun will say
	Nodes    int
	World    string
	Size     int // ranks of the world

	order []int // the members that meet, by place in the record
}

// Plan makes the launch of one member of a released record.
func Plan(in Input) (Launch, error) {
	if in.Record == nil || in.Record.Phase != contract.PhaseReleased {
		return Launch{}, fmt.Errorf("plan launch: the gang is not released")
	}
	if in.Member < 0 || in.Member >= len(in.Record.Members) {
		return Launch{}, fmt.Errorf("plan launch: member %d of %d", in.Member, len(in.Record.Members))
	}
	world, _, ok := in.Record.WorldOf(in.Member)
	if !ok {
		return Launch{}, fmt.Errorf("plan launch: member %d is in no world", in.Member)
	}
	order, err := meeting(in, world)
	if err != nil {
		return Launch{}, err
	}
	l := Launch{order: order, World: world.Name, Nodes: len(order), Address: world.Host, Port: world.Port, Host: world.HostMember == in.Member}
	if in.Endpoint != nil {
		l.Address, l.Port = in.Endpoint.Host, in.Endpoint.Port
	}
	if _, err := netip.ParseAddr(l.Address); err != nil {
		return Launch{}, fmt.Errorf("plan launch: the store's host %q is no address; a name would be looked up differently on every node", l.Address)
	}
	first := 0
	for nodeRank, m := range order {
		if m == in.Member {
			l.NodeRank, first = nodeRank, l.Size
		}
		l.Size += in.Record.Members[m].Ranks
	}
	local := in.Record.Members[in.Member].Ranks
	if in.Config.Elastic {
		l.NodeRank = -1
	}
	for i := range local {
		r := Rank{Global: first + i, Local: i, Node: l.NodeRank}
		if in.Config.Elastic {
			r.Global = -1
		}
		l.Ranks = append(l.Ranks, r)
	}

	program := Program(in.Config, in.Python)
	if in.Config.Launcher == contract.LauncherRanks {
		for _, r := range l.Ranks {
			env := merge(common(in, l, order), rankEnvironment(in, l, r), torchVariables(in, l, r, local))
			l.Processes = append(l.Processes, Process{Argv: program, Env: list(env), Dir: in.TaskDir})
		}
		return l, nil
	}
	env := common(in, l, order)
	env["TORCHELASTIC_ERROR_FILE"] = in.ErrorFile
	l.Launcher = &Process{Argv: append(arguments(in, l, local), append(slices.Clone(in.Wrapper), program...)...), Env: list(env), Dir: in.TaskDir}
	return l, nil
}

// NodeOrder gives the world's members by node rank.
func NodeOrder(w contract.World) []int {
	host := max(0, slices.Index(w.Members, w.HostMember))
	return append(slices.Clone(w.Members[host:]), w.Members[:host]...)
}

// Program is what one rank runs.
func Program(c contract.TaskConfig, python string) []string {
	var argv []string
	switch {
	case len(c.Command) > 0:
		argv = slices.Clone(c.Command)
	case c.Module != "":
		argv = []string{python, "-u", "-m", c.Module}
	default:
		argv = []string{python, "-u", c.Script}
	}
	return append(argv, c.Args...)
}

// arguments of torchrun, in the spelling that old and new versions take.
func arguments(in Input, l Launch, local int) []string {
	meet := []string{
		"--nnodes", strconv.Itoa(l.Nodes), "--node_rank", strconv.Itoa(l.NodeRank), "--nproc_per_node", strconv.Itoa(local),
		"--rdzv_backend", "static", "--rdzv_id", in.Record.Gang.RunID(in.Record.Attempt, l.World),
		"--master_addr", bracketed(l.Address), "--master_port", strconv.Itoa(l.Port),
		"--rdzv_conf", "timeout=" + strconv.Itoa(int(in.JoinTimeout.Seconds())),
	}
	if in.Config.Elastic {
		meet = elasticArguments(in, l, local)
	}
	return append(append([]string{in.Python, "-m", "torch.distributed.run"}, meet...),
		"--max_restarts", strconv.Itoa(in.Config.MaxRestarts),
		"--monitor_interval", strconv.FormatFloat(in.Monitor.Seconds(), 'g', -1, 64),
		// The ranks' output goes to the supervisor, not through torchrun. Under
		// Python 3.11 torch 1.13 fails without a mapping here, and no torch
		// takes one of a rank with two digits: this one redirects at most what
		// the wrapper says before it hands rank 9 its own pipes.
		"--redirects", "9:1", "--tee", "9:1",
		"--log_dir", in.LogDir,
		"--no_python",
	)
}

// bracketed writes an IPv6 address the way torchrun wants it beside a port.
func bracketed(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// common is what launcher and ranks find.
func common(in Input, l Launch, order []int) map[string]string {
	r := in.Record
	env := merge(in.Base, map[string]string{
		contract.EnvGang:        r.Gang.String(),
		contract.EnvAttempt:     strconv.Itoa(r.Attempt),
		contract.EnvMember:      strconv.Itoa(in.Member),
		contract.EnvMembers:     strconv.Itoa(len(r.Members)),
		contract.EnvWorld:       l.World,
		contract.EnvPreemptFile: in.Preempt,
		contract.EnvTask:        in.TaskID,
	})
	var nodes []string
	for _, m := range order {
		nodes = append(nodes, r.Members[m].Node)
	}
	env[contract.EnvNodes] = strings.Join(nodes, ",")
	optional := map[string]string{contract.EnvQueue: r.Queue, contract.EnvCheckpointDir: in.Config.Checkpoint}
	if !r.Deadline.IsZero() {
		optional[contract.EnvDeadline] = r.Deadline.UTC().Format(time.RFC3339)
	}
	for name, value := range optional {
		if value != "" {
			env[name] = value
		}
	}
	if in.Interface != "" {
		// Explicit, or each library picks one by its own rules; what the user
		// set stays.
		for name, value := range map[string]string{"NCCL_SOCKET_IFNAME": "=" + in.Interface, "GLOO_SOCKET_IFNAME": in.Interface, "TP_SOCKET_IFNAME": in.Interface} {
			if _, set := env[name]; !set {
				env[name] = value
			}
		}
	}
	return env
}

// RankEnvironment is what the supervisor adds for one rank to what torchrun
// gave it.
func RankEnvironment(in Input, l Launch, r Rank) []string {
	return list(rankEnvironment(in, l, r))
}

func rankEnvironment(in Input, l Launch, r Rank) map[string]string {
	env := map[string]string{contract.EnvProgressFile: in.Progress(r.Global)}
	if in.Config.Elastic {
		env = merge(env, elasticVariables(l))
	}
	if !in.Config.SlurmEnv {
		return env
	}
	var nodes, tasks []string
	for _, m := range l.order {
		nodes = append(nodes, in.Record.Members[m].Node)
		tasks = append(tasks, strconv.Itoa(in.Record.Members[m].Ranks))
	}
	job := in.Record.Gang
	return merge(env, map[string]string{
		"SLURM_PROCID": strconv.Itoa(r.Global), "SLURM_LOCALID": strconv.Itoa(r.Local), "SLURM_NODEID": strconv.Itoa(r.Node),
		"SLURM_NTASKS": strconv.Itoa(l.Size), "SLURM_NPROCS": strconv.Itoa(l.Size), "SLURM_NNODES": strconv.Itoa(l.Nodes), "SLURM_JOB_NUM_NODES": strconv.Itoa(l.Nodes),
		"SLURM_TASKS_PER_NODE": strings.Join(tasks, ","), "SLURM_JOB_NODELIST": strings.Join(nodes, ","), "SLURM_NODELIST": strings.Join(nodes, ","),
		"SLURM_JOB_ID": job.RunID(in.Record.Attempt, l.World), "SLURM_JOBID": job.RunID(in.Record.Attempt, l.World), "SLURM_JOB_NAME": job.Job,
		"SLURM_GPUS_ON_NODE": strconv.Itoa(in.Cards), "SLURM_LAUNCH_NODE_IPADDR": l.Address, "SLURM_RESTART_COUNT": strconv.Itoa(in.Record.Attempt - 1),
	})
}

// torchVariables are those that torchrun sets for a rank.
func torchVariables(in Input, l Launch, r Rank, local int) map[string]string {
	return map[string]string{
		"RANK": strconv.Itoa(r.Global), "LOCAL_RANK": strconv.Itoa(r.Local), "WORLD_SIZE": strconv.Itoa(l.Size), "LOCAL_WORLD_SIZE": strconv.Itoa(local),
		"GROUP_RANK": strconv.Itoa(l.NodeRank), "GROUP_WORLD_SIZE": strconv.Itoa(l.Nodes),
		"ROLE_RANK": strconv.Itoa(r.Global), "ROLE_WORLD_SIZE": strconv.Itoa(l.Size), "ROLE_NAME": "default",
		"MASTER_ADDR": l.Address, "MASTER_PORT": strconv.Itoa(l.Port),
		"TORCHELASTIC_RUN_ID": in.Record.Gang.RunID(in.Record.Attempt, l.World), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
	}
}

func merge(maps ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(a, b) })
	return out
}

// ScriptPath is where the script lies on the host; empty where there is none.
func ScriptPath(c contract.TaskConfig, taskDir string) string {
	if c.Script == "" || filepath.IsAbs(c.Script) {
		return c.Script
	}
	return filepath.Join(taskDir, c.Script)
}
