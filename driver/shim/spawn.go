package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
)

// ended is how a process ended.
type ended struct {
	code, signal int
	at           time.Time
}

// command is a process to be started.
type command struct {
	argv   []string
	env    []string
	dir    string
	files  [3]*os.File // nil: /dev/null
	user   *User
	cgroup *isolation.Cgroup
	// outside starts it beside the task's own surroundings: with the host's
	// files and devices, and with all that the supervisor may do.
	outside bool
	// terminal makes it the leader of a session with a terminal of its own.
	terminal bool
	// line gets each line of its error output, for run.
	line func(string)
}

// started is a process that was started.
type started struct {
	pid      int
	done     <-chan ended // gives how it ended, once
	terminal *os.File     // the near end of its terminal
}

// forker is a thread that processes are started from. They inherit its
// namespaces and bounds, and die with it: it ends with the supervisor.
type forker chan func()

// newForker makes a forker whose thread is prepared first; ready gives how that
// went.
func newForker(prepare func() error) (f forker, ready <-chan error) {
	f = make(forker)
	done := make(chan error, 1)
	go func() {
		// The parent death signal comes when the thread that forked ends, so
		// this one thread does, and it ends with the process.
		runtime.LockOSThread()
		done <- prepare()
		for job := range f {
			job()
		}
	}()
	return f, done
}

// spawner starts processes and waits for all children, orphans included.
type spawner struct {
	inside   forker
	outside  forker
	ready    <-chan error // of inside
	null     *os.File
	oomScore int // of what is started
	// deaths lists processes in the order in which they end: when several ranks
	// fail within a moment, the first is the one to blame.
	deaths int // epoll of process descriptors

	mu      sync.Mutex
	waiting map[int]child
}

// child is a process that somebody waits for.
type child struct {
	ch chan ended
	fd int
}

// newSpawner makes the process the subreaper of its descendants. The thread from
// which the task's processes are started is prepared first: whether that
// succeeded comes on ready.
func newSpawner(prepare func() error, oomScore int) (*spawner, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the subreaper: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	deaths, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("wait for processes: %w", err)
	}
	s := &spawner{waiting: map[int]child{}, null: null, deaths: deaths, oomScore: oomScore}
	s.outside, _ = newForker(func() error { return nil })
	s.inside, s.ready = newForker(prepare)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			s.reap()
		}
	}()
	return s, nil
}

