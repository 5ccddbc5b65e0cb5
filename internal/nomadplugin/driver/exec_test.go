package driver_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/plugintest"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
)

var canExec = driver.Capabilities{Exec: true}

// Input, both outputs, terminal sizes and the exit code cross the stream.
func TestExecStreams(t *testing.T) {
	t.Parallel()
	client := plugintest.Driver(t, &fake{capabilities: canExec, exec: func(ctx context.Context, id string, req driver.ExecRequest) (*driver.ExitResult, error) {
		must.Eq(t, "a/b/c", id)
		must.Eq(t, []string{"sh", "-c", "x"}, req.Command)
		must.True(t, req.TTY)
		size := <-req.Resize
		fmt.Fprintf(req.Stderr, "%dx%d", size.Width, size.Height)
		data, err := io.ReadAll(req.Stdin)
		must.NoError(t, err)
		if _, err := req.Stdout.Write(bytes.ToUpper(data)); err != nil {
			return nil, err
		}
		return &driver.ExitResult{ExitCode: 7, Signal: 2, OOMKilled: true}, nil
	}})
	input := strings.Repeat("all reduce ", 50_000) // more than one message
	sizes := make(chan driver.TerminalSize, 1)
	sizes <- driver.TerminalSize{Height: 24, Width: 80}
	var stdout, stderr bytes.Buffer
	exit, err := client.ExecTask(t.Context(), "a/b/c", driver.ExecRequest{
		Command: []string{"sh", "-c", "x"}, TTY: true, Resize: sizes, Stdin: strings.NewReader(input), Stdout: &stdout, Stderr: &stderr,
	})
	must.NoError(t, err)
	must.Eq(t, driver.ExitResult{ExitCode: 7, Signal: 2, OOMKilled: true}, *exit)
	must.True(t, strings.ToUpper(input) == stdout.String())
	must.Eq(t, "80x24", stderr.String())
}

// A conversation: each line is answered before the next is sent.
func TestExecIsInteractive(t *testing.T) {
	t.Parallel()
	client := plugintest.Driver(t, &fake{capabilities: canExec, exec: func(_ context.Context, _ string, req driver.ExecRequest) (*driver.ExitResult, error) {
		for lines := bufio.NewScanner(req.Stdin); lines.Scan(); {
			fmt.Fprintf(req.Stdout, "%s?\n", lines.Text())
		}
		return &driver.ExitResult{}, nil
	}})
	input, typed := io.Pipe()
	shown, output := io.Pipe()
	ended := make(chan error)
	go func() {
		_, err := client.ExecTask(t.Context(), "a", driver.ExecRequest{Command: []string{"cat"}, Stdin: input, Stdout: output})
		ended <- err
	}()
	answers := bufio.NewReader(shown)
	for _, line := range []string{"one", "two"} {
		fmt.Fprintln(typed, line)
		answer, err := answers.ReadString('\n')
		must.NoError(t, err)
		must.Eq(t, line+"?\n", answer)
	}
	must.NoError(t, typed.Close())
	must.NoError(t, <-ended)
}

// A command that ends without reading its input ends the call all the same.
func TestExecIgnoringInput(t *testing.T) {
	t.Parallel()
	client := plugintest.Driver(t, &fake{capabilities: canExec, exec: func(context.Context, string, driver.ExecRequest) (*driver.ExitResult, error) {
		return &driver.ExitResult{ExitCode: 1}, nil
	}})
	exit, err := client.ExecTask(t.Context(), "a", driver.ExecRequest{Command: []string{"false"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<20))})
	must.NoError(t, err)
	must.Eq(t, 1, exit.ExitCode)
}

