package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

func queueList() Command {
	var f client.Filter
	return Command{
		Synopsis: "List gangs: what runs, what waits, and why",
		Usage:    "queue [options]",
		About:    "Lists the gangs of all namespaces by queue: what runs, what waits with its position, expected start and reason, and what is refused.",
		API:      true, Data: true,
		Flags: func(flags *Flags) {
			flags.StringVar(&f.Queue, "queue", "", "Only of this `queue`.")
			flags.StringVar(&f.Stage, "stage", "", "Only in this `stage`; one in which a gang is over stands for -all.")
			flags.StringVar(&f.Prefix, "prefix", "", "Only whose job's id starts with this `text`.")
			flags.BoolVar(&f.Ended, "all", false, "Also those that are over.")
		},
		Run: func(c *Call, _ []string) error {
			if stages := append(slices.Clone(contract.Stages), contract.StageRefused, contract.StageComplete, contract.StageFailed, contract.StageCancelled); f.Stage != "" && !slices.Contains(stages, contract.Stage(f.Stage)) {
				return fmt.Errorf("-stage=%s is none of %s", f.Stage, joined(stages))
			}
			f.Ended = f.Ended || contract.Stage(f.Stage).Ended()
			api, err := c.client()
			if err != nil {
				return err
			}
			// A list leaves nothing out that its user did not ask to leave out.
			f.Namespace = c.namespace
			if f.Namespace == "" {
				f.Namespace = c.Getenv("NOMAD_NAMESPACE")
			}
			list, err := api.Gangs(c.Context, f)
			if err != nil {
				return err
			}
			if len(list.Gangs) == 0 && f.Queue != "" {
				if _, err := api.Queue(c.Context, f.Queue); err != nil {
					return err // there is no such queue
				}
			}
			return c.print(list, func(w *screen) { w.gangs(list.Gangs) })
		},
	}
}

func joined(stages []contract.Stage) string {
	names := make([]string, len(stages))
	for i, s := range stages {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// gangs prints gangs as a table.
func (w *screen) gangs(gangs []view.Gang) {
	if len(gangs) == 0 {
		w.line("No gangs")
		return
	}
	var rows [][]cell
	for _, g := range gangs {
		position := ""
		if g.Position > 0 {
			position = fmt.Sprint(g.Position)
		}
		since := g.Submitted
		switch {
		case g.Stage.Ended():
			since = g.Ended
		case !g.Started.IsZero():
			since = g.Started
		case !g.Queued.IsZero():
			since = g.Queued
		}
		starts := ""
		if g.ETA != nil && !g.ETA.From.IsZero() {
			starts = w.c.clock(g.ETA.From)
		}
		row := plain(g.Queue, position, g.Namespace, g.Job, "", fmt.Sprint(g.Priority), members(g), fmt.Sprint(g.Cards), w.c.ago(since), starts, g.Sentence)
		row[4] = cell{string(g.Stage), stageColour(g.Stage)}
		rows = append(rows, row)
	}
	w.table([]string{"Queue", ">Pos", "Namespace", "Job", "Stage", ">Prio", ">Members", ">Cards", ">Since", "Starts", "Why"}, rows)
}

// members are those that run of those asked for.
func members(g view.Gang) string {
	if g.Stage.Ended() || g.Running == 0 && g.Placed == 0 {
		return fmt.Sprint(g.Members)
	}
	return fmt.Sprintf("%d/%d", max(g.Running, g.Placed), g.Members)
}

func stageColour(s contract.Stage) string {
	switch s {
	case contract.StageStarted, contract.StageTraining, contract.StageComplete:
		return green
	case contract.StageFailed, contract.StageRefused:
		return red
	case contract.StageCancelled:
		return dim
	case contract.StagePlanned, contract.StagePlaced, contract.StageFetched:
		return yellow
	}
	return ""
}

func queueStatus() Command {
	return Command{
		Synopsis: "Show the queues, or one with its quotas and gangs",
		Usage:    "queue status [options] [queue]",
		About:    "Without a queue: all of them, as a tree, with what they hold. With one: its settings, its quotas by model with bars, and its gangs.",
		API:      true, Data: true, Most: 1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				list, err := api.Queues(c.Context)
				if err != nil {
					return err
				}
				return c.print(list, func(w *screen) { w.queues(list.Queues) })
			}
			d, err := api.Queue(c.Context, args[0])
			if err != nil {
				return err
			}
			return c.print(d, func(w *screen) { w.queue(d) })
		},
	}
}

