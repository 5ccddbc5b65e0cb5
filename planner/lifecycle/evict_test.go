package lifecycle

import (
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
)

func (w *world) evict(change func(*core.Eviction)) {
	w.t.Helper()
	plan := core.Eviction{Gang: "default/g", Attempt: w.gang.Saved.Attempt, Kind: core.EvictReclaim, For: "default/other", Grace: time.Minute, Why: "needed"}
	if change != nil {
		change(&plan)
	}
	effects := w.gang.Step(Evict{Seen: w.seen(false), Plan: plan, Queue: "prod"})
	must.SliceNotEmpty(w.t, effects)
	w.carry(effects)
	w.settle()
}

// startBehind has the gang placed where another is to leave first.
func (w *world) startBehind(leavers ...Leaver) {
	w.t.Helper()
	w.settle()
	effects := w.gang.Step(Start{Seen: w.seen(false), Plan: core.Start{Gang: "default/g", Members: []core.Placement{{Group: "rank", Member: 0, Node: "n0"}, {Group: "rank", Member: 1, Node: "n1"}}}, Leavers: leavers})
	must.SliceNotEmpty(w.t, effects)
	must.True(w.t, effects[0].(Check).Blocked)
	w.unplaced = true
	w.carry(effects)
}

// look steps the gang with what is leaving yet.
func (w *world) look(leaving ...Leaving) {
	w.t.Helper()
	for range 50 {
		v := w.seen(false)
		v.Leaving = leaving
		effects := w.gang.Step(v)
		if len(effects) == 0 {
			return
		}
		w.carry(effects)
	}
	w.t.Fatalf("the gang never comes to rest: %v", w.log)
}

// A grace is extended while a member writes a checkpoint, by what the member
// says and never beyond twice.
func TestGraceIsExtended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.release()
	asked := w.now
	w.evict(nil)
	extend := func(by time.Duration) {
		w.report(contract.StateTraining, 0)
		w.reports[len(w.reports)-1].LeaveBy = asked.Add(by)
		w.settle()
	}
	extend(2 * time.Minute)
	w.now = asked.Add(time.Minute + leaveSlack)
	w.settle()
	must.Eq(t, Released, w.gang.Saved.Phase)
	must.False(t, w.gang.Wake.IsZero() || w.gang.Wake.After(asked.Add(2*time.Minute+leaveSlack)))
	extend(time.Hour)
	w.now = asked.Add(3*time.Minute + leaveSlack)
	w.settle()
	must.Eq(t, Waiting, w.gang.Saved.Phase)
	must.StrContains(t, w.gang.Saved.Attempts[0].Text, "the grace of 3m0s is over")
}

// What an eviction leaves behind: the gang keeps its place, goes where evicted
// gangs of its queue go, and is remembered to have been evicted by whom.
func TestEvictionIsBooked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.release()
	w.report(contract.StateTraining, 0, 1)
	w.settle()
	submitted := w.gang.Saved.Submitted
	w.now = w.now.Add(time.Hour)
	w.evict(func(e *core.Eviction) { e.To = "scavenger" })
	w.now = w.now.Add(10 * time.Second)
	w.exit(0, contract.OutcomeCheckpointed, 0, true)
	w.exit(1, contract.OutcomeCheckpointed, 0, true)
	w.settle()
	s := &w.gang.Saved
	must.Eq(t, Waiting, s.Phase)
	must.Eq(t, submitted, s.Submitted)
	must.Eq(t, "scavenger", w.gang.QueueName())
	must.Eq(t, []Evicted{{At: s.Evicted[0].At, For: "default/other", Queue: "prod", Kind: core.EvictReclaim}}, s.Evicted)
	must.Eq(t, core.EvictReclaim, s.Attempts[0].Cause)
	must.Eq(t, "default/other", s.Attempts[0].For)
	must.Between(t, 10*time.Second, s.SaveTime, 11*time.Second)
	must.Between(t, time.Hour, s.Ran, time.Hour+time.Minute)
	g, ok := w.gang.Core(w.now)
	must.True(t, ok)
	must.Eq(t, []core.GangID{"default/other"}, g.EvictedBy)
	must.Eq(t, 1, g.EvictionsToday)
	must.Eq(t, s.Ran, g.Ran)
	g, _ = w.gang.Core(w.now.Add(24 * time.Hour))
	must.SliceEmpty(t, g.EvictedBy)
	must.Eq(t, 0, g.EvictionsToday)
}

