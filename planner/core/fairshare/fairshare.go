// Package fairshare keeps the queues' accounts: what each holds of every card
// model, what it is guaranteed, and who may have the next cards.
//
// The queues form a tree; the root is implicit and owns the cluster. All
// counts are cards, and everything is asked per model before it is asked of
// the sum ("any").
//
//   - A queue's excess is what it holds above its guarantee: over all models
//     the cards above the model's guarantee, less what "any" guarantees of
//     them. A need is within the guarantee where it leaves no excess.
//   - A queue without a stated guarantee above its children's is guaranteed
//     what they are guaranteed together.
//   - max bounds what a queue and everything below it hold; a queue that
//     states none is bounded by its ancestors only.
//   - lend bounds how much of a queue's idle guarantee others may hold: the
//     rest is withheld from them though it lies idle.
//
// Whose turn it is, from the root down, child against child:
//
//  1. a queue whose next gang is within its guarantee comes before one that
//     has to borrow;
//  2. a gang that is to be placed again after damage comes before newcomers;
//  3. of two within their guarantees, the one that holds the smaller part of
//     its guarantee;
//  4. of two that borrow, the higher class; then the one that borrows less
//     for its weight; then the name.
//
// Shares are compared by cross-multiplication of integers: no sum of floating
// point numbers decides anything.
package fairshare

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// Need is a number of cards of one model.
type Need struct {
	Model int32
	Cards int
}

// none marks an amount that is not stated.
const none = -1

// Queue is one queue's account.
type Queue struct {
	Conf     *core.Queue
	Parent   int32 // 0: the root
	Children []int32
	depth    int

	guaranteed, max, lend          []int // by model
	guaranteedAny, maxAny, lendAny int
	used                           []int
	usedAny                        int
	leaving                        []int // of used: asked to leave
}

// Tree is all queues; number 0 is the root.
type Tree struct {
	Queues   []Queue
	byName   map[core.QueueName]int32
	models   int
	names    []core.Model
	capacity []int // of the cluster, by model
}

// New builds the tree for a cluster with the given capacity by model. Faults
// of the configuration, which planner/config refuses before they come here,
// are told as notices: a queue whose parent is missing or is below itself
// hangs under the root.
func New(queues []core.Queue, models []core.Model, capacity []int) (*Tree, []core.Notice) {
	t := &Tree{byName: map[core.QueueName]int32{}, models: len(models), names: models, capacity: capacity}
	var notices []core.Notice
	notice := func(q core.QueueName, text string) {
		notices = append(notices, core.Notice{Object: "queue " + string(q), Text: text})
	}
	order := make([]*core.Queue, 0, len(queues))
	for i := range queues {
		order = append(order, &queues[i])
	}
	slices.SortStableFunc(order, func(a, b *core.Queue) int { return cmp.Compare(a.Name, b.Name) })
	t.Queues = append(t.Queues, t.account(&core.Queue{Weight: 1, Max: core.Amounts{Any: none}, Lend: core.Amounts{Any: none}}, models))
	for _, q := range order {
		if _, twice := t.byName[q.Name]; twice {
			notice(q.Name, "is configured twice; the first is used")
			continue
		}
		t.byName[q.Name] = int32(len(t.Queues))
		t.Queues = append(t.Queues, t.account(q, models))
	}
	for i := 1; i < len(t.Queues); i++ {
		q := &t.Queues[i]
		if q.Conf.Parent == "" || q.Conf.Parent == "root" {
			continue
		}
		p, ok := t.byName[q.Conf.Parent]
		if !ok {
			notice(q.Conf.Name, fmt.Sprintf("has parent %q, which is not configured; it is taken as a child of the root", q.Conf.Parent))
			continue
		}
		for up := p; up != 0; up = t.Queues[up].Parent {
			if up == int32(i) {
				notice(q.Conf.Name, "is its own ancestor; it is taken as a child of the root")
				p = 0
				break
			}
		}
		q.Parent = p
	}
	for i := 1; i < len(t.Queues); i++ {
		p := &t.Queues[t.Queues[i].Parent]
		p.Children = append(p.Children, int32(i))
	}
	t.settle(0, 0)
	for i := 1; i < len(t.Queues); i++ {
		t.check(int32(i), notice)
	}
	return t, notices
}

