// Package kueue makes the loads of Kueue's own performance tests
// (kubernetes-sigs/kueue, test/performance/scheduler/configs, Apache-2.0):
// cohorts of queues that lend each other their quota, and the workloads that
// each queue is sent. What Kueue counts in CPUs is counted in cards here.
//
// The loads are replayed in virtual time by the benchmarks of planner/simulate,
// and through Nomad's API by those of planner/agent. Check and Audit say what
// must hold: Check of what the planner decides, Audit of what the servers say
// was placed.
package kueue

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Load is one of the tests.
type Load struct {
	Name string
	// Cohorts of Queues each. A queue has a quota of 20 CPUs and may borrow 100
	// more of its cohort's others.
	Cohorts, Queues int
	// Scale is how many cards stand for one CPU.
	Scale   int
	Levels  []core.Level // of the topology, outermost first
	Classes []Class
}

// Class of workloads that each queue is sent.
type Class struct {
	Name       string
	Count      int
	Every, Run time.Duration
	Priority   int // 25, 50, 100 for Kueue's 50, 100, 200: Nomad has none above 100
	Members    int
	Cards      int    // of a member
	Level      string // of Levels; "": none
	Required   bool
}

// Size of a workload, in cards.
func (c *Class) Size() int { return c.Members * c.Cards }

// Workload is one of them.
type Workload struct {
	*Class
	ID     string
	Queue  core.QueueName
	Submit time.Duration // since the load began
}

// Loads are Kueue's: baseline, topology (its "tas") and large.
func Loads() []Load {
	const ms = time.Millisecond
	topology := Load{Name: "topology", Cohorts: 5, Queues: 6, Scale: 4, Levels: []core.Level{{Name: "block"}, {Name: "rack"}}}
	for _, k := range []struct {
		size                                    string
		required, preferred, balanced, priority int
		every, run                              time.Duration
		members, cards                          int
	}{{"small", 120, 120, 110, 25, 100 * ms, 200 * ms, 2, 2}, {"medium", 34, 33, 33, 50, 500 * ms, 500 * ms, 4, 5}, {"large", 17, 17, 16, 100, 1200 * ms, 1000 * ms, 8, 10}} {
		topology.Classes = append(topology.Classes, Class{k.size + "-required", k.required, k.every, k.run, k.priority, k.members, k.cards, "rack", true},
			Class{k.size + "-preferred", k.preferred, k.every, k.run, k.priority, k.members, k.cards, "rack", false},
			Class{k.size + "-balanced", k.balanced, k.every, k.run, k.priority, k.members, k.cards, "rack", false})
	}
	return []Load{
		{Name: "baseline", Cohorts: 5, Queues: 6, Scale: 1, Classes: []Class{{"small", 350, 100 * ms, 200 * ms, 25, 1, 1, "", false},
			{"medium", 100, 500 * ms, 500 * ms, 50, 1, 5, "", false}, {"large", 50, 1200 * ms, 1000 * ms, 100, 1, 20, "", false}}},
		topology,
		{Name: "large", Cohorts: 10, Queues: 100, Scale: 1, Classes: []Class{{"small", 35, 60 * ms, 150 * ms, 25, 1, 1, "", false},
			{"medium", 11, 300 * ms, 350 * ms, 50, 1, 5, "", false}, {"large", 4, 700 * ms, 700 * ms, 100, 1, 20, "", false}}},
	}
}

// Stretched is the load with all of its times so many times as long.
func (l Load) Stretched(by float64) Load {
	l.Classes = slices.Clone(l.Classes)
	for i := range l.Classes {
		c := &l.Classes[i]
		c.Every, c.Run = time.Duration(float64(c.Every)*by), time.Duration(float64(c.Run)*by)
	}
	return l
}

// Most is what a queue may hold, and what a cohort may, in cards.
func (l *Load) Most() (queue, cohort int) { return 120 * l.Scale, 20 * l.Scale * l.Queues }

