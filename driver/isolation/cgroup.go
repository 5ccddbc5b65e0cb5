package isolation

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is how this machine's cgroups look.
type Hierarchy struct {
	Version int               // 1, 2; 0: none may be made here
	Mounts  map[string]string // version 1: controller -> mount point; version 2: "" -> mount point
	Hybrid  string            // mount point of the unified hierarchy beside version 1; empty: none
	Why     string            // where Version is 0
}

// parent of all cgroups that are made for tasks.
const parent = "muster"

// Detect looks at the mounted hierarchies and whether cgroups may be made.
func Detect() Hierarchy {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return Hierarchy{Why: "the mounts cannot be read: " + err.Error()}
	}
	h := parseMounts(data)
	if h.Version == 0 {
		return h
	}
	probe := filepath.Join(h.tracking(), parent)
	if err := os.MkdirAll(probe, 0o755); err != nil {
		return Hierarchy{Why: fmt.Sprintf("no cgroup may be made in %s: %v", h.tracking(), err)}
	}
	if unix.Access(filepath.Join(probe, "cgroup.procs"), unix.W_OK) != nil {
		return Hierarchy{Why: fmt.Sprintf("cgroup %s may not be written to", probe)}
	}
	return h
}

// parseMounts reads /proc/self/mounts. Version 1 is in use where the freezer is
// mounted by itself, even beside an (empty) unified hierarchy.
func parseMounts(data []byte) Hierarchy {
	v1, unified := map[string]string{}, ""
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 4 {
			continue
		}
		mount := unescape(f[1])
		switch f[2] {
		case "cgroup2":
			unified = mount
		case "cgroup":
			for _, option := range strings.Split(f[3], ",") {
				switch option {
				case "freezer", "memory", "cpuset", "devices", "pids":
					v1[option] = mount
				}
			}
		}
	}
	switch {
	case v1["freezer"] != "":
		return Hierarchy{Version: 1, Mounts: v1, Hybrid: unified}
	case unified != "":
		return Hierarchy{Version: 2, Mounts: map[string]string{"": unified}}
	}
	return Hierarchy{Why: "no cgroup hierarchy is mounted"}
}

// unescape undoes the octal escapes of mount tables.
func unescape(s string) string {
	for _, e := range [][2]string{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, e[0], e[1])
	}
	return s
}

func (h Hierarchy) tracking() string {
	if h.Version == 1 {
		return h.Mounts["freezer"]
	}
	return h.Mounts[""]
}

// String is what the driver publishes of it.
func (h Hierarchy) String() string {
	if h.Version == 0 {
		return "none"
	}
	return fmt.Sprintf("cgroup.v%d", h.Version)
}

// Cgroup is the place of one task's processes.
type Cgroup struct {
	Version int `json:"version"`
	// Track holds exactly the task's processes, in cgroups below it too.
	Track string `json:"track"`
	// Memory is where the memory limit and the count of kills are; may be Track.
	Memory string `json:"memory,omitempty"`
	// Devices bounds which devices may be opened; empty: nothing does.
	Devices string `json:"devices,omitempty"`
	// Extra are further cgroups that processes enter, made by others (Nomad's
	// cpuset of version 1).
	Extra []string `json:"extra,omitempty"`
	// Foreign says that Track was made by Nomad, which also removes it.
	Foreign bool `json:"foreign,omitempty"`
}

// Limits of a task.
type Limits struct {
	MemoryBytes int64 // swap included; 0: none
}

