// Package driver is the Go face of Nomad's task driver plugin protocol.
package driver

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// Plugin is a Nomad task driver.
type Plugin interface {
	base.Plugin

	TaskConfigSchema() *hclspec.Spec
	Capabilities() Capabilities

	// Fingerprint reports the driver's health and attributes, first at once,
	// then at changes and at least every 30 s, until ctx ends.
	Fingerprint(ctx context.Context, send func(Fingerprint) error) error

	// StartTask starts a task and returns at once. The handle must carry the
	// task's own configuration: without it Nomad starts the task a second
	// time after an agent restart (the server half refuses such a handle).
	StartTask(*TaskConfig) (*TaskHandle, error)
	// RecoverTask re-attaches to a task after a restart of plugin or agent.
	// The id is handle.Config.ID. Must be idempotent; an error for tasks that
	// are over.
	RecoverTask(*TaskHandle) error
	// WaitTask returns when the task is over or ctx ends. No result and no
	// error is an error: Nomad would read it as exit code 0.
	WaitTask(ctx context.Context, taskID string) (*ExitResult, error)
	// StopTask ends the task: signal (empty: the driver's choice), then force
	// after timeout. Success for a task that is unknown or over: Nomad repeats
	// a failed stop for minutes, so the server half takes ErrTaskNotFound for
	// success, here and in DestroyTask.
	StopTask(taskID string, timeout time.Duration, signal string) error
	// DestroyTask forgets a task; with force it ends it first.
	DestroyTask(taskID string, force bool) error
	InspectTask(taskID string) (*TaskStatus, error)
	// TaskStats reports usage every interval until ctx ends. It may return
	// earlier when the task is over; Nomad asks again after an error.
	TaskStats(ctx context.Context, taskID string, interval time.Duration, send func(*TaskUsage) error) error
	// TaskEvents reports events of all tasks until ctx ends. The server half
	// keeps the stream open on an early return: Nomad would call again without
	// any pause.
	TaskEvents(ctx context.Context, send func(*TaskEvent) error) error
	// SignalTask delivers a signal; the text is not validated by Nomad.
	SignalTask(taskID, signal string) error
	// ExecTask runs a command in the task's surroundings.
	ExecTask(ctx context.Context, taskID string, req ExecRequest) (*ExitResult, error)
}

// ErrTaskNotFound is for a task id that the driver does not know; wrap it.
var ErrTaskNotFound = errors.New("task is not known to the driver")

// Initer is implemented by a driver that prepares itself after its
// configuration: at the start of a process and again whenever an agent
// re-attaches to it. Nomad 1.11.8, 2.0.4 and later call it.
type Initer interface {
	Init(ctx context.Context) error
}

// Shutdowner is implemented by a driver that wants to know of a graceful end of
// its process, which follows within 2 s. Same versions of Nomad as Initer.
type Shutdowner interface {
	Shutdown(ctx context.Context) error
}

// ExecRequest is a command to run beside a task.
type ExecRequest struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan TerminalSize
}

// TerminalSize is in characters.
type TerminalSize struct{ Height, Width int }

// FSIsolation is how much of the file system a task sees.
type FSIsolation int32

// Nomad's file system isolation modes.
const (
	FSIsolationNone   FSIsolation = 0
	FSIsolationChroot FSIsolation = 1
	FSIsolationImage  FSIsolation = 2
	FSIsolationUnveil FSIsolation = 3
)

// Capabilities tell Nomad what the driver can do.
type Capabilities struct {
	SendSignals       bool
	Exec              bool
	FSIsolation       FSIsolation
	NetworkIsolation  []string // of "host", "group", "task", "none"; empty: host
	MustCreateNetwork bool     // refused by our server half, which creates none
	NoMounts          bool     // the driver supports no mounts
	NoLogCollection   bool     // the driver can do without Nomad's log pipes
	DynamicUsers      bool
}

// Health of a driver.
type Health int32

// Driver health, with Nomad's numbers.
const (
	HealthUndetected Health = 0
	HealthUnhealthy  Health = 1
	HealthHealthy    Health = 2
)

// Fingerprint is a driver's state on a node.
type Fingerprint struct {
	Attributes  map[string]device.Attribute
	Health      Health
	Description string
}

