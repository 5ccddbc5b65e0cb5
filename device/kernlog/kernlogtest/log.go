// Package kernlogtest is a kernel log that a test writes.
package kernlogtest

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-muster/muster/device/kernlog"
)

// Log is a kernel log in memory. Several readers do not share a place in it:
// make one Reader for each start of a plugin.
type Log struct {
	mu      sync.Mutex
	boot    string
	records []kernlog.Record
	seq     uint64
	changed chan struct{}
}

// New makes the empty log of a boot.
func New(boot string) *Log { return &Log{boot: boot, changed: make(chan struct{})} }

// Write appends a record with the next sequence number.
func (l *Log) Write(at time.Time, text string) { l.WriteSeq(0, at, text) }

// WriteSeq appends a record with a sequence number of its own.
func (l *Log) WriteSeq(seq uint64, at time.Time, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seq++; seq > 0 {
		l.seq = seq
	}
	l.records = append(l.records, kernlog.Record{Boot: l.boot, Seq: l.seq, At: at, Text: text})
	close(l.changed)
	l.changed = make(chan struct{})
}

// Reader reads the log from its beginning.
func (l *Log) Reader() *Reader { return &Reader{log: l} }

// Reader is one reading of a log.
type Reader struct {
	log   *Log
	next  int
	begun bool
}

// Name is that of the real log, since a plugin keeps its place by it.
func (*Reader) Name() string { return "kmsg" }

// Next gives what was not read yet.
func (r *Reader) Next(ctx context.Context) ([]kernlog.Record, error) {
	for {
		r.log.mu.Lock()
		out := r.log.records[r.next:]
		r.next = len(r.log.records)
		changed := r.log.changed
		r.log.mu.Unlock()
		if len(out) > 0 || !r.begun {
			r.begun = true
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}
