package sched

import (
	"maps"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// sortDeployments tells the deployment of this version from an older one, which is cancelled.
func (r *reconciler) sortDeployments() {
	d := r.current
	switch {
	case d == nil:
	case r.job.Stopped():
		r.current, r.old = nil, d
		if d.Active() {
			r.setDeployment(d, wire.DeploymentCancelled, "Cancelled because job is stopped")
		}
	case d.JobCreateIndex != r.job.CreateIndex || d.JobVersion != r.job.Version:
		r.current, r.old = nil, d
		if d.Active() {
			r.setDeployment(d, wire.DeploymentCancelled, "Cancelled due to newer version of job")
		}
	case d.Status == wire.DeploymentSuccessful:
		r.current, r.old = nil, d
	}
}

func (r *reconciler) setDeployment(d *wire.Deployment, status, description string) {
	u := *d
	u.Status, u.StatusDescription, u.ModifyTime = status, description, r.w.now.UnixNano()
	r.outcome.updates = append(r.outcome.updates, &u)
}

// deploymentStuck says whether the deployment lets nothing new through.
func (r *reconciler) deploymentStuck() bool {
	return r.current != nil && (r.current.Status == wire.DeploymentPaused || r.current.Status == wire.DeploymentFailed)
}

func (r *reconciler) deploymentState(g *wire.TaskGroup) (state *wire.DeploymentState, existing bool) {
	if r.current != nil {
		if s := r.current.TaskGroups[g.Name]; s != nil {
			c := *s
			return &c, true
		}
	}
	s := &wire.DeploymentState{}
	if !g.Update.IsEmpty() {
		s.AutoRevert, s.AutoPromote, s.ProgressDeadline = g.Update.AutoRevert, g.Update.AutoPromote, g.Update.ProgressDeadline
	}
	return s, false
}

// canaries takes out of all the canaries that are no longer wanted, and returns those of the running deployment.
func (r *reconciler) canaries(all *[]*wire.Allocation, d *wire.DesiredUpdates) []*wire.Allocation {
	ids := func(dep *wire.Deployment, unpromoted bool) map[string]bool {
		out := map[string]bool{}
		if dep == nil {
			return out
		}
		for _, s := range dep.TaskGroups {
			if unpromoted && s.Promoted {
				continue
			}
			for _, id := range s.PlacedCanaries {
				out[id] = true
			}
		}
		return out
	}
	unwanted := ids(r.old, true)
	if r.current != nil && r.current.Status == wire.DeploymentFailed {
		maps.Copy(unwanted, ids(r.current, true))
	}
	var drop, out []*wire.Allocation
	running := ids(r.current, false)
	for _, a := range *all {
		switch {
		case unwanted[a.ID]:
			drop = append(drop, a)
			d.Stop++
			r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseNotNeeded})
		case running[a.ID]:
			switch r.standing(a) {
			case migrating:
				drop = append(drop, a)
				r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, because: becauseMigrating})
			case lost:
				drop = append(drop, a)
				r.outcome.stop = append(r.outcome.stop, stopping{alloc: a, clientStatus: wire.ClientLost, because: becauseLost})
			case untainted:
				out = append(out, a)
			}
		}
	}
	*all = without(*all, drop)
	return out
}

// room is how many allocations a rolling update may change now.
func (r *reconciler) room(g *wire.TaskGroup, keep, anew, migrate []*wire.Allocation, canarying bool) int {
	if g.Update.IsEmpty() || len(anew)+len(migrate) == 0 {
		return g.Count
	}
	if r.current == nil {
		return g.Update.MaxParallel
	}
	if r.deploymentStuck() || canarying {
		return 0
	}
	n := g.Update.MaxParallel
	for _, a := range keep {
		if a.DeploymentID != r.current.ID {
			continue
		}
		s := a.DeploymentStatus
		if s != nil && s.Healthy != nil && !*s.Healthy {
			return 0
		}
		if !s.IsHealthy() {
			n--
		}
	}
	return max(n, 0)
}

// createDeployment begins to follow the rollout of a group, if it is rolled out at all.
func (r *reconciler) createDeployment(g *wire.TaskGroup, existing bool, state *wire.DeploymentState, all, anew []*wire.Allocation, inPlace int) {
	if existing || g.Update.IsEmpty() || state.DesiredTotal == 0 {
		return
	}
	if len(anew) == 0 && inPlace == 0 {
		for _, a := range all {
			if a.Job.Version == r.job.Version && a.Job.CreateIndex == r.job.CreateIndex {
				return
			}
		}
	}
	d := &wire.Deployment{}
	switch {
	case r.outcome.deployment != nil:
		*d = *r.outcome.deployment
	case r.current != nil:
		*d = *r.current
	default:
		*d = wire.Deployment{ID: r.w.newID(), Namespace: r.job.Namespace, JobID: r.job.ID, JobVersion: r.job.Version,
			JobModifyIndex: r.job.ModifyIndex, JobSpecModifyIndex: r.job.JobModifyIndex, JobCreateIndex: r.job.CreateIndex,
			Status: wire.DeploymentRunning, StatusDescription: "Deployment is running", EvalPriority: r.eval.Priority,
			CreateTime: r.w.now.UnixNano(), ModifyTime: r.w.now.UnixNano()}
	}
	d.TaskGroups = maps.Clone(d.TaskGroups)
	if d.TaskGroups == nil {
		d.TaskGroups = map[string]*wire.DeploymentState{}
	}
	d.TaskGroups[g.Name] = state
	if state.DesiredCanaries > 0 && !state.Promoted {
		d.StatusDescription = "Deployment is running but requires manual promotion"
		if state.AutoPromote {
			d.StatusDescription = "Deployment is running pending automatic promotion"
		}
	}
	r.outcome.deployment = d
	r.current = d
}
