package command_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/command"
)

func TestReport(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	dir := t.TempDir()
	page := filepath.Join(dir, "r.html")
	r := s.run("report", "-from=2026-11-23", "-to=2026-11-30T08:00:00Z", "-o", page, "-svg", filepath.Join(dir, "plots"))
	must.Eq(t, result{0, "2026-11-23 00:00 to 2026-11-30 08:00 UTC: " + page + "\n", ""}, r)
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	must.StrContains(t, string(text), "no attempt was placed")
	plots, err := filepath.Glob(filepath.Join(dir, "plots", "*.svg"))
	must.NoError(t, err)
	must.Len(t, 8, plots)
	must.Eq(t, string(text), s.run("report", "-from=2026-11-23", "-to=2026-11-30T08:00:00Z", "-o", "-").stdout)
	must.Eq(t, any("2026-11-23T00:00:00Z"), s.run("report", "-json", "-from=2026-11-23", "-to=2026-11-24", "-o", page).document(t)["from"])

	for flags, want := range map[[2]string]string{
		{"-from=yesterday", ""}:                "neither a date",
		{"-to=2026-11-30", ""}:                 "-to needs -from",
		{"-period=year", ""}:                   "day, week, month",
		{"-from=2026-11-23", "-to=2026-11-22"}: "not after it begins",
	} {
		args := []string{"report", flags[0]}
		if flags[1] != "" {
			args = append(args, flags[1])
		}
		r := s.run(args...)
		must.Eq(t, command.ExitError, r.code)
		must.StrContains(t, r.stderr, want)
	}
}
