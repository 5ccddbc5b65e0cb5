package sched

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// What a server tells of an allocation it stops.
const (
	becauseNotNeeded   = "alloc not needed due to job update"
	becauseReconnected = "alloc not needed due to disconnected client reconnect"
	becauseMigrating   = "alloc is being migrated"
	becauseUpdating    = "alloc is being updated due to job update"
	becauseLost        = "alloc is lost since its node is down"
	becauseUnknown     = "alloc is unknown since its node is disconnected"
	becauseTainted     = "alloc not needed as node is tainted"
	becauseRescheduled = "alloc was rescheduled because it failed"
)

// reconciler compares what a job of type service or batch should have with what it has.
type reconciler struct {
	w        *world
	job      *wire.Job // nil: purged
	eval     *wire.Evaluation
	batch    bool
	allocs   []*wire.Allocation
	tainted  map[string]*wire.Node // nodes that are away or draining; nil for one that is gone
	current  *wire.Deployment      // of this version, not successful yet
	old      *wire.Deployment
	inPlace  func(a *wire.Allocation, g *wire.TaskGroup) (*wire.Allocation, bool) // false: must be started anew
	outcome  outcome
	complete bool
}

// outcome is what is to be done.
type outcome struct {
	place       []placement
	replace     []placement // stop one, place another: at once or not at all
	stop        []stopping
	inPlace     []*wire.Allocation
	attributes  []*wire.Allocation
	unknown     []*wire.Allocation
	reconnected []*wire.Allocation
	followups   []*wire.Evaluation
	desired     map[string]*wire.DesiredUpdates
	deployment  *wire.Deployment
	updates     []*wire.Deployment
	names       map[string]*names
}

type placement struct {
	group      *wire.TaskGroup
	name       string
	previous   *wire.Allocation
	reschedule bool
	canary     bool
	stop       *wire.Allocation // of a replacement
}

type stopping struct {
	alloc        *wire.Allocation
	clientStatus string
	because      string
	followup     string
}

func (r *reconciler) run() outcome {
	r.outcome.desired = map[string]*wire.DesiredUpdates{}
	r.outcome.names = map[string]*names{}
	groups := map[string][]*wire.Allocation{}
	var order []string
	if r.job != nil {
		for _, g := range r.job.TaskGroups {
			groups[g.Name] = nil
			order = append(order, g.Name)
		}
	}
	for _, a := range r.allocs {
		if _, ok := groups[a.TaskGroup]; !ok {
			order = append(order, a.TaskGroup)
		}
		groups[a.TaskGroup] = append(groups[a.TaskGroup], a)
	}
	r.sortDeployments()
	if r.job.Stopped() {
		for _, name := range order {
			var live []*wire.Allocation
			for _, a := range groups[name] {
				if !a.Terminal() {
					live = append(live, a)
				}
			}
			r.outcome.desired[name] = &wire.DesiredUpdates{}
			r.stopAll(name, live)
		}
		return r.outcome
	}
	r.complete = true
	for _, name := range order {
		r.group(name, groups[name])
	}
	if r.current != nil && r.outcome.deployment == nil && r.complete && r.current.Status != wire.DeploymentSuccessful {
		r.setDeployment(r.current, wire.DeploymentSuccessful, "Deployment completed successfully")
	}
	return r.outcome
}

func (r *reconciler) standing(a *wire.Allocation) standing {
	n, tainted := r.tainted[a.NodeID]
	return standingOf(a, n, tainted, r.w.now)
}

func (r *reconciler) stopAll(group string, list []*wire.Allocation) {
	for _, a := range list {
		switch r.standing(a) {
		case lost:
			r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, clientStatus: wire.ClientLost, because: becauseLost})
		case ignored, expiring:
			if a.ClientStatus == wire.ClientUnknown {
				r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseNotNeeded})
			}
		default:
			r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseNotNeeded})
		}
	}
	r.outcome.desired[group].Stop += uint64(len(list))
}

// due is an allocation that is to be looked at again at a time.
type due struct {
	alloc *wire.Allocation
	at    time.Time
}

