package agent

import (
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/utilisation"
	"github.com/nomad-muster/muster/planner/view"
)

// figures are the gauges of one moment. They are worked out by the meter from
// what the loop hands over, beside the loop.
type figures struct {
	at      time.Time
	begun   time.Time            // once the loop had let go of its state
	pending map[[2]string]int    // gangs by queue and reason
	oldest  map[string]time.Time // since when the longest waiting gang of a queue waits
	phases  map[string]int
	stuck   map[string]time.Time // since when the longest in a stage is in it
	queues  []queueFigures
	counts  []view.CardCount
	health  map[[2]string]int // cards by model and verdict
	// fragmentation by model; a model of which nothing is free, or that nobody
	// wants, has none.
	fragmentation map[string]float64
	wanted        map[string]int // cards that waiting gangs ask for, by model
	demand        []core.Demand
	contact       time.Time
	connected     bool
	resyncs       int64
	usage         map[[3]string]int64 // card-seconds by queue, model and category
	used          []utilisation.Used
	budgets       map[string][2]int64 // queue: allowed and used
}

type queueFigures struct {
	queue, model                    string
	guaranteed, max, used, borrowed int // max < 0: none
}

// waitingGang is what the figures need of one gang.
type waitingGang struct {
	queue, phase, reason string
	refused, decided     bool
	id                   core.GangID
	stage                string
	since, queued        time.Time
	models               []string
	groups               []core.Group
}

// figure works out the gauges.
func (a *Agent) figure(now time.Time) *figures {
	a.mu.Lock()
	s := &a.state
	if s.set == nil {
		a.mu.Unlock()
		return nil
	}
	claims := s.claims.list()
	nodes := make([]*picture.Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		nodes = append(nodes, n)
	}
	gangs := make([]waitingGang, 0, len(s.gangs))
	for key, e := range s.gangs {
		saved := &e.gang.Saved
		g := waitingGang{queue: e.gang.QueueName(), phase: string(saved.Phase), decided: e.decided, reason: string(e.verdict.Reason), id: core.GangID(key.String()),
			refused: e.decided && e.verdict.Action == core.ActionRefuse, models: e.gang.Meta.Models, groups: e.gang.Groups(), queued: saved.Queued}
		if n := len(saved.Stages); n > 0 && saved.Phase != lifecycle.Over {
			g.stage, g.since = string(saved.Stages[n-1].Stage), saved.Stages[n-1].At
		}
		gangs = append(gangs, g)
	}
	f := &figures{at: now, demand: s.demand, contact: s.contact.At, connected: s.contact.OK && s.whole, resyncs: s.resyncs}
	set := s.set
	a.mu.Unlock()
	f.begun = time.Now()
	isCard := func(kind string) bool { return slices.Contains(set.CardTypes, kind) }

	f.gangs(gangs)
	models, free := f.cards(nodes, claims, isCard)
	cfg := &a.config.Current().Core
	f.quotas(cfg, gangs, claims, models)
	f.fragments(gangs, nodes, free, isCard)
	f.budgets = map[string][2]int64{}
	spent := a.meter.used()
	for i := range cfg.Queues {
		if q := &cfg.Queues[i]; q.Budget.CardSeconds > 0 {
			f.budgets[string(q.Name)] = [2]int64{q.Budget.CardSeconds, spent[q.Name]}
		}
	}
	a.meter.samples.Lock()
	f.used = a.meter.use.Live(now)
	a.meter.samples.Unlock()
	return f
}

// gangs counts what waits and what is where.
func (f *figures) gangs(gangs []waitingGang) {
	f.pending, f.oldest, f.phases, f.stuck = map[[2]string]int{}, map[string]time.Time{}, map[string]int{}, map[string]time.Time{}
	earlier := func(m map[string]time.Time, k string, t time.Time) {
		if have, ok := m[k]; !t.IsZero() && (!ok || t.Before(have)) {
			m[k] = t
		}
	}
	for i := range gangs {
		g := &gangs[i]
		f.phases[g.phase]++
		if g.phase == string(lifecycle.Waiting) && g.decided {
			f.pending[[2]string{g.queue, g.reason}]++
			if !g.refused {
				earlier(f.oldest, g.queue, g.queued)
			}
		}
		if g.stage != "" && g.stage != string(contract.StageTraining) && g.stage != string(contract.StageQueued) && g.phase != string(lifecycle.Over) {
			earlier(f.stuck, g.stage, g.since)
		}
	}
}

