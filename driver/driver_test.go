package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

func ranksConfig(t *testing.T, args ...string) map[string]any {
	list := []any{}
	for _, a := range args {
		list = append(list, a)
	}
	return map[string]any{"launcher": "ranks", "command": []any{allreduceRank(t)}, "args": list, "nproc_per_node": 2}
}

// The whole way: held, placed, released together, all-reduced, complete.
func TestGangOfRanksCompletes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 4, ranksConfig(t, "-steps", "5"))
	tr.start()
	tr.place(1)
	tr.freeze()
	must.StrNotContains(t, tr.members[0].log.text(), "started", must.Sprint("a rank started before the release"))
	tr.planner.Write(tr.record)
	for i, m := range tr.members {
		r := tr.wait(i)
		must.Eq(t, 0, r.ExitCode)
		must.NoError(t, r.Err)
		must.Eq(t, contract.OutcomeComplete, tr.exit(i).Outcome)
		m.log.await(t, tr.ctx, "over 8 ranks, every sum right")
	}
	reports := tr.planner.Reports(1)
	must.Eq(t, 4, len(reports))
	for _, r := range reports {
		must.Eq(t, contract.StateEnded, r.State)
	}
	must.SliceEmpty(t, tr.planner.Services())
}

func TestFailingRankEndsTheGang(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 3, ranksConfig(t, "-steps", "1000", "-step-time", "10ms", "-fail-rank", "3", "-fail-step", "3", "-fail-code", "42"))
	tr.run()
	x := tr.exit(1)
	must.Eq(t, contract.OutcomeFailed, x.Outcome)
	must.Eq(t, 42, x.Code)
	must.Eq(t, 3, x.Rank)
	must.False(t, x.Asked)
	must.SliceLen(t, 2, x.Ranks, must.Sprint("every rank's end is told"))
	must.Eq(t, contract.RankExit{Rank: 3, Code: 42, At: x.Ranks[1].At}, x.Ranks[1])
	must.Eq(t, 42, tr.wait(1).ExitCode)
	for _, i := range []int{0, 2} {
		x := tr.exit(i)
		// Whether a peer learns of it from Consul or from its own broken
		// connection first is open; the first failure is the one with 42.
		must.SliceContains(t, []contract.Outcome{contract.OutcomePeer, contract.OutcomeFailed}, x.Outcome)
		must.NotEq(t, 0, tr.wait(i).ExitCode)
	}
}

// C15: asked, saves and leaves with 0, and is not filed as complete.
func TestAskedGangSavesAndLeaves(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 2, ranksConfig(t, "-steps", "100000", "-step-time", "5ms", "-save-time", "300ms"))
	checkpoints := t.TempDir()
	for _, m := range tr.members {
		m.cfg.Env["MUSTER_CHECKPOINT_DIR"] = checkpoints // as its own variable: also of use to others
	}
	tr.run()
	tr.planner.Await(tr.ctx, 1, "training", func(all map[string]contract.Report) bool {
		for _, r := range all {
			if r.State != contract.StateTraining {
				return false
			}
		}
		return len(all) == 2
	})
	tr.record.Ask = &contract.Ask{Kind: "preempt", Grace: time.Hour, By: time.Now().Add(time.Hour), Why: "g9 is entitled"}
	tr.planner.Write(tr.record)
	for i := range tr.members {
		x := tr.exit(i)
		must.Eq(t, contract.OutcomeCheckpointed, x.Outcome, must.Sprint(x.Text))
		must.True(t, x.Asked)
		must.Eq(t, contract.CodeAsked, tr.wait(i).ExitCode)
	}
}

func TestStopWhileHeldAndWhileRunning(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t, "-steps", "100000", "-step-time", "5ms"))
	tr.start()
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Hour, "")) // nobody waits for the grace
	must.Eq(t, contract.OutcomeRefused, tr.exit(0).Outcome)
	must.Eq(t, contract.CodeRefused, tr.wait(0).ExitCode)

	tr = newTrial(t, 1, ranksConfig(t, "-steps", "100000", "-step-time", "5ms"))
	tr.run()
	tr.awaitEvent(tr.members[0], "first progress") // both ranks are in their work by then
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Hour, "SIGINT"))
	must.Eq(t, contract.OutcomeYielded, tr.exit(0).Outcome)
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Hour, ""), must.Sprint("a second stop"))
	must.Error(t, tr.plugin.StopTask("unknown/task/1", 0, "")) // the server half takes it for success
}

