package cards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// desk is a book with nodes of some cards, and what it told.
type desk struct {
	*Book
	now    time.Time
	events []Event
	seq    map[string]uint64
}

func newDesk(nodes, cards int) *desk {
	d := &desk{Book: NewBook(DefaultSettings()), now: noon, seq: map[string]uint64{}}
	for i := range nodes {
		d.nomad(fmt.Sprintf("n%d", i), cards, nil)
	}
	return d
}

func (d *desk) take(c Changes) Changes {
	d.events = append(d.events, c.Events...)
	return c
}

// nomad has Nomad say what a node's cards are like; all are healthy but bad.
func (d *desk) nomad(name string, cards int, bad map[int]core.CardState) Changes {
	n := &core.Node{ID: core.NodeID("id-" + name), Name: name, Version: 1, Devices: []core.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100"}}}
	for k := range cards {
		s := bad[k]
		n.Devices[0].Cards = append(n.Devices[0].Cards, core.Card{ID: core.CardID(fmt.Sprintf("GPU-%s-%d", name, k)), Healthy: s <= core.CardSuspect, State: s})
	}
	return d.take(d.Nomad(n.ID, n, d.now))
}

// report is a node's next report, all cards healthy but bad.
func (d *desk) report(reporter, name string, cards int, bad map[int]string) contract.CardReport {
	d.seq[reporter]++
	r := contract.CardReport{V: 1, Reporter: reporter, Seq: d.seq[reporter], Node: name, At: d.now}
	for k := range cards {
		c := contract.CardStatus{ID: fmt.Sprintf("GPU-%s-%d", name, k), Group: "nvidia/gpu/H100", Index: k, Slot: fmt.Sprintf("00000000:%02x:00.0", k), State: contract.CardHealthy}
		if s := bad[k]; s != "" {
			c.State, c.Why, c.Since = s, "Xid of some kind", d.now
			c.Evidence = []contract.CardEvidence{{State: s, What: c.Why, Line: "NVRM: Xid", Since: d.now, Last: d.now, Times: 1}}
		}
		r.Cards = append(r.Cards, c)
	}
	return r
}

func (d *desk) tell(t require, r contract.CardReport) (contract.CardReply, Changes) {
	reply, changes, err := d.Report(r, "rita", d.now)
	if err != nil {
		t.Fatalf("report: %v", err)
	}
	return reply, d.take(changes)
}

type require interface {
	Fatalf(string, ...any)
}

// states are a node's cards that are not healthy: "0:draining 3:suspect".
func (d *desk) states(name string) string {
	n := d.nodes[core.NodeID("id-"+name)]
	var out []string
	for _, id := range slices.Sorted(maps.Keys(n.verdicts)) {
		out = append(out, id[strings.LastIndexByte(id, '-')+1:]+":"+StateName(n.verdicts[id].State))
	}
	return strings.Join(out, " ")
}

func (d *desk) turned() string {
	var out []string
	for _, e := range d.events {
		if e.Told {
			continue
		}
		text := string(e.Kind)
		if e.Kind == CardTurned {
			text = e.Card + " " + StateName(e.State)
		}
		out = append(out, text)
	}
	d.events = nil
	return strings.Join(out, ", ")
}

func TestTheWorstWordCounts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		report   string
		nomad    core.CardState
		suspects bool
		want     string
	}{
		{"all say healthy", contract.CardHealthy, core.CardHealthy, false, ""},
		{"the report is first", contract.CardQuarantined, core.CardHealthy, false, "0:quarantined"},
		{"Nomad lags behind a clear", contract.CardHealthy, core.CardDraining, false, "0:draining"},
		{"Nomad is worse", contract.CardSuspect, core.CardQuarantined, false, "0:quarantined"},
		{"the report is worse", contract.CardDraining, core.CardSuspect, false, "0:draining"},
		{"a state of a later version", "exploded", core.CardHealthy, false, "0:quarantined"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(1, 2)
			r := d.report("a", "n0", 2, nil)
			r.Cards[0].State = test.report
			if stateOf(test.report) == core.CardQuarantined && test.report != contract.CardQuarantined {
				// Check refuses it: the whole report is not believed.
				_, _, err := d.Report(r, "rita", d.now)
				must.ErrorContains(t, err, "exploded")
				return
			}
			d.tell(t, r)
			d.nomad("n0", 2, map[int]core.CardState{0: test.nomad})
			must.Eq(t, test.want, d.states("n0"))
		})
	}
}

