//go:build cgo && linux

package nvml_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/nvml/nvmltest"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

func TestMIGProfileNames(t *testing.T) {
	t.Parallel()
	a1 := nvmltest.Card("GPU-a1", "00000000:01:00.0")
	a1.MIG, a1.MIGPending, a1.MaxSlices = true, true, 7
	named := nvmltest.Slice("MIG-m1", 1, 0, 4864)
	named.Name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
	counted := nvmltest.Slice("MIG-m2", 2, 0, 19968)
	counted.Attributes = lib.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 3}
	parted := nvmltest.Slice("MIG-m3", 3, 0, 19968)
	parted.Attributes = lib.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 1}
	a1.Slices = map[int]*nvmltest.GPU{0: named, 1: counted, 2: parted}
	bubble(t, nvmltest.New(a1), func(r *rig) {
		r.start()
		for id, want := range map[string]string{"MIG-m1": "1g.5gb", "MIG-m2": "3g.20gb", "MIG-m3": "1c.3g.20gb"} {
			g, _ := r.card(id)
			must.Eq(t, "NVIDIA A100-SXM4-40GB MIG "+want, g.Name)
		}
	})
}

// The same Xid from the driver's library and from the kernel log is one.
func TestTwoTellers(t *testing.T) {
	t.Parallel()
	gpus := four()
	l := nvmltest.New(gpus...)
	bubble(t, l, func(r *rig) {
		r.start()
		l.Change(func() {
			l.Events = []lib.EventData{{Device: gpus[0], EventType: lib.EventTypeXidCriticalError, EventData: 119, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF}}
		})
		time.Sleep(1500 * time.Millisecond)
		r.xid("PCI:0000:01:00", 119)
		must.Eq(t, 1, r.status("GPU-a1").Health.Xids[119])
		must.Len(t, 1, r.status("GPU-a1").Health.Strikes)

		// NVML cannot tell a fatal NVLink 5 error from one that is not; the
		// kernel log's line does.
		l.Change(func() {
			l.Events = []lib.EventData{{Device: gpus[1], EventType: lib.EventTypeXidCriticalError, EventData: 149, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF}}
		})
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		must.True(t, r.level("GPU-a2").Usable())
		r.log.Write(time.Now(), "NVRM: Xid (PCI:0000:02:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)")
		r.settle()
		must.Eq(t, health.Draining, r.level("GPU-a2"))
		must.Eq(t, 1, r.status("GPU-a2").Health.Xids[149])
	})
}

// A swapped card starts clean; the old one's record waits for its return.
func TestSwappedCard(t *testing.T) {
	t.Parallel()
	gpus := four()
	l := nvmltest.New(slices.Clone(gpus)...)
	bubble(t, l, func(r *rig) {
		r.start()
		r.xid("PCI:0000:02:00", 54)
		must.Eq(t, health.Quarantined, r.level("GPU-a2"))
		r.stop()
		l.Change(func() { l.GPUs[1] = nvmltest.Card("GPU-new", "00000000:02:00.0") })
		r.start()
		must.Eq(t, "GPU-a1+ GPU-a3+ GPU-a4+ GPU-new+", r.cards())
		r.stop()
		l.Change(func() { l.GPUs[1] = gpus[1] })
		r.start()
		must.Eq(t, "GPU-a1+ GPU-a2- GPU-a3+ GPU-a4+", r.cards())
	})
}

