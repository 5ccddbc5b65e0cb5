package topology

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/internal/contract"
)

// at makes a card at a place: host bridge, switches, then a port and itself.
func at(id, place string, numa int) *card.Card {
	c := &card.Card{ID: id, NUMA: numa, GI: -1, CI: -1, Group: card.Group{Type: contract.TypeGPU}}
	if place != "" {
		parts := strings.Split(place, "/")
		for i := range parts {
			c.Path = append(c.Path, strings.Join(parts[:i+1], "/"))
		}
		c.Path = append(c.Path, "port "+id, id)
	}
	if strings.HasPrefix(id, "N") || strings.HasPrefix(id, "mlx") {
		c.Group.Type = contract.TypeNIC
	}
	return c
}

// row finds the words of a row of one of the recorded machines.
func row(t *testing.T, machine int, name string) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/nvidia_topo.txt")
	must.NoError(t, err)
	_, rest, found := strings.Cut(string(text), fmt.Sprintf("# %d. ", machine))
	must.True(t, found)
	rest, _, _ = strings.Cut(rest, fmt.Sprintf("# %d. ", machine+1))
	for _, line := range strings.Split(rest, "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name && slices.Contains(f, "X") { // not the header
			return f[1:]
		}
	}
	t.Fatalf("machine %d has no row %s", machine, name)
	return nil
}

// The distances of recorded machines come out of their places in the tree.
func TestRecordedMachines(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		number int
		cards  []*card.Card // as the columns are
		rows   []int        // those that are recorded in full
	}{
		// 1. DGX A100: two adapters for two cards below one switch tree.
		{1, []*card.Card{at("GPU0", "b0/s0/g0", 3), at("GPU1", "b0/s0/g1", 3), at("GPU2", "b1/s1/g0", 1), at("GPU3", "b1/s1/g1", 1), at("GPU4", "b2/s2/g0", 7), at("GPU5", "b2/s2/g1", 7), at("GPU6", "b3/s3/g0", 5), at("GPU7", "b3/s3/g1", 5),
			at("NIC0", "b0/s0/n0", 3), at("NIC1", "b0/s0/n1", 3), at("NIC2", "b1/s1/n0", 1), at("NIC3", "b1/s1/n1", 1)}, []int{0, 1, 2, 3}},
		// 2. HGX H100: an adapter for each card below its own switch.
		{2, []*card.Card{at("GPU0", "b0/s", 0), at("GPU1", "b1/s", 0), at("GPU2", "b2/s", 0), at("GPU3", "b3/s", 0), at("GPU4", "b4/s", 1), at("GPU5", "b5/s", 1), at("GPU6", "b6/s", 1), at("GPU7", "b7/s", 1),
			at("NIC0", "b0/s", 0), at("NIC1", "b1/s", 0), at("NIC2", "b2/s", 0), at("NIC3", "b3/s", 0), at("NIC4", "b4/s", 1), at("NIC5", "b5/s", 1), at("NIC6", "b6/s", 1), at("NIC7", "b7/s", 1)}, []int{0, 1, 2, 3, 4}},
		// 7. PCIe only: four cards for each switch tree, the adapter at the second socket's bridge.
		{7, []*card.Card{at("GPU0", "b0/s/a", 0), at("GPU1", "b0/s/a", 0), at("GPU2", "b0/s/b", 0), at("GPU3", "b0/s/b", 0), at("GPU4", "b1/s/a", 1), at("GPU5", "b1/s/a", 1), at("GPU6", "b1/s/b", 1), at("GPU7", "b1/s/b", 1),
			at("mlx5_0", "b1", 1)}, []int{0, 1, 2, 3, 4, 5, 6, 7}},
	} {
		for _, i := range m.rows {
			words := row(t, m.number, m.cards[i].ID)
			for j, other := range m.cards {
				if i == j || strings.HasPrefix(words[j], "NV") {
					continue // over NVLink: the tool does not tell the PCIe distance
				}
				must.Eq(t, contract.Hop(words[j]), Distance(m.cards[i], other), must.Sprintf("machine %d: %s to %s", m.number, m.cards[i].ID, other.ID))
			}
		}
	}
	// 9. Four L40S on two sockets, each at a bridge of its own.
	a, b, c := at("GPU0", "b0", 0), at("GPU1", "b1", 0), at("GPU2", "b2", 1)
	must.Eq(t, contract.HopNODE, Distance(a, b))
	must.Eq(t, contract.HopSYS, Distance(a, c))
	// A virtual machine that shows no places.
	must.Eq(t, contract.Hop(""), Distance(at("a", "", -1), at("b", "", -1)))
	must.Eq(t, contract.HopNODE, Distance(at("a", "", 0), at("b", "", 0)))
	must.Eq(t, contract.HopSYS, Distance(at("a", "b0", -1), at("b", "b1", -1)))
}

func TestGroup(t *testing.T) {
	t.Parallel()
	cards := []*card.Card{at("a", "b0/s", 0), at("b", "b0/s", 0), at("c", "b1/s", 1), at("d", "b1/s", 1)}
	cards[0].Links = map[string]int{"b": 4, "c": 2, "elsewhere": 9}
	cards[1].Links = map[string]int{"a": 3}
	cards[2].Links = map[string]int{"d": 0}
	nics := []*card.Card{at("N0", "b1/s", 1), at("N1", "b0/s", 0)}
	g := Group(cards, nics)
	must.Eq(t, []contract.Link{{A: 0, B: 1, Count: 3}, {A: 0, B: 2, Count: 2}}, g.Links) // what both ends see; or the one that tells
	must.Eq(t, contract.HopSYS, g.Far)
	must.Eq(t, []contract.Distance{{A: 0, B: 1, Hop: contract.HopPIX}, {A: 2, B: 3, Hop: contract.HopPIX}}, g.Near)
	must.Eq(t, []contract.NIC{{ID: "N1", Hop: contract.HopPIX}}, g.Cards[0].NICs) // the far one is left out
	must.Eq(t, []contract.NIC{{ID: "N0", Hop: contract.HopPIX}}, g.Cards[3].NICs)
	text, err := contract.EncodeCards(g)
	must.NoError(t, err)
	_, err = contract.DecodeCards(text)
	must.NoError(t, err)
}

// Distance does not depend on the direction, and a group is always readable.
func TestAlwaysConsistent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var cards []*card.Card
		for i := range rapid.IntRange(1, 9).Draw(t, "n") {
			c := at(fmt.Sprint("c", i), rapid.SampledFrom([]string{"", "b0", "b0/s", "b0/s/x", "b0/s/y", "b1", "b1/s"}).Draw(t, "place"), rapid.IntRange(-1, 2).Draw(t, "numa"))
			c.Links = map[string]int{}
			for range rapid.IntRange(0, 4).Draw(t, "links") {
				c.Links[fmt.Sprint("c", rapid.IntRange(0, 12).Draw(t, "peer"))] = rapid.IntRange(-1, 18).Draw(t, "count")
			}
			cards = append(cards, c)
		}
		for _, a := range cards {
			for _, b := range cards {
				must.Eq(t, Distance(a, b), Distance(b, a))
			}
		}
		text, err := contract.EncodeCards(Group(cards, cards[:1]))
		must.NoError(t, err)
		_, err = contract.DecodeCards(text)
		must.NoError(t, err)
	})
}
