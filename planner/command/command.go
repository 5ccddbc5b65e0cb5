// Package command is the muster command line: every command, its flags, its
// output and its exit code.
//
// # Conventions
//
// Nomad's: single-dash flags, which may stand before or after the arguments;
// -json and -t for programs; -namespace, or NOMAD_NAMESPACE, or "default".
// Commands that only look take a short name: an exact match wins, else a
// prefix that a single gang has. Commands that change something take exact
// names only.
//
// # Output
//
// Results go to stdout; progress, warnings and errors go to stderr. With -json
// stdout is exactly one JSON document, also when the command fails:
// {"error": {...}}. Colour only on a terminal, and not where NO_COLOR is set.
//
// # Exit codes
//
//	0    what was asked for has happened
//	1    it could not be done: wrong use, a file that cannot be read, nothing of that name
//	2    not now: the gang would have to wait (job plan)
//	3    the gang ended, but is not complete: failed or cancelled
//	4    rejected: faults in what was given, a gang that can never run, or not permitted
//	5    the time that -timeout allows is over; the gang goes on
//	6    no contact: the planner, or Nomad behind it, cannot be reached
//	130  interrupted by Ctrl-C; the gang goes on (143: by SIGTERM)
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/cli"

	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

// Exit codes; see the package comment.
const (
	ExitDone        = 0
	ExitError       = 1
	ExitNotNow      = 2
	ExitEnded       = 3
	ExitRejected    = 4
	ExitTimeout     = 5
	ExitNoContact   = 6
	ExitInterrupted = 130
	ExitTerminated  = 143
)

// ErrInterrupted and ErrTerminated are the causes with which Env.Context ends.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrTerminated  = errors.New("terminated")
)

// Env is what a command touches of the world.
type Env struct {
	Context context.Context // ends with ErrInterrupted or ErrTerminated as its cause
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Now     func() time.Time
	// Terminal and ErrTerminal tell whether stdout and stderr are one; Width is
	// its width in columns, 0 where not known.
	Terminal, ErrTerminal bool
	Width                 int
	// Hangup delivers a SIGHUP.
	Hangup <-chan struct{}
	Parts  Parts
}

// Parts are the pieces that need more than the API: cmd/muster has them, and
// what is nil is not in this build.
type Parts struct {
	// Agent runs the planner until the context ends.
	Agent func(ctx context.Context, a Agent) error
	// Dev runs the trial cluster until the context ends, or until its gang has
	// ended where Once is set.
	Dev func(ctx context.Context, d Dev) error
	// More are further commands, by the words that call them.
	More map[string]Command
}

// Agent is what the planner's service is started with.
type Agent struct {
	Config *config.Live
	Log    *slog.Logger
	// Reloaded delivers after each reload that changed the configuration.
	Reloaded <-chan struct{}
}

// Dev is what a trial cluster is started with.
type Dev struct {
	Kind   string // auto, sim or real
	Once   bool   // end with the gang's result
	Nodes  int
	Cards  int    // of each node
	Job    string // file to submit; empty: an example
	Dir    string // for its files; empty: a temporary one
	Stdout io.Writer
	Stderr io.Writer
}

// Exit is an error with an exit code of its own.
type Exit struct {
	Code int
	Err  error // nil: everything is said
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// exitCode is the code that an error ends the program with.
func exitCode(err error) int {
	var exit *Exit
	var refused *view.Error
	var contact *client.ContactError
	var faults config.Faults
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &exit):
		return exit.Code
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	case errors.Is(err, ErrTerminated):
		return ExitTerminated
	case errors.As(err, &contact):
		return ExitNoContact
	case errors.As(err, &faults):
		return ExitRejected
	case errors.As(err, &refused):
		switch refused.Code {
		case view.CodeRejected, view.CodeForbidden, view.CodeUnauthorized:
			return ExitRejected
		case view.CodeUnavailable:
			return ExitNoContact
		}
	}
	return ExitError
}

// Command is one command.
type Command struct {
	Synopsis string // one line for the list
	Usage    string // what follows "Usage: muster "
	About    string // prose of the help
	// API: it talks to a planner, and has the flags for that.
	API bool
	// Data: it has -json and -t.
	Data bool
	// Flags declares its own flags.
	Flags func(f *Flags)
	// Run does it with what is left of the arguments.
	Run func(c *Call, args []string) error
	// Least and Most arguments; Most < 0: any number.
	Least, Most int
}

