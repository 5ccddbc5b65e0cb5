package driver

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// The test program is its own supervisor and wrapper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(shim.Main())
		case "rank":
			os.Exit(shim.Rank(os.Args[2:]))
		case "readable":
			os.Exit(shim.Readable(os.Args[2:]))
		}
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue || runtime.GOMAXPROCS(0) < 8 && f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("8") // most of these tests wait, for sessions, graces and other processes
	}
	code := rendezvoustest.Main(m)
	removeTestImage()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

var built string // folder of the example rank

// programs is a folder that already has our programs, where there is no
// compiler (scripts/vm).
var programs = os.Getenv("MUSTER_TEST_PROGRAMS")

// allreduce builds the example rank once.
var allreduce = sync.OnceValues(func() (string, error) {
	if programs != "" {
		return filepath.Join(programs, "muster-allreduce-rank"), nil
	}
	dir, err := os.MkdirTemp("", "muster-test-*")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "muster-allreduce-rank")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/muster-allreduce-rank")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // it runs in images without libraries too
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the example rank: %w\n%s", err, out)
	}
	return path, nil
})

func allreduceRank(t *testing.T) string {
	path, err := allreduce()
	must.NoError(t, err)
	return path
}

// trial is a gang played by hand: a plugin, members, and the planner's side.
type trial struct {
	t       testing.TB
	ctx     context.Context
	plugin  *Plugin
	planner *rendezvoustest.Planner
	gang    contract.GangID
	members []*trialMember
	record  contract.Record
	want    float64   // bandwidth between members, Gbit/s
	events  *sync.Map // alloc -> *[]string
	mu      *sync.Mutex
}

type trialMember struct {
	cfg    *driver.TaskConfig
	handle *driver.TaskHandle
	dir    string // allocation's
	log    *logReader
	err    *logReader
}

func newPlugin(t testing.TB, config map[string]any) *Plugin {
	binary, err := os.Executable()
	must.NoError(t, err)
	p := New(hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn}), binary)
	text, err := hclspec.Encode(configSchema, config, nil)
	must.NoError(t, err)
	must.NoError(t, p.SetConfig(base.Config{MsgPack: text}))
	return p
}

// patience is how long is waited for what should come within seconds, on
// whatever machine: it only ends tests that hang.
const patience = 6 * time.Minute

// newTrial makes a gang of members with a task config each on Consul.
func newTrial(t testing.TB, members int, config map[string]any, change ...func(*driver.TaskConfig)) *trial {
	agent := rendezvoustest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	tr := &trial{t: t, ctx: ctx, events: &sync.Map{}, mu: &sync.Mutex{}, gang: contract.GangID{Region: "global", Namespace: "default", Job: strings.ReplaceAll(t.Name(), "/", "-") + "-" + randomID()[:4]}}
	tr.planner = agent.Planner(t, tr.gang)
	tr.plugin = newPlugin(t, map[string]any{"rendezvous": "consul", "interface": "lo", "consul": map[string]any{"address": agent.Address}})
	tr.followEvents(tr.plugin)
	for i := range members {
		cfg := taskConfig(t, tr.gang, fmt.Sprintf("n%d", i+1), config)
		for _, c := range change {
			c(cfg)
		}
		tr.members = append(tr.members, newMember(t, cfg))
	}
	t.Cleanup(tr.destroy)
	return tr
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func taskConfig(t testing.TB, gang contract.GangID, node string, config map[string]any) *driver.TaskConfig {
	alloc := randomID()
	dir := filepath.Join(t.TempDir(), alloc)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "train", "local"), 0o755))
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "alloc", "logs"), 0o755))
	schema := (&Plugin{}).TaskConfigSchema()
	text, err := hclspec.Encode(schema, config, map[string]cty.Value{})
	must.NoError(t, err)
	cfg := &driver.TaskConfig{ID: alloc + "/train/" + randomID()[:8], Name: "train", JobName: gang.Job, JobID: gang.Job, TaskGroupName: "rank", Namespace: gang.Namespace,
		NodeName: node, AllocID: alloc, AllocDir: dir, MsgPackConfig: text, Env: map[string]string{"NOMAD_REGION": gang.Region, "NOMAD_ALLOC_ID": alloc},
		StdoutPath: filepath.Join(dir, "alloc", "logs", ".train.stdout.fifo"), StderrPath: filepath.Join(dir, "alloc", "logs", ".train.stderr.fifo"),
		Resources: &driver.Resources{}}
	for _, name := range os.Environ() { // as Nomad does without file system isolation
		k, v, _ := strings.Cut(name, "=")
		cfg.Env[k] = v
	}
	return cfg
}

