package simulate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
)

// load is a busy cluster of one size, made from a seed: a queue tree of four
// departments with four teams each, two topology levels, gangs of one card to
// 128 nodes of which seven in ten state a time limit, everything in use, and
// so many gangs waiting.
type load struct {
	w       *World
	d       core.Decider
	rnd     *rand.Rand
	n       int
	pending int
	most    int // nodes of one gang
}

const loadSeed = 20261129

func loadConfig(cards int) *core.Config {
	cfg := core.Defaults()
	cfg.Levels = []core.Level{{Name: "spine"}, {Name: "leaf"}}
	for d := range 4 {
		dept := core.DefaultQueue(core.QueueName(fmt.Sprintf("d%d", d)))
		dept.Guaranteed = core.Amounts{Models: map[core.Model]int{"card": cards / 5}}
		cfg.Queues = append(cfg.Queues, dept)
		for t := range 4 {
			team := core.DefaultQueue(core.QueueName(fmt.Sprintf("d%dt%d", d, t)))
			team.Parent, team.Weight = dept.Name, 1+t
			team.Guaranteed = core.Amounts{Models: map[core.Model]int{"card": cards / 25}}
			cfg.Queues = append(cfg.Queues, team)
		}
	}
	return &cfg
}

func newLoad(tb testing.TB, nodes, pending int) *load {
	l := &load{rnd: rand.New(rand.NewPCG(loadSeed, uint64(nodes))), pending: pending, most: max(2, nodes/20), d: decide.New()}
	l.w = NewWorld(epoch, loadConfig(nodes*8), Nodes(Shape{Count: nodes, Cards: 8, Domains: []int{256, 32}}))
	// Gangs come until the cluster is full and so many wait.
	for {
		l.submit(tb, pending-l.waiting())
		p := l.d.Decide(l.w.Snapshot())
		_, err := l.w.Apply(p)
		must.NoError(tb, err)
		l.w.Now = l.w.Now.Add(20 * time.Minute)
		if len(p.Starts) == 0 {
			break
		}
	}
	return l
}

func (l *load) waiting() int {
	n := 0
	for _, g := range l.w.Active() {
		if g.State == core.GangWaiting {
			n++
		}
	}
	return n
}

func (l *load) submit(tb testing.TB, count int) {
	for range count {
		l.n++
		members, cards := 1, 8
		switch k := l.rnd.IntN(100); {
		case k < 55:
			cards = []int{1, 1, 1, 2, 2, 4}[l.rnd.IntN(6)]
		case k < 80:
		case k < 95:
			members = 2 + l.rnd.IntN(7)
		case k < 99:
			members = 16 << l.rnd.IntN(2)
		default:
			members = 64 + l.rnd.IntN(65)
		}
		members = min(members, l.most)
		j := Job{ID: fmt.Sprintf("g%07d", l.n), Queue: core.QueueName(fmt.Sprintf("d%dt%d", l.rnd.IntN(4), l.rnd.IntN(4))), User: fmt.Sprintf("u%03d", l.rnd.IntN(200)),
			Submit: l.w.Now.Sub(epoch), Members: members, Cards: cards, Use: core.Resources{CPU: int64(cards) * 4000, MemoryMB: int64(cards) * 64000}, Priority: 40 + 10*l.rnd.IntN(3)}
		if l.rnd.IntN(10) < 7 {
			j.Limit = time.Duration(1+l.rnd.IntN(72)) * time.Hour
		}
		j.Fixed = l.rnd.IntN(2) == 0
		_, err := l.w.Submit(j.gang(epoch))
		must.NoError(tb, err)
	}
}

// end lets so many running gangs end, and those that were asked leave.
func (l *load) end(count int) {
	var running []*Gang
	for _, g := range slices.Clone(l.w.Active()) {
		switch g.State {
		case core.GangRunning:
			running = append(running, g)
		case core.GangStopping:
			l.w.Left(g)
		}
	}
	for range min(count, len(running)) {
		at := l.rnd.IntN(len(running))
		l.w.End(running[at], "complete")
		running = slices.Delete(running, at, at+1)
	}
}

