package member

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/contract"
)

// An elastic world changes its members while it runs, in one attempt. Who meets
// is decided by one member, the store's host, and everybody else follows the
// endpoint that it publishes, which lists them:
//
//   - A new round of the record: the ranks of all members of the round before
//     are asked to save, for the round's settle time. Who is left out ends when
//     they have; who stays waits for the host's endpoint and starts anew. Who
//     joins only waits.
//   - A member that ended or vanished: the ranks of the others cannot go on, so
//     they are ended at once, and the host publishes an endpoint for the rest. No
//     planner is needed for that. When fewer than the record's min are left, or
//     the host itself is gone, all end.
//   - Ranks that fail with an exception, or are ended by a torchrun that lost the
//     store, may have lost a peer: the failure counts as the member's own only when no peer turns out to be gone within
//     Timing.Falter. The first to fail is the first to end, and the others then
//     hear of it.
//
// A lost member never comes back in the same attempt: as a new allocation only.

// elastic is what a member of an elastic world knows beyond what others do.
type elastic struct {
	members []string        // that the current launch was made for; nil: none yet
	gone    map[string]bool // ended or vanished, by key
	round   int             // of the record that was acted on
	move    int             // of the store, the last published or followed
	anew    *anew           // nil: the world stands
}

// anew is a world that is being left, to be met again.
type anew struct {
	grace    time.Duration // 0: the ranks end at once
	term     time.Time     // when SIGTERM is sent; zero: it was
	kill     time.Time     // when what is left of the ranks does not matter any more; zero: not decided
	extended int
	until    time.Time // when the member gives up
	faltered bool      // because ranks failed here, and no peer is known to be gone
	ranks    bool      // the ranks are gone
	moving   bool      // the host was told to publish
}

func (e *elastic) meet(members []string) {
	if members != nil {
		e.members, e.anew = members, nil
	}
}

// asking: ranks of a world that is being left may still save.
func (e *elastic) asking() bool { return e.anew != nil && e.anew.grace > 0 && !e.anew.term.IsZero() }

// next is when elasticTimer is to be called.
func (e *elastic) next() time.Time {
	a := e.anew
	switch {
	case a == nil:
		return time.Time{}
	case !a.ranks && !a.term.IsZero():
		return a.term
	case !a.ranks && !a.kill.IsZero():
		return a.kill
	}
	return a.until
}

// wanted are the members that the record in force wants to meet, without those
// that are gone, in the order of the world.
func (m *Member) wanted() []string {
	var out []string
	for _, i := range m.world().Members {
		if key := m.record.Members[i].Key(); !m.elastic.gone[key] {
			out = append(out, key)
		}
	}
	return out
}

// joins: the record lists this member as one that is to come. It is checked
// like a placed one.
func (m *Member) joins(now time.Time, r *contract.Record, todo *actions) bool {
	self := m.setup.Self
	me, joining := r.Joins(self.Alloc, self.Task)
	if !joining || !m.setup.Config.Elastic || m.launch > 0 {
		return false
	}
	if r.Attempt != m.attempt {
		m.attempt, m.checked, m.stage = r.Attempt, nil, Checking
		// Among the members, so that it finds its peers.
		listed := *r
		listed.Phase = contract.PhasePlaced // to this member
		me.Index = len(r.Members)
		listed.Members = append(slices.Clone(r.Members), me)
		m.record, m.index = &listed, me.Index
		todo.add(Preflight{Attempt: r.Attempt, Record: &listed, Member: me.Index})
	}
	if !r.HoldUntil.IsZero() && r.HoldUntil.After(now) {
		m.until = r.HoldUntil
	}
	return true
}

// leftOut: a round of the attempt that runs here goes on without this member,
// which is given the round's time to save.
func (m *Member) leftOut(now time.Time, r *contract.Record, todo *actions) bool {
	if !m.setup.Config.Elastic || r.Phase != contract.PhaseReleased || m.launch == 0 || r.Settle == 0 {
		return false
	}
	m.elastic.anew = nil
	m.ask(now, contract.Ask{Kind: "resize", Grace: r.Settle, Why: "the gang goes on without this member"}, todo)
	return true
}

