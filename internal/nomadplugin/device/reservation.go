package device

import (
	"errors"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Validate lists what would fail the task that gets the reservation.
func (r *Reservation) Validate() error {
	if r == nil {
		return errors.New("no reservation")
	}
	var f wire.Faults
	f.CheckEnvironment("environment variable", r.Env)
	for _, m := range r.Mounts {
		f.Check("mount: path in the task", wire.CheckName(m.TaskPath))
		f.Check("mount: path on the host", wire.CheckName(m.HostPath))
	}
	for _, d := range r.Devices {
		f.Check("device node: path in the task", wire.CheckName(d.TaskPath))
		f.Check("device node: path on the host", wire.CheckName(d.HostPath))
		if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
			f.Add("device node %q: permissions %q are not some of rwm", d.HostPath, d.Permissions)
		}
	}
	return f.Err()
}

func (r *Reservation) toProto() *devicepb.ContainerReservation {
	p := &devicepb.ContainerReservation{Envs: r.Env}
	for _, m := range r.Mounts {
		p.Mounts = append(p.Mounts, &devicepb.Mount{TaskPath: m.TaskPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly})
	}
	for _, d := range r.Devices {
		p.Devices = append(p.Devices, &devicepb.DeviceSpec{
			TaskPath: d.TaskPath, HostPath: d.HostPath, Permissions: d.Permissions,
		})
	}
	return p
}

func reservationFromProto(p *devicepb.ContainerReservation) *Reservation {
	r := &Reservation{Env: p.GetEnvs()}
	for _, m := range p.GetMounts() {
		r.Mounts = append(r.Mounts, Mount{TaskPath: m.GetTaskPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range p.GetDevices() {
		r.Devices = append(r.Devices, DeviceNode{
			TaskPath: d.GetTaskPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions(),
		})
	}
	return r
}
