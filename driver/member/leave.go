package member

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// ask: the planner wants the member to save and leave. A repeated ask only
// moves the end of the grace.
func (m *Member) ask(now time.Time, a contract.Ask, todo *actions) {
	if m.stage == Clearing || m.ended != nil {
		return
	}
	if a.Kind == contract.AskWithdrawn {
		m.stay(a, todo)
		return
	}
	end := a.By
	if end.IsZero() {
		end = now.Add(a.Grace)
	}
	if m.asked != nil {
		if m.asked.Kind == a.Kind && m.asked.By.Equal(a.By) && m.asked.Grace == a.Grace || m.stopped {
			return
		}
		m.asked, m.grace, m.graceEnd = &a, max(a.Grace, end.Sub(now)), end
		return
	}
	m.asked, m.askedAt, m.grace, m.graceEnd = &a, now, max(a.Grace, end.Sub(now)), end
	m.extended, m.stays = 0, time.Time{}
	if m.launch == 0 {
		m.end(now, cause{contract.OutcomeRefused, "asked to leave before it was released" + why(a), -1}, todo)
		return
	}
	m.stage = Leaving
	todo.tell(fmt.Sprintf("asked to save and leave within %v%s", m.grace.Round(time.Second), why(a)))
	act := Ask{Ask: a}
	if a.Kind == contract.AskStop {
		// Its user stops the gang: ranks that take no other hint get the signal that
		// a stop by Nomad begins with.
		act.Stop, act.Spare = "SIGTERM", m.Marked()
	}
	todo.add(act)
	m.afterAsk(now, todo)
}

// stay: the ask is taken back. A member of which a rank has left, or was told
// to end, leaves all the same; what ends within the grace that there was ends
// by the ask.
func (m *Member) stay(a contract.Ask, todo *actions) {
	if m.asked == nil || m.stopped || m.termSent || m.mayStop || m.launch == 0 {
		return
	}
	for _, r := range m.ranks {
		if r.ended {
			return
		}
	}
	m.asked, m.stage, m.stays = nil, Running, m.graceEnd
	todo.tell("may stay" + why(a))
	todo.add(Unask{})
}

// leftByAsk tells whether an ask that is in force, or was taken back a moment
// before, made the ranks end.
func (m *Member) leftByAsk() bool {
	if m.asked != nil || m.stays.IsZero() {
		return m.asked != nil
	}
	for _, r := range m.ranks {
		if r.ended && r.at.Before(m.stays) {
			return true
		}
	}
	return false
}

func why(a contract.Ask) string {
	text := ""
	if a.Kind != "" {
		text = " (" + a.Kind + ")"
	}
	if a.Why != "" {
		text += ": " + a.Why
	}
	return text
}

// DefaultMaxKillTimeout is what a Nomad client gives a task at most where its
// configuration does not say another max_kill_timeout.
const DefaultMaxKillTimeout = 30 * time.Second

// ShortGrace tells that Nomad's own stops give less than the job asks for.
func ShortGrace(gives, asked time.Duration) string {
	return fmt.Sprintf("Nomad's own stop (job stop, drain) gives %v here, and %s asks for %v: raise max_kill_timeout in this node's client block; a planner's ask gives it in full",
		gives.Round(time.Second), contract.MetaGrace, asked)
}

// MaybeShortGrace tells at the start of a member that Nomad's own stops give
// less than the job asks for, as far as is known: limit 0 is one that nobody
// stated. "": they give it.
func MaybeShortGrace(limit, asked time.Duration) string {
	switch {
	case limit > 0 && asked > limit:
		return ShortGrace(limit, asked)
	case limit == 0 && asked > DefaultMaxKillTimeout:
		return fmt.Sprintf("%s asks for %v, and Nomad's own stop (job stop, drain) gives %v unless this node's client block says more: raise max_kill_timeout there, and state it in the driver's plugin block",
			contract.MetaGrace, asked, DefaultMaxKillTimeout)
	}
	return ""
}

// stop: Nomad ends the task, with its kill timeout as grace.
func (m *Member) stop(now time.Time, e Stopped, todo *actions) {
	if m.stage == Clearing || m.stopped && !e.Now {
		return
	}
	first := m.asked == nil
	m.stopped = true
	a := contract.Ask{Kind: "stop", By: now.Add(e.Grace), Grace: e.Grace}
	if first {
		m.asked, m.askedAt = &a, now
	}
	if m.launch == 0 {
		m.end(now, cause{contract.OutcomeRefused, "stopped before it was released", -1}, todo)
		return
	}
	if e.Now || m.stage == Leaving && m.ended != nil {
		m.letGo(todo)
		m.clear(now, todo)
		return
	}
	m.stage = Leaving
	m.grace, m.graceEnd, m.extended = e.Grace, a.By, 0
	signal := e.Signal
	if signal == "" {
		signal = "SIGTERM"
	}
	if first {
		text := fmt.Sprintf("stopped by Nomad: %v to save and leave", e.Grace.Round(time.Second))
		if e.Grace < m.setup.Grace {
			text += "; " + ShortGrace(e.Grace, m.setup.Grace)
		}
		todo.tell(text)
	}
	// Who listens to the preempt file alone is known by its marks, or was asked
	// before and is left its time.
	todo.add(Ask{Ask: a, Stop: signal, Spare: m.Marked() || !first})
	m.afterAsk(now, todo)
}

