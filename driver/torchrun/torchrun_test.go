package torchrun

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/internal/contract"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func record(members, ranks, host int) *contract.Record {
	r := &contract.Record{V: 1, Gang: contract.GangID{Region: "global", Namespace: "ml", Job: "fine tune"}, Attempt: 2, Phase: contract.PhaseReleased, Queue: "research",
		Deadline: time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)}
	w := contract.World{Name: "rank", Host: fmt.Sprintf("192.0.2.%d", host+11), Port: 20100, HostMember: host}
	for i := range members {
		r.Members = append(r.Members, contract.Member{Index: i, Alloc: fmt.Sprintf("a%d", i), Task: "train", Group: "rank", Start: 1, Node: fmt.Sprintf("n%d", i+1),
			Address: fmt.Sprintf("192.0.2.%d", i+11), Ranks: ranks})
		w.Members = append(w.Members, i)
	}
	r.Worlds = []contract.World{w}
	return r
}

func input(r *contract.Record, member int, config map[string]any) Input {
	c, faults := contract.ParseTaskConfig("", config, 2)
	if len(faults) > 0 {
		panic(contract.Faults(faults))
	}
	return Input{Config: c, Record: r, Member: member, Base: map[string]string{"PATH": "/usr/bin", "NCCL_DEBUG": "WARN"}, TaskDir: "/alloc/train", Python: "/usr/bin/python3",
		Wrapper: []string{"/opt/nomad-driver-torchrun", "rank"}, Preempt: "/m/preempt", Progress: func(rank int) string { return fmt.Sprintf("/m/progress.%d", rank) },
		LogDir: "/m/torchelastic", ErrorFile: "/m/error.json", Interface: "eth0", TaskID: "a0/train/1234", Cards: 2, JoinTimeout: 10 * time.Minute, Monitor: 200 * time.Millisecond}
}

