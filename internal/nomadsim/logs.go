package nomadsim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// logPair collects what a task writes, as Nomad's logmon does: from a pipe for each stream into numbered files. Like
// logmon it outlives the agent.
type logPair struct{ out, err *logCollector }

func openLogs(dir, task string, cfg *wire.LogConfig, log hclog.Logger) (*logPair, error) {
	files, size := 10, 10
	if cfg != nil && cfg.MaxFiles > 0 && cfg.MaxFileSizeMB > 0 {
		files, size = cfg.MaxFiles, cfg.MaxFileSizeMB
	}
	out, err := newLogCollector(dir, task+".stdout", files, int64(size)<<20, log)
	if err != nil {
		return nil, err
	}
	errs, err := newLogCollector(dir, task+".stderr", files, int64(size)<<20, log)
	if err != nil {
		out.close()
		return nil, err
	}
	return &logPair{out, errs}, nil
}

// drain waits until what was written so far is in the files.
func (p *logPair) drain() {
	p.out.drain()
	p.err.drain()
}

func (p *logPair) close() {
	p.out.close()
	p.err.close()
}

// logCollector reads one pipe.
type logCollector struct {
	fifo string
	pipe *os.File
	raw  syscall.RawConn
	file *rotated
	done chan struct{}
	mu   sync.Mutex // held from a read until what was read is in the file
}

func newLogCollector(dir, name string, files int, size int64, log hclog.Logger) (*logCollector, error) {
	fifo := filepath.Join(dir, "."+name+".fifo")
	if err := os.Remove(fifo); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("make the log pipe: %w", err)
	}
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		return nil, fmt.Errorf("make the log pipe %s: %w", fifo, err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		return nil, fmt.Errorf("make the log pipe: %w", err)
	}
	// Open for both: so it never reads the end while no task has it open.
	pipe, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the log pipe: %w", err)
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		pipe.Close()
		return nil, fmt.Errorf("open the log pipe: %w", err)
	}
	file, err := openRotated(dir, name, files, size)
	if err != nil {
		pipe.Close()
		return nil, err
	}
	c := &logCollector{fifo: fifo, pipe: pipe, raw: raw, file: file, done: make(chan struct{})}
	go c.run(log)
	return c, nil
}

func (c *logCollector) run(log hclog.Logger) {
	defer close(c.done)
	buf := make([]byte, 64<<10)
	for {
		if c.raw.Read(func(fd uintptr) bool { return c.copy(int(fd), buf, log) }) != nil {
			return // closed
		}
	}
}

// copy moves what is in the pipe into the file; false if there was nothing.
func (c *logCollector) copy(fd int, buf []byte, log hclog.Logger) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := syscall.Read(fd, buf)
	if err == syscall.EAGAIN {
		return false
	}
	if n > 0 {
		if _, err := c.file.Write(buf[:n]); err != nil {
			log.Error("log file could not be written", "pipe", c.fifo, "error", err)
		}
	}
	return true
}

// drain waits until the pipe is empty and all of it is in the file, a second at most.
func (c *logCollector) drain() {
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.mu.Lock()
		left := 0
		err := c.raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		c.mu.Unlock()
		if err != nil || left == 0 {
			return
		}
	}
}

func (c *logCollector) close() {
	c.pipe.Close()
	<-c.done
	c.file.Close()
	os.Remove(c.fifo)
}

// rotated is a file that goes on in another once it is full; only the newest few stay.
type rotated struct {
	dir, name string
	files     int
	size      int64
	index     int
	cur       *os.File
	written   int64
}

func openRotated(dir, name string, files int, size int64) (*rotated, error) {
	r := &rotated{dir: dir, name: name, files: files, size: size}
	for _, i := range logIndexes(dir, name) {
		r.index = max(r.index, i)
	}
	return r, r.open()
}

func (r *rotated) path(i int) string { return filepath.Join(r.dir, fmt.Sprintf("%s.%d", r.name, i)) }

func (r *rotated) open() error {
	f, err := os.OpenFile(r.path(r.index), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log file: %w", err)
	}
	r.cur, r.written = f, info.Size()
	return nil
}

func (r *rotated) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		if r.written >= r.size {
			r.cur.Close()
			r.index++
			if err := r.open(); err != nil {
				return total, err
			}
			if old := r.index - r.files; old >= 0 {
				os.Remove(r.path(old))
			}
		}
		n := min(int64(len(b)), r.size-r.written)
		w, err := r.cur.Write(b[:n])
		total += w
		r.written += int64(w)
		if err != nil {
			return total, err
		}
		b = b[w:]
	}
	return total, nil
}

func (r *rotated) Close() error { return r.cur.Close() }

var _ io.WriteCloser = (*rotated)(nil)

// logIndexes are the numbers of a stream's files, in order.
func logIndexes(dir, name string) []int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), name+"."); ok {
			if i, err := strconv.Atoi(rest); err == nil {
				out = append(out, i)
			}
		}
	}
	for i := 1; i < len(out); i++ {
		for k := i; k > 0 && out[k] < out[k-1]; k-- {
			out[k], out[k-1] = out[k-1], out[k]
		}
	}
	return out
}
