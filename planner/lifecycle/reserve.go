package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// start reserves a waiting gang's place: a dry run where it may tell anything,
// the attempt's number and place on record, then the registration of the pinned
// job. A fresh plan is what Nomad does, as long as Nomad never did otherwise
// with this gang and evicts nobody by itself; what it placed is looked at either
// way.
func (g *Gang) start(e Start) []Effect {
	v := e.Seen
	if _, ready := g.Ready(v); !ready || g.hold.After(v.Now) || len(g.Faults) > 0 || !g.mayStartWith(len(e.Plan.Members)) {
		return nil
	}
	next := g.Saved
	next.Phase, next.Adopted, next.Planned = Reserving, false, v.Now
	next.Attempt++
	next.Base, next.Twin = g.baseOf(v), g.Twin()
	next.Record, next.Stop, next.Ask, next.Foreign, next.Damaged = nil, nil, nil, false, false
	next.Foreign = next.Twin // the handle is stopped at the end
	next.NotBefore, next.NotBeforeWhy = time.Time{}, ""
	next.Leavers, next.Room, next.Backfilled = e.Leavers, time.Time{}, e.Plan.OnPromise
	next.Later = e.Plan.Waits && len(e.Leavers) > 0
	next.Avoid = slices.DeleteFunc(slices.Clone(next.Avoid), func(a Avoid) bool { return !a.Until.After(v.Now) })
	next.Places, next.Pin = g.pin(e.Plan, next.Attempt, v)
	pinned, err := g.pinnedText(next)
	if err != nil {
		g.pause(v.Now, err.Error())
		return nil
	}
	next.Stages = append(slices.Clone(g.Saved.Stages), Stage{contract.StagePlanned, v.Now, e.Plan.Score})
	g.beginAttempt()
	next.Untried = e.Fresh && !g.set.Evicts && !next.Dry && len(next.Leavers) == 0 && !g.Service()
	if next.Untried {
		return []Effect{Save{next}, Register{Job: pinned, Index: next.Base, Version: next.Version}}
	}
	place := map[string]int{}
	for _, p := range next.Places {
		place[p.Group]++
	}
	effects := []Effect{Check{Job: pinned, Place: place, Index: next.Base, Blocked: len(next.Leavers) > 0}, Save{next}}
	if next.Later {
		return effects
	}
	return append(effects, Register{Job: pinned, Index: next.Base, Version: next.Version})
}

// mayStartWith tells whether so many members are the gang, or enough of it.
func (g *Gang) mayStartWith(members int) bool {
	all := g.User.Members()
	return members == all || g.Elastic() && members >= g.Meta.Min && members < all
}

// Elastic tells whether the gang runs with fewer members than it asks for.
func (g *Gang) Elastic() bool {
	return g.User != nil && g.Meta.Min > 0 && g.Meta.Min < g.User.Members() && len(g.User.TaskGroups) == 1 && !g.Service()
}

// pin turns a plan into the attempt's pins.
func (g *Gang) pin(plan core.Start, attempt int, v Seen) ([]Place, *jobspec.Pin) {
	members := slices.Clone(plan.Members)
	slices.SortFunc(members, func(a, b core.Placement) int { return a.Member - b.Member })
	pin := &jobspec.Pin{Attempt: attempt, Priority: g.set.MaxPriority, Groups: map[string]jobspec.GroupPin{}}
	if g.set.Grace != nil {
		pin.KillTimeout = g.set.Grace(g.QueueName())
	}
	if g.Meta.Grace > 0 {
		pin.KillTimeout = g.Meta.Grace
	}
	pin.Levels = g.levels(members, v)
	places := make([]Place, len(members))
	byGroup := map[string][]core.Placement{}
	for i, m := range members {
		places[i] = Place{Group: m.Group, Node: string(m.Node), Cards: m.Cards, Model: m.Model}
		byGroup[m.Group] = append(byGroup[m.Group], m)
	}
	for i := range g.groups {
		group := &g.groups[i]
		if of := byGroup[group.Name]; len(of) > 0 {
			pinned := pinGroup(group, of, v, len(members) <= cardListMost)
			if len(of) != group.Count {
				pinned.Count = len(of)
			}
			pin.Groups[group.Name] = pinned
		}
	}
	return places, pin
}

