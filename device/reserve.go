package device

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/nomad-muster/muster/device/health"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// reserve answers what a task needs to use exactly these cards. Every id that
// cannot be had is named with its reason.
func (v *view) reserve(ids []string) (*nomad.Reservation, error) {
	if len(ids) == 0 {
		return nil, errors.New("reserve: no card is named; an empty list is never taken for all of them")
	}
	var cards []viewed
	var faults []error
	asked := map[string]bool{}
	for _, id := range ids {
		got, known := v.cards[id]
		switch {
		case asked[id]:
			faults = append(faults, fmt.Errorf("card %s is named twice", id))
		case !known:
			faults = append(faults, fmt.Errorf("card %s is not on this node (`nomad node status -verbose` lists those that are)", id))
		case !got.verdict.Level.Usable():
			faults = append(faults, fmt.Errorf("card %s is %s: %s; what would clear it: %s", id, got.verdict.Level, got.verdict.Sentence, got.verdict.Clears))
		default:
			cards = append(cards, got)
		}
		asked[id] = true
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("reserve: %w", errors.Join(faults...))
	}
	// In the driver's order, whatever the order of the request: ranks then see
	// their cards in the same order on each start.
	sort.Slice(cards, func(i, j int) bool {
		a, b := cards[i].card, cards[j].card
		return a.Index < b.Index || a.Index == b.Index && a.ID < b.ID
	})
	out := &nomad.Reservation{Env: map[string]string{}}
	lists := map[string][]string{}
	nodes, mounts := map[nomad.DeviceNode]bool{}, map[nomad.Mount]bool{}
	for _, c := range cards {
		for name, word := range c.card.Grant.Lists {
			if have := lists[name]; len(have) == 0 || have[len(have)-1] != word { // shares of one card give one word
				lists[name] = append(have, word)
			}
		}
		for name, value := range c.card.Grant.Env {
			out.Env[name] = value
		}
		for _, n := range c.card.Grant.Nodes {
			if !nodes[n] {
				nodes[n] = true
				out.Devices = append(out.Devices, n)
			}
		}
		for _, m := range c.card.Grant.Mounts {
			if !mounts[m] {
				mounts[m] = true
				out.Mounts = append(out.Mounts, m)
			}
		}
	}
	for name, words := range lists {
		out.Env[name] = strings.Join(words, ",")
	}
	return out, nil
}

// levels counts the cards of each level, for logs and metrics.
func (v *view) levels() map[health.Level]int {
	out := map[health.Level]int{}
	for _, c := range v.cards {
		out[c.verdict.Level]++
	}
	return out
}
