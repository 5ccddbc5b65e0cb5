package logpipe

import (
	"fmt"
	"os"
	"sync"
)

// FileLimit is how many bytes a File takes before it begins anew; the bytes
// before are kept once, beside it.
const FileLimit = 16 << 20

// File keeps one rank's output in a file of its own. What cannot be written is
// dropped: the same output is in the task's log.
type File struct {
	Path string

	mu     sync.Mutex
	file   *os.File
	size   int64
	failed error
}

// Write appends. The error is told once.
func (f *File) Write(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return nil
	}
	if f.failed = f.write(p); f.failed != nil {
		return fmt.Errorf("keep a rank's output: %w", f.failed)
	}
	return nil
}

func (f *File) write(p []byte) error {
	if f.file != nil && f.size+int64(len(p)) > FileLimit {
		f.file.Close()
		f.file = nil
		if err := os.Rename(f.Path, f.Path+".1"); err != nil {
			return err
		}
	}
	if f.file == nil {
		// The folder is not the ranks', so nobody else can have put a link there.
		file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		info, err := file.Stat()
		if err != nil {
			file.Close()
			return err
		}
		f.file, f.size = file, info.Size()
	}
	n, err := f.file.Write(p)
	f.size += int64(n)
	return err
}

// Close gives the file back.
func (f *File) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}
