//go:build linux

package trial

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// simulatedNomad is the simulated cluster, inside this process, with live
// nodes: their plugins and tasks are processes.
type simulatedNomad struct {
	http     string
	options  nomadsim.Options // without nodes
	nodes    []nomadsim.NodeConfig
	cluster  *nomadsim.Cluster
	logFiles []*os.File
	dir      string
}

func newSimulatedNomad(dir string, nodes []*node) (*simulatedNomad, error) {
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("prepare the simulated Nomad: %w", err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s := &simulatedNomad{http: "http://" + address, dir: dir, options: nomadsim.Options{Addr: address, DataDir: dir}}
	for _, n := range nodes {
		log, err := os.OpenFile(s.logFile(n.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("prepare the simulated Nomad: %w", err)
		}
		s.logFiles = append(s.logFiles, log)
		s.nodes = append(s.nodes, nomadsim.NodeConfig{
			Name: n.Name, CPU: n.CPU, MemoryMB: n.MemoryMB, Meta: map[string]string{"leaf": n.Leaf, "spine": n.Spine},
			MinPort: n.firstPort, MaxPort: n.firstPort + portsPerNode/2 - 1,
			Live: &nomadsim.LiveConfig{
				Dir: filepath.Join(n.dir, "data"), PluginDir: n.plugins(), Env: shadowed(), MaxKillTimeout: maxKillTimeout,
				Plugins: []nomadsim.PluginConfig{{Name: driverName, Config: n.driverConfig().plain()}, {Name: deviceName, Config: n.deviceConfig().plain()}},
				Logger:  hclog.New(&hclog.LoggerOptions{Name: n.Name, Level: hclog.Info, Output: log}),
			},
		})
	}
	return s, nil
}

// shadowed takes the meaning from variables of ours that point at another
// Nomad or Consul: plugins get the environment of this process.
func shadowed() []string {
	var out []string
	kept := environment()
	for _, v := range os.Environ() {
		if !slices.Contains(kept, v) {
			name, _, _ := strings.Cut(v, "=")
			out = append(out, name+"=")
		}
	}
	return out
}

// plain is the block as maps all through.
func (b block) plain() map[string]any {
	out := map[string]any{}
	for name, v := range b {
		if inner, ok := v.(block); ok {
			v = inner.plain()
		}
		out[name] = v
	}
	return out
}

func (s *simulatedNomad) logFile(node string) string { return filepath.Join(s.dir, node, "agent.log") }

func (s *simulatedNomad) address() string { return s.http }

func (s *simulatedNomad) startServer(context.Context) (err error) {
	// The cluster lives until stop, not as long as the start's context.
	if s.cluster, err = nomadsim.Start(context.Background(), s.options); err != nil {
		return fmt.Errorf("start the simulated Nomad: %w", err)
	}
	return nil
}

func (s *simulatedNomad) startClients(context.Context) error {
	for _, n := range s.nodes {
		if _, err := s.cluster.AddNode(n); err != nil {
			return fmt.Errorf("start the simulated Nomad's client %s: %w", n.Name, err)
		}
	}
	return nil
}

func (s *simulatedNomad) stop() {
	if s.cluster != nil {
		s.cluster.Close()
	}
	for _, f := range s.logFiles {
		_ = f.Close()
	}
}

func (s *simulatedNomad) killClient(node string) error {
	return s.cluster.KillAgent(s.cluster.Node(node))
}

func (s *simulatedNomad) startClient(node string) error {
	return s.cluster.StartAgent(s.cluster.Node(node))
}

func (s *simulatedNomad) logs(node string) string {
	p := Process{Log: s.logFile(node)}
	return fmt.Sprintf("%s:\n%s", p.Log, p.Tail(20))
}
