// Package jobdiff tells the difference between two versions of a job as `nomad job plan` and `nomad job history -p` show it.
//
// Fields are values, objects are blocks. With context, objects that changed also show the fields that did not. Constraints
// and affinities of devices are not looked at, as in Nomad: such a change shows as an edited device without edited fields.
package jobdiff

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Types of differences.
const (
	None    = "None"
	Added   = "Added"
	Deleted = "Deleted"
	Edited  = "Edited"
)

// Job is the difference between two jobs.
type Job struct {
	Type       string
	ID         string
	Fields     []*Field
	Objects    []*Object
	TaskGroups []*Group
}

// Group is the difference between two task groups. Updates counts what a plan would do.
type Group struct {
	Type    string
	Name    string
	Fields  []*Field
	Objects []*Object
	Tasks   []*Task
	Updates map[string]uint64
}

// Task is the difference between two tasks.
type Task struct {
	Type        string
	Name        string
	Fields      []*Field
	Objects     []*Object
	Annotations []string
}

// Object is the difference between two blocks.
type Object struct {
	Type    string
	Name    string
	Fields  []*Field
	Objects []*Object
}

// Field is the difference between two values.
type Field struct {
	Type        string
	Name        string
	Old, New    string
	Annotations []string
}

// Diff compares two versions of a job; either may be nil.
func Diff(old, new *wire.Job, context bool) (*Job, error) {
	d := &Job{Type: None}
	switch {
	case old == nil && new == nil:
		return d, nil
	case old == nil:
		d.Type, d.ID = Added, new.ID
	case new == nil:
		d.Type, d.ID = Deleted, old.ID
	default:
		if old.ID != new.ID {
			return nil, fmt.Errorf("can not diff jobs with different IDs: %q and %q", old.ID, new.ID)
		}
		d.ID = new.ID
	}
	skip := []string{"ID", "Status", "StatusDescription", "Version", "Stable", "CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime", "NomadTokenID"}
	d.Fields = fields(flat(old, skip...), flat(new, skip...), false)
	o, n := orEmpty(old), orEmpty(new)
	add := func(list ...*Object) {
		for _, x := range list {
			if x != nil {
				d.Objects = append(d.Objects, x)
			}
		}
	}
	if s := stringSet("Datacenters", o.Datacenters, n.Datacenters, context); s != nil && s.Type != None {
		add(s)
	}
	add(set("Constraint", o.Constraints, n.Constraints, context)...)
	add(set("Affinity", o.Affinities, n.Affinities, context)...)
	for _, name := range names(o.TaskGroups, n.TaskGroups, func(g *wire.TaskGroup) string { return g.Name }) {
		d.TaskGroups = append(d.TaskGroups, group(o.Group(name), n.Group(name), context))
	}
	add(object("Periodic", o.Periodic, n.Periodic, context), object("ParameterizedJob", o.ParameterizedJob, n.ParameterizedJob, context), ui(o.UI, n.UI, context))
	if d.Type == None && changed(d) {
		d.Type = Edited
	}
	return d, nil
}

func changed(d *Job) bool {
	return slices.ContainsFunc(d.Fields, func(f *Field) bool { return f.Type != None }) ||
		slices.ContainsFunc(d.Objects, func(o *Object) bool { return o.Type != None }) ||
		slices.ContainsFunc(d.TaskGroups, func(g *Group) bool { return g.Type != None })
}

