//go:build linux

package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// realNomad is one Nomad server and a client agent for each node, all on
// loopback.
type realNomad struct {
	http    string // address of the server's API
	server  *Process
	clients map[string]*Process
	order   []string // names of the nodes
}

// newRealNomad writes the agents' configurations.
func newRealNomad(binary, dir string, nodes []*node) (*realNomad, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start a real Nomad: its clients need root, for mounts and cgroups, and this user is not root: run as root, or use the simulated cluster, which needs no root")
	}
	var port [3]int
	for i := range port {
		var err error
		if port[i], err = freePort(); err != nil {
			return nil, fmt.Errorf("prepare Nomad: %w", err)
		}
	}
	r := &realNomad{http: fmt.Sprintf("http://127.0.0.1:%d", port[0]), clients: map[string]*Process{}}
	const server = `
server {
  enabled           = true
  bootstrap_expect  = 1
  min_heartbeat_ttl = "5s"
  heartbeat_grace   = "5s"
}
`
	var err error
	if r.server, err = agent(binary, filepath.Join(dir, "server"), "server", port, server); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		text, err := n.clientConfig(port[1])
		if err != nil {
			return nil, err
		}
		var ports [3]int
		for i := range ports {
			if ports[i], err = freePort(); err != nil {
				return nil, fmt.Errorf("prepare Nomad's client %s: %w", n.Name, err)
			}
		}
		if r.clients[n.Name], err = agent(binary, n.dir, n.Name, ports, text); err != nil {
			return nil, err
		}
		r.order = append(r.order, n.Name)
	}
	return r, nil
}

// agent prepares one agent with what is common to servers and clients.
func agent(binary, dir, name string, port [3]int, specific string) (*Process, error) {
	text := fmt.Sprintf(`
name                 = %q
data_dir             = %q
bind_addr            = "127.0.0.1"
disable_update_check = true
log_level            = "INFO"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = %d
  rpc  = %d
  serf = %d
}
consul {
  auto_advertise   = false
  server_auto_join = false
  client_auto_join = false
}
telemetry {
  publish_allocation_metrics = true
  publish_node_metrics       = true
  prometheus_metrics         = true
}
%s`, name, filepath.Join(dir, "data"), port[0], port[1], port[2], specific)
	file := filepath.Join(dir, "agent.hcl")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare Nomad: %w", err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("prepare Nomad: %w", err)
	}
	return &Process{Name: "nomad " + name, Log: filepath.Join(dir, "agent.log"), path: binary, args: []string{"agent", "-config", file}, env: environment(), dir: dir}, nil
}

// clientConfig is the agent configuration of one node. What it needs is in
// docs/e2e.md: several clients on one host each with its own ports, capacity
// that is stated, and fingerprints that would wait for clouds left out.
func (n *node) clientConfig(serverRPC int) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `
plugin_dir = %q
client {
  enabled           = true
  servers           = ["127.0.0.1:%d"]
  network_interface = "lo"
  cpu_total_compute = %d
  memory_total_mb   = %d
  max_kill_timeout  = %q
  min_dynamic_port  = %d
  max_dynamic_port  = %d
  gc_max_allocs           = 1000
  gc_disk_usage_threshold = 99
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,cni,bridge,plugins_cni"
  }
  meta {
    leaf  = %q
    spine = %q
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin %q {
  config {
%s  }
}
plugin %q {
  config {
%s  }
}
`, n.plugins(), serverRPC, n.CPU, n.MemoryMB, maxKillTimeout.String(), n.firstPort, n.firstPort+portsPerNode/2-1, n.Leaf, n.Spine,
		driverName, n.driverConfig().hcl("    "), deviceName, n.deviceConfig().hcl("    "))
	return b.String(), nil
}

func (r *realNomad) address() string { return r.http }

func (r *realNomad) startServer(ctx context.Context) error {
	if err := r.server.start(); err != nil {
		return err
	}
	return r.server.wait(ctx, "start Nomad's server", func(ctx context.Context) error {
		var leader string
		if err := call(ctx, "GET", r.http+"/v1/status/leader", nil, &leader); err != nil {
			return err
		}
		if leader == "" {
			return errors.New("no leader yet")
		}
		return nil
	})
}

// startClients comes after the server has a leader: a client that finds none
// waits long before it tries again.
func (r *realNomad) startClients(context.Context) error {
	for _, name := range r.order {
		if err := r.clients[name].start(); err != nil {
			return err
		}
	}
	return nil
}

func (r *realNomad) stop() {
	for _, name := range r.order {
		r.clients[name].stop(5 * time.Second)
	}
	r.server.stop(5 * time.Second)
}

func (r *realNomad) killClient(name string) error { return r.clients[name].Kill() }

func (r *realNomad) startClient(name string) error { return r.clients[name].start() }

func (r *realNomad) logs(name string) string {
	return fmt.Sprintf("%s:\n%s", r.clients[name].Log, r.clients[name].Tail(20))
}
