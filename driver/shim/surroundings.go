package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

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

// surround prepares the thread that the ranks are started from.
func (s *supervisor) surround() error {
	if s.spec.Jailed {
		if folder := s.spec.Config.Checkpoint; folder != "" {
			_ = os.MkdirAll(folder, 0o777) // to be shown; the preflight tells of a fault
		}
		if err := s.spec.jail().Enter(); err != nil {
			return err
		}
	}
	if s.spec.Isolated || s.spec.Jailed {
		return isolation.Confine()
	}
	return nil
}

// devices are all that the task may use.
func (s Spec) devices() []isolation.Device { return slices.Concat(s.Devices, s.Common) }

// temporary is the folder that the task has for /tmp.
func (s Spec) temporary() string {
	return filepath.Join(s.Dir, fmt.Sprintf("start-%d", s.Self.Start), "tmp")
}

// jail is what the ranks see of the host. Below /tmp they see what the task's
// config mentions, in a shell's command line too.
func (s Spec) jail() isolation.Jail {
	c := s.Config
	show := []string{s.AllocDir, s.TaskDir, s.Dir, s.Wrapper, s.Python, c.Python, c.Script, c.Checkpoint}
	for _, list := range [][]string{c.Command, c.Args, c.PreflightCommand, filepath.SplitList(s.Env["PATH"])} {
		for _, text := range list {
			show = append(show, temporaryPath.FindAllString(text, -1)...)
		}
	}
	return isolation.Jail{Devices: s.devices(), Temporary: s.temporary(), Show: show, Mounts: s.Mounts, SharedIPC: s.SharedIPC}
}

var temporaryPath = regexp.MustCompile(`/(?:var/)?tmp/[^\s"';:,()=&|<>]+`)

// removeTemporary removes what the ranks left in their /tmp.
func (s *supervisor) removeTemporary() {
	if !s.spec.Jailed {
		return
	}
	for _, path := range []string{s.spec.temporary(), s.spec.temporary() + ".var"} {
		if err := os.RemoveAll(path); err != nil {
			s.log.Warn("cannot remove the task's temporary files; they go with the allocation", "error", err)
		}
	}
}