func orEmpty[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// kind is what two things that may be absent have become.
func kind[T any](old, new *T) string {
	switch {
	case old == nil && new == nil:
		return None
	case old == nil:
		return Added
	case new == nil:
		return Deleted
	case reflect.DeepEqual(old, new):
		return None
	}
	return Edited
}

func names[T any](a, b []T, name func(T) string) []string {
	var out []string
	for _, x := range slices.Concat(a, b) {
		if n := name(x); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func group(old, new *wire.TaskGroup, context bool) *Group {
	d := &Group{Type: kind(old, new)}
	o, n := orEmpty(old), orEmpty(new)
	d.Name = cmp.Or(n.Name, o.Name)
	of, nf := flat(old, "Name"), flat(new, "Name")
	if of != nil && nf != nil {
		of["ShutdownDelay"], nf["ShutdownDelay"] = delay(o), delay(n)
	}
	d.Fields = fields(of, nf, false)
	add := func(list ...*Object) {
		for _, x := range list {
			if x != nil {
				d.Objects = append(d.Objects, x)
			}
		}
	}
	add(set("Constraint", o.Constraints, n.Constraints, context)...)
	add(set("Affinity", o.Affinities, n.Affinities, context)...)
	add(object("RestartPolicy", o.RestartPolicy, n.RestartPolicy, context), object("Migrate", o.Migrate, n.Migrate, context),
		object("ReschedulePolicy", o.ReschedulePolicy, n.ReschedulePolicy, context), object("EphemeralDisk", o.EphemeralDisk, n.EphemeralDisk, context),
		free("Consul", o.Consul, n.Consul, context), object("Update", o.Update, n.Update, context, "Stagger"), disconnect(o.Disconnect, n.Disconnect, context))
	add(networks(o.Networks, n.Networks, context)...)
	add(object("Scaling", o.Scaling, n.Scaling, context, "ID", "CreateIndex", "ModifyIndex"))
	add(freeSet("Service", o.Services, n.Services, context)...)
	for _, name := range keys(o.Volumes, n.Volumes) {
		add(object("Volume", o.Volumes[name], n.Volumes[name], context))
	}
	for _, name := range names(o.Tasks, n.Tasks, func(t *wire.Task) string { return t.Name }) {
		d.Tasks = append(d.Tasks, task(o.Task(name), n.Task(name), context))
	}
	return d
}

func delay(g *wire.TaskGroup) string {
	if g.ShutdownDelay == nil {
		return ""
	}
	return strconv.FormatInt(int64(*g.ShutdownDelay), 10)
}

func task(old, new *wire.Task, context bool) *Task {
	d := &Task{Type: kind(old, new)}
	o, n := orEmpty(old), orEmpty(new)
	d.Name = cmp.Or(n.Name, o.Name)
	d.Fields = fields(flat(old, "Name"), flat(new, "Name"), false)
	add := func(list ...*Object) {
		for _, x := range list {
			if x != nil {
				d.Objects = append(d.Objects, x)
			}
		}
	}
	add(set("Constraint", o.Constraints, n.Constraints, context)...)
	add(set("Affinity", o.Affinities, n.Affinities, context)...)
	add(free("Config", o.Config, n.Config, context), resources(o.Resources, n.Resources, context), object("LogConfig", o.LogConfig, n.LogConfig, context),
		object("DispatchPayload", o.DispatchPayload, n.DispatchPayload, context))
	add(freeSet("Artifact", o.Artifacts, n.Artifacts, context)...)
	add(freeSet("Service", o.Services, n.Services, context)...)
	add(free("Vault", o.Vault, n.Vault, context))
	add(freeSet("Secret", o.Secrets, n.Secrets, context)...)
	add(free("Consul", o.Consul, n.Consul, context))
	add(templates(o.Templates, n.Templates, context)...)
	add(object("Identity", o.Identity, n.Identity, context))
	add(set("Identity", o.Identities, n.Identities, context)...)
	add(freeSet("Action", o.Actions, n.Actions, context)...)
	add(set("VolumeMount", o.VolumeMounts, n.VolumeMounts, context)...)
	add(free("Schedule", o.Schedule, n.Schedule, context))
	return d
}

func resources(old, new *wire.Resources, context bool) *Object {
	if kind(old, new) == None {
		return nil
	}
	d := &Object{Type: kind(old, new), Name: "Resources", Fields: fields(flat(old), flat(new), context)}
	o, n := orEmpty(old), orEmpty(new)
	d.Objects = append(d.Objects, networks(o.Networks, n.Networks, context)...)
	find := func(list []*wire.RequestedDevice, name string) *wire.RequestedDevice {
		for _, x := range list {
			if x.Name == name {
				return x
			}
		}
		return nil
	}
	for _, name := range names(o.Devices, n.Devices, func(x *wire.RequestedDevice) string { return x.Name }) {
		a, b := find(o.Devices, name), find(n.Devices, name)
		if k := kind(a, b); k != None {
			d.Objects = append(d.Objects, &Object{Type: k, Name: "Device", Fields: fields(flat(a), flat(b), context)})
		}
	}
	if x := free("NUMA", o.NUMA, n.NUMA, context); x != nil {
		d.Objects = append(d.Objects, x)
	}
	return d
}

// networks that differ are one gone and one new: they have no names.
func networks(old, new []*wire.NetworkResource, context bool) []*Object {
	one := func(a, b *wire.NetworkResource) *Object {
		skip := []string{"Device", "CIDR", "IP", "MBits"}
		d := &Object{Type: kind(a, b), Name: "Network", Fields: fields(flat(a, skip...), flat(b, skip...), context)}
		x, y := orEmpty(a), orEmpty(b)
		d.Objects = append(d.Objects, ports("Static Port", x.ReservedPorts, y.ReservedPorts, context)...)
		d.Objects = append(d.Objects, ports("Dynamic Port", x.DynamicPorts, y.DynamicPorts, context, "Value", "IgnoreCollision")...)
		return d
	}
	has := func(list []*wire.NetworkResource, n *wire.NetworkResource) bool {
		return slices.ContainsFunc(list, func(o *wire.NetworkResource) bool { return reflect.DeepEqual(o, n) })
	}
	var out []*Object
	for _, n := range new {
		if !has(old, n) {
			out = append(out, one(nil, n))
		}
	}
	for _, o := range old {
		if !has(new, o) {
			out = append(out, one(o, nil))
		}
	}
	return out
}

func ports(name string, old, new []wire.Port, context bool, skip ...string) []*Object {
	find := func(list []wire.Port, label string) *wire.Port {
		for i := range list {
			if list[i].Label == label {
				return &list[i]
			}
		}
		return nil
	}
	var out []*Object
	for _, label := range names(old, new, func(p wire.Port) string { return p.Label }) {
		if d := object(name, find(old, label), find(new, label), context, skip...); d != nil {
			out = append(out, d)
		}
	}
	return out
}

// templates are matched by where they go.
func templates(old, new []*wire.Template, context bool) []*Object {
	one := func(a, b *wire.Template) *Object {
		k := kind(a, b)
		if k == None {
			return nil
		}
		return &Object{Type: k, Name: "Template", Fields: fields(flat(a), flat(b), context)}
	}
	if len(old) == 1 && len(new) == 1 {
		if d := one(old[0], new[0]); d != nil {
			return []*Object{d}
		}
		return nil
	}
	find := func(list []*wire.Template, dest string) *wire.Template {
		for _, t := range list {
			if t.DestPath == dest {
				return t
			}
		}
		return nil
	}
	var out []*Object
	for _, dest := range names(old, new, func(t *wire.Template) string { return t.DestPath }) {
		if d := one(find(old, dest), find(new, dest)); d != nil {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, byObject)
	return out
}

func disconnect(old, new *wire.DisconnectStrategy, context bool) *Object {
	k := kind(old, new)
	if k == None {
		return nil
	}
	of, nf := flat(old), flat(new)
	for _, x := range []struct {
		d *wire.DisconnectStrategy
		f map[string]string
	}{{old, of}, {new, nf}} {
		if x.d != nil && x.d.Replace != nil {
			x.f["Replace"] = strconv.FormatBool(*x.d.Replace)
		}
		if x.d != nil && x.d.StopOnClientAfter != nil {
			x.f["StopOnClientAfter"] = strconv.FormatInt(int64(*x.d.StopOnClientAfter), 10)
		}
	}
	return &Object{Type: k, Name: "Disconnect", Fields: fields(of, nf, context)}
}

func ui(old, new *wire.JobUI, context bool) *Object {
	k := kind(old, new)
	if k == None {
		return nil
	}
	d := &Object{Type: k, Name: "UI", Fields: fields(flat(old), flat(new), context)}
	o, n := orEmpty(old), orEmpty(new)
	d.Objects = append(d.Objects, set("Link", o.Links, n.Links, context)...)
	return d
}

// Annotate notes in a difference what a plan would do about it.
func (d *Job) Annotate(a *wire.PlanAnnotations) {
	for _, g := range d.TaskGroups {
		if a != nil && a.DesiredTGUpdates[g.Name] != nil {
			u := a.DesiredTGUpdates[g.Name]
			g.Updates = map[string]uint64{}
			for name, n := range map[string]uint64{"ignore": u.Ignore, "create": u.Place, "migrate": u.Migrate, "destroy": u.Stop, "canary": u.Canary,
				"in-place update": u.InPlaceUpdate, "create/destroy update": u.DestructiveUpdate} {
				if n != 0 {
					g.Updates[name] = n
				}
			}
		}
		for _, f := range g.Fields {
			if f.Name != "Count" {
				continue
			}
			was, _ := strconv.Atoi(f.Old)
			is, _ := strconv.Atoi(f.New)
			switch {
			case was < is:
				f.Annotations = append(f.Annotations, "forces create")
			case was > is:
				f.Annotations = append(f.Annotations, "forces destroy")
			}
		}
		for _, t := range g.Tasks {
			t.annotate(g)
		}
	}
}

func (t *Task) annotate(g *Group) {
	if t.Type == None {
		return
	}
	if g.Type == Added || g.Type == Deleted {
		if t.Type == Added {
			t.Annotations = append(t.Annotations, "forces create")
			return
		}
		if t.Type == Deleted {
			t.Annotations = append(t.Annotations, "forces destroy")
			return
		}
	}
	destructive := slices.ContainsFunc(t.Fields, func(f *Field) bool { return f.Name != "KillTimeout" })
	for _, o := range t.Objects {
		switch o.Name {
		case "Service", "Constraint", "Affinity", "Spread":
		case "LogConfig":
			destructive = destructive || slices.ContainsFunc(o.Fields, func(f *Field) bool { return f.Name == "Disabled" })
		default:
			destructive = true
		}
	}
	if destructive {
		t.Annotations = append(t.Annotations, "forces create/destroy update")
	} else {
		t.Annotations = append(t.Annotations, "forces in-place update")
	}
}
