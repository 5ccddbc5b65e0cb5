package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/view"
)

func status() Command {
	return Command{
		Synopsis: "Show a gang with stages, members and attempts, or the planner",
		Usage:    "status [options] [job]",
		About: "With a job, whose name may be short: its gang's stages with their times, members, cards, attempts, events and verdict. Without one: the planner's own state, contacts, cards and problems; " +
			"the exit code is then 6 if it has no contact with Nomad.",
		API: true, Data: true, Most: 1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				s, err := api.Status(c.Context)
				if err != nil {
					return err
				}
				if err := c.print(s, func(w *screen) { w.status(s) }); err != nil {
					return err
				}
				if !s.Nomad.OK && s.Nomad.Error != "" {
					return &Exit{Code: ExitNoContact, Err: fmt.Errorf("the planner has no contact with Nomad at %s: %s", s.Nomad.Address, s.Nomad.Error)}
				}
				return nil
			}
			n, err := c.short(api, "show gang", args[0])
			if err != nil {
				return err
			}
			g, err := api.Gang(c.Context, n.namespace, n.job, 0, 0)
			if err != nil {
				return err
			}
			return c.print(g, func(w *screen) { w.gang(g) })
		},
	}
}

// gang prints all of a gang.
func (w *screen) gang(g view.Gang) {
	c := w.c
	priority := fmt.Sprint(g.Priority)
	if g.Detail != nil && g.Detail.Verdict.Effective != 0 && g.Detail.Verdict.Effective != g.Priority {
		priority += fmt.Sprintf(" (now %d)", g.Detail.Verdict.Effective)
	}
	size := count(g.Members, "member")
	if g.Min > 0 {
		size += fmt.Sprintf(", at least %d", g.Min)
	}
	if g.Placed > 0 && !g.Stage.Ended() {
		size += fmt.Sprintf(", %d placed, %d running", g.Placed, g.Running)
	}
	position := ""
	if g.Position > 0 {
		position = fmt.Sprint(g.Position)
	}
	exit := ""
	if g.Exit != nil {
		exit = string(g.Exit.Outcome) + ": " + g.Exit.Text
	}
	attempt := ""
	if g.Attempt > 0 {
		attempt = fmt.Sprint(g.Attempt)
	}
	facts := []string{"Job", g.Job, "Namespace", g.Namespace, "Type", g.Type, "Queue", g.Queue, "User", g.User, "Stage", c.paint(c.Terminal, stageColour(g.Stage), string(g.Stage)),
		"Why", g.Sentence, "Priority", priority, "Size", size, "Cards", strings.TrimSpace(fmt.Sprintf("%d %s", g.Cards, strings.Join(g.Models, ", "))),
		"Position", position, "Attempt", attempt, "Submitted", c.when(g.Submitted), "Started", c.when(g.Started), "Limit ends", c.when(g.LimitEnds),
		"Ended", c.when(g.Ended), "Result", exit}
	if g.Position > 0 {
		facts = append(facts, "Starts", c.eta(g.ETA))
	}
	d := g.Detail
	if d == nil {
		w.pairs(facts...)
		return
	}
	w.pairs(append(facts, c.want(d.Want)...)...)
	if len(d.Stages) > 0 {
		w.title("Stages")
		var rows [][]cell
		for _, s := range d.Stages {
			took := seconds(s.Seconds)
			if s.Left.IsZero() && !g.Stage.Ended() {
				took += " so far"
			}
			row := plain("", c.clock(s.Entered), took, s.Text)
			row[0] = cell{string(s.Stage), stageColour(s.Stage)}
			rows = append(rows, row)
		}
		w.table([]string{"Stage", "Entered", ">Took", "Text"}, rows)
	}
	if len(d.Members) > 0 {
		w.title("Members")
		w.members(d.Members)
	}
	if len(d.Attempts) > 1 || len(d.Attempts) == 1 && d.Attempts[0].Exit != nil {
		w.title("Attempts")
		var rows [][]cell
		for _, a := range d.Attempts {
			result, text := "running", ""
			if a.Exit != nil {
				result, text = string(a.Exit.Outcome), a.Exit.Text
			}
			rows = append(rows, plain(fmt.Sprint(a.Number), c.when(a.Placed), c.when(a.Released), c.when(a.Ended), fmt.Sprint(len(a.Nodes)), result, text))
		}
		w.table([]string{">Attempt", "Placed", "Released", "Ended", ">Members", "Result", "Text"}, rows)
	}
	if !g.Stage.Ended() && len(d.Verdict.Blockers) > 0 {
		w.blockers(d.Verdict)
	}
	if len(d.Events) > 0 {
		w.title("Recent events")
		var rows [][]cell
		for _, e := range d.Events[max(0, len(d.Events)-10):] {
			by := ""
			if e.By != "" {
				by = " (by " + e.By + ")"
			}
			rows = append(rows, plain(c.clock(e.At), string(e.Kind), e.Text+by))
		}
		w.table([]string{"Time", "Kind", "Event"}, rows)
	}
}

