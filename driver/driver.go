// Package driver is Muster's Nomad task driver, "torchrun".
//
// A task that Nomad starts is one member of a gang. StartTask checks its
// configuration, counts the start and launches a supervisor (package shim), and
// returns at once; from then on everything happens in the supervisor, which
// outlives this plugin and the agent. The plugin passes requests on to
// supervisors and their news on to Nomad:
//
//	StartTask    refuses a member that was released before: a released member
//	             never starts again inside its attempt
//	RecoverTask  finds the supervisor again by its process and its start time;
//	             a task that ended meanwhile gives its recorded exit; one whose
//	             supervisor died is lost, and what is left of it is killed
//	WaitTask     0 only for a complete member; see member.NomadCode
//	StopTask     the supervisor asks the ranks, with Nomad's timeout as grace
//	SignalTask   a gang record or an ask (contract.SignalRecord, SignalAsk), or
//	             a signal for the ranks
//
// Nothing a task's owner can write into its configuration ends the plugin.
package driver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// Plugin is the task driver.
type Plugin struct {
	log       hclog.Logger
	binary    string            // this program, to start supervisors and wrappers from
	agent     map[string]string // the environment that the plugin was started with
	parent    int               // the agent's process at that time
	hierarchy isolation.Hierarchy
	noJail    error // why ranks can have no /dev and /tmp of their own
	events    *eventLog
	table     tableCache

	mu     sync.Mutex
	config Config
	tasks  map[string]*task
	news   chan struct{} // closed and replaced when the fingerprint may have changed
}

var _ driver.Plugin = (*Plugin)(nil)

// New makes the driver of the program at binary, which must serve the
// subcommands shim and rank.
func New(log hclog.Logger, binary string) *Plugin {
	agent := map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		agent[name] = value
	}
	config, err := DefaultConfig()
	if err != nil {
		panic(err) // it is a constant
	}
	return &Plugin{log: log, binary: binary, agent: agent, parent: os.Getppid(), hierarchy: isolation.Detect(), noJail: isolation.CanEnter(), events: newEventLog(), config: config, tasks: map[string]*task{}, news: make(chan struct{})}
}

// Info names the plugin.
func (p *Plugin) Info() base.Info {
	return base.Info{Type: base.TypeDriver, Name: contract.DriverName, Version: buildinfo.Version}
}

// ConfigSchema describes the plugin block's config.
func (p *Plugin) ConfigSchema() *hclspec.Spec { return configSchema }

// SetConfig takes the operator's configuration. A wrong one leaves the one
// before in force.
func (p *Plugin) SetConfig(c base.Config) error {
	config, err := ParseConfig(c.MsgPack)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config = config
	close(p.news)
	p.news = make(chan struct{})
	return nil
}

func (p *Plugin) settings() (Config, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config, p.news
}

// Capabilities tell what the driver can do.
func (p *Plugin) Capabilities() driver.Capabilities {
	return driver.Capabilities{SendSignals: true, Exec: true, FSIsolation: driver.FSIsolationNone}
}

// find gives a task that this process knows.
func (p *Plugin) find(id string) (*task, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.tasks[id]
	if !ok {
		return nil, fmt.Errorf("task %s: %w", id, driver.ErrTaskNotFound)
	}
	return t, nil
}

// WaitTask returns when the task is over or ctx ends.
func (p *Plugin) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := p.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.done:
		return t.result(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// StopTask ends the task, with timeout as the grace of its ranks.
func (p *Plugin) StopTask(id string, timeout time.Duration, signal string) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	return t.stop(timeout, signal)
}

// DestroyTask forgets a task; with force it ends it first.
func (p *Plugin) DestroyTask(id string, force bool) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	select {
	case <-t.done:
	default:
		if !force {
			return fmt.Errorf("destroy task %s: it still runs", id)
		}
		if err := t.kill(); err != nil {
			return fmt.Errorf("destroy task %s: %w", id, err)
		}
	}
	t.forget()
	p.mu.Lock()
	delete(p.tasks, id)
	p.mu.Unlock()
	return nil
}

// InspectTask tells how a task stands.
func (p *Plugin) InspectTask(id string) (*driver.TaskStatus, error) {
	t, err := p.find(id)
	if err != nil {
		return nil, err
	}
	return t.inspect(), nil
}

// SignalTask delivers a record, an ask or a signal.
func (p *Plugin) SignalTask(id, signal string) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	return t.signal(signal)
}

// TaskEvents reports events of all tasks until ctx ends.
func (p *Plugin) TaskEvents(ctx context.Context, send func(*driver.TaskEvent) error) error {
	return p.events.follow(ctx, send)
}

// directory of a task's records.
func (c Config) directory(cfg *driver.TaskConfig) taskdir.Dir {
	return taskdir.Of(c.StateDir, cfg.AllocDir, cfg.AllocID, cfg.Name)
}
