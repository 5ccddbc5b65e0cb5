package simulate

import (
	"cmp"
	"slices"
	"time"
)

// easy is the reference of B3: first come, first served with EASY backfill
// and exact run times on nodes of eight cards, each gang on one node (the
// fullest that takes it). A gang behind the first that waits starts where it
// ends before the instant at which that one fits; there is no rule of extra
// nodes. It is written without the planner's code, to hold it against.
func easy(jobs []Job, nodes int) (waits []time.Duration) {
	const cards = 8
	type running struct {
		end  time.Duration
		node int
		n    int
	}
	free := make([]int, nodes)
	for i := range free {
		free[i] = cards
	}
	best := func(n int) int {
		at := -1
		for i, f := range free {
			if f >= n && (at < 0 || f < free[at]) {
				at = i
			}
		}
		return at
	}
	waits = make([]time.Duration, len(jobs))
	var run []running // by end
	var queue []int
	start := func(j int, now time.Duration, node int) {
		free[node] -= jobs[j].Cards
		r := running{now + jobs[j].Run, node, jobs[j].Cards}
		at, _ := slices.BinarySearchFunc(run, r.end, func(a running, t time.Duration) int { return cmp.Compare(a.end, t+1) })
		run = slices.Insert(run, at, r)
		waits[j] = now - jobs[j].Submit
	}
	next := 0
	for next < len(jobs) || len(run) > 0 {
		now := time.Duration(1<<63 - 1)
		if next < len(jobs) {
			now = jobs[next].Submit
		}
		if len(run) > 0 {
			now = min(now, run[0].end)
		}
		done := 0
		for done < len(run) && run[done].end <= now {
			free[run[done].node] += run[done].n
			done++
		}
		run = slices.Delete(run, 0, done)
		for next < len(jobs) && jobs[next].Submit <= now {
			queue = append(queue, next)
			next++
		}
		started := 0
		for ; started < len(queue); started++ {
			node := best(jobs[queue[started]].Cards)
			if node < 0 {
				break
			}
			start(queue[started], now, node)
		}
		queue = slices.Delete(queue, 0, started)
		if len(queue) == 0 {
			continue
		}
		// The first that waits fits at shadow.
		head := jobs[queue[0]].Cards
		shadow := time.Duration(0)
		then := slices.Clone(free)
		for _, r := range run {
			if then[r.node] += r.n; then[r.node] >= head {
				shadow = r.end
				break
			}
		}
		largest := slices.Max(free)
		keep := queue[:1]
		for _, j := range queue[1:] {
			if n := jobs[j].Cards; n <= largest && now+jobs[j].Run <= shadow {
				start(j, now, best(n))
				largest = slices.Max(free)
				continue
			}
			keep = append(keep, j)
		}
		queue = keep
	}
	return waits
}
