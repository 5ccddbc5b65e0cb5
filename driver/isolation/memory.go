package isolation

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// OOM is what the kernel did in a cgroup for want of memory.
type OOM struct {
	Kills int // processes killed
	// AtLimit says that the task came up to its own limit. Else the node as a
	// whole, or a group of it around the task, had none left.
	AtLimit bool
}

// chargeBatch is how much the kernel takes from a limit at once, and so how far
// below it the peak may stay.
const chargeBatch = 32 << 12

// OOM looks at the kernel's counts.
func (c *Cgroup) OOM() OOM {
	if c.Memory == "" {
		return OOM{}
	}
	if c.Version == 1 {
		// Not every kernel counts failures, so the peak is looked at as well.
		file := func(name string) uint64 { return readCount(filepath.Join(c.Memory, name)) }
		return OOM{Kills: int(readCounts(filepath.Join(c.Memory, "memory.oom_control"))["oom_kill"]),
			AtLimit: file("memory.failcnt")+file("memory.memsw.failcnt") > 0 || file("memory.max_usage_in_bytes")+chargeBatch >= file("memory.limit_in_bytes")}
	}
	events := readCounts(filepath.Join(c.Memory, "memory.events"))
	return OOM{Kills: int(events["oom_kill"]), AtLimit: events["oom"] > 0}
}

// Memory of a cgroup, bytes. Pages that its processes share count once.
type Memory struct {
	RSS, Cache, Kernel, Swap uint64
	Usage, Peak              uint64 // of all of it; Peak 0: the kernel does not tell (version 2 before Linux 5.19)
}

// ReadMemory reads what the cgroup's processes use; false where its memory is
// not counted.
func (c *Cgroup) ReadMemory() (m Memory, ok bool) {
	if c.Memory == "" {
		return m, false
	}
	file := func(name string) string { return filepath.Join(c.Memory, name) }
	stat := readCounts(file("memory.stat"))
	if c.Version == 1 {
		m = Memory{RSS: stat["total_rss"], Cache: stat["total_cache"], Swap: stat["total_swap"],
			Kernel: readCount(file("memory.kmem.usage_in_bytes")), Usage: readCount(file("memory.usage_in_bytes")), Peak: readCount(file("memory.max_usage_in_bytes"))}
	} else {
		m = Memory{RSS: stat["anon"], Cache: stat["file"], Kernel: stat["kernel"], Swap: readCount(file("memory.swap.current")),
			Usage: readCount(file("memory.current")), Peak: readCount(file("memory.peak"))}
	}
	return m, stat != nil
}

// ReadCPU reads the CPU time of all that ever ran in the cgroup; false where it
// is not counted (version 1, whose controller tasks do not enter).
func (c *Cgroup) ReadCPU() (user, system time.Duration, ok bool) {
	if c.Version != 2 {
		return 0, 0, false
	}
	stat := readCounts(filepath.Join(c.Track, "cpu.stat"))
	return time.Duration(stat["user_usec"]) * time.Microsecond, time.Duration(stat["system_usec"]) * time.Microsecond, stat != nil
}

// readCounts reads a control file of lines "name number"; nil where it is not
// there.
func readCounts(path string) map[string]uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	out := map[string]uint64{}
	for line := range bytes.Lines(data) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil {
			out[string(name)] = n
		}
	}
	return out
}

// readCount reads a control file of one number; 0 where it is not there.
func readCount(path string) uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	return n
}
