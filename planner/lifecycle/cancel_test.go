package lifecycle

import (
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// cancelled has a gang with a grace of a minute trained, and its user stop it.
func cancelled(t *testing.T, e Cancel) *world {
	w := newWorld(t)
	w.set.Grace = func(string) time.Duration { return time.Minute }
	w.submit(nil)
	w.release()
	w.report(contract.StateTraining, 0, 1)
	w.settle()
	e.Seen, e.Why = w.seen(false), "stopped by alice"
	w.carry(w.gang.Step(e))
	w.settle()
	return w
}

// A gang that its user stops is asked, saves, leaves, and only then is its job
// stopped.
func TestCancelAsksFirst(t *testing.T) {
	t.Parallel()
	w := cancelled(t, Cancel{})
	must.Eq(t, Released, w.gang.Saved.Phase)
	must.Eq(t, contract.AskStop, w.record.Ask.Kind)
	must.Eq(t, w.now.Add(time.Minute), w.record.Ask.By)
	must.False(t, w.job.Stop)
	w.exit(0, contract.OutcomeCheckpointed, 0, true)
	w.exit(1, contract.OutcomeCheckpointed, 0, true)
	w.settle()
	must.True(t, w.job.Stop)
	must.Eq(t, Over, w.gang.Saved.Phase)
	must.Eq(t, contract.StageCancelled, w.gang.Saved.End.Stage)
	must.StrContains(t, w.gang.Saved.End.Text, "stopped by alice")
	must.Eq(t, contract.OutcomeCheckpointed, w.gang.Saved.End.Exit.Outcome)
}

// One that does not leave is stopped when the grace is over, which the one who
// stops it may set.
func TestCancelEndsWithTheGrace(t *testing.T) {
	t.Parallel()
	w := cancelled(t, Cancel{Grace: 5 * time.Second})
	w.now = w.now.Add(4 * time.Second)
	w.settle()
	must.False(t, w.job.Stop)
	w.now = w.now.Add(time.Second + leaveSlack)
	w.settle()
	must.True(t, w.job.Stop)
	must.Eq(t, contract.StageCancelled, w.gang.Saved.End.Stage)
}

// Another planner goes on with it, and a rank that fails on its way out does
// not start the gang again.
func TestCancelSurvives(t *testing.T) {
	t.Parallel()
	w := cancelled(t, Cancel{})
	saved := *w.saved
	w.gang = Restore(w.gang.ID, w.set, saved, w.stored)
	w.record = nil
	w.settle()
	must.NotNil(t, w.record, must.Sprint("the members are told again"))
	must.Eq(t, contract.AskStop, w.record.Ask.Kind)
	w.exit(0, contract.OutcomeFailed, 3, false)
	w.settle()
	w.now = w.now.Add(time.Minute)
	w.settle()
	must.Eq(t, Over, w.gang.Saved.Phase)
	must.Eq(t, contract.StageCancelled, w.gang.Saved.End.Stage)
}

// A gang that completes while it is asked has completed.
func TestCancelTooLate(t *testing.T) {
	t.Parallel()
	w := cancelled(t, Cancel{})
	w.exit(0, contract.OutcomeComplete, 0, false)
	w.exit(1, contract.OutcomeComplete, 0, false)
	w.settle()
	must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
}

// Where there is no grace, and where nothing runs, nobody is asked.
func TestCancelWithoutAsking(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]func(w *world){
		"no grace": func(w *world) { w.set.Grace = nil; w.release() },
		"waiting":  func(w *world) { w.settle() },
		"placed":   func(w *world) { w.start() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set.Grace = func(string) time.Duration { return time.Minute }
			w.submit(nil)
			when(w)
			w.carry(w.gang.Step(Cancel{Seen: w.seen(false), Why: "stopped"}))
			w.settle()
			must.True(t, w.job.Stop)
			must.Eq(t, Over, w.gang.Saved.Phase)
			must.Eq(t, contract.StageCancelled, w.gang.Saved.End.Stage)
			must.Nil(t, w.gang.Saved.Ask)
		})
	}
}
