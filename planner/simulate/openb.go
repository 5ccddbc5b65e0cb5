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
// The planner runs as it is configured and knows of the pods that came before,
// by its own rule (package recent), and of nothing else. Pods are decided on in
// bursts of up to 32, in the order of their arrival, as a service does that
// finds several in its queue; where one of a burst finds no place, nothing of
// that plan is carried out and each pod of the burst has a cycle of its own, at
// whose end it is dropped if it still waits.
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
	r := &openB{w: NewWorld(epoch, o.Config, slices.Clone(o.Nodes)), decider: decide.New()}
	var out []OpenBPoint
	asked, arrived, held, alone := int64(0), int64(0), int64(0), 0
	until := int64(o.Until * float64(capacity))
	for n := 0; asked < until; {
		var now []Job
		for len(now) < burst && (alone == 0 || len(now) == 0) && asked < until {
			pod := o.Pods[rnd.IntN(len(o.Pods))]
			if n < len(pods) {
				pod = pods[n]
			}
			pod.ID, pod.Queue, pod.Submit = fmt.Sprintf("p%06d", n), o.Config.Queues[0].Name, 0
			now = append(now, pod)
			asked += pod.milli()
			n++
		}
		placed, err := r.decide(now)
		if err != nil {
			return nil, err
		}
		alone = max(0, alone-1)
		for i := range now {
			arrived += now[i].milli()
			if placed[i] {
				held += now[i].milli()
			} else {
				alone = burst // the next ones probably find no place either
			}
			out = append(out, OpenBPoint{float64(arrived) / float64(capacity), float64(held) / float64(capacity)})
		}
		if o.Progress != nil {
			o.Progress(out[len(out)-1].Arrived)
		}
	}
	return out, r.w.Check()
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

// burst is how many pods are decided on in one cycle.
const burst = 32

// openB is a replay under way.
type openB struct {
	w       *World
	decider core.Decider
}

// decide tells which of the pods that came were placed.
func (r *openB) decide(pods []Job) ([]bool, error) {
	gangs := make([]*Gang, len(pods))
	for i := range pods {
		g, err := r.w.Submit(pods[i].gang(epoch))
		if err != nil {
			return nil, err
		}
		gangs[i] = g
	}
	placed := make([]bool, len(pods))
	plan := r.decider.Decide(r.w.Snapshot())
	if len(plan.Starts) == len(pods) || len(pods) == 1 {
		_, err := r.w.Apply(plan)
		for i, g := range gangs {
			if placed[i] = g.State == core.GangRunning; !placed[i] {
				r.w.End(g, "dropped")
			}
		}
		return placed, err
	}
	for _, g := range gangs {
		r.w.End(g, "submitted again")
	}
	for i := range pods {
		one, err := r.decide(pods[i : i+1])
		if err != nil {
			return nil, err
		}
		placed[i] = one[0]
	}
	return placed, nil
}
