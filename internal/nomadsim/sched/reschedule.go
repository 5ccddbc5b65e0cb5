package sched

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// reschedulable sorts allocations into those that stay as they are, those to replace now, and those to replace later.
// One that has a replacement, or is over for good, is in none of them.
func (r *reconciler) reschedulable(list []*wire.Allocation, away bool) (keep, now []*wire.Allocation, later []due) {
	for _, a := range list {
		if away && a.ClientStatus == wire.ClientUnknown || a.NextAllocation != "" && a.Terminal() {
			continue
		}
		stays, over := r.settled(a)
		if stays && !away {
			keep = append(keep, a)
			continue
		}
		if over {
			continue
		}
		isNow, isLater, at := r.whenReplaced(a, away)
		if isNow {
			now = append(now, a)
			continue
		}
		keep = append(keep, a)
		if isLater {
			later = append(later, due{a, at})
		}
	}
	return keep, now, later
}

func (r *reconciler) settled(a *wire.Allocation) (stays, over bool) {
	if !r.batch {
		if a.ServerTerminal() {
			return false, !lastRescheduleFailed(a)
		}
		return false, a.ClientStatus == wire.ClientComplete || a.ClientStatus == wire.ClientLost
	}
	switch {
	case a.DesiredTransition.ShouldNotPlace():
		return true, false
	case a.DesiredTransition.ShouldReschedule():
		return false, false
	case a.DesiredStatus == wire.DesiredStop:
		if a.RanSuccessfully() {
			return true, false
		}
		return false, !lastRescheduleFailed(a)
	case a.DesiredStatus == wire.DesiredEvict:
		return false, true
	}
	return a.ClientStatus != wire.ClientFailed, false
}

func (r *reconciler) whenReplaced(a *wire.Allocation, away bool) (now, later bool, at time.Time) {
	if r.current.Active() && a.DeploymentID == r.current.ID && !a.DesiredTransition.ShouldReschedule() {
		return false, false, at
	}
	if a.DesiredTransition.ShouldForceReschedule() && a.ClientTerminal() {
		now = true
	}
	if away && !replaceOnDisconnect(a) {
		return now, false, at
	}
	var ok bool
	switch {
	case away:
		at, ok = nextAttempt(a, r.w.now)
	case a.ClientStatus == wire.ClientUnknown && a.FollowupEvalID == r.eval.ID:
		at, ok = nextAttempt(a, lastUnknown(a))
	default:
		at, ok = nextAttemptOfFailed(a)
	}
	if ok && (a.FollowupEvalID == r.eval.ID || at.Sub(r.w.now) <= rescheduleWindow) {
		return true, false, at
	}
	return now, ok && a.FollowupEvalID == "", at
}

// laterEvals makes evaluations for when allocations are due, and tells which is whose.
func (r *reconciler) laterEvals(list []due, trigger, description string) map[string]string {
	ids := map[string]string{}
	slices.SortStableFunc(list, func(a, b due) int { return a.at.Compare(b.at) })
	var cur *wire.Evaluation
	for _, l := range list {
		if cur == nil || l.at.Sub(cur.WaitUntil.Time) >= followupBatch {
			cur = &wire.Evaluation{ID: r.w.newID(), Namespace: r.job.Namespace, Priority: r.eval.Priority, Type: r.job.Type, TriggeredBy: trigger,
				JobID: r.job.ID, JobModifyIndex: r.job.ModifyIndex, Status: wire.EvalPending, StatusDescription: description,
				WaitUntil: wire.Time{Time: l.at}, PreviousEval: r.eval.ID}
			r.outcome.followups = append(r.outcome.followups, cur)
		}
		ids[l.alloc.ID] = cur.ID
	}
	return ids
}

// reconnect decides between allocations that are back and what took their place.
func (r *reconciler) reconnect(back, all []*wire.Allocation, g *wire.TaskGroup, d *wire.DesiredUpdates) (keep, stopped []*wire.Allocation) {
	stops := map[string]bool{}
	stop := func(a *wire.Allocation, status, because string) {
		if !stops[a.ID] {
			stops[a.ID] = true
			stopped = append(stopped, a)
			r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, clientStatus: status, because: because})
			d.Stop++
		}
	}
	byID := map[string]*wire.Allocation{}
	for _, a := range all {
		byID[a.ID] = a
	}
	for _, a := range back {
		t := a.DesiredTransition
		switch {
		case !a.ServerTerminal() && a.ClientStatus == wire.ClientFailed:
			stop(a, wire.ClientFailed, becauseRescheduled)
			continue
		case a.DesiredStatus != wire.DesiredRun || t.ShouldMigrate() || t.ShouldReschedule() || t.ShouldForceReschedule() ||
			a.Job.Version < r.job.Version || a.Job.CreateIndex < r.job.CreateIndex:
			stop(a, "", becauseNotNeeded)
			continue
		}
		for next := byID[a.NextAllocation]; next != nil; next = byID[next.NextAllocation] {
			if next.ServerTerminal() {
				continue
			}
			if pickReplacement(g.Disconnect, a, next) {
				stop(a, "", becauseNotNeeded)
			} else {
				stop(next, "", becauseReconnected)
			}
		}
	}
	for _, a := range back {
		if stops[a.ID] {
			continue
		}
		keep = append(keep, a)
		if a.ClientStatus == wire.ClientRunning {
			u := *a
			withState(&u, a.ClientStatus, r.w.now)
			r.outcome.reconnected = append(r.outcome.reconnected, &u)
			d.Reconnect++
		}
	}
	return keep, stopped
}

func pickReplacement(ds *wire.DisconnectStrategy, original, replacement *wire.Allocation) bool {
	if replacement.Job.Version > original.Job.Version || replacement.Job.CreateIndex > original.Job.CreateIndex {
		return true
	}
	strategy := ""
	if ds != nil {
		strategy = ds.Reconcile
	}
	switch strategy {
	case "keep_original":
		return false
	case "keep_replacement":
		return true
	case "longest_running":
		a, b := oldestStart(original), oldestStart(replacement)
		if a.IsZero() != b.IsZero() {
			return a.IsZero()
		}
		if !a.IsZero() {
			return !a.Before(b)
		}
	}
	score := func(a *wire.Allocation) float64 {
		if a.Metrics == nil || len(a.Metrics.ScoreMetaData) == 0 {
			return -1e9
		}
		return a.Metrics.ScoreMetaData[0].NormScore
	}
	return score(replacement) > score(original) && (replacement.ClientStatus == wire.ClientRunning || original.ClientStatus != wire.ClientRunning)
}

func oldestStart(a *wire.Allocation) time.Time {
	var first time.Time
	for _, s := range a.TaskStates {
		if t := s.StartedAt.Time; !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
