package wire

import (
	"encoding/json"
	"time"
)

// States of a node.
const (
	NodeInit         = "initializing"
	NodeReady        = "ready"
	NodeDown         = "down"
	NodeDisconnected = "disconnected"

	Eligible   = "eligible"
	Ineligible = "ineligible"
)

// Node is a client of the cluster.
type Node struct {
	ID                       string
	SecretID                 string // never shown
	Datacenter               string
	Name                     string
	CgroupParent             string
	HTTPAddr                 string
	TLSEnabled               bool
	Attributes               map[string]string
	NodeResources            *NodeResources
	ReservedResources        *ReservedResources
	Links                    map[string]string
	Meta                     map[string]string
	NodeClass                string
	NodePool                 string
	ComputedClass            string
	DrainStrategy            *DrainStrategy
	SchedulingEligibility    string
	Status                   string
	StatusDescription        string
	IdentitySigningKeyID     string
	StatusUpdatedAt          int64
	Events                   []*NodeEvent
	Drivers                  map[string]*DriverInfo
	CSIControllerPlugins     map[string]any
	CSINodePlugins           map[string]any
	HostVolumes              map[string]*HostVolume
	GCVolumesOnNodeGC        bool
	HostNetworks             map[string]*HostNetwork
	LastDrain                *DrainMetadata
	NodeMaxAllocs            int
	LastMissedHeartbeatIndex uint64
	LastAllocUpdateIndex     uint64
	CreateIndex              uint64
	ModifyIndex              uint64
}

// plain is a node without its methods.
type plain Node

// ShownNode is a node as the API shows it: with whether it drains.
type ShownNode struct {
	*plain
	Drain bool
}

// Shown is the node as the API shows it.
func (n *Node) Shown() ShownNode { return ShownNode{(*plain)(n), n.DrainStrategy != nil} }

// MarshalJSON is the JSON of what is shown.
func (n *Node) MarshalJSON() ([]byte, error) { return json.Marshal(n.Shown()) }

// Ready says whether the node takes allocations.
func (n *Node) Ready() bool {
	return n.Status == NodeReady && n.DrainStrategy == nil && n.SchedulingEligibility == Eligible
}

// Terminal says whether what runs on the node is lost.
func (n *Node) Terminal() bool { return n.Status == NodeDown }

// NodeResources is what a node has.
type NodeResources struct {
	Cpu            NodeCPU
	Processors     NodeProcessors
	Memory         NodeMemory
	Disk           NodeDisk
	Devices        []*NodeDevice
	NodeNetworks   []*NodeNetwork
	Networks       []*NetworkResource
	MinDynamicPort int
	MaxDynamicPort int
}

// NodeCPU is a node's processor, shares in MHz.
type NodeCPU struct {
	CpuShares          int64
	TotalCpuCores      uint16
	ReservableCpuCores []uint16
}

// NodeProcessors wraps the topology.
type NodeProcessors struct{ Topology *Topology }

// Topology is the node's cores and NUMA nodes.
type Topology struct {
	Nodes                  []int
	Distances              [][]int
	Cores                  []Core
	OverrideTotalCompute   int64
	OverrideWitholdCompute int64
}

// Core is one core, speeds in MHz.
type Core struct {
	SocketID   int
	NodeID     int
	ID         int
	Grade      bool
	Disable    bool
	BaseSpeed  int64
	MaxSpeed   int64
	GuessSpeed int64
}

// NodeMemory is a node's memory.
type NodeMemory struct{ MemoryMB int64 }

// NodeDisk is a node's disk.
type NodeDisk struct{ DiskMB int64 }

// NodeDevice is a group of like devices.
type NodeDevice struct {
	Vendor     string
	Type       string
	Name       string
	Instances  []*DeviceInstance
	Attributes map[string]*Attribute
}

// DeviceInstance is one device.
type DeviceInstance struct {
	ID                string
	Healthy           bool
	HealthDescription string
	Locality          *DeviceLocality
}

