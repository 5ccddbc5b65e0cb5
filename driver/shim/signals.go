package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/member"
)

// askRanks lets the preempt file appear and signals the ranks.
func (s *supervisor) askRanks(a member.Ask) {
	s.mu.Lock()
	s.asked = &a
	s.mu.Unlock()
	if text, err := json.Marshal(a.Ask); err == nil {
		if err := os.WriteFile(s.start.Preempt(), append(text, '\n'), 0o644); err != nil {
			s.log.Error("cannot write the preempt file", "error", err)
		}
	}
	l := s.current()
	if l == nil {
		return
	}
	for n := range l.running() {
		s.askRank(n)
	}
}

// unaskRanks takes the preempt file away: who looks for it before it leaves
// goes on.
func (s *supervisor) unaskRanks() {
	s.mu.Lock()
	s.asked = nil
	s.mu.Unlock()
	if err := os.Remove(s.start.Preempt()); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Error("cannot remove the preempt file", "error", err)
	}
}

// askRank signals one rank as the ask in force wants it. A signal that a
// program does not catch would end it, so it goes to those that do: the rank's
// process or, where that is a shell, the nearest processes below it.
func (s *supervisor) askRank(global int) {
	s.mu.Lock()
	a := s.asked
	s.mu.Unlock()
	l := s.current()
	if a == nil || l == nil {
		return
	}
	pid := l.running()[global]
	if pid == 0 {
		return
	}
	table, err := isolation.ReadTable()
	if err != nil {
		s.log.Error("cannot look at the ranks' processes", "error", err)
	}
	catching := func(name string) (pids []int, sig unix.Signal) {
		sig = unix.SignalNum(name)
		if sig == 0 {
			return nil, 0
		}
		return nearest(table, pid, func(p int) bool { return isolation.CatchesSignal(p, sig) }), sig
	}
	if pids, sig := catching(s.spec.Config.AskSignal); len(pids) > 0 {
		s.log.Info("asking", "rank", global, "processes", pids, "signal", s.spec.Config.AskSignal)
		_ = isolation.Signal(pids, sig)
		return
	}
	if a.Stop == "" {
		s.log.Info("asking by the preempt file alone: the signal would end it", "rank", global, "signal", s.spec.Config.AskSignal)
		return
	}
	if pids, sig := catching(a.Stop); len(pids) > 0 {
		s.log.Info("stopping", "rank", global, "processes", pids, "signal", a.Stop)
		_ = isolation.Signal(pids, sig)
		return
	}
	if !a.Spare {
		s.log.Info("stopping: it listens to no signal", "rank", global)
		_ = isolation.Signal([]int{pid}, unix.SIGTERM)
	}
}

// nearest gives the processes that match, of the first level at or below root
// that has one.
func nearest(table isolation.Table, root int, match func(int) bool) []int {
	for level := []int{root}; len(level) > 0; {
		var found []int
		for _, pid := range level {
			if match(pid) {
				found = append(found, pid)
			}
		}
		if len(found) > 0 {
			return found
		}
		var next []int
		for pid, p := range table {
			if slices.Contains(level, p.Parent) && pid != p.Parent {
				next = append(next, pid)
			}
		}
		slices.Sort(next)
		level = next
	}
	return nil
}

// signalRanks sends a signal to all ranks that run.
func (s *supervisor) signalRanks(name string) {
	l := s.current()
	if l == nil {
		return
	}
	sig := unix.SignalNum(name)
	for n, pid := range l.running() {
		if err := isolation.Signal([]int{pid}, sig); err != nil {
			s.log.Warn("cannot signal a rank", "rank", n, "error", err)
		}
	}
}

// signalByUser delivers what `nomad alloc signal` sends.
func (s *supervisor) signalByUser(name string) error {
	sig := unix.SignalNum(strings.ToUpper(name))
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n < 65 {
		sig = unix.Signal(n)
	}
	if sig == 0 {
		return fmt.Errorf("no signal is named %q", name)
	}
	l := s.current()
	if l == nil {
		return errors.New("the task is held: it has no rank to signal")
	}
	var pids []int
	for _, pid := range l.running() {
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return errors.New("no rank of the task runs")
	}
	return isolation.Signal(pids, sig)
}
