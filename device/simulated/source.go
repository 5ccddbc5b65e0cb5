// Package simulated is a source of cards that are described in a file, with
// faults that are injected: for trials and tests on machines without cards.
//
// One file describes all nodes of a trial cluster:
//
//	node "n1" { preset = "hgx-h100-8" }
//	node "n2" {
//	  preset = "islands-2x4"
//	  gpu "3" { lost = true }                    # changes one card of the preset
//	}
//	node "*" {                                   # every other node
//	  gpu "0" {
//	    count  = 4                               # gpu 0 to 3
//	    model  = "NVIDIA L40S"
//	    memory = 46068                           # MiB
//	    numa   = 0
//	    place  = "b0/s0"                         # host bridge b0, switch s0
//	  }
//	  nic "mlx5_0" {
//	    rate  = 200                              # Gb/s
//	    place = "b0/s0"
//	  }
//	  link {                                     # each pair has 4 links
//	    cards = [0, 1]                           # (switch = true: each card
//	    count = 4                                # has 4 to a switch)
//	  }
//	}
//
// Faults are injected by editing the file (lost, thermal, down) or through a
// journal beside it (Inject). They take the way of real ones: an injected Xid is
// a line in a made-up kernel log, read by the same parser and folded by the same
// fold; a lost card is one that its source cannot ask any more.
//
// A file with faults is refused whole; the last good one stays in force.
package simulated

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/kernlog"
)

// look is how often the files are looked at.
const look = 100 * time.Millisecond

// Source is one node of a description.
type Source struct {
	file, node string

	mu    sync.Mutex
	good  *nodeBlock // the last good description
	world *world
	seen  [2]stamp
	fault error // of the last reading

	cursorBoot string // how far Next came
	cursor     uint64
	begun      bool
}

// stamp tells one version of a file from another.
type stamp struct {
	size int64
	mod  time.Time
}

// New makes the source of one node. Nothing is read yet.
func New(file, node string) *Source { return &Source{file: file, node: node} }

// Name is "simulated".
func (s *Source) Name() string { return "simulated" }

// refresh reads the files again where they changed, and tells whether they did.
func (s *Source) refresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := [2]stamp{stampOf(s.file), stampOf(JournalPath(s.file))}
	if s.world != nil && now == s.seen || s.fault != nil && now == s.seen {
		return false
	}
	s.seen = now
	var faults []error
	if f, err := load(s.file); err != nil {
		faults = append(faults, err)
	} else if n, err := f.node(s.node); err != nil {
		faults = append(faults, err)
	} else {
		s.good = n
	}
	injections, err := readJournal(JournalPath(s.file), s.node)
	if err != nil {
		faults = append(faults, err)
	}
	s.fault = errors.Join(faults...)
	if s.good != nil {
		s.world = build(s.node, s.good, injections)
	}
	return true
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{size: -1}
	}
	return stamp{size: info.Size(), mod: info.ModTime()}
}

// Scan lists the cards. Faults of the files are notes while an older
// description is in force, else an error.
func (s *Source) Scan(context.Context) (card.Scan, error) {
	s.refresh()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.world == nil {
		return card.Scan{}, s.fault
	}
	scan := s.world.scan(time.Now())
	if s.fault != nil {
		scan.Notes = append(scan.Notes, fmt.Sprintf("the last good description stays in force: %v", s.fault))
	}
	return scan, nil
}

// Sample makes up measurements.
func (s *Source) Sample(context.Context) (map[string]card.Sample, error) {
	s.refresh()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.world == nil {
		return nil, s.fault
	}
	return s.world.sample(time.Now()), nil
}

// Watch asks for a scan whenever the files changed.
func (s *Source) Watch(ctx context.Context, _ func(card.Sighting), poke func()) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	last := [2]stamp{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.refresh()
		s.mu.Lock()
		seen := s.seen
		s.mu.Unlock()
		if seen != last {
			last = seen
			poke()
		}
	}
}

// Next gives the records of the made-up kernel log.
func (s *Source) Next(ctx context.Context) ([]kernlog.Record, error) {
	for {
		s.refresh()
		s.mu.Lock()
		first := !s.begun
		s.begun = true
		var out []kernlog.Record
		if s.world != nil {
			for _, r := range s.world.records {
				if r.Boot != s.cursorBoot || r.Seq > s.cursor {
					out = append(out, r)
				}
			}
			if len(out) > 0 {
				s.cursorBoot, s.cursor = out[len(out)-1].Boot, out[len(out)-1].Seq
			}
		}
		s.mu.Unlock()
		if first || len(out) > 0 {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(look):
		}
	}
}
