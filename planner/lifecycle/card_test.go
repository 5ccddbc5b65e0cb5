package lifecycle

import (
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
)

// onCards is a world whose members hold a card each.
func onCards(t *testing.T, policy CardPolicy) *world {
	t.Helper()
	w := newWorld(t)
	w.set.Cards = policy
	for id := range w.nodes {
		w.card(id, core.CardHealthy, "")
	}
	w.submit(nil)
	return w
}

// card sets the state of a node's only card, and gives it to the allocations
// there.
func (w *world) card(node string, state core.CardState, why string) {
	n := *w.nodes[node]
	n.Devices = []core.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Cards: []core.Card{{ID: core.CardID("GPU-" + node), Healthy: state <= core.CardSuspect, State: state, Why: why}}}}
	w.nodes[node] = &n
}

func (w *world) hold() {
	for i, a := range w.allocs {
		b := *a
		b.Devices = []picture.Held{{Task: "train", Vendor: "nvidia", Type: "gpu", Name: "H100", IDs: []string{"GPU-" + a.NodeID}}}
		w.allocs[i] = &b
	}
}

func TestCardQuarantinedUnderAGang(t *testing.T) {
	t.Parallel()
	ask := CardPolicy{Quarantined: "ask", Grace: 2 * time.Minute}
	t.Run("it is asked, and goes elsewhere", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, ask)
		w.release()
		w.hold()
		w.card("n1", core.CardSuspect, "Xid 63")
		w.settle()
		must.Nil(t, w.record.Ask)
		w.card("n1", core.CardDraining, "Xid 48")
		w.settle()
		must.Nil(t, w.record.Ask, must.Sprint("a card that drains lets its work end"))
		w.card("n1", core.CardQuarantined, "Xid 79: the card has fallen off the bus")
		w.settle()
		must.Eq(t, "card", w.record.Ask.Kind)
		must.Eq(t, 2*time.Minute, w.record.Ask.Grace)
		must.StrContains(t, w.record.Ask.Why, "member 1: card GPU-n1 on node n1: Xid 79")
		w.exit(0, contract.OutcomeYielded, 0, true)
		w.now = w.now.Add(2*time.Minute + leaveSlack) // the other one hangs
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, ReasonCard, w.gang.Saved.Attempts[0].Reason)
		must.True(t, w.gang.Saved.Damaged, must.Sprint("a repair goes ahead of newcomers"))
		must.Eq(t, 0, w.gang.Saved.Retries)
		must.Eq(t, 1, w.gang.Saved.SiteFailures)
	})
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, CardPolicy{Quarantined: "stop"})
		w.release()
		w.hold()
		w.card("n0", core.CardQuarantined, "Xid 79")
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, ReasonCard, w.gang.Saved.Attempts[0].Reason)
	})
	t.Run("leave", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, CardPolicy{Quarantined: "leave"})
		w.release()
		w.hold()
		w.card("n0", core.CardQuarantined, "Xid 79")
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.Nil(t, w.record.Ask)
	})
	t.Run("before the release", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, ask)
		w.start()
		w.hold()
		w.card("n1", core.CardDraining, "Xid 48")
		w.report(contract.StateReady, 0, 1)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.Attempts[0].Text, "before the ranks were released")
		for _, s := range w.gang.Saved.Attempts[0].Stages {
			must.NotEq(t, contract.StageStarted, s.Stage, must.Sprint("all members were ready, and were let go"))
		}
		must.SliceEmpty(t, w.gang.live(w.seen(false), 0), must.Sprint("the cards are still held"))
	})
}

// A rank that its card killed ends with any code: that is no failure of the
// script, whose retries it would take.
func TestFailureOnABadCard(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		code int
	}{{"an error of the script's", 1}, {"the watchdog aborts", 134}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := onCards(t, CardPolicy{Quarantined: "leave"})
			w.release()
			w.hold()
			w.card("n1", core.CardDraining, "Xid 119")
			w.exit(0, contract.OutcomeFailed, test.code, false) // the first to fail is another's peer
			w.settle()
			w.now = w.now.Add(causeWithin)
			w.settle()
			must.Eq(t, Waiting, w.gang.Saved.Phase)
			last := w.gang.Saved.Attempts[0]
			must.Eq(t, ReasonCard, last.Reason)
			must.Eq(t, 1, last.Member)
			must.StrContains(t, last.Text, "Xid 119")
			must.Eq(t, 0, w.gang.Saved.Retries)
		})
	}
	t.Run("the news come after the end", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, CardPolicy{Quarantined: "leave"})
		w.direct = true
		w.release()
		w.hold()
		w.exit(1, contract.OutcomeFailed, 134, false)
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase, must.Sprint("the card's node may be about to tell"))
		w.now = w.now.Add(300 * time.Millisecond)
		w.card("n1", core.CardQuarantined, "Xid 79")
		w.settle()
		must.Eq(t, ReasonCard, w.gang.Saved.Attempts[0].Reason)
	})
	t.Run("no news", func(t *testing.T) {
		t.Parallel()
		w := onCards(t, CardPolicy{Quarantined: "leave"})
		w.direct = true
		w.release()
		w.hold()
		w.exit(1, contract.OutcomeFailed, 134, false)
		w.settle()
		w.now = w.now.Add(cardNews)
		w.settle()
		must.Eq(t, Over, w.gang.Saved.Phase)
		must.Eq(t, contract.StageFailed, w.gang.Saved.End.Stage)
	})
}
