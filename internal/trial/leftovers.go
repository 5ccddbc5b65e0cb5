//go:build linux

package trial

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Running is a process of the cluster as the kernel shows it.
type Running struct {
	Pid, Parent int
	Args        []string
}

func (r Running) String() string { return fmt.Sprintf("%d %s", r.Pid, strings.Join(r.Args, " ")) }

// Processes gives the running processes whose arguments, environment and
// working folder together hold all the texts, by pid; the calling process is
// not among them, nor are those that are over and only wait to be collected.
// Looking for an allocation's id or a folder finds what belongs to it, whoever
// its parent is.
func Processes(texts ...string) ([]Running, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Running
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if pid == os.Getpid() {
			continue
		}
		args, err := os.ReadFile(folder + "/cmdline")
		if err != nil || len(args) == 0 { // gone, over or of the kernel
			continue
		}
		env, _ := os.ReadFile(folder + "/environ") // others' may not be read
		cwd, _ := os.Readlink(folder + "/cwd")
		all := string(args) + "\x00" + string(env) + "\x00" + cwd
		if slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(all, text) }) {
			continue
		}
		found = append(found, Running{Pid: pid, Parent: parentOf(folder), Args: strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")})
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Pid < found[j].Pid })
	return found, nil
}

// stat gives the fields of a process's stat file behind its name, from the
// state on; the name may hold anything.
func stat(folder string) []string {
	text, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

func parentOf(folder string) int {
	fields := stat(folder)
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// ownerFile names the process that a temporary folder belongs to, so that what
// a killed one left can be told from what is in use.
const ownerFile = "owner"

// owner is a process as no later one can be: its id with its start time.
func owner(pid int) string {
	fields := stat(fmt.Sprintf("/proc/%d", pid))
	if len(fields) < 20 {
		return ""
	}
	return fmt.Sprintf("%d %s", pid, fields[19])
}

func claim(dir string) error {
	return os.WriteFile(filepath.Join(dir, ownerFile), []byte(owner(os.Getpid())), 0o644)
}

// removeAbandoned takes down what clusters left whose process was killed.
func removeAbandoned() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return fmt.Errorf("look for abandoned clusters: %w", err)
	}
	var faults []error
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, ownerFile))
		if err != nil {
			continue // another user's, or being made just now
		}
		pid, _, _ := strings.Cut(string(text), " ")
		if n, err := strconv.Atoi(pid); err != nil || owner(n) == string(text) {
			continue
		}
		if _, err := sweep(dir); err != nil {
			faults = append(faults, err)
			continue
		}
		faults = append(faults, os.RemoveAll(dir))
	}
	return errors.Join(faults...)
}

// sweep kills what still runs of the folder and undoes mounts below it. It
// returns what it had to kill.
func sweep(dir string) ([]Running, error) {
	var killed []Running
	for range 1500 { // 30 s and more: a busy machine takes its time
		left, err := Processes(dir)
		if err != nil {
			return killed, err
		}
		if len(left) == 0 {
			return killed, unmount(dir)
		}
		for _, p := range left {
			if !slices.ContainsFunc(killed, func(k Running) bool { return k.Pid == p.Pid }) {
				killed = append(killed, p)
			}
			_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond) // the kernel takes them down; nothing tells when
	}
	return killed, fmt.Errorf("processes of %s do not die: %v", dir, killed)
}

// unmount undoes the mounts below a folder, the innermost first.
func unmount(dir string) error {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer table.Close()
	var points []string
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	var faults []error
	for _, point := range slices.Backward(points) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			faults = append(faults, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(append(faults, lines.Err())...)
}
