// Package lifecycle is the state machine of one gang, from the submission of
// its job to its end: an event goes in, the next state and the effects to
// carry out come out. It calls nobody and reads no clock; package agent feeds
// it and carries the effects out, in order, stopping at the first that fails.
//
// # State
//
// What has to survive a restart of the planner is Saved, kept in one Nomad
// variable per gang and written before the calls that rely on it. Everything
// else follows from what Nomad and the members' reports show. See is therefore
// level-triggered: it looks at what there is, not at how it came about, and
// says what is to be done next; a planner that was killed between any two
// calls looks again and goes on.
//
// The phases, and what each waits for:
//
//	waiting    the job is held; a plan's Start
//	reserving  the pinned version is registered, placed whole, its members ready
//	released   the list of members is frozen; their ends
//	stopping   the job is held again (or stopped), every member is gone
//	over       complete, failed or cancelled; a new submission
//
// # Rules
//
//   - The number of an attempt is taken before anything carries it, and never
//     used twice, except where Nomad refused the registration for good.
//   - A pinned job names its attempt in a constraint (jobspec.Mark); members are
//     the allocations made after the index that the reservation enforced.
//   - Nothing is released before the frozen record is saved; once it is, the
//     record is published again until that succeeds.
//   - An attempt is over when no allocation of it is left alive, or alive only on
//     nodes that Nomad has lost; the next one starts only then.
//   - Complete is what every member says of itself and Nomad confirms. An end
//     that nobody saw is unknown, and counts as a failure of the site.
package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// Phase is where a gang is, as it is saved.
type Phase string

// The phases; see the package comment.
const (
	Waiting   Phase = "waiting"
	Reserving Phase = "reserving"
	Released  Phase = "released"
	Stopping  Phase = "stopping"
	Over      Phase = "over"
)

// Why a gang goes back to its queue, or an attempt of it ended.
const (
	ReasonReservation = "reservation-failed"
	ReasonPreempted   = "preempted"
	ReasonNodeLost    = "node-lost"
	ReasonDrain       = "drain"
	ReasonMember      = "member-failed"
	ReasonCard        = "card-faulted"
	ReasonDamaged     = "damaged" // a member was restarted, replaced or stopped by others
	ReasonUpdated     = "updated" // its job changed
	ReasonAdopted     = "adopted" // it was not held
	ReasonStopped     = "stopped" // by its user
	ReasonTimeLimit   = "time-limit"
	ReasonGaveUp      = "give-up"
	// Nomad placed less than was planned, without a dry run before.
	ReasonUnplaced = "not-placed"
)

