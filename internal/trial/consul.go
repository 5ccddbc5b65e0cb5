//go:build linux

package trial

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// newConsul prepares one Consul server on loopback. It keeps its state in a
// folder, so that a restarted one still knows what it was told.
func newConsul(binary, dir string) (p *Process, address string, err error) {
	var port [3]int // http, server, serf
	for i := range port {
		if port[i], err = freePort(); err != nil {
			return nil, "", fmt.Errorf("prepare Consul: %w", err)
		}
	}
	config := fmt.Sprintf(`
server             = true
bootstrap_expect   = 1
node_name          = "trial"
data_dir           = %q
bind_addr          = "127.0.0.1"
client_addr        = "127.0.0.1"
disable_update_check = true
performance { raft_multiplier = 1 }
connect { enabled = false }
ports {
  http     = %d
  server   = %d
  serf_lan = %d
  serf_wan = -1
  dns      = -1
  grpc     = -1
  grpc_tls = -1
}
`, filepath.Join(dir, "data"), port[0], port[1], port[2])
	file := filepath.Join(dir, "consul.hcl")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", fmt.Errorf("prepare Consul: %w", err)
	}
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, "", fmt.Errorf("prepare Consul: %w", err)
	}
	p = &Process{Name: "consul", Log: filepath.Join(dir, "consul.log"), path: binary, args: []string{"agent", "-config-file", file}, env: environment(), dir: dir}
	return p, fmt.Sprintf("http://127.0.0.1:%d", port[0]), nil
}

// consulReady tells whether the server at the address has a leader and takes
// writes.
func consulReady(ctx context.Context, address string) error {
	var leader string
	if err := call(ctx, "GET", address+"/v1/status/leader", nil, &leader); err != nil {
		return err
	}
	if leader == "" {
		return fmt.Errorf("consul at %s has no leader yet", address)
	}
	key := address + "/v1/kv/trial-ready"
	if err := call(ctx, "PUT", key, strings.NewReader("1"), nil); err != nil {
		return err
	}
	return call(ctx, "DELETE", key, nil, nil)
}
