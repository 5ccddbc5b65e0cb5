package shim

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/isolation"
)

// makeCgroup makes the task's cgroup; nil where it has none.
func (s Spec) makeCgroup() (*isolation.Cgroup, error) {
	if !s.Isolated {
		return nil, nil
	}
	cgroup, err := s.Hierarchy.New(s.Cgroup, s.NomadCgroup, isolation.Limits{MemoryBytes: s.MemoryBytes})
	if err != nil {
		return nil, fmt.Errorf("isolate the task: %w; isolation = \"none\" does without", err)
	}
	rules, err := isolation.Rules(s.devices())
	if err == nil {
		err = s.Hierarchy.LimitDevices(cgroup, s.Cgroup, rules)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep other tasks' devices from the task: %w; isolation = \"none\" does without", err), cgroup.Remove())
	}
	return cgroup, nil
}

// surround prepares the thread that the ranks are started from; with an image,
// what holds them.
func (s *supervisor) surround() error {
	spec := s.spec
	if folder := spec.Config.Checkpoint; folder != "" && spec.Jailed {
		_ = os.MkdirAll(folder, 0o777) // to be shown; the preflight tells of a fault
	}
	if spec.Config.Image == "" {
		if spec.Jailed {
			if err := spec.jail().Enter(); err != nil {
				return err
			}
		}
		if spec.Isolated || spec.Jailed {
			return isolation.Confine()
		}
		return nil
	}
	// The engine bounds what it starts, and may do all that the agent may. podman
	// makes a /dev of its own and needs the host's shared memory for its locks;
	// the others take the /dev that they find.
	engine, err := image.Find(spec.Image.Engine, spec.Image.Path)
	switch {
	case err != nil || !spec.Jailed:
		return nil // the preflight tells that there is no engine
	case engine.Name == image.Podman:
		return isolation.OwnMounts(spec.Hierarchy.Hybrid)
	}
	return spec.jail().Enter()
}

// devices are all that the task may use.
func (s Spec) devices() []isolation.Device { return slices.Concat(s.Devices, s.Common) }

// temporary is the folder that the task has for /tmp.
func (s Spec) temporary() string {
	return filepath.Join(s.Dir, fmt.Sprintf("start-%d", s.Self.Start), "tmp")
}

// jail is what the ranks see of the host. Below /tmp they see what the task's
// config and environment mention, in a shell's command line too.
func (s Spec) jail() isolation.Jail {
	c := s.Config
	show := []string{s.AllocDir, s.TaskDir, s.Dir, s.Wrapper, s.Python, c.Python, c.Script, c.Checkpoint}
	for _, list := range [][]string{c.Command, c.Args, c.PreflightCommand, slices.Collect(maps.Values(s.Env))} {
		for _, text := range list {
			show = append(show, temporaryPath.FindAllString(text, -1)...)
		}
	}
	return isolation.Jail{Devices: s.devices(), Temporary: s.temporary(), Show: show, Mounts: s.Mounts, SharedIPC: s.SharedIPC}
}

var temporaryPath = regexp.MustCompile(`/(?:var/)?tmp/[^\s"';:,()=&|<>]+`)

// removeTemporary removes what the ranks left in their /tmp.
func (s *supervisor) removeTemporary() {
	for _, path := range []string{s.spec.temporary(), s.spec.temporary() + ".var"} {
		if err := os.RemoveAll(path); err != nil {
			s.log.Warn("cannot remove the task's temporary files; they go with the allocation", "error", err)
		}
	}
}
