package nomadsim

import (
	"fmt"

	"github.com/nomad-muster/muster/internal/nomadsim/sched"
	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// StopAgent ends a node's agent as a service manager does. Its tasks go on.
func (c *Cluster) StopAgent(node string) error {
	return c.withAgent(node, func(a *agent) { a.stop(true) })
}

// KillAgent ends a node's agent as kill -9 does. Its tasks and plugins go on.
func (c *Cluster) KillAgent(node string) error {
	return c.withAgent(node, func(a *agent) { a.stop(false) })
}

// StartAgent starts a node's agent again. It finds its tasks.
func (c *Cluster) StartAgent(node string) error {
	a := c.agent(node)
	if a == nil {
		return fmt.Errorf("node %s is not known", node)
	}
	return a.start()
}

// Reconfigure changes what a node's agent finds at its next start: its meta, its attributes, its devices. Its name, id
// and kind stay.
func (c *Cluster) Reconfigure(node string, change func(*NodeConfig)) error {
	return c.withAgent(node, func(a *agent) {
		a.mu.Lock()
		defer a.mu.Unlock()
		old := a.cfg
		change(&a.cfg)
		a.cfg.Name, a.cfg.ID, a.cfg.Live = old.Name, old.ID, old.Live
	})
}

// Partition cuts a node off from the server, or heals the cut. Its tasks go on.
func (c *Cluster) Partition(node string, on bool) error {
	return c.withAgent(node, func(a *agent) {
		a.mu.Lock()
		was := a.cut
		a.cut = on
		up := a.up
		if !on && a.lost != nil && up {
			a.lost()
			a.lost = nil
		}
		a.mu.Unlock()
		switch {
		case on && !was:
			a.away()
		case !on && was && up:
			if n := c.store.Snapshot().Node(node); n != nil {
				a.rejoin(n.Status)
			}
			a.mu.Lock()
			a.arm()
			a.mu.Unlock()
			c.wake(node)
		}
	})
}

func (c *Cluster) withAgent(node string, f func(*agent)) error {
	a := c.agent(node)
	if a == nil {
		return fmt.Errorf("node %s is not known", node)
	}
	f(a)
	return nil
}

// SetDevices has a virtual node's client find other devices, or the same ones in another state.
func (c *Cluster) SetDevices(node string, devices []*wire.NodeDevice) error {
	return c.withAgent(node, func(a *agent) { c.setDevices(node, devices) })
}

func (c *Cluster) setDevices(node string, devices []*wire.NodeDevice) {
	old := c.store.Snapshot().Node(node)
	if old == nil {
		return
	}
	n := *old
	res := *old.NodeResources
	res.Devices = devices
	n.NodeResources = &res
	n.ComputedClass = sched.ComputedClass(&n)
	c.register(&n)
}

// SetDeviceHealth changes the health of one device of a virtual node.
func (c *Cluster) SetDeviceHealth(node, device string, healthy bool, description string) error {
	n := c.store.Snapshot().Node(node)
	if n == nil {
		return fmt.Errorf("node %s is not known", node)
	}
	found := false
	var out []*wire.NodeDevice
	for _, d := range n.NodeResources.Devices {
		g := *d
		g.Instances = nil
		for _, in := range d.Instances {
			i := *in
			if i.ID == device {
				i.Healthy, i.HealthDescription, found = healthy, description, true
			}
			g.Instances = append(g.Instances, &i)
		}
		out = append(out, &g)
	}
	if !found {
		return fmt.Errorf("node %s has no device %s", node, device)
	}
	c.setDevices(node, out)
	return nil
}

// Task finds a running task of an allocation, so that a test may end it or have it tell something.
func (c *Cluster) Task(alloc, task string) (*Task, error) {
	al := c.store.Snapshot().Alloc(alloc)
	if al == nil {
		return nil, fmt.Errorf("allocation %s is not known", alloc)
	}
	a := c.agent(al.NodeID)
	if a == nil {
		return nil, fmt.Errorf("node %s of allocation %s is not known", al.NodeID, alloc)
	}
	r := a.run(alloc)
	if r == nil {
		return nil, fmt.Errorf("allocation %s does not run on node %s", alloc, al.NodeName)
	}
	t := r.task(task)
	if t == nil {
		return nil, fmt.Errorf("allocation %s has no task %q", alloc, task)
	}
	return &Task{run: t, AllocID: alloc, Name: task, Node: al.NodeName}, nil
}

// Task is a task on a node.
type Task struct {
	run     *taskRun
	AllocID string
	Name    string
	Node    string
}

// Exit ends the task's process.
func (t *Task) Exit(e taskstate.Exit) { t.run.exited(t.run.currentStart(), e) }

// Event adds an event of the driver to the task.
func (t *Task) Event(message string, annotations map[string]string) {
	t.run.driverEvent(message, annotations)
}
