package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// RecordVersion is the version of Record and Report that this build writes.
const RecordVersion = 1

// Phase of an attempt, as its record tells it.
type Phase string

// The phases of a record, in order. A gang without a record is held: its
// members wait.
const (
	// PhasePlaced: the attempt's allocations exist and are listed. Members run
	// their preflight and report; nobody starts.
	PhasePlaced Phase = "placed"
	// PhaseReleased: the list is frozen. Listed members start, and nobody else
	// ever starts in this attempt.
	PhaseReleased Phase = "released"
	// PhaseEnded: the attempt is over. Whatever of it still runs stops.
	PhaseEnded Phase = "ended"
)

// Record is what the planner tells the members of one attempt of a gang: with
// Consul one key (GangID.RecordKey), else the text of a signal.
type Record struct {
	V       int    `json:"v"`
	Gang    GangID `json:"gang"`
	Attempt int    `json:"attempt"` // from 1
	Phase   Phase  `json:"phase"`
	// Members in the order of their index, along the topology.
	Members []Member `json:"members"`
	// Worlds: the rendezvous of each group of members that talk to each other.
	Worlds   []World   `json:"worlds,omitempty"`
	Queue    string    `json:"queue,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"` // when the time limit ends the run; zero: none
	Reason   string    `json:"reason,omitempty"`  // why the attempt ended
	// Ask is set when the members are to save and leave.
	Ask *Ask `json:"ask,omitempty"`
	// HoldUntil is when members that are still held give up by themselves,
	// whoever forgot them. Zero: the driver's own limit.
	HoldUntil time.Time `json:"hold_until,omitzero"`

	// MinBandwidth that the ways between members must have, in Gbit/s; members
	// probe it in their preflight. 0: not asked for.
	MinBandwidth float64 `json:"min_bandwidth,omitempty"`

	// Min is with how many members an elastic gang still goes on; 0: it has no
	// choice. Only tasks that say elastic = true change their size while they
	// run.
	Min int `json:"min,omitempty"`
	// Round counts the lists of members that a released elastic attempt had,
	// from 0. A record of a higher round may leave members out and take others
	// in: who is left out saves and ends, who stays saves and meets the others
	// anew.
	Round int `json:"round,omitempty"`
	// Settle is how long the ranks of the round before may save for; 0: they are
	// ended at once.
	Settle time.Duration `json:"settle,omitempty"`
	// Joining are members that are to be in a later round: they run their
	// preflight, report as in the phase placed, and wait. Index has no meaning.
	Joining []Member `json:"joining,omitempty"`
}

// Member is one allocation's task of a gang.
type Member struct {
	Index int    `json:"i"`
	Alloc string `json:"alloc"`
	Task  string `json:"task"`
	Group string `json:"group"`
	// Start is the number of the task's start that is released: a later start
	// in the same allocation is refused. 0 while the phase is placed.
	Start int    `json:"start,omitempty"`
	Node  string `json:"node"` // Nomad's node name
	// Address is where peers reach the member; from its report, so empty while
	// the phase is placed.
	Address string `json:"addr,omitempty"`
	Ranks   int    `json:"ranks,omitempty"` // processes on this member; from its report
	// Cards is how many cards the planner reserved for the member. A member
	// that was handed another number refuses. 0: not stated.
	Cards int `json:"cards,omitempty"`
	// Supervisor is the port of the member's supervisor on Address, from its
	// report: peers ask there whether it still lives. 0: not known.
	Supervisor int `json:"sup,omitempty"`
}

// Key names the member among those of its gang: allocation and task.
func (m Member) Key() string { return m.Alloc + "." + m.Task }

// World is the members that share one rendezvous: a group, or the whole gang.
type World struct {
	Name    string `json:"name"`
	Members []int  `json:"members"` // indexes into Record.Members; the order is the node rank
	Host    string `json:"host,omitempty"`
	Port    int    `json:"port,omitempty"`
	// HostMember is the index of the member that holds the store.
	HostMember int `json:"host_member"`
}

// Endpoint is where a world's store really is, published by its host under
// GangID.EndpointKey when the record's port turned out to be taken, or when an
// elastic world meets anew. Members of the world meet there instead.
type Endpoint struct {
	V    int       `json:"v"`
	Host string    `json:"host"`
	Port int       `json:"port"`
	Move int       `json:"move"` // counts from 1; the record's own endpoint is 0
	Why  string    `json:"why,omitempty"`
	At   time.Time `json:"at"`
	// Members that meet there, as "allocation.task", in the order of the world;
	// empty: all of the record's. A host of an elastic world leaves out whom it
	// knows to be gone.
	Members []string `json:"members,omitempty"`
	// Round of the record that the host acted on.
	Round int `json:"round,omitempty"`
}