// check tells what is wrong with a queue's amounts and how they are taken.
func (t *Tree) check(q int32, notice func(core.QueueName, string)) {
	a := &t.Queues[q]
	for _, of := range []struct {
		name    string
		amounts core.Amounts
	}{{"guaranteed", a.Conf.Guaranteed}, {"max", a.Conf.Max}, {"lend", a.Conf.Lend}} {
		if of.amounts.Any < none {
			notice(a.Conf.Name, fmt.Sprintf("has %s of %d cards in all, which is taken as 0", of.name, of.amounts.Any))
		}
		models := make([]core.Model, 0, len(of.amounts.Models))
		for m := range of.amounts.Models {
			models = append(models, m)
		}
		slices.Sort(models)
		for _, m := range models {
			if n := of.amounts.Models[m]; n < 0 {
				notice(a.Conf.Name, fmt.Sprintf("has %s of %d cards of %q, which is taken as 0", of.name, n, m))
			}
			if !slices.Contains(t.names, m) {
				notice(a.Conf.Name, fmt.Sprintf("has %s of %q, which no node has", of.name, m))
			}
		}
	}
	if len(a.Children) == 0 {
		return
	}
	stated := 0
	for m, name := range t.names {
		own := a.Conf.Guaranteed.Models[name]
		if own > 0 && a.guaranteed[m] > own {
			notice(a.Conf.Name, fmt.Sprintf("is guaranteed %d cards of %q and its children %d together: it is taken to have what they have", own, name, a.guaranteed[m]))
		}
		stated += max(0, own)
	}
	stated = max(stated, a.Conf.Guaranteed.Any)
	all := a.guaranteedAny
	for _, n := range a.guaranteed {
		all += n
	}
	if all > stated && a.Conf.Guaranteed.Any > 0 {
		notice(a.Conf.Name, fmt.Sprintf("is guaranteed %d cards in all and its children %d together: it is taken to have what they have", stated, all))
	}
}

func (t *Tree) account(q *core.Queue, models []core.Model) Queue {
	a := Queue{Conf: q, guaranteed: make([]int, len(models)), max: make([]int, len(models)), lend: make([]int, len(models)), used: make([]int, len(models)), leaving: make([]int, len(models)),
		guaranteedAny: max(0, q.Guaranteed.Any), maxAny: bound(q.Max.Any), lendAny: bound(q.Lend.Any)}
	for m, name := range models {
		a.guaranteed[m] = max(0, q.Guaranteed.Models[name])
		a.max[m], a.lend[m] = stated(q.Max, name), stated(q.Lend, name)
	}
	return a
}

func stated(a core.Amounts, m core.Model) int {
	if n, ok := a.Models[m]; ok {
		return max(0, n)
	}
	return none
}

// bound reads the bound of a sum: none where it is not stated, and 0 where it
// cannot be meant.
func bound(any int) int {
	if any < none {
		return 0
	}
	return any
}

// settle raises a parent's guarantee to the sum of its children's, and keeps
// of "any", which guarantees the sum over models, what goes beyond the models
// that are named.
func (t *Tree) settle(q int32, depth int) {
	a := &t.Queues[q]
	a.depth = depth
	sum, sumAny, total := make([]int, t.models), 0, 0
	for _, c := range a.Children {
		t.settle(c, depth+1)
		child := &t.Queues[c]
		for m := range sum {
			sum[m] += child.guaranteed[m]
			sumAny += child.guaranteed[m]
		}
		sumAny += child.guaranteedAny
	}
	for m := range sum {
		a.guaranteed[m] = max(a.guaranteed[m], sum[m])
		total += a.guaranteed[m]
	}
	a.guaranteedAny = max(0, max(a.guaranteedAny, sumAny)-total)
}

// Find gives a queue's number; -1 where it is not configured.
func (t *Tree) Find(name core.QueueName) int32 {
	if q, ok := t.byName[name]; ok {
		return q
	}
	return -1
}

// Leaf tells whether a queue holds gangs rather than queues.
func (t *Tree) Leaf(q int32) bool { return len(t.Queues[q].Children) == 0 }

