package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Device group types that the device plugin publishes (vendor/type/model). A
// MIG slice has a type of its own, so that a plain nvidia/gpu never gets one.
const (
	TypeGPU = "gpu"
	TypeMIG = "mig"
	// TypeShared are shares of one card in time; a type of its own, like MIG's.
	TypeShared = "shared"
	TypeNPU    = "npu"
	TypeNIC    = "nic"
)

// AttrCards is the group attribute that carries a CardGroup: Nomad keeps
// attributes per group, so what differs from card to card travels in one.
const AttrCards = "muster_cards"

// Group attributes that job specifications may name as ${device.attr.NAME}.
const (
	AttrMemory        = "memory"         // MiB, of one card
	AttrPower         = "power"          // W, limit
	AttrBAR1          = "bar1"           // MiB
	AttrPCIeBandwidth = "pcie_bandwidth" // MB/s
	AttrGraphicsClock = "graphics_clock" // MHz, limit
	AttrMemoryClock   = "memory_clock"   // MHz, limit
	AttrDriver        = "driver_version"
	AttrCUDA          = "cuda_version"
	AttrCompute       = "compute_capability"
	AttrCores         = "cores"
	AttrECC           = "ecc" // bool
	AttrMIGMode       = "mig" // bool: the card is cut into slices
	AttrNVLink        = "nvlink_version"
	AttrNVLinkCount   = "nvlink_count" // links of one card
	AttrFabricCluster = "fabric_cluster"
	AttrFabricClique  = "fabric_clique"
	AttrPersistence   = "persistence" // bool
	AttrReplicas      = "replicas"    // shares of one card; absent: 1
	AttrLinkRate      = "rate"        // NICs: MB/s
	AttrLinkLayer     = "link_layer"  // NICs: InfiniBand or Ethernet
	AttrSource        = "source"      // nvml, simulated, amdgpu, ascend, intel, sysfs
)

// CardsVersion is the version of CardGroup that this build writes. A reader
// takes any version up to its own and ignores fields that it does not know; a
// newer one it refuses, and treats the group's cards as without topology.
const CardsVersion = 1

// CardsLimit is the size in bytes that an encoded CardGroup never exceeds.
const CardsLimit = 5 << 10

// CardGroup is what a planner must know of the cards of one device group on
// one node, beside what Nomad itself keeps (id, health). Keys are short since
// Nomad sends a node's devices again on each of its updates.
type CardGroup struct {
	V     int    `json:"v"`
	Cards []Card `json:"cards"`
	// Links are the direct connections of two cards of this group, also
	// through a switch; a pair without an entry has none.
	Links []Link `json:"links,omitempty"`
	// Near tells how far two cards are apart on PCIe where it is not the
	// group's usual distance Far.
	Near []Distance `json:"near,omitempty"`
	Far  Hop        `json:"far,omitempty"`
}

// Card is one device of a group.
type Card struct {
	ID     string `json:"id"`              // Nomad's device id, the card's UUID
	Index  int    `json:"i"`               // the driver's own numbering
	Bus    string `json:"bus,omitempty"`   // PCI address, domain:bus:device.function; absent where Nomad's locality has it
	NUMA   *int   `json:"numa,omitempty"`  // absent: not known
	Domain string `json:"nv,omitempty"`    // cards with the same name reach each other over NVLink or its like; absent: none
	Parent string `json:"of,omitempty"`    // the card that a slice or replica is a part of
	Serial string `json:"sn,omitempty"`    //
	State  string `json:"state,omitempty"` // health verdict where not healthy: suspect, draining, quarantined
	Why    string `json:"why,omitempty"`   // its sentence; absent where Nomad's health description has it
	NICs   []NIC  `json:"nics,omitempty"`  // nearest first
}

// NIC is a network adapter near a card.
type NIC struct {
	ID  string `json:"id"`
	Hop Hop    `json:"hop"`
}

// Hop is a PCIe distance in nvidia-smi's words, from near to far: PIX, PXB,
// PHB, NODE, SYS. Empty: not known.
type Hop string

