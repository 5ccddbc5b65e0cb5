package driver

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// tableCache shares one reading of the process table among the tasks of a node
// that are measured at the same moment.
type tableCache struct {
	mu    sync.Mutex
	table isolation.Table
	at    time.Time
}

const tableAge = 200 * time.Millisecond

func (c *tableCache) read() (isolation.Table, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < tableAge {
		return c.table, c.at, nil
	}
	table, err := isolation.ReadTable()
	if err != nil {
		return nil, time.Time{}, err
	}
	c.table, c.at = table, time.Now()
	return c.table, c.at, nil
}

// TaskStats reports usage every interval until the task is over or ctx ends.
func (p *Plugin) TaskStats(ctx context.Context, id string, interval time.Duration, send func(*driver.TaskUsage) error) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	written, err := t.start.ReadShim()
	if err != nil {
		return err
	}
	cgroup := isolation.Cgroup{Version: p.hierarchy.Version, Track: firstOr(written.Cgroups, ""), Memory: written.Memory}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last isolation.Usage
	var peak uint64
	for {
		table, at, err := p.table.read()
		if err != nil {
			return err
		}
		now := table.Sum(written.Process.PID, at)
		if user, system, ok := cgroup.ReadCPU(); ok {
			now.At, now.User, now.System = time.Now(), user, system
		}
		peak = max(peak, now.RSS)
		if now.Measure {
			u := usage(last, now, peak)
			if memory, ok := cgroup.ReadMemory(); ok {
				u.Memory = memoryOf(memory)
			}
			if err := send(u); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.done:
			return nil
		case <-ticker.C:
		}
	}
}

// memoryOf is what a cgroup counts, which says more than the sum over processes:
// pages that ranks share count once.
func memoryOf(m isolation.Memory) driver.MemoryUsage {
	u := driver.MemoryUsage{RSS: m.RSS, Cache: m.Cache, Swap: m.Swap, Usage: m.Usage, MaxUsage: m.Peak, KernelUsage: m.Kernel,
		Measured: []string{"RSS", "Cache", "Swap", "Usage", "Kernel Usage"}}
	if m.Peak > 0 {
		u.Measured = append(u.Measured, "Max Usage")
	}
	return u
}

// usage turns two sums into Nomad's terms: percent of one core since the last.
func usage(last, now isolation.Usage, peak uint64) *driver.TaskUsage {
	u := usageOf(last, now)
	u.Memory.MaxUsage = peak
	u.Memory.Measured = append(u.Memory.Measured, "Max Usage")
	u.ByPID = map[string]driver.TaskUsage{}
	for pid, own := range now.ByPID {
		u.ByPID[strconv.Itoa(pid)] = *usageOf(last.ByPID[pid], own)
	}
	return u
}

func usageOf(last, now isolation.Usage) *driver.TaskUsage {
	u := &driver.TaskUsage{At: now.At}
	u.Memory.RSS, u.Memory.Usage = now.RSS, now.RSS
	u.Memory.Measured = []string{"RSS", "Usage"}
	u.CPU.Measured = []string{"Percent", "System Mode", "User Mode", "Total Ticks"}
	if wall := now.At.Sub(last.At).Seconds(); last.Measure && wall > 0 {
		u.CPU.UserMode = max(0, (now.User-last.User).Seconds()/wall*100)
		u.CPU.SystemMode = max(0, (now.System-last.System).Seconds()/wall*100)
		u.CPU.Percent = u.CPU.UserMode + u.CPU.SystemMode
		u.CPU.TotalTicks = u.CPU.Percent / 100 * megahertz()
	}
	return u
}

// megahertz of this machine's first core; 0 where it is not told.
var megahertz = sync.OnceValue(func() float64 {
	if text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"); err == nil {
		if khz, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			return khz / 1000
		}
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(name) == "cpu MHz" {
			mhz, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return mhz
		}
	}
	return 0
})
