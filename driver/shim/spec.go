// Package shim is the supervisor of one task: a process of its own, started by
// the plugin from the same binary, in a session of its own, that outlives the
// plugin and the agent.
//
// It holds the member until its gang is released, starts torchrun or the ranks,
// passes their output on, signals and ends them, and writes down how they
// ended. What it decides is decided in package member; this package carries it
// out:
//
//   - Spec comes from the plugin on the standard input, so that nothing secret
//     touches the disk. A line on the standard output says that it is ready.
//   - One goroutine feeds events to the member and carries out the actions.
//   - Processes are started from one locked thread, with SIGKILL as their parent
//     death signal: should the supervisor be killed, torchrun and the ranks it
//     started go with it. It is the subreaper of all that descends from it.
//   - Under torchrun each rank is started through a wrapper (the same binary,
//     see Rank), which connects to the supervisor, receives the rank's output
//     pipes, and tells how the rank ended: codes, signals and times are those of
//     the ranks, not torchrun's reading of them.
//   - A socket serves the plugin (see Request): newer plugins talk to older
//     supervisors, since messages only ever gain fields.
package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// SpecVersion is the version of Spec that this build reads; the plugin that
// starts a supervisor is of the same binary.
const SpecVersion = 1

// Spec is all that a supervisor is told.
type Spec struct {
	V       int                 `json:"v"`
	TaskID  string              `json:"task_id"`
	Self    rendezvous.Self     `json:"self"`
	Version string              `json:"version"`
	Dir     string              `json:"dir"` // taskdir.Dir
	Config  contract.TaskConfig `json:"config"`

	Env      map[string]string `json:"env"` // of the ranks, see torchrun.Environment
	Cards    []string          `json:"cards,omitempty"`
	TaskDir  string            `json:"task_dir"`
	User     *User             `json:"user,omitempty"` // nil: the supervisor's own
	Stdout   string            `json:"stdout"`
	Stderr   string            `json:"stderr"`
	Node     string            `json:"node"`
	Group    string            `json:"group"`
	Wrapper  string            `json:"wrapper"` // path of this binary
	OOMScore int               `json:"oom_score"`

	Rendezvous string                  `json:"rendezvous"` // contract.RendezvousConsul or RendezvousSignal
	Consul     rendezvous.ConsulConfig `json:"consul"`
	HoldLimit  time.Duration           `json:"hold_limit"`
	// Grace is the job's muster_grace, MaxKillTimeout the most that Nomad gives
	// of it here; 0: not stated.
	Grace          time.Duration `json:"grace,omitempty"`
	MaxKillTimeout time.Duration `json:"max_kill_timeout,omitempty"`

	Python    string `json:"python,omitempty"`
	Interface string `json:"interface,omitempty"`
	NomadIP   string `json:"nomad_ip,omitempty"`
	Port      int    `json:"port,omitempty"`
	PortLow   int    `json:"port_low"`
	PortHigh  int    `json:"port_high"`

	Isolated    bool   `json:"isolated"` // cgroups may be made and used
	Cgroup      string `json:"cgroup,omitempty"`
	NomadCgroup string `json:"nomad_cgroup,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	// Hierarchy that the task's cgroup is made in.
	Hierarchy isolation.Hierarchy `json:"hierarchy"`
	// Jailed: the ranks have a /dev, /tmp and inter-process communication of
	// their own; see isolation.Jail.
	Jailed    bool               `json:"jailed"`
	Devices   []isolation.Device `json:"devices,omitempty"` // that the reservation grants
	Common    []isolation.Device `json:"common,omitempty"`  // further ones that the task may use
	Mounts    []isolation.Mount  `json:"mounts,omitempty"`
	AllocDir  string             `json:"alloc_dir"`
	SharedIPC bool               `json:"shared_ipc,omitempty"`
	Image     ImageSpec          `json:"image"`
}

// User that ranks run as.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// ReadSpec reads a spec.
func ReadSpec(r io.Reader) (Spec, error) {
	var s Spec
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return Spec{}, fmt.Errorf("read what to supervise: %w", err)
	}
	if s.V != SpecVersion {
		return Spec{}, fmt.Errorf("read what to supervise: version %d, and this build reads %d", s.V, SpecVersion)
	}
	return s, nil
}

// World is the name of the world that the task belongs to.
func (s Spec) World() string {
	if s.Config.World == contract.WorldGang {
		return s.Self.Gang.Job
	}
	return s.Group
}