// A caller that goes away ends the command.
func TestExecEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	running := make(chan struct{})
	client := plugintest.Driver(t, &fake{capabilities: canExec, exec: func(ctx context.Context, _ string, req driver.ExecRequest) (*driver.ExitResult, error) {
		close(running)
		_, err := io.ReadAll(req.Stdin) // its input breaks
		<-ctx.Done()                    // and its context ends
		ended <- err
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	input, typed := io.Pipe()
	defer typed.Close()
	go func() { <-running; cancel() }()
	_, err := client.ExecTask(ctx, "a", driver.ExecRequest{Command: []string{"cat"}, Stdin: input})
	must.ErrorIs(t, err, context.Canceled)
	must.Error(t, <-ended)
}

// Nomad's agent panics on an exec without a result, and its command line takes
// a stream without one for success.
func TestExecIsNeverWithoutResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer *driver.ExitResult
		err    error
		want   string
	}{
		"nil":            {nil, nil, "no exit result"},
		"error":          {nil, errors.New("no such task"), "no such task"},
		"unknown exit":   {&driver.ExitResult{Err: errors.New("shim is lost")}, nil, "shim is lost"},
		"too large code": {&driver.ExitResult{ExitCode: 1 << 32}, nil, "does not fit"},
		"panic":          {nil, nil, "panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{capabilities: canExec, exec: func(context.Context, string, driver.ExecRequest) (*driver.ExitResult, error) { return c.answer, c.err }}
			if name == "panic" {
				f.exec = nil
			}
			client := plugintest.Driver(t, f)
			_, err := client.ExecCommand(t.Context(), "a", []string{"true"}, 0)
			must.ErrorContains(t, err, c.want)
			_, err = client.ExecTask(t.Context(), "a", driver.ExecRequest{Command: []string{"true"}})
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestExecRefusals(t *testing.T) {
	t.Parallel()
	none := raw(t, &fake{})
	_, err := none.ExecTask(t.Context(), &driverpb.ExecTaskRequest{TaskId: "a", Command: []string{"true"}})
	must.Eq(t, codes.Unimplemented, status.Code(err))

	client := raw(t, &fake{capabilities: canExec})
	for name, req := range map[string]*driverpb.ExecTaskRequest{
		"no command":       {},
		"empty command":    {Command: []string{""}},
		"negative timeout": {Command: []string{"true"}, Timeout: durationpb.New(-1)},
	} {
		_, err := client.ExecTask(t.Context(), req)
		must.Eq(t, codes.InvalidArgument, status.Code(err), must.Sprint(name))
	}
	for name, first := range map[string]*driverpb.ExecTaskStreamingRequest{
		"no setup":   {},
		"no command": {Setup: &driverpb.ExecTaskStreamingRequest_Setup{}},
	} {
		stream, err := client.ExecTaskStreaming(t.Context())
		must.NoError(t, err)
		must.NoError(t, stream.Send(first))
		_, err = stream.Recv()
		must.Eq(t, codes.InvalidArgument, status.Code(err), must.Sprint(name))
	}
	stream, err := client.ExecTaskStreaming(t.Context())
	must.NoError(t, err)
	must.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	must.ErrorContains(t, err, "no first message")
}

// Nomad's agent hands the error to its user in a websocket's close frame, which
// holds 123 bytes.
func TestExecErrorsFitACloseFrame(t *testing.T) {
	t.Parallel()
	client := raw(t, &fake{capabilities: canExec, exec: func(context.Context, string, driver.ExecRequest) (*driver.ExitResult, error) {
		return nil, errors.New("no such file: " + strings.Repeat("ü", 500))
	}})
	stream, err := client.ExecTaskStreaming(t.Context())
	must.NoError(t, err)
	must.NoError(t, stream.Send(&driverpb.ExecTaskStreamingRequest{Setup: &driverpb.ExecTaskStreamingRequest_Setup{Command: []string{"x"}}}))
	_, err = stream.Recv()
	must.StrContains(t, err.Error(), "no such file: üü")
	must.LessEq(t, 123, len(err.Error()))
	must.True(t, utf8.ValidString(err.Error()))
}

// Heartbeats, which Nomad's agent sends while nobody types, are no input.
func TestExecHeartbeats(t *testing.T) {
	t.Parallel()
	client := raw(t, &fake{capabilities: canExec, exec: func(_ context.Context, _ string, req driver.ExecRequest) (*driver.ExitResult, error) {
		_, err := io.Copy(req.Stdout, req.Stdin)
		return &driver.ExitResult{}, err
	}})
	stream, err := client.ExecTaskStreaming(t.Context())
	must.NoError(t, err)
	for _, m := range []*driverpb.ExecTaskStreamingRequest{
		{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: "a", Command: []string{"cat"}}}, {},
		{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: []byte("x")}}, {}, {},
		{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: []byte("y"), Close: true}}, {},
	} {
		must.NoError(t, stream.Send(m))
	}
	var got []byte
	for {
		m, err := stream.Recv()
		must.NoError(t, err)
		got = append(got, m.GetStdout().GetData()...)
		if m.GetExited() {
			must.NotNil(t, m.GetResult())
			break
		}
	}
	must.Eq(t, "xy", string(got))
	_, err = stream.Recv()
	must.ErrorIs(t, err, io.EOF)
}

// A script check keeps the end of a long output, and ends at its timeout.
func TestExecCommand(t *testing.T) {
	t.Parallel()
	client := plugintest.Driver(t, &fake{capabilities: canExec, exec: func(ctx context.Context, _ string, req driver.ExecRequest) (*driver.ExitResult, error) {
		if req.Command[0] == "sleep" {
			<-ctx.Done()
			return nil, fmt.Errorf("killed: %w", ctx.Err())
		}
		for i := range 20_000 {
			fmt.Fprintf(req.Stdout, "line %d\n", i)
		}
		fmt.Fprint(req.Stderr, strings.Repeat("e", 100<<10))
		rest, err := io.ReadAll(req.Stdin)
		must.SliceEmpty(t, rest)
		return &driver.ExitResult{ExitCode: 2}, err
	}})
	out, err := client.ExecCommand(t.Context(), "a", []string{"check"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, 2, out.Exit.ExitCode)
	must.True(t, bytes.HasSuffix(out.Stdout, []byte("\nline 19999\n")))
	must.Eq(t, 64<<10, len(out.Stdout))
	must.Eq(t, 64<<10, len(out.Stderr))
	_, err = client.ExecCommand(t.Context(), "a", []string{"sleep"}, time.Millisecond)
	must.ErrorContains(t, err, "killed: context deadline exceeded")
}
