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
}

// spawner starts processes and waits for all children, orphans included.
type spawner struct {
	jobs     chan func()
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

// newSpawner makes the process the subreaper of its descendants. With isolate,
// what is started can gain no privileges by programs that are set-uid.
func newSpawner(isolate bool, oomScore int) (*spawner, error) {
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
	s := &spawner{jobs: make(chan func()), waiting: map[int]child{}, null: null, deaths: deaths, oomScore: oomScore}
	go func() {
		// The parent death signal comes when the thread that forked ends, so
		// one thread forks, and it ends with the process.
		runtime.LockOSThread()
		if isolate {
			_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // of this thread and what it forks
		}
		for job := range s.jobs {
			job()
		}
	}()
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

// start starts a process; how it ended comes once on the channel.
func (s *spawner) start(c command) (pid int, done <-chan ended, err error) {
	path, err := resolve(c.argv[0], c.dir, c.env)
	if err != nil {
		return 0, nil, err
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
	ch := make(chan ended, 1)
	result := make(chan error, 1)
	s.jobs <- func() {
		back := func() error { return nil }
		if c.cgroup != nil {
			into, err := c.cgroup.CloneInto()
			if err != nil {
				result <- err
				return
			}
			if into != nil {
				defer into.Close()
				attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(into.Fd())
			}
			if back, err = c.cgroup.EnterThread(); err != nil {
				result <- err
				return
			}
		}
		s.mu.Lock()
		var err error
		if pid, err = syscall.ForkExec(path, c.argv, attr); err == nil {
			s.waiting[pid] = child{ch, s.watch(pid)}
		}
		s.mu.Unlock()
		if err == nil {
			// The supervisor is spared when memory runs out, what it starts is not.
			_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(s.oomScore)), 0)
		}
		result <- errors.Join(err, back())
	}
	if err := <-result; err != nil {
		if pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return 0, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return pid, ch, nil
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

// run runs a program to its end and gives its standard output; see
// preflight.Runner.
func (s *spawner) run(ctx context.Context, argv, env []string, dir string) ([]byte, error) {
	return s.runAs(ctx, nil, argv, env, dir)
}

func (s *spawner) runAs(ctx context.Context, user *User, argv, env []string, dir string) ([]byte, error) {
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
	pid, done, err := s.start(command{argv: argv, env: env, dir: dir, files: [3]*os.File{nil, outWrite, errWrite}, user: user})
	outWrite.Close()
	errWrite.Close()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	var pumps sync.WaitGroup
	pumps.Go(func() { copyLimited(&stdout, outRead) })
	pumps.Go(func() { copyLimited(&stderr, errRead) })
	var e ended
	select {
	case e = <-done:
	case <-ctx.Done():
		_ = unix.Kill(-pid, unix.SIGKILL)
		e = <-done
	}
	// A grandchild that keeps the pipe open is not waited for.
	_ = outRead.SetReadDeadline(time.Now().Add(time.Second))
	_ = errRead.SetReadDeadline(time.Now().Add(time.Second))
	pumps.Wait()
	switch {
	case ctx.Err() != nil:
		return stdout.Bytes(), fmt.Errorf("%s: %w", argv[0], ctx.Err())
	case e.signal != 0:
		return stdout.Bytes(), fmt.Errorf("%s ended by signal %d", argv[0], e.signal)
	case e.code != 0:
		return stdout.Bytes(), fmt.Errorf("%s ended with code %d: %s", argv[0], e.code, lastLine(stderr.Bytes(), stdout.Bytes()))
	}
	return stdout.Bytes(), nil
}

const outputLimit = 64 << 10

func copyLimited(to *bytes.Buffer, from *os.File) {
	chunk := make([]byte, 4096)
	for {
		n, err := from.Read(chunk)
		if room := outputLimit - to.Len(); room > 0 {
			to.Write(chunk[:min(n, room)])
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
