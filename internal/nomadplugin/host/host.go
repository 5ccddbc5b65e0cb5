// Package host is the caller's half of Nomad's plugin protocol: it launches
// plugin binaries and talks to them in the order in which Nomad's client does.
//
// At an agent's start every configured binary is launched three times:
//
//  1. Discover: PluginInfo and ConfigSchema, then it is ended.
//  2. Discover, for a plugin that takes a configuration: SetConfig twice, both
//     times without agent facts, then it is ended.
//  3. The first use of a Device or Driver: SetConfig with agent facts, for a
//     driver also Init. This process stays.
//
// Device and Driver keep that process: after a crash the next call, or the
// running Fingerprint, launches another one. A task belongs to the process that
// started or recovered it: calls on a Task whose process is gone return
// ErrExited, and Driver.RecoverTask gives a Task of the next process.
//
// An agent that is killed leaves its plugins running; Detach forgets a process
// like that, and Driver.Attach takes it up again. (Nomad re-attaches to drivers;
// device plugins of a dead agent it ends, as EndStale does.)
//
// Differences from Nomad: two binaries with the same plugin name are an error,
// where Nomad takes the higher version; a stream or process that ends right
// after its start is tried again after a second, where Nomad does not wait.
package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// ErrExited is the error of a call to a process that is gone.
var ErrExited = base.ErrExited

// Config is a plugin block of an agent's configuration.
type Config struct {
	Name   string         // the binary's file name in Options.Dir
	Args   []string       // its arguments
	Config map[string]any // nil: the block has no config
}

// Options of Discover.
type Options struct {
	Dir     string // the agent's plugin_dir
	Configs []Config
	Env     []string     // added to this process's environment, "NAME=value"
	Logger  hclog.Logger // gets the plugins' own log lines too; nil: none
}

// Plugin is a binary that was found, asked who it is, and whose configuration
// it accepted.
type Plugin struct {
	path   string
	args   []string
	env    []string
	log    hclog.Logger
	info   base.Info
	schema *hclspec.Spec
	config []byte
}

// Info is what the plugin said of itself.
func (p *Plugin) Info() base.Info { return p.info }

// Path is the binary's.
func (p *Plugin) Path() string { return p.path }

// ConfigSchema is nil where the plugin takes no configuration.
func (p *Plugin) ConfigSchema() *hclspec.Spec { return p.schema }

// Discover makes the first two launches of every configured plugin, in order.
// A plugin that speaks none of our API versions is left out with a warning; any
// other fault is an error, and with it a Nomad agent does not start. All faults
// are reported at once.
func Discover(ctx context.Context, o Options) ([]*Plugin, error) {
	log := o.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	var plugins []*Plugin
	var faults []error
	for _, c := range o.Configs {
		p := &Plugin{path: filepath.Join(o.Dir, c.Name), args: c.Args, env: o.Env, log: log.Named(c.Name)}
		known, err := p.discover(ctx, c)
		if err != nil {
			faults = append(faults, fmt.Errorf("plugin %q: %w", c.Name, err))
			continue
		}
		if !known {
			continue
		}
		same := slices.IndexFunc(plugins, func(q *Plugin) bool {
			return q.info.Type == p.info.Type && q.info.Name == p.info.Name
		})
		if same >= 0 {
			faults = append(faults, fmt.Errorf("plugin %q: %q is a %v plugin named %q too",
				c.Name, filepath.Base(plugins[same].path), p.info.Type, p.info.Name))
			continue
		}
		plugins = append(plugins, p)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("discover plugins in %s: %w", o.Dir, err)
	}
	return plugins, nil
}

func (p *Plugin) discover(ctx context.Context, c Config) (known bool, err error) {
	if c.Name == "" || strings.ContainsRune(c.Name, filepath.Separator) {
		return false, errors.New("its name is not a file name")
	}
	if err := executable(p.path); err != nil {
		return false, err
	}
	if known, err = p.ask(ctx); err != nil || !known {
		return false, err
	}
	if p.schema == nil {
		if c.Config != nil {
			return false, errors.New("configuration not allowed but config passed")
		}
		return true, nil
	}
	config := c.Config
	if config == nil {
		config = map[string]any{} // so that defaults apply
	}
	if p.config, err = hclspec.Encode(p.schema, config, nil); err != nil {
		return false, err
	}
	return true, p.tryConfig(ctx)
}

// ask is the first launch.
func (p *Plugin) ask(ctx context.Context) (known bool, err error) {
	proc, err := p.start(ctx)
	if err != nil {
		return false, err
	}
	defer proc.end()
	info, versions, err := proc.base.Info(ctx)
	if err != nil {
		return false, fmt.Errorf("ask for its info: %w", err)
	}
	if err := info.Validate(); err != nil {
		return false, fmt.Errorf("its info is invalid: %w", err)
	}
	if !slices.Contains(versions, base.APIVersion) {
		p.log.Warn("plugin is left out: it speaks no API version of ours",
			"plugin", info.Name, "speaks", versions, "want", base.APIVersion)
		return false, nil
	}
	p.info = info
	if p.schema, err = proc.base.ConfigSchema(ctx); err != nil {
		return false, fmt.Errorf("ask for its config schema: %w", err)
	}
	return true, nil
}

// tryConfig is the second launch.
func (p *Plugin) tryConfig(ctx context.Context) error {
	proc, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer proc.end()
	for range 2 {
		if err := proc.base.SetConfig(ctx, base.Config{MsgPack: p.config, APIVersion: base.APIVersion}); err != nil {
			return fmt.Errorf("set its config: %w", err)
		}
	}
	return nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}