// Saved is what survives.
type Saved struct {
	V     int   `json:"v"`
	Phase Phase `json:"phase"`
	// Submitted and Sequence order the gang in its queue. An update keeps them
	// unless the size or the queue changed.
	Submitted time.Time `json:"submitted"`
	Sequence  int64     `json:"sequence"`
	// User submitted it through Muster's API; "": it came past it.
	User string `json:"user,omitempty"`
	// Version and Index (its JobModifyIndex) of the job as its user submitted
	// it. Text is that version, where Nomad cannot tag it.
	Version uint64          `json:"version"`
	Index   uint64          `json:"index"`
	Text    json.RawMessage `json:"text,omitempty"`
	// Attempt is the current or last one.
	Attempt int `json:"attempt"`
	// Base is the index after which the attempt's allocations were made: the one
	// that its registration enforced.
	Base    uint64       `json:"base,omitempty"`
	Pin     *jobspec.Pin `json:"pin,omitempty"`
	Places  []Place      `json:"places,omitempty"` // by member
	Adopted bool         `json:"adopted,omitempty"`
	Planned time.Time    `json:"planned,omitzero"`
	// Leavers hold some of the attempt's places and are to leave them; it waits
	// for them rather than be taken back as short. Room is when the last of them
	// had left.
	Leavers []Leaver  `json:"leavers,omitempty"`
	Room    time.Time `json:"room,omitzero"`
	// Later: its job is registered only then, since its queue may not hold both.
	Later bool `json:"later,omitempty"`
	// Backfilled: it runs on places that are promised to another gang.
	Backfilled bool `json:"backfilled,omitempty"`
	// Record is the frozen list.
	Record *contract.Record `json:"record,omitempty"`
	// Ask is the request to save and leave that the members were given.
	Ask *Ask `json:"ask,omitempty"`
	// LeftOut are the attempt's allocations that a round of it left out, and
	// LeftBy when the last of them is to be gone.
	LeftOut []string  `json:"left_out,omitempty"`
	LeftBy  time.Time `json:"left_by,omitzero"`
	// Queue that the gang was moved to when it was evicted; "": its own.
	Queue string `json:"queue,omitempty"`
	// Evicted are the last day's evictions of it for other gangs.
	Evicted []Evicted `json:"evicted,omitempty"`
	// Ran is how long its ranks ran in ended attempts, without what was lost.
	Ran time.Duration `json:"ran,omitempty"`
	// SaveTime and RestartTime are the last ones that were measured.
	SaveTime    time.Duration `json:"save_time,omitempty"`
	RestartTime time.Duration `json:"restart_time,omitempty"`
	// Cancel is its user's wish that it ends.
	Cancel *Cancelled `json:"cancel,omitempty"`
	// Stop is why the attempt is being ended, and what follows.
	Stop *Stop `json:"stop,omitempty"`
	// Foreign: the job was registered by somebody else in this attempt; at its
	// end the job is stopped, or Nomad would take it for a new submission.
	Foreign bool `json:"foreign,omitempty"`
	// Growth is members on their way into the attempt; nil: none. Before
	// GrowAfter the gang takes in no others.
	Growth    *Growth   `json:"growth,omitempty"`
	GrowAfter time.Time `json:"grow_after,omitzero"`
	// Failures of the script and of the site since the submission.
	Retries      int       `json:"retries,omitempty"`
	SiteFailures int       `json:"site_failures,omitempty"`
	NotBefore    time.Time `json:"not_before,omitzero"`
	NotBeforeWhy string    `json:"not_before_why,omitempty"`
	Damaged      bool      `json:"damaged,omitempty"`
	// Twin: the attempts run as a twin of the job; see twin.go.
	Twin bool `json:"twin,omitempty"`
	// Untried: the attempt's place was not tried dry. Dry: one that was not
	// turned out to be none, so the next ones are.
	Untried bool      `json:"untried,omitempty"`
	Dry     bool      `json:"dry,omitempty"`
	Avoid   []Avoid   `json:"avoid,omitempty"`
	Queued  time.Time `json:"queued,omitzero"`
	// Stages of the current attempt and the waiting before it.
	Stages   []Stage   `json:"stages,omitempty"`
	Attempts []Attempt `json:"attempts,omitempty"` // ended ones, the last few
	// StoreDied are the nodes (by name) whose members held a store in the last
	// released attempt and died there: another one holds it in the next.
	StoreDied []string `json:"store_died,omitempty"`
	// Last are the members of the last attempt that ended.
	Last []Ended `json:"last,omitempty"`
	// End is set when the gang is over; EndIndex is the job's then.
	End      *End   `json:"end,omitempty"`
	EndIndex uint64 `json:"end_index,omitempty"`
	// Clean is the attempt of a gang that is over whose keys are still to be
	// removed; 0: they are.
	Clean int `json:"clean,omitempty"`
}

// savedVersion is the version of Saved that this build writes.
const savedVersion = 1

// Check tells what is wrong with a state that was read back.
func (s *Saved) Check() error {
	switch {
	case s.V != savedVersion:
		return fmt.Errorf("version %d of a gang's state is not known here (this build reads %d)", s.V, savedVersion)
	case s.Phase != Waiting && s.Phase != Reserving && s.Phase != Released && s.Phase != Stopping && s.Phase != Over:
		return fmt.Errorf("phase %q is not known", s.Phase)
	case s.Phase == Released && s.Record == nil:
		return errors.New("the gang is released and has no record")
	case s.Phase == Stopping && s.Stop == nil:
		return errors.New("the gang is being stopped, and it is not known why")
	case s.Phase == Reserving && s.Pin == nil && !s.Adopted:
		return errors.New("the gang is being placed, and it is not known where")
	}
	return nil
}

// Place is where one member goes.
type Place struct {
	Group string `json:"group"`
	Node  string `json:"node"`
	// Cards by device ask, in the order of the group's.
	Cards [][]core.CardID `json:"cards,omitempty"`
	Model core.Model      `json:"model,omitempty"`
}

