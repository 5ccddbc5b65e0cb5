//go:build linux

package nomadsim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// What a server takes for the writes that gangs consist of: one by one, in wall time and in processor time with all that
// follows from them, and variables by sixteen writers at once. With NOMAD_BIN it is a real server with its raft log on disk
// (beside it one client with raw_exec, as root); otherwise, and always beside it, the simulated one, without commit time
// and with the one of docs/nomadsim.md. Run with:
// NOMAD_BIN=... go test ./internal/nomadsim -run xxx -bench Server -benchtime 1x
func BenchmarkServer(b *testing.B) {
	if os.Getenv("NOMAD_BIN") != "" {
		b.Run("real", func(b *testing.B) {
			s := startServer(b)
			for range b.N {
				s.measure(b)
			}
		})
	}
	for name, o := range map[string]nomadsim.Options{
		"simulated":             {},
		"simulated, with a log": {CommitTime: 1200 * time.Microsecond, SignTime: time.Millisecond, Schedulers: 2},
	} {
		b.Run(name, func(b *testing.B) {
			o.Nodes = nodes(1, 0)
			sim, err := nomadsim.Start(b.Context(), o)
			must.NoError(b, err)
			defer sim.Close()
			s := &server{client: sim.Client(), driver: "mock_driver", config: map[string]any{"run_for": "1ms"}, used: func() time.Duration {
				var r syscall.Rusage
				must.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
				return time.Duration(r.Utime.Nano() + r.Stime.Nano())
			}}
			for range b.N {
				s.measure(b)
			}
		})
	}
}

type server struct {
	client *api.Client
	driver string
	config map[string]any
	used   func() time.Duration // processor time
	round  int
}

func (s *server) measure(b *testing.B) {
	const n = 60
	s.round++
	tell := s.listen(b)
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%d-%d", kind, s.round, i) }
	write := func(path string) {
		// As long as what the planner keeps of a gang.
		_, _, err := s.client.Variables().Create(&api.Variable{Path: path, Items: api.VariableItems{"state": strings.Repeat("x", 1500)}}, nil)
		must.NoError(b, err)
	}
	each := func(what string, f func(i int)) {
		var took []float64
		used := s.used()
		for i := range n {
			start := time.Now()
			f(i)
			took = append(took, time.Since(start).Seconds()*1000)
		}
		s.settle(b)
		slices.Sort(took)
		b.ReportMetric(took[n/2], what+"-p50-ms")
		b.ReportMetric(took[n*9/10], what+"-p90-ms")
		b.ReportMetric((s.used()-used).Seconds()*1000/n, what+"-cpu-ms")
	}
	each("variable", func(i int) { write(name("bench/one", i)) })
	each("waiting-job", func(i int) {
		j := s.job(name("waits", i))
		j.Constraints = []*api.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "none"}}
		_, _, err := s.client.Jobs().Register(j, nil)
		must.NoError(b, err)
	})
	each("placed-job", func(i int) {
		r, _, err := s.client.Jobs().Register(s.job(name("placed", i)), nil)
		must.NoError(b, err)
		for index := uint64(0); ; {
			e, meta, err := s.client.Evaluations().Info(r.EvalID, &api.QueryOptions{WaitIndex: index})
			must.NoError(b, err)
			if index = meta.LastIndex; e.Status == "complete" {
				must.MapEmpty(b, e.FailedTGAllocs)
				return
			}
		}
	})
	start := time.Now()
	var wg sync.WaitGroup
	for k := range 16 {
		wg.Go(func() {
			for i := range n / 4 {
				write(name(fmt.Sprintf("bench/many-%d", k), i))
			}
		})
	}
	wg.Wait()
	b.ReportMetric(16*n/4/time.Since(start).Seconds(), "variables-of-16/s")
	s.settle(b)
	tell()
}

func (s *server) job(id string) *api.Job {
	t := api.NewTask("t", s.driver)
	t.Config, t.Resources = s.config, &api.Resources{CPU: new(1), MemoryMB: new(10)}
	t.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	g := api.NewTaskGroup("g", 4)
	g.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	g.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	return api.NewBatchJob(id, id, "global", 50).AddTaskGroup(g.AddTask(t)).AddDatacenter("*")
}

// told are the server's own measurements that tell where the time goes.
var told = []string{"raft.commitTime", "raft.boltdb.storeLogs", "raft.fsm.apply", "nomad.plan", "nomad.worker.invoke_scheduler", "nomad.client.update_alloc", "nomad.job.register", "nomad.variables.apply"}

