// Package member decides what a member of a gang does next. It is pure: events
// go in with the time at which they were seen, actions come out, and the
// supervisor (package shim) carries them out in order.
//
// A member's life:
//
//	held      no record lists it: it waits
//	checking  a placed record lists it: its preflight runs
//	ready     the preflight ended and was reported, green or not
//	running   it was released and launched
//	leaving   it is to end: its ranks were asked or signalled
//	clearing  whatever is left is killed, until nothing is
//	over      how it ended is written down
//
// Rules, each held by a test of its name:
//
//   - Only a released record that lists exactly this start launches it, and only
//     after a green preflight and a marker on disk. Everything else that a record
//     can say to a member that was listed, or that a released record leaves out,
//     ends it.
//   - An ask reaches the ranks, never the launcher. Until the grace is over
//     nothing is killed, and the launcher does not learn that a rank left with a
//     failure, since it would end the others. A save that is visibly in progress
//     extends the grace, at most twice, by the grace each.
//   - A rank that ended before the ask was not made to: all ranks ended with 0
//     by then is complete.
//   - What one member's end means for the others is decided by its outcome: a
//     failure stops them, a completed or saved member does not.
//   - A rendezvous port that was taken is moved, and nothing counts as failed.
//   - An elastic world meets anew when its members change; see elastic.go.
//   - The member is over only when no process of it is left.
package member

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/contract"
)

// Timing are the bounds of the member's own steps.
type Timing struct {
	// TermWait is between SIGTERM at the end of a grace and SIGKILL.
	TermWait time.Duration
	// StopWait is the same where Nomad stops the task: its own timeout is over.
	StopWait time.Duration
	// PeerWait is the same where another member ended or a rank failed.
	PeerWait time.Duration
	// Closing is how long torchrun may wait for its peers after all ranks have
	// ended with 0. Its own limit is 300 s.
	Closing time.Duration
	// Linger is how long the store's host stays for peers that it cannot see.
	Linger time.Duration
	// ReportEvery bounds how often mere progress is reported.
	ReportEvery time.Duration
	// Falter is how long an elastic member whose ranks failed with an exception
	// waits to hear that a peer is gone, before the failure counts as its own.
	// It is longer than a session of the rendezvous may live, with the questions
	// to the peer.
	Falter time.Duration
	// Meet is how long it waits for the host to publish where to meet anew,
	// beyond the graces of all.
	Meet time.Duration
}

// DefaultTiming is what the driver uses.
var DefaultTiming = Timing{TermWait: 10 * time.Second, StopWait: 2 * time.Second, PeerWait: 5 * time.Second, Closing: 330 * time.Second, Linger: 10 * time.Second, ReportEvery: 15 * time.Second,
	Falter: 2*rendezvous.SessionTTL + 10*time.Second, Meet: 2 * time.Minute}

// Setup is what does not change during a member's life.
type Setup struct {
	Self      rendezvous.Self
	Config    contract.TaskConfig
	HoldUntil time.Time // the driver's own limit
	// Grace that the job asks for; 0: none. A stop of Nomad's may give less.
	Grace time.Duration
	// PeersVisible: reports of other members can be seen.
	PeersVisible bool
	Timing       Timing
}

// Stage of the member's life.
type Stage string

// The stages.
const (
	Held     Stage = "held"
	Checking Stage = "checking"
	Ready    Stage = "ready"
	Running  Stage = "running"
	Leaving  Stage = "leaving"
	Clearing Stage = "clearing"
	Over     Stage = "over"
)

// rank is what is known of one rank of the current launch.
type rank struct {
	pid    int
	local  int
	ended  bool
	code   int
	signal int
	oom    bool
	at     time.Time
	held   bool // the launcher was not told yet
	killed bool // by the clearing: how it would have ended is not known
}

func (r *rank) failed() bool { return r.ended && (r.code != 0 || r.signal != 0) }

// cause is why a member ends that was not done.
type cause struct {
	outcome contract.Outcome
	text    string
	rank    int // -1: none
}

