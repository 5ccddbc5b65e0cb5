package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a Nomad of one job, by hand: effects change it as Nomad would, and
// what is seen of it goes back to the gang.
type world struct {
	t       testing.TB
	set     *Settings
	gang    *Gang
	now     time.Time
	index   uint64
	job     *jobspec.Job
	allocs  []*picture.Alloc
	evals   []*picture.Eval
	nodes   map[string]*picture.Node
	record  *contract.Record
	reports []contract.Report
	saved   *Saved
	stored  uint64
	log     []string
	// refuse names effects that fail, for good.
	refuse map[string]bool
	// unplaced: Nomad has no place for a pinned job's members yet; see place.
	unplaced bool
	// unread: the newest version cannot be read, and why.
	unread error
	// members are the planned nodes by member, on those that Nomad places the
	// allocations on, by their number.
	members, on []string
	// direct: the nodes report their cards directly.
	direct bool
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, now: t0, index: 100, members: []string{"n0", "n1"}, on: []string{"n0", "n1"}, nodes: map[string]*picture.Node{}, refuse: map[string]bool{}}
	w.set = &Settings{Region: "global", MaxPriority: 100, CardTypes: []string{"gpu"}, ReserveTimeout: 10 * time.Minute, LostGrace: 5 * time.Minute, MaxAttempts: 3, Tags: true,
		Queue: func(named, _ string) (string, []contract.Fault) { return named, nil }}
	for i := range 4 {
		id := fmt.Sprintf("n%d", i)
		w.nodes[id] = &picture.Node{Node: core.Node{ID: core.NodeID(id), Name: id, Ready: true, Eligible: true}, Status: "ready"}
	}
	w.gang = New(contract.GangID{Region: "global", Namespace: "default", Job: "g"}, w.set)
	return w
}

// submit registers a version of the job.
func (w *world) submit(change func(map[string]any)) {
	job := map[string]any{"ID": "g", "Name": "g", "Namespace": "default", "Type": "batch", "Priority": 50, "Meta": map[string]string{"muster_queue": "q"},
		"Constraints": []any{map[string]any{"LTarget": contract.HoldAttribute, "RTarget": contract.HoldValue, "Operand": "="}},
		"TaskGroups": []any{map[string]any{"Name": "rank", "Count": 2, "Tasks": []any{map[string]any{"Name": "train", "Driver": contract.DriverName,
			"Config": map[string]any{"command": []any{"x"}, "nproc_per_node": 1}}}}}}
	if change != nil {
		change(job)
	}
	raw, err := json.Marshal(job)
	must.NoError(w.t, err)
	w.register(raw)
}

func (w *world) register(raw json.RawMessage) {
	w.index++
	var tree map[string]any
	must.NoError(w.t, json.Unmarshal(raw, &tree))
	version := uint64(0)
	if w.job != nil {
		version = w.job.Version + 1
	}
	tree["JobModifyIndex"], tree["ModifyIndex"], tree["CreateIndex"], tree["Version"] = w.index, w.index, 1, version
	raw, err := json.Marshal(tree)
	must.NoError(w.t, err)
	w.job, err = jobspec.Parse(raw)
	must.NoError(w.t, err)
	at := w.index
	w.index++
	w.evals = append(w.evals, &picture.Eval{ID: fmt.Sprintf("e%d", at), Namespace: "default", JobID: "g", Status: "complete", TriggeredBy: "job-register", JobModifyIndex: at, CreateIndex: at, Index: w.index})
	if w.job.Mark() > 0 && !w.unplaced {
		w.place()
	}
}

// place gives the pinned job its allocations.
func (w *world) place() {
	if w.job.Mark() > 0 {
		for i, id := range w.on {
			w.index++
			w.allocs = append(w.allocs, &picture.Alloc{ID: fmt.Sprintf("a%d-%d", w.job.Mark(), i), Namespace: "default", JobID: "g", Group: "rank", Name: fmt.Sprintf("g.rank[%d]", i),
				NodeID: id, NodeName: id, Desired: "run", Client: "running", CreateIndex: w.index, Index: w.index, Created: w.now, Modified: w.now,
				Tasks: []picture.Task{{Name: "train", State: "running", ExitCode: -1}}})
		}
	}
}