// Kinds of an Ask.
const (
	AskPreempt   = "preempt"
	AskDrain     = "drain"
	AskTimeLimit = "time-limit"
	AskCard      = "card"   // a card of the gang is quarantined
	AskStop      = "stop"   // Nomad stops the task
	AskResize    = "resize" // the gang goes on with other members
	// AskWithdrawn takes an earlier ask back: members whose ranks have not left
	// yet go on.
	AskWithdrawn = "withdrawn"
)

// Ask is the request to save and leave.
type Ask struct {
	Kind  string        `json:"kind"`
	By    time.Time     `json:"by"` // the end of the grace
	Grace time.Duration `json:"grace"`
	Why   string        `json:"why,omitempty"`
}

// State of a member, as it reports it. Stages of the gang follow from the
// states of all its members.
type State string

// The states a member reports, in the order in which they come.
const (
	StateChecking State = "checking" // held, preflight runs; peers may connect to Address and Supervisor
	StateReady    State = "ready"    // held, preflight green
	StateRefused  State = "refused"  // held, preflight found Problems
	StateLaunched State = "launched" // rendezvous complete, ranks run
	StateTraining State = "training" // first progress mark seen
	StateEnded    State = "ended"    // see Exit
)

// Report is what a member tells the planner, under GangID.ReportKey or in a
// task event's annotation.
type Report struct {
	V         int    `json:"v"`
	Gang      GangID `json:"gang"`
	Attempt   int    `json:"attempt"` // 0 before the member has seen a record
	Alloc     string `json:"alloc"`
	Task      string `json:"task"`
	Start     int    `json:"start"` // number of the task's start in its allocation, from 1
	State     State  `json:"state"`
	Address   string `json:"addr,omitempty"`
	Interface string `json:"if,omitempty"`
	// Port is free on Address, for a store if this member is to host one. A
	// host whose port was taken after all reports the new one here, and without
	// Consul the planner sends the record again with it.
	Port int `json:"port,omitempty"`
	// Supervisor is the port on Address where the member's supervisor answers
	// its peers.
	Supervisor int       `json:"sup,omitempty"`
	Ranks      int       `json:"ranks,omitempty"`
	World      string    `json:"world,omitempty"` // the group, or the job where the task says world = "gang"
	Cards      []string  `json:"cards,omitempty"`
	Problems   []Problem `json:"problems,omitempty"`
	Exit       *Exit     `json:"exit,omitempty"`
	At         time.Time `json:"at"`
	// Checkpoint is the time of the last checkpoint that the script reported,
	// and Step the last step it marked.
	Checkpoint time.Time `json:"checkpoint,omitzero"`
	Step       int64     `json:"step,omitempty"`
	// LeaveBy is when the grace of a member that was asked to leave ends: later
	// than the ask says where a checkpoint is being written.
	LeaveBy time.Time `json:"leave_by,omitzero"`
}

// Problem is one finding of the preflight.
type Problem struct {
	What string `json:"what"` // address, bandwidth, cards, clock, command, config, disk, image, peer, port, python, script
	Text string `json:"text"` // what, where, why, and what would help
	Peer string `json:"peer,omitempty"`
	// Site says that the node is to blame rather than the job.
	Site bool `json:"site,omitempty"`
}

// Outcome is how a member, and from its members an attempt, ended.
type Outcome string

// The outcomes. An exit that nobody saw is OutcomeUnknown, never a success.
const (
	OutcomeComplete     Outcome = "complete"
	OutcomeCheckpointed Outcome = "checkpointed" // asked, and said that it had saved
	OutcomeYielded      Outcome = "yielded"      // exited by itself after an ask
	OutcomeKilled       Outcome = "killed"       // stopped by signal on request
	OutcomeFailed       Outcome = "failed"       // by its own code or signal
	OutcomeHung         Outcome = "hung"
	OutcomePeer         Outcome = "peer"    // stopped because another member ended
	OutcomeRefused      Outcome = "refused" // never released
	OutcomeLost         Outcome = "lost"    // the supervisor or the node vanished
	OutcomeUnknown      Outcome = "unknown"
	// OutcomeTimeLimit is a gang's, never a member's: its time limit ended it.
	OutcomeTimeLimit Outcome = "time-limit"
)