// want is what the user stated, as pairs.
func (c *Call) want(k view.Want) []string {
	some := func(s float64) string {
		if s == 0 {
			return ""
		}
		return seconds(s)
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return ""
	}
	preemptible := ""
	if !k.Preemptible {
		preemptible = "no"
	}
	retries, bandwidth, checkpoint := "", "", ""
	if k.Retries > 0 {
		retries = fmt.Sprint(k.Retries)
	}
	if k.MinBandwidthGbit > 0 {
		bandwidth = fmt.Sprintf("%g Gbit/s", k.MinBandwidthGbit)
	}
	if !k.CheckpointAt.IsZero() {
		checkpoint = fmt.Sprintf("%s (step %d)", c.when(k.CheckpointAt), k.CheckpointStep)
	}
	return []string{"Topology", k.Topology, "Time limit", some(k.TimeLimitSeconds), "Deadline", c.when(k.Deadline), "Preemptible", preemptible, "Grace", some(k.GraceSeconds),
		"Retries", retries, "Splittable", yes(k.Split), "Spread", yes(k.Spread), "Bandwidth", bandwidth, "Checkpoint", checkpoint}
}

func (w *screen) members(members []view.Member) {
	var rows [][]cell
	for _, m := range members {
		state, colour := m.State, ""
		text := ""
		switch {
		case m.Exit != nil:
			state, text = string(m.Exit.Outcome), m.Exit.Text
			if m.Exit.Code != 0 {
				colour = red
			}
		case len(m.Problems) > 0:
			texts := make([]string, len(m.Problems))
			for i, p := range m.Problems {
				texts[i] = p.Text
			}
			text, colour = strings.Join(texts, "; "), yellow
		case m.Step > 0:
			text = fmt.Sprintf("step %d", m.Step)
		}
		alloc := m.Alloc
		if len(alloc) > 8 {
			alloc = alloc[:8]
		}
		row := plain(fmt.Sprint(m.Index), m.Group, m.Node, alloc, fmt.Sprint(m.Ranks), fmt.Sprint(len(m.Cards)), "", text)
		row[6] = cell{state, colour}
		rows = append(rows, row)
	}
	w.table([]string{">Member", "Group", "Node", "Alloc", ">Ranks", ">Cards", "State", "Text"}, rows)
}

// status prints the planner's own.
func (w *screen) status(s view.Status) {
	c := w.c
	state, colour := s.State, green
	if s.State != "active" {
		colour = yellow
	}
	cycle := "none yet"
	if s.Cycles > 0 {
		cycle = fmt.Sprintf("%s ago, took %.1f ms (%d so far)", c.ago(s.LastCycle), s.CycleSeconds*1000, s.Cycles)
	}
	stages := slices.Sorted(maps.Keys(s.Gangs))
	gangs := make([]string, len(stages))
	for i, stage := range stages {
		gangs[i] = fmt.Sprintf("%d %s", s.Gangs[stage], stage)
	}
	w.pairs("Planner", c.paint(c.Terminal, colour, state), "Why", s.Why, "Version", s.Version, "Up", c.ago(s.Started), "Region", s.Region,
		"Nomad", c.contact(s.Nomad), "Consul", c.contact(s.Consul), "Nodes", fmt.Sprint(s.Nodes), "Gangs", strings.Join(gangs, ", "),
		"Last cycle", cycle)
	if len(s.Cards) > 0 {
		w.title("Cards")
		var rows [][]cell
		for _, k := range s.Cards {
			rows = append(rows, plain(k.Model, fmt.Sprint(k.Total), fmt.Sprint(k.Free), fmt.Sprint(k.Used), fmt.Sprint(k.Other), fmt.Sprint(k.Out), bar(k.Total-k.Free, k.Total, 20)))
		}
		w.table([]string{"Model", ">Total", ">Free", ">Gangs", ">Other jobs", ">Out of use", "Taken"}, rows)
	}
	if len(s.Problems) > 0 {
		w.title("Problems")
		var rows [][]cell
		for _, p := range s.Problems {
			text := p.Text
			if p.Hint != "" {
				text += "; " + p.Hint
			}
			rows = append(rows, plain(p.Object, c.ago(p.Since), text))
		}
		w.table([]string{"Object", ">Since", "Problem"}, rows)
	}
}

func (c *Call) contact(k view.Contact) string {
	text := strings.TrimSpace(k.Address + " " + k.Version)
	switch {
	case k.OK:
		return text
	case k.Address == "" && k.Error == "":
		return "not used"
	case k.Address == "":
		return k.Error
	}
	return text + " " + c.paint(c.Terminal, red, "no contact") + ": " + k.Error
}
