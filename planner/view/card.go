package view

import "time"

// CardList is every card and adapter, by node and index.
type CardList struct {
	Index   uint64      `json:"index"`
	Cards   []CardState `json:"cards"`
	Breaker CardBreaker `json:"breaker"`
}

// CardState is one card with its verdict.
type CardState struct {
	ID     string `json:"id"`
	Node   string `json:"node"` // name
	NodeID string `json:"node_id,omitempty"`
	Vendor string `json:"vendor"`
	Type   string `json:"type"`
	Model  string `json:"model"`
	Index  int    `json:"i"` // among the node's cards as their driver counts; -1: not known
	Slot   string `json:"slot,omitempty"`
	Serial string `json:"serial,omitempty"`
	// State: healthy, suspect, draining or quarantined.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// Clears says in words what would make it healthy again.
	Clears   string    `json:"clears,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Accepted string    `json:"accepted,omitempty"` // who confirmed the fault
	Parent   string    `json:"parent,omitempty"`   // the card that it is a slice of
	// Hidden says why Nomad is not offered it.
	Hidden string `json:"hidden,omitempty"`
	// From says whose word the state is: report (the node's own, directly), nomad,
	// or planner. Both views stand beside it.
	From     string    `json:"from"`
	Reported string    `json:"reported,omitempty"` // state in the node's last report; absent: it has none
	ReportAt time.Time `json:"report_at,omitzero"`
	// Silent: the node has not reported for too long, and its word does not count.
	Silent bool   `json:"silent,omitempty"`
	Nomad  string `json:"nomad,omitempty"` // healthy or unhealthy, as Nomad has it; absent: it does not list it
	// Holder: the gang, or the job that is none; absent: free.
	Holder string `json:"holder,omitempty"`
	Alloc  string `json:"alloc,omitempty"`

	Detail *CardDetail `json:"detail,omitempty"`
}

// CardDetail is what only the read of a single card gives.
type CardDetail struct {
	Evidence []CardEvidence `json:"evidence"` // worst first
	Record   []CardNote     `json:"record"`   // what persons and tests said, oldest first
	Orders   []CardOrder    `json:"orders"`   // on their way or done lately, oldest first
	Xids     []CardXid      `json:"xids"`     // by code
	Strikes  int            `json:"strikes"`  // hardware errors that still count
	// Measured lately; absent: not known.
	Measured *CardUse `json:"measured,omitempty"`
}

// CardEvidence is one cause of a card's state.
type CardEvidence struct {
	State string    `json:"state"`
	What  string    `json:"what"`
	Line  string    `json:"line,omitempty"`
	Since time.Time `json:"since,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	Times int       `json:"times"`
}

// CardNote is one line of a card's record.
type CardNote struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // confirm, clear, note, test-passed, test-failed
	Who  string    `json:"who,omitempty"`
	Text string    `json:"text,omitempty"`
}

// CardXid counts one code.
type CardXid struct {
	Code  int    `json:"code"`
	Times uint64 `json:"times"`
}

// CardUse is a card's use.
type CardUse struct {
	Utilization float64 `json:"utilization"` // percent
	MemoryUsed  uint64  `json:"memory_used_mib"`
	MemoryTotal uint64  `json:"memory_total_mib"`
	Processes   int     `json:"processes"`
}

// CardOrder is what somebody wants done with a card.
type CardOrder struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // confirm, clear, note, suspect
	Card string `json:"card"`
	Node string `json:"node"` // name
	Who  string `json:"who"`
	Why  string `json:"why,omitempty"`
	// State: waiting (for the node's next report), done, or failed with Error.
	State string    `json:"state"`
	Error string    `json:"error,omitempty"`
	At    time.Time `json:"at"`
	Done  time.Time `json:"done,omitzero"`
	// Heard is when the node reported last; absent: never, so that nobody knows
	// when the order gets there.
	Heard time.Time `json:"heard,omitzero"`
}

// States of orders.
const (
	OrderWaiting = "waiting"
	OrderDone    = "done"
	OrderFailed  = "failed"
)

// CardRequest is what is asked with confirm, clear and note.
type CardRequest struct {
	// Why: the work order, what was repaired, the remark.
	Why string `json:"why,omitempty"`
	// Force clears without a self-test, and forgets a card that is not there.
	Force bool `json:"force,omitempty"`
	// ID makes a repetition harmless; absent: one is made.
	ID string `json:"id,omitempty"`
}

// CardBreaker is the cluster's circuit breaker.
type CardBreaker struct {
	Open  bool      `json:"open"`
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by,omitempty"` // absent: it opened by itself
}

// BreakerRequest opens or closes the breaker.
type BreakerRequest struct {
	Open bool   `json:"open"`
	Why  string `json:"why,omitempty"`
}

// NodeRequest is what is asked with the clearing of a node.
type NodeRequest struct {
	Why string `json:"why,omitempty"`
}

// NodeCleared answers it.
type NodeCleared struct {
	Node string `json:"node"`
	// Cleared: something was held against it.
	Cleared bool `json:"cleared"`
}

// Reporting is how a node's device plugin reports.
type Reporting struct {
	At     time.Time `json:"at"` // last report
	Silent bool      `json:"silent,omitempty"`
	Boot   string    `json:"boot,omitempty"`
	// Unattributed counts faults of devices that the node does not know.
	Unattributed uint64 `json:"unattributed,omitempty"`
}
