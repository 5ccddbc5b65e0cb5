package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

func (s *script) why(a args) string {
	var b strings.Builder
	for i := range s.plan.Verdicts {
		v := &s.plan.Verdicts[i]
		if string(v.Gang) != a.first() {
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", v.Action, v.Sentence)
		for _, k := range v.Blockers {
			fmt.Fprintf(&b, "  %s, missing %d: %s\n", k.Reason, k.Missing, k.Text)
			for _, h := range k.Holders {
				fmt.Fprintf(&b, "    held by %s: %d cards", h.Job, h.Cards)
				if !h.Until.IsZero() {
					fmt.Fprintf(&b, " until %s", s.at(h.Until))
				}
				b.WriteString("\n")
			}
			if k.Remedy != "" {
				fmt.Fprintf(&b, "    remedy: %s\n", k.Remedy)
			}
		}
		if !v.ETA.From.IsZero() {
			fmt.Fprintf(&b, "  expected %s to %s (%s)\n", s.at(v.ETA.From), s.at(v.ETA.To), v.ETA.Assumption)
		}
	}
	return b.String()
}

// eta prints what a gang is told of its start.
func (s *script) eta(a args) string {
	for i := range s.plan.Verdicts {
		v := &s.plan.Verdicts[i]
		if string(v.Gang) != a.first() {
			continue
		}
		if v.ETA.From.IsZero() {
			return "not known\n"
		}
		text := "from " + s.at(v.ETA.From)
		if !v.ETA.To.IsZero() {
			text += " to " + s.at(v.ETA.To)
		}
		if v.ETA.Promised {
			text += ", promised"
		}
		return text + ", if " + v.ETA.Assumption + "\n"
	}
	return ""
}

// ranks prints where the members of a gang are.
func (s *script) ranks(a args) string {
	var out []string
	for _, p := range s.world.Gang(core.GangID(a.first())).Placement {
		out = append(out, fmt.Sprintf("%d:%s", p.Member, p.Node))
	}
	return strings.Join(out, " ") + "\n"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// at is an instant as time since noon, when every scenario begins.
func (s *script) at(t time.Time) string { return "+" + short2(t.Sub(noon)) }

func short2(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// render prints a plan as an operator reads it.
func (s *script) render(p *core.Plan) string {
	var b strings.Builder
	for i := range p.Evictions {
		e := &p.Evictions[i]
		fmt.Fprintf(&b, "evict %s (%s)", e.Gang, e.Kind)
		if e.For != "" {
			fmt.Fprintf(&b, " for %s", e.For)
		}
		if e.Immediate {
			b.WriteString(" at once")
		} else {
			fmt.Fprintf(&b, " within %s", short2(e.Grace))
		}
		if g := s.world.Gang(e.Gang); e.To != g.Queue {
			fmt.Fprintf(&b, " to queue %s", e.To)
		}
		b.WriteString("\n")
	}
	for i := range p.Resizes {
		r := &p.Resizes[i]
		if len(r.Remove) > 0 {
			fmt.Fprintf(&b, "shrink %s by %d for %s\n", r.Gang, len(r.Remove), r.For)
		}
		if len(r.Add) > 0 {
			fmt.Fprintf(&b, "grow %s by %d on %s\n", r.Gang, len(r.Add), places(r.Add))
		}
	}
	for i := range p.Starts {
		st := &p.Starts[i]
		fmt.Fprintf(&b, "start %s on %s", st.Gang, places(st.Members))
		if st.Model != short && st.Model != "" {
			fmt.Fprintf(&b, " with %s", st.Model)
		}
		if st.Borrowed > 0 && len(s.cfg.Queues) > 1 {
			fmt.Fprintf(&b, ", borrows %d", st.Borrowed)
		}
		for _, w := range []struct {
			is   bool
			text string
		}{{st.Backfill, "backfill"}, {st.OnPromise, "on promised cards"}, {st.Repair, "repair"}} {
			if w.is {
				b.WriteString(", " + w.text)
			}
		}
		if len(st.After) > 0 {
			ids := make([]string, len(st.After))
			for i := range ids {
				ids[i] = string(st.After[i])
			}
			fmt.Fprintf(&b, ", after %s", strings.Join(ids, " "))
			if st.Waits {
				b.WriteString(" left")
			}
		}
		b.WriteString("\n")
	}
	for i := range p.Reservations {
		r := &p.Reservations[i]
		if r.Gathering {
			fmt.Fprintf(&b, "gather for %s on %s", r.Gang, places(r.Members))
		} else {
			fmt.Fprintf(&b, "promise %s at %s on %s", r.Gang, s.at(r.At), places(r.Members))
		}
		if r.Cause != "" {
			fmt.Fprintf(&b, " (later: %s)", r.Cause)
		}
		b.WriteString("\n")
	}
	for _, f := range p.Fails {
		fmt.Fprintf(&b, "fail %s: %s\n", f.Gang, f.Reason)
	}
	for _, id := range p.Splits {
		fmt.Fprintf(&b, "split %s\n", id)
	}
	for i := range p.Verdicts {
		v := &p.Verdicts[i]
		switch v.Action {
		case core.ActionWait, core.ActionRefuse, core.ActionHold:
			fmt.Fprintf(&b, "%s %s: ", v.Action, v.Gang)
			for j, k := range v.Blockers {
				if j > 0 {
					b.WriteString(", ")
				}
				fmt.Fprintf(&b, "%s", k.Reason)
				if k.Missing > 0 {
					fmt.Fprintf(&b, " %d", k.Missing)
				}
			}
			if len(v.Blockers) == 0 {
				b.WriteString(string(v.Reason))
			}
			b.WriteString("\n")
		}
	}
	for _, n := range p.Notices {
		fmt.Fprintf(&b, "notice: %s %s\n", n.Object, n.Text)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

// places lists nodes with the cards taken on each, runs of members on whole
// nodes as their nodes.
func places(members []core.Placement) string {
	var nodes []string
	taken := map[string][]string{}
	for i := range members {
		n := string(members[i].Node)
		if _, ok := taken[n]; !ok {
			nodes = append(nodes, n)
			taken[n] = nil
		}
		for _, ids := range members[i].Cards {
			for _, id := range ids {
				taken[n] = append(taken[n], strings.TrimPrefix(string(id), n+"-"))
			}
		}
	}
	if len(nodes) > 6 {
		return fmt.Sprintf("%s..%s (%d nodes)", nodes[0], nodes[len(nodes)-1], len(nodes))
	}
	for i, n := range nodes {
		slices.Sort(taken[n])
		if c := taken[n]; len(c) > 0 && len(c) < 8 {
			nodes[i] += "[" + strings.Join(c, " ") + "]"
		}
	}
	return strings.Join(nodes, " ")
}
