// Package amd is the source of AMD's accelerators, from sysfs: the amdgpu driver
// (/sys/class/drm/card*/device) and its compute side (/sys/class/kfd/kfd/topology).
//
// Two traps are known. The block counters of uncorrectable errors may jump by
// multiples of 1048560 whenever a tool reads them; such a growth is not
// believed. And xgmi_error answers EINVAL on newer cards, so XGMI's health is
// read from the RAS block xgmi_wafl.
package amd

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

const (
	drm   = "sys/class/drm"
	nodes = "sys/class/kfd/kfd/topology/nodes"
	maker = 0x1002

	// linkXGMI is the type of a link over XGMI in the compute topology.
	linkXGMI = 11
	// phantom is the step by which the error counters jump without an error.
	phantom = 1048560
)

// models by PCI id, where the driver gives no product name.
var models = map[int64]string{0x740c: "AMD Instinct MI250X", 0x7408: "AMD Instinct MI250X", 0x740f: "AMD Instinct MI210", 0x738c: "AMD Instinct MI100", 0x74a0: "AMD Instinct MI300A",
	0x74a1: "AMD Instinct MI300X", 0x74a5: "AMD Instinct MI325X", 0x75a0: "AMD Instinct MI350X", 0x75a3: "AMD Instinct MI355X"}

// Source lists AMD's accelerators.
type Source struct{ root sysfs.Root }

// New makes the source; root holds /sys and /dev.
func New(root sysfs.Root) *Source { return &Source{root} }

// Name is "amd".
func (*Source) Name() string { return "amd" }

// compute is a card in the compute topology.
type compute struct {
	node   int
	render int64
	gfx    int64
	hive   int64
	unique int64
	peers  map[int]int // links over XGMI by the peer's node
}

// Scan lists the cards.
func (s *Source) Scan(context.Context) (card.Scan, error) {
	byRender := map[int64]*compute{}
	for _, c := range s.topology() {
		byRender[c.render] = c
	}
	var scan card.Scan
	ids := map[int]string{} // by node of the topology
	var found []*compute
	var which []int
	for _, name := range s.root.List(drm) {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "card"))
		if err != nil || !strings.HasPrefix(name, "card") {
			continue // connectors (card0-DP-1) and render nodes
		}
		folder := filepath.Join(drm, name, "device")
		if vendor, ok := s.root.Number(folder, "vendor"); !ok || vendor != maker {
			continue
		}
		topo := byRender[s.render(folder)]
		if topo == nil {
			continue // it draws, but does not compute
		}
		c := s.card(len(scan.Cards), folder, number, topo)
		ids[topo.node] = c.ID
		found, which = append(found, topo), append(which, len(scan.Cards))
		scan.Cards = append(scan.Cards, c)
	}
	for i, topo := range found {
		c := &scan.Cards[which[i]]
		for node, links := range topo.peers {
			if id, here := ids[node]; here {
				if c.Links == nil {
					c.Links = map[string]int{}
				}
				c.Links[id] = links
			}
		}
		if topo.hive != 0 && len(c.Links) > 0 {
			c.Domain = fmt.Sprintf("xgmi-%x", uint64(topo.hive))
		}
	}
	return scan, nil
}

// render is the number of the card's render node; -1: it has none.
func (s *Source) render(folder string) int64 {
	for _, name := range s.root.List(folder, "drm") {
		if n, err := strconv.ParseInt(strings.TrimPrefix(name, "renderD"), 10, 64); err == nil && strings.HasPrefix(name, "renderD") {
			return n
		}
	}
	return -1
}

// topology reads the compute side.
func (s *Source) topology() []*compute {
	var out []*compute
	for _, name := range s.root.List(nodes) {
		number, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if id, ok := s.root.Number(nodes, name, "gpu_id"); !ok || id == 0 {
			continue // a CPU
		}
		p := s.properties(nodes, name, "properties")
		c := &compute{node: number, render: p["drm_render_minor"], gfx: p["gfx_target_version"], hive: p["hive_id"], unique: p["unique_id"], peers: map[int]int{}}
		for _, link := range s.root.List(nodes, name, "io_links") {
			l := s.properties(nodes, name, "io_links", link, "properties")
			if l["type"] == linkXGMI {
				c.peers[int(l["node_to"])]++
			}
		}
		out = append(out, c)
	}
	return out
}

