package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/contract"
)

// Exec is a command that is run beside the ranks: in their surroundings and
// cgroup, as their user. It ends with the connection that asked for it.
type Exec struct {
	Argv     []string `json:"argv"`
	Terminal bool     `json:"terminal,omitempty"`
}

// ExecNews answers an Exec: first the process, together with the near end of
// its terminal, or else of its input, output and error output; then how it
// ended.
type ExecNews struct {
	PID    int  `json:"pid,omitempty"`
	Ended  bool `json:"ended,omitempty"`
	Code   int  `json:"code,omitempty"`
	Signal int  `json:"signal,omitempty"`
}

// exec serves an Exec; gone is closed when the plugin hangs up.
func (s *supervisor) exec(r Request, conn *net.UnixConn, gone <-chan struct{}) error {
	if r.Exec == nil || len(r.Exec.Argv) == 0 || r.Exec.Argv[0] == "" {
		return errors.New("no command to run")
	}
	env := append(s.environment(), contract.EnvTask+"="+s.spec.TaskID)
	c := command{argv: r.Exec.Argv, env: env, dir: s.spec.TaskDir, user: s.spec.User, cgroup: s.cgroup, terminal: r.Exec.Terminal}
	var near []*os.File
	defer func() {
		for _, f := range near {
			f.Close()
		}
	}()
	if c.terminal {
		if _, set := s.spec.Env["TERM"]; !set {
			c.env = append(c.env, "TERM=xterm")
		}
	} else {
		var err error
		if near, err = c.pipes(); err != nil {
			return err
		}
	}
	// Nothing is started once the clearing has begun; see startLaunch.
	s.launching.Lock()
	p, err := started{}, s.ctx.Err()
	if err == nil {
		p, err = s.starter().start(c)
	} else {
		err = errors.New("the task ends")
	}
	s.launching.Unlock()
	for _, f := range c.files {
		if f != nil {
			f.Close()
		}
	}
	if err != nil {
		return err
	}
	if p.terminal != nil {
		near = []*os.File{p.terminal}
	}
	s.log.Info("runs a command beside the ranks", "command", r.Exec.Argv, "process", p.pid)
	if err := sendFiles(conn, Answer{V: SpecVersion, Exec: &ExecNews{PID: p.pid}}, near); err != nil {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
		return err
	}
	for _, f := range near {
		f.Close()
	}
	near = nil
	var e ended
	select {
	case e = <-p.done:
	case <-gone:
		_ = unix.Kill(-p.pid, unix.SIGKILL)
		e = <-p.done
	}
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	return json.NewEncoder(conn).Encode(Answer{V: SpecVersion, Exec: &ExecNews{Ended: true, Code: e.code, Signal: e.signal}})
}

// pipes gives the command pipes, and the near ends of them.
func (c *command) pipes() (near []*os.File, err error) {
	for i := range c.files {
		read, write, err := os.Pipe()
		if err != nil {
			for _, f := range append(near, c.files[:i]...) {
				f.Close()
			}
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		ours, theirs := read, write
		if i == 0 {
			ours, theirs = write, read
		}
		if c.user != nil {
			_ = theirs.Chown(int(c.user.UID), int(c.user.GID))
		}
		near, c.files[i] = append(near, ours), theirs
	}
	return near, nil
}

// sendFiles sends a message with open files.
func sendFiles(conn *net.UnixConn, message any, files []*os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	// A file's Fd would make it blocking, for the receiver as well.
	var fds []int
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return err
		}
	}
	text = append(text, '\n')
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	n, _, err := conn.WriteMsgUnix(text, unix.UnixRights(fds...), nil)
	if err == nil && n < len(text) {
		_, err = conn.Write(text[n:])
	}
	return err
}

// receiveFiles reads a message that may come with open files, and gives the
// decoder of what follows. Files for a program's use must block; those that are
// read and written here must not.
func receiveFiles(conn *net.UnixConn, message any, blocking bool) (files []*os.File, rest *json.Decoder, err error) {
	// They come with the first byte, so that is read apart.
	first, control := make([]byte, 1), make([]byte, unix.CmsgSpace(3*4))
	n, nc, _, _, err := conn.ReadMsgUnix(first, control)
	if err != nil {
		return nil, nil, err
	}
	if n != 1 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	fds, err := descriptors(control[:nc])
	for _, fd := range fds {
		_ = unix.SetNonblock(fd, !blocking)
		files = append(files, os.NewFile(uintptr(fd), "received"))
	}
	rest = json.NewDecoder(io.MultiReader(newOnce(first), conn))
	if err == nil {
		err = rest.Decode(message)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	return files, rest, nil
}

// Session is a command that runs in a task.
type Session struct {
	// Files are the near end of its terminal, or else of its input, output and
	// error output.
	Files []*os.File
	conn  *net.UnixConn
	in    *json.Decoder
}

// StartExec runs a command in a task.
func StartExec(socket string, e Exec) (*Session, error) {
	conn, err := Dial(socket, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	if err := json.NewEncoder(conn).Encode(Request{V: SpecVersion, Op: OpExec, Exec: &e}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	}
	var a Answer
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	files, in, err := receiveFiles(conn, &a, false)
	_ = conn.SetReadDeadline(time.Time{})
	s := &Session{Files: files, conn: conn, in: in}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrNoSupervisor, err)
	case a.Error != "":
		err = errors.New(a.Error)
	case a.Exec == nil || len(files) != 1 && len(files) != 3:
		err = fmt.Errorf("the supervisor's answer brought %d files", len(files))
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Wait gives how the command ended: its code, or the signal that ended it.
func (s *Session) Wait() (code, signal int, err error) {
	var a Answer
	if err := s.in.Decode(&a); err != nil {
		return 0, 0, fmt.Errorf("nobody saw how the command ended: %w", err)
	}
	if a.Error != "" {
		return 0, 0, errors.New(a.Error)
	}
	if a.Exec == nil || !a.Exec.Ended {
		return 0, 0, errors.New("nobody saw how the command ended")
	}
	return a.Exec.Code, a.Exec.Signal, nil
}

// Resize tells the terminal its size in characters.
func (s *Session) Resize(height, width int) error {
	raw, err := s.Files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		inner = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)})
	})
	return errors.Join(err, inner)
}

// Close ends the command where it still runs, and closes the files.
func (s *Session) Close() {
	s.conn.Close()
	for _, f := range s.Files {
		f.Close()
	}
}
