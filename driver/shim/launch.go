package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/logpipe"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/driver/progress"
	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/contract"
)

const (
	joinTimeout   = 10 * time.Minute // for members to meet at the store
	monitorEvery  = 200 * time.Millisecond
	progressEvery = 500 * time.Millisecond
	drainWait     = 300 * time.Millisecond // for the last output of a process that ended
)

// launch is one start of torchrun or of the ranks.
type launch struct {
	number  int
	input   torchrun.Input
	planned torchrun.Launch
	tail    *logpipe.Tail // of the launcher's standard error
	// examined says that the evidence of a hang was kept; the loop's own.
	examined bool

	mu    sync.Mutex
	ranks map[int]*rankProcess
	busy  bool // somebody said that the store's port is taken
	pumps sync.WaitGroup
}

// rankProcess is one running rank.
type rankProcess struct {
	pid     int
	ended   bool
	release chan struct{} // closed when the launcher may learn of the end
	tail    *logpipe.Tail
	sources []*logpipe.Source
	output  *logpipe.File // nil: not kept apart
	file    *progress.File
	marked  time.Time // last mark
	step    int64     // last step marked; -1: none
}

// running gives the processes of the ranks that have not ended.
func (l *launch) running() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[int]int{}
	for n, r := range l.ranks {
		if !r.ended && r.pid > 0 {
			out[n] = r.pid
		}
	}
	return out
}

func (l *launch) letGo(rank int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.ranks[rank]; r != nil && r.release != nil {
		select {
		case <-r.release:
		default:
			close(r.release)
		}
	}
}

// drain waits for the output of what has ended.
func (l *launch) drain(wait time.Duration) {
	done := make(chan struct{})
	go func() { l.pumps.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(wait):
	}
}

// portBusy tells whether the store's port was found taken.
func (l *launch) portBusy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// listen hears the lines of what is to open the store.
func (l *launch) listen(line []byte) {
	if l.planned.Host && portTaken(line, l.planned.Port) {
		l.mu.Lock()
		l.busy = true
		l.mu.Unlock()
	}
}

// startLaunch ends what an earlier launch left and starts this one.
func (s *supervisor) startLaunch(a member.Launch) {
	fail := func(err error) {
		s.log.Error("cannot launch", "error", err)
		s.event(member.LauncherEnded{Launch: a.Number, Err: err, At: time.Now()})
	}
	// Nothing is started once the clearing has begun: it waits for this lock
	// after it has ended the context.
	s.launching.Lock()
	defer s.launching.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	if old := s.current(); old != nil {
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		err := isolation.Kill(ctx, s.below())
		cancel()
		if err != nil {
			fail(fmt.Errorf("end the launch before: %w", err))
			return
		}
		old.drain(time.Second)
		s.forgetAsk()
	}
	l := &launch{number: a.Number, ranks: map[int]*rankProcess{}, tail: &logpipe.Tail{}}
	l.input = s.launchInput(a)
	planned, err := torchrun.Plan(l.input)
	if err != nil {
		fail(err)
		return
	}
	l.planned = planned
	s.event(member.Planned{Launch: planned})
	s.mu.Lock()
	s.launch = l
	s.handOver(planned)
	s.mu.Unlock()
	s.log.Info("launching", "attempt", a.Record.Attempt, "launch", a.Number, "node", planned.NodeRank, "nodes", planned.Nodes, "world", planned.Size, "store", planned.Address, "port", planned.Port, "host", planned.Host)

	if planned.Launcher != nil {
		err = s.startTorchrun(l)
	} else {
		err = s.startRanks(l)
	}
	if err != nil {
		fail(err)
		return
	}
	go s.readProgress(l)
	if s.spec.Config.HangTimeout > 0 {
		go s.watchHang(l)
	}
}

// handOver lets the store's host open its port. torchrun's store shares it, so
// that it stays kept until no process of the task is left, whoever of them ends
// first. A program that ranks run may not be able to share, and gets it whole.
// Nobody else needs a port. The caller holds mu.
func (s *supervisor) handOver(l torchrun.Launch) {
	if s.port == nil {
		return
	}
	if l.Host && l.Launcher != nil && l.Port == s.port.Number {
		err := s.port.Share()
		if err == nil {
			return
		}
		s.log.Warn("the store's port is not kept while it runs", "error", err)
	}
	s.port.Release()
	s.port = nil
}

