// Package taskstate keeps the states of an allocation's tasks as a Nomad client does: the last ten events of each, what
// follows from them for the allocation, and whether the restart policy lets a task that has ended start again.
package taskstate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// MaxEvents is how many events a task keeps.
const MaxEvents = 10

// Types of events.
const (
	Received       = "Received"
	TaskSetup      = "Task Setup"
	Started        = "Started"
	Terminated     = "Terminated"
	Killing        = "Killing"
	Killed         = "Killed"
	Restarting     = "Restarting"
	NotRestarting  = "Not Restarting"
	RestartSignal  = "Restart Signaled"
	Signaling      = "Signaling"
	DriverFailure  = "Driver Failure"
	SetupFailure   = "Setup Failure"
	FailedValid    = "Failed Validation"
	SiblingFailed  = "Sibling Task Failed"
	LeaderDead     = "Leader Task Dead"
	DriverMessage  = "Driver"
	Reconnected    = "Reconnected"
	MainTasksDead  = "Main Tasks Dead"
	TemplateFailed = "Template"
)

// Event makes an event of a type; set changes its other fields.
func Event(kind string, at time.Time, set func(*wire.TaskEvent)) *wire.TaskEvent {
	e := &wire.TaskEvent{Type: kind, Time: at.UnixNano(), Details: map[string]string{}}
	if set != nil {
		set(e)
	}
	e.DisplayMessage = display(e)
	return e
}

// Setup tells that the task's directory is being built.
func Setup(at time.Time) *wire.TaskEvent {
	return Event(TaskSetup, at, func(e *wire.TaskEvent) {
		e.Message = "Building Task Directory"
		e.Details["message"] = e.Message
	})
}

// Ended tells how a task's process ended.
func Ended(at time.Time, exit Exit) *wire.TaskEvent {
	return Event(Terminated, at, func(e *wire.TaskEvent) {
		e.ExitCode, e.Signal = exit.Code, exit.Signal
		e.Details["exit_code"], e.Details["signal"] = strconv.Itoa(exit.Code), strconv.Itoa(exit.Signal)
		e.Details["oom_killed"] = strconv.FormatBool(exit.OOMKilled)
		if exit.Err != "" {
			e.Message = exit.Err
			e.Details["exit_message"] = exit.Err
		}
	})
}

// Kill tells that a task is asked to end.
func Kill(at time.Time, timeout time.Duration) *wire.TaskEvent {
	return Event(Killing, at, func(e *wire.TaskEvent) {
		e.KillTimeout = timeout
		e.Details["kill_timeout"] = timeout.String()
	})
}

// NoRestart tells why a task stays dead, and fails it.
func NoRestart(at time.Time, why string) *wire.TaskEvent {
	return Event(NotRestarting, at, func(e *wire.TaskEvent) {
		e.FailsTask, e.RestartReason = true, why
		e.Details["fails_task"], e.Details["restart_reason"] = "true", why
	})
}

// Restart tells when a task starts again and why.
func Restart(at time.Time, why string, delay time.Duration) *wire.TaskEvent {
	return Event(Restarting, at, func(e *wire.TaskEvent) {
		e.RestartReason, e.StartDelay = why, int64(delay)
		e.Details["restart_reason"], e.Details["start_delay"] = why, strconv.FormatInt(int64(delay), 10)
	})
}

// RestartAsked tells that someone asked for a restart.
func RestartAsked(at time.Time, why string) *wire.TaskEvent {
	return Event(RestartSignal, at, func(e *wire.TaskEvent) {
		e.RestartReason = why
		e.Details["restart_reason"] = why
	})
}

// Signal tells that a signal was sent.
func Signal(at time.Time, signal string) *wire.TaskEvent {
	return Event(Signaling, at, func(e *wire.TaskEvent) { e.Details["signal"] = signal })
}

// DriverFailed tells that the driver could not start the task.
func DriverFailed(at time.Time, err string) *wire.TaskEvent {
	return Event(DriverFailure, at, func(e *wire.TaskEvent) {
		e.DriverError = err
		e.Details["driver_error"] = err
	})
}

// SetupFailed tells that what comes before the driver failed, for good.
func SetupFailed(at time.Time, err string) *wire.TaskEvent {
	return Event(SetupFailure, at, func(e *wire.TaskEvent) {
		e.SetupError, e.FailsTask = err, true
		e.Details["setup_error"], e.Details["fails_task"] = err, "true"
	})
}

// Invalid tells that the task's config is wrong.
func Invalid(at time.Time, err string) *wire.TaskEvent {
	return Event(FailedValid, at, func(e *wire.TaskEvent) {
		e.ValidationError, e.FailsTask = err, true
		e.Details["validation_error"], e.Details["fails_task"] = err, "true"
	})
}

// FromDriver is an event that the driver sent.
func FromDriver(at time.Time, message string, annotations map[string]string) *wire.TaskEvent {
	return Event(DriverMessage, at, func(e *wire.TaskEvent) {
		e.DriverMessage = message
		maps.Copy(e.Details, annotations)
		e.Details["driver_message"] = message
	})
}

