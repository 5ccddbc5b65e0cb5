package accounting

import (
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core/recent"
)

// Key names an attempt for ever.
type Key struct {
	Gang   string // namespace/job
	Number int
	Base   uint64 // the Nomad index that its allocations came after
}

// Gang is what is seen of one gang at one time. Attempts and allocations that
// are left out are taken as not seen, except where Whole.
type Gang struct {
	Name     string // namespace/job
	Attempts []Attempt
	End      *GangEnd // nil: it is not over
	// Came is what the gang asked for when it was submitted; nil: it is not
	// known, or nothing to learn from.
	Came *recent.Gang
	// Whole: the attempts' allocations and Others are all that Nomad has of the
	// gang, so that one that is open in the books and not among them is gone.
	Whole bool
	// Others are allocations of attempts that are not known any more.
	Others []string
}

// Attempt is what is seen of one.
type Attempt struct {
	Key
	Queue, User                string
	Members, Cards             int // asked for
	Submitted, Queued, Planned time.Time
	// Foretold is the first start that the gang was told while it waited.
	Foretold ETA
	Stages   []Stage
	// Checkpoint is the last one reported; zero: none.
	Checkpoint time.Time
	// Eviction is its kind while one is under way; "": none.
	Eviction string
	End      *AttemptEnd // nil: it goes on
	Allocs   []Alloc
}

// ETA is a foretold start: made at a time, within a range.
type ETA struct{ Made, From, To time.Time }

// Stage entered.
type Stage struct {
	Stage contract.Stage
	At    time.Time
}

// AttemptEnd is how an attempt ended.
type AttemptEnd struct {
	At      time.Time
	Outcome string // a contract.Outcome, or a reason
	Reason  string
	Code    int // -1: not known
	Text    string
}

// GangEnd is how a gang ended.
type GangEnd struct {
	At, Submitted   time.Time
	Stage           contract.Stage
	Queue, User     string
	Cards, Attempts int
	// Ran is how long the ranks of a gang that completed ran, without what was
	// lost; 0: it did not complete.
	Ran time.Duration
}

// Alloc is one allocation.
type Alloc struct {
	ID, Node string
	Created  time.Time
	Holds    []Hold
	Ended    time.Time // zero: it is alive
	Exact    bool      // Ended is what Nomad's client told
	How      string    // complete, failed, lost
}

// Hold is the cards of one model that an allocation holds.
type Hold struct {
	Model string
	Cards int
}

// Decision is something decided about a gang.
type Decision struct {
	At      time.Time
	Gang    string
	Attempt int
	Queue   string
	Action  string // start, wait, refuse, evict, fail, ...
	Reason  string
	Who     string // "": the planner
	Text    string
}

// Guarantee is what a queue is guaranteed: cards by model, and Any beyond their
// sum.
type Guarantee struct {
	Models map[string]int
	Any    int
}
