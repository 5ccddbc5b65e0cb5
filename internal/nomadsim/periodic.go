package nomadsim

import (
	"fmt"
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// schedulePeriodic puts a periodic job on the clock.
func (c *Cluster) schedulePeriodic(j *wire.Job) {
	c.stopPeriodic(j.Namespace, j.ID)
	if !j.IsPeriodic() || !j.Periodic.Enabled || j.Stop {
		return
	}
	at, err := nextLaunch(j.Periodic, c.clock.Now())
	if err != nil || at.IsZero() {
		c.logf("periodic job %s: no next launch: %v", j.ID, err)
		return
	}
	stop := c.clock.AfterFunc(at.Sub(c.clock.Now()), func() {
		c.spawn(func() {
			cur := c.store.Snapshot().Job(j.Namespace, j.ID)
			if cur == nil || cur.Stop || !cur.IsPeriodic() {
				return
			}
			if !cur.Periodic.ProhibitOverlap || !c.childRuns(cur) {
				c.launchPeriodic(cur, at)
			}
			c.schedulePeriodic(cur)
		})
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		stop()
		return
	}
	c.locks[periodicKey(j.Namespace, j.ID)] = stop
}

func periodicKey(namespace, id string) string { return "periodic\x00" + namespace + "\x00" + id }

func (c *Cluster) stopPeriodic(namespace, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := periodicKey(namespace, id)
	if stop := c.locks[k]; stop != nil {
		stop()
		delete(c.locks, k)
	}
}

func (c *Cluster) childRuns(j *wire.Job) bool {
	for child := range c.store.Snapshot().Jobs(j.Namespace, j.ID+"/periodic-") {
		if child.ParentID == j.ID && child.Status != wire.JobDead {
			return true
		}
	}
	return false
}

func (c *Cluster) launchPeriodic(j *wire.Job, at time.Time) (eval string, index uint64) {
	child := *j
	child.ID = fmt.Sprintf("%s/periodic-%d", j.ID, at.Unix())
	child.Name, child.ParentID, child.Periodic = child.ID, j.ID, nil
	child.Status, child.Version, child.VersionTag = "", 0, nil
	return c.launchChild(&child)
}

// nextLaunch is the earliest of the times that the specifications give.
func nextLaunch(p *wire.PeriodicConfig, now time.Time) (time.Time, error) {
	zone := time.UTC
	if p.TimeZone != "" {
		z, err := time.LoadLocation(p.TimeZone)
		if err != nil {
			return time.Time{}, fmt.Errorf("time zone %q: %w", p.TimeZone, err)
		}
		zone = z
	}
	specs := p.Specs
	if p.Spec != "" {
		specs = append([]string{p.Spec}, specs...)
	}
	var first time.Time
	for _, s := range specs {
		e, err := cronexpr.Parse(s)
		if err != nil {
			return time.Time{}, fmt.Errorf("cron expression %q: %w", s, err)
		}
		if t := e.Next(now.In(zone)); !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first, nil
}

func (q *request) periodicForce(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	j := q.c.store.Snapshot().Job(q.namespace, id)
	if j == nil {
		return nil, fail(404, "job not found")
	}
	if !j.IsPeriodic() {
		return nil, fmt.Errorf("can't force launch non-periodic job")
	}
	eval, index := q.c.launchPeriodic(j, q.c.clock.Now())
	q.index(index)
	return struct {
		EvalCreateIndex uint64
		EvalID          string
		Index           uint64
	}{index, eval, index}, nil
}
