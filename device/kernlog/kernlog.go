// Package kernlog reads the kernel log and finds the faults of cards in it.
//
// Reading does not empty the log: a restarted reader sees everything since boot
// again. Each record therefore carries the boot id and its sequence number, and
// whoever folds the sightings keeps how far it came.
//
// A record that a program wrote (echo > /dev/kmsg) has a facility other than
// the kernel's in its priority; it is never believed unless the configuration
// says so.
package kernlog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/xid"
)

// Record is one record of a kernel log.
type Record struct {
	Boot string
	Seq  uint64
	At   time.Time
	// Userspace: a program wrote it.
	Userspace bool
	// Missed counts the records that were overwritten before they were read,
	// just before this one.
	Missed uint64
	Text   string
}

// ParseRecord reads one record of /dev/kmsg, "prio,seq,usec,flags;text", with
// continuation lines (which begin with a blank) left out. The time is
// microseconds since boot, which the caller turns into a date.
func ParseRecord(raw string) (r Record, sinceBoot time.Duration, err error) {
	head, text, found := strings.Cut(raw, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return Record{}, 0, fmt.Errorf("%q is not a kernel-log record: it begins with priority,sequence,microseconds", cut(raw))
	}
	prio, err1 := strconv.ParseUint(fields[0], 10, 32)
	seq, err2 := strconv.ParseUint(fields[1], 10, 64)
	usec, err3 := strconv.ParseUint(fields[2], 10, 63)
	if err1 != nil || err2 != nil || err3 != nil || usec > uint64(1<<63-1)/1000 {
		return Record{}, 0, fmt.Errorf("%q is not a kernel-log record: priority, sequence and microseconds are numbers", cut(raw))
	}
	text, _, _ = strings.Cut(text, "\n")
	// The kernel escapes control characters, so a line break inside a record
	// stands as \x0a.
	text = strings.ReplaceAll(text, `\x0a`, "\n")
	return Record{Seq: seq, Userspace: prio>>3 != 0, Text: text}, time.Duration(usec) * time.Microsecond, nil
}

func cut(text string) string {
	if len(text) > 80 {
		return text[:80] + "..."
	}
	return text
}

// LineParser finds one vendor's faults in single records.
type LineParser func(text string) (card.Target, health.Event, bool)

// Finder turns records into sightings: NVIDIA's itself, since its sentences may
// be cut over several records, and other vendors' through their parsers.
type Finder struct {
	// From names the teller in events.
	From string
	// TrustUserspace believes records that programs wrote.
	TrustUserspace bool
	Parsers        []LineParser

	nvidia xid.Assembler
}

// Find reads one record. A zero Target means that the fault cannot be given to
// a card.
func (f *Finder) Find(r Record) []card.Sighting {
	if r.Userspace && !f.TrustUserspace {
		return nil
	}
	var out []card.Sighting
	add := func(t card.Target, e health.Event, how string) {
		e.At, e.From = r.At, f.From+how
		out = append(out, card.Sighting{Target: t, Event: e})
	}
	for _, e := range f.nvidia.Feed(r.Seq, r.At, r.Text) {
		how := ""
		if e.Kind == xid.KindOffBus { // the same loss is often told with its code as well
			how = ", in words"
		}
		add(Target(e), Event(e, r.Text), how)
	}
	for _, parse := range f.Parsers {
		if t, e, ok := parse(r.Text); ok {
			add(t, e, "")
		}
	}
	return out
}

// Target says which cards an NVIDIA event is of.
func Target(e xid.Event) card.Target {
	if e.Kind == xid.KindSXid {
		return card.Target{Switch: e.Bus.String(), GI: -1, CI: -1}
	}
	return card.Target{Bus: e.Bus, GI: e.GI, CI: e.CI}
}

// Event makes an NVIDIA event one of the health fold's.
func Event(e xid.Event, line string) health.Event {
	if e.Kind == xid.KindSXid {
		return health.Event{Kind: health.Fault, Name: fmt.Sprintf("SXid %d", e.Code), Class: e.Class(), Text: fmt.Sprintf("SXid %d of NVSwitch %s: %s", e.Code, e.Bus, e.Detail)}
	}
	out := health.Event{Kind: health.Xid, Code: e.Code, Class: e.Class(), Text: line}
	if e.GI >= 0 {
		out.Instance = fmt.Sprintf("gi %d", e.GI)
		if e.CI >= 0 {
			out.Instance += fmt.Sprintf(" ci %d", e.CI)
		}
	}
	return out
}

// NVRMLine is the line that NVIDIA's driver would write of a code, for trials.
func NVRMLine(bus pci.Address, code int, detail string) string {
	if detail == "" {
		detail = "pid='<unknown>', name=<unknown>, " + strings.ToLower(mnemonic(code))
		if code == xid.OffTheBus {
			detail = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
		}
	}
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", bus.Log(), code, detail)
}

func mnemonic(code int) string {
	if e, ok := xid.Lookup(code); ok {
		return e.Mnemonic
	}
	return "unlisted"
}
