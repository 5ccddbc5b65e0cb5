package logpipe

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lineLimit = 64 << 10 // a longer line is passed on in pieces
	idle      = 100 * time.Millisecond
)

// Source reads one process's output.
type Source struct {
	Sink   *Sink
	Prefix string // before each line; empty: lines pass as they are
	// Each is called with every line, without its end; nil: nobody asks.
	Each func(line []byte)
	// Tail keeps the last lines; nil: none are kept.
	Tail *Tail

	// Also gets what the Sink gets, without the prefix; nil: nobody does.
	Also *File

	last atomic.Int64 // unix nanoseconds of the last output
}

// Last is when the process last wrote something; zero: never.
func (s *Source) Last() time.Time {
	if n := s.last.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// Copy reads until the end. A piece of a line that is not followed by more
// within a moment is passed on as it is, so that prompts and progress bars show.
func (s *Source) Copy(r *os.File) {
	var line []byte
	chunk := make([]byte, 8<<10)
	for {
		if len(line) > 0 {
			_ = r.SetReadDeadline(time.Now().Add(idle))
		} else {
			_ = r.SetReadDeadline(time.Time{})
		}
		n, err := r.Read(chunk)
		if n > 0 {
			s.last.Store(time.Now().UnixNano())
			line = s.lines(append(line, chunk[:n]...))
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.emit(line)
			line = line[:0]
		case err != nil:
			if err != io.EOF || len(line) > 0 {
				s.emit(line)
			}
			return
		}
	}
}

// lines emits the whole lines of data and gives what is left.
func (s *Source) lines(data []byte) []byte {
	for {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			if len(data) < lineLimit {
				return append([]byte(nil), data...)
			}
			end = lineLimit - 1
		}
		s.emit(data[:end+1])
		data = data[end+1:]
	}
}

func (s *Source) emit(line []byte) {
	if len(line) == 0 {
		return
	}
	plain := bytes.TrimRight(line, "\r\n")
	if s.Tail != nil {
		s.Tail.add(plain)
	}
	if s.Each != nil {
		s.Each(plain)
	}
	if s.Also != nil {
		if err := s.Also.Write(line); err != nil {
			s.Sink.Write([]byte("[muster] " + err.Error() + "\n"))
		}
	}
	if s.Prefix == "" {
		s.Sink.Write(line)
		return
	}
	out := make([]byte, 0, len(s.Prefix)+len(line)+1)
	out = append(append(out, s.Prefix...), line...)
	if line[len(line)-1] != '\n' {
		out = append(out, '\n')
	}
	s.Sink.Write(out)
}

// Tail keeps the last lines of an output.
type Tail struct {
	Keep int // lines; 0: 20
	mu   sync.Mutex
	kept []string
}

const tailLine = 500 // bytes kept of one line

func (t *Tail) add(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	keep := t.Keep
	if keep == 0 {
		keep = 20
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, string(line[:min(len(line), tailLine)]))
	if len(t.kept) > keep {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-keep:]...)
	}
}

// Lines gives what is kept, oldest first.
func (t *Tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.kept...)
}