func TestJudgedNode(t *testing.T) {
	t.Parallel()
	d := newDesk(1, 4)
	of := *d.nodes["id-n0"].of
	must.Eq(t, of, d.Judged(of), must.Sprint("nothing to say, nothing changed"))
	_, changes := d.tell(t, d.report("a", "n0", 4, map[int]string{1: contract.CardQuarantined, 2: contract.CardSuspect}))
	must.Eq(t, []core.NodeID{"id-n0"}, changes.Nodes)
	got := d.Judged(of)
	must.NotEq(t, of.Version, got.Version)
	must.True(t, of.Devices[0].Cards[1].Healthy, must.Sprint("what Nomad said stays as it was"))
	must.False(t, got.Devices[0].Cards[1].Healthy)
	must.Eq(t, core.CardQuarantined, got.Devices[0].Cards[1].State)
	must.Eq(t, core.CardSuspect, got.Devices[0].Cards[2].State)
	must.True(t, got.Devices[0].Cards[2].Healthy)
	must.Eq(t, got.Version, d.Judged(of).Version)
	why, bad := d.Refuses("id-n0", "GPU-n0-1")
	must.True(t, bad)
	must.Eq(t, "Xid of some kind", why)
	_, bad = d.Refuses("id-n0", "GPU-n0-2")
	must.False(t, bad)
}

// A report that comes twice, late or out of order never undoes a newer one.
func TestReportsInOrder(t *testing.T) {
	t.Parallel()
	d := newDesk(1, 2)
	first := d.report("a", "n0", 2, nil)
	second := d.report("a", "n0", 2, map[int]string{0: contract.CardDraining})
	d.tell(t, second)
	_, changes := d.tell(t, first)
	must.SliceEmpty(t, changes.Nodes)
	must.Eq(t, "0:draining", d.states("n0"))
	_, changes = d.tell(t, second)
	must.SliceEmpty(t, changes.Nodes)

	// Another life of the plugin takes over; a late word of the old one is nothing.
	d.now = d.now.Add(time.Minute)
	late := d.report("a", "n0", 2, map[int]string{1: contract.CardQuarantined})
	d.now = d.now.Add(time.Second)
	d.tell(t, d.report("b", "n0", 2, nil))
	must.Eq(t, "", d.states("n0"))
	must.MapLen(t, 1, d.reporters)
	d.tell(t, late)
	must.Eq(t, "", d.states("n0"))
	must.MapLen(t, 1, d.reporters)
}

func TestReporterSpeaksForOneNode(t *testing.T) {
	t.Parallel()
	d := newDesk(2, 2)
	d.tell(t, d.report("a", "n0", 2, nil))
	_, _, err := d.Report(d.report("a", "n1", 2, nil), "rita", d.now)
	must.ErrorContains(t, err, "spoke for node n0 before")
	// Two machines of one name are told apart by their cards.
	other := d.report("c", "n0", 2, map[int]string{0: contract.CardQuarantined})
	for i := range other.Cards {
		other.Cards[i].ID = fmt.Sprintf("GPU-n1-%d", i)
	}
	d.tell(t, other)
	must.Eq(t, "", d.states("n0"))
	must.Eq(t, "0:quarantined", d.states("n1"))
	must.MapLen(t, 2, d.reporters)
}

