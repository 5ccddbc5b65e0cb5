package intel

import (
	"context"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
	"github.com/nomad-muster/muster/internal/contract"
)

func TestScan(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	add := func(name, place string, attributes map[string]string) {
		folder := sysfstest.PCI(files, place, attributes)
		files["sys/class/drm/"+name+"/device"] = "-> " + folder
	}
	add("card0", "pci0000:00/0000:00:02.0", map[string]string{"vendor": "0x8086", "device": "0x4680"}) // part of a processor
	add("card1", "pci0000:4a/0000:4a:01.0/0000:4b:00.0", map[string]string{"vendor": "0x8086", "device": "0x0bd5", "numa_node": "1", "drm/renderD129/dev": "226:129", "hwmon/hwmon5/energy1_input": "5000000",
		"hwmon/hwmon5/power1_max": "600000000"})
	files["sys/class/drm/card1/lmem_total_bytes"] = "137438953472"
	add("card2", "pci0000:5a/0000:5a:01.0/0000:5b:00.0", map[string]string{"vendor": "0x8086", "device": "0xffff", "tile0/physical_vram_size_bytes": "0x300000000", "tile1/physical_vram_size_bytes": "0x300000000",
		"survivability_mode": "Capability Info: 1"})
	add("card3", "pci0000:6a/0000:6a:01.0/0000:6b:00.0", map[string]string{"vendor": "0x10de"})
	files["dev/dri/card1"], files["dev/dri/renderD129"] = "", ""
	s := New(sysfstest.Tree(t, files))
	scan, err := s.Scan(context.Background())
	must.NoError(t, err)
	must.Len(t, 2, scan.Cards)
	a, b := scan.Cards[0], scan.Cards[1]
	must.Eq(t, "Intel Data Center GPU Max 1550", a.Group.Model)
	must.Eq(t, int64(131072), *a.Attributes[contract.AttrMemory].Int)
	must.Eq(t, 1, a.NUMA)
	must.Eq(t, "0", a.Grant.Lists["ZE_AFFINITY_MASK"])
	must.Len(t, 2, a.Grant.Nodes)
	must.Eq(t, "Intel 0xffff", b.Group.Model)
	must.Eq(t, int64(24576), *b.Attributes[contract.AttrMemory].Int)
	must.True(t, b.Has(health.VendorFault))
	samples, err := s.Sample(context.Background())
	must.NoError(t, err)
	must.Eq(t, 5000, *samples[a.ID].Energy)
	must.Eq(t, 600.0, *samples[a.ID].PowerLimit)
}

func TestNoCards(t *testing.T) {
	t.Parallel()
	scan, err := New(sysfstest.Tree(t, nil)).Scan(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, scan.Cards)
}
