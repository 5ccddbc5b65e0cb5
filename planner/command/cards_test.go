package command_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/nomad-muster/muster/planner/view"
)

// ward is a planner that knows cards in every state.
func ward(t *testing.T) *shell {
	t.Helper()
	s := newShell(t)
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	card := func(node string, i int, state, why string) view.CardState {
		id := "GPU-" + node + "-" + string(rune('a'+i)) + "0000000-1111"
		k := view.CardState{ID: id, Node: node, NodeID: "id-" + node, Vendor: "nvidia", Type: "gpu", Model: "NVIDIA H100 80GB HBM3", Index: i, Slot: "00000000:1a:00.0", State: state, Why: why,
			From: "report", Reported: state, ReportAt: after(-2 * time.Second), Nomad: "healthy"}
		if why != "" {
			k.Since = after(-10 * time.Minute)
		}
		return k
	}
	sick := card("n1", 1, contract.CardQuarantined, "Xid 79: the card has fallen off the bus")
	sick.Clears, sick.Accepted, sick.Holder, sick.Serial, sick.Nomad = "a reset or reboot seen before 2026-03-01T12:05:00Z, or a person (muster card clear)", "ann: WO-4711", "research/train-7", "1650123", "unhealthy"
	sick.Detail = &view.CardDetail{
		Evidence: []view.CardEvidence{{State: contract.CardQuarantined, What: sick.Why, Line: "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", Since: after(-10 * time.Minute), Last: after(-9 * time.Minute), Times: 3}},
		Record:   []view.CardNote{{At: after(-5 * time.Minute), Kind: "confirm", Who: "ann", Text: "WO-4711"}, {At: after(-time.Minute), Kind: "test-failed", Text: "2 links are down"}},
		Orders:   []view.CardOrder{{ID: "o1", Kind: "clear", Who: "ann", At: after(-time.Minute), State: view.OrderFailed, Error: "its self-test failed: 2 links are down"}},
		Xids:     []view.CardXid{{Code: 31, Times: 12}, {Code: 79, Times: 3}}, Strikes: 1, Measured: &view.CardUse{Utilization: 3, MemoryUsed: 1024, MemoryTotal: 81559, Processes: 2}}
	suspect := card("n2", 0, contract.CardSuspect, "failures follow this card: 2 of a/x, a/y")
	suspect.From = "planner"
	silent := card("n3", 0, contract.CardDraining, "Xid 48 (ROBUST_CHANNEL_GPU_ECC_DBE): needs a reset")
	silent.From, silent.Silent, silent.ReportAt = "nomad", true, after(-3*time.Hour)
	nic := view.CardState{ID: "n1-mlx5_0", Node: "n1", Vendor: "mellanox", Type: "nic", Model: "MT4129 ConnectX-7", State: contract.CardHealthy, From: "report"}
	down := nic
	down.ID, down.Node, down.State, down.Why, down.Since = "n2-mlx5_0", "n2", contract.CardDraining, "mlx5_0 is down", after(-time.Minute)
	hidden := card("n2", 1, contract.CardHealthy, "")
	hidden.Hidden = "MIG mode is on: it is cut into 3 slices"
	s.planner.SetCluster(nil, []view.Node{{ID: "9", Name: "n9"}}, nil)
	s.planner.SetCards([]view.CardState{card("n1", 0, contract.CardHealthy, ""), sick, nic, suspect, hidden, down, silent}, view.CardBreaker{})
	return s
}