// Where the direct path is down, Nomad's word alone counts.
func TestSilentReporter(t *testing.T) {
	t.Parallel()
	d := newDesk(1, 2)
	d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardDraining}))
	d.nomad("n0", 2, map[int]core.CardState{0: core.CardDraining, 1: core.CardSuspect})
	must.Eq(t, "0:draining 1:suspect", d.states("n0"))
	d.now = d.now.Add(d.stale() + time.Second)
	d.take(d.Pass(d.now))
	must.Eq(t, "0:draining 1:suspect", d.states("n0"))
	// Nomad hears that it is healthy again; the last report does not hold it.
	d.nomad("n0", 2, nil)
	must.Eq(t, "", d.states("n0"))
	d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	must.Eq(t, "0:quarantined", d.states("n0"))
	d.now = d.now.Add(20 * time.Hour)
	d.Pass(d.now)
	d.Pass(d.now)
	must.MapLen(t, 0, d.reporters, must.Sprint("one that is silent for long is forgotten"))
}

func TestCardThatNobodyVouchesFor(t *testing.T) {
	t.Parallel()
	d := newDesk(1, 3)
	r := d.report("a", "n0", 3, nil)
	r.Cards = r.Cards[:2]
	d.tell(t, r)
	must.Eq(t, "2:draining", d.states("n0"))
	// Of a kind that the plugin says nothing of, another one publishes the cards.
	r = d.report("a", "n0", 3, nil)
	for i := range r.Cards {
		r.Cards[i].Group = "amd/gpu/MI300X"
	}
	r.Cards = r.Cards[:2]
	d.tell(t, r)
	must.Eq(t, "", d.states("n0"))
	r = d.report("a", "n0", 3, nil)
	r.Cards[1].Hidden = "cut into slices"
	d.tell(t, r)
	must.Eq(t, "1:draining", d.states("n0"))
}

// A report may come before Nomad knows the node, or its cards.
func TestReportBeforeNomad(t *testing.T) {
	t.Parallel()
	d := newDesk(0, 0)
	d.tell(t, d.report("a", "n0", 2, map[int]string{1: contract.CardQuarantined}))
	d.nomad("n0", 0, nil)
	d.nomad("n0", 2, nil)
	must.Eq(t, "1:quarantined", d.states("n0"))
	// The node's name is not Nomad's: its cards tell.
	d.nomad("other", 2, nil)
	r := d.report("b", "host-7", 2, map[int]string{0: contract.CardDraining})
	for i := range r.Cards {
		r.Cards[i].ID = fmt.Sprintf("GPU-other-%d", i)
	}
	d.tell(t, r)
	must.Eq(t, "0:draining", d.states("other"))
	d.Nomad("id-other", nil, d.now)
	d.nomad("other", 2, nil)
	must.Eq(t, "", d.states("other"), must.Sprint("until it tells again, since the names differ"))
	r.Seq++
	d.tell(t, r)
	must.Eq(t, "0:draining", d.states("other"))
}

// A planner that starts does not take Nomad's older word for a card that it knew
// to be bad.
func TestBadCardOverARestart(t *testing.T) {
	t.Parallel()
	d := newDesk(2, 3)
	d.tell(t, d.report("a", "n0", 3, map[int]string{0: contract.CardQuarantined, 1: contract.CardDraining, 2: contract.CardSuspect}))
	must.Len(t, 2, d.Saved().Out)
	restart := func() *desk {
		next := &desk{Book: NewBook(DefaultSettings()), now: d.now, seq: d.seq}
		next.take(next.Restore(d.Saved(), d.now))
		next.nomad("n0", 3, nil) // has not heard yet
		return next
	}
	next := restart()
	must.Eq(t, "0:quarantined 1:draining", next.states("n0"))
	must.Eq(t, "", next.turned())
	next.tell(t, next.report("a", "n0", 3, map[int]string{0: contract.CardQuarantined}))
	must.Eq(t, "0:quarantined", next.states("n0"), must.Sprint("the node's own word takes its place"))
	must.Len(t, 1, next.Saved().Out)

	next = restart() // the node is silent: Nomad's word counts once it had its time
	next.now = next.now.Add(Inherit - time.Second)
	next.take(next.Pass(next.now))
	must.Eq(t, "0:quarantined 1:draining", next.states("n0"))
	next.now = next.now.Add(time.Second)
	next.take(next.Pass(next.now))
	must.Eq(t, "", next.states("n0"))
	must.SliceEmpty(t, next.Saved().Out)
}

