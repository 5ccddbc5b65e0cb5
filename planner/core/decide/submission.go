package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// refused checks a gang as it was submitted, with every fault listed. Nothing
// is asked here that could change by others' leaving; it is asked again each
// cycle, since nodes and queues change.
func (c *cycle) refused(g *gang) bool {
	refuse := func(r core.Reason, text, remedy string) {
		g.kept = append(g.kept, core.Blocker{Reason: r, Text: text, Remedy: remedy})
	}
	for _, f := range g.Faults {
		refuse(core.ReasonFaults, f, "correct the job and submit it again")
	}
	switch {
	case g.queue < 0:
		refuse(core.ReasonFaults, fmt.Sprintf("queue %q is not configured", g.Queue), "name a queue that exists (muster queue status)")
	case !c.tree.Leaf(g.queue):
		refuse(core.ReasonFaults, fmt.Sprintf("queue %q holds queues, not gangs", g.Queue), "name one of the queues below it")
	}
	for _, text := range impossible(g.Gang) {
		refuse(core.ReasonFaults, text, "correct the job and submit it again")
	}
	if g.members == 0 {
		refuse(core.ReasonFaults, "has no members", "give a group a count above zero")
	}
	if g.Min > g.members {
		refuse(core.ReasonFaults, fmt.Sprintf("needs at least %d members but asks for only %d", g.Min, g.members), "lower muster_min or raise the count")
	}
	if g.Min > 0 && g.Min < g.members && len(g.Groups) > 1 {
		refuse(core.ReasonFaults, fmt.Sprintf("is elastic (muster_min = %d) but has %d groups", g.Min, len(g.Groups)), "give it one group, or take muster_min out")
	}
	if g.Level != "" && g.Level != core.LevelNode && g.Level != core.LevelLink && c.live.Level(g.Level) < 0 {
		refuse(core.ReasonFaults, fmt.Sprintf("topology level %q is not configured", g.Level), "name one of "+strings.Join(c.levels(), ", "))
	}
	if len(g.kept) == 0 {
		g.req = c.place.Request(g.Gang)
		c.overMax(g, refuse)
		if l, ok := c.userLimit(g.User); ok && l.MaxCards > 0 && total(c.firstNeed(g)) > l.MaxCards {
			refuse(core.ReasonTooLarge, fmt.Sprintf("needs %s, user %s may hold %d at most", cards(total(c.firstNeed(g))), g.User, l.MaxCards), "ask for fewer members, or raise the user's limit")
			g.kept[len(g.kept)-1].Missing = total(c.firstNeed(g)) - l.MaxCards
		}
		g.kept = append(g.kept, c.tooLarge(g).blockers...)
	}
	if len(g.kept) == 0 {
		return false
	}
	g.v.Action, g.v.Reason = core.ActionRefuse, g.kept[0].Reason
	texts := make([]string, len(g.kept))
	for i := range g.kept {
		texts[i] = g.kept[i].Text
	}
	g.v.Sentence = "refused: " + strings.Join(texts, "; ")
	return true
}

// bounds above which a number in a job cannot be meant, and below which no sum
// of them overflows.
const (
	mostMembers = 1 << 20
	mostDevices = 1 << 16 // of one member
	mostUnits   = 1 << 40 // MHz, MB
)

// impossible lists what no job can mean: a snapshot that says so was not made
// of a job that Nomad accepted.
func impossible(g *core.Gang) []string {
	var out []string
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if g.Min < 0 {
		fault("needs at least %d members", g.Min)
	}
	if g.TimeLimit < 0 || g.Grace < 0 {
		fault("has a time limit of %s and a grace of %s", g.TimeLimit, g.Grace)
	}
	members := 0
	for i := range g.Groups {
		group := &g.Groups[i]
		if group.Count < 0 || group.Count > mostMembers {
			fault("group %q: asks for %d members", group.Name, group.Count)
		}
		members += max(0, min(group.Count, mostMembers))
		u := group.Use
		for _, n := range []int64{u.CPU, int64(u.Cores), u.MemoryMB, u.DiskMB, int64(group.Ports)} {
			if n < 0 || n > mostUnits {
				fault("group %q: asks for %d of a resource", group.Name, n)
			}
		}
		for j := range group.Devices {
			if d := &group.Devices[j]; d.Count < 0 || d.Count > mostDevices || d.Shares < 0 || d.Shares > mostDevices {
				fault("group %q: asks for %d devices of type %q and %d shares", group.Name, d.Count, d.Type, d.Shares)
			}
		}
	}
	if members > mostMembers && len(out) == 0 {
		fault("asks for %d members", members)
	}
	return out
}

