package device

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Serve serves a device plugin to the Nomad agent that started this process,
// until it is told to stop. log may be nil.
func Serve(p Plugin, log hclog.Logger) {
	if log == nil {
		log = base.NewLogger(p.Info().Name)
	}
	base.Serve(p, log, func(s grpc.ServiceRegistrar) { Register(s, p, log) })
}

// Register puts the device service of p on a gRPC server made with
// wire.ServerOptions; the base service is base.Register's.
func Register(s grpc.ServiceRegistrar, p Plugin, log hclog.Logger) {
	devicepb.RegisterDevicePluginServer(s, &server{plugin: p, log: log})
}

type server struct {
	devicepb.UnsafeDevicePluginServer
	plugin Plugin
	log    hclog.Logger
}

// Fingerprint ends only with its context: Nomad drops the plugin's devices for
// good at the end of the stream.
func (s *server) Fingerprint(_ *devicepb.FingerprintRequest, stream grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	ctx := stream.Context()
	var last []Group
	send := func(groups []Group) error {
		if err := ValidateGroups(groups); err != nil {
			return fmt.Errorf("fingerprint is not sent: %w", err)
		}
		resp := groupsToProto(groups)
		if err := wire.Marshals(resp); err != nil {
			return fmt.Errorf("fingerprint is not sent: %w", err)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		last = groupsFromProto(resp) // a copy: the plugin may go on with its own
		return nil
	}
	wire.KeepOpen(ctx, s.log, "Fingerprint", send, s.plugin.Fingerprint, func(reason error) error {
		return send(unhealthy(last, "fingerprinting fails: "+reason.Error()))
	})
	return ctx.Err()
}

// unhealthy marks every device.
func unhealthy(groups []Group, reason string) []Group {
	for _, g := range groups {
		for i := range g.Devices {
			g.Devices[i].Healthy = false
			g.Devices[i].HealthDescription = reason
		}
	}
	return groups
}

// Reserve always answers with a reservation or an error: Nomad's agent panics
// on a missing one.
func (s *server) Reserve(ctx context.Context, req *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	ids := req.GetDeviceIds()
	if len(ids) == 0 {
		return nil, wire.Invalid("reserve devices: no device ids")
	}
	r, err := s.plugin.Reserve(ctx, ids)
	if err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("reserve devices %q: the plugin's answer is invalid: %w", ids, err)
	}
	return &devicepb.ReserveResponse{ContainerRes: r.toProto()}, nil
}

// defaultInterval is for a request without one.
const defaultInterval = time.Second

// Stats ends only with its context: after a clean end Nomad shows the last
// values for ever.
func (s *server) Stats(req *devicepb.StatsRequest, stream grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	ctx := stream.Context()
	interval := defaultInterval
	if d := req.GetCollectionInterval(); d.IsValid() && d.AsDuration() > 0 {
		interval = d.AsDuration()
	}
	send := func(groups []GroupStats) error {
		if err := ValidateStats(groups); err != nil {
			return fmt.Errorf("stats are not sent: %w", err)
		}
		resp := statsToProto(groups, time.Now())
		if err := wire.Marshals(resp); err != nil {
			return fmt.Errorf("stats are not sent: %w", err)
		}
		return stream.Send(resp)
	}
	report := func(ctx context.Context, send func([]GroupStats) error) error {
		return s.plugin.Stats(ctx, interval, send)
	}
	wire.KeepOpen(ctx, s.log, "Stats", send, report, nil)
	return ctx.Err()
}