// levels are the topology levels at which every member's node has a name, with
// the names in use, the outermost first: it keeps Nomad off most of a large
// cluster at the first look at a class of nodes, the inner ones off the rest.
// A level of which very many names are in use excludes little, and every
// allocation keeps the text of the pins.
func (g *Gang) levels(members []core.Placement, v Seen) []jobspec.LevelPin {
	var out []jobspec.LevelPin
	for level, l := range g.set.Levels {
		names := map[string]bool{}
		for _, m := range members {
			n := v.Node(string(m.Node))
			if n == nil || level >= len(n.Domains) || n.Domains[level] == "" {
				names = nil
				break
			}
			names[n.Domains[level]] = true
		}
		if len(names) == 0 || len(names) > levelNamesMost && len(out) > 0 {
			continue
		}
		out = append(out, jobspec.LevelPin{Attribute: l.Attribute, Values: slices.Sorted(maps.Keys(names))})
	}
	return out
}

// levelNamesMost is how many names an inner level may have in use.
const levelNamesMost = 64

func pinGroup(group *core.Group, members []core.Placement, v Seen, lists bool) jobspec.GroupPin {
	pin := jobspec.GroupPin{}
	perNode := map[core.NodeID]int{}
	for _, m := range members {
		perNode[m.Node]++
	}
	most, least := 0, len(members)
	for id, n := range perNode {
		pin.Nodes = append(pin.Nodes, string(id))
		most, least = max(most, n), min(least, n)
	}
	sort.Strings(pin.Nodes)
	pin.PerNode = most
	place := map[string]int{} // of the ask within its task
	for ask, d := range group.Devices {
		at := place[d.Task]
		place[d.Task]++
		part := false
		var ids []string
		for _, m := range members {
			if ask >= len(m.Cards) {
				continue
			}
			part = part || len(m.Cards[ask])*perNode[m.Node] < groupSize(v.Node(string(m.Node)), m.Cards[ask])
			for _, id := range m.Cards[ask] {
				ids = append(ids, string(id))
			}
		}
		uneven := most != least
		if len(ids) == 0 || !(part && lists || uneven) {
			continue
		}
		sort.Strings(ids)
		pin.Cards = append(pin.Cards, jobspec.CardPin{Task: d.Task, Place: at, IDs: ids})
		if uneven {
			pin.PerNode = 0 // the cards say how many go where
		}
	}
	return pin
}

// groupSize is the number of devices in the group that the given ones belong
// to; unknown, it is one more than there are, so that they are pinned.
func groupSize(n *picture.Node, ids []core.CardID) int {
	if n != nil && len(ids) > 0 {
		for i := range n.Devices {
			for _, c := range n.Devices[i].Cards {
				if c.ID == ids[0] {
					return len(n.Devices[i].Cards)
				}
			}
		}
	}
	return 1 << 30
}

// reserving: the pinned version is being registered, placed, and made ready.
func (g *Gang) reserving(v Seen) []Effect {
	s := &g.Saved
	if v.Job == nil || v.Job.Stop {
		return g.stop(v, *s, g.stopped(v, "its job was stopped before its ranks were released"))
	}
	if v.Job.Unread != nil {
		return g.stop(v, *s, Stop{Reason: ReasonUpdated, Text: g.unread, Final: contract.StageCancelled, Member: -1})
	}
	if v.Job.Gang == nil || g.User == nil {
		return g.stop(v, *s, Stop{Reason: ReasonUpdated, Text: "its job is no gang any more", Final: contract.StageCancelled, Member: -1})
	}
	job := v.Job.Gang
	if !s.Adopted {
		switch {
		case job.JobModifyIndex == s.Base, s.Twin && job.IsHeld():
			return g.registerAgain(v)
		case job.Mark() != s.Attempt:
			return g.stop(v, *s, Stop{Reason: ReasonUpdated, Text: "its job was registered by somebody else before its ranks were released", Site: true, Member: -1})
		}
		g.refused = ""
	}
	if g.Service() {
		return g.serving(v, job)
	}
	return g.placing(v, job)
}

// pinnedText is the version that the attempt runs.
func (g *Gang) pinnedText(s Saved) (json.RawMessage, error) {
	if g.Service() {
		return g.User.Admitted(s.Attempt, g.set.MaxPriority), nil
	}
	return g.User.Pinned(*s.Pin)
}

