package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

var gang = contract.GangID{Region: "global", Namespace: "default", Job: "train/7"}

func record(attempt int, phase contract.Phase, members int) *contract.Record {
	r := &contract.Record{V: contract.RecordVersion, Gang: gang, Attempt: attempt, Phase: phase}
	for i := range members {
		r.Members = append(r.Members, contract.Member{Index: i, Alloc: fmt.Sprintf("alloc-%d", i), Task: "train", Group: "rank", Node: fmt.Sprintf("n%d", i)})
	}
	return r
}

// signaller notes what it was told to send.
type signaller struct {
	mu    sync.Mutex
	sent  map[string][]string
	fails map[string]bool
}

func (s *signaller) Signal(_ context.Context, namespace, alloc, task, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails[alloc] {
		return errors.New("node unreachable")
	}
	if s.sent == nil {
		s.sent = map[string][]string{}
	}
	key := namespace + "/" + alloc + "." + task
	s.sent[key] = append(s.sent[key], text)
	return nil
}

func TestSignals(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := &signaller{}
	ch := Signals{Nomad: s}
	r := record(3, contract.PhasePlaced, 2)
	must.NoError(t, ch.Publish(ctx, r))
	must.MapLen(t, 2, s.sent)
	kind, body, _ := strings.Cut(s.sent["default/alloc-1.train"][0], " ")
	must.Eq(t, contract.SignalRecord, kind)
	got, err := contract.DecodeRecord([]byte(body))
	must.NoError(t, err)
	must.Eq(t, r, got)

	// An ask follows the record, for a member that missed it.
	asked := *r
	asked.Ask = &contract.Ask{Kind: "drain", Grace: time.Minute}
	must.NoError(t, ch.Publish(ctx, &asked))
	texts := s.sent["default/alloc-0.train"]
	must.Len(t, 3, texts)
	kind, body, _ = strings.Cut(texts[2], " ")
	must.Eq(t, contract.SignalAsk, kind)
	var ask contract.Ask
	must.NoError(t, json.Unmarshal([]byte(body), &ask))
	must.Eq(t, *asked.Ask, ask)

	// A member that cannot be told is an error, except at the end.
	s.fails = map[string]bool{"alloc-1": true}
	err = ch.Publish(ctx, r)
	must.ErrorContains(t, err, "1 of 2 members")
	must.ErrorContains(t, err, "n1")
	must.NoError(t, ch.Publish(ctx, record(3, contract.PhaseEnded, 2)))
}

// Members on nodes without Consul are told by signal, the others are not.
func TestRouterWithoutConsul(t *testing.T) {
	t.Parallel()
	s := &signaller{}
	r := Router{Signals: Signals{Nomad: s}}
	must.NoError(t, r.Publish(context.Background(), record(1, contract.PhasePlaced, 2)))
	must.MapLen(t, 2, s.sent)
	reports, err := r.Reports(context.Background(), gang, 1)
	must.NoError(t, err)
	must.Len(t, 0, reports)
	must.NoError(t, r.Remove(context.Background(), gang, 1))
}

// agent is a real Consul agent for the tests of this package.
var agent struct {
	once    sync.Once
	address string
	err     error
	cmd     *exec.Cmd
}

func TestMain(m *testing.M) {
	code := m.Run()
	if agent.cmd != nil {
		_ = agent.cmd.Process.Kill()
	}
	os.Exit(code)
}

// realConsul starts it once, or skips with the reason.
func realConsul(t *testing.T) (*Consul, *consul.Client) {
	t.Helper()
	agent.once.Do(func() { agent.err = startConsul() })
	if errors.Is(agent.err, errNoConsul) {
		t.Skip(agent.err)
	}
	must.NoError(t, agent.err) // one that is named, or found, has to start
	c, err := NewConsul(ConsulOptions{Address: agent.address})
	must.NoError(t, err)
	raw, err := consul.NewClient(&consul.Config{Address: agent.address})
	must.NoError(t, err)
	return c, raw
}

var errNoConsul = errors.New("no Consul: looked at $CONSUL_BIN, .bin/consul and the PATH; `make deps` builds one")

func startConsul() error {
	binary := os.Getenv("CONSUL_BIN")
	if binary == "" {
		binary = filepath.Join("..", "..", ".bin", "consul")
		if _, err := os.Stat(binary); err != nil {
			if binary, err = exec.LookPath("consul"); err != nil {
				return errNoConsul
			}
		}
	}
	var err error
	for range 5 { // somebody may take a port before Consul does
		if err = startConsulAt(binary); !errors.Is(err, errExited) {
			break
		}
	}
	return err
}

var errExited = errors.New("Consul ended at once")

