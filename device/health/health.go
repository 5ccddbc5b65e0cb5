// Package health decides whether a card may be used. It is a fold: Evolve takes
// what is known of one card and what was learned since, and gives what is known
// now and the verdict. It does nothing else: no clock, no I/O; the same events
// give the same state in whatever portions they come.
//
// A State is a set of causes. Each cause has a level, a sentence, the line that
// it stands on, and what ends it; the verdict is the worst level. So nothing
// that comes later makes a card better than its worst cause, save what ends
// that cause:
//
//   - gone: the condition (a link down, a card that does not answer) is looked
//     at again and over;
//   - process: nothing runs on the card any more;
//   - reset, reboot: one is seen. A reboot is also a reset;
//   - repair: a card that fell off the bus. Whoever resets it or restarts the
//     machine within Policy.OffBusGrace has repaired it; later, only a person
//     clears it. A fall before the plugin first watched the card has no such
//     limit: a card that answers now must have been reset;
//   - time: the time is over;
//   - operator: a person clears the card.
//
// Xids. The policy's rule for the code, else for its class, gives the level. The
// same code told by two (NVML and the kernel log) within Policy.SameFault is
// one event; if the second teller knows a graver class, that one holds.
//
// Hardware errors (classes contained and up) are strikes as well. Those within
// Policy.Incident of the first are one strike: one fault often has several
// codes. A code that goes on while its own cause still stands is not another
// strike: it is the same fault. Policy.Strikes within Policy.StrikeWindow, or
// Policy.InARow with no clean run between, quarantine the card. After a cause
// that asks for it is gone, the card is suspect for Policy.Probation; a strike
// in that time quarantines it.
//
// Counters are rates: more than CounterRule.Max within the window is a cause
// until a window later.
//
// A person's Clear removes every cause save conditions that are still seen, and
// all strikes. Confirm and Note only add to the record.
package health

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/xid"
)

// Version is the version of State that this build writes.
const Version = 1

// State is what is known of one card. It is kept on disk as JSON.
type State struct {
	Now      time.Time           `json:"now"` // the latest event's time
	Causes   []Cause             `json:"causes,omitempty"`
	Strikes  []Strike            `json:"strikes,omitempty"` // oldest first
	Xids     map[int]uint64      `json:"xids,omitempty"`    // how often each code was told, ever
	LastXid  int                 `json:"last_xid,omitempty"`
	Counters map[string]*Reading `json:"counters,omitempty"`
	Recent   []Told              `json:"recent,omitempty"` // to tell one fault from two
	Log      []Entry             `json:"log,omitempty"`    // what persons and tests said, oldest first
	Accepted string              `json:"accepted,omitempty"`
}

// Cause is one reason for which a card is not healthy.
type Cause struct {
	Key       string    `json:"key"` // one cause per key
	Level     Level     `json:"level"`
	Until     Until     `json:"until"`
	Ends      time.Time `json:"ends,omitzero"` // of UntilTime and UntilRepair; zero: no limit
	Since     time.Time `json:"since"`
	Last      time.Time `json:"last"`
	Times     int       `json:"times"`
	Text      string    `json:"text"`
	Line      string    `json:"line,omitempty"`
	Code      int       `json:"code,omitempty"`
	Observed  bool      `json:"observed,omitempty"` // a condition that is looked at
	Probation bool      `json:"probation,omitempty"`
}

// Strike is one hardware incident.
type Strike struct {
	At    time.Time `json:"at"`
	What  string    `json:"what"`
	Clean bool      `json:"clean,omitempty"` // a clean run followed
}

// Reading is a counter's last value and its growth, oldest first.
type Reading struct {
	Last uint64   `json:"last"`
	Grew []Growth `json:"grew,omitempty"`
}

// Growth is what a counter gained at a time.
type Growth struct {
	At time.Time `json:"at"`
	By uint64    `json:"by"`
}

// Told is a fault that was told lately, and how often by whom.
type Told struct {
	What     string         `json:"what"`
	Instance string         `json:"instance,omitempty"`
	At       time.Time      `json:"at"`
	By       map[string]int `json:"by"`
}

