package accounting

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// settle is how long after its end an hour is booked.
const settle = 2 * time.Minute

// book is what is known of attempts that go on or whose hours are not all
// booked. Whatever becomes known is put on its way to the ledger in the same
// breath, so that the ledger, once it has written everything, knows the same.
type book struct {
	mu       sync.Mutex
	attempts map[Key]*live
	gangs    map[string]map[Key]*live
	// done are attempts of which nothing more is to be booked, and over the ends
	// of gangs that were told: by gang, until it is forgotten.
	done map[string]map[Key]bool
	over map[string]time.Time
	// came are the submissions that were told, likewise.
	came    map[string]time.Time
	history history
	// booked is the first hour that is not; 0: none yet.
	booked int64
	// closing are hours that are on their way to the ledger, which has those
	// before written.
	closing    []recHour
	written    atomic.Int64
	guarantees map[string]Guarantee
	put        func(...record)
	clock      steady
}

// live is one attempt.
type live struct {
	Key
	queue, user string
	launched    int64 // seconds; none
	checkpoint  time.Time
	eviction    string
	stages      []Stage
	end         *AttemptEnd
	gone        bool // its gang is: nothing more is to be seen of it
	pieces      map[pieceKey]*piece
}

type pieceKey struct{ alloc, model string }

type piece struct {
	model   string
	node    string
	cards   int
	created int64
	ended   int64 // none: alive
	exact   bool
	how     string
}

func newBook(put func(...record)) *book {
	return &book{attempts: map[Key]*live{}, gangs: map[string]map[Key]*live{}, done: map[string]map[Key]bool{}, over: map[string]time.Time{}, came: map[string]time.Time{}, guarantees: map[string]Guarantee{}, put: put}
}

func (b *book) attempt(k Key) *live {
	l := b.attempts[k]
	if l == nil {
		l = &live{Key: k, launched: none, pieces: map[pieceKey]*piece{}}
		b.attempts[k] = l
		if b.gangs[k.Gang] == nil {
			b.gangs[k.Gang] = map[Key]*live{}
		}
		b.gangs[k.Gang][k] = l
	}
	return l
}

// observe takes what is seen of a gang.
func (b *book) observe(g Gang, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.learn(&g)
	seen := map[string]bool{}
	for _, id := range g.Others {
		seen[id] = true
	}
	for i := range g.Attempts {
		a := &g.Attempts[i]
		for k := range a.Allocs {
			seen[a.Allocs[k].ID] = true
		}
		if !b.done[g.Name][a.Key] {
			b.seen(a)
		}
	}
	if g.Whole {
		for _, k := range sortedKeys(b.gangs[g.Name]) {
			b.vanish(b.gangs[g.Name][k], g.End, seen, now)
		}
	}
	for _, k := range sortedKeys(b.gangs[g.Name]) {
		b.finish(b.gangs[g.Name][k])
	}
	if g.End != nil && !b.over[g.Name].Equal(g.End.At) {
		b.over[g.Name] = g.End.At
		b.put(recGangEnd{g.Name, *g.End})
	}
}

func sortedKeys(m map[Key]*live) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Base, b.Base))
	})
}

// seen books what is new of an attempt.
func (b *book) seen(a *Attempt) {
	_, known := b.attempts[a.Key]
	l := b.attempt(a.Key)
	l.gone = false
	if !known {
		l.queue, l.user = a.Queue, a.User
		b.put(recAttempt{*a})
	}
	l.checkpoint = latest(l.checkpoint, a.Checkpoint)
	l.eviction = cmp.Or(a.Eviction, l.eviction)
	for i, s := range a.Stages {
		if slices.ContainsFunc(l.stages, func(have Stage) bool { return have.Stage == s.Stage }) || s.Stage.Ended() {
			continue
		}
		r := recStage{key: a.Key, stage: s}
		if i > 0 {
			r.before = a.Stages[i-1]
		}
		if s.Stage == contract.StageStarted {
			l.launched = s.At.Unix()
		}
		l.stages = append(l.stages, s)
		b.put(r)
	}
	for i := range a.Allocs {
		alloc := &a.Allocs[i]
		for _, h := range alloc.Holds {
			b.allocation(l, alloc, h)
		}
	}
	if a.End != nil && l.end == nil {
		l.end = a.End
		b.put(recAttemptEnd{key: a.Key, end: *a.End, queue: l.queue, eviction: l.eviction, checkpoint: l.checkpoint, last: last(l.stages)})
		b.lose(l)
	}
}

