package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/view"
)

// state is all that the planner knows.
type state struct {
	server  nomad.Server
	set     *lifecycle.Settings
	started time.Time
	contact nomad.Contact
	whole   bool // the picture is complete
	loaded  bool // the saved gangs are
	// nodes with the verdicts on their cards, and raw as Nomad has them.
	nodes, raw map[string]*picture.Node
	allocs     map[string]*picture.Alloc
	byJob      map[picture.Key]map[string]*picture.Alloc
	jobs       map[picture.Key]*picture.Job
	gangs      map[picture.Key]*entry
	// awake are the gangs that are not at rest, by name, and stirred those that
	// are to join them; settled: some are to leave. See stir.
	awake, stirred []*entry
	settled        bool

	// submitters are those who registered a version through the API that the
	// picture does not have yet.
	submitters map[picture.Key]submitter

	cards *cards.Service
	// makingRoom are reservations that others are to leave for, askedFor those
	// that were asked to; see room.
	makingRoom, askedFor map[picture.Key]*entry
	// remembered are gangs whose evictions and restarts count though they are
	// over.
	remembered   map[picture.Key]*entry
	givenUp      map[string]bool    // members that elastic gangs give up
	reservations []core.Reservation // of the last plan

	nodeList cache[string, core.Node]
	claims   cache[string, core.Claim]
	// changed is told of gangs that something happened to.
	changed    func(picture.Key)
	demand     []core.Demand // of the last plan
	resyncs    int64
	notices    []core.Notice
	decideSoon bool
	cycles     int64
	lastCycle  time.Time
	lastTook   time.Duration
	nextCycle  time.Time // the earliest
	paused     string
	held       uint64 // claims.changes that the nodes were told of
	heldAt     time.Time
}

type submitter struct {
	name  string
	index uint64
}

// submitted tells a gang who registered its job.
func (s *state) submitted(key picture.Key) {
	by, ok := s.submitters[key]
	e := s.gangs[key]
	if ok && e != nil {
		e.gang.Submitted(by.name, by.index)
		s.stir(e)
		delete(s.submitters, key)
	}
}

// entry is one gang with what the agent keeps of it.
type entry struct {
	key   picture.Key
	gang  *lifecycle.Gang
	busy  bool // effects are being carried out
	dirty bool // something of it changed since its last step; set by stir
	// awake: it is in the loop's list; forgotten: it is in none.
	awake, forgotten bool
	fresh            bool
	// evals and reports since its last step.
	evals   []*picture.Eval
	reports []contract.Report
	// leaving are those who hold its places yet, as it was last shown.
	leaving []lifecycle.Leaving
	departs bool   // it is leaving, or is to
	askTold string // the ask that was last told of
	wish    *wish  // of a user, that it ends
	// starting is the plan whose reservation is on its way, and leavers those who
	// hold its places.
	starting *core.Start
	leavers  []lifecycle.Leaver
	adding   []core.Placement // members of a growth whose registration is on its way
	verdict  core.Verdict
	decided  bool // verdict is of this planner's life
	// watch ends the following of the attempt's reports.
	watch   context.CancelFunc
	watched int
	phase   lifecycle.Phase // as last observed
	// index of the last event about it, and the last events themselves.
	index  uint64
	events []view.Event
	// told counts the stages that were published; settled: it was seen before,
	// so that their times are this planner's to book.
	told     int
	toldLast lifecycle.Stage
	repeat   bool // webhooks are told of those stages again: an earlier planner may have ended before
	settled  bool
	// seenAttempt is the last attempt whose end was laid on a place.
	seenAttempt int
	admitAt     time.Time // when the core was last asked whether it would admit it
	growing     bool      // a service whose new version waits for room
	// foretold is the first start that it was told since foretoldFor, when it was
	// queued.
	foretold    accounting.ETA
	foretoldFor time.Time
	waitBooked  time.Time // when the ledger was last told why it waits
	// reasonAt is since when the verdict has its reason.
	reasonAt, describedAt time.Time
	describedFor          core.Reason
}

