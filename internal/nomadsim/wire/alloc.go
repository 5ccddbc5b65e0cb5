package wire

import "time"

// What a server wants of an allocation.
const (
	DesiredRun   = "run"
	DesiredStop  = "stop"
	DesiredEvict = "evict"
)

// What a client tells of an allocation.
const (
	ClientPending  = "pending"
	ClientRunning  = "running"
	ClientComplete = "complete"
	ClientFailed   = "failed"
	ClientLost     = "lost"
	ClientUnknown  = "unknown"
)

// States of a task.
const (
	TaskPending = "pending"
	TaskRunning = "running"
	TaskDead    = "dead"
)

// Allocation is a task group placed on a node.
type Allocation struct {
	ID                    string                `json:",omitzero"`
	Namespace             string                `json:",omitzero"`
	EvalID                string                `json:",omitzero"`
	Name                  string                `json:",omitzero"`
	NodeID                string                `json:",omitzero"`
	NodeName              string                `json:",omitzero"`
	JobID                 string                `json:",omitzero"`
	Job                   *Job                  `json:",omitempty"`
	TaskGroup             string                `json:",omitzero"`
	Resources             *Resources            `json:",omitempty"`
	SharedResources       *Resources            `json:",omitempty"`
	TaskResources         map[string]*Resources `json:",omitempty"`
	AllocatedResources    *AllocatedResources   `json:",omitempty"`
	Metrics               *AllocMetric          `json:",omitempty"`
	DesiredStatus         string                `json:",omitzero"`
	DesiredDescription    string                `json:",omitzero"`
	DesiredTransition     DesiredTransition     `json:",omitzero"`
	ClientStatus          string                `json:",omitzero"`
	ClientDescription     string                `json:",omitzero"`
	TaskStates            map[string]*TaskState `json:",omitempty"`
	AllocStates           []*AllocState         `json:",omitempty"`
	PreviousAllocation    string                `json:",omitzero"`
	NextAllocation        string                `json:",omitzero"`
	DeploymentID          string                `json:",omitzero"`
	DeploymentStatus      *AllocDeployment      `json:",omitempty"`
	RescheduleTracker     *RescheduleTracker    `json:",omitempty"`
	NetworkStatus         *AllocNetworkStatus   `json:",omitempty"`
	FollowupEvalID        string                `json:",omitzero"`
	PreemptedAllocations  []string              `json:",omitempty"`
	PreemptedByAllocation string                `json:",omitzero"`
	SigningKeyID          string                `json:",omitzero"`
	CreateIndex           uint64                `json:",omitzero"`
	ModifyIndex           uint64                `json:",omitzero"`
	AllocModifyIndex      uint64                `json:",omitzero"`
	CreateTime            int64                 `json:",omitzero"`
	ModifyTime            int64                 `json:",omitzero"`
}

// DesiredTransition is what an operator or the drainer asks of an allocation.
type DesiredTransition struct {
	Migrate                 *bool
	Reschedule              *bool
	ForceReschedule         *bool
	NoShutdownDelay         *bool
	MigrateDisablePlacement *bool
}

func isTrue(b *bool) bool { return b != nil && *b }

// ShouldMigrate says whether the allocation is to leave its node.
func (t DesiredTransition) ShouldMigrate() bool { return isTrue(t.Migrate) }

// ShouldNotPlace says whether a migrating allocation gets no replacement.
func (t DesiredTransition) ShouldNotPlace() bool { return isTrue(t.MigrateDisablePlacement) }

// ShouldReschedule says whether the allocation may be replaced.
func (t DesiredTransition) ShouldReschedule() bool { return isTrue(t.Reschedule) }

// ShouldForceReschedule says whether the allocation must be replaced.
func (t DesiredTransition) ShouldForceReschedule() bool { return isTrue(t.ForceReschedule) }

// AllocState is a change of an allocation's client status made by the server.
type AllocState struct {
	Field int // 0: the client status
	Value string
	Time  Time
}

// AllocDeployment is an allocation's part in a deployment.
type AllocDeployment struct {
	Healthy     *bool
	Timestamp   Time
	Canary      bool
	ModifyIndex uint64
}

// IsHealthy says whether the allocation was found healthy.
func (d *AllocDeployment) IsHealthy() bool { return d != nil && isTrue(d.Healthy) }

// AllocNetworkStatus is the address of an allocation's own network.
type AllocNetworkStatus struct {
	InterfaceName string
	Address       string
	AddressIPv6   string
	DNS           map[string]any
}

// RescheduleTracker remembers the attempts before this allocation.
type RescheduleTracker struct {
	Events         []*RescheduleEvent
	LastReschedule string
}

// RescheduleEvent is one attempt.
type RescheduleEvent struct {
	RescheduleTime int64
	PrevAllocID    string
	PrevNodeID     string
	Delay          time.Duration
}

// AllocatedResources is what an allocation holds.
type AllocatedResources struct {
	Tasks          map[string]*AllocatedTask
	TaskLifecycles map[string]*Lifecycle
	Shared         AllocatedShared
}

// AllocatedTask is what one task holds.
type AllocatedTask struct {
	Cpu      AllocatedCPU
	Memory   AllocatedMemory
	Networks []*NetworkResource
	Devices  []*AllocatedDevice
}

// AllocatedCPU is the task's share of the processor.
type AllocatedCPU struct {
	CpuShares     int64
	ReservedCores []uint16
}

// AllocatedMemory is the task's memory.
type AllocatedMemory struct {
	MemoryMB    int64
	MemoryMaxMB int64
}

