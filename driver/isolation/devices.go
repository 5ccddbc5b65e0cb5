package isolation

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is a device node of the host that a task may use.
type Device struct {
	Host   string `json:"host"`             // path on the host
	Path   string `json:"path,omitempty"`   // path that the task sees it at; empty: Host
	Access string `json:"access,omitempty"` // of r, w and m (make); empty: rw
}

// Seen is the path that the task sees the device at.
func (d Device) Seen() string {
	if d.Path == "" {
		return d.Host
	}
	return d.Path
}

// Node is what a device node stands for.
type Node struct {
	Path         string
	Block        bool
	Major, Minor uint32
	Mode         uint32 // permission bits
	UID, GID     uint32
}

// ReadNode looks at a device node.
func ReadNode(path string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Node{}, fmt.Errorf("look at device %s: %w", path, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return Node{}, fmt.Errorf("look at device %s: it is no device", path)
	}
	return Node{Path: path, Block: kind == unix.S_IFBLK, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Mode: st.Mode & 0o777, UID: st.Uid, GID: st.Gid}, nil
}

// cardPatterns are the nodes through which cards and their fabric are used,
// control nodes included.
var cardPatterns = []string{"nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/card*", "dri/renderD*", "kfd",
	"davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc", "infiniband/*", "accel/*"}

// CardNodes gives the nodes of cards and network adapters below a folder, which
// is /dev.
func CardNodes(dev string) ([]Device, error) {
	var out []Device
	for _, pattern := range cardPatterns {
		paths, err := filepath.Glob(filepath.Join(dev, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeCharDevice != 0 {
				out = append(out, Device{Host: path})
			}
		}
	}
	return out, nil
}

// Rule lets processes use devices.
type Rule struct {
	Block        bool
	Major, Minor int64  // -1: any
	Access       string // of r, w, m
}

// String is the notation of version 1's controller.
func (r Rule) String() string {
	kind := "c"
	if r.Block {
		kind = "b"
	}
	number := func(n int64) string {
		if n < 0 {
			return "*"
		}
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s %s:%s %s", kind, number(r.Major), number(r.Minor), r.Access)
}

// standard are the devices that every task has.
var standard = []struct {
	name string
	rule Rule
}{
	{"null", Rule{Major: 1, Minor: 3, Access: "rwm"}}, {"zero", Rule{Major: 1, Minor: 5, Access: "rwm"}}, {"full", Rule{Major: 1, Minor: 7, Access: "rwm"}},
	{"random", Rule{Major: 1, Minor: 8, Access: "rwm"}}, {"urandom", Rule{Major: 1, Minor: 9, Access: "rwm"}}, {"tty", Rule{Major: 5, Minor: 0, Access: "rwm"}},
	{"", Rule{Major: 5, Minor: 2, Access: "rwm"}},    // ptmx, of the task's own terminals
	{"", Rule{Major: 136, Minor: -1, Access: "rwm"}}, // pts
}

// Rules gives what a task with these devices may use; everything else is denied.
func Rules(devices []Device) ([]Rule, error) {
	var out []Rule
	for _, s := range standard {
		out = append(out, s.rule)
	}
	for _, d := range devices {
		n, err := ReadNode(d.Host)
		if err != nil {
			return nil, err
		}
		access := d.Access
		if access == "" {
			access = "rw"
		}
		if strings.Trim(access, "rwm") != "" {
			return nil, fmt.Errorf("device %s: access %q is not made of r, w and m", d.Host, access)
		}
		if !strings.Contains(access, "m") {
			access += "m" // the node itself is made for the task
		}
		r := Rule{Block: n.Block, Major: int64(n.Major), Minor: int64(n.Minor), Access: access}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out, nil
}

// LimitDevices lets the processes of c use the devices of rules and no others,
// root's processes and nodes of their own making too.
func (h Hierarchy) LimitDevices(c *Cgroup, name string, rules []Rule) error {
	if h.Version == 2 {
		return limitByProgram(c.Track, rules)
	}
	mount := h.Mounts["devices"]
	if mount == "" {
		return fmt.Errorf("limit devices: the devices controller of cgroup version 1 is not mounted")
	}
	dir := filepath.Join(mount, parent, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	c.Devices = dir
	if err := writeControl(dir, "devices.deny", "a"); err != nil {
		return err
	}
	for _, r := range rules {
		if err := writeControl(dir, "devices.allow", r.String()); err != nil {
			return err
		}
	}
	return nil
}
