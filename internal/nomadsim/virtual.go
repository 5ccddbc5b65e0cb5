package nomadsim

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Script decides how a task on a virtual node behaves, once for each start.
type Script func(TaskStart) Behaviour

// TaskStart is what a script knows.
type TaskStart struct {
	NodeID, NodeName string
	Alloc            *wire.Allocation
	Task             *wire.Task
	Start            int // 1 for the first start of the task in this allocation
	Handle           *Task
}

// Behaviour is what a virtual task does. The zero value starts at once and runs until it is stopped.
type Behaviour struct {
	StartDelay  time.Duration // from setup to started
	StartErr    error         // it cannot be started
	Recoverable bool          // of StartErr: the restart policy may try again
	RunFor      time.Duration // then it ends with Exit; 0: it runs until it is stopped
	Exit        taskstate.Exit
	StopDelay   time.Duration // how long it takes to end when asked to
	IgnoreStop  bool          // it ends only by force
	StopExit    *taskstate.Exit
	OnStart     func(t *Task)                // called when it has started
	OnSignal    func(t *Task, signal string) // nil: a signal that kills ends it, any other is ignored
	OnStop      func(t *Task, signal string) // nil: it ends by the signal after StopDelay
}

// DefaultScript understands the config of Nomad's mock_driver (run_for, exit_code, exit_signal, start_error,
// start_error_recoverable, start_block_for, kill_after) and of a few commands: sleep N, and sh -c with exit N or
// kill -9 $$. Anything else runs until it is stopped.
func DefaultScript(s TaskStart) Behaviour {
	var b Behaviour
	cfg := s.Task.Config
	b.StartDelay = duration(cfg["start_block_for"])
	b.RunFor = duration(cfg["run_for"])
	b.Exit.Code = integer(cfg["exit_code"])
	b.Exit.Signal = integer(cfg["exit_signal"])
	b.StopDelay = duration(cfg["kill_after"])
	if b.Exit.Signal != 0 && b.Exit.Code == 0 {
		b.Exit.Code = 128 + b.Exit.Signal
	}
	if e, ok := cfg["start_error"].(string); ok && e != "" {
		b.StartErr = errorText(e)
		b.Recoverable, _ = cfg["start_error_recoverable"].(bool)
	}
	args, _ := cfg["args"].([]any)
	text := func(i int) string {
		if i < len(args) {
			t, _ := args[i].(string)
			return t
		}
		return ""
	}
	switch command, _ := cfg["command"].(string); command[strings.LastIndexByte(command, '/')+1:] {
	case "sleep":
		b.RunFor = duration(text(0))
	case "true":
		b.RunFor = time.Millisecond
	case "false":
		b.RunFor, b.Exit.Code = time.Millisecond, 1
	case "sh", "bash":
		if text(0) != "-c" {
			break
		}
		script := strings.TrimSpace(text(1))
		if n, ok := strings.CutPrefix(script, "exit "); ok {
			b.RunFor = time.Millisecond
			b.Exit.Code = integer(n)
		}
		if n, ok := strings.CutPrefix(script, "kill -"); ok && strings.HasSuffix(script, "$$") {
			sig := integer(strings.TrimSpace(strings.TrimSuffix(n, "$$")))
			b.RunFor = time.Millisecond
			b.Exit = taskstate.Exit{Code: 128 + sig, Signal: sig}
		}
	}
	if (b.Exit.Code != 0 || b.Exit.Signal != 0) && b.RunFor == 0 {
		b.RunFor = time.Millisecond
	}
	return b
}

type errorText string

func (e errorText) Error() string { return string(e) }

// duration reads a number of seconds or a duration; anything else is none.
func duration(v any) time.Duration {
	switch v := v.(type) {
	case string:
		if d, err := time.ParseDuration(v); err == nil {
			return d
		}
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return time.Duration(f * float64(time.Second))
		}
	case float64:
		return time.Duration(v * float64(time.Second))
	}
	return 0
}

