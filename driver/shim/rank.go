package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rankHello is the wrapper's first message. The answer is a rankWelcome with
// two file descriptors: the rank's standard output and standard error.
type rankHello struct {
	V       int `json:"v"`
	Rank    int `json:"rank"`
	Local   int `json:"local"`
	Node    int `json:"node"`
	Restart int `json:"restart"`
}

type rankWelcome struct {
	V     int      `json:"v"`
	Env   []string `json:"env"` // added to what torchrun gave
	Error string   `json:"error,omitempty"`
}

// rankNews is what the wrapper tells later: first the rank's process, then how
// it ended. The supervisor answers the second with a line when the launcher may
// learn of it.
type rankNews struct {
	PID    int       `json:"pid,omitempty"`
	Ended  bool      `json:"ended,omitempty"`
	Code   int       `json:"code,omitempty"`
	Signal int       `json:"signal,omitempty"`
	At     time.Time `json:"at,omitzero"`
	Error  string    `json:"error,omitempty"` // the rank could not be started
}

// EnvRankSocket names the supervisor's socket for wrappers.
const EnvRankSocket = "MUSTER_RANK_SOCKET"

// Rank is the wrapper's main: it runs one rank for torchrun. It ends as the
// rank ended, once the supervisor agrees; while it waits for that, torchrun does
// not know, and so does not end the other ranks. SIGTERM and SIGINT are passed
// on, except while the preempt file exists: then the supervisor decides. When
// the supervisor is gone, the rank is killed.
func Rank(argv []string) int {
	if len(argv) == 0 {
		fmt.Fprintln(os.Stderr, "muster: no program for this rank")
		return 127
	}
	w, err := newWrapper()
	if err != nil {
		fmt.Fprintln(os.Stderr, "muster:", err)
		return 125
	}
	defer w.conn.Close()
	return w.run(argv)
}

type wrapper struct {
	conn    *net.UnixConn
	env     []string
	out     [2]*os.File
	preempt string

	mu  sync.Mutex
	enc *json.Encoder
	in  *json.Decoder
}

func newWrapper() (*wrapper, error) {
	number := func(name string) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return 0
		}
		return n
	}
	conn, err := Dial(os.Getenv(EnvRankSocket), 10*time.Second)
	if err != nil {
		return nil, err
	}
	w := &wrapper{conn: conn, enc: json.NewEncoder(conn), preempt: os.Getenv("MUSTER_PREEMPT_FILE")}
	if err := w.enc.Encode(rankHello{V: 1, Rank: number("RANK"), Local: number("LOCAL_RANK"), Node: number("GROUP_RANK"), Restart: number("TORCHELASTIC_RESTART_COUNT")}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("greet the supervisor: %w", err)
	}
	var welcome rankWelcome
	files, in, err := receiveFiles(conn, &welcome, true)
	if err == nil && welcome.Error != "" {
		err = errors.New(welcome.Error)
	}
	if err == nil && len(files) != 2 {
		err = fmt.Errorf("%d output pipes came", len(files))
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("hear from the supervisor: %w", err)
	}
	w.in, w.out = in, [2]*os.File(files)
	w.env = append(os.Environ(), welcome.Env...)
	return w, nil
}

func descriptors(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, err
}

type once struct{ data []byte }

func newOnce(data []byte) io.Reader { return &once{data} }

func (o *once) Read(p []byte) (int, error) {
	if len(o.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.data)
	o.data = o.data[n:]
	return n, nil
}

func (w *wrapper) tell(n rankNews) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enc.Encode(n)
}

func (w *wrapper) run(argv []string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)

	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = w.env, w.out[0], w.out[1]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = w.tell(rankNews{Ended: true, Code: 127, At: time.Now(), Error: err.Error()})
		fmt.Fprintln(w.out[1], "muster: start the rank:", err)
		w.await()
		return 127
	}
	w.out[0].Close()
	w.out[1].Close()
	if w.tell(rankNews{PID: cmd.Process.Pid}) != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}

	gone := make(chan struct{}) // the supervisor's answer, or its end
	answered := false
	go func() {
		defer close(gone)
		var line json.RawMessage
		answered = w.in.Decode(&line) == nil
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if _, err := os.Stat(w.preempt); err != nil {
				_ = cmd.Process.Signal(s)
			}
		case <-gone:
			if !answered { // the supervisor died: nothing may stay behind
				_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
				<-ended
				return 125
			}
		case <-ended:
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			news := rankNews{Ended: true, At: time.Now()}
			if status.Signaled() {
				news.Signal = int(status.Signal())
			} else {
				news.Code = status.ExitStatus()
			}
			if w.tell(news) == nil {
				<-gone
			}
			return w.endAs(news)
		}
	}
}

// await waits for the supervisor's answer.
func (w *wrapper) await() {
	var line json.RawMessage
	_ = w.in.Decode(&line)
}

// endAs ends the way the rank did, so that torchrun's own report is right. Of
// the signals that Go's runtime would make a crash report of, the shell's number
// is given.
func (w *wrapper) endAs(n rankNews) int {
	switch unix.Signal(n.Signal) {
	case 0:
		return n.Code
	case unix.SIGKILL, unix.SIGTERM, unix.SIGINT, unix.SIGHUP:
		signal.Reset()
		_ = unix.Kill(os.Getpid(), unix.Signal(n.Signal))
		time.Sleep(time.Second) // it arrives before that
	}
	return 128 + n.Signal
}
