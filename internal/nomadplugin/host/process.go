package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// Reattach is what is needed to find a running plugin process again; it can be
// stored as JSON.
type Reattach struct {
	PID     int    `json:"pid"`
	Network string `json:"network"`
	Address string `json:"address"`
}

// process is one running plugin binary.
type process struct {
	client *plugin.Client
	conn   *grpc.ClientConn
	done   context.Context // ends with the process
	since  time.Time
	base   *base.Client
	device *device.Client
	driver *driver.Client
}

// start launches the binary and shakes hands.
func (p *Plugin) start(ctx context.Context) (*process, error) {
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	proc, err := connect(ctx, &plugin.ClientConfig{Cmd: cmd, SkipHostEnv: true, Logger: p.log})
	if err != nil {
		return nil, fmt.Errorf("launch %s: %w", p.path, err)
	}
	return proc, nil
}

// attach connects with a process that an earlier agent launched.
func (p *Plugin) attach(ctx context.Context, r Reattach) (*process, error) {
	addr, err := r.addr()
	if err != nil {
		return nil, err
	}
	proc, err := connect(ctx, &plugin.ClientConfig{
		Logger: p.log,
		Reattach: &plugin.ReattachConfig{
			Protocol: plugin.ProtocolGRPC, ProtocolVersion: int(base.Handshake.ProtocolVersion), Addr: addr, Pid: r.PID,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("attach to process %d of %s: %w", r.PID, p.path, err)
	}
	return proc, nil
}

func (r Reattach) addr() (net.Addr, error) {
	if r.Network == "unix" {
		return net.ResolveUnixAddr(r.Network, r.Address)
	}
	return net.ResolveTCPAddr(r.Network, r.Address)
}

func connect(ctx context.Context, c *plugin.ClientConfig) (*process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.HandshakeConfig = base.Handshake
	c.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	c.Plugins = plugin.PluginSet{"base": clients{}}
	proc := &process{client: plugin.NewClient(c), since: time.Now()}
	protocol, err := proc.client.Client()
	if err != nil {
		proc.client.Kill()
		return nil, err
	}
	raw, err := protocol.Dispense("base")
	if err != nil {
		proc.client.Kill()
		return nil, err
	}
	connected := raw.(*process)
	connected.client, connected.since = proc.client, proc.since
	return connected, nil
}

// clients makes the typed clients of a connection, for go-plugin.
type clients struct{ plugin.NetRPCUnsupportedPlugin }

var _ plugin.GRPCPlugin = clients{}

func (clients) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this is the host half")
}

func (clients) GRPCClient(done context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	d, t := device.NewClient(done, conn), driver.NewClient(done, conn)
	return &process{conn: conn, done: done, base: base.NewClient(done, conn), device: d, driver: t}, nil
}

func (p *process) exited() bool { return p.done.Err() != nil || p.client.Exited() }

// end asks the process to stop and ends it by force after 2 s.
func (p *process) end() {
	p.client.Kill()
	p.forget()
}

// forget closes the connection and leaves the process alone.
func (p *process) forget() { p.conn.Close() }

func (p *process) reattach() (Reattach, bool) {
	c := p.client.ReattachConfig()
	if c == nil || c.Addr == nil {
		return Reattach{}, false
	}
	return Reattach{PID: c.Pid, Network: c.Addr.Network(), Address: c.Addr.String()}, true
}