// registerAgain: the job is as it was before the registration. That is yet to
// come, or Nomad refused it, or nobody knows what came of it.
func (g *Gang) registerAgain(v Seen) []Effect {
	s := g.Saved
	if g.refused != "" {
		why := g.refused
		g.refused = ""
		return g.unreserve(v, why)
	}
	register := func() []Effect {
		pinned, err := g.pinnedText(s)
		if err != nil {
			return g.stop(v, s, Stop{Reason: ReasonReservation, Text: err.Error(), Site: true, Member: -1})
		}
		return []Effect{Register{Job: pinned, Index: s.Base, Version: s.Version}}
	}
	if !s.Later || !s.Room.IsZero() {
		return register()
	}
	for i := range s.Places {
		if why := unfit(v, s.Places[i].Node); why != "" {
			return g.unreserve(v, fmt.Sprintf("%s, where member %d was to go", why, i))
		}
	}
	until := g.reservedUntil(v)
	switch {
	case len(v.Leaving) == 0:
		s.Room = v.Now
		return append([]Effect{Save{s}}, register()...)
	case !v.Now.Before(until):
		return g.unreserve(v, fmt.Sprintf("%s has not left its places %s after its grace", v.Leaving[0].Gang, g.set.ReserveTimeout))
	}
	g.wake(until)
	return nil
}

// unreserve gives up an attempt whose registration never came to be: nothing
// carries its number, which is used again.
func (g *Gang) unreserve(v Seen, why string) []Effect {
	s := g.Saved
	s.Phase, s.Pin, s.Places, s.Base, s.Leavers, s.Later = Waiting, nil, nil, 0, nil, false
	s.Attempt--
	s.NotBefore, s.NotBeforeWhy = v.Now.Add(pauseFirst), why
	s.Stages = g.backInQueue(v.Now, "reservation-failed: "+why)
	return []Effect{Save{s}}
}

// placing watches the attempt's allocations come, and releases the gang once
// all of its members are ready.
func (g *Gang) placing(v Seen, job *jobspec.Job) []Effect {
	s := &g.Saved
	if len(s.Leavers) > 0 && s.Room.IsZero() && len(v.Leaving) == 0 {
		next := *s
		next.Room = v.Now
		return []Effect{Save{next}}
	}
	until := g.reservedUntil(v)
	late := !v.Now.Before(until)
	if !late {
		g.wake(until)
	}
	for _, a := range v.Allocs {
		if a.CreateIndex > s.Base && (a.Terminal() || a.Desired != "run") {
			return g.lostBeforeRelease(v, a)
		}
	}
	live := g.live(v, s.Base)
	roster, surplus := g.roster(live)
	var missing []string
	for i, a := range roster {
		switch {
		case a == nil:
			if why := unfit(v, s.Places[i].Node); why != "" {
				return g.stop(v, *s, Stop{Reason: ReasonReservation, Text: fmt.Sprintf("%s, where member %d was to go", why, i), Site: true, Member: i})
			}
			missing = append(missing, fmt.Sprintf("member %d (group %s)", i, s.Places[i].Group))
		case a.Unknown() || nodeLost(v, a):
			return g.stop(v, *s, Stop{Reason: ReasonNodeLost, Text: fmt.Sprintf("node %s was lost before the ranks were released", a.NodeName), Site: true, Member: i})
		}
	}
	if bad := g.badCard(v, roster); bad != nil {
		return g.stop(v, *s, Stop{Reason: ReasonCard, Text: bad.String() + ", before the ranks were released", Site: true, Member: bad.member})
	}
	if len(surplus) > 0 {
		return g.stop(v, *s, Stop{Reason: ReasonReservation, Text: fmt.Sprintf("Nomad placed %d allocations that the plan does not have", len(surplus)), Site: true, Member: -1})
	}
	e := g.evalOf(job.JobModifyIndex)
	if len(missing) > 0 {
		return g.short(v, e, len(roster), missing, late)
	}
	if e == nil || !e.Ended() {
		if !s.Adopted && !g.elapsed("eval", v.Now, evalAfter) {
			return nil
		}
		if !s.Adopted && !g.elapsed("eval-again", v.Now, 2*evalAfter) {
			return g.refresh(v.Now)
		}
	}
	at := live[0].Created
	for _, a := range live {
		if a.Created.After(at) {
			at = a.Created
		}
	}
	g.enter(contract.StagePlaced, at, "")
	g.fetched(v, roster)
	if g.published == "" && g.hasRanks() && !late {
		switch {
		case g.publishAfter.After(v.Now):
			g.wake(g.publishAfter)
			return nil
		case !g.reachable(roster):
			return nil
		}
		return []Effect{Publish{g.record(roster, v)}}
	}
	return g.ready(v, roster, late)
}

