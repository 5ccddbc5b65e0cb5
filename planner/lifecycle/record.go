package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// roster gives the allocation of each place of the attempt, nil where there is
// none, and the allocations that have no place.
func (g *Gang) roster(live []*picture.Alloc) (roster, surplus []*picture.Alloc) {
	type spot struct{ group, node string }
	at := map[spot][]*picture.Alloc{}
	for _, a := range live {
		k := spot{a.Group, a.NodeID}
		at[k] = append(at[k], a)
	}
	take := func(k spot, i int) *picture.Alloc {
		a := at[k][i]
		at[k] = append(at[k][:i:i], at[k][i+1:]...)
		return a
	}
	roster = make([]*picture.Alloc, len(g.Saved.Places))
	// Several members of a group on one node are told apart by their cards,
	// where Nomad gave them as planned; else any of them will do.
	for _, exact := range []bool{true, false} {
		for i, p := range g.Saved.Places {
			k := spot{p.Group, p.Node}
			if roster[i] != nil {
				continue
			}
			for n, a := range at[k] {
				if !exact || len(at[k]) == 1 || sameCards(a, p) {
					roster[i] = take(k, n)
					break
				}
			}
		}
	}
	for _, a := range live {
		for _, left := range at[spot{a.Group, a.NodeID}] {
			if left == a {
				surplus = append(surplus, a)
			}
		}
	}
	return roster, surplus
}

func sameCards(a *picture.Alloc, p Place) bool {
	want := map[core.CardID]bool{}
	for _, ids := range p.Cards {
		for _, id := range ids {
			want[id] = true
		}
	}
	n := 0
	for _, d := range a.Devices {
		for _, id := range d.IDs {
			if !want[core.CardID(id)] {
				return false
			}
			n++
		}
	}
	return n == len(want)
}

// record is the attempt's record while it is placed. Members count tasks: a
// group may run several under Muster's driver.
func (g *Gang) record(roster []*picture.Alloc, v Seen) *contract.Record {
	r := &contract.Record{V: contract.RecordVersion, Gang: g.Channel(), Attempt: g.Saved.Attempt, Phase: contract.PhasePlaced, Queue: g.QueueName(),
		HoldUntil: g.reservedUntil(v).Add(time.Minute), Min: g.Meta.Min, MinBandwidth: g.Meta.MinBandwidth}
	for _, a := range roster {
		if a == nil {
			continue
		}
		for _, task := range g.tasks(a.Group) {
			r.Members = append(r.Members, contract.Member{Index: len(r.Members), Alloc: a.ID, Task: task, Group: a.Group, Node: a.NodeName, Cards: g.cards(a, task)})
		}
	}
	return r
}

// cards that one task of an allocation was given.
func (g *Gang) cards(a *picture.Alloc, task string) int {
	n := 0
	for _, d := range a.Devices {
		if d.Task == task && slices.Contains(g.set.CardTypes, d.Type) {
			n += len(d.IDs)
		}
	}
	return n
}

// tasks of a group that run under Muster's driver.
func (g *Gang) tasks(group string) []string {
	var out []string
	for i := range g.User.TaskGroups {
		if g.User.TaskGroups[i].Name != group {
			continue
		}
		for _, t := range g.User.TaskGroups[i].Tasks {
			if t.Driver == contract.DriverName {
				out = append(out, t.Name)
			}
		}
	}
	return out
}

func (g *Gang) ranks(group string) bool { return len(g.tasks(group)) > 0 }

func (g *Gang) hasRanks() bool {
	return slices.ContainsFunc(g.User.TaskGroups, func(t jobspec.Group) bool { return t.Count > 0 && g.ranks(t.Name) })
}

// worlds groups the record's members by the world that each reports: its group
// or the whole job. The first member of each holds the store, but for one on a
// node where the last attempt's store died, as long as there is another.
func (g *Gang) worlds(record *contract.Record) error {
	at := map[string]int{}
	for i, m := range record.Members {
		name := cmp.Or(g.reports[member{m.Alloc, m.Task}].World, m.Group)
		w, ok := at[name]
		if !ok {
			w = len(record.Worlds)
			at[name] = w
			record.Worlds = append(record.Worlds, contract.World{Name: name})
		}
		record.Worlds[w].Members = append(record.Worlds[w].Members, i)
	}
	for i := range record.Worlds {
		w := &record.Worlds[i]
		host := slices.IndexFunc(w.Members, func(m int) bool { return !slices.Contains(g.Saved.StoreDied, record.Members[m].Node) })
		w.HostMember = w.Members[max(0, host)]
		m := record.Members[w.HostMember]
		r := g.reports[member{m.Alloc, m.Task}]
		if r.Port == 0 || r.Address == "" {
			return fmt.Errorf("member %d reports no address and port for the store of world %q", w.HostMember, w.Name)
		}
		w.Host, w.Port = r.Address, r.Port
	}
	return nil
}

// storesThatDied are the nodes of the record's stores whose hosts died where
// they were: lost, ended by a signal that nobody asked for, or by the node's
// fault. The script's own exit code, a hang of the whole gang, an end on request
// or after another member is no such death.
func (g *Gang) storesThatDied(v Seen, why Stop) []string {
	rec := g.Saved.Record
	ends := g.ends(v)
	var out []string
	for _, w := range rec.Worlds {
		died := why.Site && charged(why.Reason) && why.Member == w.HostMember
		if x := ends[w.HostMember].exit; x != nil {
			switch x.Outcome {
			case contract.OutcomeLost: // Nomad asks a lost member to stop as well
				died = true
			case contract.OutcomeUnknown:
				died = died || !x.Asked
			case contract.OutcomeFailed:
				died = died || !x.Asked && (x.Signal != 0 || x.OOM)
			}
		}
		if node := rec.Members[w.HostMember].Node; died && !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	return out
}

// Member is one member of the current attempt, for whoever looks at the gang.
type Member struct {
	Index  int
	Place  Place
	Alloc  *picture.Alloc   // nil: not placed
	Report *contract.Report // nil: none; of its first task with ranks
	Task   string
}

// replaced tells whether an allocation of an elastic attempt is not, or not yet,
// among its members: others may be on its node.
func (g *Gang) replaced(a *picture.Alloc) bool {
	rec := g.Saved.Record
	return rec != nil && (rec.Round > 0 || g.Saved.Growth != nil) && g.ranks(a.Group) &&
		!slices.ContainsFunc(rec.Members, func(m contract.Member) bool { return m.Alloc == a.ID })
}

// Members of the current attempt, by index.
func (g *Gang) Members(allocs []*picture.Alloc) []Member {
	if g.Saved.Phase == Waiting || g.User == nil {
		return nil
	}
	if g.Service() {
		return g.serviceMembers(allocs)
	}
	var mine []*picture.Alloc
	for _, a := range allocs {
		if a.CreateIndex > g.Saved.Base && !g.replaced(a) {
			mine = append(mine, a)
		}
	}
	slices.SortFunc(mine, byName)
	roster, _ := g.roster(mine)
	out := make([]Member, len(roster))
	for i, a := range roster {
		out[i] = Member{Index: i, Place: g.Saved.Places[i], Alloc: a}
		if a == nil {
			continue
		}
		for _, task := range g.tasks(a.Group) {
			if r, ok := g.reports[member{a.ID, task}]; ok && out[i].Report == nil {
				out[i].Report, out[i].Task = &r, task
			}
		}
	}
	return out
}
