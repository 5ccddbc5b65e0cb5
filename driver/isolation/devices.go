package isolation

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Node is a character device of this host.
type Node struct {
	Path         string
	Major, Minor uint32
}

// ReadNode looks at a device node.
func ReadNode(path string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Node{}, fmt.Errorf("look at device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Node{}, fmt.Errorf("look at device %s: it is no character device", path)
	}
	return Node{path, unix.Major(st.Rdev), unix.Minor(st.Rdev)}, nil
}

// cardPatterns are the nodes through which cards and their fabric are used,
// control nodes included.
var cardPatterns = []string{"nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/card*", "dri/renderD*", "kfd",
	"davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc", "infiniband/*", "accel/*"}

// CardNodes gives the nodes of cards and network adapters below a folder, which
// is /dev.
func CardNodes(dev string) ([]Node, error) {
	var out []Node
	for _, pattern := range cardPatterns {
		paths, err := filepath.Glob(filepath.Join(dev, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
				continue
			}
			n, err := ReadNode(path)
			if err != nil {
				return nil, err
			}
			out = append(out, n)
		}
	}
	return out, nil
}

const (
	// miscMajor is shared by devices of all kinds: there only the nodes that
	// were found are denied.
	miscMajor = 10
	// coveredMinors are denied of every other kind, so that a card or slice that
	// comes later is out of reach as well.
	coveredMinors = 256
)

// DeviceRules gives what is denied, in the notation of the devices controller:
// every card of the node's kinds but the granted ones. (A denied range cannot
// be opened again for a part of it, so each number stands for itself.)
func DeviceRules(cards, granted []Node) []string {
	last := map[uint32]uint32{} // major -> highest minor to deny
	var out []string
	deny := func(major, minor uint32) {
		if !slices.ContainsFunc(granted, func(g Node) bool { return g.Major == major && g.Minor == minor }) {
			out = append(out, fmt.Sprintf("c %d:%d rwm", major, minor))
		}
	}
	for _, n := range cards {
		if n.Major == miscMajor {
			deny(n.Major, n.Minor)
		} else {
			last[n.Major] = max(last[n.Major], n.Minor, coveredMinors-1)
		}
	}
	for _, major := range slices.Sorted(maps.Keys(last)) {
		for minor := range last[major] + 1 {
			deny(major, minor)
		}
	}
	return out
}

// DenyCards makes a device cgroup for the task in which only the granted cards
// can be opened, by root too. It does nothing where this machine has no cards,
// or where cgroups are of version 2.
func (h Hierarchy) DenyCards(c *Cgroup, name, dev string, granted []string) error {
	mount := h.Mounts["devices"]
	if h.Version != 1 || mount == "" {
		return nil
	}
	cards, err := CardNodes(dev)
	if err != nil || len(cards) == 0 {
		return err
	}
	var nodes []Node
	for _, path := range granted {
		n, err := ReadNode(path)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	dir := filepath.Join(mount, parent, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	c.Devices = dir
	for _, rule := range DeviceRules(cards, nodes) {
		if err := writeControl(dir, "devices.deny", rule); err != nil {
			return err
		}
	}
	return nil
}
