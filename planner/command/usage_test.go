package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/shoenig/test/must"
)

// CSV has card-seconds, a column for each cause, and no cell that a spreadsheet
// would take for a formula.
func TestUsageCSV(t *testing.T) {
	t.Parallel()
	s := scene(t)
	r := s.run("usage", "-by=queue,user", "-csv", "-from=2026-02-01", "-to=2026-03-01")
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.Eq(t, `queue,user,card_seconds,guaranteed,borrowed,held,training,lost,lost_node_lost,lost_preempted
default,'=cmd(),3600,0,3600,0,3600,0,0,0
research,alice,57600,50000,7600,600,57000,9000,1000,8000
`, r.stdout)
	calls := s.planner.Calls()
	must.StrContains(t, calls[len(calls)-1], "usage 2026-02-01T00:00:00Z to 2026-03-01T00:00:00Z by queue,user")
	r = s.run("usage", "-waste", "-csv")
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "research/train-7,2,runs,research,bob,NVIDIA H100 80GB HBM3,6200,600,28000,5600,16,3,0.6000,0.6000,0.7000,163840\n")
}

func TestUsageWrongUse(t *testing.T) {
	t.Parallel()
	s := scene(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"usage", "-from=yesterday"}, "-from=yesterday is neither"},
		{[]string{"usage", "-to=-3h"}, "-to=-3h is neither"},
		{[]string{"usage", "-unit=m"}, "none of h, s"},
		{[]string{"usage", "-csv", "-json"}, "exclude each other"},
		{[]string{"usage", "-by=colour"}, "colour"},
		{[]string{"usage", "-from=2026-03-01", "-to=2026-02-01"}, "before from"},
		{[]string{"top", "-every=1ms"}, "less than 100ms"},
		{[]string{"top", "-n=-1"}, "less than 0"},
		{[]string{"ledger", "backup", "copy.db"}, "-file or -config"},
		{[]string{"ledger", "backup", "-file=x", "-config=y", "copy.db"}, "exclude each other"},
		{[]string{"ledger", "verify", "-file=/no/such/ledger.db"}, "no such file"},
	} {
		r := s.run(test.args...)
		must.NotEq(t, 0, r.code, must.Sprint(test.args))
		must.StrContains(t, r.stderr, test.want)
	}
}

// A ledger's file is copied and checked without a planner.
func TestLedgerFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := accounting.Open(context.Background(), accounting.Options{Path: filepath.Join(dir, accounting.FileName)})
	must.NoError(t, err)
	must.NoError(t, l.Close(context.Background()))
	config := filepath.Join(dir, "muster.hcl")
	must.NoError(t, os.WriteFile(config, []byte("data_dir = \""+dir+"\"\n"), 0o600))
	s := newShell(t)
	to := filepath.Join(dir, "copy.db")
	r := s.run("ledger", "backup", "-config", config, to)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "copy.db: 0 attempts, 0 allocations, 0 card-seconds")
	r = s.run("ledger", "verify", "-file", to)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "Nothing is wrong")
	must.Eq(t, command.ExitError, s.run("ledger", "backup", "-config", config, to).code, must.Sprint("nothing is overwritten"))
	must.NoError(t, os.WriteFile(to, []byte(strings.Repeat("no ledger", 500)), 0o600))
	r = s.run("ledger", "verify", "-file", to)
	must.NotEq(t, 0, r.code)
	must.StrContains(t, r.stderr, "no ledger of Muster's")
}
