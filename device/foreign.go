package device

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/sysfs"
)

// Owners tells whose a process is.
type Owners interface {
	// Owner names the user of a process that belongs to no Nomad task. Where the
	// process is a task's, or nobody can tell, foreign is false.
	Owner(pid int) (who string, foreign bool)
}

// Proc reads /proc.
type Proc struct{ Root sysfs.Root }

// housekeeping programs of the vendors hold cards open and are nobody's work.
var housekeeping = []string{"nvidia-persiste", "nvidia-cuda-mps", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "Xorg"}

// Owner reads a process's environment and control group: a task has
// NOMAD_ALLOC_ID, or runs in a group of Nomad's.
func (p Proc) Owner(pid int) (string, bool) {
	folder := fmt.Sprintf("proc/%d", pid)
	environ, ok := p.Root.Text(folder, "environ")
	if !ok || strings.Contains("\x00"+environ, "\x00NOMAD_ALLOC_ID=") {
		return "", false
	}
	if groups, ok := p.Root.Text(folder, "cgroup"); !ok || strings.Contains(groups, "nomad") {
		return "", false
	}
	name, _ := p.Root.Text(folder, "comm")
	if slices.ContainsFunc(housekeeping, func(h string) bool { return strings.HasPrefix(name, h) }) {
		return "", false
	}
	status, _ := p.Root.Text(folder, "status")
	for _, line := range strings.Split(status, "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			if u, err := user.LookupId(f[1]); err == nil {
				return u.Username, true
			}
			return "uid " + f[1], true
		}
	}
	return "an unknown user", true
}

// foreign adds to each card the processes on it that are no task's.
func foreign(s *card.Scan, owners Owners) {
	if owners == nil {
		return
	}
	for i := range s.Cards {
		c := &s.Cards[i]
		for _, p := range c.Processes {
			if who, is := owners.Owner(p.PID); is {
				c.Conditions = append(slices.Clone(c.Conditions), card.Condition{Name: health.ForeignProcess, Part: strconv.Itoa(p.PID),
					Text: fmt.Sprintf("process %d (%s) of %s belongs to no Nomad task", p.PID, p.Name, who)})
			}
		}
	}
}
