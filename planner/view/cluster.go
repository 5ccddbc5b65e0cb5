package view

import (
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Queue is one node of the queue tree with what it holds.
type Queue struct {
	Name   string `json:"name"`
	Parent string `json:"parent,omitempty"` // absent: the root
	Leaf   bool   `json:"leaf"`
	Class  int    `json:"class"`
	Weight int    `json:"weight"`
	Order  string `json:"order"`
	Urgent bool   `json:"urgent"`
	// Namespaces whose jobs belong here; Shared: others may name it too.
	Namespaces []string `json:"namespaces"`
	Shared     bool     `json:"shared"`
	Users      []string `json:"users"` // empty: everybody
	// Gangs in it and below, by what they do.
	Waiting  int `json:"waiting"`
	Running  int `json:"running"` // placing and stopping ones too
	Refused  int `json:"refused"`
	MaxGangs int `json:"max_gangs"` // -1: no limit
	// Quota by model, and once for the sum over all of them.
	Quota  []Quota `json:"quota"`
	Budget *Budget `json:"budget,omitempty"`
}

// AnyModel is Quota.Model for the sum over all models.
const AnyModel = "any"

// Quota is what a queue may hold, and does, of one model. A queue's figures
// contain those of the queues below it.
type Quota struct {
	Model      string `json:"model"`
	Guaranteed int    `json:"guaranteed"`
	Max        int    `json:"max"`  // -1: no limit of its own
	Lend       int    `json:"lend"` // -1: all of what is idle
	Used       int    `json:"used"`
	Borrowed   int    `json:"borrowed"` // part of Used above Guaranteed
	Lent       int    `json:"lent"`     // others hold of Guaranteed
	Waiting    int    `json:"waiting"`  // asked for by gangs that wait
}

// Budget of card-seconds in the current period.
type Budget struct {
	CardSeconds     int64  `json:"card_seconds"`
	UsedCardSeconds int64  `json:"used_card_seconds"`
	Period          string `json:"period"`
}

// Node is one Nomad client with its cards.
type Node struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Datacenter string `json:"datacenter"`
	Pool       string `json:"pool"`
	// Status: ready, ineligible, draining, excluded, disconnected or down; Why
	// explains any but ready.
	Status  string `json:"status"`
	Why     string `json:"why,omitempty"`
	Suspect bool   `json:"suspect"` // placed on last
	// Reporting is how its device plugin tells of its cards directly; absent: it
	// does not, and Nomad's word counts, some seconds later.
	Reporting *Reporting `json:"reporting,omitempty"`
	// Domains by topology level.
	Domains map[string]string `json:"domains"`
	Cards   []Card            `json:"cards"`
	// Capacity and what is held of it.
	CPU      int64 `json:"cpu_mhz"`
	CPUUsed  int64 `json:"cpu_mhz_used"`
	MemoryMB int64 `json:"memory_mb"`
	MemUsed  int64 `json:"memory_mb_used"`
}

// Card is one accelerator (or NIC, by Type).
type Card struct {
	ID     string `json:"id"`
	Vendor string `json:"vendor"`
	Type   string `json:"type"`
	Model  string `json:"model"`
	// State: healthy, suspect, draining, quarantined or unhealthy.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// Holder: the gang, or the job that is none; absent: free.
	Holder string `json:"holder,omitempty"`
	Alloc  string `json:"alloc,omitempty"`
	Domain string `json:"domain,omitempty"` // NVLink domain
	NUMA   int    `json:"numa"`             // -1: not known
}

// Status is the planner's own.
type Status struct {
	Version string `json:"version"`
	// State: starting (no full picture yet), active, standby (another instance
	// leads), paused (by hand), stale (no contact with Nomad).
	State   string    `json:"state"`
	Why     string    `json:"why,omitempty"`
	Started time.Time `json:"started"`
	Region  string    `json:"region"`
	// Nomad and Consul as last heard.
	Nomad  Contact `json:"nomad"`
	Consul Contact `json:"consul"`
	// Cycles decided since the start, the last one's time and length.
	Cycles       int64     `json:"cycles"`
	LastCycle    time.Time `json:"last_cycle,omitzero"`
	CycleSeconds float64   `json:"cycle_seconds"`
	// Gangs by stage.
	Gangs map[string]int `json:"gangs"`
	Nodes int            `json:"nodes"`
	// Cards by model.
	Cards []CardCount `json:"cards"`
	// Problems that an operator should know of, worst first.
	Problems []Problem `json:"problems"`
	// Index of the last event.
	Index uint64 `json:"index"`
}

// Contact with another service.
type Contact struct {
	Address string    `json:"address"`
	Version string    `json:"version,omitempty"`
	OK      bool      `json:"ok"`
	Last    time.Time `json:"last,omitzero"` // last good answer or event
	Error   string    `json:"error,omitempty"`
}

// CardCount counts a model's cards. Total = Free + Used + Other + Out.
type CardCount struct {
	Model string `json:"model"`
	Total int    `json:"total"`
	Free  int    `json:"free"`
	Used  int    `json:"used"`  // by gangs
	Other int    `json:"other"` // by jobs that are no gangs
	Out   int    `json:"out"`   // unhealthy, quarantined, or on nodes that are not ready
}

// Problem is something wrong that is not a gang's verdict.
type Problem struct {
	Object string    `json:"object"`
	Text   string    `json:"text"`
	Hint   string    `json:"hint,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// FromNotice is a decision's notice as a problem.
func FromNotice(n core.Notice) Problem { return Problem{Object: n.Object, Text: n.Text} }
