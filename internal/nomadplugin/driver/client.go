package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Client is the caller's half of a task driver. Its errors are those of
// base.Client. Where Nomad's client would panic on an answer, it returns an
// error that says so.
type Client struct {
	*base.Client
	rpc driverpb.DriverClient
}

// NewClient calls the driver behind conn, whose process ends done.
func NewClient(done context.Context, conn grpc.ClientConnInterface) *Client {
	return &Client{Client: base.NewClient(done, conn), rpc: driverpb.NewDriverClient(conn)}
}

// optional takes a call that the plugin does not implement for done.
func (c *Client) optional(ctx context.Context, err error) error {
	err = c.Error(ctx, err)
	var call *wire.CallError
	if errors.As(err, &call) && call.Code == codes.Unimplemented {
		return nil
	}
	return err
}

// Init lets the driver prepare itself after SetConfig and after re-attachment.
func (c *Client) Init(ctx context.Context) error {
	_, err := c.rpc.Init(ctx, &driverpb.InitRequest{})
	return c.optional(ctx, err)
}

// Shutdown tells the driver that its process is about to be ended.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.rpc.Shutdown(ctx, &driverpb.ShutdownRequest{})
	return c.optional(ctx, err)
}

// TaskConfigSchema asks for the description of a task's config block.
func (c *Client) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	resp, err := c.rpc.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	return hclspec.FromProto(resp.GetSpec()), nil
}

// Capabilities asks what the driver can do.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	resp, err := c.rpc.Capabilities(ctx, &driverpb.CapabilitiesRequest{})
	if err != nil {
		return Capabilities{}, c.Error(ctx, err)
	}
	return capabilitiesFromProto(resp.GetCapabilities()), nil
}

// Fingerprint calls receive with every report until ctx ends, receive returns
// an error, or the driver ends the stream; the last is nil, which a driver
// should never do.
func (c *Client) Fingerprint(ctx context.Context, receive func(Fingerprint) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Fingerprint(ctx, &driverpb.FingerprintRequest{})
	return follow(ctx, c, stream, err, func(p *driverpb.FingerprintResponse) error {
		return receive(fingerprintFromProto(p))
	})
}

// TaskEvents calls receive with every event, and ends as Fingerprint does.
func (c *Client) TaskEvents(ctx context.Context, receive func(*TaskEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
	return follow(ctx, c, stream, err, func(p *driverpb.DriverTaskEvent) error {
		return receive(eventFromProto(p))
	})
}

// TaskStats calls receive with a task's usage, and ends as Fingerprint does.
func (c *Client) TaskStats(ctx context.Context, taskID string, interval time.Duration, receive func(*TaskUsage) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.TaskStats(ctx, &driverpb.TaskStatsRequest{
		TaskId: taskID, CollectionInterval: durationpb.New(interval),
	})
	return follow(ctx, c, stream, err, func(p *driverpb.TaskStatsResponse) error {
		if p.GetStats().GetAggResourceUsage() == nil {
			return fmt.Errorf("stats of task %q: without the aggregate usage, on which a nomad agent would panic", taskID)
		}
		return receive(usageFromProto(p.GetStats()))
	})
}

func follow[P any](ctx context.Context, c *Client, stream grpc.ServerStreamingClient[P], err error, receive func(*P) error) error {
	if err != nil {
		return c.Error(ctx, err)
	}
	err, ended := wire.Follow(stream, receive)
	if ended != nil {
		return c.Error(ctx, ended)
	}
	return err
}

// StartTask starts a task. A *base.RecoverableError may be tried again.
func (c *Client) StartTask(ctx context.Context, cfg *TaskConfig) (*TaskHandle, error) {
	resp, err := c.rpc.StartTask(ctx, &driverpb.StartTaskRequest{Task: taskConfigToProto(cfg)})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	return handleFromProto(resp.GetHandle()), nil
}

// RecoverTask makes a later process of the driver take up a task. As Nomad
// does, it leaves the request's own task id empty.
func (c *Client) RecoverTask(ctx context.Context, h *TaskHandle) error {
	_, err := c.rpc.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: handleToProto(h)})
	return c.Error(ctx, err)
}

// WaitTask waits for a task's end. An error of the call (among them ErrExited:
// recover the task and wait again) is returned; one that the driver reports
// with the result is in ExitResult.Err.
func (c *Client) WaitTask(ctx context.Context, taskID string) (*ExitResult, error) {
	resp, err := c.rpc.WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: taskID})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	r := exitFromProto(resp.GetResult())
	if r == nil {
		r = &ExitResult{}
	}
	if resp.GetErr() != "" {
		r.Err = errors.New(resp.GetErr())
	}
	return r, nil
}

