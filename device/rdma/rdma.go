// Package rdma is the source of network adapters that can do remote direct
// memory access (InfiniBand, RoCE, EFA), from /sys/class/infiniband. Each adapter is
// a device of its own, given to a task with its verbs files. An adapter none of
// whose ports is active is unhealthy.
package rdma

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
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

const class = "sys/class/infiniband"

// Source lists adapters.
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
	return &Source{root: root, host: host}
}

// Name is "rdma".
func (*Source) Name() string { return "rdma" }

// vendors by PCI id.
var vendors = map[int64]string{0x15b3: "mellanox", 0x14e4: "broadcom", 0x8086: "intel", 0x1d0f: "amazon", 0x1dd8: "pensando", 0x1077: "qlogic", 0x1425: "chelsio"}

// models of the makers whose adapters are common, by PCI id of the device.
var models = map[int64]string{0x1013: "ConnectX-4", 0x1015: "ConnectX-4 Lx", 0x1017: "ConnectX-5", 0x1019: "ConnectX-5 Ex", 0x101b: "ConnectX-6", 0x101d: "ConnectX-6 Dx", 0x101f: "ConnectX-6 Lx",
	0x1021: "ConnectX-7", 0x1023: "ConnectX-8", 0x1025: "ConnectX-9", 0xa2d2: "BlueField", 0xa2d6: "BlueField-2", 0xa2dc: "BlueField-3", 0xefa0: "EFA", 0xefa1: "EFA", 0xefa2: "EFA", 0xefa3: "EFA"}

// Scan lists the adapters.
func (s *Source) Scan(context.Context) (card.Scan, error) {
	var scan card.Scan
	for i, name := range s.root.List(class) {
		scan.Cards = append(scan.Cards, s.adapter(i, name))
	}
	return scan, nil
}

func (s *Source) adapter(index int, name string) card.Card {
	folder := s.root.Path(class, name, "device")
	c := card.Card{Index: index, Name: name, GI: -1, CI: -1, NUMA: -1, Grant: card.RDMA(name), Attributes: map[string]nomad.Attribute{contract.AttrSource: nomad.String("sysfs")}}
	c.Bus = s.root.Address(folder)
	c.Path, c.NUMA = s.root.PlaceOf(folder)
	c.Group = card.Group{Vendor: s.vendor(name), Type: contract.TypeNIC, Model: s.model(name)}
	c.ID = s.id(name, c.Bus)
	if v, ok := s.root.Text(class, name, "fw_ver"); ok && v != "" {
		c.Attributes["firmware"] = nomad.String(v)
	}
	best, active := 0.0, false
	var states []string
	for _, p := range s.ports(name) {
		states = append(states, fmt.Sprintf("port %d is %s", p.number, p.state))
		if p.active && (!active || p.rate > best) {
			best, active = p.rate, true
			c.Attributes[contract.AttrLinkLayer] = nomad.String(p.layer)
		} else if _, told := c.Attributes[contract.AttrLinkLayer]; !told && p.layer != "" {
			c.Attributes[contract.AttrLinkLayer] = nomad.String(p.layer)
		}
	}
	if active {
		c.Attributes[contract.AttrLinkRate] = nomad.Int(int64(best*125), "MB/s")
	} else {
		why := "no port is active: " + strings.Join(states, ", ")
		if len(states) == 0 {
			why = "it shows no port"
		}
		c.Conditions = append(c.Conditions, card.Condition{Name: health.NICDown, Text: name + ": " + why})
	}
	s.grant(name, &c)
	return c
}

func (s *Source) vendor(name string) string {
	id, ok := s.root.Number(class, name, "device/vendor")
	if !ok {
		return "unknown"
	}
	if v, known := vendors[id]; known {
		return v
	}
	return fmt.Sprintf("0x%04x", id)
}

// model is the adapter's type as the driver tells it, with the name under which
// it is sold.
func (s *Source) model(name string) string {
	device, haveDevice := s.root.Number(class, name, "device/device")
	sold := models[device]
	if hca, ok := s.root.Text(class, name, "hca_type"); ok && hca != "" {
		return strings.TrimSpace(hca + " " + sold)
	}
	switch {
	case sold != "":
		return sold
	case haveDevice:
		return fmt.Sprintf("0x%04x", device)
	}
	return ""
}

