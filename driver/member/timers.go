package member

import (
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// timers does what has become due.
func (m *Member) timers(now time.Time, todo *actions) {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch m.stage {
	case Held, Checking, Ready:
		if due(m.until) {
			m.end(now, cause{contract.OutcomeRefused, "the gang was not released in time: the cards go back", -1}, todo)
		}
	case Running, Leaving:
		m.graceTimer(now, todo)
		m.elasticTimer(now, todo)
		if due(m.killAt) {
			m.letGo(todo)
			m.clear(now, todo)
			return
		}
		m.afterRanks(now, todo)
	}
}

// Next is when Step is to be called again at the latest; zero: no time is set.
func (m *Member) Next() time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	switch m.stage {
	case Held, Checking, Ready:
		sooner(m.until)
	case Running, Leaving:
		sooner(m.killAt)
		if m.stage == Running {
			sooner(m.elastic.next())
		}
		if m.asked != nil && !m.termSent {
			sooner(m.graceEnd)
		}
		if !m.ranksGone.IsZero() && m.asked != nil {
			sooner(m.ranksGone.Add(m.setup.Timing.Linger))
		}
	}
	return next
}