// Exit is how a member ended.
type Exit struct {
	Outcome Outcome `json:"outcome"`
	Code    int     `json:"code"`             // of the first rank that failed; -1: unknown
	Signal  int     `json:"signal,omitempty"` // likewise
	Rank    int     `json:"rank"`             // global rank that Code belongs to; -1: none
	OOM     bool    `json:"oom,omitempty"`
	// Asked says that an ask or a stop came before the exit.
	Asked bool      `json:"asked,omitempty"`
	Text  string    `json:"text"` // one sentence
	At    time.Time `json:"at"`
	// Ranks of the last launch that ended, by their global numbers.
	Ranks []RankExit `json:"ranks,omitempty"`
}

// RankExit is how one rank ended.
type RankExit struct {
	Rank   int       `json:"rank"`
	Code   int       `json:"code"`
	Signal int       `json:"signal,omitempty"`
	OOM    bool      `json:"oom,omitempty"`
	Killed bool      `json:"killed,omitempty"` // by the driver, at the end of a grace or after another's end
	At     time.Time `json:"at"`
}

// Lists reports whether the record lists a member's start: in the phase placed
// any start of the allocation, in the phase released the frozen one only.
func (r *Record) Lists(alloc, task string, start int) (Member, bool) {
	for _, m := range r.Members {
		if m.Alloc == alloc && m.Task == task {
			return m, r.Phase == PhasePlaced || m.Start == start
		}
	}
	return Member{}, false
}

// Joins finds a member among those that are to be in a later round.
func (r *Record) Joins(alloc, task string) (Member, bool) {
	for _, m := range r.Joining {
		if m.Alloc == alloc && m.Task == task {
			return m, true
		}
	}
	return Member{}, false
}

// WorldOf is the world that a member belongs to, with the member's place in it.
func (r *Record) WorldOf(index int) (w World, nodeRank int, ok bool) {
	for _, w := range r.Worlds {
		for rank, m := range w.Members {
			if m == index {
				return w, rank, true
			}
		}
	}
	return World{}, 0, false
}

// DecodeRecord reads a record and checks it: a record that contradicts itself
// is refused with all its faults, since acting on it could start a part of a
// gang.
func DecodeRecord(data []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read gang record: %w", err)
	}
	if r.V != RecordVersion {
		return nil, fmt.Errorf("read gang record: version %d is not known here (this build reads %d): upgrade this part of Muster", r.V, RecordVersion)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("read gang record of %s: %w", r.Gang, err)
	}
	return &r, nil
}

func (r *Record) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if r.Gang.Job == "" || r.Gang.Namespace == "" {
		fault("no job or namespace")
	}
	if r.Attempt < 1 {
		fault("attempt %d: attempts count from 1", r.Attempt)
	}
	switch r.Phase {
	case PhasePlaced, PhaseReleased, PhaseEnded:
	default:
		fault("phase %q is not known", r.Phase)
	}
	seen := map[string]bool{}
	for i, m := range r.Members {
		if m.Index != i {
			fault("member %d stands at place %d", m.Index, i)
		}
		if m.Alloc == "" || m.Task == "" {
			fault("member %d names no allocation or task", i)
		}
		if seen[m.Alloc+"."+m.Task] {
			fault("allocation %s, task %s is listed twice", m.Alloc, m.Task)
		}
		seen[m.Alloc+"."+m.Task] = true
		if r.Phase == PhaseReleased && (m.Start < 1 || m.Address == "" || m.Ranks < 1) {
			fault("member %d is released without start number, address or ranks", i)
		}
	}
	for i, m := range r.Joining {
		if m.Alloc == "" || m.Task == "" || seen[m.Alloc+"."+m.Task] {
			fault("joining member %d names no allocation or task, or is listed twice", i)
		}
		seen[m.Alloc+"."+m.Task] = true
	}
	if r.Min < 0 || r.Round < 0 || r.Settle < 0 {
		fault("min %d, round %d, settle %v: none may be negative", r.Min, r.Round, r.Settle)
	}
	if r.Phase != PhaseReleased {
		if r.Round > 0 {
			fault("round %d in phase %s: only a released attempt has rounds", r.Round, r.Phase)
		}
		return errors.Join(faults...)
	}
	inWorld := map[int]bool{}
	for _, w := range r.Worlds {
		host := false
		for _, m := range w.Members {
			if m < 0 || m >= len(r.Members) || inWorld[m] {
				fault("world %q: member %d does not exist or is in two worlds", w.Name, m)
			}
			inWorld[m] = true
			host = host || m == w.HostMember
		}
		if w.Host == "" || w.Port < 1 || w.Port > 65535 || !host {
			fault("world %q has no store: host %q, port %d, on member %d", w.Name, w.Host, w.Port, w.HostMember)
		}
	}
	if len(inWorld) != len(r.Members) {
		fault("%d of %d members are in no world", len(r.Members)-len(inWorld), len(r.Members))
	}
	return errors.Join(faults...)
}
