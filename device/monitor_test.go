package device_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/simulated"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

const (
	small = `node "n1" { preset = "small-4" }`
	hgx   = `node "n1" { preset = "hgx-h100-8" }`
)

// Every injection, with what becomes of the card and what ends it.
func TestInjectionsEndToEnd(t *testing.T) {
	t.Parallel()
	type step struct {
		inject string // "card action words..."
		wait   time.Duration
		want   string
		says   string // of the card of the step
	}
	const all = "0:healthy 1:healthy 2:healthy 3:healthy"
	for name, script := range map[string][]step{
		"an application's Xid":       {{"1 xid 31", 0, all, ""}},
		"a reset is needed, seen":    {{"1 xid 48", 0, "0:healthy 1:draining 2:healthy 3:healthy", "Xid 48"}, {"1 reset", 0, "0:healthy 1:suspect 2:healthy 3:healthy", "probation"}, {"0 xid 13", 2 * time.Minute, all, ""}},
		"a reboot, seen":             {{"1 xid 119", 0, "0:healthy 1:draining 2:healthy 3:healthy", ""}, {"-1 reboot", 0, "0:healthy 1:suspect 2:healthy 3:healthy", "probation"}},
		"the driver loaded anew":     {{"1 xid 109", 0, "0:healthy 1:draining 2:healthy 3:healthy", ""}, {"-1 driver-reload", 0, "0:healthy 1:suspect 2:healthy 3:healthy", "probation"}},
		"off the bus, with its Xid":  {{"2 xid 79", 0, "0:healthy 1:healthy 2:quarantined 3:healthy", "fallen off the bus"}, {"2 reset", 0, "0:healthy 1:healthy 2:suspect 3:healthy", "probation"}},
		"off the bus, repaired late": {{"2 xid 79", 0, "0:healthy 1:healthy 2:quarantined 3:healthy", "fallen off the bus"}, {"2 reset", 16 * time.Minute, "0:healthy 1:healthy 2:quarantined 3:healthy", "fallen"}},
		"lost without a word":        {{"2 lost", 0, "0:healthy 1:healthy 2:quarantined 3:healthy", "fallen off the bus"}, {"2 clear", 0, "0:healthy 1:healthy 2:suspect 3:healthy", "probation"}},
		"a link":                     {{"0 link-down 2", 0, "0:draining 1:healthy 2:healthy 3:healthy", "link 2 is down: 3 of 4"}, {"0 clear", 0, "0:suspect 1:healthy 2:healthy 3:healthy", ""}},
		"heat":                       {{"3 thermal", 0, "0:healthy 1:healthy 2:healthy 3:suspect", "hot"}, {"3 clear", 0, all, ""}},
		"a row to be remapped":       {{"3 remap", 0, "0:healthy 1:healthy 2:healthy 3:suspect", "remapped"}, {"3 reset", 0, all, ""}},
		"a counter that races":       {{"3 counter pcie_replay 5", 0, all, ""}, {"3 counter pcie_replay 900", 0, "0:healthy 1:healthy 2:healthy 3:suspect", "pcie_replay grew by 905"}},
		"a switch":                   {{"-1 sxid 20034 Fatal, Link 30 LTSSM Fault Up", 0, "0:draining 1:draining 2:draining 3:draining", "SXid 20034"}, {"-1 reboot", 0, "0:suspect 1:suspect 2:suspect 3:suspect", ""}},
		"a switch, not fatal":        {{"-1 sxid 12028 Non-fatal, Link 32 egress", 0, all, ""}},
		"contained":                  {{"1 process train", 0, all, ""}, {"1 xid 94", 0, "0:healthy 1:suspect 2:healthy 3:healthy", "contained"}, {"1 idle", 0, all, ""}},
		"an unlisted code":           {{"1 xid 901 something new", 0, "0:healthy 1:quarantined 2:healthy 3:healthy", "something new"}},
		"any line":                   {{"1 line NVRM: GPU %BUS%.0: GPU has fallen off the bus.", 0, "0:healthy 1:quarantined 2:healthy 3:healthy", "fallen"}, {"2 line EXT4-fs: NVRM: Xid (PCI:%BUS%): 79, x", 0, "0:healthy 1:quarantined 2:healthy 3:healthy", ""}},
		"another card in the slot":   {{"1 xid 54", 0, "0:healthy 1:quarantined 2:healthy 3:healthy", ""}, {"1 swap", 0, all, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, small, func(r *rig) {
				r.config["health"] = map[string]any{"probation": "1m"}
				r.start()
				must.Eq(t, all, r.levels())
				for _, s := range script {
					time.Sleep(s.wait)
					words := strings.Fields(s.inject)
					index := -1
					_, err := fmt.Sscan(words[0], &index)
					must.NoError(t, err)
					r.inject(index, words[1:]...)
					if s.wait > 0 {
						r.settle()
					}
					must.Eq(t, s.want, r.levels(), must.Sprint(s.inject))
					if s.says != "" && index >= 0 {
						must.StrContains(t, r.card(index).Verdict.Sentence, s.says)
					}
					// A restart of the plugin changes nothing.
					before := r.levels()
					r.restart()
					must.Eq(t, before, r.levels(), must.Sprint("after a restart: ", s.inject))
				}
			})
		})
	}
}

func TestUnchangedPassSendsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		must.Eq(t, 1, r.count())
		must.Eq(t, 1, r.news)    // the first sight
		r.inject(3, "xid", "31") // nothing that Nomad is told of
		must.Eq(t, 1, r.count())
		must.Eq(t, 2, r.news) // the planner counts it
		r.inject(3, "xid", "48")
		must.Eq(t, 2, r.count())
	})
}

// From the line in the log to the report within a second.
func TestFaultIsToldAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		must.NoError(t, simulated.Inject(r.file, simulated.Injection{Node: "n1", Card: 3, Do: "xid", Code: 48}))
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		must.Eq(t, 2, r.news)
		must.Eq(t, "0 1 2 4 5 6 7", r.healthy())
	})
}

// Words that change often are sent now and then, use at once.
func TestFingerprintsArePaced(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		r.inject(0, "xid", "63") // suspect
		for i := range 40 {
			r.inject(0, "counter", "ecc_corrected", fmt.Sprint(2000+i)) // the reason's figure grows
		}
		must.LessEq(t, 15, r.count()) // in 20 s, one each 2 s at most
		r.settle()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		must.StrContains(t, r.last()[1].Devices[0].HealthDescription, "(and 1 more)")
	})
}

// The worst that a node of eight cards and eight adapters can publish.
func TestNodeStaysSmall(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		must.Less(t, 6<<10, size(t, r.last()))
		t.Logf("a healthy node: %d bytes", size(t, r.last()))
		for i := range 8 {
			r.inject(i, "xid", "901", strings.Repeat("a very long line ", 20))
			r.inject(i, "xid", "79")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		must.Eq(t, "", r.healthy())
		t.Logf("all cards quarantined: %d bytes", size(t, r.last()))
		must.Less(t, 6<<10, size(t, r.last()))
	})
}

// stuck is a source whose scan never comes back.
type stuck struct {
	fail error
	free chan struct{} // ends what hangs, at the end of the test
}

func (stuck) Name() string { return "stuck" }

func (s stuck) Scan(ctx context.Context) (card.Scan, error) {
	if s.fail != nil {
		return card.Scan{}, s.fail
	}
	<-s.free
	return card.Scan{}, ctx.Err()
}

func (s stuck) Sample(ctx context.Context) (map[string]card.Sample, error) {
	<-s.free
	return nil, ctx.Err()
}

func TestAHangingSourceHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		free := make(chan struct{})
		defer close(free)
		r.extra = []device.Source{stuck{free: free}}
		r.start()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		must.Eq(t, "0 1 2 3", r.healthy())
		must.StrContains(t, r.logged(), "source does not answer")
		r.inject(1, "xid", "48")
		must.Eq(t, "0 2 3", r.healthy())
		began := time.Now()
		must.MapLen(t, 5, r.monitor.Sample(context.Background())) // what the others measured
		must.LessEq(t, 6*time.Second, time.Since(began))
		began = time.Now()
		must.MapLen(t, 5, r.monitor.Sample(context.Background())) // the one that hangs is not asked again
		must.LessEq(t, time.Second, time.Since(began))
	})
	bubble(t, small, func(r *rig) {
		r.extra = []device.Source{stuck{fail: errors.New("out of order")}}
		r.start()
		must.Eq(t, "0 1 2 3", r.healthy())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		must.Eq(t, 1, strings.Count(r.logged(), "out of order"))
	})
}

// A source that hangs later: its cards are unhealthy until it answers.
type sometimes struct {
	device.Source
	gate chan struct{}
}

func (s *sometimes) Scan(ctx context.Context) (card.Scan, error) {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return card.Scan{}, ctx.Err()
	}
	scan, err := s.Source.Scan(ctx)
	for i := range scan.Cards {
		scan.Cards[i].ID = "other-" + scan.Cards[i].ID
		scan.Cards[i].Links = nil
	}
	return scan, err
}

func (s *sometimes) Name() string { return "sometimes" }

func TestASourceThatHangsLater(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		s := &sometimes{Source: simulated.New(r.file, "n2"), gate: make(chan struct{}, 1)}
		must.NoError(t, os.WriteFile(r.file, []byte(`node "*" { preset = "small-4" }`), 0o600))
		r.extra = []device.Source{s}
		s.gate <- struct{}{}
		r.start()
		usable := func() int {
			n := 0
			for _, g := range r.last() {
				for _, d := range g.Devices {
					if d.Healthy {
						n++
					}
				}
			}
			return n
		}
		must.Eq(t, 10, usable())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		must.Eq(t, 5, usable())
		for _, g := range r.last() {
			for _, d := range g.Devices {
				if !d.Healthy {
					must.StrContains(t, d.HealthDescription, "sometimes has not answered for 1m0s")
				}
			}
		}
		s.gate <- struct{}{}
		time.Sleep(time.Second)
		synctest.Wait()
		must.Eq(t, 10, usable())
	})
}

// A damaged record is one card's; nobody is healthy by default.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		r.inject(2, "xid", "54")
		r.stop()
		path := filepath.Join(r.state, "cards")
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		lines := strings.SplitAfter(string(text), "\n")
		at := 0
		for i, l := range lines {
			if strings.Contains(l, `"Index":2,`) && strings.Contains(l, `"gpu"`) {
				at = i
			}
		}
		must.Positive(t, at)
		lines[at] = strings.Replace(lines[at], "54", "55", 1)
		must.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600))
		must.NoError(t, os.Remove(path+".old"))
		r.start()
		must.Eq(t, "0:healthy 1:healthy 2:draining 3:healthy", r.levels())
		must.StrContains(t, r.card(2).Verdict.Sentence, "could not be read")
		must.StrContains(t, r.logged(), fmt.Sprintf("cards:%d", at+1))
	})
}

// Two plugins on one state folder would tell each other's lies.
func TestStateFolderOfAnother(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		other := &rig{t: t, file: r.file, state: r.state, config: map[string]any{}}
		defer other.stop()
		other.start()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		must.StrContains(t, other.logged(), "another plugin works on this state_dir")
		must.Eq(t, "0 1 2 3", other.healthy())
	})
}

func (r *rig) carry(o device.Order) error {
	r.t.Helper()
	out := make(chan error, 1)
	r.monitor.Carry(context.Background(), o, func(err error) { out <- err })
	err := <-out
	r.settle()
	return err
}

