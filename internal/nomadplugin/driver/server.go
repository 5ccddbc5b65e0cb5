package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Serve serves a task driver to the Nomad agent that started this process,
// until it is told to stop. log may be nil.
func Serve(p Plugin, log hclog.Logger) {
	if log == nil {
		log = base.NewLogger(p.Info().Name)
	}
	base.Serve(p, log, func(s grpc.ServiceRegistrar) { Register(s, p, log) })
}

// Register puts the driver service of p on a gRPC server made with
// wire.ServerOptions; the base service is base.Register's.
func Register(s grpc.ServiceRegistrar, p Plugin, log hclog.Logger) {
	driverpb.RegisterDriverServer(s, &server{plugin: p, log: log})
}

// server leaves CreateNetwork and DestroyNetwork unimplemented: Nomad calls
// them only for a driver that says it creates networks.
type server struct {
	driverpb.UnimplementedDriverServer
	plugin Plugin
	log    hclog.Logger
}

func (s *server) Init(ctx context.Context, _ *driverpb.InitRequest) (*driverpb.InitResponse, error) {
	if p, ok := s.plugin.(Initer); ok {
		if err := p.Init(ctx); err != nil {
			return nil, err
		}
	}
	return &driverpb.InitResponse{}, nil
}

func (s *server) Shutdown(ctx context.Context, _ *driverpb.ShutdownRequest) (*driverpb.ShutdownResponse, error) {
	if p, ok := s.plugin.(Shutdowner); ok {
		if err := p.Shutdown(ctx); err != nil {
			return nil, err
		}
	}
	return &driverpb.ShutdownResponse{}, nil
}

func (s *server) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	spec := s.plugin.TaskConfigSchema()
	if err := hclspec.Validate(spec); err != nil {
		return nil, err
	}
	return &driverpb.TaskConfigSchemaResponse{Spec: hclspec.ToProto(spec)}, nil
}

func (s *server) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	p, err := capabilitiesToProto(s.plugin.Capabilities())
	if err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	return &driverpb.CapabilitiesResponse{Capabilities: p}, nil
}

// Fingerprint ends only with its context: Nomad calls again at once, without
// any pause.
func (s *server) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	ctx := stream.Context()
	var last Fingerprint
	send := func(fp Fingerprint) error {
		p, err := fingerprintToProto(fp)
		if err == nil {
			err = wire.Marshals(p)
		}
		if err != nil {
			return fmt.Errorf("fingerprint is not sent: %w", err)
		}
		if err := stream.Send(p); err != nil {
			return err
		}
		last = fingerprintFromProto(p) // a copy: the driver may go on with its own
		return nil
	}
	wire.KeepOpen(ctx, s.log, "Fingerprint", send, s.plugin.Fingerprint, func(reason error) error {
		return send(Fingerprint{
			Attributes: last.Attributes, Health: HealthUnhealthy, Description: "fingerprinting fails: " + reason.Error(),
		})
	})
	return ctx.Err()
}

// StartTask answers with a usable handle or a gRPC error; Nomad looks at
// nothing else. A task whose handle cannot be used is ended again: Nomad would
// never stop it, and would start it a second time after a restart.
func (s *server) StartTask(_ context.Context, req *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	cfg := taskConfigFromProto(req.GetTask())
	if cfg == nil || cfg.ID == "" {
		return nil, wire.Invalid("start task: no task id")
	}
	handle, err := s.plugin.StartTask(cfg)
	if err != nil {
		return nil, err
	}
	err = handle.validateFor(cfg)
	resp := &driverpb.StartTaskResponse{Handle: handleToProto(handle)}
	if err == nil {
		err = wire.Marshals(resp)
	}
	if err != nil {
		err = fmt.Errorf("start task %q: the driver started it with an unusable handle: %w", cfg.ID, err)
		if destroyErr := s.plugin.DestroyTask(cfg.ID, true); destroyErr != nil {
			return nil, fmt.Errorf("%w; it may still run, since ending it failed too: %w", err, destroyErr)
		}
		return nil, err
	}
	return resp, nil
}