// Member is the state of one member.
type Member struct {
	setup Setup
	stage Stage

	sight   rendezvous.Sight
	record  *contract.Record // the last one that lists this member
	index   int
	attempt int
	until   time.Time // hold limit in force

	checked *Checked

	launch   int // number of the launch, 0: none yet
	planned  torchrun.Launch
	endpoint *contract.Endpoint
	moves    int // of a port that was taken
	elastic  elastic
	ranks    map[int]*rank
	restarts int // torchrun's own
	launcher *LauncherEnded

	asked      *contract.Ask
	askedAt    time.Time
	stays      time.Time // end of the grace of an ask that was taken back; zero: none was
	grace      time.Duration
	graceEnd   time.Time
	extended   int
	stopped    bool // Nomad's StopTask
	ended      *cause
	endedAt    time.Time
	termSent   bool
	clearAt    time.Time
	killAt     time.Time // zero: not yet decided
	ranksGone  time.Time
	seenPeers  map[string]bool
	askingPeer bool

	saving    time.Time // zero: no save is in progress
	saved     time.Time
	savedStep int64
	step      int64
	marks     int
	complete  bool
	mayStop   bool
	reported  time.Time
	state     contract.State

	exit *contract.Exit
}

// New is a held member.
func New(s Setup) *Member {
	return &Member{setup: s, stage: Held, until: s.HoldUntil, index: -1, step: -1, savedStep: -1, ranks: map[int]*rank{}, seenPeers: map[string]bool{},
		elastic: elastic{gone: map[string]bool{}}}
}

// Stage is where the member is in its life.
func (m *Member) Stage() Stage { return m.stage }

// Attempt that lists the member; 0: none so far.
func (m *Member) Attempt() int { return m.attempt }

// Marked says whether the script takes part in the progress protocol.
func (m *Member) Marked() bool { return m.marks > 0 }

// Exit is how the member ended; nil while it has not.
func (m *Member) Exit() *contract.Exit { return m.exit }

// Launched says whether anything was ever started.
func (m *Member) Launched() bool { return m.launch > 0 }

// Step takes one event and gives what is to be done, in order.
func (m *Member) Step(now time.Time, event Event) []Action {
	if m.stage == Over {
		return nil
	}
	var todo actions
	switch e := event.(type) {
	case Saw:
		m.sight = e.Sight
		m.follow(now, &todo)
	case Checked:
		m.preflight(now, e, &todo)
	case MarkerFailed:
		m.launch = 0
		m.end(now, cause{contract.OutcomeRefused, e.Err.Error(), -1}, &todo)
	case Planned:
		m.planned = e.Launch
	case RankStarted:
		m.rankStarted(now, e, &todo)
	case RankEnded:
		m.rankEnded(now, e, &todo)
	case LauncherEnded:
		m.launcherEnded(now, e, &todo)
	case Moved:
		m.moved(now, e, &todo)
	case Marked:
		m.marked(now, e, &todo)
	case Asked:
		m.ask(now, e.Ask, &todo)
	case Stopped:
		m.stop(now, e, &todo)
	case PeerAnswered:
		m.peerAnswered(now, e, &todo)
	case Hung:
		if m.stage == Running && m.asked == nil {
			todo.tell(e.Text)
			todo.add(Evidence{Why: e.Text})
			m.end(now, cause{contract.OutcomeHung, e.Text, e.Rank}, &todo)
		}
	case Cleared:
		m.cleared(now, e, &todo)
	case Tick:
	}
	m.timers(now, &todo)
	return todo.list
}

