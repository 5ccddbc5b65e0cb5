package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

// plugin is a node's device plugin as the planner hears of it.
type plugin struct {
	b        *bench
	node     int
	reporter string
	seq      uint64
	cards    []contract.CardStatus
	done     []contract.CardOrderDone
}

func (b *bench) plugin(node, cards int) *plugin {
	p := &plugin{b: b, node: node, reporter: fmt.Sprintf("life-1-of-n%d", node)}
	for k := range cards {
		p.cards = append(p.cards, contract.CardStatus{ID: fmt.Sprintf("GPU-%d-%d", node, k), Group: "nvidia/gpu/H100", Index: k, Slot: fmt.Sprintf("00000000:%02x:00.0", k), State: contract.CardHealthy})
	}
	return p
}

func (p *plugin) set(card int, state, why string) *plugin {
	c := &p.cards[card]
	c.State, c.Why, c.Since = state, why, time.Now()
	c.Evidence = []contract.CardEvidence{{State: state, What: why, Line: "NVRM: Xid (PCI:0000:00:00): 79", Since: c.Since, Last: c.Since, Times: 1}}
	if state == contract.CardHealthy {
		c.Evidence, c.Why, c.Since = nil, "", time.Time{}
	}
	return p
}

func (p *plugin) tell() contract.CardReply {
	p.b.t.Helper()
	p.seq++
	var reply contract.CardReply
	var err error
	r := contract.CardReport{V: 1, Reporter: p.reporter, Seq: p.seq, Node: fmt.Sprintf("n%d", p.node), At: time.Now(), Cards: p.cards, Done: p.done}
	p.b.eventually("the report is taken", func() bool {
		reply, err = p.b.agent.Report(context.Background(), httpapi.Caller{Name: "nodes", Role: view.RoleReporter}, r)
		return err == nil
	})
	p.done = nil
	return reply
}

// hook records the CloudEvents that it gets; it refuses the first try of each.
type hook struct {
	url  string
	mu   sync.Mutex
	seen map[string]bool
	got  []map[string]any
}

func newHook(t *testing.T) *hook {
	h := &hook{seen: map[string]bool{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		id := r.Header.Get("Webhook-Id")
		if !h.seen[id] {
			h.seen[id] = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		var e map[string]any
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		h.got = append(h.got, e)
	}))
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *hook) types() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, e := range h.got {
		out = append(out, strings.TrimPrefix(e["type"].(string), "muster.")+" "+e["subject"].(string))
	}
	return strings.Join(out, ", ")
}

// A refused card is out of the very next plan, and back in it when all say that
// it is well.
func TestRefusedCardIsOutOfTheNextPlan(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).start()
	n1, n2 := b.plugin(1, 1), b.plugin(2, 1)
	n1.set(0, contract.CardQuarantined, "Xid 79: the card has fallen off the bus").tell()
	n2.tell()
	b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=10ms"}})
	g := b.until("g", "refused or waiting", func(g view.Gang) bool {
		return g.Stage == contract.StageRefused || g.Stage == contract.StageQueued && g.Reason != ""
	})
	must.Eq(t, 0, g.Placed)
	cards := b.agent.Cards("n1")
	must.Len(t, 1, cards)
	must.Eq(t, contract.CardQuarantined, cards[0].State)
	must.Eq(t, "report", cards[0].From)
	must.Eq(t, "healthy", cards[0].Nomad)
	for _, n := range b.agent.Nodes() {
		must.NotNil(t, n.Reporting)
		if n.Name == "n1" {
			must.Eq(t, "quarantined", n.Cards[0].State)
		}
	}
	n1.set(0, contract.CardSuspect, "on probation").tell()
	b.stage("g", contract.StageComplete)
}

// Whatever cycle a report falls into, no plan that is carried out after it
// gives the card out: reports come while the core decides.
func TestReportWhileThePlanIsMade(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	slow := &slowDecider{core: decide.New(), entered: make(chan struct{}), leave: make(chan struct{})}
	b.decider = slow
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1})
	for range 100 { // until a plan is being made that starts the gang
		<-slow.entered
		if slow.starts() {
			break
		}
		slow.leave <- struct{}{}
	}
	n1 := b.plugin(1, 1)
	n1.set(0, contract.CardDraining, "Xid 48").tell()
	slow.pass()
	slow.leave <- struct{}{}
	g := b.until("g", "judged by the next plan", func(g view.Gang) bool { return g.Reason != "" && g.Reason != core.ReasonFits && g.Attempt == 0 })
	must.Eq(t, 0, g.Attempt)
	must.Eq(t, 0, b.live("g"))
}

// slowDecider stops in each decision until it is let go.
type slowDecider struct {
	core           core.Decider
	entered, leave chan struct{}
	mu             sync.Mutex
	plan           *core.Plan
	free           bool
}

