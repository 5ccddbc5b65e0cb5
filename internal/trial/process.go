//go:build linux

package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one piece of the cluster that runs as a process, in a session of
// its own. It can be killed and started again with the same arguments; its
// output is appended to one log file.
type Process struct {
	Name string
	Log  string // path of the log file

	path string
	args []string
	env  []string
	dir  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been waited for
	err  error
}

// start runs the process; it is an error if it already runs.
func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		select {
		case <-p.done:
		default:
			return fmt.Errorf("start %s: it runs already, as process %d", p.Name, p.cmd.Process.Pid)
		}
	}
	if err := os.MkdirAll(filepath.Dir(p.Log), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := fromLastingThread(cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.err = cmd, done, nil
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// Pid of the process, 0 where it does not run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		return 0
	}
	select {
	case <-p.done:
		return 0
	default:
		return p.cmd.Process.Pid
	}
}

// exited is closed when the process, as last started, is over.
func (p *Process) exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Kill ends this one process at once, as a crash would: its children stay. It
// returns when the process is gone.
func (p *Process) Kill() error {
	pid := p.Pid()
	if pid == 0 {
		return fmt.Errorf("kill %s: it does not run", p.Name)
	}
	done := p.exited()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-done
	return nil
}

// stop asks the process to leave, waits for the grace, and kills what is left
// of its session's first process group.
func (p *Process) stop(grace time.Duration) {
	pid := p.Pid()
	if pid == 0 {
		return
	}
	done := p.exited()
	_ = syscall.Kill(pid, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	<-done
}

// wait polls ready until it is true, the process is gone or ctx ends.
func (p *Process) wait(ctx context.Context, what string, ready func(context.Context) error) error {
	done := p.exited()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = ready(ctx); last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
			return fmt.Errorf("%s: %s ended before (%v); the end of %s:\n%s", what, p.Name, p.result(), p.Log, p.Tail(15))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w); the end of %s:\n%s", what, ctx.Err(), last, p.Log, p.Tail(15))
		}
	}
}

func (p *Process) result() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// Tail gives the last lines of the log.
func (p *Process) Tail(lines int) string {
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 64 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// environment is what the cluster's processes get of ours: nothing that points
// at another Nomad or Consul, or that would change how Go programs run.
func environment(extra ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "NOMAD_"), strings.HasPrefix(name, "CONSUL_"), strings.HasPrefix(name, "VAULT_"), strings.HasPrefix(name, "MUSTER_"):
		default:
			env = append(env, v)
		}
	}
	return append(env, extra...)
}
