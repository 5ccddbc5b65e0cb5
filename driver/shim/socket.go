package shim

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Socket addresses hold at most 107 bytes, and Nomad's folders are longer. A
// folder that is open can be named in short, through /proc.
func shortPath(path string) (short string, folder *os.File, err error) {
	folder, err = os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)), folder, nil
}

// Listen listens on a unix socket whose path may be long, and replaces what a
// dead process left there.
func Listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	short, folder, err := shortPath(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer folder.Close()
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // the short name ends with folder
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// Dial connects to such a socket.
func Dial(path string, timeout time.Duration) (*net.UnixConn, error) {
	short, folder, err := shortPath(path)
	if err != nil {
		return nil, fmt.Errorf("reach the supervisor: %w", err)
	}
	defer folder.Close()
	conn, err := net.DialTimeout("unix", short, timeout)
	if err != nil {
		return nil, fmt.Errorf("reach the supervisor at %s: %w", path, err)
	}
	return conn.(*net.UnixConn), nil
}
