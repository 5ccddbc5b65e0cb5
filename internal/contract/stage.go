package contract

// Stage is how far a gang has come.
type Stage string

// The eight stages of a gang's life, in order, and its ends. A gang that goes
// back to the queue enters StageQueued again.
const (
	StageSubmitted    Stage = "submitted"
	StageQuotaChecked Stage = "quota-checked"
	StageQueued       Stage = "queued"
	StagePlanned      Stage = "planned"
	StagePlaced       Stage = "placed"
	StageFetched      Stage = "fetched"
	StageStarted      Stage = "started"
	StageTraining     Stage = "training"

	StageRefused   Stage = "refused"
	StageComplete  Stage = "complete"
	StageFailed    Stage = "failed"
	StageCancelled Stage = "cancelled"
)

// Stages are the eight in order.
var Stages = []Stage{StageSubmitted, StageQuotaChecked, StageQueued, StagePlanned, StagePlaced, StageFetched, StageStarted, StageTraining}

// Ended tells whether a gang in this stage is over.
func (s Stage) Ended() bool {
	return s == StageComplete || s == StageFailed || s == StageCancelled
}
