package driver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// oldSupervisor answers as the supervisor of the first version did, word for
// word: what later versions added is not there, and an operation that it does
// not know it refuses.
func oldSupervisor(t *testing.T, socket string, stopped chan<- string) {
	l, err := shim.Listen(socket, 0o600)
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	end := make(chan struct{})
	serve := func(conn net.Conn) {
		defer conn.Close()
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return
		}
		var r struct{ Op, Signal string }
		must.NoError(t, json.Unmarshal([]byte(line), &r))
		switch r.Op {
		case "status":
			fmt.Fprintln(conn, `{"v":1,"status":{"stage":"running","attempt":2,"version":"0.0.9","pid":4711,"ranks":{"0":4712},"world":"rank","store":"192.0.2.11 port 20100","started":"2026-11-29T20:00:00Z"}}`)
		case "watch":
			fmt.Fprintln(conn, `{"v":1,"event":{"n":1,"at":"2026-11-29T20:00:00Z","text":"released: attempt 2, member 0 of 1"}}`)
			<-end
			fmt.Fprintln(conn, `{"v":1,"exit":{"outcome":"yielded","code":0,"rank":-1,"asked":true,"text":"left by itself after it was asked to, and named no checkpoint","at":"2026-11-29T20:01:00Z"}}`)
		case "stop":
			fmt.Fprintln(conn, `{"v":1}`)
			stopped <- r.Signal
			close(end)
		default:
			fmt.Fprintf(conn, `{"v":1,"error":"this supervisor (0.0.9) knows no operation \"%s\": it is older than the plugin"}`+"\n", r.Op)
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
}

// A plugin that was upgraded takes over a task whose supervisor is of an older
// version: it is shown, its events arrive, it is stopped, and its end is told.
func TestUpgradedPluginAdoptsAnOlderSupervisor(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 1, ranksConfig(t))
	m := tr.members[0]
	dir := taskdir.Of("", m.cfg.AllocDir, m.cfg.AllocID, m.cfg.Name)
	start, err := dir.NextStart()
	must.NoError(t, err)
	must.NoError(t, dir.MarkReleased(taskdir.Released{Attempt: 2, Start: start, At: time.Now()}))
	process := exec.Command("sleep", "300")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	identity, err := taskdir.Identify(process.Process.Pid)
	must.NoError(t, err)
	must.NoError(t, dir.Start(start).WriteShim(taskdir.Shim{V: 1, Process: identity, TaskID: m.cfg.ID, Version: "0.0.9", Start: start}))
	stopped := make(chan string, 1)
	oldSupervisor(t, dir.Start(start).Socket(), stopped)

	state, err := json.Marshal(map[string]any{"dir": dir, "start": start}) // as an older plugin wrote it
	must.NoError(t, err)
	must.NoError(t, tr.plugin.RecoverTask(&driver.TaskHandle{Version: handleVersion, Config: m.cfg, State: driver.TaskStateRunning, Driver: state}))
	tr.awaitEvent(m, "released: attempt 2")
	status, err := tr.plugin.InspectTask(m.cfg.ID)
	must.NoError(t, err)
	must.Eq(t, "running", status.DriverAttributes["stage"])
	must.ErrorContains(t, tr.plugin.SignalTask(m.cfg.ID, "SIGHUP"), "older than the plugin")
	must.NoError(t, tr.plugin.StopTask(m.cfg.ID, time.Minute, "SIGINT"))
	must.Eq(t, "SIGINT", <-stopped)
	r := tr.wait(0)
	must.Eq(t, contract.CodeAsked, r.ExitCode)
	must.Eq(t, contract.OutcomeYielded, tr.task(0).exit.Outcome)
}

// A disk that is full, at the start or later: nothing starts without its reason,
// and the end of what runs is not lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("no file system may be mounted here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	fill := func(leave int64) {
		t.Helper()
		var st unix.Statfs_t
		must.NoError(t, unix.Statfs(disk, &st))
		f, err := os.OpenFile(filepath.Join(disk, randomID()), os.O_CREATE|os.O_WRONLY, 0o600)
		must.NoError(t, err)
		defer f.Close()
		_, err = f.Write(make([]byte, max(0, int64(st.Bavail)*st.Bsize-leave)))
		must.NoError(t, err)
	}
	trial := func(command string) *trial {
		tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", command}, "nproc_per_node": 1, "log_files": true})
		tr.plugin.mu.Lock()
		tr.plugin.config.StateDir = disk
		tr.plugin.mu.Unlock()
		return tr
	}
	// Full while it runs: marks cannot be written, and its end is told.
	tr := trial(`echo up; read line < go; echo step 1 >> $MUSTER_PROGRESS_FILE; exit 42`)
	must.NoError(t, unix.Mkfifo(filepath.Join(tr.members[0].dir, "train", "go"), 0o600))
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "up")
	fill(0)
	must.NoError(t, os.WriteFile(filepath.Join(tr.members[0].dir, "train", "go"), []byte("\n"), 0))
	must.Eq(t, 42, tr.wait(0).ExitCode)
	x := tr.exit(0)
	must.Eq(t, contract.OutcomeFailed, x.Outcome)
	must.Eq(t, 42, x.Code)

	// Full at the start.
	tr = trial("true")
	_, err := tr.plugin.StartTask(tr.members[0].cfg)
	must.ErrorContains(t, err, "no space left on device")

	// Nearly full at the preflight.
	files, err := filepath.Glob(filepath.Join(disk, strings.Repeat("?", 32)))
	must.NoError(t, err)
	for _, path := range files {
		must.NoError(t, os.Remove(path))
	}
	tr = trial("true")
	tr.start()
	fill(256 << 10)
	tr.place(1)
	p := tr.refusal(tr.members[0])
	must.Eq(t, "disk", p.What)
	must.StrContains(t, p.Text, "bytes are free in "+disk)
}
