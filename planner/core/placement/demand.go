package placement

import (
	"strconv"

	"github.com/nomad-muster/muster/planner/core"
)

// writer appends texts that tell equal demands from others. Every part is
// closed by a zero byte.
type writer []byte

func (w *writer) text(s string)  { *w = append(append(*w, s...), 0) }
func (w *writer) number(n int64) { *w = append(strconv.AppendInt(*w, n, 10), 0) }
func (w *writer) bool(b bool)    { *w = strconv.AppendBool(*w, b) }
func (w *writer) mark(b byte)    { *w = append(*w, b) }
func (w *writer) constraint(c *core.Constraint) {
	w.text(c.Left)
	w.text(c.Operand)
	w.text(c.Right)
}

// demand writes what decides where a gang can be placed: gangs with the same
// text share a Request.
func (w *writer) demand(g *core.Gang) {
	w.text(g.Level)
	w.bool(g.Required)
	w.bool(g.Spread)
	w.bool(g.Service)
	w.number(int64(g.Min))
	for _, m := range g.Models {
		w.text(string(m))
	}
	w.avoided(g)
	for i := range g.Groups {
		w.mark(2)
		w.text(g.Groups[i].Name)
		w.number(int64(g.Groups[i].Count))
		w.member(&g.Groups[i])
	}
}

func (w *writer) avoided(g *core.Gang) {
	w.mark(1)
	for _, n := range g.AvoidNodes {
		w.text(string(n))
	}
	w.mark(1)
	for _, k := range g.AvoidCards {
		w.text(string(k))
	}
}

// sight writes what decides how members of a group see the cluster: groups
// with the same text share a view, whatever their number.
func (w *writer) sight(g *core.Gang, group *core.Group, models []int32) {
	w.bool(g.Required && g.Level == core.LevelLink)
	w.bool(g.Spread || g.Service)
	w.avoided(g)
	for _, m := range models {
		w.number(int64(m))
	}
	w.mark(2)
	w.member(group)
}

// member writes what one member of a group asks for.
func (w *writer) member(group *core.Group) {
	w.text(group.Pool)
	for _, d := range group.Datacenters {
		w.text(d)
	}
	w.mark(1)
	for i := range group.Constraints {
		w.constraint(&group.Constraints[i])
	}
	w.mark(1)
	for i := range group.Affinities {
		w.constraint(&group.Affinities[i].Constraint)
		w.number(int64(group.Affinities[i].Weight))
	}
	w.mark(1)
	for _, s := range group.Spreads {
		w.text(s.Attribute)
		w.number(int64(s.Weight))
		for _, t := range s.Targets {
			w.text(t.Value)
			w.number(int64(t.Percent))
		}
	}
	w.mark(1)
	for _, d := range group.Drivers {
		w.text(d)
	}
	w.mark(1)
	w.number(group.Use.CPU)
	w.number(int64(group.Use.Cores))
	w.number(group.Use.MemoryMB)
	w.number(group.Use.DiskMB)
	for i := range group.Devices {
		d := &group.Devices[i]
		w.text(d.Task)
		w.text(d.Vendor)
		w.text(d.Type)
		w.text(d.Name)
		w.number(int64(d.Count))
		w.number(int64(d.Shares))
		for k := range d.Constraints {
			w.constraint(&d.Constraints[k])
		}
		w.mark(1)
		for k := range d.Affinities {
			w.constraint(&d.Affinities[k].Constraint)
			w.number(int64(d.Affinities[k].Weight))
		}
	}
	w.mark(1)
	for _, p := range group.StaticPorts {
		w.number(int64(p))
	}
	w.number(int64(group.Ports))
	for _, v := range group.Volumes {
		w.text(v.Source)
		w.bool(v.ReadOnly)
	}
}
