package httpapi

import (
	"sync"

	"github.com/nomad-muster/muster/planner/view"
)

// Feed keeps the last events and wakes those who wait for the next. The
// planner publishes, the API reads; all methods may be called at once.
type Feed struct {
	mu    sync.Mutex
	last  uint64
	ring  []view.Event // the last cap(ring) events, oldest first from start
	start int
	wake  chan struct{}
}

// NewFeed keeps the last size events. Index is that of the last event before
// (0 for a new planner): a planner that starts again goes on from it where it
// can, and from the time in nanoseconds otherwise, so that an index only grows.
func NewFeed(size int, index uint64) *Feed {
	return &Feed{ring: make([]view.Event, 0, max(size, 1)), last: index, wake: make(chan struct{})}
}

// Publish gives the event the next index, keeps it and wakes all who wait.
func (f *Feed) Publish(e view.Event) (index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	e.Index = f.last
	if len(f.ring) < cap(f.ring) {
		f.ring = append(f.ring, e)
	} else {
		f.ring[f.start] = e
		f.start = (f.start + 1) % len(f.ring)
	}
	close(f.wake)
	f.wake = make(chan struct{})
	return f.last
}

// Index is that of the last event.
func (f *Feed) Index() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Tail is what a feed holds after some index.
type Tail struct {
	Events []view.Event
	Last   uint64          // index of the last event published
	Next   <-chan struct{} // closes with the next one
	// Gap: events between are forgotten, or the index is from another feed's
	// life; Events are all that is kept, and the reader has to look at
	// everything again.
	Gap bool
}

// After gives the events that follow an index.
func (f *Feed) After(index uint64) Tail {
	f.mu.Lock()
	defer f.mu.Unlock()
	oldest := f.last - uint64(len(f.ring)) // index before the oldest kept
	t := Tail{Last: f.last, Next: f.wake, Gap: index < oldest || index > f.last}
	for i := range f.ring {
		if e := f.ring[(f.start+i)%len(f.ring)]; t.Gap || e.Index > index {
			t.Events = append(t.Events, e)
		}
	}
	return t
}
