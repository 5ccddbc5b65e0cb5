package config

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// block is one HCL block with its attributes taken out by typed calls, each
// of which reports what is wrong instead of failing: an attribute with a fault
// reads as its fallback, and the reading goes on.
type block struct {
	*reader
	attrs  hcl.Attributes
	blocks hcl.Blocks
	where  hcl.Range
}

// open reads a body by names of attributes and types of nested blocks, where
// "user name" is a block of type user with one label.
func (r *reader) open(body hcl.Body, where hcl.Range, attrs []string, blocks ...string) *block {
	schema := &hcl.BodySchema{}
	for _, name := range attrs {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
	}
	for _, b := range blocks {
		words := strings.Fields(b)
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: words[0], LabelNames: words[1:]})
	}
	content, diags := body.Content(schema)
	r.faults = append(r.faults, fromDiagnostics(diags)...)
	return &block{reader: r, attrs: content.Attributes, blocks: content.Blocks, where: where}
}

// only is the nested block of a type that may stand once; nil: it is absent.
func (b *block) only(kind string) *hcl.Block {
	var first *hcl.Block
	for _, nested := range b.blocks {
		switch {
		case nested.Type != kind:
		case first == nil:
			first = nested
		default:
			b.fault(nested.DefRange, "a second %s block; the first is at %s", kind, place(first.DefRange))
		}
	}
	return first
}

// each gives the nested blocks of a type.
func (b *block) each(kind string) hcl.Blocks { return b.blocks.OfType(kind) }

// value evaluates an attribute to a type; false: absent or faulty.
func (b *block) value(name string, want cty.Type, what string) (cty.Value, bool) {
	attr, ok := b.attrs[name]
	if !ok {
		return cty.NilVal, false
	}
	return b.evaluate(attr.Expr, name, want, what)
}

func (b *block) evaluate(expr hcl.Expression, name string, want cty.Type, what string) (cty.Value, bool) {
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		b.faults = append(b.faults, fromDiagnostics(diags)...)
		return cty.NilVal, false
	}
	if v.IsNull() {
		return cty.NilVal, false
	}
	// A number is no text: to write 1e999999999 out as one takes a gigabyte.
	numeric := want == cty.String && v.Type() == cty.Number
	if want == cty.List(cty.String) && (v.Type().IsTupleType() || v.Type().IsListType()) {
		for _, e := range v.AsValueSlice() {
			numeric = numeric || e.Type() == cty.Number
		}
	}
	if numeric {
		b.fault(expr.Range(), "%s must be %s", name, what)
		return cty.NilVal, false
	}
	got, err := convert.Convert(v, want)
	if err != nil || !got.IsWhollyKnown() || got.IsNull() {
		b.fault(expr.Range(), "%s must be %s", name, what)
		return cty.NilVal, false
	}
	return got, true
}

func (b *block) text(name, fallback string) string {
	v, ok := b.value(name, cty.String, "a text")
	if !ok {
		return fallback
	}
	return v.AsString()
}

func (b *block) choice(name, fallback string, known ...string) string {
	v, ok := b.value(name, cty.String, "one of "+strings.Join(known, ", "))
	if !ok {
		return fallback
	}
	for _, k := range known {
		if v.AsString() == k {
			return k
		}
	}
	b.fault(b.attrs[name].Expr.Range(), "%s = %q: must be one of %s", name, v.AsString(), strings.Join(known, ", "))
	return fallback
}

func (b *block) boolean(name string, fallback bool) bool {
	v, ok := b.value(name, cty.Bool, "true or false")
	if !ok {
		return fallback
	}
	return v.True()
}

func (b *block) count(name string, fallback, least int) int {
	attr, ok := b.attrs[name]
	if !ok {
		return fallback
	}
	n, ok := b.whole(attr.Expr, name, least)
	if !ok {
		return fallback
	}
	return n
}

// whole reads a whole number of at least some value.
func (b *block) whole(expr hcl.Expression, name string, least int) (int, bool) {
	want := fmt.Sprintf("a whole number of at least %d", least)
	v, ok := b.evaluate(expr, name, cty.Number, want)
	if !ok {
		return 0, false
	}
	n, accuracy := v.AsBigFloat().Int64()
	if accuracy != big.Exact || n < int64(least) || n > math.MaxInt32 {
		b.fault(expr.Range(), "%s = %s: must be %s", name, b.source(expr), want)
		return 0, false
	}
	return int(n), true
}

