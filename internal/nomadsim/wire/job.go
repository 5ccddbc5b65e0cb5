package wire

import "time"

// Kinds of jobs.
const (
	TypeService  = "service"
	TypeBatch    = "batch"
	TypeSystem   = "system"
	TypeSysBatch = "sysbatch"
)

// States of a job.
const (
	JobPending = "pending"
	JobRunning = "running"
	JobDead    = "dead"
)

// Job is one version of a job.
type Job struct {
	Stop                     bool
	Region                   string
	Namespace                string
	ID                       string
	ParentID                 string
	Name                     string
	Type                     string
	Priority                 int
	AllAtOnce                bool
	Datacenters              []string
	NodePool                 string
	Constraints              []*Constraint
	Affinities               []*Affinity
	Spreads                  []*Spread
	TaskGroups               []*TaskGroup
	Update                   UpdateStrategy
	Multiregion              map[string]any
	Periodic                 *PeriodicConfig
	ParameterizedJob         *ParameterizedJobConfig
	Dispatched               bool
	DispatchIdempotencyToken string
	Payload                  []byte
	Meta                     map[string]string
	ConsulNamespace          string
	VaultNamespace           string
	NomadTokenID             string
	Status                   string
	StatusDescription        string
	Stable                   bool
	Version                  uint64
	SubmitTime               int64
	CreateIndex              uint64
	ModifyIndex              uint64
	JobModifyIndex           uint64
	UI                       *JobUI
	VersionTag               *JobVersionTag
}

// JobUI is what a user interface shows beside a job.
type JobUI struct {
	Description string
	Links       []*JobUILink
}

// JobUILink is a link of a JobUI. A server calls the address Url.
type JobUILink struct {
	Label string
	Url   string
}

// JobVersionTag names a version and keeps it from ageing out.
type JobVersionTag struct {
	Name        string
	Description string
	TaggedTime  int64
}

// JobSubmission is the text a job was made from.
type JobSubmission struct {
	Source         string
	Format         string
	VariableFlags  map[string]string
	Variables      string
	Namespace      string
	JobID          string
	Version        uint64
	JobModifyIndex uint64
}

// TaskGroup is a set of tasks that run on one node, Count times.
type TaskGroup struct {
	Name                      string
	Count                     int
	Update                    *UpdateStrategy
	Migrate                   *MigrateStrategy
	Constraints               []*Constraint
	Scaling                   *ScalingPolicy
	RestartPolicy             *RestartPolicy
	Disconnect                *DisconnectStrategy
	Tasks                     []*Task
	EphemeralDisk             *EphemeralDisk
	Meta                      map[string]string
	ReschedulePolicy          *ReschedulePolicy
	Affinities                []*Affinity
	Spreads                   []*Spread
	Networks                  []*NetworkResource
	Consul                    map[string]any
	Services                  []map[string]any
	Volumes                   map[string]*VolumeRequest
	ShutdownDelay             *time.Duration
	MaxRunDuration            *time.Duration
	StopAfterClientDisconnect *time.Duration
	MaxClientDisconnect       *time.Duration
	PreventRescheduleOnLost   bool
}

// Task is one process of a group.
type Task struct {
	Name            string
	Driver          string
	User            string
	Config          map[string]any
	Env             map[string]string
	Services        []map[string]any
	Vault           map[string]any
	Secrets         []map[string]any
	Consul          map[string]any
	Templates       []*Template
	Constraints     []*Constraint
	Affinities      []*Affinity
	Resources       *Resources
	RestartPolicy   *RestartPolicy
	DispatchPayload *DispatchPayload
	Lifecycle       *Lifecycle
	Meta            map[string]string
	KillTimeout     time.Duration
	LogConfig       *LogConfig
	Artifacts       []map[string]any
	Leader          bool
	ShutdownDelay   time.Duration
	VolumeMounts    []*VolumeMount
	ScalingPolicies []map[string]any
	KillSignal      string
	Kind            string
	CSIPluginConfig map[string]any
	Identity        *Identity
	Identities      []*Identity
	Actions         []map[string]any
	Schedule        map[string]any
}

// Resources is what a task asks for.
type Resources struct {
	CPU         int
	Cores       int
	MemoryMB    int
	MemoryMaxMB int
	DiskMB      int
	IOPS        int
	Networks    []*NetworkResource
	Devices     []*RequestedDevice
	NUMA        map[string]any
	SecretsMB   int
}

