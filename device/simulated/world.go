package simulated

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// world is a node after its injections.
type world struct {
	name    string
	block   *nodeBlock
	boot    int // reboots so far
	driver  int // driver starts so far
	gpus    map[int]*gpuState
	nics    map[string]bool // down
	records []kernlog.Record
	seq     uint64
}

type gpuState struct {
	swaps     int
	lost      bool
	hot       bool
	remap     bool
	down      map[int]bool // links
	counters  map[string]uint64
	processes []card.Process
	since     time.Time // of the last reset
}

func fresh(swaps int, since time.Time) *gpuState {
	return &gpuState{swaps: swaps, down: map[int]bool{}, counters: map[string]uint64{}, since: since}
}

// began is when simulated cards were last reset if nothing else is said.
var began = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)

// build folds injections into a node.
func build(name string, block *nodeBlock, injections []Injection) *world {
	w := &world{name: name, block: block, gpus: map[int]*gpuState{}, nics: map[string]bool{}}
	for _, g := range block.GPUs {
		w.gpus[g.Index] = fresh(0, began)
	}
	for _, i := range injections {
		w.inject(i)
	}
	return w
}

func (w *world) log(at time.Time, text string) {
	w.seq++
	w.records = append(w.records, kernlog.Record{Boot: w.bootID(), Seq: w.seq, At: at, Text: text})
}

func (w *world) bootID() string { return fmt.Sprintf("simulated-%s-%d", w.name, w.boot) }

func (w *world) inject(i Injection) {
	s := w.gpus[i.Card]
	if actions[i.Do].card && s == nil {
		return // the description no longer has this card
	}
	switch i.Do {
	case "xid":
		w.log(i.At, kernlog.NVRMLine(w.bus(i.Card), i.Code, i.Text))
		s.lost = s.lost || i.Code == xid.OffTheBus
	case "sxid":
		text := i.Text
		if text == "" {
			text = "Fatal, Link 0 injected"
		}
		w.log(i.At, fmt.Sprintf("nvidia-nvswitch0: SXid (PCI:0000:0a:00.0): %d, %s", i.Code, text))
	case "line":
		w.log(i.At, strings.ReplaceAll(i.Text, "%BUS%", w.bus(i.Card).Log()))
	case "lost":
		s.lost = true
	case "link-down":
		s.down[int(i.N)] = true
	case "nic-down":
		w.nics[i.NIC] = true
	case "thermal":
		s.hot = true
	case "counter":
		s.counters[i.Name] += i.N
	case "remap":
		s.remap = true
	case "process":
		s.processes = append(s.processes, card.Process{PID: 1<<22 + len(s.processes), Name: i.Name})
	case "idle":
		s.processes = nil
	case "swap":
		w.gpus[i.Card] = fresh(s.swaps+1, i.At)
	case "reset":
		s.reset(i.At)
	case "driver-reload":
		w.driver++
		for _, s := range w.gpus {
			s.reset(i.At)
		}
	case "reboot":
		w.boot++
		w.driver++
		w.records, w.seq = nil, 0
		for _, s := range w.gpus {
			s.reset(i.At)
		}
	case "clear":
		for index, s := range w.gpus {
			if i.NIC == "" && (i.Card < 0 || i.Card == index) {
				s.lost, s.hot, s.remap, s.down, s.processes = false, false, false, map[int]bool{}, nil
			}
		}
		for name := range w.nics {
			if i.Card < 0 && (i.NIC == "" || i.NIC == name) {
				delete(w.nics, name)
			}
		}
	}
}

func (s *gpuState) reset(at time.Time) {
	s.lost, s.remap, s.counters, s.processes, s.since = false, false, map[string]uint64{}, nil, at
}

func (w *world) gpu(index int) *gpuBlock {
	at := slices.IndexFunc(w.block.GPUs, func(g *gpuBlock) bool { return g.Index == index })
	return w.block.GPUs[at]
}

