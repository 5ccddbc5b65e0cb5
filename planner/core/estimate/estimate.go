// Package estimate says how long a gang will probably run, from what gangs
// like it took, and learns that from gangs that ended.
//
// Gangs are alike by user, name, queue and cards; where too few of those are
// known, by user, queue and cards; by queue, name and cards; by queue and
// cards; by queue. An estimate never says less than what the gang has run
// already: a gang that outlived nine tenths of its likes is expected to run as
// long again as it has run.
//
// Promises are not made from estimates: they order queues that say so, and
// feed expected times.
package estimate

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Enough is how many gangs of one kind are needed before their times count.
const Enough = 3

// key names gangs of one kind; "" and 0 stand for any.
type key struct {
	user, name string
	queue      core.QueueName
	cards      int
}

// likes are the kinds of a gang, the closest first.
func likes(user, name string, queue core.QueueName, cards int) [5]key {
	return [5]key{{user, name, queue, cards}, {user, "", queue, cards}, {"", name, queue, cards}, {"", "", queue, cards}, {"", "", queue, 0}}
}

// Book finds estimates.
type Book struct{ of map[key]core.Estimate }

// New reads the estimates of a snapshot.
func New(all []core.Estimate) *Book {
	b := &Book{of: make(map[key]core.Estimate, len(all))}
	for _, e := range all {
		k := key{e.User, e.Name, e.Queue, e.Cards}
		if old, ok := b.of[k]; !ok || e.Count > old.Count {
			b.of[k] = e
		}
	}
	return b
}

// Find gives the closest estimate for a gang; false where nothing is known.
func (b *Book) Find(g *core.Gang, cards int) (core.Estimate, bool) {
	if len(b.of) == 0 {
		return core.Estimate{}, false
	}
	for _, k := range likes(g.User, Name(g), g.Queue, cards) {
		if e, ok := b.of[k]; ok && e.Count >= Enough {
			return e, true
		}
	}
	return core.Estimate{}, false
}

// Name is what a gang has in common with others of its kind.
func Name(g *core.Gang) string {
	if g.Name != "" {
		return g.Name
	}
	return string(g.ID)
}

// Left is how much longer a gang that has run for a time will probably run,
// and at most where nine of ten of its likes count.
func Left(e core.Estimate, ran time.Duration) (likely, most time.Duration) {
	switch {
	case ran < e.Median:
		likely = e.Median - ran
	case ran < e.Upper:
		likely = e.Upper - ran
	default:
		likely = ran
	}
	most = max(e.Upper-ran, likely)
	return likely, most
}

// Learner keeps the last times of each kind of gang, of the last Most gangs
// that ended by themselves. What it says depends on these alone, not on the
// order in which it was told.
type Learner struct {
	times map[key][]sample // by time, then by gang
	ended []ended          // likewise
}

// Most is how many gangs are learned from.
const Most = 16_384

// window is how many times of one kind are kept.
const window = 64

type sample struct {
	at  time.Time
	id  core.GangID
	ran time.Duration
}

func (s sample) compare(o sample) int { return cmp.Or(s.at.Compare(o.at), cmp.Compare(s.id, o.id)) }

type ended struct {
	sample
	kinds [5]key
}

// Ended tells of a gang that ended by itself at a time, after running for so
// long. To be told again of one changes nothing.
func (l *Learner) Ended(g *core.Gang, cards int, at time.Time, ran time.Duration) {
	e := ended{sample{at, g.ID, ran}, likes(g.User, Name(g), g.Queue, cards)}
	i, known := slices.BinarySearchFunc(l.ended, e.sample, func(x ended, y sample) int { return x.compare(y) })
	if known || i == 0 && len(l.ended) >= Most {
		return
	}
	if l.times == nil {
		l.times = map[key][]sample{}
	}
	l.ended = slices.Insert(l.ended, i, e)
	for n, k := range e.kinds {
		if !slices.Contains(e.kinds[:n], k) {
			l.add(k, e.sample)
		}
	}
	if len(l.ended) > Most {
		l.drop(&l.ended[0])
		l.ended = l.ended[1:]
	}
}

func (l *Learner) add(k key, s sample) {
	t := l.times[k]
	i, _ := slices.BinarySearchFunc(t, s, sample.compare)
	if i == 0 && len(t) >= window {
		return
	}
	t = slices.Insert(t, i, s)
	l.times[k] = t[max(0, len(t)-window):]
}

func (l *Learner) drop(e *ended) {
	for _, k := range e.kinds {
		if t := l.times[k]; len(t) > 0 && t[0].compare(e.sample) == 0 {
			if l.times[k] = t[1:]; len(t) == 1 {
				delete(l.times, k)
			}
		}
	}
}

// Len is how many gangs are learned from.
func (l *Learner) Len() int { return len(l.ended) }

// Estimates lists what was learned of kinds of which enough gangs are known,
// ordered.
func (l *Learner) Estimates() []core.Estimate {
	var out []core.Estimate
	for k, t := range l.times {
		if len(t) < Enough {
			continue
		}
		sorted := make([]time.Duration, len(t))
		for i := range t {
			sorted[i] = t[i].ran
		}
		slices.Sort(sorted)
		out = append(out, core.Estimate{User: k.user, Name: k.name, Queue: k.queue, Cards: k.cards, Count: len(t),
			Median: sorted[len(t)/2], Upper: sorted[min(len(t)-1, len(t)*9/10)]})
	}
	slices.SortFunc(out, func(a, b core.Estimate) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.User, b.User), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cards, b.Cards))
	})
	return out
}