func (w *world) seen(fresh bool) Seen {
	v := Seen{Now: w.now, Allocs: w.allocs, Evals: w.evals, Reports: w.reports, Fresh: fresh, Node: func(id string) *picture.Node { return w.nodes[id] }}
	if w.direct {
		v.Direct = func(string) bool { return true }
	}
	if w.job != nil {
		v.Job = &picture.Job{Key: picture.Key{Namespace: "default", Job: "g"}, Type: "batch", Status: "running", Stop: w.job.Stop, JobModifyIndex: w.job.JobModifyIndex, Index: w.job.JobModifyIndex, Gang: w.job}
		if w.unread != nil {
			v.Job.Gang, v.Job.Unread = nil, w.unread
		}
	}
	return v
}

// carry carries effects out, and tells the gang.
func (w *world) carry(effects []Effect) (refreshed bool) {
	d := Done{Now: w.now}
	for _, e := range effects {
		name := strings.TrimPrefix(fmt.Sprintf("%T", e), "lifecycle.")
		if w.refuse[name] {
			d.Failed, d.Err, d.Refused = e, errors.New(name+" was refused"), true
			break
		}
		w.log = append(w.log, name)
		switch e := e.(type) {
		case Save:
			raw, err := json.Marshal(e.Saved)
			must.NoError(w.t, err)
			w.saved = &Saved{}
			must.NoError(w.t, json.Unmarshal(raw, w.saved))
			must.NoError(w.t, w.saved.Check())
			w.index++
			w.stored, d.Stored = w.index, w.index
		case Forget:
			w.saved, w.stored = nil, 0
		case Register:
			must.Eq(w.t, w.job.JobModifyIndex, e.Index)
			w.register(e.Job)
			d.Registered = w.job.JobModifyIndex
		case Deregister:
			w.index++
			w.job.Stop = true
			w.job.JobModifyIndex = w.index
			d.Registered = w.index
			for _, a := range w.allocs {
				w.end(a.ID, "complete", "stop")
			}
		case StopAllocs:
			must.True(w.t, w.job.IsHeld() || w.gang.Saved.Phase == Released, must.Sprint("an allocation that is stopped while the job is not held is replaced"))
			for _, id := range e.IDs {
				w.end(id, "complete", "stop")
			}
		case Publish:
			w.record = e.Record
		case Remove:
			w.record, w.reports = nil, nil
		case Refresh:
			refreshed = true
		case ReadUser:
			d.User = w.job
		case ReadReports:
			d.Reports = w.reports
		}
		d.Effects = append(d.Effects, e)
	}
	w.gang.Step(d)
	return refreshed
}

// end ends an allocation that lives.
func (w *world) end(id, client, desired string) {
	for i, a := range w.allocs {
		if a.ID == id && !a.Terminal() {
			b := *a
			w.index++
			b.Client, b.Desired, b.Index, b.Modified = client, desired, w.index, w.now
			w.allocs[i] = &b
		}
	}
}

// settle looks until nothing more is to be done.
func (w *world) settle() {
	w.t.Helper()
	fresh := false
	for n := 0; ; n++ {
		must.Less(w.t, 50, n, must.Sprintf("the gang never comes to rest: %v", w.log))
		effects := w.gang.Step(w.seen(fresh))
		fresh = false
		if len(effects) == 0 {
			return
		}
		fresh = w.carry(effects)
	}
}

func (w *world) start() {
	w.t.Helper()
	w.settle()
	plan := core.Start{Gang: "default/g"}
	for i, node := range w.members {
		plan.Members = append(plan.Members, core.Placement{Group: "rank", Member: i, Node: core.NodeID(node)})
	}
	effects := w.gang.Step(Start{Seen: w.seen(false), Plan: plan})
	must.SliceNotEmpty(w.t, effects)
	w.carry(effects)
	w.settle()
}

// report adds the members' reports in a state.
func (w *world) report(state contract.State, members ...int) {
	for _, i := range members {
		w.now = w.now.Add(time.Millisecond)
		w.reports = append(w.reports, contract.Report{V: 1, Gang: w.gang.ID, Attempt: w.gang.Saved.Attempt, Alloc: fmt.Sprintf("a%d-%d", w.gang.Saved.Attempt, i), Task: "train", Start: 1, State: state,
			Address: fmt.Sprintf("10.0.0.%d", i), Port: 29500, Ranks: 1, World: "rank", At: w.now})
	}
}