// The operator's way: quarantined, confirmed, repaired, tested, cleared.
func TestOperatorsFlow(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		r.inject(1, "xid", "54")
		r.inject(1, "thermal")
		r.inject(1, "link-down", "0")
		id := r.card(1).Card.ID
		must.NoError(t, r.carry(device.Order{ID: "1", Kind: health.Note, Card: id, Who: "ann", Text: "rack 7"}))
		must.NoError(t, r.carry(device.Order{ID: "2", Kind: health.Confirm, Card: id, Who: "ann", Text: "work order 12"}))
		s := r.card(1)
		must.Eq(t, health.Quarantined, s.Verdict.Level)
		must.Eq(t, "ann: work order 12", s.Health.Accepted)

		err := r.carry(device.Order{ID: "3", Kind: health.Clear, Card: id, Who: "ann"})
		must.ErrorContains(t, err, "link 0 is down") // a test that fails does not clear
		must.Eq(t, health.Quarantined, r.card(1).Verdict.Level)

		r.inject(1, "clear") // repaired
		must.Eq(t, health.Quarantined, r.card(1).Verdict.Level)
		must.NoError(t, r.carry(device.Order{ID: "4", Kind: health.Clear, Card: id, Who: "ann"}))
		must.Eq(t, "0:healthy 1:healthy 2:healthy 3:healthy", r.levels())
		var kinds []string
		for _, e := range r.card(1).Health.Log {
			kinds = append(kinds, string(e.Kind)+" "+e.Who)
		}
		must.Eq(t, []string{"note ann", "confirm ann", "test-failed ann", "test-passed ann", "clear ann"}, kinds)

		// An order is carried out once, also over a restart.
		r.inject(1, "xid", "54")
		r.restart()
		must.NoError(t, r.carry(device.Order{ID: "4", Kind: health.Clear, Card: id, Who: "ann"}))
		must.Eq(t, health.Quarantined, r.card(1).Verdict.Level)
		must.NoError(t, r.carry(device.Order{ID: "5", Kind: health.Clear, Card: id, Who: "ann", Force: true}))
		must.Eq(t, "0:healthy 1:healthy 2:healthy 3:healthy", r.levels())
		must.ErrorContains(t, r.carry(device.Order{ID: "6", Kind: health.Clear, Card: "nope"}), "not on this node")
	})
}

// The same through the state folder, without a planner.
func TestLocalOrders(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		r.inject(1, "xid", "54")
		id := r.card(1).Card.ID
		send := func(o device.Order) error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return device.SendOrder(ctx, r.state, o)
		}
		must.NoError(t, send(device.Order{Kind: health.Confirm, Card: id, Who: "ann", Text: "work order 12"}))
		r.settle()
		must.Eq(t, "ann: work order 12", r.card(1).Health.Accepted)
		must.ErrorContains(t, send(device.Order{Kind: health.Clear, Card: "nope", Who: "ann"}), "not on this node")
		must.Error(t, send(device.Order{Kind: health.Xid, Card: id, Who: "ann"}))
		must.Error(t, send(device.Order{Kind: health.Clear, Card: id}))
		r.inject(1, "remap")
		must.ErrorContains(t, send(device.Order{Kind: health.Clear, Card: id, Who: "ann"}), "self-test failed")
		r.inject(1, "clear")
		must.NoError(t, send(device.Order{Kind: health.Clear, Card: id, Who: "ann"}))
		r.settle()
		must.Eq(t, "0:healthy 1:healthy 2:healthy 3:healthy", r.levels())
		r.stop()
		must.ErrorContains(t, send(device.Order{Kind: health.Clear, Card: id, Who: "ann"}), "is the Nomad agent running")
		entries, err := os.ReadDir(filepath.Join(r.state, "orders"))
		must.NoError(t, err)
		must.SliceEmpty(t, entries) // nothing is left behind
	})
}