// follow acts on the record and the peers' reports in sight.
func (m *Member) follow(now time.Time, todo *actions) {
	r := m.sight.Record
	if r == nil || m.stage == Clearing || r.Attempt < m.attempt {
		return
	}
	self := m.setup.Self
	me, ok := r.Lists(self.Alloc, self.Task, self.Start)
	listed := me.Alloc != ""
	switch {
	case r.Phase == contract.PhaseEnded:
		if r.Attempt == m.attempt || listed {
			text := "the attempt ended"
			if r.Reason != "" {
				text += ": " + r.Reason
			}
			m.end(now, cause{contract.OutcomeKilled, text, -1}, todo)
		}
		return
	case !listed && m.joins(now, r, todo):
		return
	case !listed && r.Attempt == m.attempt && m.leftOut(now, r, todo):
		return
	case !listed && m.attempt != 0:
		m.end(now, cause{contract.OutcomeKilled, fmt.Sprintf("attempt %d lists this allocation no more", r.Attempt), -1}, todo)
		return
	case !listed:
		// An elastic gang takes members in while it runs: this one waits for
		// the record that lists it. In any other gang a member that comes after
		// the release is a refill, which must not start.
		if r.Phase == contract.PhaseReleased && !m.setup.Config.Elastic {
			m.end(now, cause{contract.OutcomeRefused, fmt.Sprintf("attempt %d was released without this allocation", r.Attempt), -1}, todo)
		}
		return
	case !ok:
		m.end(now, cause{contract.OutcomeRefused, fmt.Sprintf("attempt %d released start %d of this allocation, and this is start %d", r.Attempt, me.Start, self.Start), -1}, todo)
		return
	case r.Attempt != m.attempt && m.launch > 0:
		m.end(now, cause{contract.OutcomeKilled, fmt.Sprintf("attempt %d began while attempt %d still ran here", r.Attempt, m.attempt), -1}, todo)
		return
	}
	if r.Attempt != m.attempt {
		m.attempt, m.checked, m.stage = r.Attempt, nil, Checking
		m.record, m.index = r, me.Index
		todo.add(Preflight{Attempt: r.Attempt, Record: r, Member: me.Index})
	}
	m.record, m.index = r, me.Index
	if !r.HoldUntil.IsZero() {
		m.until = r.HoldUntil
	}
	if r.Ask != nil {
		m.ask(now, *r.Ask, todo)
	}
	if m.stage == Ready {
		m.release(now, todo)
	}
	if m.setup.Config.Elastic {
		m.followWorld(now, todo)
	} else {
		m.followStore(todo)
	}
	m.followPeers(now, todo)
}

// preflight takes the findings.
func (m *Member) preflight(now time.Time, e Checked, todo *actions) {
	if m.stage != Checking || e.Attempt != m.attempt {
		return
	}
	m.checked, m.stage = &e, Ready
	m.state = contract.StateReady
	if len(e.Report.Problems) > 0 {
		m.state = contract.StateRefused
		todo.tell("preflight refused: " + e.Report.Problems[0].Text)
	} else {
		todo.tell("preflight passed: " + passed(e.Report))
	}
	m.publish(now, todo)
	m.release(now, todo)
}