func TestCardScreens(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		open bool
		code int
	}{
		{"cards", []string{"cards"}, true, 0},
		{"cards_bad", []string{"cards", "-state=bad", "-node=n1"}, false, 0},
		{"cards_all", []string{"cards", "-all", "-node=n2"}, false, 0},
		{"cards_none", []string{"cards", "-node=n9"}, false, 0},
		{"card_status", []string{"card", "status", "n1/1"}, false, 0},
		{"card_status_healthy", []string{"card", "status", "GPU-n1-a"}, false, 0},
		{"card_breaker", []string{"card", "breaker"}, true, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := ward(t)
			if test.open {
				s.planner.SetCards(s.planner.Cards(""), view.CardBreaker{Open: true, Since: noon.Add(-time.Hour), Why: "9 of 160 cards turned bad within 10m0s, on 9 nodes"})
			}
			r := s.run(test.args...)
			must.Eq(t, test.code, r.code, must.Sprint(r.stderr))
			golden(t, test.name+".txt", r.stdout)
			must.Eq(t, test.code, s.run(append(test.args, "-json")...).code)
		})
	}
}

// An order is waited for; its failure is the command's.
func TestCardOrders(t *testing.T) {
	t.Parallel()
	finish := func(s *shell, problem string) {
		go func() {
			for range 200 {
				time.Sleep(5 * time.Millisecond)
				s.planner.Finish(problem)
			}
		}()
	}
	t.Run("done", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		finish(s, "")
		r := s.run("card", "clear", "n1/1", "board", "replaced")
		must.Eq(t, 0, r.code, must.Sprint(r.stderr))
		must.StrContains(t, r.stdout, "clear of card GPU-n1-b0000000-1111 on node n1: done")
		must.SliceContains(t, s.planner.Calls(), "clear GPU-n1-b0000000-1111 force=false by anonymous: board replaced")
	})
	t.Run("the self-test fails", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		finish(s, "card GPU-n1-b is not cleared: its self-test failed: 2 links are down; -force clears it all the same")
		r := s.run("card", "clear", "n1/1")
		must.Eq(t, command.ExitError, r.code)
		must.StrContains(t, r.stderr, "2 links are down")
		must.StrContains(t, r.stderr, "-force")
	})
	t.Run("force, confirm and note", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		for _, args := range [][]string{{"card", "clear", "-force", "-detach", "n1/1"}, {"card", "confirm", "-detach", "GPU-n1-b0000000-1111", "WO-1"}, {"card", "note", "-detach", "n1/1", "spare", "ordered"}} {
			r := s.run(args...)
			must.Eq(t, 0, r.code, must.Sprint(r.stderr))
			must.StrContains(t, r.stdout, "waits for node n1")
		}
		calls := strings.Join(s.planner.Calls(), "\n")
		must.StrContains(t, calls, "clear GPU-n1-b0000000-1111 force=true")
		must.StrContains(t, calls, "note GPU-n1-b0000000-1111 force=false by anonymous: spare ordered")
	})
	t.Run("nobody answers", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		r := s.run("card", "clear", "-timeout=20ms", "n1/1")
		must.Eq(t, command.ExitTimeout, r.code)
		must.StrContains(t, r.stderr, "the order o1 stays")
	})
	t.Run("wrong use changes nothing", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		for _, args := range [][]string{{"card", "clear"}, {"card", "clear", "GPU-n1-b"}, {"card", "clear", "n9/0"}, {"card", "note", "n1/1"}, {"card", "confirm", "-force", "n1/1"}, {"cards", "-state=odd"}, {"cards", "-node=n10"}, {"card", "breaker", "-open", "-close"}, {"card", "status", "GPU-"}} {
			must.NotEq(t, 0, s.run(args...).code, must.Sprint(args))
		}
		must.SliceEmpty(t, slices.DeleteFunc(s.planner.Calls(), func(c string) bool { return !strings.Contains(c, "GPU") }))
	})
	t.Run("breaker and node", func(t *testing.T) {
		t.Parallel()
		s := ward(t)
		must.Eq(t, 0, s.run("card", "breaker", "-open", "-why=driver 580").code)
		must.StrContains(t, s.run("cards").stdout, "The circuit breaker is open")
		must.Eq(t, 0, s.run("card", "breaker", "-close", "-why=done").code)
		must.StrContains(t, s.run("node", "clear", "n2", "new", "board").stdout, "Node n2 is cleared")
		must.SliceContains(t, s.planner.Calls(), "clear node n2 by anonymous: new board")
	})
}
