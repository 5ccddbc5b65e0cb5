//go:build cgo && linux

package nvml

import (
	"fmt"
	"sort"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// remote is what is at the far end of a link. It stays while the link is live.
type remote struct {
	bus       pci.Address // zero: not told
	throughIt bool        // a switch
}

// link is a live link.
type link struct {
	number int
	remote remote
}

// readLinks finds the live links and the fabric.
func (g *gpu) readLinks() {
	h := g.handle
	g.s.memory.Lock()
	known := g.s.links[g.card.ID]
	g.s.memory.Unlock()
	now := map[int]remote{}
	total := 0
	for n := range nvml.NVLINK_MAX_LINKS {
		state, ret := ask(g.s, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) { return h.GetNvLinkState(n) })
		g.note(ret)
		if ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_GPU_IS_LOST {
			break
		}
		if ret != nvml.SUCCESS {
			continue // numbers past the end, and holes
		}
		total++
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		r, have := known[n]
		if !have {
			r = g.farEnd(n)
		}
		now[n] = r
		g.card.Up = append(g.card.Up, n)
		g.links = append(g.links, link{n, r})
	}
	g.s.memory.Lock()
	g.s.links[g.card.ID] = now
	g.s.memory.Unlock()
	if total == 0 {
		return
	}
	if g.card.Up == nil {
		g.card.Up = []int{}
	}
	g.card.Attributes[contract.AttrNVLinkCount] = nomad.Int(int64(total), "")
	if len(g.links) > 0 {
		if v, ok := get(g, "nvmlDeviceGetNvLinkVersion", func() (uint32, nvml.Return) { return h.GetNvLinkVersion(g.links[0].number) }); ok {
			g.card.Attributes[contract.AttrNVLink] = nomad.String(linkVersion(v))
		}
	}
	g.fabric()
}

// linkVersion names what the library counts.
func linkVersion(v uint32) string {
	names := map[uint32]string{1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
	if n, known := names[v]; known {
		return n
	}
	return fmt.Sprint(v)
}

// farEnd asks what a link leads to.
func (g *gpu) farEnd(n int) remote {
	var r remote
	if info, ok := get(g, "nvmlDeviceGetNvLinkRemotePciInfo", func() (nvml.PciInfo, nvml.Return) { return g.handle.GetNvLinkRemotePciInfo(n) }); ok {
		r.bus = busOf(info)
	}
	if kind, ok := get(g, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return g.handle.GetNvLinkRemoteDeviceType(n)
	}); ok {
		r.throughIt = kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
	}
	return r
}

// fabric reads which rack-wide NVLink fabric the card has joined.
func (g *gpu) fabric() {
	switched := false
	for _, l := range g.links {
		switched = switched || l.remote.throughIt
	}
	info, ok := get(g, "nvmlDeviceGetGpuFabricInfo", g.handle.GetGpuFabricInfo)
	if !ok {
		return
	}
	switch info.State {
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		if ret := nvml.Return(info.Status); ret != nvml.SUCCESS {
			g.card.Conditions = append(g.card.Conditions, card.Condition{Name: health.FabricDown, Text: "the card could not join its NVLink fabric: " + text(ret)})
			return
		}
		if info.ClusterUuid != [16]uint8{} {
			u := info.ClusterUuid
			cluster := fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
			g.card.Attributes[contract.AttrFabricCluster] = nomad.String(cluster)
			g.card.Attributes[contract.AttrFabricClique] = nomad.String(fmt.Sprint(info.CliqueId))
			g.card.Domain = fmt.Sprintf("%s/%d", cluster, info.CliqueId)
		}
	case nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		if switched {
			g.card.Conditions = append(g.card.Conditions, card.Condition{Name: health.FabricDown, Text: "the card has not joined its NVLink fabric: is the fabric manager running?"})
		}
	}
}

// connect finds which cards reach each other. At the far end of a link stands
// another card, or a switch: then every card on the switch is a peer, with as
// many links as the one of the two that has fewer to it. A card that is cut
// into slices is nobody's peer, since slices cannot use links.
func connect(gpus []*gpu) {
	byBus := map[pci.Address]*gpu{}
	for _, g := range gpus {
		if !g.card.Bus.IsZero() {
			byBus[g.card.Bus.Slot()] = g
		}
	}
	type key struct{ bus pci.Address }
	toSwitch := map[*gpu]map[key]int{}
	for _, g := range gpus {
		if g.mig {
			continue
		}
		for _, l := range g.links {
			peer, isCard := byBus[l.remote.bus.Slot()]
			if isCard && !l.remote.bus.IsZero() && !l.remote.throughIt {
				if peer != g && !peer.mig {
					g.peer(peer, 1)
				}
				continue
			}
			if !l.remote.throughIt && l.remote.bus.IsZero() {
				continue // it leads nowhere that anyone can tell
			}
			if toSwitch[g] == nil {
				toSwitch[g] = map[key]int{}
			}
			toSwitch[g][key{l.remote.bus}]++
		}
	}
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			shared := 0
			for sw, n := range toSwitch[a] {
				shared += min(n, toSwitch[b][sw])
			}
			if shared > 0 {
				a.peer(b, shared)
				b.peer(a, shared)
			}
		}
	}
	domains(gpus)
}