// spent is what one decision took.
type spent struct {
	wall, cpu time.Duration // cpu: of the whole process, the collector included
	mallocs   uint64
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// cycle lets gangs end, new ones come, and decides.
func (l *load) cycle(tb testing.TB, ends int) (spent, *core.Plan) {
	l.w.Now = l.w.Now.Add(5 * time.Second)
	l.end(ends)
	l.submit(tb, l.pending-l.waiting())
	s := l.w.Snapshot()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, cpu := time.Now(), cpuTime()
	p := l.d.Decide(s)
	took := spent{wall: time.Since(began), cpu: cpuTime() - cpu}
	runtime.ReadMemStats(&after)
	took.mallocs = after.Mallocs - before.Mallocs
	_, err := l.w.Apply(p)
	must.NoError(tb, err)
	return took, p
}

func cycleSizes() []int {
	if os.Getenv("MUSTER_FULL") == "" {
		return []int{100}
	}
	return []int{1000, 5000, 10_000}
}

// BenchmarkCycle is B6 and B10: a full cycle with 4,096 gangs waiting, while
// one gang in a hundred ends and new ones come.
func BenchmarkCycle(b *testing.B) {
	for _, nodes := range cycleSizes() {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			l := newLoad(b, nodes, min(4096, 10*nodes))
			ends := max(1, (len(l.w.Active())-l.waiting())/100)
			var wall, cpu []float64
			starts, members, mallocs, total := 0, 0, uint64(0), 0.0
			for range 5 {
				l.cycle(b, ends)
			}
			b.ResetTimer()
			for range b.N {
				took, p := l.cycle(b, ends)
				wall, cpu = append(wall, took.wall.Seconds()*1e3), append(cpu, took.cpu.Seconds()*1e3)
				total += took.cpu.Seconds()
				mallocs += took.mallocs
				starts += len(p.Starts)
				for i := range p.Starts {
					members += len(p.Starts[i].Members)
				}
			}
			b.StopTimer()
			slices.Sort(wall)
			slices.Sort(cpu)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(quantile(wall, .5), "p50_ms")
			b.ReportMetric(quantile(wall, .99), "p99_ms")
			b.ReportMetric(quantile(cpu, .5), "cpu_p50_ms")
			b.ReportMetric(quantile(cpu, .99), "cpu_p99_ms")
			b.ReportMetric(float64(mallocs)/float64(b.N*len(l.w.Active())), "allocs/gang")
			b.ReportMetric(float64(mallocs)/float64(b.N), "allocs/cycle")
			b.ReportMetric(float64(members)/total, "members/s")
			b.ReportMetric(float64(starts)/float64(b.N), "starts/cycle")
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapInuse)/(1<<20), "heap_MiB")
			runtime.KeepAlive(l)
		})
	}
}

// BenchmarkChange is B6's table of what a cycle costs by what changed since the
// last one: so many gangs ended, and as many came.
func BenchmarkChange(b *testing.B) {
	nodes := cycleSizes()[min(1, len(cycleSizes())-1)]
	l := newLoad(b, nodes, min(4096, 10*nodes))
	for _, ends := range []int{0, 1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d/ended=%d", nodes, ends), func(b *testing.B) {
			var cpu []float64
			l.cycle(b, ends)
			for range b.N {
				took, _ := l.cycle(b, ends)
				cpu = append(cpu, took.cpu.Seconds()*1e3)
			}
			slices.Sort(cpu)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(quantile(cpu, .5), "cpu_p50_ms")
		})
	}
}

// BenchmarkReclaim is B6's large reclaim: a gang of four fifths of the nodes,
// within its queue's guarantee, on a cluster full of gangs of one card each of
// a queue that borrows.
func BenchmarkReclaim(b *testing.B) {
	for _, nodes := range cycleSizes() {
		if nodes > 1000 {
			continue
		}
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for range b.N {
				cfg := core.Defaults()
				owner, guest := core.DefaultQueue("owner"), core.DefaultQueue("guest")
				owner.Guaranteed = core.Amounts{Models: map[core.Model]int{"card": nodes * 8}}
				owner.Preempt.EvictionsPerDay = nodes * 8
				cfg.Queues = []core.Queue{owner, guest}
				w := NewWorld(epoch, &cfg, Nodes(Shape{Count: nodes, Cards: 8}))
				d := decide.New()
				for i := range nodes * 8 {
					j := Job{ID: fmt.Sprintf("g%06d", i), Queue: "guest", Members: 1, Cards: 1}
					_, err := w.Submit(j.gang(epoch))
					must.NoError(b, err)
				}
				_, err := w.Apply(d.Decide(w.Snapshot()))
				must.NoError(b, err)
				w.Now = w.Now.Add(time.Hour)
				d.Decide(w.Snapshot())
				j := Job{ID: "large", Queue: "owner", Submit: time.Hour, Members: nodes * 4 / 5, Cards: 8}
				_, err = w.Submit(j.gang(epoch))
				must.NoError(b, err)
				s := w.Snapshot()
				began, cpu := time.Now(), cpuTime()
				p := d.Decide(s)
				b.ReportMetric(time.Since(began).Seconds()*1e3, "wall_ms")
				b.ReportMetric((cpuTime()-cpu).Seconds()*1e3, "cpu_ms")
				must.Len(b, 1, p.Starts)
				must.Len(b, nodes*4/5*8, p.Evictions)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
