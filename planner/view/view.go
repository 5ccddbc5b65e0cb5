// Package view holds what Muster's /v1 API says, as Go types: the planner fills
// them, the CLI, the page and the Go client read them. They are plain data.
//
// Conventions of the JSON: names in snake_case; times are RFC 3339 in UTC and
// absent where they are not known or have not come; lengths of time are
// seconds with a fraction, in fields that end in _seconds; cards are counted
// whole; -1 stands for "no limit" where a limit is a number; a gang's id is
// "namespace/job". Lists are never null.
package view

import (
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Gang is one gang. Lists of gangs leave out what stands below Detail.
type Gang struct {
	ID        string `json:"id"` // namespace/job
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	// Index grows whenever anything of the gang changes; it is the index of
	// the last event about it, and what a blocking read waits on.
	Index uint64 `json:"index"`
	Queue string `json:"queue"`
	User  string `json:"user,omitempty"`
	Type  string `json:"type"` // batch or service
	// Stage is how far it has come; Reason and Sentence say why it is there.
	Stage    contract.Stage `json:"stage"`
	Reason   core.Reason    `json:"reason,omitempty"`
	Sentence string         `json:"sentence,omitempty"`
	Priority int            `json:"priority"`
	Attempt  int            `json:"attempt"` // current or last; 0: none yet
	// Members and Cards that it asks for; Placed and Running members of the
	// current attempt.
	Members int      `json:"members"`
	Min     int      `json:"min,omitempty"` // of an elastic gang
	Cards   int      `json:"cards"`
	Models  []string `json:"models"` // it runs on or would accept; empty: not stated
	Placed  int      `json:"placed"`
	Running int      `json:"running"`
	// Position in its queue from 1; 0: it does not wait.
	Position  int       `json:"position,omitempty"`
	ETA       *ETA      `json:"eta,omitempty"` // absent: it does not wait
	Submitted time.Time `json:"submitted,omitzero"`
	Queued    time.Time `json:"queued,omitzero"`     // since when it waits
	Started   time.Time `json:"started,omitzero"`    // ranks of the current attempt
	Ended     time.Time `json:"ended,omitzero"`      //
	LimitEnds time.Time `json:"limit_ends,omitzero"` // when its time limit ends the run
	// Exit of a gang that is over, or of its last attempt.
	Exit *Exit `json:"exit,omitempty"`

	Detail *Detail `json:"detail,omitempty"`
}

// Detail is what only the read of a single gang gives.
type Detail struct {
	Verdict  Verdict     `json:"verdict"`
	Stages   []StageTime `json:"stages"` // of the current attempt, in the order entered
	Groups   []Group     `json:"groups"`
	Members  []Member    `json:"members"` // of the current or last attempt, by index
	Attempts []Attempt   `json:"attempts"`
	Events   []Event     `json:"events"` // oldest first; bounded
	Want     Want        `json:"want"`
	// Asked is the request to save and leave that its ranks were given; absent:
	// they may stay.
	Asked *Asked `json:"asked,omitempty"`
	// JobVersion and JobModifyIndex of the version that the user submitted.
	JobVersion     uint64 `json:"job_version"`
	JobModifyIndex uint64 `json:"job_modify_index"`
}

// Asked is a request to save and leave. At Until the ranks are stopped; a
// checkpoint that is being written then moves it.
type Asked struct {
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
	Kind  string    `json:"kind"` // preempt, drain, time-limit, stop
	Why   string    `json:"why"`
}

// Want is what the gang's user stated beside its size.
type Want struct {
	Topology          string    `json:"topology,omitempty"` // required:<level> or preferred:<level>
	TimeLimitSeconds  float64   `json:"time_limit_seconds,omitempty"`
	Deadline          time.Time `json:"deadline,omitzero"`
	Preemptible       bool      `json:"preemptible"`
	GraceSeconds      float64   `json:"grace_seconds,omitempty"`
	Retries           int       `json:"retries"`
	Split             bool      `json:"split"`
	Spread            bool      `json:"spread"`
	MinBandwidthGbit  float64   `json:"min_bandwidth_gbit,omitempty"`
	PreferWaitSeconds float64   `json:"prefer_wait_seconds,omitempty"`
	CheckpointAt      time.Time `json:"checkpoint_at,omitzero"` // last one reported
	CheckpointStep    int64     `json:"checkpoint_step,omitempty"`
	LostIfEvicted     float64   `json:"lost_if_evicted_card_seconds,omitempty"`
}

// StageTime is one stage and the time spent in it. A stage that was entered
// again (queued, after a preemption) stands again.
type StageTime struct {
	Stage   contract.Stage `json:"stage"`
	Entered time.Time      `json:"entered"`
	Left    time.Time      `json:"left,omitzero"` // absent: it is in this stage
	Seconds float64        `json:"seconds"`       // so far
	Text    string         `json:"text,omitempty"`
}

// Group is a set of equal members: a task group.
type Group struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	// Cards of one member by model as the job names it ("nvidia/gpu").
	Cards map[string]int `json:"cards"`
}

