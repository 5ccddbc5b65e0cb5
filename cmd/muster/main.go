// Command muster is the planner's service and its command line. Everything is
// in planner/command and below; here are only the process's own things.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/nomad-muster/muster/planner/command"
)

func main() {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	hangup := make(chan struct{}, 1)
	go watch(signals, hangup, end)
	env := &command.Env{
		Context: ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Terminal: isatty.IsTerminal(os.Stdout.Fd()), ErrTerminal: isatty.IsTerminal(os.Stderr.Fd()), Width: columns(), Hangup: hangup, Parts: parts(),
	}
	os.Exit(command.Run(env, os.Args[1:]))
}

// watch ends the context at the first interrupt, and the program at the second.
func watch(signals <-chan os.Signal, hangup chan<- struct{}, end context.CancelCauseFunc) {
	ended := false
	for s := range signals {
		switch {
		case s == syscall.SIGHUP:
			select {
			case hangup <- struct{}{}:
			default: // one is waiting already
			}
		case ended:
			os.Exit(command.ExitInterrupted)
		case s == syscall.SIGTERM:
			ended = true
			end(command.ErrTerminated)
		default:
			ended = true
			end(command.ErrInterrupted)
		}
	}
}
