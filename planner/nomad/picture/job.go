package picture

import "github.com/nomad-muster/muster/planner/nomad/jobspec"

// Job is what the picture knows of a job: all of it where it is a gang's, and
// what claims need to be explained otherwise.
type Job struct {
	Key
	Type, Status, ParentID     string
	Priority                   int
	Stop                       bool
	JobModifyIndex, Index      uint64 // Index is the ModifyIndex
	Gang                       *jobspec.Job
	Parameterized, HasSchedule bool
}

// DecodeJob reads a whole job.
func DecodeJob(raw []byte) (*Job, error) {
	parsed, err := jobspec.Parse(raw)
	if err != nil {
		return nil, err
	}
	j := &Job{Key: Key{parsed.Namespace, parsed.ID}, Type: parsed.Type, Status: parsed.Status, ParentID: parsed.ParentID, Priority: parsed.Priority, Stop: parsed.Stop,
		JobModifyIndex: parsed.JobModifyIndex, Index: parsed.ModifyIndex, Parameterized: parsed.ParameterizedJob != nil, HasSchedule: parsed.Periodic != nil}
	if parsed.IsGang() {
		j.Gang = parsed
	}
	return j, nil
}