func show(l Launch) string {
	var b strings.Builder
	process := func(p Process) {
		fmt.Fprintf(&b, "  in %s\n  run %s\n", p.Dir, strings.Join(p.Argv, " "))
		for _, e := range p.Env {
			fmt.Fprintf(&b, "      %s\n", e)
		}
	}
	fmt.Fprintf(&b, "world %s of %d, node %d of %d, store %s port %d, host %v\n", l.World, l.Size, l.NodeRank, l.Nodes, l.Address, l.Port, l.Host)
	if l.Launcher != nil {
		b.WriteString("launcher\n")
		process(*l.Launcher)
	}
	for i, r := range l.Ranks {
		fmt.Fprintf(&b, "rank %d, local %d\n", r.Global, r.Local)
		if l.Processes != nil {
			process(l.Processes[i])
		}
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	moved := input(record(2, 2, 0), 1, map[string]any{"module": "train.main", "args": []any{"--lr", "0.1"}, "max_restarts": 3})
	moved.Endpoint = &contract.Endpoint{Host: "192.0.2.11", Port: 20444, Move: 1}
	elastic := record(3, 2, 0)
	elastic.Min, elastic.Round, elastic.Settle = 2, 1, 10*time.Minute
	anew := input(elastic, 2, map[string]any{"script": "s.py", "elastic": true})
	anew.Endpoint = &contract.Endpoint{Host: "fd00::11", Port: 20444, Move: 1, Members: []string{"a0.train", "a2.train"}}
	v6 := record(2, 1, 0)
	v6.Worlds[0].Host = "fd00::11"
	for name, in := range map[string]Input{
		"torchrun":       input(record(4, 2, 0), 1, map[string]any{"script": "local/train.py", "args": []any{"--config", "local/c.yaml"}, "checkpoint": "/mnt/ckpt"}),
		"host_is_last":   input(record(3, 2, 2), 0, map[string]any{"command": []any{"local/train"}}),
		"ranks":          input(record(2, 2, 0), 1, map[string]any{"launcher": "ranks", "command": []any{"local/allreduce", "-n", "3"}}),
		"ranks_slurm":    input(record(2, 1, 1), 0, map[string]any{"launcher": "ranks", "script": "s.py", "slurm_env": true}),
		"moved_endpoint": moved,
		"elastic":        input(elastic, 0, map[string]any{"script": "s.py", "elastic": true}),
		"elastic_anew":   anew,
		"ipv6":           input(v6, 0, map[string]any{"script": "s.py"}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Plan(in)
			must.NoError(t, err)
			golden := filepath.Join("testdata", name+".golden")
			if *rewrite {
				must.NoError(t, os.WriteFile(golden, []byte(show(l)), 0o644))
			}
			want, err := os.ReadFile(golden)
			must.NoError(t, err)
			must.Eq(t, string(want), show(l))
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	held := record(2, 2, 0)
	held.Phase = contract.PhasePlaced
	named := record(2, 2, 0)
	named.Worlds[0].Host = "rdzv.service.consul"
	without := input(record(3, 2, 0), 1, map[string]any{"script": "s.py", "elastic": true})
	without.Endpoint = &contract.Endpoint{Host: "192.0.2.11", Port: 20444, Members: []string{"a0.train", "a2.train"}}
	stranger := without
	stranger.Endpoint = &contract.Endpoint{Host: "192.0.2.11", Port: 20444, Members: []string{"a0.train", "a9.train"}}
	for want, in := range map[string]Input{
		"without member 1":     without,
		"a9.train is to meet":  stranger,
		"not released":         input(held, 0, map[string]any{"script": "s.py"}),
		"member 2 of 2":        input(record(2, 2, 0), 2, map[string]any{"script": "s.py"}),
		"is no address; a nam": input(named, 0, map[string]any{"script": "s.py"}),
	} {
		_, err := Plan(in)
		must.ErrorContains(t, err, want)
	}
}

// What the supervisor adds for a rank of an elastic world leads it to the
// launchers' store by address, and counts its Slurm names among those that meet.
func TestElasticRankEnvironment(t *testing.T) {
	r := record(3, 2, 0)
	r.Min = 1
	in := input(r, 2, map[string]any{"script": "s.py", "elastic": true, "slurm_env": true})
	in.Endpoint = &contract.Endpoint{Host: "192.0.2.11", Port: 20444, Members: []string{"a0.train", "a2.train"}}
	l, err := Plan(in)
	must.NoError(t, err)
	env := strings.Join(RankEnvironment(in, l, Rank{Global: 3, Local: 1, Node: 1}), " ")
	for _, want := range []string{"MASTER_ADDR=192.0.2.11 ", "MASTER_PORT=20444 ", "TORCHELASTIC_USE_AGENT_STORE=True", "SLURM_PROCID=3 ", "SLURM_NODEID=1 ", "SLURM_NTASKS=4 ", "SLURM_NODELIST=n1,n3 "} {
		must.StrContains(t, env+" ", want)
	}
}

// Whatever the sizes and whoever hosts: the members' ranks are 0..n-1, each
// once, exactly one member is host, and it has node rank 0.
func TestPlanNumbersRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "members")
		r := record(n, 1, rapid.IntRange(0, n-1).Draw(t, "host"))
		total := 0
		for i := range r.Members {
			r.Members[i].Ranks = rapid.IntRange(1, 8).Draw(t, "ranks")
			total += r.Members[i].Ranks
		}
		launcher := rapid.SampledFrom([]string{"ranks", "torchrun"}).Draw(t, "launcher")
		var ranks, nodes []int
		hosts := 0
		for m := range r.Members {
			l, err := Plan(input(r, m, map[string]any{"script": "s.py", "launcher": launcher, "nproc_per_node": 1}))
			must.NoError(t, err)
			must.Eq(t, total, l.Size)
			must.Eq(t, l.Host, l.NodeRank == 0)
			if l.Host {
				hosts++
			}
			nodes = append(nodes, l.NodeRank)
			for i, rank := range l.Ranks {
				must.Eq(t, i, rank.Local)
				ranks = append(ranks, rank.Global)
			}
		}
		must.Eq(t, 1, hosts)
		slices.Sort(ranks)
		slices.Sort(nodes)
		for i := range ranks {
			must.Eq(t, i, ranks[i])
		}
		for i := range nodes {
			must.Eq(t, i, nodes[i])
		}
		must.Eq(t, total, len(ranks))
	})
}

// C19: the run id can never be left to torchrun's default, nor be shared.
func TestRunIDIsTheAttempts(t *testing.T) {
	seen := map[string]bool{}
	for _, job := range []string{"a", "b"} {
		for attempt := 1; attempt <= 2; attempt++ {
			r := record(2, 1, 0)
			r.Gang.Job, r.Attempt = job, attempt
			l, err := Plan(input(r, 0, map[string]any{"script": "s.py"}))
			must.NoError(t, err)
			i := slices.Index(l.Launcher.Argv, "--rdzv_id")
			must.Positive(t, i)
			id := l.Launcher.Argv[i+1]
			must.False(t, seen[id])
			seen[id] = true
		}
	}
}

