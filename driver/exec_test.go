package driver

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// buffer is what a command wrote so far.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *buffer) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(b.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never wrote %q:\n%s", text, b.String())
		}
	}
}

// running is a gang of one whose rank sleeps.
func running(t *testing.T, change ...func(*driver.TaskConfig)) *trial {
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "echo mine >/dev/shm/mine; echo up; sleep 300"}, "nproc_per_node": 1}, change...)
	tr.run()
	tr.members[0].log.await(t, tr.ctx, "up")
	return tr
}

func (tr *trial) exec(ctx context.Context, req driver.ExecRequest) (*driver.ExitResult, error) {
	if req.Stdin == nil {
		req.Stdin = strings.NewReader("")
	}
	return tr.plugin.ExecTask(ctx, tr.members[0].cfg.ID, req)
}

// A command sees what the ranks see, is bounded as they are, and its input,
// outputs and end are its caller's.
func TestExec(t *testing.T) {
	tr := running(t)
	var out, errs buffer
	r, err := tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"sh", "-c", "cat; echo bad >&2; pwd; cat /proc/self/cgroup; exit 7"}, Stdin: strings.NewReader("given\n"), Stdout: &out, Stderr: &errs})
	must.NoError(t, err)
	must.Eq(t, driver.ExitResult{ExitCode: 7}, *r)
	must.StrContains(t, out.String(), "given\n"+filepath.Join(tr.members[0].dir, "train"))
	must.Eq(t, "bad\n", errs.String())
	if tr.plugin.hierarchy.Version > 0 {
		must.StrContains(t, out.String(), "/muster/"+strings.ReplaceAll(tr.members[0].cfg.ID, "/", "."))
	}
	if isolation.CanEnter() == nil {
		out = buffer{}
		_, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"cat", "/dev/shm/mine"}, Stdout: &out, Stderr: &errs})
		must.NoError(t, err)
		must.Eq(t, "mine\n", out.String())
	}
	r, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"sh", "-c", "kill -9 $$"}, Stdout: &out, Stderr: &errs})
	must.NoError(t, err)
	must.Eq(t, driver.ExitResult{ExitCode: 137, Signal: 9}, *r)
	_, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"no-such-program"}, Stdout: &out, Stderr: &errs})
	must.ErrorContains(t, err, `no program "no-such-program"`)

	// What it leaves in the background does not hold it up, and goes with the task.
	_, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"sh", "-c", "setsid sleep 3000 & exit 0"}, Stdout: &out, Stderr: &errs})
	must.NoError(t, err)

	// The caller goes: the command goes.
	ctx, cancel := context.WithCancel(tr.ctx)
	var never buffer
	go func() { never.await(t, "started"); cancel() }()
	read, write := io.Pipe()
	defer write.Close()
	_, err = tr.exec(ctx, driver.ExecRequest{Command: []string{"sh", "-c", "echo started; sleep 301"}, Stdin: read, Stdout: &never, Stderr: &errs})
	must.ErrorIs(t, err, context.Canceled)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		pids, err := isolation.WithEntry("NOMAD_ALLOC_ID=" + tr.members[0].cfg.AllocID)
		must.NoError(t, err)
		left := 0
		for _, pid := range pids {
			if text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); strings.Contains(string(text), "301") {
				left++
			}
		}
		if left == 0 {
			break
		}
		must.True(t, time.Now().Before(deadline))
	}
	must.NoError(t, tr.plugin.StopTask(tr.members[0].cfg.ID, 0, ""))
	tr.wait(0)
	_, err = tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"true"}})
	must.ErrorContains(t, err, "over")
}

// With a terminal: it is the command's own, with the size that the user's has;
// the user's keys are signals and the end of the input.
func TestExecOnATerminal(t *testing.T) {
	tr := running(t)
	sizes := make(chan driver.TerminalSize, 2)
	keys, typed := io.Pipe()
	var out buffer
	sizes <- driver.TerminalSize{Height: 33, Width: 111}
	script := `tty; echo $TERM; trap 'stty size; echo resized' WINCH; trap 'over=1; echo interrupted' INT
until [ "$(stty size)" = "33 111" ]; do sleep 0.01; done; stty size; echo ready
until [ "$over" ]; do # a signal is looked at when read returns
  read -t 0.1 line && echo "read $line"
done
echo waits
read line || exit 9`
	type result struct {
		r   *driver.ExitResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"bash", "-c", script}, TTY: true, Stdin: keys, Stdout: &out, Resize: sizes})
		done <- result{r, err}
	}()
	out.await(t, "33 111\r\nready")
	must.StrContains(t, out.String(), "/dev/pts/0\r\nxterm\r\n")
	_, err := typed.Write([]byte("a line\n"))
	must.NoError(t, err)
	out.await(t, "read a line")
	sizes <- driver.TerminalSize{Height: 44, Width: 122}
	out.await(t, "44 122\r\nresized")
	_, err = typed.Write([]byte{3}) // Ctrl-C
	must.NoError(t, err)
	out.await(t, "interrupted\r\nwaits") // a timed read may lose the end of the input
	typed.Close()
	r := <-done
	must.NoError(t, r.err)
	must.Eq(t, 9, r.r.ExitCode)
}

// As the task's user, while the task is still held.
func TestExecAsTheUser(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("only root can start tasks as another user")
	}
	tr := newTrial(t, 1, map[string]any{"launcher": "ranks", "command": []any{"/bin/true"}, "nproc_per_node": 1}, func(cfg *driver.TaskConfig) {
		cfg.User = "nobody"
		for dir := cfg.AllocDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the test's own folders are private
			_ = os.Chmod(dir, 0o755)
		}
	})
	tr.start()
	var out, errs buffer
	for _, tty := range []bool{false, true} {
		out = buffer{}
		r, err := tr.exec(tr.ctx, driver.ExecRequest{Command: []string{"sh", "-c", "id -un; echo to stdout >/dev/stdout"}, TTY: tty, Stdout: &out, Stderr: &errs})
		must.NoError(t, err)
		must.Eq(t, 0, r.ExitCode)
		must.Eq(t, "nobody\nto stdout\n", strings.ReplaceAll(out.String(), "\r", ""))
	}
}
