package shim

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/driver/hang"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// notePeers remembers what other members report.
func (s *supervisor) notePeers(sight rendezvous.Sight) {
	marks := false
	for key, r := range sight.Reports {
		marks = marks || key != s.spec.Self.Key() && r.State == contract.StateTraining
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks || marks
	s.sight = sight
	close(s.seen)
	s.seen = make(chan struct{})
}

// watchHang looks for a hang until the launch is over.
func (s *supervisor) watchHang(l *launch) {
	launched := time.Now()
	timeout := s.spec.Config.HangTimeout
	ticker := time.NewTicker(max(100*time.Millisecond, min(timeout/10, 5*time.Second)))
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
		s.mu.Lock()
		peers := s.marks
		s.mu.Unlock()
		if v := hang.Judge(time.Now(), launched, timeout, l.lives(), peers); v.Hung {
			s.event(member.Hung{Rank: v.Rank, Text: v.Text})
			return
		}
	}
}

// lives tells what is known of the running ranks, in order.
func (l *launch) lives() []hang.Rank {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []hang.Rank
	for n, r := range l.ranks {
		if r.ended || r.pid == 0 {
			continue
		}
		life := hang.Rank{Number: n, Marked: r.marked, Step: r.step}
		for _, source := range r.sources {
			if at := source.Last(); at.After(life.Printed) {
				life.Printed = at
			}
		}
		if p, err := isolation.ReadProcess(r.pid); err == nil {
			life.State = p.State
		}
		out = append(out, life)
	}
	slices.SortFunc(out, func(a, b hang.Rank) int { return a.Number - b.Number })
	return out
}