func (w *world) bus(index int) pci.Address {
	if a, err := pci.Parse(w.gpu(index).Bus); err == nil {
		return a
	}
	return pci.Address{Domain: uint32(index / 28), Bus: uint8(0x18 + index%28*8)}
}

func nicBus(b *nicBlock, place int) pci.Address {
	if a, err := pci.Parse(b.Bus); err == nil {
		return a
	}
	return pci.Address{Domain: uint32(place / 28), Bus: uint8(0x1a + place%28*8)}
}

// id makes a name that is the same each time for the same card.
func id(parts ...any) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(parts...)))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func (w *world) uuid(g *gpuBlock) string {
	s := w.gpus[g.Index]
	if g.UUID != "" && s.swaps == 0 {
		return g.UUID
	}
	return map[string]string{"nvidia": "GPU-", "amd": "AMD-", "huawei": "NPU-", "intel": "INTEL-"}[g.Vendor] + id(w.name, "gpu", g.Index, s.swaps)
}

// path lays a place out as sysfs would: the host bridge, the switches, a port
// of the last one, the card.
func path(place string, bus pci.Address) []string {
	if place == "" {
		return nil
	}
	var out []string
	for i := range strings.Split(place, "/") {
		out = append(out, strings.Join(strings.Split(place, "/")[:i+1], "/"))
	}
	return append(out, "port of "+bus.Log(), bus.Sysfs())
}

// scan is the node as a source sees it.
func (w *world) scan(now time.Time) card.Scan {
	s := card.Scan{Boot: w.bootID(), Driver: fmt.Sprint(w.driver)}
	links := w.links()
	for _, g := range w.block.GPUs {
		s.Cards = append(s.Cards, w.card(g, links[g.Index], now)...)
	}
	for i, b := range w.block.NICs {
		s.Cards = append(s.Cards, w.nic(i, b))
	}
	return s
}

// linked are the live links of one card.
type linked struct {
	peers  map[int]int // by index of the peer
	up     []int
	domain string
	all    int
}

// links lays out who is connected to whom. Each card numbers its links over the
// link blocks, and inside a block over its peers.
func (w *world) links() map[int]*linked {
	out := map[int]*linked{}
	at := func(i int) *linked {
		if out[i] == nil {
			out[i] = &linked{peers: map[int]int{}}
		}
		return out[i]
	}
	live := func(i, n int) bool { s := w.gpus[i]; return !s.lost && !w.gpu(i).Lost && !s.down[n] }
	for b, l := range w.block.Links {
		first := map[int]int{} // the number of a card's first link in this block
		lives := map[int]int{}
		for _, i := range l.Cards {
			first[i] = at(i).all
			n := l.Count
			if !l.Switch {
				n *= len(l.Cards) - 1
			}
			at(i).all += n
			for k := first[i]; k < first[i]+n; k++ {
				if live(i, k) {
					at(i).up = append(at(i).up, k)
					lives[i]++
				}
			}
			at(i).domain = fmt.Sprintf("links%d", b)
			if w.gpu(i).Fabric != "" {
				at(i).domain = w.gpu(i).Fabric
			}
		}
		for x, i := range l.Cards {
			for y, j := range l.Cards {
				if i == j {
					continue
				}
				n := 0
				if l.Switch {
					n = min(lives[i], lives[j])
				} else {
					place := func(from, to int) int { // of the peer among a card's peers
						if to > from {
							return to - 1
						}
						return to
					}
					for k := range l.Count {
						if live(i, first[i]+place(x, y)*l.Count+k) && live(j, first[j]+place(y, x)*l.Count+k) {
							n++
						}
					}
				}
				if n > 0 {
					at(i).peers[j] += n
				}
			}
		}
	}
	return out
}

