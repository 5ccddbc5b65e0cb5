package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is a path of the host that a task sees at a path of its own.
type Mount struct {
	Host     string `json:"host"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Jail is what the processes of a task see in place of the host's:
//
//   - /dev with the standard nodes, its own terminals and shared memory, and the
//     granted devices;
//   - /tmp and /var/tmp, empty folders on the disk, except that the paths of Show
//     stay where they are;
//   - Mounts;
//   - control groups that cannot be written to;
//   - System V and POSIX inter-process communication of its own.
//
// Everything else of the host's file system stays in sight, and what the host
// mounts later appears in the task as well; nothing that the task mounts appears
// on the host. It all goes with the task's last process.
type Jail struct {
	Devices []Device
	// Temporary is the folder on the host that becomes /tmp; the one beside it,
	// with ".var" appended, becomes /var/tmp. Enter makes both.
	Temporary string
	Show      []string
	Mounts    []Mount
	// SharedIPC leaves the task the host's inter-process communication and
	// shared memory, which NVIDIA's multi-process service needs.
	SharedIPC bool
}

// EnterError says that namespaces of one's own are not to be had here.
type EnterError struct{ Err error }

func (e *EnterError) Error() string { return "make the task's own mount namespace: " + e.Err.Error() }
func (e *EnterError) Unwrap() error { return e.Err }

// CanEnter tells why no jail can be made here; nil where one can.
func CanEnter() error {
	if unix.Geteuid() != 0 {
		return errors.New("the agent does not run as root")
	}
	var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("look at the agent's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("the agent runs without CAP_SYS_ADMIN")
	}
	return nil
}

// OwnMounts moves the calling thread, which must be locked and is of no other
// use afterwards, into a mount namespace of its own, in which all is as on the
// host: what is mounted in it goes with its last process. hybrid is
// Hierarchy.Hybrid.
func OwnMounts(hybrid string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return &EnterError{err}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &EnterError{err}
	}
	// crun refuses to start where the unified hierarchy beside version 1 has
	// controllers of its own; of those it needs none.
	if hybrid != "" {
		if err := unix.Mount("tmpfs", hybrid, "tmpfs", unix.MS_RDONLY, "size=4k"); err != nil {
			return fmt.Errorf("cover %s: %w", hybrid, err)
		}
	}
	return nil
}

// Enter moves the calling thread, which must be locked and is of no other use
// afterwards, into the jail. What it starts is born there.
func (j Jail) Enter() error {
	flags := unix.CLONE_FS | unix.CLONE_NEWNS
	if !j.SharedIPC {
		flags |= unix.CLONE_NEWIPC
	}
	if err := unix.Unshare(flags); err != nil {
		return &EnterError{err}
	}
	unix.Umask(0)
	defer unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &EnterError{err}
	}
	// What is to stay in sight is opened before anything covers it.
	kept, err := j.keep()
	defer kept.close()
	if err != nil {
		return err
	}
	for _, step := range []func() error{j.dev, j.temporary, kept.show, j.control} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// bind is a path that was opened, to be mounted later.
type bind struct {
	source   *os.File
	path     string
	readOnly bool
}

type binds []bind

func (b binds) close() {
	for _, m := range b {
		m.source.Close()
	}
}

// keep opens what is to be seen through the covers.
func (j Jail) keep() (binds, error) {
	var out binds
	open := func(host, path string, readOnly bool) error {
		f, err := os.OpenFile(host, unix.O_PATH, 0)
		if err != nil {
			return fmt.Errorf("show %s to the task: %w", host, err)
		}
		out = append(out, bind{f, path, readOnly})
		return nil
	}
	for _, path := range outermost(j.Show) {
		if err := open(path, path, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
	}
	var faults []error
	for _, m := range j.Mounts {
		if m.Host == m.Path && !m.ReadOnly && !covered(m.Path) {
			continue // it is in sight
		}
		faults = append(faults, open(m.Host, m.Path, m.ReadOnly))
	}
	return out, errors.Join(faults...)
}

// covers are the folders that a jail has its own of.
var covers = []string{"/dev", "/tmp", "/var/tmp"}

func covered(path string) bool {
	return slices.ContainsFunc(covers, func(c string) bool { return strings.HasPrefix(path, c+"/") })
}

// outermost gives what of the paths has to be shown: the folders right below
// /tmp and /var/tmp that they lie in, so that what belongs together stays
// together.
func outermost(paths []string) []string {
	var out []string
	for _, path := range paths {
		path = filepath.Clean(path)
		for _, c := range covers[1:] {
			if rest, ok := strings.CutPrefix(path, c+"/"); ok {
				first, _, _ := strings.Cut(rest, "/")
				out = append(out, c+"/"+first)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// show mounts what was kept.
func (b binds) show() error {
	var faults []error
	for _, m := range b {
		if err := m.mount(); err != nil {
			faults = append(faults, fmt.Errorf("mount %s for the task: %w", m.path, err))
		}
	}
	return errors.Join(faults...)
}

func (m bind) mount() error {
	var source, target unix.Stat_t
	if err := unix.Fstat(int(m.source.Fd()), &source); err != nil {
		return err
	}
	folder := source.Mode&unix.S_IFMT == unix.S_IFDIR
	switch err := unix.Stat(m.path, &target); {
	case errors.Is(err, fs.ErrNotExist) && covered(m.path): // in a folder of the task's own
		if err := makeTarget(m.path, folder); err != nil {
			return err
		}
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no such path on the host, and none is made there: make it, or choose one below /tmp")
	case err != nil:
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", m.source.Fd()), m.path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if m.readOnly {
		return readOnly(m.path)
	}
	return nil
}

func makeTarget(path string, folder bool) error {
	if folder {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// readOnly makes a mount and those below it read-only.
func readOnly(path string) error {
	err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Before 5.12 each mount has to be told.
	data, err := os.ReadFile("/proc/thread-self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		mount := unescape(f[1])
		if mount != path && !strings.HasPrefix(mount, path+"/") {
			continue
		}
		flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
		for _, option := range strings.Split(f[3], ",") {
			flags |= map[string]uintptr{"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC}[option]
		}
		if err := unix.Mount("", mount, "", flags, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", mount, err)
		}
	}
	return nil
}

// dev covers /dev.
func (j Jail) dev() error {
	type made struct {
		node Node
		path string
		host *os.File // to be mounted where no node may be made
	}
	var nodes []made
	defer func() {
		for _, m := range nodes {
			m.host.Close()
		}
	}()
	add := func(host, path string) error {
		n, err := ReadNode(host)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(host, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		nodes = append(nodes, made{n, path, f})
		return nil
	}
	for _, s := range standard {
		if s.name == "" {
			continue
		}
		if err := add("/dev/"+s.name, "/dev/"+s.name); err != nil {
			return err
		}
	}
	for _, d := range j.Devices {
		if err := add(d.Host, d.Seen()); err != nil {
			return err
		}
	}
	var shared, huge *os.File
	for name, f := range map[string]**os.File{"shm": &shared, "hugepages": &huge} {
		if name == "shm" && !j.SharedIPC {
			continue
		}
		if opened, err := os.OpenFile("/dev/"+name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
			*f = opened
			defer opened.Close()
		}
	}
	log, _ := os.Readlink("/dev/log")

	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=1m"); err != nil {
		return fmt.Errorf("mount the task's /dev: %w", err)
	}
	if err := os.Mkdir("/dev/pts", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return fmt.Errorf("mount the task's /dev/pts: %w", err)
	}
	if err := mountDir(shared, "/dev/shm", "tmpfs", "mode=1777"); err != nil {
		return err
	}
	if !j.SharedIPC {
		_ = mountDir(nil, "/dev/mqueue", "mqueue", "") // kernels may be built without
	}
	if huge != nil {
		if err := mountDir(huge, "/dev/hugepages", "", ""); err != nil {
			return err
		}
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	if log != "" {
		links["log"] = log
	}
	for name, target := range links {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, m := range nodes {
		if err := m.node.make(m.path, m.host); err != nil {
			return fmt.Errorf("make device %s for the task: %w", m.path, err)
		}
	}
	return nil
}

// mountDir makes a folder below /dev and mounts something there.
func mountDir(from *os.File, path, kind, options string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	var err error
	if from != nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", from.Fd()), path, "", unix.MS_BIND|unix.MS_REC, "")
	} else {
		err = unix.Mount(kind, path, kind, unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		return fmt.Errorf("mount the task's %s: %w", path, err)
	}
	return nil
}

// make makes the node at path, with the owner and mode it has on the host.
func (n Node) make(path string, host *os.File) error {
	if !strings.HasPrefix(path, "/dev/") {
		return fmt.Errorf("it is not below /dev")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	kind := uint32(unix.S_IFCHR)
	if n.Block {
		kind = unix.S_IFBLK
	}
	err := unix.Mknod(path, kind|n.Mode, int(unix.Mkdev(n.Major, n.Minor)))
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil // granted twice, as control nodes are
	case errors.Is(err, unix.EPERM):
		if err := makeTarget(path, false); err != nil {
			return err
		}
		return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", host.Fd()), path, "", unix.MS_BIND, "")
	case err != nil:
		return err
	}
	return os.Lchown(path, int(n.UID), int(n.GID))
}

// temporary covers /tmp and /var/tmp.
func (j Jail) temporary() error {
	for path, host := range map[string]string{"/tmp": j.Temporary, "/var/tmp": j.Temporary + ".var"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := os.Mkdir(host, 0o1777); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the task's %s: %w", path, err)
		}
		if err := os.Chmod(host, 0o777|fs.ModeSticky); err != nil {
			return fmt.Errorf("make the task's %s: %w", path, err)
		}
	}
	// Both are opened first: they may lie below /tmp themselves.
	var found binds
	defer func() { found.close() }()
	for path, host := range map[string]string{"/tmp": j.Temporary, "/var/tmp": j.Temporary + ".var"} {
		f, err := os.OpenFile(host, unix.O_PATH|unix.O_DIRECTORY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("mount the task's %s: %w", path, err)
		}
		found = append(found, bind{source: f, path: path})
	}
	return found.show()
}

// control keeps the task's root from moving itself into another control group.
func (j Jail) control() error {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root); err != nil {
		return nil
	}
	// It may be a folder of sysfs with mounts below; a mount of its own can be
	// made read-only as a whole.
	if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the control groups read-only for the task: %w", err)
	}
	if err := readOnly(root); err != nil {
		return fmt.Errorf("make the control groups read-only for the task: %w", err)
	}
	return nil
}