func (g *gpu) peer(p *gpu, links int) {
	if g.card.Links == nil {
		g.card.Links = map[string]int{}
	}
	g.card.Links[p.card.ID] += links
}

// domains names the sets of cards that reach each other, where no fabric has
// named them.
func domains(gpus []*gpu) {
	byID := map[string]*gpu{}
	for _, g := range gpus {
		byID[g.card.ID] = g
	}
	next := 0
	for _, g := range gpus {
		if g.card.Domain != "" || len(g.card.Links) == 0 {
			continue
		}
		label := fmt.Sprintf("nvlink%d", next)
		next++
		todo := []*gpu{g}
		for len(todo) > 0 {
			at := todo[0]
			todo = todo[1:]
			if at.card.Domain != "" {
				continue
			}
			at.card.Domain = label
			for id := range at.card.Links {
				todo = append(todo, byID[id])
			}
		}
	}
}

// readMIG finds the slices of a card. The library's "count" is the most that
// there could be, and its list has holes.
func (g *gpu) readMIG() {
	mode, ok := get(g, "nvmlDeviceGetMigMode", two(g.handle.GetMigMode))
	if !ok {
		return
	}
	on, pending := mode.a == nvml.DEVICE_MIG_ENABLE, mode.b == nvml.DEVICE_MIG_ENABLE
	g.card.Attributes[contract.AttrMIGMode] = nomad.Bool(on)
	if on != pending {
		g.card.Note = fmt.Sprintf("MIG mode is %s now and will be %s after a reset of the card", word(on), word(pending))
	}
	if !on {
		return
	}
	g.mig = true
	most, ok := get(g, "nvmlDeviceGetMaxMigDeviceCount", g.handle.GetMaxMigDeviceCount)
	if !ok {
		most = 0
	}
	for i := range most {
		// NOT_FOUND and INVALID_ARGUMENT are holes; any other error is that
		// one slice's.
		h, ret := ask(g.s, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) { return g.handle.GetMigDeviceHandleByIndex(i) })
		g.note(ret)
		if ret == nvml.SUCCESS {
			g.slice(h)
		}
	}
	sort.Slice(g.slices, func(i, j int) bool {
		a, b := g.slices[i], g.slices[j]
		if a.GI != b.GI {
			return a.GI < b.GI
		}
		if a.CI != b.CI {
			return a.CI < b.CI
		}
		return a.ID < b.ID
	})
	g.card.Hidden = fmt.Sprintf("MIG mode is on: it is cut into %d slices", len(g.slices))
	if len(g.slices) == 0 {
		g.card.Hidden = "MIG mode is on but no instance was made (after a reboot they must be made again): it can be used neither whole nor in slices"
	}
}

func word(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// slice reads one slice.
func (g *gpu) slice(h nvml.Device) {
	uuid, ok := get(g, "nvmlDeviceGetUUID", h.GetUUID)
	if !ok || uuid == "" {
		return
	}
	c := g.card
	c.ID, c.Parent, c.GI, c.CI = uuid, g.card.ID, -1, -1
	if v, ok := get(g, "nvmlDeviceGetGpuInstanceId", h.GetGpuInstanceId); ok {
		c.GI = v
	}
	if v, ok := get(g, "nvmlDeviceGetComputeInstanceId", h.GetComputeInstanceId); ok {
		c.CI = v
	}
	c.Attributes = map[string]nomad.Attribute{contract.AttrMIGMode: nomad.Bool(true)}
	for _, same := range []string{contract.AttrDriver, contract.AttrCUDA, contract.AttrCompute, contract.AttrECC, contract.AttrSource, contract.AttrPersistence} {
		if a, have := g.card.Attributes[same]; have {
			c.Attributes[same] = a
		}
	}
	attributes, haveAttributes := get(g, "nvmlDeviceGetAttributes", h.GetAttributes)
	mib := attributes.MemorySizeMB
	if v, ok := g.memory(h); ok {
		mib = v.total
	}
	if mib > 0 {
		c.Attributes[contract.AttrMemory] = nomad.Int(int64(mib), "MiB")
	}
	profile := "unknown profile"
	switch given, _ := get(g, "nvmlDeviceGetName", h.GetName); {
	case strings.Contains(given, "MIG "):
		_, profile, _ = strings.Cut(given, "MIG ")
	case haveAttributes && attributes.GpuInstanceSliceCount > 0 && mib > 0:
		profile = fmt.Sprintf("%dg.%dgb", attributes.GpuInstanceSliceCount, (mib+1023)/1024)
		if ci := attributes.ComputeInstanceSliceCount; ci > 0 && ci != attributes.GpuInstanceSliceCount {
			profile = fmt.Sprintf("%dc.%s", ci, profile)
		}
	case mib > 0:
		profile = fmt.Sprintf("%dgb", (mib+1023)/1024)
	}
	c.Group = card.Group{Vendor: "nvidia", Type: contract.TypeMIG, Model: g.card.Group.Model + " MIG " + profile}
	c.Grant = card.NVIDIA(uuid)
	// What belongs to the whole card is told there.
	c.Hidden, c.Note, c.Serial, c.Domain = "", "", "", ""
	c.Links, c.Up, c.Counters, c.Odometer, c.Processes, c.Conditions = nil, nil, nil, 0, nil, nil
	g.slices = append(g.slices, c)
}