// Entry is one line of the card's record.
type Entry struct {
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	Who  string    `json:"who,omitempty"`
	Text string    `json:"text,omitempty"`
}

// Verdict is what the state comes to.
type Verdict struct {
	Level    Level
	Sentence string    // why, for people; empty where healthy
	Clears   string    // what would clear it; empty where healthy
	Since    time.Time // of the worst cause
	Causes   []Cause   // worst first: the evidence
}

// Bounds of what a state keeps, so that a card that errs for ever does not grow.
const (
	maxRecent   = 16
	maxLog      = 32
	maxStrikes  = 16
	maxCauses   = 24
	maxGrowth   = 32
	maxLine     = 240
	maxXidCodes = 256
)

// Evolve folds events, in the order in which they are given, into a state.
func Evolve(s State, events []Event, p Policy) (State, Verdict) {
	s = s.clone()
	for _, e := range events {
		if e.At.After(s.Now) {
			s.Now = e.At
		}
		s.expire(p)
		s.apply(e, p)
	}
	s.expire(p)
	return s, s.verdict(p)
}

func (s *State) apply(e Event, p Policy) {
	switch e.Kind {
	case Xid, Fault:
		s.fault(e, p)
	case Counter:
		s.counter(e, p)
	case Begins:
		r := p.condition(e.Name)
		c := Cause{Key: conditionKey(e), Level: r.Level, Until: r.Until, Probation: r.Probation, Text: sentence(e.Text, strings.TrimSpace(e.Name+" "+e.Part)), Observed: true}
		s.cause(c, e)
	case Ends:
		s.end(func(c Cause) bool { return c.Key == conditionKey(e) && c.Until == UntilGone }, e.At, p)
	case WasReset:
		s.end(func(c Cause) bool { return c.Until == UntilReset || repaired(c, e.At) }, e.At, p)
		s.resetCounters()
	case Reboot:
		s.end(func(c Cause) bool {
			return c.Until == UntilReset || c.Until == UntilReboot || c.Until == UntilProcess || c.Until == UntilGone || repaired(c, e.At)
		}, e.At, p)
		s.resetCounters()
		s.Recent = nil
	case ProcessesGone:
		s.end(func(c Cause) bool { return c.Until == UntilProcess }, e.At, p)
	case CleanRun:
		for i := range s.Strikes {
			s.Strikes[i].Clean = true
		}
	case Suspicion:
		c := Cause{Key: "suspicion", Level: e.Level, Until: UntilTime, Ends: e.At.Add(p.SuspicionFor), Text: sentence(e.Text, "the planner saw failures follow this card")}
		if !e.Level.Known() || e.Level == Healthy {
			c.Level = Suspect
		}
		if c.Level == Quarantined {
			c.Until, c.Ends = UntilOperator, time.Time{}
		}
		s.cause(c, e)
	case TestFailed:
		s.log(e)
		s.cause(Cause{Key: "self-test", Level: Quarantined, Until: UntilOperator, Text: sentence("self-test failed: "+e.Text, "")}, e)
	case TestPassed, Note:
		s.log(e)
	case Confirm:
		s.log(e)
		s.Accepted = strings.TrimSpace(e.Who + ": " + e.Text)
	case Clear:
		s.log(e)
		s.Causes = slices.DeleteFunc(s.Causes, func(c Cause) bool { return !(c.Observed && c.Until == UntilGone) })
		s.Strikes, s.Accepted = nil, ""
	}
}

// repaired tells whether a reset or reboot at a time is taken for the repair of
// a cause.
func repaired(c Cause, at time.Time) bool {
	return c.Until == UntilRepair && (c.Ends.IsZero() || !at.After(c.Ends))
}

