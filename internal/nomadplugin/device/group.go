package device

import (
	"fmt"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// ID is the group's name in Nomad: "vendor/type/name".
func (g Group) ID() string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// ValidateGroups lists everything in a fingerprint for which Nomad would drop
// all devices of the plugin, and what it would take but confuse: two groups of
// one name, two devices of one id, and a vendor or type that a job cannot name.
func ValidateGroups(groups []Group) error {
	var f wire.Faults
	seen := map[string]bool{}
	owner := map[string]string{}
	for i, g := range groups {
		if err := g.validate(); err != nil {
			f.Add("device group %d (%q): %w", i, g.ID(), err)
		}
		if seen[g.ID()] {
			f.Add("device group %d (%q): listed twice", i, g.ID())
		}
		seen[g.ID()] = true
		for _, d := range g.Devices {
			if other, taken := owner[d.ID]; taken {
				f.Add("device group %d (%q): device %q is listed twice (also in %q)", i, g.ID(), d.ID, other)
			}
			owner[d.ID] = g.ID()
		}
	}
	return f.Err()
}

func (g Group) validate() error {
	var f wire.Faults
	checkGroupName(&f, g.Vendor, g.Type, g.Name)
	for i, d := range g.Devices {
		f.Check(fmt.Sprintf("id of device %d", i), wire.CheckName(d.ID))
		if d.PCIBusID != "" {
			f.Check(fmt.Sprintf("PCI bus id of device %d", i), wire.CheckName(d.PCIBusID))
		}
	}
	CheckAttributes(&f, g.Attributes)
	return f.Err()
}

func checkGroupName(f *wire.Faults, vendor, typ, name string) {
	f.Check("vendor", wire.CheckName(vendor))
	f.Check("type", wire.CheckName(typ))
	f.Check("name", wire.CheckName(name))
	if strings.Contains(vendor, "/") {
		f.Add("vendor %q contains a slash, which separates it from the type in a job", vendor)
	}
	if strings.Contains(typ, "/") {
		f.Add("type %q contains a slash, which separates it from the name in a job", typ)
	}
}

func groupsToProto(groups []Group) *devicepb.FingerprintResponse {
	resp := &devicepb.FingerprintResponse{}
	for _, g := range groups {
		p := &devicepb.DeviceGroup{
			Vendor: g.Vendor, DeviceType: g.Type, DeviceName: g.Name,
			Attributes: AttributesToProto(g.Attributes),
		}
		for _, d := range g.Devices {
			pd := &devicepb.DetectedDevice{
				ID: d.ID, Healthy: d.Healthy, HealthDescription: wire.Text(d.HealthDescription),
			}
			if d.PCIBusID != "" {
				pd.HwLocality = &devicepb.DeviceLocality{PciBusId: d.PCIBusID}
			}
			p.Devices = append(p.Devices, pd)
		}
		resp.DeviceGroup = append(resp.DeviceGroup, p)
	}
	return resp
}

func groupsFromProto(resp *devicepb.FingerprintResponse) []Group {
	var groups []Group
	for _, p := range resp.GetDeviceGroup() {
		g := Group{
			Vendor: p.GetVendor(), Type: p.GetDeviceType(), Name: p.GetDeviceName(),
			Attributes: AttributesFromProto(p.GetAttributes()),
		}
		for _, pd := range p.GetDevices() {
			g.Devices = append(g.Devices, Device{
				ID: pd.GetID(), Healthy: pd.GetHealthy(), HealthDescription: pd.GetHealthDescription(),
				PCIBusID: pd.GetHwLocality().GetPciBusId(),
			})
		}
		groups = append(groups, g)
	}
	return groups
}
