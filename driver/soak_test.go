package driver

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/internal/contract"
)

// Members are started, released, asked, stopped, destroyed, their plugin is
// replaced, and their supervisors and ranks are killed, at random; afterwards no
// process, mount, cgroup, port or Consul key of them is left. MUSTER_SOAK=1000
// makes it long; MUSTER_SEED repeats one, cycle by cycle.
func TestSoak(t *testing.T) {
	cycles, seed := 16, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv("MUSTER_SOAK")); err == nil {
		cycles = n
	}
	if n, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("MUSTER_SEED=%d", seed)
	s := &soak{seed: seed, outcomes: map[contract.Outcome]int{}, low: 20000 + int(seed%100)*100}
	next := make(chan int)
	var workers sync.WaitGroup
	for range 8 { // most of a cycle is waiting
		workers.Go(func() {
			for i := range next {
				t.Run(strconv.Itoa(i), func(t *testing.T) { s.cycle(t, i) })
			}
		})
	}
	began := time.Now()
	for i := range cycles {
		if t.Failed() {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	t.Logf("%d cycles in %v; outcomes: %v", cycles, time.Since(began).Round(time.Second), s.outcomes)
	must.MapNotContainsKey(t, s.outcomes, "")
	for port := s.low; port < s.low+soakPorts; port++ {
		p, err := preflight.KeepPort(port, 0, 0, 0)
		must.NoError(t, err, must.Sprint("a port of the members' range is still taken"))
		p.Release()
	}
	s.nothingInConsul(t)
}

// nothingInConsul: what a killed supervisor held is gone with its session, which
// may live for twice its TTL. A service that it was registering when it was
// killed lives until its check has failed for a minute. A session for a last
// report that it made and was killed before it used holds nothing, and ends
// after an hour.
func (s *soak) nothingInConsul(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		left = nil
		client := rendezvoustest.Shared(t).API()
		sessions, _, err := client.Session().List(nil)
		must.NoError(t, err)
		services, err := client.Agent().Services()
		must.NoError(t, err)
		for _, service := range services {
			if slices.Contains(s.allocs, service.Meta["alloc"]) {
				left = append(left, service.ID)
			}
		}
		for _, session := range sessions {
			for _, alloc := range s.allocs {
				if strings.Contains(session.Name, alloc) && !(strings.HasSuffix(session.Name, " ended") && s.holdsNothing(t, session.ID)) {
					left = append(left, session.Name)
				}
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("left in Consul: %v", left)
}

// holdsNothing: no key of the members' is held by the session.
func (s *soak) holdsNothing(t *testing.T, session string) bool {
	pairs, _, err := rendezvoustest.Shared(t).API().KV().List("muster/", nil)
	must.NoError(t, err)
	for _, pair := range pairs {
		if pair.Session == session {
			return false
		}
	}
	return true
}

// soakPorts is how many ports the members of a soak choose from.
const soakPorts = 40

type soak struct {
	seed uint64
	low  int // first port of the range

	mu       sync.Mutex
	outcomes map[contract.Outcome]int
	allocs   []string
}

func (s *soak) cycle(t *testing.T, i int) {
	random := rand.New(rand.NewPCG(s.seed, uint64(i)))
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "nproc_per_node": 2,
		"command": []any{"/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & (sleep 60 &) ; echo up; sleep " + strconv.Itoa(random.IntN(3)*20)}})
	agent := rendezvoustest.Shared(t)
	config := map[string]any{"rendezvous": "consul", "interface": "lo", "consul": map[string]any{"address": agent.Address}, "port_range": fmt.Sprintf("%d-%d", s.low, s.low+soakPorts-1)}
	tr.plugin = newPlugin(t, config)
	id, alloc := tr.members[0].cfg.ID, tr.members[0].cfg.AllocID
	s.mu.Lock()
	s.allocs = append(s.allocs, alloc)
	s.mu.Unlock()
	tr.start()
	moment := random.IntN(8)
	if moment > 0 {
		tr.place(1)
	}
	if moment > 1 {
		tr.release()
	}
	if moment > 2 {
		tr.members[0].log.await(t, tr.ctx, "up")
	}
	time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
	supervisor := 0
	if written, err := tr.task(0).start.ReadShim(); err == nil {
		supervisor = written.Process.PID
	}
	end := random.IntN(5)
	if random.IntN(4) == 0 { // the plugin is another process from here on
		must.NoError(t, tr.again().RecoverTask(tr.members[0].handle))
	}
	switch end {
	case 0:
		must.NoError(t, tr.plugin.StopTask(id, 50*time.Millisecond, ""))
	case 1:
		must.NoError(t, tr.plugin.DestroyTask(id, true))
	case 2:
		_ = unix.Kill(supervisor, unix.SIGKILL)
	case 3:
		pids, err := isolation.Below(supervisor)()
		must.NoError(t, err)
		for _, pid := range pids {
			if random.IntN(2) == 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		must.NoError(t, tr.plugin.StopTask(id, 50*time.Millisecond, ""))
	case 4: // in the middle of its own end
		go func() { _ = tr.plugin.StopTask(id, 50*time.Millisecond, "") }()
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		_ = unix.Kill(supervisor, unix.SIGKILL)
	}
	if end != 1 {
		r, err := tr.plugin.WaitTask(tr.ctx, id)
		if err != nil {
			tr.dump()
		}
		must.NoError(t, err)
		task := tr.task(0)
		must.Eq(t, task.exit.Outcome == contract.OutcomeComplete, r.ExitCode == 0)
		s.mu.Lock()
		s.outcomes[task.exit.Outcome]++
		s.mu.Unlock()
		_ = tr.plugin.DestroyTask(id, true)
	}
	tr.gone(tr.members[0])
	for _, mount := range tr.plugin.hierarchy.Mounts {
		left, _ := filepath.Glob(filepath.Join(mount, "muster", alloc+"*"))
		must.SliceEmpty(t, left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(t, err)
	must.StrNotContains(t, string(mounts), alloc)
	// Whatever key there still is ends with a session: that of a supervisor that
	// was killed soon, that of an end's report when the planner has read it.
	for _, key := range tr.planner.Keys() {
		pair, _, err := agent.API().KV().Get(key, nil)
		must.NoError(t, err)
		if pair == nil {
			continue
		}
		must.NotEq(t, "", pair.Session, must.Sprint(key))
		var r contract.Report
		must.NoError(t, json.Unmarshal(pair.Value, &r))
		if r.State == contract.StateEnded {
			_, err = agent.API().Session().Destroy(pair.Session, nil)
			must.NoError(t, err)
		}
	}
}
