package contract

import (
	"fmt"
	"time"
)

// The device plugin tells the planner of its cards directly, since Nomad takes
// 6 to 10 seconds: POST PathCardReports with a bearer token, a CardReport as
// JSON, answered by a CardReply. A report is the whole truth of one node at one
// time, so a lost one needs no repeat and an older one never undoes a newer:
// the reader keeps, for each Reporter, the one with the highest Seq.
const (
	PathCardReports = "/v1/cards/reports"
	// CardReportVersion is the version that this build writes; a reader takes
	// any up to its own.
	CardReportVersion = 1
	// CardReportLimit is the most bytes of a report that a reader takes.
	CardReportLimit = 256 << 10
)

// CardReport is one node's cards at one time.
type CardReport struct {
	V int `json:"v"`
	// Reporter names one life of one plugin: another one of the same node
	// replaces it.
	Reporter string `json:"reporter"`
	Seq      uint64 `json:"seq"` // from 1, growing
	// Node is the node's name as the plugin knows it. Nomad does not tell its
	// plugins the node's id: the planner finds the node by its cards' ids.
	Node  string       `json:"node"`
	Boot  string       `json:"boot,omitempty"`
	At    time.Time    `json:"at"`
	Cards []CardStatus `json:"cards"`
	// Done are orders that were carried out since the last report that was
	// answered.
	Done []CardOrderDone `json:"done,omitempty"`
	// Unattributed counts faults of devices that the node does not know.
	Unattributed uint64 `json:"unattributed,omitempty"`
}

// Card states, as in Card.State; a healthy card's is empty there.
const (
	CardHealthy     = "healthy"
	CardSuspect     = "suspect"     // usable, placed on last
	CardDraining    = "draining"    // no new work; clears by itself
	CardQuarantined = "quarantined" // no new work; a person clears it
)

// CardStatus is one card.
type CardStatus struct {
	ID     string `json:"id"`
	Group  string `json:"group"` // vendor/type/model
	Index  int    `json:"i"`
	Slot   string `json:"slot,omitempty"`
	Serial string `json:"serial,omitempty"`
	Parent string `json:"of,omitempty"`
	// Hidden says why Nomad is not offered the card (cut into slices, say).
	Hidden string `json:"hidden,omitempty"`
	// State is one of the card states; another one counts as quarantined.
	State    string         `json:"state"`
	Why      string         `json:"why,omitempty"`
	Clears   string         `json:"clears,omitempty"` // what would clear it, in words
	Since    time.Time      `json:"since,omitzero"`
	Evidence []CardEvidence `json:"evidence,omitempty"` // worst first
	Accepted string         `json:"accepted,omitempty"` // who confirmed the fault, and what was noted
	Record   []CardNote     `json:"record,omitempty"`   // what persons and tests said, oldest first
	Xids     map[int]uint64 `json:"xids,omitempty"`     // how often each was told
	Strikes  int            `json:"strikes,omitempty"`  // hardware errors that still count
	Measured *CardMeasured  `json:"measured,omitempty"`
}

// CardEvidence is one cause of a card's state.
type CardEvidence struct {
	State string    `json:"state"`
	What  string    `json:"what"`
	Line  string    `json:"line,omitempty"` // of the kernel log, or what else was seen
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	Times int       `json:"times"`
}

// CardNote is one line of a card's record.
type CardNote struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // confirm, clear, note, test-passed, test-failed
	Who  string    `json:"who,omitempty"`
	Text string    `json:"text,omitempty"`
}

// CardMeasured are the few measurements that a planner accounts with.
type CardMeasured struct {
	Utilization float64 `json:"util"`      // percent
	MemoryUsed  uint64  `json:"mem"`       // MiB
	MemoryTotal uint64  `json:"mem_total"` // MiB
	Processes   int     `json:"procs"`
	// Activity in percent is how busy the card's units really were, where that is
	// measured; Utilization counts a card as busy while any kernel runs.
	Activity *float64 `json:"act,omitempty"`
	Power    float64  `json:"w,omitempty"` // watts
}

