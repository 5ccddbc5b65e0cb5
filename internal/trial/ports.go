//go:build linux

package trial

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The cluster's own ports lie below those that Nomad gives to allocations, and
// both below the range from which the kernel takes ports for connections.
const (
	servicePorts    = 10000
	allocationPorts = 20000
	endOfPorts      = 32000
	portsPerNode    = 100
)

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// freePort gives a port of loopback that is free for TCP and UDP and that this
// process has not given out before.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		port := servicePorts + rand.IntN(allocationPorts-servicePorts)
		if ports.taken[port] || !free(port) {
			continue
		}
		take(port)
		return port, nil
	}
	return 0, fmt.Errorf("find a free port: none of 1000 tried between %d and %d is free on loopback", servicePorts, allocationPorts)
}

// portBlock gives the first of portsPerNode ports for one node's allocations.
// All nodes share the host's loopback, so two must not give the same port to
// two allocations.
func portBlock() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		first := allocationPorts + portsPerNode*rand.IntN((endOfPorts-allocationPorts)/portsPerNode)
		if ports.taken[first] || !free(first) || !free(first+portsPerNode-1) {
			continue
		}
		take(first)
		return first, nil
	}
	return 0, fmt.Errorf("find %d free ports for a node: none between %d and %d", portsPerNode, allocationPorts, endOfPorts)
}

func take(port int) {
	if ports.taken == nil {
		ports.taken = map[int]bool{}
	}
	ports.taken[port] = true
}

func free(port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return udp.Close() == nil
}
