package driver

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// execDrain is how long the output of a command that ended is waited for: what
// it left running in the background may keep it open.
const execDrain = time.Second

// ExecTask runs a command where the ranks run: with their environment, files,
// devices, cgroup and user, in their image where they have one. With ctx the
// command ends.
func (p *Plugin) ExecTask(ctx context.Context, id string, req driver.ExecRequest) (*driver.ExitResult, error) {
	t, err := p.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.done:
		return nil, errors.New("the task is over")
	default:
	}
	session, err := shim.StartExec(t.start.Socket(), shim.Exec{Argv: req.Command, Terminal: req.TTY})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	stop := context.AfterFunc(ctx, session.Close)
	defer stop()

	outputs := make(chan struct{}, 2)
	output := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		outputs <- struct{}{}
	}
	left := len(session.Files)
	if req.TTY {
		terminal := session.Files[0]
		go output(req.Stdout, terminal)
		go func() {
			_, _ = io.Copy(terminal, req.Stdin)
			_, _ = terminal.Write([]byte{endOfTransmission})
		}()
		go resize(ctx, session, req.Resize)
	} else {
		left = 2
		go output(req.Stdout, session.Files[1])
		go output(req.Stderr, session.Files[2])
		go func() {
			_, _ = io.Copy(session.Files[0], req.Stdin)
			session.Files[0].Close()
		}()
	}
	code, signal, err := session.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	for late := time.After(execDrain); left > 0; left-- {
		select {
		case <-outputs:
		case <-late:
			left = 1
		}
	}
	if signal != 0 {
		return &driver.ExitResult{ExitCode: 128 + signal, Signal: signal}, nil
	}
	return &driver.ExitResult{ExitCode: code}, nil
}

// endOfTransmission is what a terminal's user types to end the input.
const endOfTransmission = 4

// resize passes the sizes of the user's terminal on until ctx ends or there are
// no more.
func resize(ctx context.Context, session *shim.Session, sizes <-chan driver.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok || session.Resize(size.Height, size.Width) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
