package command_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/command"
)

func noAgent(context.Context, command.Agent) error { return nil }
func noDev(context.Context, command.Dev) error     { return nil }

// serveAgent runs muster agent with parts and gives its log and exit code.
func serveAgent(t *testing.T, ctx context.Context, parts command.Parts, hangup <-chan struct{}, lines func(string), args ...string) (int, string) {
	t.Helper()
	out, errs := &tee{}, &tee{lines: lines}
	env := &command.Env{Context: ctx, Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Getenv: func(string) string { return "" }, Now: time.Now, Hangup: hangup, Parts: parts}
	code := command.Run(env, args)
	must.Eq(t, "", out.text())
	return code, errs.text()
}

func TestAgent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "muster.hcl")
	write := func(content string) { must.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write("queue \"a\" {\n}\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	hangup := make(chan struct{})
	kept := make(chan struct{}, 1)
	var queues []string
	pid := filepath.Join(t.TempDir(), "pid")
	run := func(ctx context.Context, a command.Agent) error {
		text, err := os.ReadFile(pid)
		must.NoError(t, err)
		must.Eq(t, fmt.Sprintln(os.Getpid()), string(text))
		must.True(t, a.Log.Enabled(ctx, slog.LevelDebug))
		name := func() string { return string(a.Config.Current().Core.Queues[0].Name) }
		queues = append(queues, name())
		write("queue \"b\" {\n weight = -1\n}\n")
		hangup <- struct{}{}
		<-kept
		queues = append(queues, name())
		write("api {\n listen = \"127.0.0.1:1\"\n}\nqueue \"b\" {\n}\n")
		hangup <- struct{}{}
		<-a.Reloaded
		queues = append(queues, name())
		cancel(command.ErrTerminated)
		<-ctx.Done()
		return ctx.Err()
	}
	lines := func(line string) {
		if strings.Contains(line, "old one stays in force") {
			kept <- struct{}{}
		}
	}
	code, log := serveAgent(t, ctx, command.Parts{Agent: run}, hangup, lines, "agent", "-config", path, "-pid-file", pid, "-log-level=debug")
	must.FileNotExists(t, pid)
	must.Eq(t, 0, code, must.Sprint("to be ended is what an agent is for: ", log))
	must.Eq(t, []string{"a", "a", "b"}, queues)
	must.StrContains(t, log, "weight = -1")
	must.StrContains(t, log, "nobody can use the API")
	must.StrContains(t, log, "settings=api")
}

func TestAgentFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "muster.hcl")
	must.NoError(t, os.WriteFile(path, []byte("log_json = true\nque \"a\" {\n}\n"), 0o600))
	code, log := serveAgent(t, t.Context(), command.Parts{Agent: noAgent}, nil, nil, "agent", "-config="+path)
	must.Eq(t, command.ExitRejected, code)
	must.StrContains(t, log, "muster.hcl:2: Unsupported block type")
	code, log = serveAgent(t, t.Context(), command.Parts{Agent: func(context.Context, command.Agent) error { return errors.New("address in use") }}, nil, nil, "agent")
	must.Eq(t, command.ExitError, code)
	must.StrContains(t, log, "run the planner: address in use")
	code, log = serveAgent(t, t.Context(), command.Parts{Agent: noAgent}, nil, nil, "agent", "-log-level=loud")
	must.Eq(t, command.ExitError, code)
	must.StrContains(t, log, "-log-level=loud")
	code, _ = serveAgent(t, t.Context(), command.Parts{Agent: noAgent}, nil, nil, "agent", "-config=/gone")
	must.Eq(t, command.ExitError, code)
}

func TestDev(t *testing.T) {
	t.Parallel()
	var got command.Dev
	parts := command.Parts{Dev: func(_ context.Context, d command.Dev) error { got = d; return nil }}
	code, _ := serveAgent(t, t.Context(), parts, nil, nil, "dev", "-nomad=sim", "-once", "-nodes=2", "-cards=8")
	must.Eq(t, 0, code)
	must.Eq(t, "sim 2 8 true", strings.Join([]string{got.Kind, "2", "8", "true"}, " "))
	must.True(t, got.Once)
	must.Eq(t, 2, got.Nodes)
	must.Eq(t, 8, got.Cards)
	code, log := serveAgent(t, t.Context(), parts, nil, nil, "dev", "-nomad=other")
	must.Eq(t, command.ExitError, code)
	must.StrContains(t, log, "none of auto, sim, real")
	parts.Dev = func(context.Context, command.Dev) error {
		return &command.Exit{Code: command.ExitEnded, Err: errors.New("gang failed")}
	}
	code, _ = serveAgent(t, t.Context(), parts, nil, nil, "dev")
	must.Eq(t, command.ExitEnded, code)
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	s := scene(t)
	good := filepath.Join(t.TempDir(), "good.hcl")
	must.NoError(t, os.WriteFile(good, []byte("queue \"a\" {\n  guaranteed = { H800 = 4 }\n}\n"), 0o600))
	bad := filepath.Join(t.TempDir(), "bad.hcl")
	must.NoError(t, os.WriteFile(bad, []byte("queue \"a\" {\n  guaranteed = { H800 = -4 }\n  parent = \"x\"\n}\n"), 0o600))

	r := s.run("config", "validate", good)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.Eq(t, "Nothing is wrong with the configuration: 1 file, 1 queue.\n", r.stdout)
	r = s.run("config", "validate", "-json", good)
	must.Eq(t, any(true), r.document(t)["valid"])
	r = s.run("config", "validate", "-json", bad)
	must.Eq(t, command.ExitRejected, r.code)
	must.Len(t, 2, r.document(t)["error"].(map[string]any)["faults"].([]any))
	must.StrContains(t, r.stderr, "bad.hcl:2: ")
	must.StrContains(t, r.stderr, "bad.hcl:3: ")
	r = s.run("config", "validate", "-cluster", good)
	must.Eq(t, command.ExitRejected, r.code)
	must.StrContains(t, r.stderr, `good.hcl:2: queue "a": guaranteed names the model "H800", which no node has; nodes have NVIDIA H100 80GB HBM3`)
}
