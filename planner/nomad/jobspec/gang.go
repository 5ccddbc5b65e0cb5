package jobspec

import (
	"fmt"
	"sort"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Groups are the job's task groups as the decision core sees them: what
// Nomad's scheduler will ask of a node, without the hold, the mark and the
// pins.
func (j *Job) Groups() []core.Group {
	groups := make([]core.Group, 0, len(j.TaskGroups))
	for i := range j.TaskGroups {
		groups = append(groups, j.group(&j.TaskGroups[i]))
	}
	return groups
}

func (j *Job) group(g *Group) core.Group {
	out := core.Group{Name: g.Name, Count: g.Count, Datacenters: j.Datacenters, Pool: j.NodePool, Use: g.use()}
	add := func(cs []Constraint) {
		for _, c := range cs {
			if !isHold(c) && !isMark(c) {
				out.Constraints = append(out.Constraints, c.core())
			}
		}
	}
	affinities := func(as []Affinity) {
		for _, a := range as {
			out.Affinities = append(out.Affinities, a.core())
		}
	}
	add(j.Constraints)
	add(g.Constraints)
	affinities(j.Affinities)
	affinities(g.Affinities)
	for _, s := range append(append([]Spread(nil), j.Spreads...), g.Spreads...) {
		out.Spreads = append(out.Spreads, s.core())
	}
	drivers := map[string]bool{}
	networks := g.Networks
	for _, t := range g.Tasks {
		add(t.Constraints)
		affinities(t.Affinities)
		drivers[t.Driver] = true
		if t.Resources == nil {
			continue
		}
		networks = append(networks[:len(networks):len(networks)], t.Resources.Networks...)
		for _, d := range t.Resources.Devices {
			out.Devices = append(out.Devices, d.core(t.Name))
		}
	}
	for d := range drivers {
		out.Drivers = append(out.Drivers, d)
	}
	sort.Strings(out.Drivers)
	for _, n := range networks {
		for _, p := range n.ReservedPorts {
			out.StaticPorts = append(out.StaticPorts, p.Value)
		}
		out.Ports += len(n.DynamicPorts)
	}
	names := make([]string, 0, len(g.Volumes))
	for name := range g.Volumes {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if v := g.Volumes[name]; v.Type == "host" || v.Type == "" {
			out.Volumes = append(out.Volumes, core.VolumeAsk{Source: v.Source, ReadOnly: v.ReadOnly})
		}
	}
	return out
}

// use is what one member takes, as Nomad counts it: tasks that run before and
// after the main ones share their place with them, sidecars come on top.
func (g *Group) use() core.Resources {
	var before, main, after, side core.Resources
	for _, t := range g.Tasks {
		if t.Resources == nil {
			continue
		}
		into := &main
		if t.Lifecycle != nil {
			switch {
			case t.Lifecycle.Sidecar:
				into = &side
			case t.Lifecycle.Hook == "prestart":
				into = &before
			case t.Lifecycle.Hook == "poststop":
				into = &after
			}
		}
		r := t.Resources
		if r.Cores > 0 {
			into.Cores += int(r.Cores)
		} else {
			into.CPU += r.CPU
		}
		into.MemoryMB += r.MemoryMB
	}
	use := core.Resources{
		CPU:      max(before.CPU, main.CPU, after.CPU) + side.CPU,
		Cores:    max(before.Cores, main.Cores, after.Cores) + side.Cores,
		MemoryMB: max(before.MemoryMB, main.MemoryMB, after.MemoryMB) + side.MemoryMB,
	}
	if g.EphemeralDisk != nil {
		use.DiskMB = g.EphemeralDisk.SizeMB
	}
	return use
}

func (c Constraint) core() core.Constraint {
	out := core.Constraint{Left: c.LTarget, Operand: c.Operand, Right: c.RTarget}
	if out.Operand == "" {
		out.Operand = "="
	}
	return out
}

func (a Affinity) core() core.Affinity {
	return core.Affinity{Constraint: Constraint{a.LTarget, a.RTarget, a.Operand}.core(), Weight: a.Weight}
}

func (s Spread) core() core.Spread {
	out := core.Spread{Attribute: s.Attribute, Weight: s.Weight}
	for _, t := range s.SpreadTarget {
		out.Targets = append(out.Targets, core.SpreadTarget{Value: t.Value, Percent: t.Percent})
	}
	return out
}

func (d Device) core(task string) core.DeviceAsk {
	out := core.DeviceAsk{Task: task, Count: int(d.Count)}
	switch parts := strings.SplitN(d.Name, "/", 3); len(parts) {
	case 1:
		out.Type = parts[0]
	case 2:
		out.Vendor, out.Type = parts[0], parts[1]
	default:
		out.Vendor, out.Type, out.Name = parts[0], parts[1], parts[2]
	}
	for _, c := range d.Constraints {
		out.Constraints = append(out.Constraints, c.core())
	}
	for _, a := range d.Affinities {
		out.Affinities = append(out.Affinities, a.core())
	}
	return out
}

// Want is what the job's meta block asks for beside its groups, with every
// fault of the block and of its torchrun tasks' configurations. cardTypes are
// the device types that count as cards.
func (j *Job) Want(cardTypes []string) (contract.JobMeta, []contract.Fault) {
	meta, faults := contract.ParseJobMeta(j.Meta)
	ranks := false
	for _, g := range j.TaskGroups {
		for _, t := range g.Tasks {
			if t.Driver != contract.DriverName {
				continue
			}
			ranks = true
			where := fmt.Sprintf("group %q task %q config", g.Name, t.Name)
			config, wrong := contract.ParseTaskConfig(where, t.Config, t.cards(cardTypes))
			faults = append(faults, wrong...)
			if config.Elastic && meta.Min == 0 {
				faults = append(faults, contract.Fault{Field: where + ".elastic", Value: "true",
					Want: fmt.Sprintf("the job's least number of members in meta %s", contract.MetaMin)})
			}
			if n := t.cards(cardTypes); n > 0 && config.NprocPerNode > n {
				faults = append(faults, contract.Fault{Field: where + ".nproc_per_node", Value: fmt.Sprint(config.NprocPerNode),
					Want: fmt.Sprintf("no more than the task's %d cards: two ranks on one card would share its memory", n)})
			}
		}
		if j.Type == "batch" && g.Count > 1 {
			for name, v := range g.Volumes {
				if v.PerAlloc {
					faults = append(faults, contract.Fault{Field: fmt.Sprintf("group %q volume %q per_alloc", g.Name, name), Value: "true",
						Want: "a volume that any member can use: a gang's members are placed by what they need, not by their number"})
				}
			}
		}
	}
	for _, g := range j.TaskGroups {
		if g.Count < 0 {
			faults = append(faults, contract.Fault{Field: fmt.Sprintf("group %q count", g.Name), Value: fmt.Sprint(g.Count), Want: "a number of at least 0"})
		}
	}
	if n := j.Members(); n <= 0 {
		faults = append(faults, contract.Fault{Field: "group", Want: "at least one group with a count above 0: the job has no members"})
	} else if meta.Min > n {
		faults = append(faults, contract.Fault{Field: "meta." + contract.MetaMin, Value: fmt.Sprint(meta.Min),
			Want: fmt.Sprintf("no more than the job's %d members", n)})
	}
	if j.Type == "batch" && !j.IsHeld() && j.Mark() == 0 && !ranks {
		faults = append(faults, contract.Fault{Field: "constraint",
			Want: fmt.Sprintf("the hold %s = %s: without it Nomad starts the tasks as it places them, since no task of the job has the driver %s, which would hold them",
				contract.HoldAttribute, contract.HoldValue, contract.DriverName)})
	}
	return meta, faults
}

// cards counts the cards that a task asks for.
func (t *Task) cards(types []string) int {
	n := 0
	if t.Resources == nil {
		return 0
	}
	for _, d := range t.Resources.Devices {
		ask := d.core(t.Name)
		for _, typ := range types {
			if ask.Type == typ {
				n += int(d.Count)
			}
		}
	}
	return n
}
