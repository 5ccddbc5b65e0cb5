//go:build cgo && linux

// Package nvmltest is a scripted stand-in for NVIDIA's library: cards are plain
// values, and any call can be made to fail for any card. A call that is not
// scripted panics, so that a test notices a new one.
package nvmltest

import (
	"encoding/binary"
	"errors"
	"maps"
	"sort"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is the stand-in. Its methods may be called from several goroutines;
// its fields are changed through Change.
type Library struct {
	nvml.Interface
	mu sync.Mutex

	GPUs []*GPU
	// Fail answers for a call (the method's name) of a card (its UUID; empty:
	// the library itself); SUCCESS lets it through.
	Fail func(call, uuid string) nvml.Return
	// Missing functions, as in an old driver.
	Missing map[string]bool
	// Events are given out by waits, in order; then waits end with WaitEnds
	// after the time that was asked for, or at once where it is an error other
	// than TIMEOUT.
	Events     []nvml.EventData
	WaitEnds   nvml.Return
	registered map[string]bool
	calls      map[string]int
}

// GPU is one card, or one slice.
type GPU struct {
	nvml.Device
	lib *Library

	UUID, Name, Serial string
	BusID              [32]int8
	Minor              int
	Memory, Used       uint64 // MiB
	Energy             uint64
	Replays            int
	ECC                [2]uint64 // corrected, uncorrected
	Fields             map[uint32]uint64
	Throttle           uint64
	RemapPending       bool
	RemapFailed        bool
	Processes          []nvml.ProcessInfo
	Links              map[int]Link
	Fabric             nvml.GpuFabricInfo
	MIG, MIGPending    bool
	MaxSlices          int
	Slices             map[int]*GPU // by index, with holes
	SliceErrors        map[int]nvml.Return
	GI, CI             int
	Attributes         nvml.DeviceAttributes
}

// Link is one NVLink of a card.
type Link struct {
	Down   bool
	Error  nvml.Return
	Bus    string
	Switch bool
}

// New makes a library with these cards.
func New(gpus ...*GPU) *Library {
	l := &Library{GPUs: gpus, Missing: map[string]bool{}, WaitEnds: nvml.ERROR_TIMEOUT, registered: map[string]bool{}, calls: map[string]int{}}
	return l
}

// Card makes a card with a UUID and a bus id padded with NULs.
func Card(uuid, bus string) *GPU {
	return &GPU{UUID: uuid, Name: "NVIDIA A100-SXM4-40GB", Serial: "S-" + uuid, BusID: Bus(bus), Memory: 40960, Energy: 1000, GI: -1, CI: -1}
}

// Bus lays a bus id out as the library does.
func Bus(text string) [32]int8 {
	var out [32]int8
	for i := 0; i < len(text) && i < len(out); i++ {
		out[i] = int8(text[i])
	}
	return out
}

// Slice makes a MIG slice.
func Slice(uuid string, gi, ci int, mib uint64) *GPU {
	return &GPU{UUID: uuid, GI: gi, CI: ci, Memory: mib}
}

// Change changes the script under the lock.
func (l *Library) Change(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// Calls lists the methods that were called, sorted.
func (l *Library) Calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for c := range l.calls {
		out = append(out, c)
	}
	sort.Strings(out)
	return out
}

// Count tells how often a method was called.
func (l *Library) Count(call string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[call]
}

// Watched are the UUIDs of the cards whose events are watched now.
func (l *Library) Watched() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.registered)
}

// answer counts a call and gives its scripted error.
func (l *Library) answer(call, uuid string) nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[call]++
	if l.Fail != nil {
		return l.Fail(call, uuid)
	}
	return nvml.SUCCESS
}

