package base

import (
	"context"
	"math"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Register puts the base service of p on a gRPC server made with
// wire.ServerOptions.
func Register(s grpc.ServiceRegistrar, p Plugin, log hclog.Logger) {
	basepb.RegisterBasePluginServer(s, &server{plugin: p, log: log})
}

type server struct {
	basepb.UnsafeBasePluginServer
	plugin Plugin
	log    hclog.Logger
}

func (s *server) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	info := s.plugin.Info()
	if err := info.Validate(); err != nil {
		return nil, err
	}
	return &basepb.PluginInfoResponse{
		Type:              basepb.PluginType(info.Type),
		Name:              info.Name,
		PluginVersion:     info.Version,
		PluginApiVersions: []string{APIVersion},
	}, nil
}

func (s *server) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	spec := s.plugin.ConfigSchema()
	if spec == nil {
		return &basepb.ConfigSchemaResponse{}, nil
	}
	if err := hclspec.Validate(spec); err != nil {
		return nil, err
	}
	return &basepb.ConfigSchemaResponse{Spec: hclspec.ToProto(spec)}, nil
}

func (s *server) SetConfig(_ context.Context, req *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	if v := req.GetPluginApiVersion(); v != APIVersion {
		return nil, wire.Invalid("plugin API version %q: this plugin speaks %s", v, APIVersion)
	}
	if err := s.plugin.SetConfig(configFromProto(req)); err != nil {
		return nil, err
	}
	return &basepb.SetConfigResponse{}, nil
}

func configFromProto(req *basepb.SetConfigRequest) Config {
	c := Config{MsgPack: req.GetMsgpackConfig(), APIVersion: req.GetPluginApiVersion()}
	if nomad := req.GetNomadConfig(); nomad != nil {
		c.Agent = &Agent{
			ClientMinPort: uint(nomad.GetDriver().GetClientMinPort()),
			ClientMaxPort: uint(nomad.GetDriver().GetClientMaxPort()),
		}
	}
	return c
}

func configToProto(c Config) *basepb.SetConfigRequest {
	req := &basepb.SetConfigRequest{MsgpackConfig: c.MsgPack, PluginApiVersion: c.APIVersion}
	if c.Agent != nil {
		req.NomadConfig = &basepb.NomadConfig{Driver: &basepb.NomadDriverConfig{
			ClientMinPort: uint32(min(c.Agent.ClientMinPort, math.MaxUint32)),
			ClientMaxPort: uint32(min(c.Agent.ClientMaxPort, math.MaxUint32)),
		}}
	}
	return req
}
