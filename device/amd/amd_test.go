package amd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
)

// machine lays out four MI300X in two hives of two, and a card that only draws.
func machine(t *testing.T) sysfs.Root {
	files := map[string]string{}
	for i := range 4 {
		folder := sysfstest.PCI(files, fmt.Sprintf("pci0000:%d0/0000:%d0:01.0/0000:%d1:00.0", i+1, i+1, i+1), map[string]string{"vendor": "0x1002", "device": "0x74a1", "numa_node": fmt.Sprint(i / 2),
			"unique_id": fmt.Sprintf("a1b2c3d4e5f6000%d", i), "mem_info_vram_total": "206141652992", "mem_info_vram_used": "1073741824", "gpu_busy_percent": "42", "serial_number": "SN" + fmt.Sprint(i),
			"hwmon/hwmon3/temp2_input": "51000", "hwmon/hwmon3/power1_average": "300000000", "hwmon/hwmon3/power1_cap": "750000000",
			"ras/umc_err_count": "ue: 0\nce: 3", "ras/gfx_err_count": "ue: 0\nce: 1", "ras/xgmi_wafl_err_count": "ue: 0\nce: 0"})
		files[fmt.Sprintf("%s/drm/card%d/dev", folder, i)] = "226:0"
		files[fmt.Sprintf("%s/drm/renderD%d/dev", folder, 128+i)] = "226:128"
		files[fmt.Sprintf("sys/class/drm/card%d/device", i)] = "-> " + folder
		files[fmt.Sprintf("dev/dri/card%d", i)], files[fmt.Sprintf("dev/dri/renderD%d", 128+i)] = "", ""
		node := fmt.Sprintf("%s/%d", nodes, i+2)
		files[node+"/gpu_id"] = fmt.Sprint(1000 + i)
		files[node+"/properties"] = fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\ndrm_render_minor %d\nhive_id %d\nunique_id %d", 128+i, 7000+i/2, uint64(0xa1b2c3d4e5f60000)+uint64(i))
		peer := i ^ 1
		files[node+"/io_links/0/properties"] = "type 2\nnode_from 2\nnode_to 0\nweight 20"
		files[node+"/io_links/1/properties"] = fmt.Sprintf("type 11\nversion_major 0\nnode_from %d\nnode_to %d\nweight 15", i+2, peer+2)
	}
	files[nodes+"/0/gpu_id"], files[nodes+"/1/gpu_id"] = "0", "0"
	files["dev/kfd"] = ""
	files["sys/module/amdgpu/version"] = "6.8.5"
	draws := sysfstest.PCI(files, "pci0000:00/0000:00:02.0", map[string]string{"vendor": "0x1002", "device": "0x1234"})
	files["sys/class/drm/card9/device"] = "-> " + draws
	files["sys/class/drm/card0-DP-1/status"] = "connected"
	return sysfstest.Tree(t, files)
}

func scan(t *testing.T, root sysfs.Root) []card.Card {
	t.Helper()
	got, err := New(root).Scan(context.Background())
	must.NoError(t, err)
	return got.Cards
}

func TestScan(t *testing.T) {
	t.Parallel()
	root := machine(t)
	cards := scan(t, root)
	must.Len(t, 4, cards)
	c := cards[2]
	must.Eq(t, card.Group{Vendor: "amd", Type: contract.TypeGPU, Model: "AMD Instinct MI300X"}, c.Group)
	must.Eq(t, "AMD-a1b2c3d4e5f60002", c.ID)
	must.Eq(t, "00000000:31:00.0", c.Bus.String())
	must.Eq(t, 1, c.NUMA)
	must.Eq(t, map[string]int{"AMD-a1b2c3d4e5f60003": 1}, c.Links)
	must.Eq(t, cards[3].Domain, c.Domain)
	must.NotEq(t, cards[0].Domain, c.Domain)
	must.Eq(t, int64(196592), *c.Attributes[contract.AttrMemory].Int)
	must.Eq(t, "gfx942", *c.Attributes[contract.AttrCompute].String)
	must.Eq(t, map[string]string{"ROCR_VISIBLE_DEVICES": "GPU-a1b2c3d4e5f60002"}, c.Grant.Lists)
	var files []string
	for _, n := range c.Grant.Nodes {
		files = append(files, n.HostPath)
	}
	must.Eq(t, []string{"/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD130"}, files)
	must.Eq(t, 4, c.Counters[health.ECCCorrected])
	must.SliceEmpty(t, c.Conditions)

	samples, err := New(root).Sample(context.Background())
	must.NoError(t, err)
	s := samples[c.ID]
	must.Eq(t, 42.0, *s.GPUUtil)
	must.Eq(t, 51.0, *s.Temperature)
	must.Eq(t, 300.0, *s.Power)
	must.Eq(t, 750.0, *s.PowerLimit)
	must.Eq(t, 1024, *s.MemUsed)
}

