package store

import (
	"context"
	"errors"
	"sync"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// ErrDropped is what a subscriber gets whose next event has left the ring.
var ErrDropped = errors.New("event dropped from buffer")

// Ring holds the last lines of events. A subscriber that falls behind the oldest loses its place.
type Ring struct {
	mu    sync.Mutex
	size  int
	head  *item // oldest
	tail  *item // newest; an empty item before the first
	count int
}

type item struct {
	events  *wire.Events
	next    *item
	ready   chan struct{} // closed when next is set
	dropped chan struct{} // closed when the item has left the ring
}

func newItem(e *wire.Events) *item {
	return &item{events: e, ready: make(chan struct{}), dropped: make(chan struct{})}
}

// NewRing makes a ring of the given number of lines. As on a real server the empty first item counts as one until it
// leaves, so that a full ring holds one more.
func NewRing(size int) *Ring {
	if size < 1 {
		size = 1
	}
	first := newItem(&wire.Events{})
	return &Ring{size: size, head: first, tail: first}
}

func (r *Ring) append(index uint64, events []*wire.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	it := newItem(&wire.Events{Index: index, Events: events})
	r.tail.next = it
	close(r.tail.ready)
	r.tail = it
	r.count++
	for r.count > r.size {
		close(r.head.dropped)
		r.head = r.head.next
		if r.head.events.Index != 0 { // the empty first item does not count
			r.count--
		}
	}
}

// Subscription reads lines in order.
type Subscription struct{ at *item }

// Subscribe starts at the oldest line for index 0, else at the first line of that index or a later one. An index before
// the oldest line starts at the oldest, one beyond the newest starts with the newest: neither is told to the subscriber.
func (r *Ring) Subscribe(index uint64) *Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	start := r.head
	if index > 0 {
		for start.events.Index < index && start.next != nil {
			start = start.next
		}
	}
	before := newItem(&wire.Events{})
	before.next = start
	close(before.ready)
	return &Subscription{at: before}
}

// Next waits for a line. It returns ErrDropped when the reader was too slow.
func (s *Subscription) Next(ctx context.Context) (*wire.Events, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.at.ready:
		}
		next := s.at.next
		select {
		case <-next.dropped:
			return nil, ErrDropped
		default:
		}
		s.at = next
		if len(next.events.Events) > 0 { // not the empty first item
			return next.events, nil
		}
	}
}