// A quarantine is told once, over restarts, however it is learned of.
func TestQuarantineIsToldOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(1, 2)
	bad := d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined})
	d.tell(t, bad)
	must.Eq(t, "GPU-n0-0 quarantined", d.turned())
	again := d.report("a", "n0", 2, nil)
	again.Cards = bad.Cards
	d.tell(t, again)
	d.nomad("n0", 2, map[int]core.CardState{0: core.CardQuarantined})
	must.Eq(t, "", d.turned())

	restart := func() *desk {
		next := &desk{Book: NewBook(DefaultSettings()), now: d.now, seq: d.seq}
		next.take(next.Restore(d.Saved(), d.now))
		return next
	}
	next := restart()
	next.nomad("n0", 2, map[int]core.CardState{0: core.CardQuarantined}) // Nomad is heard first, and knows no time
	r := d.report("a", "n0", 2, nil)
	r.Cards = bad.Cards
	next.tell(t, r)
	must.Eq(t, "", next.turned())

	// Cleared, and bad again while the planner was away.
	next = restart()
	next.now = next.now.Add(time.Hour)
	next.tell(t, next.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	next.nomad("n0", 2, nil)
	must.Eq(t, "GPU-n0-0 quarantined", next.turned())

	d.nomad("n0", 2, nil)
	d.tell(t, d.report("a", "n0", 2, nil))
	must.Eq(t, "GPU-n0-0 healthy", d.turned())
	d.now = d.now.Add(time.Minute)
	d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	must.Eq(t, "GPU-n0-0 quarantined", d.turned())
}

func TestOrders(t *testing.T) {
	t.Parallel()
	d := newDesk(2, 2)
	d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	give := func(o contract.CardOrder, node string) (Order, error) {
		order, changes, err := d.Give(o, node, d.now)
		d.take(changes)
		return order, err
	}
	o := contract.CardOrder{ID: "1", Kind: contract.OrderClear, Card: "GPU-n0-0", Who: "ann", Why: "replaced"}
	_, err := give(o, "")
	must.NoError(t, err)
	_, err = give(o, "") // repeated
	must.NoError(t, err)
	must.Len(t, 1, d.saved.Orders)
	_, err = give(contract.CardOrder{ID: "2", Kind: contract.OrderClear, Card: "GPU-x", Who: "ann"}, "")
	must.ErrorIs(t, err, ErrNoCard)
	_, err = give(contract.CardOrder{ID: "2", Kind: contract.OrderClear, Card: "GPU-n0-0"}, "")
	must.ErrorContains(t, err, "who gives the order")
	_, err = give(contract.CardOrder{ID: "3", Kind: contract.OrderNote, Card: "GPU-n1-0", Who: "ann", Why: "x"}, "n1")
	must.NoError(t, err)

	reply, _ := d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	must.Eq(t, []contract.CardOrder{o}, reply.Orders, must.Sprint("those of its own cards"))
	reply, _ = d.tell(t, d.report("a", "n0", 2, map[int]string{0: contract.CardQuarantined}))
	must.Len(t, 1, reply.Orders, must.Sprint("repeated until it is reported as done"))

	// A planner that starts again knows it still; another node's word is not its own.
	next := &desk{Book: NewBook(DefaultSettings()), now: d.now, seq: d.seq}
	next.Restore(d.Saved(), d.now)
	next.nomad("n0", 2, nil)
	next.nomad("n1", 2, nil)
	liar := next.report("z", "n1", 2, nil)
	liar.Done = []contract.CardOrderDone{{ID: "1"}}
	next.tell(t, liar)
	r := next.report("a", "n0", 2, nil)
	reply, _ = next.tell(t, r)
	must.Len(t, 1, reply.Orders)
	r = next.report("a", "n0", 2, nil)
	r.Done = []contract.CardOrderDone{{ID: "1", Error: "its self-test failed"}, {ID: "unknown"}}
	reply, changes := next.tell(t, r)
	must.SliceEmpty(t, reply.Orders)
	must.True(t, changes.Save)
	got, ok := next.Order("1")
	must.True(t, ok)
	must.Eq(t, "its self-test failed", got.Error)
	must.Eq(t, next.now, got.Done)

	next.now = next.now.Add(keepDone + time.Second)
	next.Pass(next.now)
	_, ok = next.Order("1")
	must.False(t, ok)
	for i := range mostOpen + 5 {
		_, _, err = next.Give(contract.CardOrder{ID: fmt.Sprint("m", i), Kind: contract.OrderNote, Card: "GPU-n1-0", Who: "ann", Why: "x"}, "", next.now)
	}
	must.ErrorIs(t, err, ErrTooMany)
	_, _, err = next.Give(contract.CardOrder{ID: "own", Kind: contract.OrderSuspect, Card: "GPU-n1-0", Who: "planner", State: contract.CardSuspect}, "", next.now)
	must.NoError(t, err, must.Sprint("the planner's own do not count with those of persons"))
	must.LessEq(t, mostOrders, len(next.saved.Orders))
}

