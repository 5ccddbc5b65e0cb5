package agent_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/shoenig/test/must"
)

// C34: 1,000 rounds over gangs of three queues, submitted and stopped at random
// on eight nodes. Whatever the planner decides in one round is decided on what the round
// before left: Nomad places every gang whole in one plan or not at all, so that
// two gangs never hold parts of the cluster against each other, and all ranks
// of a gang run, or none. In the end every gang is over and every card free. The
// seed is printed; MUSTER_SEED plays it again.
func TestThousandRounds(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MUSTER_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		must.NoError(t, err)
		seed = n
	}
	t.Logf("MUSTER_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 34))
	const nodes, cards, rounds, atOnce = 8, 4, 1000, 32
	b := newBench(t, nodes, cards).direct()
	b.cfg.Core.Queues = nil
	for _, name := range []string{"a", "b", "c"} {
		b.cfg.Core.Queues = append(b.cfg.Core.Queues, core.DefaultQueue(core.QueueName(name)))
	}
	b.start()
	var mu sync.Mutex
	sizes := map[string]int{}
	parts, plans := []string{}, 0
	b.sim.Hooks().OnPlan(func(p *store.Plan) []string {
		placed := map[string]int{}
		for _, a := range p.Placed {
			if a.CreateIndex == 0 {
				placed[a.JobID]++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for id, n := range placed {
			if plans++; n != sizes[id] {
				parts = append(parts, fmt.Sprintf("%d of %d members of %s", n, sizes[id], id))
			}
		}
		return nil
	})
	over, i := 0, 0
	var open []string
	for enough := false; !enough || len(open) > 0; {
		enough = enough || b.agent.Status().Cycles >= rounds
		for !enough && len(open) < atOnce {
			id := fmt.Sprintf("r%04d", i)
			size := 1 + rng.IntN(nodes)
			mu.Lock()
			sizes[id] = size
			mu.Unlock()
			b.submit(job{id: id, count: size, cards: 1 + rng.IntN(cards), args: []string{fmt.Sprintf("run=%dms", 1+rng.IntN(4))},
				meta: map[string]string{contract.MetaQueue: []string{"a", "b", "c"}[rng.IntN(3)]}})
			open = append(open, id)
			i++
			if rng.IntN(20) == 0 {
				_, _, err := b.sim.Client().Jobs().Deregister(open[rng.IntN(len(open))], false, nil)
				must.NoError(t, err)
			}
		}
		b.eventually("a gang ends", func() bool {
			left := open[:0:0]
			for _, id := range open {
				g, ok := b.agent.Gang("default", id)
				if ok && g.Stage == contract.StageComplete {
					must.Eq(t, sizes[id], b.members.launches("default/"+id, g.Attempt), must.Sprint("all ranks of ", id, " ran, and no others"))
				}
				if ok && g.Stage.Ended() {
					over++
					continue
				}
				left = append(left, id)
			}
			moved := len(left) < len(open)
			open = left
			return moved
		})
	}
	mu.Lock()
	defer mu.Unlock()
	must.SliceEmpty(t, parts)
	must.Eq(t, i, over)
	must.Greater(t, i/2, plans)
	t.Logf("%d rounds, %d gangs, %d placed", b.agent.Status().Cycles, i, plans)
	b.eventually("nothing is left", func() bool {
		var allocs []allocInfo
		b.get("/v1/allocations", &allocs)
		for _, a := range allocs {
			if a.ClientStatus == "running" || a.ClientStatus == "pending" {
				return false
			}
		}
		return true
	})
	b.eventually("the members' channel is empty", b.members.channel.Empty)
}
