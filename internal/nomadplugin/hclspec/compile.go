package hclspec

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Validate lists everything that Nomad's client would refuse in a description:
// with a bad one a plugin's config aborts the agent's start, a driver's fails
// every task.
func Validate(s *Spec) error {
	_, err := compile(s)
	return err
}

func compile(s *Spec) (hcldec.Spec, error) {
	c := compiler{}
	out := c.spec(s, "", "")
	if err := errors.Join(c.faults...); err != nil {
		return nil, fmt.Errorf("invalid description of a configuration: %w", err)
	}
	return out, nil
}

type compiler struct{ faults []error }

func (c *compiler) fault(path, format string, args ...any) {
	if path == "" {
		path = "root"
	}
	c.faults = append(c.faults, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// spec compiles one node; implied is its name where it has none itself, the
// name of the object's attribute that it stands in.
func (c *compiler) spec(s *Spec, implied, path string) hcldec.Spec {
	if s == nil {
		c.fault(path, "no description")
		return nil
	}
	if n := s.kinds(); n != 1 {
		c.fault(path, "%d of the fields are set, want exactly one", n)
		return nil
	}
	switch {
	case s.Object != nil:
		object := make(hcldec.ObjectSpec, len(s.Object))
		for _, name := range slices.Sorted(maps.Keys(s.Object)) {
			object[name] = c.spec(s.Object[name], name, join(path, name))
		}
		return object
	case s.Array != nil:
		tuple := make(hcldec.TupleSpec, len(s.Array))
		for i, e := range s.Array {
			tuple[i] = c.spec(e, "", fmt.Sprintf("%s[%d]", path, i))
		}
		return tuple
	case s.Attr != nil:
		return &hcldec.AttrSpec{
			Name: c.name(s.Attr.Name, implied, path), Type: c.typ(s.Attr.Type, path), Required: s.Attr.Required,
		}
	case s.BlockValue != nil:
		return &hcldec.BlockSpec{
			TypeName: c.name(s.BlockValue.Name, implied, path), Required: s.BlockValue.Required,
			Nested: c.spec(s.BlockValue.Nested, "", path),
		}
	case s.BlockAttrs != nil:
		return &hcldec.BlockAttrsSpec{
			TypeName: c.name(s.BlockAttrs.Name, implied, path), ElementType: c.typ(s.BlockAttrs.Type, path),
			Required: s.BlockAttrs.Required,
		}
	case s.BlockList != nil:
		return &hcldec.BlockListSpec{
			TypeName: c.name(s.BlockList.Name, implied, path), Nested: c.spec(s.BlockList.Nested, "", path),
			MinItems: c.limit(s.BlockList.MinItems, path), MaxItems: c.limit(s.BlockList.MaxItems, path),
		}
	case s.BlockSet != nil:
		return &hcldec.BlockSetSpec{
			TypeName: c.name(s.BlockSet.Name, implied, path), Nested: c.spec(s.BlockSet.Nested, "", path),
			MinItems: c.limit(s.BlockSet.MinItems, path), MaxItems: c.limit(s.BlockSet.MaxItems, path),
		}
	case s.BlockMap != nil:
		if len(s.BlockMap.Labels) == 0 {
			c.fault(path, "a block map needs at least one label")
		}
		return &hcldec.BlockMapSpec{
			TypeName: c.name(s.BlockMap.Name, implied, path), LabelNames: s.BlockMap.Labels,
			Nested: c.spec(s.BlockMap.Nested, "", path),
		}
	case s.Default != nil:
		return &hcldec.DefaultSpec{
			Primary: c.spec(s.Default.Primary, "", path), Default: c.spec(s.Default.Fallback, "", path),
		}
	default:
		return c.literal(s.Literal.Value, path)
	}
}

// kinds counts the fields that are set.
func (s *Spec) kinds() (n int) {
	for _, set := range []bool{
		s.Object != nil, s.Array != nil, s.Attr != nil, s.BlockValue != nil, s.BlockAttrs != nil,
		s.BlockList != nil, s.BlockSet != nil, s.BlockMap != nil, s.Default != nil, s.Literal != nil,
	} {
		if set {
			n++
		}
	}
	return n
}

func (c *compiler) name(own, implied, path string) string {
	name := own
	if name == "" {
		name = implied
	}
	if name == "" {
		c.fault(path, "no name")
	}
	return name
}

func (c *compiler) limit(n uint64, path string) int {
	if n > math.MaxInt32 {
		c.fault(path, "limit of %d blocks is too large", n)
		return 0
	}
	return int(n)
}

func (c *compiler) typ(src, path string) cty.Type {
	expr, diags := hclsyntax.ParseExpression([]byte(src), "", hcl.InitialPos)
	if !diags.HasErrors() {
		var t cty.Type
		if t, diags = typeexpr.TypeConstraint(expr); !diags.HasErrors() {
			return t
		}
	}
	c.fault(path, "type %q: %v", src, diagnostics("not a type", diags))
	return cty.DynamicPseudoType
}

func (c *compiler) literal(src, path string) hcldec.Spec {
	expr, diags := hclsyntax.ParseExpression([]byte(src), "", hcl.InitialPos)
	if !diags.HasErrors() {
		var v cty.Value
		if v, diags = expr.Value(&hcl.EvalContext{Functions: functions}); !diags.HasErrors() {
			return &hcldec.LiteralSpec{Value: v}
		}
	}
	c.fault(path, "literal %q: %v", src, diagnostics("not an expression", diags))
	return nil
}
