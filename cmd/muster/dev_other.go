//go:build !linux

package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/nomad-muster/muster/planner/command"
)

func runDev(context.Context, command.Dev) error {
	return fmt.Errorf("the trial cluster needs Linux, since Nomad's plugins and their ranks are Linux processes, and this is %s", runtime.GOOS)
}
