package command

import (
	"slices"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
)

func eta() Command {
	var o specFlags
	return Command{
		Synopsis: "Tell when a gang is expected to start",
		Usage:    "eta [options] <job | file>",
		About: "Tells when a waiting gang is expected to start, and what that rests on. The job's name may be short.\n\n" +
			"The name of a job file (.hcl, .nomad or .json, or - for standard input) asks when a job would start that is not submitted yet. Nothing changes.",
		API: true, Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) { o = specFlags{}; o.declare(f) },
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			var y view.Why
			if o.isFile(args[0]) {
				y, err = o.unsubmitted(c, api, args[0])
			} else {
				var n name
				if n, err = c.short(api, "tell the start of gang", args[0]); err == nil {
					y, err = api.Why(c.Context, n.namespace, n.job)
				}
			}
			if err != nil {
				return err
			}
			out := struct {
				ID    string    `json:"id"`
				Stage string    `json:"stage"`
				Waits bool      `json:"waits"`
				ETA   *view.ETA `json:"eta,omitempty"` // absent: it does not wait
			}{ID: y.ID, Stage: y.Stage, Waits: y.Verdict.Position > 0 && y.Verdict.Action != core.ActionStart}
			if out.Waits {
				out.ETA = &y.Verdict.ETA
			}
			return c.print(out, func(w *screen) {
				switch {
				case out.Waits:
				case y.Stage == unsubmitted && y.Verdict.Action == core.ActionStart && y.Verdict.Reason == core.ReasonFits:
					w.line("%s would start now", y.ID)
					return
				case y.Stage == unsubmitted && y.Verdict.Action == core.ActionStart:
					w.line("%s: %s", y.ID, y.Verdict.Sentence)
					w.start(y.Verdict)
					return
				case y.Stage == unsubmitted:
					w.line("%s would not start as the cluster is: %s", y.ID, y.Verdict.Sentence)
					return
				case y.Stage == string(contract.StageRefused):
					w.line("%s does not start as the cluster is: %s", y.ID, y.Verdict.Sentence)
					return
				default:
					w.line("%s does not wait: it is %s", y.ID, y.Stage)
					return
				}
				w.start(y.Verdict)
			})
		},
	}
}

// withoutEnd are the gangs in somebody's way whose end is not known.
func withoutEnd(blockers []view.Blocker) []string {
	var out []string
	for _, b := range blockers {
		for _, h := range b.Holders {
			if h.Gang != "" && h.Until.IsZero() && !slices.Contains(out, h.Gang) {
				out = append(out, h.Gang)
			}
		}
	}
	return out
}

// start prints an expected start and its assumption.
func (w *screen) start(v view.Verdict) {
	e := v.ETA
	text := w.c.eta(&e)
	if endless := withoutEnd(v.Blockers); e.From.IsZero() && e.Assumption == "" && len(endless) > 0 {
		text += ": nobody knows when " + shorten(endless) + " will end; a muster_time_limit says so"
	}
	if e.Promised {
		text += " (promised)"
	}
	w.line("%s", text)
	if e.Assumption != "" {
		w.line("if %s", strings.TrimPrefix(e.Assumption, "if "))
	}
}
