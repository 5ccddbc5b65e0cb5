package driver

import (
	"errors"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

var cpuFields = map[string]driverpb.CPUUsage_Fields{
	"System Mode":       driverpb.CPUUsage_SYSTEM_MODE,
	"User Mode":         driverpb.CPUUsage_USER_MODE,
	"Total Ticks":       driverpb.CPUUsage_TOTAL_TICKS,
	"Throttled Periods": driverpb.CPUUsage_THROTTLED_PERIODS,
	"Throttled Time":    driverpb.CPUUsage_THROTTLED_TIME,
	"Percent":           driverpb.CPUUsage_PERCENT,
}

var memoryFields = map[string]driverpb.MemoryUsage_Fields{
	"RSS":              driverpb.MemoryUsage_RSS,
	"Cache":            driverpb.MemoryUsage_CACHE,
	"Max Usage":        driverpb.MemoryUsage_MAX_USAGE,
	"Kernel Usage":     driverpb.MemoryUsage_KERNEL_USAGE,
	"Kernel Max Usage": driverpb.MemoryUsage_KERNEL_MAX_USAGE,
	"Usage":            driverpb.MemoryUsage_USAGE,
	"Swap":             driverpb.MemoryUsage_SWAP,
}

// fieldsToProto converts the names of measured fields.
func fieldsToProto[F ~int32](f *wire.Faults, known map[string]F, names []string) (out []F) {
	for _, name := range names {
		field, ok := known[name]
		if !ok {
			f.Add("measured field %q is not one that nomad knows", name)
			continue
		}
		out = append(out, field)
	}
	return out
}

// fieldsFromProto leaves out fields that it does not know.
func fieldsFromProto[F ~int32](known map[string]F, fields []F) (out []string) {
	for _, field := range fields {
		for name, f := range known {
			if f == field {
				out = append(out, name)
			}
		}
	}
	return out
}

// usageToProto always sets every part that Nomad's agent follows without
// looking.
func usageToProto(taskID string, u *TaskUsage, now time.Time) (*driverpb.TaskStatsResponse, error) {
	if u == nil {
		return nil, errors.New("no task usage")
	}
	var f wire.Faults
	at := u.At
	if at.IsZero() {
		at = now
	}
	pat, err := timeToProto(at)
	f.Check("usage", err)
	stats := &driverpb.TaskStats{Id: wire.Text(taskID), Timestamp: pat, AggResourceUsage: usagePart(&f, *u)}
	if u.ByPID != nil {
		stats.ResourceUsageByPid = make(map[string]*driverpb.TaskResourceUsage, len(u.ByPID))
	}
	for pid, part := range u.ByPID {
		f.Check("process id", wire.CheckName(pid))
		stats.ResourceUsageByPid[pid] = usagePart(&f, part)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return &driverpb.TaskStatsResponse{Stats: stats}, nil
}

func usagePart(f *wire.Faults, u TaskUsage) *driverpb.TaskResourceUsage {
	for _, n := range []struct {
		name  string
		value float64
	}{
		{"CPU system mode", u.CPU.SystemMode}, {"CPU user mode", u.CPU.UserMode},
		{"CPU total ticks", u.CPU.TotalTicks}, {"CPU percent", u.CPU.Percent},
	} {
		f.Check(n.name, wire.CheckNumber(n.value))
	}
	return &driverpb.TaskResourceUsage{
		Cpu: &driverpb.CPUUsage{
			SystemMode: u.CPU.SystemMode, UserMode: u.CPU.UserMode, TotalTicks: u.CPU.TotalTicks, Percent: u.CPU.Percent,
			ThrottledPeriods: u.CPU.ThrottledPeriods, ThrottledTime: u.CPU.ThrottledTime,
			MeasuredFields: fieldsToProto(f, cpuFields, u.CPU.Measured),
		},
		Memory: &driverpb.MemoryUsage{
			Rss: u.Memory.RSS, Cache: u.Memory.Cache, MaxUsage: u.Memory.MaxUsage, Usage: u.Memory.Usage,
			KernelUsage: u.Memory.KernelUsage, KernelMaxUsage: u.Memory.KernelMaxUsage, Swap: u.Memory.Swap,
			MeasuredFields: fieldsToProto(f, memoryFields, u.Memory.Measured),
		},
	}
}

func usageFromProto(p *driverpb.TaskStats) *TaskUsage {
	u := partFromProto(p.GetAggResourceUsage())
	u.At = timeFromProto(p.GetTimestamp())
	if m := p.GetResourceUsageByPid(); m != nil {
		u.ByPID = make(map[string]TaskUsage, len(m))
		for pid, part := range m {
			u.ByPID[pid] = partFromProto(part)
		}
	}
	return &u
}

func partFromProto(p *driverpb.TaskResourceUsage) TaskUsage {
	cpu, memory := p.GetCpu(), p.GetMemory()
	return TaskUsage{
		CPU: CPUUsage{
			SystemMode: cpu.GetSystemMode(), UserMode: cpu.GetUserMode(), TotalTicks: cpu.GetTotalTicks(), Percent: cpu.GetPercent(),
			ThrottledPeriods: cpu.GetThrottledPeriods(), ThrottledTime: cpu.GetThrottledTime(),
			Measured: fieldsFromProto(cpuFields, cpu.GetMeasuredFields()),
		},
		Memory: MemoryUsage{
			RSS: memory.GetRss(), Cache: memory.GetCache(), MaxUsage: memory.GetMaxUsage(), Usage: memory.GetUsage(),
			KernelUsage: memory.GetKernelUsage(), KernelMaxUsage: memory.GetKernelMaxUsage(), Swap: memory.GetSwap(),
			Measured: fieldsFromProto(memoryFields, memory.GetMeasuredFields()),
		},
	}
}