func (c *cycle) levels() []string {
	out := make([]string, 0, len(c.live.Levels)+2)
	for i := range c.live.Levels {
		out = append(out, c.live.Levels[i].Name)
	}
	return append(out, core.LevelNode, core.LevelLink)
}

// overMax refuses a gang whose least size is above the max of its queue or of
// one above it, on every model that it accepts.
func (c *cycle) overMax(g *gang, refuse func(core.Reason, string, string)) {
	var first string
	over := 0
	for _, o := range g.req.Options {
		need := c.need(g, o, g.least())
		limit := c.tree.Never(g.queue, need)
		if limit == nil {
			return
		}
		if first == "" {
			over = limit.Over
			first = fmt.Sprintf("needs %s%s, queue %s may hold %d at most", cards(limit.Bound+limit.Over), c.ofModel(limit.Model), c.tree.Queues[limit.Queue].Conf.Name, limit.Bound)
		}
	}
	if first != "" {
		refuse(core.ReasonTooLarge, first, "ask for fewer members, or raise the queue's max")
		g.kept[len(g.kept)-1].Missing = over
	}
}

// ofModel is " of MODEL", or nothing where a sum is meant.
func (c *cycle) ofModel(m int32) string {
	if m < 0 {
		return ""
	}
	return " of " + string(c.live.Models[m])
}

// tooLarge is why the empty and healthy cluster could not hold a request; no
// blockers: it could.
type tooLarge struct {
	blockers []core.Blocker
	// prefers is the level within one domain of which it would fit: its
	// preferred one or, where it is too large for that, the next that is not.
	prefers int
}

// spread stands for a level where a gang has to be spread in any case.
const spread = -2

// prefers is the level that a gang prefers which is placed thus in the empty
// cluster: see tooLarge.
func prefers(r *placement.Request, res *placement.Result) int {
	if inside(res, r.Level) {
		return r.Level
	}
	for l := r.Level - 1; l >= 0; l-- {
		if inside(res, l) {
			return l
		}
	}
	return spread
}

// tooLarge asks whether the cluster could hold the gang if it were empty and
// healthy. The answer is kept as long as no node changes.
func (c *cycle) tooLarge(g *gang) *tooLarge {
	if c.idealSeen != c.ideal.Changed() {
		clear(c.large)
		c.idealSeen = c.ideal.Changed()
	}
	t, ok := c.large[g.req]
	if !ok {
		t = c.findTooLarge(g, c.places.Request(g.Gang))
		c.large[g.req] = t
	}
	return t
}

