package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
)

// The examples of the progress protocol in docs/driver.md, in Python and in
// plain shell, do what the page says: they are asked, save, and leave.
func TestDocumentedProtocol(t *testing.T) {
	page, err := os.ReadFile("../docs/driver.md")
	must.NoError(t, err)
	block := func(language string) []string {
		m := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)\n```").FindStringSubmatch(string(page))
		must.NotNil(t, m, must.Sprint(language))
		return strings.Split(m[1], "\n")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	lines := block("python")
	inPython := "import sys, time\n" + lines[0] + "\nmuster.listen()\ndef save(step): open(sys.argv[1] + '/saved', 'w').write(str(step))\nstep = 0\nwhile True:\n    step += 1\n    time.sleep(0.05)\n    " +
		strings.Join(lines[1:], "\n    ") + "\n"
	inShell := "dir=$1; i=0\nsave() { echo $i > $dir/saved; }\nwhile :; do i=$((i+1)); sleep 0.05\n" + strings.Join(block("sh"), "\n") + "\ndone\n"
	for name, c := range map[string]struct {
		script  string
		command []any
	}{
		"python": {inPython, []any{python, "local/example"}},
		"shell":  {inShell, []any{"/bin/sh", "local/example"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": c.command, "args": []any{dir}, "nproc_per_node": 1},
				withScript(t, "example", c.script), withExample(t, "muster_progress.py"))
			tr.run()
			tr.awaitEvent(tr.members[0], "first progress")
			tr.record.Ask = &contract.Ask{Kind: "preempt", Grace: time.Minute, By: time.Now().Add(time.Minute)}
			tr.planner.Write(tr.record)
			x := tr.exit(0)
			must.Eq(t, contract.OutcomeCheckpointed, x.Outcome, must.Sprint(x.Text))
			must.FileExists(t, filepath.Join(dir, "saved"))
			tr.awaitEvent(tr.members[0], "asked to save and leave within")
			tr.awaitEvent(tr.members[0], "checkpoint saved")
		})
	}
}