// The same card id on two nodes: a NIC's name, say.
func TestSameIDOnTwoNodes(t *testing.T) {
	t.Parallel()
	d := newDesk(0, 0)
	for _, name := range []string{"n0", "n1"} {
		d.take(d.Nomad(core.NodeID("id-"+name), &core.Node{ID: core.NodeID("id-" + name), Name: name, Devices: []core.DeviceGroup{
			{Vendor: "nvidia", Type: "gpu", Name: "H100", Cards: []core.Card{{ID: core.CardID("GPU-" + name + "-0"), Healthy: true}}},
			{Vendor: "mellanox", Type: "nic", Name: "CX7", Cards: []core.Card{{ID: "mlx5_0", Healthy: true}}}}}, d.now))
	}
	r := d.report("a", "n1", 1, nil)
	r.Cards = append(r.Cards, contract.CardStatus{ID: "mlx5_0", Group: "mellanox/nic/CX7", State: contract.CardDraining, Why: "its port is down"})
	d.tell(t, r)
	must.Eq(t, "", d.states("n0"))
	must.Eq(t, "mlx5_0:draining", d.states("n1"))
	_, _, err := d.Where("mlx5_0", "")
	must.ErrorIs(t, err, ErrSeveral)
	id, _, err := d.Where("mlx5_0", "n1")
	must.NoError(t, err)
	must.Eq(t, core.NodeID("id-n1"), id)
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	t.Run("one node's failure is none", func(t *testing.T) {
		t.Parallel()
		d := newDesk(8, 8)
		all := map[int]string{}
		for k := range 8 {
			all[k] = contract.CardDraining
		}
		d.tell(t, d.report("r0", "n0", 8, all))
		must.False(t, d.Breaker().Open)
	})
	t.Run("a driver roll-out", func(t *testing.T) {
		t.Parallel()
		d := newDesk(20, 8) // 5 % of 160 are 8 cards
		for i := range 8 {
			d.tell(t, d.report(fmt.Sprint("r", i), fmt.Sprint("n", i), 8, map[int]string{0: contract.CardQuarantined}))
			d.now = d.now.Add(30 * time.Second)
		}
		must.False(t, d.Breaker().Open)
		d.turned()
		reply, _ := d.tell(t, d.report("r8", "n8", 8, map[int]string{0: contract.CardQuarantined}))
		must.True(t, d.Breaker().Open)
		must.Eq(t, "GPU-n8-0 quarantined, breaker-open", d.turned())
		must.True(t, reply.Breaker)
		must.Eq(t, d.now, reply.BreakerSince)
		must.StrContains(t, d.Breaker().Why, "9 of 160 cards turned bad within 10m0s, on 9 nodes")

		// It stays open over a restart, until a person closes it; then it counts anew.
		next := &desk{Book: NewBook(DefaultSettings()), now: d.now, seq: d.seq}
		next.Restore(d.Saved(), d.now)
		must.True(t, next.Breaker().Open)
		d.take(d.SetBreaker(false, "a bad driver, rolled back", "ann", d.now.Add(time.Minute)))
		must.False(t, d.Breaker().Open)
		must.Eq(t, "breaker-closed", d.turned())
		d.now = d.now.Add(2 * time.Minute)
		for i := 9; i < 20; i++ { // what was held back counts now, and is no new burst
			r := d.report(fmt.Sprint("r", i), fmt.Sprint("n", i), 8, map[int]string{0: contract.CardQuarantined})
			r.Cards[0].Since = d.now.Add(-3 * time.Minute)
			d.tell(t, r)
		}
		must.False(t, d.Breaker().Open)
	})
	t.Run("spread over a day", func(t *testing.T) {
		t.Parallel()
		d := newDesk(20, 8)
		for i := range 20 {
			d.tell(t, d.report(fmt.Sprint("r", i), fmt.Sprint("n", i), 8, map[int]string{0: contract.CardQuarantined}))
			d.now = d.now.Add(5 * time.Minute)
		}
		must.False(t, d.Breaker().Open)
	})
	t.Run("a planner that starts among old faults", func(t *testing.T) {
		t.Parallel()
		d := newDesk(0, 8)
		for i := range 20 {
			d.nomad(fmt.Sprint("n", i), 8, map[int]core.CardState{0: core.CardQuarantined})
			r := d.report(fmt.Sprint("r", i), fmt.Sprint("n", i), 8, map[int]string{0: contract.CardQuarantined})
			r.Cards[0].Since = d.now.Add(-24 * time.Hour)
			d.tell(t, r)
		}
		must.False(t, d.Breaker().Open)
	})
	t.Run("switched off", func(t *testing.T) {
		t.Parallel()
		d := newDesk(20, 8)
		d.set.Breaker.Share = 0
		for i := range 20 {
			d.tell(t, d.report(fmt.Sprint("r", i), fmt.Sprint("n", i), 8, map[int]string{0: contract.CardQuarantined}))
		}
		must.False(t, d.Breaker().Open)
	})
}

