//go:build unix

package accounting

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes a lock that ends with the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("it is locked")
		}
		return nil, err
	}
	return f, nil
}

// unlockFile gives the lock back, also where a child that is just being started
// still has the file.
func unlockFile(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
