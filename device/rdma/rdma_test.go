package rdma

import (
	"context"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
	"github.com/nomad-muster/muster/device/topology"
	"github.com/nomad-muster/muster/internal/contract"
)

// adapters lays out three of them: InfiniBand and active, Ethernet and down, and
// a virtual function of a maker that is not listed.
func adapters(t *testing.T) sysfs.Root {
	files := map[string]string{}
	nic := func(name, place, vendor, device, numa, guid string, port map[string]string) {
		folder := sysfstest.PCI(files, place, map[string]string{"vendor": vendor, "device": device, "numa_node": numa})
		ib := folder + "/infiniband/" + name
		files["sys/class/infiniband/"+name] = "-> " + ib
		files[ib+"/device"] = "-> " + folder
		files[ib+"/node_guid"] = guid
		for k, v := range port {
			files[ib+"/ports/1/"+k] = v
		}
	}
	nic("mlx5_0", "pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", "0x15b3", "0x1021", "0", "b83f:d203:0012:3456", map[string]string{
		"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "counters/port_rcv_data": "100", "counters/port_xmit_data": "200", "counters/symbol_error": "3", "counters/link_downed": "1"})
	nic("mlx5_10", "pci0000:ba/0000:ba:01.0/0000:bb:00.0", "0x15b3", "0x101d", "1", "b83f:d203:0099:0001", map[string]string{"state": "1: DOWN", "rate": "40 Gb/sec (4X QDR)", "link_layer": "Ethernet"})
	nic("bnxt_re0", "pci0000:ba/0000:ba:02.0/0000:bc:00.1", "0x9999", "0x1234", "-1", "0000:0000:0000:0000", map[string]string{"state": "4: ACTIVE", "rate": "nonsense"})
	ib := "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0"
	files[ib+"/infiniband/mlx5_0/hca_type"] = "MT4129"
	files[ib+"/infiniband/mlx5_0/fw_ver"] = "28.39.1002"
	files[ib+"/infiniband_verbs/uverbs0/dev"] = "231:192"
	files[ib+"/infiniband_mad/umad0/dev"] = "231:0"
	files[ib+"/infiniband_mad/issm0/dev"] = "231:64"
	for _, f := range []string{"uverbs0", "umad0", "issm0", "rdma_cm"} {
		files["dev/infiniband/"+f] = ""
	}
	return sysfstest.Tree(t, files)
}

func TestScan(t *testing.T) {
	t.Parallel()
	s := &Source{root: adapters(t), host: "n1"}
	scan, err := s.Scan(context.Background())
	must.NoError(t, err)
	must.Len(t, 3, scan.Cards)
	byName := map[string]card.Card{}
	for _, c := range scan.Cards {
		byName[c.Name] = c
	}
	c := byName["mlx5_0"]
	must.Eq(t, card.Group{Vendor: "mellanox", Type: contract.TypeNIC, Model: "MT4129 ConnectX-7"}, c.Group)
	must.Eq(t, "RDMA-b83fd20300123456", c.ID)
	must.Eq(t, "00000000:3E:00.0", c.Bus.String())
	must.Eq(t, 0, c.NUMA)
	must.Len(t, 5, c.Path)
	must.SliceEmpty(t, c.Conditions)
	must.Eq(t, int64(50000), *c.Attributes[contract.AttrLinkRate].Int)
	must.Eq(t, "MB/s", c.Attributes[contract.AttrLinkRate].Unit)
	must.Eq(t, "InfiniBand", *c.Attributes[contract.AttrLinkLayer].String)
	var nodes []string
	for _, n := range c.Grant.Nodes {
		nodes = append(nodes, n.HostPath)
	}
	must.Eq(t, []string{"/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/rdma_cm"}, nodes)
	must.Eq(t, "mlx5_0", c.Grant.Lists["NCCL_IB_HCA"])

	c = byName["mlx5_10"]
	must.True(t, c.Has(health.NICDown))
	must.StrContains(t, c.Conditions[0].Text, "port 1 is down")
	must.Eq(t, "ConnectX-6 Dx", c.Group.Model)
	_, told := c.Attributes[contract.AttrLinkRate]
	must.False(t, told) // the rate of a port that is down is not one
	c = byName["bnxt_re0"]
	must.Eq(t, card.Group{Vendor: "0x9999", Type: contract.TypeNIC, Model: "0x1234"}, c.Group)
	must.Eq(t, "RDMA-n1-0000:bc:00.1", c.ID)
	must.Eq(t, -1, c.NUMA)

	samples, err := s.Sample(context.Background())
	must.NoError(t, err)
	sample := samples["RDMA-b83fd20300123456"]
	must.Eq(t, 400, *sample.RxBytes)
	must.Eq(t, 800, *sample.TxBytes)
	must.Eq(t, 4, *sample.LinkErrors)
	must.Eq(t, 400, *sample.Rate)
}

// A card and an adapter below one PCIe switch are near each other.
func TestDistanceToACard(t *testing.T) {
	t.Parallel()
	scan, err := New(adapters(t)).Scan(context.Background())
	must.NoError(t, err)
	gpu := card.Card{Path: []string{"pci0000:3a", "0000:3a:01.0", "0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0"}, NUMA: 0}
	for i := range scan.Cards {
		want := contract.HopSYS
		if scan.Cards[i].Name == "mlx5_0" {
			want = contract.HopPIX
		}
		must.Eq(t, want, topology.Distance(&gpu, &scan.Cards[i]))
	}
}

func TestNoAdapters(t *testing.T) {
	t.Parallel()
	scan, err := New(sysfstest.Tree(t, nil)).Scan(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, scan.Cards)
}

// A port without files is a port that nobody can vouch for.
func TestBrokenTree(t *testing.T) {
	t.Parallel()
	root := sysfstest.Tree(t, map[string]string{"sys/class/infiniband/mlx5_0/ports/1/": "", "sys/class/infiniband/mlx5_1/": "", "sys/class/infiniband/mlx5_2/ports/x/": ""})
	scan, err := New(root).Scan(context.Background())
	must.NoError(t, err)
	must.Len(t, 3, scan.Cards)
	seen := map[string]bool{}
	for _, c := range scan.Cards {
		must.True(t, c.Has(health.NICDown))
		must.False(t, seen[c.ID])
		seen[c.ID] = true
	}
}

func TestParseLine(t *testing.T) {
	t.Parallel()
	target, e, ok := ParseLine("mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).")
	must.True(t, ok)
	must.Eq(t, pci.Address{Bus: 0x5c}, target.Bus)
	must.Eq(t, "adapter power", e.Name)
	_, e, ok = ParseLine("mlx5_core 0000:5c:00.1: Port module event[error]: module 0, Cable error, High Temperature")
	must.True(t, ok)
	must.Eq(t, "adapter module", e.Name)
	for _, text := range []string{"", "mlx5_core", "mlx5_core x: Port module event[error]", "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
		"mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)", "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature"} {
		_, _, ok := ParseLine(text)
		must.False(t, ok, must.Sprint(text))
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add("mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).")
	f.Fuzz(func(t *testing.T, text string) {
		target, e, ok := ParseLine(text)
		if ok && (target.Bus.Function != 0 || e.Name == "") {
			t.Fatalf("%q: %+v %+v", text, target, e)
		}
	})
}
