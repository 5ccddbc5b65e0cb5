package health

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nomad-muster/muster/device/xid"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return zero.Add(d) }

func sec(n int) time.Time { return at(time.Duration(n) * time.Second) }

func code(n int, when time.Time) Event {
	return Event{Kind: Xid, Code: n, At: when, From: "kernel log", Text: fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): %d, x", n)}
}

func tick(when time.Time) Event { return Event{Kind: Tick, At: when} }

// One step of a script: an event, and what holds right after it.
type step struct {
	event Event
	level Level
	says  string // part of the sentence
}

func TestScripts(t *testing.T) {
	t.Parallel()
	h := time.Hour
	reset := func(when time.Time) Event { return Event{Kind: WasReset, At: when, From: "scan"} }
	reboot := func(when time.Time) Event { return Event{Kind: Reboot, At: when} }
	begins := func(name, part string, when time.Time) Event {
		return Event{Kind: Begins, Name: name, Part: part, At: when}
	}
	ends := func(name, part string, when time.Time) Event {
		return Event{Kind: Ends, Name: name, Part: part, At: when}
	}
	for name, script := range map[string][]step{
		// C07, the three scripts.
		"a mild event does not wipe out a fatal one": {{code(79, sec(10)), Quarantined, "Xid 79"}, {code(31, sec(12)), Quarantined, "Xid 79"}, {tick(sec(39)), Quarantined, "Xid 79"},
			{reset(sec(40)), Suspect, "on probation after: Xid 79"}, {tick(at(25 * h)), Healthy, ""}},
		"a program's error condemns nobody": {{code(31, sec(10)), Healthy, ""}, {code(13, sec(11)), Healthy, ""}, {code(43, sec(12)), Healthy, ""}, {code(45, sec(13)), Healthy, ""}},
		"48 then 63 stays until a reset":    {{code(48, sec(10)), Draining, "Xid 48"}, {code(63, sec(11)), Draining, "Xid 48"}, {Event{Kind: ProcessesGone, At: sec(20)}, Draining, "Xid 48"}, {tick(at(99 * h)), Draining, "Xid 48"}, {reset(at(100 * h)), Suspect, "on probation"}},
		"the machine must be restarted":     {{code(151, sec(1)), Draining, "restart of the machine"}, {reset(sec(2)), Draining, "restart"}, {reboot(sec(3)), Suspect, "probation"}},
		"a reboot is a reset too":           {{code(119, sec(1)), Draining, "needs a reset"}, {reboot(sec(3)), Suspect, "probation"}},
		"contact support":                   {{code(54, sec(1)), Quarantined, "needs a person"}, {reset(sec(2)), Quarantined, ""}, {reboot(sec(3)), Quarantined, ""}, {Event{Kind: Clear, Who: "ann", At: sec(4)}, Healthy, ""}},
		"an unknown code quotes its line":   {{code(901, sec(1)), Quarantined, "NVRM: Xid (PCI:0000:3b:00): 901, x"}, {reboot(sec(3)), Quarantined, "901"}},
		"contained goes with its process":   {{code(94, sec(1)), Suspect, "contained"}, {Event{Kind: ProcessesGone, At: sec(2)}, Healthy, ""}},
		"off the bus, repaired too late":    {{code(79, sec(0)), Quarantined, "fallen off"}, {reset(at(16 * time.Minute)), Quarantined, "fallen off"}, {Event{Kind: Confirm, Who: "ann", Text: "RMA 7", At: at(h)}, Quarantined, "fallen off"}, {Event{Kind: Clear, Who: "ann", At: at(2 * h)}, Healthy, ""}},
		"off the bus again while on probation": {{code(79, sec(0)), Quarantined, "79"}, {reboot(at(5 * time.Minute)), Suspect, "probation"}, {code(79, at(2*h)), Quarantined, "79"},
			{reboot(at(2*h + time.Minute)), Quarantined, "no clean run between"}},
		"a fall in history has no limit":           {{Event{Kind: Xid, Code: 79, At: sec(0), History: true}, Quarantined, "79"}, {reset(at(30 * h)), Suspect, "probation"}},
		"second hardware error while on probation": {{code(48, sec(0)), Draining, "48"}, {reset(sec(60)), Suspect, ""}, {Event{Kind: CleanRun, At: at(h)}, Suspect, ""}, {code(119, at(2*h)), Quarantined, "within 24 h of the last fault"}},
		"two in a row without a clean run":         {{code(48, sec(0)), Draining, ""}, {reset(sec(60)), Suspect, ""}, {tick(at(25 * h)), Healthy, ""}, {code(119, at(26*h)), Quarantined, "no clean run between (Xid 48, Xid 119)"}},
		"a clean run between":                      {{code(48, sec(0)), Draining, ""}, {reset(sec(60)), Suspect, ""}, {tick(at(25 * h)), Healthy, ""}, {Event{Kind: CleanRun, At: at(25 * h)}, Healthy, ""}, {code(119, at(26*h)), Draining, "119"}},
		"three within a day":                       {{code(94, sec(0)), Suspect, ""}, {Event{Kind: CleanRun, At: at(h)}, Suspect, ""}, {Event{Kind: ProcessesGone, At: at(h)}, Healthy, ""}, {code(94, at(5*h)), Suspect, ""}, {Event{Kind: ProcessesGone, At: at(6 * h)}, Healthy, ""}, {Event{Kind: CleanRun, At: at(6 * h)}, Healthy, ""}, {code(94, at(10*h)), Quarantined, "3 hardware errors within 24 h"}},
		"one incident, several codes":              {{code(48, sec(0)), Draining, ""}, {code(63, sec(0)), Draining, ""}, {code(94, sec(1)), Draining, ""}, {code(95, sec(2)), Draining, ""}, {reset(sec(60)), Suspect, ""}},
		"one fault that goes on":                   {{code(119, sec(0)), Draining, ""}, {code(119, sec(45)), Draining, ""}, {code(119, sec(90)), Draining, ""}, {code(119, sec(135)), Draining, ""}, {reset(sec(200)), Suspect, ""}},
		"a condition":                              {{begins(LinkDown, "3", sec(0)), Draining, "link down 3"}, {ends(LinkDown, "4", sec(1)), Draining, ""}, {ends(LinkDown, "3", sec(2)), Suspect, "probation"}},
		"a person cannot clear what is seen":       {{begins(Unreachable, "", sec(0)), Draining, "unreachable"}, {Event{Kind: Clear, Who: "ann", At: sec(1)}, Draining, "unreachable"}},
		"a lost source leaves no mark":             {{begins(SourceLost, "", sec(0)), Draining, "source lost"}, {ends(SourceLost, "", sec(9)), Healthy, ""}},
		"suspicion":                                {{Event{Kind: Suspicion, Level: Suspect, Text: "3 gangs failed here", At: sec(0)}, Suspect, "3 gangs"}, {tick(at(24 * h)), Healthy, ""}, {Event{Kind: Suspicion, Level: Quarantined, At: at(25 * h)}, Quarantined, "planner"}, {tick(at(99 * h)), Quarantined, ""}},
		"a failed self-test":                       {{Event{Kind: TestFailed, Text: "nccl: 2 of 8", At: sec(0)}, Quarantined, "2 of 8"}, {reboot(sec(5)), Quarantined, ""}},
		"a switch's fatal error":                   {{Event{Kind: Fault, Name: "SXid 20034", Class: xid.Reset, Text: "SXid 20034: Fatal, Link 30 LTSSM Fault Up", At: sec(0)}, Draining, "SXid 20034"}, {reset(sec(9)), Suspect, ""}},
		"a fault without a class":                  {{Event{Kind: Fault, Name: "?", At: sec(0)}, Quarantined, "?"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s State
			var v Verdict
			p := Default()
			for i, st := range script {
				s, v = Evolve(s, []Event{st.event}, p)
				// What is kept on disk is all that there is: a restart changes nothing.
				data, err := json.Marshal(s)
				must.NoError(t, err)
				var again State
				must.NoError(t, json.Unmarshal(data, &again))
				_, v2 := Evolve(again, nil, p)
				must.Eq(t, v.Level, v2.Level)
				must.Eq(t, v.Sentence, v2.Sentence)
				s = again
				must.Eq(t, st.level, v.Level, must.Sprintf("step %d: %s %s", i, v.Level, v.Sentence))
				must.StrContains(t, v.Sentence, st.says, must.Sprintf("step %d", i))
				must.Eq(t, v.Level == Healthy, v.Clears == "", must.Sprintf("step %d clears %q", i, v.Clears))
			}
		})
	}
}

