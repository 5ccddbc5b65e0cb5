package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/logpipe"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/internal/contract"
)

// ReadyLine is what a supervisor writes on its standard output once it serves.
const ReadyLine = "ready"

// Main is the supervisor's main: spec on the standard input, ReadyLine or an
// error on the standard output.
func Main() int {
	debug.SetGCPercent(25) // it allocates little, and stays small
	spec, err := ReadSpec(os.Stdin)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, err := newSupervisor(spec)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(ReadyLine)
	// From here on nobody listens, and nothing of the plugin's is kept open.
	if err := unix.Dup2(int(s.spawn.null.Fd()), 1); err == nil {
		_ = unix.Dup2(int(s.spawn.null.Fd()), 0)
	}
	giveBackText()
	s.run()
	return 0
}

// supervisor carries out what the member decides.
type supervisor struct {
	spec   Spec
	dir    taskdir.Dir
	start  taskdir.StartDir
	log    *slog.Logger
	events chan member.Event
	member *member.Member
	began  time.Time

	board   rendezvous.Board
	server  *server
	spawn   *spawner
	cgroup  *isolation.Cgroup
	stdout  *logpipe.Sink
	stderr  *logpipe.Sink
	ctx     context.Context // ends when the member is cleared
	cancel  context.CancelFunc
	reports chan contract.Report
	quiet   chan struct{}    // closed when no more reports are published
	final   *contract.Report // the report of the end

	launching sync.Mutex // held while processes are being started
	image     imageTask

	mu     sync.Mutex
	peers  *peerServer
	launch *launch
	port   *preflight.Port
	addr   preflight.Address
	python preflight.Python
	asked  *member.Ask
	marks  bool // another member of the gang marks progress
	sight  rendezvous.Sight
	seen   chan struct{} // closed and replaced when sight changes
	status Status
}

func newSupervisor(spec Spec) (_ *supervisor, err error) {
	dir := taskdir.Dir(spec.Dir)
	s := &supervisor{spec: spec, dir: dir, start: dir.Start(spec.Self.Start), events: make(chan member.Event, 256), began: time.Now(), reports: make(chan contract.Report, 1), quiet: make(chan struct{}), seen: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil && s.cgroup != nil {
			err = errors.Join(err, s.cgroup.Remove())
		}
	}()
	logFile, err := os.OpenFile(s.start.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the supervisor's log: %w", err)
	}
	_ = unix.Dup2(int(logFile.Fd()), 2) // a crash is told there too
	s.log = slog.New(slog.NewTextHandler(logFile, nil))

	// RDMA pins memory; the task's memory limit holds for that too. An ordinary
	// user keeps the limit that it has.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if s.spawn, err = newSpawner(s.surround, spec.OOMScore); err != nil {
		return nil, err
	}
	if s.stdout, err = logpipe.Open(spec.Stdout); err != nil {
		return nil, err
	}
	if s.stderr, err = logpipe.Open(spec.Stderr); err != nil {
		return nil, err
	}
	if err := s.makeRankDir(); err != nil {
		return nil, err
	}
	if s.cgroup, err = spec.makeCgroup(); err != nil {
		return nil, err
	}
	// Out of memory, the ranks go first: the supervisor is what tells of it.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0o644)

	if err := s.makeBoard(); err != nil {
		return nil, err
	}
	if err := <-s.spawn.ready; err != nil {
		return nil, fmt.Errorf("isolate the task: %w; isolation = \"none\" does without", err)
	}
	listener, err := Listen(s.start.Socket(), 0o600)
	if err != nil {
		return nil, err
	}
	process, err := taskdir.Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	written := taskdir.Shim{V: 1, Process: process, TaskID: spec.TaskID, Version: spec.Version, Start: spec.Self.Start}
	if s.cgroup != nil {
		written.Cgroups, written.Memory = []string{s.cgroup.Track}, s.cgroup.Memory
	}
	if err := s.start.WriteShim(written); err != nil {
		return nil, err
	}
	timing := member.DefaultTiming
	if spec.Rendezvous == contract.RendezvousSignal {
		timing.ReportEvery = 5 * time.Minute // each report is one of the ten events that Nomad keeps
	}
	s.member = member.New(member.Setup{Self: spec.Self, Config: spec.Config, HoldUntil: s.began.Add(spec.HoldLimit), Grace: spec.Grace,
		PeersVisible: spec.Rendezvous == contract.RendezvousConsul, Timing: timing})
	s.status = Status{Stage: s.member.Stage(), Version: spec.Version, PID: os.Getpid(), Started: s.began, Cgroups: written.Cgroups}
	s.server = newServer(listener, s.request, s.exec)
	return s, nil
}

