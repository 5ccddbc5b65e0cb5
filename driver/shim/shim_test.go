package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/internal/contract"
)

// served gives a server at a path longer than a socket address may be.
func served(t *testing.T, handle func(Request) (Answer, error)) (*server, string) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	must.NoError(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, "shim.sock")
	must.NoError(t, os.WriteFile(path, nil, 0o600)) // what a dead process left
	l, err := Listen(path, 0o600)
	must.NoError(t, err)
	s := newServer(l, handle, nil)
	t.Cleanup(func() { l.Close() })
	return s, path
}

func TestCall(t *testing.T) {
	_, path := served(t, func(r Request) (Answer, error) {
		if r.Op == OpSignal {
			return Answer{}, errors.New("no signal is named " + r.Signal)
		}
		return Answer{Status: &Status{PID: 7}}, nil
	})
	a, err := Call(path, Request{Op: OpStatus}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, 7, a.Status.PID)
	_, err = Call(path, Request{Op: OpSignal, Signal: "X"}, time.Minute)
	must.EqError(t, err, "no signal is named X")
	must.False(t, errors.Is(err, ErrNoSupervisor))
	_, err = Call(path+".none", Request{Op: OpStatus}, time.Minute)
	must.ErrorIs(t, err, ErrNoSupervisor)
}

