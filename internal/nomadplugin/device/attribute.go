package device

import (
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// units are those that Nomad knows; any other makes it drop the devices.
var units = map[string]bool{
	"KiB": true, "MiB": true, "GiB": true, "TiB": true, "PiB": true, "EiB": true,
	"kB": true, "KB": true, "MB": true, "GB": true, "TB": true, "PB": true, "EB": true,
	"KiB/s": true, "MiB/s": true, "GiB/s": true, "TiB/s": true, "PiB/s": true, "EiB/s": true,
	"kB/s": true, "KB/s": true, "MB/s": true, "GB/s": true, "TB/s": true, "PB/s": true, "EB/s": true,
	"MHz": true, "GHz": true,
	"mW": true, "W": true, "kW": true, "MW": true, "GW": true,
}

// Validate lists what Nomad would refuse in an attribute.
func (a Attribute) Validate() error {
	var f wire.Faults
	set := 0
	if a.Int != nil {
		set++
	}
	if a.Float != nil {
		set++
		f.Check("float", wire.CheckNumber(*a.Float))
	}
	if a.String != nil {
		set++
		f.Check("string", wire.CheckString(*a.String))
	}
	if a.Bool != nil {
		set++
	}
	if set != 1 {
		f.Add("%d values are set, want exactly one", set)
	}
	if a.Unit != "" {
		if !units[a.Unit] {
			f.Add("unit %q is not one that nomad knows", a.Unit)
		}
		if a.String != nil || a.Bool != nil {
			f.Add("unit %q beside a string or bool", a.Unit)
		}
	}
	return f.Err()
}

// AttributesToProto converts valid attributes for the wire; nil stays nil.
func AttributesToProto(attributes map[string]Attribute) map[string]*structspb.Attribute {
	if attributes == nil {
		return nil
	}
	out := make(map[string]*structspb.Attribute, len(attributes))
	for name, a := range attributes {
		out[name] = a.toProto()
	}
	return out
}

// AttributesFromProto is AttributesToProto's inverse.
func AttributesFromProto(attributes map[string]*structspb.Attribute) map[string]Attribute {
	if attributes == nil {
		return nil
	}
	out := make(map[string]Attribute, len(attributes))
	for name, p := range attributes {
		out[name] = attributeFromProto(p)
	}
	return out
}

// CheckAttributes adds what is wrong with a set of attributes.
func CheckAttributes(f *wire.Faults, attributes map[string]Attribute) {
	for name, a := range attributes {
		f.Check("attribute name", wire.CheckName(name))
		if err := a.Validate(); err != nil {
			f.Add("attribute %q: %w", name, err)
		}
	}
}

func (a Attribute) toProto() *structspb.Attribute {
	p := &structspb.Attribute{Unit: a.Unit}
	switch {
	case a.Int != nil:
		p.Value = &structspb.Attribute_IntVal{IntVal: *a.Int}
	case a.Float != nil:
		p.Value = &structspb.Attribute_FloatVal{FloatVal: *a.Float}
	case a.String != nil:
		p.Value = &structspb.Attribute_StringVal{StringVal: *a.String}
	case a.Bool != nil:
		p.Value = &structspb.Attribute_BoolVal{BoolVal: *a.Bool}
	}
	return p
}

func attributeFromProto(p *structspb.Attribute) Attribute {
	a := Attribute{Unit: p.GetUnit()}
	switch v := p.GetValue().(type) {
	case *structspb.Attribute_IntVal:
		a.Int = &v.IntVal
	case *structspb.Attribute_FloatVal:
		a.Float = &v.FloatVal
	case *structspb.Attribute_StringVal:
		a.String = &v.StringVal
	case *structspb.Attribute_BoolVal:
		a.Bool = &v.BoolVal
	}
	return a
}
