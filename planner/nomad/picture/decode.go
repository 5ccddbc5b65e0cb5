// Package picture holds what the planner knows of a Nomad cluster's objects, as
// plain data that is never changed once it is made: nodes with their cards,
// allocations with what they hold and what their tasks report, evaluations,
// and jobs. It decodes them from Nomad's JSON and calls nobody.
package picture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Key names a job.
type Key struct{ Namespace, Job string }

func (k Key) String() string { return k.Namespace + "/" + k.Job }

// Node is a client node.
type Node struct {
	core.Node
	Address string // host of its HTTP address
	Status  string // ready, down, disconnected, initializing
	// StatusAt is since when it has it.
	StatusAt time.Time
	// DrainBy is when a drain's deadline comes; zero: no deadline.
	DrainBy time.Time
	Index   uint64 // ModifyIndex
	Notices []core.Notice
}

// Alloc is one allocation; its methods tell what it means for a gang.
type Alloc struct {
	ID, Namespace, JobID, Group, Name string
	NodeID, NodeName                  string
	Desired, Client, Text             string // DesiredStatus, ClientStatus, ClientDescription
	CreateIndex, Index                uint64
	AllocIndex                        uint64 // of the last change by a server; 0: not known
	Created, Modified                 time.Time
	Use                               core.Resources
	Devices                           []Held
	Ports                             []int
	Tasks                             []Task
	// Preempted names the allocation that Nomad evicted this one for.
	Preempted string
}

// Held is the devices that one task's ask was given.
type Held struct {
	Task               string
	Vendor, Type, Name string
	IDs                []string
}

// Task is the state of one task.
type Task struct {
	Name      string
	State     string // pending, running, dead
	Failed    bool
	Restarts  int
	Started   time.Time
	Finished  time.Time
	Reports   []contract.Report // out of its driver events, oldest first
	LastEvent string            // type of the last event that tells of an end
	ExitCode  int               // of a Terminated event; -1: none seen
	Signal    int
	OOM       bool
	// Why is the display message of the event that failed the task, or of the
	// last one.
	Why string
	// Killed: an event says that Nomad asked the task to end.
	Killed bool
}

// Key is its job's.
func (a *Alloc) Key() Key { return Key{a.Namespace, a.JobID} }

// Terminal tells whether its tasks have ended, as far as Nomad knows: its
// devices are free for Nomad then.
func (a *Alloc) Terminal() bool {
	return a.Client == "complete" || a.Client == "failed" || a.Client == "lost"
}

// End is when an allocation that is terminal ended: when the last of its tasks
// did, as its client told (exact), or when Nomad noted it.
func (a *Alloc) End() (at time.Time, exact bool) {
	for i := range a.Tasks {
		t := &a.Tasks[i]
		if t.State != "dead" || t.Finished.IsZero() {
			return a.Modified, false
		}
		if t.Finished.After(at) {
			at = t.Finished
		}
	}
	if at.IsZero() {
		return a.Modified, false
	}
	return at, true
}

// Stopping tells whether it was asked to end and has not.
func (a *Alloc) Stopping() bool { return !a.Terminal() && a.Desired != "run" }

// Unknown tells whether Nomad lost contact with its node.
func (a *Alloc) Unknown() bool { return a.Client == "unknown" }

// NameIndex is the number in its name, job.group[3]; -1: none.
func (a *Alloc) NameIndex() int {
	open := strings.LastIndexByte(a.Name, '[')
	if open < 0 || !strings.HasSuffix(a.Name, "]") {
		return -1
	}
	n, err := strconv.Atoi(a.Name[open+1 : len(a.Name)-1])
	if err != nil {
		return -1
	}
	return n
}

// Claim is what it holds. Cards of every device type are listed.
func (a *Alloc) Claim() core.Claim {
	c := core.Claim{Node: core.NodeID(a.NodeID), Member: -1, Alloc: a.ID, Job: a.Key().String(), Use: a.Use, Ports: a.Ports, Stopping: a.Stopping(), Unknown: a.Unknown()}
	for _, d := range a.Devices {
		for _, id := range d.IDs {
			c.Cards = append(c.Cards, core.CardID(id))
		}
	}
	return c
}