// cards counts cards, and gives each card's model and each node's free cards.
func (f *figures) cards(nodes []*picture.Node, claims []core.Claim, isCard func(string) bool) (models map[core.CardID]string, free map[core.NodeID]map[string]int) {
	f.health = map[[2]string]int{}
	gangs := map[core.CardID]bool{} // held; true: by a gang
	for i := range claims {
		for _, id := range claims[i].Cards {
			gangs[id] = claims[i].Gang != ""
		}
	}
	models, free = map[core.CardID]string{}, map[core.NodeID]map[string]int{}
	counts := map[string]*view.CardCount{}
	for _, n := range nodes {
		status, _ := nodeStatus(n)
		for i := range n.Devices {
			d := &n.Devices[i]
			if !isCard(d.Type) {
				continue
			}
			model := string(d.Name)
			c := counts[model]
			if c == nil {
				c = &view.CardCount{Model: model}
				counts[model] = c
			}
			for k := range d.Cards {
				card := &d.Cards[k]
				models[card.ID] = model
				c.Total++
				state := min(card.State, core.CardQuarantined)
				if !card.Healthy {
					state = max(state, core.CardDraining)
				}
				f.health[[2]string{model, cards.StateName(state)}]++
				switch gang, held := gangs[card.ID]; {
				case held && gang:
					c.Used++
				case held:
					c.Other++
				case status != "ready" || state >= core.CardDraining:
					c.Out++
				default:
					c.Free++
					if free[n.ID] == nil {
						free[n.ID] = map[string]int{}
					}
					free[n.ID][model]++
				}
			}
		}
	}
	for _, model := range sortedKeys(counts) {
		f.counts = append(f.counts, *counts[model])
	}
	return models, free
}

// quotas are what each queue of the tree is guaranteed, may have, and holds.
func (f *figures) quotas(cfg *core.Config, gangs []waitingGang, claims []core.Claim, models map[core.CardID]string) {
	queueOf := map[core.GangID]string{}
	for i := range gangs {
		queueOf[gangs[i].id] = gangs[i].queue
	}
	parent := map[string]string{}
	for i := range cfg.Queues {
		parent[string(cfg.Queues[i].Name)] = string(cfg.Queues[i].Parent)
	}
	used := map[[2]string]int{}
	for i := range claims {
		queue, ok := queueOf[claims[i].Gang]
		if !ok {
			continue
		}
		for _, id := range claims[i].Cards {
			model, ok := models[id]
			if !ok {
				continue
			}
			for q := queue; q != ""; q = parent[q] {
				used[[2]string{q, model}]++
			}
		}
	}
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		name := string(q.Name)
		all := map[string]bool{view.AnyModel: true}
		for _, c := range f.counts {
			if used[[2]string{name, c.Model}] > 0 {
				all[c.Model] = true
			}
		}
		for _, m := range []map[core.Model]int{q.Guaranteed.Models, q.Max.Models} {
			for model := range m {
				all[string(model)] = true
			}
		}
		sum := 0
		for _, c := range f.counts {
			sum += used[[2]string{name, c.Model}]
		}
		for _, model := range sortedKeys(all) {
			v := queueFigures{queue: name, model: model, max: -1, used: used[[2]string{name, model}]}
			if model == view.AnyModel {
				v.used, v.guaranteed, v.max = sum, max(q.Guaranteed.Any, 0), q.Max.Any
				named := 0
				for _, n := range q.Guaranteed.Models {
					named += max(n, 0)
				}
				v.guaranteed = max(v.guaranteed, named)
			} else {
				v.guaranteed = max(q.Guaranteed.Models[core.Model(model)], 0)
				if n, ok := q.Max.Models[core.Model(model)]; ok {
					v.max = n
				}
			}
			v.borrowed = max(v.used-v.guaranteed, 0)
			f.queues = append(f.queues, v)
		}
	}
}

