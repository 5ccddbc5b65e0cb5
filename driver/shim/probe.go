package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/driver/bandwidth"
	"github.com/nomad-muster/muster/driver/cards"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/internal/contract"
)

const (
	// holdersTime is for how long others may still hold a card that was handed
	// over: the kernel takes a moment to end a large process.
	holdersTime = 5 * time.Second
	// holdersAfter is the same at the end, before the cards go back.
	holdersAfter = 15 * time.Second
	// probes is how often a way that looks too slow is measured; the best counts.
	probes = 3
)

// checkHolders: nobody else computes on the cards that were handed over.
func (s *supervisor) checkHolders(ctx context.Context) []contract.Problem {
	held, err := s.holders(ctx, holdersTime)
	if err != nil {
		return []contract.Problem{{What: "cards", Site: true, Text: fmt.Sprintf("the cards on %s: %v", s.spec.Node, err)}}
	}
	var out []contract.Problem
	for _, h := range held {
		out = append(out, contract.Problem{What: "cards", Site: true,
			Text: fmt.Sprintf("on %s %v, which is reserved for this task, and belongs to somebody else: %s", s.spec.Node, h, whose(h.PID))})
	}
	return out
}

// whose says what is known of a stranger: the task that it is left over from, or
// its cgroup.
func whose(pid int) string {
	if env, err := isolation.Environment(pid); err == nil {
		for _, entry := range env {
			if id, ok := bytes.CutPrefix([]byte(entry), []byte(contract.EnvTask+"=")); ok {
				return fmt.Sprintf("it is left over from task %s", id)
			}
		}
	}
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if first, _, _ := bytes.Cut(group, []byte("\n")); err == nil && len(first) > 0 {
		return fmt.Sprintf("end it, or find out who started it (cgroup %s)", first)
	}
	return "end it, or find out who started it"
}

// holders waits until nobody else uses the task's cards, and gives who still
// does. Of cards that are named by ids alone nothing can be told, nor of shares,
// which others use by right.
func (s *supervisor) holders(ctx context.Context, wait time.Duration) ([]cards.Holder, error) {
	if len(s.spec.Devices) == 0 || s.spec.Env[contract.EnvCardsShared] == "1" {
		return nil, nil
	}
	var nodes []string
	for _, d := range s.spec.Devices {
		nodes = append(nodes, d.Host)
	}
	for deadline := time.Now().Add(wait); ; {
		table, err := isolation.ReadTable()
		if err != nil {
			return nil, err
		}
		below := table.Below(os.Getpid())
		held, err := cards.Holders(nodes, func(pid int) bool {
			_, found := slices.BinarySearch(below, pid)
			return found || pid == os.Getpid()
		})
		if err != nil || len(held) == 0 || time.Now().After(deadline) {
			return held, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return held, nil
		}
	}
}

// cardsFree sees to it that the cards are given back unused. Who still uses one
// is none of the task's, since those are gone, and is named.
func (s *supervisor) cardsFree() {
	ctx, cancel := context.WithTimeout(context.Background(), holdersAfter)
	defer cancel()
	held, err := s.holders(ctx, holdersAfter)
	if err != nil {
		s.log.Warn("cannot see who uses the task's cards", "error", err)
	}
	for _, h := range held {
		s.tell(fmt.Sprintf("%v after the task's own processes are gone: %s", h, whose(h.PID)))
	}
}

// checkBandwidth measures the way to the next node of the world. One member of
// each node does, and each way is measured by one: all at once then disturb
// each other no more than the ranks of a ring would.
func (s *supervisor) checkBandwidth(a member.Preflight) []contract.Problem {
	want := a.Record.MinBandwidth
	peer, ok := s.nextNode(a)
	if want <= 0 || !ok {
		return nil
	}
	s.mu.Lock()
	r := s.sight.Reports[peer.Key()]
	s.mu.Unlock()
	where := net.JoinHostPort(r.Address, strconv.Itoa(r.Supervisor))
	dialer, own := s.peerDialer(r.Address)
	from := fmt.Sprintf("from %s (%s, interface %s) to member %d on %s (%s)", s.spec.Node, own.IP, own.Interface, peer.Index, peer.Node, r.Address)
	best := 0.0
	streams := bandwidth.Streams(want)
	for range probes {
		rate, err := bandwidth.Measure(s.ctx, streams, func(ctx context.Context) (float64, error) { return sendTo(ctx, dialer, where) })
		if err != nil {
			return []contract.Problem{{What: "bandwidth", Site: true, Peer: peer.Node, Text: fmt.Sprintf("the way %s cannot be measured: %v", from, err)}}
		}
		if best = max(best, rate); best >= want {
			s.log.Info("bandwidth", "to", peer.Node, "gbit/s", best, "wanted", want)
			return nil
		}
	}
	return []contract.Problem{{What: "bandwidth", Site: true, Peer: peer.Node,
		Text: fmt.Sprintf("the way %s carries %.3g Gbit/s, and %s asks for %g (best of %d tries over %d connections)", from, best, contract.MetaMinBandwidth, want, probes, streams)}}
}

func sendTo(ctx context.Context, d net.Dialer, where string) (float64, error) {
	conn, err := d.DialContext(ctx, "tcp", where)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	in := bufio.NewReaderSize(conn, 4096)
	if _, err := in.ReadSlice('\n'); err != nil {
		return 0, fmt.Errorf("read the peer's state: %w", err)
	}
	if err := json.NewEncoder(conn).Encode(peerAsk{Take: true}); err != nil {
		return 0, errors.New("the peer's supervisor takes no measurement: it may be of an older version")
	}
	return bandwidth.Send(conn, in)
}

// nextNode gives the first member of the next node of the world, for the first
// member of each node.
func (s *supervisor) nextNode(a member.Preflight) (contract.Member, bool) {
	var first []contract.Member // of each node, in order
	own := -1
	for _, m := range s.worldOf(a) {
		if slices.ContainsFunc(first, func(f contract.Member) bool { return f.Node == m.Node }) {
			continue
		}
		if m.Index == a.Member {
			own = len(first)
		}
		first = append(first, m)
	}
	if own < 0 || len(first) < 2 {
		return contract.Member{}, false
	}
	return first[(own+1)%len(first)], true
}
