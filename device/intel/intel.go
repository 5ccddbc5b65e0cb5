// Package intel is the source of Intel's data-centre GPUs (Max, Flex, Arc Pro),
// from sysfs as the i915 and xe drivers have it. Graphics that are part of a
// processor have no memory of their own and are left out.
package intel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

const (
	drm   = "sys/class/drm"
	maker = 0x8086
)

// models by PCI id.
var models = map[int64]string{0x0bd5: "Intel Data Center GPU Max 1550", 0x0bd6: "Intel Data Center GPU Max 1550", 0x0bd9: "Intel Data Center GPU Max 1100", 0x0bda: "Intel Data Center GPU Max 1100",
	0x0bdb: "Intel Data Center GPU Max 1100", 0x56c0: "Intel Data Center GPU Flex 170", 0x56c1: "Intel Data Center GPU Flex 140", 0xe211: "Intel Arc Pro B60", 0xe212: "Intel Arc Pro B50"}

// Source lists Intel's GPUs.
type Source struct {
	root sysfs.Root
	host string
}

// New makes the source; root holds /sys and /dev.
func New(root sysfs.Root) *Source {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	return &Source{root, host}
}

// Name is "intel".
func (*Source) Name() string { return "intel" }

// Scan lists the cards.
func (s *Source) Scan(context.Context) (card.Scan, error) {
	var scan card.Scan
	for _, name := range s.root.List(drm) {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "card"))
		if err != nil || !strings.HasPrefix(name, "card") {
			continue
		}
		folder := filepath.Join(drm, name, "device")
		if vendor, ok := s.root.Number(folder, "vendor"); !ok || vendor != maker {
			continue
		}
		device, _ := s.root.Number(folder, "device")
		memory := s.memory(name, folder)
		if memory == 0 && models[device] == "" {
			continue
		}
		bus := s.root.Address(s.root.Path(folder))
		c := card.Card{Index: len(scan.Cards), Bus: bus, ID: "INTEL-" + s.host + "-" + bus.Sysfs(), GI: -1, CI: -1, Grant: card.Intel(strconv.Itoa(len(scan.Cards))),
			Group: card.Group{Vendor: "intel", Type: contract.TypeGPU, Model: models[device]}, Attributes: map[string]nomad.Attribute{contract.AttrSource: nomad.String("intel")}}
		if c.Group.Model == "" {
			c.Group.Model = fmt.Sprintf("Intel 0x%04x", device)
		}
		c.Path, c.NUMA = s.root.PlaceOf(s.root.Path(folder))
		if memory > 0 {
			c.Attributes[contract.AttrMemory] = nomad.Int(memory>>20, "MiB")
		}
		// The xe driver boots a card whose firmware is broken only so far that
		// it can be repaired.
		if mode, ok := s.root.Text(folder, "survivability_mode"); ok && mode != "" {
			c.Conditions = append(c.Conditions, card.Condition{Name: health.VendorFault, Text: "the card is in survivability mode: its firmware needs repair"})
		}
		files := []string{fmt.Sprintf("/dev/dri/card%d", number)}
		for _, node := range s.root.List(folder, "drm") {
			if strings.HasPrefix(node, "renderD") {
				files = append(files, "/dev/dri/"+node)
			}
		}
		for _, f := range files {
			if s.root.Exists(f) {
				c.Grant.Nodes = append(c.Grant.Nodes, card.Node(f))
			}
		}
		scan.Cards = append(scan.Cards, c)
	}
	return scan, nil
}

// memory is the card's own, in bytes; 0: none, or not told.
func (s *Source) memory(name, folder string) int64 {
	if n, ok := s.root.Number(drm, name, "lmem_total_bytes"); ok && n > 0 { // i915
		return n
	}
	total := int64(0)
	for _, tile := range s.root.List(folder) { // xe
		if !strings.HasPrefix(tile, "tile") {
			continue
		}
		if n, ok := s.root.Number(folder, tile, "physical_vram_size_bytes"); ok && n > 0 {
			total += n
		}
	}
	return total
}

// Sample measures the cards.
func (s *Source) Sample(ctx context.Context) (map[string]card.Sample, error) {
	scan, err := s.Scan(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]card.Sample{}
	for _, c := range scan.Cards {
		sample := card.Sample{At: time.Now()}
		folder := s.hwmon(c.Bus)
		if v, ok := s.root.Number(folder, "energy1_input"); ok && v >= 0 { // microjoules
			mj := uint64(v) / 1000
			sample.Energy = &mj
		}
		if v, ok := s.root.Number(folder, "temp2_input"); ok {
			t := float64(v) / 1000
			sample.Temperature = &t
		}
		if v, ok := s.root.Number(folder, "power1_max"); ok && v > 0 {
			w := float64(v) / 1e6
			sample.PowerLimit = &w
		}
		out[c.ID] = sample
	}
	return out, nil
}

func (s *Source) hwmon(bus pci.Address) string {
	folder := filepath.Join("sys/bus/pci/devices", bus.Sysfs(), "hwmon")
	for _, name := range s.root.List(folder) {
		return filepath.Join(folder, name)
	}
	return folder
}
