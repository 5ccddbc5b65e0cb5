package member

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// C22.
func TestPeerThatFailsStopsTheOthers(t *testing.T) {
	for outcome, stops := range map[contract.Outcome]bool{
		contract.OutcomeFailed: true, contract.OutcomeLost: true, contract.OutcomeHung: true, contract.OutcomeRefused: true, contract.OutcomeUnknown: true,
		contract.OutcomePeer: true, contract.OutcomeComplete: false, contract.OutcomeCheckpointed: false,
	} {
		t.Run(string(outcome), func(t *testing.T) {
			l := newLife(t)
			l.running()
			l.forget()
			l.seen.Reports = map[string]contract.Report{"a1.t": {State: contract.StateEnded, Exit: &contract.Exit{Outcome: outcome, Text: "rank 2 ended with code 42"}}}
			l.step(Saw{l.seen})
			if !stops {
				l.did()
				return
			}
			if outcome == contract.OutcomeHung {
				l.did("evidence", "signal SIGTERM")
			} else {
				l.did("signal SIGTERM")
			}
			l.now = l.now.Add(time.Second)
			l.rankEnds(0, 0, 15)
			l.rankEnds(1, 0, 15)
			x := l.over(contract.OutcomePeer, contract.CodePeer)
			must.StrContains(t, x.Text, "member 1 on n2 ended: rank 2 ended with code 42")
			must.False(t, x.Asked)
		})
	}
}

// The peer's end is known, and happened before the rank lost its connection.
func TestExceptionAfterAPeersEndIsThePeers(t *testing.T) {
	for code, want := range map[int]contract.Outcome{1: contract.OutcomePeer, 42: contract.OutcomeFailed} {
		l := newLife(t)
		l.running()
		l.now = l.now.Add(time.Second)
		l.rankEnds(0, code, 0)
		l.seen.Reports = map[string]contract.Report{"a1.t": {State: contract.StateEnded, Exit: &contract.Exit{Outcome: contract.OutcomeHung, Text: "rank 3 hangs", At: epoch}}}
		l.now = l.now.Add(time.Second)
		l.step(Saw{l.seen})
		l.rankEnds(1, 0, 15)
		l.launcherEnds(1, 0)
		l.step(Cleared{})
		must.Eq(t, want, l.exit.Outcome)
	}
}

// A report that vanishes from Consul is not yet a member that vanished.
func TestPeerThatVanishesIsAsked(t *testing.T) {
	l := newLife(t)
	l.running()
	l.forget()
	l.seen.Reports = map[string]contract.Report{"a1.t": {State: contract.StateLaunched}}
	l.step(Saw{l.seen})
	l.seen.Reports = map[string]contract.Report{}
	l.step(Saw{l.seen})
	l.did("ask peer 1")
	l.step(PeerAnswered{Peer: contract.Member{Alloc: "a1", Task: "t"}, Alive: true})
	l.did("ask peer 1")
	must.Eq(t, Running, l.m.Stage())
	l.step(PeerAnswered{Peer: contract.Member{Alloc: "a1", Task: "t"}, Text: "no answer from 192.0.2.1:4000 for 3 s"})
	l.did("signal SIGTERM")
	l.wait(6 * time.Second)
	must.StrContains(t, l.over(contract.OutcomePeer, contract.CodePeer).Text, "member 1 on n2 vanished")

	// All reports gone at once, as after an outage of Consul, and back again.
	l = newLife(t)
	l.running()
	l.seen.Reports = map[string]contract.Report{"a1.t": {State: contract.StateLaunched}}
	l.step(Saw{l.seen})
	l.step(Saw{rendezvous.Sight{Reports: map[string]contract.Report{}}})
	l.step(Saw{l.seen})
	l.step(PeerAnswered{Peer: contract.Member{Alloc: "a1", Task: "t"}})
	must.Eq(t, Running, l.m.Stage())
}

func TestAttemptThatEndedIsStopped(t *testing.T) {
	l := newLife(t)
	l.running()
	l.forget()
	r := l.record(1, contract.PhaseEnded)
	r.Reason = "node-lost"
	l.see(r)
	l.did("signal SIGTERM")
	l.wait(6 * time.Second)
	must.StrContains(t, l.over(contract.OutcomeKilled, contract.CodeAsked).Text, "node-lost")
}

// C22 c: a member that comes back finds that the gang went on without it.
func TestReturningMemberStops(t *testing.T) {
	l := newLife(t)
	l.running()
	l.forget()
	r := l.record(2, contract.PhaseReleased)
	r.Members[0].Alloc = "another"
	l.see(r)
	l.did("signal SIGTERM")
	l.wait(6 * time.Second)
	l.over(contract.OutcomeKilled, contract.CodeAsked)
}

// C20: a busy port is moved, again and again up to a bound, and nothing fails.
func TestBusyPortMoves(t *testing.T) {
	l := newLife(t)
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	l.forget()
	l.step(LauncherEnded{Launch: 1, Code: 1, PortBusy: true, At: l.now})
	l.did("move 1")
	l.step(Moved{Launch: 1, Endpoint: contract.Endpoint{Host: "192.0.2.1", Port: 20444, Move: 1}})
	l.did("launch 2")
	l.step(LauncherEnded{Launch: 1, Code: 1, At: l.now}) // late news of the first
	l.step(RankStarted{Launch: 2, Rank: 0, PID: 1})
	l.step(RankStarted{Launch: 2, Rank: 1, PID: 2})
	l.did("publish launched")
	l.rankEnds(0, 0, 0)
	l.rankEnds(1, 0, 0)
	l.launcherEnds(0, 0)
	l.over(contract.OutcomeComplete, 0)

	// Another member follows the store.
	l = newLife(t, func(l *life) { l.index = 1 })
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	l.forget()
	l.seen.Endpoints = map[string]contract.Endpoint{"rank": {Host: "192.0.2.1", Port: 20444, Move: 1}}
	l.step(Saw{l.seen})
	l.did("launch 2")
	l.step(Saw{l.seen})
	l.did()
	// The host's ranks are done, and what it published is gone with it: the ranks
	// here, of which nothing was heard yet, are not started again elsewhere.
	l.seen.Endpoints = nil
	l.step(Saw{l.seen})
	l.did()

	// So it does where the planner says it in the record.
	l = newLife(t, func(l *life) { l.index = 1 })
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	l.forget()
	r := l.record(1, contract.PhaseReleased)
	r.Worlds[0].Port = 20445
	l.see(r)
	l.did("launch 2")

	// A port that is busy for a rank's own purposes, after they met, is not ours.
	l = newLife(t)
	l.running()
	l.forget()
	l.step(LauncherEnded{Launch: 1, Code: 1, PortBusy: true, At: l.now})
	l.over(contract.OutcomeFailed, 1)

	// Nor is the search endless.
	l = newLife(t)
	l.ready()
	l.see(l.record(1, contract.PhaseReleased))
	for i := 1; i <= maxMoves; i++ {
		l.step(LauncherEnded{Launch: i, Code: 1, PortBusy: true, At: l.now})
		l.step(Moved{Launch: i, Endpoint: contract.Endpoint{Port: 20000 + i, Move: i}})
	}
	l.step(LauncherEnded{Launch: maxMoves + 1, Code: 1, PortBusy: true, At: l.now})
	l.over(contract.OutcomeFailed, 1)
}
