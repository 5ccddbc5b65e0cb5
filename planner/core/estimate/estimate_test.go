package estimate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/estimate"
)

const hour = time.Hour

func gang(user, name string) *core.Gang {
	return &core.Gang{ID: "default/x", User: user, Name: name, Queue: "q"}
}

// The closest kind of which enough is known.
func TestFind(t *testing.T) {
	t.Parallel()
	known := func(user, name string, cards, count int, median time.Duration) core.Estimate {
		return core.Estimate{User: user, Name: name, Queue: "q", Cards: cards, Count: count, Median: median, Upper: 2 * median}
	}
	b := estimate.New([]core.Estimate{known("ann", "train", 8, 3, 1*hour), known("ann", "", 8, 5, 2*hour), known("", "train", 8, 9, 3*hour), known("", "", 8, 20, 4*hour), known("", "", 0, 99, 5*hour),
		known("ann", "rare", 8, 2, 77*hour), {Queue: "other", Cards: 8, Count: 50, Median: 9 * hour}})
	for _, test := range []struct {
		user, name string
		cards      int
		want       time.Duration
	}{
		{"ann", "train", 8, 1 * hour},
		{"ann", "rare", 8, 2 * hour}, // two are too few
		{"ann", "new", 8, 2 * hour},
		{"bob", "train", 8, 3 * hour},
		{"bob", "new", 8, 4 * hour},
		{"ann", "train", 16, 5 * hour},
	} {
		e, ok := b.Find(gang(test.user, test.name), test.cards)
		must.True(t, ok)
		must.Eq(t, test.want, e.Median, must.Sprint(test))
	}
	g := gang("ann", "train")
	g.Queue = "nowhere"
	_, ok := b.Find(g, 8)
	must.False(t, ok)
	_, ok = estimate.New(nil).Find(gang("ann", "train"), 8)
	must.False(t, ok)
}

// Never below what has run already: one that outlived its kind is expected to
// run as long again.
func TestLeft(t *testing.T) {
	t.Parallel()
	e := core.Estimate{Median: 2 * hour, Upper: 5 * hour}
	for _, test := range []struct{ ran, likely, most time.Duration }{
		{0, 2 * hour, 5 * hour}, {1 * hour, 1 * hour, 4 * hour}, {2 * hour, 3 * hour, 3 * hour}, {4 * hour, 1 * hour, 1 * hour}, {5 * hour, 5 * hour, 5 * hour}, {9 * hour, 9 * hour, 9 * hour},
	} {
		likely, most := estimate.Left(e, test.ran)
		must.Eq(t, test.likely, likely, must.Sprint(test))
		must.Eq(t, test.most, most, must.Sprint(test))
	}
}

func at(i int) time.Time { return time.Unix(1_800_000_000+int64(i), 0) }

// The last gangs count, in whatever order they are told; what is older is
// forgotten, with kinds of which nothing is left.
func TestLearnerIsBounded(t *testing.T) {
	t.Parallel()
	var forth, back estimate.Learner
	const n = estimate.Most + 1000 // a multiple of 8
	told := func(l *estimate.Learner, i int) {
		l.Ended(gang("u", fmt.Sprint("job", i%5000)), 1+i%7, at(i), time.Duration(i%97)*time.Minute)
	}
	for i := range n {
		told(&forth, i)
		told(&back, i^7)
	}
	must.Eq(t, estimate.Most, forth.Len())
	must.Eq(t, estimate.Most, back.Len())
	must.Eq(t, forth.Estimates(), back.Estimates())
}

// What ended teaches every kind that it belongs to, the last of them most.
func TestLearner(t *testing.T) {
	t.Parallel()
	var l estimate.Learner
	must.SliceEmpty(t, l.Estimates())
	for i := range 10 {
		l.Ended(gang("ann", "train"), 8, at(i), time.Duration(i+1)*hour)
	}
	l.Ended(gang("ann", "train"), 8, at(3), 4*hour) // told again
	l.Ended(gang("bob", "train"), 8, at(10), 100*hour)
	b := estimate.New(l.Estimates())
	e, ok := b.Find(gang("ann", "train"), 8)
	must.True(t, ok)
	must.Eq(t, core.Estimate{User: "ann", Name: "train", Queue: "q", Cards: 8, Count: 10, Median: 6 * hour, Upper: 10 * hour}, e)
	e, _ = b.Find(gang("eve", "train"), 8) // of everybody's
	must.Eq(t, 11, e.Count)
	must.Eq(t, 10*hour, e.Upper)
	for i := range 100 { // times change: old ones are forgotten
		l.Ended(gang("ann", "train"), 8, at(11+i), 20*hour)
	}
	e, _ = estimate.New(l.Estimates()).Find(gang("ann", "train"), 8)
	must.Eq(t, 20*hour, e.Median)
	must.Eq(t, 64, e.Count)
	g := gang("", "")
	must.Eq(t, "default/x", estimate.Name(g))
}
