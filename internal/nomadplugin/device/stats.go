package device

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// ValidateStats lists what Nomad's commands could not show.
func ValidateStats(groups []GroupStats) error {
	var f wire.Faults
	for i, g := range groups {
		var gf wire.Faults
		checkGroupName(&gf, g.Vendor, g.Type, g.Name)
		for id, s := range g.Devices {
			gf.Check("device id", wire.CheckName(id))
			if err := s.validate(); err != nil {
				gf.Add("device %q: %w", id, err)
			}
		}
		if err := gf.Err(); err != nil {
			f.Add("stats of group %d (%s/%s/%s): %w", i, g.Vendor, g.Type, g.Name, err)
		}
	}
	return f.Err()
}

func (s Stats) validate() error {
	var f wire.Faults
	f.Check("summary", s.Summary.Validate())
	for path, v := range s.Values {
		for _, name := range strings.Split(path, "/") {
			if err := wire.CheckName(name); err != nil {
				f.Add("value %q: part of the name %w", path, err)
			}
		}
		if err := v.Validate(); err != nil {
			f.Add("value %q: %w", path, err)
		}
	}
	if !s.At.IsZero() {
		if err := timestamppb.New(s.At).CheckValid(); err != nil {
			f.Add("time %v is out of range", s.At)
		}
	}
	return f.Err()
}

// Validate lists what is wrong with one value.
func (s Stat) Validate() error {
	var f wire.Faults
	set := 0
	if s.Int != nil {
		set++
	}
	if s.Float != nil {
		set++
		f.Check("float", wire.CheckNumber(*s.Float))
	}
	if s.String != nil {
		set++
		f.Check("string", wire.CheckString(*s.String))
	}
	if s.Bool != nil {
		set++
	}
	if set != 1 {
		f.Add("has %d values, want exactly one", set)
	}
	if s.IntMax != nil && s.Int == nil {
		f.Add("has an integer maximum without an integer")
	}
	if s.FloatMax != nil {
		if s.Float == nil {
			f.Add("has a float maximum without a float")
		}
		f.Check("float maximum", wire.CheckNumber(*s.FloatMax))
	}
	return f.Err()
}

// statsToProto converts valid statistics; a value without a time gets now.
func statsToProto(groups []GroupStats, now time.Time) *devicepb.StatsResponse {
	resp := &devicepb.StatsResponse{}
	for _, g := range groups {
		p := &devicepb.DeviceGroupStats{
			Vendor: g.Vendor, Type: g.Type, Name: g.Name,
			InstanceStats: make(map[string]*devicepb.DeviceStats, len(g.Devices)),
		}
		for id, s := range g.Devices {
			at := s.At
			if at.IsZero() {
				at = now
			}
			values := &structspb.StatObject{}
			for path, v := range s.Values {
				put(values, strings.Split(path, "/"), v.toProto())
			}
			p.InstanceStats[id] = &devicepb.DeviceStats{
				Summary: s.Summary.toProto(), Stats: values, Timestamp: timestamppb.New(at),
			}
		}
		resp.Groups = append(resp.Groups, p)
	}
	return resp
}

// put hangs a value into the tree at its path.
func put(tree *structspb.StatObject, path []string, v *structspb.StatValue) {
	for _, name := range path[:len(path)-1] {
		if tree.Nested == nil {
			tree.Nested = map[string]*structspb.StatObject{}
		}
		if tree.Nested[name] == nil {
			tree.Nested[name] = &structspb.StatObject{}
		}
		tree = tree.Nested[name]
	}
	if tree.Attributes == nil {
		tree.Attributes = map[string]*structspb.StatValue{}
	}
	tree.Attributes[path[len(path)-1]] = v
}

// flatten is put's inverse for a whole tree.
func flatten(tree *structspb.StatObject, prefix string, into map[string]Stat) {
	for name, v := range tree.GetAttributes() {
		into[prefix+name] = statFromProto(v)
	}
	for name, child := range tree.GetNested() {
		flatten(child, prefix+name+"/", into)
	}
}

func statsFromProto(resp *devicepb.StatsResponse) []GroupStats {
	var groups []GroupStats
	for _, p := range resp.GetGroups() {
		g := GroupStats{
			Vendor: p.GetVendor(), Type: p.GetType(), Name: p.GetName(),
			Devices: make(map[string]Stats, len(p.GetInstanceStats())),
		}
		for id, ps := range p.GetInstanceStats() {
			s := Stats{Summary: statFromProto(ps.GetSummary()), Values: map[string]Stat{}}
			flatten(ps.GetStats(), "", s.Values)
			if t := ps.GetTimestamp(); t.IsValid() {
				s.At = t.AsTime()
			}
			g.Devices[id] = s
		}
		groups = append(groups, g)
	}
	return groups
}

func (s Stat) toProto() *structspb.StatValue {
	p := &structspb.StatValue{Unit: wire.Text(s.Unit), Desc: wire.Text(s.Desc)}
	if s.Int != nil {
		p.IntNumeratorVal = wrapperspb.Int64(*s.Int)
	}
	if s.IntMax != nil {
		p.IntDenominatorVal = wrapperspb.Int64(*s.IntMax)
	}
	if s.Float != nil {
		p.FloatNumeratorVal = wrapperspb.Double(*s.Float)
	}
	if s.FloatMax != nil {
		p.FloatDenominatorVal = wrapperspb.Double(*s.FloatMax)
	}
	if s.String != nil {
		p.StringVal = wrapperspb.String(*s.String)
	}
	if s.Bool != nil {
		p.BoolVal = wrapperspb.Bool(*s.Bool)
	}
	return p
}

func statFromProto(p *structspb.StatValue) Stat {
	s := Stat{Unit: p.GetUnit(), Desc: p.GetDesc()}
	if v := p.GetIntNumeratorVal(); v != nil {
		s.Int = &v.Value
	}
	if v := p.GetIntDenominatorVal(); v != nil {
		s.IntMax = &v.Value
	}
	if v := p.GetFloatNumeratorVal(); v != nil {
		s.Float = &v.Value
	}
	if v := p.GetFloatDenominatorVal(); v != nil {
		s.FloatMax = &v.Value
	}
	if v := p.GetStringVal(); v != nil {
		s.String = &v.Value
	}
	if v := p.GetBoolVal(); v != nil {
		s.Bool = &v.Value
	}
	return s
}
