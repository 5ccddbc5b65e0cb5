package member

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/internal/contract"
)

// C15, on one member: what the order of ask and exit makes of an exit with 0.
func TestAskedAndExitZero(t *testing.T) {
	ask := func(l *life) { l.step(Asked{contract.Ask{Kind: "preempt", Grace: time.Minute}}) }
	alone := func(l *life) { l.index, l.host = 1, 0 }
	t.Run("a: saves for 8 s and exits 0", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.forget()
		ask(l)
		l.did("ask")
		l.wait(8 * time.Second)
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		x := l.over(contract.OutcomeYielded, contract.CodeAsked)
		must.True(t, x.Asked)
	})
	t.Run("a: and says that it saved", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.step(Marked{0, progress.Mark{Kind: progress.End, Step: 7}}) // before the ask: does not count
		ask(l)
		l.wait(time.Second)
		l.step(Marked{0, progress.Mark{Kind: progress.Begin, Step: 9}})
		l.wait(time.Second)
		l.step(Marked{0, progress.Mark{Kind: progress.End, Step: 9}})
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		must.StrContains(t, l.over(contract.OutcomeCheckpointed, contract.CodeAsked).Text, "step 9")
	})
	t.Run("b: had ended before", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		l.now = l.now.Add(time.Millisecond)
		ask(l)
		must.False(t, l.over(contract.OutcomeComplete, 0).Asked)
	})
	t.Run("one rank before, one after", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.rankEnds(0, 0, 0)
		l.now = l.now.Add(time.Millisecond)
		ask(l)
		l.now = l.now.Add(time.Millisecond)
		l.rankEnds(1, 0, 0)
		l.over(contract.OutcomeYielded, contract.CodeAsked)
	})
	t.Run("had failed before", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.rankEnds(0, 3, 0)
		l.now = l.now.Add(time.Millisecond)
		ask(l)
		l.rankEnds(1, 0, 15)
		must.False(t, l.over(contract.OutcomeFailed, 3).Asked)
	})
	t.Run("c: killed at the end of the grace", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		l.forget()
		ask(l)
		l.wait(59 * time.Second)
		l.did("ask")
		l.wait(2 * time.Second)
		l.did("signal SIGTERM")
		l.wait(10 * time.Second)
		l.did("clear")
		l.over(contract.OutcomeKilled, contract.CodeAsked)
	})
	t.Run("the script says complete", func(t *testing.T) {
		l := newLife(t, alone)
		l.running()
		ask(l)
		l.step(Marked{0, progress.Mark{Kind: progress.Complete}})
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		l.over(contract.OutcomeComplete, 0)
	})
}

// C17: nothing is killed before the kill timeout, and the launcher cannot do it
// either: it does not learn that a rank failed.
func TestGraceIsTheRanks(t *testing.T) {
	l := newLife(t, func(l *life) { l.index = 1 })
	l.running()
	l.forget()
	l.step(Stopped{Grace: 120 * time.Second})
	l.did("ask SIGTERM")
	l.wait(5 * time.Second)
	l.step(Stopped{Grace: 120 * time.Second}) // a second call changes nothing
	l.did()
	l.rankEnds(0, 1, 0)
	must.False(t, l.codes[0])
	l.wait(45 * time.Second)
	must.Eq(t, Leaving, l.m.Stage())
	l.rankEnds(1, 0, 0)
	x := l.over(contract.OutcomeYielded, contract.CodeAsked)
	must.Eq(t, 1, x.Code)
	must.Eq(t, 50*time.Second, l.now.Sub(epoch))
}

func TestGraceIsExtendedWhileSaving(t *testing.T) {
	l := newLife(t, func(l *life) { l.index = 1 })
	l.running()
	l.step(Asked{contract.Ask{Kind: "preempt", Grace: time.Minute}})
	l.wait(50 * time.Second)
	l.step(Marked{0, progress.Mark{Kind: progress.Begin, Step: 1}})
	l.forget()
	l.wait(2*time.Minute + 9*time.Second)
	l.did("publish training", "publish training")
	must.Eq(t, l.now.Add(time.Second), l.reports[len(l.reports)-1].LeaveBy, must.Sprint("the planner is told until when"))
	l.forget()
	l.wait(2 * time.Second) // twice, no more
	l.did("signal SIGTERM")
}

// An ask that is taken back leaves a member running whose ranks have not left;
// what they do within the old grace is still the ask's.
func TestAskIsTakenBack(t *testing.T) {
	ask := Asked{contract.Ask{Kind: contract.AskPreempt, Grace: time.Minute}}
	back := Asked{contract.Ask{Kind: contract.AskWithdrawn, Grace: time.Minute}}
	begin := func(t *testing.T) *life {
		l := newLife(t, func(l *life) { l.index, l.host = 1, 0 })
		l.running()
		l.forget()
		l.step(ask)
		l.wait(10 * time.Second)
		return l
	}
	t.Run("nobody has left", func(t *testing.T) {
		l := begin(t)
		l.step(back)
		l.did("ask", "unask")
		l.wait(time.Hour)
		must.Eq(t, Running, l.m.Stage())
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		l.launcherEnds(0, 0)
		l.over(contract.OutcomeComplete, 0)
	})
	t.Run("they leave all the same", func(t *testing.T) {
		l := begin(t)
		l.step(back)
		l.wait(5 * time.Second)
		l.rankEnds(0, 0, 0)
		l.rankEnds(1, 0, 0)
		l.launcherEnds(0, 0)
		must.True(t, l.over(contract.OutcomeYielded, contract.CodeAsked).Asked)
	})
	t.Run("one had left", func(t *testing.T) {
		l := begin(t)
		l.rankEnds(0, 0, 0)
		l.step(back)
		must.Eq(t, Leaving, l.m.Stage())
		l.rankEnds(1, 0, 0)
		l.over(contract.OutcomeYielded, contract.CodeAsked)
	})
	t.Run("and asked again", func(t *testing.T) {
		l := begin(t)
		l.step(back)
		l.wait(time.Hour)
		l.step(ask)
		l.wait(time.Minute)
		l.did("ask", "unask", "ask", "signal SIGTERM")
	})
}

