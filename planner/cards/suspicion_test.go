package cards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// A story is a list of attempts' ends: "gang@node/cards", minutes apart; a
// leading + is a run to the end, ! a person's clear of the node's card; a gang of
// "ann:a" is a script of ann's that ended by itself.
func TestSuspicion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, story, want string
	}{
		{"one failure is nothing", "a@n0/0", ""},
		{"the same gang twice on one card", "a@n0/0 a@n0/0", "n0/0 suspect"},
		{"and then elsewhere: it is the gang", "a@n0/0 a@n0/0 a@n1/0", ""},
		{"elsewhere first", "a@n1/0 a@n0/0 a@n0/0", ""},
		{"two gangs on one card", "a@n0/0 b@n0/0", "n0/0 suspect"},
		{"three gangs on one card", "a@n0/0 b@n0/0 c@n0/0", "n0/0 quarantined"},
		{"two of three carry their fault with them", "a@n0/0 b@n0/0 c@n0/0 a@n1/1 b@n2/1", "n0/0 quarantined"}, // quarantined stays until a person clears it
		{"three scripts of one user", "ann:a@n0/0 ann:b@n0/0 ann:c@n0/0", "n0/0 suspect"},
		{"three users' scripts", "ann:a@n0/0 bob:b@n0/0 cy:c@n0/0", "n0/0 quarantined"},
		{"one user's scripts, a hang and a signal", "ann:a@n0/0 ann:b@n0/0 c@n0/0 d@n0/0", "n0/0 quarantined"},
		{"three gangs on different cards of a node", "a@n0/0 b@n0/1 c@n0/2", "n0 quarantined"},
		{"two gangs on different cards of a node", "a@n0/0 b@n0/1", "n0 suspect"},
		{"whole nodes tell no card", "a@n0/0,1,2,3 b@n0/0,1,2,3", "n0 suspect"},
		{"three whole nodes", "a@n0/0,1,2,3 b@n0/0,1,2,3 c@n0/0,1,2,3", "n0 quarantined"},
		{"parts that share one card", "a@n0/0,1 b@n0/1,2 c@n0/1,3", "n0/1 quarantined"},
		{"a clean run speaks for the card", "a@n0/0 +b@n0/0 c@n0/0", ""},
		{"a clean run elsewhere does not", "a@n0/0 +b@n1/0 c@n0/0", "n0/0 suspect"},
		{"cleared by a person", "a@n0/0 b@n0/0 c@n0/0 !n0/0", ""},
		{"cleared, and again", "a@n0/0 b@n0/0 c@n0/0 !n0/0 d@n0/0 e@n0/0", "n0/0 suspect"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(3, 4)
			attempts := map[string]int{}
			last := map[string]Outcome{} // of each gang
			var before Saved             // as it was before the last word, where that was an end
			for _, word := range strings.Fields(test.story) {
				d.now = d.now.Add(time.Minute)
				before = d.Saved()
				if at, ok := strings.CutPrefix(word, "!"); ok {
					node, card, _ := strings.Cut(at, "/")
					_, _, err := d.Give(contract.CardOrder{ID: word + d.now.String(), Kind: contract.OrderClear, Card: "GPU-" + node + "-" + card, Who: "ann"}, "", d.now)
					must.NoError(t, err)
					before = d.Saved()
					continue
				}
				word, clean := strings.CutPrefix(word, "+")
				gang, at, _ := strings.Cut(word, "@")
				node, list, _ := strings.Cut(at, "/")
				p := Place{Node: core.NodeID("id-" + node), Name: node}
				if !clean {
					word = at
				}
				for _, k := range strings.Split(list, ",") {
					p.Cards = append(p.Cards, fmt.Sprintf("GPU-%s-%s", node, k))
				}
				attempts[gang]++
				o := Outcome{Gang: gang, Attempt: attempts[gang], At: d.now}
				if by, _, script := strings.Cut(gang, ":"); script {
					o.By = by
				}
				if o.Failed = &p; strings.HasPrefix(word, gang+"@") {
					o.Failed, o.Clean, o.Ran = nil, []Place{p}, time.Hour
				}
				last[gang] = o
				d.take(d.Ended(o))
				d.take(d.Ended(o)) // told twice
			}
			must.Eq(t, test.want, d.marks())
			// A planner that starts anew is told of the last ends again: of one that
			// was not saved in time too.
			for _, saved := range []Saved{d.Saved(), before} {
				again := newDesk(3, 4)
				again.Restore(saved, d.now)
				for _, gang := range slices.Sorted(maps.Keys(last)) {
					again.take(again.Ended(last[gang]))
				}
				must.Eq(t, test.want, again.marks())
			}
		})
	}
}