func (b *block) fraction(name string, fallback float64) float64 {
	v, ok := b.value(name, cty.Number, "a number above zero")
	if !ok {
		return fallback
	}
	f, _ := v.AsBigFloat().Float64()
	if !(f > 0) || f > 1e9 {
		b.fault(b.attrs[name].Expr.Range(), "%s = %s: must be a number above zero", name, b.source(b.attrs[name].Expr))
		return fallback
	}
	return f
}

func (b *block) duration(name string, fallback time.Duration) time.Duration {
	v, ok := b.value(name, cty.String, `a duration such as "30m"`)
	if !ok {
		return fallback
	}
	d, ok := b.parseDuration(v.AsString(), b.attrs[name].Expr.Range(), name)
	if !ok {
		return fallback
	}
	return d
}

func (b *block) parseDuration(text string, where hcl.Range, name string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		b.fault(where, "%s = %q: must be a duration above zero such as \"30m\" or \"72h\"", name, text)
		return 0, false
	}
	return d, true
}

// texts reads a list of texts without empty ones and without doubles.
func (b *block) texts(name string) []string {
	v, ok := b.value(name, cty.List(cty.String), "a list of texts")
	if !ok {
		return nil
	}
	var out []string
	seen := map[string]bool{}
	for _, e := range v.AsValueSlice() {
		if e.IsNull() || e.AsString() == "" {
			b.fault(b.attrs[name].Expr.Range(), "%s holds an empty text", name)
			continue
		}
		if s := e.AsString(); seen[s] {
			b.fault(b.attrs[name].Expr.Range(), "%s holds %q twice", name, s)
		} else {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// counts reads an object of whole numbers, calling set for each with the place
// of its value.
func (b *block) counts(name string, least int, set func(key string, n int, where hcl.Range)) {
	attr, ok := b.attrs[name]
	if !ok {
		return
	}
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		b.fault(attr.Expr.Range(), "%s must be an object of whole numbers such as { any = 64 }", name)
		return
	}
	seen := map[string]bool{}
	for _, pair := range pairs {
		key, ok := b.evaluate(pair.Key, name, cty.String, "an object whose keys are texts")
		if !ok {
			continue
		}
		switch k := key.AsString(); {
		case k == "":
			b.fault(pair.Key.Range(), "%s has an empty key", name)
		case seen[k]:
			b.fault(pair.Key.Range(), "%s has %q twice", name, k)
		default:
			seen[k] = true
			if n, ok := b.whole(pair.Value, fmt.Sprintf("%s of %q", name, k), least); ok {
				set(k, n, pair.Value.Range())
			}
		}
	}
}

// attribute reads a Nomad attribute: "meta.leaf", or "${meta.leaf}" as job
// specifications have it, which HCL would interpolate and which is therefore
// taken from the text of the file.
func (b *block) attribute(name string) string {
	attr, ok := b.attrs[name]
	if !ok {
		b.fault(b.where, "%s is missing: the node attribute that names the domain, such as \"meta.leaf\"", name)
		return ""
	}
	text := string(attr.Expr.Range().SliceBytes(b.sources[attr.Expr.Range().Filename]))
	text = strings.TrimSuffix(strings.TrimPrefix(text, `"`), `"`)
	text = strings.TrimPrefix(strings.TrimPrefix(text, "$"), "${")
	text = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"))
	for _, kind := range []string{"meta.", "attr.", "node."} {
		if rest, ok := strings.CutPrefix(text, kind); ok && rest != "" && !strings.ContainsAny(rest, "\"${}\\ \t\n") {
			return "${" + text + "}"
		}
	}
	b.fault(attr.Expr.Range(), "%s: must name a node attribute: meta.<key>, attr.<name> or node.<name>", name)
	return ""
}

// source is what stands in the file, shortened: a number is not written out by
// its value, since 1e999999999 takes a gigabyte.
func (r *reader) source(expr hcl.Expression) string {
	text := string(expr.Range().SliceBytes(r.sources[expr.Range().Filename]))
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}

func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line) }
