// Package jobspec reads Nomad's job files: HCL with variables, locals, functions and dynamic blocks, into the job that
// Nomad's API takes.
//
// The grammar is that of the hcl tags on Nomad's own API types, with what Nomad adds to it: durations as text, maps
// written as blocks or as values, constraints and affinities in their short forms, ports sorted into static and dynamic
// ones, config blocks as free maps in which nested blocks become lists of maps. What Nomad fills in only when it
// registers a job is not filled in here.
//
// References that are for the client or the scheduler, such as ${meta.rack} or ${NOMAD_TASK_DIR}, stay as they are written.
//
// Not there: jobs written as JSON, and the functions bcrypt, rsadecrypt, yamldecode, yamlencode, uuidv5 and those on CIDRs.
package jobspec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
)

// Config is what to parse.
type Config struct {
	Source    []byte
	Filename  string            // in messages; empty: "input.hcl"
	Variables map[string]string // values of input variables, as on a command line
	VarFile   string            // text of a file of variables
	FilesIn   string            // folder for file functions; empty: they are not allowed
}

// Parse reads a job. The error lists every fault, a line each, with where it is.
func Parse(cfg Config) (*api.Job, error) {
	if cfg.Filename == "" {
		cfg.Filename = "input.hcl"
	}
	file, diags := hclsyntax.ParseConfig(cfg.Source, cfg.Filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	p := &parser{src: cfg.Source, ctx: &hcl.EvalContext{Functions: functions(cfg.FilesIn), Variables: map[string]cty.Value{}}}
	body := file.Body.(*hclsyntax.Body)
	job := p.file(body, cfg)
	if p.diags.HasErrors() {
		lines := make([]string, len(p.diags))
		for i, d := range p.diags {
			lines[i] = d.Error()
		}
		return nil, errors.New(strings.Join(lines, "\n"))
	}
	return job, nil
}

// Attributes reads HCL that is nothing but arguments and blocks, such as the config of a plugin, into a free map.
func Attributes(src string) (map[string]any, error) {
	file, diags := hclsyntax.ParseConfig([]byte(src), "config.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	p := &parser{src: []byte(src), ctx: &hcl.EvalContext{Functions: functions("")}}
	m := p.freeMap(file.Body.(*hclsyntax.Body), p.ctx)
	if p.diags.HasErrors() {
		return nil, p.diags
	}
	return m, nil
}

type parser struct {
	src   []byte
	ctx   *hcl.EvalContext
	diags hcl.Diagnostics
}

func (p *parser) fault(at hcl.Range, summary, detail string, args ...any) {
	p.diags = append(p.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

func (p *parser) file(body *hclsyntax.Body, cfg Config) *api.Job {
	for name, a := range body.Attributes {
		p.fault(a.NameRange, "Unsupported argument", "An argument named %q is not expected here.", name)
	}
	p.inputs(body, cfg)
	p.locals(body)
	if p.diags.HasErrors() {
		return nil
	}
	var job *api.Job
	for _, b := range body.Blocks {
		switch b.Type {
		case "variable", "variables", "locals":
			continue
		case "job":
		default:
			p.fault(b.TypeRange, "Unsupported block type", "Blocks of type %q are not expected here.", b.Type)
			continue
		}
		if job != nil {
			p.fault(b.DefRange(), "Duplicate job block", "Only one block of type %q is allowed.", b.Type)
			continue
		}
		if len(b.Labels) != 1 {
			p.fault(b.DefRange(), "Missing name for job", "All job blocks must have 1 labels (name).")
			continue
		}
		job = p.job(b)
	}
	if job == nil && !p.diags.HasErrors() {
		p.fault(body.Range(), "Missing job block", "A job block is required")
	}
	return job
}

// job reads the job block. Vault and secret blocks, and tasks without a group, may stand in it directly.
func (p *parser) job(b *hclsyntax.Block) *api.Job {
	var extra struct {
		Vault   *api.Vault    `hcl:"vault,block"`
		Secrets []*api.Secret `hcl:"secret,block"`
		Tasks   []*api.Task   `hcl:"task,block"`
	}
	job := &api.Job{}
	inner, rest := splitBlocks(b.Body, "vault", "secret", "task")
	p.structure(inner, p.ctx, &extra)
	p.structure(rest, p.ctx, job)
	name := b.Labels[0]
	if job.ID == nil {
		job.ID = &name
	}
	if job.Name == nil {
		n := name
		job.Name = &n
	}
	var alone []*api.TaskGroup
	for _, t := range extra.Tasks {
		n := t.Name
		alone = append(alone, &api.TaskGroup{Name: &n, Tasks: []*api.Task{t}})
	}
	job.TaskGroups = append(alone, job.TaskGroups...)
	p.normalise(job, extra.Vault, extra.Secrets)
	return job
}

// splitBlocks parts a body into the blocks of some types and the rest.
func splitBlocks(b *hclsyntax.Body, types ...string) (some, rest *hclsyntax.Body) {
	some, rest = &hclsyntax.Body{SrcRange: b.SrcRange, EndRange: b.EndRange}, &hclsyntax.Body{Attributes: b.Attributes, SrcRange: b.SrcRange, EndRange: b.EndRange}
	for _, bl := range b.Blocks {
		kind := bl.Type
		if kind == "dynamic" && len(bl.Labels) == 1 {
			kind = bl.Labels[0]
		}
		to := rest
		for _, t := range types {
			if kind == t {
				to = some
			}
		}
		to.Blocks = append(to.Blocks, bl)
	}
	return some, rest
}
