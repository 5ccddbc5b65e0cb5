package command

import (
	"fmt"

	"github.com/nomad-muster/muster/planner/view"
)

func why() Command {
	return Command{
		Synopsis: "Explain why a gang waits, or where it is",
		Usage:    "why [options] <job>",
		About:    "Tells everything that is in a gang's way, what matters most first: what is missing, who holds it and until when, and what would help. The job's name may be short.",
		API:      true, Data: true, Least: 1, Most: 1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			n, err := c.short(api, "explain gang", args[0])
			if err != nil {
				return err
			}
			y, err := api.Why(c.Context, n.namespace, n.job)
			if err != nil {
				return err
			}
			return c.print(y, func(w *screen) { w.why(y) })
		},
	}
}

func (w *screen) why(y view.Why) {
	v := y.Verdict
	head := fmt.Sprintf("%s is %s", y.ID, y.Stage)
	if v.Position > 0 {
		head += fmt.Sprintf(" at position %d of queue %s", v.Position, y.Queue)
	}
	w.line("%s", w.c.paint(w.c.Terminal, bold, head+"."))
	if v.Sentence != "" {
		w.line("%s", v.Sentence)
	}
	w.blockers(v)
	if v.Position > 0 {
		w.title("Expected start")
		w.start(v.ETA)
	}
}

// blockers prints all that is in a gang's way.
func (w *screen) blockers(v view.Verdict) {
	if len(v.Blockers) == 0 {
		return
	}
	w.title("In its way")
	for i, b := range v.Blockers {
		w.line("%d. %s: %s", i+1, w.c.paint(w.c.Terminal, yellow, string(b.Reason)), b.Text)
		const most = 10
		for j, h := range b.Holders {
			if j == most {
				w.line("     and %d more (-json lists all)", len(b.Holders)-most)
				break
			}
			who := h.Gang
			if who == "" {
				who = h.Job + " (no gang)"
			}
			until := "end not known"
			if !h.Until.IsZero() {
				until = "until " + w.c.clock(h.Until)
			}
			w.line("     %s holds %s, %s", who, count(h.Cards, "card"), until)
		}
		if b.Remedy != "" {
			w.line("     %s %s", w.c.paint(w.c.Terminal, green, "helps:"), b.Remedy)
		}
	}
}
