package agent

import (
	"testing"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestFragmentation(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		free []int
		asks []ask
		want float64
		ok   bool
	}{
		{"nothing is free", nil, []ask{{8, 8}}, 0, false},
		{"nothing is wanted", []int{8}, nil, 0, false},
		{"whole nodes for whole nodes", []int{8, 8}, []ask{{8, 16}}, 0, true},
		{"halves for whole nodes", []int{4, 4}, []ask{{8, 16}}, 1, true},
		{"halves for quarters", []int{4, 4}, []ask{{2, 16}}, 0, true},
		{"a rest of one in three", []int{3}, []ask{{2, 2}}, 1. / 3, true},
		{"a member that wants none", []int{4}, []ask{{0, 0}, {4, 4}}, 0, true},
		{"only such members", []int{4}, []ask{{0, 0}}, 0, false},
		{"weighted by what is wanted", []int{4, 4}, []ask{{8, 30}, {2, 10}}, .75, true},
	} {
		got, ok := fragmentation(test.free, test.asks)
		must.Eq(t, test.ok, ok, must.Sprint(test.name))
		must.InDelta(t, test.want, got, 1e-12, must.Sprint(test.name))
	}
	rapid.Check(t, func(rt *rapid.T) {
		free := rapid.SliceOfN(rapid.IntRange(1, 8), 1, 20).Draw(rt, "free")
		asks := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) ask {
			return ask{rapid.IntRange(1, 8).Draw(rt, "cards"), rapid.IntRange(1, 100).Draw(rt, "weight")}
		}), 1, 5).Draw(rt, "asks")
		got, ok := fragmentation(free, asks)
		must.True(rt, ok)
		must.GreaterEq(rt, 0, got)
		must.LessEq(rt, 1, got)
		ones, _ := fragmentation(free, []ask{{1, 1}})
		must.Eq(rt, 0, ones)
	})
}
