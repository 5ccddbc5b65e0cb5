// Package pci reads and prints PCI addresses. Every tool prints them in its own
// way (NVML: 00000008:06:00.0, the kernel: 0008:06:00.0, NVIDIA's log lines:
// PCI:0008:06:00), and cards are joined to log lines, NICs and sysfs folders by
// nothing else, so all spellings become one Address. The domain counts: 06:00
// of domain 0 and 06:00 of domain 8 are two cards.
package pci

import (
	"fmt"
	"strconv"
	"strings"
)

// Address is one PCI function. The zero value stands for "not known": domain 0
// bus 0 device 0 function 0 is a host bridge on every machine.
type Address struct {
	Domain                uint32
	Bus, Device, Function uint8
}

// Parse reads an address in any of the usual spellings: an optional "PCI:",
// 4 to 8 digits of domain (or none: domain 0), bus, device, and an optional
// function after a dot (0 where absent), hexadecimal in either case. Text is
// cut at the first NUL, since NVML pads with them.
func Parse(text string) (Address, error) {
	if i := strings.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	rest := strings.TrimSpace(text)
	if len(rest) >= 4 && strings.EqualFold(rest[:4], "PCI:") {
		rest = rest[4:]
	}
	bad := fmt.Errorf("%q is not a PCI address such as 0000:3b:00.0", text)
	function := uint64(0)
	if before, after, found := strings.Cut(rest, "."); found {
		n, err := hex(after, 1, 1)
		if err != nil || n > 7 {
			return Address{}, bad
		}
		rest, function = before, n
	}
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 {
		return Address{}, bad
	}
	domain, err1 := hex(parts[0], 4, 8)
	bus, err2 := hex(parts[1], 2, 2)
	device, err3 := hex(parts[2], 2, 2)
	if err1 != nil || err2 != nil || err3 != nil || device > 31 {
		return Address{}, bad
	}
	return Address{uint32(domain), uint8(bus), uint8(device), uint8(function)}, nil
}

func hex(text string, least, most int) (uint64, error) {
	if len(text) < least || len(text) > most || strings.ContainsAny(text, "+-_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 16, 32)
}

// String is the address as NVML prints it, 0000000F:01:00.0; empty where it is
// not known.
func (a Address) String() string {
	if a.IsZero() {
		return ""
	}
	return fmt.Sprintf("%08X:%02X:%02X.%X", a.Domain, a.Bus, a.Device, a.Function)
}

// Sysfs is the address as the kernel names the device's folder,
// 000f:01:00.0.
func (a Address) Sysfs() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Log is the address as NVIDIA's driver writes it into the kernel log,
// 000f:01:00.
func (a Address) Log() string {
	return fmt.Sprintf("%04x:%02x:%02x", a.Domain, a.Bus, a.Device)
}

// Slot is the address without its function: what a log line names.
func (a Address) Slot() Address {
	a.Function = 0
	return a
}

// IsZero tells that the address is not known.
func (a Address) IsZero() bool { return a == Address{} }