// queues prints the tree, each queue once for each model that it has to do
// with.
func (w *screen) queues(queues []view.Queue) {
	children := map[string][]view.Queue{}
	for _, q := range queues {
		children[q.Parent] = append(children[q.Parent], q)
	}
	var rows [][]cell
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		for _, q := range children[parent] {
			for i, k := range quotas(q) {
				row := plain(strings.Repeat("  ", depth)+q.Name, fmt.Sprint(q.Running), fmt.Sprint(q.Waiting), k.Model, fmt.Sprint(k.Used), fmt.Sprint(k.Guaranteed),
					fmt.Sprint(k.Borrowed), fmt.Sprint(k.Lent), limit(k.Max), fmt.Sprint(k.Waiting), share(k))
				if i > 0 {
					row[0], row[1], row[2] = cell{text: " "}, cell{text: " "}, cell{text: " "}
				}
				rows = append(rows, row)
			}
			walk(q.Name, depth+1)
		}
	}
	walk("", 0)
	w.table([]string{"Queue", ">Running", ">Waiting", "Model", ">Used", ">Guaranteed", ">Borrowed", ">Lent", ">Max", ">Wanted", "Used of max"}, rows)
}

// quotas are the models that a queue has to do with, at least one line.
func quotas(q view.Queue) []view.Quota {
	var out []view.Quota
	for _, k := range q.Quota {
		if k.Model == view.AnyModel && k.Max < 0 && k.Guaranteed == 0 && len(q.Quota) > 1 && len(q.Quota) <= 2 {
			continue // says the same as the one model there is
		}
		if k.Used > 0 || k.Guaranteed > 0 || k.Waiting > 0 || k.Lent > 0 || k.Max >= 0 || k.Model == view.AnyModel {
			out = append(out, k)
		}
	}
	if len(out) == 0 {
		out = []view.Quota{{Model: view.AnyModel, Max: -1}}
	}
	return out
}

func limit(n int) string {
	if n < 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// share draws what is used of the most that a queue may have, or of its
// guarantee where it has no most.
func share(k view.Quota) string {
	switch {
	case k.Max > 0:
		return bar(k.Used, k.Max, 20)
	case k.Guaranteed > 0:
		return bar(k.Used, k.Guaranteed, 20) + " of guaranteed"
	}
	return ""
}

func (w *screen) queue(d view.QueueDetail) {
	q := d.Queue
	users := strings.Join(q.Users, ", ")
	if users == "" {
		users = "everybody"
	}
	spaces := strings.Join(q.Namespaces, ", ")
	switch {
	case spaces == "":
		spaces = "all"
	case q.Shared:
		spaces += " (shared: others may name it)"
	}
	gangs := fmt.Sprintf("%d running, %d waiting, %d refused", q.Running, q.Waiting, q.Refused)
	if q.MaxGangs >= 0 {
		gangs += fmt.Sprintf(", at most %d", q.MaxGangs)
	}
	budget := ""
	if b := q.Budget; b != nil {
		budget = fmt.Sprintf("%d of %d card hours this %s %s", b.UsedCardSeconds/3600, b.CardSeconds/3600, b.Period, bar(int(b.UsedCardSeconds), int(b.CardSeconds), 20))
	}
	urgent := ""
	if q.Urgent {
		urgent = "yes"
	}
	w.pairs("Queue", q.Name, "Parent", q.Parent, "Class", fmt.Sprint(q.Class), "Weight", fmt.Sprint(q.Weight), "Order", q.Order, "Urgent", urgent,
		"Namespaces", spaces, "Users", users, "Gangs", gangs, "Budget", budget)
	var rows [][]cell
	for _, k := range quotas(q) {
		rows = append(rows, plain(k.Model, fmt.Sprint(k.Used), fmt.Sprint(k.Guaranteed), fmt.Sprint(k.Borrowed), fmt.Sprint(k.Lent), limit(k.Lend), limit(k.Max), fmt.Sprint(k.Waiting), share(k)))
	}
	w.title("Cards")
	w.table([]string{"Model", ">Used", ">Guaranteed", ">Borrowed", ">Lent", ">Lends", ">Max", ">Wanted", "Used of max"}, rows)
	if q.Leaf {
		w.title("Gangs")
		w.gangs(d.Gangs)
	}
}
