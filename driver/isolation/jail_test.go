package isolation

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// hierarchies gives those of this machine that tasks' cgroups can be made in: a
// machine on version 1 mostly has the unified one as well.
func hierarchies(t *testing.T) map[string]Hierarchy {
	if unix.Geteuid() != 0 {
		t.Skip("needs root")
	}
	data, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	out := map[string]Hierarchy{}
	if h := Detect(); h.Version > 0 {
		out[h.String()] = h
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			h := Hierarchy{Version: 2, Mounts: map[string]string{"": unescape(f[1])}}
			if os.MkdirAll(filepath.Join(h.tracking(), parent), 0o755) == nil {
				out[h.String()] = h
			}
		}
	}
	if len(out) == 0 {
		t.Skip("no cgroup hierarchy may be used here")
	}
	return out
}

// inside runs a shell script the way the supervisor starts ranks: from a locked
// thread in the jail, confined, in the cgroup.
func inside(t *testing.T, j Jail, c *Cgroup, script string) string {
	t.Helper()
	type result struct {
		out string
		err error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		out, err := func() (string, error) {
			if err := j.Enter(); err != nil {
				return "", err
			}
			if err := Confine(); err != nil {
				return "", err
			}
			cmd := exec.Command("/bin/sh", "-c", script)
			cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}
			cmd.SysProcAttr = &syscall.SysProcAttr{}
			back := func() error { return nil }
			if c != nil {
				into, err := c.CloneInto()
				if err != nil {
					return "", err
				}
				if into != nil {
					defer into.Close()
					cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(into.Fd())
				}
				if back, err = c.EnterThread(); err != nil {
					return "", err
				}
			}
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				return "", err
			}
			if err := back(); err != nil {
				return "", err
			}
			_ = cmd.Wait()
			return out.String(), nil
		}()
		results <- result{out, err}
	}()
	r := <-results
	must.NoError(t, r.err)
	return r.out
}

func canEnter(t *testing.T) {
	if err := CanEnter(); err != nil {
		t.Skip("needs mount namespaces: ", err)
	}
}

