package topology_test

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/topology"
)

// device makes a node's device group as the cluster derives it.
func device(cards []core.Card, links ...core.Link) *cluster.Device {
	cfg := core.Defaults()
	c := &cluster.Cluster{}
	c.Update(&core.Snapshot{Config: &cfg, Nodes: []core.Node{{ID: "n", Ready: true, Eligible: true, Devices: []core.DeviceGroup{{Type: "gpu", Name: "m", Cards: cards, Links: links}}}}})
	return &c.Nodes[0].Devices[0]
}

// cards makes n cards; edit changes one by its place.
func cards(n int, edit func(i int, k *core.Card)) []core.Card {
	out := make([]core.Card, n)
	for i := range out {
		out[i] = core.Card{ID: core.CardID(fmt.Sprintf("c%d", i)), Healthy: true, NUMA: -1}
		if edit != nil {
			edit(i, &out[i])
		}
	}
	return out
}

func set(places ...int) []uint64 {
	var w uint64
	for _, p := range places {
		w |= 1 << p
	}
	return []uint64{w}
}

func pairs(i int, k *core.Card) { k.Domain = fmt.Sprint(i / 2) }
func fours(i int, k *core.Card) { k.Domain = fmt.Sprint(i / 4) }

// Each rule of the package comment, the first that differs deciding.
func TestChoose(t *testing.T) {
	t.Parallel()
	suspect0 := func(i int, k *core.Card) {
		if i == 0 {
			k.State = core.CardSuspect
		}
	}
	numa := func(i int, k *core.Card) { k.NUMA = i % 2 }
	slices := func(i int, k *core.Card) { k.Parent = core.CardID(fmt.Sprintf("gpu%d", i/2)) }
	for _, test := range []struct {
		name  string
		cards []core.Card
		links []core.Link
		free  []uint64
		count int
		whole bool
		cost  []uint8
		want  []int32 // nil: none
	}{
		{"lowest places", cards(8, nil), nil, set(1, 2, 5), 2, false, nil, []int32{1, 2}},
		{"not enough", cards(8, nil), nil, set(1, 2), 3, false, nil, nil},
		{"all there are", cards(4, pairs), nil, set(0, 1, 2), 3, false, nil, []int32{0, 1, 2}},
		{"suspect cards last", cards(4, suspect0), nil, set(0, 1, 2), 2, false, nil, []int32{1, 2}},
		{"suspect where there is no other", cards(4, suspect0), nil, set(0, 1), 2, false, nil, []int32{0, 1}},
		{"one domain rather than two", cards(8, fours), nil, set(3, 4, 5), 2, false, nil, []int32{4, 5}},
		{"the domain that it uses up", cards(8, fours), nil, set(0, 1, 2, 4, 5), 2, false, nil, []int32{4, 5}},
		{"two domains where it has to be", cards(8, fours), nil, set(2, 3, 4, 5), 3, false, nil, []int32{2, 3, 4}},
		{"never two where that is required", cards(8, fours), nil, set(2, 3, 4, 5), 3, true, nil, nil},
		{"required and there", cards(8, fours), nil, set(2, 3, 4, 5, 6), 3, true, nil, []int32{4, 5, 6}},
		{"no domain is known: no requirement is met", cards(4, nil), nil, set(0, 1, 2, 3), 2, true, nil, nil},
		{"one card is always in one domain", cards(4, pairs), nil, set(1, 2), 1, true, nil, []int32{1}},
		{"links", cards(4, nil), []core.Link{{A: 0, B: 1, Count: 1}, {A: 1, B: 2, Count: 4}}, set(0, 1, 2, 3), 2, false, nil, []int32{1, 2}},
		{"what is left stays linked", cards(4, nil), []core.Link{{A: 2, B: 3, Count: 4}}, set(0, 1, 2, 3), 2, false, nil, []int32{2, 3}},
		{"cost", cards(4, nil), nil, set(0, 1, 2, 3), 2, false, []uint8{1, 1, 0, 0}, []int32{2, 3}},
		{"few NUMA nodes", cards(4, numa), nil, set(0, 1, 2, 3), 2, false, nil, []int32{0, 2}},
		{"a card's parts before the next card's", cards(4, slices), nil, set(1, 2, 3), 1, false, nil, []int32{1}},
	} {
		got := topology.Choose(device(test.cards, test.links...), test.free, test.count, test.whole, test.cost)
		must.Eq(t, test.want, got, must.Sprint(test.name))
	}
}