func (c *cycle) findTooLarge(g *gang, r *placement.Request) *tooLarge {
	t := &tooLarge{}
	if len(r.Options) == 0 {
		t.blockers = []core.Blocker{{Reason: core.ReasonTooLarge, Text: "no card of the cluster matches its device asks and models", Remedy: "compare its asks with muster cards"}}
		return t
	}
	for _, o := range r.Options {
		mark := c.ideal.Mark()
		res, ok := c.places.Place(r, o, placement.Options{Members: g.fewest()})
		c.ideal.Rollback(mark)
		if ok {
			t.prefers = prefers(r, res)
			return t
		}
	}
	for _, o := range r.Options {
		for _, m := range c.need(g, o, g.least()) {
			if all := c.ideal.FreeOf(m.Model); all < m.Cards {
				t.blockers = append(t.blockers, core.Blocker{Reason: core.ReasonTooLarge, Model: c.ideal.Models[m.Model], Missing: m.Cards - all,
					Text: fmt.Sprintf("needs %s of %s, the whole cluster has %d", cards(m.Cards), c.ideal.Models[m.Model], all), Remedy: "ask for fewer members"})
			}
		}
	}
	if len(t.blockers) > 0 {
		return t
	}
	o := r.Options[0]
	for i := range g.Groups {
		group := &g.Groups[i]
		nodes := c.places.Nodes(o, i)
		most := c.places.MostOn(o, i)
		switch {
		case nodes == 0:
			t.blockers = append(t.blockers, core.Blocker{Reason: core.ReasonConstraint, Model: o.Model,
				Text: fmt.Sprintf("group %q: no node satisfies its constraints (%s)", group.Name, c.places.Why(o, i)), Remedy: "relax the constraint, or the device ask, that rules out the most nodes"})
		case most == 0:
			t.blockers = append(t.blockers, core.Blocker{Reason: core.ReasonTooLarge, Model: o.Model,
				Text: fmt.Sprintf("group %q: no node is large enough for one member even when empty (%s)", group.Name, wants(group)), Remedy: "ask for less a member"})
		}
	}
	if len(t.blockers) > 0 {
		return t
	}
	text := "even the empty and healthy cluster has not enough nodes of the shape that its members need"
	remedy := "ask for smaller or fewer members"
	if r.Required && r.Level >= 0 {
		name := core.LevelNode
		if r.Level < len(c.ideal.Levels) {
			name = c.ideal.Levels[r.Level].Name
		}
		mark := c.ideal.Mark()
		most := c.places.Most(r, o, placement.Options{})
		c.ideal.Rollback(mark)
		text = fmt.Sprintf("requires %d members within one %s, no %s could hold more than %d even if it were empty and healthy", g.least(), name, name, most)
		remedy = "require a wider level, or prefer this one"
	}
	t.blockers = append(t.blockers, core.Blocker{Reason: core.ReasonTooLarge, Model: o.Model, Text: text, Remedy: remedy})
	return t
}

// fewest is the number of members of the first group to ask for, 0 for all.
func (g *gang) fewest() int {
	if g.elastic() {
		return g.Min
	}
	return 0
}

// wants is what a member asks for, for people.
func wants(g *core.Group) string {
	var out []string
	for i := range g.Devices {
		d := &g.Devices[i]
		name := d.Type
		if d.Name != "" {
			name = d.Name
		}
		if d.Shares > 0 {
			out = append(out, fmt.Sprintf("%d shares of a %s", d.Shares, name))
		} else {
			out = append(out, fmt.Sprintf("%d x %s", d.Count, name))
		}
	}
	for _, r := range []struct {
		n    int64
		text string
	}{{g.Use.CPU, "MHz CPU"}, {int64(g.Use.Cores), "cores"}, {g.Use.MemoryMB, "MB memory"}, {g.Use.DiskMB, "MB disk"}} {
		if r.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", r.n, r.text))
		}
	}
	return strings.Join(out, ", ")
}

// capGangs blocks gangs beyond their queue's max_gangs: those that run count
// first, then those that wait, the first submitted first.
func (c *cycle) capGangs() {
	var running []int
	for q := range c.waiting {
		most := c.tree.Queues[q].Conf.MaxGangs
		if most == 0 || len(c.waiting[q]) == 0 {
			continue
		}
		if running == nil {
			running = make([]int, len(c.waiting))
			for i := range c.gangs {
				if g := &c.gangs[i]; g.queue >= 0 && len(g.holds) > 0 {
					running[g.queue]++
				}
			}
		}
		bySubmit := slices.Clone(c.waiting[q])
		slices.SortFunc(bySubmit, func(a, b int32) int {
			x, y := &c.gangs[a], &c.gangs[b]
			if k := x.Submitted.Compare(y.Submitted); k != 0 {
				return k
			}
			return int(x.Sequence - y.Sequence)
		})
		for i, at := range bySubmit {
			if running[q]+i >= most {
				c.gangs[at].block(core.Blocker{Reason: core.ReasonMaxGangs, Missing: running[q] + i + 1 - most,
					Text: fmt.Sprintf("queue %s takes %d gangs, running and waiting; %d came before", c.tree.Queues[q].Conf.Name, most, running[q]+i), Remedy: "wait for one of them to end, or raise max_gangs"})
			}
		}
	}
}