func TestReleasedMemberNeverStartsAgain(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t, "-steps", "2"))
	tr.run()
	must.Eq(t, 0, tr.wait(0).ExitCode)
	again := *tr.members[0].cfg
	again.ID = again.AllocID + "/train/" + randomID()[:8]
	_, err := tr.plugin.StartTask(&again)
	must.ErrorContains(t, err, "never starts again")
	tr.awaitEvent(tr.members[0], "was released in attempt 1")
}

func TestSecondStartOfHeldMemberIsCounted(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t, "-steps", "2"))
	tr.start()
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Second, ""))
	must.NoError(t, tr.plugin.DestroyTask(tr.members[0].cfg.ID, true))
	again := *tr.members[0].cfg
	again.ID = again.AllocID + "/train/" + randomID()[:8]
	tr.members[0].cfg = &again
	tr.startMember(tr.members[0])
	tr.place(1)
	tr.freeze()
	must.Eq(t, 2, tr.record.Members[0].Start)
	// A record that released the first start starts nothing.
	tr.record.Members[0].Start = 1
	tr.planner.Write(tr.record)
	must.Eq(t, contract.OutcomeRefused, tr.exit(0).Outcome)
}

func TestConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, map[string]any{"script": "a.py", "module": "b", "world": "planet", "hang_timeout": "soon", "max_restarts": -1, "nproc_per_node": 0})
	_, err := tr.plugin.StartTask(tr.members[0].cfg)
	for _, want := range []string{"config.script", "config.world", "config.hang_timeout", "config.max_restarts", "config.nproc_per_node"} {
		must.ErrorContains(t, err, want)
	}
	tr.awaitEvent(tr.members[0], "5 faults")

	tr = newTrial(t, 1, map[string]any{"script": "a.py", "elastic": true, "max_restarts": 1})
	_, err = tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, "config.max_restarts")

	tr = newTrial(t, 1, map[string]any{"script": "a.py", "elastic": true})
	tr.plugin = newPlugin(t, map[string]any{"rendezvous": "signal"})
	_, err = tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, "config.elastic")
	must.ErrorContains(t, err, "Consul on every node")
}

// C17: whoever asks for a longer grace than the client allows learns it at the
// start; where the operator does not state the limit, Nomad's default is assumed.
func TestGraceAboveTheClientsLimit(t *testing.T) {
	t.Parallel()
	for limit, told := range map[string]string{
		"30s": "Nomad's own stop (job stop, drain) gives 30s here, and muster_grace asks for 10m0s: raise max_kill_timeout in this node's client block",
		"10m": "",
		"":    "muster_grace asks for 10m0s, and Nomad's own stop (job stop, drain) gives 30s unless this node's client block says more: raise max_kill_timeout there",
	} {
		t.Run("limit "+limit, func(t *testing.T) {
			t.Parallel()
			p := newPlugin(t, map[string]any{"rendezvous": "signal", "max_kill_timeout": limit})
			tr := &trial{t: t, ctx: t.Context(), plugin: p, events: &sync.Map{}, mu: &sync.Mutex{}}
			tr.followEvents(p)
			cfg := taskConfig(t, contract.GangID{Namespace: "default", Job: "x"}, "n1", map[string]any{"launcher": "ranks", "command": []any{"true"}, "nproc_per_node": 1})
			cfg.Env["NOMAD_META_muster_grace"] = "10m"
			m := newMember(t, cfg)
			tr.members = append(tr.members, m)
			t.Cleanup(tr.destroy)
			tr.startMember(m)
			tr.awaitEvent(m, "held: waits")
			if told != "" {
				tr.awaitEvent(m, told)
			}
			must.NoError(t, p.StopTask(cfg.ID, time.Second, ""))
			tr.awaitEvent(m, "ended: ")
			must.Eq(t, told != "", strings.Contains(tr.eventsOf(m), "max_kill_timeout"))
		})
	}
}

