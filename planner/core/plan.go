package core

import "time"

// Plan is what one cycle decided, in the order in which it is to be carried
// out, with a verdict for every gang of the snapshot.
type Plan struct {
	Starts       []Start
	Evictions    []Eviction
	Resizes      []Resize
	Reservations []Reservation
	Fails        []Fail    // gangs that give up
	Splits       []GangID  // gangs that give up as one and go on as single members
	Verdicts     []Verdict // ordered by gang id
	Notices      []Notice  // contradictions in the snapshot and what was done about them
	Demand       []Demand
}

// Start places a waiting gang as a whole. Where After is not empty, its cards
// are still held by these gangs, which this or an earlier plan evicts for it:
// the start is to be reserved now and completes when they are gone.
type Start struct {
	Gang    GangID
	Queue   QueueName
	Members []Placement // ordered by member
	Model   Model
	After   []GangID
	// Waits: it may hold its places only once all of After have left, since its
	// queue's max, or that of one above it, has no room for both. Otherwise it
	// holds what is free of them at once.
	Waits bool
	// Borrowed cards among the gang's.
	Borrowed int
	// Backfill: gangs ahead of it wait for promised places. OnPromise: it runs
	// on some of those itself and leaves when they are due; see
	// Gang.Backfilled.
	Backfill, OnPromise bool
	Repair              bool
	Score               string // why this place, for people
}

// EvictionKind tells why a gang has to leave.
type EvictionKind string

// Eviction kinds.
const (
	EvictReclaim     EvictionKind = "reclaim"     // a guarantee is taken back
	EvictClass       EvictionKind = "class"       // a higher class takes borrowed cards
	EvictPriority    EvictionKind = "priority"    // inside a queue
	EvictAged        EvictionKind = "aged"        // likewise, by a gang aged to the top
	EvictPromise     EvictionKind = "promise"     // a backfilled gang in the way of a reservation
	EvictTimeLimit   EvictionKind = "time-limit"  //
	EvictUnreleased  EvictionKind = "unreleased"  // placed, and not released within the reserve timeout
	EvictDrain       EvictionKind = "drain"       // a node of it drains
	EvictRepair      EvictionKind = "repair"      // damaged: stopped and placed again
	EvictConsolidate EvictionKind = "consolidate" //
)

// Eviction asks a running gang to save and leave.
type Eviction struct {
	Gang    GangID
	Attempt int
	Kind    EvictionKind
	For     GangID // who gets its cards; "": nobody in particular
	Grace   time.Duration
	// Immediate: no ask (urgent queues only).
	Immediate bool
	// To is the queue it goes back to.
	To   QueueName
	Cost int64 // card-seconds of work lost, estimated
	Why  string
}

// Resize changes a running elastic gang's members.
type Resize struct {
	Gang   GangID
	Add    []Placement
	Remove []int // member indexes
	For    GangID
	Why    string
}

// Reservation promises cards to a gang.
type Reservation struct {
	Gang GangID
	// At is the promised start; zero: no time can be promised (gathering).
	At      time.Time
	Members []Placement
	// Gathering: cards that come free go to it and to preemptible gangs only.
	Gathering bool
	// Made is when the promise was first made, Was the time promised then;
	// Cause states why it moved later, "" if it did not.
	Made  time.Time
	Was   time.Time
	Cause string
}

// Fail ends a gang that gave up.
type Fail struct {
	Gang   GangID
	Reason string
}

// Verdict is what a gang's user and operator are told, everywhere the same.
type Verdict struct {
	Gang      GangID
	Action    Action
	Reason    Reason    // the first blocker's, or why it acts
	Sentence  string    // one sentence for people
	Blockers  []Blocker // all of them, the one that matters most first
	Position  int       // in its queue, from 1; 0: not waiting
	ETA       ETA
	Effective int // effective priority
}

// Action is what the plan does with a gang.
type Action string

// Actions.
const (
	ActionStart  Action = "start"
	ActionWait   Action = "wait"
	ActionRun    Action = "run"
	ActionEvict  Action = "evict"
	ActionResize Action = "resize"
	ActionRefuse Action = "refuse"
	ActionFail   Action = "fail"
	ActionHold   Action = "hold"
	ActionStop   Action = "stop"
)

// Reason is the enumerated cause behind a verdict or blocker.
type Reason string

// Reasons. Each blocker has one; metrics are labelled with them.
const (
	ReasonFits         Reason = "fits"
	ReasonCards        Reason = "cards"       // of its model, now
	ReasonShape        Reason = "shape"       // enough cards, not on enough nodes of the needed shape
	ReasonTopology     Reason = "topology"    // not within the level
	ReasonPrefer       Reason = "prefer"      // waits for its preferred level
	ReasonCPU          Reason = "cpu"         //
	ReasonMemory       Reason = "memory"      //
	ReasonDisk         Reason = "disk"        //
	ReasonPorts        Reason = "ports"       //
	ReasonNIC          Reason = "nic"         //
	ReasonConstraint   Reason = "constraint"  // no or too few nodes satisfy its constraints
	ReasonGuarantee    Reason = "guarantee"   // others are entitled first
	ReasonMax          Reason = "max"         // its queue's or an ancestor's
	ReasonLend         Reason = "lend"        // idle cards that their owner does not lend
	ReasonUserLimit    Reason = "user-limit"  //
	ReasonMaxGangs     Reason = "max-gangs"   //
	ReasonBudget       Reason = "budget"      //
	ReasonReserved     Reason = "reserved"    // cards promised to others
	ReasonBehind       Reason = "behind"      // others of its queue come first
	ReasonVictims      Reason = "victims"     // its victims are leaving
	ReasonPause        Reason = "pause"       // after failures
	ReasonHeld         Reason = "held"        // by hand
	ReasonPaused       Reason = "paused"      // the planner is
	ReasonTooLarge     Reason = "too-large"   // for the empty, healthy cluster
	ReasonFaults       Reason = "faults"      // in what was submitted
	ReasonExcluded     Reason = "excluded"    // nodes or cards out of use would have been enough
	ReasonBlast        Reason = "blast"       //
	ReasonNotCarried   Reason = "not-carried" // the service cannot carry this out yet
	ReasonRunning      Reason = "running"
	ReasonStopping     Reason = "stopping"
	ReasonEvicted      Reason = "evicted"
	ReasonGiveUp       Reason = "give-up"
	ReasonContradicted Reason = "contradicted" // the snapshot contradicts itself
)

// Blocker is one thing in a gang's way.
type Blocker struct {
	Reason  Reason
	Model   Model
	Missing int    // cards, nodes or whatever Reason counts
	Text    string // one sentence with the figures
	Holders []Holder
	Remedy  string // what would help, as something to do
}

// Holder has what a gang lacks.
type Holder struct {
	Gang  GangID // "": other jobs, or a domain
	Job   string
	Cards int
	Until time.Time // expected end; zero: not known
}

// ETA is a range with the assumption it rests on; From zero: not known.
type ETA struct {
	From, To   time.Time
	Assumption string
	Promised   bool
}

// Notice tells of something odd in the snapshot.
type Notice struct {
	Object string // card X, node Y, queue Z
	Text   string
}

// Demand is nodes of one shape that would let reserved and waiting gangs
// start, for autoscaling.
type Demand struct {
	Model Model
	Cards int // of one node
	Pool  string
	Nodes int
	Gangs int
}

// Decider turns a snapshot into a plan. One Decider serves one cluster over
// time: it may keep what it derived from nodes whose Version did not change,
// and never anything that changes a plan.
type Decider interface {
	Decide(*Snapshot) *Plan
}
