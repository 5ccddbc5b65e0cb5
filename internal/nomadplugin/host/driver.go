package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// Driver keeps a task driver running.
type Driver struct{ keeper }

// Driver makes the keeper of a driver; nothing is launched before its first
// call.
func (p *Plugin) Driver(agent base.Agent) (*Driver, error) {
	if p.info.Type != base.TypeDriver {
		return nil, fmt.Errorf("plugin %q is a %v plugin, not a driver", p.info.Name, p.info.Type)
	}
	return &Driver{keeper{plugin: p, agent: agent}}, nil
}

// Attach takes up a process that an earlier agent left, before any other call.
// The process keeps the configuration that it has. After an error the next call
// launches a new process, as Nomad does.
func (d *Driver) Attach(ctx context.Context, r Reattach) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed != nil {
		return d.closed
	}
	if d.proc != nil {
		return errors.New("attach: there is a process already")
	}
	proc, err := d.plugin.attach(ctx, r)
	if err != nil {
		return err
	}
	info, _, err := proc.base.Info(ctx)
	if err == nil && info.Name != d.plugin.info.Name {
		err = fmt.Errorf("process %d is the plugin %q, not %q", r.PID, info.Name, d.plugin.info.Name)
	}
	if err == nil {
		err = d.prepare(ctx, proc)
	}
	if err != nil {
		proc.forget()
		return fmt.Errorf("attach to process %d: %w", r.PID, err)
	}
	d.proc = proc
	return nil
}

// Fingerprint calls receive with every report until ctx ends or receive
// returns an error. When the stream ends for another reason, receive gets an
// unhealthy report and the driver is asked again, in a new process after a
// crash.
func (d *Driver) Fingerprint(ctx context.Context, receive func(driver.Fingerprint) error) error {
	unhealthy := driver.Fingerprint{Health: driver.HealthUnhealthy, Description: "failed to fingerprint driver"}
	return d.follow(ctx, func(ctx context.Context, proc *process) (received, err error) {
		err = proc.driver.Fingerprint(ctx, func(f driver.Fingerprint) error {
			received = receive(f)
			return received
		})
		return received, err
	}, func() error { return receive(unhealthy) })
}

// TaskEvents calls receive with the events of all tasks until ctx ends or
// receive returns an error.
func (d *Driver) TaskEvents(ctx context.Context, receive func(*driver.TaskEvent) error) error {
	return d.follow(ctx, func(ctx context.Context, proc *process) (received, err error) {
		err = proc.driver.TaskEvents(ctx, func(e *driver.TaskEvent) error {
			received = receive(e)
			return received
		})
		return received, err
	}, func() error { return nil })
}

// follow runs a stream again whenever it ends; failed is called each time.
func (d *Driver) follow(ctx context.Context, run func(context.Context, *process) (received, err error), failed func() error) error {
	for {
		since := time.Now()
		proc, err := d.dispense(ctx)
		var received error
		if err == nil {
			received, err = run(ctx, proc)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case received != nil:
			return received
		case errors.Is(err, ErrClosed):
			return err
		}
		if closed := d.reason(); closed != nil {
			return closed
		}
		d.plugin.log.Warn("stream of the driver ended", "error", err)
		if err := failed(); err != nil {
			return err
		}
		pause(ctx, since)
	}
}

// reason is why the driver is closed; nil where it is not.
func (d *Driver) reason() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// TaskConfigSchema asks for the description of a task's config block.
func (d *Driver) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	proc, err := d.dispense(ctx)
	if err != nil {
		return nil, err
	}
	return proc.driver.TaskConfigSchema(ctx)
}

// Capabilities asks what the driver can do.
func (d *Driver) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	proc, err := d.dispense(ctx)
	if err != nil {
		return driver.Capabilities{}, err
	}
	return proc.driver.Capabilities(ctx)
}

// EncodeTaskConfig checks a task's config block against the driver's schema
// and encodes it for TaskConfig.MsgPackConfig; its errors are what Nomad shows
// as "Failed Validation". vars are the task's variables (hclspec.Variables). As
// in Nomad, an empty config is refused like a missing one.
func (d *Driver) EncodeTaskConfig(ctx context.Context, config map[string]any, vars map[string]cty.Value) ([]byte, error) {
	schema, err := d.TaskConfigSchema(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the schema of a task's config: %w", err)
	}
	if len(config) == 0 {
		config = nil
	}
	return hclspec.Encode(schema, config, vars)
}

// StartTask starts a task. A *base.RecoverableError may be tried again.
func (d *Driver) StartTask(ctx context.Context, cfg *driver.TaskConfig) (*Task, error) {
	proc, err := d.dispense(ctx)
	if err != nil {
		return nil, err
	}
	handle, err := proc.driver.StartTask(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Task{id: cfg.ID, handle: handle, proc: proc}, nil
}

// RecoverTask gives a task, known by the handle that StartTask returned, to the
// running process of the driver.
func (d *Driver) RecoverTask(ctx context.Context, handle *driver.TaskHandle) (*Task, error) {
	if handle == nil || handle.Config == nil {
		return nil, errors.New("recover task: the handle has no task configuration")
	}
	proc, err := d.dispense(ctx)
	if err != nil {
		return nil, err
	}
	if err := proc.driver.RecoverTask(ctx, handle); err != nil {
		return nil, err
	}
	return &Task{id: handle.Config.ID, handle: handle, proc: proc}, nil
}

// Task is a task in the process of the driver that started or recovered it.
// When that process is gone, every call returns ErrExited: recover the task
// with its handle and go on with the Task that this gives.
type Task struct {
	id     string
	handle *driver.TaskHandle
	proc   *process
}

// ID is the task's.
func (t *Task) ID() string { return t.id }

// Handle is to be kept for RecoverTask, also across agents.
func (t *Task) Handle() *driver.TaskHandle { return t.handle }

// Wait waits for the task's end; see driver.Client.WaitTask.
func (t *Task) Wait(ctx context.Context) (*driver.ExitResult, error) {
	return t.proc.driver.WaitTask(ctx, t.id)
}

// Stop ends the task: signal (empty: the driver's choice), then by force after
// timeout.
func (t *Task) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	return t.proc.driver.StopTask(ctx, t.id, timeout, signal)
}

// Destroy makes the driver forget the task; with force it ends it first. Nomad
// does so after every exit.
func (t *Task) Destroy(ctx context.Context, force bool) error {
	return t.proc.driver.DestroyTask(ctx, t.id, force)
}

// Signal delivers a signal or a free text.
func (t *Task) Signal(ctx context.Context, signal string) error {
	return t.proc.driver.SignalTask(ctx, t.id, signal)
}

// Inspect asks for the task's state.
func (t *Task) Inspect(ctx context.Context) (*driver.TaskStatus, error) {
	return t.proc.driver.InspectTask(ctx, t.id)
}

// Stats calls receive with the task's usage; see driver.Client.TaskStats.
func (t *Task) Stats(ctx context.Context, interval time.Duration, receive func(*driver.TaskUsage) error) error {
	return t.proc.driver.TaskStats(ctx, t.id, interval, receive)
}

// Exec runs a command beside the task; see driver.Client.ExecTask.
func (t *Task) Exec(ctx context.Context, req driver.ExecRequest) (*driver.ExitResult, error) {
	return t.proc.driver.ExecTask(ctx, t.id, req)
}