// Work that was not saved does not count as run, and the waiting before a start
// that came to nothing counts as waiting still.
func TestWhatIsLostDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set.MinRuntime = func(string) time.Duration { return 15 * time.Minute }
	w.submit(nil)
	w.settle()
	w.now = w.now.Add(time.Hour)
	w.release()
	w.report(contract.StateTraining, 0, 1)
	w.settle()
	w.now = w.now.Add(time.Hour)
	w.evict(nil)
	w.exit(0, contract.OutcomeKilled, 137, true)
	w.exit(1, contract.OutcomeKilled, 137, true)
	w.settle()
	must.Eq(t, Waiting, w.gang.Saved.Phase)
	must.Eq(t, 0, w.gang.Saved.Ran)
	must.Between(t, time.Hour, w.now.Sub(w.gang.Saved.Queued), time.Hour+time.Minute)
}

// One that is placed and not released has nothing to save: it is taken back at
// once, and that is no failure.
func TestEvictedBeforeItsRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.start()
	w.evict(nil)
	must.Eq(t, Waiting, w.gang.Saved.Phase)
	must.Eq(t, 0, w.gang.Saved.SiteFailures)
	must.True(t, w.job.IsHeld())
	must.Eq(t, ReasonPreempted, w.gang.Saved.Attempts[0].Reason)
}

// A drain that ends sooner shortens the grace of an eviction, and the gang
// still leaves for the one that asked first.
func TestDrainShortensTheGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.release()
	w.evict(func(e *core.Eviction) { e.Grace = time.Hour })
	n := *w.nodes["n1"]
	n.Draining, n.DrainBy = true, w.now.Add(5*time.Minute)
	w.nodes["n1"] = &n
	w.settle()
	must.Eq(t, contract.AskDrain, w.record.Ask.Kind)
	must.Eq(t, w.now.Add(5*time.Minute), w.record.Ask.By)
	must.Eq(t, "default/other", w.gang.Saved.Ask.For)
}

// The ask is taken back while nobody has left; who left already takes the gang
// along.
func TestWithdrawal(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.evict(nil)
		w.carry(w.gang.Step(Withdraw{Seen: w.seen(false), Why: "it was stopped"}))
		must.Eq(t, contract.AskWithdrawn, w.record.Ask.Kind)
		must.SliceEmpty(t, w.gang.Saved.Evicted)
		if left {
			w.exit(0, contract.OutcomeYielded, 0, true)
		}
		w.settle()
		w.now = w.now.Add(time.Hour)
		w.look()
		if left {
			must.Eq(t, Waiting, w.gang.Saved.Phase)
			must.Eq(t, ReasonPreempted, w.gang.Saved.Attempts[0].Reason)
			continue
		}
		must.Eq(t, Released, w.gang.Saved.Phase, must.Sprint("its grace does not end it"))
		w.exit(0, contract.OutcomeComplete, 0, false)
		w.exit(1, contract.OutcomeComplete, 0, false)
		w.settle()
		must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
	}
}

// A reservation waits for its leavers as long as their graces take, and for its
// members only once they have left.
func TestReservationBehindOthers(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.submit(nil)
		w.startBehind(Leaver{Gang: "default/v", Attempt: 3, Evict: &core.Eviction{Gang: "default/v", Attempt: 3}}, Leaver{Gang: "default/x", Attempt: 1})
		must.True(t, w.gang.Needs("default/v", 3))
		must.False(t, w.gang.Needs("default/v", 4))
		return w
	}
	t.Run("asks once it is registered", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		must.SliceEmpty(t, w.gang.Asks())
		w.look(Leaving{Gang: "default/v"})
		must.Len(t, 1, w.gang.Asks())
		// So does a planner that starts again.
		w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored)
		w.look(Leaving{Gang: "default/v"})
		must.Len(t, 1, w.gang.Asks())
	})
	t.Run("waits for the graces, and then for Nomad", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		until := w.now.Add(40 * time.Minute)
		w.now = w.now.Add(41 * time.Minute)
		w.look(Leaving{Gang: "default/v", Asked: true, Until: until})
		must.Eq(t, Reserving, w.gang.Saved.Phase)
		w.look()
		must.Eq(t, w.now, w.gang.Saved.Room)
		g, _ := w.gang.Core(w.now)
		must.Eq(t, w.now, g.Started, must.Sprint("its time to be released begins now"))
		w.place()
		w.report(contract.StateReady, 0, 1)
		w.look()
		must.Eq(t, Released, w.gang.Saved.Phase)
	})
	t.Run("gives up where Nomad does not place it then", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		w.look()
		w.now = w.now.Add(roomWithin + time.Second)
		w.evals[len(w.evals)-1].Failed, w.evals[len(w.evals)-1].Why = map[string]bool{"rank": true}, "no card"
		w.look()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.Attempts[0].Text, "no card")
	})
	t.Run("gives up where one does not go", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		until := w.now.Add(time.Minute)
		w.now = until.Add(w.set.ReserveTimeout)
		w.look(Leaving{Gang: "default/v", Asked: true, Until: until})
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.Attempts[0].Text, "default/v has not left")
	})
	t.Run("gives up at once where a node of it is lost", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		w.nodes["n1"] = &picture.Node{Node: core.Node{ID: "n1", Name: "n1"}, Status: "down"}
		w.look(Leaving{Gang: "default/v", Asked: true, Until: w.now.Add(time.Minute)})
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.Attempts[0].Text, "node n1 was lost")
	})
}

