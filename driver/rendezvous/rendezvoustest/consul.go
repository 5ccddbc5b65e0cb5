// Package rendezvoustest starts a real Consul agent for tests and plays the
// planner's side of the rendezvous by hand.
package rendezvoustest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// errNone: there is no Consul here, and nobody named one.
var errNone = errors.New("no Consul")

// Binary finds a Consul agent: $CONSUL_BIN, the repository's .bin, the PATH. What
// CONSUL_BIN names has to be one: a test that needs it fails where it does not
// start, and is skipped only where none is named or found.
func Binary() (string, error) {
	if path := os.Getenv("CONSUL_BIN"); path != "" {
		return path, nil
	}
	_, file, _, _ := runtime.Caller(0)
	local := filepath.Join(filepath.Dir(file), "../../../.bin/consul")
	if _, err := os.Stat(local); err == nil {
		return local, nil
	}
	path, err := exec.LookPath("consul")
	if err != nil {
		return "", fmt.Errorf("%w: looked at $CONSUL_BIN, %s and the PATH; `make deps` builds one", errNone, local)
	}
	return path, nil
}

// Agent is a real Consul agent in development mode on loopback.
type Agent struct {
	Address string
	api     *api.Client
	cmd     *exec.Cmd
	exited  <-chan struct{} // closes when cmd has
	args    []string
}

var (
	shared     *Agent
	sharedErr  error
	sharedOnce sync.Once
)

// Shared gives the one agent of this test process, or skips the test with the
// reason. Main ends it.
func Shared(t testing.TB) *Agent {
	t.Helper()
	sharedOnce.Do(func() { shared, sharedErr = start("127.0.0.1") })
	if errors.Is(sharedErr, errNone) {
		t.Skip(sharedErr)
	}
	must.NoError(t, sharedErr)
	return shared
}

// Main runs a package's tests and ends the shared agent after them.
func Main(m *testing.M) int {
	defer func() {
		if shared != nil {
			shared.kill()
		}
	}()
	return m.Run()
}

// Start gives an agent of its own that ends with the test, for tests that stop
// it in between.
func Start(t testing.TB) *Agent { return StartOn(t, "127.0.0.1") }

// StartOn gives an agent that serves at an address of this host.
func StartOn(t testing.TB, address string) *Agent {
	t.Helper()
	a, err := start(address)
	if errors.Is(err, errNone) {
		t.Skip(err)
	}
	must.NoError(t, err)
	t.Cleanup(a.kill)
	return a
}

// start starts an agent, again where somebody took one of its ports before it
// did.
func start(client string) (*Agent, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	for range 5 {
		var a *Agent
		if a, err = startAt(binary, client); !errors.Is(err, errExited) {
			return a, err
		}
	}
	return nil, err
}

func startAt(binary, client string) (*Agent, error) {
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	a := &Agent{Address: fmt.Sprintf("%s:%d", client, ports[0])}
	a.args = []string{binary, "agent", "-dev", "-bind", "127.0.0.1", "-client", client, "-log-level", "warn",
		"-http-port", fmt.Sprint(ports[0]), "-server-port", fmt.Sprint(ports[1]), "-serf-lan-port", fmt.Sprint(ports[2]), "-serf-wan-port", "-1",
		"-hcl", "limits { http_max_conns_per_client = 2000 }", // all tests come from one address
		"-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1"}
	if a.api, err = api.NewClient(&api.Config{Address: a.Address}); err != nil {
		return nil, err
	}
	return a, a.Up()
}

// Up starts the agent (again), with nothing in its store.
func (a *Agent) Up() error {
	a.cmd = exec.Command(a.args[0], a.args[1:]...)
	var log strings.Builder
	a.cmd.Stdout, a.cmd.Stderr = &log, &log
	if err := a.cmd.Start(); err != nil {
		a.cmd = nil
		return fmt.Errorf("start Consul: %w", err)
	}
	cmd, exited := a.cmd, make(chan struct{})
	a.exited = exited
	go func() { defer close(exited); _ = cmd.Wait() }()
	for deadline := time.Now().Add(ready); time.Now().Before(deadline); {
		select {
		case <-exited: // whoever answers at its address is not it
			return fmt.Errorf("%w:\n%s", errExited, log.String())
		case <-time.After(50 * time.Millisecond):
		}
		// A leader alone is not enough: sessions need the node's own entry.
		if nodes, _, err := a.api.Catalog().Nodes(nil); err == nil && len(nodes) > 0 {
			return nil
		}
	}
	a.kill()
	return fmt.Errorf("start Consul: %s was not ready within %v:\n%s", a.args[0], ready, log.String())
}

