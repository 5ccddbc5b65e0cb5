package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

// OpenB is the packing study of FGD (ATC'23): pods of a trace, shuffled by a
// seed and then drawn again at random until they ask for so much of the
// cluster's cards, arrive one by one and stay. What does not fit is dropped.
//
// The planner runs as it is configured and knows of the pods that came, by its
// own rule (package recent), and of nothing else. Up to 32 pods that arrive one
// after the other wait at a time, and are decided on in that order. Of a plan
// the starts are carried out that come before the first pod that finds no
// place; that one is dropped, and those behind it are decided on again: nothing
// is kept for what is dropped, and the pods get what each would get alone.
type OpenB struct {
	Config   *core.Config
	Nodes    []core.Node
	Pods     []Job
	Seed     uint64
	Until    float64 // cards asked for, as a share of all; FGD: 1.3
	Progress func(arrived float64)
}

// OpenBPoint is the state when so much has arrived, both as shares of all
// cards.
type OpenBPoint struct{ Arrived, Held float64 }

// Run returns a point after each arrival.
func (o *OpenB) Run() ([]OpenBPoint, error) {
	rnd := rand.New(rand.NewPCG(o.Seed, 0x6f70656e62))
	pods := slices.Clone(o.Pods)
	rnd.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	capacity := int64(0)
	for i := range o.Nodes {
		for d := range o.Nodes[i].Devices {
			capacity += int64(len(o.Nodes[i].Devices[d].Cards)) * 1000
		}
	}
	w, decider := NewWorld(epoch, o.Config, slices.Clone(o.Nodes)), decide.New()
	var out []OpenBPoint
	asked, arrived, held := int64(0), int64(0), int64(0)
	until := int64(o.Until * float64(capacity))
	type arrival struct {
		gang  *Gang
		milli int64
	}
	var waiting []arrival
	for n := 0; asked < until || len(waiting) > 0; {
		for len(waiting) < burst && asked < until {
			pod := o.Pods[rnd.IntN(len(o.Pods))]
			if n < len(pods) {
				pod = pods[n]
			}
			pod.ID, pod.Queue, pod.Submit = fmt.Sprintf("p%06d", n), o.Config.Queues[0].Name, 0
			g, err := w.Submit(pod.gang(epoch))
			if err != nil {
				return nil, err
			}
			waiting = append(waiting, arrival{g, pod.milli()})
			asked += pod.milli()
			n++
		}
		plan := decider.Decide(w.Snapshot())
		first := 0
		for first < len(plan.Starts) && plan.Starts[first].Gang == waiting[first].gang.ID {
			first++
		}
		plan.Starts = plan.Starts[:first]
		if _, err := w.Apply(plan); err != nil {
			return nil, err
		}
		decided := waiting[:min(first+1, len(waiting))]
		for i, a := range decided {
			arrived += a.milli
			if i < first {
				held += a.milli
			} else {
				w.End(a.gang, "dropped")
			}
			out = append(out, OpenBPoint{float64(arrived) / float64(capacity), float64(held) / float64(capacity)})
		}
		waiting = waiting[len(decided):]
		if o.Progress != nil {
			o.Progress(out[len(out)-1].Arrived)
		}
	}
	return out, w.Check()
}

// Unallocated is the share of all cards that is not held when so much has
// arrived.
func Unallocated(points []OpenBPoint, arrived float64) float64 {
	for _, p := range points {
		if p.Arrived >= arrived {
			return 1 - p.Held
		}
	}
	return 1
}

// burst is how many pods wait at most.
const burst = 32
