package fairshare

import (
	"cmp"
	"slices"
)

// Turns deals out turns to queues: Next gives the queue whose gang is to be
// looked at. Only queues that have a next gang take part; its need is what
// decides between guarantee and borrowing.
type Turns struct {
	t      *Tree
	head   [][]Need // of each leaf; nil with live false
	live   []bool   // a leaf with a next gang below
	repair []bool   // its next gang is to be placed again after damage
	best   []int32  // of each inner queue: the child whose turn it is; -1: find out
}

// Turns starts a round.
func (t *Tree) Turns() *Turns {
	n := len(t.Queues)
	r := &Turns{t: t, head: make([][]Need, n), live: make([]bool, n), repair: make([]bool, n), best: make([]int32, n)}
	for i := range r.best {
		r.best[i] = -1
	}
	return r
}

// Set states a leaf's next gang, and whether it is a repair, or that it has none
// left. It is to be called whenever that changes, and Changed whenever what a
// queue holds does.
func (r *Turns) Set(q int32, need []Need, more, repair bool) {
	r.head[q] = need
	r.live[q] = more
	r.repair[q] = repair
	r.Changed(q)
}

// Changed makes the order along a queue's ancestors be found out again.
func (r *Turns) Changed(q int32) {
	for ; q != 0; q = r.t.Queues[q].Parent {
		r.best[r.t.Queues[q].Parent] = -1
	}
}

// Next is the leaf whose turn it is; -1: none has a gang left.
func (r *Turns) Next() int32 {
	q := r.pick(0)
	return q
}

func (r *Turns) pick(q int32) int32 {
	a := &r.t.Queues[q]
	if len(a.Children) == 0 {
		if q == 0 || !r.live[q] {
			return -1
		}
		return q
	}
	if r.best[q] < 0 {
		best, leaf := int32(-1), int32(-1)
		for _, c := range a.Children {
			l := r.pick(c)
			if l >= 0 && (best < 0 || r.before(c, l, best, leaf)) {
				best, leaf = c, l
			}
		}
		if best < 0 {
			return -1
		}
		r.best[q] = best
		return leaf
	}
	return r.pick(r.best[q])
}

// before compares two children of one queue by the gangs that come next in
// each.
func (r *Turns) before(a, aLeaf, b, bLeaf int32) bool {
	t := r.t
	aIn, bIn := t.Within(aLeaf, t.Queues[a].Parent, r.head[aLeaf]), t.Within(bLeaf, t.Queues[b].Parent, r.head[bLeaf])
	if aIn != bIn {
		return aIn
	}
	if r.repair[aLeaf] != r.repair[bLeaf] {
		return r.repair[aLeaf]
	}
	x, y := &t.Queues[a], &t.Queues[b]
	var order int
	if aIn {
		order = compareShares(x.held(r.head[aLeaf]), y.held(r.head[bLeaf]))
	} else {
		order = cmp.Or(cmp.Compare(y.Conf.Class, x.Conf.Class),
			compareShares(share{x.excess(nil), max(1, x.Conf.Weight)}, share{y.excess(nil), max(1, y.Conf.Weight)}))
	}
	return cmp.Or(order, cmp.Compare(x.Conf.Name, y.Conf.Name)) < 0
}

// share is a fraction of two counts.
type share struct{ part, whole int }

// compareShares orders fractions without dividing; the whole is above zero.
func compareShares(a, b share) int {
	return cmp.Compare(int64(a.part)*int64(b.whole), int64(b.part)*int64(a.whole))
}

// held is the part of its guarantee that a queue holds, of the model of the
// need for which that is most.
func (a *Queue) held(need []Need) share {
	worst := share{0, 1}
	for _, n := range need {
		s := share{a.used[n.Model], max(1, a.guaranteed[n.Model])}
		if a.guaranteed[n.Model] == 0 {
			s = share{a.usedAny, max(1, a.guaranteedAny)}
		}
		if compareShares(s, worst) > 0 {
			worst = s
		}
	}
	return worst
}

// Path lists a queue and its ancestors below the root, innermost first.
func (t *Tree) Path(q int32) []int32 {
	var out []int32
	for ; q > 0; q = t.Queues[q].Parent {
		out = append(out, q)
	}
	return slices.Clip(out)
}
