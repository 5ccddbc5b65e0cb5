package nomadsim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// rawProcess is a process of the built-in raw_exec: in a session of its own, so that it outlives the agent and can be
// signalled with all that it started.
type rawProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (l *liveClient) startRaw(t *taskRun, lt *liveTask, spec *wire.Task, env taskEnv, stdout, stderr string) {
	fail := func(err error) {
		t.startFailed(lt.start, false, taskstate.DriverFailed(l.c.clock.Now(), fmt.Sprintf("failed to launch command with executor: %v", err)))
	}
	command, _ := spec.Config["command"].(string)
	if command == "" {
		t.startFailed(lt.start, false, taskstate.Invalid(l.c.clock.Now(), `1 error occurred:
	* failed to parse config: 
	* Missing required argument: The argument "command" is required, but no definition was found.

`))
		return
	}
	var args []string
	list, _ := spec.Config["args"].([]any)
	for _, a := range list {
		s, ok := a.(string)
		if !ok {
			s = fmt.Sprint(a)
		}
		args = append(args, interpolate(s, env.vars))
	}
	path, err := lookCommand(interpolate(command, env.vars), lt.dirs, env.env["PATH"])
	if err != nil {
		fail(err)
		return
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = lt.dirs.task, envList(env.env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i, p := range []string{stdout, stderr} {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err != nil {
			fail(err)
			return
		}
		files = append(files, f)
		if i == 0 {
			cmd.Stdout = f
		} else {
			cmd.Stderr = f
		}
	}
	if err := cmd.Start(); err != nil {
		fail(err)
		return
	}
	p := &rawProcess{cmd: cmd, done: make(chan struct{})}
	lt.proc = p
	t.started(lt.start)
	go func() {
		err := cmd.Wait()
		close(p.done)
		p.kill() // what it left behind
		l.ended(t, lt, exitOf(cmd, err))
	}()
}

// lookCommand finds a command in the task's folder, then in the path.
func lookCommand(command string, dirs taskDirs, path string) (string, error) {
	for _, p := range []string{filepath.Join(dirs.local, command), filepath.Join(dirs.task, command)} {
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && !filepath.IsAbs(command) {
			return p, nil
		}
	}
	if strings.ContainsRune(command, '/') {
		return command, nil
	}
	for _, d := range filepath.SplitList(path) {
		p := filepath.Join(d, command)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("failed to find binary %q", command)
}

func exitOf(cmd *exec.Cmd, err error) taskstate.Exit {
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		return taskstate.Exit{Code: -1, Err: err.Error()}
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		return taskstate.Exit{Code: cmd.ProcessState.ExitCode()}
	}
	if status.Signaled() {
		return taskstate.Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return taskstate.Exit{Code: status.ExitStatus()}
}

func (p *rawProcess) signal(name string) error {
	s := unix.SignalNum(name)
	if s == 0 {
		return fmt.Errorf("Signal %s is not supported", name)
	}
	if p == nil {
		return errors.New("task not found")
	}
	return syscall.Kill(p.cmd.Process.Pid, s)
}

func (p *rawProcess) stop(name string, timeout time.Duration) {
	if p == nil {
		return
	}
	s := unix.SignalNum(name)
	if s == 0 {
		s = syscall.SIGINT
	}
	syscall.Kill(p.cmd.Process.Pid, s)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends the process with all of its session that stayed in its group.
func (p *rawProcess) kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