// fault folds one Xid or other fault.
func (s *State) fault(e Event, p Policy) {
	class, code := e.Class, 0
	if e.Kind == Xid {
		code = e.Code
		if !class.Known() {
			class = xid.ClassOf(code)
		}
	}
	if !class.Known() {
		class = xid.Unknown
	}
	first := s.told(e, p.SameFault)
	if first && e.Kind == Xid {
		s.count(code)
	}
	rule := p.rule(code, class)
	key := strings.TrimSpace(e.what() + " " + e.Instance)
	standing := s.find(key) != nil
	struck, onProbation := false, false
	if first && class.Hardware() && !standing {
		struck, onProbation = s.strike(e, p)
	}
	if !rule.Level.Worse(Healthy) {
		return
	}
	c := Cause{Key: key, Level: rule.Level, Until: rule.Until, Probation: rule.Probation, Code: code, Text: describe(e, class), Line: cut(e.Text, maxLine)}
	switch rule.Until {
	case UntilTime:
		c.Ends = e.At.Add(p.Probation)
	case UntilRepair:
		if !e.History {
			c.Ends = e.At.Add(p.OffBusGrace)
		}
	}
	if p.FirstStrike[code] && !onProbation && !standing && c.Level.Worse(Suspect) {
		c.Level, c.Until, c.Probation, c.Ends = Suspect, UntilTime, false, e.At.Add(p.Probation)
		c.Key = "first strike " + key
		if s.find(c.Key) == nil {
			s.cause(c, e)
			return
		}
		c.Level, c.Until, c.Probation, c.Key = rule.Level, rule.Until, rule.Probation, key
	}
	s.cause(c, e)
	if struck {
		s.rates(e, p, onProbation)
	}
}

func (s *State) count(code int) {
	if s.Xids == nil {
		s.Xids = map[int]uint64{}
	}
	if _, known := s.Xids[code]; known || len(s.Xids) < maxXidCodes {
		s.Xids[code]++
	}
	s.LastXid = code
}

// told notes who told of a fault and says whether it is news: the n-th telling
// by one teller is the same event as the n-th by another within the span.
func (s *State) told(e Event, span time.Duration) bool {
	for i := range s.Recent {
		t := &s.Recent[i]
		if t.What != e.what() || t.Instance != e.Instance || t.At.Sub(e.At).Abs() > span {
			continue
		}
		most := 0
		for _, n := range t.By {
			most = max(most, n)
		}
		t.By[e.From]++
		return t.By[e.From] > most
	}
	s.Recent = append(s.Recent, Told{What: e.what(), Instance: e.Instance, At: e.At, By: map[string]int{e.From: 1}})
	if len(s.Recent) > maxRecent {
		s.Recent = s.Recent[1:]
	}
	return true
}

// strike counts a hardware error, and tells whether it was a strike of its own
// and whether the card was on probation.
func (s *State) strike(e Event, p Policy) (struck, onProbation bool) {
	for _, earlier := range s.Strikes {
		if d := e.At.Sub(earlier.At); d.Abs() <= p.Incident {
			return false, false
		}
	}
	onProbation = s.find("probation") != nil || s.hasFirstStrike()
	s.Strikes = append(s.Strikes, Strike{At: e.At, What: e.what()})
	sort.SliceStable(s.Strikes, func(i, j int) bool { return s.Strikes[i].At.Before(s.Strikes[j].At) })
	if len(s.Strikes) > maxStrikes {
		s.Strikes = s.Strikes[1:]
	}
	return true, onProbation
}

func (s *State) hasFirstStrike() bool {
	return slices.ContainsFunc(s.Causes, func(c Cause) bool { return strings.HasPrefix(c.Key, "first strike ") })
}

// rates applies the rules on several strikes.
func (s *State) rates(e Event, p Policy, onProbation bool) {
	within := func(window time.Duration, dirty bool) []Strike {
		var out []Strike
		for _, k := range s.Strikes {
			if e.At.Sub(k.At) < window && (!dirty || !k.Clean) {
				out = append(out, k)
			}
		}
		return out
	}
	text := ""
	if recent := within(p.StrikeWindow, false); p.Strikes > 0 && len(recent) >= p.Strikes {
		text = fmt.Sprintf("%d hardware errors within %s (%s)", len(recent), span(p.StrikeWindow), whats(recent))
	} else if row := within(p.InARowWindow, true); p.InARow > 0 && len(row) >= p.InARow {
		text = fmt.Sprintf("%d hardware errors with no clean run between (%s)", len(row), whats(row))
	} else if onProbation {
		text = fmt.Sprintf("%s within %s of the last fault", e.what(), span(p.Probation))
	}
	if text != "" {
		s.cause(Cause{Key: "repeated", Level: Quarantined, Until: UntilOperator, Text: text, Line: cut(e.Text, maxLine), Code: e.Code}, e)
	}
}

