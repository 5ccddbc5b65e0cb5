package member

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/contract"
)

var epoch = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

var gang = contract.GangID{Region: "global", Namespace: "default", Job: "g"}

// life plays one member: member 0 of 2, host of the store, two ranks, unless
// changed before the first event.
type life struct {
	reports []contract.Report
	t       *testing.T
	m       *Member
	setup   Setup
	now     time.Time
	log     []string // actions, in words
	last    []Action
	index   int
	host    int
	ranks   int
	seen    rendezvous.Sight
	exit    *contract.Exit
	codes   map[int]bool // ranks whose end the launcher knows
}

func newLife(t *testing.T, change ...func(*life)) *life {
	l := &life{t: t, now: epoch, ranks: 2, codes: map[int]bool{}}
	l.setup = Setup{Self: rendezvous.Self{Gang: gang, Alloc: "a0", Task: "t", Start: 1}, Config: contract.TaskConfig{Launcher: contract.LauncherTorchrun, AskSignal: "SIGUSR1"},
		HoldUntil: epoch.Add(time.Hour), PeersVisible: true, Timing: DefaultTiming}
	for _, c := range change {
		c(l)
	}
	l.setup.Self.Alloc = fmt.Sprintf("a%d", l.index)
	l.m = New(l.setup)
	return l
}

func (l *life) record(attempt int, phase contract.Phase) *contract.Record {
	r := &contract.Record{V: 1, Gang: gang, Attempt: attempt, Phase: phase}
	for i := range 2 {
		r.Members = append(r.Members, contract.Member{Index: i, Alloc: fmt.Sprintf("a%d", i), Task: "t", Start: 1, Node: fmt.Sprintf("n%d", i+1), Address: "192.0.2.1", Ranks: l.ranks})
	}
	r.Worlds = []contract.World{{Name: "rank", Members: []int{0, 1}, Host: "192.0.2.1", Port: 20100, HostMember: l.host}}
	return r
}

func (l *life) step(e Event) []Action {
	l.t.Helper()
	l.last = l.m.Step(l.now, e)
	for _, a := range l.last {
		switch a := a.(type) {
		case Publish:
			l.log = append(l.log, "publish "+string(a.Report.State))
			l.reports = append(l.reports, a.Report)
		case Launch:
			l.log = append(l.log, fmt.Sprintf("launch %d", a.Number))
			planned := torchrun.Launch{Address: "192.0.2.1", Port: 20100, Nodes: 2, Ranks: make([]torchrun.Rank, l.ranks)}
			if a.Endpoint != nil {
				planned.Port = a.Endpoint.Port
			}
			l.m.Step(l.now, Planned{planned})
		case Signal:
			l.log = append(l.log, "signal "+a.Signal)
		case Ask:
			l.log = append(l.log, strings.TrimSpace("ask "+a.Stop))
		case Unask:
			l.log = append(l.log, "unask")
		case LetGo:
			l.codes[a.Rank] = true
		case Clear:
			l.log = append(l.log, "clear")
		case MarkReleased:
			l.log = append(l.log, "marker")
		case MoveStore:
			l.log = append(l.log, fmt.Sprintf("move %d", a.Move))
		case AskPeer:
			l.log = append(l.log, fmt.Sprintf("ask peer %d", a.Peer.Index))
		case Preflight:
			l.log = append(l.log, "preflight")
		case Evidence:
			l.log = append(l.log, "evidence")
		case Finish:
			l.exit = &a.Exit
		}
	}
	return l.last
}

// wait lets time pass, with a tick at each moment the member wants one.
func (l *life) wait(d time.Duration) {
	end := l.now.Add(d)
	for next := l.m.Next(); !next.IsZero() && !next.After(end); next = l.m.Next() {
		if next.After(l.now) {
			l.now = next
		}
		before := len(l.log)
		l.step(Tick{})
		if l.m.Next().Equal(next) && len(l.log) == before && !next.After(l.now) {
			break
		}
	}
	l.now = end
	l.step(Tick{})
}

func (l *life) see(r *contract.Record) { l.seen.Record = r; l.step(Saw{l.seen}) }

func (l *life) ready() {
	l.see(l.record(1, contract.PhasePlaced))
	l.step(Checked{Attempt: 1, Report: contract.Report{Address: "192.0.2.1", Port: 20100, Ranks: l.ranks}})
}

func (l *life) running() {
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	for i := range l.ranks {
		l.step(RankStarted{Launch: 1, Rank: i, PID: 100 + i})
	}
}

func (l *life) rankEnds(rank, code, signal int) {
	l.step(RankEnded{Launch: l.m.launch, Rank: rank, Code: code, Signal: signal, At: l.now})
}

