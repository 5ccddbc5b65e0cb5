package driver

import (
	"context"
	"sync"

	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// eventLog keeps events until Nomad's agent takes them.
type eventLog struct {
	mu      sync.Mutex
	pending []*driver.TaskEvent
	wake    chan struct{}
}

// eventsKept is how many events wait for an agent that is away.
const eventsKept = 1000

func newEventLog() *eventLog { return &eventLog{wake: make(chan struct{}, 1)} }

func (l *eventLog) add(e *driver.TaskEvent) {
	l.mu.Lock()
	l.pending = append(l.pending, e)
	if n := len(l.pending); n > eventsKept {
		l.pending = append([]*driver.TaskEvent(nil), l.pending[n-eventsKept:]...)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// follow sends events until ctx ends. What could not be sent stays for the next
// who follows.
func (l *eventLog) follow(ctx context.Context, send func(*driver.TaskEvent) error) error {
	for {
		l.mu.Lock()
		var next *driver.TaskEvent
		if len(l.pending) > 0 {
			next = l.pending[0]
		}
		l.mu.Unlock()
		if next == nil {
			select {
			case <-l.wake:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := send(next); err != nil {
			return err
		}
		l.mu.Lock()
		if len(l.pending) > 0 && l.pending[0] == next {
			l.pending = l.pending[1:]
		}
		l.mu.Unlock()
	}
}
