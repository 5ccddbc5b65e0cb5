//go:build cgo && linux

package nvml_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog/kernlogtest"
	"github.com/nomad-muster/muster/device/nvml"
	"github.com/nomad-muster/muster/device/nvml/nvmltest"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// rig is a whole plugin over a scripted library and a made-up kernel log, in a
// bubble of fake time.
type rig struct {
	t      *testing.T
	lib    *nvmltest.Library
	log    *kernlogtest.Log
	dir    string // state; kept over restarts
	boot   string
	root   sysfs.Root
	config map[string]any

	plugin  *device.Plugin
	monitor *device.Monitor
	cancel  context.CancelFunc
	ended   chan error

	mu    sync.Mutex
	sent  [][]nomad.Group
	lines bytes.Buffer
}

// bubble runs a test in fake time with a rig that is not started.
func bubble(t *testing.T, lib *nvmltest.Library, test func(r *rig)) {
	t.Helper()
	// In memory where that can be: the sweep starts some thousand plugins, and
	// each waits for its state to be on disk.
	dir, err := os.MkdirTemp("/dev/shm", "muster-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	root := sysfs.Root(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, lib: lib, log: kernlogtest.New("boot-1"), dir: dir, boot: "boot-1", root: root}
		defer r.stop()
		test(r)
	})
}

func (r *rig) start() {
	r.t.Helper()
	log := hclog.New(&hclog.LoggerOptions{Output: lockedWriter{r}, Level: hclog.Info})
	r.plugin = device.New(func(_ context.Context, c device.Config, m *device.Monitor, _ hclog.Logger) device.Parts {
		r.monitor = m
		return device.Parts{Sources: []device.Source{nvml.With(r.lib, nvml.Options{LinesElsewhere: true, Root: r.root})}, Logs: []device.Log{r.log.Reader()}, Boot: r.boot}
	}, log)
	config := map[string]any{"sources": []string{"nvml"}, "state_dir": r.dir}
	for k, v := range r.config {
		config[k] = v
	}
	packed, err := hclspec.Encode(r.plugin.ConfigSchema(), config, nil)
	must.NoError(r.t, err)
	must.NoError(r.t, r.plugin.SetConfig(base.Config{MsgPack: packed}))
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func() {
		r.ended <- r.plugin.Fingerprint(ctx, func(groups []nomad.Group) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			// What Nomad could not take, and what no string may hold, is a
			// failure whatever the test is about.
			if err := nomad.ValidateGroups(groups); err != nil {
				r.t.Errorf("invalid fingerprint: %v", err)
			}
			if text, err := json.Marshal(groups); err != nil || strings.Contains(string(text), `\u00`) {
				r.t.Errorf("a control character is published (or %v): %s", err, text)
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

// restart ends the plugin and starts it again on the same state.
func (r *rig) restart() {
	r.stop()
	r.start()
}

type lockedWriter struct{ r *rig }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.lines.Write(p)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.String()
}

// settle lets everything that is under way happen.
func (r *rig) settle() {
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
}

// pass lets one scan happen.
func (r *rig) pass() {
	time.Sleep(11 * time.Second)
	synctest.Wait()
}

// last is the latest fingerprint.
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

// cards prints the latest fingerprint: "id+" for a healthy card, "id-" for an
// unhealthy one.
func (r *rig) cards() string {
	var out []string
	for _, g := range r.last() {
		for _, d := range g.Devices {
			if d.Healthy {
				out = append(out, d.ID+"+")
			} else {
				out = append(out, d.ID+"-")
			}
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func (r *rig) card(id string) (nomad.Group, nomad.Device) {
	for _, g := range r.last() {
		for _, d := range g.Devices {
			if d.ID == id {
				return g, d
			}
		}
	}
	r.t.Fatalf("card %s is not published: %s", id, r.cards())
	return nomad.Group{}, nomad.Device{}
}

func (r *rig) status(id string) device.Status {
	for _, s := range r.monitor.Status() {
		if s.Card.ID == id {
			return s
		}
	}
	r.t.Fatalf("card %s is not known", id)
	return device.Status{}
}

func (r *rig) level(id string) health.Level { return r.status(id).Verdict.Level }

// xid writes a line as the driver does.
func (r *rig) xid(bus string, code int) {
	r.log.Write(time.Now(), fmt.Sprintf("NVRM: Xid (%s): %d, pid='<unknown>', name=<unknown>, x", bus, code))
	r.settle()
}

// four makes four cards GPU-a1 to GPU-a4 on buses 01 to 04.
func four() []*nvmltest.GPU {
	var out []*nvmltest.GPU
	for i := 1; i <= 4; i++ {
		out = append(out, nvmltest.Card(fmt.Sprintf("GPU-a%d", i), fmt.Sprintf("00000000:%02X:00.0", i)))
	}
	return out
}