// A card that is gone for good is listed until somebody clears it.
func TestClearForgetsAMissingCard(t *testing.T) {
	t.Parallel()
	bubble(t, `node "n1" {
  gpu "0" { count = 3 }
}`, func(r *rig) {
		r.start()
		id := r.card(2).Card.ID
		must.NoError(t, os.WriteFile(r.file, []byte("node \"n1\" {\n  gpu \"0\" { count = 2 }\n}\n"), 0o600))
		r.settle()
		must.Eq(t, "0:healthy 1:healthy 2:draining", r.levels())
		must.StrContains(t, r.card(2).Verdict.Sentence, "not seen by simulated")
		err := r.carry(device.Order{ID: "1", Kind: health.Clear, Card: id, Who: "ann"})
		must.ErrorContains(t, err, "does not see it")
		must.NoError(t, r.carry(device.Order{ID: "2", Kind: health.Clear, Card: id, Who: "ann", Force: true}))
		must.Eq(t, "0:healthy 1:healthy", r.levels())
	})
}

func TestSitesOwnTest(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "test")
	must.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho bandwidth of $CUDA_VISIBLE_DEVICES is low >&2\nexit 3\n"), 0o700))
	bubble(t, small, func(r *rig) {
		r.config["self_test"] = map[string]any{"command": []string{script}, "timeout": "1h"}
		r.start()
		r.inject(1, "xid", "54")
		id := r.card(1).Card.ID
		// The command runs in real time, so it is asked directly.
		err := r.carry(device.Order{ID: "1", Kind: health.Clear, Card: id, Who: "ann"})
		must.ErrorContains(t, err, "bandwidth of "+id+" is low")
		must.ErrorContains(t, err, "exit status 3")
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		r.inject(0, "xid", "54")
		r.monitor.SetBreaker(context.Background(), true, time.Time{})
		r.settle()
		r.inject(1, "xid", "54")
		r.inject(2, "lost")
		must.Eq(t, "0:quarantined 1:suspect 2:draining 3:healthy", r.levels()) // what does not answer cannot be used
		r.restart()
		must.Eq(t, "0:quarantined 1:suspect 2:draining 3:healthy", r.levels())
		must.NoError(t, r.carry(device.Order{ID: "1", Kind: health.Clear, Card: r.card(0).Card.ID, Who: "ann"}))
		must.Eq(t, "0:healthy 1:suspect 2:draining 3:healthy", r.levels())
		r.monitor.SetBreaker(context.Background(), false, time.Time{})
		r.settle()
		must.Eq(t, "0:healthy 1:quarantined 2:quarantined 3:healthy", r.levels())
	})
}

func TestNICDown(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		must.NoError(t, simulated.Inject(r.file, simulated.Injection{Node: "n1", Card: -1, NIC: "mlx5_3", Do: "nic-down"}))
		r.settle()
		groups := r.last()
		bad := 0
		for _, d := range groups[0].Devices {
			if !d.Healthy {
				bad++
				must.StrContains(t, d.HealthDescription, "mlx5_3 is down")
			}
		}
		must.Eq(t, 1, bad)
		must.Eq(t, "0 1 2 3 4 5 6 7", r.healthy())
		cards, err := contract.DecodeCards(*groups[1].Attributes[contract.AttrCards].String)
		must.NoError(t, err)
		must.Eq(t, contract.HopPIX, cards.Cards[0].NICs[0].Hop)
		must.NotEq(t, "n1-mlx5_3", cards.Cards[3].NICs[0].ID) // a dead adapter is near nobody
	})
}

// Slices: a plain gpu never gets one; a fault of the card reaches each.
func TestSlices(t *testing.T) {
	t.Parallel()
	bubble(t, `node "n1" { preset = "mig-a100-2" }`, func(r *rig) {
		r.start()
		kinds := map[string]int{}
		for _, g := range r.last() {
			kinds[g.Vendor+"/"+g.Type] += len(g.Devices)
			if g.Type == contract.TypeMIG {
				must.Len(t, 1, g.Devices)
			}
		}
		must.Eq(t, map[string]int{"nvidia/gpu": 1, "nvidia/mig": 3}, kinds)
		r.inject(1, "xid", "48")
		for _, g := range r.last() {
			for _, d := range g.Devices {
				must.Eq(t, g.Type == contract.TypeGPU, d.Healthy)
			}
		}
	})
}