// enter starts a member that was just released: into the world as the record
// has it, or into one that is to meet.
func (m *Member) enter(now time.Time, todo *actions) {
	m.elastic.round = m.record.Round
	if m.record.Round == 0 && m.movedStore() == nil {
		m.elastic.members = m.wanted()
		m.start(todo)
		return
	}
	m.elastic.anew = &anew{ranks: true, until: now.Add(3*m.record.Settle + m.setup.Timing.Meet)}
	m.meetAnew(now, todo)
}

// followWorld acts on a new round, and on where the host says to meet.
func (m *Member) followWorld(now time.Time, todo *actions) {
	if m.stage != Running || m.record.Phase != contract.PhaseReleased {
		return
	}
	if m.record.Round > m.elastic.round {
		m.elastic.round = m.record.Round
		if want := m.wanted(); m.elastic.members != nil && !sameMembers(want, m.elastic.members) {
			m.leave(now, m.record.Settle, fmt.Sprintf("round %d: the gang goes on with %s", m.record.Round, count(len(want), "member")), todo)
		}
	}
	if e := m.movedStore(); e != nil && e.Move > m.elastic.move && !m.hosts() && m.launch > 0 {
		if !slices.Contains(e.Members, m.setup.Self.Key()) {
			m.end(now, cause{contract.OutcomePeer, fmt.Sprintf("the others meet without this member (%s)", e.Why), -1}, todo)
			return
		}
		if m.elastic.anew == nil || m.elastic.anew.faltered {
			m.leave(now, 0, "the world meets anew: "+e.Why, todo)
		}
	}
	if m.elastic.anew != nil && m.elastic.anew.ranks {
		m.meetAnew(now, todo)
	}
}

