// Package logpipe carries the output of ranks to Nomad's log pipes without ever
// making a rank wait.
//
// Nomad gives a task two named pipes, read by a process of its own (logmon),
// which may be slow, stopped or gone. Ranks write to pipes of ours; a Source
// reads those without pause and hands whole lines to a Sink, which keeps a
// bounded number of bytes while Nomad's pipe takes none. What does not fit is
// dropped and counted, and a line in the log says so when it flows again.
package logpipe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// Buffer is how many bytes a Sink keeps while its pipe takes none.
const Buffer = 256 << 10

// StallAfter is how long a pipe must take nothing before that is called a stall.
const StallAfter = 10 * time.Second

// Sink writes to one of Nomad's log pipes, or to any other file.
type Sink struct {
	file *os.File
	now  func() time.Time

	mu      sync.Mutex
	wake    sync.Cond
	pending bytes.Buffer
	dropped int64
	since   time.Time // first moment at which pending could not be written
	closed  bool
	done    chan struct{}
}

// Open opens a pipe for writing; it neither waits for a reader nor fails for
// want of one: the pipe is opened for reading too, so that it exists as long as
// the supervisor does, and a reader that comes back finds what it holds.
func Open(path string) (*Sink, error) {
	flags := os.O_RDWR | syscall.O_NONBLOCK
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case info.Mode().IsRegular():
		flags = os.O_WRONLY | os.O_APPEND
	case info.Mode()&fs.ModeNamedPipe == 0:
		flags = os.O_WRONLY
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		hint := ""
		if errors.Is(err, fs.ErrPermission) {
			hint = fmt.Sprintf("; the driver runs as user %d and Nomad's log pipe belongs to another: run the agent that started it as the same user", os.Getuid())
		}
		return nil, fmt.Errorf("open the task's log: %w%s", err, hint)
	}
	s := &Sink{file: f, now: time.Now, done: make(chan struct{})}
	s.wake.L = &s.mu
	go s.run()
	return s, nil
}

// Write takes a piece of output. It never waits; what does not fit is dropped
// whole.
func (s *Sink) Write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.pending.Len()+len(p) > Buffer {
		s.dropped += int64(len(p))
		return
	}
	if s.dropped > 0 && s.pending.Len() < Buffer/2 {
		fmt.Fprintf(&s.pending, "[muster] %d bytes of output were dropped here: the log's reader did not take them\n", s.dropped)
		s.dropped = 0
	}
	s.pending.Write(p)
	s.wake.Signal()
}

// Stalled gives since when the pipe has taken nothing although there is
// something to write; zero: it flows.
func (s *Sink) Stalled() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() && s.now().Sub(s.since) >= StallAfter {
		return s.since
	}
	return time.Time{}
}

func (s *Sink) run() {
	defer close(s.done)
	chunk := make([]byte, 0, 32<<10)
	for {
		s.mu.Lock()
		for s.pending.Len() == 0 && !s.closed {
			s.wake.Wait()
		}
		if s.pending.Len() == 0 {
			s.mu.Unlock()
			return
		}
		n := min(s.pending.Len(), cap(chunk))
		chunk = append(chunk[:0], s.pending.Bytes()[:n]...)
		if s.since.IsZero() {
			s.since = s.now()
		}
		s.mu.Unlock()

		n, err := s.file.Write(chunk) // waits until the pipe takes it, or Close
		s.mu.Lock()
		s.pending.Next(n)
		if n > 0 {
			s.since = time.Time{}
		}
		if s.pending.Len() == 0 && s.pending.Cap() > 64<<10 {
			s.pending = bytes.Buffer{} // a burst does not stay in memory
		}
		s.mu.Unlock()
		if err != nil {
			return // closed, or the device is gone: Write drops from now on by the bound
		}
	}
}

// Close writes what is pending, for at most so long, and gives the pipe back.
func (s *Sink) Close(wait time.Duration) error {
	s.mu.Lock()
	s.closed = true
	s.wake.Signal()
	s.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		_ = s.file.SetWriteDeadline(time.Now())
	}
	return s.file.Close()
}