// standIns makes nodes that answer, in place of cards: copies of /dev/zero and
// /dev/full, and one whose number no driver has.
func standIns(t *testing.T) string {
	dev := t.TempDir()
	for name, minor := range map[string]uint32{"card0": 5, "card1": 7} {
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Skip("no device node may be made here: ", err)
		}
	}
	must.NoError(t, unix.Mknod(filepath.Join(dev, "card2"), unix.S_IFCHR|0o660, int(unix.Mkdev(195, 2))))
	must.NoError(t, unix.Mknod(filepath.Join(dev, "disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 77))))
	return dev
}

// Two tasks have a card each; each opens its own and never the other's, as root
// too: not by the host's path, not by a node of its own making, not by leaving
// its cgroup.
func TestDevicesOfTwoTasks(t *testing.T) {
	canEnter(t)
	for version, h := range hierarchies(t) {
		t.Run(version, func(t *testing.T) {
			dev := t.TempDir()
			// Numbers of the memory driver, which answers on them; standard
			// devices otherwise, so the rules here leave those out.
			numbers := map[string]uint32{"a": 5, "b": 7}
			for name, minor := range numbers {
				if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
					t.Skip("no device node may be made here: ", err)
				}
			}
			for own, other := range map[string]string{"a": "b", "b": "a"} {
				name := fmt.Sprintf("card-%s-%d", own, os.Getpid())
				c, err := h.New(name, "", Limits{})
				must.NoError(t, err)
				t.Cleanup(func() { must.NoError(t, c.Remove()) })
				rules := []Rule{{Major: 1, Minor: 3, Access: "rw"}, {Major: 1, Minor: int64(numbers[own]), Access: "rwm"}, {Major: 1, Minor: 9, Access: "r"}}
				must.NoError(t, h.LimitDevices(c, name, rules))
				j := Jail{Temporary: filepath.Join(t.TempDir(), "tmp"), Show: []string{dev}, Devices: []Device{{Host: filepath.Join(dev, own), Path: "/dev/card"}}}
				out := inside(t, j, c, fmt.Sprintf(`
head -c 3 /dev/card | od -c | head -1 && echo own opened
head -c 3 %[1]s/%[2]s >/dev/null || echo other denied
mknod /tmp/other c 1 %[3]d || echo no node made
for f in $(find /sys/fs/cgroup -maxdepth 2 -name cgroup.procs -o -maxdepth 2 -name tasks); do echo 0 >$f && echo left the cgroup; done 2>/dev/null
mount -t tmpfs none /mnt || echo nothing mounted
head -c 3 /dev/urandom >/dev/null && echo urandom read
echo x >/dev/urandom || echo urandom not written
head -c 3 /dev/null && echo null works`, dev, other, numbers[other]))
				for _, want := range []string{"own opened", "other denied", "Operation not permitted", "no node made", "nothing mounted", "urandom read", "urandom not written", "null works"} {
					must.StrContains(t, out, want)
				}
				must.StrNotContains(t, out, "left the cgroup")
			}
		})
	}
}

// Without the cgroup's rules the other's card is simply not there.
func TestJailDevices(t *testing.T) {
	canEnter(t)
	dev := standIns(t)
	must.NoError(t, os.Chown(filepath.Join(dev, "card1"), 33, 44))
	must.NoError(t, os.Chmod(filepath.Join(dev, "card1"), 0o664))
	j := Jail{Temporary: filepath.Join(t.TempDir(), "tmp"), Devices: []Device{{Host: filepath.Join(dev, "card1"), Path: "/dev/infiniband/card1"}, {Host: filepath.Join(dev, "disk"), Path: "/dev/disk"}}}
	out := inside(t, j, nil, `find /dev -mindepth 1 | sort; stat -c '%F %t:%T %u %g %a' /dev/infiniband/card1 /dev/disk; tty; exec 3</dev/ptmx && ls /dev/pts; echo x >/dev/shm/x; ls -l /dev/stdin`)
	var listed []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "/dev/") {
			listed = append(listed, strings.TrimSpace(line))
		}
	}
	for _, must := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/pts/ptmx", "/dev/shm", "/dev/fd",
		"/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/infiniband", "/dev/infiniband/card1", "/dev/disk", "/dev/mqueue", "/dev/log", "/dev/hugepages"} {
		listed = remove(listed, must)
	}
	must.SliceEmpty(t, listed, must.Sprint("nothing else is there"))
	must.StrContains(t, out, "character special file 1:7 33 44 664")
	must.StrContains(t, out, "block special file 103:4d")
	_, err := os.Stat("/dev/shm/x")
	must.ErrorIs(t, err, os.ErrNotExist)
}

func remove(list []string, s string) []string {
	var out []string
	for _, l := range list {
		if l != s {
			out = append(out, l)
		}
	}
	return out
}

// What is in /tmp stays on the host, but for what the task names; what the task
// leaves there is in its own folder; nothing of it is mounted on the host.
func TestJailFiles(t *testing.T) {
	canEnter(t)
	host, other := t.TempDir(), t.TempDir() // of one test: one folder below /tmp
	must.NoError(t, os.WriteFile(filepath.Join(host, "script"), []byte("echo from the script"), 0o600))
	hidden, err := os.CreateTemp("/tmp", "hidden-*")
	must.NoError(t, err)
	t.Cleanup(func() { os.Remove(hidden.Name()) })
	data := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(data, "set"), []byte("the data"), 0o666))
	before, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)

	j := Jail{Temporary: filepath.Join(other, "tmp"), Show: []string{filepath.Join(host, "script"), "/usr/bin", "/tmp/is/not/there"},
		Mounts: []Mount{{Host: data, Path: "/tmp/mounted/here", ReadOnly: true}, {Host: filepath.Join(data, "set"), Path: "/dev/shm/file"}, {Host: "/usr", Path: "/usr"}}}
	out := inside(t, j, nil, "sh "+filepath.Join(host, "script")+"; cat /tmp/mounted/here/set; cat /dev/shm/file; echo bad >/tmp/mounted/here/set; ls "+hidden.Name()+
		"; echo mine >/tmp/mine; echo mine >/var/tmp/mine; stat -c %a /tmp; echo bad 2>/dev/null >/sys/fs/cgroup/memory/tasks; ipcs -m | wc -l")
	must.StrContains(t, out, "from the script")
	must.StrContains(t, out, "the datathe data")
	must.StrContains(t, out, "Read-only file system")
	must.StrContains(t, out, hidden.Name()+"': No such file")
	must.StrContains(t, out, "1777")
	for _, name := range []string{"tmp/mine", "tmp.var/mine"} {
		text, err := os.ReadFile(filepath.Join(other, name))
		must.NoError(t, err)
		must.Eq(t, "mine\n", string(text))
	}
	_, err = os.Stat("/tmp/mine")
	must.ErrorIs(t, err, os.ErrNotExist)
	after, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	must.StrNotContains(t, string(after), other)
	must.Eq(t, len(strings.Split(string(before), other)), len(strings.Split(string(after), other)))
}