// The plugin blocks that the pages for operators show are right.
func TestDocumentedPluginBlocks(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../README.md", "../docs/install.md", "../docs/driver.md"} {
		page, err := os.ReadFile(file)
		must.NoError(t, err)
		found := 0
		for _, m := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllSubmatch(page, -1) {
			parsed, diags := hclsyntax.ParseConfig(m[1], file, hcl.InitialPos)
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			for _, b := range parsed.Body.(*hclsyntax.Body).Blocks {
				if b.Type != "plugin" || b.Labels[0] != "nomad-driver-torchrun" {
					continue
				}
				must.SliceLen(t, 1, b.Body.Blocks)
				config := b.Body.Blocks[0]
				text, err := hclspec.EncodeHCL(configSchema, m[1][config.OpenBraceRange.End.Byte:config.CloseBraceRange.Start.Byte], nil)
				must.NoError(t, err)
				c, err := ParseConfig(text)
				must.NoError(t, err)
				must.Eq(t, 30*time.Minute, c.MaxKillTimeout, must.Sprint("as their client block says"))
				found++
			}
		}
		must.Eq(t, 1, found, must.Sprint(file))
	}
}

// A wrong plugin block gives all its faults, and leaves the one before.
func TestPluginConfigFaults(t *testing.T) {
	p := newPlugin(t, map[string]any{"port_range": "20000-20010", "rendezvous": "signal"})
	text, err := hclspec.Encode(configSchema, map[string]any{"rendezvous": "smoke", "port_range": "9-1", "hold_limit": "long", "max_kill_timeout": "-1s", "state_dir": "here", "isolation": "some",
		"consul": map[string]any{"token": "a", "token_file": "b", "cert_file": "/c"}}, nil)
	must.NoError(t, err)
	err = p.SetConfig(base.Config{MsgPack: text})
	for _, field := range []string{"rendezvous", "port_range", "hold_limit", "max_kill_timeout", "state_dir", "isolation", "consul.token_file", "consul.cert_file"} {
		must.ErrorContains(t, err, "config."+field)
	}
	config, _ := p.settings()
	must.Eq(t, 20000, config.PortLow)
	must.Error(t, p.SetConfig(base.Config{MsgPack: []byte{0xc1}}))
	must.NoError(t, p.SetConfig(base.Config{}), must.Sprint("no block at all"))
}

// The schemas hold exactly the fields that are read.
func TestSchemasMatchTheirMessages(t *testing.T) {
	must.NoError(t, hclspec.Validate(configSchema))
	schema := (&Plugin{}).TaskConfigSchema()
	must.NoError(t, hclspec.Validate(schema))
	raw := map[string]any{}
	names, types, _ := contract.TaskFields()
	for _, name := range names {
		raw[name] = map[string]any{"string": "x", "bool": true, "number": 3, "list(string)": []any{"x"}, "any": 3}[types[name]]
	}
	text, err := hclspec.Encode(schema, raw, nil)
	must.NoError(t, err)
	decoded, err := decodeTask(text)
	must.NoError(t, err)
	must.Eq(t, len(names), len(decoded))
}

func TestFingerprint(t *testing.T) {
	seen := func(config map[string]any) driver.Fingerprint {
		p := newPlugin(t, config)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var f driver.Fingerprint
		err := p.Fingerprint(ctx, func(got driver.Fingerprint) error { f = got; cancel(); return nil })
		must.ErrorIs(t, err, context.Canceled)
		return f
	}
	f := seen(map[string]any{"rendezvous": "consul", "consul": map[string]any{"address": "127.0.0.1:1"}})
	must.Eq(t, driver.HealthUnhealthy, f.Health)
	must.StrContains(t, f.Description, "reach Consul at 127.0.0.1:1")
	f = seen(map[string]any{"rendezvous": "signal", "path": t.TempDir()})
	must.Eq(t, driver.HealthHealthy, f.Health)
	must.StrContains(t, f.Description, "torchrun not to be had: no Python: looked at")
	must.MapNotContainsKey(t, f.Attributes, contract.AttrDriverTorch)
	must.MapContainsKey(t, f.Attributes, contract.AttrDriverIsolation)
	must.Eq(t, device.String("signal"), f.Attributes[contract.AttrDriverRendezvous])
}