func (s *supervisor) rankSocket() string { return filepath.Join(s.start.Rank(), "rank.sock") }

func (s *supervisor) launchInput(a member.Launch) torchrun.Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return torchrun.Input{
		Config: s.spec.Config, Record: a.Record, Member: a.Member, Endpoint: a.Endpoint, Base: s.base(), TaskDir: s.spec.TaskDir, Python: s.python.Path,
		Wrapper: []string{s.spec.Wrapper, "rank"}, Preempt: s.start.Preempt(), Progress: s.start.Progress, LogDir: filepath.Join(s.start.Rank(), "torchelastic"),
		ErrorFile: filepath.Join(s.start.Rank(), "error.json"), Interface: s.addr.Interface, TaskID: s.spec.TaskID, Cards: len(s.spec.Cards),
		JoinTimeout: joinTimeout, Monitor: monitorEvery,
	}
}

// output makes a pipe and reads it into a log.
func (s *supervisor) output(l *launch, source *logpipe.Source) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make an output pipe: %w", err)
	}
	if u := s.spec.User; u != nil { // a rank may open its own /dev/stdout
		_ = w.Chown(int(u.UID), int(u.GID))
	}
	l.pumps.Go(func() {
		source.Copy(r)
		r.Close()
		if source.Also != nil {
			source.Also.Close() // opened again should the rank's other output go on
		}
	})
	return w, nil
}

func (s *supervisor) startTorchrun(l *launch) error {
	stdout, err := s.output(l, &logpipe.Source{Sink: s.stdout})
	if err != nil {
		return err
	}
	defer stdout.Close()
	stderr, err := s.output(l, &logpipe.Source{Sink: s.stderr, Tail: l.tail, Each: l.listen})
	if err != nil {
		return err
	}
	defer stderr.Close()
	p := l.planned.Launcher
	env := append(slices.Clone(p.Env), EnvRankSocket+"="+s.rankSocket())
	launcher, err := s.starter().start(command{argv: p.Argv, env: env, dir: p.Dir, files: [3]*os.File{nil, stdout, stderr}, user: s.spec.User, cgroup: s.cgroup})
	if err != nil {
		return err
	}
	go func() {
		e := <-launcher.done
		l.drain(drainWait)
		s.event(member.LauncherEnded{Launch: l.number, Code: e.code, Signal: e.signal, PortBusy: l.portBusy(), Text: lastWords(l.tail.Lines()), At: e.at})
	}()
	return nil
}