// Eval is one evaluation.
type Eval struct {
	ID, Namespace, JobID      string
	Status, Text, TriggeredBy string
	JobModifyIndex            uint64
	CreateIndex, Index        uint64
	Failed                    map[string]bool // groups that found no place
	Why                       string          // of the first of them
}

// Ended tells whether the scheduler is through with it.
func (e *Eval) Ended() bool {
	return e.Status == "complete" || e.Status == "failed" || e.Status == "canceled" || e.Status == "cancelled"
}

type wireAttribute struct {
	Int    *int64
	Float  *float64
	String *string
	Bool   *bool
	Unit   string
}

type wireNode struct {
	ID, Name, Datacenter, NodePool, NodeClass string
	HTTPAddr, Address                         string
	Status, SchedulingEligibility             string
	StatusUpdatedAt                           int64
	Drain                                     bool
	DrainStrategy                             *struct{ ForceDeadline time.Time }
	Attributes, Meta                          map[string]string
	Drivers                                   map[string]struct{ Detected, Healthy bool }
	HostVolumes                               map[string]struct{ ReadOnly bool }
	ModifyIndex                               uint64
	NodeResources                             *struct {
		Cpu struct {
			CpuShares          int64
			ReservableCpuCores []int
		}
		Memory                         struct{ MemoryMB int64 }
		Disk                           struct{ DiskMB int64 }
		MinDynamicPort, MaxDynamicPort int
		Devices                        []struct {
			Vendor, Type, Name string
			Attributes         map[string]wireAttribute
			Instances          []struct {
				ID                string
				Healthy           bool
				HealthDescription string
			}
		}
		NodeNetworks []struct {
			Addresses []struct{ ReservedPorts string }
		}
	}
	ReservedResources *struct {
		Cpu struct {
			CpuShares        int64
			ReservedCpuCores []int
		}
		Memory   struct{ MemoryMB int64 }
		Disk     struct{ DiskMB int64 }
		Networks struct{ ReservedHostPorts string }
	}
}

// DecodeNode reads a node as Nomad gives it. Domains are the names of its
// place at the given topology levels.
func DecodeNode(raw []byte, levels []core.Level) (*Node, error) {
	var w wireNode
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}
	if w.ID == "" {
		return nil, fmt.Errorf("read node: it has no ID")
	}
	n := &Node{Address: host(cmp.Or(w.HTTPAddr, w.Address)), Status: w.Status, Index: w.ModifyIndex}
	if w.StatusUpdatedAt > 0 {
		n.StatusAt = time.Unix(w.StatusUpdatedAt, 0).UTC()
	}
	h := fnv.New64a()
	h.Write(raw)
	n.Node = core.Node{
		ID: core.NodeID(w.ID), Name: w.Name, Version: h.Sum64(), Datacenter: w.Datacenter, Pool: cmp.Or(w.NodePool, "default"), Class: w.NodeClass,
		Ready: w.Status == "ready", Eligible: w.SchedulingEligibility != "ineligible", Draining: w.Drain || w.DrainStrategy != nil,
		Attributes: w.Attributes, Meta: w.Meta, Drivers: map[string]bool{}, Volumes: map[string]bool{},
	}
	if w.DrainStrategy != nil && w.DrainStrategy.ForceDeadline.Year() > 1 {
		n.DrainBy = w.DrainStrategy.ForceDeadline
	}
	for name, d := range w.Drivers {
		if d.Detected && d.Healthy {
			n.Drivers[name] = true
		}
	}
	for name, v := range w.HostVolumes {
		n.Volumes[name] = v.ReadOnly
	}
	for _, l := range levels {
		n.Domains = append(n.Domains, w.attribute(l.Attribute))
	}
	if r := w.NodeResources; r != nil {
		n.Capacity = core.Resources{CPU: r.Cpu.CpuShares, Cores: len(r.Cpu.ReservableCpuCores), MemoryMB: r.Memory.MemoryMB, DiskMB: r.Disk.DiskMB}
		n.MinPort, n.MaxPort = r.MinDynamicPort, r.MaxDynamicPort
		for _, network := range r.NodeNetworks {
			for _, a := range network.Addresses {
				n.ReservedPorts = append(n.ReservedPorts, portList(a.ReservedPorts)...)
			}
		}
		n.devices(&w)
	}
	if r := w.ReservedResources; r != nil {
		n.Capacity.CPU -= r.Cpu.CpuShares
		n.Capacity.MemoryMB -= r.Memory.MemoryMB
		n.Capacity.DiskMB -= r.Disk.DiskMB
		n.ReservedPorts = append(n.ReservedPorts, portList(r.Networks.ReservedHostPorts)...)
	}
	slices.Sort(n.ReservedPorts)
	n.ReservedPorts = slices.Compact(n.ReservedPorts)
	return n, nil
}

