package simulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Faults break nodes at a rate; what runs on one loses its work since the last
// checkpoint.
type Faults struct {
	PerThousandNodeDays float64
	Repair              time.Duration // how long a node is out; default 4 hours
}

type faults struct {
	e   *engine
	rnd *rand.Rand
}

func newFaults(e *engine) *faults {
	f := &faults{e: e, rnd: rand.New(rand.NewPCG(e.o.Seed, 0x6d7573746572))}
	if e.o.Faults.PerThousandNodeDays > 0 {
		f.next()
	}
	return f
}

// next draws the next fault: exponential gaps, any node.
func (f *faults) next() {
	perDay := f.e.o.Faults.PerThousandNodeDays * float64(len(f.e.o.Nodes)) / 1000
	gap := time.Duration(-math.Log(1-f.rnd.Float64()) / perDay * float64(24*time.Hour))
	f.e.push(event{at: f.e.w.Now.Add(gap), kind: eventFault, node: f.rnd.IntN(len(f.e.o.Nodes))})
}

func (f *faults) handle(ev event) error {
	w := f.e.w
	node := w.Nodes[ev.node].ID
	if ev.kind == eventRepair {
		return w.EditNode(node, func(n *core.Node) { n.Ready = true })
	}
	f.next()
	if !w.Nodes[ev.node].Ready {
		return nil
	}
	repair := f.e.o.Faults.Repair
	if repair == 0 {
		repair = 4 * time.Hour
	}
	f.e.push(event{at: w.Now.Add(repair), kind: eventRepair, node: ev.node})
	f.e.res.Faults++
	if err := w.EditNode(node, func(n *core.Node) { n.Ready = false }); err != nil {
		return err
	}
	for _, g := range slices.Clone(w.Active()) {
		if g.State != core.GangRunning || !slices.ContainsFunc(g.Claims, func(c core.Claim) bool { return c.Node == node }) {
			continue
		}
		if j := f.e.jobs[g.ID]; j != nil && !g.Damaged {
			if c := f.e.o.Checkpoints; c > 0 && w.Now.Sub(g.Released) >= c {
				j.row = 0
			}
			j.hit, j.displaced, j.chain = w.Now, true, 0
			j.row++
			j.out.Hits++
			j.out.InARow = max(j.out.InARow, j.row)
		}
		g.Damaged = true
		for i := range g.Claims {
			if g.Claims[i].Node == node {
				g.Lost = append(g.Lost, g.Claims[i].Member)
			}
		}
	}
	return nil
}