// id is the adapter's GUID, which the maker gives; a virtual function may have
// none, and goes by its place.
func (s *Source) id(name string, bus pci.Address) string {
	guid, _ := s.root.Text(class, name, "node_guid")
	if digits := strings.ReplaceAll(guid, ":", ""); strings.Trim(digits, "0") != "" {
		return "RDMA-" + digits
	}
	if bus.IsZero() {
		return "RDMA-" + s.host + "-" + name
	}
	return "RDMA-" + s.host + "-" + bus.Sysfs()
}

// port is one port of an adapter.
type port struct {
	number int
	state  string
	active bool
	rate   float64 // Gb/s
	layer  string
}

func (s *Source) ports(name string) []port {
	var out []port
	for _, p := range s.root.List(class, name, "ports") {
		number, err := strconv.Atoi(p)
		if err != nil {
			continue
		}
		state, ok := s.root.Text(class, name, "ports", p, "state")
		if !ok {
			state = "without a state"
		}
		_, word, found := strings.Cut(state, ": ")
		if !found {
			word = state
		}
		layer, _ := s.root.Text(class, name, "ports", p, "link_layer")
		rate, _ := s.root.Text(class, name, "ports", p, "rate")
		out = append(out, port{number: number, state: strings.ToLower(word), active: word == "ACTIVE", rate: parseRate(rate), layer: layer})
	}
	return out
}

// parseRate reads "400 Gb/sec (4X NDR)"; 0 where it cannot.
func parseRate(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || rate < 0 || rate > 1e6 {
		return 0
	}
	return rate
}

// grant adds the adapter's own device files, and the one for connections.
func (s *Source) grant(name string, c *card.Card) {
	folder := filepath.Join(class, name, "device")
	var files []string
	for _, kind := range []string{"infiniband_verbs", "infiniband_mad"} {
		for _, f := range s.root.List(folder, kind) {
			if !strings.HasPrefix(f, "issm") { // for subnet managers, not for tasks
				files = append(files, "/dev/infiniband/"+f)
			}
		}
	}
	for _, f := range append(files, "/dev/infiniband/rdma_cm") {
		if s.root.Exists(f) {
			c.Grant.Nodes = append(c.Grant.Nodes, card.Node(f))
		}
	}
}

// Sample reads the ports' counters.
func (s *Source) Sample(context.Context) (map[string]card.Sample, error) {
	out := map[string]card.Sample{}
	for _, name := range s.root.List(class) {
		sample := card.Sample{At: time.Now()}
		best := 0.0
		add := func(to **uint64, n int64) {
			if *to == nil {
				*to = new(uint64)
			}
			**to += uint64(n)
		}
		for _, p := range s.ports(name) {
			if p.active {
				best = max(best, p.rate)
			}
			counters := filepath.Join(class, name, "ports", strconv.Itoa(p.number), "counters")
			// The kernel counts data in words of four bytes.
			if n, ok := s.root.Number(counters, "port_rcv_data"); ok && n >= 0 {
				add(&sample.RxBytes, 4*n)
			}
			if n, ok := s.root.Number(counters, "port_xmit_data"); ok && n >= 0 {
				add(&sample.TxBytes, 4*n)
			}
			for _, c := range []string{"symbol_error", "link_error_recovery", "link_downed"} {
				if n, ok := s.root.Number(counters, c); ok && n >= 0 {
					add(&sample.LinkErrors, n)
				}
			}
		}
		sample.Rate = &best
		out[s.id(name, s.root.Address(s.root.Path(class, name, "device")))] = sample
	}
	return out, nil
}

// ParseLine finds what NVIDIA's adapter driver says of its hardware in one
// kernel-log record: "mlx5_core 0000:5c:00.0: ...: Detected insufficient power on
// the PCIe slot (27W)."
func ParseLine(text string) (card.Target, health.Event, bool) {
	rest, found := strings.CutPrefix(text, "mlx5_core ")
	if !found {
		return card.Target{}, health.Event{}, false
	}
	where, rest, _ := strings.Cut(rest, " ")
	bus, err := pci.Parse(strings.TrimSuffix(where, ":"))
	if err != nil {
		return card.Target{}, health.Event{}, false
	}
	name := ""
	switch {
	case strings.Contains(rest, "insufficient power on the PCIe slot"):
		name = "adapter power"
	case strings.Contains(rest, "Port module event[error]"):
		name = "adapter module"
	default:
		return card.Target{}, health.Event{}, false
	}
	return card.Target{Bus: bus.Slot(), GI: -1, CI: -1}, health.Event{Kind: health.Fault, Name: name, Class: xid.Degraded, Text: text}, true
}
