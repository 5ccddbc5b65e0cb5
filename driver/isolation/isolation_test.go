package isolation

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestBelow(t *testing.T) {
	table := Table{1: {PID: 1}, 2: {PID: 2, Parent: 1}, 3: {PID: 3, Parent: 2}, 4: {PID: 4, Parent: 3, State: 'Z'}, 5: {PID: 5, Parent: 1}, 7: {PID: 7, Parent: 8}, 8: {PID: 8, Parent: 7}}
	must.Eq(t, []int{3, 4}, table.Below(2))
	must.Eq(t, []int{2, 3, 4, 5}, table.Below(1))
	must.SliceEmpty(t, table.Below(5))
	must.Eq(t, []int{8}, table.Below(7), must.Sprint("a circle ends"))
}

func TestSum(t *testing.T) {
	table := Table{
		1: {PID: 1, User: 1000, ChildUser: 50, ChildSystem: 5},
		2: {PID: 2, Parent: 1, User: 10, System: 2, ChildUser: 3, RSS: 4096},
		3: {PID: 3, Parent: 2, User: 1, RSS: 4096},
		4: {PID: 4, Parent: 2, State: 'Z', User: 99},
		9: {PID: 9, Parent: 0, User: 1e6},
	}
	u := table.Sum(1, time.Unix(1, 0))
	must.Eq(t, 640*time.Millisecond, u.User)
	must.Eq(t, 70*time.Millisecond, u.System)
	must.Eq(t, 8192, u.RSS)
	must.Eq(t, 2, len(u.ByPID))
	must.False(t, Table{}.Sum(1, time.Unix(1, 0)).Measure)
}

// A process that calls setsid and whose parent ends is still found, through
// the variable that it carries, and ended.
func TestKillFindsWhatHides(t *testing.T) {
	entry := "MUSTER_TASK=" + t.Name() + strconv.Itoa(os.Getpid())
	cmd := exec.Command("sh", "-c", "setsid sh -c 'trap \"\" TERM; sleep 300 & wait' & sleep 0.2")
	cmd.Env = append(os.Environ(), entry)
	must.NoError(t, cmd.Run())
	find := func() ([]int, error) { return WithEntry(entry) }
	pids, err := find()
	must.NoError(t, err)
	must.SliceNotEmpty(t, pids)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must.NoError(t, Kill(ctx, find))
	pids, err = find()
	must.NoError(t, err)
	must.SliceEmpty(t, pids)
}

func TestKillNamesWhatIsLeft(t *testing.T) {
	// A zombie cannot be killed; here it is nobody's business but ours to wait.
	cmd := exec.Command("true")
	must.NoError(t, cmd.Start())
	for {
		p, err := ReadProcess(cmd.Process.Pid)
		must.NoError(t, err)
		if p.State == 'Z' {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := Kill(ctx, func() ([]int, error) { return []int{cmd.Process.Pid}, nil })
	must.ErrorContains(t, err, strconv.Itoa(cmd.Process.Pid)+" (")
	must.NoError(t, cmd.Wait())
}

func TestCatchesSignal(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	_, err = out.Read(make([]byte, 6))
	must.NoError(t, err)
	must.True(t, CatchesSignal(cmd.Process.Pid, unix.SIGUSR1))
	must.False(t, CatchesSignal(cmd.Process.Pid, unix.SIGUSR2))
	must.False(t, CatchesSignal(-1, unix.SIGUSR1))
}

func TestParseMounts(t *testing.T) {
	hybrid := "cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0\ncgroup /sys/fs/cgroup/my\\040mem cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
	must.Eq(t, Hierarchy{Version: 1, Mounts: map[string]string{"freezer": "/sys/fs/cgroup/freezer", "memory": "/sys/fs/cgroup/my mem"}, Hybrid: "/sys/fs/cgroup/unified"}, parseMounts([]byte(hybrid)))
	must.Eq(t, Hierarchy{Version: 2, Mounts: map[string]string{"": "/sys/fs/cgroup"}}, parseMounts([]byte("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")))
	must.Eq(t, "none", parseMounts([]byte("proc /proc proc rw 0 0")).String())
}

// Processes are born in the task's cgroup, and the thread that forked them
// comes back from it.
func TestCgroup(t *testing.T) {
	h := Detect()
	if h.Version == 0 {
		t.Skip(h.Why)
	}
	c, err := h.New("test-"+strconv.Itoa(os.Getpid()), "", Limits{MemoryBytes: 64 << 20})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Remove()) })
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.ReadFile("/proc/thread-self/cgroup")
	must.NoError(t, err)

	cmd := exec.Command("sh", "-c", "sleep 300 & setsid sleep 300 & wait")
	startIn(t, c, cmd)
	after, err := os.ReadFile("/proc/thread-self/cgroup")
	must.NoError(t, err)
	must.Eq(t, string(before), string(after))

	for len(pids(t, c)) < 3 {
		time.Sleep(time.Millisecond)
	}
	must.True(t, slices.Contains(pids(t, c), cmd.Process.Pid))
	must.Eq(t, 0, c.OOM().Kills)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() { _ = cmd.Wait() }()
	must.NoError(t, Kill(ctx, c.Processes))
}

