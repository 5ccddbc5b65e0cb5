package view

import "time"

// UsageQuery asks for usage in [From, To) by dimensions: queue, user, model,
// gang, attempt, hour, day, month. Filters that are empty let all through.
type UsageQuery struct {
	From, To                 time.Time
	By                       []string
	Queue, User, Model, Gang string
}

// Usage is card-seconds of gangs in a time. Booked hours are whole, so From and
// To may lie further apart than what was asked.
type Usage struct {
	From     time.Time   `json:"from"`
	To       time.Time   `json:"to"`
	By       []string    `json:"by"`
	Lines    []UsageLine `json:"lines"`
	Total    UsageLine   `json:"total"`
	Problems []Problem   `json:"problems"` // what stands in the way of the books now
}

// UsageLine is one combination of the dimensions. CardSeconds = Guaranteed +
// Borrowed = Held + Training; lost card-seconds are a part of those in training.
type UsageLine struct {
	Period      time.Time        `json:"period,omitzero"` // begin of the hour, day or month
	Queue       string           `json:"queue,omitempty"`
	User        string           `json:"user,omitempty"`
	Model       string           `json:"model,omitempty"`
	Gang        string           `json:"gang,omitempty"`
	Attempt     int              `json:"attempt,omitempty"`
	CardSeconds int64            `json:"card_seconds"`
	Guaranteed  int64            `json:"guaranteed"`
	Borrowed    int64            `json:"borrowed"`
	Held        int64            `json:"held"` // before the ranks were launched
	Training    int64            `json:"training"`
	LostTotal   int64            `json:"lost_total"`
	Lost        map[string]int64 `json:"lost"` // by cause
}

// Waste is what was held and not used.
type Waste struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Lines by queue, user and model, the most wasted card-seconds first.
	Lines []WasteLine `json:"lines"`
	// Worst are the attempts that wasted most, running ones among them.
	Worst    []WasteAttempt `json:"worst"`
	Problems []Problem      `json:"problems"`
}

// WasteLine sums up what was asked for against what was used.
type WasteLine struct {
	Queue       string `json:"queue"`
	User        string `json:"user"`
	Model       string `json:"model"`
	CardSeconds int64  `json:"card_seconds"`
	Held        int64  `json:"held"` // before the ranks were launched
	Lost        int64  `json:"lost"`
	Sampled     int64  `json:"sampled"` // card-seconds that samples stand for
	Idle        int64  `json:"idle"`    // of them without any activity
	Activity    Share  `json:"activity"`
	Memory      Share  `json:"memory"`
}

// WasteAttempt is one attempt's. Wasted are its card-seconds held before the
// launch, and those in which a card did nothing.
type WasteAttempt struct {
	Gang         string `json:"gang"`
	Attempt      int    `json:"attempt"`
	Queue        string `json:"queue"`
	User         string `json:"user"`
	Model        string `json:"model"`
	Running      bool   `json:"running"`
	Cards        int    `json:"cards"` // that were sampled
	NeverBusy    int    `json:"never_busy"`
	Wasted       int64  `json:"wasted"`
	Held         int64  `json:"held"`
	Sampled      int64  `json:"sampled"`
	Idle         int64  `json:"idle"`
	Activity     Share  `json:"activity"`
	Memory       Share  `json:"memory"`
	UntouchedMiB int64  `json:"untouched_mib"` // memory of its cards that was never in use
}

// Share is a mean and quantiles, 0 to 1; Known false: nothing was sampled.
type Share struct {
	Known bool    `json:"known"`
	Mean  float64 `json:"mean"`
	P10   float64 `json:"p10"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
}

// Top is what runs now and what its cards do.
type Top struct {
	At       time.Time   `json:"at"`
	Gangs    []TopGang   `json:"gangs"`
	Cards    []CardCount `json:"cards"`
	Problems []Problem   `json:"problems"`
}

// TopGang is a gang that holds cards. Activity and Memory are those of the last
// samples, Mean and Idle those of the attempt so far.
type TopGang struct {
	Gang     string  `json:"gang"`
	Attempt  int     `json:"attempt"`
	Queue    string  `json:"queue"`
	User     string  `json:"user"`
	Model    string  `json:"model"`
	Cards    int     `json:"cards"`
	Sampled  int     `json:"sampled"` // cards whose samples are fresh
	IdleNow  int     `json:"idle_now"`
	Activity Share   `json:"activity"`
	Memory   Share   `json:"memory"`
	Watts    float64 `json:"watts"`
	Mean     Share   `json:"mean"`
	Idle     float64 `json:"idle"` // share of the sampled time without activity
}

// Demand is nodes of one shape that would let waiting gangs start.
type Demand struct {
	Model string `json:"model"`
	Cards int    `json:"cards"` // of one node
	Pool  string `json:"pool"`
	Nodes int    `json:"nodes"`
	Gangs int    `json:"gangs"`
}

// DemandList is all of it; nothing waits for nodes where it is empty.
type DemandList struct {
	At     time.Time `json:"at"`
	Demand []Demand  `json:"demand"`
}

// LedgerCheck holds the books against themselves and against Nomad.
type LedgerCheck struct {
	Path        string    `json:"path"`
	Schema      int       `json:"schema"`
	Booked      time.Time `json:"booked"` // hours before this are booked
	Attempts    int64     `json:"attempts"`
	Allocations int64     `json:"allocations"`
	CardSeconds int64     `json:"card_seconds"` // booked
	Inexact     int64     `json:"inexact"`      // ends that Nomad's client did not tell
	// NomadAllocations that hold cards for gangs were compared one by one;
	// NomadCardSeconds is what they ran up to now by Nomad's own times, Unknown
	// those of attempts that the planner does not know any more.
	NomadAllocations int      `json:"nomad_allocations"`
	NomadCardSeconds int64    `json:"nomad_card_seconds"`
	Unknown          int      `json:"unknown"`
	OK               bool     `json:"ok"`
	Findings         []string `json:"findings"`
}
