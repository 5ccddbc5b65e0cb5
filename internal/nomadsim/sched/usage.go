package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// usage is what the allocations of one node take. What has been stopped counts until its client says that it has ended.
type usage struct {
	allocs         map[string]*wire.Allocation
	cpu, mem, disk int64
	cores          map[uint16]int
	devices        devicesInUse
	ports          map[string]int // "address:port"
}

func newUsage() *usage {
	return &usage{allocs: map[string]*wire.Allocation{}, cores: map[uint16]int{}, devices: devicesInUse{}, ports: map[string]int{}}
}

func usageOf(snap *store.Snapshot, node string) *usage {
	u := newUsage()
	for a := range snap.AllocsByNode(node) {
		if !a.ClientTerminal() {
			u.add(a)
		}
	}
	return u
}

// add counts an allocation in; one of the same id is replaced.
func (u *usage) add(a *wire.Allocation) {
	if old := u.allocs[a.ID]; old != nil {
		u.remove(old)
	}
	u.allocs[a.ID] = a
	u.count(a, 1)
}

func (u *usage) remove(a *wire.Allocation) {
	if old := u.allocs[a.ID]; old != nil {
		delete(u.allocs, a.ID)
		u.count(old, -1)
	}
}

func (u *usage) count(a *wire.Allocation, by int) {
	r := a.AllocatedResources
	if r == nil {
		return
	}
	n := int64(by)
	s := sizeOf(r)
	u.cpu += n * s.cpu
	u.mem += n * s.mem
	u.disk += n * s.disk
	for _, t := range r.Tasks {
		for _, c := range t.Cpu.ReservedCores {
			u.cores[c] += by
		}
		for _, d := range t.Devices {
			u.devices.add(d, by)
		}
		for _, net := range t.Networks {
			for _, p := range append(append([]wire.Port{}, net.ReservedPorts...), net.DynamicPorts...) {
				u.ports[net.IP+":"+strconv.Itoa(p.Value)] += by
			}
		}
	}
	for _, p := range r.Shared.Ports {
		if !p.IgnoreCollision {
			u.ports[p.HostIP+":"+strconv.Itoa(p.Value)] += by
		}
	}
}

// amount is an amount of processor, memory and disk.
type amount struct{ cpu, mem, disk int64 }

func (a amount) plus(b amount) amount  { return amount{a.cpu + b.cpu, a.mem + b.mem, a.disk + b.disk} }
func (a amount) minus(b amount) amount { return amount{a.cpu - b.cpu, a.mem - b.mem, a.disk - b.disk} }

// lacks names the first dimension in which a does not cover b, or nothing.
func (a amount) lacks(b amount) string {
	switch {
	case a.cpu < b.cpu:
		return "cpu"
	case a.mem < b.mem:
		return "memory"
	case a.disk < b.disk:
		return "disk"
	}
	return ""
}

// sizeOf is what an allocation takes at once: tasks that never run at the same time count as the larger of them.
func sizeOf(r *wire.AllocatedResources) amount {
	var main, prestart, sidecar, poststop amount
	for name, t := range r.Tasks {
		a := amount{cpu: t.Cpu.CpuShares, mem: t.Memory.MemoryMB}
		switch l := r.TaskLifecycles[name]; {
		case l == nil:
			main = main.plus(a)
		case l.Sidecar:
			sidecar = sidecar.plus(a)
		case l.Hook == "prestart":
			prestart = prestart.plus(a)
		case l.Hook == "poststop":
			poststop = poststop.plus(a)
		default:
			main = main.plus(a)
		}
	}
	size := main
	for _, o := range []amount{prestart, poststop} {
		size.cpu, size.mem = max(size.cpu, o.cpu), max(size.mem, o.mem)
	}
	size = size.plus(sidecar)
	size.disk = r.Shared.DiskMB
	return size
}

// capacity is what a node has for allocations.
func capacity(n *wire.Node) amount {
	c := amount{n.NodeResources.Cpu.CpuShares, n.NodeResources.Memory.MemoryMB, n.NodeResources.Disk.DiskMB}
	if r := n.ReservedResources; r != nil {
		c = c.minus(amount{r.Cpu.CpuShares, r.Memory.MemoryMB, r.Disk.DiskMB})
	}
	return c
}

// assignPorts gives the ports of a network ask.
func (u *usage) assignPorts(n *wire.Node, ask *wire.NetworkResource, taken map[string]bool, rng *rand.Rand) ([]wire.AllocatedPort, error) {
	var out []wire.AllocatedPort
	busy := func(ip string, port int) bool {
		k := ip + ":" + strconv.Itoa(port)
		return u.ports[k] > 0 || taken[k]
	}
	give := func(p wire.Port, ip string, value int) {
		to := p.To
		if to == -1 {
			to = value
		}
		out = append(out, wire.AllocatedPort{Label: p.Label, Value: value, To: to, HostIP: ip, IgnoreCollision: p.IgnoreCollision})
		if !p.IgnoreCollision {
			taken[ip+":"+strconv.Itoa(value)] = true
		}
	}
	for _, p := range ask.ReservedPorts {
		ips := addresses(n, p.HostNetwork)
		err := fmt.Errorf("no addresses available for %s network", p.HostNetwork)
		for _, ip := range ips {
			if p.Value < 0 || p.Value >= 65536 {
				return nil, fmt.Errorf("invalid port %d (out of range)", p.Value)
			}
			if !p.IgnoreCollision && busy(ip, p.Value) {
				err = fmt.Errorf("reserved port collision %s=%d", p.Label, p.Value)
				continue
			}
			give(p, ip, p.Value)
			err = nil
			break
		}
		if err != nil {
			return nil, err
		}
	}
	low, high := n.NodeResources.MinDynamicPort, n.NodeResources.MaxDynamicPort
	for _, p := range ask.DynamicPorts {
		ips := addresses(n, p.HostNetwork)
		if len(ips) == 0 {
			return nil, fmt.Errorf("no addresses available for %s network", p.HostNetwork)
		}
		err := errors.New("dynamic port selection failed")
		span := high - low + 1
		start := rng.IntN(max(span, 1))
		for i := range span {
			if v := low + (start+i)%span; !busy(ips[0], v) {
				give(p, ips[0], v)
				err = nil
				break
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addresses are the node's addresses on a named host network; no name is "default".
func addresses(n *wire.Node, network string) []string {
	if network == "" {
		network = "default"
	}
	network, _ = resolve(network, n)
	var out []string
	for _, nw := range n.NodeResources.NodeNetworks {
		for _, a := range nw.Addresses {
			if a.Alias == network {
				out = append(out, a.Address)
			}
		}
	}
	return out
}

// networkOf is the network that an allocation shows for its ports.
func networkOf(n *wire.Node, ask *wire.NetworkResource, ports []wire.AllocatedPort) *wire.NetworkResource {
	out := *ask
	out.DynamicPorts = append([]wire.Port{}, ask.DynamicPorts...)
	for i := range out.DynamicPorts {
		for _, p := range ports {
			if p.Label == out.DynamicPorts[i].Label {
				out.DynamicPorts[i].Value, out.DynamicPorts[i].To = p.Value, p.To
			}
		}
	}
	for _, nw := range n.NodeResources.NodeNetworks {
		if nw.Mode == "host" && len(nw.Addresses) > 0 {
			out.IP = nw.Addresses[0].Address
			break
		}
	}
	return &out
}
