//go:build cgo && linux

package nvml

import (
	"context"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
)

// throttleWords are the reasons for lowered clocks that people ask about.
var throttleWords = []struct {
	bit  uint64
	word string
}{
	{nvml.ClocksEventReasonSwPowerCap, "power limit"}, {nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "software thermal slowdown"}, {nvml.ClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"}, {nvml.ClocksEventReasonApplicationsClocksSetting, "clocks set"},
	{nvml.ClocksEventReasonSyncBoost, "sync boost"},
}

// Sample measures the cards and their slices.
func (s *Source) Sample(ctx context.Context) (map[string]card.Sample, error) {
	if err := s.start(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]card.Sample{}
	count, _ := ask(s, "nvmlDeviceGetCount", s.lib.DeviceGetCount)
	for i := range count {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		g, lost := s.open(i)
		if lost != nil {
			continue
		}
		sample := g.sample()
		if g.lost == "" {
			out[g.card.ID] = sample
		}
		g.sampleSlices(out)
	}
	return out, nil
}

func ptr[T any](v T) *T { return &v }

// sample measures one card.
func (g *gpu) sample() card.Sample {
	h := g.handle
	out := card.Sample{At: time.Now()}
	if v, ok := get(g, "nvmlDeviceGetUtilizationRates", h.GetUtilizationRates); ok {
		out.GPUUtil, out.MemUtil = ptr(float64(v.Gpu)), ptr(float64(v.Memory))
	}
	if v, ok := g.memory(h); ok {
		out.MemUsed, out.MemTotal = &v.used, &v.total
	}
	if v, ok := get(g, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return h.GetTemperature(nvml.TEMPERATURE_GPU) }); ok {
		out.Temperature = ptr(float64(v))
	}
	if v, ok := get(g, "nvmlDeviceGetPowerUsage", h.GetPowerUsage); ok {
		out.Power = ptr(float64(v) / 1000)
	}
	if v, ok := get(g, "nvmlDeviceGetPowerManagementLimit", h.GetPowerManagementLimit); ok {
		out.PowerLimit = ptr(float64(v) / 1000)
	}
	if v, ok := get(g, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return h.GetClockInfo(nvml.CLOCK_SM) }); ok {
		out.SMClock = ptr(uint64(v))
	}
	if v, ok := get(g, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return h.GetClockInfo(nvml.CLOCK_MEM) }); ok {
		out.MemClock = ptr(uint64(v))
	}
	reasons := g.throttle()
	for _, r := range throttleWords {
		if reasons&r.bit != 0 {
			out.Throttle = append(out.Throttle, r.word)
		}
	}
	g.counters()
	for counter, to := range map[string]**uint64{health.ECCCorrected: &out.ECCCorrected, health.ECCUncorrected: &out.ECCUncorrected, health.PCIeReplay: &out.PCIeReplay,
		health.NVLinkCRC: &out.NVLinkCRC, health.NVLinkReplay: &out.NVLinkReplay, health.NVLinkRecovery: &out.NVLinkRecovery} {
		if v, have := g.card.Counters[counter]; have {
			*to = &v
		}
	}
	if g.card.Odometer > 0 {
		out.Energy = ptr(g.card.Odometer)
	}
	type rows struct {
		corrected, uncorrected int
		pending                bool
	}
	if v, ok := get(g, "nvmlDeviceGetRemappedRows", func() (rows, nvml.Return) {
		c, u, pending, _, ret := h.GetRemappedRows()
		return rows{c, u, pending}, ret
	}); ok {
		out.RemappedCorrectable, out.RemappedUncorrectable, out.RemapPending = ptr(uint64(v.corrected)), ptr(uint64(v.uncorrected)), &v.pending
	}
	if v, ok := get(g, "nvmlDeviceGetRetiredPages", func() ([]uint64, nvml.Return) {
		return h.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	}); ok {
		out.RetiredPages = ptr(uint64(len(v)))
	}
	if p := g.processes(); p != nil {
		out.Processes = ptr(uint64(len(p)))
	}
	out.SMActive, out.TensorActive = g.activity()
	return out
}

// sampleSlices measures what slices can tell of themselves: their memory.
func (g *gpu) sampleSlices(out map[string]card.Sample) {
	mode, ok := get(g, "nvmlDeviceGetMigMode", two(g.handle.GetMigMode))
	if !ok || mode.a != nvml.DEVICE_MIG_ENABLE {
		return
	}
	most, _ := get(g, "nvmlDeviceGetMaxMigDeviceCount", g.handle.GetMaxMigDeviceCount)
	for i := range most {
		h, ret := ask(g.s, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) { return g.handle.GetMigDeviceHandleByIndex(i) })
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ok1 := get(g, "nvmlDeviceGetUUID", h.GetUUID)
		v, ok2 := g.memory(h)
		if ok1 && ok2 {
			out[uuid] = card.Sample{At: time.Now(), MemUsed: &v.used, MemTotal: &v.total}
		}
	}
}

// activity reads how busy the multiprocessors and tensor cores really were since
// the last sample: Hopper and later count it.
func (g *gpu) activity() (sm, tensor *float64) {
	s := g.s
	uuid := g.card.ID
	s.memory.Lock()
	unsupported, before := s.noGPM[uuid], s.gpm[uuid]
	s.memory.Unlock()
	if unsupported || !s.has("nvmlGpmMetricsGet") || !s.has("nvmlGpmSampleGet") || !s.has("nvmlGpmQueryDeviceSupport") || !s.has("nvmlGpmSampleAlloc") || !s.has("nvmlGpmSampleFree") {
		return nil, nil
	}
	if before == nil {
		if v, ok := get(g, "nvmlGpmQueryDeviceSupport", g.handle.GpmQueryDeviceSupport); !ok || v.IsSupportedDevice == 0 {
			s.memory.Lock()
			s.noGPM[uuid] = true
			s.memory.Unlock()
			return nil, nil
		}
	}
	now, ret := s.lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil, nil
	}
	if ret := g.handle.GpmSampleGet(now); ret != nvml.SUCCESS {
		g.note(ret)
		now.Free()
		return nil, nil
	}
	s.memory.Lock()
	s.gpm[uuid] = now
	s.memory.Unlock()
	if before == nil {
		return nil, nil
	}
	defer before.Free()
	metrics := nvml.GpmMetricsGetType{NumMetrics: 2, Sample1: before, Sample2: now}
	metrics.Metrics[0].MetricId, metrics.Metrics[1].MetricId = uint32(nvml.GPM_METRIC_SM_UTIL), uint32(nvml.GPM_METRIC_ANY_TENSOR_UTIL)
	if s.lib.GpmMetricsGet(&metrics) != nvml.SUCCESS {
		return nil, nil
	}
	share := func(m nvml.GpmMetric) *float64 { // the library counts in percent
		if nvml.Return(m.NvmlReturn) != nvml.SUCCESS || math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
			return nil
		}
		return ptr(min(max(m.Value/100, 0), 1))
	}
	return share(metrics.Metrics[0]), share(metrics.Metrics[1])
}