// A plugin that comes back gets what the last one did not take, once, and the
// exit at the end.
func TestWatchGoesOnWhereTheLastLeftOff(t *testing.T) {
	s, path := served(t, nil)
	s.tell("one", nil)
	s.tell("two", map[string]string{"k": "v"})
	stop := make(chan struct{})
	var seen []string
	_, err := Watch(path, stop, func(e Event) {
		if seen = append(seen, e.Text); len(seen) == 2 {
			must.Eq(t, "v", e.Annotations["k"])
			go func() { // once the second is confirmed, the plugin goes
				defer close(stop)
				for {
					s.mu.Lock()
					confirmed := s.seen
					s.mu.Unlock()
					if confirmed == 2 {
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
		}
	})
	must.ErrorIs(t, err, ErrNoSupervisor)
	s.tell("three", nil)
	done, back := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		exit, err := Watch(path, nil, func(e Event) { seen = append(seen, e.Text); close(back) })
		must.NoError(t, err)
		must.Eq(t, contract.OutcomeComplete, exit.Outcome)
	}()
	<-back
	s.finish(contract.Exit{Outcome: contract.OutcomeComplete})
	<-done
	must.Eq(t, []string{"one", "two", "three"}, seen)
}

func TestServerTakesAnyInput(t *testing.T) {
	_, path := served(t, func(Request) (Answer, error) { return Answer{}, nil })
	for _, text := range []string{"", "{", "null\n", "[]\n", "{\"v\":99,\"op\":7}\n", strings.Repeat("x", 100_000) + "\n"} {
		conn, err := Dial(path, time.Minute)
		must.NoError(t, err)
		_, err = conn.Write([]byte(text))
		must.NoError(t, err)
		conn.Close()
	}
	_, err := Call(path, Request{Op: OpStatus}, time.Minute)
	must.NoError(t, err)
}

// theSpawner is the one that a process can have: it waits for all children.
var theSpawner = sync.OnceValues(func() (*spawner, error) { return newSpawner(func() error { return nil }, 0) })

func TestSpawner(t *testing.T) {
	s, err := theSpawner()
	must.NoError(t, err)
	runs := func(argv ...string) (string, error) {
		out, err := run(t.Context(), s, command{argv: argv, env: []string{"PATH=/usr/bin:/bin", "A=b"}, dir: "/"})
		return strings.TrimSpace(string(out)), err
	}
	out, err := runs("sh", "-c", "echo $A $PWD")
	must.NoError(t, err)
	must.Eq(t, "b /", out)
	_, err = runs("sh", "-c", "echo reason >&2; exit 3")
	must.ErrorContains(t, err, "code 3: reason")
	_, err = runs("sh", "-c", "kill -9 $$")
	must.ErrorContains(t, err, "signal 9")
	_, err = runs("no-such-program")
	must.ErrorContains(t, err, "looked in /usr/bin:/bin")
	_, err = runs("/no/such/program")
	must.ErrorContains(t, err, "no such file")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = run(ctx, s, command{argv: []string{"/bin/sh", "-c", "sleep 3000 & sleep 3000"}, dir: "/"})
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

// Processes that end while nobody looks are told in the order in which they
// ended.
func TestDeathsInOrder(t *testing.T) {
	s, err := theSpawner()
	must.NoError(t, err)
	var chans []<-chan ended
	var pids []int
	for range 3 {
		p, err := s.start(command{argv: []string{"/bin/sleep", "3000"}, dir: "/"})
		must.NoError(t, err)
		chans, pids = append(chans, p.done), append(pids, p.pid)
	}
	s.mu.Lock() // the reaper is late
	for _, pid := range slices.Backward(pids) {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		for ended := false; !ended; time.Sleep(time.Millisecond) {
			p, err := isolation.ReadProcess(pid)
			must.NoError(t, err)
			ended = p.State == 'Z'
		}
	}
	s.mu.Unlock()
	var at []time.Time
	for _, c := range chans {
		at = append(at, (<-c).at)
	}
	must.True(t, at[2].Before(at[1]) && at[1].Before(at[0]), must.Sprint(at))
}

func TestWordsOfPrograms(t *testing.T) {
	must.Eq(t, "b", lastLine([]byte(" \n"), []byte("a\n b \n\n")))
	must.Eq(t, "it wrote nothing", lastLine(nil, nil))
	must.Eq(t, "RuntimeError: no such thing: x", lastWords([]string{"Traceback", "RuntimeError: no such thing: x", "  tail"}))
	must.Eq(t, "c", lastWords([]string{"a", "b", "c"}))
	must.Eq(t, "", lastWords(nil))
	for line, want := range map[string]bool{
		"RuntimeError: The server socket has failed to bind to [::]:18123 (errno: 98 - Address already in use).": true,
		"listen tcp 192.0.2.1:18123: bind: address already in use":                                               true,
		"listen tcp 192.0.2.1:18124: bind: address already in use":                                               false,
		"connected to 192.0.2.1:18123":                                                                           false,
	} {
		must.Eq(t, want, portTaken([]byte(line), 18123), must.Sprint(line))
	}
}

func TestNearestCatchingProcess(t *testing.T) {
	table := isolation.Table{1: {PID: 1}, 2: {PID: 2, Parent: 1}, 3: {PID: 3, Parent: 2}, 4: {PID: 4, Parent: 2}, 5: {PID: 5, Parent: 4}}
	catches := func(pids ...int) func(int) bool {
		return func(p int) bool {
			for _, q := range pids {
				if p == q {
					return true
				}
			}
			return false
		}
	}
	must.Eq(t, []int{2}, nearest(table, 2, catches(2, 5)))
	must.Eq(t, []int{3, 4}, nearest(table, 2, catches(3, 4, 5)))
	must.Eq(t, []int{5}, nearest(table, 2, catches(5)))
	must.SliceEmpty(t, nearest(table, 2, catches(1)))
}

func TestCondense(t *testing.T) {
	step := func(n int64) progress.Mark { return progress.Mark{Kind: progress.Step, Step: n} }
	begin, end := progress.Mark{Kind: progress.Begin, Step: 3}, progress.Mark{Kind: progress.End, Step: 3}
	must.Eq(t, []progress.Mark{step(3), begin, end, step(5)}, condense([]progress.Mark{step(1), step(2), step(3), begin, end, step(4), step(5)}))
}

func TestReadSpec(t *testing.T) {
	_, err := ReadSpec(strings.NewReader("{"))
	must.ErrorContains(t, err, "read what to supervise")
	_, err = ReadSpec(strings.NewReader(`{"v":9}`))
	must.ErrorContains(t, err, "version 9")
	s, err := ReadSpec(strings.NewReader(`{"v":1,"group":"rank","config":{"World":"gang"},"self":{"Gang":{"job":"j"}}}`))
	must.NoError(t, err)
	must.Eq(t, "j", s.World())
	s.Config.World = contract.WorldGroup
	must.Eq(t, "rank", s.World())
}