func (w *world) exit(member int, outcome contract.Outcome, code int, asked bool) {
	w.report(contract.StateEnded, member)
	r := &w.reports[len(w.reports)-1]
	r.Exit = &contract.Exit{Outcome: outcome, Code: code, Rank: -1, Asked: asked, Text: string(outcome), At: r.At}
	client := "complete"
	if code != 0 {
		client = "failed"
	}
	w.end(r.Alloc, client, "run")
}

func (w *world) release() {
	w.t.Helper()
	w.start()
	w.report(contract.StateReady, 0, 1)
	w.settle()
	must.Eq(w.t, Released, w.gang.Saved.Phase)
	must.Eq(w.t, contract.PhaseReleased, w.record.Phase)
}

func TestTheWayOfAGang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.start()
	must.Eq(t, Reserving, w.gang.Saved.Phase)
	must.Eq(t, []string{"Tag", "Check", "Save", "Register", "Publish"}, w.log)
	must.Eq(t, contract.PhasePlaced, w.record.Phase)
	w.report(contract.StateReady, 1)
	w.settle()
	must.Eq(t, Reserving, w.gang.Saved.Phase, must.Sprint("released with one member of two ready"))
	w.report(contract.StateReady, 0)
	w.log = nil
	w.settle()
	must.Eq(t, []string{"Save", "Publish"}, w.log, must.Sprint("the frozen record is saved before it is published"))
	must.NoError(t, decode(w.record))
	must.Eq(t, []contract.World{{Name: "rank", Members: []int{0, 1}, Host: "10.0.0.0", Port: 29500, HostMember: 0}}, w.record.Worlds)
	w.exit(0, contract.OutcomeComplete, 0, false)
	w.settle()
	must.Eq(t, Released, w.gang.Saved.Phase)
	w.exit(1, contract.OutcomeComplete, 0, false)
	w.log = nil
	w.settle()
	must.Eq(t, []string{"Save", "Remove", "Untag"}, w.log)
	must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
	must.Len(t, 2, w.gang.Saved.Last)
}

func decode(r *contract.Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = contract.DecodeRecord(raw)
	return err
}

// C15: an exit code 0 is not an end of the work where a stop came before it.
func TestStoppedGently(t *testing.T) {
	t.Parallel()
	evict := func(w *world) {
		w.carry(w.gang.Step(Evict{Seen: w.seen(false), Plan: core.Eviction{Gang: "default/g", Attempt: 1, Kind: core.EvictPriority, Grace: time.Minute, Why: "needed"}}))
	}
	t.Run("asked, saved and exited 0", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		evict(w)
		must.Eq(t, "preempt", w.record.Ask.Kind)
		w.exit(0, contract.OutcomeYielded, 0, true)
		w.exit(1, contract.OutcomeYielded, 0, true)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, 0, w.gang.Saved.Retries+w.gang.Saved.SiteFailures, must.Sprint("an eviction is no failure"))
		must.Eq(t, "yielded", w.gang.Saved.Attempts[0].Outcome)
		must.True(t, w.job.IsHeld())
	})
	t.Run("ended by themselves as the ask came", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.exit(0, contract.OutcomeComplete, 0, false)
		evict(w)
		w.exit(1, contract.OutcomeComplete, 0, false)
		w.settle()
		must.Eq(t, Over, w.gang.Saved.Phase)
		must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)
	})
	t.Run("one saved, one was killed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		evict(w)
		w.exit(0, contract.OutcomeYielded, 0, true)
		w.exit(1, contract.OutcomeKilled, 137, true)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, ReasonPreempted, strings.SplitN(w.gang.Saved.Stages[len(w.gang.Saved.Stages)-1].Text, ":", 2)[0])
	})
	t.Run("the grace runs out", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		evict(w)
		w.now = w.now.Add(time.Minute)
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase, must.Sprint("the members' own supervisors end them first"))
		w.now = w.now.Add(leaveSlack)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, ReasonPreempted, w.gang.Saved.Attempts[0].Outcome)
	})
	t.Run("complete for Nomad, and no word of the member", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.exit(0, contract.OutcomeComplete, 0, false)
		w.end("a1-1", "complete", "run")
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase, must.Sprint("its report may be on its way"))
		w.now = w.now.Add(exitAfter)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, "unknown", w.gang.Saved.Attempts[0].Outcome)
		must.Eq(t, 1, w.gang.Saved.SiteFailures)
	})
}