// The hops, nearest first.
const (
	HopPIX  Hop = "PIX"  // one PCIe bridge
	HopPXB  Hop = "PXB"  // several PCIe bridges
	HopPHB  Hop = "PHB"  // the PCIe host bridge
	HopNODE Hop = "NODE" // host bridges of one NUMA node
	HopSYS  Hop = "SYS"  // between NUMA nodes
)

// Link counts the live connections between two cards, by their places in
// CardGroup.Cards. Encoded as [a, b, count].
type Link struct{ A, B, Count int }

// Distance is the hop between two cards. Encoded as [a, b, "PIX"].
type Distance struct {
	A, B int
	Hop  Hop
}

// MarshalJSON gives the compact form.
func (l Link) MarshalJSON() ([]byte, error) { return json.Marshal([3]int{l.A, l.B, l.Count}) }

// UnmarshalJSON reads the compact form.
func (l *Link) UnmarshalJSON(data []byte) error {
	var v []int
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if len(v) != 3 {
		return fmt.Errorf("a link is [a, b, count], not %s", data)
	}
	*l = Link{v[0], v[1], v[2]}
	return nil
}

// MarshalJSON gives the compact form.
func (d Distance) MarshalJSON() ([]byte, error) { return json.Marshal([3]any{d.A, d.B, d.Hop}) }

// UnmarshalJSON reads the compact form.
func (d *Distance) UnmarshalJSON(data []byte) error {
	var v []json.RawMessage
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if len(v) != 3 {
		return fmt.Errorf("a distance is [a, b, hop], not %s", data)
	}
	return errors.Join(json.Unmarshal(v[0], &d.A), json.Unmarshal(v[1], &d.B), json.Unmarshal(v[2], &d.Hop))
}

// EncodeCards gives the attribute's text, the same for the same group. Where
// it would exceed CardsLimit, what helps placement least is left out, in this
// order: serials, distances, NICs beyond the nearest; then it is an error.
func EncodeCards(g CardGroup) (string, error) {
	g.V = CardsVersion
	g.Cards = append([]Card(nil), g.Cards...)
	for step := 0; ; step++ {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(g); err != nil {
			return "", fmt.Errorf("encode card group: %w", err)
		}
		text := bytes.TrimSpace(out.Bytes())
		if len(text) <= CardsLimit {
			return string(text), nil
		}
		switch step {
		case 0:
			for i := range g.Cards {
				g.Cards[i].Serial = ""
			}
		case 1:
			g.Near, g.Far = nil, ""
		case 2:
			for i := range g.Cards {
				g.Cards[i].NICs = g.Cards[i].NICs[:min(1, len(g.Cards[i].NICs))]
			}
		default:
			return "", fmt.Errorf("encode card group: %d cards take %d bytes, more than the %d that a group attribute may have", len(g.Cards), len(text), CardsLimit)
		}
	}
}

// DecodeCards reads what EncodeCards wrote, and checks it.
func DecodeCards(text string) (CardGroup, error) {
	var g CardGroup
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return CardGroup{}, fmt.Errorf("read attribute %s: %w", AttrCards, err)
	}
	if g.V < 1 || g.V > CardsVersion {
		return CardGroup{}, fmt.Errorf("read attribute %s: version %d is not known here (this build reads up to %d): upgrade the planner", AttrCards, g.V, CardsVersion)
	}
	var faults []error
	pair := func(what string, a, b int) {
		if a < 0 || b < 0 || a >= len(g.Cards) || b >= len(g.Cards) || a == b {
			faults = append(faults, fmt.Errorf("%s between places %d and %d of %d cards", what, a, b, len(g.Cards)))
		}
	}
	for _, l := range g.Links {
		pair("link", l.A, l.B)
		if l.Count < 1 {
			faults = append(faults, fmt.Errorf("link between places %d and %d counts %d", l.A, l.B, l.Count))
		}
	}
	for _, d := range g.Near {
		pair("distance", d.A, d.B)
	}
	seen := map[string]bool{}
	for _, c := range g.Cards {
		if c.ID == "" || seen[c.ID] {
			faults = append(faults, fmt.Errorf("card id %q is empty or stands twice", c.ID))
		}
		seen[c.ID] = true
	}
	if len(faults) > 0 {
		return CardGroup{}, fmt.Errorf("read attribute %s: %w", AttrCards, errors.Join(faults...))
	}
	return g, nil
}
