package xid

import (
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/device/pci"
)

// Kind is what sort of line it was.
type Kind string

// The kinds of lines that are events.
const (
	KindXid    Kind = "xid"
	KindSXid   Kind = "sxid"    // of an NVSwitch
	KindOffBus Kind = "off-bus" // a sentence without a code; Code is OffTheBus
)

// Event is what one line, or one sentence over several, tells.
type Event struct {
	Kind Kind
	Code int
	// Bus names the card (or switch). Zero: the line names none that can be
	// read.
	Bus pci.Address
	// GI and CI are the MIG instances; -1: the line names none.
	GI, CI   int
	PID      int    // 0: not told
	Process  string // empty: not told
	Severity string // Fatal, Nonfatal; empty: not told
	Link     int    // NVLink; -1: not told
	Detail   string // what follows the code
}

// Class is the code's class, as far as its line narrows it.
func (e Event) Class() Class {
	switch {
	case e.Kind == KindSXid:
		if e.Severity == "Fatal" {
			return Reset
		}
		return Informational
	case e.Code == RecoveryAction:
		return actionClass(e.Detail)
	case LineDecides(e.Code) && e.Severity == "Nonfatal":
		return Degraded
	}
	return ClassOf(e.Code)
}

// actionClass reads the action that a 154 ends in: "... to 0x4 (Drain and
// Reset)". Only what it changes to counts.
func actionClass(detail string) Class {
	_, action, found := strings.Cut(detail, " to ")
	if !found {
		return ClassOf(RecoveryAction)
	}
	action = strings.ToLower(action)
	switch {
	case strings.Contains(action, "none"):
		return Informational
	case strings.Contains(action, "reboot"):
		return Machine
	case strings.Contains(action, "reset"):
		return Reset
	case strings.Contains(action, "drain"):
		return Degraded
	}
	return Unknown
}

const (
	xidMark    = "NVRM: Xid ("
	nvrmMark   = "NVRM: "
	switchMark = "nvidia-nvswitch"
	sxidMark   = ": SXid ("
	offPhrase  = "fallen off the bus"
)

// Parse reads the text of one kernel-log record. The driver's mark must stand
// first: other records quote what users chose (file names, labels), which may
// look like one of ours.
func Parse(text string) (Event, bool) {
	none := Event{GI: -1, CI: -1, Link: -1}
	switch {
	case strings.HasPrefix(text, xidMark):
		return parseXid(text[len(xidMark):], none)
	case strings.HasPrefix(text, nvrmMark):
		return parseSentence(text[len(nvrmMark):], none)
	case strings.HasPrefix(text, switchMark):
		return parseSwitch(text, none)
	}
	return none, false
}

// ParseLine reads a line of dmesg, syslog or /dev/kmsg with whatever stands
// before the driver's own text.
func ParseLine(line string) (Event, bool) {
	start := len(line)
	for _, mark := range []string{nvrmMark, switchMark} {
		if at := strings.Index(line, mark); at >= 0 {
			start = min(start, at)
		}
	}
	return Parse(line[start:])
}

// parseXid reads "PCI:0000:01:00 GPU-I:05): 94, pid=7194, ...".
func parseXid(rest string, e Event) (Event, bool) {
	where, rest, found := strings.Cut(rest, ")")
	if !found {
		return e, false
	}
	rest, found = strings.CutPrefix(rest, ": ")
	if !found {
		return e, false
	}
	code, rest, ok := number(rest)
	if !ok || rest != "" && rest[0] != ',' && rest[0] != ' ' && rest[0] != '\n' {
		return e, false
	}
	e.Kind, e.Code = KindXid, code
	for i, word := range strings.Fields(where) {
		switch {
		case i == 0:
			e.Bus, _ = pci.Parse(word) // an address that cannot be read leaves a code that no card is blamed for
			e.Bus = e.Bus.Slot()
		case strings.HasPrefix(word, "GPU-I:"):
			e.GI = instance(word[len("GPU-I:"):])
		case strings.HasPrefix(word, "GPU-CI:"):
			e.CI = instance(word[len("GPU-CI:"):])
		}
	}
	rest = strings.TrimSpace(strings.TrimPrefix(rest, ","))
	if after, ok := strings.CutPrefix(rest, "pid="); ok {
		var pid string
		pid, rest = cutField(after)
		e.PID, _ = strconv.Atoi(strings.Trim(pid, "'<>")) // '<unknown>': no process is blamed
	}
	if after, ok := strings.CutPrefix(rest, "name="); ok {
		var name string
		name, rest = cutField(after)
		if name != "<unknown>" {
			e.Process = name
		}
	}
	e.Detail = rest
	if LineDecides(e.Code) {
		e.Severity, e.Link = severity(rest), link(rest)
	} else if e.Code == 74 {
		e.Link = link(rest)
	}
	return e, true
}

