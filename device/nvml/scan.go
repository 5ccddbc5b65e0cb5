//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// gpu is a whole card while it is being read.
type gpu struct {
	s      *Source
	handle nvml.Device
	card   card.Card
	lost   string // a call said that the card is lost
	minor  int    // -1: not known
	mig    bool
	slices []card.Card
	links  []link
}

// scan lists the cards; the library is started.
func (s *Source) scan() (card.Scan, error) {
	count, ret := ask(s, "nvmlDeviceGetCount", s.lib.DeviceGetCount)
	if ret != nvml.SUCCESS {
		if ret == nvml.ERROR_UNINITIALIZED || ret == nvml.ERROR_DRIVER_NOT_LOADED || ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
			go s.restart() // after this scan; the next one begins anew
		}
		return card.Scan{}, fmt.Errorf("count NVIDIA cards: %s", text(ret))
	}
	scan := card.Scan{Driver: s.driver()}
	common := map[string]nomad.Attribute{contract.AttrSource: nomad.String(name)}
	if v, ret := ask(s, "nvmlSystemGetDriverVersion", s.lib.SystemGetDriverVersion); ret == nvml.SUCCESS && v != "" {
		common[contract.AttrDriver] = nomad.String(v)
	}
	if v, ret := ask(s, "nvmlSystemGetCudaDriverVersion_v2", s.lib.SystemGetCudaDriverVersion_v2); ret == nvml.SUCCESS && v > 0 {
		common[contract.AttrCUDA] = nomad.String(fmt.Sprintf("%d.%d", v/1000, v%1000/10))
	}
	var gpus []*gpu
	for i := range count {
		g, lost := s.open(i)
		if lost != nil {
			scan.Lost = append(scan.Lost, *lost)
			continue
		}
		g.read(common)
		gpus = append(gpus, g)
	}
	connect(gpus)
	for _, g := range gpus {
		if g.lost != "" {
			g.card.Conditions = append(g.card.Conditions, card.Condition{Name: health.OffBus, Text: g.lost})
		}
		scan.Cards = append(scan.Cards, g.card)
		scan.Cards = append(scan.Cards, g.slices...)
	}
	return scan, nil
}

// driver names the driver that is loaded: another build of it was loaded anew.
// That the same one was is seen by the energy counters, which begin anew. (The
// times of files in /sys tell nothing: the kernel makes them up when it caches
// the file.)
func (s *Source) driver() string {
	version, _ := s.options.Root.Text("sys/module/nvidia/version")
	source, _ := s.options.Root.Text("sys/module/nvidia/srcversion")
	return strings.TrimSpace(version + " " + source)
}

// open finds a card's name, which is all that it cannot do without.
func (s *Source) open(index int) (*gpu, *card.Lost) {
	lost := func(ret nvml.Return, bus pci.Address) *card.Lost {
		return &card.Lost{Index: index, Bus: bus, Why: text(ret), Gone: ret == nvml.ERROR_GPU_IS_LOST}
	}
	handle, ret := ask(s, "nvmlDeviceGetHandleByIndex", func() (nvml.Device, nvml.Return) { return s.lib.DeviceGetHandleByIndex(index) })
	if ret != nvml.SUCCESS {
		return nil, lost(ret, pci.Address{})
	}
	g := &gpu{s: s, handle: handle, minor: -1, card: card.Card{Index: index, NUMA: -1, GI: -1, CI: -1}}
	if info, ok := get(g, "nvmlDeviceGetPciInfo", handle.GetPciInfo); ok {
		g.card.Bus = busOf(info)
	}
	uuid, ret := ask(s, "nvmlDeviceGetUUID", handle.GetUUID)
	if ret != nvml.SUCCESS || uuid == "" {
		return nil, lost(ret, g.card.Bus)
	}
	g.card.ID = uuid
	return g, nil
}

// get asks one thing of a card; false where there is no answer. That the card is
// lost is noted, whichever question it was.
func get[T any](g *gpu, function string, call func() (T, nvml.Return)) (T, bool) {
	v, ret := ask(g.s, function, call)
	g.note(ret)
	return v, ret == nvml.SUCCESS
}

func (g *gpu) note(ret nvml.Return) {
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST && g.lost == "":
		g.lost = text(ret)
	case ret == nvml.ERROR_RESET_REQUIRED && !g.card.Has(health.VendorFault):
		g.card.Conditions = append(g.card.Conditions, card.Condition{Name: health.VendorFault, Text: text(ret)})
	}
}

// busOf reads the bus id, which the library pads with NULs, or not.
func busOf(info nvml.PciInfo) pci.Address {
	raw := make([]byte, 0, len(info.BusId))
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		raw = append(raw, byte(c))
	}
	if a, err := pci.Parse(string(raw)); err == nil {
		return a
	}
	if info.Bus > 0xff || info.Device > 31 {
		return pci.Address{}
	}
	return pci.Address{Domain: info.Domain, Bus: uint8(info.Bus), Device: uint8(info.Device)}
}

