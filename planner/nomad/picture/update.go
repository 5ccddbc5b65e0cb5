package picture

import (
	"encoding/json"
	"fmt"

	"github.com/nomad-muster/muster/planner/nomad/scan"
)

// UpdateAlloc reads an allocation that may be known already. Clients tell of
// their tasks again and again, and each time Nomad sends all of the allocation:
// what it holds is taken from the known one as long as no server has changed
// it since.
func UpdateAlloc(raw []byte, known func(id string) *Alloc) (*Alloc, error) {
	var w WireAlloc
	var resources, states []byte
	err := scan.Whole(raw, func(name, value []byte) error {
		if into := w.field(string(name)); into != nil {
			return scan.Read(value, into)
		}
		switch string(name) {
		case "AllocatedResources":
			resources = value
		case "TaskStates":
			states = value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read allocation: %w", err)
	}
	if states != nil {
		if err := json.Unmarshal(states, &w.TaskStates); err != nil {
			return nil, fmt.Errorf("read task states of allocation %s: %w", w.ID, err)
		}
	}
	if old := known(w.ID); old != nil && w.AllocModifyIndex > 0 && old.AllocIndex == w.AllocModifyIndex {
		a, err := w.Alloc()
		if err == nil {
			a.Use, a.Devices, a.Ports = old.Use, old.Devices, old.Ports
		}
		return a, err
	}
	if resources != nil {
		if err := json.Unmarshal(resources, &w.AllocatedResources); err != nil {
			return nil, fmt.Errorf("read resources of allocation %s: %w", w.ID, err)
		}
	}
	return w.Alloc()
}

// field is where a plain field of an allocation goes; nil: it has none.
func (w *WireAlloc) field(name string) any {
	switch name {
	case "ID":
		return &w.ID
	case "Namespace":
		return &w.Namespace
	case "JobID":
		return &w.JobID
	case "TaskGroup":
		return &w.TaskGroup
	case "Name":
		return &w.Name
	case "NodeID":
		return &w.NodeID
	case "NodeName":
		return &w.NodeName
	case "DesiredStatus":
		return &w.DesiredStatus
	case "ClientStatus":
		return &w.ClientStatus
	case "ClientDescription":
		return &w.ClientDescription
	case "PreemptedByAllocation":
		return &w.PreemptedByAllocation
	case "CreateIndex":
		return &w.CreateIndex
	case "ModifyIndex":
		return &w.ModifyIndex
	case "AllocModifyIndex":
		return &w.AllocModifyIndex
	case "CreateTime":
		return &w.CreateTime
	case "ModifyTime":
		return &w.ModifyTime
	}
	return nil
}
