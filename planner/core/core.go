// Package core holds the types of the planner's decisions and nothing else: a
// Snapshot of the cluster, its queues and its gangs at one instant goes in, a
// Plan with a Verdict for every gang comes out. The algorithms are in the
// packages below; planner/nomad builds snapshots from a Nomad cluster and
// carries plans out; planner/simulate drives the same algorithms in virtual
// time.
//
// Everything below planner/core is pure: no clock, no input or output, no
// random choice, no map walked in its own order. Times are instants or
// durations given in the snapshot, cards and card-seconds are integers, and
// permuting the input leaves the plan unchanged. Tests keep these rules.
//
// # Words
//
// A gang is one Nomad job whose allocations must all be placed before any rank
// starts; a member is one of its allocations; an attempt is one try at running
// it, numbered from 1. A card is one allocatable accelerator, a model the
// Nomad device group's name; quotas, capacity and filters count per model. A
// queue is a node of a tree whose leaves hold gangs.
package core

import "time"

// GangID names a gang in its region: "namespace/job".
type GangID string

// NodeID is Nomad's node id, CardID a device's id (UUID), Model a device
// group's name, QueueName a queue's.
type (
	NodeID    string
	CardID    string
	Model     string
	QueueName string
)

// Snapshot is what is known at one instant. The decision core only reads it.
type Snapshot struct {
	Now    time.Time
	Config *Config
	Nodes  []Node // any order
	Gangs  []Gang // all that are not over, any order
	// Claims are who holds what on which node: live allocations (stopping ones
	// hold until their processes are gone), and what the planner has asked
	// Nomad for and not seen placed yet.
	Claims []Claim
	// Paused says that the operator paused admissions; Why is shown.
	Paused    bool
	PausedWhy string
	History   History
}

// Node is one Nomad client node.
type Node struct {
	ID   NodeID
	Name string
	// Version changes whenever anything of the node does: caches key on it.
	Version    uint64
	Datacenter string
	Pool       string
	Class      string
	// Ready and Eligible as Nomad has them; Draining with its deadline, zero
	// where it has none.
	Ready, Eligible, Draining bool
	DrainBy                   time.Time
	// Domains are the names of the node's place at each topology level of the
	// configuration, outermost first; "" where the node has no such value.
	Domains []string
	// Attributes and Meta as constraints see them (${attr.x}, ${meta.x}).
	Attributes map[string]string
	Meta       map[string]string
	// Drivers that are detected and healthy.
	Drivers map[string]bool
	// Volumes: host volumes by name; the value says read-only.
	Volumes  map[string]bool
	Capacity Resources
	// ReservedPorts are taken by the host itself; MinPort..MaxPort is the range
	// of dynamic ports.
	ReservedPorts    []int
	MinPort, MaxPort int
	Devices          []DeviceGroup
	// Suspect: placed on last; SuspectWhy is shown.
	Suspect    bool
	SuspectWhy string
	// Excluded: nothing is placed here, by the planner's own decision
	// (quarantine, suspicion confirmed).
	Excluded    bool
	ExcludedWhy string
}

// Resources of a node or of a member.
type Resources struct {
	CPU      int64 // MHz
	Cores    int   // whole reserved cores
	MemoryMB int64
	DiskMB   int64
}

// DeviceGroup is Nomad's group of like devices on one node.
type DeviceGroup struct {
	Vendor, Type string
	Name         Model
	Attributes   map[string]Attribute
	Cards        []Card
	// Links counts the direct connections between two cards, by places in
	// Cards; only a < b is stated.
	Links []Link
}

// Attribute is a typed value with a unit, as Nomad's device attributes are.
type Attribute struct {
	Int    *int64
	Float  *float64
	String *string
	Bool   *bool
	Unit   string
}

