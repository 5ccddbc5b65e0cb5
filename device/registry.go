package device

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog"
	"github.com/nomad-muster/muster/device/ledger"
	"github.com/nomad-muster/muster/device/xid"
)

// registry is what the plugin knows of the node's cards. It takes in scans,
// sightings and orders and folds them into each card's health; it does no I/O
// and has no clock. One goroutine owns it.
type registry struct {
	ledger.Content
	policy health.Policy
	// started is when this process began to watch: what is older is history.
	started time.Time
	// damaged: a card without a record may have lost it.
	damaged bool
	// sources are the configured ones: cards of others are kept, not published.
	sources map[string]bool
	// named: the configuration names the sources, so that one which finds nothing
	// to ask is worth a warning.
	named bool
	// verdicts of all cards, by id.
	verdicts map[string]health.Verdict
	// reachable cards answered at their last scan in this process.
	reachable map[string]bool
	// notes are what is to be logged; said are those that stand.
	notes []note
	said  map[string]bool
	// dirty: something changed that must reach the disk before it is told.
	dirty bool
	// settled: what the kernel logs held at the start is folded.
	settled bool
	// poke: a fault that names no card makes it worth looking at all of them.
	poke bool
}

// note is one line for the log.
type note struct {
	warn bool
	text string
	args []any
}

func newRegistry(loaded ledger.Loaded, policy health.Policy, sources []string, started time.Time) *registry {
	r := &registry{Content: loaded.Content, policy: policy, started: started, damaged: loaded.Damaged, sources: map[string]bool{},
		verdicts: map[string]health.Verdict{}, reachable: map[string]bool{}, said: map[string]bool{}}
	for _, s := range sources {
		r.sources[s] = true
	}
	if r.Node.Logs == nil {
		r.Node.Logs = map[string]ledger.Cursor{}
	}
	if r.Node.Drivers == nil {
		r.Node.Drivers = map[string]string{}
	}
	r.policy.BreakerSince = r.Node.BreakerSince
	r.tick(started)
	r.dirty = false
	return r
}

// fold gives events to one card.
func (r *registry) fold(id string, events ...health.Event) {
	e := r.Cards[id]
	before := r.verdicts[id]
	e.Health, r.verdicts[id] = health.Evolve(e.Health, events, r.policy)
	after := r.verdicts[id]
	for _, ev := range events {
		r.dirty = r.dirty || ev.Kind != health.Tick
	}
	if before.Level != after.Level || before.Sentence != after.Sentence {
		r.dirty = true
		if before.Level != after.Level && (after.Level != health.Healthy || before.Level != "") {
			r.say(after.Level != health.Healthy, "card is "+string(after.Level), "card", id, "slot", e.Card.Bus.String(), "why", after.Sentence, "clears", after.Clears)
		}
	}
}

func (r *registry) say(warn bool, text string, args ...any) {
	r.notes = append(r.notes, note{warn, text, args})
}

// sayOnce says a line once while it stands.
func (r *registry) sayOnce(key, text string, args ...any) {
	if !r.said[key] {
		if len(r.said) > 1000 { // rather a line twice than a memory that grows
			clear(r.said)
		}
		r.said[key] = true
		r.say(true, text, args...)
	}
}

// mentionOnce is sayOnce for what is no reason to worry.
func (r *registry) mentionOnce(key, text string, args ...any) {
	if !r.said[key] {
		r.said[key] = true
		r.say(false, text, args...)
	}
}

// unsaid forgets lines of a kind that do not stand any more, so that they are
// said when they come again.
func (r *registry) unsaid(kind string, stands map[string]bool) {
	for key := range r.said {
		if strings.HasPrefix(key, kind) && !stands[key] {
			delete(r.said, key)
		}
	}
}

// takeNotes hands out what is to be logged.
func (r *registry) takeNotes() []note {
	n := r.notes
	r.notes = nil
	return n
}