func TestSameFaultFromTwoTellersCountsOnce(t *testing.T) {
	t.Parallel()
	tell := func(from string, s float64) Event {
		return Event{Kind: Xid, Code: 13, At: at(time.Duration(s * float64(time.Second))), From: from}
	}
	s, _ := Evolve(State{}, []Event{tell("kernel log", 1), tell("nvml", 1.2)}, Default())
	must.Eq(t, 1, s.Xids[13])
	s, _ = Evolve(State{}, []Event{tell("nvml", 1), tell("kernel log", 1.2), tell("kernel log", 1.3), tell("kernel log", 1.4), tell("nvml", 1.5)}, Default())
	must.Eq(t, 3, s.Xids[13])
	s, _ = Evolve(State{}, []Event{tell("nvml", 1), tell("kernel log", 30)}, Default())
	must.Eq(t, 2, s.Xids[13])

	// The second teller may know better how grave it is.
	s, v := Evolve(State{}, []Event{
		{Kind: Xid, Code: 149, Class: xid.Degraded, At: sec(1), From: "nvml"},
		{Kind: Xid, Code: 149, Class: xid.Reset, At: sec(1), From: "kernel log", Text: "NETIR Fatal"}}, Default())
	must.Eq(t, Draining, v.Level)
	must.Eq(t, 1, s.Xids[149])
}