// ready is how long an agent may take to be ready; it only ends tests that hang.
const ready = 3 * time.Minute

var errExited = errors.New("start Consul: it ended at once")

// Down kills the agent.
func (a *Agent) Down() { a.kill() }

func (a *Agent) kill() {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Kill()
		<-a.exited
		a.cmd = nil
	}
}

// Config reaches the agent.
func (a *Agent) Config() rendezvous.ConsulConfig {
	return rendezvous.ConsulConfig{Address: a.Address}
}

// API is Consul's own client of the agent.
func (a *Agent) API() *api.Client { return a.api }

// Put writes a key, as whoever it may be.
func (a *Agent) Put(t testing.TB, key, text string) {
	t.Helper()
	_, err := a.api.KV().Put(&api.KVPair{Key: key, Value: []byte(text)}, nil)
	must.NoError(t, err)
}

// Register puts an instance of the members' service there, until the test ends.
func (a *Agent) Register(t testing.TB, id, address string, port int, meta map[string]string) {
	t.Helper()
	must.NoError(t, a.api.Agent().ServiceRegister(&api.AgentServiceRegistration{ID: id, Name: contract.ConsulService, Address: address, Port: port, Meta: meta}))
	t.Cleanup(func() { _ = a.api.Agent().ServiceDeregister(id) })
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Planner plays the planner of one gang over Consul.
type Planner struct {
	t     testing.TB
	agent *Agent
	Gang  contract.GangID
}

// Planner of a gang; what it wrote is removed at the test's end.
func (a *Agent) Planner(t testing.TB, gang contract.GangID) *Planner {
	p := &Planner{t: t, agent: a, Gang: gang}
	t.Cleanup(func() {
		_, _ = a.api.KV().DeleteTree(strings.TrimSuffix(gang.RecordKey(), "record"), nil)
	})
	return p
}

// Write puts the record where members see it.
func (p *Planner) Write(r contract.Record) {
	p.t.Helper()
	text, err := json.Marshal(r)
	must.NoError(p.t, err)
	p.WriteText(text)
}

// WriteText puts any text in the record's place.
func (p *Planner) WriteText(text []byte) {
	p.t.Helper()
	_, err := p.agent.api.KV().Put(&api.KVPair{Key: p.Gang.RecordKey(), Value: text}, nil)
	must.NoError(p.t, err)
}

// Reports of an attempt, by member.
func (p *Planner) Reports(attempt int) map[string]contract.Report {
	p.t.Helper()
	pairs, _, err := p.agent.api.KV().List(p.Gang.AttemptPrefix(attempt)+"members/", nil)
	must.NoError(p.t, err)
	out := map[string]contract.Report{}
	for _, pair := range pairs {
		var r contract.Report
		must.NoError(p.t, json.Unmarshal(pair.Value, &r))
		out[rendezvous.MemberKey(r.Alloc, r.Task)] = r
	}
	return out
}

// Await waits until ok says yes of the attempt's reports.
func (p *Planner) Await(ctx context.Context, attempt int, what string, ok func(map[string]contract.Report) bool) map[string]contract.Report {
	p.t.Helper()
	var index uint64
	for {
		reports := p.Reports(attempt)
		if ok(reports) {
			return reports
		}
		q := (&api.QueryOptions{WaitIndex: index, WaitTime: time.Second}).WithContext(ctx)
		_, meta, err := p.agent.api.KV().List(p.Gang.AttemptPrefix(attempt), q)
		if ctx.Err() != nil {
			text, _ := json.MarshalIndent(reports, "", "  ")
			p.t.Fatalf("%s: not within the test's time; reports of attempt %d: %s", what, attempt, text)
		}
		must.NoError(p.t, err)
		index = meta.LastIndex
	}
}

// Keys that exist below the gang's folder, the record's left out.
func (p *Planner) Keys() []string {
	p.t.Helper()
	keys, _, err := p.agent.api.KV().Keys(strings.TrimSuffix(p.Gang.RecordKey(), "record"), "", nil)
	must.NoError(p.t, err)
	var out []string
	for _, key := range keys {
		if key != p.Gang.RecordKey() {
			out = append(out, key)
		}
	}
	return out
}

// Services that members of the gang registered.
func (p *Planner) Services() []string {
	p.t.Helper()
	services, err := p.agent.api.Agent().Services()
	must.NoError(p.t, err)
	var out []string
	for id, s := range services {
		if s.Service == contract.ConsulService && s.Meta["gang"] == p.Gang.String() {
			out = append(out, id)
		}
	}
	return out
}
