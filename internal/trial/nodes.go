//go:build linux

package trial

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// awaitNodes returns when every node is ready, with a healthy driver and all
// its cards published.
func (c *Cluster) awaitNodes(ctx context.Context) error {
	last := ""
	err := poll(ctx, "wait for the nodes", func(ctx context.Context) error {
		err := c.nodesReady(ctx)
		if err != nil && err.Error() != last {
			last = err.Error()
			c.progress("waiting: " + last)
		}
		return err
	})
	if err != nil {
		for _, n := range c.nodes {
			err = fmt.Errorf("%w\n%s", err, c.nomad.logs(n.Name))
		}
	}
	return err
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	var listed []struct {
		Name, Status string
		Drivers      map[string]struct {
			Healthy           bool
			HealthDescription string
		}
		NodeResources *struct {
			Devices []struct {
				Type      string
				Instances []struct{ Healthy bool }
			}
		}
	}
	if err := call(ctx, "GET", c.NomadAddr+"/v1/nodes?resources=true", nil, &listed); err != nil {
		return err
	}
	var missing []string
	for _, n := range c.nodes {
		state := "not registered"
		for _, l := range listed {
			if l.Name != n.Name {
				continue
			}
			cards := 0
			if l.NodeResources != nil {
				for _, d := range l.NodeResources.Devices {
					if d.Type == "gpu" {
						cards += len(d.Instances)
					}
				}
			}
			switch {
			case l.Status != "ready":
				state = l.Status
			case !l.Drivers["torchrun"].Healthy:
				state = "its driver is not healthy (" + l.Drivers["torchrun"].HealthDescription + ")"
			case cards != n.Cards:
				state = fmt.Sprintf("publishes %d of %d cards", cards, n.Cards)
			default:
				state = ""
			}
			if state == "" {
				break
			}
		}
		if state != "" {
			missing = append(missing, n.Name+": "+state)
		}
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	return nil
}

// poll calls ready until it gives no error or ctx ends.
func poll(ctx context.Context, what string, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w)", what, ctx.Err(), err)
		}
	}
}

// KillClient ends a node's agent as a crash does: its plugins and tasks stay.
func (c *Cluster) KillClient(node string) error { return c.nomad.killClient(node) }

// StartClient starts a killed agent again, with the state it had. It returns
// at once.
func (c *Cluster) StartClient(node string) error { return c.nomad.startClient(node) }

// Inject brings a fault upon a node's simulated cards, as "nomad-device-gpu
// inject" takes it: -card N or -nic NAME, then the fault.
func (c *Cluster) Inject(ctx context.Context, node string, fault ...string) error {
	for _, n := range c.nodes {
		if n.Name != node {
			continue
		}
		r, err := c.Run(ctx, c.Binaries.Device, append([]string{"inject", "-file", n.cardsFile(), "-node", node}, fault...)...)
		if err == nil && r.Code != 0 {
			err = fmt.Errorf("inject %v into node %s: %s", fault, node, r.Stderr)
		}
		return err
	}
	return fmt.Errorf("inject %v: there is no node %q", fault, node)
}

// CardsFile is the description of a node's simulated cards, which may be
// edited while the cluster runs.
func (c *Cluster) CardsFile(node string) string {
	for _, n := range c.nodes {
		if n.Name == node {
			return n.cardsFile()
		}
	}
	return ""
}

// The plugins that KillPlugin takes.
const (
	DriverPlugin = driverName
	DevicePlugin = deviceName
)

// plugin tells a plugin from a supervisor, which runs the driver's binary too,
// with arguments.
func (r Running) plugin() bool {
	name := filepath.Base(r.Args[0])
	return len(r.Args) == 1 && (name == DriverPlugin || name == DevicePlugin)
}

// KillPlugin ends a node's plugin process at once; Nomad's client is to notice
// and start another.
func (c *Cluster) KillPlugin(node, plugin string) error {
	for _, n := range c.nodes {
		if n.Name != node {
			continue
		}
		path := n.plugins() + "/" + plugin
		running, err := Processes(path)
		if err != nil {
			return err
		}
		killed := false
		for _, p := range running {
			if p.Args[0] == path && p.plugin() {
				if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil {
					return fmt.Errorf("kill plugin %s of node %s: %w", plugin, node, err)
				}
				killed = true
			}
		}
		if !killed {
			return fmt.Errorf("kill plugin %s of node %s: no process of it runs", plugin, node)
		}
		return nil
	}
	return fmt.Errorf("kill plugin %s of node %s: there is no such node", plugin, node)
}

// StopJobs deregisters every job and returns when all allocations have ended.
func (c *Cluster) StopJobs(ctx context.Context) error {
	var jobs []struct {
		ID, Namespace string
		Stop          bool
	}
	if err := call(ctx, "GET", c.NomadAddr+"/v1/jobs?namespace=*", nil, &jobs); err != nil {
		return fmt.Errorf("list jobs: %w", err)
	}
	for _, j := range jobs {
		if j.Stop {
			continue
		}
		address := c.NomadAddr + "/v1/job/" + url.PathEscape(j.ID) + "?namespace=" + url.QueryEscape(j.Namespace)
		if err := call(ctx, "DELETE", address, nil, nil); err != nil {
			return fmt.Errorf("stop job %s: %w", j.ID, err)
		}
	}
	return poll(ctx, "wait for allocations to end", func(ctx context.Context) error {
		var allocs []struct{ ID, JobID, ClientStatus string }
		if err := call(ctx, "GET", c.NomadAddr+"/v1/allocations?namespace=*", nil, &allocs); err != nil {
			return err
		}
		for _, a := range allocs {
			if a.ClientStatus == "pending" || a.ClientStatus == "running" || a.ClientStatus == "unknown" {
				return fmt.Errorf("allocation %s of %s is %s", a.ID, a.JobID, a.ClientStatus)
			}
		}
		return nil
	})
}
