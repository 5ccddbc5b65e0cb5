package fairshare_test

import (
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/fairshare"
)

var models = []core.Model{"A100", "H100"}

const a100, h100 = int32(0), int32(1)

func queue(name, parent string, edit ...func(*core.Queue)) core.Queue {
	q := core.DefaultQueue(core.QueueName(name))
	q.Parent = core.QueueName(parent)
	for _, e := range edit {
		e(&q)
	}
	return q
}

func guaranteed(m core.Model, n int) func(*core.Queue) {
	return func(q *core.Queue) { q.Guaranteed = core.Amounts{Models: map[core.Model]int{m: n}} }
}

func guaranteedAny(n int) func(*core.Queue) {
	return func(q *core.Queue) { q.Guaranteed.Any = n }
}

func maxAny(n int) func(*core.Queue)  { return func(q *core.Queue) { q.Max.Any = n } }
func lendAny(n int) func(*core.Queue) { return func(q *core.Queue) { q.Lend.Any = n } }
func weight(n int) func(*core.Queue)  { return func(q *core.Queue) { q.Weight = n } }
func class(n int) func(*core.Queue)   { return func(q *core.Queue) { q.Class = n } }

func tree(t *testing.T, queues ...core.Queue) *fairshare.Tree {
	t.Helper()
	tree, notices := fairshare.New(queues, models, []int{32, 64})
	must.SliceEmpty(t, notices)
	return tree
}

func need(m int32, n int) []fairshare.Need { return []fairshare.Need{{Model: m, Cards: n}} }

// max is kept by the queue and by all above it, per model and for the sum.
func TestMax(t *testing.T) {
	t.Parallel()
	team := queue("team", "", maxAny(24), func(q *core.Queue) { q.Max.Models = map[core.Model]int{"H100": 16} })
	tr := tree(t, team, queue("a", "team", maxAny(12)), queue("b", "team"))
	a, b := tr.Find("a"), tr.Find("b")
	must.True(t, tr.Allowed(a, need(h100, 12)))
	must.False(t, tr.Allowed(a, need(h100, 13)))
	tr.Add(a, h100, 12)
	must.True(t, tr.Allowed(b, need(h100, 4)))
	must.Eq(t, []fairshare.Limit{{Reason: core.ReasonMax, Queue: tr.Find("team"), Model: h100, Over: 1, Bound: 16}}, tr.Blocked(b, need(h100, 5)))
	tr.Add(b, a100, 8)
	must.Eq(t, []fairshare.Limit{{Reason: core.ReasonMax, Queue: tr.Find("team"), Model: -1, Over: 1, Bound: 24}}, tr.Blocked(b, need(a100, 5)))
	must.Eq(t, &fairshare.Limit{Reason: core.ReasonMax, Queue: a, Model: -1, Over: 8, Bound: 12}, tr.Never(a, need(h100, 20)))
	must.Nil(t, tr.Never(a, need(h100, 12)))
	tr.Add(a, h100, -12)
	must.True(t, tr.Allowed(b, need(h100, 12)))
}

// A guarantee is per model first; "any" guarantees what goes beyond it.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	tr := tree(t, queue("a", "", guaranteed("H100", 8), guaranteedAny(12)), queue("b", "", guaranteed("A100", 4)), queue("c", ""))
	a, b, c := tr.Find("a"), tr.Find("b"), tr.Find("c")
	within := func(q int32, n []fairshare.Need) bool { return tr.Within(q, 0, n) }
	must.True(t, within(a, need(h100, 8)))
	must.True(t, within(a, need(h100, 12))) // 8 of the model, 4 of any
	must.False(t, within(a, need(h100, 13)))
	must.True(t, within(a, []fairshare.Need{{Model: a100, Cards: 4}, {Model: h100, Cards: 8}}))
	must.False(t, within(a, []fairshare.Need{{Model: a100, Cards: 5}, {Model: h100, Cards: 8}}))
	must.False(t, within(b, need(h100, 1)))
	must.False(t, within(c, need(h100, 1)))
	tr.Add(b, a100, 6)
	must.Eq(t, 2, tr.Borrowed(b))
	must.True(t, tr.Borrows(b, 0))
	tr.Leave(b, a100, 2) // asked back already
	must.False(t, tr.Borrows(b, 0))
	must.Eq(t, 2, tr.Excess(b)) // held until they are gone
}

