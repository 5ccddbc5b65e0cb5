package wire

import "time"

// States of an evaluation.
const (
	EvalBlocked   = "blocked"
	EvalPending   = "pending"
	EvalComplete  = "complete"
	EvalFailed    = "failed"
	EvalCancelled = "canceled"
)

// What sets off an evaluation.
const (
	TriggerJobRegister       = "job-register"
	TriggerJobDeregister     = "job-deregister"
	TriggerPeriodicJob       = "periodic-job"
	TriggerNodeDrain         = "node-drain"
	TriggerNodeUpdate        = "node-update"
	TriggerAllocStop         = "alloc-stop"
	TriggerScheduled         = "scheduled"
	TriggerRollingUpdate     = "rolling-update"
	TriggerDeploymentWatcher = "deployment-watcher"
	TriggerFailedFollowUp    = "failed-follow-up"
	TriggerMaxPlans          = "max-plan-attempts"
	TriggerRetryFailedAlloc  = "alloc-failure"
	TriggerReschedule        = "alloc-reschedule"
	TriggerQueuedAllocs      = "queued-allocs"
	TriggerPreemption        = "preemption"
	TriggerScaling           = "job-scaling"
	TriggerMaxDisconnect     = "max-disconnect-timeout"
	TriggerReconnect         = "reconnect"
)

// Evaluation asks the scheduler to look at a job.
type Evaluation struct {
	ID                   string                  `json:",omitzero"`
	Namespace            string                  `json:",omitzero"`
	Priority             int                     `json:",omitzero"`
	Type                 string                  `json:",omitzero"`
	TriggeredBy          string                  `json:",omitzero"`
	JobID                string                  `json:",omitzero"`
	JobModifyIndex       uint64                  `json:",omitzero"`
	NodeID               string                  `json:",omitzero"`
	NodeModifyIndex      uint64                  `json:",omitzero"`
	DeploymentID         string                  `json:",omitzero"`
	Status               string                  `json:",omitzero"`
	StatusDescription    string                  `json:",omitzero"`
	Wait                 time.Duration           `json:",omitzero"`
	WaitUntil            Time                    `json:",omitzero"`
	NextEval             string                  `json:",omitzero"`
	PreviousEval         string                  `json:",omitzero"`
	BlockedEval          string                  `json:",omitzero"`
	RelatedEvals         []*EvaluationStub       `json:",omitempty"`
	FailedTGAllocs       map[string]*AllocMetric `json:",omitempty"`
	PlanAnnotations      *PlanAnnotations        `json:",omitempty"`
	ClassEligibility     map[string]bool         `json:",omitempty"`
	EscapedComputedClass bool                    `json:",omitzero"`
	AnnotatePlan         bool                    `json:",omitzero"`
	QueuedAllocations    map[string]int          `json:",omitempty"`
	SnapshotIndex        uint64                  `json:",omitzero"`
	CreateIndex          uint64                  `json:",omitzero"`
	ModifyIndex          uint64                  `json:",omitzero"`
	CreateTime           int64                   `json:",omitzero"`
	ModifyTime           int64                   `json:",omitzero"`
}

// EvaluationStub is an evaluation as a related one shows it.
type EvaluationStub struct {
	ID                string
	Namespace         string
	Priority          int
	Type              string
	TriggeredBy       string
	JobID             string
	NodeID            string
	DeploymentID      string
	Status            string
	StatusDescription string
	WaitUntil         Time
	NextEval          string
	PreviousEval      string
	BlockedEval       string
	CreateIndex       uint64
	ModifyIndex       uint64
	CreateTime        int64
	ModifyTime        int64
}

// Stub is the evaluation as a related one shows it.
func (e *Evaluation) Stub() *EvaluationStub {
	return &EvaluationStub{
		ID: e.ID, Namespace: e.Namespace, Priority: e.Priority, Type: e.Type, TriggeredBy: e.TriggeredBy, JobID: e.JobID,
		NodeID: e.NodeID, DeploymentID: e.DeploymentID, Status: e.Status, StatusDescription: e.StatusDescription,
		WaitUntil: e.WaitUntil, NextEval: e.NextEval, PreviousEval: e.PreviousEval, BlockedEval: e.BlockedEval,
		CreateIndex: e.CreateIndex, ModifyIndex: e.ModifyIndex, CreateTime: e.CreateTime, ModifyTime: e.ModifyTime,
	}
}

// Terminal says whether the scheduler is done with the evaluation.
func (e *Evaluation) Terminal() bool {
	return e.Status == EvalComplete || e.Status == EvalFailed || e.Status == EvalCancelled
}

// PlanAnnotations tells what a plan wants.
type PlanAnnotations struct {
	DesiredTGUpdates map[string]*DesiredUpdates
	PreemptedAllocs  []*AllocStub
}

// DesiredUpdates counts what is to happen to a group's allocations.
type DesiredUpdates struct {
	Ignore            uint64
	Place             uint64
	Migrate           uint64
	Stop              uint64
	InPlaceUpdate     uint64
	DestructiveUpdate uint64
	Canary            uint64
	Preemptions       uint64
	Disconnect        uint64
	Reconnect         uint64
	RescheduleNow     uint64
	RescheduleLater   uint64
}

// AllocMetric tells how the scheduler chose, or why it could not.
type AllocMetric struct {
	NodesEvaluated     int
	NodesFiltered      int
	NodesInPool        int
	NodePool           string
	NodesAvailable     map[string]int
	ClassFiltered      map[string]int
	ConstraintFiltered map[string]int
	NodesExhausted     int
	ClassExhausted     map[string]int
	DimensionExhausted map[string]int
	QuotaExhausted     []string
	ResourcesExhausted map[string]*Resources
	Scores             map[string]float64
	ScoreMetaData      []*NodeScoreMeta
	AllocationTime     time.Duration
	CoalescedFailures  int
}

// NodeScoreMeta is the score of one node.
type NodeScoreMeta struct {
	NodeID    string
	Scores    map[string]float64
	NormScore float64
}

// Deployment follows the rollout of a job's version.
type Deployment struct {
	ID                 string
	Namespace          string
	JobID              string
	JobVersion         uint64
	JobModifyIndex     uint64
	JobSpecModifyIndex uint64
	JobCreateIndex     uint64
	IsMultiregion      bool
	TaskGroups         map[string]*DeploymentState
	Status             string
	StatusDescription  string
	EvalPriority       int
	CreateIndex        uint64
	ModifyIndex        uint64
	CreateTime         int64
	ModifyTime         int64
}

// States of a deployment.
const (
	DeploymentRunning    = "running"
	DeploymentPaused     = "paused"
	DeploymentFailed     = "failed"
	DeploymentSuccessful = "successful"
	DeploymentCancelled  = "cancelled"
)

// Active says whether the deployment still goes on.
func (d *Deployment) Active() bool {
	return d != nil && (d.Status == DeploymentRunning || d.Status == DeploymentPaused)
}

// DeploymentState is the rollout of one group.
type DeploymentState struct {
	AutoRevert        bool
	AutoPromote       bool
	ProgressDeadline  time.Duration
	RequireProgressBy Time
	Promoted          bool
	PlacedCanaries    []string
	DesiredCanaries   int
	DesiredTotal      int
	PlacedAllocs      int
	HealthyAllocs     int
	UnhealthyAllocs   int
}
