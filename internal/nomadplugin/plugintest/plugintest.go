// Package plugintest connects a test with a plugin through the whole wire
// protocol, in memory: what a plugin's author sees fail here would fail in
// Nomad.
package plugintest

import (
	"context"
	"net"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/wire"
)

// Device serves a device plugin until the test ends.
func Device(t testing.TB, p device.Plugin) *device.Client {
	t.Helper()
	log := Logger(t)
	done, conn := Serve(t, log, func(s grpc.ServiceRegistrar) {
		base.Register(s, p, log)
		device.Register(s, p, log)
	})
	return device.NewClient(done, conn)
}

// Driver serves a driver until the test ends.
func Driver(t testing.TB, p driver.Plugin) *driver.Client {
	t.Helper()
	log := Logger(t)
	done, conn := Serve(t, log, func(s grpc.ServiceRegistrar) {
		base.Register(s, p, log)
		driver.Register(s, p, log)
	})
	return driver.NewClient(done, conn)
}

// Serve runs a server with our options until the test ends; done ends with it. The
// test does not end before the plugin has returned from every call.
func Serve(t testing.TB, log hclog.Logger, register func(grpc.ServiceRegistrar)) (done context.Context, conn *grpc.ClientConn) {
	t.Helper()
	const buffer = 1 << 20
	listener := bufconn.Listen(buffer)
	server := grpc.NewServer(append(wire.ServerOptions(log), grpc.WaitForHandlers(true))...)
	register(server)
	done, end := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); err != nil {
			t.Errorf("serve plugin in memory: %v", err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect with plugin in memory: %v", err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
		end()
	})
	return done, conn
}

// Logger writes to the test's own log.
func Logger(t testing.TB) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "plugin", Level: hclog.Debug, Output: writer{t}, DisableTime: true})
}

type writer struct{ t testing.TB }

func (w writer) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}
