package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// refused checks a gang as it was submitted, with every fault listed: nothing
// that could change by others' leaving is asked here.
func (c *cycle) refused(g *core.Gang, v *core.Verdict) bool {
	refuse := func(r core.Reason, text, remedy string) {
		v.Blockers = append(v.Blockers, core.Blocker{Reason: r, Text: text, Remedy: remedy})
	}
	for _, f := range g.Faults {
		refuse(core.ReasonFaults, f, "")
	}
	if !slices.ContainsFunc(c.s.Config.Queues, func(q core.Queue) bool { return q.Name == g.Queue }) {
		refuse(core.ReasonFaults, fmt.Sprintf("queue %q is not configured", g.Queue), "name a queue that exists (muster queue status)")
	}
	members := 0
	for i := range g.Groups {
		members += g.Groups[i].Count
	}
	if members == 0 {
		refuse(core.ReasonFaults, "has no members", "give a group a count above zero")
	}
	if g.Min > members {
		refuse(core.ReasonFaults, fmt.Sprintf("needs at least %d members but has only %d", g.Min, members), "lower muster_min or raise the count")
	}
	levelKnown := g.Level == "" || g.Level == core.LevelNode || g.Level == core.LevelLink ||
		slices.ContainsFunc(c.s.Config.Levels, func(l core.Level) bool { return l.Name == g.Level })
	if !levelKnown {
		refuse(core.ReasonFaults, fmt.Sprintf("topology level %q is not configured", g.Level), "name a level that exists")
	}
	if len(v.Blockers) == 0 {
		c.tooLarge(g, refuse)
	}
	if len(v.Blockers) == 0 {
		return false
	}
	v.Action, v.Reason, v.Position = core.ActionRefuse, v.Blockers[0].Reason, 0
	texts := make([]string, len(v.Blockers))
	for i := range v.Blockers {
		texts[i] = v.Blockers[i].Text
	}
	v.Sentence = strings.Join(texts, "; ")
	return true
}

// tooLarge asks whether the cluster could hold the gang if it were empty and
// healthy.
func (c *cycle) tooLarge(g *core.Gang, refuse func(core.Reason, string, string)) {
	r := c.places.Request(g)
	if len(r.Options) == 0 {
		refuse(core.ReasonTooLarge, "no node has a device that its asks and models match", "")
		return
	}
	for _, o := range r.Options {
		mark := c.ideal.Mark()
		_, ok := c.places.Place(r, o)
		c.ideal.Rollback(mark)
		if ok {
			return
		}
	}
	o := r.Options[0]
	for _, m := range o.Cards {
		if all := c.ideal.FreeOf(m.Model); all < m.Cards {
			refuse(core.ReasonTooLarge, fmt.Sprintf("needs %s of %s, the whole cluster has %d", count(m.Cards, "card"), c.ideal.Models[m.Model], all), "ask for fewer members")
			return
		}
	}
	refuse(core.ReasonTooLarge, "the cluster could not hold it even if it were empty and healthy: not enough nodes have its shape within its topology", "ask for smaller members, fewer of them, or a wider topology level")
}
