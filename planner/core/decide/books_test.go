package decide_test

import (
	"slices"

	"github.com/nomad-muster/muster/planner/core"
)

// evictions: nobody is evicted for a gang that does not then have its place;
// never an equal of its own queue, one that may not be, or one that evicted the
// gang within a day; no queue at or below its guarantee; and all caps are kept.
// Members are given up by gangs that run, to none less than their least.
func (h *history) evictions(s *core.Snapshot, p *core.Plan) {
	k := newBooks(h, s)
	for _, e := range p.Evictions {
		switch e.Kind {
		case core.EvictUnreleased, core.EvictRepair, core.EvictDrain, core.EvictTimeLimit:
			k.leave(e.Gang)
		}
	}
	effective := map[core.GangID]int{}
	for _, v := range p.Verdicts {
		effective[v.Gang] = v.Effective
	}
	count, top := map[core.QueueName]int{}, map[core.QueueName]int{}
	started := 0
	for _, e := range p.Evictions {
		if e.Kind == core.EvictPromise {
			k.leave(e.Gang)
			continue
		}
		if e.For == "" {
			continue
		}
		victim, by := k.gangs[e.Gang], k.gangs[e.For]
		if !victim.Preemptible || victim.Service {
			h.t.Fatalf("gang %s may not be evicted: %s for %s", e.Gang, e.Kind, e.For)
		}
		if e.Immediate && !k.queues[by.Queue].Urgent {
			h.t.Fatalf("gang %s is not asked to leave, and queue %s of %s is not urgent", e.Gang, by.Queue, e.For)
		}
		at := slices.IndexFunc(p.Starts, func(s core.Start) bool { return s.Gang == e.For })
		if at < 0 || !slices.Contains(p.Starts[at].After, e.Gang) {
			h.t.Fatalf("gang %s is evicted for %s, which is not placed on what it leaves", e.Gang, e.For)
		}
		for ; started < at; started++ { // what was decided before it may have put a queue above its guarantee, or below
			k.start(p, &p.Starts[started])
		}
		k.mayEvict(s, &e, effective[e.For])
		k.leave(e.Gang)
		if count[by.Queue]++; s.History.EvictionsToday[by.Queue]+count[by.Queue] > k.queues[by.Queue].Preempt.EvictionsPerDay {
			h.t.Fatalf("queue %s causes more than %d evictions a day", by.Queue, k.queues[by.Queue].Preempt.EvictionsPerDay)
		}
		if e.Kind == core.EvictAged {
			if top[by.Queue]++; s.History.TopEvictionsToday[by.Queue]+top[by.Queue] > k.queues[by.Queue].TopPerDay {
				h.t.Fatalf("aged gangs of queue %s cause more than %d evictions a day", by.Queue, k.queues[by.Queue].TopPerDay)
			}
		}
	}
	k.ratios(p)
	k.resizes(p)
}

// books are what queues and gangs hold while a plan is followed decision by
// decision.
type books struct {
	h      *history
	gangs  map[core.GangID]*core.Gang
	queues map[core.QueueName]*core.Queue
	models map[core.CardID]core.Model // of cards
	held   map[core.GangID]map[int]map[core.Model]int
	used   map[core.QueueName]map[core.Model]int // without what was asked back
	left   map[core.GangID]bool
}

func newBooks(h *history, s *core.Snapshot) *books {
	k := &books{h, map[core.GangID]*core.Gang{}, map[core.QueueName]*core.Queue{}, map[core.CardID]core.Model{}, map[core.GangID]map[int]map[core.Model]int{},
		map[core.QueueName]map[core.Model]int{}, map[core.GangID]bool{}}
	for i := range s.Gangs {
		k.gangs[s.Gangs[i].ID] = &s.Gangs[i]
	}
	for i := range s.Config.Queues {
		q := &s.Config.Queues[i]
		k.queues[q.Name], k.used[q.Name] = q, map[core.Model]int{}
	}
	for i := range s.Nodes {
		for _, d := range s.Nodes[i].Devices {
			for _, c := range d.Cards {
				if slices.Contains(s.Config.CardTypes, d.Type) {
					k.models[c.ID] = d.Name
				}
			}
		}
	}
	for _, c := range s.Claims {
		g := k.gangs[c.Gang]
		if g == nil {
			continue
		}
		if k.held[g.ID] == nil {
			k.held[g.ID] = map[int]map[core.Model]int{}
		}
		k.held[g.ID][c.Member] = k.cards(c.Cards)
		if g.State != core.GangStopping {
			k.charge(g.Queue, k.held[g.ID][c.Member], 1)
		}
	}
	return k
}