// Use is what a queue holds of a model; Guaranteed what it is guaranteed of
// it; Max the most it may hold by its own statement, -1: not stated.
func (t *Tree) Use(q, model int32) int        { return t.Queues[q].used[model] }
func (t *Tree) Guaranteed(q, model int32) int { return t.Queues[q].guaranteed[model] }
func (t *Tree) Max(q, model int32) int        { return t.Queues[q].max[model] }

// Add charges a queue and its ancestors, or relieves them where cards is
// negative.
func (t *Tree) Add(q, model int32, cards int) {
	for {
		a := &t.Queues[q]
		a.used[model] += cards
		a.usedAny += cards
		if q == 0 {
			return
		}
		q = a.Parent
	}
}

// Leave notes that cards that a queue holds have been asked back already; they
// are charged until they are free, but nobody can reclaim them again.
func (t *Tree) Leave(q, model int32, cards int) {
	for ; q != 0; q = t.Queues[q].Parent {
		t.Queues[q].leaving[model] += cards
	}
}

// spare is what an account holds above its guarantee, without what is leaving.
func (a *Queue) spare() int {
	sum := 0
	for m, used := range a.used {
		sum += max(0, used-a.leaving[m]-a.guaranteed[m])
	}
	return max(0, sum-a.guaranteedAny)
}

// excess is what an account would hold above its guarantee with a need added.
func (a *Queue) excess(need []Need) int {
	sum := 0
	for m, used := range a.used {
		for _, n := range need {
			if int(n.Model) == m {
				used += n.Cards
			}
		}
		sum += max(0, used-a.guaranteed[m])
	}
	return max(0, sum-a.guaranteedAny)
}

// Excess is what a queue holds above its guarantee.
func (t *Tree) Excess(q int32) int { return t.Queues[q].excess(nil) }

// Within tells whether a need is within the guarantee of a queue; every queue
// up to, and not including, the ancestor is asked.
func (t *Tree) Within(q, ancestor int32, need []Need) bool {
	for ; q != ancestor && q != 0; q = t.Queues[q].Parent {
		if t.Queues[q].excess(need) > 0 {
			return false
		}
	}
	return true
}

// Limit is a bound that a need would break.
type Limit struct {
	Reason core.Reason // max or lend
	Queue  int32
	Model  int32 // -1: the sum over models
	Over   int   // cards too many
	Bound  int
}

// Blocked lists every bound that a need would break: the max of the queue and
// of its ancestors, and what others withhold of the cluster from borrowers.
func (t *Tree) Blocked(q int32, need []Need) []Limit {
	var out []Limit
	total := 0
	for _, n := range need {
		total += n.Cards
	}
	for at := q; ; at = t.Queues[at].Parent {
		a := &t.Queues[at]
		for _, n := range need {
			if bound := a.max[n.Model]; bound != none && a.used[n.Model]+n.Cards > bound {
				out = append(out, Limit{core.ReasonMax, at, n.Model, a.used[n.Model] + n.Cards - bound, bound})
			}
		}
		if a.maxAny != none && a.usedAny+total > a.maxAny {
			out = append(out, Limit{core.ReasonMax, at, -1, a.usedAny + total - a.maxAny, a.maxAny})
		}
		if at == 0 {
			break
		}
	}
	if len(out) == 0 {
		out = t.withheld(q, need, out)
	}
	return out
}

// Never is a max, of the queue or of one above it, that the need alone is
// above; nil where there is none.
func (t *Tree) Never(q int32, need []Need) *Limit {
	total := 0
	for _, n := range need {
		total += n.Cards
	}
	for at := q; at > 0; at = t.Queues[at].Parent {
		a := &t.Queues[at]
		for _, n := range need {
			if bound := a.max[n.Model]; bound != none && n.Cards > bound {
				return &Limit{core.ReasonMax, at, n.Model, n.Cards - bound, bound}
			}
		}
		if a.maxAny != none && total > a.maxAny {
			return &Limit{core.ReasonMax, at, -1, total - a.maxAny, a.maxAny}
		}
	}
	return nil
}