// New makes a task's cgroup. nomadCgroup is the one that Nomad's client made or
// chose for the task, empty for none: on version 2 it is the task's own scope,
// on version 1 a cpuset that tasks share.
func (h Hierarchy) New(name, nomadCgroup string, limits Limits) (*Cgroup, error) {
	switch h.Version {
	case 1:
		c := &Cgroup{Version: 1, Track: filepath.Join(h.Mounts["freezer"], parent, name)}
		if err := os.MkdirAll(c.Track, 0o755); err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		if isDir(nomadCgroup) {
			c.Extra = append(c.Extra, nomadCgroup)
		}
		if m := h.Mounts["memory"]; m != "" {
			c.Memory = filepath.Join(m, parent, name)
			if err := os.MkdirAll(c.Memory, 0o755); err != nil {
				return nil, errors.Join(fmt.Errorf("make cgroup: %w", err), c.Remove())
			}
			if limits.MemoryBytes > 0 {
				limit := strconv.FormatInt(limits.MemoryBytes, 10)
				if err := writeControl(c.Memory, "memory.limit_in_bytes", limit); err != nil {
					return nil, errors.Join(err, c.Remove())
				}
				_ = writeControl(c.Memory, "memory.memsw.limit_in_bytes", limit) // with swap; kernels may not count it
			}
		}
		return c, nil
	case 2:
		c := &Cgroup{Version: 2, Track: nomadCgroup, Foreign: true}
		if !strings.HasSuffix(nomadCgroup, ".scope") || !isDir(nomadCgroup) { // not the task's own
			c.Track, c.Foreign = filepath.Join(h.Mounts[""], parent, name), false
			if err := os.MkdirAll(c.Track, 0o755); err != nil {
				return nil, fmt.Errorf("make cgroup: %w", err)
			}
			// Without the controller in the parent there is no limit; the cgroup
			// still tracks.
			_ = writeControl(h.Mounts[""], "cgroup.subtree_control", "+memory")
			_ = writeControl(filepath.Join(h.Mounts[""], parent), "cgroup.subtree_control", "+memory")
		}
		if _, err := os.Stat(filepath.Join(c.Track, "memory.max")); err == nil {
			c.Memory = c.Track
			if limits.MemoryBytes > 0 {
				if err := writeControl(c.Memory, "memory.max", strconv.FormatInt(limits.MemoryBytes, 10)); err != nil {
					return nil, errors.Join(err, c.Remove())
				}
				_ = writeControl(c.Memory, "memory.swap.max", "0") // kernels may not count it
			}
		}
		return c, nil
	}
	return nil, fmt.Errorf("make cgroup: %s", h.Why)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func writeControl(dir, file, value string) error {
	path := filepath.Join(dir, file)
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("write %q to %s: %w", value, path, err)
	}
	return nil
}

// EnterThread moves the calling thread (it must be locked) into the cgroups of
// version 1, so that what it forks is born there; back moves it out again. On
// version 2 a child is born in the cgroup by CloneInto.
func (c *Cgroup) EnterThread() (back func() error, err error) {
	if c.Version != 1 {
		return func() error { return nil }, nil
	}
	before, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("see the thread's cgroups: %w", err)
	}
	tid := strconv.Itoa(unix.Gettid())
	dirs := append([]string{c.Track}, c.Extra...)
	if c.Memory != "" && c.Memory != c.Track {
		dirs = append(dirs, c.Memory)
	}
	if c.Devices != "" {
		dirs = append(dirs, c.Devices)
	}
	var undo []string
	back = func() error {
		return elsewhere(func() error {
			var faults []error
			for _, dir := range undo {
				faults = append(faults, writeControl(dir, "tasks", tid))
			}
			return errors.Join(faults...)
		})
	}
	err = elsewhere(func() error {
		for _, dir := range dirs {
			home, err := homeOf(dir, before)
			if err == nil {
				if err = writeControl(dir, "tasks", tid); err == nil {
					undo = append(undo, home)
					continue
				}
			}
			return fmt.Errorf("enter cgroup: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, back())
	}
	return back, nil
}

// elsewhere runs on another thread: the calling one may be in a Jail, where
// control groups are read-only.
func elsewhere(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return <-done
}

// homeOf gives the cgroup that a thread is in before it enters dir, in dir's
// hierarchy: the lines of /proc/<pid>/cgroup are "id:controllers:path".
func homeOf(dir string, lines []byte) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for controller, mount := range parseMounts(mounts).Mounts {
		if mount == "" || !strings.HasPrefix(dir, mount+"/") {
			continue
		}
		for line := range strings.Lines(string(lines)) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			controllers, path, _ := strings.Cut(rest, ":")
			for _, c := range strings.Split(controllers, ",") {
				if c == controller {
					return filepath.Join(mount, path), nil
				}
			}
		}
	}
	return "", fmt.Errorf("%s is in no known hierarchy", dir)
}

