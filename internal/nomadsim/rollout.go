package nomadsim

import (
	"fmt"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// follow looks after drains and deployments when allocations have changed. It runs under the store's lock.
func (c *Cluster) follow(ch *store.Changes) {
	deployments := map[string]bool{}
	terminal := false
	for _, a := range ch.Allocs {
		if a.After.DeploymentID != "" {
			deployments[a.After.DeploymentID] = true
		}
		terminal = terminal || a.After.ClientTerminal() || a.After.DeploymentStatus != nil
	}
	if terminal || len(ch.Nodes) > 0 {
		c.drainer.again()
	}
	for id := range deployments {
		c.spawn(func() { c.watchDeployment(id) })
	}
}

// watchDeployment draws the consequences of how a rollout goes: a step that is healthy lets the next begin, a failure
// ends it and, with auto_revert, brings the last stable version back.
func (c *Cluster) watchDeployment(id string) {
	snap := c.store.Snapshot()
	d := snap.Deployment(id)
	if !d.Active() {
		return
	}
	job := snap.Version(d.Namespace, d.JobID, d.JobVersion)
	if job == nil {
		return
	}
	failed, healthy, promote := false, true, false
	for _, s := range d.TaskGroups {
		if s.UnhealthyAllocs > 0 {
			failed = true
		}
		if s.DesiredCanaries > 0 && !s.Promoted && s.AutoPromote && s.HealthyAllocs >= s.DesiredCanaries {
			promote = true
		}
		if s.HealthyAllocs < max(s.DesiredTotal, s.DesiredCanaries) || s.DesiredCanaries > 0 && !s.Promoted {
			healthy = false
		}
	}
	switch {
	case failed:
		c.failDeployment(d, job, "Failed due to unhealthy allocations")
	case promote:
		c.promote(d)
	case healthy:
		// The scheduler finds that nothing is left to do, and ends it.
		c.mu.Lock()
		again := c.concluded[id]
		c.concluded[id] = true
		c.mu.Unlock()
		if !again {
			e := c.evalFor(job, wire.TriggerDeploymentWatcher)
			e.DeploymentID = d.ID
			c.putEvals(e)
		}
	default:
		if d.ModifyIndex > 0 && c.stepDone(snap, d) {
			e := c.evalFor(job, wire.TriggerDeploymentWatcher)
			e.DeploymentID = d.ID
			c.putEvals(e)
		}
		c.deadline(d)
	}
}

// stepDone says whether all that was placed so far is healthy while more is to come.
func (c *Cluster) stepDone(snap *store.Snapshot, d *wire.Deployment) bool {
	for _, s := range d.TaskGroups {
		if s.HealthyAllocs == s.PlacedAllocs && s.PlacedAllocs > 0 && s.PlacedAllocs < s.DesiredTotal && (s.DesiredCanaries == 0 || s.Promoted) {
			return true
		}
	}
	return false
}

// deadline fails a deployment that makes no progress in time.
func (c *Cluster) deadline(d *wire.Deployment) {
	var by time.Time
	for _, s := range d.TaskGroups {
		if t := s.RequireProgressBy.Time; !t.IsZero() && (by.IsZero() || t.Before(by)) && s.HealthyAllocs < s.DesiredTotal {
			by = t
		}
	}
	if by.IsZero() {
		return
	}
	c.clock.AfterFunc(by.Sub(c.clock.Now()), func() {
		c.spawn(func() {
			snap := c.store.Snapshot()
			cur := snap.Deployment(d.ID)
			if !cur.Active() || cur.Status == wire.DeploymentPaused {
				return
			}
			for _, s := range cur.TaskGroups {
				if t := s.RequireProgressBy.Time; !t.IsZero() && !t.After(c.clock.Now()) && s.HealthyAllocs < s.DesiredTotal {
					if job := snap.Version(cur.Namespace, cur.JobID, cur.JobVersion); job != nil {
						c.failDeployment(cur, job, "Failed due to progress deadline")
					}
					return
				}
			}
		})
	})
}

func (c *Cluster) failDeployment(d *wire.Deployment, job *wire.Job, why string) uint64 {
	var back *wire.Job
	revert := false
	for _, s := range d.TaskGroups {
		revert = revert || s.AutoRevert
	}
	snap := c.store.Snapshot()
	if revert {
		for _, v := range snap.Versions(d.Namespace, d.JobID) {
			if v.Stable && v.Version < d.JobVersion {
				back = v
				break
			}
		}
		if back != nil {
			why += fmt.Sprintf(" - rolling back to job version %d", back.Version)
		} else {
			why += " - no stable job version to auto revert to"
		}
	}
	e := c.evalFor(job, wire.TriggerDeploymentWatcher)
	e.DeploymentID = d.ID
	return c.store.Apply(func(tx *store.Txn) {
		tx.Kind("DeploymentStatusUpdate")
		cur := tx.Deployment(d.ID)
		if !cur.Active() {
			return
		}
		u := *cur
		u.Status, u.StatusDescription, u.ModifyTime = wire.DeploymentFailed, why, tx.Now().UnixNano()
		tx.PutDeployment(&u)
		if back != nil {
			j := *back
			j.Stable, j.SubmitTime, j.VersionTag = false, tx.Now().UnixNano(), nil
			tx.PutJob(&j, nil)
		}
		tx.PutEvals(e)
	})
}

// promote lets a deployment go on beyond its canaries.
func (c *Cluster) promote(d *wire.Deployment) (index uint64, eval string) {
	snap := c.store.Snapshot()
	job := snap.Job(d.Namespace, d.JobID)
	if job == nil {
		return 0, ""
	}
	e := c.evalFor(job, wire.TriggerDeploymentWatcher)
	e.DeploymentID = d.ID
	index = c.store.Apply(func(tx *store.Txn) {
		tx.Kind("DeploymentPromotion")
		u := *tx.Deployment(d.ID)
		groups := map[string]*wire.DeploymentState{}
		for name, s := range u.TaskGroups {
			g := *s
			g.Promoted = g.DesiredCanaries > 0
			groups[name] = &g
		}
		u.TaskGroups, u.StatusDescription = groups, "Deployment is running"
		tx.PutDeployment(&u)
		tx.PutEvals(e)
	})
	return index, e.ID
}
