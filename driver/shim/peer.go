package shim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/driver/bandwidth"
	"github.com/nomad-muster/muster/driver/member"
)

// peerState is what a supervisor tells a peer that connects: one line of JSON.
type peerState struct {
	V       int       `json:"v"`
	Gang    string    `json:"gang"`
	Attempt int       `json:"attempt"`
	Alloc   string    `json:"alloc"`
	Task    string    `json:"task"`
	At      time.Time `json:"at"`
}

// peerAsk is what a peer may ask for after it has read the state: one line of
// JSON. One that asks for nothing just leaves.
type peerAsk struct {
	// Take what comes then, and answer how fast it came; see package bandwidth.
	Take bool `json:"take,omitempty"`
}

// peerServer answers peers that ask whether this member still lives.
type peerServer struct {
	listener net.Listener
	port     int
	taking   chan struct{} // bounds the measurements at once
}

func servePeers(address string, state func() peerState) (*peerServer, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for peers on %s: %w", address, err)
	}
	p := &peerServer{l, l.Addr().(*net.TCPAddr).Port, make(chan struct{}, 2*bandwidth.Streams(math.Inf(1)))}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn, state)
		}
	}()
	return p, nil
}

func (p *peerServer) serve(conn net.Conn, state func() peerState) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if json.NewEncoder(conn).Encode(state()) != nil {
		return
	}
	in := bufio.NewReaderSize(conn, 512)
	line, err := in.ReadSlice('\n')
	var ask peerAsk
	if err != nil || json.Unmarshal(line, &ask) != nil || !ask.Take {
		return
	}
	select {
	case p.taking <- struct{}{}:
		_ = bandwidth.Take(conn, in)
		<-p.taking
	default: // whoever asks for more than the most is no member
	}
}

func (p *peerServer) close() { p.listener.Close() }

func (s *supervisor) peerState() peerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	self := s.spec.Self
	return peerState{V: 1, Gang: self.Gang.String(), Attempt: s.status.Attempt, Alloc: self.Alloc, Task: self.Task, At: time.Now()}
}

const (
	peerTries = 3
	peerPause = time.Second
	// peerAgain is how long a peer that answered, but whose report is still
	// missing, is left alone.
	peerAgain = 5 * time.Second
)

// askPeer asks a peer directly whether it still lives in this attempt.
func (s *supervisor) askPeer(a member.AskPeer) {
	if a.Peer.Supervisor == 0 {
		s.event(member.PeerAnswered{Peer: a.Peer, Text: "its report is gone from Consul"})
		return
	}
	where := net.JoinHostPort(a.Peer.Address, strconv.Itoa(a.Peer.Supervisor))
	var last error
	for range peerTries {
		if last = s.peerLives(where, a); last == nil {
			select {
			case <-time.After(peerAgain):
			case <-s.ctx.Done():
			}
			s.event(member.PeerAnswered{Peer: a.Peer, Alive: true})
			return
		}
		select {
		case <-time.After(peerPause):
		case <-s.ctx.Done():
			return
		}
	}
	s.event(member.PeerAnswered{Peer: a.Peer, Text: fmt.Sprintf("its report is gone from Consul and its supervisor does not answer: %v", last)})
}

func (s *supervisor) peerLives(where string, a member.AskPeer) error {
	p, _, err := askState(s.ctx, net.Dialer{Timeout: peerPause}, where)
	if err != nil {
		return err
	}
	if p.Alloc != a.Peer.Alloc || p.Task != a.Peer.Task {
		return fmt.Errorf("at %s another member answers", where)
	}
	return nil
}
