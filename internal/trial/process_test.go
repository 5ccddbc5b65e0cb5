//go:build linux

package trial

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func shell(t *testing.T, dir, script string) *Process {
	t.Helper()
	p := &Process{Name: "shell", Log: filepath.Join(dir, "log"), path: "/bin/sh", args: []string{"-c", script}, env: environment(), dir: dir}
	t.Cleanup(func() { p.stop(0) })
	return p
}

func TestProcessIsKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	p := shell(t, t.TempDir(), "echo started; exec sleep 600")
	must.NoError(t, p.start())
	first := p.Pid()
	must.Positive(t, first)
	must.ErrorContains(t, p.start(), "it runs already")
	sid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, uintptr(first), 0, 0)
	must.Eq(t, 0, errno)
	must.Eq(t, first, int(sid), must.Sprint("it leads a session of its own"))

	logged := func(text string) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		must.NoError(t, p.wait(ctx, "wait for the log", func(context.Context) error {
			if p.Tail(9) != text {
				return errors.New(p.Tail(9))
			}
			return nil
		}))
	}
	logged("started")
	must.NoError(t, p.Kill())
	must.Eq(t, 0, p.Pid())
	must.ErrorContains(t, p.Kill(), "does not run")
	must.NoError(t, p.start())
	must.NotEq(t, first, p.Pid())
	logged("started\nstarted")
	must.Eq(t, "started", p.Tail(1))
}

func TestStopTakesTheWholeGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := shell(t, dir, "trap '' TERM; sleep 600 & echo both; wait")
	must.NoError(t, p.start())
	must.NoError(t, p.wait(t.Context(), "output", func(context.Context) error {
		if p.Tail(1) != "both" {
			return errors.New("none")
		}
		return nil
	}))
	p.stop(0)
	must.NoError(t, nothingIn(dir))
}

// nothingIn waits until nothing runs in the folder any more.
func nothingIn(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return poll(ctx, "wait for the folder's processes", func(context.Context) error {
		left, err := Processes(dir)
		if err == nil && len(left) > 0 {
			err = errors.New(left[0].String())
		}
		return err
	})
}

func TestWaitTellsOfAnEarlyEnd(t *testing.T) {
	t.Parallel()
	p := shell(t, t.TempDir(), "echo no such port; exit 3")
	must.NoError(t, p.start())
	err := p.wait(t.Context(), "start the shell", func(context.Context) error { return errors.New("not ready") })
	must.ErrorContains(t, err, "start the shell: shell ended before (exit status 3)")
	must.ErrorContains(t, err, "no such port")
}

func TestWaitTellsWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	p := shell(t, t.TempDir(), "exec sleep 600")
	must.NoError(t, p.start())
	ctx, cancel := context.WithCancel(t.Context())
	err := p.wait(ctx, "start the shell", func(context.Context) error { cancel(); return errors.New("port is closed") })
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorContains(t, err, "port is closed")
}

func TestSweepFindsWhatWasOrphaned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The outer shell leaves a grandchild in a session of its own; only its
	// environment tells whose it is.
	p := shell(t, dir, "cd /; MARK="+dir+"/n1 setsid sleep 600 & cd /; wait")
	must.NoError(t, p.start())
	must.NoError(t, p.wait(t.Context(), "grandchild", func(context.Context) error {
		found, err := Processes(dir + "/n1")
		if err == nil && !hasSleep(found) {
			err = errors.New("not there")
		}
		return err
	}))
	must.NoError(t, p.Kill())
	killed, err := sweep(dir)
	must.NoError(t, err)
	must.True(t, hasSleep(killed), must.Sprint(killed))
	left, err := Processes(dir)
	must.NoError(t, err)
	must.Eq(t, nil, left)
}

func hasSleep(list []Running) bool {
	for _, p := range list {
		if strings.HasSuffix(p.Args[0], "sleep") {
			return true
		}
	}
	return false
}

func TestAbandonedClustersAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	left, used := filepath.Join(os.TempDir(), tempPrefix+"left"), filepath.Join(os.TempDir(), tempPrefix+"used")
	for _, dir := range []string{left, used} {
		must.NoError(t, os.Mkdir(dir, 0o755))
	}
	must.NoError(t, claim(used))
	// A process that is over, whose number may long be another's.
	p := shell(t, left, "exec sleep 600")
	must.NoError(t, p.start())
	must.NoError(t, os.WriteFile(filepath.Join(left, ownerFile), []byte(owner(p.Pid())), 0o644))
	must.NoError(t, removeAbandoned())
	must.DirExists(t, left)
	must.NoError(t, os.WriteFile(filepath.Join(left, ownerFile), []byte(owner(p.Pid())+"1"), 0o644))
	must.NoError(t, removeAbandoned())
	must.DirNotExists(t, left)
	must.DirExists(t, used)
	<-p.exited()
}

func TestPortsAreGivenOnce(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 50 {
		port, err := freePort()
		must.NoError(t, err)
		must.False(t, seen[port])
		must.Between(t, servicePorts, port, allocationPorts-1)
		seen[port] = true
	}
	first, err := portBlock()
	must.NoError(t, err)
	second, err := portBlock()
	must.NoError(t, err)
	must.NotEq(t, first, second)
	must.Eq(t, 0, (first-second)%portsPerNode)
}

func TestEnvironmentPointsNowhereElse(t *testing.T) {
	t.Setenv("NOMAD_TOKEN", "secret")
	t.Setenv("CONSUL_HTTP_ADDR", "elsewhere:8500")
	t.Setenv("KEPT", "yes")
	env := strings.Join(environment("NOMAD_ADDR=here"), "\n")
	must.StrNotContains(t, env, "secret")
	must.StrNotContains(t, env, "elsewhere")
	must.StrContains(t, env, "KEPT=yes")
	must.StrContains(t, env, "NOMAD_ADDR=here")
}

func TestFindSaysWhereItLooked(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("NOMAD_BIN", filepath.Join(empty, "nomad"))
	_, err := FindNomad()
	must.ErrorContains(t, err, "NOMAD_BIN")
	t.Setenv("NOMAD_BIN", "")
	t.Setenv("PATH", empty)
	path, err := FindNomad()
	must.NoError(t, err)
	must.Eq(t, "", path)

	text := filepath.Join(empty, "text")
	must.NoError(t, os.WriteFile(text, nil, 0o644))
	t.Setenv("CONSUL_BIN", text)
	_, err = FindConsul(t.Context(), empty, func(string) {})
	must.ErrorContains(t, err, "is not a program")
	t.Setenv("CONSUL_BIN", "")
	// No go on the PATH either: the error names each place.
	_, err = FindConsul(t.Context(), empty, func(string) {})
	must.ErrorContains(t, err, filepath.Join(empty, "consul"))
	must.ErrorContains(t, err, "not on the PATH")
	must.ErrorContains(t, err, "go mod download")

	_, err = beside(empty)
	for _, name := range []string{musterName, driverName, deviceName, rankName} {
		must.ErrorContains(t, err, filepath.Join(empty, name))
	}
}
