package driver

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// ExecTask runs a command with the task's environment, folder and user.
func (p *Plugin) ExecTask(ctx context.Context, id string, req driver.ExecRequest) (*driver.ExitResult, error) {
	t, err := p.find(id)
	if err != nil {
		return nil, err
	}
	config, _ := p.settings()
	spec, err := p.specOf(config, t.cfg)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Dir = filepath.Join(t.cfg.AllocDir, t.cfg.Name)
	for name, value := range spec.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = req.Stdin, req.Stdout, req.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if u := spec.User; u != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status := exit.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return &driver.ExitResult{ExitCode: 128 + int(status.Signal()), Signal: int(status.Signal())}, nil
		}
		return &driver.ExitResult{ExitCode: status.ExitStatus()}, nil
	}
	if err != nil {
		return nil, err
	}
	return &driver.ExitResult{}, nil
}
