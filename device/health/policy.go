package health

import (
	"fmt"
	"time"

	"github.com/nomad-muster/muster/device/xid"
)

// Level is how far a card may be used.
type Level string

// The levels, best first.
const (
	Healthy     Level = "healthy"
	Suspect     Level = "suspect"     // usable, placed on last
	Draining    Level = "draining"    // no new work; clears by itself when its cause is seen to be gone
	Quarantined Level = "quarantined" // no new work; a person clears it
)

var levelRank = map[Level]int{"": 0, Healthy: 0, Suspect: 1, Draining: 2, Quarantined: 3}

// Known tells whether l is one of the levels.
func (l Level) Known() bool { _, ok := levelRank[l]; return ok && l != "" }

// Usable tells whether new work may be placed on a card of this level.
func (l Level) Usable() bool { return levelRank[l] <= levelRank[Suspect] }

// Worse tells whether l is worse than other.
func (l Level) Worse(other Level) bool { return levelRank[l] > levelRank[other] }

// Until says what ends a cause.
type Until string

// What can end a cause.
const (
	UntilGone     Until = "gone"     // the condition is looked at again and is over
	UntilProcess  Until = "process"  // the processes on the card are gone
	UntilReset    Until = "reset"    // a reset of the card or a reboot is seen
	UntilReboot   Until = "reboot"   // a reboot is seen
	UntilTime     Until = "time"     // the time is over
	UntilOperator Until = "operator" // a person clears the card
	UntilRepair   Until = "repair"   // a reset or reboot is seen in time (Policy.OffBusGrace), or a person clears it
)

// Known tells whether u is one of the things that can end a cause.
func (u Until) Known() bool { return u == UntilRepair || untilText[u] != "" }

var untilText = map[Until]string{
	UntilGone: "that it is seen to be over", UntilProcess: "the end of the processes on the card", UntilReset: "a reset of the card, or a reboot",
	UntilReboot: "a reboot", UntilTime: "time", UntilOperator: "a person (muster card clear)",
}

// Rule is what becomes of a card when something happens to it.
type Rule struct {
	Level Level
	Until Until
	// Probation: the card stays suspect for a while (Policy.Probation) after
	// the cause is gone.
	Probation bool
}

// CounterRule is a rate: more than Max within Window.
type CounterRule struct {
	Max    uint64
	Window time.Duration
	Level  Level
}

// Policy says what becomes of a card. The zero value is not usable: start from
// Default.
type Policy struct {
	Classes    map[xid.Class]Rule
	Codes      map[int]Rule // instead of their class's rule
	Conditions map[string]Rule
	Counters   map[string]CounterRule

	// Probation is how long a card stays suspect after a hardware cause is gone.
	Probation time.Duration
	// Strikes hardware errors within StrikeWindow quarantine the card.
	Strikes      int
	StrikeWindow time.Duration
	// InARow hardware errors with no clean run between, each within
	// InARowWindow of the one before, quarantine it too. 0: off.
	InARow       int
	InARowWindow time.Duration
	// Incident: hardware errors so close to the first of them are one.
	Incident time.Duration
	// SameFault: one code from two tellers so close together is one event.
	SameFault time.Duration
	// OffBusGrace: a card that fell off the bus is quarantined at once; a reset
	// or reboot seen within this time is taken for the repair and puts it on
	// probation. Later only a person clears it.
	OffBusGrace time.Duration
	// FirstStrike lists codes of which the first within Probation leaves the
	// card suspect; the second counts in full.
	FirstStrike map[int]bool
	// SuspicionFor is how long a planner's suspicion lasts.
	SuspicionFor time.Duration
	// BreakerSince is set while the cluster's circuit breaker is open: what
	// began since then makes no card worse than suspect, save what is looked at
	// (a card that does not answer cannot be used).
	BreakerSince time.Time
}