// Where its queue may not hold both, a reservation is registered only when its
// leavers have left, by a planner that starts again as well.
func TestReservationAfterOthers(t *testing.T) {
	t.Parallel()
	victim := Leaver{Gang: "default/v", Attempt: 3, Evict: &core.Eviction{Gang: "default/v", Attempt: 3}}
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.submit(nil)
		w.settle()
		effects := w.gang.Step(Start{Seen: w.seen(false), Leavers: []Leaver{victim}, Plan: core.Start{Gang: "default/g", Waits: true,
			Members: []core.Placement{{Group: "rank", Member: 0, Node: "n0"}, {Group: "rank", Member: 1, Node: "n1"}}}})
		w.carry(effects)
		must.Eq(t, Reserving, w.gang.Saved.Phase)
		return w
	}
	held := func(t *testing.T, w *world) {
		t.Helper()
		must.True(t, w.job.IsHeld())
		must.Len(t, 0, w.allocs)
		g, _ := w.gang.Core(w.now)
		must.True(t, g.Waits)
		must.Len(t, 2, g.Placement)
	}
	t.Run("registers once they have left", func(t *testing.T) {
		t.Parallel()
		w := begin(t)
		for range 2 {
			w.look(Leaving{Gang: "default/v"})
			must.Len(t, 1, w.gang.Asks(), must.Sprint("its leavers are asked meanwhile"))
			w.now = w.now.Add(time.Minute)
			w.look(Leaving{Gang: "default/v", Asked: true, Until: w.now.Add(time.Minute)})
			held(t, w)
			w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored)
		}
		w.look()
		must.False(t, w.job.IsHeld())
		must.Eq(t, 1, w.job.Mark())
		must.Eq(t, w.now, w.gang.Saved.Room)
		w.report(contract.StateReady, 0, 1)
		w.look()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.Eq(t, 1, w.gang.Saved.Attempt)
	})
	for name, spoil := range map[string]func(*world) Leaving{
		"default/v has not left": func(w *world) Leaving {
			until := w.now.Add(time.Minute)
			w.now = until.Add(w.set.ReserveTimeout)
			return Leaving{Gang: "default/v", Asked: true, Until: until}
		},
		"node n1 was lost": func(w *world) Leaving {
			w.nodes["n1"] = &picture.Node{Node: core.Node{ID: "n1", Name: "n1"}, Status: "down"}
			return Leaving{Gang: "default/v", Asked: true, Until: w.now.Add(time.Minute)}
		},
	} {
		t.Run("gives up where "+name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.look(Leaving{Gang: "default/v"})
			w.look(spoil(w))
			must.Eq(t, Waiting, w.gang.Saved.Phase)
			must.Eq(t, 0, w.gang.Saved.Attempt, must.Sprint("nothing carries the number"))
			must.StrContains(t, w.gang.Saved.NotBeforeWhy, name)
			must.True(t, w.job.IsHeld())
			must.False(t, w.gang.Needs("default/v", 3))
		})
	}
}

// A time limit that ended a gang is its outcome, whatever its members made of
// it.
func TestTimeLimitIsTheOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.release()
	w.evict(func(e *core.Eviction) {
		e.Kind, e.For, e.Why = core.EvictTimeLimit, "", "has run for its time limit of 1h"
	})
	must.Eq(t, contract.AskTimeLimit, w.record.Ask.Kind)
	w.exit(0, contract.OutcomeCheckpointed, 0, true)
	w.exit(1, contract.OutcomeKilled, 137, true)
	w.settle()
	end := w.gang.Saved.End
	must.Eq(t, contract.StageFailed, end.Stage)
	must.Eq(t, contract.OutcomeTimeLimit, end.Exit.Outcome)
	must.StrContains(t, end.Text, "time-limit: has run for its time limit of 1h")
	must.SliceEmpty(t, w.gang.Saved.Evicted)
}

