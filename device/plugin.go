// Package device is Muster's Nomad device plugin: it publishes the node's cards
// with their links and their health, hands them out, and measures them.
//
// Sources (one vendor each), kernel logs, the planner and people tell what they
// know; a registry folds it into each card's health (device/health), and the
// result goes to three readers: Nomad (device groups, whole, whenever something
// in them changes), the planner (a report of its own, within a second) and
// Prometheus. Before anything is told it is on disk.
//
// A card's fault is that card's: it becomes unhealthy with a reason, the others
// stay published as they were, and no fault is ever sent to Nomad as an error
// of the fingerprint, since Nomad would drop all cards and stop the plugin. A
// card that was seen once never disappears without a word: while nobody can
// vouch for it, it is listed as unhealthy.
package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// Plugin implements Nomad's device plugin.
type Plugin struct {
	// Build makes the parts for a configuration. It is called once, when Nomad
	// asks for the first fingerprint: Nomad also starts the plugin only to
	// check its configuration. The monitor is given so that parts can send it
	// orders; ctx ends with the plugin.
	Build func(ctx context.Context, c Config, m *Monitor, log hclog.Logger) Parts

	log  hclog.Logger
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	config  *Config
	monitor *Monitor
	ended   chan struct{}
}

// New makes a plugin that follows its cards until Close.
func New(build func(context.Context, Config, *Monitor, hclog.Logger) Parts, log hclog.Logger) *Plugin {
	ctx, stop := context.WithCancel(context.Background())
	return &Plugin{Build: build, log: log, ctx: ctx, stop: stop}
}

// Close ends everything that runs and waits for it.
func (p *Plugin) Close() {
	p.stop()
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// Info names the plugin.
func (p *Plugin) Info() base.Info {
	return base.Info{Type: base.TypeDevice, Name: contract.DevicePluginName, Version: buildinfo.String()}
}

// ConfigSchema describes the plugin block.
func (p *Plugin) ConfigSchema() *hclspec.Spec { return configSchema() }

// SetConfig takes the operator's configuration; a wrong one is one error that
// lists all faults.
func (p *Plugin) SetConfig(c base.Config) error {
	config, err := ParseConfig(c.MsgPack)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.monitor == nil {
		p.config = &config
	}
	return nil
}

// start gives the monitor, which runs from the first call on.
func (p *Plugin) start() (*Monitor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.monitor != nil {
		return p.monitor, nil
	}
	if p.config == nil {
		return nil, errors.New("the device plugin has no configuration yet")
	}
	m := NewMonitor(*p.config, Parts{}, p.log)
	m.parts = p.Build(p.ctx, *p.config, m, p.log)
	p.monitor, p.ended = m, make(chan struct{})
	go func() {
		defer close(p.ended)
		m.Run(p.ctx)
	}()
	return m, nil
}

// Fingerprint sends the device groups, and sends them again when they change.
func (p *Plugin) Fingerprint(ctx context.Context, send func([]nomad.Group) error) error {
	m, err := p.start()
	if err != nil {
		return err
	}
	var sent []nomad.Group
	var at time.Time
	for first := true; ; first = false {
		v, changed, err := m.current(ctx)
		if err != nil {
			return nil
		}
		if first || differ(sent, v.groups) {
			// Words may change often (a count in a reason); what can be used is
			// told at once.
			if wait := calm - time.Since(at); !first && wait > 0 && sameUse(sent, v.groups) {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(wait):
				case <-changed:
				}
				continue
			}
			if err := send(v.groups); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("send the fingerprint: %w", err)
			}
			p.log.Debug("fingerprint sent", "groups", len(v.groups), "cards", len(v.cards), "levels", fmt.Sprint(v.levels()))
			sent, at = v.groups, time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Reserve answers what a task needs to use exactly these cards.
func (p *Plugin) Reserve(ctx context.Context, ids []string) (*nomad.Reservation, error) {
	m, err := p.start()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	v, _, err := m.current(ctx)
	if err != nil {
		return nil, fmt.Errorf("reserve: %w", err)
	}
	return v.reserve(ids)
}
