package driver

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// A variable that no process can be given (Linux carries 128 KiB in one, and a
// job's meta goes into variables) is refused in words when the task starts, not
// found out by the whole gang at its release.
func TestVariableThatIsTooLong(t *testing.T) {
	t.Parallel()
	gang := contract.GangID{Region: "global", Namespace: "default", Job: "long"}
	p := newPlugin(t, map[string]any{"rendezvous": "signal", "interface": "lo"})
	start := func(change func(env map[string]string)) error {
		cfg := taskConfig(t, gang, "n1", map[string]any{"launcher": "ranks", "command": []any{"true"}, "nproc_per_node": 1})
		change(cfg.Env)
		newMember(t, cfg)
		_, err := p.StartTask(cfg)
		if err == nil {
			must.NoError(t, p.DestroyTask(cfg.ID, true))
		}
		return err
	}
	err := start(func(env map[string]string) {
		env["NOMAD_META_note"], env["NOMAD_META_nul"], env["A="] = strings.Repeat("x", 1<<20), "a\x00b", "1"
	})
	for _, part := range []string{"3 faults", "NOMAD_META_note", "128 KiB", `"NOMAD_META_nul": no NUL byte`, `"A=": a name without =`} {
		must.ErrorContains(t, err, part)
	}
	err = start(func(env map[string]string) {
		for i := range 20 {
			env[fmt.Sprintf("NOMAD_META_%d", i)] = strings.Repeat("x", 100<<10)
		}
	})
	must.ErrorContains(t, err, "at most 1.5 MiB")
	// As much as goes, goes: Linux decides.
	long := strings.Repeat("x", 128<<10-len("NOMAD_META_note")-2)
	must.NoError(t, start(func(env map[string]string) { env["NOMAD_META_note"] = long }))
	cmd := exec.Command("true")
	cmd.Env = []string{"NOMAD_META_note=" + long}
	must.NoError(t, cmd.Run())
	cmd.Env = []string{"NOMAD_META_note=" + long + "x"}
	must.Error(t, cmd.Run())
}

// Names that a jobspec can have and a path or a shell would not like.
func TestNamesOfAllKinds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tr.ain-v1", "träin", "a b", "..", "$(id)", "%2f", strings.Repeat("t", 120)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, 1, ranksConfig(t, "-steps", "3"), func(cfg *driver.TaskConfig) {
				cfg.ID = strings.Replace(cfg.ID, "/train/", "/"+name+"/", 1)
				cfg.TaskGroupName, cfg.JobID, cfg.JobName = name, name, name
			})
			tr.gang = contract.GangID{Region: "global", Namespace: "default", Job: name}
			handle, err := tr.plugin.StartTask(tr.members[0].cfg)
			must.NoError(t, err)
			must.NotNil(t, handle)
			must.NoError(t, tr.plugin.DestroyTask(tr.members[0].cfg.ID, true))
		})
	}
}
