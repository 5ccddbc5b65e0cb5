package device_test

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
)

func TestOwner(t *testing.T) {
	t.Parallel()
	root := sysfstest.Tree(t, map[string]string{
		"proc/1/environ": "HOME=/\x00NOMAD_ALLOC_ID=abc", "proc/1/cgroup": "0::/user.slice", "proc/1/comm": "python3",
		"proc/2/environ": "HOME=/", "proc/2/cgroup": "0::/nomad.slice/share.slice/abc.train.scope", "proc/2/comm": "python3",
		"proc/3/environ": "HOME=/\x00X_NOMAD_ALLOC_ID=abc", "proc/3/cgroup": "0::/user.slice", "proc/3/comm": "python3", "proc/3/status": "Name:\tpython3\nUid:\t4242424\t0\t0\t0",
		"proc/4/environ": "", "proc/4/cgroup": "0::/system.slice", "proc/4/comm": "nvidia-persistenced",
		"proc/5/cgroup": "0::/user.slice", // its environment cannot be read: nobody is blamed
	})
	p := device.Proc{Root: root}
	for pid, want := range map[int]bool{1: false, 2: false, 3: true, 4: false, 5: false, 6: false} {
		who, foreign := p.Owner(pid)
		must.Eq(t, want, foreign, must.Sprint(pid))
		if foreign {
			must.Eq(t, "uid 4242424", who)
		}
	}
}

type owners map[int]string

func (o owners) Owner(pid int) (string, bool) { who, is := o[pid]; return who, is }

// A process of nobody's makes a card suspect while it runs, its owner named.
func TestForeignProcess(t *testing.T) {
	t.Parallel()
	bubble(t, small, func(r *rig) {
		r.owners = owners{1 << 22: "eve"}
		r.start()
		r.inject(2, "process", "miner")
		must.Eq(t, "0:healthy 1:healthy 2:suspect 3:healthy", r.levels())
		must.StrContains(t, r.card(2).Verdict.Sentence, "(miner) of eve belongs to no Nomad task")
		r.inject(2, "idle")
		must.Eq(t, "0:healthy 1:healthy 2:healthy 3:healthy", r.levels())
		must.Eq(t, health.Healthy, r.card(2).Verdict.Level)
		time.Sleep(time.Second)
	})
}
