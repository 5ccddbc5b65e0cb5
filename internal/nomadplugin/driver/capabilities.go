package driver

import (
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

func capabilitiesToProto(c Capabilities) (*driverpb.DriverCapabilities, error) {
	var f wire.Faults
	p := &driverpb.DriverCapabilities{
		SendSignals: c.SendSignals, Exec: c.Exec,
		FsIsolation:          driverpb.DriverCapabilities_FSIsolation(c.FSIsolation),
		DisableLogCollection: c.NoLogCollection, DynamicWorkloadUsers: c.DynamicUsers,
	}
	if _, ok := driverpb.DriverCapabilities_FSIsolation_name[int32(c.FSIsolation)]; !ok {
		f.Add("unknown file system isolation %d", c.FSIsolation)
	}
	for _, name := range c.NetworkIsolation {
		mode, err := isolationModeToProto(name)
		if err != nil {
			f.Add("%w", err)
			continue
		}
		p.NetworkIsolationModes = append(p.NetworkIsolationModes, mode)
	}
	if c.MustCreateNetwork {
		f.Add("the driver says that it creates networks: this server half has no call for that")
	}
	if c.NoMounts {
		p.MountConfigs = driverpb.DriverCapabilities_NO_MOUNTS
	}
	return p, f.Err()
}

func capabilitiesFromProto(p *driverpb.DriverCapabilities) Capabilities {
	c := Capabilities{
		SendSignals: p.GetSendSignals(), Exec: p.GetExec(), FSIsolation: FSIsolation(p.GetFsIsolation()),
		MustCreateNetwork: p.GetMustCreateNetwork(), NoMounts: p.GetMountConfigs() == driverpb.DriverCapabilities_NO_MOUNTS,
		NoLogCollection: p.GetDisableLogCollection(), DynamicUsers: p.GetDynamicWorkloadUsers(),
	}
	if _, ok := driverpb.DriverCapabilities_FSIsolation_name[int32(c.FSIsolation)]; !ok {
		c.FSIsolation = FSIsolationNone
	}
	for _, mode := range p.GetNetworkIsolationModes() {
		c.NetworkIsolation = append(c.NetworkIsolation, isolationModeFromProto(mode))
	}
	return c
}

func fingerprintToProto(fp Fingerprint) (*driverpb.FingerprintResponse, error) {
	var f wire.Faults
	if _, ok := driverpb.FingerprintResponse_HealthState_name[int32(fp.Health)]; !ok {
		f.Add("unknown health %d", fp.Health)
	}
	device.CheckAttributes(&f, fp.Attributes)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return &driverpb.FingerprintResponse{
		Attributes:        device.AttributesToProto(fp.Attributes),
		Health:            driverpb.FingerprintResponse_HealthState(fp.Health),
		HealthDescription: wire.Text(fp.Description),
	}, nil
}

// fingerprintFromProto takes an error of the driver for unhealthy.
func fingerprintFromProto(p *driverpb.FingerprintResponse) Fingerprint {
	fp := Fingerprint{
		Attributes:  device.AttributesFromProto(p.GetAttributes()),
		Health:      Health(p.GetHealth()),
		Description: p.GetHealthDescription(),
	}
	if _, ok := driverpb.FingerprintResponse_HealthState_name[int32(fp.Health)]; !ok {
		fp.Health = HealthUndetected
	}
	if p.GetErr() != "" {
		fp.Health, fp.Description = HealthUnhealthy, p.GetErr()
	}
	return fp
}