// Rank 3 of 16 is stopped in a running all-reduce: found and named within
// hang_timeout and ten seconds, evidence of every rank kept, and the gang
// stopped, although the others go on printing. With MUSTER_TEST_LONG the ranks
// are torch's, under torchrun.
func TestHangIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	const ranks = 8 // of each of two members
	chatter := `(while :; do echo still waiting; sleep 0.2; done) & exec "$0" "$@"`
	config := map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", chatter, allreduceRank(t)}, "args": []any{"-steps", "1000000", "-step-time", "50ms"}, "nproc_per_node": ranks}
	var script []func(*driver.TaskConfig)
	if os.Getenv("MUSTER_TEST_LONG") != "" {
		needTorch(t)
		config = map[string]any{"command": []any{"/bin/sh", "-c", chatter, "/usr/bin/python3", "-u", "local/allreduce.py"}, "args": []any{"1000000", "0.05"}, "nproc_per_node": ranks}
		script = append(script, withExample(t, "allreduce.py"))
	}
	config["hang_timeout"] = "3s"
	// The tools that look from outside are the operator's: what the task has of
	// the same name on its own path is never run, since it would be as root.
	tools, own := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"py-spy": "echo \"$1 $2: MainThread waits in all_reduce\"", "nvidia-smi": "echo \"$1\"; echo '0, GPU-1, P0, 100 %'; exit 15"} {
		must.NoError(t, os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(own, name), []byte("#!/bin/sh\ntouch "+own+"/was-run\n"), 0o755))
	}
	script = append(script, func(cfg *driver.TaskConfig) {
		cfg.Env["PATH"] = own + ":/usr/bin:/bin"
		cfg.DeviceEnv = map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1,GPU-2,GPU-3,GPU-4,GPU-5,GPU-6,GPU-7"}
	})
	tr := newTrial(t, 2, config, script...)
	tr.plugin.config.Path = tools + ":" + tr.plugin.config.Path
	tr.run()
	tr.planner.Await(tr.ctx, 1, "training", func(all map[string]contract.Report) bool {
		for _, r := range all {
			if r.State != contract.StateTraining {
				return false
			}
		}
		return len(all) == 2
	})
	a, err := tr.task(0).call(shim.Request{Op: shim.OpStatus})
	must.NoError(t, err)
	must.MapLen(t, ranks, a.Status.Ranks)
	stopped := time.Now()
	must.NoError(t, unix.Kill(a.Status.Ranks[3], unix.SIGSTOP))
	tr.awaitEvent(tr.members[0], "rank 3")
	t.Logf("found and named after %v", time.Since(stopped))
	x := tr.exit(0)
	evidence, err := os.ReadFile(filepath.Join(string(tr.task(0).start), shim.EvidenceFile))
	must.NoError(t, err)
	must.StrContains(t, string(evidence), "rank 3, process "+strconv.Itoa(a.Status.Ranks[3])+", state T")
	for rank := range ranks {
		must.StrContains(t, string(evidence), fmt.Sprintf("\nrank %d, process %d", rank, a.Status.Ranks[rank]))
	}
	must.StrContains(t, string(evidence), "  still waiting\n")
	must.StrContains(t, string(evidence), "py-spy:\ndump --pid: MainThread waits in all_reduce")
	must.StrContains(t, string(evidence), "\ncards:\n  --id=GPU-0,GPU-1,GPU-2,GPU-3,GPU-4,GPU-5,GPU-6,GPU-7\n  0, GPU-1, P0, 100 %\n  "+tools+"/nvidia-smi ended with code 15")
	_, err = os.Stat(filepath.Join(own, "was-run"))
	must.ErrorIs(t, err, os.ErrNotExist)
	must.StrContains(t, tr.members[0].err.text(), "[muster] rank 3: state T")
	// Who of the two sees it first ends the other, by its report or by the
	// connection that breaks.
	y := tr.exit(1)
	must.True(t, x.Outcome == contract.OutcomeHung || y.Outcome == contract.OutcomeHung, must.Sprint(x, y))
	must.NotEq(t, contract.OutcomeComplete, x.Outcome)
	must.NotEq(t, contract.OutcomeComplete, y.Outcome)
}
