package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/simulate"
)

// What fits is placed in the cycle that sees it: where nothing is promised to
// anybody, no gang goes on waiting for which there is room and which nothing but
// the cluster keeps from it.
func TestWhatFitsIsPlaced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.cfg.Reservations = rapid.SampledFrom([]int{0, 8}).Draw(t, "reservations")
		for range rapid.IntRange(1, 8).Draw(t, "cycles") {
			for range rapid.IntRange(0, 4).Draw(t, "arrivals") {
				h.submit()
			}
			h.nothingFits(h.cycle())
			h.pass(time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute)
		}
	})
}

// nothingFits asks for each gang that waits whether it would start if it were
// the only one, where nothing is promised to anybody.
func (h *history) nothingFits(plan *core.Plan) {
	// Members that a gang gives up hold their cards while the plan is made; whom
	// the rest of their room serves is placed by the next one.
	gaveUp := slices.ContainsFunc(plan.Resizes, func(r core.Resize) bool { return len(r.Remove) > 0 })
	if len(plan.Reservations) > 0 || gaveUp {
		return
	}
	for _, v := range plan.Verdicts {
		if v.Action != core.ActionWait {
			continue
		}
		s := h.w.Snapshot()
		cfg := *s.Config
		cfg.Preemption, cfg.Reservations = false, 0
		s.Config = &cfg
		others := func(g core.Gang) bool { return g.State == core.GangWaiting && g.ID != v.Gang }
		s.Gangs = slices.DeleteFunc(slices.Clone(s.Gangs), others)
		alone := decide.New().Decide(s)
		at := slices.IndexFunc(alone.Starts, func(st core.Start) bool { return st.Gang == v.Gang })
		// A queue's share of a domain may be smaller once others of it have started
		// in the same plan.
		if at >= 0 && v.Reason != core.ReasonMaxGangs && v.Reason != core.ReasonPrefer && v.Reason != core.ReasonBlast {
			h.t.Fatalf("gang %s waits (%s: %s) though it fits: %s", v.Gang, v.Reason, v.Sentence, places(alone.Starts[at].Members))
		}
	}
}

// calm is a cluster in which everybody keeps to the limits: gangs end by them,
// those that are asked leave at once, nodes stay, and one queue orders all gangs
// by their submission.
type calm struct {
	*history
	// promised are the starts promised to gangs, made when that was first done,
	// and first those that were promised to gangs with nobody ahead of them.
	promised, made, first map[core.GangID]time.Time
}

func newCalm(t *rapid.T) *calm {
	h := newHistory(t)
	q := core.DefaultQueue("a")
	q.Aging = nil
	h.cfg.Queues, h.cfg.UserLimits, h.cfg.PreferWait = []core.Queue{q}, nil, 0
	return &calm{h, map[core.GangID]time.Time{}, map[core.GangID]time.Time{}, map[core.GangID]time.Time{}}
}

func (c *calm) arrive() {
	t := c.t
	c.next++
	members, cards := rapid.SampledFrom([]int{1, 1, 2, 3, 4, 6}).Draw(t, "members"), rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "cards of a member")
	g := core.Gang{ID: core.GangID(fmt.Sprintf("g%02d", c.next)), Queue: "a", Priority: 50,
		Groups: []core.Group{{Name: "rank", Count: members, Drivers: []string{"torchrun"}, Use: core.Resources{CPU: 100, MemoryMB: 1},
			Devices: []core.DeviceAsk{{Task: "train", Vendor: "nvidia", Type: "gpu", Count: cards}}}},
		Want: core.Want{TimeLimit: time.Duration(rapid.IntRange(1, 20).Draw(t, "limit")) * 10 * time.Minute}}
	if rapid.IntRange(0, 3).Draw(t, "requires a leaf") == 0 {
		g.Level, g.Required = "leaf", true
	}
	if _, err := c.w.Submit(g); err != nil {
		t.Fatal(err)
	}
}

