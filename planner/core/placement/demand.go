package placement

import (
	"strconv"

	"github.com/nomad-muster/muster/planner/core"
)

// appendDemand writes what decides where a gang can be placed: gangs with the
// same text share a Request. Every text is closed by a zero byte.
func appendDemand(b []byte, g *core.Gang) []byte {
	text := func(s string) {
		b = append(b, s...)
		b = append(b, 0)
	}
	number := func(n int64) {
		b = strconv.AppendInt(b, n, 10)
		b = append(b, 0)
	}
	constraint := func(c core.Constraint) {
		text(c.Left)
		text(c.Operand)
		text(c.Right)
	}
	text(g.Level)
	b = strconv.AppendBool(b, g.Required)
	b = strconv.AppendBool(b, g.Spread)
	b = strconv.AppendBool(b, g.Service)
	number(int64(g.Min))
	for _, m := range g.Models {
		text(string(m))
	}
	b = append(b, 1)
	for _, n := range g.AvoidNodes {
		text(string(n))
	}
	b = append(b, 1)
	for _, k := range g.AvoidCards {
		text(string(k))
	}
	for i := range g.Groups {
		group := &g.Groups[i]
		b = append(b, 2)
		text(group.Name)
		number(int64(group.Count))
		text(group.Pool)
		for _, d := range group.Datacenters {
			text(d)
		}
		b = append(b, 1)
		for _, c := range group.Constraints {
			constraint(c)
		}
		b = append(b, 1)
		for _, a := range group.Affinities {
			constraint(a.Constraint)
			number(int64(a.Weight))
		}
		b = append(b, 1)
		for _, s := range group.Spreads {
			text(s.Attribute)
			number(int64(s.Weight))
			for _, t := range s.Targets {
				text(t.Value)
				number(int64(t.Percent))
			}
		}
		b = append(b, 1)
		for _, d := range group.Drivers {
			text(d)
		}
		b = append(b, 1)
		number(group.Use.CPU)
		number(int64(group.Use.Cores))
		number(group.Use.MemoryMB)
		number(group.Use.DiskMB)
		for i := range group.Devices {
			d := &group.Devices[i]
			text(d.Task)
			text(d.Vendor)
			text(d.Type)
			text(d.Name)
			number(int64(d.Count))
			number(int64(d.Shares))
			for _, c := range d.Constraints {
				constraint(c)
			}
			b = append(b, 1)
			for _, a := range d.Affinities {
				constraint(a.Constraint)
				number(int64(a.Weight))
			}
		}
		b = append(b, 1)
		for _, p := range group.StaticPorts {
			number(int64(p))
		}
		number(int64(group.Ports))
		for _, v := range group.Volumes {
			text(v.Source)
			b = strconv.AppendBool(b, v.ReadOnly)
		}
	}
	return b
}
