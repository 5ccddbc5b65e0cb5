package member

import (
	"fmt"
	"testing"
	"time"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/internal/contract"
)

// elasticWorld plays one member of an elastic gang of three; member 0 hosts.
type elasticWorld struct {
	*life
	members []int // of the record in force
	round   int
	settle  time.Duration
}

func newElasticWorld(t *testing.T, index int) *elasticWorld {
	w := &elasticWorld{life: newLife(t, func(l *life) { l.index, l.setup.Config.Elastic = index, true }), members: []int{0, 1, 2}}
	w.seen.Reports = map[string]contract.Report{}
	for i := range 3 {
		w.seen.Reports[key(i)] = contract.Report{State: contract.StateReady}
	}
	return w
}

func key(i int) string { return fmt.Sprintf("a%d.t", i) }

func keys(members ...int) (out []string) {
	for _, i := range members {
		out = append(out, key(i))
	}
	return out
}

func (w *elasticWorld) released() *contract.Record {
	r := &contract.Record{V: 1, Gang: gang, Attempt: 1, Phase: contract.PhaseReleased, Min: 2, Round: w.round, Settle: w.settle}
	world := contract.World{Name: "rank", Host: "192.0.2.1", Port: 20100}
	for place, i := range w.members {
		r.Members = append(r.Members, contract.Member{Index: place, Alloc: fmt.Sprintf("a%d", i), Task: "t", Start: 1, Node: fmt.Sprintf("n%d", i), Address: "192.0.2.1", Ranks: 2})
		world.Members = append(world.Members, place)
	}
	r.Worlds = []contract.World{world}
	return r
}

func (w *elasticWorld) runs() {
	r := w.released()
	r.Phase = contract.PhasePlaced
	w.see(r)
	w.step(Checked{Attempt: 1, Report: contract.Report{Address: "192.0.2.1", Port: 20100, Ranks: 2}})
	w.see(w.released())
	w.ranksStart()
	w.forget()
}

func (w *elasticWorld) ranksStart() {
	for i := range 2 {
		w.step(RankStarted{Launch: w.m.launch, Rank: 2*w.index + i, Local: i, PID: 100 + i})
	}
}

// next writes a round.
func (w *elasticWorld) next(settle time.Duration, members ...int) {
	w.round, w.settle, w.members = w.round+1, settle, members
	w.see(w.released())
}

// loses lets a member's report tell its end.
func (w *elasticWorld) loses(i int, o contract.Outcome) {
	w.seen.Reports[key(i)] = contract.Report{State: contract.StateEnded, Exit: &contract.Exit{Outcome: o, Text: string(o), At: w.now}}
	w.see(w.seen.Record)
}

// meets publishes where the host says to meet.
func (w *elasticWorld) meets(move int, members ...int) {
	w.seen.Endpoints = map[string]contract.Endpoint{"rank": {Host: "192.0.2.1", Port: 20200 + move, Move: move, Members: keys(members...), Round: w.round}}
	w.see(w.seen.Record)
}

func (w *elasticWorld) moved(move int, members ...int) {
	w.step(Moved{Launch: w.m.launch, Endpoint: contract.Endpoint{Host: "192.0.2.1", Port: 20200 + move, Move: move, Members: keys(members...)}})
}

// A peer is gone: the ranks end at once, and the host says where the rest meets.
func TestElasticHostFormsTheWorldAnew(t *testing.T) {
	w := newElasticWorld(t, 0)
	w.runs()
	w.loses(2, contract.OutcomeLost)
	w.did("signal SIGTERM")
	w.rankEnds(0, 1, 0)
	w.did()
	w.rankEnds(1, 0, 15)
	w.did("move 1")
	must.Eq(t, keys(0, 1), moveOf(w.last).Members)
	w.moved(1, 0, 1)
	w.did("launch 2")
	w.ranksStart()
	w.did("publish launched")

	// The planner's word comes later, and changes nothing.
	w.next(0, 0, 1)
	w.did()
	must.Eq(t, Running, w.m.Stage())

	// One more is too many.
	w.loses(1, contract.OutcomeFailed)
	w.did("signal SIGTERM")
	w.wait(DefaultTiming.PeerWait)
	w.over(contract.OutcomePeer, contract.CodePeer)
	must.StrContains(t, w.exit.Text, "1 are left, and the gang needs 2")
}

func moveOf(todo []Action) MoveStore {
	for _, a := range todo {
		if m, ok := a.(MoveStore); ok {
			return m
		}
	}
	return MoveStore{}
}

