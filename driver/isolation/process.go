// Package isolation finds, bounds and ends the processes of a task.
//
// All processes of a task descend from its supervisor, which is their
// subreaper: an orphan becomes its child, whatever session or group it put
// itself into. Where cgroups may be made, the task has its own as well, which
// also finds processes after the supervisor itself is gone. Where they may not
// (an ordinary user), a task whose supervisor is gone is found by the variable
// contract.EnvTask that all its processes carry.
//
// "Gone" is looked at, never assumed: Kill repeats until no process is left.
package isolation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one row of the kernel's process table.
type Process struct {
	PID, Parent int
	State       byte   // R, S, D, T, Z, ...
	Command     string // as the kernel keeps it, at most 15 bytes
	Started     uint64 // ticks since boot
	// CPU time in ticks; of children only what was waited for.
	User, System, ChildUser, ChildSystem uint64
	RSS                                  uint64 // bytes
}

// Table is the process table at one moment.
type Table map[int]Process

var pageSize = uint64(os.Getpagesize())

// ReadTable reads /proc. Processes that end meanwhile are left out.
func ReadTable() (Table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	table := make(Table, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := ReadProcess(pid); err == nil {
			table[pid] = p
		}
	}
	return table, nil
}

// ReadProcess reads one row.
func ReadProcess(pid int) (Process, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(data)
}

// parseStat reads /proc/<pid>/stat. The command may hold any byte.
func parseStat(data []byte) (Process, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("no command in %q", data)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data[:open])))
	if err != nil {
		return Process{}, fmt.Errorf("no process number in %q", data)
	}
	f := bytes.Fields(data[end+1:]) // f[0] is field 3 of proc(5)
	if len(f) < 22 || len(f[0]) != 1 {
		return Process{}, fmt.Errorf("too few fields in %q", data)
	}
	number := func(field int) uint64 {
		n, e := strconv.ParseUint(string(f[field-3]), 10, 64)
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	p := Process{
		PID: pid, Parent: int(number(4)), State: f[0][0], Command: string(data[open+1 : end]), Started: number(22),
		User: number(14), System: number(15), ChildUser: number(16), ChildSystem: number(17), RSS: number(24) * pageSize,
	}
	return p, err
}

// Below gives all descendants of a process, itself not, in ascending order of
// their numbers. Zombies count: they are not gone before they are waited for.
func (t Table) Below(root int) []int {
	children := map[int][]int{}
	for pid, p := range t {
		children[p.Parent] = append(children[p.Parent], pid)
	}
	var out []int
	seen := map[int]bool{root: true}
	for queue := []int{root}; len(queue) > 0; {
		next := queue[0]
		queue = queue[1:]
		for _, child := range children[next] {
			if !seen[child] { // a table read while it changes may hold a circle
				seen[child] = true
				out = append(out, child)
				queue = append(queue, child)
			}
		}
	}
	slices.Sort(out)
	return out
}

// CatchesSignal tells whether a process has a handler for a signal.
func CatchesSignal(pid int, sig unix.Signal) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(data, []byte("\nSigCgt:"))
	if !ok {
		return false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return err == nil && sig > 0 && sig <= 64 && mask&(1<<(uint(sig)-1)) != 0
}

// Environment reads a process's environment as it was at its start.
func Environment(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, err
	}
	var out []string
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if len(entry) > 0 {
			out = append(out, string(entry))
		}
	}
	return out, nil
}

// WithEntry gives the processes whose environment has an entry NAME=value, the
// calling process not, as far as they may be read.
func WithEntry(entry string) ([]int, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	var out []int
	for pid, p := range table {
		if pid == os.Getpid() || p.State == 'Z' {
			continue
		}
		if env, err := Environment(pid); err == nil && slices.Contains(env, entry) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Finder gives the processes that are to go.
type Finder func() ([]int, error)

// Any joins finders; a process that several find counts once.
func Any(finders ...Finder) Finder {
	return func() ([]int, error) {
		var out []int
		var faults []error
		for _, find := range finders {
			pids, err := find()
			out = append(out, pids...)
			if err != nil {
				faults = append(faults, err)
			}
		}
		slices.Sort(out)
		return slices.Compact(out), errors.Join(faults...)
	}
}

// Below finds the descendants of a process.
func Below(root int) Finder {
	return func() ([]int, error) {
		table, err := ReadTable()
		if err != nil {
			return nil, err
		}
		return table.Below(root), nil
	}
}

// Kill sends SIGKILL to what find gives until it finds nothing, or ctx ends:
// then the error names what is left, and the state that it is in.
func Kill(ctx context.Context, find Finder) error {
	pause := time.Millisecond
	for {
		pids, err := find()
		if err == nil && len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			// Stopped processes die of SIGKILL too; what is gone already is fine.
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end all processes: %w", left(pids, err))
		case <-time.After(pause):
			pause = min(2*pause, 100*time.Millisecond)
		}
	}
}

func left(pids []int, err error) error {
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d are left:", len(pids))
	for _, pid := range pids {
		p, err := ReadProcess(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case p.State == 'D':
			text += fmt.Sprintf(" %d (%s, waits in the kernel and cannot be killed)", pid, p.Command)
		default:
			text += fmt.Sprintf(" %d (%s, state %c)", pid, p.Command, p.State)
		}
	}
	return errors.New(text)
}

// Signal sends a signal to processes; those that are gone already do not count.
func Signal(pids []int, sig unix.Signal) error {
	var faults []error
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			faults = append(faults, fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), pid, err))
		}
	}
	return errors.Join(faults...)
}

// HostPID gives the number here of a process that has another one in a process
// namespace of its own: among a process and its descendants, the one that calls
// itself inner. 0 where there is none.
func HostPID(root, inner int) int {
	table, err := ReadTable()
	if err != nil {
		return 0
	}
	for _, pid := range append([]int{root}, table.Below(root)...) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		// One number a namespace, the innermost last.
		_, rest, _ := bytes.Cut(data, []byte("\nNSpid:"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		if numbers := bytes.Fields(line); len(numbers) > 0 && string(numbers[len(numbers)-1]) == strconv.Itoa(inner) {
			return pid
		}
	}
	return 0
}
