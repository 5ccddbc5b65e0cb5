package lifecycle

import (
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// A gang whose job is a child of a parameterised or periodic one runs as a twin
// of that (see package jobspec). The child stays held, as the handle: who stops
// it stops the gang, and it is stopped when the gang is over. A register of
// pins writes the twin; a taken back attempt's twin is stopped, since the
// handle keeps the gang's place.
//
// The gang is shown the twin as its job while that lives, and the child
// otherwise (TwinSeen); indexes of the two are of one count, so what compares
// them holds. Members know the gang by the job that they belong to.

// Twin tells whether the gang runs as a twin of its job.
func (g *Gang) Twin() bool {
	return g.Saved.Twin || g.User != nil && g.User.IsChild() && g.User.IsHeld()
}

// TwinSeen is the job that a gang which runs as a twin is shown. A twin that
// somebody stopped in the attempt is; one that an earlier attempt left is not.
func (g *Gang) TwinSeen(child, twin *picture.Job) *picture.Job {
	switch {
	case child == nil || child.Stop || twin == nil:
		return child
	case !twin.Stop, (g.Saved.Phase == Reserving || g.Saved.Phase == Released) && twin.JobModifyIndex > g.Saved.Base:
		return twin
	}
	return child
}

// Channel is the id under which the members know the gang.
func (g *Gang) Channel() contract.GangID {
	id := g.ID
	if g.Twin() {
		id.Job = jobspec.TwinID(id.Job)
	}
	return id
}

// baseOf is the index after which an attempt's allocations are made: the one
// that its registration enforces, or, of a twin, the last that is known of
// those before.
func (g *Gang) baseOf(v Seen) uint64 {
	base := v.Job.JobModifyIndex
	if g.Twin() {
		base = max(base, v.TwinIndex)
		for _, a := range v.Allocs {
			base = max(base, a.CreateIndex)
		}
	}
	return base
}
