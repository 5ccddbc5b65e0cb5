package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
)

// The agent is the one program that a container engine is asked to run: this
// binary, in the image. It starts what the supervisor wants started there, with
// the same code as the supervisor itself, and ends, with all below it, when the
// supervisor's first connection does.
//
// Each request has a connection of its own: a line, with the descriptors that
// the new process gets, and lines in answer.

// insideRequest is a request to the agent.
type insideRequest struct {
	V        int      `json:"v"`
	Op       string   `json:"op"`
	Path     string   `json:"path,omitempty"`
	Argv     []string `json:"argv,omitempty"`
	Env      []string `json:"env,omitempty"`
	Dir      string   `json:"dir,omitempty"`
	User     *User    `json:"user,omitempty"`
	Terminal bool     `json:"terminal,omitempty"`
}

const (
	insideHello = "hello" // answers the image's environment; the connection that ends the agent
	insideStat  = "stat"  // of Path
	insideStart = "start" // with input, output and error output; answers twice
)

// insideAnswer is an answer of the agent. Process numbers are those of its own
// namespace.
type insideAnswer struct {
	Error  string      `json:"error,omitempty"`
	Env    []string    `json:"env,omitempty"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	Absent bool        `json:"absent,omitempty"`
	PID    int         `json:"pid,omitempty"`
	Ended  bool        `json:"ended,omitempty"`
	Code   int         `json:"code,omitempty"`
	Signal int         `json:"signal,omitempty"`
	At     time.Time   `json:"at,omitzero"`
}

// insideWait is how long the agent waits for its supervisor, and the supervisor
// for its agent.
const insideWait = time.Minute

// Readable is the main of the check whether the ranks' user may read a file.
func Readable(paths []string) int {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		f.Close()
	}
	return 0
}

// Inside is the agent's main; its one argument is the path to listen at.
func Inside(args []string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "muster:", err)
		return 125
	}
	if len(args) != 1 {
		return fail(errors.New("the agent in an image is told where to listen, and no more"))
	}
	s, err := newSpawner(isolation.Confine, 0)
	if err == nil {
		err = <-s.ready
	}
	if err != nil {
		return fail(err)
	}
	l, err := Listen(args[0], 0o600)
	if err != nil {
		return fail(err)
	}
	a := &agent{spawn: s, met: make(chan struct{}), left: make(chan struct{})}
	go a.accept(l)
	select {
	case <-a.met:
		<-a.left
	case <-time.After(insideWait):
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = isolation.Kill(ctx, isolation.Below(os.Getpid()))
	return 0
}

type agent struct {
	spawn     *spawner
	meet      sync.Once
	met, left chan struct{}
}

func (a *agent) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			a.serve(conn)
		}()
	}
}

func (a *agent) serve(conn *net.UnixConn) {
	var r insideRequest
	files, rest, err := receiveFiles(conn, &r, true)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return
	}
	out := json.NewEncoder(conn)
	switch r.Op {
	case insideHello:
		a.meet.Do(func() {
			close(a.met)
			_ = out.Encode(insideAnswer{Env: os.Environ()})
			_, _ = io.Copy(io.Discard, conn)
			close(a.left)
		})
	case insideStat:
		info, err := os.Stat(r.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			_ = out.Encode(insideAnswer{Absent: true})
		case err != nil:
			_ = out.Encode(insideAnswer{Error: err.Error()})
		default:
			_ = out.Encode(insideAnswer{Mode: info.Mode()})
		}
	case insideStart:
		a.start(conn, r, files, rest)
	default:
		_ = out.Encode(insideAnswer{Error: fmt.Sprintf("no operation %q", r.Op)})
	}
}

func (a *agent) start(conn *net.UnixConn, r insideRequest, files []*os.File, rest *json.Decoder) {
	c := command{argv: r.Argv, env: r.Env, dir: r.Dir, user: r.User, terminal: r.Terminal}
	if len(r.Argv) == 0 || !r.Terminal && len(files) != 3 {
		_ = json.NewEncoder(conn).Encode(insideAnswer{Error: "no program, or not its three files"})
		return
	}
	copy(c.files[:], files)
	p, err := a.spawn.start(c)
	if err != nil {
		_ = json.NewEncoder(conn).Encode(insideAnswer{Error: err.Error()})
		return
	}
	var near []*os.File
	if p.terminal != nil {
		near = []*os.File{p.terminal}
		defer p.terminal.Close()
	}
	if sendFiles(conn, insideAnswer{PID: p.pid}, near) != nil {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
		return
	}
	// The supervisor looks the process up by its number here before it answers,
	// so that the number is still its own.
	var looked json.RawMessage
	_ = rest.Decode(&looked)
	e := <-p.done
	_ = json.NewEncoder(conn).Encode(insideAnswer{Ended: true, Code: e.code, Signal: e.signal, At: e.at})
}

// inside is the supervisor's side of an agent.
type inside struct {
	socket string
	conn   *net.UnixConn // the first
	pid    int           // of the agent, as seen here
	env    []string
	gone   chan struct{} // closed when the agent is
	score  int           // for the kernel's choice of whom to end, of what is started
}

// meetInside greets the agent once it listens.
func meetInside(socket string, score int) (*inside, error) {
	conn, err := Dial(socket, time.Second)
	if err != nil {
		return nil, err
	}
	a := &inside{socket: socket, conn: conn, gone: make(chan struct{}), score: score}
	var answer insideAnswer
	err = json.NewEncoder(conn).Encode(insideRequest{V: 1, Op: insideHello})
	in := json.NewDecoder(conn)
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		err = in.Decode(&answer)
		_ = conn.SetReadDeadline(time.Time{})
	}
	if err == nil {
		a.pid, err = peer(conn)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("greet the agent in the image: %w", err)
	}
	a.env = answer.Env
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		close(a.gone)
	}()
	return a, nil
}

// peer gives the process at the other end, as seen here.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if inner != nil {
		return 0, inner
	}
	return int(cred.Pid), nil
}

func (a *inside) alive() bool {
	select {
	case <-a.gone:
		return false
	default:
		return true
	}
}

// start is a starter's: the process runs in the image.
func (a *inside) start(c command) (started, error) {
	fail := func(err error) (started, error) {
		return started{}, fmt.Errorf("start %s in the image: %w", c.argv[0], err)
	}
	conn, err := Dial(a.socket, 5*time.Second)
	if err != nil {
		return fail(err)
	}
	files := c.files[:]
	if c.terminal {
		files = nil
	}
	for i, f := range files {
		if f == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				conn.Close()
				return fail(err)
			}
			defer null.Close()
			files[i] = null
		}
	}
	err = sendFiles(conn, insideRequest{V: 1, Op: insideStart, Argv: c.argv, Env: c.env, Dir: c.dir, User: c.user, Terminal: c.terminal}, files)
	var answer insideAnswer
	var near []*os.File
	var in *json.Decoder
	if err == nil {
		near, in, err = receiveFiles(conn, &answer, false)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		conn.Close()
		return fail(err)
	}
	done := make(chan ended, 1)
	p := started{pid: isolation.HostPID(a.pid, answer.PID), done: done}
	if len(near) > 0 {
		p.terminal = near[0]
	}
	if p.pid > 0 {
		_ = os.WriteFile("/proc/"+strconv.Itoa(p.pid)+"/oom_score_adj", []byte(strconv.Itoa(a.score)), 0)
	}
	_ = json.NewEncoder(conn).Encode(struct{}{})
	go func() {
		defer conn.Close()
		var last insideAnswer
		if in.Decode(&last) != nil || !last.Ended { // the agent died, and it with it
			last = insideAnswer{Signal: int(unix.SIGKILL), At: time.Now()}
		}
		done <- ended{code: last.Code, signal: last.Signal, at: last.At}
	}()
	return p, nil
}

// stat looks at a path in the image.
func (a *inside) stat(path string) (fs.FileMode, error) {
	conn, err := Dial(a.socket, 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var answer insideAnswer
	if err := json.NewEncoder(conn).Encode(insideRequest{V: 1, Op: insideStat, Path: path}); err != nil {
		return 0, err
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return 0, fmt.Errorf("look at %s in the image: %w", path, err)
	}
	switch {
	case answer.Absent:
		return 0, fmt.Errorf("look at %s in the image: %w", path, fs.ErrNotExist)
	case answer.Error != "":
		return 0, errors.New(answer.Error)
	}
	return answer.Mode, nil
}
