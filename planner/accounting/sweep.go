package accounting

import (
	"cmp"
	"slices"
)

// Amounts are card-seconds; Guaranteed + Borrowed = Held + Training.
type Amounts struct {
	Guaranteed int64 `json:"guaranteed"`
	Borrowed   int64 `json:"borrowed"`
	Held       int64 `json:"held"`
	Training   int64 `json:"training"`
}

// Total is all of them.
func (a Amounts) Total() int64 { return a.Held + a.Training }

func (a *Amounts) add(b Amounts) {
	a.Guaranteed += b.Guaranteed
	a.Borrowed += b.Borrowed
	a.Held += b.Held
	a.Training += b.Training
}

// hour is one of UTC, counted since 1970.
const hour = 3600

// span is one allocation's cards of one model, for all of its life.
type span struct {
	alloc, model string
	cards        int
	created      int64
	ended        int64 // alive: none
	launched     int64 // of the attempt; never: none
}

// none is a time that has not come.
const none = int64(1) << 62

// within are the card-seconds that a span has in [from, to), by phase.
func (s *span) within(from, to int64) (held, training int64) {
	from, to = max(from, s.created), min(to, s.ended)
	if from >= to {
		return 0, 0
	}
	at := min(max(s.launched, from), to)
	return int64(s.cards) * (at - from), int64(s.cards) * (to - at)
}

// sweep divides what a queue's spans have in [from, to) into guaranteed and
// borrowed; the result is by place in spans.
func sweep(spans []span, from, to int64, g Guarantee) []Amounts {
	out := make([]Amounts, len(spans))
	order := make([]int, 0, len(spans))
	limited := false // the guarantee may not do for all
	peak := map[string]int{}
	sum := 0
	for i := range spans {
		s := &spans[i]
		held, training := s.within(from, to)
		if held+training == 0 {
			continue
		}
		out[i] = Amounts{Held: held, Training: training}
		order = append(order, i)
		peak[s.model] += s.cards
	}
	for model, n := range peak {
		sum += max(0, n-g.Models[model])
	}
	limited = sum > g.Any
	if !limited || len(g.Models) == 0 && g.Any == 0 {
		for _, i := range order {
			if limited {
				out[i].Borrowed = out[i].Total()
			} else {
				out[i].Guaranteed = out[i].Total()
			}
		}
		return out
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &spans[a], &spans[b]
		return cmp.Or(cmp.Compare(x.created, y.created), cmp.Compare(x.alloc, y.alloc), cmp.Compare(x.model, y.model))
	})
	// Between two cuts nobody comes or goes.
	cuts := []int64{from, to}
	for _, i := range order {
		cuts = append(cuts, max(from, spans[i].created), min(to, spans[i].ended))
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	pieces := len(cuts) - 1
	left := map[string][]int{}
	leftAny := slices.Repeat([]int{g.Any}, pieces)
	for _, i := range order {
		s := &spans[i]
		mine := left[s.model]
		if mine == nil {
			mine = slices.Repeat([]int{g.Models[s.model]}, pieces)
			left[s.model] = mine
		}
		first, _ := slices.BinarySearch(cuts, max(from, s.created))
		for p := first; p < pieces && cuts[p] < s.ended; p++ {
			own := min(mine[p], s.cards)
			mine[p] -= own
			more := min(leftAny[p], s.cards-own)
			leftAny[p] -= more
			out[i].Guaranteed += int64(own+more) * (cuts[p+1] - cuts[p])
		}
		out[i].Borrowed = out[i].Total() - out[i].Guaranteed
	}
	return out
}
