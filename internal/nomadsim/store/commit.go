package store

import (
	"sync"
	"time"
)

// mostTogether is how many writes are committed at once: hashicorp/raft's MaxAppendEntries.
const mostTogether = 64

// commits makes writes take the time that a server's log takes to commit them. As there, one commit is under way at a
// time, and what comes meanwhile is committed together afterwards.
type commits struct {
	took    time.Duration // of one commit; 0: none
	mu      sync.Mutex
	waiting []chan struct{}
	busy    bool
}

// CommitTime makes every write from now on wait so long, on the wall clock, before it is applied; 0: not at all.
func (s *Store) CommitTime(d time.Duration) {
	s.commits.mu.Lock()
	defer s.commits.mu.Unlock()
	s.commits.took = d
}

// wait returns when a write that comes now is committed.
func (c *commits) wait() {
	c.mu.Lock()
	if c.took == 0 {
		c.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	c.waiting = append(c.waiting, mine)
	if !c.busy {
		c.busy = true
		go c.run()
	}
	c.mu.Unlock()
	<-mine
}

// run commits until nothing waits.
func (c *commits) run() {
	for {
		c.mu.Lock()
		n := min(len(c.waiting), mostTogether)
		together := c.waiting[:n:n]
		c.waiting = c.waiting[n:]
		c.busy = n > 0
		took := c.took
		c.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(took)
		for _, w := range together {
			close(w)
		}
	}
}
