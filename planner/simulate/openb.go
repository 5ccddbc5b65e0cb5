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
	w := NewWorld(epoch, o.Config, slices.Clone(o.Nodes))
	decider := decide.New()
	var mix mixture
	var out []OpenBPoint
	arrived, held := int64(0), int64(0)
	// Several arrivals are decided in one cycle, in their order: since nothing
	// ends and nothing is promised, that is the same as one after the other.
	const batch = 32
	cfg := *o.Config
	cfg.Reservations = 0
	w.Config = &cfg
	type arrival struct {
		gang *Gang
		pod  Job
	}
	for n := 0; float64(arrived) < o.Until*float64(capacity); {
		var now []arrival
		for len(now) < batch && float64(arrived) < o.Until*float64(capacity) {
			pod := o.Pods[rnd.IntN(len(o.Pods))]
			if n < len(pods) {
				pod = pods[n]
			}
			pod.ID, pod.Queue, pod.Submit = fmt.Sprintf("p%06d", n), o.Config.Queues[0].Name, 0
			mix.add(&pod)
			g, err := w.Submit(pod.gang(epoch))
			if err != nil {
				return nil, err
			}
			now = append(now, arrival{g, pod})
			arrived += pod.milli()
			n++
		}
		w.History.Recent = mix.shapes()
		p := decider.Decide(w.Snapshot())
		if _, err := w.Apply(p); err != nil {
			return nil, err
		}
		for i := range now {
			arrived -= now[i].pod.milli()
		}
		for i := range now {
			arrived += now[i].pod.milli()
			if now[i].gang.State == core.GangRunning {
				held += now[i].pod.milli()
			} else {
				w.End(now[i].gang, "dropped")
			}
			out = append(out, OpenBPoint{float64(arrived) / float64(capacity), float64(held) / float64(capacity)})
		}
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

// mixture counts the shapes of jobs.
type mixture struct {
	index map[string]int
	all   []core.Shape
}

func (m *mixture) add(j *Job) {
	if m.index == nil {
		m.index = map[string]int{}
	}
	key := fmt.Sprint(j.Members, j.Cards, j.Shares, j.Use, j.Models)
	at, ok := m.index[key]
	if !ok {
		at = len(m.all)
		m.index[key] = at
		m.all = append(m.all, core.Shape{Members: max(1, j.Members), Cards: j.Cards, Shares: j.Shares, Use: j.Use, Models: j.Models})
	}
	m.all[at].Weight++
}

func (m *mixture) shapes() []core.Shape { return slices.Clone(m.all) }