// Card is one device: an accelerator, or a NIC where its group's type says so.
type Card struct {
	ID      CardID
	Healthy bool      // as Nomad has it
	State   CardState // as the device plugin or the planner judges it
	Why     string    // the sentence behind State or Healthy
	Domain  string    // cards of a node with the same name reach each other over NVLink; "": none
	NUMA    int       // -1: not known
	Parent  CardID    // the card that this one is a part of
	// Shares is how many equal shares the card may be given out in; 0: it is
	// given out whole only.
	Shares int
	// NICs near the card, nearest first: device ids of another group.
	NICs []CardID
}

// CardState is a health verdict.
type CardState uint8

// Card states, best first.
const (
	CardHealthy CardState = iota
	CardSuspect
	CardDraining
	CardQuarantined
)

// Link is a count of connections between two cards of a group.
type Link struct{ A, B, Count int }

// Claim is what one allocation holds.
type Claim struct {
	Node    NodeID
	Gang    GangID // "": not a gang's ("other")
	Attempt int
	Member  int // index within the gang; -1 where Gang is ""
	Alloc   string
	Job     string // namespace/job, for whoever asks who holds it
	Use     Resources
	Cards   []CardID // devices of every type
	// Shares of each of Cards that are held; 0, or nil for all: the whole card.
	Shares []int
	Ports  []int
	// Stopping: asked to end, still there. Unknown: on a node that Nomad has
	// lost contact with. Asked: requested from Nomad, not seen yet.
	Stopping, Unknown, Asked bool
	Priority                 int
}

// GangState is where a gang is, for the core.
type GangState uint8

// Gang states.
const (
	GangWaiting  GangState = iota // in its queue
	GangHeld                      // held by hand: not considered
	GangPlacing                   // placed by an earlier plan, not released yet
	GangRunning                   // released
	GangStopping                  // asked to end, or ending; goes back to its queue or ends
	GangRefused                   // cannot ever run as it is; looked at again each cycle
)

// Gang is one gang that is not over.
type Gang struct {
	ID    GangID
	Queue QueueName
	User  string
	// Name is what gangs of one kind have in common, for estimates of their run
	// time; "": the job id.
	Name string
	// Service: replicas that Nomad places itself; admitted whole, never pinned.
	Service  bool
	State    GangState
	Attempt  int // the current or last attempt; 0: none yet
	Priority int // 1..100, of the version that the user submitted
	// Submitted is the original time; Sequence breaks ties and is unique.
	Submitted time.Time
	Sequence  int64
	// Queued is since when it waits, for aging and prefer_wait. Zero unless
	// waiting.
	Queued time.Time
	Groups []Group
	Want
	// Running attempt.
	Started time.Time // when its cards were taken
	// Ran is how long ranks ran in earlier attempts, without what was lost.
	Ran        time.Duration
	Released   time.Time // zero: ranks do not run yet
	Checkpoint time.Time // last one reported; zero: none
	// SaveTime and RestartTime are measured; zero: not known.
	SaveTime, RestartTime time.Duration
	Placement             []Placement
	// Backfilled as its last Start said: it runs on cards that are promised to
	// another gang, and leaves when they are due.
	Backfilled bool
	// Waits for those in whose places it is to go, as its last Start said.
	Waits bool
	// Damaged: a member is lost or failed; ahead of newcomers once it waits.
	// Lost are the members that are gone.
	Damaged bool
	Lost    []int
	// NotBefore: a pause after failures; Why is shown.
	NotBefore    time.Time
	NotBeforeWhy string
	// Avoid lists nodes and cards that this gang is not placed on again.
	AvoidNodes []NodeID
	AvoidCards []CardID
	// EvictedBy are gangs that evicted this one in the last 24 h; it does not
	// evict them.
	EvictedBy []GangID
	// EvictionsToday counts evictions of this gang since midnight UTC.
	EvictionsToday int
	// Faults found at submission (unknown queue, bad meta): refused.
	Faults []string
}