// AllocatedShared is what the whole allocation holds.
type AllocatedShared struct {
	Networks []*NetworkResource
	DiskMB   int64
	Ports    []AllocatedPort
}

// AllocatedPort is a port of the allocation.
type AllocatedPort struct {
	Label           string `json:",omitzero"`
	Value           int    `json:",omitzero"`
	To              int    `json:",omitzero"`
	HostIP          string `json:",omitzero"`
	IgnoreCollision bool   `json:",omitzero"`
}

// AllocatedDevice is the device instances of one group that a task holds.
type AllocatedDevice struct {
	Vendor    string
	Type      string
	Name      string
	DeviceIDs []string
}

// TaskState is how a task is.
type TaskState struct {
	State       string
	Failed      bool
	Restarts    uint64
	LastRestart Time
	StartedAt   Time
	FinishedAt  Time
	Events      []*TaskEvent
	Paused      string
}

// TaskEvent is something that happened to a task.
type TaskEvent struct {
	Type             string
	Time             int64
	Message          string
	DisplayMessage   string
	Details          map[string]string
	FailsTask        bool
	RestartReason    string
	SetupError       string
	DriverError      string
	ExitCode         int
	Signal           int
	KillTimeout      time.Duration
	KillError        string
	KillReason       string
	StartDelay       int64
	DownloadError    string
	ValidationError  string
	DiskLimit        int64
	FailedSibling    string
	VaultError       string
	TaskSignalReason string
	TaskSignal       string
	DriverMessage    string
	GenericSource    string
}

// NetworkResource is a network asked for or given.
type NetworkResource struct {
	Mode          string         `json:",omitzero"`
	Device        string         `json:",omitzero"`
	CIDR          string         `json:",omitzero"`
	IP            string         `json:",omitzero"`
	Hostname      string         `json:",omitzero"`
	MBits         int            `json:",omitzero"`
	DNS           map[string]any `json:",omitempty"`
	ReservedPorts []Port         `json:",omitempty"`
	DynamicPorts  []Port         `json:",omitempty"`
	CNI           map[string]any `json:",omitempty"`
}

// Port is a port asked for or given.
type Port struct {
	Label           string `json:",omitzero"`
	Value           int    `json:",omitzero"`
	To              int    `json:",omitzero"`
	HostNetwork     string `json:",omitzero"`
	IgnoreCollision bool   `json:",omitzero"`
}

// AllocStub is an allocation in a list.
type AllocStub struct {
	ID                    string
	EvalID                string
	Name                  string
	Namespace             string
	NodeID                string
	NodeName              string
	JobID                 string
	JobType               string
	JobVersion            uint64
	TaskGroup             string
	AllocatedResources    *AllocatedResources `json:",omitempty"`
	DesiredStatus         string
	DesiredDescription    string
	ClientStatus          string
	ClientDescription     string
	DesiredTransition     DesiredTransition
	TaskStates            map[string]*TaskState
	DeploymentStatus      *AllocDeployment
	FollowupEvalID        string
	NextAllocation        string
	RescheduleTracker     *RescheduleTracker
	PreemptedAllocations  []string
	PreemptedByAllocation string
	CreateIndex           uint64
	ModifyIndex           uint64
	CreateTime            int64
	ModifyTime            int64
}

// Stub is the allocation as a list shows it. Without states the tasks are left out, with resources what it holds is shown.
func (a *Allocation) Stub(states, resources bool) *AllocStub {
	s := &AllocStub{
		ID: a.ID, EvalID: a.EvalID, Name: a.Name, Namespace: a.Namespace, NodeID: a.NodeID, NodeName: a.NodeName, JobID: a.JobID,
		JobType: a.Job.Type, JobVersion: a.Job.Version, TaskGroup: a.TaskGroup, DesiredStatus: a.DesiredStatus,
		DesiredDescription: a.DesiredDescription, ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription,
		DesiredTransition: a.DesiredTransition, DeploymentStatus: a.DeploymentStatus, FollowupEvalID: a.FollowupEvalID,
		NextAllocation: a.NextAllocation, RescheduleTracker: a.RescheduleTracker, PreemptedAllocations: a.PreemptedAllocations,
		PreemptedByAllocation: a.PreemptedByAllocation, CreateIndex: a.CreateIndex, ModifyIndex: a.ModifyIndex,
		CreateTime: a.CreateTime, ModifyTime: a.ModifyTime,
	}
	if states {
		s.TaskStates = a.TaskStates
	}
	if resources {
		s.AllocatedResources = a.AllocatedResources
	}
	return s
}

// ServerTerminal says whether the server wants the allocation to end.
func (a *Allocation) ServerTerminal() bool {
	return a.DesiredStatus == DesiredStop || a.DesiredStatus == DesiredEvict
}

// ClientTerminal says whether the allocation has ended at the client.
func (a *Allocation) ClientTerminal() bool {
	return a.ClientStatus == ClientComplete || a.ClientStatus == ClientFailed || a.ClientStatus == ClientLost
}

// Terminal says whether the allocation has ended or is to end.
func (a *Allocation) Terminal() bool { return a.ServerTerminal() || a.ClientTerminal() }

// RanSuccessfully says whether every task ended well. An allocation without states never ran.
func (a *Allocation) RanSuccessfully() bool {
	if len(a.TaskStates) == 0 {
		return false
	}
	for _, s := range a.TaskStates {
		if s.State != TaskDead || s.Failed {
			return false
		}
	}
	return true
}

// Group is the task group of the job version that the allocation runs, or nil.
func (a *Allocation) Group() *TaskGroup {
	if a.Job == nil {
		return nil
	}
	return a.Job.Group(a.TaskGroup)
}