func integer(v any) int {
	switch v := v.(type) {
	case float64:
		return int(v)
	case int:
		return v
	case string:
		n, _ := strconv.Atoi(strings.TrimSpace(v))
		return n
	}
	return 0
}

// virtualDriver runs tasks by script, without processes.
type virtualDriver struct {
	c    *Cluster
	node NodeConfig
}

// virtualTask is what the driver keeps of a task, in taskRun.data.
type virtualTask struct {
	mu     sync.Mutex
	b      Behaviour
	start  int
	timers []func()
}

func (d *virtualDriver) start(t *taskRun, start int) {
	t.r.mu.Lock()
	al, spec := t.r.alloc, t.spec
	h := &Task{run: t, AllocID: al.ID, Name: t.name, Node: al.NodeName}
	t.r.mu.Unlock()
	b := d.c.opts.Script(TaskStart{NodeID: al.NodeID, NodeName: al.NodeName, Alloc: al, Task: spec, Start: start, Handle: h})
	v := &virtualTask{b: b, start: start}
	t.r.mu.Lock()
	t.data = v
	t.r.mu.Unlock()
	d.later(v, b.StartDelay, func() {
		if b.StartErr != nil {
			t.startFailed(start, b.Recoverable, taskstate.DriverFailed(d.c.clock.Now(), b.StartErr.Error()))
			return
		}
		t.started(start)
		if b.OnStart != nil {
			b.OnStart(h)
		}
		if b.RunFor > 0 {
			d.later(v, b.RunFor, func() { t.exited(start, b.Exit) })
		}
	})
}

// later calls f after d, unless the task is discarded.
func (d *virtualDriver) later(v *virtualTask, after time.Duration, f func()) {
	if after <= 0 {
		f()
		return
	}
	stop := d.c.clock.AfterFunc(after, f)
	v.mu.Lock()
	v.timers = append(v.timers, stop)
	v.mu.Unlock()
}

func (d *virtualDriver) of(t *taskRun) *virtualTask {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	v, _ := t.data.(*virtualTask)
	return v
}

var fatal = map[string]int{"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGTERM": 15}

func (d *virtualDriver) signal(t *taskRun, signal string) error {
	v := d.of(t)
	if v == nil {
		return errorText("task not found")
	}
	if v.b.OnSignal != nil {
		v.b.OnSignal(&Task{run: t, AllocID: t.r.id, Name: t.name, Node: d.node.Name}, signal)
		return nil
	}
	if n := fatal[signal]; n != 0 {
		t.exited(v.start, taskstate.Exit{Code: 128 + n, Signal: n})
	}
	return nil
}

func (d *virtualDriver) stop(t *taskRun, start int, signal string, timeout time.Duration) {
	v := d.of(t)
	if v == nil || v.start != start {
		return
	}
	if signal == "" {
		signal = "SIGINT"
	}
	d.later(v, max(timeout, time.Millisecond), func() { t.exited(start, taskstate.Exit{Code: 137, Signal: 9}) })
	if v.b.OnStop != nil {
		v.b.OnStop(&Task{run: t, AllocID: t.r.id, Name: t.name, Node: d.node.Name}, signal)
		return
	}
	if v.b.IgnoreStop {
		return
	}
	exit := taskstate.Exit{Code: 130, Signal: 2}
	if n := fatal[signal]; n != 0 {
		exit = taskstate.Exit{Code: 128 + n, Signal: n}
	}
	if v.b.StopExit != nil {
		exit = *v.b.StopExit
	}
	if v.b.StopDelay < timeout {
		d.later(v, v.b.StopDelay, func() { t.exited(start, exit) })
	}
}

func (d *virtualDriver) recover(*taskRun, int) bool { return true }

func (d *virtualDriver) discard(t *taskRun) {
	v := d.of(t)
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, stop := range v.timers {
		stop()
	}
}