func TestEnvironment(t *testing.T) {
	agent := map[string]string{"PATH": "/sbin", "HOME": "/root", "VAULT_TOKEN": "s.agent", "NOMAD_TOKEN": "agent", "NOMAD_ADDR": "http://x", "LANG": "de", "NCCL_DEBUG": "INFO", "HTTP_PROXY": "p", "NOMAD_REGION": "global"}
	task := map[string]string{"NOMAD_ALLOC_ID": "a", "NOMAD_META_X": "1", "NOMAD_REGION": "global", "MY": "own", "NCCL_DEBUG": "WARN"}
	for name, value := range agent {
		if _, set := task[name]; !set {
			task[name] = value
		}
	}
	in := EnvironmentInput{Task: task, Agent: agent, Home: "/home/u", User: "u", Path: "/usr/bin", Pass: []string{"HTTP_PROXY"}}
	env, cards, err := Environment(in)
	must.NoError(t, err)
	must.SliceEmpty(t, cards)
	must.Eq(t, map[string]string{"HOME": "/home/u", "USER": "u", "LOGNAME": "u", "PATH": "/usr/bin", "LANG": "C.UTF-8",
		"NOMAD_ALLOC_ID": "a", "NOMAD_META_X": "1", "NOMAD_REGION": "global", "MY": "own", "NCCL_DEBUG": "WARN", "HTTP_PROXY": "p",
		// C13 d: no card asked for, none seen.
		"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": "", "ASCEND_VISIBLE_DEVICES": ""}, env)

	// The agent was started again with another token: the plugin, which lives
	// on, knows only the old one.
	task["VAULT_TOKEN"] = "s.rotated"
	in.Strict = true
	env, _, err = Environment(in)
	must.NoError(t, err)
	must.MapNotContainsKey(t, env, "VAULT_TOKEN")
	must.Eq(t, "WARN", env["NCCL_DEBUG"])

	// A workload identity's token is the task's own.
	in.Strict = false
	task["NOMAD_TOKEN"] = "of the task"
	env, _, err = Environment(in)
	must.NoError(t, err)
	must.Eq(t, "of the task", env["NOMAD_TOKEN"])
}

// C13: the reservation's list always wins over the user's.
func TestCards(t *testing.T) {
	user := map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NVIDIA_VISIBLE_DEVICES": "all"}
	env, cards, err := Environment(EnvironmentInput{Task: user, Device: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-4,GPU-5", "RDMA_VISIBLE_DEVICES": "mlx5_0"}})
	must.NoError(t, err)
	must.Eq(t, []string{"GPU-4", "GPU-5"}, cards)
	must.Eq(t, "GPU-4,GPU-5", env["CUDA_VISIBLE_DEVICES"])
	must.Eq(t, "GPU-4,GPU-5", env["NVIDIA_VISIBLE_DEVICES"])
	must.Eq(t, "mlx5_0", env["RDMA_VISIBLE_DEVICES"])
	must.Eq(t, "", env["ROCR_VISIBLE_DEVICES"])

	env, cards, err = Environment(EnvironmentInput{Task: user})
	must.NoError(t, err)
	must.SliceEmpty(t, cards)
	must.Eq(t, "", env["CUDA_VISIBLE_DEVICES"], must.Sprint("the user's list is not believed either"))
	must.Eq(t, "", env["NVIDIA_VISIBLE_DEVICES"])

	env, cards, err = Environment(EnvironmentInput{Device: map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-1", "NVIDIA_VISIBLE_DEVICES": "MIG-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}})
	must.NoError(t, err)
	must.Eq(t, []string{"MIG-1"}, cards)
	must.Eq(t, "PCI_BUS_ID", env["CUDA_DEVICE_ORDER"])

	_, _, err = Environment(EnvironmentInput{Device: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}})
	must.ErrorContains(t, err, "names its cards")

	for _, c := range []struct {
		nproc, cards, want int
		fault              string
	}{
		{0, 4, 4, ""}, {0, 0, 0, "no card was handed over"}, {8, 4, 0, "the task was given 4 cards"}, {2, 4, 2, ""}, {3, 0, 3, ""},
	} {
		n, err := Ranks(contract.TaskConfig{NprocPerNode: c.nproc}, c.cards)
		if c.fault != "" {
			must.ErrorContains(t, err, c.fault)
			continue
		}
		must.NoError(t, err)
		must.Eq(t, c.want, n)
	}
}
