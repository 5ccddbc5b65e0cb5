package jobspecs

import (
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	jobfile "github.com/nomad-muster/muster/internal/nomadsim/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/submit"
)

// examples are all files, with the syntax tree of each.
func examples(t *testing.T) map[string]*hclsyntax.Body {
	t.Helper()
	out := map[string]*hclsyntax.Body{}
	for _, pattern := range []string{"*.hcl", "site/*.hcl"} {
		names, err := fs.Glob(os.DirFS("."), pattern)
		must.NoError(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			must.NoError(t, err)
			file, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			out[name] = file.Body.(*hclsyntax.Body)
		}
	}
	must.MapNotEmpty(t, out)
	return out
}

// blocks finds all blocks of a type, however deep.
func blocks(body *hclsyntax.Body, kind string) (out []*hclsyntax.Block) {
	for _, b := range body.Blocks {
		if b.Type == kind {
			out = append(out, b)
		}
		out = append(out, blocks(b.Body, kind)...)
	}
	return out
}

// The scripts stand in the examples so that they run as they are; they are the
// same as those in scripts.
func TestScriptsAreTheSame(t *testing.T) {
	t.Parallel()
	found := 0
	for name, body := range examples(t) {
		for _, tmpl := range blocks(body, "template") {
			destination, diags := tmpl.Body.Attributes["destination"].Expr.Value(nil)
			must.False(t, diags.HasErrors())
			script := path.Base(destination.AsString())
			if path.Ext(script) != ".py" {
				continue
			}
			found++
			data, diags := tmpl.Body.Attributes["data"].Expr.Value(nil)
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			want, err := os.ReadFile("scripts/" + script)
			must.NoError(t, err)
			must.Eq(t, string(want), data.AsString(), must.Sprintf("%s: template %s", name, script))
			must.StrNotContains(t, data.AsString(), "{{", must.Sprint("Nomad's own templates would read it"))
		}
	}
	must.Positive(t, found)
}

// Each file is named for its job, says how it is run, and is held.
func TestConventions(t *testing.T) {
	t.Parallel()
	for name, body := range examples(t) {
		text, err := os.ReadFile(name)
		must.NoError(t, err)
		jobs := blocks(body, "job")
		must.Len(t, 1, jobs)
		if path.Dir(name) == "site" {
			continue
		}
		must.Eq(t, strings.TrimSuffix(name, ".hcl"), jobs[0].Labels[0])
		must.StrContains(t, string(text), "muster job run")
		must.StrContains(t, string(text), `"${meta.muster}"`)
		_, err = Files.ReadFile(name)
		must.NoError(t, err)
	}
}

// gang completes a job as muster job run does, which must be a gang without a
// fault.
func gang(t *testing.T, name string, text []byte, queue string) *jobspec.Job {
	t.Helper()
	parsed, err := jobfile.Parse(jobfile.Config{Source: text, Filename: name})
	must.NoError(t, err)
	parsed.ParameterizedJob = nil // its children are gangs, and have none
	raw, err := json.Marshal(parsed)
	must.NoError(t, err)
	done, err := submit.Complete(raw, queue)
	must.NoError(t, err)
	must.SliceEmpty(t, done.Warnings, must.Sprint(name))
	job, err := jobspec.Parse(done.Job)
	must.NoError(t, err)
	must.True(t, job.IsGang(), must.Sprint(name))
	_, faults := job.Want([]string{contract.TypeGPU})
	must.NoError(t, contract.Faults(faults).Err(), must.Sprint(name))
	return job
}

// Each example is a job without a fault, and small enough for the trial
// cluster: four nodes with four cards each.
func TestExamplesAreGangs(t *testing.T) {
	t.Parallel()
	for name := range examples(t) {
		text, err := os.ReadFile(name)
		must.NoError(t, err)
		if name == "site/planner.hcl" {
			_, err := jobfile.Parse(jobfile.Config{Source: text, Filename: name})
			must.NoError(t, err)
			continue // no gang
		}
		job := gang(t, name, text, "")
		if path.Dir(name) == "site" {
			continue // of a cluster's own size
		}
		cards := 0
		for _, g := range job.Groups() {
			for _, d := range g.Devices {
				must.LessEq(t, 4, d.Count)
				cards += d.Count * g.Count
			}
		}
		must.Between(t, 1, cards, 16, must.Sprint(name))
	}
}
