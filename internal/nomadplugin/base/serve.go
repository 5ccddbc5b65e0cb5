package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Handshake is what Nomad and its plugins show each other first.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  2,
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
}

// NewLogger writes JSON lines to standard error, which Nomad's agent reads and
// logs under its own level. Standard output is not to be used: its first line
// is the handshake.
func NewLogger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       name,
		Level:      hclog.Trace,
		Output:     os.Stderr,
		JSONFormat: true,
	})
}

// Serve speaks Nomad's protocol on a unix socket until the agent tells it to
// stop. register puts the services beside the base service on the server. It
// ends the process with status 1 and a message when p's Info is invalid or when
// a person started the program. Authors call device.Serve or driver.Serve.
func Serve(p Plugin, log hclog.Logger, register func(grpc.ServiceRegistrar)) {
	if log == nil {
		log = NewLogger(p.Info().Name)
	}
	if err := p.Info().Validate(); err != nil {
		fmt.Fprintln(os.Stderr, "serve nomad plugin:", err)
		os.Exit(1)
	}
	surviveAgent()
	kind := p.Info().Type.String()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake,
		Logger:          log,
		Plugins: plugin.PluginSet{
			"base": &served{register: func(s *grpc.Server) { Register(s, p, log) }},
			kind:   &served{register: func(s *grpc.Server) { register(s) }},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, wire.ServerOptions(log)...)...)
		},
	})
}

// surviveAgent keeps the process alive when its agent is killed: nobody reads
// its standard error then, and the Go runtime ends a program that writes to a
// broken pipe there. The next agent attaches to this process again, and tasks
// are recovered from it. The signal is received rather than ignored, since
// child processes inherit an ignored one.
func surviveAgent() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// served is a plugin's service for go-plugin.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

var _ plugin.GRPCPlugin = (*served)(nil)

func (s *served) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	s.register(server)
	return nil
}

func (s *served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("this is the server half")
}