// attribute is the value of a node attribute as a constraint names it.
func (w *wireNode) attribute(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "${"), "}")
	switch {
	case strings.HasPrefix(name, "meta."):
		return w.Meta[name[len("meta."):]]
	case strings.HasPrefix(name, "attr."):
		return w.Attributes[name[len("attr."):]]
	case name == "node.datacenter":
		return w.Datacenter
	case name == "node.class":
		return w.NodeClass
	case name == "node.pool":
		return w.NodePool
	case name == "node.unique.name":
		return w.Name
	case name == "node.unique.id":
		return w.ID
	}
	return ""
}

// devices takes the node's device groups, with what the device plugin tells of
// their cards where it does.
func (n *Node) devices(w *wireNode) {
	for _, d := range w.NodeResources.Devices {
		g := core.DeviceGroup{Vendor: d.Vendor, Type: d.Type, Name: core.Model(d.Name), Attributes: map[string]core.Attribute{}}
		var told contract.CardGroup
		for name, a := range d.Attributes {
			if name != contract.AttrCards {
				g.Attributes[name] = core.Attribute{Int: a.Int, Float: a.Float, String: a.String, Bool: a.Bool, Unit: a.Unit}
				continue
			}
			if a.String == nil {
				continue
			}
			var err error
			if told, err = contract.DecodeCards(*a.String); err != nil {
				n.Notices = append(n.Notices, core.Notice{Object: fmt.Sprintf("node %s, device group %s/%s/%s", w.Name, d.Vendor, d.Type, d.Name),
					Text: fmt.Sprintf("its cards are placed without topology: %v", err)})
			}
		}
		byID := map[string]int{}
		for _, i := range d.Instances {
			byID[i.ID] = len(g.Cards)
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(i.ID), Healthy: i.Healthy, Why: i.HealthDescription, NUMA: -1})
		}
		for _, c := range told.Cards {
			at, ok := byID[c.ID]
			if !ok {
				continue // the plugin's list and Nomad's are a moment apart
			}
			card := &g.Cards[at]
			card.Domain, card.Parent = c.Domain, core.CardID(c.Parent)
			if c.NUMA != nil {
				card.NUMA = *c.NUMA
			}
			if c.State != "" {
				card.State = cardState(c.State)
			}
			card.Why = cmp.Or(card.Why, c.Why)
			for _, nic := range c.NICs {
				card.NICs = append(card.NICs, core.CardID(nic.ID))
			}
		}
		for _, l := range told.Links {
			a, okA := byID[told.Cards[l.A].ID]
			b, okB := byID[told.Cards[l.B].ID]
			if okA && okB {
				g.Links = append(g.Links, core.Link{A: min(a, b), B: max(a, b), Count: l.Count})
			}
		}
		n.Devices = append(n.Devices, g)
	}
	sort.SliceStable(n.Devices, func(i, j int) bool {
		a, b := &n.Devices[i], &n.Devices[j]
		return a.Vendor+"/"+a.Type+"/"+string(a.Name) < b.Vendor+"/"+b.Type+"/"+string(b.Name)
	})
}

// cardState takes a state that is not known as the worst: unknown is never
// good.
func cardState(s string) core.CardState {
	switch s {
	case "healthy":
		return core.CardHealthy
	case "suspect":
		return core.CardSuspect
	case "draining":
		return core.CardDraining
	}
	return core.CardQuarantined
}

func host(address string) string {
	if i := strings.LastIndexByte(address, ':'); i >= 0 && !strings.HasSuffix(address, "]") {
		return strings.Trim(address[:i], "[]")
	}
	return strings.Trim(address, "[]")
}

// portList reads Nomad's form of a set of ports: "22,80,8500-8600". A part
// that cannot be read counts no port; Nomad has checked the text.
func portList(text string) []int {
	var out []int
	for _, part := range strings.Split(text, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(strings.TrimSpace(from))
		if err != nil {
			continue
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(strings.TrimSpace(to)); err != nil {
				continue
			}
		}
		for p := max(a, 0); p <= b && p <= 65535; p++ {
			out = append(out, p)
		}
	}
	return out
}

