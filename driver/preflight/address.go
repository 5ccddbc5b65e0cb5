package preflight

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Address is where peers reach a member.
type Address struct {
	Interface string
	IP        netip.Addr
}

// nic is one network interface of the host.
type nic struct {
	name      string
	up        bool
	loopback  bool
	addresses []netip.Addr
}

// network is what ChooseAddress chooses from.
type network struct {
	nics  []nic
	route map[bool]string // default route's interface; the key: IPv6
}

// ChooseAddress gives the member's address: of the interface that was named,
// else the address that Nomad gave the task's ports, else of the interface with
// the default route. Loopback is never chosen by accident: only where it is
// named, or is what Nomad gave.
func ChooseAddress(iface, nomads string) (Address, error) {
	n, err := hostNetwork()
	if err != nil {
		return Address{}, err
	}
	return n.choose(iface, nomads)
}

func (n network) choose(iface, nomads string) (Address, error) {
	if iface != "" {
		for _, c := range n.nics {
			if c.name != iface {
				continue
			}
			if !c.up {
				return Address{}, fmt.Errorf("interface %q is down", iface)
			}
			if ip, ok := c.best(); ok {
				return Address{iface, ip}, nil
			}
			return Address{}, fmt.Errorf("interface %q has no address that others could reach", iface)
		}
		return Address{}, fmt.Errorf("there is no interface %q; there are %s", iface, n.names())
	}
	if nomads != "" {
		ip, err := netip.ParseAddr(nomads)
		if err != nil {
			return Address{}, fmt.Errorf("the address %q that Nomad gave the task's ports is none: %w", nomads, err)
		}
		for _, c := range n.nics {
			if slices.Contains(c.addresses, ip.WithZone("")) {
				return Address{c.name, ip}, nil
			}
		}
		return Address{}, fmt.Errorf("no interface has the address %s that Nomad gave the task's ports (bridge networking is not supported for ranks: use mode = \"host\")", nomads)
	}
	for _, v6 := range []bool{false, true} {
		for _, c := range n.nics {
			if c.name == n.route[v6] {
				if ip, ok := c.best(); ok {
					return Address{c.name, ip}, nil
				}
			}
		}
	}
	for _, c := range n.nics {
		if ip, ok := c.best(); ok && c.up && !c.loopback {
			return Address{c.name, ip}, nil
		}
	}
	return Address{}, fmt.Errorf(`no interface besides loopback has an address: name one with interface = "..." (in the task's config or the plugin's); "lo" will do where all members share this machine`)
}

// best is the interface's address that others are most likely to reach.
func (c nic) best() (netip.Addr, bool) {
	var best netip.Addr
	rank := func(ip netip.Addr) int {
		switch {
		case !ip.IsValid():
			return 9
		case ip.Is4() && !ip.IsLinkLocalUnicast():
			return 0
		case ip.Is6() && !ip.IsLinkLocalUnicast():
			return 1
		case ip.Is4():
			return 2
		}
		return 9 // link-local IPv6 needs a zone that peers do not share
	}
	for _, ip := range c.addresses {
		if rank(ip) < rank(best) {
			best = ip
		}
	}
	return best, best.IsValid()
}

func (n network) names() string {
	var out []string
	for _, c := range n.nics {
		out = append(out, c.name)
	}
	return strings.Join(out, ", ")
}

func hostNetwork() (network, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return network{}, fmt.Errorf("list network interfaces: %w", err)
	}
	n := network{route: map[bool]string{}}
	for _, i := range interfaces {
		c := nic{name: i.Name, up: i.Flags&net.FlagUp != 0, loopback: i.Flags&net.FlagLoopback != 0}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				c.addresses = append(c.addresses, prefix.Addr().WithZone(""))
			}
		}
		n.nics = append(n.nics, c)
	}
	n.route[false] = defaultRoute("/proc/net/route", func(f []string) (string, bool) {
		return f[0], len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000"
	})
	n.route[true] = defaultRoute("/proc/net/ipv6_route", func(f []string) (string, bool) {
		last := f[len(f)-1]
		return last, len(f) >= 10 && f[0] == strings.Repeat("0", 32) && f[1] == "00" && last != "lo"
	})
	return n, nil
}

func defaultRoute(path string, match func(fields []string) (string, bool)) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 {
			if name, ok := match(fields); ok {
				return name
			}
		}
	}
	return ""
}