// makeRankDir makes the folder that ranks may write to, and the socket for
// their wrappers.
func (s *supervisor) makeRankDir() error {
	if err := os.MkdirAll(s.start.Rank(), 0o700); err != nil {
		return fmt.Errorf("make the ranks' folder: %w", err)
	}
	if u := s.spec.User; u != nil {
		if err := os.Chown(s.start.Rank(), int(u.UID), int(u.GID)); err != nil {
			return fmt.Errorf("hand the ranks' folder to user %s: %w", u.Name, err)
		}
	}
	l, err := Listen(s.rankSocket(), 0o600)
	if err != nil {
		return err
	}
	if u := s.spec.User; u != nil {
		if err := os.Chown(s.rankSocket(), int(u.UID), int(u.GID)); err != nil {
			return fmt.Errorf("hand the ranks' socket to user %s: %w", u.Name, err)
		}
	}
	go s.acceptRanks(l)
	return nil
}

func (s *supervisor) makeBoard() error {
	if s.spec.Rendezvous == contract.RendezvousConsul {
		board, err := rendezvous.NewConsul(s.spec.Consul, s.spec.Self)
		if err != nil {
			return err
		}
		s.board = board
		return nil
	}
	s.board = rendezvous.NewSignal(s.spec.Self, func(r contract.Report) error {
		annotations, err := rendezvous.Annotation(r)
		if err != nil {
			return err
		}
		s.server.tell(reportText(r), annotations)
		return nil
	})
	return nil
}

func reportText(r contract.Report) string {
	switch r.State {
	case contract.StateRefused:
		return "refused: " + r.Problems[0].Text
	case contract.StateEnded:
		return "reports its end: " + string(r.Exit.Outcome)
	}
	return "reports " + string(r.State)
}

// run is the supervisor's loop, until the member is over.
func (s *supervisor) run() {
	s.log.Info("supervising", "task", s.spec.TaskID, "gang", s.spec.Self.Gang.String(), "start", s.spec.Self.Start, "version", s.spec.Version)
	s.tell("held: waits for the whole gang")
	if text := member.MaybeShortGrace(s.spec.MaxKillTimeout, s.spec.Grace); text != "" {
		s.tell(text)
	}
	follow, unfollow := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		s.board.Follow(follow, func(sight rendezvous.Sight) {
			s.notePeers(sight)
			s.event(member.Saw{Sight: sight})
		}, s.trouble)
	})
	go s.publisher()
	if s.spec.Config.Image != "" {
		go func() { // while the member is held; the preflight tells of a fault
			if err := s.fetchImage(); err != nil {
				s.log.Warn("cannot fetch the image", "error", err)
			}
		}()
	}
	go s.watchLogs()

	timer := time.NewTimer(time.Hour)
	for s.member.Stage() != member.Over {
		wake := time.Hour
		if next := s.member.Next(); !next.IsZero() {
			wake = max(0, time.Until(next))
		}
		timer.Reset(wake)
		select {
		case e := <-s.events:
			s.step(e)
		case <-timer.C:
			s.step(member.Tick{})
		}
	}
	unfollow()
	following.Wait()
	s.end()
}

// event hands an event to the loop; after the end nobody takes it.
func (s *supervisor) event(e member.Event) {
	select {
	case s.events <- e:
	case <-s.ctx.Done():
		select {
		case s.events <- e:
		default:
		}
	}
}

