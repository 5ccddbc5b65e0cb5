//go:build e2e && linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// gangJob is a gang of one group, written as the jobspec that a user would
// write.
type gangJob struct {
	name    string
	members int
	cards   int    // of each member
	queue   string // empty: default
	prio    int    // 0: not stated
	noHold  bool
	meta    map[string]string
	config  string // the task's config block
	extra   string // more blocks of the group
}

func (j gangJob) hcl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %q {\n  type = \"batch\"\n", j.name)
	if j.prio > 0 {
		fmt.Fprintf(&b, "  priority = %d\n", j.prio)
	}
	if !j.noHold {
		b.WriteString("  constraint {\n    attribute = \"${meta.muster}\"\n    value     = \"admits-this-job\"\n  }\n")
	}
	fmt.Fprintf(&b, "  meta {\n    muster_queue = %q\n", cmp.Or(j.queue, "default"))
	keys := make([]string, 0, len(j.meta))
	for k := range j.meta {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "    %s = %q\n", k, j.meta[k])
	}
	fmt.Fprintf(&b, "  }\n  group \"rank\" {\n    count = %d\n%s", j.members, j.extra)
	fmt.Fprintf(&b, "    task \"train\" {\n      driver = \"torchrun\"\n      kill_timeout = \"5s\"\n      config {\n%s      }\n", j.config)
	fmt.Fprintf(&b, "      resources {\n        cpu    = 500\n        memory = 2048\n        device \"nvidia/gpu\" {\n          count = %d\n        }\n      }\n    }\n  }\n}\n", j.cards)
	return b.String()
}

// payload is the absolute path of a program in testdata.
func payload(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	must.NoError(t, err)
	return path
}

// shellRanks gives the config of ranks that do what the files of the folder
// say (testdata/rank.sh), started without Python.
func shellRanks(t *testing.T, folder string, ranks int) string {
	return fmt.Sprintf("        launcher = \"ranks\"\n        command = [\"/bin/sh\", %q, %q]\n        nproc_per_node = %d\n", payload(t, "rank.sh"), folder, ranks)
}

// python gives the config of a script that torchrun starts.
func python(t *testing.T, script string, ranks int, args ...string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = strconv.Quote(a)
	}
	return fmt.Sprintf("        script = %q\n        args = [%s]\n        python = %q\n        nproc_per_node = %d\n", payload(t, script), strings.Join(quoted, ", "), suite.python, ranks)
}

// folder is where a scenario's ranks leave their stamps; everybody may write
// there.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "muster-ranks-")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o777))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// touch makes one of the files that ranks look for.
func touch(t *testing.T, folder, name, content string) {
	t.Helper()
	part := filepath.Join(folder, name+".part")
	must.NoError(t, os.WriteFile(part, []byte(content), 0o644))
	must.NoError(t, os.Rename(part, filepath.Join(folder, name)))
}

// submit hands a gang to the planner as its command line does.
func (l *lab) submit(ctx context.Context, t *testing.T, hcl string) {
	t.Helper()
	r, err := l.Muster(ctx, "job", "run", "-detach", jobFile(t, hcl))
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprintf("muster job run: %s%s", r.Stdout, r.Stderr))
}

func jobFile(t *testing.T, hcl string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.hcl")
	must.NoError(t, os.WriteFile(path, []byte(hcl), 0o644))
	return path
}

// register hands a job to Nomad as nomad job run does.
func (l *lab) register(ctx context.Context, t *testing.T, hcl string) *api.Job {
	t.Helper()
	job, err := l.nomad.Jobs().ParseHCL(hcl, true)
	must.NoError(t, err)
	_, _, err = l.nomad.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: &api.JobSubmission{Source: hcl, Format: "hcl2"}}, (&api.WriteOptions{}).WithContext(ctx))
	must.NoError(t, err)
	return job
}

// stop ends a gang as the command line does.
func (l *lab) stop(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	// The grace of the queue is for ranks that save; these only mark their steps.
	r, err := l.Muster(ctx, "job", "stop", "-detach", "-grace=5s", job)
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprintf("muster job stop: %s%s", r.Stdout, r.Stderr))
}