// A parent is guaranteed at least what its children are, and a borrowing child of
// a parent that does not borrow cannot be reclaimed from outside.
func TestInnerQueues(t *testing.T) {
	t.Parallel()
	tr := tree(t, queue("team", ""), queue("a", "team", guaranteed("H100", 8)), queue("b", "team"), queue("other", ""))
	a, b, team, other := tr.Find("a"), tr.Find("b"), tr.Find("team"), tr.Find("other")
	must.Eq(t, 8, tr.Guaranteed(team, h100))
	tr.Add(b, h100, 8)
	must.Eq(t, 0, tr.Common(b, other))
	must.Eq(t, team, tr.Common(a, b))
	must.False(t, tr.Borrows(b, tr.Common(b, other))) // the team holds what it is guaranteed
	must.True(t, tr.Borrows(b, tr.Common(a, b)))      // within the team b borrows from a
	must.True(t, tr.Within(a, team, need(h100, 8)))
	must.True(t, tr.Leaf(a))
	must.False(t, tr.Leaf(team))
	must.Eq(t, []int32{a, team}, tr.Path(a))
}

// What owners do not lend lies idle for borrowers and is there for the owner.
func TestLend(t *testing.T) {
	t.Parallel()
	tr := tree(t, queue("owner", "", guaranteed("H100", 32), lendAny(8)), queue("b", ""))
	owner, b := tr.Find("owner"), tr.Find("b")
	must.True(t, tr.Allowed(b, need(h100, 40))) // 64, less 24 that are withheld
	limits := tr.Blocked(b, need(h100, 73))
	must.SliceLen(t, 1, limits)
	must.Eq(t, core.ReasonLend, limits[0].Reason)
	tr.Add(b, h100, 40)
	tr.Add(b, a100, 32)
	must.False(t, tr.Allowed(b, need(h100, 1)))
	must.True(t, tr.Allowed(owner, need(h100, 24)))
	tr.Add(owner, h100, 24)
	tr.Add(b, h100, -40)
	must.True(t, tr.Allowed(b, need(h100, 40)))
}

// Whose turn it is: within the guarantee first, repairs, the part of the
// guarantee held; then class, the least borrowed for the weight, the name.
func TestTurns(t *testing.T) {
	t.Parallel()
	next := func(tr *fairshare.Tree, heads map[string]int, repair string) string {
		turns := tr.Turns()
		for name, n := range heads {
			turns.Set(tr.Find(core.QueueName(name)), need(h100, n), true, name == repair)
		}
		if q := turns.Next(); q >= 0 {
			return string(tr.Queues[q].Conf.Name)
		}
		return ""
	}
	tr := tree(t, queue("a", "", guaranteed("H100", 8)), queue("b", "", guaranteed("H100", 16)), queue("c", "", class(90)), queue("d", "", weight(2)), queue("e", ""))
	must.Eq(t, "", next(tr, nil, ""))
	must.Eq(t, "a", next(tr, map[string]int{"a": 8, "c": 1}, "c")) // a repair stays in its tier
	must.Eq(t, "c", next(tr, map[string]int{"a": 9, "c": 1, "d": 1}, ""))
	must.Eq(t, "d", next(tr, map[string]int{"a": 9, "c": 1, "d": 1}, "d"))
	tr.Add(tr.Find("a"), h100, 4)
	tr.Add(tr.Find("b"), h100, 4)
	must.Eq(t, "b", next(tr, map[string]int{"a": 1, "b": 1}, "")) // a quarter against a half
	must.Eq(t, "a", next(tr, map[string]int{"a": 1, "b": 1}, "a"))
	tr.Add(tr.Find("d"), h100, 8)
	tr.Add(tr.Find("e"), h100, 6)
	must.Eq(t, "d", next(tr, map[string]int{"d": 1, "e": 1}, "")) // 8 for a weight of 2, 6 for one of 1
	tr.Add(tr.Find("d"), h100, 4)
	must.Eq(t, "d", next(tr, map[string]int{"d": 1, "e": 1}, "")) // equal: the first by name
	tr.Add(tr.Find("d"), h100, 1)
	must.Eq(t, "e", next(tr, map[string]int{"d": 1, "e": 1}, ""))
}

