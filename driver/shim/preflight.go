package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

const (
	// localTime bounds the checks on this node, without the site's own command.
	localTime = time.Minute
	// peerTime is for how long a peer that reported is tried before it counts
	// as out of reach.
	peerTime = 10 * time.Second
	// skewLimit is how far the clocks of two members may be apart.
	skewLimit = 10 * time.Second
	// allPeers is up to how many members everybody tries everybody else; in
	// larger worlds each tries its next neighbours and those that the store's
	// host is one of: the first member, or the first on another node where the
	// first one's died in the attempt before.
	allPeers, nextPeers = 32, 8
)

// preflight checks this node, then the way to the peers, and reports.
func (s *supervisor) preflight(a member.Preflight) {
	report, ok := s.checkNode(a)
	if !ok { // another attempt began, or the member is over
		return
	}
	if len(report.Problems) == 0 && s.spec.Rendezvous == contract.RendezvousConsul && len(a.Record.Members) > 1 {
		report.State = contract.StateChecking
		self := s.spec.Self
		report.V, report.Gang, report.Attempt, report.Alloc, report.Task, report.Start, report.At = contract.RecordVersion, self.Gang, a.Attempt, self.Alloc, self.Task, self.Start, time.Now()
		select {
		case s.reports <- report:
		case <-s.ctx.Done():
			return
		}
		report.Problems = s.checkPeers(a)
	}
	s.event(member.Checked{Attempt: a.Attempt, Report: report})
}

// checkNode checks what this node alone can tell.
func (s *supervisor) checkNode(a member.Preflight) (contract.Report, bool) {
	var want int
	if a.Member >= 0 && a.Member < len(a.Record.Members) {
		want = a.Record.Members[a.Member].Cards
	}
	missing := s.checkImage()
	ctx, cancel := context.WithTimeout(s.ctx, localTime)
	defer cancel()
	s.mu.Lock()
	if s.port != nil { // of an earlier attempt
		s.port.Release()
		s.port = nil
	}
	s.mu.Unlock()
	r := preflight.Check(ctx, preflight.Input{
		Config: s.spec.Config, TaskDir: s.spec.TaskDir, Cards: s.spec.Cards, WantCards: want, SearchPath: s.base()["PATH"], Python: s.spec.Python,
		Interface: s.spec.Interface, NomadIP: s.spec.NomadIP, Port: s.spec.Port, PortLow: s.spec.PortLow, PortHigh: s.spec.PortHigh, StateDir: s.spec.Dir,
		Place: s.place(), NoProgram: missing != nil,
	})
	report := contract.Report{Ranks: r.Ranks, World: s.spec.World(), Cards: s.spec.Cards, Problems: r.Problems}
	if missing != nil {
		report.Problems = append([]contract.Problem{*missing}, report.Problems...)
	}
	if r.Address.IP.IsValid() {
		report.Address, report.Interface = r.Address.IP.String(), r.Address.Interface
		if s.peerServer() == nil {
			peers, err := servePeers(report.Address, s.peerState)
			if err != nil {
				report.Problems = append(report.Problems, contract.Problem{What: "address", Site: true, Text: err.Error()})
			}
			s.mu.Lock()
			s.peers = peers
			s.mu.Unlock()
		}
		if p := s.peerServer(); p != nil {
			report.Supervisor = p.port
		}
	}
	if r.Port != nil {
		report.Port = r.Port.Number
	}
	s.mu.Lock()
	s.port, s.addr, s.python = r.Port, r.Address, r.Python
	s.mu.Unlock()
	if missing == nil {
		report.Problems = append(report.Problems, s.checkAsUser()...)
	}
	report.Problems = append(report.Problems, s.checkHolders(ctx)...)
	if a.Record.MinBandwidth > 0 && len(a.Record.Members) > 1 && s.spec.Rendezvous != contract.RendezvousConsul {
		report.Problems = append(report.Problems, contract.Problem{What: "bandwidth", Site: true,
			Text: fmt.Sprintf("%s cannot be probed from %s: without Consul members do not see each other", contract.MetaMinBandwidth, s.spec.Node)})
	}
	if len(report.Problems) == 0 {
		report.Problems = append(report.Problems, s.siteCommand()...)
	}
	return report, s.ctx.Err() == nil
}