// parseSwitch reads "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028,
// Non-fatal, Link 32 ...". Lines with a payload of an earlier one are not
// events of their own.
func parseSwitch(line string, e Event) (Event, bool) {
	_, rest, found := strings.Cut(line, sxidMark)
	if !found {
		return e, false
	}
	where, rest, found := strings.Cut(rest, "): ")
	if !found {
		return e, false
	}
	bus, err := pci.Parse(where)
	if err != nil {
		return e, false
	}
	code, rest, ok := number(rest)
	if !ok {
		return e, false
	}
	rest = strings.TrimSpace(strings.TrimPrefix(rest, ","))
	if strings.HasPrefix(rest, "Data {") || strings.HasPrefix(rest, "Severity ") {
		return e, false
	}
	e.Kind, e.Code, e.Bus, e.Detail, e.Severity, e.Link = KindSXid, code, bus, rest, severity(rest), link(rest)
	return e, true
}

// parseSentence reads a loss told in one record without a code: "GPU
// 0000:29:00.0: GPU has fallen off the bus." or "The NVIDIA GPU 0000:18:00
// ... fallen off the bus ...".
func parseSentence(rest string, e Event) (Event, bool) {
	if !strings.Contains(rest, offPhrase) {
		return e, false
	}
	bus, ok := sentenceAddress(rest)
	if !ok {
		return e, false
	}
	e.Kind, e.Code, e.Bus, e.Detail = KindOffBus, OffTheBus, bus, "GPU has fallen off the bus"
	return e, true
}

// sentenceAddress reads the address out of "GPU 0000:29:00.0: ..." and "The
// NVIDIA GPU 0000:18:00\n...".
func sentenceAddress(text string) (pci.Address, bool) {
	text = strings.TrimPrefix(text, "The NVIDIA ")
	text, found := strings.CutPrefix(text, "GPU ")
	if !found {
		return pci.Address{}, false
	}
	if end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF:.", r) }); end >= 0 {
		text = text[:end]
	}
	bus, err := pci.Parse(strings.TrimRight(text, ":."))
	return bus.Slot(), err == nil
}

// number cuts a decimal number of at most 9 digits off the front.
func number(text string) (int, string, bool) {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(text[:end])
	return n, text[end:], err == nil && end <= 9
}

// instance reads a MIG instance number; -1 where it cannot be read, which
// means the whole card.
func instance(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return -1
	}
	return int(n)
}

// cutField cuts a value off at its comma.
func cutField(text string) (value, rest string) {
	value, rest, _ = strings.Cut(text, ",")
	return strings.TrimSpace(value), strings.TrimSpace(rest)
}

// severity finds the driver's word for it, which stands before the link. Where
// both words stand (one may be part of a process's name), the graver counts.
func severity(text string) string {
	found := ""
	if head, _, cut := strings.Cut(text, "Link"); cut {
		text = head
	}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
		switch strings.ToLower(word) {
		case "nonfatal", "non-fatal":
			found = "Nonfatal"
		case "fatal":
			return "Fatal"
		}
	}
	return found
}

// link finds the link's number: "Link 09", "on link 6(0x10000, ...". -1: none,
// or the whole card.
func link(text string) int {
	_, after, found := strings.Cut(strings.ToLower(text), "link ")
	if !found {
		return -1
	}
	n, _, ok := number(after)
	if !ok {
		return -1
	}
	return n
}
