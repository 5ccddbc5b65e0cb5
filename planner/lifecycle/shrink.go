package lifecycle

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// An elastic gang whose ranks can meet anew while they run (elastic = true)
// gives up members rather than leave as a whole: the record's next round leaves
// them out, with the gang's grace for saving. They end by themselves, and
// nothing is registered: Nomad does not replace what ended.

// Resizable tells whether the gang can give up members while it runs.
func (g *Gang) Resizable() bool {
	s := &g.Saved
	return s.Phase == Released && s.Record != nil && !s.asking() && s.Growth == nil && g.Elastic() && len(s.Record.Worlds) == 1 && len(s.Record.Members) == len(s.Places) && g.elasticTasks()
}

// shrink writes the round without the members that are given up.
func (g *Gang) shrink(e Shrink) []Effect {
	s := &g.Saved
	if !g.Resizable() || s.Attempt != e.Attempt || g.unsure || g.hold.After(e.Now) {
		return nil
	}
	var without []int
	var out []string
	for i, m := range s.Record.Members {
		if slices.Contains(e.Allocs, m.Alloc) {
			without, out = append(without, i), append(out, m.Alloc)
		}
	}
	if len(out) == 0 || len(s.Record.Members)-len(out) < g.Meta.Min {
		return nil
	}
	next, ok := g.nextRound(without, e.Grace)
	if !ok {
		return nil
	}
	next.LeftOut = append(slices.Clone(s.LeftOut), out...)
	next.LeftBy = e.Now.Add(e.Grace)
	next.GrowAfter = e.Now.Add(g.leastRun())
	return []Effect{Save{next}, Publish{g.asking(next.Record)}}
}

// MembersLeaving counts the live allocations that a round left out.
func (g *Gang) MembersLeaving(allocs []*picture.Alloc) int {
	n := 0
	for _, a := range allocs {
		if !a.Terminal() && slices.Contains(g.Saved.LeftOut, a.ID) {
			n++
		}
	}
	return n
}

// LeftOut tells whether an allocation was left out of the attempt's round, and
// by when it is to be gone.
func (g *Gang) LeftOut(alloc string) (by time.Time, out bool) {
	return g.Saved.LeftBy, slices.Contains(g.Saved.LeftOut, alloc)
}
