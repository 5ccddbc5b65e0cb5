// Package card holds what the device plugin's sources tell: the cards that are
// there (Card), what happened to one (Sighting), and what was measured
// (Sample). It is plain data. A source is one vendor's view of a node; it fills
// in what it knows, and what it does not know stays absent: never zero, never
// an invented default.
package card

import (
	"time"

	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// Group names a Nomad device group: vendor/type/model.
type Group struct{ Vendor, Type, Model string }

// Card is one allocatable device: a whole card, a slice of one, an NPU, or a
// network adapter.
type Card struct {
	Group  Group
	ID     string // Nomad's device id: the card's UUID
	Source string // the name of the source that told of it
	Index  int    // the driver's own numbering
	Bus    pci.Address
	// Path is the card's place on PCIe, from the host bridge to the card
	// itself, as sysfs has it: pci0000:3a, 0000:3a:01.0, ... Empty: not known.
	Path   []string
	NUMA   int // -1: not known
	Serial string
	// Name is what tools and libraries call it on this node: mlx5_0. Only NICs
	// have one.
	Name string
	// Parent is the card that this one is a slice of.
	Parent string
	// GI and CI are a slice's MIG instances; -1 where it is none.
	GI, CI int
	// Domain names the fabric in which cards reach each other directly.
	Domain string
	// Links are its direct connections to other cards, by their id, as many as
	// are live.
	Links map[string]int
	// Up are the numbers of its links that are live, whatever is at their far
	// end. Nil: not known. One that was live and is not any more is a fault.
	Up []int
	// Attributes are the group's attributes as far as this card knows.
	Attributes map[string]device.Attribute
	// Conditions hold now. A card that cannot be vouched for has the condition
	// health.Unreachable.
	Conditions []Condition
	// Counters are cumulative readings that the health policy has rules for.
	Counters map[string]uint64
	// Odometer only ever grows until the card is reset or its driver starts
	// anew: a lower reading is the evidence of that. 0: not known.
	Odometer uint64
	// Processes run on the card now. Nil: not known; empty: none.
	Processes []Process
	// Hidden says why the card is known but not allocatable, such as one that
	// is cut into slices. Empty: it is.
	Hidden string
	// Note is a remark for the log, such as a change that waits for a reset.
	Note string
	// Grant is what a task gets with the card.
	Grant Grant
}

// Condition is something that holds for a card now (see health.Begins).
type Condition struct {
	Name, Part, Text string
}

// Process runs on a card.
type Process struct {
	PID    int
	Name   string // where it can be read
	Memory uint64 // MiB; 0: not known
}

// Has tells whether a condition of this name holds.
func (c *Card) Has(condition string) bool {
	for _, have := range c.Conditions {
		if have.Name == condition {
			return true
		}
	}
	return false
}

// Scan is what a source sees at one time. The list of cards is complete, but
// for those that Lost tells of.
type Scan struct {
	Cards []Card
	// Lost are cards that the source still counts but cannot ask even for
	// their id: their place, with the reason.
	Lost []Lost
	// Notes are remarks for the log; one that was said is not said again while
	// it stands.
	Notes []string
	// Absent says that the source has nothing to ask on this host: no driver, no
	// tool. That is as it should be, unless the configuration names the source.
	Absent string
	// Boot is the boot id of the machine. Empty: the host's own.
	Boot string
	// Driver names the driver's present life: another name means that it was
	// loaded anew. Empty: not known.
	Driver string
}

// Lost is a card without a name.
type Lost struct {
	Index int
	Bus   pci.Address
	Why   string
	Gone  bool // it is off the bus, not only mute
}

// Target says which cards a Sighting is of. Of the fields that are set, the
// first decides.
type Target struct {
	ID     string      // this card, with all its slices
	Bus    pci.Address // the card in this slot, with all its slices
	Switch string      // all cards of this source that have links (an NVSwitch's error)
	// GI and CI narrow ID or Bus to slices; -1: all.
	GI, CI int
}

// Whole targets a card by its address.
func Whole(bus pci.Address) Target { return Target{Bus: bus, GI: -1, CI: -1} }

// Sighting is an event and the cards that it is of.
type Sighting struct {
	Target Target
	Event  health.Event
}

// Sample is what was measured of a card. Nil and absent: not known.
type Sample struct {
	At                     time.Time
	GPUUtil, MemUtil       *float64 // percent
	SMActive, TensorActive *float64 // 0 to 1, real activity, where the hardware counts it
	MemUsed, MemTotal      *uint64  // MiB
	Temperature            *float64 // degrees Celsius
	Power, PowerLimit      *float64 // W
	SMClock, MemClock      *uint64  // MHz
	Throttle               []string // reasons that hold now
	ECCCorrected           *uint64  // since the driver started
	ECCUncorrected         *uint64
	NVLinkCRC              *uint64 // all links together
	NVLinkReplay           *uint64
	NVLinkRecovery         *uint64
	PCIeReplay             *uint64
	RemappedCorrectable    *uint64
	RemappedUncorrectable  *uint64
	RemapPending           *bool
	RetiredPages           *uint64
	Energy                 *uint64 // mJ since the driver started
	Processes              *uint64
	RxBytes, TxBytes       *uint64 // NICs: since the port came up
	LinkErrors             *uint64 // NICs: symbol, recovery and downed errors together
	Rate                   *float64
}

// IsNIC tells whether the card is a network adapter.
func (c *Card) IsNIC() bool { return c.Group.Type == contract.TypeNIC }
