package config

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-muster/muster/planner/core"
)

// rootQueue is what parent says of a queue without a parent; it is not a queue.
const rootQueue = "root"

// leafOnly are the attributes and blocks that govern gangs, which only leaves
// hold.
var leafOnly = []string{"namespaces", "shared", "users", "order", "time_limit", "limit_action", "when_full", "aging", "preempt", "on_preempt", "give_up"}

func (r *reader) queue(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"parent", "guaranteed", "max", "lend", "weight", "class", "order", "time_limit", "limit_action",
		"namespaces", "shared", "users", "max_gangs", "when_full", "budget", "urgent"}, "aging", "preempt", "on_preempt", "give_up")
	name := nested.Labels[0]
	q := core.DefaultQueue(core.QueueName(name))
	at := r.config.at
	switch {
	case !validName.MatchString(name):
		b.fault(nested.DefRange, "queue %q: %s", name, nameRule)
	case name == rootQueue:
		b.fault(nested.DefRange, "queue %q is always there, holds all others and cannot be defined", name)
	}
	for _, other := range r.config.Core.Queues {
		if other.Name == q.Name {
			b.fault(nested.DefRange, "a second queue %q; the first is at %s", name, place(at.of("queue", name)))
			return
		}
	}
	at.set(nested.DefRange, "queue", name)
	for _, attr := range b.attrs {
		at.set(attr.Range, "queue", name, attr.Name)
	}
	for _, inner := range b.blocks {
		at.set(inner.DefRange, "queue", name, inner.Type)
	}

	if q.Parent = core.QueueName(b.text("parent", "")); q.Parent == rootQueue {
		q.Parent = ""
	}
	b.amounts("guaranteed", name, &q.Guaranteed)
	b.amounts("max", name, &q.Max)
	b.amounts("lend", name, &q.Lend)
	q.Weight = b.count("weight", q.Weight, 1)
	q.Class = b.class(q.Class)
	q.Order = core.Order(b.choice("order", string(q.Order), string(core.OrderPriority), string(core.OrderFIFO), string(core.OrderShortest), string(core.OrderAttained)))
	q.TimeLimit = b.duration("time_limit", 0)
	q.LimitReport = b.choice("limit_action", "stop", "stop", "report") == "report"
	q.Namespaces = b.texts("namespaces")
	q.Shared = b.boolean("shared", false)
	q.Users = b.texts("users")
	q.MaxGangs = b.count("max_gangs", 0, 1)
	q.RefuseFull = b.choice("when_full", "wait", "wait", "refuse") == "refuse"
	q.Budget = b.budget()
	q.Urgent = b.boolean("urgent", false)
	if nested := b.only("aging"); nested != nil {
		r.aging(nested, &q)
	}
	if nested := b.only("preempt"); nested != nil {
		p := r.open(nested.Body, nested.DefRange, []string{"grace", "min_runtime", "evictions_per_day", "per_victim_per_day", "ratio"})
		q.Preempt = core.Preempt{Grace: p.duration("grace", q.Preempt.Grace), MinRuntime: p.duration("min_runtime", q.Preempt.MinRuntime),
			EvictionsPerDay: p.count("evictions_per_day", q.Preempt.EvictionsPerDay, 0),
			PerVictimPerDay: p.count("per_victim_per_day", q.Preempt.PerVictimPerDay, 0), Ratio: p.fraction("ratio", q.Preempt.Ratio)}
	}
	if nested := b.only("on_preempt"); nested != nil {
		p := r.open(nested.Body, nested.DefRange, []string{"queue"})
		if q.OnPreempt = core.QueueName(p.text("queue", "")); q.OnPreempt == "" {
			p.fault(nested.DefRange, "on_preempt needs queue, the name of the queue that an evicted gang goes to")
		}
	}
	if nested := b.only("give_up"); nested != nil {
		g := r.open(nested.Body, nested.DefRange, []string{"after", "action"})
		q.GiveUp = core.GiveUp{After: g.duration("after", 0), Action: g.choice("action", "fail", "min", "split", "fail")}
		if g.attrs["after"] == nil {
			g.fault(nested.DefRange, "give_up needs after, how long a gang waits before it does")
		}
	}
	r.config.Core.Queues = append(r.config.Core.Queues, q)
}