// Config are the defaults with the load's queues and levels.
func (l *Load) Config() *core.Config {
	cfg := core.Defaults()
	cfg.Levels = l.Levels
	queue, whole := l.Most()
	for c := range l.Cohorts {
		cohort := core.DefaultQueue(core.QueueName(fmt.Sprintf("c%02d", c)))
		cohort.Guaranteed, cohort.Max = core.Amounts{Any: whole}, core.Amounts{Any: whole}
		cfg.Queues = append(cfg.Queues, cohort)
		for q := range l.Queues {
			leaf := core.DefaultQueue(queueName(c, q))
			leaf.Parent, leaf.Guaranteed, leaf.Max = cohort.Name, core.Amounts{Any: 20 * l.Scale}, core.Amounts{Any: queue}
			cfg.Queues = append(cfg.Queues, leaf)
		}
	}
	return &cfg
}

func queueName(cohort, queue int) core.QueueName {
	return core.QueueName(fmt.Sprintf("c%02dq%03d", cohort, queue))
}

// cohort of a queue's name.
func cohort(q core.QueueName) core.QueueName { return q[:3] }

// Workloads in the order of their submission; of divides how many there are.
func (l *Load) Workloads(of int) []Workload {
	var out []Workload
	for c := range l.Cohorts {
		for q := range l.Queues {
			for k := range l.Classes {
				class := &l.Classes[k]
				for i := range max(1, class.Count/of) {
					out = append(out, Workload{Class: class, ID: fmt.Sprintf("%s-%s-%03d", queueName(c, q), class.Name, i), Queue: queueName(c, q), Submit: time.Duration(i+1) * class.Every})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Workload) int { return cmp.Compare(a.Submit, b.Submit) })
	return out
}

// Bound is the makespan that no scheduler can be below: the fluid bound of the
// quotas, all of which cohorts use alike, and the last arrival's run time.
func (l *Load) Bound(all []Workload) time.Duration {
	work, bound := 0.0, 0.0
	_, whole := l.Most()
	capacity := float64(l.Cohorts * whole)
	for i := len(all) - 1; i >= 0; i-- {
		w := &all[i]
		work += w.Run.Seconds() * float64(w.Size()) / capacity
		bound = max(bound, w.Submit.Seconds()+max(work, w.Run.Seconds()))
	}
	return time.Duration(bound * float64(time.Second))
}

// Check looks at one plan: once those that it evicts have left, no queue and no
// cohort is above its quota, and no gang starts while one of its queue with a
// higher priority that asks for no more waits.
func (l *Load) Check(s *core.Snapshot, p *core.Plan) error {
	used := map[core.QueueName]int{}
	gangs := make(map[core.GangID]*core.Gang, len(s.Gangs))
	for i := range s.Gangs {
		gangs[s.Gangs[i].ID] = &s.Gangs[i]
	}
	leaves := map[core.GangID]bool{}
	for i := range p.Evictions {
		leaves[p.Evictions[i].Gang] = true
	}
	for i := range s.Claims {
		k := &s.Claims[i]
		if g := gangs[k.Gang]; g != nil && g.State != core.GangStopping && !k.Stopping && !leaves[g.ID] {
			used[g.Queue] += len(k.Cards)
		}
	}
	starts := map[core.GangID]bool{}
	least := map[core.QueueName]*core.Gang{} // the start of least priority
	size := func(g *core.Gang) int { return g.Groups[0].Count * g.Groups[0].Devices[0].Count }
	for i := range p.Starts {
		g := gangs[p.Starts[i].Gang]
		starts[g.ID] = true
		used[g.Queue] += size(g)
		if have := least[g.Queue]; have == nil || g.Priority < have.Priority {
			least[g.Queue] = g
		}
	}
	if err := l.quotas(used); err != nil {
		return err
	}
	for i := range s.Gangs {
		g := &s.Gangs[i]
		if low := least[g.Queue]; low != nil && g.State == core.GangWaiting && !starts[g.ID] && g.Priority > low.Priority && size(g) <= size(low) {
			return fmt.Errorf("gang %s of priority %d starts and %s of priority %d waits", low.ID, low.Priority, g.ID, g.Priority)
		}
	}
	return nil
}

// quotas looks at what the queues hold at one instant.
func (l *Load) quotas(used map[core.QueueName]int) error {
	queue, whole := l.Most()
	cohorts := map[core.QueueName]int{}
	for q, n := range used {
		cohorts[cohort(q)] += n
		if n > queue {
			return fmt.Errorf("queue %s holds %d, its quota and what it may borrow are %d", q, n, queue)
		}
	}
	for c, n := range cohorts {
		if n > whole {
			return fmt.Errorf("cohort %s holds %d of %d", c, n, whole)
		}
	}
	return nil
}
