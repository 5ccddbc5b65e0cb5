package sched

import (
	"maps"
	"reflect"
	"slices"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// destructive says whether a group's allocations must be started anew to get from one version of a job to another.
// Constraints, affinities, counts, kill timeouts, restart and reschedule policies, services and log sizes are not among
// what it looks at: these change in place.
func destructive(from, to *wire.Job, group string) bool {
	a, b := from.Group(group), to.Group(group)
	if a == nil || b == nil || len(a.Tasks) != len(b.Tasks) {
		return true
	}
	if !reflect.DeepEqual(a.EphemeralDisk, b.EphemeralDisk) || networksDiffer(a.Networks, b.Networks) ||
		!same(a.Consul, b.Consul) || !maps.EqualFunc(a.Volumes, b.Volumes, func(x, y *wire.VolumeRequest) bool { return reflect.DeepEqual(x, y) }) ||
		renders(a.RestartPolicy) != renders(b.RestartPolicy) {
		return true
	}
	for _, x := range a.Tasks {
		y := b.Task(x.Name)
		if y == nil || taskDiffers(x, y) || !maps.Equal(combinedMeta(from, a, x), combinedMeta(to, b, y)) {
			return true
		}
	}
	return false
}

func taskDiffers(x, y *wire.Task) bool {
	return x.Driver != y.Driver || x.User != y.User || !same(x.Config, y.Config) || !maps.Equal(x.Env, y.Env) ||
		!sameList(x.Artifacts, y.Artifacts) || !same(x.Vault, y.Vault) || !sameList(x.Secrets, y.Secrets) || !same(x.Consul, y.Consul) ||
		!equalLists(x.Templates, y.Templates) || !same(x.CSIPluginConfig, y.CSIPluginConfig) || !equalLists(x.VolumeMounts, y.VolumeMounts) ||
		networksDiffer(x.Resources.Networks, y.Resources.Networks) || resourcesDiffer(x.Resources, y.Resources) ||
		!reflect.DeepEqual(x.Identity, y.Identity) || !equalLists(x.Identities, y.Identities) ||
		logsOff(x) != logsOff(y) || renders(x.RestartPolicy) != renders(y.RestartPolicy)
}

func resourcesDiffer(a, b *wire.Resources) bool {
	return a.CPU != b.CPU || a.Cores != b.Cores || a.MemoryMB != b.MemoryMB || a.MemoryMaxMB != b.MemoryMaxMB ||
		!equalLists(a.Devices, b.Devices) || !same(a.NUMA, b.NUMA) || a.SecretsMB != b.SecretsMB
}

func networksDiffer(a, b []*wire.NetworkResource) bool {
	return !slices.EqualFunc(a, b, func(x, y *wire.NetworkResource) bool {
		return x.Mode == y.Mode && x.MBits == y.MBits && x.Hostname == y.Hostname && same(x.DNS, y.DNS) && same(x.CNI, y.CNI) &&
			reflect.DeepEqual(portsAsked(x), portsAsked(y))
	})
}

// portsAsked is what a network asks by label; the number of a dynamic port is not asked for.
func portsAsked(n *wire.NetworkResource) map[string]wire.Port {
	out := map[string]wire.Port{}
	for _, p := range n.ReservedPorts {
		out[p.Label] = p
	}
	for _, p := range n.DynamicPorts {
		p.Value = -1
		out[p.Label] = p
	}
	return out
}

func renders(r *wire.RestartPolicy) bool { return r != nil && r.RenderTemplates }

func logsOff(t *wire.Task) bool { return t.LogConfig != nil && t.LogConfig.Disabled }

// same compares free-form values; empty and absent are one.
func same(a, b map[string]any) bool { return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b) }

func sameList(a, b []map[string]any) bool { return slices.EqualFunc(a, b, same) }

func equalLists[T any](a, b []*T) bool {
	return slices.EqualFunc(a, b, func(x, y *T) bool { return reflect.DeepEqual(x, y) })
}

// combinedMeta is what a task sees as its meta: the task's over the group's over the job's.
func combinedMeta(j *wire.Job, g *wire.TaskGroup, t *wire.Task) map[string]string {
	out := map[string]string{}
	maps.Copy(out, j.Meta)
	maps.Copy(out, g.Meta)
	maps.Copy(out, t.Meta)
	return out
}