// amounts reads { model = n, any = n }.
func (b *block) amounts(name, queue string, into *core.Amounts) {
	b.counts(name, 0, func(model string, n int, where hcl.Range) {
		b.config.at.set(where, "queue", queue, name, model)
		if model == "any" {
			into.Any = n
			return
		}
		if into.Models == nil {
			into.Models = map[core.Model]int{}
		}
		into.Models[core.Model(model)] = n
	})
}

// class is a number, or a name that classes gives a number.
func (b *block) class(fallback int) int {
	attr, ok := b.attrs["class"]
	if !ok {
		return fallback
	}
	v, diags := attr.Expr.Value(nil)
	if !diags.HasErrors() && !v.IsNull() && v.Type() == cty.String {
		if n, known := b.classes[v.AsString()]; known {
			return n
		}
		names := make([]string, 0, len(b.classes))
		for name := range b.classes {
			names = append(names, name)
		}
		sort.Strings(names)
		known := "classes names none"
		if len(names) > 0 {
			known = "classes has " + strings.Join(names, ", ")
		}
		b.fault(attr.Expr.Range(), "class = %q: no class has this name; %s", v.AsString(), known)
		return fallback
	}
	if n, ok := b.whole(attr.Expr, "class", 0); ok {
		return n
	}
	return fallback
}

// budget reads { card_hours = n, per = "month" }.
func (b *block) budget() core.Budget {
	const shape = `budget must be { card_hours = 50000, per = "month" }, per being day, week or month`
	attr, ok := b.attrs["budget"]
	if !ok {
		return core.Budget{}
	}
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		b.fault(attr.Expr.Range(), shape)
		return core.Budget{}
	}
	var out core.Budget
	for _, pair := range pairs {
		key, ok := b.evaluate(pair.Key, "budget", cty.String, "an object")
		if !ok {
			continue
		}
		switch key.AsString() {
		case "card_hours":
			if n, ok := b.whole(pair.Value, "card_hours", 1); ok {
				out.CardSeconds = int64(n) * 3600
			}
		case "per":
			v, ok := b.evaluate(pair.Value, "per", cty.String, "day, week or month")
			if ok {
				out.Period = v.AsString()
			}
			if ok && out.Period != "day" && out.Period != "week" && out.Period != "month" {
				b.fault(pair.Value.Range(), "per = %q: must be day, week or month", out.Period)
			}
		default:
			b.fault(pair.Key.Range(), "%s", fmt.Sprintf("budget has no %q; %s", key.AsString(), shape))
		}
	}
	if out.CardSeconds == 0 || out.Period == "" {
		b.fault(attr.Expr.Range(), shape)
	}
	return out
}

func (r *reader) aging(nested *hcl.Block, q *core.Queue) {
	b := r.open(nested.Body, nested.DefRange, []string{"top_evictions_per_day"}, "step after")
	q.TopPerDay = b.count("top_evictions_per_day", q.TopPerDay, 0)
	q.Aging = nil
	var last time.Duration
	for _, nested := range b.each("step") {
		s := r.open(nested.Body, nested.DefRange, []string{"raise"})
		step := core.AgingStep{}
		var ok bool
		if step.After, ok = s.parseDuration(nested.Labels[0], nested.DefRange, "step"); ok && step.After <= last {
			s.fault(nested.DefRange, "step %q does not come after the step before it: steps are in ascending order", nested.Labels[0])
		}
		last = max(last, step.After)
		attr := s.attrs["raise"]
		if attr == nil {
			s.fault(nested.DefRange, `step needs raise, a number of priority levels or "top"`)
			continue
		}
		if v, diags := attr.Expr.Value(nil); !diags.HasErrors() && !v.IsNull() && v.Type() == cty.String && v.AsString() == "top" {
			step.Top = true
		} else {
			step.Raise, _ = s.whole(attr.Expr, "raise", 1)
		}
		q.Aging = append(q.Aging, step)
	}
}