// give answers with a value, or with an error and no value.
func give[T any](l *Library, call, uuid string, value func() T) (T, nvml.Return) {
	if ret := l.answer(call, uuid); ret != nvml.SUCCESS {
		var none T
		return none, ret
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return value(), nvml.SUCCESS
}

type symbols struct{ l *Library }

func (s symbols) LookupSymbol(name string) error {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.Missing[name] {
		return errors.New("undefined symbol: " + name)
	}
	return nil
}

func (l *Library) Extensions() nvml.ExtendedInterface { return symbols{l} }

func (l *Library) Init() nvml.Return {
	return l.answer("Init", "")
}

func (l *Library) Shutdown() nvml.Return { return l.answer("Shutdown", "") }

func (l *Library) SystemGetDriverVersion() (string, nvml.Return) {
	return give(l, "SystemGetDriverVersion", "", func() string { return "580.95.05" })
}

func (l *Library) SystemGetCudaDriverVersion_v2() (int, nvml.Return) {
	return give(l, "SystemGetCudaDriverVersion_v2", "", func() int { return 13000 })
}

func (l *Library) DeviceGetCount() (int, nvml.Return) {
	return give(l, "DeviceGetCount", "", func() int { return len(l.GPUs) })
}

func (l *Library) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	l.mu.Lock()
	g := l.GPUs[i]
	if g.lib != l { // others may be asking the card already
		g.lib = l
	}
	l.mu.Unlock()
	return give(l, "DeviceGetHandleByIndex", g.UUID, func() nvml.Device { return g })
}

func (l *Library) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	return give(l, "GpmSampleAlloc", "", func() nvml.GpmSample { return &gpmSample{} })
}

func (l *Library) GpmMetricsGet(m *nvml.GpmMetricsGetType) nvml.Return {
	_, ret := give(l, "GpmMetricsGet", "", func() struct{} {
		m.Metrics[0].Value, m.Metrics[1].Value = 87.5, 40
		return struct{}{}
	})
	return ret
}

type gpmSample struct{ nvml.GpmSample }

func (*gpmSample) Free() nvml.Return { return nvml.SUCCESS }

type eventSet struct {
	nvml.EventSet
	l *Library
}

func (l *Library) EventSetCreate() (nvml.EventSet, nvml.Return) {
	return give(l, "EventSetCreate", "", func() nvml.EventSet {
		l.registered = map[string]bool{}
		return &eventSet{l: l}
	})
}

func (s *eventSet) Free() nvml.Return { return s.l.answer("EventSetFree", "") }

func (s *eventSet) Wait(ms uint32) (nvml.EventData, nvml.Return) {
	s.l.mu.Lock()
	s.l.calls["EventSetWait"]++
	if s.l.WaitEnds != nvml.ERROR_TIMEOUT {
		defer s.l.mu.Unlock()
		return nvml.EventData{}, s.l.WaitEnds
	}
	if len(s.l.Events) > 0 {
		defer s.l.mu.Unlock()
		e := s.l.Events[0]
		s.l.Events = s.l.Events[1:]
		return e, nvml.SUCCESS
	}
	s.l.mu.Unlock()
	time.Sleep(time.Duration(ms) * time.Millisecond)
	return nvml.EventData{}, nvml.ERROR_TIMEOUT
}

func (g *GPU) RegisterEvents(_ uint64, _ nvml.EventSet) nvml.Return {
	_, ret := give(g.lib, "RegisterEvents", g.UUID, func() struct{} { g.lib.registered[g.UUID] = true; return struct{}{} })
	return ret
}

func (g *GPU) GetUUID() (string, nvml.Return) {
	return give(g.lib, "GetUUID", g.UUID, func() string { return g.UUID })
}

func (g *GPU) GetName() (string, nvml.Return) {
	if g.GI >= 0 && g.Name == "" {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	return give(g.lib, "GetName", g.UUID, func() string { return g.Name })
}

func (g *GPU) GetSerial() (string, nvml.Return) {
	return give(g.lib, "GetSerial", g.UUID, func() string { return g.Serial })
}

func (g *GPU) GetMinorNumber() (int, nvml.Return) {
	return give(g.lib, "GetMinorNumber", g.UUID, func() int { return g.Minor })
}

func (g *GPU) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return give(g.lib, "GetPciInfo", g.UUID, func() nvml.PciInfo { return nvml.PciInfo{BusId: g.BusID} })
}

func (g *GPU) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return give(g.lib, "GetMemoryInfo", g.UUID, func() nvml.Memory { return nvml.Memory{Total: g.Memory << 20, Used: g.Used << 20} })
}

func (g *GPU) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return give(g.lib, "GetMemoryInfo_v2", g.UUID, func() nvml.Memory_v2 { return nvml.Memory_v2{Total: g.Memory << 20, Used: g.Used << 20} })
}