// Default is the policy where the site says nothing. The counters' figures:
// DCGM's health watches warn at 8 PCIe replays a minute and at the first
// NVLink replay or recovery error (a working link has none for days) and treat
// NVLink CRC errors as a rate; a day's allowance keeps single ones from
// mattering. Correctable ECC errors are harmless each; NVIDIA's own Xid 92
// speaks of a high rate, which a thousand an hour surely is.
func Default() Policy {
	return Policy{
		Classes: map[xid.Class]Rule{
			xid.Informational: {Healthy, UntilTime, false},
			xid.Application:   {Healthy, UntilTime, false},
			xid.Degraded:      {Suspect, UntilTime, false},
			xid.Contained:     {Suspect, UntilProcess, false},
			xid.Reset:         {Draining, UntilReset, true},
			xid.Machine:       {Draining, UntilReboot, true},
			xid.Support:       {Quarantined, UntilOperator, false},
			xid.Unknown:       {Quarantined, UntilOperator, false},
		},
		Codes: map[int]Rule{
			xid.OffTheBus: {Quarantined, UntilRepair, true},
		},
		Conditions: map[string]Rule{
			Unreachable:    {Draining, UntilGone, true},
			SourceLost:     {Draining, UntilGone, false},
			LinkDown:       {Draining, UntilGone, true},
			NICDown:        {Draining, UntilGone, false},
			RemapPending:   {Suspect, UntilGone, false},
			RemapFailed:    {Quarantined, UntilOperator, false},
			FabricDown:     {Draining, UntilGone, false},
			HotSlowdown:    {Suspect, UntilGone, false},
			PowerBrake:     {Suspect, UntilGone, false},
			ForeignProcess: {Suspect, UntilGone, false},
			BadRecord:      {Draining, UntilOperator, false},
			VendorFault:    {Draining, UntilGone, true},
			VendorWarning:  {Suspect, UntilGone, false},
		},
		Counters: map[string]CounterRule{
			NVLinkCRC:      {Max: 100, Window: time.Hour, Level: Suspect},
			NVLinkReplay:   {Max: 10, Window: 24 * time.Hour, Level: Suspect},
			NVLinkRecovery: {Max: 3, Window: 24 * time.Hour, Level: Suspect},
			PCIeReplay:     {Max: 480, Window: time.Hour, Level: Suspect},
			ECCCorrected:   {Max: 1000, Window: time.Hour, Level: Suspect},
			ECCUncorrected: {Max: 0, Window: 24 * time.Hour, Level: Suspect},
		},
		Probation: 24 * time.Hour, Strikes: 3, StrikeWindow: 24 * time.Hour, InARow: 2, InARowWindow: 7 * 24 * time.Hour,
		Incident: 30 * time.Second, SameFault: 10 * time.Second, OffBusGrace: 15 * time.Minute, SuspicionFor: 24 * time.Hour,
	}
}

// rule is what the policy has for a code of a class.
func (p Policy) rule(code int, class xid.Class) Rule {
	if r, ok := p.Codes[code]; ok && code > 0 {
		return r
	}
	if r, ok := p.Classes[class]; ok {
		return r
	}
	return Rule{Quarantined, UntilOperator, false}
}

// condition is what the policy has for a condition; one without a rule drains.
func (p Policy) condition(name string) Rule {
	if r, ok := p.Conditions[name]; ok {
		return r
	}
	return Rule{Draining, UntilGone, false}
}

// clearsText says in words what ends a cause.
func (p Policy) clearsText(c Cause) string {
	switch {
	case c.Until == UntilTime:
		return "at " + c.Ends.UTC().Format(time.RFC3339) + " if nothing else happens"
	case c.Until == UntilRepair && c.Ends.IsZero():
		return "a reset of the card or a reboot, or a person (muster card clear)"
	case c.Until == UntilRepair:
		return fmt.Sprintf("a reset or reboot seen before %s, or a person (muster card clear)", c.Ends.UTC().Format(time.RFC3339))
	}
	return untilText[c.Until]
}
