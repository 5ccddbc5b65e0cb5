package jobspec

import (
	"os"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// eval gives an expression's value. References to what this package does not know are for others, and stay text.
func (p *parser) eval(expr hclsyntax.Expression, ctx *hcl.EvalContext) cty.Value {
	foreign := map[string]cty.Value{}
	for _, t := range expr.Variables() {
		if known(ctx, t.RootName()) {
			continue
		}
		p.keep(foreign, t)
	}
	if len(foreign) > 0 {
		child := ctx.NewChild()
		child.Variables = foreign
		ctx = child
	}
	v, diags := expr.Value(ctx)
	p.diags = append(p.diags, diags...)
	if diags.HasErrors() {
		return cty.NilVal
	}
	return v
}

func known(ctx *hcl.EvalContext, root string) bool {
	for c := ctx; c != nil; c = c.Parent() {
		if _, ok := c.Variables[root]; ok {
			return true
		}
	}
	return false
}

// keep makes a value that a reference finds, and that reads like the reference.
func (p *parser) keep(into map[string]cty.Value, t hcl.Traversal) {
	r := t.SourceRange()
	text := ""
	if r.Start.Byte >= 0 && r.End.Byte <= len(p.src) && r.Start.Byte <= r.End.Byte {
		text = string(p.src[r.Start.Byte:r.End.Byte])
	}
	leaf := cty.StringVal("${" + text + "}")
	var steps []string
	for _, s := range t[1:] {
		switch s := s.(type) {
		case hcl.TraverseAttr:
			steps = append(steps, s.Name)
		case hcl.TraverseIndex:
			k, err := convert.Convert(s.Key, cty.String)
			if err != nil || k.IsNull() || !k.IsKnown() {
				continue
			}
			steps = append(steps, k.AsString())
		}
	}
	root := t.RootName()
	into[root] = graft(into[root], steps, leaf)
}

// graft puts a leaf into a tree of objects.
func graft(tree cty.Value, steps []string, leaf cty.Value) cty.Value {
	if len(steps) == 0 {
		if tree != cty.NilVal && tree.Type().IsObjectType() {
			return tree // another reference goes deeper
		}
		return leaf
	}
	attrs := map[string]cty.Value{}
	if tree != cty.NilVal && tree.Type().IsObjectType() {
		for k, v := range tree.AsValueMap() {
			attrs[k] = v
		}
	}
	attrs[steps[0]] = graft(attrs[steps[0]], steps[1:], leaf)
	return cty.ObjectVal(attrs)
}

// inputs settles the input variables: defaults, then files, then what was given by name.
func (p *parser) inputs(body *hclsyntax.Body, cfg Config) {
	vars := map[string]cty.Value{}
	types := map[string]cty.Type{}
	where := map[string]hcl.Range{}
	for _, b := range body.Blocks {
		switch b.Type {
		case "variables":
			for name, a := range b.Body.Attributes {
				v, diags := a.Expr.Value(p.ctx)
				p.diags = append(p.diags, diags...)
				vars[name], types[name], where[name] = v, v.Type(), a.NameRange
			}
		case "variable":
			if len(b.Labels) != 1 {
				p.fault(b.DefRange(), "Missing name for variable", "All variable blocks must have 1 labels (name).")
				continue
			}
			p.input(b, vars, types)
			where[b.Labels[0]] = b.DefRange()
		}
	}
	given := map[string]string{}
	for name := range types {
		if v, ok := os.LookupEnv("NOMAD_VAR_" + name); ok && cfg.FilesIn != "" {
			given[name] = v
		}
	}
	if cfg.VarFile != "" {
		file, diags := hclsyntax.ParseConfig([]byte(cfg.VarFile), "input.hcl", hcl.InitialPos)
		p.diags = append(p.diags, diags...)
		if !diags.HasErrors() {
			for name, a := range file.Body.(*hclsyntax.Body).Attributes {
				v, diags := a.Expr.Value(p.ctx)
				p.diags = append(p.diags, diags...)
				p.set(name, v, vars, types, a.NameRange)
			}
		}
	}
	for name, text := range cfg.Variables {
		given[name] = text
	}
	for name, text := range given {
		t, ok := types[name]
		if !ok {
			p.fault(body.Range(), "Undefined variable", "A %q variable was set but was not found in known variables.", name)
			continue
		}
		v := cty.StringVal(text)
		if t != cty.String && t != cty.DynamicPseudoType {
			expr, diags := hclsyntax.ParseExpression([]byte(text), "<value for var."+name+">", hcl.InitialPos)
			if !diags.HasErrors() {
				if parsed, diags := expr.Value(nil); !diags.HasErrors() {
					v = parsed
				}
			}
		}
		p.set(name, v, vars, types, where[name])
	}
	for name, at := range where {
		if v, ok := vars[name]; !ok || v == cty.NilVal {
			p.fault(at, "Unset variable \""+name+"\"", "A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/job-specification/hcl2/variables for details.")
		}
	}
	p.ctx.Variables["var"] = cty.ObjectVal(vars)
}

func (p *parser) set(name string, v cty.Value, vars map[string]cty.Value, types map[string]cty.Type, at hcl.Range) {
	t, ok := types[name]
	if !ok {
		p.fault(at, "Undefined variable", "A %q variable was set but was not found in known variables.", name)
		return
	}
	c, err := convert.Convert(v, t)
	if err != nil {
		p.fault(at, "Invalid value for variable", "The value for %s is not compatible with the variable's type constraint: %s.", name, err)
		return
	}
	vars[name] = c
}

func (p *parser) input(b *hclsyntax.Block, vars map[string]cty.Value, types map[string]cty.Type) {
	name := b.Labels[0]
	types[name] = cty.DynamicPseudoType
	for _, an := range sortedNames(b.Body.Attributes) {
		a := b.Body.Attributes[an]
		switch an {
		case "type":
			t, diags := typeexpr.Type(a.Expr)
			p.diags = append(p.diags, diags...)
			if !diags.HasErrors() {
				types[name] = t
			}
		case "default":
			v, diags := a.Expr.Value(p.ctx)
			p.diags = append(p.diags, diags...)
			vars[name] = v
		case "description", "sensitive":
		default:
			p.fault(a.NameRange, "Unsupported argument", "An argument named %q is not expected here.", an)
		}
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type != "validation" {
			p.fault(inner.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", inner.Type)
		}
	}
	if v, ok := vars[name]; ok && v != cty.NilVal {
		p.set(name, v, vars, types, b.DefRange())
	}
}

// locals settles the local values, which may refer to one another.
func (p *parser) locals(body *hclsyntax.Body) {
	p.ctx.Variables["local"] = cty.EmptyObjectVal
	exprs := map[string]hclsyntax.Expression{}
	for _, b := range body.Blocks {
		if b.Type != "locals" {
			continue
		}
		for name, a := range b.Body.Attributes {
			if _, twice := exprs[name]; twice {
				p.fault(a.NameRange, "Duplicate value in locals", "Duplicate %s definition found.", name)
				continue
			}
			exprs[name] = a.Expr
		}
	}
	done := map[string]cty.Value{}
	var last hcl.Diagnostics
	for len(exprs) > 0 {
		progress := false
		for name, e := range exprs {
			if waits(e, exprs) {
				continue
			}
			saved := p.diags
			v := p.eval(e, p.ctx)
			if v == cty.NilVal {
				last, p.diags = p.diags[len(saved):], saved
				continue
			}
			done[name] = v
			delete(exprs, name)
			p.ctx.Variables["local"] = cty.ObjectVal(done)
			progress = true
		}
		if !progress {
			if len(last) == 0 {
				for name, e := range exprs {
					p.fault(e.Range(), "Circular reference", "The local value %q refers to itself.", name)
				}
			}
			p.diags = append(p.diags, last...)
			return
		}
	}
}

// waits says whether an expression refers to a local value that is not settled yet.
func waits(e hclsyntax.Expression, open map[string]hclsyntax.Expression) bool {
	for _, t := range e.Variables() {
		if t.RootName() != "local" || len(t) < 2 {
			continue
		}
		if a, ok := t[1].(hcl.TraverseAttr); ok {
			if _, unsettled := open[a.Name]; unsettled {
				return true
			}
		}
	}
	return false
}