// A round leaves members out: the others keep their places, and another of them
// holds the store where its host is among those that go.
func TestShrink(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, least string) *world {
		w := newWorld(t)
		w.submit(func(j map[string]any) {
			j["Meta"] = map[string]string{"muster_queue": "q", "muster_min": least}
			task := j["TaskGroups"].([]any)[0].(map[string]any)["Tasks"].([]any)[0].(map[string]any)
			task["Config"] = map[string]any{"script": "x.py", "nproc_per_node": 1, "elastic": true}
		})
		w.release()
		return w
	}
	give := func(w *world, alloc string) []Effect {
		return w.gang.Step(Shrink{Seen: w.seen(false), Attempt: 1, Allocs: []string{alloc}, Grace: time.Minute})
	}
	for alloc, left := range map[string]string{"a1-0": "a1-1", "a1-1": "a1-0"} {
		w := begin(t, "1")
		w.log = nil
		w.carry(give(w, alloc))
		must.Eq(t, []string{"Save", "Publish"}, w.log)
		must.NoError(t, decode(w.record))
		must.Eq(t, 1, w.record.Round)
		must.Eq(t, time.Minute, w.record.Settle)
		must.Len(t, 1, w.record.Members)
		must.Eq(t, left, w.record.Members[0].Alloc)
		must.Eq(t, 0, w.record.Worlds[0].HostMember)
		must.Eq(t, w.record.Members[0].Address, w.record.Worlds[0].Host)
		// Who is left out is not stopped, since Nomad would replace it, and ends by
		// itself; a planner that starts again does not either.
		w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored)
		w.log = nil
		w.settle()
		must.SliceNotContains(t, w.log, "StopAllocs")
		w.end(alloc, "failed", "run")
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.SliceEmpty(t, give(w, left), must.Sprint("it is at its least"))
		w.reports = nil
		for i, id := range []string{"a1-0", "a1-1"} {
			if id == left {
				w.exit(i, contract.OutcomeComplete, 0, false)
			}
		}
		w.settle()
		must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
	}
	w := begin(t, "2")
	must.SliceEmpty(t, give(w, "a1-0"))
	must.False(t, w.gang.Resizable())
}

// C29: the gang is not started again before everything of the attempt that was
// evicted is gone; what is said of that attempt later, by Nomad or by a member,
// does not touch the next one; and evictions use up no retries.
func TestC29TheOldStopLeavesTheNewAttemptAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil) // muster_retries is 0
	for attempt := 1; attempt < 10; attempt += 2 {
		w.release()
		must.Eq(t, attempt, w.gang.Saved.Attempt)
		old := w.gang.Saved.Record.Members
		w.evict(nil)
		w.now = w.now.Add(time.Minute + leaveSlack)

		// Nomad answers the stop late: the allocations live on meanwhile.
		w.refuse["StopAllocs"] = true
		for range 10 {
			effects := w.gang.Step(w.seen(false))
			if len(effects) == 0 {
				break
			}
			w.carry(effects)
		}
		_, ready := w.gang.Ready(w.seen(false))
		must.False(t, ready, must.Sprint("its ranks still run"))
		must.Eq(t, Stopping, w.gang.Saved.Phase)
		must.Eq(t, []*picture.Alloc{w.allocs[len(w.allocs)-2], w.allocs[len(w.allocs)-1]}, w.gang.live(w.seen(false), 0))
		delete(w.refuse, "StopAllocs")
		w.now = w.now.Add(stopAgain)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Zero(t, w.gang.Saved.Retries)
		must.Zero(t, w.gang.Saved.SiteFailures)
		_, ready = w.gang.Ready(w.seen(false))
		must.True(t, ready)

		// The late word on that attempt, while the next one runs.
		w.release()
		for i, m := range old {
			w.reports = append(w.reports, contract.Report{V: 1, Gang: w.gang.ID, Attempt: attempt, Alloc: m.Alloc, Task: m.Task, Start: 1, State: contract.StateEnded, At: w.now,
				Exit: &contract.Exit{Outcome: contract.OutcomeFailed, Code: 143, Rank: i, Text: "late", At: w.now}})
		}
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.Eq(t, attempt+1, w.gang.Saved.Attempt)

		w.evict(func(e *core.Eviction) { e.Immediate = true })
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
	}
	must.Zero(t, w.gang.Saved.Retries)
	must.Len(t, 10, w.gang.Saved.Attempts)
}