func display(e *wire.TaskEvent) string {
	switch e.Type {
	case Received:
		return "Task received by client"
	case TaskSetup:
		return e.Message
	case Started:
		return "Task started by client"
	case Terminated:
		s := fmt.Sprintf("Exit Code: %d", e.ExitCode)
		if e.Signal != 0 {
			s += fmt.Sprintf(", Signal: %d", e.Signal)
		}
		if e.Message != "" {
			s += fmt.Sprintf(", Exit Message: %q", e.Message)
		}
		return s
	case Killing:
		switch {
		case e.KillReason != "":
			return e.KillReason
		case e.KillTimeout != 0:
			return fmt.Sprintf("Sent interrupt. Waiting %v before force killing", e.KillTimeout)
		}
		return "Sent interrupt"
	case Killed:
		if e.KillError != "" {
			return e.KillError
		}
		return "Task successfully killed"
	case Restarting:
		s := fmt.Sprintf("Task restarting in %v", time.Duration(e.StartDelay))
		if e.RestartReason != "" && e.RestartReason != ReasonWithinPolicy {
			s = e.RestartReason + " - " + s
		}
		return s
	case NotRestarting:
		if e.RestartReason != "" {
			return e.RestartReason
		}
		return "Task exceeded restart policy"
	case RestartSignal:
		if e.RestartReason != "" {
			return e.RestartReason
		}
		return "Task signaled to restart"
	case Signaling:
		switch {
		case e.TaskSignal == "" && e.TaskSignalReason == "":
			return "Task being sent a signal"
		case e.TaskSignal == "":
			return e.TaskSignalReason
		case e.TaskSignalReason == "":
			return fmt.Sprintf("Task being sent signal %v", e.TaskSignal)
		}
		return fmt.Sprintf("Task being sent signal %v: %v", e.TaskSignal, e.TaskSignalReason)
	case DriverFailure:
		if e.DriverError != "" {
			return e.DriverError
		}
		return "Failed to start task"
	case SetupFailure:
		if e.SetupError != "" {
			return e.SetupError
		}
		return "Task setup failed"
	case FailedValid:
		if e.ValidationError != "" {
			return e.ValidationError
		}
		return "Validation of task failed"
	case SiblingFailed:
		if e.FailedSibling != "" {
			return fmt.Sprintf("Task's sibling %q failed", e.FailedSibling)
		}
		return "Task's sibling failed"
	case LeaderDead:
		return "Leader Task in Group dead"
	case MainTasksDead:
		return "Main tasks in the group died"
	case DriverMessage:
		return e.DriverMessage
	case Reconnected:
		return "Client reconnected"
	}
	return e.Message
}

// Exit is how a process ended. OOMKilled says that the kernel took it for want of memory.
type Exit struct {
	Code      int
	Signal    int
	OOMKilled bool
	Err       string
}

// Failed says whether the exit is a failure.
func (e Exit) Failed() bool { return e.Code != 0 || e.Signal != 0 || e.Err != "" }

// Append adds an event to a task's state, which is copied.
func Append(s *wire.TaskState, e *wire.TaskEvent) *wire.TaskState {
	c := *s
	c.Events = append(slices.Clone(s.Events), e)
	if n := len(c.Events); n > MaxEvents {
		c.Events = c.Events[n-MaxEvents:]
	}
	if e.FailsTask {
		c.Failed = true
	}
	return &c
}

// New is the state of a task that was just received.
func New(at time.Time) *wire.TaskState {
	return Append(&wire.TaskState{State: wire.TaskPending}, Event(Received, at, nil))
}

// AllocStatus is what the states of its tasks make of an allocation.
func AllocStatus(states map[string]*wire.TaskState) (status, description string) {
	var pending, running, dead, failed bool
	for _, s := range states {
		switch s.State {
		case wire.TaskRunning:
			running = true
		case wire.TaskPending:
			pending = true
		case wire.TaskDead:
			if s.Failed {
				failed = true
			} else {
				dead = true
			}
		}
	}
	switch {
	case failed:
		return wire.ClientFailed, "Failed tasks"
	case running:
		return wire.ClientRunning, "Tasks are running"
	case pending:
		return wire.ClientPending, "No tasks have started"
	case dead:
		return wire.ClientComplete, "All tasks have completed"
	}
	return "", ""
}

// Reasons of the restart policy.
const (
	ReasonNoRestarts   = "Policy allows no restarts"
	ReasonWithinPolicy = "Restart within policy"
	reasonDelay        = "Exceeded allowed attempts, applying a delay"
)

// Restarts follows a task's restart policy. The zero value is not of use: set Policy.
type Restarts struct {
	Policy  *wire.RestartPolicy
	Always  bool                                   // services and system jobs start again after a success, too
	Jitter  func(most time.Duration) time.Duration // what is added to a delay, up to a quarter of it; nil: nothing
	count   int
	started time.Time
}

// Decide says, for a task that has ended, whether it starts again, after how long, and why.
func (r *Restarts) Decide(now time.Time, exit Exit) (again bool, delay time.Duration, why string) {
	if !exit.Failed() && !r.Always {
		return false, 0, ""
	}
	return r.failure(now, "")
}

// StartFailed is Decide for a task whose driver could not start it; only a recoverable error is tried again.
func (r *Restarts) StartFailed(now time.Time, recoverable bool, err string) (again bool, delay time.Duration, why string) {
	if r.Policy == nil || r.Policy.Attempts == 0 {
		return false, 0, ReasonNoRestarts
	}
	if !recoverable {
		return false, 0, "Error was unrecoverable"
	}
	return r.failure(now, err)
}

func (r *Restarts) failure(now time.Time, _ string) (bool, time.Duration, string) {
	p := r.Policy
	if p == nil || p.Attempts == 0 {
		return false, 0, ReasonNoRestarts
	}
	if r.started.IsZero() || now.Sub(r.started) > p.Interval {
		r.started, r.count = now, 0
	}
	r.count++
	if r.count > p.Attempts {
		if p.Mode == "fail" {
			return false, 0, fmt.Sprintf("Exceeded allowed attempts %d in interval %v and mode is %q", p.Attempts, p.Interval, p.Mode)
		}
		wait := r.started.Add(p.Interval).Sub(now)
		return true, wait, reasonDelay
	}
	delay := p.Delay
	if r.Jitter != nil {
		delay += r.Jitter(delay / 4)
	}
	return true, delay, ReasonWithinPolicy
}