// Stop is the end of an attempt, on its way.
type Stop struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	Text   string    `json:"text"`
	// Final: the gang is over after this one, with this stage.
	Final contract.Stage `json:"final,omitempty"`
	// Site: the failure is not the script's.
	Site bool           `json:"site,omitempty"`
	Exit *contract.Exit `json:"exit,omitempty"`
	// Member that Exit is of; -1: none.
	Member int `json:"member"`
}

// Avoid keeps a gang off a node for a while.
type Avoid struct {
	Node  string    `json:"node"`
	Until time.Time `json:"until"`
	Why   string    `json:"why"`
}

// Stage is one stage entered.
type Stage struct {
	Stage contract.Stage `json:"stage"`
	At    time.Time      `json:"at"`
	Text  string         `json:"text,omitempty"`
}

// Attempt is one that ended.
type Attempt struct {
	Number  int            `json:"number"`
	Outcome string         `json:"outcome"` // a contract.Outcome, or a reason
	Text    string         `json:"text"`
	Exit    *contract.Exit `json:"exit,omitempty"`
	Member  int            `json:"member"`
	Nodes   []string       `json:"nodes,omitempty"`
	Stages  []Stage        `json:"stages,omitempty"`
	Ended   time.Time      `json:"ended"`
	// Reason is why it was ended (Reason...), beside how it ended; Base and
	// Checkpoint let whoever keeps books find its allocations and what was lost.
	Reason     string    `json:"reason,omitempty"`
	Base       uint64    `json:"base,omitempty"`
	Checkpoint time.Time `json:"checkpoint,omitzero"`
	// Cause and For: by which right it was evicted, and for which gang.
	Cause core.EvictionKind `json:"cause,omitempty"`
	For   string            `json:"for,omitempty"`
}

// Ended is a member of an attempt that ended.
type Ended struct {
	Group   string         `json:"group"`
	Task    string         `json:"task,omitempty"`
	Alloc   string         `json:"alloc,omitempty"`
	Node    string         `json:"node"` // name
	NodeID  string         `json:"node_id"`
	Address string         `json:"addr,omitempty"`
	Ranks   int            `json:"ranks,omitempty"`
	Cards   []string       `json:"cards,omitempty"`
	Model   core.Model     `json:"model,omitempty"`
	Status  string         `json:"status,omitempty"` // Nomad's client status
	State   contract.State `json:"state,omitempty"`
	Step    int64          `json:"step,omitempty"`
	Exit    *contract.Exit `json:"exit,omitempty"`
}

// End is how a gang ended.
type End struct {
	Stage  contract.Stage `json:"stage"`
	At     time.Time      `json:"at"`
	Text   string         `json:"text"`
	Exit   *contract.Exit `json:"exit,omitempty"`
	Member int            `json:"member"`
}

// Settings are the same for all gangs.
type Settings struct {
	Region string
	// MaxPriority is the server's job_max_priority.
	MaxPriority int
	Levels      []core.Level
	CardTypes   []string
	// ReserveTimeout bounds the time from plan to release; LostGrace is how long
	// a member may be out of contact; MaxAttempts bounds failures of the site.
	ReserveTimeout, LostGrace time.Duration
	MaxAttempts               int
	// Grace is the least time that a pinned job's tasks get to end, by queue.
	Grace func(queue string) time.Duration
	Cards CardPolicy
	// Tags: the server knows version tags (Nomad 1.9 and later).
	Tags bool
	// Evicts: Nomad's scheduler may evict others for a pinned job by itself, as
	// far as is known; then every placement is tried dry.
	Evicts bool
	// BySignal tells whether members on a node are reached by Nomad's signals,
	// which a task takes only once it runs.
	BySignal func(node string) bool
	// TimeLimit of gangs that state none and MinRuntime, by queue; nil: none.
	TimeLimit, MinRuntime func(queue string) time.Duration
	// HasQueue tells whether a leaf queue of the name is there.
	HasQueue func(queue string) bool
	// Queue finds the queue that a job of a namespace belongs to, named being
	// what its meta block says, or tells why there is none.
	Queue func(named, namespace string) (string, []contract.Fault)
}

// cardListMost is the largest gang whose device blocks are pinned to exact
// ids: every allocation stores the text of the pins, so that it grows with the
// square of the members.
const cardListMost = 128