func (r *reconciler) group(name string, all []*wire.Allocation) {
	d := &wire.DesiredUpdates{}
	r.outcome.desired[name] = d
	all = slices.DeleteFunc(slices.Clone(all), func(a *wire.Allocation) bool {
		return a.ServerTerminal() && (a.Job.Type != wire.TypeBatch || a.DesiredTransition.ShouldReschedule())
	})
	g := r.job.Group(name)
	if g == nil || g.Count == 0 {
		r.stopAll(name, all)
		return
	}
	if r.batch {
		// What ended under an older version does not count: any change of the job runs it again.
		all = slices.DeleteFunc(all, func(a *wire.Allocation) bool {
			older := a.Job.Version < r.job.Version || a.Job.CreateIndex < r.job.CreateIndex
			if older && a.Terminal() {
				d.Ignore++
				return true
			}
			return false
		})
	}
	canaries := r.canaries(&all, d)

	by := map[standing][]*wire.Allocation{}
	for _, a := range all {
		s := r.standing(a)
		by[s] = append(by[s], a)
	}
	d.Ignore += uint64(len(by[ignored]))

	now, later := []*wire.Allocation(nil), []due(nil)
	keep, n1, l1 := r.reschedulable(by[untainted], false)
	_, n2, l2 := r.reschedulable(by[migrating], false)
	now, later = append(n1, n2...), append(l1, l2...)
	migrate, gone := by[migrating], by[lost]

	if len(by[reconnecting]) > 0 {
		back, stopped := r.reconnect(by[reconnecting], all, g, d)
		keep, migrate, gone = without(keep, stopped), without(migrate, stopped), without(gone, stopped)
		by[disconnecting] = without(by[disconnecting], stopped)
		keep = append(keep, back...)
	}
	gone = append(gone, by[expiring]...)

	followup := map[string]string{}
	unknownNow := map[string]*wire.Allocation{}
	if away := by[disconnecting]; len(away) > 0 {
		k, n, l := r.reschedulable(away, true)
		keep, now, later = append(keep, k...), append(now, n...), append(later, l...)
		var timeouts []due
		for _, a := range away {
			timeouts = append(timeouts, due{a, r.w.now.Add(lostAfter(a))})
		}
		ids := r.laterEvals(timeouts, wire.TriggerMaxDisconnect, "created for delayed disconnect timeout")
		for _, a := range away {
			u := *a
			u.ClientStatus, u.ClientDescription, u.FollowupEvalID = wire.ClientUnknown, becauseUnknown, ids[a.ID]
			withState(&u, wire.ClientUnknown, r.w.now)
			unknownNow[u.ID] = &u
			r.outcome.unknown = append(r.outcome.unknown, &u)
		}
		for i, a := range now {
			if u := unknownNow[a.ID]; u != nil {
				now[i] = u
			}
		}
		d.Disconnect, d.RescheduleNow, d.RescheduleLater = uint64(len(away)), uint64(len(now)), uint64(len(later))
		for id, e := range ids {
			followup[id] = e
		}
	}

	var stopsItself []due
	for _, a := range gone {
		if at, ok := clientStopsAt(a, r.w.now); ok && at.After(r.w.now) {
			stopsItself = append(stopsItself, due{a, at})
		}
	}
	for id, e := range r.laterEvals(stopsItself, wire.TriggerRetryFailedAlloc, "created for delayed rescheduling") {
		followup[id] = e
	}
	if len(later) > 0 {
		ids := r.laterEvals(later, wire.TriggerReschedule, "created for delayed rescheduling")
		for _, l := range later {
			if u := unknownNow[l.alloc.ID]; u != nil {
				u.FollowupEvalID = ids[l.alloc.ID]
			} else {
				c := *l.alloc
				c.FollowupEvalID = ids[c.ID]
				r.outcome.attributes = append(r.outcome.attributes, &c)
			}
		}
		d.RescheduleLater = uint64(len(later))
	}

	idx := newNames(r.eval.JobID, g.Name, g.Count, keep, migrate, now, gone)
	r.outcome.names[name] = idx
	state, existing := r.deploymentState(g)
	canarying := state.DesiredCanaries != 0 && !state.Promoted

	keep, migrate = r.surplus(g, idx, keep, migrate, gone, canaries, canarying, followup, d)

	var inPlace, anew []*wire.Allocation
	for _, a := range keep {
		switch {
		case a.Job.JobModifyIndex == r.job.JobModifyIndex:
			d.Ignore++
		case destructive(r.job, a.Job, g.Name):
			anew = append(anew, a)
		case a.Terminal():
			d.Ignore++
		default:
			if u, ok := r.inPlace(a, g); ok {
				inPlace = append(inPlace, u)
			} else {
				anew = append(anew, a)
			}
		}
	}
	r.outcome.inPlace = append(r.outcome.inPlace, inPlace...)
	d.InPlaceUpdate += uint64(len(inPlace))
	if !existing {
		state.DesiredTotal += len(anew) + len(inPlace)
	}

	if canarying {
		keep = without(keep, canaries)
	}
	needCanaries := g.Update != nil && len(anew) != 0 && len(canaries) < g.Update.Canary && !state.Promoted
	if needCanaries {
		state.DesiredCanaries = g.Update.Canary
		if !r.deploymentStuck() {
			d.Canary += uint64(g.Update.Canary - len(canaries))
			for _, n := range idx.canaries(int(d.Canary), canaries, anew) {
				r.outcome.place = append(r.outcome.place, placement{group: g, name: n, canary: true})
			}
		}
	}
	canarying = state.DesiredCanaries != 0 && !state.Promoted

	room := r.room(g, keep, anew, migrate, canarying)
	var place []placement
	if len(stopsItself) == 0 {
		place = placements(g, idx, keep, migrate, now, gone)
		if !existing {
			state.DesiredTotal += len(place)
		}
	}
	ready := !r.deploymentStuck() && !canarying
	var placed []placement
	if ready {
		placed = place
		for _, a := range now {
			if unknownNow[a.ID] == nil && !slices.ContainsFunc(migrate, func(m *wire.Allocation) bool { return m.ID == a.ID }) && a.ClientStatus != wire.ClientUnknown {
				r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseRescheduled})
				d.Stop++
			}
		}
		room -= min(len(place), room)
	} else {
		placed = append(placed, place[:min(len(gone), len(place))]...)
		for _, p := range place {
			failedDeployment := r.current != nil && r.current.Status == wire.DeploymentFailed && p.previous != nil && p.previous.DeploymentID == r.current.ID
			if len(now) > 0 && p.reschedule && !failedDeployment {
				placed = append(placed, p)
				if unknownNow[p.previous.ID] == nil {
					r.outcome.stop = append(r.outcome.stop, stopping{alloc: p.previous, because: becauseRescheduled})
					d.Stop++
				}
			}
		}
	}
	d.Place += uint64(len(placed))
	r.outcome.place = append(r.outcome.place, placed...)

	if ready {
		slices.SortFunc(anew, byName)
		n := min(len(anew), room)
		d.DestructiveUpdate += uint64(n)
		d.Ignore += uint64(len(anew) - n)
		for _, a := range anew[:n] {
			r.outcome.replace = append(r.outcome.replace, placement{group: g, name: a.Name, previous: a, stop: a})
		}
	} else {
		d.Ignore += uint64(len(anew))
	}

	d.Migrate += uint64(len(migrate))
	slices.SortFunc(migrate, byName)
	moved := 0
	for _, a := range migrate {
		r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseMigrating})
		if a.Job.Type == wire.TypeBatch && (a.DesiredTransition.ShouldReschedule() || a.DesiredTransition.ShouldNotPlace()) {
			continue
		}
		moved++
		r.outcome.place = append(r.outcome.place, placement{group: g, name: a.Name, previous: a, canary: canary(a)})
	}
	r.createDeployment(g, existing, state, all, anew, int(d.InPlaceUpdate))
	done := len(anew)+len(inPlace)+len(placed)+len(migrate)+len(now)+len(later)+moved == 0 && !needCanaries
	if !done || r.current == nil {
		r.complete = false
	} else if s := r.current.TaskGroups[name]; s != nil {
		if s.HealthyAllocs < max(s.DesiredTotal, s.DesiredCanaries) || s.DesiredCanaries > 0 && !s.Promoted {
			r.complete = false
		}
	}
}

