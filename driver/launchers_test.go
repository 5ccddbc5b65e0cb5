package driver

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// The examples of other launchers, jobspecs/<name>.hcl, run as they are. The
// libraries are not there: stand-ins (testdata/standin) read the variables that
// each library reads, and let the ranks meet as it does.
func TestOtherLaunchers(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	standin, err := filepath.Abs("testdata/standin")
	must.NoError(t, err)
	for _, name := range []string{"deepspeed", "accelerate", "horovod", "jax"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := "train_" + name + ".py"
			tr := newTrial(t, 2, map[string]any{"launcher": "ranks", "command": []any{python, "-u", "local/" + script}, "hang_timeout": "1m"},
				withExample(t, script), func(cfg *driver.TaskConfig) {
					cfg.DeviceEnv = map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
					cfg.Env["PYTHONPATH"], cfg.Env["PYTHONPYCACHEPREFIX"] = standin, t.TempDir()
				})
			tr.run()
			for i, m := range tr.members {
				must.Eq(t, 0, tr.wait(i).ExitCode)
				must.Eq(t, contract.OutcomeComplete, tr.exit(i).Outcome)
				tr.awaitEvent(m, "first progress")
				for local := range 2 {
					m.log.await(t, tr.ctx, fmt.Sprintf("%s: rank %d of 4, card %d of this member", name, 2*i+local, local))
					m.log.await(t, tr.ctx, fmt.Sprintf("%s: rank %d is done", name, 2*i+local))
				}
			}
		})
	}
}