// Who does not host follows the endpoint, whether it noticed the loss or not.
func TestElasticMemberFollowsTheHost(t *testing.T) {
	w := newElasticWorld(t, 1)
	w.runs()
	w.meets(1, 0, 1)
	w.did("signal SIGTERM")
	w.wait(DefaultTiming.PeerWait) // ranks that hang in a collective do not hold it up
	w.did("launch 2")
	w.see(w.seen.Record)
	w.did()

	w.ranksStart()
	w.meets(2, 0)
	must.Eq(t, Leaving, w.m.Stage())
	w.wait(DefaultTiming.PeerWait)
	w.over(contract.OutcomePeer, contract.CodePeer)
	must.StrContains(t, w.exit.Text, "without this member")
}

// Ranks fail because a peer is gone: not this member's failure, however late
// the news comes; and without any news it is.
func TestElasticFailureWaitsForNewsOfPeers(t *testing.T) {
	w := newElasticWorld(t, 1)
	w.runs()
	w.rankEnds(2, 1, 0)
	w.did("signal SIGTERM")
	w.rankEnds(3, 0, 15)
	w.launcherEnds(1, 0)
	w.wait(DefaultTiming.Falter / 2)
	must.Eq(t, Running, w.m.Stage())
	w.loses(2, contract.OutcomeLost)
	w.meets(1, 0, 1)
	w.did("launch 2")

	w = newElasticWorld(t, 1)
	w.runs()
	w.rankEnds(2, 1, 0)
	w.rankEnds(3, 0, 15)
	w.launcherEnds(1, 0)
	w.wait(DefaultTiming.Falter)
	x := w.over(contract.OutcomeFailed, 1)
	must.Eq(t, 2, x.Rank)

	// torchrun lost the store, and ended its ranks before the news came.
	w = newElasticWorld(t, 1)
	w.runs()
	w.rankEnds(2, 0, 15)
	w.rankEnds(3, 0, 15)
	w.launcherEnds(1, 0)
	w.loses(0, contract.OutcomeLost)
	w.wait(DefaultTiming.PeerWait)
	w.over(contract.OutcomePeer, contract.CodePeer)

	// A code of its own is its own.
	w = newElasticWorld(t, 1)
	w.runs()
	w.rankEnds(2, 42, 0)
	w.rankEnds(3, 0, 15)
	w.launcherEnds(1, 0)
	w.over(contract.OutcomeFailed, 42)
}

func TestElasticHostThatIsGoneEndsAll(t *testing.T) {
	w := newElasticWorld(t, 1)
	w.runs()
	w.loses(0, contract.OutcomeLost)
	w.wait(DefaultTiming.PeerWait)
	w.over(contract.OutcomePeer, contract.CodePeer)
	must.StrContains(t, w.exit.Text, "it held the store")
}

// A round asks everybody to save: those that stay meet anew, the one that is
// left out ends with what it saved. A save in progress extends the time.
func TestElasticRound(t *testing.T) {
	stays := newElasticWorld(t, 0)
	stays.runs()
	stays.next(time.Minute, 0, 1)
	stays.did("ask")
	stays.step(Marked{Rank: 0, Mark: progress.Mark{Kind: progress.Begin, Step: -1}})
	stays.wait(90 * time.Second) // the minute is over, and a save is being written
	must.Eq(t, []string{"publish training"}, stays.log)
	stays.forget()
	stays.step(Marked{Rank: 0, Mark: progress.Mark{Kind: progress.End, Step: 7}})
	stays.rankEnds(0, 1, 0)
	must.False(t, stays.codes[0], must.Sprint("torchrun would end the other while it saves"))
	stays.forget()
	stays.rankEnds(1, 0, 0)
	stays.did("move 1")
	stays.moved(1, 0, 1)
	stays.did("launch 2")

	left := newElasticWorld(t, 2)
	left.runs()
	left.next(time.Minute, 0, 1)
	left.did("ask")
	left.wait(time.Second)
	left.step(Marked{Rank: 4, Mark: progress.Mark{Kind: progress.End, Step: 7}})
	left.rankEnds(4, 0, 0)
	left.rankEnds(5, 0, 0)
	left.over(contract.OutcomeCheckpointed, contract.CodeAsked)

	// Without a settle time it just ends.
	left = newElasticWorld(t, 2)
	left.runs()
	left.next(0, 0, 1)
	left.wait(DefaultTiming.PeerWait)
	left.over(contract.OutcomeKilled, contract.CodeAsked)
}

