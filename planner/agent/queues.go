package agent

import (
	"sort"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/view"
)

// Queues implements httpapi.Cluster.
func (a *Agent) Queues() []view.Queue {
	a.mu.RLock()
	defer a.mu.RUnlock()
	cfg := &a.config.Current().Core
	counts := a.state.queueCounts(cfg)
	spent := a.meter.used()
	children := map[core.QueueName][]*core.Queue{}
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		children[q.Parent] = append(children[q.Parent], q)
	}
	out := []view.Queue{}
	var walk func(parent core.QueueName)
	walk = func(parent core.QueueName) {
		list := children[parent]
		sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
		for _, q := range list {
			v := queueView(q, len(children[q.Name]) == 0, counts)
			if v.Budget != nil {
				v.Budget.UsedCardSeconds = spent[q.Name]
			}
			out = append(out, v)
			if q.Name != parent {
				walk(q.Name)
			}
		}
	}
	walk("")
	return out
}

// queueCount is what a queue and those below it hold and want.
type queueCount struct {
	waiting, running, refused int
	used, wanted              map[string]int // cards by model
}

func (s *state) queueCounts(cfg *core.Config) map[core.QueueName]*queueCount {
	parent := map[core.QueueName]core.QueueName{}
	for i := range cfg.Queues {
		parent[cfg.Queues[i].Name] = cfg.Queues[i].Parent
	}
	counts := map[core.QueueName]*queueCount{}
	// up books on a queue and on all above it; a loop in the configuration was
	// refused when it was read.
	up := func(q core.QueueName, book func(*queueCount)) {
		for ; q != ""; q = parent[q] {
			if counts[q] == nil {
				counts[q] = &queueCount{used: map[string]int{}, wanted: map[string]int{}}
			}
			book(counts[q])
		}
	}
	models, kinds := s.modelsOfCards(), s.cardKinds()
	held := map[core.GangID]map[string]int{}
	for i := range s.claims.values {
		c := &s.claims.values[i]
		if c.Gang == "" {
			continue
		}
		for _, id := range c.Cards {
			if model, ok := models[id]; ok {
				if held[c.Gang] == nil {
					held[c.Gang] = map[string]int{}
				}
				held[c.Gang][model]++
			}
		}
	}
	for key, e := range s.gangs {
		queue := core.QueueName(e.gang.QueueName())
		for model, n := range held[core.GangID(key.String())] {
			up(queue, func(c *queueCount) { c.used[model] += n; c.used[view.AnyModel] += n })
		}
		switch e.gang.Saved.Phase {
		case lifecycle.Over:
		case lifecycle.Waiting:
			if e.decided && e.verdict.Action == core.ActionRefuse {
				up(queue, func(c *queueCount) { c.refused++ })
				continue
			}
			cards := s.gangCards(e)
			up(queue, func(c *queueCount) { c.waiting++; c.wanted[view.AnyModel] += cards })
			if model := s.onlyModel(e, kinds); model != "" {
				up(queue, func(c *queueCount) { c.wanted[model] += cards })
			}
		default:
			up(queue, func(c *queueCount) { c.running++ })
		}
	}
	return counts
}

// modelsOfCards gives the model of every card; devices that are no cards are
// left out.
func (s *state) modelsOfCards() map[core.CardID]string {
	out := map[core.CardID]string{}
	for _, n := range s.nodes {
		for _, g := range n.Devices {
			if !s.isCard(g.Type) {
				continue
			}
			for _, c := range g.Cards {
				out[c.ID] = string(g.Name)
			}
		}
	}
	return out
}

// deviceKind is a device group's name in full.
type deviceKind struct{ vendor, kind, name string }

// cardKinds are the kinds of cards that the nodes have.
func (s *state) cardKinds() map[deviceKind]bool {
	out := map[deviceKind]bool{}
	for _, n := range s.nodes {
		for i := range n.Devices {
			if d := &n.Devices[i]; s.isCard(d.Type) {
				out[deviceKind{d.Vendor, d.Type, string(d.Name)}] = true
			}
		}
	}
	return out
}

// onlyModel is the model that a waiting gang's cards will be of, where its
// asks match but one model of the cluster; "": several would do.
func (s *state) onlyModel(e *entry, kinds map[deviceKind]bool) string {
	if len(e.gang.Meta.Models) == 1 {
		return e.gang.Meta.Models[0]
	}
	found := ""
	for _, group := range e.gang.Groups() {
		for _, ask := range group.Devices {
			for k := range kinds {
				if k.kind != ask.Type || ask.Vendor != "" && k.vendor != ask.Vendor || ask.Name != "" && k.name != ask.Name || k.name == found {
					continue
				}
				if found != "" {
					return ""
				}
				found = k.name
			}
		}
	}
	return found
}

func queueView(q *core.Queue, leaf bool, counts map[core.QueueName]*queueCount) view.Queue {
	c := counts[q.Name]
	if c == nil {
		c = &queueCount{}
	}
	unlimited := func(n int) int {
		if n <= 0 {
			return -1
		}
		return n
	}
	out := view.Queue{Name: string(q.Name), Parent: string(q.Parent), Leaf: leaf, Class: q.Class, Weight: q.Weight, Order: string(q.Order), Urgent: q.Urgent,
		Namespaces: append([]string{}, q.Namespaces...), Shared: q.Shared, Users: append([]string{}, q.Users...), Waiting: c.waiting, Running: c.running, Refused: c.refused,
		MaxGangs: unlimited(q.MaxGangs), Quota: []view.Quota{}}
	if q.Budget.CardSeconds > 0 {
		out.Budget = &view.Budget{CardSeconds: q.Budget.CardSeconds, Period: q.Budget.Period}
	}
	names := map[string]bool{view.AnyModel: true}
	for _, m := range []map[core.Model]int{q.Guaranteed.Models, q.Max.Models, q.Lend.Models} {
		for model := range m {
			names[string(model)] = true
		}
	}
	for model := range c.used {
		names[model] = true
	}
	for _, model := range sortedKeys(names) {
		of := func(a core.Amounts, none int) int {
			if model == view.AnyModel {
				return max(a.Any, none)
			}
			if n, ok := a.Models[core.Model(model)]; ok {
				return n
			}
			return none
		}
		quota := view.Quota{Model: model, Guaranteed: of(q.Guaranteed, 0), Max: of(q.Max, -1), Lend: of(q.Lend, -1), Used: c.used[model], Waiting: c.wanted[model]}
		quota.Borrowed = max(quota.Used-quota.Guaranteed, 0)
		out.Quota = append(out.Quota, quota)
	}
	return out
}