// Member is one allocation of a gang's attempt.
type Member struct {
	Index   int    `json:"index"`
	Group   string `json:"group"`
	Task    string `json:"task,omitempty"`
	Alloc   string `json:"alloc,omitempty"`
	Node    string `json:"node,omitempty"` // name
	NodeID  string `json:"node_id,omitempty"`
	Address string `json:"address,omitempty"`
	// State is the member's own report, or pending, placed, lost, unknown as
	// the planner sees it before and without one.
	State    string             `json:"state"`
	Status   string             `json:"status,omitempty"` // Nomad's client status
	Ranks    int                `json:"ranks,omitempty"`
	Model    string             `json:"model,omitempty"`
	Cards    []string           `json:"cards"`
	Step     int64              `json:"step,omitempty"`
	Problems []contract.Problem `json:"problems,omitempty"`
	Exit     *contract.Exit     `json:"exit,omitempty"`
}

// Attempt is one try at running a gang.
type Attempt struct {
	Number   int       `json:"number"`
	Planned  time.Time `json:"planned,omitzero"`
	Placed   time.Time `json:"placed,omitzero"`
	Released time.Time `json:"released,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	Model    string    `json:"model,omitempty"`
	Nodes    []string  `json:"nodes"` // names, by member
	// Reason why it ended: preempted, drain, time-limit, node-lost, ...; and the
	// gang that it made room for, if any.
	Reason string      `json:"reason,omitempty"`
	For    string      `json:"for,omitempty"`
	Exit   *Exit       `json:"exit,omitempty"`
	Stages []StageTime `json:"stages"`
}

// Exit is how an attempt, or the gang, ended.
type Exit struct {
	Outcome contract.Outcome `json:"outcome"`
	Code    int              `json:"code"` // of the first rank that failed; -1: not known
	Signal  int              `json:"signal,omitempty"`
	Member  int              `json:"member"` // that Code belongs to; -1: none
	Rank    int              `json:"rank"`   // global; -1: none
	Text    string           `json:"text"`
}

// Event is one thing that happened, to a gang, a node or the planner.
type Event struct {
	Index   uint64         `json:"index"`
	At      time.Time      `json:"at"`
	Kind    EventKind      `json:"kind"`
	Gang    string         `json:"gang,omitempty"`
	Queue   string         `json:"queue,omitempty"`
	Node    string         `json:"node,omitempty"`
	Card    string         `json:"card,omitempty"`
	Attempt int            `json:"attempt,omitempty"`
	Stage   contract.Stage `json:"stage,omitempty"`
	By      string         `json:"by,omitempty"` // whose token, for what was done by hand
	Text    string         `json:"text"`
}

// EventKind sorts events.
type EventKind string

// Kinds of events.
const (
	EventStage   EventKind = "stage"   // a gang entered a stage
	EventVerdict EventKind = "verdict" // its verdict changed
	EventMember  EventKind = "member"  // a member reported or was lost
	EventEvict   EventKind = "evict"   // asked to leave
	EventUpdate  EventKind = "update"  // submitted again, scaled, changed by hand
	EventNode    EventKind = "node"    //
	EventPlanner EventKind = "planner" // configuration, leadership, connection
	EventCard    EventKind = "card"    // a card's state changed, or the cards' breaker
)

// Since is when the gang entered the stage that it is in; zero: not known.
func (g *Gang) Since() time.Time {
	if g.Detail != nil && len(g.Detail.Stages) > 0 {
		return g.Detail.Stages[len(g.Detail.Stages)-1].Entered
	}
	return time.Time{}
}
