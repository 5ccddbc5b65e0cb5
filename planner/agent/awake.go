package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// What the loop walks on each of its turns are the gangs that are awake. One
// that is over, and of which nothing is awaited, is at rest until something
// happens to it: Nomad keeps jobs for hours after their end, and the loop's
// turns are to cost what is going on, not what went on.

// stir notes that something happened to a gang.
func (s *state) stir(e *entry) {
	e.dirty = true
	if !e.awake && !e.forgotten {
		e.awake = true
		s.stirred = append(s.stirred, e)
	}
}

// settle notes that a gang may have come to rest.
func (s *state) settle(e *entry) { s.settled = s.settled || e.awake && e.resting() }

// drop forgets a gang.
func (s *state) drop(e *entry) {
	delete(s.gangs, e.key)
	e.forgotten = true
	s.settle(e)
	for _, list := range []map[picture.Key]*entry{s.makingRoom, s.askedFor, s.remembered} {
		delete(list, e.key)
	}
}

func (e *entry) resting() bool {
	return e.forgotten || e.gang.Saved.Phase == lifecycle.Over && !e.busy && !e.dirty && !e.departs && e.wish == nil && e.gang.Wake.IsZero()
}

// order is the order in which the gangs that are awake are stepped: by name, so
// that a run can be told again. The list is never changed.
func (s *state) order() []*entry {
	if len(s.stirred) == 0 && !s.settled {
		return s.awake
	}
	slices.SortFunc(s.stirred, compareNames)
	out := make([]*entry, 0, len(s.awake)+len(s.stirred))
	old, fresh := s.awake, s.stirred
	for len(old) > 0 || len(fresh) > 0 {
		from := &old
		if len(old) == 0 || len(fresh) > 0 && compareNames(fresh[0], old[0]) < 0 {
			from = &fresh
		}
		if e := (*from)[0]; e.resting() {
			e.awake = false
		} else {
			out = append(out, e)
		}
		*from = (*from)[1:]
	}
	clear(s.stirred)
	s.awake, s.stirred, s.settled = out, s.stirred[:0], false
	return out
}

// byName are all gangs.
func (s *state) byName() []*entry { return byName(s.gangs) }

func byName(gangs map[picture.Key]*entry) []*entry {
	return slices.SortedFunc(maps.Values(gangs), compareNames)
}

func compareNames(a, b *entry) int {
	return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), strings.Compare(a.key.Job, b.key.Job))
}