// cards counts cards by model.
func (k *books) cards(ids []core.CardID) map[core.Model]int {
	n := map[core.Model]int{}
	for _, id := range ids {
		if m, ok := k.models[id]; ok {
			n[m]++
		}
	}
	return n
}

func (k *books) charge(q core.QueueName, cards map[core.Model]int, sign int) {
	for ; q != ""; q = k.queues[q].Parent {
		for m, n := range cards {
			k.used[q][m] += sign * n
		}
	}
}

func sum(cards map[core.Model]int) int {
	all := 0
	for _, n := range cards {
		all += n
	}
	return all
}

// holds counts all cards of a gang.
func (k *books) holds(id core.GangID) int {
	all := 0
	for _, cards := range k.held[id] {
		all += sum(cards)
	}
	return all
}

func (k *books) leave(id core.GangID) {
	if k.left[id] || k.gangs[id].State == core.GangStopping {
		return
	}
	k.left[id] = true
	for _, cards := range k.held[id] {
		k.charge(k.gangs[id].Queue, cards, -1)
	}
}

// start charges a gang for its start, and relieves those that shrink for it.
func (k *books) start(p *core.Plan, s *core.Start) {
	k.charge(k.gangs[s.Gang].Queue, k.placed(s), 1)
	for _, r := range p.Resizes {
		if r.For == s.Gang {
			for _, m := range r.Remove {
				k.charge(k.gangs[r.Gang].Queue, k.held[r.Gang][m], -1)
			}
		}
	}
}

// placed counts the cards that a start takes.
func (k *books) placed(s *core.Start) map[core.Model]int {
	n := map[core.Model]int{}
	for i := range s.Members {
		for _, ids := range s.Members[i].Cards {
			for m, c := range k.cards(ids) {
				n[m] += c
			}
		}
	}
	return n
}

// excess is what a queue holds above its guarantee.
func (k *books) excess(q core.QueueName) int {
	over, own := 0, k.queues[q].Guaranteed
	for m, n := range k.used[q] {
		over += max(0, n-own.Models[m])
	}
	return over - max(0, own.Any-sum(own.Models)) // any is the sum over all models
}

// mayEvict: the right is there, and the victim is not protected.
func (k *books) mayEvict(s *core.Snapshot, e *core.Eviction, effective int) {
	t, victim, by := k.h.t, k.gangs[e.Gang], k.gangs[e.For]
	from, to := k.queues[victim.Queue], k.queues[by.Queue]
	switch e.Kind {
	case core.EvictPriority, core.EvictAged:
		if from != to {
			t.Fatalf("gang %s evicts %s of another queue by priority", e.For, e.Gang)
		}
		if effective <= victim.Priority && to.Order != core.OrderAttained {
			t.Fatalf("gang %s (priority %d) evicts its equal %s (priority %d)", e.For, effective, e.Gang, victim.Priority)
		}
	case core.EvictReclaim, core.EvictClass:
		higher := to.Class > from.Class
		if from == to || e.Kind == core.EvictClass && !higher {
			t.Fatalf("gang %s of queue %s (class %d) evicts %s of queue %s (class %d): %s", e.For, to.Name, to.Class, e.Gang, from.Name, from.Class, e.Kind)
		}
		if k.excess(from.Name) <= 0 && !(to.Urgent && higher) {
			t.Fatalf("gang %s is evicted (%s) though its queue %s borrows nothing", e.Gang, e.Kind, victim.Queue)
		}
	}
	if slices.Contains(by.EvictedBy, e.Gang) {
		t.Fatalf("gang %s evicts %s, which evicted it within a day", e.For, e.Gang)
	}
	if ran := s.Now.Sub(victim.Released); !victim.Released.IsZero() && ran < from.Preempt.MinRuntime {
		t.Fatalf("gang %s is evicted after %s, min_runtime is %s", e.Gang, ran, from.Preempt.MinRuntime)
	}
	if victim.EvictionsToday >= from.Preempt.PerVictimPerDay {
		t.Fatalf("gang %s is evicted once more after %d times today", e.Gang, victim.EvictionsToday)
	}
}