// Groups of many cards are served domain by domain.
func TestChooseOfMany(t *testing.T) {
	t.Parallel()
	d := device(cards(32, func(i int, k *core.Card) { k.Domain = fmt.Sprint(i / 8) }))
	free := []uint64{0xffffff0f} // domain 0 has four left
	must.Eq(t, []int32{0, 1, 2}, topology.Choose(d, free, 3, false, nil))
	must.Eq(t, []int32{8, 9, 10, 11, 12}, topology.Choose(d, free, 5, true, nil))
	must.Nil(t, topology.Choose(d, free, 9, true, nil))
	must.SliceLen(t, 12, topology.Choose(d, free, 12, false, nil))
	flat := device(cards(200, nil))
	free = []uint64{0, 0, 3, 1}
	must.Eq(t, []int32{128, 129, 192}, topology.Choose(flat, free, 3, false, nil))
}

// Whatever is asked for: as many as asked, each free, ascending, and within one
// domain where that is required; and what is there is found.
func TestChooseAlways(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 4, 8, 16, 24}).Draw(t, "cards")
		domains := rapid.IntRange(0, 3).Draw(t, "domains")
		d := device(cards(n, func(i int, k *core.Card) {
			if domains > 0 {
				k.Domain = fmt.Sprint(i * domains / n)
			}
			k.NUMA = rapid.IntRange(-1, 1).Draw(t, "numa")
			if rapid.IntRange(0, 5).Draw(t, "suspect") == 0 {
				k.State = core.CardSuspect
			}
		}))
		free := []uint64{rapid.Uint64().Draw(t, "free") & (1<<n - 1)}
		count, whole := rapid.IntRange(1, n).Draw(t, "count"), rapid.Bool().Draw(t, "whole")
		room := cluster.Count(free)
		if whole && count > 1 {
			room = 0
			for _, set := range d.Islands {
				room = max(room, cluster.CountBoth(set, free))
			}
		}
		got := topology.Choose(d, free, count, whole, nil)
		if (got != nil) != (room >= count) {
			t.Fatalf("%v of %d cards where there is room for %d", got, count, room)
		}
		last := int32(-1)
		in := map[string]bool{}
		for _, k := range got {
			if k <= last || free[0]>>k&1 == 0 {
				t.Fatalf("%v out of %b", got, free)
			}
			last = k
			in[d.Src.Cards[k].Domain] = true
		}
		if got != nil && (len(got) != count || whole && len(in) > 1) {
			t.Fatalf("%v for %d (whole %v)", got, count, whole)
		}
	})
}

// NICs near the chosen cards come first, each once, then the lowest.
func TestNearest(t *testing.T) {
	t.Parallel()
	nics := device(cards(4, nil))
	near := []*core.Card{{NICs: []core.CardID{"c2", "c1"}}, {NICs: []core.CardID{"c2", "c3"}}}
	must.Eq(t, []int32{2, 3}, topology.Nearest(nics, set(0, 1, 2, 3), 2, near))
	must.Eq(t, []int32{1, 3}, topology.Nearest(nics, set(0, 1, 3), 2, near))
	must.Eq(t, []int32{0, 2, 3}, topology.Nearest(nics, set(0, 1, 2, 3), 3, near))
	must.Eq(t, []int32{2}, topology.Nearest(nics, set(0, 1, 2, 3), 1, near))
	must.Eq(t, []int32{0}, topology.Nearest(nics, set(0, 1), 1, nil))
	must.Nil(t, topology.Nearest(nics, set(0), 2, near))
}