// CardReply is what the planner answers.
type CardReply struct {
	// Orders are to be carried out, each once; the planner repeats them until
	// they are reported as done.
	Orders []CardOrder `json:"orders,omitempty"`
	// Breaker: the cluster's circuit breaker is open. What is new since then
	// makes no card worse than suspect, unless the card does not answer.
	Breaker bool `json:"breaker,omitempty"`
	// BreakerSince is since when; zero: since this answer.
	BreakerSince time.Time `json:"breaker_since,omitzero"`
	// Holders say who holds which card now, for the labels of metrics: by card
	// id. Nil: unchanged.
	Holders map[string]CardHolder `json:"holders,omitempty"`
	// Every is how often the planner wants to hear from the node when nothing
	// changes, in seconds; 0: as the plugin likes.
	Every int `json:"every,omitempty"`
}

// CardHolder is the gang that holds a card.
type CardHolder struct {
	Gang    string `json:"gang"` // namespace/job
	Queue   string `json:"queue,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// Kinds of orders.
const (
	OrderConfirm = "confirm" // a person accepts the fault
	OrderClear   = "clear"   // a person releases the card, after a self-test unless Force
	OrderNote    = "note"
	OrderSuspect = "suspect" // the planner saw failures follow the card; State says how far
)

// CardOrder is what is to be done with one card.
type CardOrder struct {
	ID    string `json:"id"`
	Kind  string `json:"kind"`
	Card  string `json:"card"`
	Who   string `json:"who"`
	Why   string `json:"why,omitempty"`
	State string `json:"state,omitempty"` // of OrderSuspect: suspect or quarantined
	Force bool   `json:"force,omitempty"`
}

// CardOrderDone is an order's outcome.
type CardOrderDone struct {
	ID    string `json:"id"`
	Error string `json:"error,omitempty"`
}

// Check lists what is wrong with a report.
func (r CardReport) Check() error {
	var f Faults
	add := func(field, value, want string) { f = append(f, Fault{Field: field, Value: value, Want: want}) }
	if r.V < 1 || r.V > CardReportVersion {
		add("v", fmt.Sprint(r.V), fmt.Sprintf("a version from 1 to %d: upgrade the planner before the device plugins", CardReportVersion))
	}
	if r.Reporter == "" {
		add("reporter", "", "a name")
	}
	if r.Seq == 0 {
		add("seq", "0", "a number from 1")
	}
	if r.At.IsZero() {
		add("at", "", "a time")
	}
	seen := map[string]bool{}
	for i, c := range r.Cards {
		field := fmt.Sprintf("cards[%d].", i)
		if c.ID == "" || seen[c.ID] {
			add(field+"id", c.ID, "an id, each once")
		}
		seen[c.ID] = true
		switch c.State {
		case CardHealthy, CardSuspect, CardDraining, CardQuarantined:
		default:
			add(field+"state", c.State, "healthy, suspect, draining or quarantined")
		}
	}
	return f.Err()
}

// Check lists what is wrong with an order.
func (o CardOrder) Check() error {
	var f Faults
	add := func(field, value, want string) { f = append(f, Fault{Field: field, Value: value, Want: want}) }
	if o.ID == "" {
		add("id", "", "a name that no other order has")
	}
	if o.Card == "" {
		add("card", "", "a card's id")
	}
	switch o.Kind {
	case OrderConfirm, OrderClear, OrderNote:
		if o.Who == "" {
			add("who", "", "who gives the order: every step is recorded with its person")
		}
	case OrderSuspect:
		if o.State != CardSuspect && o.State != CardQuarantined {
			add("state", o.State, "suspect or quarantined")
		}
	default:
		add("kind", o.Kind, "confirm, clear, note or suspect")
	}
	return f.Err()
}
