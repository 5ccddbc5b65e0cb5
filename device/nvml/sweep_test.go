//go:build cgo && linux

package nvml_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/nvml/nvmltest"
	"github.com/nomad-muster/muster/internal/contract"
)

// The sweep: every call of the library, with every error, for one of two cards:
// the other stays published, unchanged.
func TestSweep(t *testing.T) {
	t.Parallel()
	cards := func() []*nvmltest.GPU {
		a, b := nvmltest.Card("GPU-a1", "00000000:01:00.0"), nvmltest.Card("GPU-a2", "00000000:02:00.0")
		for _, g := range []*nvmltest.GPU{a, b} {
			g.Links = map[int]nvmltest.Link{0: {Switch: true, Bus: "00000000:C0:00.0"}, 1: {Switch: true, Bus: "00000000:C0:00.0"}}
			g.Fields = map[uint32]uint64{lib.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 1}
		}
		c := nvmltest.Card("GPU-a3", "00000000:03:00.0")
		c.MIG, c.MIGPending, c.MaxSlices = true, true, 2
		c.Slices = map[int]*nvmltest.GPU{0: nvmltest.Slice("MIG-m1", 1, 0, 4864)}
		return []*nvmltest.GPU{a, b, c}
	}
	var calls []string
	l := nvmltest.New(cards()...)
	bubble(t, l, func(r *rig) {
		r.start()
		_ = r.monitor.Sample(context.Background())
		_ = r.monitor.Sample(context.Background())
		calls = l.Calls()
	})
	must.Greater(t, 35, len(calls)) // the sweep is over everything that is called
	codes := []lib.Return{lib.ERROR_UNINITIALIZED, lib.ERROR_INVALID_ARGUMENT, lib.ERROR_NOT_SUPPORTED, lib.ERROR_NO_PERMISSION, lib.ERROR_NOT_FOUND, lib.ERROR_INSUFFICIENT_SIZE,
		lib.ERROR_INSUFFICIENT_POWER, lib.ERROR_DRIVER_NOT_LOADED, lib.ERROR_TIMEOUT, lib.ERROR_IRQ_ISSUE, lib.ERROR_FUNCTION_NOT_FOUND, lib.ERROR_CORRUPTED_INFOROM, lib.ERROR_GPU_IS_LOST,
		lib.ERROR_RESET_REQUIRED, lib.ERROR_OPERATING_SYSTEM, lib.ERROR_IN_USE, lib.ERROR_MEMORY, lib.ERROR_NO_DATA, lib.ERROR_INSUFFICIENT_RESOURCES, lib.ERROR_ARGUMENT_VERSION_MISMATCH,
		lib.ERROR_DEPRECATED, lib.ERROR_NOT_READY, lib.ERROR_GPU_NOT_FOUND, lib.ERROR_INVALID_STATE, lib.ERROR_UNKNOWN, lib.Return(777)}
	some := []lib.Return{lib.ERROR_NOT_SUPPORTED, lib.ERROR_UNKNOWN, lib.ERROR_NO_PERMISSION, lib.ERROR_GPU_IS_LOST}
	for early, codes := range map[bool][]lib.Return{true: some, false: codes} { // from the first pass on, or later
		t.Run(fmt.Sprint("early ", early), func(t *testing.T) {
			t.Parallel()
			for _, call := range calls {
				for _, code := range codes {
					l := nvmltest.New(cards()...)
					fail := func(c, uuid string) lib.Return {
						if c == call && uuid == "GPU-a2" {
							return code
						}
						return lib.SUCCESS
					}
					bubble(t, l, func(r *rig) {
						if early {
							l.Fail = fail
						}
						r.start()
						l.Change(func() { l.Fail = fail })
						r.pass()
						_ = r.monitor.Sample(context.Background())
						what := fmt.Sprintf("%s = %d", call, code)
						_, d := r.card("GPU-a1")
						must.True(t, d.Healthy, must.Sprint(what))
						_, d = r.card("MIG-m1")
						must.True(t, d.Healthy, must.Sprint(what))
						if call != "DeviceGetHandleByIndex" && call != "GetUUID" && code != lib.ERROR_GPU_IS_LOST && code != lib.ERROR_RESET_REQUIRED {
							_, d = r.card("GPU-a2")
							must.True(t, d.Healthy, must.Sprint(what)) // only that answer is missing
						}
						if !early {
							r.card("GPU-a2") // seen once: never absent without a word
						}
					})
				}
			}
		})
	}
}

// An old driver lacks functions: each in turn, and many at once.
func TestMissingFunctions(t *testing.T) {
	t.Parallel()
	all := []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNumGpuCores", "nvmlGpmMetricsGet", "nvmlDeviceGetTotalEnergyConsumption", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents",
		"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetName", "nvmlSystemGetCudaDriverVersion_v2"}
	sets := [][]string{all}
	for _, f := range all {
		sets = append(sets, []string{f})
	}
	for _, set := range sets {
		l := nvmltest.New(four()...)
		for _, f := range set {
			l.Missing[f] = true
		}
		bubble(t, l, func(r *rig) {
			r.start()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards(), must.Sprint(set))
			if len(set) == 1 {
				g, _ := r.card("GPU-a1")
				must.Eq(t, int64(40960), *g.Attributes[contract.AttrMemory].Int) // the older form of the call will do
			}
		})
	}
}

// Without driver or library, the plugin runs, lists nothing and says why, once.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	for ret, want := range map[lib.Return]string{lib.ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver here", lib.ERROR_DRIVER_NOT_LOADED: "modprobe nvidia"} {
		l := nvmltest.New(four()...)
		l.Fail = func(call, _ string) lib.Return {
			if call == "Init" {
				return ret
			}
			return lib.SUCCESS
		}
		bubble(t, l, func(r *rig) {
			r.start()
			must.SliceEmpty(t, r.last())
			r.pass()
			r.pass()
			must.Eq(t, 1, strings.Count(r.logged(), want), must.Sprint(r.logged()))
			l.Change(func() { l.Fail = nil }) // the driver is loaded: no restart needed
			r.pass()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
		})
	}
}