// startIn starts a command in a cgroup, as the supervisor does.
func startIn(t *testing.T, c *Cgroup, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &unix.SysProcAttr{}
	into, err := c.CloneInto()
	must.NoError(t, err)
	if into != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(into.Fd())
		defer into.Close()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	back, err := c.EnterThread()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	must.NoError(t, back())
}

// The scope that Nomad's client makes for a task on version 2 is the task's
// cgroup: it gets the limit, and Nomad removes it.
func TestNomadsScope(t *testing.T) {
	h, ok := hierarchies(t)["cgroup.v2"]
	if !ok {
		t.Skip("no hierarchy of version 2 here")
	}
	slice := filepath.Join(h.Mounts[""], "nomad-test-"+strconv.Itoa(os.Getpid())+".slice")
	scope := filepath.Join(slice, "alloc.train.scope")
	must.NoError(t, os.MkdirAll(scope, 0o755))
	t.Cleanup(func() { must.NoError(t, removeTree(slice)) })
	for _, dir := range []string{h.Mounts[""], slice} {
		_ = writeControl(dir, "cgroup.subtree_control", "+memory") // as Nomad does, where it can
	}
	c, err := h.New("unused", scope, Limits{MemoryBytes: 32 << 20})
	must.NoError(t, err)
	must.Eq(t, scope, c.Track)
	if c.Memory != "" {
		limit, err := os.ReadFile(filepath.Join(scope, "memory.max"))
		must.NoError(t, err)
		must.Eq(t, "33554432\n", string(limit))
	}
	cmd := exec.Command("sleep", "300")
	startIn(t, c, cmd)
	must.Eq(t, []int{cmd.Process.Pid}, pids(t, c))
	must.NoError(t, c.Kill())
	_ = cmd.Wait()
	must.NoError(t, c.Remove())
	must.True(t, isDir(scope))
}

// Processes that replace themselves all the time, each by a child in a session
// of its own, do not get away.
func TestKillIsOneMoment(t *testing.T) {
	for version, h := range hierarchies(t) {
		t.Run(version, func(t *testing.T) {
			c, err := h.New("flee-"+strconv.Itoa(os.Getpid()), "", Limits{})
			must.NoError(t, err)
			t.Cleanup(func() { must.NoError(t, c.Remove()) })
			cmd := exec.Command("sh", "-c", `flee() { (flee) & }; for i in 1 2 3 4; do setsid sh -c 'flee() { (flee) & }; flee' & done; sleep 300 & kill -STOP $!; wait`)
			startIn(t, c, cmd)
			seen := map[int]bool{}
			for deadline := time.Now().Add(10 * time.Second); len(seen) < 50; { // they flee
				must.True(t, time.Now().Before(deadline))
				for _, pid := range pids(t, c) {
					seen[pid] = true
				}
			}
			must.NoError(t, c.Kill())
			_ = cmd.Wait()
			for deadline := time.Now().Add(10 * time.Second); len(pids(t, c)) > 0; time.Sleep(time.Millisecond) {
				must.True(t, time.Now().Before(deadline), must.Sprint(pids(t, c)))
			}
			must.NoError(t, c.Kill(), must.Sprint("an empty one"))
		})
	}
	must.NoError(t, (&Cgroup{Track: "/sys/fs/cgroup/is/not/there"}).Kill())
}

func pids(t *testing.T, c *Cgroup) []int {
	out, err := c.Processes()
	must.NoError(t, err)
	return out
}

func FuzzParseStat(f *testing.F) {
	own, _ := os.ReadFile("/proc/self/stat")
	f.Add(own)
	for _, s := range []string{"", "1 (a", "1 ) (", "7 (a) b) S 1 7 7 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 4711 4096 12 1", "x (y) S 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseStat(data)
		if err == nil {
			must.True(t, strings.Contains(string(data), p.Command))
			must.NotEq(t, 0, p.State)
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	own, _ := os.ReadFile("/proc/self/mounts")
	f.Add(own)
	f.Add([]byte("cgroup \\040 cgroup freezer"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := parseMounts(data)
		must.True(t, h.Version == 0 || h.tracking() != "")
	})
}
