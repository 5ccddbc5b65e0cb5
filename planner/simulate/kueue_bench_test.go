package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

// kueue is one of Kueue's performance tests
// (kubernetes-sigs/kueue, test/performance/scheduler/configs, Apache-2.0):
// cohorts of queues that lend each other their quota, and what each queue is
// sent. Quotas and requests are counted in cards; scale is how many cards stand
// for one CPU.
type kueue struct {
	name            string
	cohorts, queues int
	scale           int
	nodes           Shape
	levels          []core.Level
	classes         []kueueClass
}

type kueueClass struct {
	name       string
	count      int
	every, run time.Duration
	priority   int // 50, 100, 200 there
	members    int
	cards      int // of a member
	level      string
	required   bool
}

func kueueLoads() []kueue {
	ms := time.Millisecond
	tas := kueue{name: "topology", cohorts: 5, queues: 6, scale: 4, nodes: Shape{Count: 640, Cards: 96 * 4, Domains: []int{640, 64}}, levels: []core.Level{{Name: "block"}, {Name: "rack"}}}
	for _, k := range []struct {
		size                                    string
		required, preferred, balanced, priority int
		every, run                              time.Duration
		members, cards                          int
	}{{"small", 120, 120, 110, 25, 100 * ms, 200 * ms, 2, 2}, {"medium", 34, 33, 33, 50, 500 * ms, 500 * ms, 4, 5}, {"large", 17, 17, 16, 100, 1200 * ms, 1000 * ms, 8, 10}} {
		tas.classes = append(tas.classes, kueueClass{k.size + "-required", k.required, k.every, k.run, k.priority, k.members, k.cards, "rack", true},
			kueueClass{k.size + "-preferred", k.preferred, k.every, k.run, k.priority, k.members, k.cards, "rack", false},
			kueueClass{k.size + "-balanced", k.balanced, k.every, k.run, k.priority, k.members, k.cards, "rack", false})
	}
	return []kueue{
		{name: "baseline", cohorts: 5, queues: 6, scale: 1, nodes: Shape{Count: 1, Cards: 600}, classes: []kueueClass{{"small", 350, 100 * ms, 200 * ms, 25, 1, 1, "", false},
			{"medium", 100, 500 * ms, 500 * ms, 50, 1, 5, "", false}, {"large", 50, 1200 * ms, 1000 * ms, 100, 1, 20, "", false}}},
		tas,
		{name: "large", cohorts: 10, queues: 100, scale: 1, nodes: Shape{Count: 1, Cards: 20_000}, classes: []kueueClass{{"small", 35, 60 * ms, 150 * ms, 25, 1, 1, "", false},
			{"medium", 11, 300 * ms, 350 * ms, 50, 1, 5, "", false}, {"large", 4, 700 * ms, 700 * ms, 100, 1, 20, "", false}}},
	}
}

// config are the queues: nominal quota 20, borrowing up to 100 more within the
// cohort.
func (k *kueue) config() *core.Config {
	cfg := core.Defaults()
	cfg.Levels = k.levels
	for c := range k.cohorts {
		cohort := core.DefaultQueue(core.QueueName(fmt.Sprintf("c%02d", c)))
		cohort.Guaranteed = core.Amounts{Any: 20 * k.scale * k.queues}
		cohort.Max = core.Amounts{Any: 20 * k.scale * k.queues}
		cfg.Queues = append(cfg.Queues, cohort)
		for q := range k.queues {
			leaf := core.DefaultQueue(core.QueueName(fmt.Sprintf("c%02dq%03d", c, q)))
			leaf.Parent, leaf.Guaranteed, leaf.Max = cohort.Name, core.Amounts{Any: 20 * k.scale}, core.Amounts{Any: 120 * k.scale}
			cfg.Queues = append(cfg.Queues, leaf)
		}
	}
	return &cfg
}

