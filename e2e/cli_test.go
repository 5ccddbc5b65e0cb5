//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// Nomad's own command line is all that a user needs.
func TestNomadCommandLine(t *testing.T) {
	ctx, l := shared(t)
	if suite.nomadCLI == "" {
		skip(t, "no nomad command line in NOMAD_BIN or on the PATH")
	}
	dir := folder(t)
	file := jobFile(t, gangJob{name: "cli", members: 2, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	nomad := func(args ...string) string {
		t.Helper()
		r, err := l.Run(ctx, suite.nomadCLI, args...)
		must.NoError(t, err)
		must.Eq(t, 0, r.Code, must.Sprintf("nomad %v: %s%s", args, r.Stdout, r.Stderr))
		return r.Stdout
	}
	nomad("job", "run", "-detach", file)
	awaitStarted(ctx, t, dir, 1, 2)
	must.StrContains(t, nomad("job", "status"), "cli")
	status := nomad("job", "status", "cli")
	must.StrContains(t, status, "running")
	must.StrContains(t, status, "rank")
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "cli", contract.StageComplete)
	seen := ""
	for _, a := range l.allocations(ctx, t, "cli") {
		seen += nomad("alloc", "logs", a.ID)
	}
	must.StrContains(t, seen, "rank 0 of 2 started in attempt 1")
	must.StrContains(t, seen, "rank 1 is done")
	must.StrContains(t, nomad("job", "status", "cli"), "complete")
}

// Every example runs to its end as it stands.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../jobspecs/*.hcl")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hcl"), func(t *testing.T) {
			ctx, l := shared(t)
			text, err := os.ReadFile(file)
			must.NoError(t, err)
			if !strings.Contains(string(text), `"ranks"`) {
				needTorch(t)
			}
			job, err := l.nomad.Jobs().ParseHCL(string(text), true)
			must.NoError(t, err)
			for _, g := range job.TaskGroups {
				for _, task := range g.Tasks {
					// Where an earlier run's checkpoint would be gone on from.
					if dir, ok := task.Config["checkpoint"].(string); ok {
						t.Cleanup(func() { _ = os.RemoveAll(dir) })
					}
				}
			}
			path, err := filepath.Abs(file)
			must.NoError(t, err)
			if strings.Contains(string(text), "var.python") {
				// Its library is not here: a stand-in reads the variables that it reads.
				standin, err := filepath.Abs("../driver/testdata/standin")
				must.NoError(t, err)
				path = jobFile(t, strings.Replace(string(text), "driver = \"torchrun\"\n", fmt.Sprintf("driver = \"torchrun\"\n      env {\n        PYTHONPATH          = %q\n        PYTHONPYCACHEPREFIX = \"/tmp\"\n      }\n", standin), 1))
			}
			r, err := l.Muster(ctx, "job", "run", "-detach", path)
			must.NoError(t, err)
			must.Eq(t, 0, r.Code, must.Sprint(r.Stdout, r.Stderr))
			g := l.awaitStage(ctx, t, *job.ID, contract.StageComplete)
			must.Eq(t, 1, g.Attempt)
		})
	}
}
