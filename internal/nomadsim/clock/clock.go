// Package clock gives a simulated cluster its time: the wall clock, the wall clock sped up, or a clock that stands still
// until it is moved.
package clock

import (
	"container/heap"
	"sync"
	"time"
)

// Clock tells the time and calls back later. Durations are in the clock's own time.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once, d from now, on its own goroutine or on that of Advance. Stop keeps it from being called.
	AfterFunc(d time.Duration, f func()) (stop func())
}

// Real is the wall clock.
func Real() Clock { return scaled{factor: 1} }

// Scaled runs factor times as fast as the wall clock, from now on.
func Scaled(factor float64) Clock {
	if factor <= 0 || factor == 1 {
		return Real()
	}
	return scaled{start: time.Now(), factor: factor}
}

type scaled struct {
	start  time.Time
	factor float64
}

func (s scaled) Now() time.Time {
	if s.factor == 1 {
		return time.Now()
	}
	return s.start.Add(time.Duration(float64(time.Since(s.start)) * s.factor))
}

func (s scaled) AfterFunc(d time.Duration, f func()) func() {
	t := time.AfterFunc(time.Duration(float64(d)/s.factor), f)
	return func() { t.Stop() }
}

// Manual stands still until Advance moves it.
type Manual struct {
	mu    sync.Mutex
	now   time.Time
	seq   int
	queue timers
}

// NewManual makes a clock that stands at the given time.
func NewManual(start time.Time) *Manual { return &Manual{now: start} }

type timer struct {
	at      time.Time
	seq     int
	f       func()
	stopped bool
}

type timers []*timer

func (q timers) Len() int { return len(q) }
func (q timers) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].seq < q[j].seq
}
func (q timers) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *timers) Push(x any)   { *q = append(*q, x.(*timer)) }
func (q *timers) Pop() any {
	old := *q
	t := old[len(old)-1]
	*q = old[:len(old)-1]
	return t
}

// Now is where the clock stands.
func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// AfterFunc puts a call on the clock.
func (m *Manual) AfterFunc(d time.Duration, f func()) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	t := &timer{at: m.now.Add(d), seq: m.seq, f: f}
	heap.Push(&m.queue, t)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		t.stopped = true
	}
}

// Advance moves the clock on, making the calls that are due on the way, in order, each at its time.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	end := m.now.Add(d)
	for len(m.queue) > 0 && !m.queue[0].at.After(end) {
		t := heap.Pop(&m.queue).(*timer)
		if t.stopped {
			continue
		}
		if t.at.After(m.now) {
			m.now = t.at
		}
		m.mu.Unlock()
		t.f()
		m.mu.Lock()
	}
	m.now = end
	m.mu.Unlock()
}

// Next is when the next call is due.
func (m *Manual) Next() (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.queue) > 0 && m.queue[0].stopped {
		heap.Pop(&m.queue)
	}
	if len(m.queue) == 0 {
		return time.Time{}, false
	}
	return m.queue[0].at, true
}