// listen logs what a real server has measured itself, once the returned function is called: of each measurement the
// interval of ten seconds with the most.
func (s *server) listen(b *testing.B) (tell func()) {
	if s.driver != "raw_exec" {
		return func() {}
	}
	type sample struct {
		Name      string
		Count     int
		Mean, Max float64
	}
	most, end, done := map[string]sample{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(2 * time.Second):
			}
			var got struct{ Samples []sample }
			if _, err := s.client.Raw().Query("/v1/metrics", &got, nil); err != nil {
				b.Logf("read the server's metrics: %v", err)
			}
			for _, m := range got.Samples {
				if m.Count > most[m.Name].Count {
					most[m.Name] = m
				}
			}
		}
	}()
	return func() {
		time.Sleep(22 * time.Second) // an interval is shown when it is over
		close(end)
		<-done
		for name, m := range most {
			if slices.ContainsFunc(told, func(t string) bool { return strings.HasPrefix(strings.TrimPrefix(name, "nomad."), t) }) {
				b.Logf("%s: %d times, %.2f ms, at most %.2f", name, m.Count, m.Mean, m.Max)
			}
		}
	}
}

// settle waits until what was placed has ended.
func (s *server) settle(b *testing.B) {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		must.True(b, time.Now().Before(end), must.Sprint("the tasks have ended"))
		allocs, _, err := s.client.Allocations().List(nil)
		must.NoError(b, err)
		evals, _, err := s.client.Evaluations().List(nil)
		must.NoError(b, err)
		if !slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool {
			return a.ClientStatus == "pending" || a.ClientStatus == "running"
		}) &&
			!slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "pending" }) {
			return
		}
	}
}

// startServer starts a real server, its state in a folder of the test's, and a client beside it.
func startServer(b *testing.B) *server {
	dir := b.TempDir()
	b.Cleanup(func() { // the folders of secrets are file systems of their own, where the client is root
		mounts, err := os.ReadFile("/proc/self/mounts")
		must.NoError(b, err)
		for line := range strings.Lines(string(mounts)) {
			if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir) {
				must.NoError(b, syscall.Unmount(at, 0))
			}
		}
	})
	var ports []int
	var listeners []net.Listener
	for range 6 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.NoError(b, err)
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	for _, l := range listeners {
		must.NoError(b, l.Close())
	}
	agent := func(name string, p []int, more map[string]any) *exec.Cmd {
		conf := map[string]any{"name": name, "data_dir": filepath.Join(dir, name), "bind_addr": "127.0.0.1", "advertise": map[string]string{"http": "127.0.0.1", "rpc": "127.0.0.1", "serf": "127.0.0.1"}, "log_level": "ERROR", "disable_update_check": true,
			"ports": map[string]int{"http": p[0], "rpc": p[1], "serf": p[2]}}
		for k, v := range more {
			conf[k] = v
		}
		text, err := json.Marshal(conf)
		must.NoError(b, err)
		path := filepath.Join(dir, name+".json")
		must.NoError(b, os.WriteFile(path, text, 0o600))
		cmd := exec.Command(os.Getenv("NOMAD_BIN"), "agent", "-config", path)
		log := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must.NoError(b, cmd.Start())
		b.Cleanup(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
			if b.Failed() {
				b.Logf("%s: %s", name, log)
			}
		})
		return cmd
	}
	cmd := agent("server", ports[:3], map[string]any{"server": map[string]any{"enabled": true, "bootstrap_expect": 1}, "telemetry": map[string]any{"disable_hostname": true}})
	agent("client", ports[3:], map[string]any{
		"client": map[string]any{"enabled": true, "servers": []string{fmt.Sprintf("127.0.0.1:%d", ports[1])}, "cpu_total_compute": 100_000, "memory_total_mb": 100_000,
			"options": map[string]string{"fingerprint.denylist": "env_aws,env_gce,env_azure,env_digitalocean,cni,bridge,plugins_cni", "driver.allowlist": "raw_exec"}},
		"plugin": []any{map[string]any{"raw_exec": []any{map[string]any{"config": []any{map[string]any{"enabled": true}}}}}}})
	client, err := api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])})
	must.NoError(b, err)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("server and client are not up within a minute")
		}
		list, _, err := client.Nodes().List(nil)
		if err == nil && len(list) == 1 && list[0].Status == "ready" {
			break
		}
	}
	return &server{client: client, driver: "raw_exec", config: map[string]any{"command": "/bin/true"}, used: func() time.Duration {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		must.NoError(b, err)
		// What follows the command's name, from the state on: utime and stime are the 12th and 13th, in hundredths of a second.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		var ticks int
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			must.NoError(b, err)
			ticks += n
		}
		return time.Duration(ticks) * 10 * time.Millisecond
	}}
}
