package isolation

import (
	"time"
)

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// Usage of a task, summed over its processes.
type Usage struct {
	At      time.Time
	User    time.Duration // CPU time since the start, of processes that ended too
	System  time.Duration
	RSS     uint64 // bytes; pages that processes share count for each
	ByPID   map[int]Usage
	Measure bool // false: no process was found
}

func ticks(n uint64) time.Duration {
	return time.Duration(n) * (time.Second / ticksPerSecond)
}

// Sum adds up what the supervisor's descendants use. What ended counts through
// the times of waited-for children that its parent, or else the supervisor,
// keeps; the supervisor's own use is left out.
func (t Table) Sum(supervisor int, at time.Time) Usage {
	u := Usage{At: at, ByPID: map[int]Usage{}}
	if root, ok := t[supervisor]; ok {
		u.User, u.System = ticks(root.ChildUser), ticks(root.ChildSystem)
		u.Measure = true
	}
	for _, pid := range t.Below(supervisor) {
		p := t[pid]
		if p.State == 'Z' {
			continue
		}
		own := Usage{At: at, User: ticks(p.User), System: ticks(p.System), RSS: p.RSS, Measure: true}
		u.User += own.User + ticks(p.ChildUser)
		u.System += own.System + ticks(p.ChildSystem)
		u.RSS += own.RSS
		u.ByPID[pid] = own
		u.Measure = true
	}
	return u
}
