// Package topology turns what sources know of single cards into what a planner
// reads of a node: which cards reach each other over how many links, how far
// they are apart on PCIe, which network adapters are near. It is pure.
//
// PCIe distance comes from the places of two cards in the PCIe tree, in
// nvidia-smi's words: PIX where the path crosses one bridge (one switch, or one
// root port), PXB where it crosses several, PHB where it goes through the host
// bridge they share, NODE between host bridges of one NUMA node, SYS between
// NUMA nodes and wherever the NUMA nodes are not known.
package topology

import (
	"sort"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/internal/contract"
)

// Distance is the hop between two cards; empty where neither's place is known.
func Distance(a, b *card.Card) contract.Hop {
	if len(a.Path) > 0 && len(b.Path) > 0 && a.Path[0] == b.Path[0] {
		shared := 0
		for shared < len(a.Path) && shared < len(b.Path) && a.Path[shared] == b.Path[shared] {
			shared++
		}
		// Below the last bridge that both hang from: a port of the switch and
		// the card itself.
		below := max(len(a.Path), len(b.Path)) - shared
		switch {
		case shared > 1 && below <= 2:
			return contract.HopPIX
		case shared > 1:
			return contract.HopPXB
		default:
			return contract.HopPHB
		}
	}
	if a.NUMA >= 0 && a.NUMA == b.NUMA {
		return contract.HopNODE
	}
	if len(a.Path) == 0 && a.NUMA < 0 || len(b.Path) == 0 && b.NUMA < 0 {
		return ""
	}
	return contract.HopSYS
}

var hopRank = map[contract.Hop]int{contract.HopPIX: 1, contract.HopPXB: 2, contract.HopPHB: 3, contract.HopNODE: 4, contract.HopSYS: 5, "": 6}

// maxNICs is how many adapters are named for one card.
const maxNICs = 4

// Group describes the cards of one device group, in the order given; nics are
// the node's network adapters that work. States and whys of the cards are left
// to the caller.
func Group(cards []*card.Card, nics []*card.Card) contract.CardGroup {
	g := contract.CardGroup{V: contract.CardsVersion}
	place := make(map[string]int, len(cards))
	for i, c := range cards {
		place[c.ID] = i
	}
	for _, c := range cards {
		out := contract.Card{ID: c.ID, Index: c.Index, Bus: c.Bus.String(), Domain: c.Domain, Parent: c.Parent, Serial: c.Serial}
		if c.NUMA >= 0 {
			numa := c.NUMA
			out.NUMA = &numa
		}
		if !c.IsNIC() {
			out.NICs = nearest(c, nics)
		}
		g.Cards = append(g.Cards, out)
	}
	for i, c := range cards {
		for peer, count := range c.Links {
			j, here := place[peer]
			if !here || j == i || count <= 0 {
				continue
			}
			if back := cards[j].Links[c.ID]; back > 0 {
				count = min(count, back) // a link counts where both ends see it
				if j < i {
					continue // told from the other end
				}
			}
			g.Links = append(g.Links, contract.Link{A: min(i, j), B: max(i, j), Count: count})
		}
	}
	sort.Slice(g.Links, func(a, b int) bool {
		return g.Links[a].A < g.Links[b].A || g.Links[a].A == g.Links[b].A && g.Links[a].B < g.Links[b].B
	})
	if len(cards) > 0 && !cards[0].IsNIC() { // nobody asks how far adapters are apart
		hops(&g, cards)
	}
	return g
}

// nearest lists the adapters near a card, nearest first. Adapters at the far
// end of the machine are left out while nearer ones exist.
func nearest(c *card.Card, nics []*card.Card) []contract.NIC {
	var out []contract.NIC
	for _, nic := range nics {
		if hop := Distance(c, nic); hop != "" {
			out = append(out, contract.NIC{ID: nic.ID, Hop: hop})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return hopRank[out[i].Hop] < hopRank[out[j].Hop] })
	for i := range out {
		if i == maxNICs || hopRank[out[i].Hop] > max(hopRank[out[0].Hop], hopRank[contract.HopPHB]) {
			return out[:i]
		}
	}
	return out
}

// hops fills in the distances: the most frequent one as Far, the others each.
func hops(g *contract.CardGroup, cards []*card.Card) {
	count := map[contract.Hop]int{}
	var all []contract.Distance
	for i := range cards {
		for j := i + 1; j < len(cards); j++ {
			if cards[i].Parent != "" && cards[i].Parent == cards[j].Parent {
				continue // slices of one card
			}
			hop := Distance(cards[i], cards[j])
			if hop == "" {
				continue
			}
			count[hop]++
			all = append(all, contract.Distance{A: i, B: j, Hop: hop})
		}
	}
	for _, hop := range []contract.Hop{contract.HopSYS, contract.HopNODE, contract.HopPHB, contract.HopPXB, contract.HopPIX} {
		if count[hop] > count[g.Far] || g.Far == "" && count[hop] > 0 {
			g.Far = hop
		}
	}
	for _, d := range all {
		if d.Hop != g.Far {
			g.Near = append(g.Near, d)
		}
	}
}
