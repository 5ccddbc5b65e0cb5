package core

import "time"

// Config is the operator's configuration as the core needs it; planner/config
// reads it from HCL.
type Config struct {
	// Levels of the topology, outermost first: names such as spine, leaf.
	Levels []Level
	// Queues in any order; Parent "" marks the root's children.
	Queues []Queue
	// Reservations over all queues, GatherAfter, PreferWait, Packing: see
	// policy; zero values are replaced by planner/config's defaults before the
	// core sees them.
	Reservations int
	// QueueReservations of those for the gangs of one queue on one model, in
	// the queue's order. With one, as in EASY backfill, nobody is passed over
	// for ever; each further one promises a start to a gang further behind and
	// keeps more cards from those that could run meanwhile.
	QueueReservations int
	GatherAfter       time.Duration
	PreferWait        time.Duration
	ReserveTimeout    time.Duration
	Packing           Packing
	// Blast limits: the most gangs, and the largest share in percent of a
	// queue's cards, that stand or fall with one domain of a level; 0: none.
	Blast []BlastLimit
	// MaxAttempts for failures of the site.
	MaxAttempts  int
	Consolidate  bool
	CardTypes    []string // device types that are cards and count in quotas; default gpu, mig, npu
	UserLimits   []UserLimit
	Preemption   bool // false: nothing is ever evicted for another gang
	FixedSize    bool // true: running gangs are not resized
	BackfillMost int  // waiting gangs looked at in one cycle for backfill; 0: all
}

// Level of the topology.
type Level struct {
	Name      string
	Attribute string // Nomad's: ${meta.leaf}, ${attr.x}
}

// Packing of part-node members.
type Packing string

// Packing modes.
const (
	PackAuto   Packing = "auto"
	PackBin    Packing = "binpack"
	PackSpread Packing = "spread"
)

// BlastLimit bounds what is lost with one domain.
type BlastLimit struct {
	Level string
	Gangs int
	Share int // percent of a queue's cards
}

// UserLimit bounds one user ("*": each).
type UserLimit struct {
	User     string
	MaxCards int // 0: none
	MaxGangs int // 0: none
}

// Order of the gangs inside a queue.
type Order string

// Queue orders.
const (
	OrderPriority Order = "priority"
	OrderFIFO     Order = "fifo"
	OrderShortest Order = "shortest"
	OrderAttained Order = "attained"
)

// Queue is one node of the tree.
type Queue struct {
	Name   QueueName
	Parent QueueName
	// Guaranteed, Max and Lend in cards. A model that is absent from Max or
	// Lend has no limit of its own; one that is absent from Guaranteed has
	// none guaranteed. Any bounds or guarantees the sum over models.
	Guaranteed Amounts
	Max        Amounts
	Lend       Amounts
	Weight     int // >= 1
	Class      int
	Order      Order
	TimeLimit  time.Duration // for gangs that state none; 0: not known
	Namespaces []string
	Shared     bool
	Users      []string // empty: everybody
	MaxGangs   int      // 0: none
	RefuseFull bool     // when_full = "refuse"
	Budget     Budget
	Aging      []AgingStep // ascending
	TopPerDay  int         // evictions that top-aged gangs may cause a day
	Preempt    Preempt
	Urgent     bool
	OnPreempt  QueueName // "": back to its own
	GiveUp     GiveUp
	// LimitReport: a time limit overrun is only counted, not enforced.
	LimitReport bool
}

// Amounts of cards: per model, and Any for the sum over all models; Any < 0:
// not stated. The zero value states a sum of 0: see Unstated.
type Amounts struct {
	Models map[Model]int
	Any    int
}

// Unstated are amounts of which nothing is said: as Max or Lend, no bound.
func Unstated() Amounts { return Amounts{Any: -1} }

// Budget of card-seconds per period; zero: none.
type Budget struct {
	CardSeconds int64
	Period      string // day, week, month
}

// AgingStep raises the effective priority after a time of waiting.
type AgingStep struct {
	After time.Duration
	Raise int
	Top   bool
}

// Preempt settings of a queue's gangs as victims and as preemptors.
type Preempt struct {
	Grace           time.Duration
	MinRuntime      time.Duration
	EvictionsPerDay int     // 0: none allowed
	PerVictimPerDay int     // 0: none allowed
	Ratio           float64 // evicted : requested cards, at most
}

// GiveUp after waiting for so long; zero After: never.
type GiveUp struct {
	After  time.Duration
	Action string // min, split, fail
}

// Defaults is the configuration that holds where the operator states nothing.
func Defaults() Config {
	return Config{Reservations: 8, QueueReservations: 1, GatherAfter: 30 * time.Minute, PreferWait: 10 * time.Minute, ReserveTimeout: 10 * time.Minute, Packing: PackAuto,
		MaxAttempts: 10, CardTypes: []string{"gpu", "mig", "npu"}, Preemption: true}
}

// DefaultQueue is a queue of which the operator states nothing but its name.
func DefaultQueue(name QueueName) Queue {
	return Queue{Name: name, Max: Unstated(), Lend: Unstated(), Weight: 1, Class: 50, Order: OrderPriority, Budget: Budget{},
		Aging:     []AgingStep{{After: 30 * time.Minute, Raise: 10}, {After: 2 * time.Hour, Top: true}},
		TopPerDay: 4,
		Preempt:   Preempt{Grace: 10 * time.Minute, MinRuntime: 15 * time.Minute, EvictionsPerDay: 50, PerVictimPerDay: 3, Ratio: 2}}
}
