// Command muster-allreduce-rank is a rank for trials that needs no Python: the
// ranks of a world add up their numbers over TCP, step by step, and check the
// sum. It is for `launcher = "ranks"`, whose variables it reads (RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT).
//
// Rank 0 is the store: it listens, takes everybody's numbers, and answers with
// the sum. It answers only ranks of the same run (TORCHELASTIC_RUN_ID).
//
// It leaves marks in MUSTER_PROGRESS_FILE. With MUSTER_CHECKPOINT_DIR it saves
// its step and goes on from there the next time. When asked to leave (the
// preempt file or SIGUSR1), all ranks save after the same step and exit 0.
//
// It exits 0 when all sums were right, 3 when one was wrong, 1 otherwise.
package main

import (
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	steps     = flag.Int("steps", 10, "steps to do")
	size      = flag.Int("size", 1000, "numbers to add up in a step")
	stepTime  = flag.Duration("step-time", 0, "pause in each step")
	saveEvery = flag.Int("save-every", 0, "steps between checkpoints (0: only when asked)")
	saveTime  = flag.Duration("save-time", 0, "time a checkpoint takes")
	failRank  = flag.Int("fail-rank", -1, "rank that fails")
	failStep  = flag.Int("fail-step", 1, "step at which it fails")
	failCode  = flag.Int("fail-code", 1, "code that it fails with")
	patience  = flag.Duration("patience", time.Minute, "how long to wait for the other ranks")
)

// contribution is what a rank sends to the store each step.
type contribution struct {
	Run     string
	Rank    int
	Step    int
	Numbers []int64
}

// answer is the store's.
type answer struct {
	Sum   []int64
	Leave bool // all save after this step and leave
	Error string
}

// place of this rank in the world.
type place struct {
	rank, size int
	store      string // address and port
	run        string
}

func main() {
	flag.Parse()
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "muster-allreduce-rank:", err)
	}
	os.Exit(code)
}

func placeFromEnvironment() (place, error) {
	p := place{size: 1, store: net.JoinHostPort("127.0.0.1", "29500"), run: os.Getenv("TORCHELASTIC_RUN_ID")}
	if os.Getenv("WORLD_SIZE") == "" {
		return p, nil
	}
	var faults []error
	number := func(name string) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			faults = append(faults, fmt.Errorf("%s = %q is no number", name, os.Getenv(name)))
		}
		return n
	}
	p.rank, p.size = number("RANK"), number("WORLD_SIZE")
	port := number("MASTER_PORT")
	host := strings.Trim(os.Getenv("MASTER_ADDR"), "[]")
	if host == "" {
		faults = append(faults, errors.New("MASTER_ADDR is not set"))
	}
	if len(faults) == 0 && (p.rank < 0 || p.rank >= p.size) {
		faults = append(faults, fmt.Errorf("rank %d of %d", p.rank, p.size))
	}
	p.store = net.JoinHostPort(host, strconv.Itoa(port))
	return p, errors.Join(faults...)
}

func run() (int, error) {
	p, err := placeFromEnvironment()
	if err != nil {
		return 1, err
	}
	fmt.Printf("rank %d of %d started at %s, pid %d, run %s, attempt %s\n", p.rank, p.size, time.Now().UTC().Format(time.RFC3339Nano), os.Getpid(), p.run, os.Getenv("MUSTER_ATTEMPT"))
	var asked atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for range signals {
			asked.Store(true)
		}
	}()
	leave := func() bool {
		if file := os.Getenv("MUSTER_PREEMPT_FILE"); file != "" {
			if _, err := os.Stat(file); err == nil {
				return true
			}
		}
		return asked.Load()
	}

	var w world
	if p.rank == 0 {
		w, err = openStore(p, leave)
	} else {
		w, err = joinStore(p)
	}
	if err != nil {
		return 1, err
	}
	defer w.close()
	return work(p, w)
}

func work(p place, w world) (int, error) {
	first, err := loadStep(p.rank)
	if err != nil {
		return 1, err
	}
	if first > 0 {
		fmt.Printf("rank %d goes on after step %d\n", p.rank, first)
	}
	for step := first + 1; step <= *steps; step++ {
		time.Sleep(*stepTime)
		if p.rank == *failRank && step == *failStep {
			fmt.Printf("rank %d fails as told, with code %d\n", p.rank, *failCode)
			return *failCode, nil
		}
		numbers := make([]int64, *size)
		for i := range numbers {
			numbers[i] = number(p.rank, step, i)
		}
		a, err := w.reduce(contribution{p.run, p.rank, step, numbers})
		if err != nil {
			return 1, fmt.Errorf("step %d: %w", step, err)
		}
		for i, got := range a.Sum {
			if want := expected(p.size, step, i); got != want {
				return 3, fmt.Errorf("step %d: the sum of place %d is %d, and must be %d", step, i, got, want)
			}
		}
		mark("step %d", step)
		if a.Leave || *saveEvery > 0 && step%*saveEvery == 0 {
			if err := saveStep(p.rank, step); err != nil {
				return 1, err
			}
		}
		if a.Leave {
			fmt.Printf("rank %d leaves after step %d, as asked\n", p.rank, step)
			return 0, nil
		}
	}
	fmt.Printf("rank %d: %d steps of %d numbers over %d ranks, every sum right; the last is %d\n", p.rank, *steps, *size, p.size, expected(p.size, *steps, 0))
	mark("complete")
	return 0, nil
}