// read fills in what the card answers.
func (g *gpu) read(common map[string]nomad.Attribute) {
	c, h := &g.card, g.handle
	c.Group = card.Group{Vendor: "nvidia", Type: contract.TypeGPU}
	c.Grant = card.NVIDIA(c.ID)
	c.Attributes = maps.Clone(common)
	if v, ok := get(g, "nvmlDeviceGetName", h.GetName); ok {
		c.Group.Model = v
	}
	if v, ok := get(g, "nvmlDeviceGetSerial", h.GetSerial); ok {
		c.Serial = v
	}
	if v, ok := get(g, "nvmlDeviceGetMinorNumber", h.GetMinorNumber); ok {
		g.minor = v
	}
	c.Path, c.NUMA = g.s.options.Root.Place(c.Bus)
	g.attributes()
	g.faults()
	g.counters()
	g.readLinks()
	c.Processes = g.processes()
	g.readMIG()
	g.grant()
}

type pair[A, B any] struct {
	a A
	b B
}

// two makes one value of a call's two.
func two[A, B any](call func() (A, B, nvml.Return)) func() (pair[A, B], nvml.Return) {
	return func() (pair[A, B], nvml.Return) {
		a, b, ret := call()
		return pair[A, B]{a, b}, ret
	}
}

// attributes reads what a job may ask for.
func (g *gpu) attributes() {
	a, h := g.card.Attributes, g.handle
	if v, ok := g.memory(h); ok {
		a[contract.AttrMemory] = nomad.Int(int64(v.total), "MiB")
	}
	if v, ok := get(g, "nvmlDeviceGetPowerManagementLimit", h.GetPowerManagementLimit); ok {
		a[contract.AttrPower] = nomad.Int(int64(v/1000), "W")
	}
	if v, ok := get(g, "nvmlDeviceGetBAR1MemoryInfo", h.GetBAR1MemoryInfo); ok {
		a[contract.AttrBAR1] = nomad.Int(int64(v.Bar1Total>>20), "MiB")
	}
	generation, ok1 := get(g, "nvmlDeviceGetMaxPcieLinkGeneration", h.GetMaxPcieLinkGeneration)
	width, ok2 := get(g, "nvmlDeviceGetMaxPcieLinkWidth", h.GetMaxPcieLinkWidth)
	if perLane := pcieLane[generation]; ok1 && ok2 && perLane > 0 {
		a[contract.AttrPCIeBandwidth] = nomad.Int(int64(perLane*width), "MB/s")
	}
	for attr, kind := range map[string]nvml.ClockType{contract.AttrGraphicsClock: nvml.CLOCK_GRAPHICS, contract.AttrMemoryClock: nvml.CLOCK_MEM} {
		if v, ok := get(g, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return h.GetMaxClockInfo(kind) }); ok {
			a[attr] = nomad.Int(int64(v), "MHz")
		}
	}
	if v, ok := get(g, "nvmlDeviceGetCudaComputeCapability", two(h.GetCudaComputeCapability)); ok {
		a[contract.AttrCompute] = nomad.String(fmt.Sprintf("%d.%d", v.a, v.b))
	}
	if v, ok := get(g, "nvmlDeviceGetNumGpuCores", h.GetNumGpuCores); ok && v > 0 {
		a[contract.AttrCores] = nomad.Int(int64(v), "")
	}
	if v, ok := get(g, "nvmlDeviceGetEccMode", two(h.GetEccMode)); ok {
		a[contract.AttrECC] = nomad.Bool(v.a == nvml.FEATURE_ENABLED)
	}
	if v, ok := get(g, "nvmlDeviceGetPersistenceMode", h.GetPersistenceMode); ok {
		a[contract.AttrPersistence] = nomad.Bool(v == nvml.FEATURE_ENABLED)
	}
}

// pcieLane is what a lane carries in one direction, MB/s, by PCIe generation.
var pcieLane = map[int]int{1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}

type memory struct{ used, total uint64 } // MiB

// memory asks for a card's memory, in the newer form without the driver's own
// share first.
func (g *gpu) memory(h nvml.Device) (memory, bool) {
	if v, ok := get(g, "nvmlDeviceGetMemoryInfo_v2", h.GetMemoryInfo_v2); ok && v.Total > 0 {
		return memory{v.Used >> 20, v.Total >> 20}, true
	}
	v, ok := get(g, "nvmlDeviceGetMemoryInfo", h.GetMemoryInfo)
	return memory{v.Used >> 20, v.Total >> 20}, ok && v.Total > 0
}