func TestSlicesOfOneCardAreToldApart(t *testing.T) {
	t.Parallel()
	e := code(13, sec(1))
	e.Instance = "gi 1"
	s, _ := Evolve(State{}, []Event{e, code(13, sec(1))}, Default())
	must.Eq(t, 2, s.Xids[13])
}

func TestFirstStrike(t *testing.T) {
	t.Parallel()
	p := Default()
	p.FirstStrike = map[int]bool{119: true}
	s, v := Evolve(State{}, []Event{code(119, sec(0))}, p)
	must.Eq(t, Suspect, v.Level)
	s2, v := Evolve(s, []Event{code(119, at(time.Hour))}, p)
	must.Eq(t, Quarantined, v.Level)
	_, v = Evolve(s2, []Event{{Kind: Reboot, At: at(2 * time.Hour)}}, p)
	must.Eq(t, Quarantined, v.Level)
	_, v = Evolve(s, []Event{tick(at(24 * time.Hour))}, p)
	must.Eq(t, Healthy, v.Level)
}

func TestCounters(t *testing.T) {
	t.Parallel()
	p := Default()
	p.Counters = map[string]CounterRule{PCIeReplay: {Max: 10, Window: time.Hour, Level: Suspect}}
	read := func(n uint64, when time.Duration) Event {
		return Event{Kind: Counter, Name: PCIeReplay, Count: n, At: at(when)}
	}
	s, v := Evolve(State{}, []Event{read(5000, 0)}, p) // what was before the first sight is no growth
	must.Eq(t, Healthy, v.Level)
	s, v = Evolve(s, []Event{read(5010, time.Minute)}, p)
	must.Eq(t, Healthy, v.Level)
	s, v = Evolve(s, []Event{read(5011, 2*time.Minute)}, p)
	must.Eq(t, Suspect, v.Level)
	must.Eq(t, "pcie_replay grew by 11 within 1 h (allowed: 10)", v.Sentence)
	s, v = Evolve(s, []Event{tick(at(63 * time.Minute))}, p)
	must.Eq(t, Healthy, v.Level)
	s, v = Evolve(s, []Event{read(3, 64*time.Minute)}, p) // began anew
	must.Eq(t, Healthy, v.Level)
	_, v = Evolve(s, []Event{read(14, 65*time.Minute)}, p)
	must.Eq(t, Suspect, v.Level)

	s, _ = Evolve(State{}, []Event{read(100, 0), {Kind: WasReset, At: at(1)}, read(100, time.Minute)}, p) // grew by 100 since the reset
	must.Eq(t, uint64(100), s.Counters[PCIeReplay].Grew[0].By)
}

func TestBreakerHoldsBackWhatIsNotSeen(t *testing.T) {
	t.Parallel()
	p := Default()
	s, v := Evolve(State{}, []Event{code(48, sec(10))}, p)
	must.Eq(t, Draining, v.Level)
	p.BreakerSince = sec(20)
	s2, v := Evolve(State{}, []Event{code(48, sec(30)), code(79, sec(31))}, p)
	must.Eq(t, Suspect, v.Level)
	must.StrContains(t, v.Sentence, "circuit breaker")
	_, v = Evolve(s, []Event{tick(sec(30))}, p) // older ones stay
	must.Eq(t, Draining, v.Level)
	_, v = Evolve(s2, []Event{{Kind: Begins, Name: Unreachable, At: sec(32)}}, p)
	must.Eq(t, Draining, v.Level)
	_, v = Evolve(s2, []Event{{Kind: Clear, At: sec(33)}}, p)
	must.Eq(t, Healthy, v.Level)
	p.BreakerSince = time.Time{}
	_, v = Evolve(s2, nil, p)
	must.Eq(t, Quarantined, v.Level)
}

