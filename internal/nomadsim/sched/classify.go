package sched

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// standing is where an allocation stands when its job is looked at.
type standing int

const (
	untainted     standing = iota // counts towards what the job has
	migrating                     // is to leave its node
	lost                          // its node is gone
	disconnecting                 // its client has just gone away and may come back
	reconnecting                  // its client is back
	ignored                       // over and done with
	expiring                      // its client was away too long
)

// standingOf judges one allocation. node is its node if that is tainted (away, draining, or no longer known: nil).
func standingOf(a *wire.Allocation, node *wire.Node, tainted bool, now time.Time) standing {
	back := needsReconnect(a)
	if back && a.DesiredStatus == wire.DesiredRun && a.ClientStatus == wire.ClientFailed {
		return reconnecting
	}
	if !back && a.Terminal() {
		switch {
		case a.ServerTerminal() && a.DesiredTransition.ShouldNotPlace():
			return untainted
		case a.ServerTerminal():
			return ignored
		case canary(a) && a.DesiredTransition.ShouldMigrate():
			return migrating
		}
		return untainted
	}
	if expired(a, now) {
		return expiring
	}
	if back && a.ClientStatus == wire.ClientFailed && a.DesiredStatus == wire.DesiredStop {
		return ignored
	}
	if node != nil && node.Status == wire.NodeDisconnected {
		switch {
		case a.ClientStatus == wire.ClientUnknown:
			return untainted
		case a.ClientStatus == wire.ClientPending || lostAfter(a) == 0:
			return lost
		}
		return disconnecting
	}
	if a.DesiredTransition.ShouldMigrate() {
		return migrating
	}
	switch {
	case !tainted || node != nil && node.Status == wire.NodeReady:
		if back {
			return reconnecting
		}
		return untainted
	case node == nil:
		return lost
	case node.Terminal():
		if !replaceOnDisconnect(a) {
			switch a.ClientStatus {
			case wire.ClientUnknown:
				return untainted
			case wire.ClientRunning:
				return disconnecting
			}
		}
		return lost
	}
	return untainted
}

// needsReconnect says whether the last the server said of the allocation is that it is unknown, while its client may
// have said more since.
func needsReconnect(a *wire.Allocation) bool {
	switch a.ClientStatus {
	case wire.ClientUnknown, wire.ClientRunning, wire.ClientFailed:
	default:
		return false
	}
	for _, s := range slices.Backward(a.AllocStates) {
		if s.Field == clientStatusField && s.Value != "" {
			return s.Value == wire.ClientUnknown
		}
	}
	return false
}

const clientStatusField = 0

func canary(a *wire.Allocation) bool { return a.DeploymentStatus != nil && a.DeploymentStatus.Canary }

func lostAfter(a *wire.Allocation) time.Duration {
	if g := a.Group(); g != nil {
		return g.LostAfter()
	}
	return 0
}

func replaceOnDisconnect(a *wire.Allocation) bool {
	g := a.Group()
	return g == nil || g.ReplaceOnDisconnect()
}

// lastUnknown is when the allocation became unknown.
func lastUnknown(a *wire.Allocation) time.Time {
	var at time.Time
	for _, s := range slices.Backward(a.AllocStates) {
		if s.Field != clientStatusField {
			continue
		}
		if s.Value == wire.ClientUnknown {
			at = s.Time.Time
		} else if !at.IsZero() {
			break
		}
	}
	return at
}

func expired(a *wire.Allocation, now time.Time) bool {
	if a.ClientStatus != wire.ClientUnknown {
		return false
	}
	at := lastUnknown(a)
	return !at.IsZero() && a.Group() != nil && !at.Add(lostAfter(a)).After(now)
}

func withState(a *wire.Allocation, status string, now time.Time) {
	a.AllocStates = append(slices.Clone(a.AllocStates), &wire.AllocState{Field: clientStatusField, Value: status, Time: wire.Time{Time: now}})
}

// stopAfterClientDisconnect is when a lost allocation's client will have stopped it by itself, if it does so.
func clientStopsAt(a *wire.Allocation, now time.Time) (time.Time, bool) {
	g := a.Group()
	if g == nil {
		return now, false
	}
	after := g.StopAfterClientDisconnect
	if after == nil && g.Disconnect != nil {
		after = g.Disconnect.StopOnClientAfter
	}
	if after == nil || *after == 0 {
		return now, false
	}
	start := now
	for _, s := range a.AllocStates {
		if s.Field == clientStatusField && s.Value == wire.ClientLost {
			start = s.Time.Time
			break
		}
	}
	kill := 5 * time.Second
	for _, t := range g.Tasks {
		kill = max(kill, t.KillTimeout)
	}
	return start.Add(*after + kill), true
}