// number is what a rank adds at a place in a step.
func number(rank, step, i int) int64 { return int64(rank+1)*int64(step) + int64(i) }

// expected is the sum over all ranks, by formula and not by adding.
func expected(size, step, i int) int64 {
	n := int64(size)
	return n*(n+1)/2*int64(step) + n*int64(i)
}

// mark leaves a progress mark.
func mark(format string, args ...any) {
	path := os.Getenv("MUSTER_PROGRESS_FILE")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, "muster-allreduce-rank: mark progress:", err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

func checkpointFile(rank int) string {
	dir := os.Getenv("MUSTER_CHECKPOINT_DIR")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("rank-%d.step", rank))
}

func saveStep(rank, step int) error {
	file := checkpointFile(rank)
	if file == "" {
		return nil
	}
	mark("checkpoint begin %d", step)
	time.Sleep(*saveTime)
	err := os.WriteFile(file+".new", []byte(strconv.Itoa(step)), 0o644)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		mark("checkpoint failed %d", step)
		return fmt.Errorf("save step %d: %w", step, err)
	}
	mark("checkpoint end %d", step)
	return nil
}

func loadStep(rank int) (int, error) {
	file := checkpointFile(rank)
	if file == "" {
		return 0, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("load the checkpoint: %w", err)
	}
	step, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, fmt.Errorf("load the checkpoint %s: %w", file, err)
	}
	return step, nil
}

// world adds up numbers over all ranks.
type world interface {
	reduce(contribution) (answer, error)
	close()
}

// peer is a connection to another rank.
type peer struct {
	conn net.Conn
	in   *gob.Decoder
	out  *gob.Encoder
}

func newPeer(c net.Conn) *peer { return &peer{c, gob.NewDecoder(c), gob.NewEncoder(c)} }

// store is rank 0.
type store struct {
	place
	leave    func() bool
	listener net.Listener
	peers    map[int]*peer
}

func openStore(p place, leave func() bool) (world, error) {
	s := &store{place: p, leave: leave, peers: map[int]*peer{}}
	if p.size == 1 {
		return s, nil
	}
	l, err := net.Listen("tcp", p.store)
	if err != nil {
		return nil, err
	}
	s.listener = l
	deadline := time.Now().Add(*patience)
	_ = l.(*net.TCPListener).SetDeadline(deadline)
	for len(s.peers) < p.size-1 {
		conn, err := l.Accept()
		if err != nil {
			return nil, fmt.Errorf("wait for the other ranks: %d of %d came: %w", len(s.peers), p.size-1, err)
		}
		c := newPeer(conn)
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		var hello contribution
		if err := c.in.Decode(&hello); err != nil {
			conn.Close() // a probe, not a rank
			continue
		}
		if _, twice := s.peers[hello.Rank]; twice || hello.Run != p.run || hello.Rank < 1 || hello.Rank >= p.size {
			_ = c.out.Encode(answer{Error: fmt.Sprintf("this is run %q of %d ranks; rank %d of run %q has no place in it", p.run, p.size, hello.Rank, hello.Run)})
			conn.Close()
			continue
		}
		_ = conn.SetDeadline(time.Time{})
		s.peers[hello.Rank] = c
		if err := c.out.Encode(answer{}); err != nil {
			return nil, fmt.Errorf("greet rank %d: %w", hello.Rank, err)
		}
	}
	return s, nil
}

func (s *store) reduce(own contribution) (answer, error) {
	a := answer{Sum: append([]int64(nil), own.Numbers...)}
	for rank := 1; rank < s.size; rank++ {
		var c contribution
		if err := s.peers[rank].in.Decode(&c); err != nil {
			return a, fmt.Errorf("hear from rank %d: %w", rank, err)
		}
		if c.Step != own.Step || len(c.Numbers) != len(a.Sum) {
			return a, fmt.Errorf("rank %d is at step %d with %d numbers", rank, c.Step, len(c.Numbers))
		}
		for i, n := range c.Numbers {
			a.Sum[i] += n
		}
	}
	a.Leave = s.leave()
	for rank := 1; rank < s.size; rank++ {
		if err := s.peers[rank].out.Encode(a); err != nil {
			return a, fmt.Errorf("answer rank %d: %w", rank, err)
		}
	}
	return a, nil
}

func (s *store) close() {
	for _, p := range s.peers {
		p.conn.Close()
	}
	if s.listener != nil {
		s.listener.Close()
	}
}

// joined is any other rank.
type joined struct{ *peer }

func joinStore(p place) (world, error) {
	for deadline := time.Now().Add(*patience); ; time.Sleep(50 * time.Millisecond) {
		c, err := greet(p)
		if err == nil {
			return joined{c}, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("reach rank 0 at %s for %v: %w", p.store, *patience, err)
		}
	}
}

func greet(p place) (*peer, error) {
	conn, err := net.DialTimeout("tcp", p.store, time.Second)
	if err != nil {
		return nil, err
	}
	c := newPeer(conn)
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var a answer
	err = c.out.Encode(contribution{Run: p.run, Rank: p.rank})
	if err == nil {
		err = c.in.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return c, nil
}

func (j joined) reduce(own contribution) (answer, error) {
	if err := j.out.Encode(own); err != nil {
		return answer{}, fmt.Errorf("send to rank 0: %w", err)
	}
	var a answer
	if err := j.in.Decode(&a); err != nil {
		return answer{}, fmt.Errorf("hear from rank 0: %w", err)
	}
	return a, nil
}

func (j joined) close() { j.conn.Close() }
