package sched

import (
	"cmp"
	"math"
	"slices"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// A job takes the place of another only if its priority is at least this much higher.
const priorityGap = 10

// victims are the node's allocations that may be evicted, lowest priority first. A job never evicts its own.
func (s *stack) victims(u *usage) []*wire.Allocation {
	var out []*wire.Allocation
	for _, a := range u.allocs {
		if a.Job == nil || a.JobID == s.job.ID && a.Namespace == s.job.Namespace || s.job.Priority-a.Job.Priority < priorityGap {
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *wire.Allocation) int {
		return cmp.Or(cmp.Compare(a.Job.Priority, b.Job.Priority), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func distance(need, has amount) float64 {
	d := func(n, h int64) float64 {
		if n == 0 {
			return 0
		}
		return float64(n-h) / float64(n)
	}
	return math.Sqrt(math.Pow(d(need.cpu, has.cpu), 2) + math.Pow(d(need.mem, has.mem), 2) + math.Pow(d(need.disk, has.disk), 2))
}

const maxParallelPenalty = 50.0

// parallel penalises taking more of a group than its migrate block allows at a time.
func (s *stack) parallel(a *wire.Allocation) float64 {
	g := a.Group()
	if g == nil || g.Migrate == nil || g.Migrate.MaxParallel <= 0 {
		return 0
	}
	n := s.taken[a.Namespace+"\x00"+a.JobID+"\x00"+a.TaskGroup]
	if n < g.Migrate.MaxParallel {
		return 0
	}
	return float64(n+1-g.Migrate.MaxParallel) * maxParallelPenalty
}

// preemptForSize picks victims until the need fits: per priority the one closest in size first, then as few as will do.
func (s *stack) preemptForSize(n *wire.Node, u *usage, need amount) []*wire.Allocation {
	free := capacity(n).minus(amount{u.cpu, u.mem, u.disk})
	base := free
	left := s.victims(u)
	rest := need
	var picked []*wire.Allocation
	for free.lacks(need) != "" {
		if len(left) == 0 {
			return nil
		}
		best := 0
		for i, a := range left {
			if a.Job.Priority != left[0].Job.Priority {
				break
			}
			if distance(rest, sizeOf(a.AllocatedResources))+s.parallel(a) < distance(rest, sizeOf(left[best].AllocatedResources))+s.parallel(left[best]) {
				best = i
			}
		}
		a := left[best]
		left = slices.Delete(left, best, best+1)
		size := sizeOf(a.AllocatedResources)
		free, rest = free.plus(size), rest.minus(size)
		picked = append(picked, a)
	}
	slices.SortStableFunc(picked, func(a, b *wire.Allocation) int {
		return cmp.Compare(distance(need, sizeOf(b.AllocatedResources)), distance(need, sizeOf(a.AllocatedResources)))
	})
	for i, a := range picked {
		base = base.plus(sizeOf(a.AllocatedResources))
		if base.lacks(need) == "" {
			return picked[:i+1]
		}
	}
	return picked
}

// preemptForDevice picks victims that hold instances of a group that suits the ask: lowest priority first, then of those
// the ones with the most instances.
func (s *stack) preemptForDevice(n *wire.Node, u *usage, held devicesInUse, ask *wire.RequestedDevice) []*wire.Allocation {
	var best []*wire.Allocation
	bestPriority := math.MaxInt
	for _, d := range n.NodeResources.Devices {
		if !s.w.m.deviceMatches(d, ask) {
			continue
		}
		k := deviceKey{d.Vendor, d.Type, d.Name}
		free := 0
		for _, in := range d.Instances {
			if in.Healthy && held[instanceKey(k, in.ID)] == 0 {
				free++
			}
		}
		count := map[string]int{}
		var picked []*wire.Allocation
		got := 0
		for _, a := range s.victims(u) {
			c := instancesOf(a, k)
			if c == 0 {
				continue
			}
			count[a.ID] = c
			picked = append(picked, a)
			if got += c; got+free >= int(ask.Count) {
				break
			}
		}
		if got == 0 || got+free < int(ask.Count) {
			continue
		}
		slices.SortStableFunc(picked, func(a, b *wire.Allocation) int { return cmp.Compare(count[b.ID], count[a.ID]) })
		got = 0
		priorities := map[int]bool{}
		sum := 0
		var some []*wire.Allocation
		for _, a := range picked {
			if got >= int(ask.Count) {
				break
			}
			got += count[a.ID]
			some = append(some, a)
			if !priorities[a.Job.Priority] {
				priorities[a.Job.Priority] = true
				sum += a.Job.Priority
			}
		}
		if sum < bestPriority {
			bestPriority, best = sum, some
		}
	}
	return best
}

func instancesOf(a *wire.Allocation, k deviceKey) int {
	n := 0
	for _, t := range a.AllocatedResources.Tasks {
		for _, d := range t.Devices {
			if d.Vendor == k.vendor && d.Type == k.kind && d.Name == k.name {
				n += len(d.DeviceIDs)
			}
		}
	}
	return n
}

// preemptForPorts picks the victims that hold the static ports asked for.
func (s *stack) preemptForPorts(n *wire.Node, u *usage, ask *wire.NetworkResource) []*wire.Allocation {
	want := map[int]bool{}
	for _, p := range ask.ReservedPorts {
		want[p.Value] = true
	}
	var out []*wire.Allocation
	for _, a := range s.victims(u) {
		if slices.ContainsFunc(a.AllocatedResources.Shared.Ports, func(p wire.AllocatedPort) bool { return want[p.Value] }) {
			out = append(out, a)
		}
	}
	return out
}

// preemptionScore prefers evicting little of low priority: 1 for a net priority of 0, falling towards 0.
func preemptionScore(list []*wire.Allocation) float64 {
	sum, top := 0, 0.0
	for _, a := range list {
		sum += a.Job.Priority
		top = max(top, float64(a.Job.Priority))
	}
	net := top
	if top > 0 {
		net = top + float64(sum)/top
	}
	const rate, origin = 0.0048, 2048.0
	return 1 / (1 + math.Exp(rate*(net-origin)))
}
