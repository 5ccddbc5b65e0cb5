package preflight

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// Port is a TCP port kept for a store. It is bound but nobody listens on it: a
// member that comes too early is refused and tries again, and no other process
// of this machine can take it.
type Port struct {
	Number int
	fd     int
}

// Release gives the port back, for the store's host to open.
func (p *Port) Release() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}

// Share lets a store of this machine listen on the port beside what keeps it,
// where it opens the port with SO_REUSEADDR, as torch does. Other members, which
// ask for a port of their own, still find it taken.
func (p *Port) Share() error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("share port %d with its store: %w", p.Number, err)
	}
	return nil
}

// KeepPort keeps a port: exactly the wanted one where it is not 0, else one of
// the range, other than avoid.
func KeepPort(wanted int, low, high, avoid int) (*Port, error) {
	if wanted != 0 {
		fd, err := bind(wanted, false)
		if errors.Is(err, unix.EADDRINUSE) {
			// Connections of an earlier store that still linger do not keep a
			// new store from listening.
			fd, err = bind(wanted, true)
		}
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", wanted, err)
		}
		return &Port{wanted, fd}, nil
	}
	n := high - low + 1
	if n < 1 {
		return nil, fmt.Errorf("the range %d to %d holds no port", low, high)
	}
	first := rand.IntN(n) // members of one machine rarely meet
	var last error
	for i := range n {
		port := low + (first+i)%n
		if port == avoid {
			continue
		}
		fd, err := bind(port, false)
		if err == nil {
			return &Port{port, fd}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no port from %d to %d is free: %w", low, high, last)
}

// Busy tells whether somebody else has the port.
func Busy(port int) bool {
	fd, err := bind(port, true)
	if err != nil {
		return errors.Is(err, unix.EADDRINUSE)
	}
	unix.Close(fd)
	return false
}

// bind binds a port on all addresses, as a store does: with IPv6, and IPv4
// through it, or IPv4 alone where there is no IPv6.
func bind(port int, reuse bool) (int, error) {
	try := func(family int, address unix.Sockaddr) (int, error) {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		if family == unix.AF_INET6 {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		}
		if err == nil && reuse {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, address)
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	fd, err := try(unix.AF_INET6, &unix.SockaddrInet6{Port: port})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return try(unix.AF_INET, &unix.SockaddrInet4{Port: port})
	}
	return fd, err
}