func (s *slowDecider) starts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.plan.Starts) > 0
}

// pass lets all later decisions go on at once.
func (s *slowDecider) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
}

func (s *slowDecider) Decide(snap *core.Snapshot) *core.Plan {
	plan := s.core.Decide(snap)
	s.mu.Lock()
	s.plan = plan
	free := s.free
	s.mu.Unlock()
	if free {
		return plan
	}
	s.entered <- struct{}{}
	<-s.leave
	return plan
}

// The owner gang is told and repaired elsewhere; the quarantine, told once over
// a restart, and the card's return are posted and retried.
func TestQuarantineUnderAGang(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	b := newBench(t, 3, 1).direct()
	b.cfg.DataDir = t.TempDir()
	b.cfg.Webhooks = []notify.Webhook{{Name: "ops", URL: h.url, Types: []string{notify.CardQuarantined, notify.CardReturned, notify.BreakerTripped}}}
	b.start()
	b.submit(job{id: "g", count: 2, cards: 1})
	g := b.stage("g", contract.StageTraining)
	bad := 0
	for _, m := range g.Detail.Members {
		must.NotEq(t, "", m.Node)
	}
	_, err := fmt.Sscanf(g.Detail.Members[1].Node, "n%d", &bad)
	must.NoError(t, err)
	p := b.plugin(bad, 1)
	reply := p.tell()
	b.eventually("the node is told who holds its card", func() bool {
		reply = p.tell()
		return reply.Holders[p.cards[0].ID] == contract.CardHolder{Gang: "default/g", Queue: "default", Attempt: 1}
	})
	must.Positive(t, reply.Every)
	p.set(0, contract.CardQuarantined, "Xid 79: the card has fallen off the bus").tell()
	g = b.until("g", "running elsewhere", func(g view.Gang) bool { return g.Attempt == 2 && g.Stage == contract.StageTraining })
	for _, m := range g.Detail.Members {
		must.NotEq(t, fmt.Sprintf("n%d", bad), m.Node)
	}
	told := false
	for _, e := range g.Detail.Events {
		told = told || e.Kind == view.EventCard && strings.Contains(e.Text, "is quarantined: Xid 79")
	}
	must.True(t, told, must.Sprint("the gang's events have it"))
	must.StrContains(t, g.Detail.Attempts[0].Exit.Text, "Xid 79")
	b.eventually("the quarantine is posted", func() bool { return h.types() == fmt.Sprintf("card.quarantined n%d/%s", bad, p.cards[0].ID) })
	data := h.got[0]["data"].(map[string]any)
	must.Eq(t, "default/g", data["gang"].(string))
	must.Eq(t, "00000000:00:00.0", data["slot"].(string))
	must.StrContains(t, data["evidence"].([]any)[0].(map[string]any)["line"].(string), "NVRM: Xid")

	// A planner that starts again tells nothing twice, and carries an order on.
	o, err := b.agent.OrderCard(context.Background(), httpapi.Caller{Name: "ann"}, p.cards[0].ID, "", contract.OrderClear, view.CardRequest{Why: "replaced"})
	must.NoError(t, err)
	must.Eq(t, view.OrderWaiting, o.State)
	b.stop()
	b.start()
	b.eventually("the order is there over a restart", func() bool {
		reply = p.tell()
		return len(reply.Orders) == 1
	})
	must.Eq(t, contract.CardOrder{ID: o.ID, Kind: contract.OrderClear, Card: p.cards[0].ID, Who: "ann", Why: "replaced"}, reply.Orders[0])
	p.done = []contract.CardOrderDone{{ID: o.ID}}
	must.SliceEmpty(t, p.set(0, contract.CardHealthy, "").tell().Orders)
	got, ok := b.agent.CardOrder(o.ID)
	must.True(t, ok)
	must.Eq(t, view.OrderDone, got.State)
	b.eventually("the return is posted", func() bool {
		return h.types() == fmt.Sprintf("card.quarantined n%d/%s, card.returned n%d/%s", bad, p.cards[0].ID, bad, p.cards[0].ID)
	})
}