func (l *life) launcherEnds(code, signal int) {
	l.step(LauncherEnded{Launch: l.m.launch, Code: code, Signal: signal, At: l.now})
}

func (l *life) did(want ...string) {
	l.t.Helper()
	must.Eq(l.t, want, l.log)
	l.log = nil
}

func (l *life) forget() { l.log = nil }

// over tells that nothing is left and checks how the member ended.
func (l *life) over(want contract.Outcome, code int) contract.Exit {
	l.t.Helper()
	must.Eq(l.t, Clearing, l.m.Stage(), must.Sprint("log: ", l.log))
	l.step(Cleared{})
	must.NotNil(l.t, l.exit)
	must.Eq(l.t, want, l.exit.Outcome, must.Sprint(l.exit.Text))
	got, _ := NomadCode(*l.exit)
	must.Eq(l.t, code, got, must.Sprint(l.exit.Text))
	must.NotEq(l.t, "", l.exit.Text)
	return *l.exit
}

func TestCompletes(t *testing.T) {
	l := newLife(t)
	l.running()
	l.did("preflight", "publish ready", "marker", "launch 1", "publish launched")
	l.step(Marked{0, progress.Mark{Kind: progress.Step, Step: 1}})
	l.did("publish training")
	l.rankEnds(0, 0, 0)
	l.rankEnds(1, 0, 0)
	must.Eq(t, map[int]bool{0: true, 1: true}, l.codes)
	l.launcherEnds(0, 0)
	x := l.over(contract.OutcomeComplete, 0)
	must.False(t, x.Asked)
}

func TestNothingStartsBeforeItsRelease(t *testing.T) {
	l := newLife(t)
	l.see(nil)
	l.see(l.record(1, contract.PhasePlaced))
	l.did("preflight")
	l.see(l.record(1, contract.PhaseReleased)) // released while the preflight still runs
	l.did()
	l.step(Checked{Attempt: 1, Report: contract.Report{Ranks: 2}})
	l.did("publish ready", "marker", "launch 1")
}

func TestRedPreflightNeverLaunches(t *testing.T) {
	l := newLife(t)
	l.see(l.record(1, contract.PhasePlaced))
	l.step(Checked{Attempt: 1, Report: contract.Report{Problems: []contract.Problem{{What: "cards", Text: "2 of 4 cards"}}}})
	l.did("preflight", "publish refused")
	l.see(l.record(1, contract.PhaseReleased))
	l.did("clear")
	l.over(contract.OutcomeRefused, contract.CodeRefused)
}

func TestMarkerThatCannotBeWrittenEndsIt(t *testing.T) {
	l := newLife(t)
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	l.step(MarkerFailed{errors.New("no space left on device")})
	must.StrContains(t, l.over(contract.OutcomeRefused, contract.CodeRefused).Text, "no space left")
}

// What a record can say to members that are not to start.
func TestUnlistedMembersNeverStart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*contract.Record)
		listed bool // by a placed record before
		want   contract.Outcome
	}{
		"another start was released":     {func(r *contract.Record) { r.Members[0].Start = 2 }, false, contract.OutcomeRefused},
		"a refill after the release":     {func(r *contract.Record) { r.Members[0].Alloc = "other" }, false, contract.OutcomeRefused},
		"listed, then left out":          {func(r *contract.Record) { r.Members[0].Alloc = "other" }, true, contract.OutcomeRefused},
		"another attempt, left out":      {func(r *contract.Record) { r.Attempt, r.Members[0].Alloc = 2, "other" }, true, contract.OutcomeRefused},
		"the attempt ended":              {func(r *contract.Record) { r.Phase = contract.PhaseEnded }, true, contract.OutcomeRefused},
		"another attempt placed, not it": {func(r *contract.Record) { r.Attempt, r.Phase, r.Members[0].Alloc = 2, contract.PhasePlaced, "other" }, true, contract.OutcomeRefused},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			if c.listed {
				l.ready()
			}
			r := l.record(1, contract.PhaseReleased)
			c.change(r)
			l.see(r)
			must.SliceNotContains(t, l.log, "launch 1")
			l.over(c.want, contract.CodeRefused)
		})
	}
}

func TestOldRecordsAreIgnored(t *testing.T) {
	l := newLife(t)
	ended := l.record(1, contract.PhaseEnded)
	ended.Members[0].Alloc = "of attempt 1"
	l.see(ended) // what the last attempt left: this member waits for its own
	must.Eq(t, Held, l.m.Stage())
	l.see(l.record(2, contract.PhasePlaced))
	l.step(Checked{Attempt: 2})
	l.see(l.record(1, contract.PhaseReleased))
	must.Eq(t, Ready, l.m.Stage())
	// A planner that was started again places the same allocations as attempt 3.
	l.see(l.record(3, contract.PhasePlaced))
	l.step(Checked{Attempt: 2}) // the answer to an older question
	must.Eq(t, Checking, l.m.Stage())
	l.did("preflight", "publish ready", "preflight")
}