// afterAsk: where no rank runs yet there is nothing to save.
func (m *Member) afterAsk(now time.Time, todo *actions) {
	if len(m.ranks) == 0 {
		m.clear(now, todo)
		return
	}
	m.afterRanks(now, todo)
}

// graceTimer ends the grace, or extends it while a save is in progress.
func (m *Member) graceTimer(now time.Time, todo *actions) {
	if m.asked == nil || m.termSent || m.ended != nil {
		return
	}
	if m.mayStop {
		m.letGo(todo)
		m.term(now, m.setup.Timing.TermWait, todo)
		return
	}
	if now.Before(m.graceEnd) {
		return
	}
	if !m.saving.IsZero() && m.extended < 2 {
		m.extended++
		m.graceEnd = now.Add(m.grace)
		todo.tell(fmt.Sprintf("a checkpoint is being written: %v more", m.grace.Round(time.Second)))
		m.publish(now, todo)
		return
	}
	m.letGo(todo)
	wait := m.setup.Timing.TermWait
	if m.stopped {
		wait = m.setup.Timing.StopWait
	}
	m.term(now, wait, todo)
}

// marked takes a mark of a script.
func (m *Member) marked(now time.Time, e Marked, todo *actions) {
	if m.launch == 0 {
		return
	}
	m.marks++
	before := m.state
	switch e.Mark.Kind {
	case progress.Step:
		m.step = max(m.step, e.Mark.Step)
	case progress.Begin:
		m.saving = now
	case progress.Failed:
		m.saving = time.Time{}
	case progress.End:
		m.saving, m.saved = time.Time{}, now
		if e.Mark.Step >= 0 {
			m.savedStep = e.Mark.Step
		}
		if m.asked != nil {
			todo.tell("checkpoint saved")
		}
	case progress.MayStop:
		m.mayStop = m.asked != nil
	case progress.Complete:
		m.complete = true
	}
	if m.state == contract.StateLaunched || m.state == contract.StateReady && len(m.ranks) > 0 {
		m.state = contract.StateTraining
		todo.tell("first progress")
	}
	if before != m.state || e.Mark.Kind == progress.End || now.Sub(m.reported) >= m.setup.Timing.ReportEvery {
		m.publish(now, todo)
	}
}

// followPeers acts on what other members report: a failure ends this one, a
// report that vanished is looked into.
func (m *Member) followPeers(now time.Time, todo *actions) {
	if m.stage != Running && m.stage != Leaving || m.sight.Reports == nil {
		return
	}
	if m.asked != nil {
		m.afterRanks(now, todo) // the host may have waited for its peers
		return
	}
	if m.setup.Config.Elastic {
		m.followElasticPeers(now, todo)
		return
	}
	for _, peer := range m.record.Members {
		if peer.Index == m.index {
			continue
		}
		key := rendezvous.MemberKey(peer.Alloc, peer.Task)
		r, there := m.sight.Reports[key]
		switch {
		case there && r.State == contract.StateEnded && r.Exit != nil && stopsOthers(r.Exit.Outcome):
			text := fmt.Sprintf("member %d on %s ended: %s", peer.Index, peer.Node, r.Exit.Text)
			if r.Exit.Outcome == contract.OutcomeHung {
				todo.add(Evidence{Why: text}) // the rank that hangs may be one of these
			}
			m.end(now, cause{contract.OutcomePeer, text, -1}, todo)
			return
		case there:
			m.seenPeers[key] = true
		case m.seenPeers[key] && !m.askingPeer:
			m.askingPeer = true
			todo.add(AskPeer{Peer: peer})
		}
	}
}

// peerBefore names a member that had ended in a way that stops the others
// before a time; empty: none is known.
func (m *Member) peerBefore(at time.Time) string {
	if m.record == nil {
		return ""
	}
	for _, peer := range m.record.Members {
		r := m.sight.Reports[rendezvous.MemberKey(peer.Alloc, peer.Task)]
		if peer.Index != m.index && r.Exit != nil && stopsOthers(r.Exit.Outcome) && r.Exit.At.Before(at) {
			return fmt.Sprintf("member %d on %s ended: %s", peer.Index, peer.Node, r.Exit.Text)
		}
	}
	return ""
}