// RequestedDevice asks for Count instances of a device: "type", "vendor/type" or "vendor/type/name".
type RequestedDevice struct {
	Name        string
	Count       uint64
	Constraints []*Constraint
	Affinities  []*Affinity
}

// Constraint must hold on a node (or a device) for it to be used.
type Constraint struct {
	LTarget string
	RTarget string
	Operand string
}

// String is the form in which counts of filtered nodes name a constraint.
func (c *Constraint) String() string { return c.LTarget + " " + c.Operand + " " + c.RTarget }

// Affinity prefers nodes (or devices); Weight is -100 to 100.
type Affinity struct {
	LTarget string
	RTarget string
	Operand string
	Weight  int
}

// Spread spreads allocations over the values of an attribute.
type Spread struct {
	Attribute    string
	Weight       int
	SpreadTarget []*SpreadTarget
}

// SpreadTarget is the share of one value.
type SpreadTarget struct {
	Value   string
	Percent int
}

// UpdateStrategy is how a change of a job is rolled out.
type UpdateStrategy struct {
	Stagger          time.Duration
	MaxParallel      int
	HealthCheck      string
	MinHealthyTime   time.Duration
	HealthyDeadline  time.Duration
	ProgressDeadline time.Duration
	AutoRevert       bool
	AutoPromote      bool
	Canary           int
}

// IsEmpty says whether there is no rolling update.
func (u *UpdateStrategy) IsEmpty() bool { return u == nil || u.MaxParallel == 0 }

// MigrateStrategy is how allocations leave a draining node.
type MigrateStrategy struct {
	MaxParallel     int
	HealthCheck     string
	MinHealthyTime  time.Duration
	HealthyDeadline time.Duration
}

// RestartPolicy is how a client restarts a task in place.
type RestartPolicy struct {
	Attempts        int
	Interval        time.Duration
	Delay           time.Duration
	Mode            string
	RenderTemplates bool
}

// ReschedulePolicy is how a server replaces a failed allocation.
type ReschedulePolicy struct {
	Attempts      int
	Interval      time.Duration
	Delay         time.Duration
	DelayFunction string
	MaxDelay      time.Duration
	Unlimited     bool
}

// Enabled says whether the policy allows any attempt.
func (r *ReschedulePolicy) Enabled() bool { return r != nil && (r.Attempts > 0 || r.Unlimited) }

// DisconnectStrategy is what happens to allocations of a client that went away.
type DisconnectStrategy struct {
	LostAfter         time.Duration
	StopOnClientAfter *time.Duration
	Replace           *bool
	Reconcile         string
}

// EphemeralDisk is the group's scratch space.
type EphemeralDisk struct {
	Sticky  bool
	SizeMB  int
	Migrate bool
}

// LogConfig bounds a task's logs.
type LogConfig struct {
	MaxFiles      int
	MaxFileSizeMB int
	Disabled      bool
}

// Template is a file rendered into the task's directory before it starts.
type Template struct {
	SourcePath    string
	DestPath      string
	EmbeddedTmpl  string
	ChangeMode    string
	ChangeSignal  string
	ChangeScript  map[string]any
	Once          bool
	Splay         time.Duration
	Perms         string
	Uid           *int
	Gid           *int
	LeftDelim     string
	RightDelim    string
	Envvars       bool
	VaultGrace    time.Duration
	Wait          map[string]any
	ErrMissingKey bool
}

// Lifecycle makes a task run before or after the main tasks.
type Lifecycle struct {
	Hook    string
	Sidecar bool
}

// DispatchPayload names the file that gets a dispatched job's payload.
type DispatchPayload struct{ File string }

// VolumeRequest asks for a volume of the node.
type VolumeRequest struct {
	Name           string
	Type           string
	Source         string
	ReadOnly       bool
	Sticky         bool
	AccessMode     string
	AttachmentMode string
	MountOptions   map[string]any
	PerAlloc       bool
}

// VolumeMount puts a requested volume into a task.
type VolumeMount struct {
	Volume          string
	Destination     string
	ReadOnly        bool
	PropagationMode string
	SELinuxLabel    string
}

// PeriodicConfig launches a job by the clock.
type PeriodicConfig struct {
	Enabled         bool
	Spec            string
	Specs           []string
	SpecType        string
	ProhibitOverlap bool
	TimeZone        string
}

// ParameterizedJobConfig makes a job one that is dispatched.
type ParameterizedJobConfig struct {
	Payload      string
	MetaRequired []string
	MetaOptional []string
}