// sameMembers compares two lists whatever their order.
func sameMembers(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// leave ends the ranks of the world as it stands, to meet anew.
func (m *Member) leave(now time.Time, grace time.Duration, why string, todo *actions) {
	a := m.elastic.anew
	switch {
	case a == nil:
		a = &anew{}
		m.elastic.anew = a
		todo.tell(why)
	case a.faltered:
		todo.tell(why)
		a.faltered = false
	case grace > 0 || a.grace == 0: // it is being left already, and not slower
		return
	}
	m.killAt = time.Time{} // of a closing that nobody waits for now
	a.grace, a.until = grace, now.Add(3*max(grace, m.record.Settle)+m.setup.Timing.Meet)
	a.term = now.Add(grace)
	if a.ranks || m.runningRanks() == 0 {
		a.ranks = true
		m.meetAnew(now, todo)
		return
	}
	if grace > 0 {
		todo.add(Ask{Ask: contract.Ask{Kind: "resize", Grace: grace, By: a.term, Why: why}})
		return
	}
	m.elasticTimer(now, todo)
}

func (m *Member) runningRanks() int {
	n := 0
	for _, r := range m.ranks {
		if !r.ended {
			n++
		}
	}
	return n
}

// elasticTimer ends the grace of a world that is being left, and the waiting
// for the next.
func (m *Member) elasticTimer(now time.Time, todo *actions) {
	a := m.elastic.anew
	if a == nil || m.stage != Running {
		return
	}
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if !a.ranks && due(a.term) {
		if a.grace > 0 && !m.saving.IsZero() && a.extended < 2 {
			a.extended++
			a.term = now.Add(a.grace)
			todo.tell(fmt.Sprintf("a checkpoint is being written: %v more", a.grace.Round(time.Second)))
			return
		}
		a.term, a.kill = time.Time{}, now.Add(m.setup.Timing.PeerWait)
		m.letGo(todo)
		todo.add(Signal{Signal: "SIGTERM"})
	}
	if !a.ranks && due(a.kill) {
		a.ranks = true
		m.meetAnew(now, todo)
	}
	if m.elastic.anew == a && due(a.until) {
		if a.faltered { // no peer is gone: it was this member's own
			m.elastic.anew = nil
			m.letGo(todo)
			m.clear(now, todo)
			return
		}
		m.end(now, cause{contract.OutcomePeer, "the store's host did not publish where to meet anew", -1}, todo)
	}
}

// falters says that a rank of an elastic member, or the launcher, failed in a
// way that the loss of a peer would explain.
func (m *Member) falters(launcher bool) bool {
	if m.stage != Running || !m.setup.Config.Elastic || m.elastic.anew != nil || len(m.elastic.members) < 2 || m.allZero() {
		return false
	}
	_, first := m.firstFailure()
	if first == nil {
		return launcher
	}
	// An exception, or SIGTERM: torchrun ends its ranks when it loses the store.
	return first.code == 1 || first.signal == int(unix.SIGTERM)
}

// falter waits for the news that a peer is gone.
func (m *Member) falter(now time.Time, todo *actions) {
	todo.tell("a rank failed: a member may be gone, and the others are looked after first")
	m.elastic.anew = &anew{faltered: true, term: now, until: now.Add(m.setup.Timing.Falter)}
	m.elasticTimer(now, todo)
	m.followElasticPeers(now, todo)
}

// followElasticPeers looks for members of the world that are gone.
func (m *Member) followElasticPeers(now time.Time, todo *actions) {
	if m.stage != Running {
		return
	}
	for _, peer := range m.record.Members {
		key := peer.Key()
		if peer.Index == m.index || m.elastic.gone[key] || !slices.Contains(m.elastic.members, key) {
			continue
		}
		r, there := m.sight.Reports[key]
		switch {
		case there && r.State == contract.StateEnded && r.Exit != nil && r.Exit.Outcome != contract.OutcomeComplete:
			m.lose(now, peer, "ended: "+r.Exit.Text, todo)
			if m.stage != Running {
				return
			}
		case there:
			m.seenPeers[key] = true
		case m.seenPeers[key] && !m.askingPeer:
			m.askingPeer = true
			todo.add(AskPeer{Peer: peer})
		}
	}
}

// lose takes a member for gone, for good.
func (m *Member) lose(now time.Time, peer contract.Member, how string, todo *actions) {
	text := fmt.Sprintf("member %d on %s %s", peer.Index, peer.Node, how)
	m.elastic.gone[peer.Key()] = true
	if m.allZero() && m.launch > 0 { // this member's own work is done
		m.clear(now, todo)
		return
	}
	switch left := m.wanted(); {
	case peer.Index == m.world().HostMember:
		m.end(now, cause{contract.OutcomePeer, text + "; it held the store, which the next attempt opens elsewhere", -1}, todo)
	case len(left) < m.record.Min || m.record.Min == 0:
		m.end(now, cause{contract.OutcomePeer, fmt.Sprintf("%s; %d are left, and the gang needs %d", text, len(left), max(m.record.Min, len(left)+1)), -1}, todo)
	default:
		m.leave(now, 0, fmt.Sprintf("%s; the gang goes on with %s", text, count(len(left), "member")), todo)
	}
}

// meetAnew goes on once the ranks of the world before are gone: the host
// publishes a store, the others start where it says.
func (m *Member) meetAnew(now time.Time, todo *actions) {
	a := m.elastic.anew
	a.ranks = true
	if a.faltered || a.moving {
		return
	}
	e := m.movedStore()
	if m.hosts() {
		if e != nil {
			m.elastic.move = max(m.elastic.move, e.Move)
		}
		a.moving = true
		m.elastic.move++
		want := m.wanted()
		todo.add(MoveStore{Launch: m.launch, Attempt: m.attempt, World: m.world().Name, Move: m.elastic.move, Members: want, Round: m.record.Round,
			Why: "a world of " + count(len(want), "member")})
		return
	}
	if e == nil || e.Move <= m.elastic.move || e.Round < m.elastic.round || !slices.Contains(e.Members, m.setup.Self.Key()) {
		return
	}
	m.elastic.move, m.endpoint = e.Move, e
	m.elastic.meet(e.Members)
	m.start(todo)
}
