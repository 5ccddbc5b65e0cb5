package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/command"
)

func TestSnapshotAndReplay(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	path := filepath.Join(t.TempDir(), "s.json")
	r := s.run("snapshot", "-o", path)
	must.Eq(t, result{0, "", ""}, r)
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, string(text), s.run("snapshot").stdout)

	r = s.run("replay", path)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "0 nodes, 1 gang")
	must.StrContains(t, r.stdout, "default/train")
	r = s.run("replay", "-json", path)
	must.Eq(t, any(true), r.document(t)["same"])
	must.StrContains(t, s.run("replay", "-gang=default/train", path).stdout, "In its way")

	s.stdin = strings.Replace(string(text), `"Position":`, `"Position":7`, 1)
	r = s.run("replay", "-json", "-")
	must.Eq(t, command.ExitError, r.code)
	must.Eq(t, any(false), r.document(t)["same"])
	must.StrContains(t, r.stderr, "differs")
	must.Eq(t, command.ExitError, s.run("replay", "/gone").code)
}
