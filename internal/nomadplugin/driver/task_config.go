package driver

import (
	"fmt"

	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
)

// isolationModes are Nomad's names of the network isolation modes.
var isolationModes = map[string]driverpb.NetworkIsolationSpec_NetworkIsolationMode{
	"host":  driverpb.NetworkIsolationSpec_HOST,
	"group": driverpb.NetworkIsolationSpec_GROUP,
	"task":  driverpb.NetworkIsolationSpec_TASK,
	"none":  driverpb.NetworkIsolationSpec_NONE,
}

func isolationModeToProto(name string) (driverpb.NetworkIsolationSpec_NetworkIsolationMode, error) {
	if name == "" {
		return driverpb.NetworkIsolationSpec_HOST, nil
	}
	mode, ok := isolationModes[name]
	if !ok {
		return 0, fmt.Errorf("network isolation mode %q is not host, group, task or none", name)
	}
	return mode, nil
}

// isolationModeFromProto takes an unknown mode for host, as Nomad does.
func isolationModeFromProto(mode driverpb.NetworkIsolationSpec_NetworkIsolationMode) string {
	for name, m := range isolationModes {
		if m == mode {
			return name
		}
	}
	return "host"
}

func taskConfigToProto(c *TaskConfig) *driverpb.TaskConfig {
	if c == nil {
		return nil
	}
	p := &driverpb.TaskConfig{
		Id: c.ID, Name: c.Name,
		JobName: c.JobName, JobId: c.JobID,
		TaskGroupName: c.TaskGroupName, Namespace: c.Namespace,
		NodeName: c.NodeName, NodeId: c.NodeID,
		AllocId: c.AllocID, ParentJobId: c.ParentJobID,
		Env: c.Env, DeviceEnv: c.DeviceEnv,
		Resources: resourcesToProto(c.Resources),
		User:      c.User, AllocDir: c.AllocDir,
		MsgpackDriverConfig: c.MsgPackConfig,
		StdoutPath:          c.StdoutPath, StderrPath: c.StderrPath,
		NetworkIsolationSpec: isolationToProto(c.NetworkIsolation),
	}
	for _, d := range c.Devices {
		p.Devices = append(p.Devices, &driverpb.Device{
			TaskPath: d.TaskPath, HostPath: d.HostPath, CgroupPermissions: d.Permissions,
		})
	}
	for _, m := range c.Mounts {
		p.Mounts = append(p.Mounts, &driverpb.Mount{
			TaskPath: m.TaskPath, HostPath: m.HostPath, Readonly: m.ReadOnly,
			PropagationMode: m.PropagationMode, SelinuxLabel: m.SELinuxLabel, RequestName: m.RequestName,
		})
	}
	if c.DNS != nil {
		p.Dns = &driverpb.DNSConfig{Servers: c.DNS.Servers, Searches: c.DNS.Searches, Options: c.DNS.Options}
	}
	return p
}

