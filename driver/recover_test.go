package driver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// again makes another plugin process's view: one that knows no task.
func (tr *trial) again() *Plugin {
	old := tr.plugin
	old.mu.Lock()
	tasks := old.tasks
	old.tasks = map[string]*task{}
	config := old.config
	old.mu.Unlock()
	for _, t := range tasks { // its connections break
		t.once.Do(func() { close(t.forgot) })
	}
	p := newPlugin(tr.t, map[string]any{})
	p.config = config
	tr.plugin = p
	tr.followEvents(p)
	return p
}

// C14 at every stage of a task's life: the plugin goes, another comes, and the
// task is the same, once.
func TestRecoverAtEachStage(t *testing.T) {
	t.Parallel()
	lines := filepath.Join(t.TempDir(), "starts")
	config := map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "echo start >> " + lines + "; exec " + allreduceRank(t) + " -steps 100 -step-time 10ms"}, "nproc_per_node": 1}
	tr := newTrial(t, 1, config)
	tr.start()
	recover := func() {
		t.Helper()
		must.NoError(t, tr.again().RecoverTask(tr.members[0].handle))
		must.NoError(t, tr.plugin.RecoverTask(tr.members[0].handle), must.Sprint("a second time"))
	}
	recover() // held
	tr.place(1)
	recover()
	tr.release()
	recover() // just released
	tr.members[0].log.await(t, tr.ctx, "started at")
	before, err := tr.plugin.InspectTask(tr.members[0].cfg.ID)
	must.NoError(t, err)
	recover() // running
	after, err := tr.plugin.InspectTask(tr.members[0].cfg.ID)
	must.NoError(t, err)
	must.Eq(t, before.DriverAttributes["supervisor"], after.DriverAttributes["supervisor"])
	must.Eq(t, "running", after.DriverAttributes["stage"])
	must.Eq(t, before.Started, after.Started)

	must.Eq(t, 0, tr.wait(0).ExitCode)
	x := tr.exit(0)
	recover() // over: state A
	must.Eq(t, 0, tr.wait(0).ExitCode)
	must.Eq(t, x.At, tr.task(0).exit.At, must.Sprint("with the recorded time"))
	text, err := os.ReadFile(lines)
	must.NoError(t, err)
	must.Eq(t, "start\n", string(text))

	must.NoError(t, tr.plugin.DestroyTask(tr.members[0].cfg.ID, true))
	must.ErrorContains(t, tr.again().RecoverTask(tr.members[0].handle), "Nomad has been told")
}

// C14 B: a process that has the supervisor's number is not the supervisor.
func TestRecoverDoesNotAdoptAStranger(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t, "-steps", "100000", "-step-time", "10ms"))
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "started at")
	task := tr.task(0)
	written, err := task.start.ReadShim()
	must.NoError(t, err)
	tr.again()
	must.NoError(t, unix.Kill(written.Process.PID, unix.SIGKILL))
	// The number is now this test's own.
	written.Process.PID = os.Getpid()
	must.NoError(t, task.start.WriteShim(written))
	must.NoError(t, tr.plugin.RecoverTask(tr.members[0].handle))
	r := tr.wait(0)
	must.Eq(t, -1, r.ExitCode)
	must.ErrorContains(t, r.Err, "lost")
	tr.gone(tr.members[0])
}

// A supervisor that dies while its plugin is away: lost, never 0, nothing left,
// and its peers learn of it at once from the plugin, which reports it.
func TestLostSupervisor(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 2, ranksConfig(t, "-steps", "100000", "-step-time", "10ms"))
	tr.run()
	for _, m := range tr.members {
		m.log.await(t, tr.ctx, "started at")
	}
	tr.planner.Await(tr.ctx, 1, "training", func(all map[string]contract.Report) bool {
		return all[tr.members[1].cfg.AllocID+".train"].State == contract.StateTraining
	})
	written, err := tr.task(1).start.ReadShim()
	must.NoError(t, err)
	tr.again()
	must.NoError(t, unix.Kill(written.Process.PID, unix.SIGKILL))
	for _, m := range tr.members {
		must.NoError(t, tr.plugin.RecoverTask(m.handle))
	}
	must.Eq(t, contract.OutcomeLost, tr.exit(1).Outcome)
	must.Eq(t, -1, tr.wait(1).ExitCode)
	must.SliceContains(t, []contract.Outcome{contract.OutcomePeer, contract.OutcomeFailed}, tr.exit(0).Outcome)
	must.StrNotContains(t, tr.exit(0).Text, "vanished", must.Sprint("the plugin tells of it, before its session expires"))
	must.Eq(t, contract.OutcomeLost, tr.planner.Reports(1)[tr.members[1].cfg.AllocID+".train"].Exit.Outcome)
}

func TestRecoverRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, map[string]any{"rendezvous": "signal"})
	cfg := taskConfig(t, contract.GangID{Namespace: "default", Job: "x"}, "n1", map[string]any{"script": "a"})
	dir := taskdir.Of("", cfg.AllocDir, cfg.AllocID, cfg.Name)
	state, err := json.Marshal(handleState{dir, 1})
	must.NoError(t, err)
	for want, handle := range map[string]*driver.TaskHandle{
		"of version 9":             {Version: 9, Config: cfg, Driver: state},
		"cannot be read":           {Version: handleVersion, Config: cfg, Driver: []byte("{")},
		"names no start":           {Version: handleVersion, Config: cfg, Driver: []byte("{}")},
		"the supervisor's process": {Version: handleVersion, Config: cfg, Driver: state},
	} {
		must.ErrorContains(t, p.RecoverTask(handle), want)
	}
	_, err = dir.NextStart()
	must.NoError(t, err)
	must.NoError(t, dir.Start(1).WriteShim(taskdir.Shim{TaskID: "another"}))
	must.ErrorContains(t, p.RecoverTask(&driver.TaskHandle{Version: handleVersion, Config: cfg, Driver: state}), "is of task another")
	for _, id := range []string{"", "unknown"} {
		_, err := p.WaitTask(context.Background(), id)
		must.ErrorIs(t, err, driver.ErrTaskNotFound)
		must.ErrorIs(t, p.DestroyTask(id, true), driver.ErrTaskNotFound)
		must.ErrorIs(t, p.SignalTask(id, "SIGHUP"), driver.ErrTaskNotFound)
	}
}

// C16 at the driver: nobody reads the log, at the start or later, and the ranks
// go on; the stall is told; the stop takes no longer.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	counter := filepath.Join(t.TempDir(), "counter")
	script := `i=0; while :; do i=$((i+1)); echo $i > ` + counter + `; head -c 65536 /dev/zero | tr '\0' x; echo; sleep 0.05; done`
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", script}, "nproc_per_node": 1})
	must.NoError(t, tr.members[0].log.file.Close()) // logmon is gone
	tr.start()
	tr.place(1)
	tr.release()
	read := func() string {
		text, _ := os.ReadFile(counter)
		return strings.TrimSpace(string(text))
	}
	for len(read()) < 2 { // ten turns are far more than pipe and buffer hold
		must.NoError(t, tr.ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
	tr.awaitEvent(tr.members[0], "nobody reads the task's log")
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, time.Hour, ""))
	must.Eq(t, contract.OutcomeYielded, tr.exit(0).Outcome)
}

// C16 d, and whatever else is wrong with the log's path.
func TestLogThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t))
	tr.members[0].cfg.StdoutPath += ".absent"
	_, err := tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, "open the task's log")
}

func TestUsageIsSummed(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "(head -c 5000000 /dev/zero; sleep 300) | tail & (while :; do :; done) & while :; do :; done"}, "nproc_per_node": 1})
	tr.run()
	ctx, cancel := context.WithCancel(tr.ctx)
	defer cancel()
	n := 0
	err := tr.plugin.TaskStats(ctx, tr.members[0].cfg.ID, 300*time.Millisecond, func(u *driver.TaskUsage) error {
		if n++; u.CPU.Percent > 20 && len(u.ByPID) >= 2 && u.Memory.RSS > 5_000_000 {
			must.Less(t, 100_000_000, u.Memory.RSS)
			must.Between(t, u.Memory.RSS, u.Memory.Usage, 200_000_000)
			must.SliceContains(t, u.CPU.Measured, "Percent")
			cancel()
		}
		return nil
	})
	must.ErrorIs(t, err, context.Canceled)
}

func TestExecInTheTask(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t), func(cfg *driver.TaskConfig) { cfg.Env["MINE"] = "yes"; cfg.Env["CUDA_VISIBLE_DEVICES"] = "0,1" })
	tr.start()
	var out strings.Builder
	r, err := tr.plugin.ExecTask(tr.ctx, tr.members[0].cfg.ID, driver.ExecRequest{Command: []string{"/bin/sh", "-c", "echo $MINE [$CUDA_VISIBLE_DEVICES] $PWD; exit 3"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out})
	must.NoError(t, err)
	must.Eq(t, 3, r.ExitCode)
	must.Eq(t, "yes [] "+filepath.Join(tr.members[0].dir, "train")+"\n", out.String())
}

// C23: what a killed supervisor held does not keep the next attempt waiting.
func TestNextAttemptAfterACrashStartsAtOnce(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t, "-steps", "100000", "-step-time", "10ms"))
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "started at")
	tr.again() // nobody cleans up after it
	pids := shimsOf(tr.members[0].cfg.AllocID)
	must.SliceLen(t, 1, pids)
	pid, err := strconv.Atoi(pids[0])
	must.NoError(t, err)
	must.NoError(t, unix.Kill(pid, unix.SIGKILL))

	next := newTrial(t, 1, ranksConfig(t, "-steps", "3"))
	next.gang, next.planner = tr.gang, tr.planner
	cfg := taskConfig(t, tr.gang, "n1", ranksConfig(t, "-steps", "3"))
	next.members = []*trialMember{newMember(t, cfg)}
	// As the planner does: the first attempt's record ends before the members of
	// the next come, or they would read that it was released without them.
	tr.record.Phase, tr.record.Reason = contract.PhaseEnded, "damaged"
	tr.planner.Write(tr.record)
	next.start()
	next.place(2)
	next.release()
	must.Eq(t, 0, next.wait(0).ExitCode)
	must.NoError(t, tr.plugin.RecoverTask(tr.members[0].handle)) // the first attempt is cleaned up too
	must.Eq(t, contract.OutcomeLost, tr.exit(0).Outcome)
}