// ratios: no more is taken for a gang than its queue's ratio of what it gets,
// and nothing for one that does not start.
func (k *books) ratios(p *core.Plan) {
	taken := map[core.GangID]int{}
	for _, r := range p.Resizes {
		for _, m := range r.Remove {
			taken[r.For] += sum(k.held[r.Gang][m])
		}
	}
	for _, e := range p.Evictions {
		if e.For != "" && e.Kind != core.EvictPromise {
			taken[e.For] += k.holds(e.Gang)
		}
	}
	for id, n := range taken {
		at := slices.IndexFunc(p.Starts, func(s core.Start) bool { return s.Gang == id })
		if at < 0 {
			k.h.t.Fatalf("members are taken for gang %s, which does not start", id)
		}
		ratio := k.queues[k.gangs[id].Queue].Preempt.Ratio
		if most := max(1, ratio*float64(sum(k.placed(&p.Starts[at])))); ratio > 0 && float64(n) > most {
			k.h.t.Fatalf("%d cards are taken for gang %s, which takes %d: the ratio is %g", n, id, sum(k.placed(&p.Starts[at])), ratio)
		}
	}
}

// resizes are asked of elastic gangs that run and are asked nothing else, within
// their bounds.
func (k *books) resizes(p *core.Plan) {
	for _, r := range p.Resizes {
		g := k.gangs[r.Gang]
		most := 0
		for i := range g.Groups {
			most += g.Groups[i].Count
		}
		if g.State != core.GangRunning || g.Min <= 0 || k.left[g.ID] || k.h.cfg.FixedSize {
			k.h.t.Fatalf("gang %s (state %d, least %d) is resized", g.ID, g.State, g.Min)
		}
		members := map[int]bool{}
		for m := range k.held[g.ID] {
			members[m] = true
		}
		for _, m := range r.Remove {
			if !members[m] {
				k.h.t.Fatalf("gang %s gives up member %d, which it does not have", g.ID, m)
			}
			delete(members, m)
		}
		for i := range r.Add {
			if members[r.Add[i].Member] {
				k.h.t.Fatalf("gang %s gets member %d twice", g.ID, r.Add[i].Member)
			}
			members[r.Add[i].Member] = true
		}
		if len(members) > most || len(r.Remove) > 0 && (len(members) < g.Min || !g.Preemptible) {
			k.h.t.Fatalf("gang %s of %d to %d members (preemptible: %v) comes to have %d", g.ID, g.Min, most, g.Preemptible, len(members))
		}
	}
}

// limits: no queue above its max, no user above the limit. What a gang takes
// over from one that is leaving counts once it has left.
func (h *history) limits() {
	k := newBooks(h, h.w.Snapshot())
	users, gangs, running := map[string]int{}, map[string]int{}, map[core.QueueName]int{}
	clear(k.used)
	for q := range k.queues {
		k.used[q] = map[core.Model]int{}
	}
	for _, g := range h.w.Active() {
		if len(g.Claims) == 0 {
			continue
		}
		running[g.Queue]++
		gangs[g.User]++
		for _, c := range g.Claims {
			if !c.Asked {
				k.charge(g.Queue, k.cards(c.Cards), 1)
				users[g.User] += sum(k.cards(c.Cards))
			}
		}
	}
	for _, q := range k.queues {
		if n := sum(k.used[q.Name]); q.Max.Any >= 0 && n > q.Max.Any {
			h.t.Fatalf("queue %s holds %d cards of at most %d", q.Name, n, q.Max.Any)
		}
		if q.MaxGangs > 0 && running[q.Name] > q.MaxGangs {
			h.t.Fatalf("queue %s runs %d gangs of at most %d", q.Name, running[q.Name], q.MaxGangs)
		}
	}
	for user := range users {
		at := slices.IndexFunc(h.cfg.UserLimits, func(l core.UserLimit) bool { return l.User == user })
		if at < 0 {
			at = slices.IndexFunc(h.cfg.UserLimits, func(l core.UserLimit) bool { return l.User == "*" })
		}
		if at < 0 {
			continue
		}
		if l := h.cfg.UserLimits[at]; l.MaxCards > 0 && users[user] > l.MaxCards || l.MaxGangs > 0 && gangs[user] > l.MaxGangs {
			h.t.Fatalf("user %q runs %d gangs with %d cards of at most %d and %d", user, gangs[user], users[user], l.MaxGangs, l.MaxCards)
		}
	}
}
