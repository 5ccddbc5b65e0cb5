// Package recent is the mix of recent demand: what the members of the gangs
// that came last ask for, and how often. Placement weighs by it which free
// cards would be of use to whoever comes next (package placement, score.go).
//
// The rule, the same for the service and for simulations: the last Most gangs
// count, in the order of their submission, whatever became of them. A gang of
// n members counts n times. Shares of the whole are rounded to steps of half
// a power of two, so that scores that rest on the mix change only where it
// does, and of more than Kinds kinds the most frequent are kept. Fewer than Few
// gangs tell nothing. Nothing else is looked at: the same gangs give the same
// mix, in whatever order they were told.
package recent

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Most is how many gangs count, Few how many are needed, and Kinds how many
// kinds of member there are.
const (
	Most  = 16_384
	Few   = 32
	Kinds = 128
)

// Gang is one that came: its id, when it was submitted, and what its groups ask
// for.
type Gang struct {
	ID        core.GangID
	Submitted time.Time
	Shapes    []core.Shape
}

// Of is a gang as it counts; false: it does not, since it asks for no cards, or
// what it asks for is at fault. A device block that names its model counts as a
// gang that accepts that one only.
func Of(g *core.Gang, isCard func(typ string) bool) (Gang, bool) {
	out := Gang{ID: g.ID, Submitted: g.Submitted}
	if len(g.Faults) > 0 {
		return out, false
	}
	for i := range g.Groups {
		group := &g.Groups[i]
		s := core.Shape{Members: group.Count, Use: group.Use, Models: g.Models, Weight: 1}
		s.Use.DiskMB = 0
		for d := range group.Devices {
			ask := &group.Devices[d]
			if !isCard(ask.Type) {
				continue
			}
			s.Cards += ask.Count
			s.Shares += ask.Shares
			if ask.Name != "" && len(g.Models) == 0 {
				s.Models = []core.Model{core.Model(ask.Name)}
			}
		}
		if s.Members > 0 && (s.Cards > 0 || s.Shares > 0) {
			out.Shapes = append(out.Shapes, s)
		}
	}
	return out, len(out.Shapes) > 0
}

// Window counts the gangs that came last. The zero value knows of none. It is
// not safe for concurrent use.
type Window struct {
	gangs []entry // by time, then by id
	kinds map[kind]*count
	list  []core.Shape // as of the last change; nil: to be made
}

// entry is a gang by what of it counts.
type entry struct {
	id    core.GangID
	at    time.Time
	kinds []*count
	adds  []int64 // members of each kind
}

func (e *entry) compare(o *entry) int { return cmp.Or(e.at.Compare(o.at), cmp.Compare(e.id, o.id)) }

type kind struct {
	use           core.Resources
	cards, shares int
	models        string
}

type count struct {
	kind
	models  []core.Model
	members int64
	gangs   int // that have it
}

// Came tells of a gang. To be told of one again changes nothing. It tells
// whether the gang counts.
func (w *Window) Came(g Gang) bool {
	e := entry{id: g.ID, at: g.Submitted}
	at, known := slices.BinarySearchFunc(w.gangs, &e, func(x entry, y *entry) int { return x.compare(y) })
	if known || at == 0 && len(w.gangs) >= Most {
		return known
	}
	if w.kinds == nil {
		w.kinds = map[kind]*count{}
	}
	for i := range g.Shapes {
		c := w.count(&g.Shapes[i])
		n := int64(min(max(1, g.Shapes[i].Members), mostMembers))
		c.gangs++
		c.members += n
		e.kinds, e.adds = append(e.kinds, c), append(e.adds, n)
	}
	w.gangs = slices.Insert(w.gangs, at, e)
	if len(w.gangs) > Most {
		w.drop(&w.gangs[0])
		w.gangs[0] = entry{}
		w.gangs = w.gangs[1:]
	}
	w.list = nil
	return true
}

func (w *Window) count(s *core.Shape) *count {
	k := kind{use: s.Use, cards: s.Cards, shares: s.Shares, models: joined(s.Models)}
	c := w.kinds[k]
	if c == nil {
		c = &count{kind: k, models: s.Models}
		w.kinds[k] = c
	}
	return c
}

func (w *Window) drop(e *entry) {
	for i, c := range e.kinds {
		c.members -= e.adds[i]
		if c.gangs--; c.gangs == 0 {
			delete(w.kinds, c.kind)
		}
	}
}

// mostMembers keeps a count that nobody can mean from outweighing all others.
const mostMembers = 1 << 20

func joined(models []core.Model) string {
	var b strings.Builder
	for _, m := range models {
		b.WriteString(string(m))
		b.WriteByte(0)
	}
	return b.String()
}

// Len is how many gangs count.
func (w *Window) Len() int { return len(w.gangs) }

// Shapes is the mix, the most frequent kind first; Members is 1 in each, and
// Weight its rounded share. The list must not be changed; nil: too few gangs
// came.
func (w *Window) Shapes() []core.Shape {
	if len(w.gangs) < Few {
		return nil
	}
	if w.list != nil {
		return w.list
	}
	all := make([]*count, 0, len(w.kinds))
	total := int64(0)
	for _, c := range w.kinds {
		all = append(all, c)
		total += c.members
	}
	slices.SortFunc(all, func(a, b *count) int {
		return cmp.Or(cmp.Compare(b.members, a.members), cmp.Compare(a.cards, b.cards), cmp.Compare(a.shares, b.shares), cmp.Compare(a.use.CPU, b.use.CPU),
			cmp.Compare(a.use.Cores, b.use.Cores), cmp.Compare(a.use.MemoryMB, b.use.MemoryMB), cmp.Compare(a.kind.models, b.kind.models))
	})
	w.list = []core.Shape{}
	for _, c := range all[:min(len(all), Kinds)] {
		w.list = append(w.list, core.Shape{Members: 1, Cards: c.cards, Shares: c.shares, Models: c.models, Use: c.use, Weight: round(c.members, total)})
	}
	return w.list
}

// whole is the weight of a mix of one kind.
const whole = 1 << 16

// round gives a share of the whole as 1, 2, 3, 4, 6, 8, 12, ...: the nearest
// below, but never nothing.
func round(n, total int64) int {
	share := max(1, uint64(n)*whole/uint64(max(1, total)))
	if drop := bits.Len64(share) - 2; drop > 0 {
		share = share >> drop << drop
	}
	return int(share)
}
