package health

import (
	"fmt"
	"time"

	"github.com/nomad-muster/muster/device/xid"
)

// Kind says what an Event tells.
type Kind string

// The kinds of events.
const (
	// Xid: a code of NVIDIA's driver. Class where its line narrows it; empty:
	// the catalogue's.
	Xid Kind = "xid"
	// Fault: like Xid, for what has no Xid code (Name): a switch's SXid, another
	// vendor's error. Its Class must be set.
	Fault Kind = "fault"
	// Counter: a cumulative reading (Name, Count). A lower reading than the
	// last starts anew.
	Counter Kind = "counter"
	// Begins and Ends bound a condition (Name, Text) that is looked at, such as
	// a link that is down. Ends without Begins is harmless.
	Begins Kind = "begins"
	Ends   Kind = "ends"
	// WasReset: the card was reset, or its driver started anew, and the card
	// answers.
	WasReset Kind = "reset"
	// Reboot: the machine started anew.
	Reboot Kind = "reboot"
	// ProcessesGone: nothing runs on the card any more.
	ProcessesGone Kind = "processes-gone"
	// CleanRun: a process had the card and left without an error of the card.
	CleanRun Kind = "clean-run"
	// Suspicion: the planner saw failures follow this card (Level, Text).
	Suspicion Kind = "suspicion"
	// TestPassed and TestFailed: a self-test's result.
	TestPassed Kind = "test-passed"
	TestFailed Kind = "test-failed"
	// Confirm: a person accepts the fault. Clear: a person releases the card.
	// Note: a person's remark. Each with Who and Text.
	Confirm Kind = "confirm"
	Clear   Kind = "clear"
	Note    Kind = "note"
	// Tick: time passes.
	Tick Kind = "tick"
)

// what names the fault of an Xid or Fault event.
func (e Event) what() string {
	if e.Kind == Xid {
		return fmt.Sprintf("Xid %d", e.Code)
	}
	return e.Name
}

// Event is one thing that was learned of a card.
type Event struct {
	Kind  Kind      `json:"kind"`
	At    time.Time `json:"at"`
	From  string    `json:"from,omitempty"` // who tells: "kernel log", "nvml", "scan", "planner", ...
	Code  int       `json:"code,omitempty"`
	Class xid.Class `json:"class,omitempty"`
	// Instance tells apart the same code of several slices of one card.
	Instance string `json:"instance,omitempty"`
	Name     string `json:"name,omitempty"` // counter, or condition
	Part     string `json:"part,omitempty"` // of the condition: which link, which NIC
	Count    uint64 `json:"count,omitempty"`
	Level    Level  `json:"level,omitempty"`
	Text     string `json:"text,omitempty"` // the line, the sentence, the remark
	Who      string `json:"who,omitempty"`
	// History: it happened before the plugin first watched this card.
	History bool `json:"history,omitempty"`
}

// Names of conditions, as scans look at them. The policy gives each a level.
const (
	Unreachable    = "unreachable"   // the source cannot vouch for the card
	OffBus         = "off the bus"   // the source says that it is gone from PCIe: folded as Xid 79 and unreachable
	SourceLost     = "source lost"   // the source itself cannot be asked
	LinkDown       = "link down"     // a link between cards
	NICDown        = "nic down"      // the port of a network adapter
	RemapPending   = "remap pending" // a memory row waits for a reset
	RemapFailed    = "remap failed"  // a memory row could not be remapped
	FabricDown     = "fabric down"   // the card has not joined its NVLink fabric
	HotSlowdown    = "thermal slowdown"
	PowerBrake     = "power brake"
	ForeignProcess = "foreign process" // runs on a card that no task holds
	BadRecord      = "record damaged"  // the card's health on disk could not be read
	VendorFault    = "vendor fault"    // the vendor's own tool calls the card bad
	VendorWarning  = "vendor warning"  // the vendor's own tool warns of the card
)

// Names of counters that have a default rule.
const (
	NVLinkCRC      = "nvlink_crc"
	NVLinkReplay   = "nvlink_replay"
	NVLinkRecovery = "nvlink_recovery"
	PCIeReplay     = "pcie_replay"
	ECCCorrected   = "ecc_corrected"
	ECCUncorrected = "ecc_uncorrected"
)
