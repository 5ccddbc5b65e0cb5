package base

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Client is the caller's half of the base service. Errors are ctx's own,
// ErrExited, a *RecoverableError, or what the plugin answered.
type Client struct {
	rpc  basepb.BasePluginClient
	done context.Context
}

// NewClient calls the plugin behind conn, whose process ends done.
func NewClient(done context.Context, conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: basepb.NewBasePluginClient(conn), done: done}
}

// Error makes the caller's error of an answer; device.Client and driver.Client
// use it as well.
func (c *Client) Error(ctx context.Context, err error) error {
	err, recoverable := wire.FromStatus(ctx, c.done, err)
	if recoverable {
		return &RecoverableError{Err: err}
	}
	return err
}

// Info asks who the plugin is and which API versions it speaks.
func (c *Client) Info(ctx context.Context) (info Info, apiVersions []string, err error) {
	resp, err := c.rpc.PluginInfo(ctx, &basepb.PluginInfoRequest{})
	if err != nil {
		return Info{}, nil, c.Error(ctx, err)
	}
	return Info{
		Type:    Type(resp.GetType()),
		Name:    resp.GetName(),
		Version: resp.GetPluginVersion(),
	}, resp.GetPluginApiVersions(), nil
}

// ConfigSchema asks for the description of the plugin's configuration; nil
// where it takes none.
func (c *Client) ConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	resp, err := c.rpc.ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		return nil, c.Error(ctx, err)
	}
	return hclspec.FromProto(resp.GetSpec()), nil
}

// SetConfig hands the plugin its configuration.
func (c *Client) SetConfig(ctx context.Context, config Config) error {
	_, err := c.rpc.SetConfig(ctx, configToProto(config))
	return c.Error(ctx, err)
}
