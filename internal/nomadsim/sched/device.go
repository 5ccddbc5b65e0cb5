package sched

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

type deviceKey struct{ vendor, kind, name string }

// devicesInUse counts, for one node, how many allocations hold an instance.
type devicesInUse map[string]int

func instanceKey(k deviceKey, id string) string {
	return k.vendor + "\x00" + k.kind + "\x00" + k.name + "\x00" + id
}

func (d devicesInUse) add(a *wire.AllocatedDevice, by int) {
	k := deviceKey{a.Vendor, a.Type, a.Name}
	for _, id := range a.DeviceIDs {
		d[instanceKey(k, id)] += by
	}
}

// deviceNamed says whether a device group is what the ask names: "type", "vendor/type" or "vendor/type/name".
func deviceNamed(d *wire.NodeDevice, name string) bool {
	parts := strings.SplitN(name, "/", 3)
	switch len(parts) {
	case 1:
		return d.Type == parts[0]
	case 2:
		return d.Vendor == parts[0] && d.Type == parts[1]
	default:
		return d.Vendor == parts[0] && d.Type == parts[1] && d.Name == parts[2]
	}
}

func resolveDevice(target string, d *wire.NodeDevice) (*wire.Attribute, bool) {
	if !strings.HasPrefix(target, "${") {
		return parseAttribute(target), true
	}
	switch target {
	case "${device.ids}":
		ids := make([]string, len(d.Instances))
		for i, in := range d.Instances {
			ids[i] = in.ID
		}
		return stringAttribute(strings.Join(ids, ",")), true
	case "${device.model}":
		return stringAttribute(d.Name), true
	case "${device.vendor}":
		return stringAttribute(d.Vendor), true
	case "${device.type}":
		return stringAttribute(d.Type), true
	}
	if k, ok := strings.CutPrefix(target, "${device.attr."); ok {
		v, ok := d.Attributes[strings.TrimSuffix(k, "}")]
		return v, ok
	}
	return nil, false
}

// deviceMatches says whether a device group suits an ask. Instances are looked at later, one by one.
func (m *matcher) deviceMatches(d *wire.NodeDevice, ask *wire.RequestedDevice) bool {
	if !deviceNamed(d, ask.Name) {
		return false
	}
	for _, c := range ask.Constraints {
		l, lok := resolveDevice(c.LTarget, d)
		r, rok := resolveDevice(c.RTarget, d)
		if !m.attribute(c.Operand, l, r, lok, rok) {
			return false
		}
	}
	return true
}

// instanceMatches applies constraints on ${device.ids} to one instance: the list given must contain the id. With "=" this
// can only hold for a list of one, and a regular expression meets its argument reversed, as on a real server.
func (m *matcher) instanceMatches(id string, d *wire.NodeDevice, ask *wire.RequestedDevice) bool {
	for _, c := range ask.Constraints {
		var list *wire.Attribute
		switch "${device.ids}" {
		case c.LTarget:
			list, _ = resolveDevice(c.RTarget, d)
		case c.RTarget:
			list, _ = resolveDevice(c.LTarget, d)
		default:
			continue
		}
		if !m.attribute(c.Operand, list, stringAttribute(id), true, true) {
			return false
		}
	}
	return true
}

// hasDevices says whether the node's healthy devices could ever serve the asks, whoever holds them now.
func (m *matcher) hasDevices(n *wire.Node, asks []*wire.RequestedDevice) bool {
	if len(asks) == 0 {
		return true
	}
	left := make([]uint64, len(n.NodeResources.Devices))
	for i, d := range n.NodeResources.Devices {
		for _, in := range d.Instances {
			if in.Healthy {
				left[i]++
			}
		}
	}
	for _, ask := range asks {
		want := ask.Count
		for i, d := range n.NodeResources.Devices {
			if left[i] == 0 || !m.deviceMatches(d, ask) {
				continue
			}
			take := min(want, left[i])
			left[i] -= take
			want -= take
			if want == 0 {
				break
			}
		}
		if want > 0 {
			return false
		}
	}
	return true
}

var (
	errNoDevices   = errors.New("no devices available")
	errNoMatch     = errors.New("no devices match request")
	errZeroDevices = errors.New("invalid request of zero devices")
)

// offerDevices picks free instances of one group for an ask: the group that the affinities like best, and within it
// instances in no particular order. Affinity is the sum of the weights that hold.
func (m *matcher) offerDevices(n *wire.Node, used devicesInUse, ask *wire.RequestedDevice, rng *rand.Rand) (out *wire.AllocatedDevice, affinity float64, err error) {
	if len(n.NodeResources.Devices) == 0 {
		return nil, 0, errNoDevices
	}
	if ask.Count == 0 {
		return nil, 0, errZeroDevices
	}
	best := 0.0
	for _, d := range n.NodeResources.Devices {
		if !m.deviceMatches(d, ask) {
			continue
		}
		k := deviceKey{d.Vendor, d.Type, d.Name}
		var free []string
		for _, i := range rng.Perm(len(d.Instances)) {
			in := d.Instances[i]
			if in.Healthy && used[instanceKey(k, in.ID)] == 0 && m.instanceMatches(in.ID, d, ask) {
				free = append(free, in.ID)
				if len(free) == int(ask.Count) {
					break
				}
			}
		}
		if len(free) < int(ask.Count) {
			continue
		}
		score, held, total := 0.0, 0.0, 0.0
		for _, a := range ask.Affinities {
			total += math.Abs(float64(a.Weight))
			l, lok := resolveDevice(a.LTarget, d)
			r, rok := resolveDevice(a.RTarget, d)
			if m.attribute(a.Operand, l, r, lok, rok) {
				held += float64(a.Weight)
			}
		}
		if total > 0 {
			score = held / total
		}
		if out != nil && score < best {
			continue
		}
		best, affinity = score, held
		out = &wire.AllocatedDevice{Vendor: d.Vendor, Type: d.Type, Name: d.Name, DeviceIDs: free}
	}
	if out == nil {
		return nil, 0, errNoMatch
	}
	return out, affinity, nil
}