// WireAlloc is an allocation as Nomad gives it in lists with resources.
type WireAlloc struct {
	ID, Namespace, JobID, TaskGroup, Name, NodeID, NodeName string
	DesiredStatus, ClientStatus, ClientDescription          string
	CreateIndex, ModifyIndex, AllocModifyIndex              uint64
	CreateTime, ModifyTime                                  int64
	PreemptedByAllocation                                   string
	AllocatedResources                                      *struct {
		Tasks map[string]struct {
			Cpu struct {
				CpuShares     int64
				ReservedCores []int
			}
			Memory  struct{ MemoryMB int64 }
			Devices []struct {
				Vendor, Type, Name string
				DeviceIDs          []string
			}
			Networks []wireNetwork
		}
		TaskLifecycles map[string]*struct {
			Hook    string
			Sidecar bool
		}
		Shared struct {
			DiskMB   int64
			Networks []wireNetwork
			Ports    []struct{ Value int }
		}
	}
	TaskStates map[string]*struct {
		State                 string
		Failed                bool
		Restarts              int
		StartedAt, FinishedAt *time.Time
		Events                []struct {
			Type, DisplayMessage, DriverMessage string
			Details                             map[string]string
			FailsTask                           bool
			ExitCode, Signal                    int
			Time                                int64
		}
	}
}

type wireNetwork struct{ ReservedPorts, DynamicPorts []struct{ Value int } }

// DecodeAlloc reads an allocation as the event stream, a read or a list with
// resources gives it.
func DecodeAlloc(raw []byte) (*Alloc, error) {
	var w WireAlloc
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("read allocation: %w", err)
	}
	return w.Alloc()
}

// Alloc is what the planner keeps of it.
func (w *WireAlloc) Alloc() (*Alloc, error) {
	if w.ID == "" || w.JobID == "" {
		return nil, fmt.Errorf("read allocation: it has no ID or no job")
	}
	a := &Alloc{
		ID: w.ID, Namespace: cmp.Or(w.Namespace, "default"), JobID: w.JobID, Group: w.TaskGroup, Name: w.Name, NodeID: w.NodeID, NodeName: w.NodeName,
		Desired: w.DesiredStatus, Client: w.ClientStatus, Text: w.ClientDescription, CreateIndex: w.CreateIndex, Index: w.ModifyIndex, AllocIndex: w.AllocModifyIndex,
		Created: unix(w.CreateTime), Modified: unix(w.ModifyTime), Preempted: w.PreemptedByAllocation,
	}
	w.resources(a)
	w.tasks(a)
	return a, nil
}

// resources adds the tasks up as Nomad does: see jobspec.Group.
func (w *WireAlloc) resources(a *Alloc) {
	r := w.AllocatedResources
	if r == nil {
		return
	}
	var before, main, after, side core.Resources
	names := sortedKeys(r.Tasks)
	for _, name := range names {
		t := r.Tasks[name]
		into := &main
		if l := r.TaskLifecycles[name]; l != nil {
			switch {
			case l.Sidecar:
				into = &side
			case l.Hook == "prestart":
				into = &before
			case l.Hook == "poststop":
				into = &after
			}
		}
		into.CPU += t.Cpu.CpuShares
		into.Cores += len(t.Cpu.ReservedCores)
		into.MemoryMB += t.Memory.MemoryMB
		for _, d := range t.Devices {
			a.Devices = append(a.Devices, Held{Task: name, Vendor: d.Vendor, Type: d.Type, Name: d.Name, IDs: d.DeviceIDs})
		}
		a.Ports = appendPorts(a.Ports, t.Networks)
	}
	a.Use = core.Resources{
		CPU: max(before.CPU, main.CPU, after.CPU) + side.CPU, Cores: max(before.Cores, main.Cores, after.Cores) + side.Cores,
		MemoryMB: max(before.MemoryMB, main.MemoryMB, after.MemoryMB) + side.MemoryMB, DiskMB: r.Shared.DiskMB,
	}
	a.Ports = appendPorts(a.Ports, r.Shared.Networks)
	for _, p := range r.Shared.Ports {
		a.Ports = append(a.Ports, p.Value)
	}
	slices.Sort(a.Ports)
	a.Ports = slices.Compact(a.Ports)
}