// DeviceLocality is where a device sits.
type DeviceLocality struct{ PciBusID string }

// Attribute is a typed value with a unit.
type Attribute struct {
	Float  *float64
	Int    *int64
	String *string
	Bool   *bool
	Unit   string
}

// NodeNetwork is an interface of the host.
type NodeNetwork struct {
	Mode       string
	Device     string
	MacAddress string
	Speed      int
	Addresses  []NodeAddress
}

// NodeAddress is an address of an interface.
type NodeAddress struct {
	Family        string
	Alias         string
	Address       string
	ReservedPorts string
	Gateway       string
}

// ReservedResources is what the node keeps for itself.
type ReservedResources struct {
	Cpu struct {
		CpuShares        int64
		ReservedCpuCores []uint16
	}
	Memory   struct{ MemoryMB int64 }
	Disk     struct{ DiskMB int64 }
	Networks struct{ ReservedHostPorts string }
}

// DriverInfo is a task driver of the node.
type DriverInfo struct {
	Attributes        map[string]string
	Detected          bool
	Healthy           bool
	HealthDescription string
	UpdateTime        Time
}

// NodeEvent is something that happened to a node.
type NodeEvent struct {
	Message     string
	Subsystem   string
	Details     map[string]string
	Timestamp   Time
	CreateIndex uint64
}

// DrainStrategy is a drain in progress.
type DrainStrategy struct {
	DrainSpec
	ForceDeadline Time
	StartedAt     Time
}

// DrainSpec is what an operator asked for. A negative deadline forces at once, zero means none.
type DrainSpec struct {
	Deadline         time.Duration
	IgnoreSystemJobs bool
}

// DrainMetadata tells of the last drain.
type DrainMetadata struct {
	StartedAt  Time
	UpdatedAt  Time
	Status     string
	AccessorID string
	Meta       map[string]string
}

// HostVolume is a directory that the node offers.
type HostVolume struct {
	Name     string
	Path     string
	ReadOnly bool
	ID       string
}

// HostNetwork is a named network of the node.
type HostNetwork struct {
	Name          string
	CIDR          string
	Interface     string
	ReservedPorts string
}

// NodeStub is a node in a list.
type NodeStub struct {
	Address               string
	ID                    string
	Attributes            map[string]string `json:",omitempty"`
	Datacenter            string
	Name                  string
	NodePool              string
	NodeClass             string
	Version               string
	Drain                 bool
	SchedulingEligibility string
	Status                string
	StatusDescription     string
	Drivers               map[string]*DriverInfo
	HostVolumes           map[string]*HostVolume
	NodeResources         *NodeResources     `json:",omitempty"`
	ReservedResources     *ReservedResources `json:",omitempty"`
	LastDrain             *DrainMetadata
	CreateIndex           uint64
	ModifyIndex           uint64
}

// Stub is the node as a list shows it; with os its system's attributes, with resources what it has.
func (n *Node) Stub(os, resources bool) *NodeStub {
	s := &NodeStub{
		Address: hostOf(n.HTTPAddr), ID: n.ID, Datacenter: n.Datacenter, Name: n.Name, NodePool: n.NodePool, NodeClass: n.NodeClass,
		Version: n.Attributes["nomad.version"], Drain: n.DrainStrategy != nil, SchedulingEligibility: n.SchedulingEligibility,
		Status: n.Status, StatusDescription: n.StatusDescription, Drivers: n.Drivers, HostVolumes: n.HostVolumes,
		LastDrain: n.LastDrain, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}
	if os {
		s.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
	}
	if resources {
		s.NodeResources, s.ReservedResources = n.NodeResources, n.ReservedResources
	}
	return s
}

func hostOf(addr string) string {
	for i := len(addr) - 1; i >= 0; i-- {
		if addr[i] == ':' {
			return addr[:i]
		}
	}
	return addr
}
