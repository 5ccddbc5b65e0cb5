package xid

import (
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/pci"
)

// window is how long the parts of a cut sentence may lie apart.
const window = time.Second

// Assembler reads records in order and also finds the loss that some drivers
// tell in three:
//
//	NVRM: The NVIDIA GPU 0000:b3:00.0
//	NVRM: (PCI ID: 10de:26b5) installed in this system has
//	NVRM: fallen off the bus and is not responding to commands.
//
// The address is in the first, the phrase in the third. Where three records
// follow each other without a gap, they belong together. Where others came
// between, the phrase is given to a card only when every card that was begun
// within a second got one; else it is an Event without an address, which
// blames nobody and makes the caller look at all cards.
type Assembler struct {
	begun   []begun // in order
	phrases int     // third parts that are not given to a card yet
}

type begun struct {
	bus    pci.Address
	seq    uint64
	at     time.Time
	middle uint64 // sequence number of the second part; 0: not seen
}

// Feed reads one record: its sequence number, its time and its text.
func (a *Assembler) Feed(seq uint64, at time.Time, text string) []Event {
	found := a.expire(at)
	if e, ok := Parse(text); ok {
		return append(found, e)
	}
	rest, ok := strings.CutPrefix(text, nvrmMark)
	if !ok {
		return found
	}
	switch {
	case strings.HasPrefix(rest, "The NVIDIA GPU "):
		if bus, ok := sentenceAddress(rest); ok && len(a.begun) < 64 {
			a.begun = append(a.begun, begun{bus: bus, seq: seq, at: at})
		}
	case strings.HasPrefix(rest, "(PCI ID: "):
		for i := len(a.begun) - 1; i >= 0; i-- {
			if a.begun[i].middle == 0 {
				a.begun[i].middle = seq
				break
			}
		}
	case strings.HasPrefix(rest, offPhrase):
		found = append(found, a.phrase(seq)...)
	}
	return found
}

// phrase handles a third part.
func (a *Assembler) phrase(seq uint64) []Event {
	if n := len(a.begun); n > 0 && a.begun[n-1].middle == seq-1 && a.begun[n-1].seq == seq-2 {
		bus := a.begun[n-1].bus
		a.begun = a.begun[:n-1]
		return []Event{offBus(bus)}
	}
	a.phrases++
	if a.phrases < len(a.begun) {
		return nil // another card's phrase may be on its way
	}
	var found []Event
	for _, b := range a.begun {
		found = append(found, offBus(b.bus))
	}
	if len(a.begun) == 0 {
		found = []Event{offBus(pci.Address{})}
	}
	a.begun, a.phrases = nil, 0
	return found
}

// expire gives up on what was begun too long ago.
func (a *Assembler) expire(now time.Time) []Event {
	for len(a.begun) > 0 {
		if age := now.Sub(a.begun[0].at); age >= 0 && age <= window {
			return nil
		}
		a.begun = a.begun[1:]
	}
	lost := a.phrases > 0
	a.phrases = 0
	if lost {
		return []Event{offBus(pci.Address{})}
	}
	return nil
}

// Flush tells what is left when no further record came within the window.
func (a *Assembler) Flush(now time.Time) []Event { return a.expire(now) }

func offBus(bus pci.Address) Event {
	return Event{Kind: KindOffBus, Code: OffTheBus, Bus: bus, GI: -1, CI: -1, Link: -1, Detail: "GPU has fallen off the bus"}
}
