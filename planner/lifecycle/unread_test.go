package lifecycle

import (
	"errors"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// garble has somebody register a version that cannot be read.
func (w *world) garble() {
	w.index++
	w.job.JobModifyIndex = w.index
	w.unread = errors.New("a number stands where a name is wanted")
}

func TestNewVersionCannotBeRead(t *testing.T) {
	t.Parallel()
	t.Run("while the ranks run", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.garble()
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Unreadable(), "register one that can be")
		// A planner that starts now follows them too.
		w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored)
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		w.exit(0, contract.OutcomeComplete, 0, false)
		w.exit(1, contract.OutcomeComplete, 0, false)
		w.settle()
		must.Eq(t, Over, w.gang.Saved.Phase)
		must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
		must.True(t, w.job.Stop, must.Sprint("what Nomad would run next is not known"))
	})
	t.Run("a failure is not tried again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(func(j map[string]any) { j["Meta"] = map[string]any{"muster_queue": "q", "muster_retries": "3"} })
		w.release()
		w.garble()
		w.settle()
		w.exit(0, contract.OutcomeFailed, 7, false)
		w.settle()
		w.now = w.now.Add(time.Minute)
		w.settle()
		must.Eq(t, Over, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.End.Text, "cannot be read")
	})
	t.Run("while it waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.settle()
		w.garble()
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.False(t, w.gang.Gone)
		must.SliceNotEmpty(t, w.gang.Faults)
		w.unread = nil
		w.submit(nil)
		w.settle()
		must.SliceEmpty(t, w.gang.Faults)
	})
	t.Run("while it is placed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.start()
		w.garble()
		w.settle()
		must.Eq(t, contract.StageCancelled, w.gang.Saved.End.Stage)
		must.True(t, w.job.Stop)
	})
}