// step lets the member decide and carries the actions out in order.
func (s *supervisor) step(e member.Event) {
	todo := s.member.Step(time.Now(), e)
	s.mu.Lock()
	s.status.Stage, s.status.Attempt = s.member.Stage(), s.member.Attempt()
	s.mu.Unlock()
	for _, a := range todo {
		if !s.do(a) {
			break
		}
	}
}

// do carries out one action; false drops those that follow it.
func (s *supervisor) do(a member.Action) bool {
	switch a := a.(type) {
	case member.Preflight:
		go s.preflight(a)
	case member.Publish:
		if a.Report.State == contract.StateEnded {
			s.final = &a.Report
			break
		}
		select { // the latest replaces one that is still waiting
		case <-s.reports:
		default:
		}
		s.reports <- a.Report
	case member.MarkReleased:
		err := s.dir.MarkReleased(taskdir.Released{Attempt: a.Attempt, Start: s.spec.Self.Start, At: time.Now()})
		if err != nil {
			s.log.Error("cannot mark the release", "error", err)
			go s.event(member.MarkerFailed{Err: err})
			return false
		}
	case member.Launch:
		go s.startLaunch(a)
	case member.MoveStore:
		go s.moveStore(a)
	case member.Ask:
		s.askRanks(a)
	case member.Unask:
		s.unaskRanks()
	case member.SignalNew:
		s.askRank(a.Rank)
	case member.Signal:
		s.signalRanks(a.Signal)
	case member.LetGo:
		s.current().letGo(a.Rank)
	case member.AskPeer:
		go s.askPeer(a)
	case member.Evidence:
		s.keepEvidence(a.Why)
	case member.Clear:
		go s.clear()
	case member.Tell:
		s.tell(a.Text)
	case member.WriteExit:
		if err := s.start.WriteExit(a.Exit); err != nil {
			s.log.Error("cannot write the exit record", "error", err)
		}
	case member.Finish:
	}
	return true
}

func (s *supervisor) tell(text string) {
	s.log.Info(text)
	s.server.tell(text, nil)
}

// trouble with the board is told once it lasts.
func (s *supervisor) trouble(err error) {
	if err != nil {
		s.log.Warn("the rendezvous cannot be reached; what runs goes on", "error", err)
		return
	}
	s.log.Info("the rendezvous is reached again")
}

// publisher puts reports on the board, the latest first, until it succeeds.
func (s *supervisor) publisher() {
	defer close(s.quiet)
	var pending *contract.Report
	for {
		var retry <-chan time.Time
		if pending != nil {
			retry = time.After(time.Second)
		}
		select {
		case r := <-s.reports:
			pending = &r
		case <-retry:
		case <-s.ctx.Done():
			return
		}
		if pending == nil {
			continue
		}
		if err := s.board.Publish(s.ctx, *pending); err != nil {
			s.log.Warn("cannot publish the report", "error", err)
			continue
		}
		pending = nil
	}
}