func byName(a, b *wire.Allocation) int {
	return cmp.Or(cmp.Compare(indexOf(a.Name), indexOf(b.Name)), cmp.Compare(a.ID, b.ID))
}

func without(list, drop []*wire.Allocation) []*wire.Allocation {
	ids := map[string]bool{}
	for _, a := range drop {
		ids[a.ID] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(a *wire.Allocation) bool { return ids[a.ID] })
}

// surplus stops what is lost and what is beyond the group's count, the highest indexes first.
func (r *reconciler) surplus(g *wire.TaskGroup, idx *names, keep, migrate, gone, canaries []*wire.Allocation, canarying bool,
	followup map[string]string, d *wire.DesiredUpdates) (kept, migrating []*wire.Allocation) {
	for _, a := range gone {
		r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, clientStatus: wire.ClientLost, because: becauseLost, followup: followup[a.ID]})
	}
	d.Stop += uint64(len(gone))
	working := keep
	if canarying {
		working = without(keep, canaries)
	}
	known := 0
	for _, a := range working {
		if a.ClientStatus != wire.ClientUnknown {
			known++
		}
	}
	remove := known + len(migrate) - g.Count
	if remove <= 0 {
		return keep, migrate
	}
	working = slices.DeleteFunc(slices.Clone(working), (*wire.Allocation).ServerTerminal)
	var stopped []*wire.Allocation
	stop := func(a *wire.Allocation) {
		stopped = append(stopped, a)
		r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseNotNeeded})
		d.Stop++
		remove--
	}
	take := func(from []*wire.Allocation, ok func(*wire.Allocation) bool) []*wire.Allocation {
		return slices.DeleteFunc(slices.Clone(from), func(a *wire.Allocation) bool {
			if remove > 0 && ok(a) {
				stop(a)
				return true
			}
			return false
		})
	}
	if !canarying && len(canaries) > 0 {
		named := map[string]bool{}
		for _, c := range canaries {
			named[c.Name] = true
		}
		isCanary := map[string]bool{}
		for _, c := range canaries {
			isCanary[c.ID] = true
		}
		working = take(working, func(a *wire.Allocation) bool { return named[a.Name] && !isCanary[a.ID] })
	}
	if remove > 0 && len(migrate) > 0 {
		highest := newNames(r.eval.JobID, g.Name, g.Count, migrate).highest(remove)
		migrate = take(migrate, func(a *wire.Allocation) bool {
			if highest[a.Name] {
				idx.free(indexOf(a.Name))
			}
			return highest[a.Name]
		})
	}
	if remove > 0 {
		highest := idx.highest(remove)
		working = take(working, func(a *wire.Allocation) bool { return highest[a.Name] })
	}
	take(working, func(*wire.Allocation) bool { return true })
	return without(keep, stopped), migrate
}

// placements fill the group up: replacements of failed and lost ones first, then free indexes.
func placements(g *wire.TaskGroup, idx *names, keep, migrate, now, gone []*wire.Allocation) []placement {
	var out []placement
	for _, a := range now {
		out = append(out, placement{group: g, name: a.Name, previous: a, reschedule: true, canary: canary(a)})
	}
	have := len(keep) + len(migrate) + len(now)
	for _, a := range gone {
		if have >= g.Count {
			break
		}
		have++
		out = append(out, placement{group: g, name: a.Name, previous: a, canary: canary(a)})
	}
	if have < g.Count {
		for _, n := range idx.next(g.Count - have) {
			out = append(out, placement{group: g, name: n})
		}
	}
	return out
}
