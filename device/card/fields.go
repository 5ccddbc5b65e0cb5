package card

// Field is one measured value: its name in Nomad's statistics, and the name
// under which NVIDIA's DCGM exporter publishes the same.
type Field struct {
	Name string
	Unit string // for people; empty: a plain number
	Desc string
	DCGM string // empty: DCGM has none
	// Counter: it only grows, until a reset.
	Counter bool
	Value   func(*Sample) (float64, bool)
}

func float(get func(*Sample) *float64) func(*Sample) (float64, bool) {
	return func(s *Sample) (float64, bool) {
		if v := get(s); v != nil {
			return *v, true
		}
		return 0, false
	}
}

func whole(get func(*Sample) *uint64) func(*Sample) (float64, bool) {
	return func(s *Sample) (float64, bool) {
		if v := get(s); v != nil {
			return float64(*v), true
		}
		return 0, false
	}
}

// Fields are all measured values. DCGM gives utilisation in percent, memory in
// MiB, clocks in MHz, power in W, energy in mJ, as here.
var Fields = []Field{
	{"utilization", "%", "share of time in which a kernel ran", "DCGM_FI_DEV_GPU_UTIL", false, float(func(s *Sample) *float64 { return s.GPUUtil })},
	{"memory_utilization", "%", "share of time in which memory was read or written", "DCGM_FI_DEV_MEM_COPY_UTIL", false, float(func(s *Sample) *float64 { return s.MemUtil })},
	{"sm_active", "", "share of multiprocessor cycles with work, 0 to 1", "DCGM_FI_PROF_SM_ACTIVE", false, float(func(s *Sample) *float64 { return s.SMActive })},
	{"tensor_active", "", "share of cycles with the tensor cores at work, 0 to 1", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", false, float(func(s *Sample) *float64 { return s.TensorActive })},
	{"memory_used", "MiB", "memory in use", "DCGM_FI_DEV_FB_USED", false, whole(func(s *Sample) *uint64 { return s.MemUsed })},
	{"memory_free", "MiB", "memory not in use", "DCGM_FI_DEV_FB_FREE", false, func(s *Sample) (float64, bool) {
		if s.MemUsed == nil || s.MemTotal == nil || *s.MemUsed > *s.MemTotal {
			return 0, false
		}
		return float64(*s.MemTotal - *s.MemUsed), true
	}},
	{"temperature", "C", "temperature of the chip", "DCGM_FI_DEV_GPU_TEMP", false, float(func(s *Sample) *float64 { return s.Temperature })},
	{"power", "W", "power draw", "DCGM_FI_DEV_POWER_USAGE", false, float(func(s *Sample) *float64 { return s.Power })},
	{"power_limit", "W", "power limit in force", "DCGM_FI_DEV_POWER_MGMT_LIMIT", false, float(func(s *Sample) *float64 { return s.PowerLimit })},
	{"energy", "mJ", "energy since the driver started", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", true, whole(func(s *Sample) *uint64 { return s.Energy })},
	{"graphics_clock", "MHz", "clock of the multiprocessors", "DCGM_FI_DEV_SM_CLOCK", false, whole(func(s *Sample) *uint64 { return s.SMClock })},
	{"memory_clock", "MHz", "clock of the memory", "DCGM_FI_DEV_MEM_CLOCK", false, whole(func(s *Sample) *uint64 { return s.MemClock })},
	{"ecc_corrected", "", "corrected memory errors since the driver started", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", true, whole(func(s *Sample) *uint64 { return s.ECCCorrected })},
	{"ecc_uncorrected", "", "uncorrected memory errors since the driver started", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", true, whole(func(s *Sample) *uint64 { return s.ECCUncorrected })},
	{"nvlink/crc_errors", "", "NVLink CRC errors, all links", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", true, whole(func(s *Sample) *uint64 { return s.NVLinkCRC })},
	{"nvlink/replay_errors", "", "NVLink replays, all links", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", true, whole(func(s *Sample) *uint64 { return s.NVLinkReplay })},
	{"nvlink/recovery_errors", "", "NVLink recoveries, all links", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", true, whole(func(s *Sample) *uint64 { return s.NVLinkRecovery })},
	{"pcie_replays", "", "PCIe replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", true, whole(func(s *Sample) *uint64 { return s.PCIeReplay })},
	{"remapped_rows/correctable", "", "memory rows remapped for corrected errors", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", true, whole(func(s *Sample) *uint64 { return s.RemappedCorrectable })},
	{"remapped_rows/uncorrectable", "", "memory rows remapped for uncorrected errors", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", true, whole(func(s *Sample) *uint64 { return s.RemappedUncorrectable })},
	{"remapped_rows/pending", "", "1 while a remapping waits for a reset", "", false, func(s *Sample) (float64, bool) {
		switch {
		case s.RemapPending == nil:
			return 0, false
		case *s.RemapPending:
			return 1, true
		}
		return 0, true
	}},
	{"retired_pages", "", "memory pages retired", "DCGM_FI_DEV_RETIRED_DBE", true, whole(func(s *Sample) *uint64 { return s.RetiredPages })},
	{"processes", "", "processes on the card", "", false, whole(func(s *Sample) *uint64 { return s.Processes })},
	{"rate", "Gb/s", "link rate", "", false, float(func(s *Sample) *float64 { return s.Rate })},
	{"received", "B", "bytes received", "", true, whole(func(s *Sample) *uint64 { return s.RxBytes })},
	{"sent", "B", "bytes sent", "", true, whole(func(s *Sample) *uint64 { return s.TxBytes })},
	{"link_errors", "", "errors of the link", "", true, whole(func(s *Sample) *uint64 { return s.LinkErrors })},
}