func TestErrorCounts(t *testing.T) {
	t.Parallel()
	root := machine(t)
	folder := func(i int) string { return fmt.Sprintf("sys/bus/pci/devices/0000:%d1:00.0/ras/", i+1) }
	sysfstest.Add(t, root, map[string]string{
		folder(0) + "umc_err_count":       "ue: 2097120\nce: 3", // twice the phantom step
		folder(1) + "umc_err_count":       "ue: 1048562\nce: 3", // it, and two real ones
		folder(2) + "xgmi_wafl_err_count": "ue: 1\nce: 0",
		folder(3) + "umc_err_count":       "nonsense",
	})
	cards := scan(t, root)
	must.Eq(t, 0, cards[0].Counters[health.ECCUncorrected])
	must.Eq(t, 2, cards[1].Counters[health.ECCUncorrected])
	must.True(t, cards[2].Has(health.VendorFault))
	must.Eq(t, 0, cards[3].Counters[health.ECCUncorrected])
}

func TestNoCards(t *testing.T) {
	t.Parallel()
	must.SliceEmpty(t, scan(t, sysfstest.Tree(t, nil)))
}

func TestGFXNames(t *testing.T) {
	t.Parallel()
	for v, want := range map[int64]string{90402: "gfx942", 90500: "gfx950", 90010: "gfx90a", 100300: "gfx1030"} {
		must.Eq(t, want, gfx(v))
	}
}

func TestParseLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		name  string
		class xid.Class
		bus   uint8
	}{
		"amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":                      {"amdgpu fatal error", xid.Reset, 0x1c},
		"amdgpu 0000:1c:00.0: amdgpu: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":              {"amdgpu fatal error", xid.Reset, 0x1c},
		"amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block":                                 {"amdgpu umc error", xid.Contained, 0x08},
		"amdgpu 0000:08:00.0: amdgpu: 3 uncorrectable hardware errors detected in sdma block, no user action is needed": {"amdgpu sdma error", xid.Contained, 0x08},
		"amdgpu: GPU reset(2) failed ... ret = -62":                                                                     {"amdgpu reset failed", xid.Machine, 0},
	} {
		target, e, ok := ParseLine(text)
		must.True(t, ok, must.Sprint(text))
		must.Eq(t, want.name, e.Name)
		must.Eq(t, want.class, e.Class)
		must.Eq(t, pci.Address{Bus: want.bus}, target.Bus)
	}
	for _, text := range []string{"", "amdgpu", "amdgpu 0000:0b:00.0: 1048560 uncorrectable hardware errors detected in umc block", "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
		"amdgpu 0000:42:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged", "amdgpu 0000:42:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000",
		"EXT4-fs: amdgpu 0000:08:00.0: 1 uncorrectable hardware errors detected in umc block", "amdgpu 0000:08:00.0: GPU reset(2) succeeded!", "amdgpu 0000:08:00.0: 0 uncorrectable hardware errors detected in umc block"} {
		_, _, ok := ParseLine(text)
		must.False(t, ok, must.Sprint(text))
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add("amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block")
	f.Add("amdgpu: GPU reset(2) failed ... ret = -62")
	f.Fuzz(func(t *testing.T, text string) {
		_, e, ok := ParseLine(text)
		if ok && (e.Name == "" || !e.Class.Known() || !strings.HasPrefix(text, "amdgpu")) {
			t.Fatalf("%q: %+v", text, e)
		}
	})
}
