package config

import (
	"sort"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// tree checks what only the queues together show: parents that do not exist,
// cycles, guarantees that cannot be kept, settings of gangs on queues that
// hold none.
func (r *reader) tree() {
	queues, at := r.config.Core.Queues, r.config.at
	byName := map[core.QueueName]*core.Queue{}
	children := map[core.QueueName][]*core.Queue{}
	for i := range queues {
		byName[queues[i].Name] = &queues[i]
		children[queues[i].Parent] = append(children[queues[i].Parent], &queues[i])
	}
	leaf := func(name core.QueueName) bool { return byName[name] != nil && len(children[name]) == 0 }

	for _, w := range r.config.Webhooks {
		for _, q := range w.Queues {
			if byName[core.QueueName(q)] == nil {
				r.fault(at.of("webhook", w.Name), "webhook %q: its queue %q does not exist; queues are %s", w.Name, q, names(queues))
			}
		}
	}
	for _, q := range queues {
		name := string(q.Name)
		if q.Parent != "" && byName[q.Parent] == nil {
			r.fault(at.of("queue", name, "parent"), "queue %q: its parent %q does not exist; queues are %s", name, q.Parent, names(queues))
		}
		if q.OnPreempt != "" && !leaf(q.OnPreempt) {
			why := "does not exist"
			if byName[q.OnPreempt] != nil {
				why = "holds queues, not gangs"
			}
			r.fault(at.of("queue", name, "on_preempt"), "queue %q: on_preempt names the queue %q, which %s", name, q.OnPreempt, why)
		}
		if !leaf(q.Name) {
			for _, setting := range leafOnly {
				if where, set := at["queue "+name+" "+setting]; set {
					r.fault(where, "queue %q: %s governs gangs, and a queue that holds queues has none: set it on %s", name, setting, names(deref(children[q.Name])))
				}
			}
		}
		r.bounds(q)
	}
	r.cycles(queues, byName)
	for i := range queues {
		if kids := children[queues[i].Name]; len(kids) > 0 {
			r.guarantees(&queues[i], kids)
		}
	}
	for _, token := range r.config.Tokens {
		for _, q := range token.Queues {
			if !leaf(core.QueueName(q)) {
				r.fault(at.of("token", token.Name), "token %q: queues names %q, which is no queue that holds gangs", token.Name, q)
			}
		}
	}
}

// bounds checks a queue against itself.
func (r *reader) bounds(q core.Queue) {
	name, at := string(q.Name), r.config.at
	for _, model := range models(q.Guaranteed) {
		g := q.Guaranteed.Models[model]
		if most, limited := q.Max.Models[model]; limited && g > most {
			r.fault(at.of("queue", name, "guaranteed", string(model)), "queue %q: %d cards of %q are guaranteed, but its max is %d", name, g, model, most)
		}
	}
	if total := total(q.Guaranteed); q.Max.Any >= 0 && total > q.Max.Any {
		r.fault(at.of("queue", name, "guaranteed"), "queue %q: %d cards are guaranteed, but its max of any is %d", name, total, q.Max.Any)
	}
}

// cycles reports each ring of parents once, at its first queue in the file.
func (r *reader) cycles(queues []core.Queue, byName map[core.QueueName]*core.Queue) {
	told := map[core.QueueName]bool{}
	for _, q := range queues {
		var path []string
		onPath := map[core.QueueName]bool{}
		for at := &q; at != nil && !onPath[at.Name]; at = byName[at.Parent] {
			onPath[at.Name] = true
			path = append(path, string(at.Name))
			if at.Parent == q.Name && !told[q.Name] {
				for name := range onPath {
					told[name] = true
				}
				r.fault(r.config.at.of("queue", string(q.Name), "parent"), "queues are each other's parents: %s", strings.Join(append(path, string(q.Name)), " -> "))
				break
			}
		}
	}
}

// guarantees checks that what a queue guarantees its children is its own. A
// model that the parent does not state counts against the parent's any.
func (r *reader) guarantees(parent *core.Queue, children []*core.Queue) {
	at := r.config.at
	sums, sum := map[core.Model]int{}, 0
	for _, c := range children {
		for model, n := range c.Guaranteed.Models {
			sums[model] += n
		}
		sum += total(c.Guaranteed)
	}
	where := at.of("queue", string(parent.Name), "guaranteed")
	covered := true
	for _, model := range models(core.Amounts{Models: sums}) {
		own, stated := parent.Guaranteed.Models[model]
		if sums[model] > own && (stated || parent.Guaranteed.Any <= 0) {
			covered = false
			r.fault(where, "queue %q guarantees %d cards of %q, but its children %s are guaranteed %d together", parent.Name, own, model, shares(children, model), sums[model])
		}
	}
	if own := total(parent.Guaranteed); covered && sum > own {
		r.fault(where, "queue %q guarantees %d cards in all, but its children %s are guaranteed %d together", parent.Name, own, shares(children, ""), sum)
	}
}

// total is how many cards an amount guarantees in all.
func total(a core.Amounts) int {
	sum := 0
	for _, n := range a.Models {
		sum += n
	}
	return max(sum, a.Any, 0)
}

func models(a core.Amounts) []core.Model {
	out := make([]core.Model, 0, len(a.Models))
	for m := range a.Models {
		out = append(out, m)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// shares lists the children with a guarantee: "a (8), b (4)".
func shares(children []*core.Queue, model core.Model) string {
	var parts []string
	for _, c := range children {
		n := total(c.Guaranteed)
		if model != "" {
			n = c.Guaranteed.Models[model]
		}
		if n > 0 {
			parts = append(parts, string(c.Name)+" ("+strconv.Itoa(n)+")")
		}
	}
	return strings.Join(parts, ", ")
}

func names(queues []core.Queue) string {
	out := make([]string, len(queues))
	for i, q := range queues {
		out[i] = string(q.Name)
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

func deref(queues []*core.Queue) []core.Queue {
	out := make([]core.Queue, len(queues))
	for i, q := range queues {
		out[i] = *q
	}
	return out
}