// CloneInto opens the cgroup for a child to be born in; nil on version 1.
func (c *Cgroup) CloneInto() (*os.File, error) {
	if c.Version != 2 {
		return nil, nil
	}
	f, err := os.OpenFile(c.Track, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return f, nil
}

// Processes finds what is in the cgroup and below it.
func (c *Cgroup) Processes() ([]int, error) {
	var out []int
	err := filepath.WalkDir(c.Track, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		f, err := os.Open(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("read cgroup %s: %w", c.Track, err)
	}
	return out, nil
}

// Kill sends SIGKILL to all that is in the cgroup and below it in one moment, so
// that nothing gets away by forking: by cgroup.kill, or frozen meanwhile where
// the kernel has none (version 1; version 2 before Linux 5.14). It does not wait
// for them to be gone: see the function Kill.
func (c *Cgroup) Kill() error {
	if _, err := os.Stat(filepath.Join(c.Track, "cgroup.kill")); err == nil {
		return writeControl(c.Track, "cgroup.kill", "1")
	}
	if _, err := os.Stat(filepath.Join(c.Track, "freezer.state")); err == nil {
		return c.killFrozen("freezer.state", "FROZEN", "THAWED")
	}
	if _, err := os.Stat(filepath.Join(c.Track, "cgroup.freeze")); err == nil {
		return c.killFrozen("cgroup.freeze", "1", "0")
	}
	return nil // it is gone
}

// frozenWithin bounds how long Kill waits for processes to stand still; one that
// waits in the kernel may not.
const frozenWithin = 100 * time.Millisecond

func (c *Cgroup) killFrozen(file, freeze, thaw string) error {
	if err := writeControl(c.Track, file, freeze); err != nil {
		return err
	}
	for deadline := time.Now().Add(frozenWithin); !c.frozen(file) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	pids, err := c.Processes()
	return errors.Join(err, Signal(pids, unix.SIGKILL), writeControl(c.Track, file, thaw))
}

// frozen tells whether all processes stand still.
func (c *Cgroup) frozen(file string) bool {
	if file == "cgroup.freeze" {
		return readCounts(filepath.Join(c.Track, "cgroup.events"))["frozen"] == 1
	}
	state, _ := os.ReadFile(filepath.Join(c.Track, file))
	return strings.TrimSpace(string(state)) == "FROZEN"
}

// Remove removes the cgroups that New made; they must be empty.
func (c *Cgroup) Remove() error {
	dirs := []string{c.Memory, c.Devices}
	if !c.Foreign {
		dirs = append(dirs, c.Track)
	}
	var faults []error
	for _, dir := range dirs {
		if dir == "" || c.Foreign && dir == c.Track {
			continue
		}
		if err := removeTree(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(faults...)
}

// removeTree removes a cgroup and those that a task made below it. A process
// that died keeps its cgroup busy until it has been waited for, which may be
// another's business.
func removeTree(dir string) error {
	pause := time.Millisecond
	for {
		err := removeOnce(dir)
		if !errors.Is(err, unix.EBUSY) || pause > 3*time.Second {
			return err
		}
		time.Sleep(pause)
		pause *= 2
	}
}

func removeOnce(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeOnce(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// RemoveNamed removes the cgroups that New made under a name, for a task whose
// supervisor did not.
func (h Hierarchy) RemoveNamed(name string) {
	if name == "" || name == "." {
		return
	}
	for _, mount := range h.Mounts {
		_ = removeTree(filepath.Join(mount, parent, name))
	}
}