// Rescheduling of failed allocations.

const (
	rescheduleWindow = time.Second     // what is due this soon is due now
	followupBatch    = 5 * time.Second // follow-ups this close share an evaluation
	pastAttemptsKept = 5

	lastFailedToPlace = "no placement"
	lastSuccess       = "ok"
)

func policyOf(a *wire.Allocation) *wire.ReschedulePolicy {
	if g := a.Group(); g != nil {
		return g.ReschedulePolicy
	}
	return nil
}

func lastEventTime(a *wire.Allocation) time.Time {
	var last time.Time
	for _, s := range a.TaskStates {
		if s.FinishedAt.After(last) {
			last = s.FinishedAt.Time
		}
	}
	if last.IsZero() {
		return time.Unix(0, a.ModifyTime)
	}
	return last
}

func lastRescheduleFailed(a *wire.Allocation) bool {
	return a.RescheduleTracker != nil && a.RescheduleTracker.LastReschedule == lastFailedToPlace
}

// nextDelay is the wait before the next attempt: constant, doubling, or the sum of the last two.
func nextDelay(a *wire.Allocation) time.Duration {
	p := policyOf(a)
	if p == nil {
		return 0
	}
	if a.RescheduleTracker == nil || len(a.RescheduleTracker.Events) == 0 {
		return p.Delay
	}
	ev := a.RescheduleTracker.Events
	last := ev[len(ev)-1]
	d := p.Delay
	switch p.DelayFunction {
	case "exponential":
		d = 2 * last.Delay
	case "fibonacci":
		if len(ev) >= 2 {
			before := ev[len(ev)-2]
			d = last.Delay + before.Delay
			if before.Delay == p.MaxDelay && last.Delay == p.Delay {
				d = last.Delay
			}
		}
	default:
		return d
	}
	if p.MaxDelay > 0 && d > p.MaxDelay {
		d = p.MaxDelay
		if lastEventTime(a).UnixNano()-last.RescheduleTime > int64(d) {
			d = p.Delay
		}
	}
	return d
}

// nextAttempt is when an allocation that failed at the given time may be replaced, and whether it may.
func nextAttempt(a *wire.Allocation, failed time.Time) (time.Time, bool) {
	p := policyOf(a)
	if p == nil {
		return time.Time{}, false
	}
	delay := nextDelay(a)
	ok := p.Unlimited || p.Attempts > 0 && a.RescheduleTracker == nil
	if p.Attempts > 0 && a.RescheduleTracker != nil && a.RescheduleTracker.Events != nil {
		tried := 0
		for _, e := range a.RescheduleTracker.Events {
			if failed.UnixNano()-e.RescheduleTime < int64(p.Interval) {
				tried++
			}
		}
		ok = tried < p.Attempts && delay < p.Interval
	}
	return failed.Add(delay), ok
}

func nextAttemptOfFailed(a *wire.Allocation) (time.Time, bool) {
	p := policyOf(a)
	if !p.Enabled() {
		return time.Time{}, false
	}
	batchAsked := a.Job.Type == wire.TypeBatch && a.DesiredTransition.ShouldReschedule()
	if a.DesiredStatus == wire.DesiredStop && !lastRescheduleFailed(a) ||
		!batchAsked && a.ClientStatus != wire.ClientFailed && a.ClientStatus != wire.ClientLost {
		return time.Time{}, false
	}
	return nextAttempt(a, lastEventTime(a))
}

// tracked is the tracker of a replacement: the attempts that still count, and this one.
func tracked(prev *wire.Allocation, now time.Time) *wire.RescheduleTracker {
	t := &wire.RescheduleTracker{LastReschedule: lastSuccess}
	p := policyOf(prev)
	if prev.RescheduleTracker != nil {
		old := prev.RescheduleTracker.Events
		if p != nil && p.Attempts > 0 {
			for _, e := range old {
				if p.Interval > 0 && now.UnixNano()-e.RescheduleTime <= int64(p.Interval) {
					t.Events = append(t.Events, e)
				}
			}
		} else {
			t.Events = append(t.Events, old[max(0, len(old)-pastAttemptsKept):]...)
		}
	}
	t.Events = append(t.Events, &wire.RescheduleEvent{RescheduleTime: now.UnixNano(), PrevAllocID: prev.ID, PrevNodeID: prev.NodeID, Delay: nextDelay(prev)})
	return t
}
