package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/report"
)

func makeReport() Command {
	var period, from, to, path, plots string
	return Command{
		Synopsis: "Make a page of what the cluster did",
		Usage:    "report [options]",
		About: "Writes one self-contained HTML page about a day, a week, a month or any other time: waits by size and queue, use, fragmentation and waste, why attempts ended, and how good the expected starts were. " +
			"It needs a planner with a data_dir. Without -o the page goes into muster-report-<from>.html.",
		API: true, Data: true,
		Flags: func(f *Flags) {
			f.StringVar(&period, "period", "week", "The last whole `day|week|month`, in UTC. Default: week.")
			f.StringVar(&from, "from", "", "Begin, instead of a period: a `date` such as 2026-11-23, an RFC 3339 time, or how long ago, such as 36h or 7d.")
			f.StringVar(&to, "to", "", "End, excluded, beside -from, likewise a `date`; default now.")
			f.StringVar(&path, "o", "", "`File` to write; - is stdout.")
			f.StringVar(&plots, "svg", "", "`Folder` for the plots as SVG files, beside the page.")
		},
		Run: func(c *Call, _ []string) error {
			begin, end, err := c.reportTime(period, from, to)
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			var page, figures bytes.Buffer
			if err := errors.Join(api.Report(c.Context, begin, end, "html", &page), api.Report(c.Context, begin, end, "json", &figures)); err != nil {
				return err
			}
			if plots != "" {
				if err := writePlots(c, plots, begin, end); err != nil {
					return err
				}
			}
			if path == "-" {
				_, err := c.Stdout.Write(page.Bytes())
				return err
			}
			if path == "" {
				path = "muster-report-" + begin.UTC().Format(time.DateOnly) + ".html"
			}
			if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
				return fmt.Errorf("write report: %w", err)
			}
			var v any
			if err := json.Unmarshal(figures.Bytes(), &v); err != nil {
				return fmt.Errorf("read the report's figures: %w", err)
			}
			return c.print(v, func(w *screen) {
				w.line("%s to %s: %s", begin.UTC().Format("2006-01-02 15:04"), end.UTC().Format("2006-01-02 15:04 UTC"), path)
			})
		},
	}
}

func (c *Call) reportTime(period, from, to string) (begin, end time.Time, err error) {
	if from == "" || from == "now" {
		if to != "" {
			return begin, end, errors.New("make report: -to needs -from beside it")
		}
		if begin, end, err = report.Period(period, c.Now()); err != nil {
			err = fmt.Errorf("make report: %w", err)
		}
		return begin, end, err
	}
	end = c.Now()
	if begin, err = c.instant("from", from); err == nil && to != "" && to != "now" {
		end, err = c.instant("to", to)
	}
	switch {
	case err != nil:
	case !end.After(begin):
		err = fmt.Errorf("make report: it ends at %s, not after it begins at %s", end.UTC().Format(time.RFC3339), begin.UTC().Format(time.RFC3339))
	}
	return begin, end, err
}

func writePlots(c *Call, dir string, from, to time.Time) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := api.Report(c.Context, from, to, "plots", &text); err != nil {
		return err
	}
	var plots map[string]string
	if err := json.Unmarshal(text.Bytes(), &plots); err != nil {
		return fmt.Errorf("read the report's plots: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write plots: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(plots)) {
		if filepath.Base(name) != name {
			return fmt.Errorf("write plots: the planner names one %q", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(plots[name]), 0o644); err != nil {
			return fmt.Errorf("write plots: %w", err)
		}
	}
	return nil
}
