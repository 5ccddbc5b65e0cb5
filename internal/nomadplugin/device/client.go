package device

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Client is the caller's half of a device plugin. Its errors are those of
// base.Client.
type Client struct {
	*base.Client
	rpc devicepb.DevicePluginClient
}

// NewClient calls the device plugin behind conn, whose process ends done.
func NewClient(done context.Context, conn grpc.ClientConnInterface) *Client {
	return &Client{Client: base.NewClient(done, conn), rpc: devicepb.NewDevicePluginClient(conn)}
}

// Fingerprint calls receive with every list that the plugin reports, until ctx
// ends, receive returns an error, or the plugin ends the stream; the last is
// nil, which a plugin should never do.
func (c *Client) Fingerprint(ctx context.Context, receive func([]Group) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Fingerprint(ctx, &devicepb.FingerprintRequest{})
	return follow(ctx, c, stream, err, func(p *devicepb.FingerprintResponse) error {
		return receive(groupsFromProto(p))
	})
}

// Reserve asks what a task needs to use these devices.
func (c *Client) Reserve(ctx context.Context, ids []string) (*Reservation, error) {
	resp, err := c.rpc.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: ids})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	if resp.GetContainerRes() == nil {
		return nil, fmt.Errorf("reserve devices %q: the plugin answered without a reservation, on which a nomad agent would panic", ids)
	}
	return reservationFromProto(resp.GetContainerRes()), nil
}

// Stats calls receive with the statistics of every interval, and ends as
// Fingerprint does.
func (c *Client) Stats(ctx context.Context, interval time.Duration, receive func([]GroupStats) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(interval)})
	return follow(ctx, c, stream, err, func(p *devicepb.StatsResponse) error {
		return receive(statsFromProto(p))
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
