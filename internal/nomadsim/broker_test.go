package nomadsim

import (
	"testing"

	"github.com/nomad-muster/muster/internal/nomadsim/clock"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
	"github.com/shoenig/test/must"
)

// Room that comes free while a blocked evaluation is worked on wakes it once
// more: what it found then is old.
func TestWokenWhileWorkedOn(t *testing.T) {
	t.Parallel()
	b := newBroker(clock.Real())
	defer b.close()
	e := &wire.Evaluation{ID: "e", Namespace: "default", JobID: "j", Status: wire.EvalBlocked}
	b.enqueue(e)
	must.Eq(t, "e", b.next().ID)
	again := *e
	again.SnapshotIndex = 7
	b.enqueue(&again)
	must.SliceEmpty(t, b.done(e))
	got := b.next()
	must.Eq(t, uint64(7), got.SnapshotIndex)
	must.SliceEmpty(t, b.done(got))
	must.True(t, b.idle())
}
