package lifecycle

import (
	"slices"

	"github.com/nomad-muster/muster/internal/contract"
)

// goesOn gives what is saved when an elastic attempt goes on without some of
// its members: the next round of its record. The members themselves have met
// anew by then, if the store's host among them is left, and as many as the gang
// needs; else there is nothing to go on with.
func (g *Gang) goesOn(gone []int) (next Saved, ok bool) {
	s := &g.Saved
	rec := s.Record
	if len(gone) == 0 || rec.Min == 0 || s.Ask != nil || len(rec.Worlds) != 1 || len(rec.Members) != len(s.Places) || !g.elasticTasks() {
		return Saved{}, false
	}
	world := rec.Worlds[0]
	if slices.Contains(gone, world.HostMember) || len(rec.Members)-len(gone) < rec.Min {
		return Saved{}, false
	}
	next = *s
	again := *rec
	again.Round++
	again.Settle, again.Members, again.Worlds, next.Places = 0, nil, nil, nil
	world.Members = nil
	for i, m := range rec.Members {
		if slices.Contains(gone, i) {
			continue
		}
		if i == rec.Worlds[0].HostMember {
			world.HostMember = len(again.Members)
		}
		m.Index = len(again.Members)
		world.Members = append(world.Members, m.Index)
		again.Members, next.Places = append(again.Members, m), append(next.Places, s.Places[i])
	}
	again.Worlds = []contract.World{world}
	next.Record = &again
	return next, true
}

// elasticTasks tells whether the ranks' world may change its size while they
// run. A gang whose minimum is stated may otherwise change between attempts
// only.
func (g *Gang) elasticTasks() bool {
	found := false
	if g.User == nil {
		return false
	}
	for i := range g.User.TaskGroups {
		for _, t := range g.User.TaskGroups[i].Tasks {
			if t.Driver != contract.DriverName {
				continue
			}
			c, faults := contract.ParseTaskConfig("", t.Config, 1)
			if len(faults) > 0 || !c.Elastic {
				return false
			}
			found = true
		}
	}
	return found
}
