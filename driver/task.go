package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// task is one task as this process knows it.
type task struct {
	plugin *Plugin
	cfg    *driver.TaskConfig
	dir    taskdir.Dir
	number int // of the start
	start  taskdir.StartDir
	began  time.Time

	done   chan struct{} // closed when exit is known
	exit   contract.Exit
	forgot chan struct{}
	once   sync.Once
}

func newTask(p *Plugin, cfg *driver.TaskConfig, dir taskdir.Dir, start int) *task {
	return &task{plugin: p, cfg: cfg, dir: dir, number: start, start: dir.Start(start), began: time.Now(), done: make(chan struct{}), forgot: make(chan struct{})}
}

// follow passes the supervisor's news on until the task is over. A connection
// that breaks means nothing; a supervisor's process that is gone does.
func (t *task) follow() {
	for {
		exit, _ := shim.Watch(t.start.Socket(), t.forgot, func(e shim.Event) {
			t.plugin.events.add(&driver.TaskEvent{TaskID: t.cfg.ID, AllocID: t.cfg.AllocID, TaskName: t.cfg.Name, At: e.At, Message: e.Text, Annotations: e.Annotations})
		})
		select {
		case <-t.forgot:
			return
		default:
		}
		if exit == nil && !t.shimAlive() {
			if exit, _ = t.start.ReadExit(); exit == nil { // it may have been written just before
				exit = t.lost()
			}
			// It died before its last steps, or in the middle of them.
			t.removeCgroups()
			t.reportFor(*exit)
		}
		if exit != nil {
			t.exit = *exit
			close(t.done)
			return
		}
		select {
		case <-t.forgot:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// shimAlive tells whether the supervisor's process lives: exactly the one that
// wrote itself down.
func (t *task) shimAlive() bool {
	s, err := t.start.ReadShim()
	return err == nil && s.Process.Alive()
}

// lost is the end of a task whose supervisor died: its ranks died with it, and
// what is left of them is killed.
func (t *task) lost() *contract.Exit {
	x := contract.Exit{Outcome: contract.OutcomeLost, Code: -1, Rank: -1, At: time.Now(), Text: "the task's supervisor died, and its ranks with it"}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t.killCgroups()
	if err := isolation.Kill(ctx, t.leftovers()); err != nil {
		x.Text += "; some processes are left: " + err.Error()
	}
	if s, err := t.start.ReadShim(); err == nil && len(s.Remove) > 0 {
		err := image.Clear(ctx, func(ctx context.Context, argv []string, _ func(string)) ([]byte, error) {
			return runProgram(ctx, argv, []string{"PATH=" + defaultPath, "HOME=/root"}, "/")
		}, s.Remove)
		if err != nil {
			x.Text += fmt.Sprintf("; its container is left, to be removed by %q: %v", strings.Join(s.Remove, " "), err)
		}
	}
	if err := t.start.WriteExit(x); err != nil {
		t.plugin.log.Error("cannot write the exit record", "task", t.cfg.ID, "error", err)
	}
	t.plugin.events.add(&driver.TaskEvent{TaskID: t.cfg.ID, AllocID: t.cfg.AllocID, TaskName: t.cfg.Name, At: x.At, Message: x.Text})
	return &x
}

// leftovers finds the task's processes without its supervisor's help.
func (t *task) leftovers() isolation.Finder {
	find := func() ([]int, error) { return isolation.WithEntry(contract.EnvTask + "=" + t.cfg.ID) }
	if s, err := t.start.ReadShim(); err == nil {
		for _, path := range s.Cgroups {
			find = isolation.Any(find, (&isolation.Cgroup{Track: path}).Processes)
		}
	}
	return find
}

// killCgroups ends what is in the task's cgroups; leftovers finds what is not.
func (t *task) killCgroups() {
	if s, err := t.start.ReadShim(); err == nil {
		for _, path := range s.Cgroups {
			if err := (&isolation.Cgroup{Track: path}).Kill(); err != nil {
				t.plugin.log.Warn("cannot end a cgroup's processes at once; one by one", "task", t.cfg.ID, "error", err)
			}
		}
	}
}

func (t *task) removeCgroups() {
	if s, err := t.start.ReadShim(); err == nil {
		t.plugin.hierarchy.RemoveNamed(filepath.Base(firstOr(s.Cgroups, "")))
	}
}

func firstOr(list []string, fallback string) string {
	if len(list) == 0 {
		return fallback
	}
	return list[0]
}

// reportFor tells the board in the supervisor's place, so that nobody has to
// wait for its session to run out.
func (t *task) reportFor(x contract.Exit) {
	config, _ := t.plugin.settings()
	if config.Rendezvous == contract.RendezvousSignal {
		return
	}
	self := rendezvous.Self{Gang: contract.GangID{Region: t.cfg.Env["NOMAD_REGION"], Namespace: t.cfg.Namespace, Job: t.cfg.JobID}, Alloc: t.cfg.AllocID, Task: t.cfg.Name, Start: t.number}
	board, err := rendezvous.NewConsul(config.Consul, self)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = board.Forget(ctx)
	if released, e := t.dir.WasReleased(); err == nil && e == nil && released != nil {
		err = board.Publish(ctx, contract.Report{V: contract.RecordVersion, Gang: self.Gang, Attempt: released.Attempt, Alloc: self.Alloc, Task: self.Task, Start: self.Start,
			State: contract.StateEnded, Exit: &x, At: x.At})
	}
	if err != nil {
		t.plugin.log.Warn("cannot report a lost member; its peers learn of it when its session ends", "task", t.cfg.ID, "error", err)
	}
	_ = board.Close(ctx)
}

// result is the exit as Nomad is told it.
func (t *task) result() *driver.ExitResult {
	code, signal := member.NomadCode(t.exit)
	r := &driver.ExitResult{ExitCode: code, Signal: signal, OOMKilled: t.exit.OOM}
	if code != 0 {
		r.Err = fmt.Errorf("%s: %s", t.exit.Outcome, t.exit.Text)
	}
	return r
}

// call sends a request to the supervisor. A task that is over has none.
func (t *task) call(r shim.Request) (shim.Answer, error) {
	select {
	case <-t.done:
		return shim.Answer{}, fmt.Errorf("task %s is over: %s", t.cfg.ID, t.exit.Text)
	default:
	}
	a, err := shim.Call(t.start.Socket(), r, 10*time.Second)
	if err != nil {
		return a, fmt.Errorf("task %s: %w", t.cfg.ID, err)
	}
	return a, nil
}

// extensions of the grace that a supervisor may give, and its own waits, on top
// of Nomad's timeout.
const stopSlack = time.Minute

// stop asks the supervisor to end the task and waits until it is over.
func (t *task) stop(timeout time.Duration, signal string) error {
	select {
	case <-t.done:
		return nil
	default:
	}
	if _, err := t.call(shim.Request{Op: shim.OpStop, Grace: timeout, Signal: signal}); err != nil {
		if t.over(time.Second) {
			return nil
		}
		t.plugin.log.Warn("the supervisor does not take the stop; the task is killed", "task", t.cfg.ID, "error", err)
		return t.kill()
	}
	if t.over(3*timeout + stopSlack) {
		return nil
	}
	return t.kill()
}

func (t *task) over(within time.Duration) bool {
	select {
	case <-t.done:
		return true
	case <-time.After(within):
		return false
	}
}

// kill ends the task without grace: through its supervisor, else with it.
func (t *task) kill() error {
	if _, err := t.call(shim.Request{Op: shim.OpKill}); err == nil && t.over(20*time.Second) {
		return nil
	}
	if s, err := t.start.ReadShim(); err == nil && s.Process.Alive() {
		_ = unix.Kill(s.Process.PID, unix.SIGKILL)
	}
	if t.over(40 * time.Second) {
		return nil
	}
	return errors.New("its processes cannot be ended; see the task's events")
}

// forgottenFile marks a start whose task Nomad has destroyed.
const forgottenFile = "destroyed"

// forget stops following; the records stay for later starts of the allocation.
func (t *task) forget() {
	t.once.Do(func() {
		close(t.forgot)
		_ = os.WriteFile(filepath.Join(string(t.start), forgottenFile), nil, 0o600)
	})
}

func (t *task) forgottenBefore() bool {
	_, err := os.Stat(filepath.Join(string(t.start), forgottenFile))
	return err == nil
}

func (t *task) signal(text string) error {
	kind, rest, _ := strings.Cut(text, " ")
	r := shim.Request{Op: shim.OpSignal, Signal: text}
	switch kind {
	case contract.SignalRecord:
		r = shim.Request{Op: shim.OpRecord, Text: rest}
	case contract.SignalAsk:
		r = shim.Request{Op: shim.OpAsk, Text: rest}
	}
	_, err := t.call(r)
	return err
}

func (t *task) inspect() *driver.TaskStatus {
	s := &driver.TaskStatus{ID: t.cfg.ID, Name: t.cfg.Name, State: driver.TaskStateRunning, Started: t.began, DriverAttributes: map[string]string{"start": strconv.Itoa(t.number)}}
	select {
	case <-t.done:
		s.State, s.Ended, s.Exit = driver.TaskStateExited, t.exit.At, t.result()
		s.DriverAttributes["outcome"] = string(t.exit.Outcome)
		return s
	default:
	}
	a, err := t.call(shim.Request{Op: shim.OpStatus})
	if err != nil || a.Status == nil {
		s.State = driver.TaskStateUnknown
		return s
	}
	s.Started = a.Status.Started
	s.DriverAttributes["stage"], s.DriverAttributes["attempt"] = string(a.Status.Stage), strconv.Itoa(a.Status.Attempt)
	s.DriverAttributes["supervisor"] = strconv.Itoa(a.Status.PID)
	if a.Status.Store != "" {
		s.DriverAttributes["store"] = a.Status.Store
	}
	return s
}

// RecoverTask finds a task again.
func (p *Plugin) RecoverTask(handle *driver.TaskHandle) error {
	cfg := handle.Config
	if _, err := p.find(cfg.ID); err == nil {
		return nil
	}
	if handle.Version != handleVersion {
		return fmt.Errorf("recover task %s: its handle is of version %d, and this build reads %d", cfg.ID, handle.Version, handleVersion)
	}
	var state handleState
	if err := json.Unmarshal(handle.Driver, &state); err != nil || state.Dir == "" || state.Start < 1 {
		return fmt.Errorf("recover task %s: its handle cannot be read: %w", cfg.ID, errors.Join(err, errors.New("it names no start")))
	}
	t := newTask(p, cfg, state.Dir, state.Start)
	written, err := t.start.ReadShim()
	if err != nil {
		return fmt.Errorf("recover task %s: %w", cfg.ID, err)
	}
	if written.TaskID != cfg.ID {
		return fmt.Errorf("recover task %s: its folder is of task %s", cfg.ID, written.TaskID)
	}
	if t.forgottenBefore() {
		return fmt.Errorf("recover task %s: it is over, and Nomad has been told", cfg.ID)
	}
	p.adopt(t)
	return nil
}