// TaskConfig is one task as Nomad's client sends it. Device ids are not among
// the fields: they come only as what the device plugin's Reserve put into Env
// and DeviceEnv.
type TaskConfig struct {
	ID               string // "<alloc>/<task>/<8 hex digits>", new at each start
	Name             string
	JobName, JobID   string
	TaskGroupName    string
	Namespace        string
	NodeName, NodeID string
	AllocID          string
	ParentJobID      string // not sent by Nomad 2.0.6
	Env, DeviceEnv   map[string]string
	Resources        *Resources
	Devices          []device.DeviceNode
	Mounts           []Mount
	User             string
	AllocDir         string
	MsgPackConfig    []byte // the task's config block; decode with hclspec.Decode
	StdoutPath       string
	StderrPath       string
	NetworkIsolation *NetworkIsolation
	DNS              *DNS
}

// Mount into a task.
type Mount struct {
	TaskPath, HostPath string
	ReadOnly           bool
	PropagationMode    string
	SELinuxLabel       string
	RequestName        string // of the job's volume request
}

// Resources granted to a task.
type Resources struct {
	CPUShares             int64
	MemoryMB, MemoryMaxMB int64
	Networks              []Network
	LinuxCPUPeriod        int64
	LinuxCPUQuota         int64
	LinuxCPUShares        int64
	LinuxMemoryLimitBytes int64
	LinuxOOMScoreAdj      int64
	CPUSetCPUs            string
	CPUSetCgroup          string // write the task's pid to its cgroup.procs
	PercentTicks          float64
	Ports                 []Port
}

// Network of an allocation, old form.
type Network struct {
	Device, CIDR, IP            string
	MBits                       int32
	ReservedPorts, DynamicPorts []NetworkPort
}

// NetworkPort is a labelled port of a Network.
type NetworkPort struct {
	Label string
	Value int32
}

// Port of an allocation.
type Port struct {
	Label     string
	Value, To int32
	HostIP    string
}

// NetworkIsolation is the network namespace a task is put into.
type NetworkIsolation struct {
	Mode   string // "host", "group", "task" or "none"
	Path   string
	Labels map[string]string
	// What Nomad writes into the task's /etc/hosts for itself.
	HostName, HostAddress string
}

// DNS settings of a task.
type DNS struct{ Servers, Searches, Options []string }

// TaskState of a handle, with Nomad's numbers.
type TaskState int32

// Task states.
const (
	TaskStateUnknown TaskState = 0
	TaskStateRunning TaskState = 1
	TaskStateExited  TaskState = 2
)

// TaskHandle is what Nomad keeps so that a later plugin process can find the
// task again.
type TaskHandle struct {
	Version int32 // of Driver's format; not 0, which is Nomad's own
	Config  *TaskConfig
	State   TaskState
	Driver  []byte // the driver's own state
}

// ExitResult of a task.
type ExitResult struct {
	ExitCode  int
	Signal    int
	OOMKilled bool
	Err       error // a driver error: the exit is not known
}

// TaskStatus answers InspectTask.
type TaskStatus struct {
	ID, Name         string
	State            TaskState
	Started, Ended   time.Time
	Exit             *ExitResult
	DriverAttributes map[string]string
}

// TaskUsage is a task's resource usage.
type TaskUsage struct {
	At     time.Time
	CPU    CPUUsage
	Memory MemoryUsage
	ByPID  map[string]TaskUsage
}

// CPUUsage in Nomad's terms: modes in nanoseconds, Percent of one core,
// TotalTicks in MHz.
type CPUUsage struct {
	SystemMode, UserMode, TotalTicks, Percent float64
	ThrottledPeriods, ThrottledTime           uint64
	Measured                                  []string // of "System Mode", "User Mode", "Total Ticks", "Throttled Periods", "Throttled Time", "Percent"
}

// MemoryUsage in bytes.
type MemoryUsage struct {
	RSS, Cache, MaxUsage, Usage, KernelUsage, KernelMaxUsage, Swap uint64
	Measured                                                       []string // of "RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage"
}

// TaskEvent is shown in the allocation's recent events. Nomad keeps ten.
type TaskEvent struct {
	TaskID, AllocID, TaskName string
	At                        time.Time
	Message                   string
	Annotations               map[string]string
	Err                       error // sent as a part of the message
}
