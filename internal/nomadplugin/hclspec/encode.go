package hclspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// functions are those that Nomad offers in configurations and literals.
var functions = map[string]function.Function{
	"abs":        stdlib.AbsoluteFunc,
	"coalesce":   stdlib.CoalesceFunc,
	"concat":     stdlib.ConcatFunc,
	"hasindex":   stdlib.HasIndexFunc,
	"int":        stdlib.IntFunc,
	"jsondecode": stdlib.JSONDecodeFunc,
	"jsonencode": stdlib.JSONEncodeFunc,
	"length":     stdlib.LengthFunc,
	"lower":      stdlib.LowerFunc,
	"max":        stdlib.MaxFunc,
	"min":        stdlib.MinFunc,
	"reverse":    stdlib.ReverseFunc,
	"strlen":     stdlib.StrlenFunc,
	"substr":     stdlib.SubstrFunc,
	"upper":      stdlib.UpperFunc,
}

// Encode checks a configuration against its description and encodes it as
// Nomad's client does: config is the block as the job or the agent's file has
// it, its strings are templates in which vars may be used ("${attr.arch}"). All
// faults are reported at once, in Nomad's words.
//
// A nil config is a fault. Nomad's server turns the empty config of a task into
// nil, so a task needs at least one attribute; for a plugin block without
// config, Nomad passes an empty map.
func Encode(spec *Spec, config map[string]any, vars map[string]cty.Value) ([]byte, error) {
	src, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	file, diags := hcljson.Parse(src, "")
	if diags.HasErrors() {
		return nil, diagnostics("parse configuration", diags)
	}
	return encodeBody(spec, file.Body, vars)
}

// EncodeHCL is Encode for a configuration written in HCL.
func EncodeHCL(spec *Spec, src []byte, vars map[string]cty.Value) ([]byte, error) {
	file, diags := hclsyntax.ParseConfig(src, "", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diagnostics("parse configuration", diags)
	}
	return encodeBody(spec, file.Body, vars)
}

func encodeBody(spec *Spec, body hcl.Body, vars map[string]cty.Value) ([]byte, error) {
	compiled, err := compile(spec)
	if err != nil {
		return nil, err
	}
	value, diags := hcldec.Decode(body, compiled, &hcl.EvalContext{Variables: vars, Functions: functions})
	if diags.HasErrors() {
		return nil, diagnostics("check configuration", diags)
	}
	out, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out, nil
}

// Variables makes the variables of Encode from flat names: "attr.cpu.arch"
// becomes reachable as ${attr.cpu.arch}, and every name also as
// ${env["attr.cpu.arch"]}. Where one name continues another ("a", "a.b"), the
// longer one wins; a name that is no path ("a..b") is only in env.
func Variables(flat map[string]string) map[string]cty.Value {
	tree := node{}
	env := make(map[string]cty.Value, len(flat))
	for name, value := range flat {
		env[name] = cty.StringVal(value)
		tree.put(strings.Split(name, "."), value)
	}
	vars := tree.values()
	if len(env) > 0 {
		vars["env"] = cty.MapVal(env)
	}
	return vars
}

// node is a tree of names; a leaf is a string.
type node map[string]any

func (n node) put(path []string, value string) {
	for _, name := range path {
		if name == "" {
			return
		}
	}
	for _, name := range path[:len(path)-1] {
		child, ok := n[name].(node)
		if !ok {
			child = node{}
			n[name] = child
		}
		n = child
	}
	last := path[len(path)-1]
	if _, taken := n[last].(node); !taken {
		n[last] = value
	}
}

func (n node) values() map[string]cty.Value {
	out := make(map[string]cty.Value, len(n))
	for name, v := range n {
		if child, ok := v.(node); ok {
			out[name] = cty.ObjectVal(child.values())
		} else {
			out[name] = cty.StringVal(v.(string))
		}
	}
	return out
}

// diagnostics lists what HCL found, each as "summary: detail" without
// positions, since the text read is not the one the user wrote.
func diagnostics(what string, diags hcl.Diagnostics) error {
	var errs []error
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		summary := d.Summary
		if summary == "Extraneous JSON object property" {
			summary = "Invalid label" // Nomad's word for it
		}
		errs = append(errs, fmt.Errorf("%s: %s", summary, d.Detail))
	}
	return fmt.Errorf("%s: %w", what, errors.Join(errs...))
}
