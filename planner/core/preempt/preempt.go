// Package preempt chooses who has to leave so that one gang can be placed.
//
// It is given what may be taken (units: whole gangs, or single members of
// elastic ones) with the work that would be lost, and what will be free anyway
// because its holder is leaving. It answers with the units to take and the
// gang's place without them, or with nothing: units are never taken unless the
// whole gang then fits.
//
// Elastic gangs give up members before anybody is evicted: single members alone
// are tried first, whatever they cost, and whole gangs only where those are not
// enough.
//
// With few units every set of them is tried, the least work lost first, then
// the fewest cards, then the first by name: the answer is the best there is.
// With many, members are placed one by one where the next one costs least,
// within each domain of the gang's level; a unit that lies on several nodes is
// charged to each by the cards it has there, and to no further one once it is
// taken. At the end every unit that turns out not to be needed is let off, the
// most expensive first.
//
// Costs are card-seconds of work lost.
package preempt

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// Unit is what can be taken at once.
type Unit struct {
	Gang   int // the caller's number of its gang
	Member int // of an elastic gang, -1: the gang as a whole
	Uses   []cluster.Use
	// Members are, of a gang as a whole, the member of each use.
	Members []int
	Cards   int
	Cost    int64
}

// Problem is one gang's need.
type Problem struct {
	Cluster *cluster.Cluster
	Placer  *placement.Placer
	Request *placement.Request
	Option  *placement.Option
	Members int // of the first group, 0: all
	Deny    []bool
	// Leaving will be free without anybody being asked.
	Leaving []Unit
	Units   []Unit
	// Spare is how many members an elastic gang, by its number, can give up.
	Spare map[int]int
	// MaxCards bounds the cards of what is taken; 0: no bound.
	MaxCards int
	// Prefer is how much more work may be lost, in card-seconds, for a place
	// within one domain of the gang's preferred level.
	Prefer int64
	// Admissible looks at a choice as a whole and returns -1, or the place in
	// chosen of a unit that must not be taken.
	Admissible func(chosen []int) int
	// Enough, where stated, tells whether a choice leaves the gang within its
	// queue's limits; what lies elsewhere is added to it until it does.
	Enough func(chosen []int) bool
}

// Solution is who leaves and where the gang goes then.
type Solution struct {
	Units   []int // places in Problem.Units, ascending
	Members []placement.Member
	Cost    int64
}

// exhaustive is the largest number of units of which every set is tried.
const exhaustive = 8

// Solve returns nil where nothing that may be taken makes room for the gang.
// The cluster is left as it was.
func Solve(p *Problem) *Solution {
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	give(p.Cluster, p.Leaving)
	if !p.fits(nil) {
		return nil
	}
	if slices.ContainsFunc(p.Units, func(u Unit) bool { return u.Member >= 0 }) {
		whole := make([]bool, len(p.Units))
		for i := range p.Units {
			whole[i] = p.Units[i].Member < 0
		}
		if p.fits(whole) {
			if s := p.solve(whole); s != nil {
				return s
			}
		}
	}
	return p.solve(make([]bool, len(p.Units)))
}

// solve answers without the units that are out.
func (p *Problem) solve(out []bool) *Solution {
	if len(p.Units) <= exhaustive {
		return p.exact(out)
	}
	for range 8 {
		s, bad := p.greedy(out)
		if s != nil || bad < 0 {
			return s
		}
		out[bad] = true
		if !p.fits(out) {
			return nil
		}
	}
	return nil
}

// fits tells whether the gang could be placed with every unit taken that is
// not out.
func (p *Problem) fits(out []bool) bool {
	mark := p.Cluster.Mark()
	defer p.Cluster.Rollback(mark)
	for i := range p.Units {
		if out == nil || !out[i] {
			give(p.Cluster, p.Units[i:i+1])
		}
	}
	_, ok := p.Placer.Place(p.Request, p.Option, placement.Options{Members: p.Members, Deny: p.Deny})
	return ok
}

func give(c *cluster.Cluster, units []Unit) {
	for i := range units {
		for u := range units[i].Uses {
			if units[i].Uses[u].Node >= 0 {
				c.Give(&units[i].Uses[u])
			}
		}
	}
}

// exact tries every set of units that are not out, the cheapest first.
func (p *Problem) exact(out []bool) *Solution {
	type set struct {
		mask  uint
		cost  int64
		cards int
	}
	sets := make([]set, 0, 1<<len(p.Units))
next:
	for mask := uint(0); mask < 1<<len(p.Units); mask++ {
		s := set{mask: mask}
		members := map[int]int{}
		whole := map[int]bool{}
		for i := range p.Units {
			if mask>>i&1 == 0 {
				continue
			}
			if out[i] {
				continue next
			}
			u := &p.Units[i]
			s.cost += u.Cost
			s.cards += u.Cards
			if u.Member >= 0 {
				members[u.Gang]++
			} else {
				whole[u.Gang] = true
			}
		}
		for i := range p.Units {
			if g := p.Units[i].Gang; members[g] > p.Spare[g] || members[g] > 0 && whole[g] {
				continue next
			}
		}
		if p.MaxCards > 0 && s.cards > p.MaxCards {
			continue
		}
		sets = append(sets, s)
	}
	slices.SortStableFunc(sets, func(a, b set) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.cards, b.cards), cmp.Compare(a.mask, b.mask))
	})
	for _, s := range sets {
		var chosen []int
		for i := range p.Units {
			if s.mask>>i&1 == 1 {
				chosen = append(chosen, i)
			}
		}
		if p.Admissible != nil && len(chosen) > 0 && p.Admissible(chosen) >= 0 || p.Enough != nil && !p.Enough(chosen) {
			continue
		}
		mark := p.Cluster.Mark()
		for _, i := range chosen {
			give(p.Cluster, p.Units[i:i+1])
		}
		res, ok := p.Placer.Place(p.Request, p.Option, placement.Options{Members: p.Members, Deny: p.Deny})
		p.Cluster.Rollback(mark)
		if ok {
			return &Solution{Units: chosen, Members: res.Members, Cost: s.cost}
		}
	}
	return nil
}