// Whatever comes in whatever order: the verdict is the worst of the last words,
// and nothing that is kept grows without bound.
func TestBookProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const nodes, cards = 3, 3
		d := newDesk(nodes, cards)
		d.set.Breaker.Share = 0
		d.set.Stale = time.Hour
		told := map[string]map[int]string{} // last report in force by node
		nomad := map[string]map[int]core.CardState{}
		states := []string{"", contract.CardSuspect, contract.CardDraining, contract.CardQuarantined}
		var old []contract.CardReport
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			d.now = d.now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			name := fmt.Sprint("n", rapid.IntRange(0, nodes-1).Draw(t, "node"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				bad := map[int]string{}
				for k := range cards {
					bad[k] = rapid.SampledFrom(states).Draw(t, "state")
				}
				r := d.report("r-"+name, name, cards, bad)
				old = append(old, r)
				d.tell(t, r)
				told[name] = bad
			case 2:
				bad := map[int]core.CardState{}
				for k := range cards {
					bad[k] = core.CardState(rapid.IntRange(0, 3).Draw(t, "nomad"))
				}
				d.nomad(name, cards, bad)
				nomad[name] = bad
			case 3:
				if len(old) > 0 {
					d.tell(t, rapid.SampledFrom(old).Draw(t, "repeated"))
				}
			}
			d.take(d.Pass(d.now))
			for i := range nodes {
				name := fmt.Sprint("n", i)
				n := d.nodes[core.NodeID("id-"+name)]
				for k := range cards {
					want := max(stateOf(told[name][k]), nomad[name][k])
					if got := n.verdicts[fmt.Sprintf("GPU-%s-%d", name, k)].State; got != want {
						t.Fatalf("card %d of %s is %s, the worst word is %s", k, name, StateName(got), StateName(want))
					}
				}
			}
		}
		if len(d.reporters) > nodes || len(d.byCard) != nodes*cards || d.total != nodes*cards || len(d.saved.Announced) > nodes*cards {
			t.Fatalf("kept: %d reporters, %d cards, %d counted, %d announced", len(d.reporters), len(d.byCard), d.total, len(d.saved.Announced))
		}
	})
}
