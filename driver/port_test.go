package driver

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/preflight"
)

// The store's port is released last: while any process of the task lives no
// other member gets it, whichever of the task's processes ends first. It is free
// once the task is over. After its supervisor's death nothing but the store
// keeps it; all of the task is killed then, and the end told only after.
func TestPortIsReleasedLast(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = `
import signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
`
	for name, end := range map[string]func(*trial){
		"stopped, and killed after the grace": func(tr *trial) { must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Second, "")) },
		"stopped, and obeyed": func(tr *trial) {
			must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Minute, ""))
		},
		// The store ends with torchrun, a moment before the ranks do.
		"torchrun killed": func(tr *trial) {
			pids, err := launcherOf(tr.members[0].cfg.ID)
			must.NoError(t, err)
			must.SliceNotEmpty(t, pids)
			for _, pid := range pids {
				must.NoError(t, unix.Kill(pid, unix.SIGKILL))
			}
		},
		"supervisor killed": func(tr *trial) {
			s, err := tr.task(0).start.ReadShim()
			must.NoError(t, err)
			must.NoError(t, unix.Kill(s.Process.PID, unix.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manner := "stubborn"
			if name == "stopped, and obeyed" {
				manner = "obedient"
			}
			tr := newTrial(t, 1, map[string]any{"script": "local/s.py", "args": []any{manner}, "nproc_per_node": 2}, withScript(t, "s.py", script))
			tr.run()
			tr.members[0].log.await(t, tr.ctx, "ready\nready")
			port := tr.record.Worlds[0].Port
			must.True(t, preflight.Busy(port), must.Sprint("nobody listens at the store's port"))

			over, early := make(chan struct{}), make(chan error, 1)
			if name == "supervisor killed" {
				early <- nil
			} else {
				go func() { early <- tr.watchPort(port, over) }()
			}
			end(tr)
			tr.wait(0)
			left, err := isolation.WithEntry("NOMAD_ALLOC_ID=" + tr.members[0].cfg.AllocID)
			must.NoError(t, err)
			must.SliceEmpty(t, left, must.Sprint("the task is over and processes of it live"))
			close(over)
			must.NoError(t, <-early)
			free, err := portFree(port)
			must.NoError(t, err)
			must.True(t, free, must.Sprint("the task is over and its port is kept"))
		})
	}
}

// watchPort looks for the port until over, and tells where it is free while a
// process of the first member's task lives.
func (tr *trial) watchPort(port int, over <-chan struct{}) error {
	for {
		free, err := portFree(port)
		if err != nil {
			return err
		}
		if free { // who lives now lived then
			left, err := isolation.WithEntry("NOMAD_ALLOC_ID=" + tr.members[0].cfg.AllocID)
			if err != nil || len(left) > 0 {
				return fmt.Errorf("port %d was free while processes %v lived (%v)", port, left, err)
			}
		}
		select {
		case <-over:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// portFree tells whether no socket of any process has the port. It is asked for
// at an address of which no connection is left over: those of an ended store
// keep theirs from being taken for a minute, which here would hide that nobody
// keeps it.
func portFree(port int) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 99}})
	if err != nil && !errors.Is(err, unix.EADDRINUSE) {
		return false, err
	}
	return err == nil, nil
}