func newState() state {
	return state{
		nodes: map[string]*picture.Node{}, raw: map[string]*picture.Node{}, allocs: map[string]*picture.Alloc{}, byJob: map[picture.Key]map[string]*picture.Alloc{},
		submitters: map[picture.Key]submitter{}, jobs: map[picture.Key]*picture.Job{}, gangs: map[picture.Key]*entry{},
		makingRoom: map[picture.Key]*entry{}, askedFor: map[picture.Key]*entry{}, remembered: map[picture.Key]*entry{}, nodeList: newCache[string, core.Node](), claims: newCache[string, core.Claim](),
	}
}

// cache is a list of values by key that is handed out as a slice which is
// never changed afterwards.
type cache[K comparable, V any] struct {
	at     map[K]int
	keys   []K
	values []V
	lent   bool // values was handed out
	// changes counts what was put and dropped.
	changes uint64
}

func newCache[K comparable, V any]() cache[K, V] { return cache[K, V]{at: map[K]int{}} }

func (c *cache[K, V]) own() {
	if c.lent {
		c.values = slices.Clone(c.values)
		c.lent = false
	}
}

func (c *cache[K, V]) put(k K, v V) {
	c.own()
	c.changes++
	if i, ok := c.at[k]; ok {
		c.values[i] = v
		return
	}
	c.at[k] = len(c.values)
	c.keys, c.values = append(c.keys, k), append(c.values, v)
}

func (c *cache[K, V]) drop(k K) bool {
	i, ok := c.at[k]
	if !ok {
		return false
	}
	c.own()
	c.changes++
	last := len(c.values) - 1
	c.keys[i], c.values[i] = c.keys[last], c.values[last]
	c.at[c.keys[i]] = i
	delete(c.at, k)
	var none V
	c.values[last] = none
	c.keys, c.values = c.keys[:last], c.values[:last]
	return true
}

func (c *cache[K, V]) list() []V {
	c.lent = true
	return c.values[:len(c.values):len(c.values)]
}

// apply takes a delta into the state and marks the gangs that it concerns.
func (s *state) apply(d nomad.Delta) {
	if d.Contact != nil {
		s.contact = *d.Contact
	}
	s.whole = s.whole || d.Whole
	if d.Whole {
		s.resyncs++
	}
	for key, j := range d.Jobs {
		s.job(key, j)
	}
	for id, a := range d.Allocs {
		s.alloc(id, a)
	}
	if len(d.Nodes) > 0 {
		s.decideSoon = true
		known := make(map[core.NodeID]*core.Node, len(d.Nodes))
		for id, n := range d.Nodes {
			if n == nil {
				known[core.NodeID(id)] = nil
			} else {
				known[core.NodeID(id)] = &n.Node
			}
		}
		s.cards.Nomad(known)
	}
	touched := map[string]bool{}
	for id, n := range d.Nodes {
		touched[id] = true
		if n == nil {
			delete(s.nodes, id)
			delete(s.raw, id)
			s.nodeList.drop(id)
			continue
		}
		s.judge(n)
	}
	s.touch(touched)
	for _, e := range d.Evals {
		if g := s.gangs[s.home(picture.Key{Namespace: e.Namespace, Job: e.JobID})]; g != nil {
			g.evals = append(g.evals, e)
			s.stir(g)
		}
	}
	for _, key := range d.Fresh {
		// A twin is read before its handle, which is what the gang waits for.
		if g := s.gangs[key]; g != nil {
			g.fresh = true
			s.stir(g)
		}
	}
}

func (s *state) job(key picture.Key, j *picture.Job) {
	old := s.jobs[key]
	if j == nil {
		delete(s.jobs, key)
	} else {
		s.jobs[key] = j
	}
	key = s.home(key)
	e := s.gangs[key]
	if e == nil && j != nil && j.Gang != nil && s.jobs[key] == j {
		e = s.add(key)
		s.rehome(key)
	}
	if e != nil {
		s.stir(e)
		s.submitted(key)
	}
	if (old != nil && old.Gang != nil) != (j != nil && j.Gang != nil) || old != nil && j != nil && old.Priority != j.Priority {
		s.reclaim(key)
	}
}

