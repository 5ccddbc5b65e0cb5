// Package cards finds the processes that use a card, by the device nodes that
// they hold open.
//
// Monitoring holds cards open too (NVML opens every one of them), so for a card
// that has a second node which programs open only to compute, a process counts
// when it holds both: nvidia-uvm beside an NVIDIA card, kfd beside an AMD
// render node. Nodes that all users of a machine share count by themselves
// never.
//
// Only root sees what others hold; to anybody else there is nobody.
package cards

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Holder is a process that uses a card.
type Holder struct {
	PID     int
	Command string // as the kernel keeps it, at most 15 bytes
	UID     uint32
	Node    string // of the card, as it was asked for
}

func (h Holder) String() string {
	return fmt.Sprintf("process %d (%s, user %d) holds %s", h.PID, h.Command, h.UID, h.Node)
}

// kinds of nodes that stand for one card or slice, with the node beside it that
// is opened only to compute; empty: none.
var kinds = []struct {
	name   *regexp.Regexp
	beside string // relative to the node's folder
}{
	{regexp.MustCompile(`^nvidia\d+$`), "nvidia-uvm"},
	{regexp.MustCompile(`^nvidia-cap\d+$`), ""},
	{regexp.MustCompile(`^renderD\d+$`), "../kfd"},
	{regexp.MustCompile(`^davinci\d+$`), ""},
	{regexp.MustCompile(`^accel\d+$`), ""},
}

// watched is one card's node.
type watched struct {
	path   string
	number uint64 // of the device
	beside uint64 // 0: none
}

// watch gives the nodes among granted that stand for a card alone. A slice's
// card has other slices with users of their own: then its slices' nodes count.
func watch(granted []string) (out []watched, err error) {
	slice := slices.ContainsFunc(granted, func(p string) bool { return strings.HasPrefix(filepath.Base(p), "nvidia-cap") })
	for _, path := range granted {
		name := filepath.Base(path)
		for _, kind := range kinds {
			if !kind.name.MatchString(name) || slice && kind.beside == "nvidia-uvm" {
				continue
			}
			w := watched{path: path}
			if w.number, err = number(path); err != nil {
				return nil, err
			}
			if kind.beside != "" {
				beside := filepath.Join(filepath.Dir(path), kind.beside)
				// Without the module that computing takes, nobody computes.
				if w.beside, err = number(beside); err != nil {
					continue
				}
			}
			out = append(out, w)
		}
	}
	return out, nil
}

// number of a character device.
func number(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, fmt.Errorf("look at device %s: it is no character device", path)
	}
	return st.Rdev, nil
}

// Holders gives the processes that use the cards whose nodes were granted, by
// process number, without those that own says are the task's.
func Holders(granted []string, own func(pid int) bool) ([]Holder, error) {
	nodes, err := watch(granted)
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for who uses a card: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for who uses a card: %w", err)
	}
	var out []Holder
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || own(pid) {
			continue
		}
		open := devices(pid)
		for _, n := range nodes {
			if open[n.number] && (n.beside == 0 || open[n.beside]) {
				out = append(out, holder(pid, n.path))
			}
		}
	}
	slices.SortFunc(out, func(a, b Holder) int { return a.PID - b.PID })
	return out, nil
}

// devices gives the character devices that a process holds open. A process in a
// container has them under its own paths: their numbers tell them.
func devices(pid int) map[uint64]bool {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	dir, err := os.Open(fds)
	if err != nil {
		return nil // it is gone, or another user's
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out map[uint64]bool
	for _, name := range names {
		path := fds + "/" + name
		// Sockets, pipes and the like are told by their names, which is cheap.
		if target, err := os.Readlink(path); err != nil || !strings.HasPrefix(target, "/") {
			continue
		}
		if n, err := number(path); err == nil {
			if out == nil {
				out = map[uint64]bool{}
			}
			out[n] = true
		}
	}
	return out
}

func holder(pid int, node string) Holder {
	h := Holder{PID: pid, Node: node, Command: "?"}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		h.Command = strings.TrimSpace(string(comm))
	}
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil {
		h.UID = st.Uid
	}
	return h
}
