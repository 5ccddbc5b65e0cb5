//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns is the terminal's width; 0 where there is none.
func columns() int {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(size.Col)
		}
	}
	return 0
}