// card makes one accelerator, and its slices.
func (w *world) card(g *gpuBlock, l *linked, now time.Time) []card.Card {
	s := w.gpus[g.Index]
	bus := w.bus(g.Index)
	uuid := w.uuid(g)
	c := card.Card{
		Group: card.Group{Vendor: g.Vendor, Type: contract.TypeGPU, Model: g.Model}, ID: uuid, Index: g.Index, Bus: bus, Path: path(g.Place, bus), NUMA: -1,
		Serial: g.Serial, GI: -1, CI: -1, Attributes: map[string]nomad.Attribute{contract.AttrSource: nomad.String("simulated")},
		Counters: map[string]uint64{}, Processes: append([]card.Process{}, s.processes...), Odometer: uint64(max(now.Sub(s.since).Milliseconds(), 0)) + 1,
	}
	if c.Serial == "" || s.swaps > 0 {
		c.Serial = strings.ToUpper(id(w.name, "serial", g.Index, s.swaps)[:8])
	}
	if g.NUMA != nil {
		c.NUMA = *g.NUMA
	}
	for name, value := range map[string]string{contract.AttrDriver: g.Driver, contract.AttrCUDA: g.CUDA, contract.AttrCompute: g.Compute} {
		if value != "" {
			c.Attributes[name] = nomad.String(value)
		}
	}
	if g.Memory > 0 {
		c.Attributes[contract.AttrMemory] = nomad.Int(int64(g.Memory), "MiB")
	}
	if cluster, clique, ok := strings.Cut(g.Fabric, "/"); ok {
		c.Attributes[contract.AttrFabricCluster], c.Attributes[contract.AttrFabricClique] = nomad.String(cluster), nomad.String(clique)
	}
	for _, name := range []string{health.ECCCorrected, health.ECCUncorrected, health.NVLinkCRC, health.NVLinkReplay, health.NVLinkRecovery, health.PCIeReplay} {
		c.Counters[name] = 0
	}
	for name, n := range s.counters {
		c.Counters[name] = n
	}
	if l != nil {
		c.Attributes[contract.AttrNVLinkCount] = nomad.Int(int64(l.all), "")
		c.Up = append([]int{}, l.up...)
		c.Links = map[string]int{}
		for j, n := range l.peers {
			c.Links[w.uuid(w.gpu(j))] = n
		}
		if len(l.peers) > 0 {
			c.Domain = l.domain
		}
	}
	switch g.Vendor {
	case "amd":
		c.Grant = card.AMD(uuid)
	case "huawei":
		c.Group.Type = contract.TypeNPU
		c.Grant = card.Ascend(fmt.Sprint(g.Index))
	case "intel":
		c.Grant = card.Intel(fmt.Sprint(g.Index))
	default:
		c.Grant = card.NVIDIA(uuid)
	}
	for _, n := range g.Nodes {
		c.Grant.Nodes = append(c.Grant.Nodes, card.Node(n))
	}
	if s.lost || g.Lost {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.OffBus, Text: "the card does not answer: it is lost"})
	}
	if s.hot || g.Hot {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.HotSlowdown, Text: "the card slows itself down, since it is hot"})
	}
	if s.remap {
		c.Conditions = append(c.Conditions, card.Condition{Name: health.RemapPending, Text: "a memory row waits for a reset to be remapped"})
	}
	return w.slices(g, c)
}