// step decides, checks promises and goes to the next end.
func (c *calm) step() {
	t := c.t
	snap := c.w.Snapshot()
	plan := c.d.Decide(snap)
	c.tell(snap, plan)
	done, err := c.w.Apply(plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range done.Started {
		limit := int(g.TimeLimit / time.Minute)
		c.ends[g.ID] = c.w.Now.Add(time.Duration(rapid.IntRange(limit/2, limit-1).Draw(t, "runs for minutes")) * time.Minute)
		if at, ok := c.first[g.ID]; ok && c.w.Now.After(at) {
			t.Fatalf("gang %s starts at %s, promised was %s", g.ID, c.w.Now, at)
		}
	}
	if len(plan.Evictions) > 0 {
		t.Fatalf("gang %s is evicted (%s) though everybody is equal and keeps to the limits", plan.Evictions[0].Gang, plan.Evictions[0].Kind)
	}
	ahead := core.GangID("")          // the first that waits and can run at all
	for _, v := range plan.Verdicts { // ids are in the order of submission
		if v.Action == core.ActionWait {
			ahead = v.Gang
			break
		}
	}
	for _, r := range plan.Reservations {
		at, ok := c.promised[r.Gang]
		switch {
		case r.At.IsZero():
			t.Fatalf("gang %s gathers though every end is known", r.Gang)
		case ok && r.At.After(at) && !c.aheadOf(r, r.Cause):
			t.Fatalf("gang %s was promised %s and is now promised %s (%q)", r.Gang, at, r.At, r.Cause)
		}
		if c.promised[r.Gang] = r.At; !ok {
			c.made[r.Gang] = c.w.Now
		}
		if at, ok := c.first[r.Gang]; ok && r.At.After(at) {
			t.Fatalf("gang %s, with nobody ahead of it, was promised %s and is now promised %s (%q)", r.Gang, at, r.At, r.Cause)
		}
		before := func(o core.Reservation) bool { return o.Gang != r.Gang && o.Made.Before(r.Made) }
		if r.Gang == ahead && !slices.ContainsFunc(plan.Reservations, before) {
			c.first[r.Gang] = r.At
		}
	}
	for id, at := range c.promised {
		if g := c.w.Gang(id); g != nil && g.State == core.GangWaiting && !slices.ContainsFunc(plan.Reservations, func(r core.Reservation) bool { return r.Gang == id }) {
			t.Fatalf("gang %s was promised %s and is not any more", id, at)
		}
	}
	var next time.Time
	for _, at := range c.ends {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if !next.IsZero() {
		c.pass(next.Sub(c.w.Now))
	}
}

// aheadOf tells whether a cause names a gang that comes before one with a
// promise: it was submitted before, or was promised its start before.
func (c *calm) aheadOf(r core.Reservation, cause string) bool {
	name, ok := strings.CutSuffix(cause, " is more entitled")
	made, promised := c.made[core.GangID(name)]
	return ok && (name < string(r.Gang) || promised && made.Before(c.made[r.Gang]))
}

// A promise is kept: where everybody keeps to the limits it is never withdrawn
// and moves later only for a gang that comes before it and can run earlier than it
// was promised; the first in the queue starts by then, whatever comes
// behind it.
func TestPromisesAreKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newCalm(t)
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 4).Draw(t, "arrivals") {
				c.arrive()
			}
			c.step()
		}
		for range 200 {
			c.step()
		}
		for _, g := range c.w.Active() {
			if g.State == core.GangWaiting && len(c.w.Snapshot().Claims) == 0 {
				plan := c.d.Decide(c.w.Snapshot())
				for _, v := range plan.Verdicts {
					if v.Gang == g.ID && v.Action != core.ActionRefuse {
						t.Fatalf("gang %s still waits: %s", g.ID, v.Sentence)
					}
				}
			}
		}
	})
}

// C36: nodes full of one-card jobs that keep coming, long and short ones, and one
// gang of all nodes. It starts when those that ran when it came have ended by
// their limits, not later for those that came after; without limits it gathers.
// Until then those that end in time use what it does not need yet.
func TestStreamOfSmallJobs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		stream stream
		within time.Duration // of its arrival
		busy   int           // percent of the cards until then, at least
	}{
		// Small ones that came before and wait have a right to start first: two
		// minutes more.
		{"equal priority", stream{limits: true, priority: 50, reservations: 8}, 12 * time.Minute, 70},
		{"higher priority", stream{limits: true, priority: 60, reservations: 8}, 10 * time.Minute, 70},
		{"overruns", stream{limits: true, priority: 50, reservations: 8, overrun: 100}, 30 * time.Minute, 40},
		{"nobody states limits", stream{priority: 50, reservations: 8}, 30*time.Minute + 11*time.Minute, 70},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			waited, busy := test.stream.run(t)
			if waited < 0 || waited > test.within {
				t.Errorf("the gang starts %s after it came, %s is due", waited, test.within)
			}
			if busy < test.busy {
				t.Errorf("%d %% of the cards are busy until then", busy)
			}
		})
	}
	t.Run("without reservations it waits for ever", func(t *testing.T) {
		t.Parallel()
		if waited, _ := (stream{limits: true, priority: 50}).run(t); waited >= 0 {
			t.Errorf("the gang starts after %s: the stream is too thin to show anything", waited)
		}
	})
}

// stream is two hours of a small cluster.
type stream struct {
	limits       bool // the small ones state them
	priority     int  // of the gang
	overrun      int  // one in so many small ones runs three times as long as it states
	reservations int
}