func startConsulAt(binary string) error {
	var ports []int
	var listeners []net.Listener
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	for _, l := range listeners {
		l.Close() // all were held at once, so that no two are the same
	}
	agent.address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	agent.cmd = exec.Command(binary, "agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-log-level", "warn", "-http-port", fmt.Sprint(ports[0]),
		"-server-port", fmt.Sprint(ports[1]), "-serf-lan-port", fmt.Sprint(ports[2]), "-serf-wan-port", "-1", "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1")
	client, err := consul.NewClient(&consul.Config{Address: agent.address})
	if err != nil {
		return err
	}
	if err := agent.cmd.Start(); err != nil {
		agent.cmd = nil
		return fmt.Errorf("start Consul: %w", err)
	}
	cmd, exited := agent.cmd, make(chan struct{})
	go func() { defer close(exited); _ = cmd.Wait() }()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
		select {
		case <-exited: // whoever answers at its address is not it
			return errExited
		case <-time.After(50 * time.Millisecond):
		}
		if nodes, _, err := client.Catalog().Nodes(nil); err == nil && len(nodes) > 0 {
			return nil
		}
	}
	return errors.New("Consul was not ready within 3 minutes")
}

func TestConsul(t *testing.T) {
	t.Parallel()
	// A key whose session was destroyed cannot be locked again for 15 s: each run
	// has a gang of its own.
	gang := contract.GangID{Region: "global", Namespace: "default", Job: fmt.Sprintf("train/%d", time.Now().UnixNano())}
	record := func(attempt int, phase contract.Phase, members int) *contract.Record {
		r := record(attempt, phase, members)
		r.Gang = gang
		return r
	}
	c, raw := realConsul(t)
	ctx := context.Background()
	must.NoError(t, c.Ping(ctx))

	// A record is written, replaced, and written again without harm.
	for _, phase := range []contract.Phase{contract.PhasePlaced, contract.PhasePlaced, contract.PhaseReleased} {
		must.NoError(t, c.Publish(ctx, record(2, phase, 2)))
	}
	pair, _, err := raw.KV().Get(gang.RecordKey(), nil)
	must.NoError(t, err)
	var there contract.Record
	must.NoError(t, json.Unmarshal(pair.Value, &there))
	must.Eq(t, contract.PhaseReleased, there.Phase)

	// Another planner writes it too; an older attempt cannot.
	other, err := NewConsul(ConsulOptions{Address: agent.address})
	must.NoError(t, err)
	must.NoError(t, other.Publish(ctx, record(2, contract.PhaseReleased, 2)))
	must.NoError(t, other.Publish(ctx, record(3, contract.PhasePlaced, 2)))
	must.ErrorIs(t, c.Publish(ctx, record(2, contract.PhaseEnded, 2)), ErrNewer)

	// Reports are followed; one that cannot be read does not hide the others.
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan []contract.Report, 16)
	ended := make(chan struct{})
	go func() { defer close(ended); c.Watch(watch, gang, 3, func(r []contract.Report) { got <- r }) }()
	session, _, err := raw.Session().CreateNoChecks(&consul.SessionEntry{Name: "member", TTL: "1h"}, nil)
	must.NoError(t, err)
	report := contract.Report{V: 1, Gang: gang, Attempt: 3, Alloc: "alloc-0", Task: "train", Start: 1, State: contract.StateReady}
	body, err := json.Marshal(report)
	must.NoError(t, err)
	ok, _, err := raw.KV().Acquire(&consul.KVPair{Key: gang.ReportKey(3, "alloc-0", "train"), Value: body, Session: session}, nil)
	must.NoError(t, err)
	must.True(t, ok)
	_, err = raw.KV().Put(&consul.KVPair{Key: gang.ReportKey(3, "alloc-1", "train"), Value: []byte("{")}, nil)
	must.NoError(t, err)
	for {
		select {
		case reports := <-got:
			if len(reports) == 0 {
				continue
			}
			must.Eq(t, []contract.Report{report}, reports)
		case <-time.After(2 * time.Minute):
			t.Fatal("no report within 2 minutes")
		}
		break
	}
	cancel()
	<-ended

	// At the end nothing is left: no key, no session; a newer record stays.
	must.NoError(t, c.Remove(ctx, gang, 2))
	pair, _, err = raw.KV().Get(gang.RecordKey(), nil)
	must.NoError(t, err)
	must.NotNil(t, pair)
	must.NoError(t, c.Remove(ctx, gang, 3))
	keys, _, err := raw.KV().Keys(strings.TrimSuffix(gang.RecordKey(), "record"), "", nil)
	must.NoError(t, err)
	must.Len(t, 0, keys)
	entry, _, err := raw.Session().Info(session, nil)
	must.NoError(t, err)
	must.Nil(t, entry)
	must.NoError(t, c.Publish(ctx, record(4, contract.PhasePlaced, 1)), must.Sprint("the next attempt's first write"))
	must.NoError(t, c.Remove(ctx, gang, 4))
}

func TestConsulAway(t *testing.T) {
	t.Parallel()
	c, err := NewConsul(ConsulOptions{Address: "127.0.0.1:1"})
	must.NoError(t, err)
	err = c.Publish(context.Background(), record(1, contract.PhasePlaced, 1))
	must.ErrorContains(t, err, "default/train/7")
	ok, _, why := c.Contact()
	must.False(t, ok)
	must.StrContains(t, why, "127.0.0.1:1")
}