// properties reads lines of a key and a number. Numbers above 2^63, such as
// unique ids, keep their bits.
func (s *Source) properties(parts ...string) map[string]int64 {
	out := map[string]int64{}
	text, _ := s.root.Text(parts...)
	for _, line := range strings.Split(text, "\n") {
		key, value, found := strings.Cut(line, " ")
		if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); found && err == nil {
			out[key] = int64(n)
		}
	}
	return out
}

// card reads one card.
func (s *Source) card(index int, folder string, number int, topo *compute) card.Card {
	c := card.Card{Index: index, GI: -1, CI: -1, NUMA: -1, Attributes: map[string]nomad.Attribute{contract.AttrSource: nomad.String("amdgpu")}, Counters: map[string]uint64{}}
	c.Bus = s.root.Address(s.root.Path(folder))
	c.Path, c.NUMA = s.root.PlaceOf(s.root.Path(folder))
	c.Serial, _ = s.root.Text(folder, "serial_number")
	c.Group = card.Group{Vendor: "amd", Type: contract.TypeGPU, Model: s.model(folder)}
	c.ID = s.id(folder, topo, c.Bus)
	if bytes, ok := s.root.Number(folder, "mem_info_vram_total"); ok && bytes > 0 {
		c.Attributes[contract.AttrMemory] = nomad.Int(bytes>>20, "MiB")
	}
	if v, ok := s.root.Text("sys/module/amdgpu/version"); ok && v != "" {
		c.Attributes[contract.AttrDriver] = nomad.String(v)
	}
	if topo.gfx > 0 {
		c.Attributes[contract.AttrCompute] = nomad.String(gfx(topo.gfx))
	}
	// ROCm takes a card by its unique id, else by its place among the cards.
	word := strconv.Itoa(index)
	if topo.unique != 0 {
		word = fmt.Sprintf("GPU-%x", uint64(topo.unique))
	}
	c.Grant = card.AMD(word)
	for _, f := range []string{"/dev/kfd", fmt.Sprintf("/dev/dri/card%d", number), fmt.Sprintf("/dev/dri/renderD%d", topo.render)} {
		if s.root.Exists(f) {
			c.Grant.Nodes = append(c.Grant.Nodes, card.Node(f))
		}
	}
	ue, ce := s.ras(folder)
	c.Counters[health.ECCUncorrected], c.Counters[health.ECCCorrected] = ue, ce
	if wafl, _, ok := s.block(folder, "xgmi_wafl"); ok && wafl > 0 {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.VendorFault, Part: "xgmi", Text: fmt.Sprintf("%d uncorrectable errors on XGMI since the driver started", wafl)})
	}
	return c
}

func (s *Source) model(folder string) string {
	if name, ok := s.root.Text(folder, "product_name"); ok && name != "" {
		return name
	}
	device, ok := s.root.Number(folder, "device")
	if name := models[device]; name != "" {
		return name
	}
	if ok {
		return fmt.Sprintf("AMD 0x%04x", device)
	}
	return ""
}

func (s *Source) id(folder string, topo *compute, bus pci.Address) string {
	if id, ok := s.root.Text(folder, "unique_id"); ok && strings.Trim(id, "0x") != "" {
		return "AMD-" + id
	}
	if topo.unique != 0 {
		return fmt.Sprintf("AMD-%x", uint64(topo.unique))
	}
	return "AMD-" + bus.Sysfs() // a consumer card without an id of its own
}

// gfx names a target version: 90402 is gfx942.
func gfx(v int64) string {
	return fmt.Sprintf("gfx%d%x%x", v/10000, v/100%100, v%100)
}

// ras adds up the RAS blocks' error counts; XGMI's block is told apart.
func (s *Source) ras(folder string) (uncorrectable, correctable uint64) {
	for _, file := range s.root.List(folder, "ras") {
		name, isBlock := strings.CutSuffix(file, "_err_count")
		if !isBlock || name == "xgmi_wafl" {
			continue
		}
		if ue, ce, ok := s.block(folder, name); ok {
			uncorrectable += ue
			correctable += ce
		}
	}
	return uncorrectable, correctable
}