// ids lists the cards of a source that are in the machine, sorted.
func (r *registry) ids(source string) []string {
	var out []string
	for id, e := range r.Cards {
		if e.Retired.IsZero() && (source == "" || e.Card.Source == source) {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}

// scan takes in what a source sees.
func (r *registry) scan(source string, s card.Scan, at time.Time) {
	seen := map[string]bool{}
	for i := range s.Cards {
		seen[s.Cards[i].ID] = true
	}
	newDriver := s.Driver != "" && r.Node.Drivers[source] != "" && r.Node.Drivers[source] != s.Driver
	if s.Driver != "" && r.Node.Drivers[source] != s.Driver {
		r.Node.Drivers[source] = s.Driver
		r.dirty = true
	}
	for i := range s.Cards {
		c := &s.Cards[i]
		c.Source = source
		e := r.Cards[c.ID]
		if e == nil {
			e = &ledger.Card{First: at, Boot: s.Boot}
			r.Cards[c.ID] = e
			r.dirty = true
			if r.damaged {
				e.Card = *c
				r.fold(c.ID, health.Event{Kind: health.Begins, Name: health.BadRecord, At: at, From: "ledger", Text: "the card's health record on disk could not be read: test it, then clear it"})
			}
		}
		if !e.Retired.IsZero() {
			r.say(false, "a card that was taken out is back", "card", c.ID, "slot", c.Bus.String())
			e.Retired = time.Time{}
			r.dirty = true
		}
		r.replace(source, c, seen, at)
		r.boot(c.ID, s.Boot, at)
		if newDriver && !c.IsNIC() && r.reachableNow(c) {
			r.fold(c.ID, health.Event{Kind: health.WasReset, At: at, From: "scan", Text: "the driver was loaded anew"})
		}
		r.observe(e, c, at)
	}
	for _, id := range r.ids(source) {
		if !seen[id] {
			r.absent(id, source, s, seen, at)
		}
	}
	stands := map[string]bool{}
	say := func(key, text string, args ...any) {
		key = source + " says " + key
		stands[key] = true
		r.sayOnce(key, text, append(args, "source", source)...)
	}
	for _, n := range s.Notes {
		say(n, n)
	}
	switch {
	case s.Absent == "":
	case r.named || len(r.ids(source)) > 0:
		say(s.Absent, s.Absent)
	default:
		key := source + " says " + s.Absent
		stands[key] = true
		r.mentionOnce(key, s.Absent, "source", source)
	}
	for _, l := range s.Lost {
		say(fmt.Sprint("lost ", l.Index, l.Why), "a card cannot be asked", "index", l.Index, "slot", l.Bus.String(), "why", l.Why)
	}
	r.unsaid(source+" says ", stands)
}

func (r *registry) reachableNow(c *card.Card) bool {
	return !c.Has(health.Unreachable) && !c.Has(health.OffBus)
}

// replace retires the card whose slot a newcomer has taken.
func (r *registry) replace(source string, c *card.Card, seen map[string]bool, at time.Time) {
	if c.Bus.IsZero() || c.Parent != "" {
		return
	}
	for id, e := range r.Cards {
		if id != c.ID && e.Card.Source == source && e.Card.Parent == "" && e.Retired.IsZero() && !seen[id] && e.Card.Bus == c.Bus {
			e.Retired = at
			delete(r.reachable, id)
			r.dirty = true
			r.say(false, "a card was replaced: the new one starts clean", "slot", c.Bus.String(), "old", id, "new", c.ID)
		}
	}
}

// boot notes the boot in which a card is seen; another one than before is a
// reboot.
func (r *registry) boot(id, boot string, at time.Time) {
	e := r.Cards[id]
	if boot == "" || e.Boot == boot {
		return
	}
	if e.Boot != "" {
		e.Open, e.Odometer, e.Busy = nil, 0, time.Time{}
		r.fold(id, health.Event{Kind: health.Reboot, At: at, From: "scan", Text: "boot id " + boot})
	}
	e.Boot = boot
	r.dirty = true
}

// observe compares a card with what is known of it.
func (r *registry) observe(e *ledger.Card, c *card.Card, at time.Time) {
	reachable := r.reachableNow(c)
	conditions := slices.Clone(c.Conditions)
	var events []health.Event
	event := func(ev health.Event) {
		ev.At, ev.From = at, "scan"
		events = append(events, ev)
	}
	for i, cond := range conditions {
		if cond.Name != health.OffBus {
			continue
		}
		conditions[i].Name = health.Unreachable
		// The kernel log may have told of it already, or be about to.
		if r.settled && !standing(e.Health, xid.OffTheBus) {
			event(health.Event{Kind: health.Xid, Code: xid.OffTheBus, Text: cond.Text})
		}
	}
	if reachable {
		r.liveLinks(e, c)
		conditions = append(conditions, deadLinks(c, e.LinksSeen)...)
		if e.Odometer > 0 && c.Odometer > 0 && c.Odometer < e.Odometer {
			event(health.Event{Kind: health.WasReset, Text: "its counters began anew"})
		} else if open(e, health.Unreachable) && standing(e.Health, xid.OffTheBus) {
			event(health.Event{Kind: health.WasReset, Text: "it was gone and answers again"})
		}
		if c.Odometer > 0 {
			e.Odometer = c.Odometer
		}
		for _, name := range sortedKeys(c.Counters) {
			if last := e.Health.Counters[name]; last == nil || last.Last != c.Counters[name] {
				event(health.Event{Kind: health.Counter, Name: name, Count: c.Counters[name]})
			}
		}
		r.processes(e, c, at, event)
		if shape(&e.Card) != shape(c) {
			r.dirty = true
		}
		e.Card = *c
	} else { // what it cannot tell now is as it was
		conditionsOnly, id := c.Conditions, c.ID
		if e.Card.ID == "" {
			e.Card = *c
		}
		e.Card.Conditions, e.Card.ID = conditionsOnly, id
	}
	r.reachable[c.ID] = reachable
	r.conditions(e, conditions, event)
	if len(events) > 0 {
		r.fold(c.ID, events...)
	} else {
		r.fold(c.ID, health.Event{Kind: health.Tick, At: at})
	}
	stands := map[string]bool{}
	if c.Note != "" {
		stands[c.ID+": "+c.Note] = true
		r.sayOnce(c.ID+": "+c.Note, c.Note, "card", c.ID, "slot", c.Bus.String())
	}
	if c.Hidden != "" {
		stands[c.ID+": "+c.Hidden] = true
		r.sayOnce(c.ID+": "+c.Hidden, "card is not offered", "card", c.ID, "slot", c.Bus.String(), "why", c.Hidden)
	}
	r.unsaid(c.ID+": ", stands)
}

// conditions turns what holds now into beginnings and ends.
func (r *registry) conditions(e *ledger.Card, now []card.Condition, event func(health.Event)) {
	keys := map[string]bool{}
	for _, c := range now {
		key := c.Name + "\x1f" + c.Part
		if keys[key] {
			continue
		}
		keys[key] = true
		if !slices.Contains(e.Open, key) {
			e.Open = append(e.Open, key)
			event(health.Event{Kind: health.Begins, Name: c.Name, Part: c.Part, Text: c.Text})
		}
	}
	e.Open = slices.DeleteFunc(e.Open, func(key string) bool {
		if keys[key] {
			return false
		}
		name, part, _ := strings.Cut(key, "\x1f")
		event(health.Event{Kind: health.Ends, Name: name, Part: part})
		return true
	})
}

// liveLinks notes which links were ever live.
func (r *registry) liveLinks(e *ledger.Card, c *card.Card) {
	for _, n := range c.Up {
		if !slices.Contains(e.LinksSeen, n) {
			e.LinksSeen = append(e.LinksSeen, n)
			r.dirty = true
		}
	}
	sort.Ints(e.LinksSeen)
}

// deadLinks tells of links that were live once and are not.
func deadLinks(c *card.Card, seen []int) []card.Condition {
	if c.Up == nil {
		return nil
	}
	var out []card.Condition
	for _, n := range seen {
		if !slices.Contains(c.Up, n) {
			out = append(out, card.Condition{Name: health.LinkDown, Part: strconv.Itoa(n), Text: fmt.Sprintf("link %d is down: %d of %d links are live", n, len(c.Up), len(seen))})
		}
	}
	return out
}

// processes follows what runs on a card: a run that ends without an error of
// the card is a clean one.
func (r *registry) processes(e *ledger.Card, c *card.Card, at time.Time, event func(health.Event)) {
	switch {
	case c.Processes == nil:
	case len(c.Processes) > 0 && e.Busy.IsZero():
		e.Busy = at
		r.dirty = true
	case len(c.Processes) == 0 && !e.Busy.IsZero():
		clean := true
		for _, k := range e.Health.Strikes {
			clean = clean && k.At.Before(e.Busy)
		}
		e.Busy = time.Time{}
		event(health.Event{Kind: health.ProcessesGone})
		if clean {
			event(health.Event{Kind: health.CleanRun})
		}
	case len(c.Processes) == 0 && untilProcess(e.Health):
		event(health.Event{Kind: health.ProcessesGone})
	}
}

// absent deals with a known card that a scan does not list.
func (r *registry) absent(id, source string, s card.Scan, seen map[string]bool, at time.Time) {
	e := r.Cards[id]
	if e.Card.Parent != "" { // a slice
		parent := r.Cards[e.Card.Parent]
		if seen[e.Card.Parent] && parent != nil && !open(parent, health.Unreachable) {
			r.say(false, "a slice was removed", "card", id, "of", e.Card.Parent)
			delete(r.Cards, id)
			delete(r.verdicts, id)
			delete(r.reachable, id)
			r.dirty = true
			return
		}
	}
	c := e.Card
	why := "not seen by " + source
	for _, l := range s.Lost {
		if !l.Bus.IsZero() && l.Bus.Slot() == c.Bus.Slot() || l.Bus.IsZero() && l.Index == c.Index {
			why = l.Why
			if l.Gone {
				c.Conditions = []card.Condition{{Name: health.OffBus, Text: why}}
				r.boot(id, s.Boot, at)
				r.observe(e, &c, at)
				return
			}
		}
	}
	c.Conditions = []card.Condition{{Name: health.Unreachable, Text: why}}
	r.boot(id, s.Boot, at)
	r.observe(e, &c, at)
}

// lost takes in that a source could not be asked at all.
func (r *registry) lost(source, why string, at time.Time) {
	for _, id := range r.ids(source) {
		e := r.Cards[id]
		r.reachable[id] = false
		key := health.SourceLost + "\x1f"
		if !slices.Contains(e.Open, key) {
			e.Open = append(e.Open, key)
			r.fold(id, health.Event{Kind: health.Begins, Name: health.SourceLost, At: at, From: "scan", Text: why})
		}
	}
}

// record takes in what one record of a kernel log tells, unless it was folded
// before.
func (r *registry) record(log string, rec kernlog.Record, found []card.Sighting) {
	cursor := r.Node.Logs[log]
	if len(found) == 0 || cursor.Boot == rec.Boot && rec.Seq <= cursor.Seq {
		return
	}
	r.Node.Logs[log] = ledger.Cursor{Boot: rec.Boot, Seq: rec.Seq}
	r.dirty = true
	for _, s := range found {
		r.sighting(rec.Boot, s)
	}
}

// sighting takes in one fault; boot is the boot in which it was seen, empty
// where the teller does not say.
func (r *registry) sighting(boot string, s card.Sighting) {
	s.Event.History = s.Event.At.Before(r.started)
	ids := r.resolve(s.Target)
	if len(ids) == 0 {
		r.Node.Unattributed++
		r.dirty, r.poke = true, true
		r.sayOnce(fmt.Sprintf("unattributed %v %d", s.Target, s.Event.Code), "a fault of a device that is not known here", "line", s.Event.Text)
		return
	}
	for _, id := range ids {
		r.boot(id, boot, s.Event.At)
		r.fold(id, s.Event)
	}
}

// resolve finds the cards that a target means.
func (r *registry) resolve(t card.Target) []string {
	var ids []string
	exact := false
	for _, id := range r.ids("") {
		c := &r.Cards[id].Card
		if !r.sources[c.Source] {
			continue
		}
		switch {
		case t.ID != "":
			if c.ID != t.ID && c.Parent != t.ID {
				continue
			}
		case !t.Bus.IsZero():
			if c.Bus.IsZero() || c.Bus.Slot() != t.Bus.Slot() {
				continue
			}
		case t.Switch != "":
			if c.IsNIC() || len(c.Links) == 0 && len(c.Up) == 0 {
				continue
			}
		default:
			continue
		}
		exact = exact || inSlice(c, t)
		ids = append(ids, id)
	}
	if t.GI < 0 || t.Switch != "" {
		return ids
	}
	if !exact {
		if slices.ContainsFunc(ids, func(id string) bool { return r.Cards[id].Card.GI >= 0 }) {
			r.sayOnce(fmt.Sprintf("no slice %v", t), "a fault of a slice that does not exist: taken for the whole card", "gi", t.GI, "ci", t.CI)
		}
		return ids // no such slice: the whole card, which is the safe side
	}
	return slices.DeleteFunc(ids, func(id string) bool { return !inSlice(&r.Cards[id].Card, t) })
}

func inSlice(c *card.Card, t card.Target) bool {
	return c.GI >= 0 && c.GI == t.GI && (t.CI < 0 || c.CI < 0 || c.CI == t.CI)
}

// settle follows the history that was there at the start: a card that fell off
// the bus before anyone watched, and that answers, must have been reset since;
// one that is off the bus without a word in the log fell all the same.
func (r *registry) settle(at time.Time) {
	r.settled = true
	for _, id := range r.ids("") {
		e := r.Cards[id]
		for _, c := range e.Card.Conditions {
			if c.Name == health.OffBus && r.sources[e.Card.Source] && !standing(e.Health, xid.OffTheBus) {
				r.fold(id, health.Event{Kind: health.Xid, At: at, From: "scan", Code: xid.OffTheBus, Text: c.Text})
			}
		}
		for _, c := range e.Health.Causes {
			if c.Until == health.UntilRepair && c.Ends.IsZero() && r.reachable[id] {
				r.fold(id, health.Event{Kind: health.WasReset, At: at, From: "scan", Text: "it had fallen off the bus before and answers"})
				break
			}
		}
	}
}

// tick lets time pass.
func (r *registry) tick(at time.Time) {
	for id := range r.Cards {
		r.fold(id, health.Event{Kind: health.Tick, At: at})
	}
}

// standing tells whether the cause of a code stands.
func standing(s health.State, code int) bool {
	return slices.ContainsFunc(s.Causes, func(c health.Cause) bool { return c.Code == code && c.Key != "repeated" })
}

func untilProcess(s health.State) bool {
	return slices.ContainsFunc(s.Causes, func(c health.Cause) bool { return c.Until == health.UntilProcess })
}

// open tells whether a condition holds.
func open(e *ledger.Card, condition string) bool { return slices.Contains(e.Open, condition+"\x1f") }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// shape is what of a card is worth writing to disk when it changes.
func shape(c *card.Card) string {
	return fmt.Sprint(c.ID, c.Group, c.Bus, c.Index, c.Hidden, len(c.Up), len(c.Links), len(c.Attributes), c.Serial)
}
