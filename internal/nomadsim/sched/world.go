package sched

import (
	"math/rand/v2"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// world is a snapshot with a plan laid over it.
type world struct {
	snap  *store.Snapshot
	m     *matcher
	rng   *rand.Rand
	now   time.Time
	newID func() string
	usage map[string]*usage
}

func (w *world) node(id string) *usage {
	u := w.usage[id]
	if u == nil {
		u = usageOf(w.snap, id)
		w.usage[id] = u
	}
	return u
}

// filtered and exhausted note in a metric why a node was passed over.
func filtered(m *wire.AllocMetric, n *wire.Node, why string) {
	m.NodesFiltered++
	if n.NodeClass != "" {
		bump(&m.ClassFiltered, n.NodeClass)
	}
	bump(&m.ConstraintFiltered, why)
}

func exhausted(m *wire.AllocMetric, n *wire.Node, dimension string) {
	m.NodesExhausted++
	if n.NodeClass != "" {
		bump(&m.ClassExhausted, n.NodeClass)
	}
	bump(&m.DimensionExhausted, dimension)
}

func bump(m *map[string]int, k string) {
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[k]++
}

// exhaustedResources notes what a group that did not fit would have taken.
func exhaustedResources(m *wire.AllocMetric, g *wire.TaskGroup) {
	if m.DimensionExhausted == nil {
		return
	}
	if m.ResourcesExhausted == nil {
		m.ResourcesExhausted = map[string]*wire.Resources{}
	}
	for _, t := range g.Tasks {
		r := wire.Resources{}
		if old := m.ResourcesExhausted[t.Name]; old != nil {
			r = *old
		}
		if m.DimensionExhausted["memory"] > 0 {
			r.MemoryMB += t.Resources.MemoryMB
		}
		if m.DimensionExhausted["cpu"] > 0 {
			r.CPU += t.Resources.CPU
		}
		m.ResourcesExhausted[t.Name] = &r
	}
}

func scored(m *wire.AllocMetric, id, name string, score float64) {
	var at *wire.NodeScoreMeta
	if n := len(m.ScoreMetaData); n > 0 && m.ScoreMetaData[n-1].NodeID == id {
		at = m.ScoreMetaData[n-1]
	} else {
		at = &wire.NodeScoreMeta{NodeID: id, Scores: map[string]float64{}}
		m.ScoreMetaData = append(m.ScoreMetaData, at)
	}
	at.Scores[name] = score
}
