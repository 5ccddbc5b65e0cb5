package cards

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestActivity(t *testing.T) {
	sys := t.TempDir()
	must.Eq(t, "", Activity(sys, "/dev/null"), must.Sprint("no such card"))
	dir := filepath.Join(sys, "dev/char/1:3/device") // of /dev/null
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.Eq(t, "", Activity(sys, "/dev/null"), must.Sprint("its driver tells nothing"))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "gpu_busy_percent"), []byte("97\n"), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "mem_info_vram_used"), []byte("1048576\n"), 0o644))
	must.Eq(t, "computing 97 % of the time, 1048576 bytes of memory used", Activity(sys, "/dev/null"))
	must.Eq(t, "", Activity(sys, sys))
}