// run tells how long the gang waits, -1 where it never starts, and how busy the
// cards are until then, in percent.
func (s stream) run(t *testing.T) (waited time.Duration, busy int) {
	cfg := core.Defaults()
	cfg.Levels, cfg.Reservations = []core.Level{{Name: "leaf"}}, s.reservations
	q := core.DefaultQueue("q")
	q.Aging = nil
	q.LimitReport = true // those that overrun are not stopped
	cfg.Queues = []core.Queue{q}
	w := simulate.NewWorld(noon, &cfg, nodes(4, 8))
	d := decide.New()
	ends := map[core.GangID]time.Time{}
	const tick, came = 15 * time.Second, time.Minute
	n := 0
	submit := func(id string, members, cards, priority int, limit time.Duration) {
		g := gang(id, members, cards)
		g.Submitted, g.Priority, g.TimeLimit = time.Time{}, priority, limit
		if _, err := w.Submit(g); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(sequence int) time.Duration {
		if sequence >= 32 && sequence%2 == 0 {
			return 2 * time.Minute
		}
		return 10 * time.Minute
	}
	small := func() {
		limit := time.Duration(0)
		if s.limits {
			limit = runs(n)
		}
		submit(fmt.Sprintf("s%04d", n), 1, 1, 50, limit)
		n++
	}
	for range 32 {
		small()
	}
	used, seen := 0, 0
	for at := time.Duration(0); at < 2*time.Hour; at += tick {
		w.Now = noon.Add(at)
		for _, g := range slices.Clone(w.Active()) {
			if end, ok := ends[g.ID]; ok && !end.After(w.Now) {
				delete(ends, g.ID)
				w.End(g, "complete")
			}
		}
		if at == came {
			submit("big", 4, 8, s.priority, time.Hour)
		}
		for range 3 {
			small()
		}
		done, err := w.Apply(d.Decide(w.Snapshot()))
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range done.Started {
			if g.ID == "big" {
				return at - came, 100 * used / max(1, seen)
			}
			var sequence int
			if _, err := fmt.Sscanf(string(g.ID), "s%d", &sequence); err != nil {
				t.Fatal(err)
			}
			length := runs(sequence)
			switch {
			case at == 0: // those at the start are at any age
				length = time.Duration(sequence+1) * 18 * time.Second
			case s.overrun > 0 && sequence%s.overrun == 1:
				length *= 3
			}
			ends[g.ID] = w.Now.Add(length)
		}
		if at >= came {
			used, seen = used+len(w.Snapshot().Claims), seen+32
		}
	}
	return -1, 100 * used / max(1, seen)
}

// Every parked gang wakes: what a person held, a pause, a budget, a full queue,
// missing nodes or bad cards kept from starting, starts when that is over.
func TestParkedGangsWake(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 6).Draw(t, "gangs") {
			h.submit()
		}
		switch rapid.IntRange(0, 5).Draw(t, "parked by") {
		case 0:
			h.w.Paused = true
		case 1:
			for _, g := range h.w.Active() {
				g.State = core.GangHeld
			}
		case 2:
			for _, g := range h.w.Active() {
				g.NotBefore = h.w.Now.Add(time.Hour)
			}
		case 3:
			for i := range h.cfg.Queues {
				h.cfg.Queues[i].Budget = core.Budget{CardSeconds: 1, Period: "day"}
			}
			h.w.History.UsedCardSeconds = map[core.QueueName]int64{"a": 1, "b": 1, "c": 1}
		case 4:
			for _, n := range h.w.Nodes {
				if err := h.w.EditNode(n.ID, func(n *core.Node) { n.Ready = false }); err != nil {
					t.Fatal(err)
				}
			}
		case 5:
			for _, n := range h.w.Nodes {
				if err := h.w.EditNode(n.ID, func(n *core.Node) {
					for k := range n.Devices[0].Cards {
						n.Devices[0].Cards[k].State = core.CardQuarantined
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		plan := h.cycle()
		if len(plan.Starts) > 0 {
			t.Fatalf("gang %s starts though it is parked", plan.Starts[0].Gang)
		}
		h.w.Paused, h.w.History.UsedCardSeconds = false, nil
		for _, g := range h.w.Active() {
			if g.State == core.GangHeld {
				g.State = core.GangWaiting
			}
		}
		for _, n := range h.w.Nodes {
			if err := h.w.EditNode(n.ID, func(n *core.Node) {
				n.Ready = true
				for k := range n.Devices[0].Cards {
					n.Devices[0].Cards[k].State = core.CardHealthy
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		h.pass(time.Hour)
		for range 60 {
			h.cycle()
			h.pass(3 * time.Hour)
		}
		for _, v := range h.cycle().Verdicts {
			if v.Action != core.ActionRefuse {
				t.Fatalf("gang %s has not woken: %s (%s)", v.Gang, v.Action, v.Sentence)
			}
		}
	})
}
