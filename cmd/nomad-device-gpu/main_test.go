package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/simulated"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/host"
)

// The test binary is also the plugin, as Nomad would launch it.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_SERVE") != "" {
		serve()
		return
	}
	os.Exit(m.Run())
}

// launch starts the plugin in the order in which Nomad's client does.
func launch(t testing.TB, config map[string]any) *host.Device {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	must.NoError(t, err)
	if built := os.Getenv("MUSTER_PLUGIN"); built != "" { // a binary as it is shipped
		self = built
	}
	must.NoError(t, os.Symlink(self, filepath.Join(dir, contract.DevicePluginName)))
	log := hclog.New(&hclog.LoggerOptions{Output: testWriter{t}, Level: hclog.Info})
	plugins, err := host.Discover(t.Context(), host.Options{Dir: dir, Configs: []host.Config{{Name: contract.DevicePluginName, Config: config}}, Env: []string{"TEST_SERVE=1"}, Logger: log})
	must.NoError(t, err)
	must.Len(t, 1, plugins)
	d, err := plugins[0].Device(base.Agent{})
	must.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// follow keeps the fingerprints of a plugin.
func follow(t *testing.T, d *host.Device) <-chan []nomad.Group {
	groups := make(chan []nomad.Group, 64)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := d.Fingerprint(ctx, func(g []nomad.Group) error { groups <- g; return nil })
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("fingerprint: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return groups
}

// await reads fingerprints until one is as wanted.
func await(t *testing.T, groups <-chan []nomad.Group, what string, ok func([]nomad.Group) bool) []nomad.Group {
	t.Helper()
	late := time.After(2 * time.Minute)
	var last []nomad.Group
	for {
		select {
		case last = <-groups:
			if ok(last) {
				return last
			}
		case <-late:
			t.Fatalf("no fingerprint with %s; the last one was %+v", what, last)
		}
	}
}

func find(groups []nomad.Group, vendor, id string) nomad.Device {
	for _, g := range groups {
		for _, d := range g.Devices {
			if g.Vendor == vendor && d.ID == id {
				return d
			}
		}
	}
	return nomad.Device{}
}

// The whole way as real processes: cards appear, are reserved and measured, a
// fault reaches one of them, a crash of the plugin forgets nothing.
func TestPluginProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cards.hcl")
	must.NoError(t, os.WriteFile(file, []byte(`node "n1" { preset = "hgx-h100-8" }`), 0o600))
	d := launch(t, map[string]any{"simulated": map[string]any{"file": file, "node": "n1"}})
	fingerprints := follow(t, d)
	first := await(t, fingerprints, "groups", func(g []nomad.Group) bool { return len(g) == 2 })
	must.Eq(t, "mellanox/nic/MT4129 ConnectX-7", first[0].ID())
	must.Eq(t, "nvidia/gpu/NVIDIA H100 80GB HBM3", first[1].ID())
	must.Len(t, 8, first[1].Devices)
	cards, err := contract.DecodeCards(*first[1].Attributes[contract.AttrCards].String)
	must.NoError(t, err)
	must.Len(t, 28, cards.Links)

	ids := []string{first[1].Devices[3].ID, first[1].Devices[1].ID}
	r, err := d.Reserve(t.Context(), ids)
	must.NoError(t, err)
	must.Eq(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": ids[1] + "," + ids[0], "CUDA_VISIBLE_DEVICES": ids[1] + "," + ids[0], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, r.Env)

	ctx, cancel := context.WithCancel(t.Context())
	enough := errors.New("enough")
	err = d.Stats(ctx, time.Second, func(groups []nomad.GroupStats) error {
		must.Len(t, 2, groups)
		must.MapLen(t, 8, groups[1].Devices)
		return enough
	})
	cancel()
	must.ErrorIs(t, err, enough)

	must.NoError(t, simulated.Inject(file, simulated.Injection{Node: "n1", Card: 3, Do: "xid", Code: 79}))
	await(t, fingerprints, "card 3 unhealthy", func(g []nomad.Group) bool {
		return !find(g, "nvidia", ids[0]).Healthy && find(g, "nvidia", ids[1]).Healthy
	})
	_, err = d.Reserve(t.Context(), ids)
	must.ErrorContains(t, err, "quarantined")

	proc, running := d.Process()
	must.True(t, running)
	p, err := os.FindProcess(proc.PID)
	must.NoError(t, err)
	must.NoError(t, p.Kill())
	again := await(t, fingerprints, "all cards after the crash", func(g []nomad.Group) bool { return len(g) == 2 && len(g[1].Devices) == 8 })
	must.False(t, find(again, "nvidia", ids[0]).Healthy)
	must.StrContains(t, find(again, "nvidia", ids[0]).HealthDescription, "Xid 79")
}

// A site without a planner looks and clears with the plugin's own command.
func TestCardCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, state := filepath.Join(dir, "cards.hcl"), filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(file, []byte(`node "n1" { preset = "small-4" }`), 0o600))
	fingerprints := follow(t, launch(t, map[string]any{"simulated": map[string]any{"file": file, "node": "n1"}, "state_dir": state}))
	healthy := func(want int) func([]nomad.Group) bool {
		return func(groups []nomad.Group) bool {
			n := 0
			for _, g := range groups {
				for _, d := range g.Devices {
					if g.Vendor == "nvidia" && d.Healthy {
						n++
					}
				}
			}
			return n == want
		}
	}
	first := await(t, fingerprints, "four cards", healthy(4))
	id := first[1].Devices[2].ID
	must.NoError(t, simulated.Inject(file, simulated.Injection{Node: "n1", Card: 2, Do: "xid", Code: 54}))
	await(t, fingerprints, "three cards", healthy(3))
	run := func(args ...string) (string, error) {
		var out strings.Builder
		err := card(append([]string{"-state-dir", state, "-who", "ann"}, args...), &out)
		return out.String(), err
	}
	out, err := run("list")
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(out, "quarantined"))
	out, err = run("status", id)
	must.NoError(t, err)
	must.StrContains(t, out, "NVRM: Xid (PCI:0000:28:00): 54")
	must.StrContains(t, out, "muster card clear")
	_, err = run("confirm", id, "work", "order", "12")
	must.NoError(t, err)
	_, err = run("clear", id)
	must.NoError(t, err)
	await(t, fingerprints, "four cards again", healthy(4))
	out, err = run("status", id)
	must.NoError(t, err)
	must.StrContains(t, out, "confirm by ann work order 12")
	for _, bad := range [][]string{{}, {"clear"}, {"explode", id}, {"status", "nope"}, {"-colour", "x", "list"}} {
		_, err := run(bad...)
		must.Error(t, err, must.Sprint(bad))
	}
	must.Error(t, card([]string{"-state-dir", t.TempDir(), "list"}, io.Discard))
}

func TestWrongConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	must.NoError(t, err)
	must.NoError(t, os.Symlink(self, filepath.Join(dir, contract.DevicePluginName)))
	_, err = host.Discover(t.Context(), host.Options{Dir: dir, Env: []string{"TEST_SERVE=1"}, Configs: []host.Config{{Name: contract.DevicePluginName, Config: map[string]any{
		"sources": []string{"nvml", "abacus"}, "fingerprint_period": "soon", "prometheus": map[string]any{"address": "9400"}}}}})
	must.Error(t, err)
	for _, want := range []string{"abacus", "fingerprint_period", "prometheus.address"} {
		must.StrContains(t, err.Error(), want)
	}
}

func TestInjectCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cards.hcl")
	must.NoError(t, os.WriteFile(file, []byte(`node "n1" { preset = "small-4" }`), 0o600))
	must.NoError(t, inject([]string{"-file", file, "-node=n1", "-card", "2", "xid", "48", "a", "text"}))
	must.NoError(t, inject([]string{"-file", file, "-node", "n1", "reboot"}))
	must.NoError(t, check([]string{file}))
	text, err := os.ReadFile(simulated.JournalPath(file))
	must.NoError(t, err)
	must.StrContains(t, string(text), `"card":2,"do":"xid","code":48,"text":"a text"`)
	for _, bad := range [][]string{{}, {"-file", file}, {"-file", file, "lost"}, {"-file"}, {"-file", file, "-card", "x", "lost"}, {"-colour", "x"}, {"-file", file, "-node", "n1", "lost"}} {
		must.Error(t, inject(bad), must.Sprint(bad))
	}
	must.Error(t, check(nil))
}

// The machine's own kernel log, where this user may write to it: what a program
// wrote there condemns a card only if the operator trusts programs.
func TestRealKernelLog(t *testing.T) {
	t.Parallel()
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no kernel log to write to: %v", err)
	}
	defer kmsg.Close()
	file := filepath.Join(t.TempDir(), "cards.hcl")
	// The log keeps what earlier runs wrote, so each takes a domain of its own.
	domain := fmt.Sprintf("%04x", 0x8000+rand.N(0x7000))
	must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `node "*" {
  gpu "0" { bus = "%s:1e:00.0" }
  gpu "1" { bus = "%s:1f:00.0" }
}`, domain, domain), 0o600))
	wary := follow(t, launch(t, map[string]any{"simulated": map[string]any{"file": file, "node": "wary"}, "sources": []string{"simulated", "rdma"}}))
	trusting := follow(t, launch(t, map[string]any{"simulated": map[string]any{"file": file, "node": "trusting"}, "trust_userspace": true}))
	healthy := func(want int) func([]nomad.Group) bool {
		return func(groups []nomad.Group) bool {
			n := 0
			for _, g := range groups {
				for _, d := range g.Devices {
					if g.Vendor == "nvidia" && d.Healthy {
						n++
					}
				}
			}
			return n == want
		}
	}
	await(t, wary, "both cards", healthy(2))
	await(t, trusting, "both cards", healthy(2))
	began := time.Now()
	_, err = fmt.Fprintf(kmsg, "<3>NVRM: Xid (PCI:%s:1f:00): 48, pid=1, name=test, x\n", domain)
	must.NoError(t, err)
	await(t, trusting, "one card", healthy(1))
	t.Logf("from the kernel log to the fingerprint in %s", time.Since(began).Round(time.Millisecond))
	for len(wary) > 0 {
		must.True(t, healthy(2)(<-wary))
	}
}