func appendPorts(ports []int, networks []wireNetwork) []int {
	for _, n := range networks {
		for _, p := range append(n.ReservedPorts, n.DynamicPorts...) {
			ports = append(ports, p.Value)
		}
	}
	return ports
}

func (w *WireAlloc) tasks(a *Alloc) {
	for _, name := range sortedKeys(w.TaskStates) {
		s := w.TaskStates[name]
		if s == nil {
			continue
		}
		t := Task{Name: name, State: s.State, Failed: s.Failed, Restarts: s.Restarts, ExitCode: -1}
		if s.StartedAt != nil {
			t.Started = *s.StartedAt
		}
		if s.FinishedAt != nil {
			t.Finished = *s.FinishedAt
		}
		failing := false
		for _, e := range s.Events {
			switch e.Type {
			case "Terminated":
				t.ExitCode, t.Signal, t.LastEvent = e.ExitCode, e.Signal, e.Type
				t.OOM = t.OOM || e.Details["oom_killed"] == "true"
			case "Killing", "Kill", "Killed":
				t.Killed = true
			case "Failed Validation", "Setup Failure", "Driver Failure", "Failed Artifact Download", "Not Restarting", "Sibling Task Failed", "Driver":
				if e.Type != "Driver" {
					t.LastEvent = e.Type
				}
			}
			if e.FailsTask || !failing && e.DisplayMessage != "" && e.Type != "Killed" {
				t.Why = e.DisplayMessage
				failing = failing || e.FailsTask
			}
			if text, ok := e.Details[contract.AnnotationReport]; ok {
				var r contract.Report
				if json.Unmarshal([]byte(text), &r) == nil && r.V >= 1 && r.V <= contract.RecordVersion {
					t.Reports = append(t.Reports, r)
				}
			}
		}
		a.Tasks = append(a.Tasks, t)
	}
}

func unix(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds).UTC()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// WireEval is an evaluation as Nomad gives it.
type WireEval struct {
	ID, Namespace, JobID, Status, StatusDescription, TriggeredBy string
	JobModifyIndex, CreateIndex, ModifyIndex                     uint64
	FailedTGAllocs                                               map[string]*Unplaced
}

// Unplaced is what the scheduler tells of a group that found no place.
type Unplaced struct {
	ConstraintFiltered map[string]int
	DimensionExhausted map[string]int
	NodesEvaluated     int
}

// Eval is what the planner keeps of it.
func (w *WireEval) Eval() *Eval {
	e := &Eval{ID: w.ID, Namespace: cmp.Or(w.Namespace, "default"), JobID: w.JobID, Status: w.Status, Text: w.StatusDescription, TriggeredBy: w.TriggeredBy,
		JobModifyIndex: w.JobModifyIndex, CreateIndex: w.CreateIndex, Index: w.ModifyIndex, Why: WhyNot(w.FailedTGAllocs)}
	for group := range w.FailedTGAllocs {
		if e.Failed == nil {
			e.Failed = map[string]bool{}
		}
		e.Failed[group] = true
	}
	return e
}

// WhyNot is what the scheduler says of the first group that found no place, as
// one line; "": all found one.
func WhyNot(failed map[string]*Unplaced) string {
	for _, group := range sortedKeys(failed) {
		m := failed[group]
		if m == nil {
			continue
		}
		var parts []string
		for _, c := range sortedKeys(m.ConstraintFiltered) {
			parts = append(parts, fmt.Sprintf("constraint %q filtered %d nodes", cut(c), m.ConstraintFiltered[c]))
		}
		for _, d := range sortedKeys(m.DimensionExhausted) {
			parts = append(parts, fmt.Sprintf("%s exhausted on %d nodes", d, m.DimensionExhausted[d]))
		}
		return fmt.Sprintf("group %q: %s", group, cmp.Or(strings.Join(parts, ", "), fmt.Sprintf("none of %d nodes", m.NodesEvaluated)))
	}
	return ""
}

// cut shortens a constraint that lists many ids.
func cut(text string) string {
	if len(text) > 120 {
		return text[:100] + "..."
	}
	return text
}
