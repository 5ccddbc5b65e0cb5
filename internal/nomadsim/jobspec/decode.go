package jobspec

import (
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// field is a field of an API type that a job file can set.
type field struct {
	index    int
	name     string
	block    bool
	required bool
}

type layout struct {
	fields map[string]field
	labels []int
}

func layoutOf(t reflect.Type) layout {
	l := layout{fields: map[string]field{}}
	for i := range t.NumField() {
		tag, ok := t.Field(i).Tag.Lookup("hcl")
		if !ok || tag == "-" {
			continue
		}
		name, kind, _ := strings.Cut(tag, ",")
		switch kind {
		case "label":
			l.labels = append(l.labels, i)
			if name == "" {
				continue
			}
			fallthrough // a name may also be given as an argument
		case "optional":
			l.fields[name] = field{index: i, name: name}
		case "block":
			l.fields[name] = field{index: i, name: name, block: true}
		case "":
			l.fields[name] = field{index: i, name: name, required: true}
		}
	}
	return l
}

var (
	durationType   = reflect.TypeFor[time.Duration]()
	constraintType = reflect.TypeFor[api.Constraint]()
	affinityType   = reflect.TypeFor[api.Affinity]()
	groupType      = reflect.TypeFor[api.TaskGroup]()
	taskType       = reflect.TypeFor[api.Task]()
)

// structure reads a body into the struct that v points to.
func (p *parser) structure(body *hclsyntax.Body, ctx *hcl.EvalContext, v any) {
	p.into(body, ctx, reflect.ValueOf(v).Elem())
}

func (p *parser) into(body *hclsyntax.Body, ctx *hcl.EvalContext, v reflect.Value) {
	switch v.Type() {
	case constraintType:
		p.constraint(body, ctx, v.Addr().Interface().(*api.Constraint))
		return
	case affinityType:
		p.affinity(body, ctx, v.Addr().Interface().(*api.Affinity))
		return
	case groupType:
		p.group(body, ctx, v.Addr().Interface().(*api.TaskGroup))
		return
	case taskType:
		var own *hclsyntax.Body
		own, body = splitBlocks(body, "scaling")
		p.taskScaling(own, ctx, v.Addr().Interface().(*api.Task))
	}
	p.plain(body, ctx, v)
}

// plain reads a body by the tags alone.
func (p *parser) plain(body *hclsyntax.Body, ctx *hcl.EvalContext, v reflect.Value) {
	l := layoutOf(v.Type())
	seen := map[string]bool{}
	for _, name := range sortedNames(body.Attributes) {
		a := body.Attributes[name]
		f, ok := l.fields[name]
		// A map may be written as a value even where a block is usual.
		if !ok || f.block && v.Field(f.index).Kind() != reflect.Map {
			p.fault(a.NameRange, "Unsupported argument", "An argument named %q is not expected here.", name)
			continue
		}
		seen[name] = true
		p.value(a.Expr, ctx, v.Field(f.index))
	}
	for _, b := range p.expand(body.Blocks, ctx) {
		f, ok := l.fields[b.kind]
		// And as a block where a value is usual.
		if !ok || !f.block && v.Field(f.index).Kind() != reflect.Map {
			p.fault(b.block.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", b.kind)
			continue
		}
		p.blockInto(b, f, v.Field(f.index), seen[b.kind])
		seen[b.kind] = true
	}
	for _, f := range l.fields {
		if f.required && !seen[f.name] {
			p.fault(body.MissingItemRange(), "Missing required argument", "The argument %q is required, but no definition was found.", f.name)
		}
	}
}

func sortedNames(attrs hclsyntax.Attributes) []string {
	names := make([]string, 0, len(attrs))
	for n := range attrs {
		names = append(names, n)
	}
	// In the order of the file, so that faults are.
	sort.Slice(names, func(i, j int) bool { return attrs[names[i]].SrcRange.Start.Byte < attrs[names[j]].SrcRange.Start.Byte })
	return names
}

// instance is a block, or what a dynamic block makes of itself once.
type instance struct {
	kind   string
	labels []string
	body   *hclsyntax.Body
	ctx    *hcl.EvalContext
	block  *hclsyntax.Block
}

const maxDynamic = 10_000 // blocks that one dynamic block may make

func (p *parser) expand(blocks hclsyntax.Blocks, ctx *hcl.EvalContext) []instance {
	var out []instance
	for _, b := range blocks {
		if b.Type != "dynamic" || len(b.Labels) != 1 {
			out = append(out, instance{b.Type, b.Labels, b.Body, ctx, b})
			continue
		}
		each, ok := b.Body.Attributes["for_each"]
		if !ok {
			p.fault(b.DefRange(), "Missing required argument", "The argument \"for_each\" is required, but no definition was found.")
			continue
		}
		var content *hclsyntax.Body
		for _, c := range b.Body.Blocks {
			if c.Type == "content" {
				content = c.Body
			}
		}
		if content == nil {
			p.fault(b.DefRange(), "Insufficient content blocks", "At least 1 \"content\" blocks are required.")
			continue
		}
		iterator := b.Labels[0]
		if it, ok := b.Body.Attributes["iterator"]; ok {
			if t, diags := hcl.AbsTraversalForExpr(it.Expr); !diags.HasErrors() && len(t) == 1 {
				iterator = t.RootName()
			}
		}
		list := p.eval(each.Expr, ctx)
		if list.IsNull() || !list.IsKnown() || !list.CanIterateElements() || list.LengthInt() > maxDynamic {
			p.fault(each.SrcRange, "Invalid dynamic for_each value", "Cannot use a %s value in for_each. An iterable collection is required.", list.Type().FriendlyName())
			continue
		}
		for it := list.ElementIterator(); it.Next(); {
			k, val := it.Element()
			if list.Type().IsSetType() {
				k = val
			}
			child := ctx.NewChild()
			child.Variables = map[string]cty.Value{iterator: cty.ObjectVal(map[string]cty.Value{"key": k, "value": val})}
			in := instance{b.Labels[0], nil, content, child, b}
			if la, ok := b.Body.Attributes["labels"]; ok {
				labels := p.eval(la.Expr, child)
				if labels.CanIterateElements() {
					for li := labels.ElementIterator(); li.Next(); {
						_, lv := li.Element()
						if s, err := convert.Convert(lv, cty.String); err == nil && !s.IsNull() {
							in.labels = append(in.labels, s.AsString())
						}
					}
				}
			}
			out = append(out, in)
		}
	}
	return out
}

// blockInto reads one block into its field: a struct, a pointer to one, one more of a list, an entry of a labelled map,
// or a free map.
func (p *parser) blockInto(b instance, f field, to reflect.Value, again bool) {
	duplicate := func() bool {
		if again {
			p.fault(b.block.DefRange(), fmt.Sprintf("Duplicate %s block", b.kind), "Only one %s block is allowed.", b.kind)
		}
		return again
	}
	t := to.Type()
	switch t.Kind() {
	case reflect.Pointer:
		if duplicate() {
			return
		}
		n := reflect.New(t.Elem())
		p.labelled(b, n.Elem())
		to.Set(n)
	case reflect.Struct:
		if !duplicate() {
			p.labelled(b, to)
		}
	case reflect.Slice:
		elem := t.Elem()
		n := reflect.New(elem)
		target := n.Elem()
		if elem.Kind() == reflect.Pointer {
			target.Set(reflect.New(elem.Elem()))
			target = target.Elem()
		}
		if target.Kind() != reflect.Struct {
			p.fault(b.block.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", b.kind)
			return
		}
		p.labelled(b, target)
		to.Set(reflect.Append(to, n.Elem()))
	case reflect.Map:
		if t.Elem().Kind() == reflect.Pointer && t.Elem().Elem().Kind() == reflect.Struct {
			if len(b.labels) != 1 {
				p.fault(b.block.DefRange(), "Missing name for "+b.kind, "All %s blocks must have 1 labels (name).", b.kind)
				return
			}
			n := reflect.New(t.Elem().Elem())
			p.labelled(b, n.Elem())
			if to.IsNil() {
				to.Set(reflect.MakeMap(t))
			}
			to.SetMapIndex(reflect.ValueOf(b.labels[0]), n)
			return
		}
		if duplicate() {
			return
		}
		if t.Elem().Kind() == reflect.Interface {
			to.Set(reflect.ValueOf(p.freeMap(b.body, b.ctx)).Convert(t))
			return
		}
		p.valueMap(b, to)
	default:
		p.fault(b.block.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", b.kind)
	}
}

// labelled reads a block's labels and body into a struct.
func (p *parser) labelled(b instance, v reflect.Value) {
	l := layoutOf(v.Type())
	if len(l.labels) != len(b.labels) {
		if len(b.labels) < len(l.labels) {
			p.fault(b.block.DefRange(), "Missing name for "+b.kind, "All %s blocks must have %d labels (name).", b.kind, len(l.labels))
		} else {
			p.fault(b.block.DefRange(), "Extraneous label for "+b.kind, "No labels are expected for %s blocks.", b.kind)
		}
		return
	}
	p.into(b.body, b.ctx, v)
	for i, index := range l.labels {
		f := v.Field(index)
		if f.Kind() == reflect.Pointer {
			s := b.labels[i]
			f.Set(reflect.ValueOf(&s))
		} else {
			f.SetString(b.labels[i])
		}
	}
}

// valueMap reads a block of arguments, such as env, into a map of text.
func (p *parser) valueMap(b instance, to reflect.Value) {
	t := to.Type()
	m := reflect.MakeMap(t)
	for _, name := range sortedNames(b.body.Attributes) {
		v := reflect.New(t.Elem()).Elem()
		p.value(b.body.Attributes[name].Expr, b.ctx, v)
		m.SetMapIndex(reflect.ValueOf(name), v)
	}
	for _, bl := range b.body.Blocks {
		p.fault(bl.TypeRange, "Unexpected \""+bl.Type+"\" block", "Blocks are not allowed here.")
	}
	to.Set(m)
}

// freeMap reads a body whose names nobody here knows: arguments become values, blocks lists of maps.
func (p *parser) freeMap(body *hclsyntax.Body, ctx *hcl.EvalContext) map[string]any {
	m := map[string]any{}
	for _, name := range sortedNames(body.Attributes) {
		m[name] = p.free(p.eval(body.Attributes[name].Expr, ctx), body.Attributes[name].SrcRange)
	}
	for _, b := range p.expand(body.Blocks, ctx) {
		inner := p.freeMap(b.body, b.ctx)
		for _, l := range slices.Backward(b.labels) {
			inner = map[string]any{l: []map[string]any{inner}}
		}
		list, _ := m[b.kind].([]map[string]any)
		m[b.kind] = append(list, inner)
	}
	return m
}

// free is a value as a plain Go one: integers where they are whole.
func (p *parser) free(v cty.Value, at hcl.Range) any {
	if v.IsNull() || !v.IsKnown() {
		return nil
	}
	t := v.Type()
	switch {
	case t == cty.String:
		return v.AsString()
	case t == cty.Bool:
		return v.True()
	case t == cty.Number:
		f := v.AsBigFloat()
		if i, acc := f.Int64(); acc == big.Exact {
			return int(i)
		}
		x, _ := f.Float64()
		return x
	case t.IsListType(), t.IsSetType(), t.IsTupleType():
		list := []any{}
		for it := v.ElementIterator(); it.Next(); {
			_, e := it.Element()
			list = append(list, p.free(e, at))
		}
		return list
	case t.IsMapType(), t.IsObjectType():
		m := map[string]any{}
		for it := v.ElementIterator(); it.Next(); {
			k, e := it.Element()
			m[k.AsString()] = p.free(e, at)
		}
		return m
	}
	p.fault(at, "Unsuitable value type", "A %s cannot be used here.", t.FriendlyName())
	return nil
}

// value reads an argument into a field.
func (p *parser) value(expr hclsyntax.Expression, ctx *hcl.EvalContext, to reflect.Value) {
	v := p.eval(expr, ctx)
	if v == cty.NilVal {
		return
	}
	if err := assign(v, to); err != nil {
		p.fault(expr.Range(), "Unsuitable value type", "Unsuitable value: %s", err)
	}
}

// assign converts a value to a field's type.
func assign(v cty.Value, to reflect.Value) error {
	t := to.Type()
	if v.IsNull() {
		if t.Kind() == reflect.Pointer || t.Kind() == reflect.Map || t.Kind() == reflect.Slice || t.Kind() == reflect.Interface {
			to.SetZero()
			return nil
		}
		return fmt.Errorf("a value is required")
	}
	if !v.IsWhollyKnown() {
		return fmt.Errorf("value is not known")
	}
	v, _ = v.UnmarkDeep()
	if t == durationType {
		if v.Type() == cty.String {
			d, err := time.ParseDuration(v.AsString())
			if err != nil {
				return fmt.Errorf("Unsuitable duration value: %s", err)
			}
			to.SetInt(int64(d))
			return nil
		}
		if v.Type() != cty.Number {
			return fmt.Errorf("expected a string but found %s", v.Type().FriendlyName())
		}
	}
	want := func(want cty.Type) (cty.Value, error) { return convert.Convert(v, want) }
	switch t.Kind() {
	case reflect.Pointer:
		n := reflect.New(t.Elem())
		if err := assign(v, n.Elem()); err != nil {
			return err
		}
		to.Set(n)
		return nil
	case reflect.String:
		s, err := want(cty.String)
		if err != nil {
			return err
		}
		to.SetString(s.AsString())
		return nil
	case reflect.Bool:
		b, err := want(cty.Bool)
		if err != nil {
			return err
		}
		to.SetBool(b.True())
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := want(cty.Number)
		if err != nil {
			return err
		}
		i, acc := n.AsBigFloat().Int64()
		if acc != big.Exact || to.OverflowInt(i) {
			return fmt.Errorf("value must be a whole number that fits")
		}
		to.SetInt(i)
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := want(cty.Number)
		if err != nil {
			return err
		}
		u, acc := n.AsBigFloat().Uint64()
		if acc != big.Exact || to.OverflowUint(u) {
			return fmt.Errorf("value must be a whole number, zero or more, that fits")
		}
		to.SetUint(u)
		return nil
	case reflect.Float32, reflect.Float64:
		n, err := want(cty.Number)
		if err != nil {
			return err
		}
		f, _ := n.AsBigFloat().Float64()
		to.SetFloat(f)
		return nil
	case reflect.Slice:
		if !v.CanIterateElements() || v.Type().IsMapType() || v.Type().IsObjectType() {
			return fmt.Errorf("a list is required, not a %s", v.Type().FriendlyName())
		}
		out := reflect.MakeSlice(t, 0, v.LengthInt())
		for it := v.ElementIterator(); it.Next(); {
			_, e := it.Element()
			n := reflect.New(t.Elem()).Elem()
			if err := assign(e, n); err != nil {
				return err
			}
			out = reflect.Append(out, n)
		}
		to.Set(out)
		return nil
	case reflect.Map:
		if !v.Type().IsMapType() && !v.Type().IsObjectType() {
			return fmt.Errorf("a map is required, not a %s", v.Type().FriendlyName())
		}
		out := reflect.MakeMap(t)
		for it := v.ElementIterator(); it.Next(); {
			k, e := it.Element()
			n := reflect.New(t.Elem()).Elem()
			if err := assign(e, n); err != nil {
				return err
			}
			out.SetMapIndex(reflect.ValueOf(k.AsString()), n)
		}
		to.Set(out)
		return nil
	case reflect.Interface:
		p := &parser{}
		x := p.free(v, hcl.Range{})
		if x != nil {
			to.Set(reflect.ValueOf(x))
		}
		return nil
	}
	return fmt.Errorf("a %s cannot be used here", v.Type().FriendlyName())
}
