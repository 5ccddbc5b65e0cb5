//go:build !unix

package accounting

import "os"

// lockFile opens the file; there is no lock that ends with the process here.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}

func unlockFile(f *os.File) { _ = f.Close() }