// lastWords is the line of a Python program's output that tells what went
// wrong: the last that begins with the name of an error, else the last.
func lastWords(lines []string) string {
	for _, line := range slices.Backward(lines) {
		for i, r := range line {
			if r == ':' && i > 5 && (hasSuffix(line[:i], "Error") || hasSuffix(line[:i], "Exception")) {
				return line
			}
			if r == ' ' {
				break
			}
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func hasSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && s[len(s)-len(suffix):] == suffix
}

// newRank enters a rank and makes its output pipes.
func (s *supervisor) newRank(l *launch, global int, prefix string) (*rankProcess, [2]*os.File, error) {
	r := &rankProcess{tail: &logpipe.Tail{}, release: make(chan struct{}), step: -1, file: &progress.File{Path: s.start.Progress(global)}}
	if s.spec.Config.LogFiles {
		r.output = &logpipe.File{Path: filepath.Join(filepath.Dir(s.spec.TaskDir), "alloc", "logs", fmt.Sprintf("%s.rank-%d.log", s.spec.Self.Task, global))}
	}
	for _, sink := range []*logpipe.Sink{s.stdout, s.stderr} {
		r.sources = append(r.sources, &logpipe.Source{Sink: sink, Prefix: prefix, Tail: r.tail, Each: l.listen, Also: r.output})
	}
	var files [2]*os.File
	for i, source := range r.sources {
		f, err := s.output(l, source)
		if err != nil {
			return nil, files, err
		}
		files[i] = f
	}
	l.mu.Lock()
	l.ranks[global] = r
	l.mu.Unlock()
	return r, files, nil
}

func (s *supervisor) prefix(global int) string {
	if !s.spec.Config.LogPrefix {
		return ""
	}
	return fmt.Sprintf("[%d] ", global)
}

// startRanks starts the ranks without a launcher.
func (s *supervisor) startRanks(l *launch) error {
	for i, rank := range l.planned.Ranks {
		r, files, err := s.newRank(l, rank.Global, s.prefix(rank.Global))
		if err != nil {
			return err
		}
		p := l.planned.Processes[i]
		started, err := s.starter().start(command{argv: p.Argv, env: p.Env, dir: p.Dir, files: [3]*os.File{nil, files[0], files[1]}, user: s.spec.User, cgroup: s.cgroup})
		files[0].Close()
		files[1].Close()
		if err != nil {
			return err
		}
		l.mu.Lock()
		r.pid = started.pid
		l.mu.Unlock()
		s.event(member.RankStarted{Launch: l.number, Rank: rank.Global, Local: rank.Local, PID: started.pid})
		go func() {
			e := <-started.done
			if l.planned.Host && rank.Global == 0 && (e.code != 0 || e.signal != 0) {
				time.Sleep(drainWait) // its last words may be about the port
			}
			s.rankEnded(l, rank.Global, e)
		}()
	}
	return nil
}

// rankEnded takes the rank's last marks and tells its end.
func (s *supervisor) rankEnded(l *launch, global int, e ended) {
	l.mu.Lock()
	r := l.ranks[global]
	if r != nil {
		r.ended = true
	}
	l.mu.Unlock()
	if r == nil {
		return
	}
	s.readMarks(l, global, r)
	s.event(member.RankEnded{Launch: l.number, Rank: global, Code: e.code, Signal: e.signal, At: e.at, PortBusy: global == 0 && l.portBusy()})
}

// acceptRanks serves the wrappers of torchrun's ranks.
func (s *supervisor) acceptRanks(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		go s.serveRank(conn)
	}
}

func (s *supervisor) serveRank(conn *net.UnixConn) {
	defer conn.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	var hello rankHello
	if in.Decode(&hello) != nil {
		return
	}
	l := s.current()
	if l == nil || l.planned.Launcher == nil || hello.Rank < 0 {
		_ = out.Encode(rankWelcome{V: 1, Error: "the supervisor has launched no torchrun"})
		return
	}
	r, files, err := s.newRank(l, hello.Rank, s.prefix(hello.Rank))
	if err != nil {
		_ = out.Encode(rankWelcome{V: 1, Error: err.Error()})
		return
	}
	err = sendFiles(conn, rankWelcome{V: 1, Env: torchrun.RankEnvironment(l.input, l.planned, torchrun.Rank{Global: hello.Rank, Local: hello.Local, Node: hello.Node})}, files[:])
	files[0].Close()
	files[1].Close()
	if err != nil {
		s.log.Warn("cannot welcome a rank", "rank", hello.Rank, "error", err)
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	for {
		var news rankNews
		if err := in.Decode(&news); err != nil {
			s.lostWrapper(l, hello.Rank, r, err)
			return
		}
		if news.PID > 0 {
			l.mu.Lock()
			r.pid = s.hostPID(conn, news.PID)
			l.mu.Unlock()
			s.event(member.RankStarted{Launch: l.number, Rank: hello.Rank, Local: hello.Local, PID: r.pid, Restart: hello.Restart})
		}
		if news.Ended {
			if news.Error != "" {
				s.log.Error("cannot start a rank", "rank", hello.Rank, "error", news.Error)
				s.event(member.RankStarted{Launch: l.number, Rank: hello.Rank, Local: hello.Local, Restart: hello.Restart})
			}
			s.rankEnded(l, hello.Rank, ended{news.Code, news.Signal, news.At})
			select {
			case <-r.release:
			case <-s.ctx.Done():
			}
			_ = out.Encode(struct{}{})
			return
		}
	}
}

// hostPID gives a process's number as seen here; the wrapper may live in a
// process namespace of its own.
func (s *supervisor) hostPID(conn *net.UnixConn, pid int) int {
	if s.inside() == nil {
		return pid
	}
	wrapper, err := peer(conn)
	if err != nil {
		return 0
	}
	return isolation.HostPID(wrapper, pid)
}

// lostWrapper: the wrapper died before its rank (torchrun kills it 30 s after
// it wants the ranks to end). While the rank is being let to save it goes on;
// else it ends now.
func (s *supervisor) lostWrapper(l *launch, global int, r *rankProcess, err error) {
	l.mu.Lock()
	pid := r.pid
	l.mu.Unlock()
	if pid == 0 {
		return
	}
	if !errors.Is(err, io.EOF) {
		s.log.Warn("the wrapper of a rank is gone", "rank", global, "error", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil { // it is gone already, and nobody saw how
		s.rankEnded(l, global, ended{signal: int(unix.SIGKILL), at: time.Now()})
		return
	}
	defer unix.Close(fd)
	s.mu.Lock()
	asked := s.asked != nil
	s.mu.Unlock()
	if !asked {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		if poll[0].Revents != 0 || s.ctx.Err() != nil {
			break
		}
	}
	s.rankEnded(l, global, ended{signal: int(unix.SIGKILL), at: time.Now()})
}

// forgetAsk takes back what asked the ranks of the launch before, and their
// marks.
func (s *supervisor) forgetAsk() {
	s.mu.Lock()
	s.asked = nil
	s.mu.Unlock()
	stale, _ := filepath.Glob(filepath.Join(s.start.Rank(), "progress.*"))
	for _, path := range append(stale, s.start.Preempt()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("cannot remove a file of the launch before", "error", err)
		}
	}
}

// moveStore keeps another port, publishes it and answers.
func (s *supervisor) moveStore(a member.MoveStore) {
	// The store's address stays what the record says, where it says it of this
	// member.
	s.mu.Lock()
	host, avoid := s.addr.IP.String(), 0
	s.mu.Unlock()
	if l := s.current(); l != nil {
		avoid = l.planned.Port
		if l.planned.Host {
			host = l.planned.Address
		}
	}
	p, err := preflight.KeepPort(0, s.spec.PortLow, s.spec.PortHigh, avoid)
	if err != nil {
		s.event(member.Moved{Launch: a.Launch, Err: err})
		return
	}
	s.mu.Lock()
	if s.port != nil { // that of the launch before
		s.port.Release()
	}
	s.port = p
	s.mu.Unlock()
	e := contract.Endpoint{V: contract.RecordVersion, Host: host, Port: p.Number, Move: a.Move, At: time.Now(),
		Why: a.Why + " on " + s.spec.Node, Members: a.Members, Round: a.Round}
	for {
		if err = s.board.Move(s.ctx, a.Attempt, a.World, e); err == nil || s.ctx.Err() != nil {
			break
		}
		s.log.Warn("cannot publish the moved store", "error", err)
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
		}
	}
	s.event(member.Moved{Launch: a.Launch, Endpoint: e, Err: err})
}

// readProgress looks at the ranks' marks until the launch is over.
func (s *supervisor) readProgress(l *launch) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		if s.current() != l {
			return
		}
		l.mu.Lock()
		ranks := map[int]*rankProcess{}
		for n, r := range l.ranks {
			if !r.ended {
				ranks[n] = r
			}
		}
		l.mu.Unlock()
		for n, r := range ranks {
			s.readMarks(l, n, r)
		}
	}
}

// readMarks hands on what a rank marked since the last look.
func (s *supervisor) readMarks(l *launch, global int, r *rankProcess) {
	l.mu.Lock()
	marks, err := r.file.Read()
	for _, m := range marks {
		r.marked = time.Now()
		if m.Kind == progress.Step {
			r.step = max(r.step, m.Step)
		}
	}
	l.mu.Unlock()
	if err != nil {
		s.log.Warn("cannot read a rank's progress", "rank", global, "error", err)
	}
	for _, m := range condense(marks) {
		s.event(member.Marked{Rank: global, Mark: m})
	}
}

// condense leaves out marks that a later one of the same batch replaces: a
// script may mark thousands of steps a second.
func condense(marks []progress.Mark) []progress.Mark {
	var out []progress.Mark
	for i, m := range marks {
		if i+1 < len(marks) && marks[i+1].Kind == m.Kind && (m.Kind == progress.Step || m.Kind == progress.Alive) {
			continue
		}
		out = append(out, m)
	}
	return out
}