func TestHoldEnds(t *testing.T) {
	l := newLife(t)
	l.wait(59 * time.Minute)
	must.Eq(t, Held, l.m.Stage())
	l.wait(2 * time.Minute)
	l.over(contract.OutcomeRefused, contract.CodeRefused)

	l = newLife(t)
	l.ready()
	r := l.record(1, contract.PhasePlaced)
	r.HoldUntil = l.now.Add(time.Minute)
	l.see(r)
	l.wait(61 * time.Second)
	l.over(contract.OutcomeRefused, contract.CodeRefused)
}

func TestFailingRankGivesItsOwnCode(t *testing.T) {
	for _, c := range []struct{ code, signal, nomad int }{{42, 0, 42}, {0, 11, 139}, {0, 9, 137}} {
		l := newLife(t)
		l.running()
		l.forget()
		l.now = l.now.Add(time.Second)
		l.rankEnds(1, c.code, c.signal)
		must.True(t, l.codes[1], must.Sprint("torchrun learns of a failure at once"))
		l.now = l.now.Add(time.Second)
		l.rankEnds(0, 0, 15) // torchrun ends the other
		l.launcherEnds(1, 0)
		x := l.over(contract.OutcomeFailed, c.nomad)
		must.Eq(t, 1, x.Rank)
		must.Eq(t, epoch.Add(time.Second), x.At)
		must.False(t, x.Asked)
	}
}

// A rank that loses its peer ends with an exception, perhaps seen before the
// peer's own end.
func TestOwnCodeSaysMoreThanAnException(t *testing.T) {
	l := newLife(t)
	l.running()
	l.rankEnds(0, 1, 0)
	l.now = l.now.Add(20 * time.Millisecond)
	l.rankEnds(1, 42, 0)
	l.launcherEnds(1, 0)
	must.Eq(t, 1, l.over(contract.OutcomeFailed, 42).Rank)
}

func TestRankThatIgnoresTheEndOfAnotherIsKilled(t *testing.T) {
	l := newLife(t)
	l.running()
	l.rankEnds(1, 1, 0)
	l.wait(4 * time.Second)
	must.Eq(t, Running, l.m.Stage())
	l.wait(2 * time.Second) // long before torchrun's own 30 s
	l.over(contract.OutcomeFailed, 1)
}

func TestTorchrunRestartsItsRanks(t *testing.T) {
	l := newLife(t, func(l *life) { l.setup.Config.MaxRestarts = 1 })
	l.running()
	l.forget()
	l.rankEnds(0, 1, 0)
	l.rankEnds(1, 0, 15)
	l.wait(time.Hour)
	must.Eq(t, Running, l.m.Stage())
	l.step(RankStarted{Launch: 1, Rank: 0, PID: 200, Restart: 1})
	l.step(RankStarted{Launch: 1, Rank: 1, PID: 201, Restart: 1})
	l.rankEnds(0, 7, 0)
	l.launcherEnds(1, 0)
	l.over(contract.OutcomeFailed, 7)
}

func TestOutOfMemoryIsTold(t *testing.T) {
	for _, c := range []struct {
		code, signal int
		cleared      Cleared
		oom          bool
		text         string
	}{
		{0, 9, Cleared{OOMKills: 1, AtLimit: true}, true, "rank 0 ended by signal 9 (SIGKILL): out of memory, killed by the kernel at the task's limit"},
		{137, 0, Cleared{OOMKills: 2}, true, "rank 0 ended with code 137: out of memory, killed by the kernel since the node had none left"},
		{1, 0, Cleared{OOMKills: 1, AtLimit: true}, false, "rank 0 ended with code 1; out of memory, the kernel killed 1 of the task's other processes at the task's limit"},
		{0, 9, Cleared{AtLimit: true}, false, "rank 0 ended by signal 9 (SIGKILL)"},
	} {
		l := newLife(t)
		l.running()
		l.rankEnds(0, c.code, c.signal)
		l.launcherEnds(1, 0)
		l.step(c.cleared)
		must.Eq(t, c.oom, l.exit.OOM)
		must.Eq(t, c.oom, l.exit.Ranks[0].OOM)
		must.Eq(t, c.text, l.exit.Text)
	}
	l := newLife(t)
	l.running()
	l.launcherEnds(0, 9)
	l.step(Cleared{OOMKills: 1})
	must.True(t, l.exit.OOM)
	must.StrContains(t, l.exit.Text, "out of memory")
}

