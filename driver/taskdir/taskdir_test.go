package taskdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
)

func TestStartsAreCounted(t *testing.T) {
	d := Of("", t.TempDir(), "alloc", "train")
	for want := 1; want <= 3; want++ {
		n, err := d.NextStart()
		must.NoError(t, err)
		must.Eq(t, want, n)
	}
	must.NoError(t, os.WriteFile(filepath.Join(string(d), "starts"), []byte("many"), 0o600))
	_, err := d.NextStart()
	must.ErrorContains(t, err, `holds "many"`)
}

func TestReleasedMarker(t *testing.T) {
	d := Of(t.TempDir(), "", "alloc", "a/b")
	_, err := d.NextStart()
	must.NoError(t, err)
	r, err := d.WasReleased()
	must.NoError(t, err)
	must.Nil(t, r)
	want := Released{Attempt: 3, Start: 1, At: time.Now().UTC().Round(0)}
	must.NoError(t, d.MarkReleased(want))
	r, err = d.WasReleased()
	must.NoError(t, err)
	must.Eq(t, want, *r)
	// A marker that cannot be read is not "never released".
	must.NoError(t, os.WriteFile(filepath.Join(string(d), "released.json"), nil, 0o600))
	_, err = d.WasReleased()
	must.Error(t, err)
}

func TestExitRecord(t *testing.T) {
	d := Of("", t.TempDir(), "alloc", "train")
	n, err := d.NextStart()
	must.NoError(t, err)
	s := d.Start(n)
	e, err := s.ReadExit()
	must.NoError(t, err)
	must.Nil(t, e)
	want := contract.Exit{Outcome: contract.OutcomeFailed, Code: 42, Rank: 3, Text: strings.Repeat("long ", 10000), At: time.Now().UTC().Round(0)}
	must.NoError(t, s.WriteExit(want))
	got, err := s.ReadExit()
	must.NoError(t, err)
	must.Eq(t, 42, got.Code)
	must.Eq(t, 256, len(got.Text))
	must.NoError(t, s.WriteExit(contract.Exit{Outcome: contract.OutcomeComplete}))
	got, err = s.ReadExit()
	must.NoError(t, err)
	must.Eq(t, contract.OutcomeFailed, got.Outcome, must.Sprint("the first record stays"))
	must.NoError(t, os.WriteFile(s.exitPath(), []byte("{}"), 0o600))
	_, err = s.ReadExit()
	must.ErrorContains(t, err, "names no outcome")
}

// C14 B: a number that was reused is not the process.
func TestProcessIsItselfOnly(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	must.NoError(t, cmd.Start())
	p, err := Identify(cmd.Process.Pid)
	must.NoError(t, err)
	must.True(t, p.Alive())
	for name, other := range map[string]Process{
		"another start": {p.PID, p.Ticks + 1, p.Boot}, "another boot": {p.PID, p.Ticks, "0"}, "no process": {0, p.Ticks, p.Boot}, "a group": {-1, p.Ticks, p.Boot},
	} {
		must.False(t, other.Alive(), must.Sprint(name))
	}
	must.NoError(t, cmd.Process.Kill())
	_, _ = cmd.Process.Wait()
	must.False(t, p.Alive())
}

func FuzzParseStat(f *testing.F) {
	for _, seed := range []string{"1 (a) S 0", "1 (a b) c) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 4711 0 0", "", ")", "1 (x) "} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if ticks, _, err := parseStat(data); err == nil && ticks == 4711 {
			must.StrContains(t, string(data), "4711")
		}
	})
}