// slices cuts a card as its description says.
func (w *world) slices(g *gpuBlock, whole card.Card) []card.Card {
	if g.Slices == nil {
		return []card.Card{whole}
	}
	whole.Hidden = fmt.Sprintf("MIG mode is on: it is cut into %d slices", len(g.Slices))
	out := []card.Card{whole}
	for i, profile := range g.Slices {
		memory, _ := sliceMemory(profile) // checked when the file was read
		c := whole
		c.Hidden, c.Parent = "", whole.ID
		c.ID = "MIG-" + id(w.name, "slice", g.Index, w.gpus[g.Index].swaps, i)
		c.Group = card.Group{Vendor: "nvidia", Type: contract.TypeMIG, Model: g.Model + " MIG " + profile}
		c.GI, c.CI = i+1, 0
		c.Attributes = map[string]nomad.Attribute{contract.AttrMIGMode: nomad.Bool(true)}
		for k, v := range whole.Attributes {
			if k != contract.AttrNVLinkCount {
				c.Attributes[k] = v
			}
		}
		c.Attributes[contract.AttrMemory] = nomad.Int(int64(memory), "MiB")
		c.Links, c.Up, c.Domain, c.Serial, c.Counters, c.Odometer = nil, nil, "", "", nil, 0
		nodes := whole.Grant.Nodes
		c.Grant = card.NVIDIA(c.ID)
		c.Grant.Nodes = nodes
		out = append(out, c)
	}
	return out
}

func (w *world) nic(place int, b *nicBlock) card.Card {
	layer, rate := b.Layer, b.Rate
	if layer == "" {
		layer = "InfiniBand"
	}
	if rate == 0 {
		rate = 200
	}
	model := b.Model
	if model == "" {
		model = "Simulated adapter"
	}
	bus := nicBus(b, place)
	c := card.Card{Group: card.Group{Vendor: "mellanox", Type: contract.TypeNIC, Model: model}, ID: w.name + "-" + b.Name, Index: place, Name: b.Name, Bus: bus, Path: path(b.Place, bus),
		NUMA: -1, GI: -1, CI: -1, Grant: card.RDMA(b.Name),
		Attributes: map[string]nomad.Attribute{contract.AttrLinkRate: nomad.Int(int64(rate)*125, "MB/s"), contract.AttrLinkLayer: nomad.String(layer), contract.AttrSource: nomad.String("simulated")}}
	if b.NUMA != nil {
		c.NUMA = *b.NUMA
	}
	for _, n := range b.Nodes {
		c.Grant.Nodes = append(c.Grant.Nodes, card.Node(n))
	}
	if b.Down || w.nics[b.Name] {
		c.Conditions = []card.Condition{{Name: health.NICDown, Text: "port 1 of " + b.Name + " is down"}}
	}
	return c
}

// sample makes up measurements that fit the state.
func (w *world) sample(now time.Time) map[string]card.Sample {
	out := map[string]card.Sample{}
	for _, c := range w.scan(now).Cards {
		if c.Has(health.OffBus) {
			continue
		}
		s := card.Sample{At: now}
		if c.IsNIC() {
			if rate := c.Attributes[contract.AttrLinkRate].Int; rate != nil {
				s.Rate = ptr(float64(*rate) / 125)
			}
			out[c.ID] = s
			continue
		}
		busy := len(c.Processes) > 0
		util, temperature, power, used := 0.0, 34.0, 70.0, uint64(0)
		if busy {
			util, temperature, power = 97, 62, 640
		}
		if c.Has(health.HotSlowdown) {
			temperature = 93
			s.Throttle = []string{"hardware thermal slowdown"}
		}
		if m := c.Attributes[contract.AttrMemory].Int; m != nil {
			if busy {
				used = uint64(*m) * 9 / 10
			}
			s.MemTotal, s.MemUsed = ptr(uint64(*m)), &used
		}
		s.GPUUtil, s.Temperature, s.Power = &util, &temperature, &power
		s.Processes = ptr(uint64(len(c.Processes)))
		for name, to := range map[string]**uint64{health.ECCCorrected: &s.ECCCorrected, health.ECCUncorrected: &s.ECCUncorrected, health.NVLinkCRC: &s.NVLinkCRC,
			health.NVLinkReplay: &s.NVLinkReplay, health.NVLinkRecovery: &s.NVLinkRecovery, health.PCIeReplay: &s.PCIeReplay} {
			*to = ptr(c.Counters[name])
		}
		if c.Odometer > 0 {
			s.Energy = ptr(c.Odometer)
		}
		out[c.ID] = s
	}
	return out
}
