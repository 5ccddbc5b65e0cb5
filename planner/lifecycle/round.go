package lifecycle

import (
	"slices"
	"time"

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
	return g.nextRound(gone, 0)
}

// nextRound is the attempt without some of its members, who may save for the
// settle time. The store's host may be among them only while it can still tell
// the others: where there is such a time.
func (g *Gang) nextRound(without []int, settle time.Duration) (next Saved, ok bool) {
	s := &g.Saved
	rec := s.Record
	next = *s
	again := *rec
	again.Round++
	again.Settle, again.Members, again.Worlds, next.Places = settle, nil, nil, nil
	world := rec.Worlds[0]
	world.Members, world.HostMember = nil, -1
	for i, m := range rec.Members {
		if slices.Contains(without, i) {
			continue
		}
		m.Index = len(again.Members)
		if i == rec.Worlds[0].HostMember {
			world.HostMember = m.Index
		}
		world.Members = append(world.Members, m.Index)
		again.Members, next.Places = append(again.Members, m), append(next.Places, s.Places[i])
	}
	if len(again.Members) == 0 {
		return Saved{}, false
	}
	if world.HostMember < 0 {
		m := again.Members[0]
		r, known := g.reports[member{m.Alloc, m.Task}]
		if settle == 0 || !known || r.Port == 0 {
			return Saved{}, false
		}
		world.HostMember, world.Host, world.Port = 0, m.Address, r.Port
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