func TestFailures(t *testing.T) {
	t.Parallel()
	t.Run("the script's, with a retry left", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(func(j map[string]any) { j["Meta"] = map[string]string{"muster_queue": "q", "muster_retries": "1"} })
		w.release()
		w.exit(0, contract.OutcomeFailed, 42, false)
		w.log = nil
		w.settle()
		must.Eq(t, []string{"Save", "Publish", "Register", "StopAllocs", "ReadReports", "Remove", "Save"}, w.log)
		must.Eq(t, 1, w.gang.Saved.Retries)
		w.release()
		must.Eq(t, 2, w.gang.Saved.Attempt)
		w.exit(1, contract.OutcomeFailed, 42, false)
		w.settle()
		must.Eq(t, contract.StageFailed, w.gang.Saved.End.Stage)
		must.Eq(t, 42, w.gang.Saved.End.Exit.Code)
		must.True(t, w.job.Stop)
	})
	t.Run("the telling one of two", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.exit(0, contract.OutcomeFailed, 1, false) // lost its connection to the other
		w.settle()
		w.exit(1, contract.OutcomeFailed, 42, false)
		w.settle()
		must.Eq(t, 42, w.gang.Saved.End.Exit.Code)
		must.Eq(t, 1, w.gang.Saved.End.Member)
	})
	t.Run("the site's, until the attempts are used up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		for n := 1; n <= 3; n++ {
			w.now = w.now.Add(time.Hour)
			w.release()
			must.Eq(t, n, w.gang.Saved.Attempt)
			w.end(fmt.Sprintf("a%d-0", n), "lost", "stop")
			w.settle()
		}
		must.Eq(t, Over, w.gang.Saved.Phase)
		must.StrContains(t, w.gang.Saved.End.Text, "3 failures of the site")
	})
	t.Run("a node out of contact within the grace", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.release()
		w.nodes["n0"] = &picture.Node{Node: w.nodes["n0"].Node, Status: "disconnected", StatusAt: w.now}
		w.nodes["n0"].Ready = false
		for i, a := range w.allocs {
			if a.NodeID == "n0" {
				b := *a
				b.Client = "unknown"
				w.allocs[i] = &b
			}
		}
		w.settle()
		w.now = w.now.Add(4 * time.Minute)
		w.settle()
		must.Eq(t, Released, w.gang.Saved.Phase)
		must.False(t, w.gang.Wake.IsZero())
		w.now = w.now.Add(2 * time.Minute)
		w.gang.Step(w.seen(false))
		effects := w.gang.Step(w.seen(false))
		must.SliceNotEmpty(t, effects)
		must.Eq(t, ReasonNodeLost, effects[0].(Save).Saved.Stop.Reason)
	})
}

func TestReservationFallsThrough(t *testing.T) {
	t.Parallel()
	t.Run("the dry run says no", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.refuse["Check"] = true
		w.start()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, 0, w.gang.Saved.Attempt)
		must.StrContains(t, w.gang.Saved.NotBeforeWhy, "Check was refused")
	})
	t.Run("the registration is refused", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.refuse["Register"] = true
		w.start()
		w.now = w.now.Add(time.Minute)
		w.settle()
		must.Eq(t, Waiting, w.gang.Saved.Phase)
		must.Eq(t, 0, w.gang.Saved.Attempt, must.Sprint("nothing carries the number, so it is used again"))
		w.refuse["Register"] = false
		w.now = w.now.Add(time.Minute)
		w.release()
		must.Eq(t, 1, w.gang.Saved.Attempt)
	})
	t.Run("a member refuses for the script's sake", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.start()
		w.report(contract.StateReady, 0)
		w.report(contract.StateRefused, 1)
		w.reports[1].Problems = []contract.Problem{{What: "script", Text: "train.py is not there"}}
		w.settle()
		must.Eq(t, contract.StageFailed, w.gang.Saved.End.Stage)
		must.StrContains(t, w.gang.Saved.End.Text, "train.py is not there")
	})
	t.Run("a report of another attempt is no report", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.submit(nil)
		w.start()
		w.report(contract.StateReady, 0, 1)
		w.reports[0].Attempt = 7
		w.settle()
		must.Eq(t, Reserving, w.gang.Saved.Phase)
	})
}