// reservedUntil is when a reservation is given up: counted from the plan, and
// from when those had left who were to.
func (g *Gang) reservedUntil(v Seen) time.Time {
	from := g.Saved.Planned
	if g.Saved.Room.After(from) {
		from = g.Saved.Room
	}
	for _, l := range v.Leaving {
		if l.Until.After(from) {
			from = l.Until
		}
	}
	return from.Add(g.set.ReserveTimeout)
}

// unfit tells why Nomad will place nothing more on a node; "": it may.
func unfit(v Seen, node string) string {
	n := v.Node(node)
	switch {
	case n == nil:
		return fmt.Sprintf("node %s is gone", node)
	case !n.Ready:
		return fmt.Sprintf("node %s was lost", n.Name)
	case n.Draining:
		return fmt.Sprintf("node %s drains", n.Name)
	case !n.Eligible:
		return fmt.Sprintf("node %s is not eligible any more", n.Name)
	}
	return ""
}

// fetched enters the stage when every member's tasks have been started:
// artifacts and images are there, and what is left is the preflight.
func (g *Gang) fetched(v Seen, roster []*picture.Alloc) {
	var at time.Time
	for _, a := range roster {
		if a.Client != "running" {
			return
		}
		for _, t := range a.Tasks {
			if t.Started.After(at) {
				at = t.Started
			}
		}
	}
	if at.IsZero() {
		at = v.Now
	}
	g.enter(contract.StageFetched, at, "")
}

// reachable tells whether every member can be told: those that are reached by
// signal have to run.
func (g *Gang) reachable(roster []*picture.Alloc) bool {
	for _, a := range roster {
		if g.set.BySignal == nil || !g.set.BySignal(a.NodeID) {
			continue
		}
		for _, task := range g.tasks(a.Group) {
			if !slices.ContainsFunc(a.Tasks, func(t picture.Task) bool { return t.Name == task && t.State == "running" }) {
				return false
			}
		}
	}
	return true
}

// short: not all members have a place yet.
func (g *Gang) short(v Seen, e *picture.Eval, want int, missing []string, late bool) []Effect {
	s := &g.Saved
	placed := want - len(missing)
	why := ""
	switch {
	case late && len(v.Leaving) > 0:
		why = fmt.Sprintf("%s has not left its places %s after its grace", v.Leaving[0].Gang, g.set.ReserveTimeout)
	case late:
		why = fmt.Sprintf("%d of %d members were placed within %s; missing: %s", placed, want, g.set.ReserveTimeout, some(missing))
	case len(v.Leaving) > 0:
		return nil
	case len(s.Leavers) > 0 && !g.elapsed("room", v.Now, roomWithin):
		return nil // Nomad learns of the ends as we do
	case e == nil && !g.elapsed("eval", v.Now, evalAfter):
		return nil
	case e == nil:
		return g.refresh(v.Now)
	case !e.Ended():
		return nil
	case e.Status != "complete":
		why = fmt.Sprintf("Nomad's evaluation %s: %s", e.Status, e.Text)
	case len(e.Failed) > 0:
		why = fmt.Sprintf("Nomad placed %d of %d members: %s", placed, want, e.Why)
	case !g.elapsed("short", v.Now, evalAfter):
		return nil // the allocations' events are on their way
	case !v.Fresh && !g.elapsed("short-again", v.Now, evalAfter):
		return g.refresh(v.Now)
	default:
		why = fmt.Sprintf("Nomad's evaluation is complete, and it placed %d of %d members", placed, want)
	}
	stop := Stop{Reason: ReasonReservation, Text: why, Site: true, Member: -1}
	if s.Untried && !late {
		stop.Reason = ReasonUnplaced
	}
	return g.stop(v, *s, stop)
}

func nodeLost(v Seen, a *picture.Alloc) bool {
	n := v.Node(a.NodeID)
	return n != nil && (n.Status == "down" || n.Status == "disconnected")
}

func short(id string) string { return id[:min(8, len(id))] }

// some is the first few of a list, as text.
func some(list []string) string {
	out := ""
	for i, s := range list {
		if i == 3 {
			return fmt.Sprintf("%s and %d more", out, len(list)-i)
		}
		if i > 0 {
			out += ", "
		}
		out += s
	}
	return out
}