func last(stages []Stage) Stage {
	if len(stages) == 0 {
		return Stage{}
	}
	return stages[len(stages)-1]
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (b *book) allocation(l *live, alloc *Alloc, h Hold) {
	key := pieceKey{alloc.ID, h.Model}
	p := l.pieces[key]
	if p == nil {
		p = &piece{model: h.Model, node: alloc.Node, cards: h.Cards, created: alloc.Created.Unix(), ended: none}
		l.pieces[key] = p
		b.put(recPiece{key: l.Key, alloc: alloc.ID, piece: *p})
	}
	if alloc.Ended.IsZero() || p.ended != none && (p.exact || !alloc.Exact) {
		return
	}
	b.close(l, key, p, max(alloc.Ended.Unix(), p.created), alloc.Exact, alloc.How)
}

func (b *book) close(l *live, key pieceKey, p *piece, at int64, exact bool, how string) {
	p.ended, p.exact, p.how = at, exact, how
	b.put(recEnd{key: l.Key, alloc: key.alloc, model: key.model, ended: at, exact: exact, how: how})
}

// vanish ends what is open in the books and not in Nomad any more.
func (b *book) vanish(l *live, over *GangEnd, seen map[string]bool, now time.Time) {
	for _, key := range slices.SortedFunc(maps.Keys(l.pieces), func(a, b pieceKey) int { return cmp.Compare(a.alloc+a.model, b.alloc+b.model) }) {
		p := l.pieces[key]
		if p.ended != none || seen[key.alloc] {
			continue
		}
		at := now
		switch {
		case l.end != nil:
			at = l.end.At
		case over != nil:
			at = over.At
		}
		b.close(l, key, p, max(at.Unix(), p.created), false, HowVanished)
	}
}

// HowVanished is how an allocation ended that was gone before its end was seen.
const HowVanished = "vanished"

// lose books what an attempt that ended had done since its last checkpoint.
func (b *book) lose(l *live) {
	if l.launched == none || l.end.Outcome == string(contract.OutcomeComplete) {
		return
	}
	from := l.launched
	if !l.checkpoint.IsZero() {
		from = max(from, l.checkpoint.Unix())
	}
	if l.end.Outcome == string(contract.OutcomeCheckpointed) && l.checkpoint.IsZero() {
		return // it said that it had saved, and not when
	}
	end := l.end.At.Unix()
	sums := map[string]int64{}
	for _, p := range l.pieces {
		if until := min(p.ended, end); until > max(from, p.created) {
			sums[p.model] += int64(p.cards) * (until - max(from, p.created))
		}
	}
	for _, model := range slices.Sorted(maps.Keys(sums)) {
		b.put(recLoss{key: l.Key, queue: l.queue, user: l.user, model: model, cause: Cause(l.end), at: end, seconds: sums[model]})
	}
}

// Cause is what an attempt's work was lost to: why it was ended, or how it
// ended where its own member was the reason.
func Cause(e *AttemptEnd) string {
	switch e.Reason {
	case "", "member-failed", "failed":
		return cmp.Or(e.Outcome, "unknown")
	}
	return e.Reason
}

// finish forgets an attempt of which nothing more is to be booked.
func (b *book) finish(l *live) {
	if l.end == nil && !l.gone || b.booked == 0 {
		return
	}
	for _, p := range l.pieces {
		if p.ended >= b.booked*hour || !p.exact && !l.gone {
			return
		}
	}
	delete(b.attempts, l.Key)
	delete(b.gangs[l.Gang], l.Key)
	if len(b.gangs[l.Gang]) == 0 {
		delete(b.gangs, l.Gang)
	}
	if l.gone {
		return
	}
	if b.done[l.Gang] == nil {
		b.done[l.Gang] = map[Key]bool{}
	}
	b.done[l.Gang][l.Key] = true
}

// forget drops what is kept of a gang that is gone from Nomad. What of it is
// open has ended.
func (b *book) forget(gang string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range sortedKeys(b.gangs[gang]) {
		b.vanish(b.gangs[gang][k], nil, nil, now)
		b.gangs[gang][k].gone = true
	}
	delete(b.done, gang)
	delete(b.over, gang)
	delete(b.came, gang)
}

// reconcile ends what is open of gangs that are not there, at the time when
// they were last known to be.
func (b *book) reconcile(there map[string]bool, seen time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range sortedKeys(b.attempts) {
		if !there[k.Gang] {
			b.vanish(b.attempts[k], nil, nil, seen)
			b.attempts[k].gone = true
		}
	}
}

// Row is the usage of one attempt and model in one hour.
type Row struct {
	Key
	Queue, User, Model string
	Hour               int64
	Amounts
}

// hourRows divides what everybody has in [from, to), a part of one hour.
func (b *book) hourRows(from, to int64) []Row {
	type owner struct {
		l     *live
		model string
	}
	spans := map[string][]span{}
	owners := map[string][]owner{}
	for _, l := range b.attempts {
		for key, p := range l.pieces {
			if p.created < to && p.ended > from {
				spans[l.queue] = append(spans[l.queue], span{alloc: key.alloc, model: p.model, cards: p.cards, created: p.created, ended: p.ended, launched: l.launched})
				owners[l.queue] = append(owners[l.queue], owner{l, p.model})
			}
		}
	}
	sums := map[owner]Amounts{}
	for queue, list := range spans {
		for i, a := range sweep(list, from, to, b.guarantees[queue]) {
			sum := sums[owners[queue][i]]
			sum.add(a)
			sums[owners[queue][i]] = sum
		}
	}
	rows := make([]Row, 0, len(sums))
	for o, a := range sums {
		if a.Total() > 0 {
			rows = append(rows, Row{o.l.Key, o.l.queue, o.l.user, o.model, from / hour, a})
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Base, b.Base), cmp.Compare(a.Model, b.Model))
	})
	return rows
}