// A reservation names the cards in the driver's order, or every reason against it.
func TestReservations(t *testing.T) {
	t.Parallel()
	l := nvmltest.New(four()...)
	bubble(t, l, func(r *rig) {
		r.start()
		got, err := r.plugin.Reserve(context.Background(), []string{"GPU-a4", "GPU-a1"})
		must.NoError(t, err)
		must.Eq(t, &nomad.Reservation{Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a1,GPU-a4", "CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-a4", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}, got)
		r.xid("PCI:0000:01:00", 48)
		_, err = r.plugin.Reserve(context.Background(), []string{"GPU-a1", "GPU-zz", "GPU-a2", "GPU-a2"})
		must.ErrorContains(t, err, "GPU-a1 is draining: Xid 48")
		must.ErrorContains(t, err, "GPU-zz is not on this node")
		must.ErrorContains(t, err, "GPU-a2 is named twice")
		_, err = r.plugin.Reserve(context.Background(), nil)
		must.Error(t, err)
	})
}

// A node of eight cards with everything that the library tells of them.
func TestFullNode(t *testing.T) {
	t.Parallel()
	var gpus []*nvmltest.GPU
	for i := range 8 {
		g := nvmltest.Card(fmt.Sprintf("GPU-332e543e-09a0-7997-13cb-fa7775eea0c%d", i), fmt.Sprintf("00000000:%02X:00.0", 16*i+1))
		g.Name, g.Minor, g.Used = "NVIDIA H100 80GB HBM3", i, 1000
		g.Links = map[int]nvmltest.Link{}
		for n := range 18 {
			g.Links[n] = nvmltest.Link{Switch: true, Bus: fmt.Sprintf("00000000:C%d:00.0", n%4)}
		}
		gpus = append(gpus, g)
	}
	l := nvmltest.New(gpus...)
	bubble(t, l, func(r *rig) {
		files := map[string]string{"dev/nvidiactl": "", "dev/nvidia-uvm": "", "sys/module/nvidia/version": "580.95.05"}
		for i := range 8 {
			files[fmt.Sprintf("dev/nvidia%d", i)] = ""
			sysfstest.PCI(files, fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", 16*i, 16*i, 16*i+1), map[string]string{"numa_node": fmt.Sprint(i / 4)})
		}
		sysfstest.Add(t, r.root, files)
		r.start()
		g, _ := r.card(gpus[3].UUID)
		for name, want := range map[string]string{contract.AttrDriver: "580.95.05", contract.AttrCUDA: "13.0", contract.AttrCompute: "8.0", contract.AttrSource: "nvml", contract.AttrNVLink: "3.0"} {
			must.Eq(t, want, *g.Attributes[name].String)
		}
		for name, want := range map[string]string{contract.AttrMemory: "40960 MiB", contract.AttrPower: "400 W", contract.AttrBAR1: "65536 MiB", contract.AttrPCIeBandwidth: "31504 MB/s", contract.AttrCores: "6912 ", contract.AttrNVLinkCount: "18 "} {
			must.Eq(t, want, fmt.Sprintf("%d %s", *g.Attributes[name].Int, g.Attributes[name].Unit))
		}
		cards, err := contract.DecodeCards(*g.Attributes[contract.AttrCards].String)
		must.NoError(t, err)
		must.Len(t, 28, cards.Links)
		must.Eq(t, contract.Link{A: 0, B: 1, Count: 18}, cards.Links[0])
		must.Eq(t, 1, *cards.Cards[4].NUMA)
		size := func() int {
			text, err := json.Marshal(r.last())
			must.NoError(t, err)
			return len(text)
		}
		t.Logf("a healthy node of eight: %d bytes", size())
		must.Less(t, 6<<10, size())
		for i := range 8 {
			r.xid(fmt.Sprintf("PCI:0000:%02X:00", 16*i+1), 79)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		t.Logf("all of them off the bus: %d bytes", size())
		must.Less(t, 6<<10, size())

		res := gpus[3].UUID
		samples := r.monitor.Sample(context.Background())
		must.Nil(t, samples[res].SMActive) // activity is what happened between two looks
		samples = r.monitor.Sample(context.Background())
		must.Eq(t, 0.875, *samples[res].SMActive)
		must.Eq(t, 0.4, *samples[res].TensorActive)
		must.Eq(t, 250.5, *samples[res].Power)
		must.Eq(t, 1000, *samples[res].MemUsed)
		must.Eq(t, 1, *samples[res].RemappedCorrectable)
	})
}

// A slice comes with the files that open it.
func TestSliceFiles(t *testing.T) {
	t.Parallel()
	a1 := nvmltest.Card("GPU-a1", "00000000:01:00.0")
	a1.MIG, a1.MIGPending, a1.MaxSlices, a1.Minor = true, true, 7, 2
	a1.Slices = map[int]*nvmltest.GPU{0: nvmltest.Slice("MIG-m1", 5, 0, 4864)}
	bubble(t, nvmltest.New(a1), func(r *rig) {
		sysfstest.Add(t, r.root, map[string]string{"dev/nvidia2": "", "dev/nvidiactl": "",
			"proc/driver/nvidia/capabilities/gpu2/mig/gi5/access": "DeviceFileMinor: 48\nDeviceFileMode: 292\nDeviceFileModify: 1", "proc/driver/nvidia/capabilities/gpu2/mig/gi5/ci0/access": "DeviceFileMinor: 49\nDeviceFileMode: 292"})
		r.start()
		res, err := r.plugin.Reserve(context.Background(), []string{"MIG-m1"})
		must.NoError(t, err)
		must.Eq(t, "MIG-m1", res.Env["CUDA_VISIBLE_DEVICES"])
		var files []string
		for _, n := range res.Devices {
			files = append(files, n.HostPath)
		}
		must.Eq(t, []string{"/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap48", "/dev/nvidia-caps/nvidia-cap49"}, files)
	})
}

// Another driver was loaded: what waits for a reset is over.
func TestDriverUpdate(t *testing.T) {
	t.Parallel()
	bubble(t, nvmltest.New(four()...), func(r *rig) {
		sysfstest.Add(t, r.root, map[string]string{"sys/module/nvidia/version": "570.86.15"})
		r.start()
		r.xid("PCI:0000:01:00", 119)
		must.Eq(t, health.Draining, r.level("GPU-a1"))
		r.pass()
		must.Eq(t, health.Draining, r.level("GPU-a1"))
		sysfstest.Add(t, r.root, map[string]string{"sys/module/nvidia/version": "580.95.05"})
		r.pass()
		must.Eq(t, health.Suspect, r.level("GPU-a1"))
	})
}