// ask is what one member of the mix asks of one model.
type ask struct {
	cards  int
	weight int // cards that all members with this ask want
}

// fragments works out, by model, the share of free cards that the mix of waiting
// gangs cannot use: where nobody waits, the mix of those that run.
func (f *figures) fragments(gangs []waitingGang, nodes []*picture.Node, free map[core.NodeID]map[string]int, isCard func(string) bool) {
	f.fragmentation, f.wanted = map[string]float64{}, map[string]int{}
	kinds := map[deviceKind]bool{}
	for _, n := range nodes {
		for i := range n.Devices {
			if d := &n.Devices[i]; isCard(d.Type) {
				kinds[deviceKind{d.Vendor, d.Type, string(d.Name)}] = true
			}
		}
	}
	waiting, running := map[string]map[int]int{}, map[string]map[int]int{}
	for i := range gangs {
		g := &gangs[i]
		mix := running
		switch {
		case g.phase == string(lifecycle.Over) || g.refused:
			continue
		case g.phase == string(lifecycle.Waiting):
			mix = waiting
		}
		for k := range g.groups {
			for model, n := range g.asks(&g.groups[k], kinds, isCard) {
				if mix[model] == nil {
					mix[model] = map[int]int{}
				}
				mix[model][n] += n * g.groups[k].Count
				if g.phase == string(lifecycle.Waiting) {
					f.wanted[model] += n * g.groups[k].Count
				}
			}
		}
	}
	spare := map[string][]int{}
	for _, byModel := range free {
		for model, n := range byModel {
			spare[model] = append(spare[model], n)
		}
	}
	for model, list := range spare {
		mix := waiting[model]
		if mix == nil {
			mix = running[model]
		}
		var asks []ask
		for n, weight := range mix {
			asks = append(asks, ask{n, weight})
		}
		if share, ok := fragmentation(list, asks); ok {
			f.fragmentation[model] = share
		}
	}
}

// asks are the cards that one member of a group wants, by each model that would
// do.
func (g *waitingGang) asks(group *core.Group, kinds map[deviceKind]bool, isCard func(string) bool) map[string]int {
	out := map[string]int{}
	for i := range group.Devices {
		d := &group.Devices[i]
		if !isCard(d.Type) {
			continue
		}
		for k := range kinds {
			if k.kind != d.Type || d.Vendor != "" && k.vendor != d.Vendor || d.Name != "" && k.name != d.Name || len(g.models) > 0 && !slices.Contains(g.models, k.name) {
				continue
			}
			out[k.name] += d.Count
		}
	}
	return out
}

// fragmentation is the share of free cards that members of the given sizes
// cannot use, weighted by the cards that each size wants: on a node with f free
// cards, members of c cards can use f - f mod c. False: nothing is free, or
// nothing is wanted.
func fragmentation(free []int, asks []ask) (float64, bool) {
	asks = slices.DeleteFunc(slices.Clone(asks), func(a ask) bool { return a.cards <= 0 }) // such members can use none
	var total, wanted int64
	for _, n := range free {
		total += int64(n)
	}
	for _, a := range asks {
		wanted += int64(a.weight)
	}
	if total == 0 || wanted == 0 {
		return 0, false
	}
	var lost int64 // weighted
	for _, a := range asks {
		for _, n := range free {
			lost += int64(a.weight) * int64(n%a.cards)
		}
	}
	return float64(lost) / float64(wanted) / float64(total), true
}

// clusterStates is what is booked of the cluster by hour.
func (f *figures) clusterStates() []accounting.Cluster {
	var out []accounting.Cluster
	for _, c := range f.counts {
		out = append(out, accounting.Cluster{Model: c.Model, Free: c.Free, Used: c.Used, Other: c.Other, Out: c.Out, Fragmented: f.fragmentation[c.Model], Wanted: f.wanted[c.Model]})
	}
	return out
}