func TestSharedCards(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.config["shared"] = []map[string]any{{"replicas": 3, "mps": true}}
		r.start()
		groups := r.last()
		must.Len(t, 2, groups)
		g := groups[1]
		must.Eq(t, "nvidia/shared/Simulated GPU", g.ID())
		must.Len(t, 12, g.Devices)
		must.Eq(t, int64(3), *g.Attributes[contract.AttrReplicas].Int)
		whole := r.card(1).Card.ID
		res, err := r.plugin.Reserve(context.Background(), []string{whole + "::2"})
		must.NoError(t, err)
		must.Eq(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": whole, "CUDA_VISIBLE_DEVICES": whole, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M", contract.EnvCardsShared: "1"}, res.Env)
		must.Eq(t, []nomad.Mount{{TaskPath: "/tmp/nvidia-mps", HostPath: "/tmp/nvidia-mps"}}, res.Mounts)
		res, err = r.plugin.Reserve(context.Background(), []string{whole + "::2", whole + "::3"})
		must.NoError(t, err)
		must.Eq(t, whole, res.Env["CUDA_VISIBLE_DEVICES"]) // not twice
		_, err = r.plugin.Reserve(context.Background(), []string{whole})
		must.Error(t, err)
		r.inject(1, "thermal")
		r.inject(1, "xid", "48")
		bad := 0
		for _, d := range r.last()[1].Devices {
			if !d.Healthy {
				bad++
				must.StrHasPrefix(t, whole, d.ID)
			}
		}
		must.Eq(t, 3, bad)
	})
}

func TestIgnoredCards(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.start()
		id := r.card(1).Card.ID
		r.stop()
		r.config["ignored_cards"] = []string{id}
		r.start()
		must.Eq(t, "0 2 3", r.healthy())
		_, err := r.plugin.Reserve(context.Background(), []string{id})
		must.Error(t, err)
	})
}

func TestStatsStream(t *testing.T) {
	t.Parallel()
	bubble(t, hgx, func(r *rig) {
		r.start()
		r.inject(3, "process", "train")
		r.inject(3, "xid", "31")
		ctx, cancel := context.WithCancel(context.Background())
		var got [][]nomad.GroupStats
		err := r.plugin.Stats(ctx, 5*time.Second, func(s []nomad.GroupStats) error {
			must.NoError(t, nomad.ValidateStats(s))
			if got = append(got, s); len(got) == 3 {
				cancel()
			}
			return nil
		})
		must.NoError(t, err)
		must.Len(t, 2, got[2])
		s := got[2][1].Devices[r.card(3).Card.ID]
		must.Eq(t, int64(81559), *s.Summary.IntMax)
		must.Eq(t, 97.0, *s.Values["utilization"].Float)
		must.Eq(t, int64(1), *s.Values["xid/31"].Int)
		must.Eq(t, "healthy", *s.Values["health"].String)
		nic := got[2][0].Devices["n1-mlx5_0"]
		must.Eq(t, 400.0, *nic.Summary.Float)
	})
}

// absent is a source with nothing to ask on this host.
type absent struct{}

func (absent) Name() string { return "ascend" }
func (absent) Scan(context.Context) (card.Scan, error) {
	return card.Scan{Absent: "npu-smi is not installed"}, nil
}
func (absent) Sample(context.Context) (map[string]card.Sample, error) { return nil, nil }

// A host without a vendor's cards is nothing to warn of, unless the operator
// says that it has some.
func TestAbsentVendor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sources []string
		level   string
	}{{nil, "[INFO]"}, {[]string{"simulated", "ascend"}, "[WARN]"}} {
		bubble(t, small, func(r *rig) {
			r.extra = []device.Source{absent{}}
			if test.sources != nil {
				r.config["sources"] = test.sources
			}
			r.start()
			time.Sleep(time.Minute)
			r.settle()
			lines := 0
			for _, line := range strings.Split(r.logged(), "\n") {
				if strings.Contains(line, "npu-smi") {
					lines++
					must.StrContains(t, line, test.level)
				}
			}
			must.Eq(t, 1, lines, must.Sprint(r.logged()))
		})
	}
}