// ScalingPolicy lets a group's count be scaled.
type ScalingPolicy struct {
	ID          string
	Type        string
	Target      map[string]string
	Policy      map[string]any
	Min         int64
	Max         int64
	Enabled     bool
	CreateIndex uint64
	ModifyIndex uint64
}

// Identity is a workload identity of a task.
type Identity struct {
	Name         string
	Audience     []string
	ChangeMode   string
	ChangeSignal string
	Env          bool
	File         bool
	Filepath     string
	ServiceName  string
	TTL          time.Duration
	ExtraClaims  map[string]string
}

// Group returns the task group of that name, or nil.
func (j *Job) Group(name string) *TaskGroup {
	for _, g := range j.TaskGroups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// Task returns the group's task of that name, or nil.
func (g *TaskGroup) Task(name string) *Task {
	for _, t := range g.Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Stopped says whether nothing of the job is to run: it is nil or was stopped.
func (j *Job) Stopped() bool { return j == nil || j.Stop }

// IsParameterized says whether the job only serves as a template for dispatched ones.
func (j *Job) IsParameterized() bool { return j.ParameterizedJob != nil && !j.Dispatched }

// IsPeriodic says whether the job only launches others by the clock.
func (j *Job) IsPeriodic() bool { return j.Periodic != nil }

// HasUpdateStrategy says whether any group is rolled out by a deployment.
func (j *Job) HasUpdateStrategy() bool {
	for _, g := range j.TaskGroups {
		if !g.Update.IsEmpty() {
			return true
		}
	}
	return false
}

// LostAfter is how long the group's allocations stay unknown when their client is away; zero is not at all.
func (g *TaskGroup) LostAfter() time.Duration {
	if g.MaxClientDisconnect != nil {
		return *g.MaxClientDisconnect
	}
	if g.Disconnect != nil {
		return g.Disconnect.LostAfter
	}
	return 0
}

// ReplaceOnDisconnect says whether an unknown allocation gets a replacement meanwhile.
func (g *TaskGroup) ReplaceOnDisconnect() bool {
	return g.Disconnect == nil || g.Disconnect.Replace == nil || *g.Disconnect.Replace
}

// JobSummary counts a job's allocations by group and state.
type JobSummary struct {
	JobID       string
	Namespace   string
	Summary     map[string]GroupSummary
	Children    *ChildrenSummary
	CreateIndex uint64
	ModifyIndex uint64
}

// GroupSummary counts one group's allocations.
type GroupSummary struct {
	Queued   int
	Complete int
	Failed   int
	Running  int
	Starting int
	Lost     int
	Unknown  int
}

// ChildrenSummary counts the children of a periodic or parameterized job.
type ChildrenSummary struct {
	Pending int64
	Running int64
	Dead    int64
}

// JobStub is a job in a list.
type JobStub struct {
	ID                string
	ParentID          string
	Name              string
	Namespace         string `json:",omitempty"`
	Datacenters       []string
	NodePool          string
	Multiregion       map[string]any
	Type              string
	Priority          int
	Periodic          bool
	ParameterizedJob  bool
	Stop              bool
	Status            string
	StatusDescription string
	JobSummary        *JobSummary
	CreateIndex       uint64
	ModifyIndex       uint64
	JobModifyIndex    uint64
	SubmitTime        int64
	Meta              map[string]string `json:",omitempty"`
}

// Stub is the job as a list shows it; meta is included on request.
func (j *Job) Stub(summary *JobSummary, meta bool) *JobStub {
	s := &JobStub{
		ID: j.ID, ParentID: j.ParentID, Name: j.Name, Namespace: j.Namespace, Datacenters: j.Datacenters,
		NodePool: j.NodePool, Multiregion: j.Multiregion, Type: j.Type, Priority: j.Priority, Periodic: j.IsPeriodic(),
		ParameterizedJob: j.IsParameterized(), Stop: j.Stop, Status: j.Status,
		StatusDescription: j.StatusDescription, JobSummary: summary, CreateIndex: j.CreateIndex,
		ModifyIndex: j.ModifyIndex, JobModifyIndex: j.JobModifyIndex, SubmitTime: j.SubmitTime,
	}
	if meta {
		s.Meta = j.Meta
	}
	return s
}

// ScalingEvent tells that a group was scaled, or why not.
type ScalingEvent struct {
	Time          uint64 // ns since 1970
	PreviousCount int64
	Count         *int64
	Message       string
	Error         bool
	Meta          map[string]any
	EvalID        *string
	CreateIndex   uint64
}
