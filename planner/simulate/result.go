package simulate

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Outcome is how one job fared. Instants are since the trace began.
type Outcome struct {
	Job       *Job
	Started   bool
	Done      bool // by itself
	Start     time.Duration
	End       time.Duration
	Waited    time.Duration // in queues, over all attempts
	Lost      time.Duration // work done twice, and saving and starting again
	Evictions int
	// Hits by faults, and how often and after how long in all it ran again;
	// LostToFaults is the part of Lost that they cost.
	Hits, Repairs           int
	Repairing, LostToFaults time.Duration
	// InARow is how often it was hit, at most, without getting as far as a
	// checkpoint in between. Aside is how often it had to make room for a gang
	// that was hit, or for one that had had to, and LostAside what that cost:
	// preemption of the second order.
	// Chain is how many, one for another, had to since the fault, itself included.
	InARow, Aside, Chain int
	LostAside            time.Duration
	Nodes                int
	Domains              []int
	// Promises: when it was first told a start, which, and whether it moved
	// later without a stated cause.
	Promised      bool
	PromisedAt    time.Duration
	PromisedStart time.Duration
	Broken        bool
	last          time.Duration
}

// promise notes a promised start.
func (o *Outcome) promise(now, at time.Duration, cause string) {
	if !o.Promised {
		o.Promised, o.PromisedAt, o.PromisedStart = true, now, at
	} else if at > o.last && cause == "" {
		o.Broken = true
	}
	o.last = at
}

// Sample is the state of the cluster at an instant.
type Sample struct {
	At      time.Duration
	Used    float64 // share of all cards that is held
	Waiting int     // gangs
	Wanted  float64 // cards that the waiting gangs ask for, as a share of all
	Stuck   float64 // share of the free cards that lie on nodes that are in use
}

// Result is one simulation's outcome.
type Result struct {
	Name    string
	Seed    uint64
	Jobs    int
	Cards   float64
	Cycles  int
	Faults  int
	Spent   time.Duration // deciding
	Slowest time.Duration // cycle

	Outcomes []Outcome
	Samples  []Sample
	Makespan time.Duration

	Evictions map[core.EvictionKind]int
	Resizes   int

	held     float64 // card-seconds
	last     time.Time
	capacity int64 // thousandths of cards
	every    time.Duration
	nextAt   time.Time
	spent    []time.Duration
}

func newResult(o *Options) *Result {
	r := &Result{Name: o.Name, Seed: o.Seed, Jobs: len(o.Jobs), Evictions: map[core.EvictionKind]int{}, last: epoch, nextAt: epoch}
	for i := range o.Nodes {
		for d := range o.Nodes[i].Devices {
			r.capacity += int64(len(o.Nodes[i].Devices[d].Cards)) * 1000
		}
	}
	r.Cards = float64(r.capacity) / 1000
	if n := len(o.Jobs); n > 0 {
		r.every = max(time.Second, (o.Jobs[n-1].Submit+time.Hour)/1000)
	}
	return r
}

// advance books the time up to an instant.
func (r *Result) advance(e *engine, now time.Time) {
	r.held += float64(e.busy) / 1000 * now.Sub(r.last).Seconds()
	r.last = now
	if now.Before(r.nextAt) {
		return
	}
	r.nextAt = now.Add(r.every)
	s := Sample{At: now.Sub(epoch), Used: float64(e.busy) / float64(max(1, r.capacity))}
	wanted := int64(0)
	for _, g := range e.w.Active() {
		if g.State == core.GangWaiting || g.State == core.GangRefused {
			s.Waiting++
			if j := e.jobs[g.ID]; j != nil {
				wanted += j.milli()
			}
		}
	}
	s.Wanted = float64(wanted) / float64(max(1, r.capacity))
	s.Stuck = e.stuck()
	r.Samples = append(r.Samples, s)
	if len(r.Samples) > 4000 { // a long tail: half as often
		for i := range r.Samples[:2000] {
			r.Samples[i] = r.Samples[2*i]
		}
		r.Samples = r.Samples[:2000]
		r.every *= 2
	}
}

// stuck is the share of free cards that lie on nodes on which others are held.
func (e *engine) stuck() float64 {
	held := map[core.NodeID]int{}
	for _, g := range e.w.Active() {
		for i := range g.Claims {
			held[g.Claims[i].Node] += len(g.Claims[i].Cards)
		}
	}
	free, partly := 0, 0
	for i := range e.w.Nodes {
		n := 0
		for d := range e.w.Nodes[i].Devices {
			n += len(e.w.Nodes[i].Devices[d].Cards)
		}
		h := held[e.w.Nodes[i].ID]
		free += max(0, n-h)
		if h > 0 {
			partly += max(0, n-h)
		}
	}
	return float64(partly) / float64(max(1, free))
}

func (r *Result) cycle(d time.Duration) {
	r.Cycles++
	r.Spent += d
	r.Slowest = max(r.Slowest, d)
	r.spent = append(r.spent, d)
}

func (r *Result) plan(p *core.Plan) {
	for i := range p.Evictions {
		r.Evictions[p.Evictions[i].Kind]++
	}
	r.Resizes += len(p.Resizes)
}