// counter folds one cumulative reading.
func (s *State) counter(e Event, p Policy) {
	if s.Counters == nil {
		s.Counters = map[string]*Reading{}
	}
	r := s.Counters[e.Name]
	if r == nil { // the first sight: what was before is nobody's news
		if len(s.Counters) < 64 {
			s.Counters[e.Name] = &Reading{Last: e.Count}
		}
		return
	}
	grew := e.Count - r.Last
	if e.Count < r.Last { // it began anew
		grew = e.Count
	}
	r.Last = e.Count
	if grew == 0 {
		return
	}
	r.Grew = append(r.Grew, Growth{e.At, grew})
	if len(r.Grew) > maxGrowth { // join the two oldest: the sum stays, the time is the later one
		r.Grew[1].By += r.Grew[0].By
		r.Grew = r.Grew[1:]
	}
	rule, ok := p.Counters[e.Name]
	if !ok {
		return
	}
	total := uint64(0)
	for _, g := range r.Grew {
		if e.At.Sub(g.At) < rule.Window {
			total += g.By
		}
	}
	if total > rule.Max && rule.Level.Worse(Healthy) {
		c := Cause{Key: "counter " + e.Name, Level: rule.Level, Until: UntilTime, Ends: e.At.Add(rule.Window),
			Text: fmt.Sprintf("%s grew by %d within %s (allowed: %d)", e.Name, total, span(rule.Window), rule.Max)}
		s.cause(c, e)
	}
}

func (s *State) resetCounters() {
	for _, r := range s.Counters {
		r.Last = 0
	}
}

// cause adds a cause, or renews the one with its key. A renewal never makes it
// milder.
func (s *State) cause(c Cause, e Event) {
	c.Since, c.Last, c.Times = e.At, e.At, 1
	old := s.find(c.Key)
	if old == nil {
		if len(s.Causes) >= maxCauses { // drop the mildest
			sortCauses(s.Causes)
			s.Causes = s.Causes[:maxCauses-1]
		}
		s.Causes = append(s.Causes, c)
		return
	}
	c.Since, c.Times = old.Since, old.Times+1
	if old.Level.Worse(c.Level) {
		c.Level, c.Until, c.Probation = old.Level, old.Until, old.Probation
	}
	if c.Until == UntilRepair { // a fall that goes on does not get more time
		c.Ends = old.Ends
	}
	if c.Line == "" {
		c.Line = old.Line
	}
	*old = c
}

func (s *State) find(key string) *Cause {
	for i := range s.Causes {
		if s.Causes[i].Key == key {
			return &s.Causes[i]
		}
	}
	return nil
}

// end removes causes, and puts the card on probation where one of them asks
// for it.
func (s *State) end(over func(Cause) bool, at time.Time, p Policy) {
	var gone []Cause
	kept := s.Causes[:0]
	for _, c := range s.Causes {
		if !over(c) {
			kept = append(kept, c)
		} else if c.Probation {
			gone = append(gone, c)
		}
	}
	s.Causes = kept
	if len(gone) > 0 && p.Probation > 0 {
		sortCauses(gone)
		s.cause(Cause{Key: "probation", Level: Suspect, Until: UntilTime, Ends: at.Add(p.Probation), Text: "on probation after: " + gone[0].Text}, Event{At: at})
	}
}

// expire drops what time has ended.
func (s *State) expire(p Policy) {
	s.Causes = slices.DeleteFunc(s.Causes, func(c Cause) bool { return c.Until == UntilTime && !s.Now.Before(c.Ends) })
	keep := max(p.StrikeWindow, p.InARowWindow)
	s.Strikes = slices.DeleteFunc(s.Strikes, func(k Strike) bool { return s.Now.Sub(k.At) >= keep })
	s.Recent = slices.DeleteFunc(s.Recent, func(t Told) bool { return s.Now.Sub(t.At) > 2*p.SameFault })
}