func newMember(t testing.TB, cfg *driver.TaskConfig) *trialMember {
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		must.NoError(t, unix.Mkfifo(path, 0o600))
	}
	return &trialMember{cfg: cfg, dir: cfg.AllocDir, log: readLog(t, cfg.StdoutPath), err: readLog(t, cfg.StderrPath)}
}

// logReader reads a log pipe like Nomad's logmon.
type logReader struct {
	mu    sync.Mutex
	lines []string
	file  *os.File
}

func readLog(t testing.TB, path string) *logReader {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must.NoError(t, err)
	l := &logReader{file: f}
	t.Cleanup(func() { f.Close() })
	go func() {
		for s := bufio.NewScanner(f); s.Scan(); {
			l.mu.Lock()
			l.lines = append(l.lines, s.Text())
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *logReader) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// await waits until the log holds a text.
func (l *logReader) await(t *testing.T, ctx context.Context, text string) {
	t.Helper()
	for !strings.Contains(l.text(), text) {
		if ctx.Err() != nil {
			t.Fatalf("the log never held %q:\n%s", text, l.text())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (tr *trial) followEvents(p *Plugin) {
	go func() {
		_ = p.TaskEvents(tr.ctx, func(e *driver.TaskEvent) error {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			list, _ := tr.events.LoadOrStore(e.AllocID, &[]string{})
			*list.(*[]string) = append(*list.(*[]string), e.Message)
			return nil
		})
	}()
}

func (tr *trial) eventsOf(m *trialMember) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	list, ok := tr.events.Load(m.cfg.AllocID)
	if !ok {
		return ""
	}
	return strings.Join(*list.(*[]string), "\n")
}

// awaitEvent waits until a member's events hold a text.
func (tr *trial) awaitEvent(m *trialMember, text string) {
	tr.t.Helper()
	for !strings.Contains(tr.eventsOf(m), text) {
		if tr.ctx.Err() != nil {
			tr.t.Fatalf("no event ever said %q:\n%s", text, tr.eventsOf(m))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// start starts all members' tasks.
func (tr *trial) start() {
	tr.t.Helper()
	for _, m := range tr.members {
		tr.startMember(m)
	}
}

func (tr *trial) startMember(m *trialMember) {
	tr.t.Helper()
	handle, err := tr.plugin.StartTask(m.cfg)
	must.NoError(tr.t, err)
	m.handle = handle
}

// place writes the placed record of an attempt.
func (tr *trial) place(attempt int) {
	tr.t.Helper()
	tr.record = contract.Record{V: contract.RecordVersion, Gang: tr.gang, Attempt: attempt, Phase: contract.PhasePlaced, MinBandwidth: tr.want}
	for i, m := range tr.members {
		tr.record.Members = append(tr.record.Members, contract.Member{Index: i, Alloc: m.cfg.AllocID, Task: m.cfg.Name, Group: m.cfg.TaskGroupName, Node: m.cfg.NodeName})
	}
	tr.planner.Write(tr.record)
}

// release waits for everybody's report and releases them.
func (tr *trial) release() {
	tr.t.Helper()
	tr.freeze()
	tr.planner.Write(tr.record)
}

// freeze makes the released record of the reports.
func (tr *trial) freeze() {
	tr.t.Helper()
	reports := tr.planner.Await(tr.ctx, tr.record.Attempt, "all ready", func(all map[string]contract.Report) bool {
		ready := 0
		for _, r := range all {
			if r.State == contract.StateReady {
				ready++
			}
		}
		return ready == len(tr.members)
	})
	tr.record.Phase = contract.PhaseReleased
	world := contract.World{Name: "rank"}
	for i := range tr.record.Members {
		m := &tr.record.Members[i]
		r := reports[rendezvous.MemberKey(m.Alloc, m.Task)]
		m.Start, m.Address, m.Ranks, m.Supervisor = r.Start, r.Address, r.Ranks, r.Supervisor
		world.Members = append(world.Members, i)
		if i == 0 {
			world.Host, world.Port = r.Address, r.Port
		}
	}
	tr.record.Worlds = []contract.World{world}
}

// run is start, place and release.
func (tr *trial) run() {
	tr.t.Helper()
	tr.start()
	tr.place(1)
	tr.release()
}

// wait gives how a member's task ended, as Nomad is told it.
func (tr *trial) wait(i int) *driver.ExitResult {
	tr.t.Helper()
	r, err := tr.plugin.WaitTask(tr.ctx, tr.members[i].cfg.ID)
	if err != nil {
		tr.dump()
	}
	must.NoError(tr.t, err)
	return r
}

// exit gives a member's recorded end.
func (tr *trial) exit(i int) contract.Exit {
	tr.t.Helper()
	tr.wait(i)
	e, err := tr.startDir(i).ReadExit()
	must.NoError(tr.t, err)
	must.NotNil(tr.t, e)
	return *e
}

func (tr *trial) task(i int) *task {
	tr.t.Helper()
	t, err := tr.plugin.find(tr.members[i].cfg.ID)
	must.NoError(tr.t, err)
	return t
}

func (tr *trial) startDir(i int) interface {
	ReadExit() (*contract.Exit, error)
} {
	return tr.task(i).start
}

// dump shows what is known where a test fails.
func (tr *trial) dump() {
	for i, m := range tr.members {
		tr.t.Logf("--- member %d: events\n%s\n--- output\n%s\n--- errors\n%s", i, tr.eventsOf(m), m.log.text(), m.err.text())
		if logs, err := filepath.Glob(filepath.Join(m.dir, "train", "muster", "start-*", "shim.log")); err == nil {
			for _, path := range logs {
				text, _ := os.ReadFile(path)
				tr.t.Logf("--- %s\n%s", path, text)
			}
		}
	}
}

// destroy ends what still runs and checks that nothing is left.
func (tr *trial) destroy() {
	tr.checkShims()
	if tr.t.Failed() {
		tr.dump()
	}
	for _, m := range tr.members {
		_ = tr.plugin.DestroyTask(m.cfg.ID, true)
		tr.gone(m)
	}
}

// checkShims fails the test where a supervisor crashed or raced.
func (tr *trial) checkShims() {
	for _, m := range tr.members {
		logs, _ := filepath.Glob(filepath.Join(m.dir, "train", "muster", "start-*", "shim.log"))
		for _, path := range logs {
			text, _ := os.ReadFile(path)
			for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
				if strings.Contains(string(text), bad) {
					tr.t.Errorf("%s: %s\n%s", path, bad, text)
				}
			}
		}
	}
}

// gone checks that no process of a member's tasks is left, its supervisor
// included.
func (tr *trial) gone(m *trialMember) {
	tr.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		left, err := isolation.WithEntry("NOMAD_ALLOC_ID=" + m.cfg.AllocID)
		must.NoError(tr.t, err)
		shims := shimsOf(m.cfg.AllocID)
		if len(left)+len(shims) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tr.t.Errorf("processes of %s are left: %v, supervisors %v", m.cfg.AllocID, left, shims)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shimsOf finds supervisors by the task's id among their arguments.
func shimsOf(alloc string) (pids []string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "\x00shim\x00"+alloc) {
			pids = append(pids, strings.Split(path, "/")[2])
		}
	}
	return pids
}