// publishEnd publishes the last report; a board that cannot be reached does not
// hold up the end for long, since Nomad tells the exit as well.
func (s *supervisor) publishEnd(wait time.Duration) bool {
	if s.final == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for {
		err := s.board.Publish(ctx, *s.final)
		if err == nil {
			return true
		}
		s.log.Warn("cannot publish the end", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// end is everything after the member is over. What others look at, the board
// and the log, is settled before Nomad learns of the end.
func (s *supervisor) end() {
	s.cancel()
	<-s.quiet // no older report comes after the last
	published := s.publishEnd(3 * time.Second)
	left := published && s.leaveBoard(2*time.Second)
	_ = s.stdout.Close(2 * time.Second)
	_ = s.stderr.Close(2 * time.Second)
	if s.cgroup != nil {
		if err := s.cgroup.Remove(); err != nil {
			s.log.Warn("cannot remove the cgroup", "error", err)
		}
	}
	if p := s.peerServer(); p != nil {
		p.close()
	}
	s.server.finish(*s.member.Exit())
	s.removeTemporary()
	_ = os.Remove(s.start.Socket())
	if !left && (published || s.publishEnd(time.Minute)) {
		s.leaveBoard(5 * time.Second)
	}
	s.log.Info("over", "outcome", s.member.Exit().Outcome)
}

func (s *supervisor) leaveBoard(wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := s.board.Close(ctx)
	if err != nil {
		s.log.Warn("cannot leave the rendezvous; what is left there expires", "error", err)
	}
	return err == nil
}

// watchLogs tells when nobody takes the task's output any more.
func (s *supervisor) watchLogs() {
	told := false
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(time.Second):
		}
		stalled := !s.stdout.Stalled().IsZero() || !s.stderr.Stalled().IsZero()
		if stalled && !told {
			s.tell(fmt.Sprintf("nobody reads the task's log: output is dropped (noticed within %v); the ranks go on", logpipe.StallAfter))
		}
		told = stalled
	}
}

// request answers the plugin.
func (s *supervisor) request(r Request) (Answer, error) {
	switch r.Op {
	case OpStatus:
		s.mu.Lock()
		defer s.mu.Unlock()
		status := s.status
		status.Ranks = map[int]int{}
		if s.launch != nil {
			status.World, status.Store = s.launch.planned.World, fmt.Sprintf("%s port %d", s.launch.planned.Address, s.launch.planned.Port)
			for number, rank := range s.launch.running() {
				status.Ranks[number] = rank
			}
		}
		return Answer{Status: &status}, nil
	case OpRecord:
		board, ok := s.board.(*rendezvous.Signal)
		if !ok {
			return Answer{}, fmt.Errorf("this member takes its record from Consul, not from a signal")
		}
		return Answer{}, board.Deliver([]byte(r.Text))
	case OpAsk:
		var ask contract.Ask
		if err := json.Unmarshal([]byte(r.Text), &ask); err != nil {
			return Answer{}, fmt.Errorf("read ask: %w", err)
		}
		s.event(member.Asked{Ask: ask})
	case OpStop:
		s.event(member.Stopped{Grace: r.Grace, Signal: r.Signal})
	case OpKill:
		s.event(member.Stopped{Now: true})
	case OpSignal:
		return Answer{}, s.signalByUser(r.Signal)
	default:
		return Answer{}, fmt.Errorf("this supervisor (%s) knows no operation %q: it is older than the plugin", s.spec.Version, r.Op)
	}
	return Answer{}, nil
}

// clear kills whatever is left, until nothing is.
func (s *supervisor) clear() {
	s.cancel() // the preflight and its programs end too
	s.launching.Lock()
	defer s.launching.Unlock()
	find := isolation.Below(os.Getpid())
	if s.cgroup != nil {
		find = isolation.Any(find, s.cgroup.Processes)
	}
	for told := false; ; told = true {
		if s.cgroup != nil {
			if err := s.cgroup.Kill(); err != nil {
				s.log.Warn("cannot end the cgroup's processes at once; one by one", "error", err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		err := isolation.Kill(ctx, find)
		cancel()
		if err == nil {
			break
		}
		// The task is not over, and Nomad keeps its cards, until this succeeds.
		s.log.Error("cannot end all processes", "error", err)
		if !told {
			s.tell(fmt.Sprintf("the task's processes cannot all be ended, so its cards stay taken: %v", err))
		}
	}
	s.cardsFree()
	s.removeContainer()
	var oom isolation.OOM
	if s.cgroup != nil {
		oom = s.cgroup.OOM()
	}
	if l := s.current(); l != nil {
		l.drain(time.Second)
	}
	s.mu.Lock()
	if s.port != nil {
		s.port.Release()
		s.port = nil
	}
	s.mu.Unlock()
	s.events <- member.Cleared{OOMKills: oom.Kills, AtLimit: oom.AtLimit}
}

func (s *supervisor) peerServer() *peerServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers
}

func (s *supervisor) current() *launch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.launch
}

// portTaken recognises what programs say when the store's port is taken.
func portTaken(line []byte, port int) bool {
	text := strings.ToLower(string(line))
	return (strings.Contains(text, "address already in use") || strings.Contains(text, "eaddrinuse") || strings.Contains(text, "errno: 98")) &&
		strings.Contains(text, fmt.Sprint(port))
}