func (r *Result) over(j *job) { r.Outcomes = append(r.Outcomes, j.out) }

func (r *Result) finish(e *engine) {
	r.Makespan = r.last.Sub(epoch)
	for _, g := range e.w.Active() {
		if j := e.jobs[g.ID]; j != nil {
			r.Outcomes = append(r.Outcomes, j.out)
		}
	}
	slices.SortStableFunc(r.Outcomes, func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(a.Job.Submit, b.Job.Submit), cmp.Compare(a.Job.ID, b.Job.ID))
	})
}

// Figures are a result in numbers; times in seconds.
type Figures struct {
	Name            string             `json:"name"`
	Jobs            int                `json:"jobs"`
	Done            int                `json:"done"`
	MeanJCT         float64            `json:"mean_jct_s"`
	P50JCT          float64            `json:"p50_jct_s"`
	P99JCT          float64            `json:"p99_jct_s"`
	MeanWait        float64            `json:"mean_wait_s"`
	P99Wait         float64            `json:"p99_wait_s"`
	MaxWait         float64            `json:"max_wait_s"`
	BoundedSlowdown float64            `json:"bounded_slowdown"`
	LargestWait     float64            `json:"largest_wait_s"`       // mean, in queues, of the jobs of the largest size
	LargestFirst    float64            `json:"largest_first_wait_s"` // mean until their first start
	LargestMax      float64            `json:"largest_max_wait_s"`
	Utilisation     float64            `json:"utilisation"`
	Makespan        float64            `json:"makespan_s"`
	Evictions       int                `json:"evictions"`
	LostCardHours   float64            `json:"lost_card_hours"`
	Faults          int                `json:"faults"`
	Hit             int                `json:"hit"`      // gangs that lost a node, as often as they did
	Repaired        int                `json:"repaired"` // of those, that ran again
	MeanRepair      float64            `json:"mean_repair_s"`
	LostToFaults    float64            `json:"lost_to_faults_card_hours"` // of the card hours lost
	InARow          int                `json:"hit_in_a_row"`              // the most of one gang without a checkpoint in between
	Aside           int                `json:"second_order_evictions"`    // for gangs that were hit, and for those
	Chain           int                `json:"second_order_chain"`        // the most that had to leave, one for another, after one fault
	LostAside       float64            `json:"lost_to_second_order_card_hours"`
	AsideShare      float64            `json:"second_order_share"` // of what faults cost with them
	Promises        int                `json:"promises"`
	BrokenPromises  int                `json:"broken_promises"`
	LateStarts      int                `json:"late_starts"` // later than first promised
	PromiseErrorP50 float64            `json:"promise_error_p50_s"`
	PromiseErrorP95 float64            `json:"promise_error_p95_s"`
	Kinds           map[string]int     `json:"evictions_by_kind,omitempty"`
	Cycles          int                `json:"cycles"`
	CycleP50        float64            `json:"cycle_p50_ms"`
	CycleP99        float64            `json:"cycle_p99_ms"`
	Bounds          Bounds             `json:"bounds"`
	WaitBySize      map[string]float64 `json:"wait_by_size_s"`
}

// Bounds are what no scheduler can be better than.
type Bounds struct {
	Makespan float64 `json:"makespan_s"`
	MeanJCT  float64 `json:"mean_jct_s"`
}