// stopsOthers tells whether a member that ended so makes the others' work
// pointless.
func stopsOthers(o contract.Outcome) bool {
	switch o {
	case contract.OutcomeComplete, contract.OutcomeCheckpointed, contract.OutcomeYielded:
		return false
	}
	return true
}

// peerAnswered: a peer lives although Consul forgot it, or is gone.
func (m *Member) peerAnswered(now time.Time, e PeerAnswered, todo *actions) {
	m.askingPeer = false
	// By its key: a round may have given it another place, or left it out.
	place := -1
	if m.record != nil {
		place = slices.IndexFunc(m.record.Members, func(p contract.Member) bool { return p.Key() == e.Peer.Key() })
	}
	if m.stage != Running || place < 0 {
		return
	}
	peer := m.record.Members[place]
	if _, there := m.sight.Reports[peer.Key()]; there {
		return // it reported again meanwhile
	}
	if !e.Alive && m.setup.Config.Elastic {
		m.lose(now, peer, "vanished: "+e.Text, todo)
		return
	}
	if !e.Alive {
		m.end(now, cause{contract.OutcomePeer, fmt.Sprintf("member %d on %s vanished: %s", peer.Index, peer.Node, e.Text), -1}, todo)
		return
	}
	m.askingPeer = true
	todo.add(AskPeer{Peer: peer})
}

// conclude says how the member ended, from all that was seen.
func (m *Member) conclude(now time.Time, e Cleared) contract.Exit {
	x := contract.Exit{Code: 0, Rank: -1, At: now}
	number, first := m.firstFailure()
	if first != nil {
		// A shell around the rank turns the signal into 137.
		first.oom = e.OOMKills > 0 && (first.signal == 9 || first.code == 137)
		x.Code, x.Signal, x.Rank, x.OOM, x.At = first.code, first.signal, number, first.oom, first.at
	}
	x.Ranks = m.rankExits()
	// Whatever was seen before the ask was not made by it.
	x.Asked = m.leftByAsk() && !(first != nil && first.at.Before(m.askedAt)) && !m.doneBefore(m.askedAt)

	switch {
	case m.ended != nil && m.ended.outcome == contract.OutcomeRefused:
		x.Outcome, x.Code, x.Text = contract.OutcomeRefused, contract.CodeRefused, m.ended.text
		x.Asked = m.asked != nil
	case m.launch == 0:
		x.Outcome, x.Code, x.Text = contract.OutcomeRefused, contract.CodeRefused, "never released"
		if m.ended != nil {
			x.Text += ": " + m.ended.text
		}
		x.Asked = true
	case m.ended != nil && m.ended.outcome == contract.OutcomeFailed:
		x.Outcome, x.Code, x.Text = contract.OutcomeFailed, 1, m.ended.text
	case m.ended != nil && (first == nil || !first.at.Before(m.endedAt)):
		// Nothing had failed here before.
		if x.Asked && m.allZero() && m.ended.outcome != contract.OutcomeHung {
			m.concludeAsked(&x) // the ask came first, and they left by it
			break
		}
		if m.doneBefore(m.endedAt) && m.ended.outcome != contract.OutcomeHung {
			x.Outcome, x.Text = contract.OutcomeComplete, "all ranks ended with 0"
			break
		}
		x.Outcome, x.Text, x.Asked, x.At = m.ended.outcome, m.ended.text, m.ended.outcome == contract.OutcomeKilled, m.endedAt
		if m.ended.rank >= 0 {
			x.Rank = m.ended.rank
		}
	case x.Asked:
		m.concludeAsked(&x)
	case first != nil && first.code == 1 && m.peerBefore(first.at) != "":
		// A rank whose peer went away ends with an exception.
		x.Outcome, x.Text = contract.OutcomePeer, m.peerBefore(first.at)
	case first != nil:
		x.Outcome, x.Text = contract.OutcomeFailed, fmt.Sprintf("rank %d ended %s", number, how(first.code, first.signal))
		switch {
		case x.OOM:
			x.Text += ": out of memory, killed by the kernel " + e.where()
		case e.OOMKills > 0: // a data loader, say, without which the rank failed
			x.Text += fmt.Sprintf("; out of memory, the kernel killed %d of the task's other processes %s", e.OOMKills, e.where())
		}
	case m.allZero():
		x.Outcome, x.Text = contract.OutcomeComplete, "all ranks ended with 0"
		if m.launcher != nil && (m.launcher.Code != 0 || m.launcher.Signal != 0) {
			x.Text += fmt.Sprintf(" (torchrun itself ended %s while closing)", how(m.launcher.Code, m.launcher.Signal))
		}
	case m.launcher != nil:
		m.concludeLauncher(&x)
		if x.OOM = e.OOMKills > 0 && x.Signal == 9; x.OOM {
			x.Text += ": out of memory, killed by the kernel " + e.where()
		}
	default:
		x.Outcome, x.Code, x.Text = contract.OutcomeUnknown, -1, "how the ranks ended was not seen"
	}
	return x
}