// Allowed is Blocked where only the answer matters.
func (t *Tree) Allowed(q int32, need []Need) bool {
	total := 0
	for _, n := range need {
		total += n.Cards
	}
	lend := false
	for at := q; ; at = t.Queues[at].Parent {
		a := &t.Queues[at]
		for _, n := range need {
			if bound := a.max[n.Model]; bound != none && a.used[n.Model]+n.Cards > bound {
				return false
			}
		}
		if a.maxAny != none && a.usedAny+total > a.maxAny {
			return false
		}
		if at == 0 {
			break
		}
		lend = true
	}
	return !lend || len(t.withheld(q, need, nil)) == 0
}

// withheld asks whether the need would take cards that others are guaranteed
// and do not lend. It does not where some queue above holds, with the need
// added and what its children withhold set aside, no more than its guarantee,
// nor where the cluster has enough beside all that is withheld.
func (t *Tree) withheld(q int32, need []Need, out []Limit) []Limit {
	kept := make([]int, t.models+1) // by model; the sum over models last
	for at := q; at != 0; at = t.Queues[at].Parent {
		if t.Within(at, t.Queues[at].Parent, need) && at == q {
			return out
		}
		parent := t.Queues[at].Parent
		p := &t.Queues[parent]
		any := false
		for _, c := range p.Children {
			if c != at {
				t.keep(c, kept)
			}
		}
		for _, k := range kept {
			any = any || k > 0
		}
		if !any {
			continue
		}
		guaranteed, total, covered := p.guaranteedAny, 0, parent != 0
		capacity := p.guaranteed
		if parent == 0 {
			capacity = t.capacity
			guaranteed = 0
		}
		for _, c := range capacity {
			guaranteed += c
		}
		for _, n := range need {
			total += n.Cards
			over := p.used[n.Model] + n.Cards + kept[n.Model] - capacity[n.Model]
			covered = covered && over <= 0
			if parent == 0 && over > 0 && kept[n.Model] > 0 {
				out = append(out, Limit{core.ReasonLend, 0, n.Model, over, capacity[n.Model] - kept[n.Model]})
			}
		}
		over := p.usedAny + total + kept[t.models] - guaranteed
		if covered && over <= 0 {
			return out
		}
		if parent == 0 && over > 0 && kept[t.models] > 0 {
			out = append(out, Limit{core.ReasonLend, 0, -1, over, guaranteed - kept[t.models]})
		}
	}
	return out
}

// keep adds what a queue and those below it are guaranteed, do not hold and do
// not lend.
func (t *Tree) keep(q int32, kept []int) {
	a := &t.Queues[q]
	if len(a.Children) > 0 && a.lendAny == none && !slices.ContainsFunc(a.lend, func(n int) bool { return n != none }) {
		for _, c := range a.Children {
			t.keep(c, kept)
		}
		return
	}
	guaranteed := a.guaranteedAny
	for m := range a.guaranteed {
		guaranteed += a.guaranteed[m]
		if a.lend[m] != none {
			kept[m] += max(0, a.guaranteed[m]-a.lend[m]-a.used[m])
		}
	}
	if a.lendAny != none {
		kept[t.models] += max(0, guaranteed-a.lendAny-a.usedAny)
	}
}

// Common is the innermost queue above both.
func (t *Tree) Common(a, b int32) int32 {
	for a != b {
		if t.Queues[a].depth >= t.Queues[b].depth {
			a = t.Queues[a].Parent
		} else {
			b = t.Queues[b].Parent
		}
	}
	return a
}

// Borrowed is what a queue holds above its guarantee without what is leaving.
func (t *Tree) Borrowed(q int32) int { return t.Queues[q].spare() }

// Borrows tells whether a queue holds cards above its guarantee all the way
// up to an ancestor, so that those cards can be asked back from outside.
func (t *Tree) Borrows(q, ancestor int32) bool {
	for ; q != ancestor && q != 0; q = t.Queues[q].Parent {
		if t.Queues[q].spare() == 0 {
			return false
		}
	}
	return true
}

// Spare is the number of cards above the guarantee that every queue from q up
// to the ancestor has.
func (t *Tree) Spare(q, ancestor int32) int {
	least := -1
	for ; q != ancestor && q != 0; q = t.Queues[q].Parent {
		if e := t.Queues[q].spare(); least < 0 || e < least {
			least = e
		}
	}
	return max(least, 0)
}
