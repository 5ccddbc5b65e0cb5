// Package contract holds what Muster's three parts agree on, so that none of
// them imports another: names in job specifications, in Nomad's attributes, in
// Consul and in a rank's environment; the schema of what the device plugin
// publishes of its cards; the gang record that the planner writes and the
// reports that members answer with; and the validation that the planner, the
// CLI and the driver share. docs/contract.md is the table of it.
//
// Everything here is plain data and pure functions.
package contract

// A held job carries this constraint, which no node satisfies. Its text is
// shown by Nomad's CLI and UI, so it explains itself.
const (
	HoldAttribute = "${meta.muster}"
	HoldValue     = "admits-this-job"
)

// Keys of a job's meta block. See ParseJobMeta for their values.
const (
	MetaQueue        = "muster_queue"
	MetaTopology     = "muster_topology"
	MetaTimeLimit    = "muster_time_limit"
	MetaMin          = "muster_min"
	MetaModels       = "muster_models"
	MetaRetries      = "muster_retries"
	MetaSplit        = "muster_split"
	MetaPreferWait   = "muster_prefer_wait"
	MetaMinBandwidth = "muster_min_bandwidth"
	MetaDeadline     = "muster_deadline"
	MetaPreemptible  = "muster_preemptible"
	MetaGrace        = "muster_grace"
	MetaSpread       = "muster_spread"
	MetaUser         = "muster_user"
)

// metaPrefix marks a meta key as Muster's: an unknown one is a fault.
const metaPrefix = "muster_"

// DriverName is the task driver's name in job specifications, and
// DevicePluginName the device plugin's in logs and in the agent's plugin block.
const (
	DriverName       = "torchrun"
	DevicePluginName = "nomad-device-gpu"
)

// RendezvousPortLabel is the label of a group's port that, where present, is
// used for the rendezvous of its world.
const RendezvousPortLabel = "rendezvous"

// Attributes that the driver publishes for its node, besides Nomad's own
// driver.torchrun = 1.
const (
	AttrDriverVersion    = "driver.torchrun.version"
	AttrDriverRendezvous = "driver.torchrun.rendezvous" // RendezvousConsul or RendezvousSignal
	AttrDriverTorch      = "driver.torchrun.torch"      // version of torch; absent: no torchrun on this node
	AttrDriverImages     = "driver.torchrun.images"     // container engine for `image`; absent: no images on this node
	AttrDriverIsolation  = "driver.torchrun.isolation"  // cgroup.v1, cgroup.v2 or none
)

// How the gang record reaches a node's members.
const (
	RendezvousConsul = "consul"
	RendezvousSignal = "signal"
)

// Variables that a rank finds. Torchrun's own (RANK, LOCAL_RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, GROUP_RANK, LOCAL_WORLD_SIZE) are set as well.
const (
	EnvGang          = "MUSTER_GANG"           // namespace/job
	EnvAttempt       = "MUSTER_ATTEMPT"        // from 1
	EnvMember        = "MUSTER_MEMBER"         // index of this member in its gang, from 0
	EnvMembers       = "MUSTER_MEMBERS"        // number of members of the gang
	EnvWorld         = "MUSTER_WORLD"          // name of the world: the group, or the job
	EnvNodes         = "MUSTER_NODES"          // node names of the world's members, in order, by commas
	EnvQueue         = "MUSTER_QUEUE"          //
	EnvPreemptFile   = "MUSTER_PREEMPT_FILE"   // appears when the gang is asked to save and leave
	EnvProgressFile  = "MUSTER_PROGRESS_FILE"  // the script appends marks here
	EnvCheckpointDir = "MUSTER_CHECKPOINT_DIR" // the task's checkpoint setting
	EnvDeadline      = "MUSTER_DEADLINE"       // RFC 3339; absent without a time limit
	EnvTask          = "MUSTER_TASK"           // the task's id: tells a task's processes from all others
	EnvCardsShared   = "MUSTER_CARDS_SHARED"   // "1" from the device plugin: others may use the cards at the same time
)

// Exit codes that a task ends with in Nomad where no rank's own code says how
// it ended. None is 0: a rank that saves and exits 0 because it was asked to
// leave has not completed its work.
const (
	CodeRefused = 69  // never released
	CodeAsked   = 75  // asked to leave, and left (EX_TEMPFAIL)
	CodePeer    = 76  // stopped because another member ended
	CodeHung    = 124 // no progress
)

// SignalRecord starts the text of a Nomad signal that carries a gang record
// (see Record) to a member on nodes without Consul; a space and the record's
// JSON follow. SignalAsk starts the text that asks a member to save and leave;
// a space and an Ask's JSON follow.
const (
	SignalRecord = "MUSTER_RECORD"
	SignalAsk    = "MUSTER_ASK"
)

// AnnotationReport is the key of a task event's annotation that carries a
// member's Report as JSON.
const AnnotationReport = "muster_report"

// VersionTag is the tag that the planner puts on the version of a job as its
// user submitted it.
const VersionTag = "muster-submitted"

// VariablePrefix is where the planner keeps what must survive, as Nomad
// variables.
const VariablePrefix = "muster"

// ConsulPrefix is the root of all of Muster's Consul keys, and ConsulService
// the name under which members register.
const (
	ConsulPrefix  = "muster/v1"
	ConsulService = "muster-member"
)
