//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/shoenig/test/must"
)

// What a newcomer types: muster dev shows a gang through its stages, ends with
// its result, and leaves nothing. The simulated cluster does it for an ordinary
// user, too.
func TestDev(t *testing.T) {
	scenario(t)
	if suite.kind == trial.Existing {
		skip(t, "muster dev brings its own cluster")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	// Programs and files where every user may read them.
	home, err := os.MkdirTemp("", "muster-dev-")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	must.NoError(t, os.Chmod(home, 0o777))
	for _, path := range []string{suite.binaries.Muster, suite.binaries.Driver, suite.binaries.Device, suite.binaries.Rank, suite.binaries.Consul} {
		data, err := os.ReadFile(path)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(home, filepath.Base(path)), data, 0o755))
	}
	mode := map[trial.Kind]string{trial.Real: "real", trial.Simulated: "sim"}[suite.kind]
	dev := exec.CommandContext(ctx, filepath.Join(home, filepath.Base(suite.binaries.Muster)), "dev", "-once", "-nomad", mode)
	dev.Dir = home
	dev.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=/usr/local/bin:/usr/bin:/bin", "CONSUL_BIN=" + filepath.Join(home, filepath.Base(suite.binaries.Consul)),
		"NOMAD_BIN=" + suite.binaries.Nomad, "MUSTER_PYTHON=" + suite.python}
	if suite.kind == trial.Simulated && os.Geteuid() == 0 {
		dev.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	dev.Cancel = func() error { return dev.Process.Signal(os.Interrupt) }
	var out bytes.Buffer
	dev.Stdout, dev.Stderr = &out, &out
	must.NoError(t, dev.Run(), must.Sprint(&out))
	for _, s := range append(contract.Stages, contract.StageComplete) {
		must.StrContains(t, out.String(), "    "+string(s))
	}
	must.StrContains(t, out.String(), "every sum right")

	left, err := trial.Processes(home)
	must.NoError(t, err)
	must.SliceEmpty(t, left)
	folders, err := filepath.Glob(filepath.Join(home, "muster-trial-*"))
	must.NoError(t, err)
	must.SliceEmpty(t, folders, must.Sprint(strings.Join(folders, " ")))
}
