package view

import (
	"encoding/json"
	"time"
)

// Spec is a job specification as a user has it: either HCL or Nomad's JSON.
type Spec struct {
	// HCL is the file's text; Variables that of its -var and -var-file values,
	// as Nomad's parse API takes them.
	HCL       string `json:"hcl,omitempty"`
	Variables string `json:"variables,omitempty"`
	// Job is the job in Nomad's JSON, with or without the outer {"Job": ...}.
	Job json.RawMessage `json:"job,omitempty"`
	// Namespace overrides the job's.
	Namespace string `json:"namespace,omitempty"`
}

// Submission is a Spec with how to register it.
type Submission struct {
	Spec
	// EnforceIndex registers only where the job's JobModifyIndex is still
	// ModifyIndex (0: the job must not exist).
	EnforceIndex bool   `json:"enforce_index,omitempty"`
	ModifyIndex  uint64 `json:"modify_index,omitempty"`
	// KeepRefused submits also what the cluster as it is could never run; it
	// waits, refused, until nodes or queues change.
	KeepRefused bool `json:"keep_refused,omitempty"`
}

// Submitted is the answer to a submission that was taken.
type Submitted struct {
	ID        string `json:"id"` // namespace/job
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Queue     string `json:"queue"`
	// Update: a gang of this id was there already.
	Update         bool   `json:"update"`
	JobModifyIndex uint64 `json:"job_modify_index"`
	EvalID         string `json:"eval_id,omitempty"`
	// Index of the last event before the submission: a read of the gang that
	// waits on it sees nothing of an earlier gang of this name.
	Index uint64 `json:"index"`
	// Starts is periodic or parameterized where the job itself is no gang, but
	// the jobs that it starts are; absent: it is one.
	Starts string `json:"starts,omitempty"`
	// Added are the blocks that the job lacked and got.
	Added    []string `json:"added"`
	Warnings []string `json:"warnings"`
}

// Validation is the answer to /v1/validate. Valid means that nothing is wrong
// with the specification and that the cluster could ever run it.
type Validation struct {
	Valid     bool     `json:"valid"`
	Namespace string   `json:"namespace"`
	Job       string   `json:"job"`
	Queue     string   `json:"queue,omitempty"`
	Faults    []Fault  `json:"faults"`
	Warnings  []string `json:"warnings"`
	Added     []string `json:"added"`
}

// Fault is one thing that is wrong with what a user wrote.
type Fault struct {
	Field string `json:"field"`
	Value string `json:"value,omitempty"`
	Want  string `json:"want"`
}

// Plan is what would happen now to a job if it were submitted.
type Plan struct {
	ID      string  `json:"id"`
	Queue   string  `json:"queue"`
	Members int     `json:"members"`
	Cards   int     `json:"cards"`
	Update  bool    `json:"update"` // a gang of this id is there already
	Verdict Verdict `json:"verdict"`
	// Start is where it would be placed, now or once its victims are gone;
	// absent: not now.
	Start *Start `json:"start,omitempty"`
	// Evictions that its start needs.
	Evictions   []Eviction   `json:"evictions"`
	Reservation *Reservation `json:"reservation,omitempty"`
	Added       []string     `json:"added"`
	Warnings    []string     `json:"warnings"`
}

// Start is a placement.
type Start struct {
	Model    string   `json:"model,omitempty"`
	Members  []Placed `json:"members"`
	After    []string `json:"after"` // gangs that have to leave first
	Borrowed int      `json:"borrowed"`
	Backfill bool     `json:"backfill"`
	Why      string   `json:"why,omitempty"`
}

// Placed is one member on its node.
type Placed struct {
	Member int      `json:"member"`
	Group  string   `json:"group"`
	Node   string   `json:"node"` // name
	NodeID string   `json:"node_id"`
	Cards  []string `json:"cards"`
}

// Eviction is a gang that would be asked to leave.
type Eviction struct {
	Gang            string  `json:"gang"`
	Kind            string  `json:"kind"`
	GraceSeconds    float64 `json:"grace_seconds"`
	LostCardSeconds int64   `json:"lost_card_seconds"`
	Why             string  `json:"why"`
}

// Reservation is a promise of cards.
type Reservation struct {
	At        time.Time `json:"at,omitzero"` // absent: gathering, no time promised
	Gathering bool      `json:"gathering"`
	Nodes     []string  `json:"nodes"`
	Cause     string    `json:"cause,omitempty"` // why it moved later
}

// StopRequest asks for the end of a gang.
type StopRequest struct {
	// Purge removes the job from Nomad as well.
	Purge bool `json:"purge,omitempty"`
	// Now leaves out the ask and its grace.
	Now bool `json:"now,omitempty"`
	// GraceSeconds is how long the ranks get to save and leave; 0: as long as the
	// gang says, or its queue.
	GraceSeconds float64 `json:"grace_seconds,omitempty"`
	Reason       string  `json:"reason,omitempty"`
}

// Stopped is the answer to a StopRequest that was taken: the gang ends soon.
type Stopped struct {
	ID    string `json:"id"`
	Stage string `json:"stage"` // in which it was
	Index uint64 `json:"index"` // to wait on
}