func (g *GPU) GetPowerManagementLimit() (uint32, nvml.Return) {
	return give(g.lib, "GetPowerManagementLimit", g.UUID, func() uint32 { return 400000 })
}

func (g *GPU) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return give(g.lib, "GetBAR1MemoryInfo", g.UUID, func() nvml.BAR1Memory { return nvml.BAR1Memory{Bar1Total: 65536 << 20} })
}

func (g *GPU) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return give(g.lib, "GetMaxPcieLinkGeneration", g.UUID, func() int { return 4 })
}

func (g *GPU) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return give(g.lib, "GetMaxPcieLinkWidth", g.UUID, func() int { return 16 })
}

func (g *GPU) GetMaxClockInfo(t nvml.ClockType) (uint32, nvml.Return) {
	return give(g.lib, "GetMaxClockInfo", g.UUID, func() uint32 { return 1410 + uint32(t) })
}

func (g *GPU) GetClockInfo(t nvml.ClockType) (uint32, nvml.Return) {
	return give(g.lib, "GetClockInfo", g.UUID, func() uint32 { return 1200 + uint32(t) })
}

func (g *GPU) GetCudaComputeCapability() (int, int, nvml.Return) {
	_, ret := give(g.lib, "GetCudaComputeCapability", g.UUID, func() int { return 8 })
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	return 8, 0, ret
}

func (g *GPU) GetNumGpuCores() (int, nvml.Return) {
	return give(g.lib, "GetNumGpuCores", g.UUID, func() int { return 6912 })
}

func (g *GPU) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	v, ret := give(g.lib, "GetEccMode", g.UUID, func() nvml.EnableState { return nvml.FEATURE_ENABLED })
	return v, v, ret
}

func (g *GPU) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return give(g.lib, "GetPersistenceMode", g.UUID, func() nvml.EnableState { return nvml.FEATURE_ENABLED })
}

func (g *GPU) GetRemappedRows() (int, int, bool, bool, nvml.Return) {
	_, ret := give(g.lib, "GetRemappedRows", g.UUID, func() int { return 0 })
	if ret != nvml.SUCCESS {
		return 0, 0, false, false, ret
	}
	return 1, 2, g.RemapPending, g.RemapFailed, ret
}

func (g *GPU) GetRetiredPagesPendingStatus() (nvml.EnableState, nvml.Return) {
	return give(g.lib, "GetRetiredPagesPendingStatus", g.UUID, func() nvml.EnableState { return nvml.FEATURE_DISABLED })
}

func (g *GPU) GetRetiredPages(nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	return give(g.lib, "GetRetiredPages", g.UUID, func() []uint64 { return nil })
}

func (g *GPU) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return give(g.lib, "GetCurrentClocksEventReasons", g.UUID, func() uint64 { return g.Throttle })
}

func (g *GPU) GetCurrentClocksThrottleReasons() (uint64, nvml.Return) {
	return give(g.lib, "GetCurrentClocksThrottleReasons", g.UUID, func() uint64 { return g.Throttle })
}

func (g *GPU) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return give(g.lib, "GetTotalEnergyConsumption", g.UUID, func() uint64 { return g.Energy })
}

func (g *GPU) GetPcieReplayCounter() (int, nvml.Return) {
	return give(g.lib, "GetPcieReplayCounter", g.UUID, func() int { return g.Replays })
}

func (g *GPU) GetTotalEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
	return give(g.lib, "GetTotalEccErrors", g.UUID, func() uint64 { return g.ECC[kind] })
}

func (g *GPU) GetFieldValues(fields []nvml.FieldValue) nvml.Return {
	_, ret := give(g.lib, "GetFieldValues", g.UUID, func() struct{} {
		for i := range fields {
			v, have := g.Fields[fields[i].FieldId]
			if !have {
				fields[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				continue
			}
			binary.NativeEndian.PutUint64(fields[i].Value[:], v)
		}
		return struct{}{}
	})
	return ret
}

func (g *GPU) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return give(g.lib, "GetComputeRunningProcesses", g.UUID, func() []nvml.ProcessInfo { return g.Processes })
}

func (g *GPU) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return give(g.lib, "GetUtilizationRates", g.UUID, func() nvml.Utilization { return nvml.Utilization{Gpu: 55, Memory: 20} })
}

