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

// An elastic gang whose ranks can meet anew while they run gets back what it
// lost, and grows, in the same attempt: its job is registered with pins for more
// nodes and a higher count, which Nomad takes in place for the members that
// run. The newcomers are listed as joining, run their preflight and wait; the
// record's next round takes them in, all of them or none.
//
// Where one of them is not placed in time, refuses or ends, all are taken back,
// in three steps, since Nomad would otherwise end members that run: first the
// pins are as before, so that nothing is placed anew; then the newcomers are
// stopped; then the count is as before.
//
// Exact cards are pinned by a device constraint, and Nomad starts every member
// anew where that changes: a gang with such pins keeps its size.

// Growth is members on their way into a running attempt.
type Growth struct {
	At time.Time `json:"at"`
	// Index is the job's at which the registration of the present step is made.
	// Newcomers are allocations made after Since.
	Index  uint64       `json:"index"`
	Since  uint64       `json:"since"`
	Places []Place      `json:"places"`
	Pin    *jobspec.Pin `json:"pin"` // of the present step's registration
	// Undo is the step of taking them back, and Why the reason.
	Undo Undo   `json:"undo,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Undo is a step of taking newcomers back.
type Undo string

// Steps of taking newcomers back.
const (
	UndoNone   Undo = ""
	UndoNarrow Undo = "narrow" // pins as before, and the newcomers stopped
	UndoCount  Undo = "count"  // count as before
)

// growPause is how long a gang whose growth failed keeps its size.
const growPause = 5 * time.Minute

// Growable tells whether the gang can take in members now, and why not.
func (g *Gang) Growable(now time.Time) (string, bool) {
	s := &g.Saved
	switch {
	case !g.Resizable():
		return "its ranks cannot meet anew now", false
	case s.Twin || s.Adopted || s.Foreign || s.Pin == nil:
		return "its job is not the planner's alone", false
	case g.published != contract.PhaseReleased || g.unsure || g.hold.After(now):
		return "its members are not told of the last change yet", false
	case s.GrowAfter.After(now):
		return cmp.Or(g.growWhy, "it was resized a moment ago"), false
	}
	for _, p := range s.Pin.Groups {
		if len(p.Cards) > 0 {
			return "its cards are pinned one by one, and Nomad starts every member anew where that changes", false
		}
	}
	return "", true
}

// grow registers the job with room for more members.
func (g *Gang) grow(e Grow) []Effect {
	s, v := &g.Saved, e.Seen
	if _, ok := g.Growable(v.Now); !ok || s.Attempt != e.Attempt || v.Job == nil || v.Job.Stop || v.Job.Gang == nil || v.Job.Gang.Mark() != s.Attempt || v.Job.JobModifyIndex < g.floor {
		return nil
	}
	if len(e.Add) == 0 || len(s.Places)+len(e.Add) > g.User.Members() || !g.undisturbed(v) {
		return nil
	}
	for _, m := range e.Add {
		if g.set.BySignal != nil && g.set.BySignal(string(m.Node)) {
			s.GrowAfter, g.growWhy = v.Now.Add(growPause), "members can join over Consul only"
			return nil
		}
	}
	for _, p := range s.Places {
		if unfit(v, p.Node) != "" {
			return nil
		}
	}
	added := slices.Clone(e.Add)
	slices.SortFunc(added, func(a, b core.Placement) int { return a.Member - b.Member })
	gr := Growth{At: v.Now, Index: v.Job.JobModifyIndex, Since: v.Job.JobModifyIndex}
	for _, a := range v.Allocs {
		gr.Since = max(gr.Since, a.CreateIndex)
	}
	for _, m := range added {
		gr.Places = append(gr.Places, Place{Group: m.Group, Node: string(m.Node), Cards: m.Cards, Model: m.Model})
	}
	pin, ok := g.pinFor(v, *s.Pin, append(slices.Clone(s.Places), gr.Places...), 0)
	if _, back := g.pinFor(v, *s.Pin, s.Places, 0); !ok || !back {
		s.GrowAfter, g.growWhy = v.Now.Add(growPause), "the cards there would have to be pinned one by one, and Nomad starts every member anew where that changes"
		return nil
	}
	gr.Pin = pin
	pinned, err := g.User.Pinned(*pin)
	if err != nil {
		return nil
	}
	next := *s
	next.Growth = &gr
	place := map[string]int{}
	for _, p := range gr.Places {
		place[p.Group]++
	}
	return []Effect{Check{Job: pinned, Place: place, Index: gr.Index, Keep: true}, Save{next}, Register{Job: pinned, Index: gr.Index, Version: s.Version}}
}

// undisturbed tells whether every member runs, on cards that are well: one that
// is not would be started anew by the registration, and one that has completed
// run again.
func (g *Gang) undisturbed(v Seen) bool {
	byID := map[string]*picture.Alloc{}
	for _, a := range v.Allocs {
		byID[a.ID] = a
	}
	for _, m := range g.Saved.Record.Members {
		a := byID[m.Alloc]
		if a == nil || a.Terminal() || a.Desired != "run" || a.Client != "running" || a.Unknown() || nodeLost(v, a) {
			return false
		}
		if r, ok := g.reports[member{m.Alloc, m.Task}]; ok && r.State == contract.StateEnded {
			return false
		}
		n := v.Node(a.NodeID)
		if n == nil {
			return false
		}
		held := map[core.CardID]bool{}
		for _, d := range a.Devices {
			for _, id := range d.IDs {
				held[core.CardID(id)] = true
			}
		}
		for i := range n.Devices {
			for _, c := range n.Devices[i].Cards {
				if held[c.ID] && !c.Healthy {
					return false
				}
			}
		}
	}
	return true
}

// pinFor is a pin of the attempt, the next after another, for these places and
// so many members more; false: it would name cards.
func (g *Gang) pinFor(v Seen, last jobspec.Pin, places []Place, more int) (*jobspec.Pin, bool) {
	members := make([]core.Placement, len(places))
	for i, p := range places {
		members[i] = core.Placement{Group: p.Group, Member: i, Node: core.NodeID(p.Node), Cards: p.Cards, Model: p.Model}
	}
	pin := last
	pin.Step++
	pin.Groups, pin.Levels = map[string]jobspec.GroupPin{}, g.levels(members, v)
	for i := range g.groups {
		group := pinGroup(&g.groups[i], members, v, true)
		group.Count = len(members) + more
		if group.PerNode > 1 && len(g.groups[i].Devices) > 0 {
			// Nomad counts members that it updates in place twice. Where no cards are
			// pinned the members take all of their nodes', which says as much.
			group.PerNode = 0
		}
		if len(group.Cards) > 0 {
			return nil, false
		}
		pin.Groups[g.groups[i].Name] = group
	}
	return &pin, true
}

// newcomers are the live allocations of a growth that are not taken in yet, and
// one that is not to run any more.
func (g *Gang) newcomers(v Seen) (live []*picture.Alloc, ended *picture.Alloc) {
	gr := g.Saved.Growth
	for _, a := range v.Allocs {
		if a.CreateIndex <= gr.Since || slices.ContainsFunc(g.Saved.Record.Members, func(m contract.Member) bool { return m.Alloc == a.ID }) {
			continue
		}
		if a.Terminal() || a.Desired != "run" || a.Unknown() || nodeLost(v, a) {
			ended = a
		}
		if !a.Terminal() {
			live = append(live, a)
		}
	}
	slices.SortFunc(live, byName)
	return live, ended
}

// takeIn follows newcomers until they are taken in or back.
func (g *Gang) takeIn(v Seen) []Effect {
	s := &g.Saved
	gr := s.Growth
	if gr == nil || s.asking() || v.Job.Gang == nil {
		return nil
	}
	if v.Job.Gang.Mark() != s.Attempt {
		return g.letGo(v)
	}
	if gr.Undo != UndoNone {
		return g.ungrow(v)
	}
	if v.Job.JobModifyIndex == gr.Index {
		return g.growAgain(v)
	}
	g.growRefused = ""
	until := gr.At.Add(g.set.ReserveTimeout)
	late := !v.Now.Before(until)
	g.wake(until)
	live, ended := g.newcomers(v)
	if ended != nil {
		return g.takeBack(v, fmt.Sprintf("allocation %s on node %s is %s before it joined", short(ended.ID), ended.NodeName, ended.Client))
	}
	roster := make([]*picture.Alloc, len(gr.Places))
	for _, a := range live {
		if n := v.Node(a.NodeID); n != nil && n.Draining {
			return g.takeBack(v, fmt.Sprintf("node %s, where a member was to join, drains", a.NodeName))
		}
		i := slices.IndexFunc(gr.Places, func(p Place) bool { return p.Node == a.NodeID && p.Group == a.Group })
		for i >= 0 && roster[i] != nil {
			at := slices.IndexFunc(gr.Places[i+1:], func(p Place) bool { return p.Node == a.NodeID && p.Group == a.Group })
			if at < 0 {
				i = -1
				break
			}
			i += 1 + at
		}
		if i < 0 {
			return g.takeBack(v, fmt.Sprintf("Nomad placed allocation %s on node %s, where the plan has none", short(a.ID), a.NodeName))
		}
		roster[i] = a
	}
	if len(live) < len(roster) {
		e := g.evalOf(v.Job.JobModifyIndex)
		switch {
		case late:
			return g.takeBack(v, fmt.Sprintf("%d of %d members were placed within %s", len(live), len(roster), g.set.ReserveTimeout))
		case e != nil && e.Ended() && (e.Status != "complete" || len(e.Failed) > 0):
			return g.takeBack(v, "Nomad has no place for them: "+e.Why)
		}
		return nil
	}
	return g.join(v, roster, late)
}

// growAgain: the job is as it was before the registration.
func (g *Gang) growAgain(v Seen) []Effect {
	next := g.Saved
	if g.growRefused != "" || !g.undisturbed(v) {
		g.growWhy, g.growRefused = g.growRefused, ""
		next.Growth, next.GrowAfter = nil, v.Now.Add(growPause)
		return []Effect{Save{next}}
	}
	pinned, err := g.User.Pinned(*next.Growth.Pin)
	if err != nil {
		return g.takeBack(v, err.Error())
	}
	return []Effect{Register{Job: pinned, Index: next.Growth.Index, Version: next.Version}}
}

// letGo ends a growth whose job somebody else registered: there is nothing to
// take back, and registering the attempt's pins again could start its members
// anew with another text. Nomad places nobody while that job is held, so that
// newcomers can be stopped; see unlisted.
func (g *Gang) letGo(v Seen) []Effect {
	if e := g.evalOf(v.Job.JobModifyIndex); (e == nil || !e.Ended()) && !g.elapsed(fmt.Sprint("ungrow/", v.Job.JobModifyIndex), v.Now, evalAfter) {
		return nil // a newcomer that is stopped before could be replaced
	}
	next := g.Saved
	record := *next.Record
	record.Joining = nil
	next.Growth, next.Record, next.GrowAfter = nil, &record, v.Now.Add(growPause)
	return []Effect{Save{next}, Publish{g.asking(&record)}}
}

// join lists the newcomers as joining, and takes them in once all are ready.
func (g *Gang) join(v Seen, roster []*picture.Alloc, late bool) []Effect {
	s := &g.Saved
	var joining []contract.Member
	for _, a := range roster {
		for _, task := range g.tasks(a.Group) {
			joining = append(joining, contract.Member{Alloc: a.ID, Task: task, Group: a.Group, Node: a.NodeName, Cards: g.cards(a, task)})
		}
	}
	next := *s
	record := *s.Record
	next.Record = &record
	if !slices.EqualFunc(joining, record.Joining, func(a, b contract.Member) bool { return a.Key() == b.Key() }) {
		record.Joining, record.HoldUntil = joining, s.Growth.At.Add(g.set.ReserveTimeout+time.Minute)
		return []Effect{Save{next}, Publish{g.asking(&record)}}
	}
	waiting := 0
	for i := range joining {
		m := &joining[i]
		switch r, ok := g.reports[member{m.Alloc, m.Task}]; {
		case ok && r.Attempt == s.Attempt && (r.State == contract.StateRefused || r.State == contract.StateEnded):
			return g.takeBack(v, fmt.Sprintf("the member on node %s refuses, or has ended: %s", m.Node, problems(r)))
		case !ok || r.Attempt != s.Attempt || r.State != contract.StateReady:
			waiting++
		default:
			m.Start, m.Address, m.Ranks, m.Supervisor = r.Start, r.Address, r.Ranks, r.Supervisor
		}
	}
	switch {
	case waiting > 0 && late:
		return g.takeBack(v, fmt.Sprintf("%d of %d members were not ready within %s", waiting, len(joining), g.set.ReserveTimeout))
	case waiting > 0 || !g.undisturbed(v):
		return nil
	}
	record.Round++
	record.Settle, record.Joining, record.Members = g.grace(), nil, slices.Clone(record.Members)
	record.Worlds = slices.Clone(record.Worlds)
	world := &record.Worlds[0]
	world.Members = slices.Clone(world.Members)
	for _, m := range joining {
		m.Index = len(record.Members)
		record.Members, world.Members = append(record.Members, m), append(world.Members, m.Index)
	}
	next.Places, next.Pin = append(slices.Clone(s.Places), s.Growth.Places...), s.Growth.Pin
	next.Growth, next.GrowAfter = nil, v.Now.Add(g.leastRun())
	return []Effect{Save{next}, Publish{g.asking(&record)}}
}

func problems(r contract.Report) string {
	if len(r.Problems) > 0 {
		return r.Problems[0].What + ": " + r.Problems[0].Text
	}
	if r.Exit != nil {
		return r.Exit.Text
	}
	return "it does not say why"
}

// grace is how long ranks may save before their world meets anew.
func (g *Gang) grace() time.Duration {
	switch {
	case g.Meta.Grace > 0:
		return g.Meta.Grace
	case g.set.Grace != nil:
		return g.set.Grace(g.QueueName())
	}
	return time.Minute
}

// leastRun is how long a gang runs between two growths.
func (g *Gang) leastRun() time.Duration {
	if g.set.MinRuntime != nil {
		return g.set.MinRuntime(g.QueueName())
	}
	return 0
}

// takeBack begins to take the newcomers back.
func (g *Gang) takeBack(v Seen, why string) []Effect {
	next := g.Saved
	gr := *next.Growth
	live, _ := g.newcomers(v)
	pin, ok := g.pinFor(v, *gr.Pin, next.Places, len(live))
	if !ok {
		return g.cannotTakeBack(v)
	}
	gr.Undo, gr.Why, gr.Index, gr.Pin = UndoNarrow, why, v.Job.JobModifyIndex, pin
	record := *next.Record
	record.Joining = nil
	next.Growth, next.Record = &gr, &record
	return []Effect{Save{next}, Publish{g.asking(&record)}}
}

// cannotTakeBack ends an attempt that lost members meanwhile, so that those left
// are on places that Nomad could not be told without restarting them.
func (g *Gang) cannotTakeBack(v Seen) []Effect {
	return g.stop(v, g.Saved, Stop{Reason: ReasonDamaged, Site: true, Member: -1, Text: "it lost members while others were to join: " + g.Saved.Growth.Why})
}

// ungrow takes newcomers back.
func (g *Gang) ungrow(v Seen) []Effect {
	next := g.Saved
	gr := *next.Growth
	live, _ := g.newcomers(v)
	if v.Job.JobModifyIndex == gr.Index {
		if !g.undisturbed(v) {
			g.wake(v.Now.Add(5 * time.Second)) // the registration would start a member anew
			return nil
		}
		pinned, err := g.User.Pinned(*gr.Pin)
		if err != nil {
			return g.cannotTakeBack(v)
		}
		return []Effect{Register{Job: pinned, Index: gr.Index, Version: next.Version}}
	}
	// What the registration made is done before anything else is.
	if e := g.evalOf(v.Job.JobModifyIndex); (e == nil || !e.Ended()) && !g.elapsed(fmt.Sprint("ungrow/", v.Job.JobModifyIndex), v.Now, evalAfter) {
		return nil
	}
	switch {
	case gr.Undo == UndoNarrow && len(live) > 0:
		return g.stopLive(v, live)
	case gr.Undo == UndoNarrow:
		pin, ok := g.pinFor(v, *gr.Pin, next.Places, 0)
		if !ok {
			return g.cannotTakeBack(v)
		}
		gr.Undo, gr.Index, gr.Pin = UndoCount, v.Job.JobModifyIndex, pin
		next.Growth = &gr
	default:
		next.Pin, next.Growth, next.GrowAfter = gr.Pin, nil, v.Now.Add(growPause)
		g.growWhy = gr.Why
	}
	return []Effect{Save{next}}
}

// Coming are the places of members to come that Nomad has not filled yet: of the
// growth under way, or of one whose registration is.
func (g *Gang) Coming(allocs []*picture.Alloc, adding []core.Placement) (out []core.Placement) {
	gr := g.Saved.Growth
	if g.Saved.Phase != Released || g.Saved.Record == nil || adding == nil && (gr == nil || gr.Undo != UndoNone) {
		return nil
	}
	if gr != nil {
		adding = nil
		for _, p := range gr.Places {
			adding = append(adding, core.Placement{Group: p.Group, Node: core.NodeID(p.Node), Cards: p.Cards, Model: p.Model})
		}
	}
	filled := map[string]int{}
	for _, a := range allocs {
		if a.CreateIndex > g.Saved.Base && !a.Terminal() && !slices.ContainsFunc(g.Saved.Record.Members, func(m contract.Member) bool { return m.Alloc == a.ID }) {
			filled[a.Group+"/"+a.NodeID]++
		}
	}
	for _, p := range adding {
		if key := p.Group + "/" + string(p.Node); filled[key] > 0 {
			filled[key]--
			continue
		}
		out = append(out, p)
	}
	return out
}
