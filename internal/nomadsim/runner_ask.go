package nomadsim

import (
	"fmt"

	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
)

func (r *allocRun) task(name string) *taskRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[name]
}

// signal sends a signal, or free text, to one task or to all.
func (r *allocRun) signal(task, signal string) error {
	r.mu.Lock()
	var to []*taskRun
	for _, name := range r.order {
		if t := r.tasks[name]; (task == "" || task == name) && t != nil {
			if !t.live {
				if task != "" {
					r.mu.Unlock()
					return fmt.Errorf("Task not running")
				}
				continue
			}
			to = append(to, t)
		}
	}
	r.mu.Unlock()
	if task != "" && len(to) == 0 {
		return fmt.Errorf("Task not found")
	}
	for _, t := range to {
		t.note(taskstate.Signal(r.a.c.clock.Now(), signal))
		if err := r.a.driver.signal(t, signal); err != nil {
			if task != "" {
				return err
			}
			return fmt.Errorf("Failed to signal task: %s, err: %v", t.name, err)
		}
	}
	return nil
}

// restart ends and starts again one task, or all that run.
func (r *allocRun) restart(task string, all bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping || r.done() {
		return fmt.Errorf("restart of an alloc that should not run")
	}
	found := false
	for _, name := range r.order {
		t := r.tasks[name]
		if task != "" && task != name {
			continue
		}
		found = true
		if !t.live {
			if task != "" || len(r.order) == 1 {
				return fmt.Errorf("Task not running")
			}
			continue
		}
		t.state = taskstate.Append(t.state, taskstate.RestartAsked(r.a.c.clock.Now(), "User requested task to restart"))
		t.again = true
		t.askToEnd()
	}
	if !found {
		return fmt.Errorf("Could not find task runner for task: %s", task)
	}
	return nil
}
