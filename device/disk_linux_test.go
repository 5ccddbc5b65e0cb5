package device_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A full disk: the fault is told all the same, the log says that a restart would
// forget it, and once there is room it is kept.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small disk needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, 0) })
	bubble(t, small, func(r *rig) {
		r.state = filepath.Join(disk, "state")
		r.start()
		r.inject(0, "xid", "54")
		filler, err := os.Create(filepath.Join(disk, "filler"))
		must.NoError(t, err)
		for err == nil {
			_, err = filler.Write(make([]byte, 4096))
		}
		must.ErrorIs(t, err, syscall.ENOSPC)
		must.NoError(t, filler.Close())
		r.inject(1, "xid", "54")
		must.Eq(t, "0:quarantined 1:quarantined 2:healthy 3:healthy", r.levels())
		must.StrContains(t, r.logged(), "card state is not on disk")
		must.StrContains(t, r.logged(), "no space left on device")
		must.NoError(t, os.Remove(filler.Name()))
		time.Sleep(time.Minute)
		r.settle()
		r.restart()
		must.Eq(t, "0:quarantined 1:quarantined 2:healthy 3:healthy", r.levels())
		must.Eq(t, uint64(1), r.card(1).Health.Xids[54])
	})
}
