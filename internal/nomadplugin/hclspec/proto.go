package hclspec

import "github.com/nomad-muster/muster/internal/nomadplugin/proto/hclspecpb"

// ToProto is the description as Nomad's protocol carries it; nil stays nil. A
// node with no field set stays without one: Validate finds it.
func ToProto(s *Spec) *hclspecpb.Spec {
	if s == nil {
		return nil
	}
	p := &hclspecpb.Spec{}
	switch {
	case s.Object != nil:
		attributes := make(map[string]*hclspecpb.Spec, len(s.Object))
		for name, child := range s.Object {
			attributes[name] = ToProto(child)
		}
		p.Block = &hclspecpb.Spec_Object{Object: &hclspecpb.Object{Attributes: attributes}}
	case s.Array != nil:
		values := make([]*hclspecpb.Spec, len(s.Array))
		for i, child := range s.Array {
			values[i] = ToProto(child)
		}
		p.Block = &hclspecpb.Spec_Array{Array: &hclspecpb.Array{Values: values}}
	case s.Attr != nil:
		p.Block = &hclspecpb.Spec_Attr{Attr: &hclspecpb.Attr{
			Name: s.Attr.Name, Type: s.Attr.Type, Required: s.Attr.Required,
		}}
	case s.BlockValue != nil:
		p.Block = &hclspecpb.Spec_BlockValue{BlockValue: &hclspecpb.Block{
			Name: s.BlockValue.Name, Required: s.BlockValue.Required, Nested: ToProto(s.BlockValue.Nested),
		}}
	case s.BlockAttrs != nil:
		p.Block = &hclspecpb.Spec_BlockAttrs{BlockAttrs: &hclspecpb.BlockAttrs{
			Name: s.BlockAttrs.Name, Type: s.BlockAttrs.Type, Required: s.BlockAttrs.Required,
		}}
	case s.BlockList != nil:
		p.Block = &hclspecpb.Spec_BlockList{BlockList: &hclspecpb.BlockList{
			Name: s.BlockList.Name, MinItems: s.BlockList.MinItems, MaxItems: s.BlockList.MaxItems,
			Nested: ToProto(s.BlockList.Nested),
		}}
	case s.BlockSet != nil:
		p.Block = &hclspecpb.Spec_BlockSet{BlockSet: &hclspecpb.BlockSet{
			Name: s.BlockSet.Name, MinItems: s.BlockSet.MinItems, MaxItems: s.BlockSet.MaxItems,
			Nested: ToProto(s.BlockSet.Nested),
		}}
	case s.BlockMap != nil:
		p.Block = &hclspecpb.Spec_BlockMap{BlockMap: &hclspecpb.BlockMap{
			Name: s.BlockMap.Name, Labels: s.BlockMap.Labels, Nested: ToProto(s.BlockMap.Nested),
		}}
	case s.Default != nil:
		p.Block = &hclspecpb.Spec_Default{Default: &hclspecpb.Default{
			Primary: ToProto(s.Default.Primary), Default: ToProto(s.Default.Fallback),
		}}
	case s.Literal != nil:
		p.Block = &hclspecpb.Spec_Literal{Literal: &hclspecpb.Literal{Value: s.Literal.Value}}
	}
	return p
}

// FromProto is ToProto's inverse.
func FromProto(p *hclspecpb.Spec) *Spec {
	if p == nil {
		return nil
	}
	s := &Spec{}
	switch b := p.GetBlock().(type) {
	case *hclspecpb.Spec_Object:
		s.Object = make(map[string]*Spec, len(b.Object.GetAttributes()))
		for name, child := range b.Object.GetAttributes() {
			s.Object[name] = FromProto(child)
		}
	case *hclspecpb.Spec_Array:
		s.Array = make([]*Spec, len(b.Array.GetValues()))
		for i, child := range b.Array.GetValues() {
			s.Array[i] = FromProto(child)
		}
	case *hclspecpb.Spec_Attr:
		s.Attr = &Attr{Name: b.Attr.GetName(), Type: b.Attr.GetType(), Required: b.Attr.GetRequired()}
	case *hclspecpb.Spec_BlockValue:
		s.BlockValue = &Block{
			Name: b.BlockValue.GetName(), Required: b.BlockValue.GetRequired(), Nested: FromProto(b.BlockValue.GetNested()),
		}
	case *hclspecpb.Spec_BlockAttrs:
		s.BlockAttrs = &BlockAttrs{
			Name: b.BlockAttrs.GetName(), Type: b.BlockAttrs.GetType(), Required: b.BlockAttrs.GetRequired(),
		}
	case *hclspecpb.Spec_BlockList:
		s.BlockList = &BlockList{
			Name: b.BlockList.GetName(), MinItems: b.BlockList.GetMinItems(), MaxItems: b.BlockList.GetMaxItems(),
			Nested: FromProto(b.BlockList.GetNested()),
		}
	case *hclspecpb.Spec_BlockSet:
		s.BlockSet = &BlockList{
			Name: b.BlockSet.GetName(), MinItems: b.BlockSet.GetMinItems(), MaxItems: b.BlockSet.GetMaxItems(),
			Nested: FromProto(b.BlockSet.GetNested()),
		}
	case *hclspecpb.Spec_BlockMap:
		s.BlockMap = &BlockMap{
			Name: b.BlockMap.GetName(), Labels: b.BlockMap.GetLabels(), Nested: FromProto(b.BlockMap.GetNested()),
		}
	case *hclspecpb.Spec_Default:
		s.Default = &Default{Primary: FromProto(b.Default.GetPrimary()), Fallback: FromProto(b.Default.GetDefault())}
	case *hclspecpb.Spec_Literal:
		s.Literal = &Literal{Value: b.Literal.GetValue()}
	}
	return s
}
