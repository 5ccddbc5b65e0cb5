package wire

import "time"

// Namespace is a name space of jobs and variables.
type Namespace struct {
	Name                  string
	Description           string
	Quota                 string
	Capabilities          map[string]any
	NodePoolConfiguration map[string]any
	VaultConfiguration    map[string]any
	ConsulConfiguration   map[string]any
	Meta                  map[string]string
	Hash                  []byte
	CreateIndex           uint64
	ModifyIndex           uint64
	RequiredExtraClaims   map[string]string
	OptionalExtraClaims   map[string]string
}

// NodePool is a named set of nodes.
type NodePool struct {
	Name                   string
	Description            string
	Meta                   map[string]string
	SchedulerConfiguration map[string]any
	NodeIdentityTTL        time.Duration
	Hash                   []byte
	CreateIndex            uint64
	ModifyIndex            uint64
}

// Variable is a set of small items under a path.
type Variable struct {
	Namespace   string
	Path        string
	Lock        *VariableLock `json:",omitempty"`
	CreateIndex uint64
	CreateTime  int64
	ModifyIndex uint64
	ModifyTime  int64
	Items       map[string]string `json:",omitempty"`
}

// VariableLock is a lock held on a variable; durations as text.
type VariableLock struct {
	ID        string
	TTL       string
	LockDelay string
}

// Event is something the store did, as the event stream tells it.
type Event struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    any
}

// Events is a line of the event stream.
type Events struct {
	Index  uint64
	Events []*Event
}