func TestScriptThatMayBeStopped(t *testing.T) {
	l := newLife(t, func(l *life) { l.index = 1 })
	l.running()
	l.step(Marked{0, progress.Mark{Kind: progress.MayStop}}) // before the ask it means nothing
	l.step(Asked{contract.Ask{Kind: "preempt", Grace: time.Hour}})
	l.forget()
	l.now = l.now.Add(time.Second)
	l.step(Marked{0, progress.Mark{Kind: progress.End, Step: 5}})
	l.step(Marked{0, progress.Mark{Kind: progress.MayStop}})
	l.did("publish training", "signal SIGTERM")
	l.rankEnds(0, 0, 15)
	l.rankEnds(1, 0, 15)
	l.over(contract.OutcomeCheckpointed, contract.CodeAsked)
}

func TestDestroyKills(t *testing.T) {
	l := newLife(t)
	l.running()
	l.step(Stopped{Now: true})
	l.rankEnds(0, 0, 9)
	l.rankEnds(1, 0, 9)
	x := l.over(contract.OutcomeKilled, contract.CodeAsked)
	must.Eq(t, -1, x.Rank)
}

func TestStopBeforeReleaseEndsAtOnce(t *testing.T) {
	l := newLife(t)
	l.ready()
	l.step(Stopped{Grace: time.Hour})
	l.over(contract.OutcomeRefused, contract.CodeRefused)
}

func TestStopWhileMeetingEndsAtOnce(t *testing.T) {
	l := newLife(t)
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	l.step(Stopped{Grace: time.Hour})
	l.over(contract.OutcomeKilled, contract.CodeAsked)
}

// The store's host stays while others that were asked may need it.
func TestHostLeavesLast(t *testing.T) {
	l := newLife(t)
	l.running()
	peer := contract.Report{Alloc: "a1", Task: "t", Attempt: 1, State: contract.StateTraining}
	l.seen.Reports = map[string]contract.Report{"a1.t": peer}
	l.step(Saw{l.seen})
	l.step(Asked{contract.Ask{Kind: "preempt", Grace: time.Minute}})
	l.now = l.now.Add(time.Second)
	l.rankEnds(0, 1, 0)
	l.rankEnds(1, 1, 0)
	must.Eq(t, Leaving, l.m.Stage())
	must.MapEmpty(t, l.codes)
	l.wait(30 * time.Second)
	must.Eq(t, Leaving, l.m.Stage())
	peer.State, peer.Exit = contract.StateEnded, &contract.Exit{Outcome: contract.OutcomeYielded}
	l.seen.Reports = map[string]contract.Report{"a1.t": peer}
	l.step(Saw{l.seen})
	l.over(contract.OutcomeYielded, contract.CodeAsked)
}

// Ranks that end with 0 because the attempt ended have not completed; those that
// had ended before it did have.
func TestExitZeroWhenTheAttemptEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		before  func(*life)
		outcome contract.Outcome
		code    int
	}{
		"by the signal":                        {func(*life) {}, contract.OutcomeKilled, contract.CodeAsked},
		"by the stop that came just before it": {func(l *life) { l.step(Stopped{Grace: time.Minute}); l.now = l.now.Add(time.Second) }, contract.OutcomeYielded, contract.CodeAsked},
		"by themselves, before":                {func(l *life) { l.rankEnds(0, 0, 0); l.rankEnds(1, 0, 0); l.now = l.now.Add(time.Second) }, contract.OutcomeComplete, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.running()
			tc.before(l)
			l.see(l.record(1, contract.PhaseEnded))
			l.now = l.now.Add(time.Second)
			if tc.outcome != contract.OutcomeComplete {
				l.rankEnds(0, 0, 0)
				l.rankEnds(1, 0, 0)
			}
			l.launcherEnds(0, 0)
			l.wait(6 * time.Second)
			l.over(tc.outcome, tc.code)
		})
	}
}

// C17: a stop of Nomad's that is shorter than the job's grace says so, and where
// that is changed.
func TestStopBelowTheGrace(t *testing.T) {
	for gives, short := range map[time.Duration]bool{30 * time.Second: true, 10 * time.Minute: false, time.Hour: false} {
		l := newLife(t, func(l *life) { l.setup.Grace = 10 * time.Minute })
		l.running()
		l.step(Stopped{Grace: gives})
		var told []string
		for _, a := range l.last {
			if a, ok := a.(Tell); ok {
				told = append(told, a.Text)
			}
		}
		must.Len(t, 1, told)
		must.StrContains(t, told[0], "stopped by Nomad: "+gives.String())
		must.Eq(t, short, strings.Contains(told[0], "gives 30s here, and muster_grace asks for 10m0s: raise max_kill_timeout"), must.Sprint(told[0]))
	}
}