// Want is what a gang asks for beside its groups.
type Want struct {
	// Min members of an elastic gang; 0: rigid.
	Min int
	// Models accepted, most wanted first; empty: whatever its asks match.
	Models []Model
	// Level is a topology level's name, or LevelNode, LevelLink; Required says
	// never to cross it.
	Level      string
	Required   bool
	PreferWait time.Duration // 0: the configuration's
	TimeLimit  time.Duration // 0: not known, taken as endless
	Deadline   time.Time     // zero: none
	// Preemptible: may be asked to save and leave.
	Preemptible bool
	Grace       time.Duration // 0: the queue's
	Split       bool
	Spread      bool
}

// Levels inside and at a node, always there.
const (
	LevelNode = "node"   // all members on one node
	LevelLink = "nvlink" // all cards of a member in one NVLink domain
)

// Group is a set of equal members: a Nomad task group.
type Group struct {
	Name        string
	Count       int
	Datacenters []string // patterns, "*" allowed; of the job
	Pool        string
	Constraints []Constraint // of job, group and tasks
	Affinities  []Affinity
	Spreads     []Spread
	Drivers     []string
	Use         Resources
	Devices     []DeviceAsk
	StaticPorts []int
	Ports       int // dynamic ports
	Volumes     []VolumeAsk
}

// Constraint as Nomad has it: operand "=", "!=", "<", "<=", ">", ">=",
// "regexp", "version", "semver", "set_contains", "set_contains_any", "is_set",
// "is_not_set", "distinct_hosts", "distinct_property".
type Constraint struct{ Left, Operand, Right string }

// Affinity is a weighted wish, -100..100.
type Affinity struct {
	Constraint
	Weight int
}

// Spread over the values of an attribute.
type Spread struct {
	Attribute string
	Weight    int
	Targets   []SpreadTarget
}

// SpreadTarget is a value's wished share in percent.
type SpreadTarget struct {
	Value   string
	Percent int
}

// DeviceAsk is one device block of one task of the group.
type DeviceAsk struct {
	Task string
	// Vendor and Name are "" where the ask leaves them open: "gpu" names a
	// type, "nvidia/gpu" vendor and type, "nvidia/gpu/H100" all three.
	Vendor, Type, Name string
	Count              int
	// Shares asks for so many shares of one card instead of Count whole ones.
	Shares      int
	Constraints []Constraint
	Affinities  []Affinity
}

// VolumeAsk is a host volume that a member needs.
type VolumeAsk struct {
	Source   string
	ReadOnly bool
}

// Placement is one member on its node.
type Placement struct {
	Group  string
	Member int // index within the gang, along the topology
	Node   NodeID
	// Cards of every device ask, in the order of the group's Devices; exact
	// ids where the member takes a part of the node's group, and all of them
	// otherwise too.
	Cards [][]CardID
	Model Model // "": no card asked
}

// History is what earlier cycles left: counted by the service, read here.
type History struct {
	// EvictionsToday per queue since midnight UTC: all, and those caused by
	// gangs that aged to the top.
	EvictionsToday    map[QueueName]int
	TopEvictionsToday map[QueueName]int
	// UsedCardSeconds per queue in the current budget period.
	UsedCardSeconds map[QueueName]int64
	// Estimates of run times learned from earlier gangs; see package estimate.
	Estimates []Estimate
	// Reservations of the last cycle: a promise only moves for a stated cause.
	Reservations []Reservation
	// RestartMedian and CheckpointMedian over gangs that report them; zero: not
	// known.
	RestartMedian, CheckpointMedian time.Duration
	// Recent are the sizes of gangs seen lately, for fragmentation and packing.
	Recent []Shape
}

// Estimate of run times of similar gangs.
type Estimate struct {
	User, Name    string
	Queue         QueueName
	Cards         int
	Median, Upper time.Duration // 0.5 and 0.9 quantile
	Count         int
}

// Shape of a gang seen lately: members, and what one member asks for.
type Shape struct {
	Members, Cards int
	Shares         int     // of one card, where it asks for less than one
	Models         []Model // accepted; empty: any
	Use            Resources
	Weight         int // how often
}