// Cards that turn bad all over the cluster at once: the breaker opens, the
// nodes are told, an event is posted, and a person closes it.
func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	b := newBench(t, 4, 2)
	b.cfg.Webhooks = []notify.Webhook{{Name: "ops", URL: h.url, Types: []string{notify.BreakerTripped}}}
	b.start()
	b.eventually("the picture is whole", func() bool { return len(b.agent.Nodes()) == 4 })
	for i := 1; i <= 3; i++ {
		must.False(t, b.agent.Breaker().Open)
		b.plugin(i, 2).set(0, contract.CardQuarantined, "Xid 140").tell()
	}
	must.True(t, b.agent.Breaker().Open)
	reply := b.plugin(4, 2).tell()
	must.True(t, reply.Breaker)
	must.False(t, reply.BreakerSince.IsZero())
	b.eventually("the trip is posted", func() bool { return h.types() == "breaker.tripped breaker" })
	var hint string
	for _, p := range b.agent.Status().Problems {
		hint += p.Hint
	}
	must.StrContains(t, hint, "muster card breaker -close")
	b.stop()
	b.start()
	b.eventually("it is open over a restart", func() bool { return b.agent.Breaker().Open })
	closed, err := b.agent.SetBreaker(context.Background(), httpapi.Caller{Name: "ann"}, view.BreakerRequest{Why: "driver rolled back"})
	must.NoError(t, err)
	must.False(t, closed.Open)
	must.Eq(t, "ann", closed.By)
}

// Failures that follow a card over gangs take it out, and its node is told.
// Scripts of one user that exit by themselves make it suspect only.
func TestFailuresFollowACard(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, 1).start()
	p := b.plugin(1, 1)
	p.tell()
	for i, want := range []string{contract.CardHealthy, contract.CardSuspect, contract.CardSuspect, contract.CardQuarantined} {
		id, end := fmt.Sprintf("g%d", i), "exit=7"
		if i > 1 {
			end = "signal=7"
		}
		b.submit(job{id: id, count: 1, cards: 1, args: []string{"run=5ms", end}})
		b.stage(id, contract.StageFailed)
		b.eventually("the card is "+want, func() bool { return b.agent.Cards("n1")[0].State == want })
	}
	c, err := b.agent.Card("GPU-1-0", "")
	must.NoError(t, err)
	must.Eq(t, "planner", c.From)
	must.StrContains(t, c.Why, "failures follow this card: 4 of default/g0, default/g1, default/g2, default/g3")
	reply := p.tell()
	must.Len(t, 2, reply.Orders)
	must.Eq(t, contract.OrderSuspect, reply.Orders[1].Kind)
	must.Eq(t, contract.CardQuarantined, reply.Orders[1].State)
	// It is known over a restart, and a person ends it.
	b.stop()
	b.start()
	b.eventually("the card is still out", func() bool {
		list := b.agent.Cards("n1")
		return len(list) == 1 && list[0].State == contract.CardQuarantined
	})
	_, err = b.agent.OrderCard(context.Background(), httpapi.Caller{Name: "ann"}, "GPU-1-0", "n1", contract.OrderClear, view.CardRequest{})
	must.NoError(t, err)
	must.Eq(t, contract.CardHealthy, b.agent.Cards("n1")[0].State)
	// What the person ended is not counted again by a planner that reads those
	// gangs' ends anew.
	b.stop()
	b.start()
	warm(b)
	b.submit(job{id: "after", count: 1, cards: 1, args: []string{"run=5ms"}})
	b.stage("after", contract.StageComplete)
}

// What people stop, and what the site's failures explain, is laid on no card.
func TestStoppedGangsAreNoFailures(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, 1).start()
	for i := range 3 {
		id := fmt.Sprintf("g%d", i)
		b.submit(job{id: id, count: 1, cards: 1})
		b.stage(id, contract.StageTraining)
		_, err := b.agent.Stop(context.Background(), httpapi.Caller{Name: "test"}, "default", id, view.StopRequest{})
		must.NoError(t, err)
		b.stage(id, contract.StageCancelled)
	}
	must.Eq(t, contract.CardHealthy, b.agent.Cards("n1")[0].State)
}

// Who holds a card is known within seconds, also where nothing more happens
// that would make the planner look again.
func TestHoldersComeWithoutFurtherNews(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 2).direct()
	b.slow = time.Hour
	b.start()
	for _, id := range []string{"first", "second"} {
		b.submit(job{id: id, count: 1, cards: 2, args: []string{"save=slowly"}})
		b.stage(id, contract.StageTraining)
	}
	held := map[string]int{}
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && held["default/second"] < 2; time.Sleep(50 * time.Millisecond) {
		clear(held)
		for _, k := range b.agent.Cards("") {
			held[k.Holder]++
		}
	}
	must.Eq(t, map[string]int{"default/first": 2, "default/second": 2}, held)
}

// What the core said of a gang last does not stand beside its end.
func TestVerdictOfAGangThatIsOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, 1).direct().start()
	b.submit(job{id: "g", count: 1, cards: 1, args: []string{"run=5ms"}})
	g := b.stage("g", contract.StageComplete)
	must.Eq(t, "its only member ended complete", g.Detail.Verdict.Sentence)
	must.Eq(t, g.Sentence, g.Detail.Verdict.Sentence)
	must.SliceEmpty(t, g.Detail.Verdict.Blockers)
}
