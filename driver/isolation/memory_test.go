package isolation

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// limited makes a cgroup of 16 MiB.
func limited(t *testing.T, h Hierarchy) *Cgroup {
	c, err := h.New("memory-"+strconv.Itoa(os.Getpid()), "", Limits{MemoryBytes: 16 << 20})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Remove()) })
	if c.Memory == "" {
		t.Skip("the memory controller is not in this hierarchy")
	}
	return c
}

// A process that takes more than the limit is killed, and that is counted.
func TestOOMKill(t *testing.T) {
	for version, h := range hierarchies(t) {
		t.Run(version, func(t *testing.T) {
			c := limited(t, h)
			ends := func(argv ...string) {
				cmd := exec.Command(argv[0], argv[1:]...)
				startIn(t, c, cmd)
				_ = cmd.Wait()
			}
			ends("true")
			must.Eq(t, OOM{}, c.OOM())
			ends("tail", "/dev/zero") // it keeps the last line, which has no end
			oom := c.OOM()
			must.Positive(t, oom.Kills)
			must.True(t, oom.AtLimit)
		})
	}
	must.Eq(t, OOM{}, (&Cgroup{Version: 2, Track: "/sys/fs/cgroup"}).OOM(), must.Sprint("not counted"))
}

func TestReadMemory(t *testing.T) {
	for version, h := range hierarchies(t) {
		t.Run(version, func(t *testing.T) {
			c := limited(t, h)
			// Two that share nothing but the shell's text, each with 2 MB of its own.
			cmd := exec.Command("sh", "-c", `for i in 1 2; do (head -c 2000000 /dev/zero; sleep 300) | tail & done; wait`)
			startIn(t, c, cmd)
			t.Cleanup(func() { must.NoError(t, c.Kill()); _ = cmd.Wait() })
			var m Memory
			for deadline := time.Now().Add(10 * time.Second); m.RSS < 4_000_000; time.Sleep(5 * time.Millisecond) {
				must.True(t, time.Now().Before(deadline), must.Sprint(m))
				read, ok := c.ReadMemory()
				must.True(t, ok)
				m = read
			}
			must.Between(t, m.RSS, m.Usage, 16<<20)
			must.Between(t, m.Usage, max(m.Peak, m.Usage), 16<<20)
			user, system, ok := c.ReadCPU()
			must.Eq(t, c.Version == 2, ok)
			must.Eq(t, ok, user+system > 0)
		})
	}
	_, ok := (&Cgroup{Version: 2}).ReadMemory()
	must.False(t, ok)
	_, ok = (&Cgroup{Version: 2, Memory: t.TempDir()}).ReadMemory()
	must.False(t, ok)
	_, _, ok = (&Cgroup{Version: 2, Track: t.TempDir()}).ReadCPU()
	must.False(t, ok)
}