func TestPolicyOverrides(t *testing.T) {
	t.Parallel()
	p := Default()
	p.Codes[31] = Rule{Draining, UntilProcess, false}
	p.Codes[48] = Rule{Level: Healthy}
	_, v := Evolve(State{}, []Event{code(31, sec(1))}, p)
	must.Eq(t, Draining, v.Level)
	_, v = Evolve(State{}, []Event{code(48, sec(1))}, p)
	must.Eq(t, Healthy, v.Level)
	must.True(t, Suspect.Usable() && Healthy.Usable() && !Draining.Usable() && !Quarantined.Usable())
}

// anyEvent draws events that follow each other in time.
func anyEvent(t *rapid.T, now *time.Time) Event {
	*now = now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "s")) * time.Second)
	e := Event{At: *now, From: rapid.SampledFrom([]string{"kernel log", "nvml"}).Draw(t, "from"),
		Kind: rapid.SampledFrom([]Kind{Xid, Xid, Xid, Fault, Counter, Begins, Ends, WasReset, Reboot, ProcessesGone, CleanRun, Suspicion, TestPassed, TestFailed, Confirm, Clear, Note, Tick}).Draw(t, "kind")}
	switch e.Kind {
	case Xid:
		e.Code = rapid.SampledFrom([]int{13, 31, 48, 63, 79, 94, 119, 151, 54, 999}).Draw(t, "code")
	case Fault:
		e.Name, e.Class = "SXid 1", rapid.SampledFrom([]xid.Class{xid.Reset, xid.Informational}).Draw(t, "class")
	case Counter:
		e.Name, e.Count = rapid.SampledFrom([]string{PCIeReplay, "other"}).Draw(t, "name"), rapid.Uint64Range(0, 2000).Draw(t, "count")
	case Begins, Ends:
		e.Name = rapid.SampledFrom([]string{LinkDown, Unreachable, RemapFailed, "new"}).Draw(t, "name")
	}
	return e
}

// In whatever portions events come, the outcome is the same, the input is left
// alone, and the state stays small.
func TestPortionsDoNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := zero
		var events []Event
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			events = append(events, anyEvent(t, &now))
		}
		whole, v := Evolve(State{}, events, Default())
		var s State
		var v2 Verdict
		for len(events) > 0 {
			n := rapid.IntRange(1, len(events)).Draw(t, "portion")
			before, err := json.Marshal(s)
			must.NoError(t, err)
			next, verdict := Evolve(s, events[:n], Default())
			after, err := json.Marshal(s)
			must.NoError(t, err)
			must.Eq(t, string(before), string(after))
			s, v2, events = next, verdict, events[n:]
		}
		must.Eq(t, v, v2)
		a, err := json.Marshal(whole)
		must.NoError(t, err)
		b, err := json.Marshal(s)
		must.NoError(t, err)
		must.Eq(t, string(a), string(b))
		must.Less(t, 24<<10, len(a))
	})
}

// A card gets better only by an event that ends a cause, never because another
// fault came.
func TestFaultsNeverHeal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := zero
		var s State
		v := Verdict{Level: Healthy}
		p := Default()
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			e := anyEvent(t, &now)
			aged, before := Evolve(s, []Event{tick(e.At)}, p) // what time alone does
			next, after := Evolve(aged, []Event{e}, p)
			switch e.Kind {
			case Xid, Fault, Counter, Begins, Suspicion, TestFailed, TestPassed, Confirm, Note, CleanRun, Tick:
				must.False(t, before.Level.Worse(after.Level), must.Sprintf("%s made %s out of %s", e.Kind, after.Level, before.Level))
			}
			if before.Level == Quarantined && after.Level != Quarantined {
				must.True(t, e.Kind == Clear || e.Kind == WasReset || e.Kind == Reboot)
			}
			s, v = next, after
		}
		_ = v
	})
}

func TestStateStaysSmallForEver(t *testing.T) {
	t.Parallel()
	var s State
	for i := range 20000 {
		e := code(i%400+1, at(time.Duration(i)*time.Second))
		e.Instance = fmt.Sprint(i % 7)
		s, _ = Evolve(s, []Event{e, {Kind: Counter, Name: fmt.Sprint("c", i%200), Count: uint64(i), At: e.At}, {Kind: Note, Text: "x", At: e.At}}, Default())
	}
	data, err := json.Marshal(s)
	must.NoError(t, err)
	must.Less(t, 128<<10, len(data))
}