// C18 a.
func TestLauncherDiesBeforeItsRanks(t *testing.T) {
	l := newLife(t)
	l.running()
	l.launcherEnds(0, 9)
	x := l.over(contract.OutcomeFailed, 137)
	must.StrContains(t, x.Text, "before its ranks")
}

func TestExitThatNobodySawIsUnknown(t *testing.T) {
	l := newLife(t)
	l.running()
	l.launcherEnds(0, 0) // with ranks that were never seen to end
	l.over(contract.OutcomeUnknown, -1)
}

func TestHangIsNotAFailureOfARank(t *testing.T) {
	l := newLife(t)
	l.running()
	l.forget()
	l.step(Hung{Rank: 1, Text: "rank 1: no mark for 15m0s"})
	l.did("evidence", "signal SIGTERM")
	l.wait(10 * time.Second)
	x := l.over(contract.OutcomeHung, contract.CodeHung)
	must.Eq(t, 1, x.Rank)
}

// Whatever happens in whatever order: nothing is launched without a release of
// this start and a green preflight; what is over is over; and a member that
// clears ends with an outcome that has a code, which is 0 for complete alone.
func TestMemberInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLife(t, func(l *life) {
			l.index = rapid.IntRange(0, 1).Draw(rt, "index")
			l.setup.Config.Launcher = rapid.SampledFrom([]string{contract.LauncherTorchrun, contract.LauncherRanks}).Draw(rt, "launcher")
		})
		green, releasedRecord := false, false
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			l.now = l.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
			launchesBefore := l.m.launch
			switch rapid.IntRange(0, 11).Draw(rt, "event") {
			case 0, 1:
				r := l.record(rapid.IntRange(1, 2).Draw(rt, "attempt"), rapid.SampledFrom([]contract.Phase{contract.PhasePlaced, contract.PhaseReleased, contract.PhaseEnded}).Draw(rt, "phase"))
				r.Members[l.index].Start = rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(rt, "start")
				if r.Attempt >= l.m.attempt { // an older one is ignored
					releasedRecord = r.Phase == contract.PhaseReleased && r.Members[l.index].Start == 1
				}
				l.see(r)
			case 2:
				problems := rapid.SampledFrom([][]contract.Problem{nil, nil, {{What: "disk", Text: "full"}}}).Draw(rt, "problems")
				if l.m.stage == Checking {
					green = problems == nil
				}
				l.step(Checked{Attempt: l.m.attempt, Report: contract.Report{Problems: problems}})
			case 3:
				l.step(RankStarted{Launch: l.m.launch, Rank: rapid.IntRange(0, 1).Draw(rt, "rank"), PID: 7})
			case 4:
				l.rankEnds(rapid.IntRange(0, 1).Draw(rt, "rank"), rapid.IntRange(0, 1).Draw(rt, "code"), 0)
			case 5:
				l.step(LauncherEnded{Launch: l.m.launch, Code: rapid.IntRange(0, 1).Draw(rt, "code"), PortBusy: rapid.Bool().Draw(rt, "busy"), At: l.now})
			case 6:
				l.step(Asked{contract.Ask{Grace: 10 * time.Second}})
			case 7:
				l.step(Stopped{Grace: 5 * time.Second})
			case 8:
				l.step(Marked{0, progress.Mark{Kind: rapid.SampledFrom([]progress.Kind{progress.Step, progress.Begin, progress.End, progress.MayStop}).Draw(rt, "mark")}})
			case 9:
				l.step(Moved{Launch: l.m.launch, Endpoint: contract.Endpoint{Port: 1, Move: 1}})
			case 10:
				l.step(Tick{})
			case 11:
				if l.m.stage == Clearing {
					l.step(Cleared{})
				}
			}
			if l.m.launch > launchesBefore && launchesBefore == 0 {
				must.True(rt, green && releasedRecord)
			}
			if l.exit != nil {
				must.Eq(rt, Over, l.m.Stage())
				code, _ := NomadCode(*l.exit)
				must.Eq(rt, l.exit.Outcome == contract.OutcomeComplete, code == 0)
				must.SliceEmpty(rt, l.step(Stopped{}))
				return
			}
		}
		// However it stands: without further news a stop ends it within its
		// grace, its extensions and the waits.
		l.step(Stopped{Grace: time.Second})
		l.wait(2 * time.Minute)
		must.True(rt, l.m.Stage() == Clearing || l.m.Stage() == Over, must.Sprintf("stage %s", l.m.Stage()))
	})
}
