package taskdir

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Process names a process so that a number that was reused is not mistaken for
// it: with the tick at which it started and the boot that it ran in.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // field 22 of /proc/<pid>/stat
	Boot  string `json:"boot"`
}

var bootID = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
})

// Identify names a living process.
func Identify(pid int) (Process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	ticks, state, err := parseStat(data)
	if err != nil {
		return Process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return Process{}, fmt.Errorf("look at process %d: it is dead", pid)
	}
	return Process{PID: pid, Ticks: ticks, Boot: bootID()}, nil
}

// Alive tells whether exactly this process still lives.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p
}

// parseStat reads start time and state. The command's name, in parentheses, may
// hold anything, parentheses included.
func parseStat(data []byte) (ticks uint64, state byte, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("no command name in %q", data)
	}
	fields := bytes.Fields(data[end+1:]) // from field 3, the state
	if len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("too few fields in %q", data)
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, fields[0][0], err
}
