package utilisation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Sample is what one card did when it was looked at.
type Sample struct {
	Card                    string
	Activity                int // per mille
	MemoryUsed, MemoryTotal int // MiB
	Power                   int // watts; 0: not known
}

// Attempt names what cards are held for.
type Attempt struct {
	Gang   string
	Number int
	Base   uint64
}

// Owner is an attempt with whom its usage is booked on.
type Owner struct {
	Attempt
	Queue, User string
}

// Sum is what figures are added up by.
type Sum struct{ Queue, User, Model string }

// Used is what one attempt has done with its cards of one model.
type Used struct {
	Owner
	Model     string
	Cards     int // that were sampled
	Figures   Figures
	NeverBusy int   // cards
	Untouched int64 // MiB that were never in use
	Now       Figures
}

// Meter follows samples. It is not safe for concurrent use.
type Meter struct {
	cards     map[string]*card
	attempts  map[Attempt]*attempt
	reporters map[string]life // by node
	sums      map[Sum]*Figures
	ignored   int64
}

type life struct {
	reporter string
	seq      uint64
}

type card struct {
	owner *attempt // nil: nobody's
	alloc string
	model string
	last  time.Time
	now   Sample // the last one
	own   *touch
}

type attempt struct {
	Owner
	models map[string]*used
}

type used struct {
	Figures Figures           `json:"figures"`
	Cards   map[string]*touch `json:"cards"`
}

// touch is the most that a card did in an attempt.
type touch struct {
	Busy  bool `json:"busy,omitempty"`
	Peak  int  `json:"peak"` // MiB
	Total int  `json:"total"`
}

// New makes a Meter.
func New() *Meter {
	return &Meter{cards: map[string]*card{}, attempts: map[Attempt]*attempt{}, reporters: map[string]life{}, sums: map[Sum]*Figures{}}
}

func (m *Meter) attempt(o Owner) *attempt {
	a := m.attempts[o.Attempt]
	if a == nil {
		a = &attempt{Owner: o, models: map[string]*used{}}
		m.attempts[o.Attempt] = a
	}
	a.Owner = o
	return a
}

func (a *attempt) used(model string) *used {
	u := a.models[model]
	if u == nil {
		u = &used{Cards: map[string]*touch{}}
		a.models[model] = u
	}
	return u
}

// Assign says that an allocation holds cards, for an attempt.
func (m *Meter) Assign(o Owner, alloc, model string, cards []string) {
	a := m.attempt(o)
	for _, id := range cards {
		c := m.cards[id]
		if c == nil {
			c = &card{}
			m.cards[id] = c
		}
		if c.owner != a || c.alloc != alloc {
			// What a sample says of the time before is not this one's.
			c.owner, c.alloc, c.model, c.last, c.own = a, alloc, model, time.Time{}, nil
		}
	}
}

// Release says that an allocation holds cards no more.
func (m *Meter) Release(alloc string, cards []string) {
	for _, id := range cards {
		if c := m.cards[id]; c != nil && c.alloc == alloc {
			delete(m.cards, id)
		}
	}
}

// Report takes a node's samples. Reporter and seq order them: one that is not
// newer than the last is ignored. Received is the planner's time.
func (m *Meter) Report(node, reporter string, seq uint64, received time.Time, samples []Sample) {
	if l := m.reporters[node]; l.reporter == reporter && seq <= l.seq {
		m.ignored++
		return
	}
	m.reporters[node] = life{reporter, seq}
	for i := range samples {
		s := &samples[i]
		c := m.cards[s.Card]
		if c == nil || c.owner == nil {
			continue
		}
		last := c.last
		c.last, c.now = received, *s
		if c.own == nil {
			u := c.owner.used(c.model)
			if c.own = u.Cards[s.Card]; c.own == nil {
				c.own = &touch{}
				u.Cards[s.Card] = c.own
			}
		}
		t := c.own
		t.Busy = t.Busy || s.Activity >= Idle
		t.Peak, t.Total = max(t.Peak, s.MemoryUsed), max(t.Total, s.MemoryTotal)
		if last.IsZero() {
			continue
		}
		d := min(received.Sub(last), Reach)
		if d <= 0 {
			continue
		}
		c.owner.used(c.model).Figures.take(s, d)
		key := Sum{c.owner.Queue, c.owner.User, c.model}
		f := m.sums[key]
		if f == nil {
			f = &Figures{}
			m.sums[key] = f
		}
		f.take(s, d)
	}
}