// closeHours books the hours that are over.
func (b *book) closeHours(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.clock.trusted(now) {
		return
	}
	until := now.Add(-settle).Unix() / hour
	if b.booked == 0 {
		b.booked = until
		for _, l := range b.attempts {
			for _, p := range l.pieces {
				b.booked = min(b.booked, p.created/hour)
			}
		}
		b.put(recHour{hour: b.booked - 1})
	}
	for ; b.booked < until; b.booked++ {
		r := recHour{hour: b.booked, rows: b.hourRows(b.booked*hour, (b.booked+1)*hour)}
		for _, l := range b.attempts {
			for key, p := range l.pieces {
				if p.ended < (b.booked+1)*hour {
					r.settled = append(r.settled, key)
				}
			}
		}
		b.put(r)
		b.closing = append(b.closing, r)
	}
	b.closing = slices.DeleteFunc(b.closing, func(r recHour) bool { return r.hour < b.written.Load() })
	for _, k := range sortedKeys(b.attempts) {
		b.finish(b.attempts[k])
	}
}

// unbooked is the usage that the ledger does not have yet, up to now and not
// before from.
func (b *book) unbooked(from, to int64) []Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.booked
	if first == 0 {
		first = to / hour
		for _, l := range b.attempts {
			for _, p := range l.pieces {
				first = min(first, p.created/hour)
			}
		}
	}
	var rows []Row
	for _, r := range b.closing {
		if r.hour*hour >= from && r.hour*hour < to {
			rows = append(rows, r.rows...)
		}
	}
	for h := max(first, from/hour); h*hour < to; h++ {
		rows = append(rows, b.hourRows(h*hour, min((h+1)*hour, to))...)
	}
	return rows
}

// steady tells whether the machine's clock can be believed: it has not stepped
// for a while.
type steady struct {
	anchor time.Time // with its monotonic reading
	// base is a wall time, and the monotonic one since the anchor that it belongs
	// to; stepped is when the one last parted from the other.
	base    time.Time
	passed  time.Duration
	stepped time.Duration
	steps   int
}

const (
	stepLeast = 2 * time.Minute
	stepRest  = 10 * time.Minute
)

func (s *steady) trusted(now time.Time) bool {
	if s.anchor.IsZero() {
		s.anchor, s.base = now, now.Round(0)
	}
	return s.judge(now.Round(0), now.Sub(s.anchor))
}

// judge compares the wall clock with the time that has passed since the anchor.
func (s *steady) judge(wall time.Time, passed time.Duration) bool {
	if off := wall.Sub(s.base) - (passed - s.passed); off > stepLeast || off < -stepLeast {
		s.steps++
		s.stepped = passed
	}
	s.base, s.passed = wall, passed
	return s.steps == 0 || passed-s.stepped >= stepRest
}
