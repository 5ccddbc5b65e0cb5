package recent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/recent"
)

func card(typ string) bool { return typ == "gpu" }

// gang of equal members that ask for so many cards each.
func gang(i, members, cards int) core.Gang {
	return core.Gang{ID: core.GangID(fmt.Sprint("default/g", i)), Submitted: time.Unix(1_800_000_000+int64(i), 0),
		Groups: []core.Group{{Name: "ranks", Count: members, Use: core.Resources{CPU: 100, DiskMB: int64(i)}, Devices: []core.DeviceAsk{{Type: "gpu", Count: cards}, {Type: "nic", Count: 1}}}}}
}

func came(t must.T, w *recent.Window, g core.Gang) {
	x, ok := recent.Of(&g, card)
	must.True(t, ok)
	w.Came(x)
}

// Members count, not gangs; shares are rounded, and the most frequent kind
// comes first.
func TestShapes(t *testing.T) {
	t.Parallel()
	var w recent.Window
	for i := range 60 {
		came(t, &w, gang(i, 1, 1))
		if i < recent.Few-1 {
			must.Nil(t, w.Shapes(), must.Sprint("few tell nothing"))
		}
	}
	for i := range 20 {
		came(t, &w, gang(100+i, 5, 8))
	}
	use := core.Resources{CPU: 100}
	// 100 of 160 are 5/8 of 65,536, rounded down to a half, and 60 are 3/8.
	must.Eq(t, []core.Shape{{Members: 1, Cards: 8, Use: use, Weight: 32768}, {Members: 1, Cards: 1, Use: use, Weight: 24576}}, w.Shapes())
	came(t, &w, gang(7, 1, 1)) // is known
	must.Eq(t, 80, w.Len())
}

func TestOf(t *testing.T) {
	t.Parallel()
	g := gang(0, 2, 4)
	g.Groups = append(g.Groups, core.Group{Name: "loader", Count: 3}, core.Group{Name: "eval", Count: 1, Devices: []core.DeviceAsk{{Type: "gpu", Name: "A100", Count: 1}}})
	x, ok := recent.Of(&g, card)
	must.True(t, ok)
	must.Eq(t, []core.Shape{{Members: 2, Cards: 4, Use: core.Resources{CPU: 100}, Weight: 1}, {Members: 1, Cards: 1, Models: []core.Model{"A100"}, Weight: 1}}, x.Shapes)
	none := core.Gang{Groups: []core.Group{{Count: 5}, {Count: 0, Devices: []core.DeviceAsk{{Type: "gpu", Count: 1}}}}}
	_, ok = recent.Of(&none, card)
	must.False(t, ok)
	g.Faults = []string{"queue: unknown"}
	_, ok = recent.Of(&g, card)
	must.False(t, ok)
}

// The mix is that of the last gangs, in whatever order they were told, and
// however often.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "gangs")
		order := rapid.Permutation(numbers(n)).Draw(t, "order")
		var a, b recent.Window
		for i := range n {
			came(t, &a, gang(i, 1+i%7, 1<<(i%5)))
		}
		for _, i := range order {
			came(t, &b, gang(i, 1+i%7, 1<<(i%5)))
			came(t, &b, gang(order[0], 1+order[0]%7, 1<<(order[0]%5)))
		}
		must.Eq(t, a.Shapes(), b.Shapes())
	})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var forth, back recent.Window
	const n = recent.Most + 5000 // a multiple of 8
	for i := range n {
		came(t, &forth, gang(i, 1, 1+i/200)) // kinds go out of use
		came(t, &back, gang(i^7, 1, 1+(i^7)/200))
	}
	must.Eq(t, recent.Most, forth.Len())
	must.Eq(t, recent.Most, back.Len())
	must.Eq(t, forth.Shapes(), back.Shapes())
	must.Len(t, 82, forth.Shapes(), must.Sprint("of the gangs 5,000 to 21,383"))
	var many recent.Window
	for i := range 1000 {
		came(t, &many, gang(i, 1, 1+i))
	}
	must.Len(t, recent.Kinds, many.Shapes())
}

func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