func (k *kueue) jobs(of int) []Job {
	var out []Job
	for c := range k.cohorts {
		for q := range k.queues {
			for _, class := range k.classes {
				for i := range max(1, class.count/of) {
					out = append(out, Job{ID: fmt.Sprintf("c%02dq%03d-%s-%03d", c, q, class.name, i), Queue: core.QueueName(fmt.Sprintf("c%02dq%03d", c, q)), Name: class.name,
						Submit: time.Duration(i+1) * class.every, Run: class.run, Members: class.members, Cards: class.cards, Priority: class.priority, Level: class.level, Required: class.required})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Job) int { return int(a.Submit - b.Submit) })
	return out
}

// bound is what no scheduler can be faster than: each cohort has its own quota.
func (k *kueue) bound(jobs []Job) float64 {
	work, bound := 0.0, 0.0
	capacity := float64(k.cohorts * k.queues * 20 * k.scale)
	for i := len(jobs) - 1; i >= 0; i-- {
		work += jobs[i].Run.Seconds() * float64(jobs[i].milli()) / 1000 / capacity
		bound = max(bound, jobs[i].Submit.Seconds()+max(work, jobs[i].Run.Seconds()))
	}
	return bound
}

// BenchmarkKueue is B8 in virtual time: no queue and no cohort is ever above
// its quota, no gang starts while one of higher priority of its queue that asks
// for no more waits, and no required rack is ever left. Kueue itself takes 351 s
// (wall) for the baseline, with mean times to admission of 16.5, 76.8 and 215 s
// for the large, medium and small.
func BenchmarkKueue(b *testing.B) {
	for _, k := range kueueLoads() {
		b.Run(k.name, func(b *testing.B) {
			jobs := k.jobs(pick(1, 25))
			bound := k.bound(jobs)
			cfg := k.config()
			b.Logf("%s, the fluid bound is %.2f s", k.name, bound)
			for range b.N {
				o := Options{Name: k.name, Config: cfg, Nodes: Nodes(k.nodes), Jobs: jobs}
				o.Watch = func(s *core.Snapshot, p *core.Plan) { k.check(b, s, p) }
				r, f := replay(b, o)
				report(b, "makespan_s", f.Makespan, "of_bound", f.Makespan/bound, "evictions", float64(f.Evictions))
				waits := map[string][]float64{}
				for i := range r.Outcomes {
					o := &r.Outcomes[i]
					waits[o.Job.Name] = append(waits[o.Job.Name], (o.Start - o.Job.Submit).Seconds())
					if o.Job.Required {
						must.Eq(b, 1, o.Domains[1])
					}
				}
				for _, class := range k.classes {
					b.ReportMetric(mean(waits[class.name]), class.name+"_wait_s")
				}
			}
		})
	}
}

// check looks at one plan.
func (k *kueue) check(b *testing.B, s *core.Snapshot, p *core.Plan) {
	used := map[core.QueueName]int{}
	queue := map[core.GangID]*core.Gang{}
	for i := range s.Gangs {
		queue[s.Gangs[i].ID] = &s.Gangs[i]
	}
	for i := range s.Claims {
		used[queue[s.Claims[i].Gang].Queue] += len(s.Claims[i].Cards)
	}
	starts := map[core.GangID]bool{}
	least := map[core.QueueName]*core.Gang{} // the start of least priority
	size := func(g *core.Gang) int { return g.Groups[0].Count * g.Groups[0].Devices[0].Count }
	for i := range p.Starts {
		g := queue[p.Starts[i].Gang]
		starts[g.ID] = true
		used[g.Queue] += size(g)
		if l := least[g.Queue]; l == nil || g.Priority < l.Priority {
			least[g.Queue] = g
		}
	}
	cohorts := map[core.QueueName]int{}
	for q, n := range used {
		cohorts[q[:3]] += n
		if n > 120*k.scale {
			b.Fatalf("queue %s holds %d, its quota and what it may borrow are %d", q, n, 120*k.scale)
		}
	}
	for c, n := range cohorts {
		if n > 20*k.scale*k.queues {
			b.Fatalf("cohort %s holds %d of %d", c, n, 20*k.scale*k.queues)
		}
	}
	for i := range s.Gangs {
		g := &s.Gangs[i]
		if l := least[g.Queue]; l != nil && g.State == core.GangWaiting && !starts[g.ID] && g.Priority > l.Priority && size(g) <= size(l) {
			b.Fatalf("gang %s of priority %d starts and %s of priority %d waits", l.ID, l.Priority, g.ID, g.Priority)
		}
	}
}