// Ignored counts reports that were not newer than the last.
func (m *Meter) Ignored() int64 { return m.ignored }

// Sums hands over what was added up since the last call.
func (m *Meter) Sums() map[Sum]*Figures {
	out := m.sums
	m.sums = map[Sum]*Figures{}
	return out
}

// End hands over an attempt that has ended and forgets it.
func (m *Meter) End(a Attempt) []Used {
	out := m.one(a)
	if known := m.attempts[a]; known != nil {
		for _, u := range known.models {
			for id := range u.Cards {
				if c := m.cards[id]; c != nil && c.owner == known {
					delete(m.cards, id)
				}
			}
		}
	}
	delete(m.attempts, a)
	return out
}

func (m *Meter) one(key Attempt) []Used {
	a := m.attempts[key]
	if a == nil {
		return nil
	}
	var out []Used
	for _, model := range slices.Sorted(maps.Keys(a.models)) {
		u := a.models[model]
		v := Used{Owner: a.Owner, Model: model, Cards: len(u.Cards), Figures: u.Figures}
		for _, t := range u.Cards {
			if !t.Busy {
				v.NeverBusy++
			}
			v.Untouched += int64(t.Total - t.Peak)
		}
		out = append(out, v)
	}
	return out
}

// Live tells of all attempts that hold cards, with what their cards do now:
// those that were sampled within Reach.
func (m *Meter) Live(now time.Time) []Used {
	at := map[Attempt]map[string]*Figures{}
	for _, c := range m.cards {
		if c.owner == nil || c.last.IsZero() || now.Sub(c.last) > Reach {
			continue
		}
		key := c.owner.Attempt
		if at[key] == nil {
			at[key] = map[string]*Figures{}
		}
		if at[key][c.model] == nil {
			at[key][c.model] = &Figures{}
		}
		at[key][c.model].take(&c.now, time.Second)
	}
	var out []Used
	for _, key := range slices.SortedFunc(maps.Keys(m.attempts), func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Base, b.Base))
	}) {
		for _, u := range m.one(key) {
			if f := at[key][u.Model]; f != nil {
				u.Now = *f
			}
			out = append(out, u)
		}
	}
	return out
}

// Save gives what is known of an attempt, to go on with after a restart.
func (m *Meter) Save(key Attempt) ([]byte, error) {
	a := m.attempts[key]
	if a == nil {
		return nil, nil
	}
	b, err := json.Marshal(a.models)
	if err != nil {
		return nil, fmt.Errorf("save the figures of %s: %w", key.Gang, err)
	}
	return b, nil
}

// Attempts that are followed.
func (m *Meter) Attempts() []Attempt { return slices.Collect(maps.Keys(m.attempts)) }

// Restore takes what Save gave, before any sample of the attempt.
func (m *Meter) Restore(o Owner, saved []byte) error {
	models := map[string]*used{}
	if err := json.Unmarshal(saved, &models); err != nil {
		return fmt.Errorf("restore the figures of %s: %w", o.Gang, err)
	}
	for model, u := range models {
		if u == nil || u.Cards == nil {
			return fmt.Errorf("restore the figures of %s: model %q has none", o.Gang, model)
		}
		for id, t := range u.Cards {
			if t == nil {
				return fmt.Errorf("restore the figures of %s: card %q has none", o.Gang, id)
			}
		}
	}
	a := m.attempt(o)
	a.models = models
	for _, c := range m.cards {
		if c.owner == a {
			c.own = nil
		}
	}
	return nil
}
