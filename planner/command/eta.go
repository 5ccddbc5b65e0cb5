package command

import (
	"strings"

	"github.com/nomad-muster/muster/planner/view"
)

func eta() Command {
	return Command{
		Synopsis: "Tell when a gang is expected to start",
		Usage:    "eta [options] <job>",
		About:    "Tells when a waiting gang is expected to start, and what that rests on. The job's name may be short. For a job that is not submitted yet: muster job plan.",
		API:      true, Data: true, Least: 1, Most: 1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			n, err := c.short(api, "tell the start of gang", args[0])
			if err != nil {
				return err
			}
			y, err := api.Why(c.Context, n.namespace, n.job)
			if err != nil {
				return err
			}
			out := struct {
				ID    string    `json:"id"`
				Stage string    `json:"stage"`
				Waits bool      `json:"waits"`
				ETA   *view.ETA `json:"eta,omitempty"` // absent: it does not wait
			}{ID: y.ID, Stage: y.Stage, Waits: y.Verdict.Position > 0}
			if out.Waits {
				out.ETA = &y.Verdict.ETA
			}
			return c.print(out, func(w *screen) {
				if !out.Waits {
					w.line("%s does not wait: it is %s", y.ID, y.Stage)
					return
				}
				w.start(y.Verdict.ETA)
			})
		},
	}
}

// start prints an expected start and its assumption.
func (w *screen) start(e view.ETA) {
	text := w.c.eta(&e)
	if e.Promised {
		text += " (promised)"
	}
	w.line("%s", text)
	if e.Assumption != "" {
		w.line("if %s", strings.TrimPrefix(e.Assumption, "if "))
	}
}
