package shim

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal in the calling thread's own /dev: near is ours,
// far the descriptor for the process.
func openTerminal(user *User) (near *os.File, far int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a terminal: %w", err)
	}
	near = os.NewFile(uintptr(fd), "terminal")
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	if err == nil {
		// The far end by its near one, not by a name: that is another one in
		// each /dev/pts.
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno == 0 {
			if user != nil {
				_ = unix.Fchown(int(peer), int(user.UID), -1)
			}
			return near, int(peer), nil
		}
		err = errno
	}
	return nil, -1, errors.Join(fmt.Errorf("make a terminal: %w", err), near.Close())
}
