package store

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// A write alone takes one commit; those that come while one is under way share
// the next, at most 64 of them.
func TestCommitTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(time.Now, 10)
		write := func(n int) uint64 {
			return s.Apply(func(tx *Txn) { tx.PutVariable(&wire.Variable{Namespace: "default", Path: fmt.Sprint(n)}) })
		}
		start := time.Now()
		write(0)
		must.Zero(t, time.Since(start), must.Sprint("without a commit time nothing waits"))
		s.CommitTime(3 * time.Millisecond)
		write(1)
		must.Eq(t, 3*time.Millisecond, time.Since(start))
		before := s.Snapshot().Index()
		start = time.Now()
		var wg sync.WaitGroup
		for n := range 1 + mostTogether + 1 {
			if n == 1 {
				time.Sleep(time.Millisecond) // the first is under way alone
			}
			wg.Go(func() { write(2 + n) })
		}
		wg.Wait()
		must.Eq(t, 9*time.Millisecond, time.Since(start), must.Sprint("one alone, 64 together, one more"))
		must.Eq(t, before+uint64(2+mostTogether), s.Snapshot().Index(), must.Sprint("each write has an index of its own"))
	})
}