func (g *GPU) GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return) {
	return give(g.lib, "GetTemperature", g.UUID, func() uint32 { return 41 })
}

func (g *GPU) GetPowerUsage() (uint32, nvml.Return) {
	return give(g.lib, "GetPowerUsage", g.UUID, func() uint32 { return 250500 })
}

func (g *GPU) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	return give(g.lib, "GpmQueryDeviceSupport", g.UUID, func() nvml.GpmSupport { return nvml.GpmSupport{IsSupportedDevice: 1} })
}

func (g *GPU) GpmSampleGet(nvml.GpmSample) nvml.Return { return g.lib.answer("GpmSampleGet", g.UUID) }

// linkOf gives a scripted link; numbers that are not scripted answer as past
// the end.
func (g *GPU) linkOf(n int) (Link, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	l, have := g.Links[n]
	if !have {
		return l, nvml.ERROR_INVALID_ARGUMENT
	}
	return l, l.Error
}

func (g *GPU) GetNvLinkState(n int) (nvml.EnableState, nvml.Return) {
	if ret := g.lib.answer("GetNvLinkState", g.UUID); ret != nvml.SUCCESS {
		return 0, ret
	}
	l, ret := g.linkOf(n)
	if l.Down {
		return nvml.FEATURE_DISABLED, ret
	}
	return nvml.FEATURE_ENABLED, ret
}

func (g *GPU) GetNvLinkRemotePciInfo(n int) (nvml.PciInfo, nvml.Return) {
	if ret := g.lib.answer("GetNvLinkRemotePciInfo", g.UUID); ret != nvml.SUCCESS {
		return nvml.PciInfo{}, ret
	}
	l, ret := g.linkOf(n)
	return nvml.PciInfo{BusId: Bus(l.Bus)}, ret
}

func (g *GPU) GetNvLinkRemoteDeviceType(n int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	if ret := g.lib.answer("GetNvLinkRemoteDeviceType", g.UUID); ret != nvml.SUCCESS {
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, ret
	}
	l, ret := g.linkOf(n)
	if l.Switch {
		return nvml.NVLINK_DEVICE_TYPE_SWITCH, ret
	}
	return nvml.NVLINK_DEVICE_TYPE_GPU, ret
}

func (g *GPU) GetNvLinkVersion(int) (uint32, nvml.Return) {
	return give(g.lib, "GetNvLinkVersion", g.UUID, func() uint32 { return 4 })
}

func (g *GPU) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	return give(g.lib, "GetGpuFabricInfo", g.UUID, func() nvml.GpuFabricInfo { return g.Fabric })
}

func (g *GPU) GetMigMode() (int, int, nvml.Return) {
	_, ret := give(g.lib, "GetMigMode", g.UUID, func() int { return 0 })
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	mode := func(on bool) int {
		if on {
			return nvml.DEVICE_MIG_ENABLE
		}
		return nvml.DEVICE_MIG_DISABLE
	}
	return mode(g.MIG), mode(g.MIGPending), ret
}

func (g *GPU) GetMaxMigDeviceCount() (int, nvml.Return) {
	return give(g.lib, "GetMaxMigDeviceCount", g.UUID, func() int { return g.MaxSlices })
}

func (g *GPU) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if ret := g.lib.answer("GetMigDeviceHandleByIndex", g.UUID); ret != nvml.SUCCESS {
		return nil, ret
	}
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	if ret, scripted := g.SliceErrors[i]; scripted {
		return nil, ret
	}
	s, have := g.Slices[i]
	if !have {
		return nil, nvml.ERROR_NOT_FOUND
	}
	s.lib = g.lib
	return s, nvml.SUCCESS
}

func (g *GPU) GetGpuInstanceId() (int, nvml.Return) {
	return give(g.lib, "GetGpuInstanceId", g.UUID, func() int { return g.GI })
}

func (g *GPU) GetComputeInstanceId() (int, nvml.Return) {
	return give(g.lib, "GetComputeInstanceId", g.UUID, func() int { return g.CI })
}

func (g *GPU) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return give(g.lib, "GetAttributes", g.UUID, func() nvml.DeviceAttributes { return g.Attributes })
}
