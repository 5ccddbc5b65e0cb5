//go:build linux

package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// startPlanner starts muster agent and returns when it answers.
func (c *Cluster) startPlanner(ctx context.Context, extra string) error {
	dir := filepath.Join(c.Dir, "planner")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("prepare the planner: %w", err)
	}
	file := filepath.Join(dir, "muster.hcl")
	if err := os.WriteFile(file, []byte(c.plannerConfig(dir)+extra), 0o600); err != nil {
		return fmt.Errorf("prepare the planner: %w", err)
	}
	c.MusterAddr = plannerAddress(c.plannerPort)
	c.Planner = &Process{Name: "planner", Log: filepath.Join(dir, "muster.log"), path: c.Binaries.Muster, args: []string{"agent", "-config", file}, env: environment(), dir: dir}
	return c.StartPlanner(ctx)
}

// plannerConfig is the planner's configuration: everybody on this host may do
// everything, and the nodes' places are two levels.
func (c *Cluster) plannerConfig(dir string) string {
	return fmt.Sprintf(`
data_dir = %q
nomad {
  address = %q
}
consul {
  address = %q
}
api {
  listen    = "127.0.0.1:%d"
  anonymous = "operator"
}
token "nodes" {
  secret = %q
  role   = "reporter"
}
level "spine" {
  attribute = "meta.spine"
}
level "leaf" {
  attribute = "meta.leaf"
}
`, filepath.Join(dir, "data"), c.NomadAddr, c.ConsulAddr, c.plannerPort, reporterSecret)
}

// reporterSecret is the nodes' token, with which they may report their cards.
const reporterSecret = "of-a-trial-cluster-on-one-machine"

func plannerAddress(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// StartPlanner starts the planner, after Planner.Kill, and returns when it
// answers.
func (c *Cluster) StartPlanner(ctx context.Context) error {
	if err := c.Planner.start(); err != nil {
		return err
	}
	return c.Planner.wait(ctx, "start the planner", func(ctx context.Context) error {
		return call(ctx, "GET", c.MusterAddr+"/v1/health", nil, nil)
	})
}

// StartConsul starts Consul, after Consul.Kill, and returns when it answers.
func (c *Cluster) StartConsul(ctx context.Context) error {
	if err := c.Consul.start(); err != nil {
		return err
	}
	return c.Consul.wait(ctx, "start Consul", func(ctx context.Context) error { return consulReady(ctx, c.ConsulAddr) })
}

// Env is what a command needs of its environment to talk to this cluster.
func (c *Cluster) Env() []string {
	return []string{"NOMAD_ADDR=" + c.NomadAddr, "CONSUL_HTTP_ADDR=" + c.ConsulAddr, "MUSTER_ADDR=" + c.MusterAddr}
}

// Result of a command.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a program against this cluster and gives its output and exit code;
// an error only where it could not be run or did not end before ctx.
func (c *Cluster) Run(ctx context.Context, program string, args ...string) (Result, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = environment(c.Env()...), &out, &errs, c.Dir
	err := cmd.Run()
	r := Result{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	if err != nil {
		return r, fmt.Errorf("run %s %v: %w\n%s", program, args, err, errs.String())
	}
	return r, nil
}

// Muster runs our command line.
func (c *Cluster) Muster(ctx context.Context, args ...string) (Result, error) {
	return c.Run(ctx, c.Binaries.Muster, args...)
}
