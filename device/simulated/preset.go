package simulated

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/device/pci"
)

// presets are machines as they are sold. Places are a host bridge and the
// switches below it; cards with the same place hang from one switch.
var presets = map[string]func() *nodeBlock{
	"hgx-h100-8": func() *nodeBlock { return hgx("NVIDIA H100 80GB HBM3", 81559, "9.0", 18) },
	"hgx-h200-8": func() *nodeBlock { return hgx("NVIDIA H200", 143771, "9.0", 18) },
	// Two compute adapters for each pair of cards, all below one switch tree.
	"dgx-a100-8": func() *nodeBlock {
		n := &nodeBlock{Links: []linkBlock{{Cards: first(8), Count: 12, Switch: true}}}
		numa := []int{3, 1, 7, 5}
		for i := range 8 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: "NVIDIA A100-SXM4-40GB", Memory: 40960, NUMA: &numa[i/2], Place: fmt.Sprintf("b%d/s%d/g%d", i/2, i/2, i%2), Compute: "8.0"})
			n.NICs = append(n.NICs, &nicBlock{Name: fmt.Sprintf("mlx5_%d", i), Model: "MT4123 ConnectX-6", Rate: 200, NUMA: &numa[i/2], Place: fmt.Sprintf("b%d/s%d/n%d", i/2, i/2, i%2)})
		}
		return n
	},
	// Two NVLink islands of four, bridged inside, PCIe between.
	"islands-2x4": func() *nodeBlock {
		n := &nodeBlock{Links: []linkBlock{{Cards: []int{0, 1, 2, 3}, Count: 4}, {Cards: []int{4, 5, 6, 7}, Count: 4}}}
		for i := range 8 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: "NVIDIA A100 80GB PCIe", Memory: 81920, NUMA: ptr(i / 4), Place: fmt.Sprintf("b%d/s%d", i/4, i/2), Compute: "8.0"})
		}
		for i := range 2 {
			n.NICs = append(n.NICs, &nicBlock{Name: fmt.Sprintf("mlx5_%d", i), Model: "MT4123 ConnectX-6", Rate: 200, NUMA: ptr(i), Place: fmt.Sprintf("b%d/n", i)})
		}
		return n
	},
	"pcie-l40s-4": func() *nodeBlock {
		n := &nodeBlock{}
		for i := range 4 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: "NVIDIA L40S", Memory: 46068, NUMA: ptr(i / 2), Place: fmt.Sprintf("b%d", i), Compute: "8.9"})
		}
		n.NICs = []*nicBlock{{Name: "mlx5_0", Model: "MT4129 ConnectX-7", Rate: 200, Layer: "Ethernet", NUMA: ptr(1), Place: "b9"}}
		return n
	},
	// One tray of a rack whose 72 cards are one NVLink domain.
	"gb200-tray-4": func() *nodeBlock {
		n := &nodeBlock{Links: []linkBlock{{Cards: first(4), Count: 18, Switch: true}}}
		for i, domain := range []string{"0008", "0009", "0018", "0019"} {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: "NVIDIA GB200", Memory: 189471, NUMA: ptr(i / 2), Bus: domain + ":01:00.0", Place: "b" + domain, Compute: "10.0",
				Fabric: "6e1f2b52-5a0d-4f0e-9f6f-3c2d7f3f8a10/1"})
			n.NICs = append(n.NICs, &nicBlock{Name: fmt.Sprintf("mlx5_%d", i), Model: "MT4129 ConnectX-7", Rate: 400, NUMA: ptr(i / 2), Place: fmt.Sprintf("n%d", i)})
		}
		return n
	},
	"mig-a100-2": func() *nodeBlock {
		n := &nodeBlock{}
		for i := range 2 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: "NVIDIA A100-SXM4-40GB", Memory: 40960, NUMA: ptr(i), Place: fmt.Sprintf("b%d", i), Compute: "8.0"})
		}
		n.GPUs[1].Slices = []string{"3g.20gb", "2g.10gb", "1g.5gb"}
		return n
	},
	"mi300x-8": func() *nodeBlock {
		n := &nodeBlock{Links: []linkBlock{{Cards: first(8), Count: 1}}}
		for i := range 8 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Vendor: "amd", Model: "AMD Instinct MI300X", Memory: 196592, NUMA: ptr(i / 4), Place: fmt.Sprintf("b%d/s", i)})
			n.NICs = append(n.NICs, &nicBlock{Name: fmt.Sprintf("mlx5_%d", i), Model: "MT4129 ConnectX-7", Rate: 400, NUMA: ptr(i / 4), Place: fmt.Sprintf("b%d/s", i)})
		}
		return n
	},
	"ascend-910b-8": func() *nodeBlock {
		n := &nodeBlock{Links: []linkBlock{{Cards: first(8), Count: 1}}}
		for i := range 8 {
			n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Vendor: "huawei", Model: "Ascend 910B3", Memory: 65536, NUMA: ptr(i / 2), Place: fmt.Sprintf("b%d", i)})
		}
		return n
	},
	// Small and anonymous, for trials: four cards, all linked, one adapter.
	"small-4": func() *nodeBlock {
		return &nodeBlock{
			GPUs:  []*gpuBlock{{Index: 0, Count: 4, Model: "Simulated GPU", Memory: 24576, NUMA: ptr(0), Place: "b0/s0", Compute: "9.0"}},
			NICs:  []*nicBlock{{Name: "mlx5_0", Model: "MT4129 ConnectX-7", Rate: 200, NUMA: ptr(0), Place: "b0/s0"}},
			Links: []linkBlock{{Cards: first(4), Count: 4, Switch: true}},
		}
	},
}

// hgx is a board of eight cards behind NVSwitches, each card with an adapter
// below its own PCIe switch.
func hgx(model string, memory int, compute string, links int) *nodeBlock {
	n := &nodeBlock{Links: []linkBlock{{Cards: first(8), Count: links, Switch: true}}}
	for i := range 8 {
		place := fmt.Sprintf("b%d/s%d", i, i)
		n.GPUs = append(n.GPUs, &gpuBlock{Index: i, Model: model, Memory: memory, NUMA: ptr(i / 4), Place: place, Compute: compute, Driver: "580.95.05", CUDA: "13.0"})
		n.NICs = append(n.NICs, &nicBlock{Name: fmt.Sprintf("mlx5_%d", i), Model: "MT4129 ConnectX-7", Rate: 400, NUMA: ptr(i / 4), Place: place})
	}
	return n
}

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }

func first(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func parseBus(text string) (pci.Address, error) { return pci.Parse(text) }

// sliceMemory reads the memory of a MIG profile such as 3g.20gb, in MiB.
func sliceMemory(profile string) (int, error) {
	g, gb, found := strings.Cut(profile, "g.")
	cores, err1 := strconv.Atoi(g)
	memory, err2 := strconv.Atoi(strings.TrimSuffix(gb, "gb"))
	if !found || err1 != nil || err2 != nil || cores < 1 || cores > 7 || memory < 1 || !strings.HasSuffix(gb, "gb") {
		return 0, fmt.Errorf("mig profile %q: such as 3g.20gb", profile)
	}
	return memory * 1024, nil
}
