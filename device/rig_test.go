package device_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/selftest"
	"github.com/nomad-muster/muster/device/simulated"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// rig is a plugin over simulated cards in a bubble of fake time.
type rig struct {
	t      *testing.T
	file   string
	state  string
	config map[string]any
	extra  []device.Source
	owners device.Owners

	plugin  *device.Plugin
	monitor *device.Monitor
	cancel  context.CancelFunc
	ended   chan error

	mu    sync.Mutex
	sent  [][]nomad.Group
	lines bytes.Buffer
	news  int // reports
}

// Report counts what a planner would be told.
func (r *rig) Report([]device.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news++
}

// bubble runs a test over node n1 of a description.
func bubble(t *testing.T, description string, test func(r *rig)) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "cards.hcl")
	must.NoError(t, os.WriteFile(file, []byte(description), 0o600))
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, file: file, state: filepath.Join(dir, "state"), config: map[string]any{}}
		defer r.stop()
		test(r)
	})
}

func encode(t *testing.T, p *device.Plugin, config map[string]any) []byte {
	t.Helper()
	packed, err := hclspec.Encode(p.ConfigSchema(), config, nil)
	must.NoError(t, err)
	return packed
}

func (r *rig) start() {
	r.t.Helper()
	log := hclog.New(&hclog.LoggerOptions{Output: (*rigLog)(r), Level: hclog.Info})
	r.plugin = device.New(func(_ context.Context, c device.Config, m *device.Monitor, _ hclog.Logger) device.Parts {
		r.monitor = m
		s := simulated.New(r.file, "n1")
		return device.Parts{Sources: append([]device.Source{s}, r.extra...), Logs: []device.Log{s}, Reporter: r, Owners: r.owners, Tester: selftest.New(c.SelfTest)}
	}, log)
	config := map[string]any{"simulated": map[string]any{"file": r.file, "node": "n1"}, "state_dir": r.state}
	for k, v := range r.config {
		config[k] = v
	}
	must.NoError(r.t, r.plugin.SetConfig(base.Config{MsgPack: encode(r.t, r.plugin, config)}))
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func() {
		r.ended <- r.plugin.Fingerprint(ctx, func(groups []nomad.Group) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := nomad.ValidateGroups(groups); err != nil {
				r.t.Errorf("invalid fingerprint: %v", err)
			}
			r.sent = append(r.sent, groups)
			return nil
		})
	}()
	r.settle()
}

func (r *rig) stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	must.NoError(r.t, <-r.ended)
	r.plugin.Close()
	r.cancel = nil
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

type rigLog rig

func (w *rigLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines.Write(p)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.String()
}

// settle lets everything that is under way happen.
func (r *rig) settle() {
	time.Sleep(500 * time.Millisecond)
	synctest.Wait()
}

// inject injects into a card, or with -1 into the node.
func (r *rig) inject(card int, words ...string) {
	r.t.Helper()
	i, err := simulated.ParseInjection(simulated.Injection{Node: "n1", Card: card}, words)
	must.NoError(r.t, err)
	must.NoError(r.t, simulated.Inject(r.file, i))
	r.settle()
}

func (r *rig) last() []nomad.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	must.Positive(r.t, len(r.sent))
	return r.sent[len(r.sent)-1]
}

func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

// card gives the card with an index that is in the machine.
func (r *rig) card(index int) device.Status {
	r.t.Helper()
	for _, s := range r.monitor.Status() {
		if s.Card.Index == index && !s.Card.IsNIC() && s.Card.Parent == "" {
			return s
		}
	}
	r.t.Fatalf("no card %d", index)
	return device.Status{}
}

// levels prints the levels of all cards that are no adapters, by index.
func (r *rig) levels() string {
	var all []device.Status
	for _, s := range r.monitor.Status() {
		if !s.Card.IsNIC() {
			all = append(all, s)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Card.Index < all[j].Card.Index })
	var out []string
	for _, s := range all {
		out = append(out, fmt.Sprintf("%d:%s", s.Card.Index, s.Verdict.Level))
	}
	return strings.Join(out, " ")
}

// healthy prints the indexes of the cards that Nomad may use.
func (r *rig) healthy() string {
	usable := map[string]bool{}
	for _, g := range r.last() {
		for _, d := range g.Devices {
			usable[d.ID] = d.Healthy
		}
	}
	var out []string
	for _, s := range r.monitor.Status() {
		if !s.Card.IsNIC() && usable[s.Card.ID] {
			out = append(out, fmt.Sprint(s.Card.Index))
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// size is what a node's devices take in Nomad's node record, as JSON.
func size(t *testing.T, groups []nomad.Group) int {
	t.Helper()
	text, err := json.Marshal(groups)
	must.NoError(t, err)
	return len(text)
}
