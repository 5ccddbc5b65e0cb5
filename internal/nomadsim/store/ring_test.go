package store

import (
	"context"
	"testing"
	"testing/synctest"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func fill(r *Ring, from, to uint64) {
	for i := from; i <= to; i++ {
		r.append(i, []*wire.Event{{Index: i}})
	}
}

func TestWhereASubscriptionStarts(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name        string
		index, want uint64
	}{
		{"zero: the oldest", 0, 100},
		{"the index itself is included", 150, 150},
		{"one between two lines: the next", 155, 160},
		{"older than the oldest: the oldest, silently", 7, 100},
		{"the newest", 200, 200},
		{"beyond the newest: the newest once more", 999, 200},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := NewRing(91) // holds one more: 100..150 and 160..200
			fill(r, 1, 150)
			fill(r, 160, 200)
			got, err := r.Subscribe(c.index).Next(t.Context())
			must.NoError(t, err)
			must.Eq(t, c.want, got.Index)
		})
	}
}

func TestSeveralLinesOfOneIndex(t *testing.T) {
	t.Parallel()
	r := NewRing(10)
	fill(r, 1, 3)
	fill(r, 3, 3)
	s := r.Subscribe(3)
	for range 2 {
		got, err := s.Next(t.Context())
		must.NoError(t, err)
		must.Eq(t, 3, got.Index)
	}
}

func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	r := NewRing(10)
	fill(r, 1, 5)
	s := r.Subscribe(1)
	_, err := s.Next(t.Context())
	must.NoError(t, err)
	fill(r, 6, 30)
	_, err = s.Next(t.Context())
	must.ErrorIs(t, err, ErrDropped)
}

func TestReaderWaitsForTheNextLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRing(10)
		s := r.Subscribe(0)
		got := make(chan uint64, 1)
		go func() {
			e, err := s.Next(context.Background())
			if err == nil {
				got <- e.Index
			}
		}()
		synctest.Wait()
		must.Eq(t, 0, len(got))
		fill(r, 4, 4)
		synctest.Wait()
		must.Eq(t, 4, <-got)
	})
}

// A reader that keeps up gets every line from its start on, in order and once.
func TestReaderThatKeepsUpMissesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 20).Draw(t, "size")
		r := NewRing(size)
		var s *Subscription
		var want uint64
		for i := uint64(1); i <= 60; i++ {
			fill(r, i, i)
			if s == nil && rapid.Bool().Draw(t, "subscribe") {
				s, want = r.Subscribe(i), i
			}
			if s != nil {
				e, err := s.Next(context.Background())
				if err != nil || e.Index != want {
					t.Fatalf("got %v, %v, want line %d", e, err, want)
				}
				want++
			}
		}
	})
}
