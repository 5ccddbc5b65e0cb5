package member

import (
	"time"

	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/contract"
)

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Saw: the board shows this.
	Saw struct{ Sight rendezvous.Sight }
	// Checked: the preflight for an attempt ended with this report.
	Checked struct {
		Attempt int
		Report  contract.Report
	}
	// MarkerFailed: the released marker could not be written; nothing was
	// launched.
	MarkerFailed struct{ Err error }
	// Planned: the launch that is being made.
	Planned struct{ Launch torchrun.Launch }
	// RankStarted: a rank of a launch runs.
	RankStarted struct {
		Launch, Rank, PID int
		Local             int
		Restart           int // torchrun's count
	}
	// RankEnded: a rank of a launch ended.
	RankEnded struct {
		Launch, Rank int
		Code, Signal int
		OOM          bool
		PortBusy     bool // it was to open the store, and the port was taken
		At           time.Time
	}
	// LauncherEnded: torchrun ended, or the launch could not be made.
	LauncherEnded struct {
		Launch       int
		Code, Signal int
		PortBusy     bool
		Text         string // its last words
		Err          error  // nothing was started
		At           time.Time
	}
	// Moved: another port was found for the store, or not.
	Moved struct {
		Launch   int
		Endpoint contract.Endpoint
		Err      error
	}
	// Marked: a rank's script left a mark.
	Marked struct {
		Rank int
		Mark progress.Mark
	}
	// Asked: the planner asks the member to save and leave.
	Asked struct{ Ask contract.Ask }
	// Stopped: Nomad stops the task.
	Stopped struct {
		Grace  time.Duration
		Signal string // the task's kill_signal; empty: SIGTERM
		Now    bool   // no grace at all
	}
	// PeerAnswered: a peer whose report vanished was asked directly.
	PeerAnswered struct {
		Peer  contract.Member
		Alive bool
		Text  string // what was tried
	}
	// Hung: no progress for too long. Rank -1: no single one.
	Hung struct {
		Rank int
		Text string
	}
	// Cleared: no process of the member is left.
	Cleared struct {
		OOMKills int  // of its processes, by the kernel
		AtLimit  bool // it came up to its own memory limit
	}
	// Tick: time has passed.
	Tick struct{}
)

func (Saw) event()           {}
func (Checked) event()       {}
func (MarkerFailed) event()  {}
func (Planned) event()       {}
func (RankStarted) event()   {}
func (RankEnded) event()     {}
func (LauncherEnded) event() {}
func (Moved) event()         {}
func (Marked) event()        {}
func (Asked) event()         {}
func (Stopped) event()       {}
func (PeerAnswered) event()  {}
func (Hung) event()          {}
func (Cleared) event()       {}
func (Tick) event()          {}

// Action is something that is to be done.
type Action interface{ action() }

// The actions.
type (
	// Preflight: check for an attempt; the answer is Checked.
	Preflight struct {
		Attempt int
		Record  *contract.Record
		Member  int
	}
	// Publish: put the report on the board.
	Publish struct{ Report contract.Report }
	// MarkReleased: write the marker. Where that fails, the rest of the actions
	// of this step are dropped, and MarkerFailed follows.
	MarkReleased struct{ Attempt int }
	// Launch: end what an earlier launch left, and start this one.
	Launch struct {
		Number   int
		Record   *contract.Record
		Member   int
		Endpoint *contract.Endpoint
	}
	// MoveStore: find another port and publish it; the answer is Moved.
	MoveStore struct {
		Launch  int
		Attempt int
		World   string
		Move    int
		Why     string
		// Members that meet there, of an elastic world, and the record's round.
		Members []string
		Round   int
	}
	// Ask: let the preempt file appear and signal the ranks: with the config's
	// ask signal those that catch it. With Stop, those that do not catch it get
	// Stop instead, unless Spare says that the script listens in another way.
	Ask struct {
		Ask   contract.Ask
		Stop  string
		Spare bool
	}
	// Unask: the preempt file goes; the ranks are to go on.
	Unask struct{}
	// SignalNew: a rank that came after Ask gets the same.
	SignalNew struct{ Rank int }
	// Signal: send a signal to all ranks.
	Signal struct{ Signal string }
	// LetGo: the launcher may learn that the rank ended.
	LetGo struct{ Rank int }
	// AskPeer: ask a peer directly whether it lives; the answer is PeerAnswered.
	AskPeer struct {
		Peer contract.Member
	}
	// Evidence: write down what every rank is doing, before it is ended.
	Evidence struct{ Why string }
	// Clear: kill whatever is left until nothing is; the answer is Cleared.
	Clear struct{}
	// Tell: a task event for people.
	Tell struct{ Text string }
	// WriteExit: write the exit record.
	WriteExit struct{ Exit contract.Exit }
	// Finish: the member is over.
	Finish struct{ Exit contract.Exit }
)

func (Preflight) action()    {}
func (Publish) action()      {}
func (MarkReleased) action() {}
func (Launch) action()       {}
func (MoveStore) action()    {}
func (Ask) action()          {}
func (Unask) action()        {}
func (SignalNew) action()    {}
func (Signal) action()       {}
func (LetGo) action()        {}
func (AskPeer) action()      {}
func (Evidence) action()     {}
func (Clear) action()        {}
func (Tell) action()         {}
func (WriteExit) action()    {}
func (Finish) action()       {}

type actions struct{ list []Action }

func (a *actions) add(next Action)  { a.list = append(a.list, next) }
func (a *actions) tell(text string) { a.add(Tell{text}) }
