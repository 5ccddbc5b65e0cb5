// Package jobspec reads and rewrites a Nomad job as the JSON that Nomad's API
// speaks, without losing fields that this build does not know: a job goes
// through Nomad's own typed client only to be looked at, never to be written.
//
// A gang's job exists in three texts:
//
//   - the user's, as it was submitted, with or without the hold constraint;
//   - held: the user's with the hold constraint, which no node satisfies
//     (Held), perhaps with a description for Nomad's UI (Described);
//   - pinned: the user's with the hold replaced by the pins of one attempt
//     (Pinned). A pinned text carries a mark, a constraint that every node
//     satisfies and that names the attempt, so that a planner that starts
//     again knows what it finds.
//
// Same tells whether two texts ask for the same thing.
package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// markPrefix starts the value of a pinned job's mark,
// ${meta.muster} != attempt-N, or attempt-N.K for the Kth registration after
// the attempt's first.
const markPrefix = "attempt-"

// Job is one version of a Nomad job.
type Job struct {
	// Facts are what the planner reads of it.
	Facts
	raw json.RawMessage
}

// Facts are the fields of a job that the planner looks at.
type Facts struct {
	ID, Name, Namespace, Region, Type, ParentID string
	Priority                                    int
	Datacenters                                 []string
	NodePool                                    string
	Stop, Dispatched                            bool
	Payload                                     []byte
	Periodic, ParameterizedJob                  *struct{}
	Status                                      string
	Version                                     uint64
	CreateIndex, ModifyIndex, JobModifyIndex    uint64
	SubmitTime                                  int64 // nanoseconds
	Meta                                        map[string]string
	Constraints                                 []Constraint
	Affinities                                  []Affinity
	Spreads                                     []Spread
	TaskGroups                                  []Group
	UI                                          *struct{ Description string }
	VersionTag                                  *struct{ Name string }
}

// Constraint, Affinity and Spread are Nomad's.
type (
	Constraint struct{ LTarget, RTarget, Operand string }
	Affinity   struct {
		LTarget, RTarget, Operand string
		Weight                    int
	}
	Spread struct {
		Attribute    string
		Weight       int
		SpreadTarget []struct {
			Value   string
			Percent int
		}
	}
)

// Group is a task group.
type Group struct {
	Name          string
	Count         int
	Constraints   []Constraint
	Affinities    []Affinity
	Spreads       []Spread
	Tasks         []Task
	EphemeralDisk *struct{ SizeMB int64 }
	Networks      []Network
	Volumes       map[string]struct {
		Type, Source string
		ReadOnly     bool
		PerAlloc     bool
	}
}

// Task is a task of a group.
type Task struct {
	Name, Driver string
	Config       map[string]any
	KillTimeout  time.Duration
	Constraints  []Constraint
	Affinities   []Affinity
	Lifecycle    *struct {
		Hook    string
		Sidecar bool
	}
	Resources *struct {
		CPU, Cores, MemoryMB, DiskMB int64
		Devices                      []Device
		Networks                     []Network
	}
}

// Device is a device block.
type Device struct {
	Name        string
	Count       Count
	Constraints []Constraint
	Affinities  []Affinity
}

// Count is how many devices a device block asks for. Nomad takes any number of
// 64 bits; what is above a million asks for more than any node has, and is a
// million here, so that sums of counts stay numbers.
type Count int

// UnmarshalJSON reads a whole number of at least 0.
func (c *Count) UnmarshalJSON(raw []byte) error {
	var n *uint64
	if err := json.Unmarshal(raw, &n); err != nil {
		return err
	}
	if n != nil {
		*c = Count(min(*n, 1_000_000))
	}
	return nil
}

// Network is a network block.
type Network struct {
	Mode          string
	ReservedPorts []Port
	DynamicPorts  []Port
}

// Port is a port of a network block.
type Port struct {
	Label string
	Value int
}

// Parse reads a job as Nomad's API gives it, as the bare object.
func Parse(raw []byte) (*Job, error) {
	j := &Job{raw: bytes.Clone(raw)}
	if err := json.Unmarshal(raw, &j.Facts); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	if j.ID == "" {
		return nil, fmt.Errorf("read job: it has no ID")
	}
	if j.Namespace == "" {
		j.Namespace = "default"
	}
	return j, nil
}

// Raw is the text that Parse was given.
func (j *Job) Raw() json.RawMessage { return j.raw }

// Members is the number of allocations that the whole job asks for.
func (j *Job) Members() int {
	n := 0
	for _, g := range j.TaskGroups {
		n += g.Count
	}
	return n
}

// IsHeld tells whether the job carries the hold constraint.
func (j *Job) IsHeld() bool {
	for _, c := range j.Constraints {
		if isHold(c) {
			return true
		}
	}
	return false
}

// Mark is the attempt that a pinned job belongs to; 0: it is not pinned.
func (j *Job) Mark() int {
	for _, c := range j.Constraints {
		if isMark(c) {
			n, _, _ := strings.Cut(strings.TrimPrefix(c.RTarget, markPrefix), ".")
			attempt, _ := strconv.Atoi(n)
			return attempt
		}
	}
	return 0
}

// Step counts the registrations of the attempt that the job is pinned for,
// from 0.
func (j *Job) Step() int {
	for _, c := range j.Constraints {
		if _, k, ok := strings.Cut(c.RTarget, "."); ok && isMark(c) {
			step, _ := strconv.Atoi(k)
			return step
		}
	}
	return 0
}

func isHold(c Constraint) bool {
	return c.LTarget == contract.HoldAttribute && c.RTarget == contract.HoldValue && (c.Operand == "=" || c.Operand == "" || c.Operand == "==" || c.Operand == "is")
}

func isMark(c Constraint) bool {
	return c.LTarget == contract.HoldAttribute && strings.HasPrefix(c.RTarget, markPrefix) && c.Operand == "!="
}

// IsGang tells whether the job is a gang's: it is held, pinned, or names a
// queue, and Nomad starts it as such (a periodic or parameterised job only
// starts others).
func (j *Job) IsGang() bool {
	if j.Periodic != nil || j.ParameterizedJob != nil && !j.Dispatched || j.Type != "batch" && j.Type != "service" {
		return false
	}
	return j.Meta[contract.MetaQueue] != "" || j.IsHeld() || j.Mark() > 0
}

// HasGangTask tells whether the group runs ranks under Muster's driver.
func (g *Group) HasGangTask() bool {
	for _, t := range g.Tasks {
		if t.Driver == contract.DriverName {
			return true
		}
	}
	return false
}

// tree is the text as a tree in which numbers keep their digits.
func (j *Job) tree() map[string]any {
	dec := json.NewDecoder(bytes.NewReader(j.raw))
	dec.UseNumber()
	var t map[string]any
	// The text was read by Parse, so it is an object.
	_ = dec.Decode(&t)
	return t
}