// Figures computes the numbers of a result.
func (r *Result) Figures() Figures {
	f := Figures{Name: r.Name, Jobs: r.Jobs, Makespan: r.Makespan.Seconds(), Cycles: r.Cycles, Faults: r.Faults, Kinds: map[string]int{}, WaitBySize: map[string]float64{}}
	var jct, wait, errs []float64
	largest := int64(0)
	for i := range r.Outcomes {
		largest = max(largest, r.Outcomes[i].Job.milli())
	}
	bySize, sizeCount := map[string]float64{}, map[string]int{}
	largestCount := 0
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		f.Evictions += o.Evictions
		f.LostCardHours += o.Lost.Hours() * float64(o.Job.milli()) / 1000
		f.LostToFaults += o.LostToFaults.Hours() * float64(o.Job.milli()) / 1000
		f.LostAside += o.LostAside.Hours() * float64(o.Job.milli()) / 1000
		f.InARow = max(f.InARow, o.InARow)
		f.Aside += o.Aside
		f.Chain = max(f.Chain, o.Chain)
		f.Hit += o.Hits
		f.Repaired += o.Repairs
		f.MeanRepair += o.Repairing.Seconds()
		if !o.Done {
			continue
		}
		f.Done++
		t := (o.End - o.Job.Submit).Seconds()
		jct = append(jct, t)
		w := o.Waited.Seconds()
		wait = append(wait, w)
		f.BoundedSlowdown += max(1, (w+o.Job.Run.Seconds())/max(10, o.Job.Run.Seconds()))
		size := sizeName(sizeClass(o.Job.milli()))
		bySize[size] += w
		sizeCount[size]++
		if o.Job.milli() == largest {
			largestCount++
			f.LargestWait += w
			f.LargestFirst += (o.Start - o.Job.Submit).Seconds()
			f.LargestMax = max(f.LargestMax, w)
		}
		if o.Promised {
			f.Promises++
			if o.Broken {
				f.BrokenPromises++
			}
			if o.Start > o.PromisedStart {
				f.LateStarts++
			}
			errs = append(errs, math.Abs((o.PromisedStart - o.Start).Seconds()))
		}
	}
	f.MeanJCT, f.MeanWait = mean(jct), mean(wait)
	slices.Sort(jct)
	slices.Sort(wait)
	slices.Sort(errs)
	f.P50JCT, f.P99JCT, f.P99Wait, f.MaxWait = quantile(jct, .5), quantile(jct, .99), quantile(wait, .99), quantile(wait, 1)
	f.MeanRepair /= float64(max(1, f.Repaired))
	if all := f.LostToFaults + f.LostAside; all > 0 {
		f.AsideShare = f.LostAside / all
	}
	f.BoundedSlowdown /= float64(max(1, f.Done))
	f.LargestWait /= float64(max(1, largestCount))
	f.LargestFirst /= float64(max(1, largestCount))
	f.PromiseErrorP50, f.PromiseErrorP95 = quantile(errs, .5), quantile(errs, .95)
	if r.Makespan > 0 {
		f.Utilisation = r.held / (r.Cards * r.Makespan.Seconds())
	}
	for k, n := range r.Evictions {
		f.Kinds[string(k)] = n
	}
	for k, n := range sizeCount {
		f.WaitBySize[k] = bySize[k] / float64(n)
	}
	ms := make([]float64, len(r.spent))
	for i, d := range r.spent {
		ms[i] = float64(d.Microseconds()) / 1000
	}
	slices.Sort(ms)
	f.CycleP50, f.CycleP99 = quantile(ms, .5), quantile(ms, .99)
	f.Bounds = r.bounds()
	return f
}

// sizeClass is the power of two of cards that a job's size reaches; 0: less
// than one card.
func sizeClass(milli int64) int64 {
	if milli < 1000 {
		return 0
	}
	cards := (milli + 999) / 1000
	n := int64(1)
	for n*2 <= cards {
		n *= 2
	}
	return n
}

func sizeName(size int64) string {
	if size == 0 {
		return "<1"
	}
	return number(int(size), 0)
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(1, len(v)))
}

// quantile of ordered values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// bounds: the makespan is at least, for every instant, what remains to arrive
// from then on at full use, and the sum of the run times of jobs larger than
// half of the cluster; the mean JCT at least the mean run time, and what one
// machine of the cluster's speed reaches by the shortest remaining time.
func (r *Result) bounds() Bounds {
	var b Bounds
	jobs := make([]*Job, len(r.Outcomes))
	for i := range r.Outcomes {
		jobs[i] = r.Outcomes[i].Job
	}
	if len(jobs) == 0 || r.capacity == 0 {
		return b
	}
	work, halves, runs := 0.0, 0.0, 0.0
	for i := len(jobs) - 1; i >= 0; i-- {
		j := jobs[i]
		work += j.Run.Seconds() * float64(j.milli()) / float64(r.capacity)
		b.Makespan = max(b.Makespan, j.Submit.Seconds()+work, (j.Submit + j.Run).Seconds())
		if 2*j.milli() > r.capacity {
			halves += j.Run.Seconds()
		}
		runs += j.Run.Seconds()
	}
	b.Makespan = max(b.Makespan, halves)
	b.MeanJCT = max(runs/float64(len(jobs)), r.fluid(jobs))
	return b
}

// fluid is the mean JCT of the shortest remaining time first on one machine
// that is as fast as the whole cluster.
func (r *Result) fluid(jobs []*Job) float64 {
	var h floats
	now, sum := 0.0, 0.0
	work := func(until float64) {
		for len(h) > 0 && now < until {
			top := &h[0]
			if now+top.left <= until {
				now += top.left
				sum += now - top.submit
				h.pop()
				continue
			}
			top.left -= until - now
			now = until
		}
		now = max(now, until)
	}
	for _, j := range jobs {
		work(j.Submit.Seconds())
		h.push(remaining{j.Run.Seconds() * float64(j.milli()) / float64(r.capacity), j.Submit.Seconds()})
	}
	for len(h) > 0 {
		now += h[0].left
		sum += now - h[0].submit
		h.pop()
	}
	return sum / float64(len(jobs))
}

type remaining struct{ left, submit float64 }

// floats is a heap of remaining times.
type floats []remaining

func (h *floats) push(x remaining) {
	*h = append(*h, x)
	for i := len(*h) - 1; i > 0; {
		up := (i - 1) / 2
		if (*h)[up].left <= (*h)[i].left {
			return
		}
		(*h)[up], (*h)[i] = (*h)[i], (*h)[up]
		i = up
	}
}

func (h *floats) pop() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
	for i := 0; ; {
		at := i
		for _, k := range []int{2*i + 1, 2*i + 2} {
			if k < last && (*h)[k].left < (*h)[at].left {
				at = k
			}
		}
		if at == i {
			return
		}
		(*h)[at], (*h)[i] = (*h)[i], (*h)[at]
		i = at
	}
}