// What cannot be mounted is said, with the path.
func TestJailFaults(t *testing.T) {
	canEnter(t)
	for want, j := range map[string]Jail{
		"/absent/on/host":  {Mounts: []Mount{{Host: "/absent/on/host", Path: "/tmp/x"}}},
		"none is made":     {Mounts: []Mount{{Host: "/usr", Path: "/absent/in/task"}}},
		"/dev/absent-card": {Devices: []Device{{Host: "/dev/absent-card"}}},
		"not below /dev":   {Devices: []Device{{Host: "/dev/null", Path: "/etc/null"}}},
	} {
		j.Temporary = filepath.Join(t.TempDir(), "tmp")
		failed := make(chan error)
		go func() {
			runtime.LockOSThread()
			failed <- j.Enter()
		}()
		must.ErrorContains(t, <-failed, want)
	}
}

func TestRules(t *testing.T) {
	dev := standIns(t)
	rules, err := Rules([]Device{{Host: filepath.Join(dev, "card2")}, {Host: filepath.Join(dev, "card2"), Access: "rw"}, {Host: filepath.Join(dev, "disk"), Access: "r"}})
	must.NoError(t, err)
	var text []string
	for _, r := range rules {
		text = append(text, r.String())
	}
	must.SliceContainsAll(t, text, []string{"c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm", "c 195:2 rwm", "b 259:77 rm"})
	must.SliceLen(t, 10, text)
	_, err = Rules([]Device{{Host: filepath.Join(dev, "absent")}})
	must.ErrorContains(t, err, "absent")
	_, err = Rules([]Device{{Host: filepath.Join(dev, "card2"), Access: "rx"}})
	must.ErrorContains(t, err, `"rx"`)
	_, err = Rules([]Device{{Host: dev}})
	must.ErrorContains(t, err, "no device")
}

func TestCardNodes(t *testing.T) {
	dev := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(dev, "infiniband"), 0o755))
	for _, name := range []string{"nvidia0", "nvidiactl", "infiniband/uverbs0", "sda"} {
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 1))); err != nil {
			t.Skip("no device node may be made here: ", err)
		}
	}
	must.NoError(t, os.WriteFile(filepath.Join(dev, "nvidia1"), nil, 0o600))
	found, err := CardNodes(dev)
	must.NoError(t, err)
	must.Eq(t, []Device{{Host: dev + "/nvidia0"}, {Host: dev + "/nvidiactl"}, {Host: dev + "/infiniband/uverbs0"}}, found)
}

func TestOutermost(t *testing.T) {
	must.Eq(t, []string{"/tmp/a", "/var/tmp/c"}, outermost([]string{"/tmp/a/b", "/tmp/a", "/usr/tmp/x", "/var/tmp/c/d", "/tmp", "/tmp/", "tmp/x"}))
}

// BenchmarkEnter is what a task's own /dev and /tmp cost at its start.
func BenchmarkEnter(b *testing.B) {
	if err := CanEnter(); err != nil {
		b.Skip("needs mount namespaces: ", err)
	}
	dir := b.TempDir()
	for i := range b.N {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			err := Jail{Temporary: filepath.Join(dir, fmt.Sprint(i)), Show: []string{dir}}.Enter()
			if err == nil {
				err = Confine()
			}
			done <- err
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
