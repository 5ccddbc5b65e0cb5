package main

import (
	"context"
	"errors"

	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/command"
)

// runDev runs the trial cluster; its example's result is the program's.
func runDev(ctx context.Context, d command.Dev) error {
	code, err := trial.Dev(ctx, trial.DevOptions{Mode: d.Kind, Once: d.Once, Nodes: d.Nodes, Cards: d.Cards, Job: d.Job, Dir: d.Dir, Stdout: d.Stdout, Stderr: d.Stderr})
	if err == nil && code == 0 {
		return nil
	}
	if code == 0 {
		code = command.ExitError
	}
	return &command.Exit{Code: code, Err: errors.Join(err)}
}