// C37 as a property: the planner is killed between any two effects, at random,
// through a gang's whole life; the one that follows always comes to the same
// end, and the number of an attempt is never given to two registrations.
func TestRestartsAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.submit(func(j map[string]any) { j["Meta"] = map[string]string{"muster_queue": "q", "muster_retries": "1"} })
		marks := map[int]uint64{}
		kill, kills := rapid.IntRange(0, 5), 0
		restart := func() {
			if w.saved != nil {
				w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored)
			} else {
				w.gang = New(w.gang.ID, w.set)
			}
		}
		step := func(effects []Effect) {
			for i := range effects {
				if kills < 12 && kill.Draw(rt, "kill") == 0 {
					kills++
					w.carry(effects[:i])
					restart()
					return
				}
			}
			w.carry(effects)
		}
		for n := 0; n < 300 && w.gang.Saved.Phase != Over; n++ {
			w.now = w.now.Add(3 * time.Second)
			if m := w.job.Mark(); m > 0 && !w.job.Stop {
				if first, ok := marks[m]; ok && first != w.job.JobModifyIndex {
					rt.Fatalf("attempt %d was registered at index %d and again at %d: %v", m, first, w.job.JobModifyIndex, w.log)
				}
				marks[m] = w.job.JobModifyIndex
			}
			if w.record != nil && w.record.Attempt == w.gang.Saved.Attempt && len(w.reports) == 0 && w.record.Phase == contract.PhasePlaced {
				w.report(contract.StateReady, 0, 1)
			}
			if w.record != nil && w.record.Phase == contract.PhaseReleased && len(w.reports) == 2 {
				if w.record.Attempt == 1 {
					w.exit(0, contract.OutcomeFailed, 42, false)
				} else {
					w.exit(0, contract.OutcomeComplete, 0, false)
					w.exit(1, contract.OutcomeComplete, 0, false)
				}
			}
			if effects := w.gang.Step(w.seen(true)); len(effects) > 0 {
				step(effects)
				continue
			}
			if _, ready := w.gang.Ready(w.seen(false)); ready && !w.gang.Saved.NotBefore.After(w.now) {
				step(w.gang.Step(Start{Seen: w.seen(false), Plan: core.Start{Gang: "default/g", Members: []core.Placement{{Group: "rank", Member: 0, Node: "n0"}, {Group: "rank", Member: 1, Node: "n1"}}}}))
			}
		}
		if w.gang.Saved.Phase != Over || w.gang.Saved.End.Stage != contract.StageComplete {
			rt.Fatalf("ended in phase %s: %+v; attempt %d; %v", w.gang.Saved.Phase, w.gang.Saved.End, w.gang.Saved.Attempt, w.log)
		}
		for _, a := range w.allocs {
			if !a.Terminal() {
				rt.Fatalf("allocation %s lives on", a.ID)
			}
		}
	})
}

// What somebody makes of a running gang's job that is no gang any more, or
// cannot be read, is not overwritten when the attempt ends.
func TestNoGangAnyMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(nil)
	w.release()
	w.submit(func(j map[string]any) { delete(j, "Meta"); delete(j, "Constraints") })
	must.False(t, w.job.IsGang())
	v := w.seen(false)
	v.Job.Gang = nil
	w.exit(0, contract.OutcomeFailed, 42, false)
	v.Allocs, v.Reports = w.allocs, w.reports
	for range 10 {
		v.Now = v.Now.Add(time.Minute)
		if effects := w.gang.Step(v); len(effects) > 0 {
			w.log = nil
			w.carry(effects)
			must.SliceNotContains(t, w.log, "Register")
			must.SliceNotContains(t, w.log, "StopAllocs")
		}
	}
	must.Eq(t, Over, w.gang.Saved.Phase)
}