// passed says what a green preflight found.
func passed(r contract.Report) string {
	text := count(r.Ranks, "rank") + ", " + count(len(r.Cards), "card")
	if r.Address != "" {
		text += ", reached at " + r.Address
	}
	if r.Interface != "" {
		text += " on " + r.Interface
	}
	return text
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// release launches the member where its record and its preflight allow it.
func (m *Member) release(now time.Time, todo *actions) {
	if m.record.Phase != contract.PhaseReleased || m.stage != Ready {
		return
	}
	if m.state == contract.StateRefused {
		m.end(now, cause{contract.OutcomeRefused, "the gang was released although this member's preflight failed: " + m.checked.Report.Problems[0].Text, -1}, todo)
		return
	}
	m.stage = Running
	todo.tell(fmt.Sprintf("released: attempt %d, member %d of %d", m.attempt, m.index, len(m.record.Members)))
	todo.add(MarkReleased{Attempt: m.attempt})
	if m.setup.Config.Elastic {
		m.enter(now, todo)
		return
	}
	m.endpoint = m.movedStore()
	m.start(todo)
}

func (m *Member) start(todo *actions) {
	m.launch++
	m.ranks, m.launcher, m.ranksGone, m.killAt = map[int]*rank{}, nil, time.Time{}, time.Time{}
	m.state = contract.StateReady
	todo.add(Launch{Number: m.launch, Record: m.record, Member: m.index, Endpoint: m.endpoint})
}

func (m *Member) rankStarted(now time.Time, e RankStarted, todo *actions) {
	if e.Launch != m.launch {
		return
	}
	if e.Restart > m.restarts {
		m.restarts = e.Restart
	}
	for n, old := range m.ranks { // c10d may give torchrun's ranks other numbers
		if m.setup.Config.Elastic && n != e.Rank && old.local == e.Local {
			delete(m.ranks, n)
		}
	}
	m.ranks[e.Rank] = &rank{pid: e.PID, local: e.Local}
	m.ranksGone = time.Time{}
	if m.stage == Leaving || m.elastic.asking() { // asked while torchrun was starting its ranks
		todo.add(SignalNew{Rank: e.Rank})
	}
	if m.state == contract.StateReady && len(m.ranks) == len(m.planned.Ranks) && len(m.ranks) > 0 {
		m.state = contract.StateLaunched
		m.publish(now, todo)
	}
}

func (m *Member) rankEnded(now time.Time, e RankEnded, todo *actions) {
	r := m.ranks[e.Rank]
	if e.Launch != m.launch || r == nil || r.ended {
		return
	}
	r.ended, r.code, r.signal, r.oom, r.at = true, e.Code, e.Signal, e.OOM, e.At
	r.killed = m.stage == Clearing && !e.At.Before(m.clearAt)
	if m.stage == Running && r.failed() && e.PortBusy && m.moveStore(todo) {
		return
	}
	if (m.leavesByAsk() || m.elastic.asking()) && r.failed() {
		r.held = true // see the package's second rule
	} else {
		todo.add(LetGo{Rank: e.Rank})
	}
	if m.falters(false) {
		m.falter(now, todo)
	} else if m.stage == Running && m.elastic.anew == nil && r.failed() && m.restarts >= m.setup.Config.MaxRestarts && m.killAt.IsZero() {
		// torchrun ends the other ranks itself, but waits 30 s for them.
		m.killAt = now.Add(m.setup.Timing.PeerWait)
		if m.setup.Config.Launcher == contract.LauncherRanks {
			todo.add(Signal{Signal: "SIGTERM"})
		}
	}
	if m.allRanksEnded() {
		m.ranksGone = now
		m.afterRanks(now, todo)
	}
}

func (m *Member) allRanksEnded() bool {
	if len(m.ranks) == 0 || len(m.ranks) < len(m.planned.Ranks) {
		return false
	}
	for _, r := range m.ranks {
		if !r.ended {
			return false
		}
	}
	return true
}

// leavesByAsk says that the ranks were asked and nothing harsher came since.
func (m *Member) leavesByAsk() bool { return m.asked != nil && m.ended == nil && !m.termSent }

// afterRanks decides what becomes of the launcher when all its ranks ended.
func (m *Member) afterRanks(now time.Time, todo *actions) {
	if m.ranksGone.IsZero() || m.stage == Clearing {
		return
	}
	if m.stage == Running && m.elastic.anew != nil {
		m.meetAnew(now, todo)
		return
	}
	switch {
	case m.setup.Config.Launcher == contract.LauncherRanks:
		m.clear(now, todo)
	case m.asked != nil || m.ended != nil:
		if m.othersNeedStore(now) {
			return
		}
		m.clear(now, todo)
	case m.anyFailed() && m.restarts < m.setup.Config.MaxRestarts:
		// torchrun starts them again
	case m.killAt.IsZero():
		m.killAt = now.Add(m.setup.Timing.Closing)
	}
}

// othersNeedStore: the store lives in this member's torchrun, and members that
// were asked as well may still be saving with its help.
func (m *Member) othersNeedStore(now time.Time) bool {
	if !m.hosts() || m.planned.Nodes < 2 || m.ended != nil || !now.Before(m.graceEnd) {
		return false
	}
	if !m.setup.PeersVisible || m.sight.Reports == nil {
		return now.Before(m.ranksGone.Add(m.setup.Timing.Linger))
	}
	for _, i := range m.world().Members {
		peer := m.record.Members[i]
		if r, there := m.sight.Reports[rendezvous.MemberKey(peer.Alloc, peer.Task)]; i != m.index && there && r.State != contract.StateEnded {
			return true
		}
	}
	return false
}

func (m *Member) anyFailed() bool {
	for _, r := range m.ranks {
		if r.failed() {
			return true
		}
	}
	return false
}

func (m *Member) launcherEnded(now time.Time, e LauncherEnded, todo *actions) {
	if e.Launch != m.launch || m.stage == Clearing {
		return
	}
	m.launcher = &e
	failed := e.Code != 0 || e.Signal != 0 || e.Err != nil
	if m.stage == Running && failed && e.PortBusy && m.moveStore(todo) {
		return
	}
	if m.stage == Running && m.elastic.anew == nil && failed && e.Err == nil && m.falters(true) {
		m.falter(now, todo)
	}
	if m.stage == Running && m.elastic.anew != nil && e.Err == nil {
		m.meetAnew(now, todo)
		return
	}
	m.clear(now, todo)
}

// end makes the member leave for a reason that is not an ask. The first reason
// stays.
func (m *Member) end(now time.Time, c cause, todo *actions) {
	if m.ended != nil || m.stage == Clearing {
		return
	}
	m.ended, m.endedAt = &c, now
	if m.launch == 0 {
		m.clear(now, todo)
		return
	}
	m.stage = Leaving
	m.letGo(todo)
	m.term(now, m.setup.Timing.PeerWait, todo)
	m.afterRanks(now, todo)
}

// term sends SIGTERM to the ranks and sets the time of SIGKILL.
func (m *Member) term(now time.Time, wait time.Duration, todo *actions) {
	if !m.termSent {
		m.termSent = true
		todo.add(Signal{Signal: "SIGTERM"})
	}
	if at := now.Add(wait); m.killAt.IsZero() || at.Before(m.killAt) {
		m.killAt = at
	}
}

func (m *Member) letGo(todo *actions) {
	numbers := make([]int, 0, len(m.ranks))
	for n, r := range m.ranks {
		if r.held {
			r.held = false
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		todo.add(LetGo{Rank: n})
	}
}

func (m *Member) clear(now time.Time, todo *actions) {
	if m.stage != Clearing {
		m.stage, m.clearAt = Clearing, now
		todo.add(Clear{})
	}
}

// cleared: nothing is left, so how it ended can be told.
func (m *Member) cleared(now time.Time, e Cleared, todo *actions) {
	if m.stage != Clearing {
		return
	}
	exit := m.conclude(now, e)
	m.exit, m.stage, m.state = &exit, Over, contract.StateEnded
	todo.tell("ended: " + exit.Text)
	todo.add(WriteExit{Exit: exit})
	if m.attempt > 0 {
		m.publish(now, todo)
	}
	todo.add(Finish{Exit: exit})
}

// publish reports the member's state.
func (m *Member) publish(now time.Time, todo *actions) {
	self := m.setup.Self
	r := contract.Report{Alloc: self.Alloc, Task: self.Task}
	if m.checked != nil {
		r = m.checked.Report
	}
	r.V, r.Gang, r.Attempt, r.Alloc, r.Task, r.Start = contract.RecordVersion, self.Gang, m.attempt, self.Alloc, self.Task, self.Start
	r.State, r.At, r.Checkpoint, r.Exit = m.state, now, m.saved, m.exit
	if m.endpoint != nil && m.record != nil && m.hosts() {
		r.Port = m.endpoint.Port
	}
	if m.step >= 0 {
		r.Step = m.step
	}
	if m.asked != nil && m.exit == nil {
		r.LeaveBy = m.graceEnd
	}
	m.reported = now
	todo.add(Publish{Report: r})
}
