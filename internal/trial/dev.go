//go:build linux

package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/jobspecs"
)

// Modes of Dev.
const (
	DevAuto = "auto" // a real Nomad where there is one and it can run, else the simulated one
	DevReal = "real"
	DevSim  = "sim"
)

// DevOptions say how the trial cluster is shown.
type DevOptions struct {
	Mode         string // DevAuto where empty
	Nodes, Cards int    // 0: four nodes, four cards each
	// Job is the file of the job that is followed; empty: an example.
	Job string
	// Dir as in Options.
	Dir string
	// Once ends it with the result of the gang that was followed.
	Once bool
	// Stdout gets what a person reads, and the progress view of the followed
	// gang.
	Stdout, Stderr io.Writer
}

// The examples that Dev submits: one is followed, the others run beside it.
const (
	exampleTorch   = "multi-node"
	exampleNoTorch = "ranks"
	exampleBeside  = "several-groups"
)

// Dev brings a trial cluster up, submits examples and follows one of them to
// its end; then it stays until ctx ends, unless Once. It returns the exit code
// for the program: 0, the followed gang's where Once is set and it did not
// complete, or 1 with an error.
func Dev(ctx context.Context, o DevOptions) (code int, err error) {
	say := func(format string, args ...any) { fmt.Fprintf(o.Stdout, "==> "+format+"\n", args...) }
	began := time.Now()
	kind, binaries, err := devBinaries(ctx, o, say)
	if err != nil {
		return 1, err
	}
	followed := exampleTorch
	python, looked := FindTorch(ctx)
	if python != "" {
		say("torch: %s", python)
	} else {
		followed = exampleNoTorch
		say("no Python with torch (looked at %s; MUSTER_PYTHON names another): the ranks are Go programs", strings.Join(looked, ", "))
	}
	if os.Geteuid() != 0 {
		say("not root: tasks run as this user and get no cgroups (no memory limit or devices of their own; what they leave behind is found by its environment)")
	}
	nodes, cards := cmp.Or(o.Nodes, 4), cmp.Or(o.Cards, 4)
	c, err := Start(ctx, Options{Kind: kind, Nodes: Nodes(nodes, cards), Dir: o.Dir, Binaries: binaries, Python: python, Progress: func(line string) { say("%s", line) }})
	if err != nil {
		return 1, err
	}
	defer func() {
		say("taking the cluster down")
		err = errors.Join(err, c.Close())
	}()
	say("up after %s; logs are in %s", time.Since(began).Round(100*time.Millisecond), c.Dir)
	say("in another terminal:\n      export %s\n      PATH=%s:$PATH", strings.Join(c.Env(), " "), filepath.Dir(binaries.Muster))

	if code, err = c.demonstrate(ctx, o, followed, say); err != nil {
		return 1, err
	}
	if o.Once {
		return code, nil
	}
	say("the cluster stays up; API at %s; end with Ctrl-C", c.MusterAddr)
	select {
	case <-ctx.Done():
	case <-c.Planner.exited():
		return 1, fmt.Errorf("the planner ended by itself: the end of %s:\n%s", c.Planner.Log, c.Planner.Tail(20))
	}
	return 0, nil
}

// devBinaries decides which Nomad is used and finds all programs.
func devBinaries(ctx context.Context, o DevOptions, say func(string, ...any)) (Kind, Binaries, error) {
	nomad, err := FindNomad()
	if err != nil {
		return "", Binaries{}, err
	}
	kind := Simulated
	switch o.Mode {
	case DevReal:
		if nomad == "" {
			return "", Binaries{}, fmt.Errorf("find Nomad: not in NOMAD_BIN, and no nomad on the PATH (%s); MUSTER_DEV=sim needs none", os.Getenv("PATH"))
		}
		kind = Real
	case DevSim:
	case DevAuto, "":
		switch {
		case nomad == "":
			say("no nomad in NOMAD_BIN or on the PATH: Nomad is simulated")
		case os.Geteuid() != 0:
			say("%s is there, but its clients need root and this user is not: Nomad is simulated", nomad)
		default:
			kind = Real
		}
	default:
		return "", Binaries{}, fmt.Errorf("MUSTER_DEV=%s: it is %s, %s or %s", o.Mode, DevReal, DevSim, DevAuto)
	}
	b, err := Beside()
	if err != nil { // run from the source: build what is missing
		root, rootErr := ModuleRoot()
		if rootErr != nil {
			return "", Binaries{}, errors.Join(err, rootErr)
		}
		say("building Muster's programs")
		if b, err = Build(ctx, root, filepath.Join(root, "bin")); err != nil {
			return "", Binaries{}, err
		}
	}
	b.Nomad = nomad
	b.Consul, err = FindConsul(ctx, cacheDir(), func(line string) { say("%s", line) })
	return kind, b, err
}