// Run runs a command line without the program's name and gives its exit code.
func Run(env *Env, args []string) int {
	commands := all(env.Parts)
	args = normal(args)
	if err := misuse(commands, args); err != nil {
		return misused(env, err, args)
	}
	factories := map[string]cli.CommandFactory{}
	for name, c := range commands {
		factories[name] = func() (cli.Command, error) { return &runner{env: env, name: name, command: c}, nil }
	}
	for name, text := range parents {
		factories[name] = func() (cli.Command, error) { return &parent{text: text}, nil }
	}
	program := &cli.CLI{Name: "muster", Version: buildinfo.String(), Args: args, Commands: factories, HelpFunc: helpAll(commands),
		HelpWriter: env.Stdout, ErrorWriter: env.Stderr, Autocomplete: false}
	code, err := program.Run()
	if err != nil {
		fmt.Fprintln(env.Stderr, "muster:", err)
		return ExitError
	}
	if code == 127 || code == cli.RunResultHelp { // the library's codes for no command, and for one that only leads to others
		return ExitError
	}
	return code
}

// normal turns "muster version" and "muster help X" into the forms that the
// library knows.
func normal(args []string) []string {
	if len(args) > 0 && args[0] == "help" {
		return append(slices.Clone(args[1:]), "-h")
	}
	return args
}

// all are the commands of this build by the words that call them.
func all(parts Parts) map[string]Command {
	out := map[string]Command{
		"job run": jobRun(), "job plan": jobPlan(), "job stop": jobStop(), "job validate": jobValidate(),
		"queue": queueList(), "queue status": queueStatus(), "status": status(), "why": why(), "eta": eta(), "nodes": nodes(), "node clear": nodeClear(),
		"cards": cards(), "card status": cardStatus(), "card confirm": cardConfirm(), "card clear": cardClear(), "card note": cardNote(), "card breaker": cardBreaker(),
		"config validate": configValidate(), "snapshot": snapshot(), "replay": replay(), "usage": usage(), "top": top(), "ledger backup": ledgerBackup(), "ledger verify": ledgerVerify(), "demand": demand(), "simulate": simulateCommand(), "report": makeReport(), "version": version(),
	}
	if parts.Agent != nil {
		out["agent"] = agent(parts.Agent)
	}
	if parts.Dev != nil {
		out["dev"] = dev(parts.Dev)
	}
	for name, c := range parts.More {
		out[name] = c
	}
	return out
}

// Names are the commands of a build, in alphabetical order.
func Names(parts Parts) []string { return slices.Sorted(maps.Keys(all(parts))) }

// parents are words that only lead to commands.
var parents = map[string]string{
	"card":   "Look at a card, and lead it from its fault to its release.",
	"node":   "Work with one node.",
	"job":    "Submit jobs, ask what would happen to them, stop them.",
	"config": "Work with the planner's configuration.",
	"ledger": "Check the books of usage, and copy them.",
}

type parent struct{ text string }

func (p *parent) Help() string     { return p.text }
func (p *parent) Synopsis() string { return p.text }
func (p *parent) Run([]string) int { return cli.RunResultHelp }

// runner makes a Command one of the library's.
type runner struct {
	env     *Env
	name    string
	command Command
}

func (r *runner) Synopsis() string { return r.command.Synopsis }

func (r *runner) Run(args []string) int {
	call := &Call{Env: r.env, command: r.command}
	rest, err := call.parse(args)
	if errors.Is(err, errHelp) {
		fmt.Fprintln(r.env.Stdout, r.Help())
		return ExitDone
	}
	if err == nil {
		err = r.command.Run(call, rest)
	} else {
		err = fmt.Errorf("muster %s: %w; muster %s -h shows how it is used", r.name, err, r.name)
	}
	return call.finish(err)
}

// helpAll is the list of commands.
func helpAll(commands map[string]Command) cli.HelpFunc {
	return func(map[string]cli.CommandFactory) string {
		names := slices.Sorted(maps.Keys(commands))
		width := 0
		for _, name := range names {
			width = max(width, len(name))
		}
		var b strings.Builder
		b.WriteString("Usage: muster <command> [options] [arguments]\n\n" +
			"Gang scheduling for HashiCorp Nomad. muster <command> -h tells more of a command.\n\nCommands:\n")
		for _, name := range names {
			fmt.Fprintf(&b, "  %-*s  %s\n", width, name, commands[name].Synopsis)
		}
		b.WriteString("\nExit codes: 0 done, 1 error, 2 not now, 3 ended but not complete, 4 rejected, 5 timeout, 6 no contact, 130 interrupted.\n" +
			"MUSTER_ADDR names the planner (default " + client.DefaultAddress + "), MUSTER_TOKEN the token.")
		return b.String()
	}
}