// marks are the places that failures follow.
func (d *desk) marks() string {
	var out []string
	for _, m := range d.saved.Suspicion.Marks {
		at := strings.TrimPrefix(string(m.Node), "id-")
		if m.Card != "" {
			at += "/" + m.Card[len(m.Card)-1:]
		}
		if m.Quarantined {
			at += " quarantined"
		} else {
			at += " suspect"
		}
		out = append(out, at)
	}
	return strings.Join(out, ", ")
}

func TestSuspicionReachesTheNode(t *testing.T) {
	t.Parallel()
	d := newDesk(2, 2)
	fail := func(gang string) {
		d.now = d.now.Add(time.Minute)
		d.take(d.Ended(Outcome{Gang: gang, Attempt: 1, At: d.now, Failed: &Place{Node: "id-n0", Name: "n0", Cards: []string{"GPU-n0-1"}}}))
	}
	fail("a")
	fail("b")
	must.Eq(t, "1:suspect", d.states("n0"))
	reply, _ := d.tell(t, d.report("r", "n0", 2, nil))
	must.Len(t, 1, reply.Orders)
	must.Eq(t, contract.OrderSuspect, reply.Orders[0].Kind)
	must.Eq(t, contract.CardSuspect, reply.Orders[0].State)
	must.NoError(t, reply.Orders[0].Check())
	must.StrContains(t, reply.Orders[0].Why, "failures follow this card: 2 of a, b")
	fail("c")
	must.Eq(t, "1:quarantined", d.states("n0"))
	must.StrContains(t, d.turned(), "GPU-n0-1 quarantined")
	reply, _ = d.tell(t, d.report("r", "n0", 2, nil))
	must.Len(t, 2, reply.Orders)
	must.Eq(t, contract.CardQuarantined, reply.Orders[1].State)

	// A failure on a card that is out already says nothing new.
	before := len(d.saved.Suspicion.Fails)
	fail("d")
	must.Len(t, before, d.saved.Suspicion.Fails)

	// Time ends what only makes suspect, and never a quarantine.
	d.now = d.now.Add(25 * time.Hour)
	d.take(d.Pass(d.now))
	must.Eq(t, "1:quarantined", d.states("n0"))
	must.SliceEmpty(t, d.saved.Suspicion.Fails)
	changes, ok := d.ClearNode("id-n0", d.now)
	must.True(t, ok)
	must.Eq(t, "", d.states("n0"))
	must.SliceContains(t, changes.Nodes, core.NodeID("id-n0"))
	_, ok = d.ClearNode("id-n0", d.now)
	must.False(t, ok)
}

func TestSuspectNode(t *testing.T) {
	t.Parallel()
	d := newDesk(2, 2)
	all := []string{"GPU-n0-0", "GPU-n0-1"}
	for i, gang := range []string{"a", "b", "c"} {
		d.now = d.now.Add(time.Minute)
		changes := d.Ended(Outcome{Gang: gang, Attempt: 1, At: d.now, Failed: &Place{Node: "id-n0", Name: "n0", Cards: all}})
		n := d.Judged(*d.nodes["id-n0"].of)
		switch i {
		case 1:
			must.SliceContains(t, changes.Nodes, core.NodeID("id-n0"))
			must.True(t, n.Suspect)
			must.StrContains(t, n.SuspectWhy, "failures follow node n0: 2 of a, b")
			must.NotEq(t, uint64(1), n.Version)
		case 2:
			must.True(t, n.Excluded)
		}
	}
	// While the breaker is open the planner condemns nothing new.
	d = newDesk(2, 2)
	d.SetBreaker(true, "by hand", "ann", d.now)
	for _, gang := range []string{"a", "b", "c"} {
		d.now = d.now.Add(time.Minute)
		d.Ended(Outcome{Gang: gang, Attempt: 1, At: d.now, Failed: &Place{Node: "id-n0", Name: "n0", Cards: all}})
	}
	must.False(t, d.Judged(*d.nodes["id-n0"].of).Excluded)
	must.True(t, d.Judged(*d.nodes["id-n0"].of).Suspect)
	d.SetBreaker(false, "", "ann", d.now)
	must.True(t, d.Judged(*d.nodes["id-n0"].of).Excluded)
}