// cacheDir is where a built Consul is kept: with the source, else in the
// user's cache.
func cacheDir() string {
	if root, err := ModuleRoot(); err == nil {
		return filepath.Join(root, ".bin")
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "muster")
}

// demonstrate submits what there is to be seen and follows one gang to its
// end; it returns the exit code of the command that followed.
func (c *Cluster) demonstrate(ctx context.Context, o DevOptions, example string, say func(string, ...any)) (int, error) {
	if o.Job != "" {
		file, err := filepath.Abs(o.Job)
		if err != nil {
			return 1, fmt.Errorf("follow %s: %w", o.Job, err)
		}
		say("following %s", o.Job)
		return c.follow(ctx, o, file)
	}
	beside, err := c.writeExample(exampleBeside)
	if err != nil {
		return 1, err
	}
	if r, err := c.Muster(ctx, "job", "run", "-detach", beside); err != nil || r.Code != 0 {
		return 1, fmt.Errorf("submit example %s: %w", exampleBeside, errors.Join(err, errors.New(r.Stderr)))
	}
	file, err := c.writeExample(example)
	if err != nil {
		return 1, err
	}
	say("submitted jobspecs/%s.hcl; following jobspecs/%s.hcl", exampleBeside, example)
	code, err := c.follow(ctx, o, file)
	if err == nil {
		err = c.showOutput(ctx, o.Stdout, example)
	}
	return code, err
}

// writeExample puts an example into the cluster's folder.
func (c *Cluster) writeExample(name string) (string, error) {
	text, err := jobspecs.Files.ReadFile(name + ".hcl")
	if err != nil {
		return "", fmt.Errorf("read example %s: %w", name, err)
	}
	path := filepath.Join(c.Dir, name+".hcl")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return "", fmt.Errorf("write example %s: %w", name, err)
	}
	return path, nil
}

// follow submits a job as a person would and shows its stages until it ends.
func (c *Cluster) follow(ctx context.Context, o DevOptions, file string) (int, error) {
	run := exec.CommandContext(ctx, c.Binaries.Muster, "job", "run", file)
	run.Env, run.Stdout, run.Stderr, run.Dir = environment(c.Env()...), o.Stdout, o.Stderr, c.Dir
	err := run.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return 1, fmt.Errorf("follow %s: %w", file, errors.Join(ctx.Err(), err))
	}
	return run.ProcessState.ExitCode(), nil
}

// showOutput prints the last lines of what each member of a job wrote.
func (c *Cluster) showOutput(ctx context.Context, to io.Writer, job string) error {
	type member struct {
		ID, Name, NodeName string
		TaskStates         map[string]struct{}
	}
	var allocs []member
	if err := call(ctx, "GET", c.NomadAddr+"/v1/job/"+job+"/allocations", nil, &allocs); err != nil {
		return fmt.Errorf("show the output of %s: %w", job, err)
	}
	slices.SortFunc(allocs, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	for _, a := range allocs {
		for task := range a.TaskStates {
			text, err := request(ctx, "GET", fmt.Sprintf("%s/v1/client/fs/logs/%s?task=%s&type=stdout&plain=true&origin=end&offset=2000", c.NomadAddr, a.ID, task), nil)
			if err != nil {
				return fmt.Errorf("show the output of %s on %s: %w", a.Name, a.NodeName, err)
			}
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			fmt.Fprintf(to, "    %s on %s: %s\n", a.Name, a.NodeName, lines[len(lines)-1])
		}
	}
	return nil
}
