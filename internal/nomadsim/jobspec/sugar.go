package jobspec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// short forms of operators: the argument's name is the operator and its value the right side.
var shortForms = []string{"version", "semver", "regexp", "set_contains", "set_contains_all", "set_contains_any"}

// terms reads the arguments of a constraint or an affinity as text.
func (p *parser) terms(body *hclsyntax.Body, ctx *hcl.EvalContext, allowed ...string) map[string]string {
	out := map[string]string{}
	for _, name := range sortedNames(body.Attributes) {
		a := body.Attributes[name]
		if !slices.Contains(allowed, name) {
			p.fault(a.NameRange, "Unsupported argument", "An argument named %q is not expected here.", name)
			continue
		}
		v := p.eval(a.Expr, ctx)
		if v == cty.NilVal || v.IsNull() {
			continue
		}
		want := cty.String
		if name == "distinct_hosts" {
			want = cty.Bool
		}
		c, err := convert.Convert(v, want)
		if err == nil {
			c, err = convert.Convert(c, cty.String)
		}
		if err != nil || !c.IsKnown() {
			p.fault(a.Expr.Range(), "Incorrect attribute value type", "Inappropriate value for attribute %q: %v.", name, err)
			continue
		}
		out[name] = c.AsString()
	}
	for _, b := range body.Blocks {
		p.fault(b.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", b.Type)
	}
	return out
}

func (p *parser) constraint(body *hclsyntax.Body, ctx *hcl.EvalContext, c *api.Constraint) {
	t := p.terms(body, ctx, append([]string{"attribute", "value", "operator", "distinct_hosts", "distinct_property", "is_set", "is_not_set"}, shortForms...)...)
	c.LTarget, c.RTarget, c.Operand = t["attribute"], t["value"], t["operator"]
	for _, op := range shortForms[:4] { // Nomad takes the other two, too, and makes nothing of them
		if t[op] != "" {
			c.Operand, c.RTarget = op, t[op]
		}
	}
	if v, ok := t["distinct_hosts"]; ok {
		c.Operand, c.RTarget = "distinct_hosts", v
	}
	if v := t["distinct_property"]; v != "" {
		c.Operand, c.LTarget = "distinct_property", v
	}
	if c.Operand == "" {
		c.Operand = "="
	}
}

func (p *parser) affinity(body *hclsyntax.Body, ctx *hcl.EvalContext, a *api.Affinity) {
	t := p.terms(body, ctx, append([]string{"attribute", "value", "operator", "weight"}, shortForms...)...)
	a.LTarget, a.RTarget, a.Operand = t["attribute"], t["value"], t["operator"]
	if w := t["weight"]; w != "" {
		var n int8
		if _, err := fmt.Sscanf(w, "%d", &n); err != nil {
			p.fault(body.SrcRange, "Incorrect attribute value type", "Inappropriate value for attribute \"weight\": %v.", err)
		}
		a.Weight = &n
	}
	for _, op := range shortForms {
		if t[op] != "" {
			a.Operand, a.RTarget = op, t[op]
		}
	}
	if a.Operand == "" {
		a.Operand = "="
	}
}

// group reads a group; vault and secret blocks in it are for its tasks.
func (p *parser) group(body *hclsyntax.Body, ctx *hcl.EvalContext, g *api.TaskGroup) {
	var extra struct {
		Vault   *api.Vault    `hcl:"vault,block"`
		Secrets []*api.Secret `hcl:"secret,block"`
	}
	inner, rest := splitBlocks(body, "vault", "secret")
	p.structure(inner, ctx, &extra)
	p.plain(rest, ctx, reflect.ValueOf(g).Elem())
	for _, t := range g.Tasks {
		if t.Vault == nil {
			t.Vault = extra.Vault
		}
		t.Secrets = append(t.Secrets, extra.Secrets...)
	}
	if g.Scaling != nil {
		if g.Scaling.Type == "" {
			g.Scaling.Type = "horizontal"
		}
		if g.Scaling.Max == nil {
			p.fault(body.SrcRange, "Missing required argument", "The argument \"max\" is required, but no definition was found.")
		}
	}
}

// taskScaling reads a task's scaling blocks, named cpu and mem.
func (p *parser) taskScaling(body *hclsyntax.Body, ctx *hcl.EvalContext, t *api.Task) {
	for _, b := range p.expand(body.Blocks, ctx) {
		if len(b.labels) != 1 {
			p.fault(b.block.DefRange(), "Missing name for scaling", "All scaling blocks must have 1 labels (name).")
			continue
		}
		kind := map[string]string{"cpu": "vertical_cpu", "mem": "vertical_mem"}[strings.ToLower(b.labels[0])]
		if kind == "" {
			p.fault(b.block.DefRange(), "Invalid scaling policy name", `scaling policy name must be "cpu" or "mem"`)
			continue
		}
		var s api.ScalingPolicy
		p.structure(b.body, b.ctx, &s)
		s.Type = kind
		t.ScalingPolicies = append(t.ScalingPolicies, &s)
	}
}

func def[T any](to **T, v T) {
	if *to == nil {
		*to = &v
	}
}

// normalise does what is done once the whole job is read.
func (p *parser) normalise(job *api.Job, vault *api.Vault, secrets []*api.Secret) {
	if job.Periodic != nil && (job.Periodic.Spec != nil || job.Periodic.Specs != nil) {
		cron := "cron"
		job.Periodic.SpecType = &cron
	}
	vaultDefaults(vault)
	for _, g := range job.TaskGroups {
		sortPorts(g.Networks)
		for _, t := range g.Tasks {
			if t.Resources != nil {
				sortPorts(t.Resources.Networks)
			}
			for _, tm := range t.Templates {
				def(&tm.ChangeMode, "restart")
				def(&tm.Perms, "0644")
				def(&tm.Splay, 5*time.Second)
				def(&tm.ErrMissingKey, false)
				if s := tm.ChangeScript; s != nil {
					if s.Args == nil {
						s.Args = []string{}
					}
					def(&s.Timeout, 5*time.Second)
					def(&s.FailOnError, false)
					def(&s.RunOnFirstRender, false)
				}
			}
			if t.Vault == nil {
				t.Vault = vault
			}
			vaultDefaults(t.Vault)
			t.Secrets = append(t.Secrets, secrets...)
			for i, id := range t.Identities {
				if id.Name == "" || id.Name == "default" {
					t.Identity = id
					t.Identities = slices.Delete(t.Identities, i, i+1)
					break
				}
			}
			if len(t.Identities) == 0 {
				t.Identities = nil
			}
		}
	}
}

func vaultDefaults(v *api.Vault) {
	if v == nil {
		return
	}
	def(&v.Env, true)
	def(&v.DisableFile, false)
	def(&v.ChangeMode, "restart")
}

// sortPorts parts ports with a number from those to be given one.
func sortPorts(list []*api.NetworkResource) {
	for _, n := range list {
		if len(n.DynamicPorts) == 0 {
			continue
		}
		var dynamic, static []api.Port
		for _, port := range n.DynamicPorts {
			if port.Value > 0 {
				static = append(static, port)
			} else {
				dynamic = append(dynamic, port)
			}
		}
		n.DynamicPorts, n.ReservedPorts = dynamic, static
	}
}