// faults reads the conditions that hold now.
func (g *gpu) faults() {
	c, h := &g.card, g.handle
	type rows struct{ pending, failed bool }
	if v, ok := get(g, "nvmlDeviceGetRemappedRows", func() (rows, nvml.Return) {
		_, _, pending, failed, ret := h.GetRemappedRows()
		return rows{pending, failed}, ret
	}); ok {
		if v.pending {
			c.Conditions = append(c.Conditions, card.Condition{Name: health.RemapPending, Text: "a memory row waits for a reset to be remapped"})
		}
		if v.failed {
			c.Conditions = append(c.Conditions, card.Condition{Name: health.RemapFailed, Text: "a memory row could not be remapped"})
		}
	}
	if v, ok := get(g, "nvmlDeviceGetRetiredPagesPendingStatus", h.GetRetiredPagesPendingStatus); ok && v == nvml.FEATURE_ENABLED {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.RemapPending, Part: "page", Text: "a memory page waits for a reset to be retired"})
	}
	reasons := g.throttle()
	if reasons&nvml.ClocksThrottleReasonHwThermalSlowdown != 0 {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.HotSlowdown, Text: "the card slows itself down, since it is hot"})
	}
	if reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0 {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.PowerBrake, Text: "the card is slowed down by the power supply's brake"})
	}
}

// throttle reads why the clocks are lowered; 0 where it is not known.
func (g *gpu) throttle() uint64 {
	if v, ok := get(g, "nvmlDeviceGetCurrentClocksEventReasons", g.handle.GetCurrentClocksEventReasons); ok {
		return v
	}
	v, ok := get(g, "nvmlDeviceGetCurrentClocksThrottleReasons", g.handle.GetCurrentClocksThrottleReasons)
	if !ok {
		return 0
	}
	return v
}

// counters reads what the health policy has rates for, and the energy counter,
// which begins anew with a reset.
func (g *gpu) counters() {
	h := g.handle
	g.card.Counters = map[string]uint64{}
	if v, ok := get(g, "nvmlDeviceGetTotalEnergyConsumption", h.GetTotalEnergyConsumption); ok {
		g.card.Odometer = v
	}
	if v, ok := get(g, "nvmlDeviceGetPcieReplayCounter", h.GetPcieReplayCounter); ok && v >= 0 {
		g.card.Counters[health.PCIeReplay] = uint64(v)
	}
	for counter, kind := range map[string]nvml.MemoryErrorType{health.ECCCorrected: nvml.MEMORY_ERROR_TYPE_CORRECTED, health.ECCUncorrected: nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
		if v, ok := get(g, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return h.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) }); ok {
			g.card.Counters[counter] = v
		}
	}
	maps.Copy(g.card.Counters, g.linkCounters())
}

// linkCounters reads the NVLink error totals in one call.
func (g *gpu) linkCounters() map[string]uint64 {
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL}, {FieldId: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL}, {FieldId: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL}}
	out := map[string]uint64{}
	if _, ok := get(g, "nvmlDeviceGetFieldValues", func() (struct{}, nvml.Return) { return struct{}{}, g.handle.GetFieldValues(fields) }); !ok {
		return out
	}
	for i, counter := range []string{health.NVLinkCRC, health.NVLinkReplay, health.NVLinkRecovery} {
		if nvml.Return(fields[i].NvmlReturn) == nvml.SUCCESS {
			out[counter] = binary.NativeEndian.Uint64(fields[i].Value[:])
		}
	}
	return out
}

// processes lists what computes on the card. Nil: not known.
func (g *gpu) processes() []card.Process {
	list, ok := get(g, "nvmlDeviceGetComputeRunningProcesses", g.handle.GetComputeRunningProcesses)
	if !ok {
		return nil
	}
	out := []card.Process{}
	for _, p := range list {
		process := card.Process{PID: int(p.Pid)}
		if p.UsedGpuMemory != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
			process.Memory = p.UsedGpuMemory >> 20
		}
		process.Name, _ = g.s.options.Root.Text("proc", fmt.Sprint(p.Pid), "comm")
		out = append(out, process)
	}
	return out
}

// grant adds the device files that a task needs: the card's, and those that all
// cards share.
func (g *gpu) grant() {
	root := g.s.options.Root
	var files []string
	if g.minor >= 0 {
		files = append(files, fmt.Sprintf("/dev/nvidia%d", g.minor))
	}
	files = append(files, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps-imex-channels/channel0")
	var nodes []nomad.DeviceNode
	for _, f := range files {
		if root.Exists(f) {
			nodes = append(nodes, card.Node(f))
		}
	}
	g.card.Grant.Nodes = nodes
	for i := range g.slices {
		c := &g.slices[i]
		c.Grant.Nodes = append(append([]nomad.DeviceNode(nil), nodes...), g.capabilities(c.GI, c.CI)...)
	}
}

// capabilities are the device files that open a slice: one for its GPU instance,
// one for its compute instance.
func (g *gpu) capabilities(gi, ci int) []nomad.DeviceNode {
	if g.minor < 0 || gi < 0 || ci < 0 {
		return nil
	}
	folder := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.minor, gi)
	var out []nomad.DeviceNode
	for _, file := range []string{folder + "/access", fmt.Sprintf("%s/ci%d/access", folder, ci)} {
		content, ok := g.s.options.Root.Text(file)
		if !ok {
			continue
		}
		for _, line := range strings.Split(content, "\n") {
			if minor, found := strings.CutPrefix(line, "DeviceFileMinor:"); found {
				out = append(out, card.Node("/dev/nvidia-caps/nvidia-cap"+strings.TrimSpace(minor)))
			}
		}
	}
	return out
}