func (s *State) log(e Event) {
	s.Log = append(s.Log, Entry{At: e.At, Kind: e.Kind, Who: e.Who, Text: cut(e.Text, maxLine)})
	if len(s.Log) > maxLog {
		s.Log = s.Log[1:]
	}
}

// verdict reads the state.
func (s *State) verdict(p Policy) Verdict {
	causes := slices.Clone(s.Causes)
	open := !p.BreakerSince.IsZero()
	for i, c := range causes {
		if open && c.Level.Worse(Suspect) && !c.Observed && !c.Since.Before(p.BreakerSince) {
			causes[i].Level = Suspect
			causes[i].Text += " (held back: the cluster's circuit breaker is open)"
		}
	}
	sortCauses(causes)
	v := Verdict{Level: Healthy, Causes: causes}
	if len(causes) == 0 {
		return v
	}
	worst := causes[0]
	v.Level, v.Since, v.Sentence, v.Clears = worst.Level, worst.Since, worst.Text, p.clearsText(worst)
	if n := len(causes) - 1; n > 0 {
		v.Sentence += fmt.Sprintf(" (and %d more)", n)
	}
	return v
}

// sortCauses puts the worst first, of equals the oldest, so that the reason
// that is shown does not change with what comes after it.
func sortCauses(causes []Cause) {
	sort.SliceStable(causes, func(i, j int) bool {
		a, b := causes[i], causes[j]
		if a.Level != b.Level {
			return a.Level.Worse(b.Level)
		}
		if (a.Until == UntilOperator) != (b.Until == UntilOperator) {
			return a.Until == UntilOperator
		}
		if !a.Since.Equal(b.Since) {
			return a.Since.Before(b.Since)
		}
		return a.Key < b.Key
	})
}

// clone copies a state, so that the fold never changes its input.
func (s State) clone() State {
	s.Causes, s.Strikes, s.Log = slices.Clone(s.Causes), slices.Clone(s.Strikes), slices.Clone(s.Log)
	xids := make(map[int]uint64, len(s.Xids))
	for k, v := range s.Xids {
		xids[k] = v
	}
	if len(xids) > 0 {
		s.Xids = xids
	}
	if len(s.Counters) > 0 {
		counters := make(map[string]*Reading, len(s.Counters))
		for k, r := range s.Counters {
			counters[k] = &Reading{Last: r.Last, Grew: slices.Clone(r.Grew)}
		}
		s.Counters = counters
	}
	recent := make([]Told, len(s.Recent))
	for i, t := range s.Recent {
		by := make(map[string]int, len(t.By))
		for k, v := range t.By {
			by[k] = v
		}
		t.By = by
		recent[i] = t
	}
	s.Recent = recent
	return s
}

func conditionKey(e Event) string { return strings.TrimSpace(e.Name + " " + e.Part) }

// describe is the sentence for a code.
func describe(e Event, class xid.Class) string {
	if e.Kind == Fault {
		return sentence(e.Text, e.Name)
	}
	entry, known := xid.Lookup(e.Code)
	where := ""
	if e.Instance != "" {
		where = " on slice " + e.Instance
	}
	if !known {
		return fmt.Sprintf("Xid %d%s, which no catalogue here knows: %s", e.Code, where, cut(sentence(e.Text, "no line"), 120))
	}
	if e.Code == xid.OffTheBus {
		return "Xid 79: the card has fallen off the bus"
	}
	need := map[xid.Class]string{xid.Reset: "needs a reset", xid.Machine: "needs a restart of the machine", xid.Support: "needs a person",
		xid.Contained: "a contained memory error", xid.Degraded: "worth avoiding"}[class]
	if need == "" {
		need = string(class)
	}
	return fmt.Sprintf("Xid %d (%s)%s: %s", e.Code, entry.Mnemonic, where, need)
}

func sentence(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return cut(text, maxLine)
}

// cut shortens text without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// span prints a duration as people say it.
func span(d time.Duration) string {
	if d >= time.Hour && d%time.Hour == 0 {
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return d.String()
}

func whats(strikes []Strike) string {
	var out []string
	for _, k := range strikes {
		out = append(out, k.What)
	}
	return strings.Join(out, ", ")
}