// RecoverTask takes the id from the handle: Nomad leaves the request's own
// empty.
func (s *server) RecoverTask(_ context.Context, req *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	handle := handleFromProto(req.GetHandle())
	if handle == nil || handle.Config == nil || handle.Config.ID == "" {
		return nil, wire.Invalid("recover task: the handle names no task")
	}
	if err := s.plugin.RecoverTask(handle); err != nil {
		return nil, err
	}
	return &driverpb.RecoverTaskResponse{}, nil
}

// WaitTask never answers without a known exit: Nomad would read exit code 0.
func (s *server) WaitTask(ctx context.Context, req *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	r, err := s.plugin.WaitTask(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	p, err := exitToProto(r)
	if err != nil {
		return nil, fmt.Errorf("wait for task %q: the driver's answer: %w", req.GetTaskId(), err)
	}
	resp := &driverpb.WaitTaskResponse{Result: p}
	if r.Err != nil {
		resp.Err = wire.ErrorText(r.Err)
	}
	return resp, nil
}

func (s *server) StopTask(_ context.Context, req *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	timeout, err := duration(req.GetTimeout())
	if err != nil {
		return nil, wire.Invalid("stop task %q: timeout: %v", req.GetTaskId(), err)
	}
	err = s.plugin.StopTask(req.GetTaskId(), timeout, req.GetSignal())
	if err != nil && !errors.Is(err, ErrTaskNotFound) {
		return nil, err
	}
	return &driverpb.StopTaskResponse{}, nil
}

func (s *server) DestroyTask(_ context.Context, req *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	err := s.plugin.DestroyTask(req.GetTaskId(), req.GetForce())
	if err != nil && !errors.Is(err, ErrTaskNotFound) {
		return nil, err
	}
	return &driverpb.DestroyTaskResponse{}, nil
}

func (s *server) InspectTask(_ context.Context, req *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	status, err := s.plugin.InspectTask(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	resp, err := statusToProto(status)
	if err != nil {
		return nil, fmt.Errorf("inspect task %q: the driver's answer: %w", req.GetTaskId(), err)
	}
	return resp, nil
}

// TaskStats stays open after a clean return: the task is over, and Nomad ends
// the call when it has noticed.
func (s *server) TaskStats(req *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	ctx := stream.Context()
	interval, err := duration(req.GetCollectionInterval())
	if err != nil {
		return wire.Invalid("stats of task %q: interval: %v", req.GetTaskId(), err)
	}
	if interval == 0 {
		interval = time.Second
	}
	send, end := wire.Gate(func(u *TaskUsage) error {
		p, err := usageToProto(req.GetTaskId(), u, time.Now())
		if err == nil {
			err = wire.Marshals(p)
		}
		if err != nil {
			return fmt.Errorf("usage of task %q is not sent: %w", req.GetTaskId(), err)
		}
		return stream.Send(p)
	})
	defer end()
	if err := s.plugin.TaskStats(ctx, req.GetTaskId(), interval, send); err != nil {
		return err
	}
	end()
	<-ctx.Done()
	return ctx.Err()
}

// TaskEvents ends only with its context: Nomad calls again at once, without any
// pause.
func (s *server) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	ctx := stream.Context()
	send := func(e *TaskEvent) error {
		p, err := eventToProto(e, time.Now())
		if err == nil {
			err = wire.Marshals(p)
		}
		if err != nil {
			return fmt.Errorf("task event is not sent: %w", err)
		}
		return stream.Send(p)
	}
	wire.KeepOpen(ctx, s.log, "TaskEvents", send, s.plugin.TaskEvents, nil)
	return ctx.Err()
}

func (s *server) SignalTask(_ context.Context, req *driverpb.SignalTaskRequest) (*driverpb.SignalTaskResponse, error) {
	if err := s.plugin.SignalTask(req.GetTaskId(), req.GetSignal()); err != nil {
		return nil, err
	}
	return &driverpb.SignalTaskResponse{}, nil
}

// duration is 0 where the message has none.
func duration(p *durationpb.Duration) (time.Duration, error) {
	if p == nil {
		return 0, nil
	}
	if err := p.CheckValid(); err != nil {
		return 0, err
	}
	if d := p.AsDuration(); d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%v is negative", p.AsDuration())
}