// Gang is one gang's state.
type Gang struct {
	ID    contract.GangID
	Saved Saved
	// Stored is the index of the variable that holds Saved; 0: it is not stored.
	Stored uint64
	// User is the job as its user submitted it; nil: not read yet.
	User *jobspec.Job
	// Meta and Faults are what User asks for and what is wrong with it; the core
	// refuses a gang with faults.
	Meta   contract.JobMeta
	Faults []contract.Fault
	// Gone: nothing is left of the gang, and it is to be forgotten.
	Gone bool
	// Wake is when to look again though nothing changed; zero: never.
	Wake time.Time

	set    *Settings
	groups []core.Group
	queue  string
	// submitter is who registered the version of an index through the API.
	submitter struct {
		name  string
		index uint64
	}
	// update is a version that becomes the user's once that is saved.
	update *jobspec.Job
	// Reports are the newest of the attempt, by allocation and task.
	reports map[member]contract.Report
	// launched is when each member's ranks were, trained when the first of them
	// marked a step.
	launched map[member]time.Time
	trained  time.Time
	// pinned is the pinned version as Nomad has it, to tell a foreign version.
	pinned *jobspec.Job
	// tagged: the user's version has its tag.
	tagged bool
	// published is the phase that the channel has of the attempt, with asked
	// telling that it has the ask.
	published contract.Phase
	askSent   bool
	// publishAfter is when a publication that failed is tried again.
	publishAfter time.Time
	// storedStages counts the stages that are saved.
	storedStages int
	// wantReports: a member's end was seen and its report was not.
	wantReports bool
	// floor is the JobModifyIndex of our last write: what is older is not seen
	// yet.
	floor      uint64
	staleSince time.Time
	// refused: Nomad said for good that the attempt's registration did not
	// happen, and why.
	refused string
	// growRefused is the same of a growth's.
	growRefused string
	// growWhy is why it could not grow last.
	growWhy string
	// stopAsked is when each allocation was last asked to end.
	stopAsked map[string]time.Time
	// since is when a state that is only waited for was first seen.
	since map[string]time.Time
	// evals are the job's latest, by id.
	evals     map[string]*picture.Eval
	refreshed bool // a refresh was asked for and has not come back
	// unsure: a write failed and may have happened; nothing is done before the
	// job was read anew.
	unsure bool
	// hold is until when nothing is done after failures of effects, and holdWhy
	// the last of them.
	hold      time.Time
	holdWhy   string
	failures  int
	described string
	unread    string // see Unreadable
	heldIndex uint64 // JobModifyIndex of a held version of our own
	admitted  bool   // the core would start the gang that Nomad placed by itself
}

type member struct{ alloc, task string }

// New is a gang of which nothing is known but its name.
func New(id contract.GangID, set *Settings) *Gang {
	return &Gang{ID: id, Saved: Saved{V: savedVersion, Phase: Waiting}, set: set, reports: map[member]contract.Report{}, launched: map[member]time.Time{},
		stopAsked: map[string]time.Time{}, since: map[string]time.Time{}, evals: map[string]*picture.Eval{}}
}

// Restore is a gang with what was saved of it.
func Restore(id contract.GangID, set *Settings, saved Saved, stored uint64) *Gang {
	g := New(id, set)
	g.Saved, g.Stored, g.storedStages = saved, stored, len(saved.Stages)
	return g
}

// Configure takes new settings.
func (g *Gang) Configure(set *Settings) {
	g.set = set
	if g.User != nil {
		g.read()
	}
}

// Effect is one thing to carry out. The effects of one step are carried out in
// order, and none after one that failed.
type Effect interface{ effect() }

