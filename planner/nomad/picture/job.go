package picture

import (
	"cmp"
	"encoding/json"

	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/scan"
)

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
	// Unread is why the job's text could not be read; such a job is left alone,
	// and hides none of the others.
	Unread error
}

// DecodeJob reads a whole job. One that says who it is and cannot be read
// otherwise is no error: see Unread.
func DecodeJob(raw []byte) (*Job, error) {
	parsed, err := jobspec.Parse(raw)
	if err != nil {
		return unread(raw, err)
	}
	j := &Job{Key: Key{parsed.Namespace, parsed.ID}, Type: parsed.Type, Status: parsed.Status, ParentID: parsed.ParentID, Priority: parsed.Priority, Stop: parsed.Stop,
		JobModifyIndex: parsed.JobModifyIndex, Index: parsed.ModifyIndex, Parameterized: parsed.ParameterizedJob != nil, HasSchedule: parsed.Periodic != nil}
	if parsed.IsGang() {
		j.Gang = parsed
	}
	return j, nil
}

// JobHead is what tells a version of a job from another.
type JobHead struct {
	ID, Namespace, Status       string
	Stop                        bool
	JobModifyIndex, ModifyIndex uint64
}

// DecodeJobHead reads the head of a job, and nothing else of it.
func DecodeJobHead(raw []byte) (h JobHead, err error) {
	err = scan.Whole(raw, func(name, value []byte) error {
		switch string(name) {
		case "ID":
			return scan.Read(value, &h.ID)
		case "Namespace":
			return scan.Read(value, &h.Namespace)
		case "Status":
			return scan.Read(value, &h.Status)
		case "Stop":
			return scan.Read(value, &h.Stop)
		case "JobModifyIndex":
			return scan.Read(value, &h.JobModifyIndex)
		case "ModifyIndex":
			return scan.Read(value, &h.ModifyIndex)
		}
		return nil
	})
	return h, err
}

// Key is the job's.
func (h *JobHead) Key() Key { return Key{cmp.Or(h.Namespace, "default"), h.ID} }

func unread(raw []byte, why error) (*Job, error) {
	var head struct {
		ID, Namespace, Type, Status, ParentID string
		Priority                              int
		Stop                                  bool
		JobModifyIndex, ModifyIndex           uint64
	}
	if json.Unmarshal(raw, &head) != nil || head.ID == "" {
		return nil, why
	}
	if head.Namespace == "" {
		head.Namespace = "default"
	}
	return &Job{Key: Key{head.Namespace, head.ID}, Type: head.Type, Status: head.Status, ParentID: head.ParentID, Priority: head.Priority, Stop: head.Stop,
		JobModifyIndex: head.JobModifyIndex, Index: head.ModifyIndex, Unread: why}, nil
}
