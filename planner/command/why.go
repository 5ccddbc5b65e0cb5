package command

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

func why() Command {
	var o specFlags
	return Command{
		Synopsis: "Explain why a gang waits, or where it is",
		Usage:    "why [options] <job | file>",
		About: "Tells everything that is in a gang's way, what matters most first: what is missing, who holds it and until when, and what would help. The job's name may be short.\n\n" +
			"The name of a job file (.hcl, .nomad or .json, or - for standard input) asks what would be in the way of a job that is not submitted yet. Nothing changes.",
		API: true, Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) { o = specFlags{}; o.declare(f) },
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if o.isFile(args[0]) {
				y, err := o.unsubmitted(c, api, args[0])
				if err != nil {
					return err
				}
				return c.print(y, func(w *screen) { w.why(y) })
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

// unsubmitted is the stage of a job that is only asked about.
const unsubmitted = "not submitted"

// isFile tells whether an argument names a job file rather than a gang.
func (s *specFlags) isFile(arg string) bool {
	if arg == "-" {
		return true
	}
	switch filepath.Ext(arg) {
	case ".hcl", ".nomad", ".json":
		info, err := os.Stat(arg)
		return err == nil && info.Mode().IsRegular()
	}
	return false
}

// unsubmitted asks what would happen to the job of a file.
func (s *specFlags) unsubmitted(c *Call, api *client.Client, path string) (view.Why, error) {
	spec, err := s.read(c, path)
	if err != nil {
		return view.Why{}, err
	}
	p, err := api.Plan(c.Context, spec.Spec)
	if err != nil {
		return view.Why{}, spec.named(err)
	}
	c.warn(p.Warnings)
	return view.Why{ID: p.ID, Queue: p.Queue, Stage: unsubmitted, Verdict: p.Verdict}, nil
}

func (w *screen) why(y view.Why) {
	v := y.Verdict
	head := fmt.Sprintf("%s is %s", y.ID, y.Stage)
	switch {
	case y.Stage == string(contract.StageFailed):
		head = y.ID + " has failed"
	case y.Stage == string(contract.StageCancelled):
		head = y.ID + " was cancelled"
	case v.Position > 0 && y.Stage == unsubmitted:
		head += fmt.Sprintf("; it would be at position %d of queue %s", v.Position, y.Queue)
	case v.Position > 0:
		head += fmt.Sprintf(" at position %d of queue %s", v.Position, y.Queue)
	}
	w.line("%s", w.c.paint(w.c.Terminal, bold, head+"."))
	if v.Sentence != "" {
		w.line("%s", v.Sentence)
	}
	w.blockers(v)
	if v.Position > 0 && v.Action != core.ActionStart {
		w.title("Expected start")
		w.start(v)
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
