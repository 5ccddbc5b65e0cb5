package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// maxExecOutput is what ExecTask keeps of each output, in bytes: the end, which
// Nomad shows for a failed script check. ExecTaskStreaming has no limit.
const maxExecOutput = 64 << 10

// maxExecError is in bytes. Nomad's agent hands the error of a streamed exec to
// its user in a websocket's close frame of 123 bytes, "rpc error: code =
// FailedPrecondition desc = " included; a longer one reads "unexpected EOF" there.
const maxExecError = 78

func (s *server) checkExec(command []string) error {
	if !s.plugin.Capabilities().Exec {
		return wire.Unimplemented("the driver offers no exec")
	}
	if len(command) == 0 || command[0] == "" {
		return wire.Invalid("exec without a command")
	}
	return nil
}

// ExecTask always answers with a result or an error: Nomad's agent panics on a
// missing one.
func (s *server) ExecTask(ctx context.Context, req *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	if err := s.checkExec(req.GetCommand()); err != nil {
		return nil, err
	}
	timeout, err := duration(req.GetTimeout())
	if err != nil {
		return nil, wire.Invalid("exec timeout: %v", err)
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	stdout, stderr := &tail{limit: maxExecOutput}, &tail{limit: maxExecOutput}
	r, err := s.plugin.ExecTask(ctx, req.GetTaskId(), ExecRequest{
		Command: req.GetCommand(), Stdin: bytes.NewReader(nil), Stdout: stdout, Stderr: stderr,
	})
	exit, err := execResult(r, err)
	if err != nil {
		return nil, err
	}
	return &driverpb.ExecTaskResponse{Stdout: stdout.bytes(), Stderr: stderr.bytes(), Result: exit}, nil
}

func execResult(r *ExitResult, err error) (*driverpb.ExitResult, error) {
	if err == nil && r != nil {
		err = r.Err
	}
	if err != nil {
		return nil, err
	}
	exit, err := exitToProto(r)
	if err != nil {
		return nil, fmt.Errorf("the driver's answer to exec: %w", err)
	}
	return exit, nil
}

// ExecTaskStreaming connects the driver's readers and writers with the stream.
// Its errors are short; the log has them whole.
func (s *server) ExecTaskStreaming(stream grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]) error {
	err := wire.Safely("exec", s.log, func() error { return s.execStreaming(stream) })
	if err == nil || len(wire.ErrorText(err)) <= maxExecError {
		return err
	}
	s.log.Error("exec failed", "error", err)
	return errors.New(strings.ToValidUTF8(wire.ErrorText(err)[:maxExecError-3], "") + "...")
}

func (s *server) execStreaming(stream grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("exec: no first message: %w", err)
	}
	setup := first.GetSetup()
	if setup == nil {
		return wire.Invalid("exec: the first message is not a setup")
	}
	if err := s.checkExec(setup.GetCommand()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)

	send, end := wire.Gate(stream.Send)
	defer end()
	stdin, stdinWriter := io.Pipe()
	defer stdin.CloseWithError(errors.New("the command has ended"))
	resize := make(chan TerminalSize, 1)
	go func() { // ends with the stream, which ends with this call
		stdinWriter.CloseWithError(receiveInput(ctx, stream.Recv, stdinWriter, resize, cancel))
	}()

	r, err := s.plugin.ExecTask(ctx, setup.GetTaskId(), ExecRequest{
		Command: setup.GetCommand(), TTY: setup.GetTty(), Stdin: stdin, Resize: resize,
		Stdout: streamWriter(func(op *driverpb.ExecTaskStreamingIOOperation) error {
			return send(&driverpb.ExecTaskStreamingResponse{Stdout: op})
		}),
		Stderr: streamWriter(func(op *driverpb.ExecTaskStreamingIOOperation) error {
			return send(&driverpb.ExecTaskStreamingResponse{Stderr: op})
		}),
	})
	exit, err := execResult(r, err)
	if err != nil {
		return err
	}
	closed := &driverpb.ExecTaskStreamingIOOperation{Close: true}
	for _, m := range []*driverpb.ExecTaskStreamingResponse{
		{Stdout: closed}, {Stderr: closed}, {Exited: true, Result: exit},
	} {
		if err := send(m); err != nil {
			return err
		}
	}
	return nil
}

// receiveInput carries input and terminal sizes to the command until the
// caller has no more; the returned error is what a reader of the input gets
// (nil: end of file). A broken stream ends the command.
func receiveInput(
	ctx context.Context, receive func() (*driverpb.ExecTaskStreamingRequest, error),
	stdin io.WriteCloser, resize chan TerminalSize, abort context.CancelCauseFunc,
) error {
	open := true
	for {
		m, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			abort(err)
			return err
		}
		if size := m.GetTtySize(); size != nil {
			latest(resize, TerminalSize{Height: int(size.GetHeight()), Width: int(size.GetWidth())})
		}
		if op := m.GetStdin(); op != nil && open {
			if _, err := stdin.Write(op.GetData()); err != nil {
				open = false // the command reads no more: go on for sizes and the end
			} else if op.GetClose() {
				open = false
				stdin.Close()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// latest puts v into a channel of capacity 1, in the place of an older value
// that nobody took.
func latest[T any](ch chan T, v T) {
	for {
		select {
		case ch <- v:
			return
		default:
		}
		select {
		case <-ch:
		default:
		}
	}
}

// streamWriter sends what is written.
type streamWriter func(*driverpb.ExecTaskStreamingIOOperation) error

func (w streamWriter) Write(p []byte) (int, error) {
	const part = 64 << 10
	for n := 0; n < len(p); n += part {
		data := p[n:min(n+part, len(p))]
		if err := w(&driverpb.ExecTaskStreamingIOOperation{Data: data}); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu    sync.Mutex
	limit int
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-t.limit):]...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf...)
}
