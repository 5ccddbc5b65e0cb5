// Package preflight finds out, before a gang is released, whether a member will
// be able to run: its program and interpreter, its cards, its address and port.
// It holds no card and starts no Python beyond a question for a path.
//
// Every finding says what is wrong, where it was looked for, and whether the
// node (Site) or the job is to blame.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/contract"
)

// Input is what is checked.
type Input struct {
	Config     contract.TaskConfig
	TaskDir    string
	Cards      []string // that the reservation handed over
	WantCards  int      // that the planner reserved; 0: not stated
	SearchPath string
	Python     string // of the plugin's configuration
	Interface  string // of the plugin's configuration; the task's own goes first
	NomadIP    string // that Nomad gave the task's ports
	Port       int    // labelled for the rendezvous; 0: one of the range
	PortLow    int
	PortHigh   int
	StateDir   string // must have room
	Place      Place
	NoProgram  bool // there is no place to look for interpreter and program in
}

// Result of a preflight. Port is kept until it is released.
type Result struct {
	Problems []contract.Problem
	Address  Address
	Port     *Port
	Ranks    int
	Python   Python
}

// minimalRoom is how many bytes must be free where the member writes its
// records and its ranks' small files.
const minimalRoom = 1 << 20

// Check looks at everything and gives all findings.
func Check(ctx context.Context, in Input) Result {
	var r Result
	problem := func(what string, site bool, format string, args ...any) {
		r.Problems = append(r.Problems, contract.Problem{What: what, Site: site, Text: fmt.Sprintf(format, args...)})
	}

	ranks, err := torchrun.Ranks(in.Config, len(in.Cards))
	if err != nil {
		problem("config", false, "%v", err)
	}
	r.Ranks = ranks
	if in.WantCards > 0 && in.WantCards != len(in.Cards) {
		problem("cards", true, "%d cards were reserved and the task was handed %d (%s): the device plugin may not have been ready when the task started", in.WantCards, len(in.Cards), strings.Join(in.Cards, ", "))
	}

	if !in.NoProgram {
		program(ctx, in, &r, problem)
	}

	iface := in.Config.Interface
	if iface == "" {
		iface = in.Interface
	}
	if r.Address, err = ChooseAddress(iface, in.NomadIP); err != nil {
		problem("address", true, "%v", err)
	}
	if r.Port, err = KeepPort(in.Port, in.PortLow, in.PortHigh, 0); err != nil {
		problem("port", true, "no port for the rendezvous: %v", err)
	}

	var stat unix.Statfs_t
	if err := unix.Statfs(in.StateDir, &stat); err != nil {
		problem("disk", true, "the member's folder %s: %v", in.StateDir, err)
	} else if free := stat.Bavail * uint64(stat.Bsize); free < minimalRoom {
		problem("disk", true, "%d bytes are free in %s; the member's records need %d", free, in.StateDir, minimalRoom)
	}
	if in.Config.Checkpoint != "" {
		if err := os.MkdirAll(in.Config.Checkpoint, 0o777); err != nil {
			problem("disk", true, "the checkpoint folder: %v", err)
		}
	}
	return r
}

// program checks interpreter, script, command.
func program(ctx context.Context, in Input, r *Result, problem func(string, bool, string, ...any)) {
	c := in.Config
	if len(c.Command) == 0 || c.Launcher == contract.LauncherTorchrun {
		named := c.Python
		if named == "" {
			named = in.Python
		}
		var err error
		r.Python, err = FindPython(ctx, in.Place, named, in.SearchPath)
		switch {
		case err != nil:
			problem("python", true, "%v", err)
		case c.Launcher == contract.LauncherTorchrun && r.Python.Torch == "":
			problem("python", true, `%s has no torch, which launcher = "torchrun" needs: name an interpreter that has it with python = "...", or use launcher = "ranks"`, r.Python.Path)
		}
	}
	if script := torchrun.ScriptPath(c, in.TaskDir); script != "" {
		if err := in.Place.readable(script); err != nil {
			problem("script", false, "script = %q: %v", c.Script, err)
		}
	}
	if len(c.Command) > 0 {
		if err := in.Place.runnable(c.Command[0], in.TaskDir, in.SearchPath); err != nil {
			problem("script", false, "command = %q: %v", c.Command[0], err)
		}
	}
}

func (p Place) readable(path string) error {
	mode, err := p.stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no %s; is it brought by an artifact or template block?", path)
	case err != nil:
		return err
	case mode.IsDir():
		return fmt.Errorf("%s is a folder", path)
	}
	return nil
}

func (p Place) runnable(name, dir, searchPath string) error {
	if !strings.Contains(name, "/") {
		_, err := p.lookPath(name, searchPath)
		return err
	}
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if _, err := p.stat(path); err != nil {
		return fmt.Errorf("there is no %s", path)
	}
	if !p.executable(path) {
		return fmt.Errorf("%s is not executable: chmod +x, or name its interpreter", path)
	}
	return nil
}