// Who joins is checked while the others run, starts nothing before it is
// listed, and then only where the host says.
func TestElasticMemberJoins(t *testing.T) {
	w := newElasticWorld(t, 3)
	r := w.released()
	w.see(r) // released without it: an elastic gang may still take it in
	w.did()
	r.Joining = []contract.Member{{Alloc: "a3", Task: "t", Node: "n3"}}
	w.see(r)
	w.did("preflight")
	w.step(Checked{Attempt: 1, Report: contract.Report{Address: "192.0.2.1", Port: 20100, Ranks: 2}})
	w.did("publish ready")
	w.meets(1, 0, 1)
	w.did()
	w.next(time.Minute, 0, 1, 3)
	w.did("marker")
	w.meets(2, 0, 1) // not yet with it
	w.did()
	w.meets(3, 0, 1, 3)
	w.did("launch 1")

	// The host never says: the cards go back.
	w = newElasticWorld(t, 3)
	r = w.released()
	r.Joining = []contract.Member{{Alloc: "a3", Task: "t", Node: "n3"}}
	w.see(r)
	w.step(Checked{Attempt: 1, Report: contract.Report{Address: "192.0.2.1", Port: 20100, Ranks: 2}})
	w.next(time.Minute, 0, 1, 3)
	w.wait(3*time.Minute + DefaultTiming.Meet)
	w.over(contract.OutcomeRefused, contract.CodeRefused)
}

// An ask or a stop in the middle of a change ends the member, whatever state
// the change is in.
func TestElasticAskDuringAChange(t *testing.T) {
	for _, ranksGone := range []bool{false, true} {
		w := newElasticWorld(t, 1)
		w.runs()
		w.next(time.Minute, 0, 1)
		if ranksGone {
			w.rankEnds(2, 0, 0)
			w.rankEnds(3, 0, 0)
		}
		w.step(Asked{contract.Ask{Kind: "preempt", Grace: time.Minute, By: w.now.Add(time.Minute)}})
		if !ranksGone {
			w.rankEnds(2, 0, 0)
			w.rankEnds(3, 0, 0)
		}
		w.over(contract.OutcomeYielded, contract.CodeAsked)
	}
}

// Whatever happens in whatever order, an elastic member ends some time, never
// launches outside the members that it was told, and never completes unless all
// its ranks ended with 0.
func TestElasticAlwaysEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newElasticWorld(t, rapid.IntRange(0, 2).Draw(rt, "index"))
		w.runs()
		move := 0
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			if w.m.Stage() != Running && w.m.Stage() != Leaving {
				break
			}
			switch rapid.IntRange(0, 8).Draw(rt, "event") {
			case 0:
				w.loses((w.index+1+rapid.IntRange(0, 1).Draw(rt, "peer"))%3, rapid.SampledFrom([]contract.Outcome{contract.OutcomeLost, contract.OutcomeFailed, contract.OutcomeComplete, contract.OutcomeCheckpointed}).Draw(rt, "outcome"))
			case 1:
				move++
				w.meets(move, rapid.SampledFrom([][]int{{0, 1}, {0, 1, 2}, {0, 2}, {w.index}}).Draw(rt, "meet")...)
			case 2:
				w.next(time.Duration(rapid.IntRange(0, 60).Draw(rt, "settle"))*time.Second, rapid.SampledFrom([][]int{{0, 1}, {0, 1, 2}, {0, 2}}).Draw(rt, "members")...)
			case 3:
				w.rankEnds(2*w.index+rapid.IntRange(0, 1).Draw(rt, "rank"), rapid.SampledFrom([]int{0, 1, 42}).Draw(rt, "code"), 0)
			case 4:
				w.launcherEnds(rapid.IntRange(0, 1).Draw(rt, "launcher"), 0)
			case 5:
				w.wait(time.Duration(rapid.IntRange(1, 100).Draw(rt, "wait")) * time.Second)
			case 6:
				w.ranksStart()
			case 7:
				if m := moveOf(w.last); m.Move > 0 {
					must.SliceContains(t, m.Members, key(w.index))
					w.step(Moved{Launch: w.m.launch, Endpoint: contract.Endpoint{Host: "192.0.2.1", Port: 20200, Move: m.Move, Members: m.Members}})
				}
			case 8:
				delete(w.seen.Reports, key((w.index+1)%3))
				w.see(w.seen.Record)
				w.step(PeerAnswered{Peer: contract.Member{Alloc: fmt.Sprintf("a%d", (w.index+1)%3), Task: "t"}, Alive: rapid.Bool().Draw(rt, "alive"), Text: "no answer"})
			}
		}
		zero := w.m.allZero()
		w.step(Stopped{Grace: time.Minute})
		w.wait(5 * time.Minute)
		if w.m.Stage() == Clearing {
			w.step(Cleared{})
		}
		must.Eq(t, Over, w.m.Stage(), must.Sprint(w.log))
		if w.exit.Outcome == contract.OutcomeComplete {
			must.True(t, zero)
		}
	})
}
