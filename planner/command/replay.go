package command

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nomad-muster/muster/planner/capture"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/nomad-muster/muster/planner/view"
)

func snapshot() Command {
	var path string
	return Command{
		Synopsis: "Capture what the planner decides at this moment",
		Usage:    "snapshot [options]",
		About: "Writes what the decision core sees at this moment (nodes, gangs, who holds what, configuration) and what it decides on it, as one JSON document. " +
			"muster replay decides on it again, anywhere; a question about a decision is best asked with such a file. It holds names of jobs, users and nodes, and no secrets of Muster's own.",
		API: true,
		Flags: func(f *Flags) {
			f.StringVar(&path, "o", "", "`File` to write; default: stdout.")
		},
		Run: func(c *Call, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if path == "" {
				return api.Snapshot(c.Context, c.Stdout)
			}
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				return fmt.Errorf("write snapshot: %w", err)
			}
			return errors.Join(api.Snapshot(c.Context, file), file.Close())
		},
	}
}

func replay() Command {
	var gang string
	return Command{
		Synopsis: "Decide on a captured snapshot again",
		Usage:    "replay [options] <file>",
		About: "Decides again on what muster snapshot captured (- is stdin), asks nobody, and shows every gang's verdict. The same core gives the same plan, bit for bit: the exit code is 1 where it differs, " +
			"which happens when the core has changed since.",
		Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) {
			f.StringVar(&gang, "gang", "", "Only the verdict of this gang (`namespace/job`), with all its blockers.")
		},
		Run: func(c *Call, args []string) error {
			d, err := readCapture(c, args[0])
			if err != nil {
				return err
			}
			plan, same, err := d.Replay(decide.New())
			if err != nil {
				return err
			}
			if err := c.print(struct {
				Same bool       `json:"same"`
				Plan *core.Plan `json:"plan"`
			}{same, plan}, func(w *screen) { w.replayed(d, plan, core.GangID(gang)) }); err != nil {
				return err
			}
			if !same {
				return fmt.Errorf("the plan differs from the captured one, which build %s made: -json shows this one, the file has that one under plan", d.Build)
			}
			return nil
		},
	}
}

func readCapture(c *Call, path string) (*capture.Decision, error) {
	var in io.Reader = c.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read captured decision: %w", err)
		}
		defer file.Close()
		in = file
	}
	return capture.Read(in)
}

// replayed prints a plan's verdicts.
func (w *screen) replayed(d *capture.Decision, plan *core.Plan, only core.GangID) {
	w.line("Captured at %s by %s: %s, %s.", d.Snapshot.Now.UTC().Format("2006-01-02 15:04:05 UTC"), d.Build, count(len(d.Snapshot.Nodes), "node"), count(len(d.Snapshot.Gangs), "gang"))
	var rows [][]cell
	for _, v := range plan.Verdicts {
		if only != "" && v.Gang != only {
			continue
		}
		position := ""
		if v.Position > 0 {
			position = fmt.Sprint(v.Position)
		}
		rows = append(rows, plain(string(v.Gang), position, string(v.Action), string(v.Reason), v.Sentence))
	}
	w.title("Verdicts")
	w.table([]string{"Gang", ">Pos", "Action", "Reason", "Why"}, rows)
	if only != "" {
		for _, v := range plan.Verdicts {
			if v.Gang == only {
				w.blockers(view.FromVerdict(v))
			}
		}
	}
	for _, n := range plan.Notices {
		w.line("Notice: %s: %s", n.Object, n.Text)
	}
}
