package feasible

import (
	"math/big"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// Device tells whether a device group serves an ask: vendor, type and name
// where the ask states them, and every constraint. A constraint over
// ${device.ids} is asked of the group's joined ids here, and again of each
// card by Card.
func Device(d *core.DeviceGroup, a *core.DeviceAsk) bool {
	if a.Vendor != "" && a.Vendor != d.Vendor || a.Type != "" && a.Type != d.Type || a.Name != "" && a.Name != string(d.Name) {
		return false
	}
	for i := range a.Constraints {
		if !DeviceConstraint(d, a.Constraints[i]) {
			return false
		}
	}
	return true
}

// DeviceConstraint tells whether a device group satisfies one constraint (or
// affinity) of an ask.
func DeviceConstraint(d *core.DeviceGroup, c core.Constraint) bool {
	left, leftOK := deviceValue(d, c.Left)
	right, rightOK := deviceValue(d, c.Right)
	return deviceHolds(c.Operand, left, right, leftOK, rightOK)
}

// NamesCards tells whether an ask picks single cards by ${device.ids}.
func NamesCards(a *core.DeviceAsk) bool {
	for _, c := range a.Constraints {
		if c.Left == deviceIDs || c.Right == deviceIDs {
			return true
		}
	}
	return false
}

// Card tells whether one card of a group that serves the ask may be given out
// for it.
func Card(d *core.DeviceGroup, id core.CardID, a *core.DeviceAsk) bool {
	text := string(id)
	for _, c := range a.Constraints {
		other := c.Right
		switch deviceIDs {
		case c.Left:
		case c.Right:
			other = c.Left
		default:
			continue
		}
		value, ok := deviceValue(d, other)
		if !ok || !deviceHolds(c.Operand, value, core.Attribute{String: &text}, true, true) {
			return false
		}
	}
	return true
}

const deviceIDs = "${device.ids}"

func deviceValue(d *core.DeviceGroup, target string) (core.Attribute, bool) {
	if !strings.HasPrefix(target, "${") {
		return ParseAttribute(target), true
	}
	str := func(s string) (core.Attribute, bool) { return core.Attribute{String: &s}, true }
	switch target {
	case deviceIDs:
		ids := make([]string, len(d.Cards))
		for i := range d.Cards {
			ids[i] = string(d.Cards[i].ID)
		}
		return str(strings.Join(ids, ","))
	case "${device.model}":
		return str(string(d.Name))
	case "${device.vendor}":
		return str(d.Vendor)
	case "${device.type}":
		return str(d.Type)
	}
	if name, ok := strings.CutPrefix(target, "${device.attr."); ok {
		v, ok := d.Attributes[strings.TrimSuffix(name, "}")]
		return v, ok
	}
	return core.Attribute{}, false
}

func deviceHolds(operand string, left, right core.Attribute, leftOK, rightOK bool) bool {
	both := leftOK && rightOK
	switch operand {
	case "distinct_hosts", "distinct_property":
		return true
	case "!=", "not":
		if !both {
			return leftOK != rightOK
		}
		v, ok := Compare(left, right)
		return ok && v != 0
	case "=", "==", "is":
		v, ok := Compare(left, right)
		return both && ok && v == 0
	case "<", "<=", ">", ">=":
		v, ok := Compare(left, right)
		return both && ok && ordered(operand, v, 0)
	case "is_set":
		return leftOK
	case "is_not_set":
		return !leftOK
	}
	if !both || right.String == nil {
		return false
	}
	if operand == "version" || operand == "semver" {
		switch {
		case left.String != nil:
			return versionMatch(*left.String, *right.String, operand == "semver")
		case left.Int != nil:
			return versionMatch(strconv.FormatInt(*left.Int, 10), *right.String, operand == "semver")
		}
		return false
	}
	if left.String == nil {
		return false
	}
	switch operand {
	case "regexp":
		return regexpMatch(*left.String, *right.String)
	case "set_contains", "set_contains_all":
		return setContains(*left.String, *right.String, true)
	case "set_contains_any":
		return setContains(*left.String, *right.String, false)
	}
	return false
}

// unit is a device attribute's unit: values of one base compare.
type unit struct {
	base       string
	multiplier *big.Rat
}

// units are those that Nomad knows; unitNames has the longest first.
var units, unitNames = func() (map[string]unit, []string) {
	all := map[string]unit{}
	power := func(base, exponent int64) *big.Rat {
		return new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(exponent), nil))
	}
	for i, p := range []string{"K", "M", "G", "T", "P", "E"} {
		binary, decimal := power(1024, int64(i+1)), power(1000, int64(i+1))
		all[p+"iB"], all[p+"iB/s"] = unit{"B", binary}, unit{"B/s", binary}
		all[p+"B"], all[p+"B/s"] = unit{"B", decimal}, unit{"B/s", decimal}
	}
	all["kB"], all["kB/s"] = all["KB"], all["KB/s"]
	all["MHz"], all["GHz"] = unit{"Hz", power(1000, 2)}, unit{"Hz", power(1000, 3)}
	// Nomad's kW is 1,000 W; its mW is a thousandth.
	all["mW"], all["W"], all["kW"], all["MW"], all["GW"] = unit{"W", big.NewRat(1, 1000)}, unit{"W", power(1, 1)}, unit{"W", power(1000, 1)}, unit{"W", power(1000, 2)}, unit{"W", power(1000, 3)}
	names := []string{"KiB/s", "MiB/s", "GiB/s", "TiB/s", "PiB/s", "EiB/s", "kB/s", "KB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s",
		"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "MHz", "GHz", "kB", "KB", "MB", "GB", "TB", "PB", "EB", "mW", "kW", "MW", "GW", "W"}
	return all, names
}()

// ParseAttribute reads a literal as Nomad does: a whole number, a number,
// either with a unit behind it, a truth value, or text.
func ParseAttribute(text string) core.Attribute {
	number, found := text, ""
	for _, u := range unitNames {
		if strings.HasSuffix(text, u) {
			number, found = strings.TrimSpace(strings.TrimSuffix(text, u)), u
			break
		}
	}
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return core.Attribute{Int: &i, Unit: found}
	}
	if f, err := strconv.ParseFloat(number, 64); err == nil {
		return core.Attribute{Float: &f, Unit: found}
	}
	if b, err := strconv.ParseBool(text); err == nil {
		return core.Attribute{Bool: &b}
	}
	return core.Attribute{String: &text}
}

// Compare orders two attributes; false where they cannot be compared: units
// of different kinds, a number with a unit against one without, text against
// a number. Truth values are only equal or not.
func Compare(a, b core.Attribute) (int, bool) {
	ua, aOK := units[a.Unit]
	ub, bOK := units[b.Unit]
	if aOK != bOK || aOK && ua.base != ub.base {
		return 0, false
	}
	switch {
	case a.String != nil && b.String != nil:
		return strings.Compare(*a.String, *b.String), true
	case a.Bool != nil && b.Bool != nil:
		if *a.Bool == *b.Bool {
			return 0, true
		}
		return 1, true
	}
	x, y := number(a, ua), number(b, ub)
	if x == nil || y == nil {
		return 0, false
	}
	return x.Cmp(y), true
}

func number(a core.Attribute, u unit) *big.Rat {
	v := new(big.Rat)
	switch {
	case a.String != nil || a.Bool != nil:
		return nil
	case a.Int != nil:
		v.SetInt64(*a.Int)
	case a.Float != nil:
		if v.SetFloat64(*a.Float) == nil {
			return nil
		}
	default:
		return nil
	}
	if u.multiplier != nil {
		v.Mul(v, u.multiplier)
	}
	return v
}
