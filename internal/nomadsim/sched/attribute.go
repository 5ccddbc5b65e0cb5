package sched

import (
	"cmp"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// unit is a unit's dimension and size. Values of one dimension can be compared.
type unit struct {
	base string
	size *big.Rat
}

var (
	units       = map[string]unit{}
	unitsByName []string // longest first, so that GiB/s is found before GiB
)

func init() {
	add := func(base string, step int64, names ...string) {
		size := big.NewRat(1, 1)
		for _, n := range names {
			size = new(big.Rat).Mul(size, big.NewRat(step, 1))
			units[n] = unit{base, size}
		}
	}
	add("byte", 1024, "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
	add("byte", 1000, "kB", "MB", "GB", "TB", "PB", "EB")
	add("byte/s", 1024, "KiB/s", "MiB/s", "GiB/s", "TiB/s", "PiB/s", "EiB/s")
	add("byte/s", 1000, "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s")
	units["KB"], units["KB/s"] = units["kB"], units["kB/s"]
	units["MHz"] = unit{"hertz", big.NewRat(1_000_000, 1)}
	units["GHz"] = unit{"hertz", big.NewRat(1_000_000_000, 1)}
	units["mW"] = unit{"watt", big.NewRat(1, 1000)}
	units["W"] = unit{"watt", big.NewRat(1, 1)}
	add("watt", 1000, "kW", "MW", "GW")
	for n := range units {
		unitsByName = append(unitsByName, n)
	}
	sort.Slice(unitsByName, func(i, j int) bool {
		if len(unitsByName[i]) != len(unitsByName[j]) {
			return len(unitsByName[i]) > len(unitsByName[j])
		}
		return unitsByName[i] < unitsByName[j]
	})
}

// parseAttribute reads text as a number with or without a unit, a boolean, or else a string. So "1" is a number and
// never equals the string "1".
func parseAttribute(s string) *wire.Attribute {
	u := ""
	for _, n := range unitsByName {
		if strings.HasSuffix(s, n) {
			u = n
			break
		}
	}
	number := strings.TrimSpace(strings.TrimSuffix(s, u))
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return &wire.Attribute{Int: &i, Unit: u}
	}
	if f, err := strconv.ParseFloat(number, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		return &wire.Attribute{Float: &f, Unit: u}
	}
	if b, err := strconv.ParseBool(s); err == nil {
		return &wire.Attribute{Bool: &b}
	}
	return &wire.Attribute{String: &s}
}

func stringAttribute(s string) *wire.Attribute { return &wire.Attribute{String: &s} }

// compareAttributes orders two values; ok is false where they cannot be compared. Booleans are only equal (0) or not (1).
func compareAttributes(a, b *wire.Attribute) (c int, ok bool) {
	if a == nil || b == nil {
		return 0, false
	}
	switch {
	case a.Bool != nil && b.Bool != nil:
		if *a.Bool == *b.Bool {
			return 0, true
		}
		return 1, true
	case a.String != nil && b.String != nil:
		return cmp.Compare(*a.String, *b.String), true
	}
	x, y := number(a), number(b)
	if x == nil || y == nil {
		return 0, false
	}
	ua, okA := units[a.Unit]
	ub, okB := units[b.Unit]
	if okA != okB || ua.base != ub.base {
		return 0, false
	}
	if okA {
		x.Mul(x, ua.size)
		y.Mul(y, ub.size)
	}
	return x.Cmp(y), true
}

func number(a *wire.Attribute) *big.Rat {
	switch {
	case a.Int != nil:
		return new(big.Rat).SetInt64(*a.Int)
	case a.Float != nil:
		return new(big.Rat).SetFloat64(*a.Float)
	}
	return nil
}

// text is the attribute as the version and set operators see it.
func text(a *wire.Attribute) (string, bool) {
	if a == nil || a.String == nil {
		return "", false
	}
	return *a.String, true
}

// attribute checks a constraint on a device.
func (m *matcher) attribute(op string, l, r *wire.Attribute, lok, rok bool) bool {
	switch op {
	case opDistinctHosts, opDistinctProperty:
		return true
	case "!=", "not":
		if !lok && !rok {
			return false
		}
		if lok != rok {
			return true
		}
		c, ok := compareAttributes(l, r)
		return ok && c != 0
	case opIsSet:
		return lok
	case opIsNotSet:
		return !lok
	}
	if !lok || !rok {
		return false
	}
	switch op {
	case "=", "==", "is":
		c, ok := compareAttributes(l, r)
		return ok && c == 0
	case "<", "<=", ">", ">=":
		c, ok := compareAttributes(l, r)
		if !ok {
			return false
		}
		return ordered(op, c)
	case opVersion, opSemver:
		v, ok := text(l)
		if !ok && l.Int != nil {
			v, ok = strconv.FormatInt(*l.Int, 10), true
		}
		if !ok && l.Float != nil {
			v, ok = strconv.FormatFloat(*l.Float, 'f', -1, 64), true
		}
		w, wok := text(r)
		return ok && wok && m.version(op, v, w)
	}
	ls, ok1 := text(l)
	rs, ok2 := text(r)
	return ok1 && ok2 && m.check(op, ls, rs, true, true)
}