// StopTask ends a task, by force after timeout.
func (c *Client) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error {
	_, err := c.rpc.StopTask(ctx, &driverpb.StopTaskRequest{
		TaskId: taskID, Timeout: durationpb.New(timeout), Signal: signal,
	})
	return c.Error(ctx, err)
}

// DestroyTask makes the driver forget a task.
func (c *Client) DestroyTask(ctx context.Context, taskID string, force bool) error {
	_, err := c.rpc.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: taskID, Force: force})
	return c.Error(ctx, err)
}

// InspectTask asks for a task's state.
func (c *Client) InspectTask(ctx context.Context, taskID string) (*TaskStatus, error) {
	resp, err := c.rpc.InspectTask(ctx, &driverpb.InspectTaskRequest{TaskId: taskID})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	if t := resp.GetTask(); t.GetStartedAt() == nil || t.GetCompletedAt() == nil || t.GetResult() == nil {
		return nil, fmt.Errorf("inspect task %q: without times or result, on which a nomad agent would panic", taskID)
	}
	return statusFromProto(resp), nil
}

// SignalTask delivers a signal or a free text.
func (c *Client) SignalTask(ctx context.Context, taskID, signal string) error {
	_, err := c.rpc.SignalTask(ctx, &driverpb.SignalTaskRequest{TaskId: taskID, Signal: signal})
	return c.Error(ctx, err)
}

// ExecOutput is what a command that ended wrote; the driver may have kept only
// the end of it.
type ExecOutput struct {
	Stdout, Stderr []byte
	Exit           ExitResult
}

// ExecCommand runs a command beside a task, without input, and waits for it;
// no timeout where it is 0.
func (c *Client) ExecCommand(ctx context.Context, taskID string, command []string, timeout time.Duration) (*ExecOutput, error) {
	resp, err := c.rpc.ExecTask(ctx, &driverpb.ExecTaskRequest{
		TaskId: taskID, Command: command, Timeout: durationpb.New(timeout),
	})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	if resp.GetResult() == nil {
		return nil, fmt.Errorf("exec in task %q: without a result, on which a nomad agent would panic", taskID)
	}
	return &ExecOutput{Stdout: resp.GetStdout(), Stderr: resp.GetStderr(), Exit: *exitFromProto(resp.GetResult())}, nil
}

// ExecTask runs a command beside a task with its input and outputs connected,
// as `nomad alloc exec` does. A Stdin that blocks keeps a goroutine until it
// returns.
func (c *Client) ExecTask(ctx context.Context, taskID string, req ExecRequest) (*ExitResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.ExecTaskStreaming(ctx)
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	send, end := wire.Gate(stream.Send)
	defer end()
	// A failing send shows itself in Recv.
	_ = send(&driverpb.ExecTaskStreamingRequest{Setup: &driverpb.ExecTaskStreamingRequest_Setup{
		TaskId: taskID, Command: req.Command, Tty: req.TTY,
	}})
	go sendInput(req.Stdin, send)
	if req.Resize != nil {
		go sendSizes(ctx, req.Resize, send)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("exec in task %q: the stream ended without a result", taskID)
		}
		if err != nil {
			return nil, c.Error(ctx, err)
		}
		if err := write(req.Stdout, m.GetStdout().GetData()); err != nil {
			return nil, fmt.Errorf("exec in task %q: write its output: %w", taskID, err)
		}
		if err := write(req.Stderr, m.GetStderr().GetData()); err != nil {
			return nil, fmt.Errorf("exec in task %q: write its error output: %w", taskID, err)
		}
		if m.GetExited() {
			if m.GetResult() == nil {
				return nil, fmt.Errorf("exec in task %q: ended without a result", taskID)
			}
			return exitFromProto(m.GetResult()), nil
		}
	}
}

func write(w io.Writer, data []byte) error {
	if w == nil || len(data) == 0 {
		return nil
	}
	_, err := w.Write(data)
	return err
}

func sendInput(stdin io.Reader, send func(*driverpb.ExecTaskStreamingRequest) error) {
	input := func(op *driverpb.ExecTaskStreamingIOOperation) error {
		return send(&driverpb.ExecTaskStreamingRequest{Stdin: op})
	}
	if stdin != nil {
		if _, err := io.Copy(streamWriter(input), stdin); err != nil {
			return
		}
	}
	_ = input(&driverpb.ExecTaskStreamingIOOperation{Close: true})
}

func sendSizes(ctx context.Context, sizes <-chan TerminalSize, send func(*driverpb.ExecTaskStreamingRequest) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			err := send(&driverpb.ExecTaskStreamingRequest{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{
				Height: int32(size.Height), Width: int32(size.Width),
			}})
			if err != nil {
				return
			}
		}
	}
}