func taskConfigFromProto(p *driverpb.TaskConfig) *TaskConfig {
	if p == nil {
		return nil
	}
	c := &TaskConfig{
		ID: p.GetId(), Name: p.GetName(),
		JobName: p.GetJobName(), JobID: p.GetJobId(),
		TaskGroupName: p.GetTaskGroupName(), Namespace: p.GetNamespace(),
		NodeName: p.GetNodeName(), NodeID: p.GetNodeId(),
		AllocID: p.GetAllocId(), ParentJobID: p.GetParentJobId(),
		Env: p.GetEnv(), DeviceEnv: p.GetDeviceEnv(),
		Resources: resourcesFromProto(p.GetResources()),
		User:      p.GetUser(), AllocDir: p.GetAllocDir(),
		MsgPackConfig: p.GetMsgpackDriverConfig(),
		StdoutPath:    p.GetStdoutPath(), StderrPath: p.GetStderrPath(),
		NetworkIsolation: isolationFromProto(p.GetNetworkIsolationSpec()),
	}
	for _, d := range p.GetDevices() {
		c.Devices = append(c.Devices, device.DeviceNode{
			TaskPath: d.GetTaskPath(), HostPath: d.GetHostPath(), Permissions: d.GetCgroupPermissions(),
		})
	}
	for _, m := range p.GetMounts() {
		c.Mounts = append(c.Mounts, Mount{
			TaskPath: m.GetTaskPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadonly(),
			PropagationMode: m.GetPropagationMode(), SELinuxLabel: m.GetSelinuxLabel(), RequestName: m.GetRequestName(),
		})
	}
	if d := p.GetDns(); d != nil {
		c.DNS = &DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	return c
}

func isolationToProto(n *NetworkIsolation) *driverpb.NetworkIsolationSpec {
	if n == nil {
		return nil
	}
	mode, err := isolationModeToProto(n.Mode)
	if err != nil {
		mode = driverpb.NetworkIsolationSpec_HOST
	}
	p := &driverpb.NetworkIsolationSpec{Mode: mode, Path: n.Path, Labels: n.Labels}
	if n.HostName != "" || n.HostAddress != "" {
		p.HostsConfig = &driverpb.HostsConfig{Hostname: n.HostName, Address: n.HostAddress}
	}
	return p
}

func isolationFromProto(p *driverpb.NetworkIsolationSpec) *NetworkIsolation {
	if p == nil {
		return nil
	}
	return &NetworkIsolation{
		Mode: isolationModeFromProto(p.GetMode()), Path: p.GetPath(), Labels: p.GetLabels(),
		HostName: p.GetHostsConfig().GetHostname(), HostAddress: p.GetHostsConfig().GetAddress(),
	}
}

func resourcesToProto(r *Resources) *driverpb.Resources {
	if r == nil {
		return nil
	}
	p := &driverpb.Resources{
		AllocatedResources: &driverpb.AllocatedTaskResources{
			Cpu:    &driverpb.AllocatedCpuResources{CpuShares: r.CPUShares},
			Memory: &driverpb.AllocatedMemoryResources{MemoryMb: r.MemoryMB, MemoryMaxMb: r.MemoryMaxMB},
		},
		LinuxResources: &driverpb.LinuxResources{
			CpuPeriod: r.LinuxCPUPeriod, CpuQuota: r.LinuxCPUQuota, CpuShares: r.LinuxCPUShares,
			MemoryLimitBytes: r.LinuxMemoryLimitBytes, OomScoreAdj: r.LinuxOOMScoreAdj,
			CpusetCpus: r.CPUSetCPUs, CpusetCgroup: r.CPUSetCgroup, PercentTicks: r.PercentTicks,
		},
	}
	for _, n := range r.Networks {
		p.AllocatedResources.Networks = append(p.AllocatedResources.Networks, &driverpb.NetworkResource{
			Device: n.Device, Cidr: n.CIDR, Ip: n.IP, Mbits: n.MBits,
			ReservedPorts: networkPortsToProto(n.ReservedPorts), DynamicPorts: networkPortsToProto(n.DynamicPorts),
		})
	}
	for _, port := range r.Ports {
		p.Ports = append(p.Ports, &driverpb.PortMapping{
			Label: port.Label, Value: port.Value, To: port.To, HostIp: port.HostIP,
		})
	}
	return p
}

func resourcesFromProto(p *driverpb.Resources) *Resources {
	if p == nil {
		return nil
	}
	allocated, linux := p.GetAllocatedResources(), p.GetLinuxResources()
	r := &Resources{
		CPUShares:             allocated.GetCpu().GetCpuShares(),
		MemoryMB:              allocated.GetMemory().GetMemoryMb(),
		MemoryMaxMB:           allocated.GetMemory().GetMemoryMaxMb(),
		LinuxCPUPeriod:        linux.GetCpuPeriod(),
		LinuxCPUQuota:         linux.GetCpuQuota(),
		LinuxCPUShares:        linux.GetCpuShares(),
		LinuxMemoryLimitBytes: linux.GetMemoryLimitBytes(),
		LinuxOOMScoreAdj:      linux.GetOomScoreAdj(),
		CPUSetCPUs:            linux.GetCpusetCpus(),
		CPUSetCgroup:          linux.GetCpusetCgroup(),
		PercentTicks:          linux.GetPercentTicks(),
	}
	for _, n := range allocated.GetNetworks() {
		r.Networks = append(r.Networks, Network{
			Device: n.GetDevice(), CIDR: n.GetCidr(), IP: n.GetIp(), MBits: n.GetMbits(),
			ReservedPorts: networkPortsFromProto(n.GetReservedPorts()), DynamicPorts: networkPortsFromProto(n.GetDynamicPorts()),
		})
	}
	for _, port := range p.GetPorts() {
		r.Ports = append(r.Ports, Port{
			Label: port.GetLabel(), Value: port.GetValue(), To: port.GetTo(), HostIP: port.GetHostIp(),
		})
	}
	return r
}

func networkPortsToProto(ports []NetworkPort) (out []*driverpb.NetworkPort) {
	for _, p := range ports {
		out = append(out, &driverpb.NetworkPort{Label: p.Label, Value: p.Value})
	}
	return out
}

func networkPortsFromProto(ports []*driverpb.NetworkPort) (out []NetworkPort) {
	for _, p := range ports {
		out = append(out, NetworkPort{Label: p.GetLabel(), Value: p.GetValue()})
	}
	return out
}