func (s *state) add(key picture.Key) *entry {
	id := contract.GangID{Region: s.set.Region, Namespace: key.Namespace, Job: key.Job}
	e := &entry{key: key, gang: lifecycle.New(id, s.set)}
	s.gangs[key] = e
	s.stir(e)
	return e
}

func (s *state) alloc(id string, a *picture.Alloc) {
	old := s.allocs[id]
	key := picture.Key{}
	switch {
	case a != nil:
		key = s.home(a.Key())
		s.allocs[id] = a
		if s.byJob[key] == nil {
			s.byJob[key] = map[string]*picture.Alloc{}
		}
		s.byJob[key][id] = a
	case old != nil:
		key = s.home(old.Key())
		delete(s.allocs, id)
		delete(s.byJob[key], id)
		if len(s.byJob[key]) == 0 {
			delete(s.byJob, key)
		}
	default:
		return
	}
	s.claim(id, a)
	if e := s.gangs[key]; e != nil {
		s.stir(e)
		s.changed(key)
	}
}

// claim keeps the list of claims in step with one allocation.
func (s *state) claim(id string, a *picture.Alloc) {
	if a == nil || a.Terminal() {
		if s.claims.drop(id) {
			s.decideSoon = true
		}
		return
	}
	c := a.Claim()
	if j := s.jobs[a.Key()]; j != nil {
		c.Priority = j.Priority
	}
	if e := s.gangs[s.home(a.Key())]; e != nil {
		c.Gang = core.GangID(e.key.String())
		c.Attempt, c.Member = e.gang.Saved.Attempt, max(a.NameIndex(), 0)
		c.Stopping = c.Stopping || e.departs || s.givenUp[id]
	}
	i, known := s.claims.at[id]
	if known && sameClaim(&s.claims.values[i], &c) {
		return
	}
	s.claims.put(id, c)
	if e := s.gangs[s.home(a.Key())]; e != nil && !known && e.gang.Saved.Phase == lifecycle.Reserving {
		return // what was asked for is there; it was counted as asked
	}
	s.decideSoon = true
}

// sameClaim compares what can change of one allocation's claim.
func sameClaim(a, b *core.Claim) bool {
	return a.Stopping == b.Stopping && a.Unknown == b.Unknown && a.Gang == b.Gang && a.Attempt == b.Attempt && a.Priority == b.Priority && a.Node == b.Node &&
		len(a.Cards) == len(b.Cards)
}

// reclaim renews the claims of a job's allocations.
func (s *state) reclaim(key picture.Key) {
	for id, a := range s.byJob[key] {
		s.claim(id, a)
	}
}

// disturbed are the nodes that news which are not taken in yet are about, other
// than what gangs of the planner's do there.
func (s *state) disturbed(news []nomad.Delta) map[string]bool {
	out := map[string]bool{}
	for _, d := range news {
		for id := range d.Nodes {
			out[id] = true
		}
		for id, a := range d.Allocs {
			if a == nil || a.Terminal() || s.allocs[id] != nil {
				continue
			}
			if e := s.gangs[s.home(a.Key())]; e == nil || e.gang.Saved.Phase != lifecycle.Reserving {
				out[a.NodeID] = true
			}
		}
	}
	return out
}

// seen is what a gang's state machine is shown.
func (s *state) seen(e *entry, now time.Time) lifecycle.Seen {
	v := lifecycle.Seen{Now: now, Job: s.jobOf(e), Evals: e.evals, Reports: e.reports, Fresh: e.fresh, Node: func(id string) *picture.Node { return s.nodes[id] }, Direct: func(id string) bool { return s.cards.Direct(core.NodeID(id)) }}
	for _, a := range s.byJob[e.key] {
		v.Allocs = append(v.Allocs, a)
	}
	if t := s.twinOf(e); t != nil {
		v.TwinLives, v.TwinIndex = t.alive, t.index
	}
	v.Leaving = s.leaving(e)
	e.leaving = v.Leaving
	slices.SortFunc(v.Allocs, func(a, b *picture.Alloc) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	return v
}