// place is where the ranks will run.
func (s *supervisor) place() preflight.Place {
	p := preflight.Place{Run: s.ask}
	if a := s.inside(); a != nil {
		p.Stat = a.stat
	}
	return p
}

// ask runs a program where the ranks will run, as the supervisor's own user; see
// preflight.Runner.
func (s *supervisor) ask(ctx context.Context, argv, env []string, dir string) ([]byte, error) {
	return run(ctx, s.starter(), command{argv: argv, env: env, dir: dir})
}

// askAsUser runs a program as a rank will run.
func (s *supervisor) askAsUser(ctx context.Context, argv []string) ([]byte, error) {
	return run(ctx, s.starter(), command{argv: argv, env: s.environment(), dir: s.spec.TaskDir, user: s.spec.User})
}

// environment of the ranks, as a list.
func (s *supervisor) environment() []string {
	base := s.base()
	env := make([]string, 0, len(base))
	for name, value := range base {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// checkAsUser: what the supervisor may read, the ranks' user may perhaps not.
func (s *supervisor) checkAsUser() []contract.Problem {
	script := s.spec.Config.Script
	if s.spec.User == nil || script == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, localTime)
	defer cancel()
	if _, err := s.askAsUser(ctx, []string{s.spec.Wrapper, "readable", script}); err != nil {
		return []contract.Problem{{What: "script", Text: fmt.Sprintf("script = %q: user %s may not read it", script, s.spec.User.Name)}}
	}
	return nil
}

// siteCommand runs the check that the task names.
func (s *supervisor) siteCommand() []contract.Problem {
	argv := s.spec.Config.PreflightCommand
	if len(argv) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.spec.Config.PreflightTimeout)
	defer cancel()
	if _, err := s.askAsUser(ctx, argv); err != nil {
		return []contract.Problem{{What: "command", Site: true, Text: fmt.Sprintf("preflight_command on %s: %v", s.spec.Node, err)}}
	}
	return nil
}

// checkPeers waits until the members that this one will talk to have reported
// where they are, and tries to reach each. A member that has not come yet is
// waited for: the planner sees who is missing, and the hold ends some time.
func (s *supervisor) checkPeers(a member.Preflight) []contract.Problem {
	var mu sync.Mutex
	var problems []contract.Problem
	var wg sync.WaitGroup
	tried := map[string]bool{}
	for {
		s.mu.Lock()
		sight, seen := s.sight, s.seen
		s.mu.Unlock()
		missing := 0
		for _, peer := range s.peersToTry(a) {
			key := rendezvous.MemberKey(peer.Alloc, peer.Task)
			r, there := sight.Reports[key]
			if !there || r.Supervisor == 0 && r.State != contract.StateRefused && r.State != contract.StateEnded {
				missing++
				continue
			}
			if tried[key] || r.Supervisor == 0 {
				continue
			}
			tried[key] = true
			wg.Go(func() {
				if p := s.tryPeer(peer, r); p != nil {
					mu.Lock()
					problems = append(problems, *p)
					mu.Unlock()
				}
			})
		}
		if missing == 0 {
			break
		}
		select {
		case <-seen:
		case <-s.ctx.Done():
			return nil
		}
		if !s.stillPlaced(a.Attempt) {
			return nil // the answer is of no use any more
		}
	}
	wg.Wait()
	if len(problems) == 0 {
		problems = s.checkBandwidth(a)
	}
	slices.SortFunc(problems, func(a, b contract.Problem) int { return strings.Compare(a.Peer+a.Text, b.Peer+b.Text) })
	return problems
}

// stillPlaced: the record in sight still waits for this member's answer.
func (s *supervisor) stillPlaced(attempt int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sight.Record
	if r == nil || r.Attempt != attempt {
		return false
	}
	_, joins := r.Joins(s.spec.Self.Alloc, s.spec.Self.Task)
	return r.Phase == contract.PhasePlaced || joins && r.Phase == contract.PhaseReleased
}