// The effects.
type (
	// Tag marks the user's version, so that it does not age away.
	Tag struct{ Version uint64 }
	// Untag lets it, and lets Nomad collect the job.
	Untag struct{}
	// Save stores Saved in the gang's variable, which is at Stored.
	Save struct{ Saved Saved }
	// Forget deletes the variable.
	Forget struct{}
	// ReadUser reads the version of the job that its user submitted.
	ReadUser struct{ Version uint64 }
	// Check is a dry run: Nomad would place exactly Place members of each group
	// and evict nobody. Blocked: members may find no place yet (their victims
	// are still there).
	Check struct {
		Job     json.RawMessage
		Place   map[string]int
		Index   uint64
		Blocked bool
		Keep    bool // nothing that runs may be touched
	}
	// Register writes the job, which must still be at Index, with the
	// submission of the user's Version.
	Register struct {
		Job     json.RawMessage
		Index   uint64
		Version uint64
	}
	// Deregister stops the job, or removes it.
	Deregister struct{ Purge bool }
	// StopAllocs asks for the end of allocations.
	StopAllocs struct{ IDs []string }
	// Publish tells the members the record.
	Publish struct{ Record *contract.Record }
	// Remove deletes everything of the attempt from the channel.
	Remove struct{ Attempt int }
	// Refresh reads the job, its allocations and evaluations anew.
	Refresh struct{}
	// ReadReports reads the members' reports anew.
	ReadReports struct{ Attempt int }
)

func (Tag) effect()         {}
func (Untag) effect()       {}
func (Save) effect()        {}
func (Forget) effect()      {}
func (ReadUser) effect()    {}
func (Check) effect()       {}
func (Register) effect()    {}
func (Deregister) effect()  {}
func (StopAllocs) effect()  {}
func (Publish) effect()     {}
func (Remove) effect()      {}
func (Refresh) effect()     {}
func (ReadReports) effect() {}

// Event is something that a gang is told.
type Event interface{ event() }

// The events.
type (
	// Seen is everything that there is to see of the gang now.
	Seen struct {
		Now    time.Time
		Job    *picture.Job     // nil: Nomad has none of this name
		Allocs []*picture.Alloc // of the job
		Evals  []*picture.Eval  // new ones
		// Node has the verdicts on its cards in the place of what Nomad says. Direct
		// tells whether a node reports its cards directly; nil: none does.
		Node   func(id string) *picture.Node
		Direct func(id string) bool
		// Reports that came over the channel since the last event; those in the
		// allocations' task events are taken from there.
		Reports []contract.Report
		// TwinLives: the gang runs as a twin of its job, and that is not stopped.
		// TwinIndex is the twin's JobModifyIndex; 0: there is none.
		TwinLives bool
		TwinIndex uint64
		// Fresh: job, allocations and evaluations were read anew on request.
		Fresh bool
		// Leaving are those of Saved.Leavers that still hold something.
		Leaving []Leaving
	}
	// Start is the plan's placement of a waiting gang. Leavers hold some of its
	// places.
	Start struct {
		Seen
		Plan    core.Start
		Leavers []Leaver
		// Fresh: nobody else changed anything on the plan's nodes since the
		// snapshot that it was made from.
		Fresh bool
	}
	// Evict asks a running gang to save and leave, and takes back one that is
	// placed and not released. Queue is that of the gang it is for.
	Evict struct {
		Seen
		Plan  core.Eviction
		Queue string
	}
	// Shrink has an elastic gang give up members, which may save for the grace.
	Shrink struct {
		Seen
		Attempt int
		Allocs  []string
		Grace   time.Duration
	}
	// Grow has an elastic gang take in members while it runs.
	Grow struct {
		Seen
		Attempt int
		Add     []core.Placement
	}
	// Withdraw takes an ask back: nobody needs the gang's cards any more.
	Withdraw struct {
		Seen
		Why string
	}
	// Cancel is a user's wish that the gang ends, and why; see cancel.go. Grace 0
	// is the gang's own.
	Cancel struct {
		Seen
		Why   string
		Purge bool
		Grace time.Duration
	}
	// GiveUp fails a gang that waits.
	GiveUp struct {
		Seen
		Reason string
	}
	// Done tells how the effects of the last step went: the first len(Done) of
	// them were carried out, and Err is the next one's.
	Done struct {
		Now     time.Time
		Effects []Effect
		Failed  Effect // nil: none
		Err     error
		Refused bool // Err says that the failed effect did not happen
		// What the effects gave.
		Stored        uint64 // of the last Save
		Registered    uint64 // JobModifyIndex of the last Register or Deregister
		User          *jobspec.Job
		HasReadUser   bool
		Reports       []contract.Report
		SubmissionFor uint64
	}
)

func (Seen) event()     {}
func (Start) event()    {}
func (Evict) event()    {}
func (Withdraw) event() {}
func (Shrink) event()   {}
func (Grow) event()     {}
func (Cancel) event()   {}
func (GiveUp) event()   {}
func (Done) event()     {}