// Allowed and Blocked never disagree, what is added and taken away leaves
// nothing, and no queue is above a bound that it was asked about.
func TestAccountsAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := func(name string) int { return rapid.SampledFrom([]int{-1, 0, 4, 8, 16}).Draw(t, name) }
		var queues []core.Queue
		for i, name := range []string{"p", "a", "b", "c"} {
			parent := ""
			if i > 0 && rapid.Bool().Draw(t, "below p") {
				parent = "p"
			}
			queues = append(queues, queue(name, parent, guaranteedAny(max(0, amount("any"))), maxAny(amount("max")), lendAny(amount("lend")), func(q *core.Queue) {
				q.Guaranteed.Models = map[core.Model]int{"H100": max(0, amount("guaranteed"))}
			}))
		}
		tr, _ := fairshare.New(queues, models, []int{16, 32})
		type charge struct {
			q, m int32
			n    int
		}
		var all []charge
		for range rapid.IntRange(1, 20).Draw(t, "gangs") {
			k := charge{tr.Find(core.QueueName(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "queue"))), int32(rapid.IntRange(0, 1).Draw(t, "model")), rapid.IntRange(1, 9).Draw(t, "cards")}
			ok := tr.Allowed(k.q, need(k.m, k.n))
			if ok != (len(tr.Blocked(k.q, need(k.m, k.n))) == 0) {
				t.Fatalf("allowed: %v, blocked: %v", ok, tr.Blocked(k.q, need(k.m, k.n)))
			}
			if !ok {
				continue
			}
			tr.Add(k.q, k.m, k.n)
			all = append(all, k)
			for q := range tr.Queues {
				sum := tr.Use(int32(q), a100) + tr.Use(int32(q), h100)
				if most := tr.Queues[q].Conf.Max.Any; q > 0 && most >= 0 && sum > most {
					t.Fatalf("queue %s holds %d of at most %d", tr.Queues[q].Conf.Name, sum, most)
				}
			}
		}
		for _, k := range all {
			tr.Add(k.q, k.m, -k.n)
		}
		for q := range tr.Queues {
			if tr.Use(int32(q), a100) != 0 || tr.Use(int32(q), h100) != 0 || tr.Excess(int32(q)) != 0 {
				t.Fatalf("queue %s still holds something", tr.Queues[q].Conf.Name)
			}
		}
	})
}

// Faults of the configuration are told, and what they are taken for.
func TestFaultyTrees(t *testing.T) {
	t.Parallel()
	negative := queue("n", "", guaranteed("H100", -5), maxAny(-7))
	negative.Lend.Models = map[core.Model]int{"abacus": 1}
	tr, notices := fairshare.New([]core.Queue{queue("a", "b"), queue("b", "c"), queue("c", "a"), queue("o", "nowhere"), queue("x", ""), queue("x", "b"), negative,
		queue("p", "", guaranteed("H100", 4)), queue("p1", "p", guaranteed("H100", 3)), queue("p2", "p", guaranteed("H100", 3))}, models, []int{8, 8})
	texts := map[string]bool{}
	for _, n := range notices {
		texts[n.Object+" "+n.Text] = true
	}
	for _, want := range []string{
		"queue c is its own ancestor; it is taken as a child of the root",
		`queue o has parent "nowhere", which is not configured; it is taken as a child of the root`,
		"queue x is configured twice; the first is used",
		`queue n has guaranteed of -5 cards of "H100", which is taken as 0`,
		"queue n has max of -7 cards in all, which is taken as 0",
		`queue n has lend of "abacus", which no node has`,
		`queue p is guaranteed 4 cards of "H100" and its children 6 together: it is taken to have what they have`,
	} {
		must.True(t, texts[want], must.Sprintf("%s is not among %v", want, notices))
	}
	must.False(t, tr.Allowed(tr.Find("n"), need(h100, 1)))
	must.Eq(t, 6, tr.Guaranteed(tr.Find("p"), h100))
	must.Eq(t, -1, tr.Find("nowhere"))
}