// block reads "ue: 0" and "ce: 3". A count that is a multiple of the phantom
// step holds that much less.
func (s *Source) block(folder, name string) (ue, ce uint64, ok bool) {
	text, ok := s.root.Text(folder, "ras", name+"_err_count")
	if !ok {
		return 0, 0, false
	}
	for _, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err != nil {
			continue
		}
		switch strings.TrimSpace(key) {
		case "ue":
			ue = n % phantom
		case "ce":
			ce = n
		}
	}
	return ue, ce, true
}

// Sample measures the cards.
func (s *Source) Sample(ctx context.Context) (map[string]card.Sample, error) {
	scan, err := s.Scan(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]card.Sample{}
	for _, c := range scan.Cards {
		folder := filepath.Join("sys/bus/pci/devices", c.Bus.Sysfs())
		sample := card.Sample{At: time.Now()}
		number := func(parts ...string) (float64, bool) {
			n, ok := s.root.Number(append([]string{folder}, parts...)...)
			return float64(n), ok && n >= 0
		}
		if v, ok := number("gpu_busy_percent"); ok {
			sample.GPUUtil = &v
		}
		if v, ok := number("mem_busy_percent"); ok {
			sample.MemUtil = &v
		}
		if v, ok := number("mem_info_vram_used"); ok {
			mib := uint64(v) >> 20
			sample.MemUsed = &mib
		}
		if v, ok := number("mem_info_vram_total"); ok {
			mib := uint64(v) >> 20
			sample.MemTotal = &mib
		}
		for _, hwmon := range s.root.List(folder, "hwmon") {
			if v, ok := number("hwmon", hwmon, "temp2_input"); ok { // junction
				v /= 1000
				sample.Temperature = &v
			} else if v, ok := number("hwmon", hwmon, "temp1_input"); ok {
				v /= 1000
				sample.Temperature = &v
			}
			for _, file := range []string{"power1_average", "power1_input"} {
				if v, ok := number("hwmon", hwmon, file); ok {
					v /= 1e6
					sample.Power = &v
					break
				}
			}
			if v, ok := number("hwmon", hwmon, "power1_cap"); ok {
				v /= 1e6
				sample.PowerLimit = &v
			}
		}
		ue, ce := c.Counters[health.ECCUncorrected], c.Counters[health.ECCCorrected]
		sample.ECCUncorrected, sample.ECCCorrected = &ue, &ce
		out[c.ID] = sample
	}
	return out, nil
}

// ParseLine finds what the amdgpu driver says of its hardware in one kernel-log
// record.
func ParseLine(text string) (card.Target, health.Event, bool) {
	var none card.Target
	rest, found := strings.CutPrefix(text, "amdgpu")
	if !found {
		return none, health.Event{}, false
	}
	target := card.Target{GI: -1, CI: -1}
	rest = strings.TrimPrefix(rest, " ")
	if where, after, cut := strings.Cut(rest, ": "); cut {
		if bus, err := pci.Parse(where); err == nil {
			target.Bus, rest = bus.Slot(), after
		} else {
			rest = after
		}
	}
	rest = strings.TrimPrefix(rest, "amdgpu: ")
	if after, tagged := strings.CutPrefix(rest, "{"); tagged { // {1} numbers the incident
		if _, after, cut := strings.Cut(after, "}"); cut {
			rest = after
		}
	}
	fault := func(name string, class xid.Class) (card.Target, health.Event, bool) {
		return target, health.Event{Kind: health.Fault, Name: name, Class: class, Text: text}, true
	}
	switch {
	case strings.HasPrefix(rest, "GPU reset") && strings.Contains(rest, "failed"):
		return fault("amdgpu reset failed", xid.Machine)
	case strings.HasPrefix(rest, "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT)"):
		return fault("amdgpu fatal error", xid.Reset)
	case strings.Contains(rest, " uncorrectable hardware errors detected in "):
		count, block, _ := strings.Cut(rest, " uncorrectable hardware errors detected in ")
		n, err := strconv.ParseUint(strings.TrimSpace(count), 10, 64)
		if err != nil || n == 0 || n%phantom == 0 {
			return none, health.Event{}, false // "no errors", or the phantom step
		}
		name, _, _ := strings.Cut(strings.ToLower(block), " ")
		return fault("amdgpu "+name+" error", xid.Contained)
	}
	return none, health.Event{}, false
}
