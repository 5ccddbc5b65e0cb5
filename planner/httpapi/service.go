// Package httpapi is the planner's own /v1 JSON API.
package httpapi

import (
	"context"
	"encoding/json"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
)

// Gangs tells of the gangs that the planner knows: all that are not over, and
// those that ended lately. Both calls answer from memory.
type Gangs interface {
	// Gangs gives all of them without Detail, in any order.
	Gangs() []view.Gang
	// Gang gives one with Detail; false: there is none of this exact name.
	Gang(namespace, job string) (view.Gang, bool)
}

// Cluster tells of everything else, from memory.
type Cluster interface {
	Queues() []view.Queue // in the tree's order, parents first
	Nodes() []view.Node
	Status() view.Status
}

// Jobs works with job specifications. Errors that are a *view.Error reach the
// caller as they are; any other is CodeInternal.
type Jobs interface {
	// Parse turns HCL into Nomad's JSON of a job: the bare object as the server
	// gave it, not canonicalized, so that what the user left out is null and
	// can be completed (package submit). A specification that Nomad refuses is
	// view.CodeRejected.
	Parse(ctx context.Context, by Caller, spec view.Spec) (json.RawMessage, error)
	// Plan says what would happen now to a checked and completed job; nothing
	// changes.
	Plan(ctx context.Context, by Caller, job json.RawMessage) (view.Plan, error)
	// Register submits a checked and completed job. Source is what the user
	// wrote; it goes into Nomad's Submission.
	Register(ctx context.Context, by Caller, job json.RawMessage, source view.Submission) (view.Submitted, error)
}

// Stopper ends gangs. It acts on the exact name alone and answers as soon as
// the request is taken; a gang that is not there is view.CodeNotFound.
type Stopper interface {
	Stop(ctx context.Context, by Caller, namespace, job string, how view.StopRequest) (view.Stopped, error)
}

// Capturer gives the snapshot of this moment and the plan that the core makes
// of it, for muster replay; nothing is carried out. Both are not changed
// afterwards.
type Capturer interface {
	Capture() (*core.Snapshot, *core.Plan, error)
}

// Caller is who a request comes from.
type Caller struct {
	Name   string // of the token; "anonymous" without one
	Role   view.Role
	Groups []string // that the token belongs to
	// Queues that a submitter may use; empty: all that admit its name or groups.
	Queues []string
	// NomadToken is the caller's own token for Nomad (header X-Nomad-Token),
	// used instead of the planner's where not empty.
	NomadToken string
}
