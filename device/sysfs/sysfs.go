// Package sysfs reads the few things that sources of cards need from the
// kernel's file systems. A Root can be a folder of a test.
package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/device/pci"
)

// Root is where /sys, /proc and /dev are looked for; empty: the machine's.
type Root string

// Path is a path under the root.
func (r Root) Path(parts ...string) string {
	if r == "" {
		r = "/"
	}
	return filepath.Join(append([]string{string(r)}, parts...)...)
}

// Text reads a small file without the blanks around it; false where it cannot
// be read.
func (r Root) Text(parts ...string) (string, bool) {
	data, err := os.ReadFile(r.Path(parts...))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(data)), true
}

// Number reads a whole number, decimal or with 0x; false where there is none.
func (r Root) Number(parts ...string) (int64, bool) {
	text, ok := r.Text(parts...)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 0, 64)
	return n, err == nil
}

// Exists tells whether there is such a file.
func (r Root) Exists(parts ...string) bool {
	_, err := os.Stat(r.Path(parts...))
	return err == nil
}

// List gives the names in a folder, sorted; none where it cannot be read.
func (r Root) List(parts ...string) []string {
	entries, err := os.ReadDir(r.Path(parts...))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	sort.Slice(out, func(i, j int) bool { return natural(out[i], out[j]) })
	return out
}

// natural sorts card10 after card9.
func natural(a, b string) bool {
	cutA, cutB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if cutA == cutB {
		x, _ := strconv.Atoi(a[len(cutA):]) // a name without a number counts as 0
		y, _ := strconv.Atoi(b[len(cutB):])
		if x != y {
			return x < y
		}
	}
	return a < b
}

// Missing tells whether a folder is not there at all, as on a machine without
// such hardware.
func (r Root) Missing(parts ...string) bool {
	_, err := os.Stat(r.Path(parts...))
	return errors.Is(err, fs.ErrNotExist)
}

// Place gives a PCI function's place in the tree (see card.Card.Path) and its
// NUMA node; no path and -1 where they are not known.
func (r Root) Place(a pci.Address) (path []string, numa int) {
	if a.IsZero() {
		return nil, -1
	}
	return r.PlaceOf(r.Path("sys/bus/pci/devices", a.Sysfs()))
}

// PlaceOf is Place for a device's folder.
func (r Root) PlaceOf(folder string) (path []string, numa int) {
	numa = -1
	if text, err := os.ReadFile(filepath.Join(folder, "numa_node")); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= 0 {
			numa = n
		}
	}
	real, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, numa
	}
	for _, part := range strings.Split(filepath.ToSlash(real), "/") {
		if strings.HasPrefix(part, "pci") && strings.Contains(part, ":") || len(path) > 0 {
			path = append(path, part)
		}
	}
	return path, numa
}

// Address reads a device folder's own PCI address off its real name; zero where
// it is no PCI device.
func (r Root) Address(folder string) pci.Address {
	real, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return pci.Address{}
	}
	a, err := pci.Parse(filepath.Base(real))
	if err != nil {
		return pci.Address{}
	}
	return a
}