// where tells what memory there was none of.
func (e Cleared) where() string {
	if e.AtLimit {
		return "at the task's limit"
	}
	return "since the node had none left"
}

// ranksTold is how many ranks' ends an exit record has room for. Of more, those
// that failed are told.
const ranksTold = 64

// rankExits tells how each rank of the last launch ended.
func (m *Member) rankExits() []contract.RankExit {
	var out []contract.RankExit
	for _, n := range slices.Sorted(maps.Keys(m.ranks)) {
		if r := m.ranks[n]; r.ended {
			out = append(out, contract.RankExit{Rank: n, Code: r.code, Signal: r.signal, OOM: r.oom, Killed: r.killed, At: r.at})
		}
	}
	if len(out) > ranksTold {
		out = slices.DeleteFunc(out, func(r contract.RankExit) bool { return r.Code == 0 && r.Signal == 0 })
	}
	return out[:min(len(out), ranksTold)]
}

// concludeAsked: complete only where the script says so, or its ranks had
// ended by themselves before.
func (m *Member) concludeAsked(x *contract.Exit) {
	switch {
	case m.complete && m.allZero():
		x.Outcome, x.Text = contract.OutcomeComplete, "complete, as the script says, after it was asked to leave"
	case m.saved.After(m.askedAt):
		x.Outcome, x.Text = contract.OutcomeCheckpointed, "saved a checkpoint after it was asked to leave"
		if m.savedStep >= 0 {
			x.Text += fmt.Sprintf(", at step %d", m.savedStep)
		}
	case len(m.ranks) == 0:
		x.Outcome, x.Text = contract.OutcomeKilled, "asked to leave before its ranks ran"
	case m.leftByThemselves():
		x.Outcome, x.Text = contract.OutcomeYielded, "left by itself after it was asked to, and named no checkpoint"
	default:
		x.Outcome, x.Text = contract.OutcomeKilled, "stopped by signal when its grace was over"
	}
}

func (m *Member) concludeLauncher(x *contract.Exit) {
	l := m.launcher
	x.Outcome, x.Code, x.Signal, x.At = contract.OutcomeFailed, l.Code, l.Signal, l.At
	switch {
	case l.Err != nil:
		x.Code, x.Text = 1, "nothing could be started: "+l.Err.Error()
	case len(m.ranks) == 0:
		x.Text = fmt.Sprintf("torchrun ended %s before it started a rank", how(l.Code, l.Signal))
	default:
		x.Text = fmt.Sprintf("torchrun ended %s before its ranks", how(l.Code, l.Signal))
	}
	if l.Text != "" {
		x.Text += ": " + l.Text
	}
	if x.Code == 0 && x.Signal == 0 {
		x.Outcome, x.Code = contract.OutcomeUnknown, -1
	}
}

// sameMoment is how far apart failures may be and still be one event: ranks
// that lose their peer fail within this time of it.
const sameMoment = 200 * time.Millisecond

// firstFailure is the rank that failed first. Among those that failed in the
// same moment, one that gives a code of its own or died by a signal says more
// than one that ended with 1, as every uncaught exception does.
func (m *Member) firstFailure() (int, *rank) {
	var numbers []int
	for n, r := range m.ranks {
		if r.failed() && !r.killed {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 {
		return -1, nil
	}
	slices.SortFunc(numbers, func(a, b int) int { return cmp.Or(m.ranks[a].at.Compare(m.ranks[b].at), cmp.Compare(a, b)) })
	first := m.ranks[numbers[0]]
	for _, n := range numbers {
		r := m.ranks[n]
		if r.at.Sub(first.at) > sameMoment {
			break
		}
		if r.code != 1 && r.signal != 15 {
			return n, r
		}
	}
	return numbers[0], first
}

// leftByThemselves: no rank had to be killed.
func (m *Member) leftByThemselves() bool {
	for _, r := range m.ranks {
		if !r.ended || r.killed {
			return false
		}
	}
	return m.allRanksEnded() && (!m.termSent || m.allZero())
}

func (m *Member) allZero() bool { return m.allRanksEnded() && !m.anyFailed() }

// doneBefore says that all ranks had ended with 0 before a time.
func (m *Member) doneBefore(at time.Time) bool {
	if !m.allZero() {
		return false
	}
	for _, r := range m.ranks {
		if !r.at.Before(at) {
			return false
		}
	}
	return true
}

func how(code, signal int) string {
	if signal != 0 {
		return fmt.Sprintf("by signal %d (%s)", signal, signalName(signal))
	}
	return fmt.Sprintf("with code %d", code)
}