// worldOf gives the members of this one's world, itself included.
func (s *supervisor) worldOf(a member.Preflight) []contract.Member {
	var world []contract.Member
	for _, m := range a.Record.Members {
		if m.Index == a.Member || s.spec.World() != s.spec.Group || m.Group == s.spec.Group {
			world = append(world, m) // another group has a world of its own
		}
	}
	return world
}

// peersToTry gives the members of this one's world that it tries to reach, the
// one that it probes among them.
func (s *supervisor) peersToTry(a member.Preflight) []contract.Member {
	world := s.worldOf(a)
	own := slices.IndexFunc(world, func(m contract.Member) bool { return m.Index == a.Member })
	if own < 0 {
		return nil
	}
	probed, probes := s.nextNode(a)
	probes = probes && a.Record.MinBandwidth > 0
	second := slices.IndexFunc(world, func(m contract.Member) bool { return m.Node != world[0].Node })
	var out []contract.Member
	for i, m := range world {
		distance := (i - own + len(world)) % len(world)
		if i != own && (len(world) <= allPeers || distance <= nextPeers || i == 0 || i == second || probes && m.Index == probed.Index) {
			out = append(out, m)
		}
	}
	return out
}

// tryPeer reaches a peer's supervisor over the interface that the ranks will
// use, and compares clocks.
func (s *supervisor) tryPeer(peer contract.Member, r contract.Report) *contract.Problem {
	where := net.JoinHostPort(r.Address, strconv.Itoa(r.Supervisor))
	dialer, own := s.peerDialer(r.Address)
	var last error
	for deadline := time.Now().Add(peerTime); ; {
		state, sent, err := askState(s.ctx, dialer, where)
		switch {
		case err == nil && (state.Alloc != peer.Alloc || state.Task != peer.Task):
			last = fmt.Errorf("another member answers there (%s)", state.Alloc)
		case err == nil:
			if skew := state.At.Sub(sent); skew > skewLimit || skew < -skewLimit {
				return &contract.Problem{What: "clock", Site: true, Peer: peer.Node, Text: fmt.Sprintf("the clocks of %s and %s are %v apart; certificates, tokens and time limits will disagree: run NTP on both", s.spec.Node, peer.Node, skew.Round(time.Second))}
			}
			return nil
		default:
			last = err
		}
		if time.Now().After(deadline) || s.ctx.Err() != nil {
			return &contract.Problem{What: "peer", Site: true, Peer: peer.Node, Text: fmt.Sprintf("member %d on %s cannot be reached at %s from %s (%s, interface %s) within %v: %v", peer.Index, peer.Node, where, s.spec.Node, own.IP, own.Interface, peerTime, last)}
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-s.ctx.Done():
		}
	}
}

// peerDialer dials peers from the address that the ranks will use.
func (s *supervisor) peerDialer(to string) (net.Dialer, preflight.Address) {
	s.mu.Lock()
	own := s.addr
	s.mu.Unlock()
	dialer := net.Dialer{Timeout: 2 * time.Second}
	if own.IP.IsValid() && own.IP.Is4() == !strings.Contains(to, ":") {
		dialer.LocalAddr = &net.TCPAddr{IP: own.IP.AsSlice(), Zone: own.IP.Zone()}
	}
	return dialer, own
}

// askState asks a supervisor who it is; sent is the middle of the exchange.
func askState(ctx context.Context, d net.Dialer, where string) (p peerState, sent time.Time, err error) {
	conn, err := d.DialContext(ctx, "tcp", where)
	if err != nil {
		return p, sent, err
	}
	defer conn.Close()
	begin := time.Now()
	_ = conn.SetDeadline(begin.Add(2 * time.Second))
	if err := json.NewDecoder(conn).Decode(&p); err != nil {
		return p, sent, fmt.Errorf("read from %s: %w", where, err)
	}
	return p, begin.Add(time.Since(begin) / 2), nil
}