func (s *spawner) reap() {
	s.mu.Lock() // a child that ends at once is entered before it is looked up
	defer s.mu.Unlock()
	for events := make([]unix.EpollEvent, 64); ; {
		n, err := unix.EpollWait(s.deaths, events, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		for _, e := range events[:max(0, n)] {
			s.wait(int(e.Fd))
		}
		if n < len(events) {
			break
		}
	}
	for s.wait(-1) { // orphans
	}
}

// wait waits for one child, or any, if it has ended. s.mu is held.
func (s *spawner) wait(pid int) bool {
	var status unix.WaitStatus
	var err error
	for {
		if pid, err = unix.Wait4(pid, &status, unix.WNOHANG, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil || pid <= 0 {
		return false
	}
	if c, ours := s.waiting[pid]; ours {
		delete(s.waiting, pid)
		if c.fd >= 0 {
			unix.Close(c.fd) // leaves the epoll too
		}
		e := ended{at: time.Now()}
		if status.Signaled() {
			e.signal = int(status.Signal())
		} else {
			e.code = status.ExitStatus()
		}
		c.ch <- e
	}
	return true
}

// start starts a process.
func (s *spawner) start(c command) (started, error) {
	f := s.inside
	if c.outside {
		f = s.outside
	}
	type result struct {
		started
		err error
	}
	results := make(chan result, 1)
	f <- func() {
		p, err := s.fork(c)
		results <- result{p, err}
	}
	r := <-results
	if r.err != nil {
		return started{}, fmt.Errorf("start %s: %w", c.argv[0], r.err)
	}
	return r.started, nil
}

// fork starts a process from the calling thread.
func (s *spawner) fork(c command) (p started, err error) {
	path, err := resolve(c.argv[0], c.dir, c.env)
	if err != nil {
		return p, err
	}
	attr := &syscall.ProcAttr{Dir: c.dir, Env: c.env, Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	for _, f := range c.files {
		if f == nil {
			f = s.null
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	if c.user != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: c.user.UID, Gid: c.user.GID, Groups: c.user.Groups}
	}
	if c.terminal {
		near, far, err := openTerminal(c.user)
		if err != nil {
			return p, err
		}
		defer unix.Close(far)
		p.terminal = near
		attr.Files = []uintptr{uintptr(far), uintptr(far), uintptr(far)}
		attr.Sys.Setpgid, attr.Sys.Setsid, attr.Sys.Setctty, attr.Sys.Ctty = false, true, true, 0
	}
	back := func() error { return nil }
	if c.cgroup != nil {
		into, err := c.cgroup.CloneInto()
		if err != nil {
			return p, err
		}
		if into != nil {
			defer into.Close()
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(into.Fd())
		}
		if back, err = c.cgroup.EnterThread(); err != nil {
			return p, err
		}
	}
	ch := make(chan ended, 1)
	s.mu.Lock()
	if p.pid, err = syscall.ForkExec(path, c.argv, attr); err == nil {
		s.waiting[p.pid] = child{ch, s.watch(p.pid)}
	}
	s.mu.Unlock()
	if errors.Is(err, unix.ENOENT) && unix.Access(path, unix.X_OK) == nil {
		err = fmt.Errorf("%s is there, but not the interpreter or the loader that it names: %w", path, err)
	}
	if err == nil {
		// The supervisor is spared when memory runs out, what it starts is not.
		_ = os.WriteFile("/proc/"+strconv.Itoa(p.pid)+"/oom_score_adj", []byte(strconv.Itoa(s.oomScore)), 0)
	}
	if err = errors.Join(err, back()); err != nil {
		if p.pid > 0 {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		if p.terminal != nil {
			p.terminal.Close()
		}
		return started{}, err
	}
	p.done = ch
	return p, nil
}

// watch enters a process into deaths; -1 where the kernel cannot (before 5.3).
func (s *spawner) watch(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if unix.EpollCtl(s.deaths, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pid)}) != nil {
		unix.Close(fd)
		return -1
	}
	return fd
}

// resolve finds a program the way a shell would with the process's own search
// path; a name with a slash is left to the kernel, relative to dir.
func resolve(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	search := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	for _, folder := range filepath.SplitList(search) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		path := filepath.Join(folder, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %q: looked in %s", name, search)
}

// starter starts processes: the spawner, or the agent inside an image.
type starter interface {
	start(c command) (started, error)
}

// run runs a program to its end and gives its standard output.
func run(ctx context.Context, s starter, c command) ([]byte, error) {
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer outRead.Close()
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		outWrite.Close()
		return nil, err
	}
	defer errRead.Close()
	if c.user != nil { // it may open its own /dev/stdout
		_ = outWrite.Chown(int(c.user.UID), int(c.user.GID))
		_ = errWrite.Chown(int(c.user.UID), int(c.user.GID))
	}
	c.files = [3]*os.File{nil, outWrite, errWrite}
	p, err := s.start(c)
	outWrite.Close()
	errWrite.Close()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	var pumps sync.WaitGroup
	pumps.Go(func() { copyLimited(&stdout, outRead, nil) })
	pumps.Go(func() { copyLimited(&stderr, errRead, c.line) })
	var e ended
	select {
	case e = <-p.done:
	case <-ctx.Done():
		if p.pid > 0 {
			_ = unix.Kill(-p.pid, unix.SIGKILL)
		}
		e = <-p.done
	}
	// A grandchild that keeps the pipe open is not waited for.
	_ = outRead.SetReadDeadline(time.Now().Add(time.Second))
	_ = errRead.SetReadDeadline(time.Now().Add(time.Second))
	pumps.Wait()
	name := c.argv[0]
	switch {
	case ctx.Err() != nil:
		return stdout.Bytes(), fmt.Errorf("%s: %w", name, ctx.Err())
	case e.signal != 0:
		return stdout.Bytes(), fmt.Errorf("%s ended by signal %d", name, e.signal)
	case e.code != 0:
		return stdout.Bytes(), fmt.Errorf("%s ended with code %d: %s", name, e.code, lastLine(stderr.Bytes(), stdout.Bytes()))
	}
	return stdout.Bytes(), nil
}

const outputLimit, lineLimit = 64 << 10, 300

// copyLimited keeps the end of what comes, which tells of a fault.
func copyLimited(to *bytes.Buffer, from *os.File, each func(string)) {
	chunk := make([]byte, 4096)
	var line []byte
	for {
		n, err := from.Read(chunk)
		to.Write(chunk[:n])
		if extra := to.Len() - outputLimit; extra > 0 {
			to.Next(extra)
		}
		for _, b := range chunk[:n] {
			switch {
			case each == nil:
			case b != '\n' && b != '\r':
				if len(line) < lineLimit {
					line = append(line, b)
				}
			default:
				if text := strings.TrimSpace(string(line)); text != "" {
					each(text)
				}
				line = line[:0]
			}
		}
		if err != nil {
			return
		}
	}
}

// lastLine gives the last line that says something, of the first text that has
// one.
func lastLine(texts ...[]byte) string {
	for _, text := range texts {
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		if last := bytes.TrimSpace(lines[len(lines)-1]); len(last) > 0 {
			return string(last[:min(len(last), 300)])
		}
	}
	return "it wrote nothing"
}
