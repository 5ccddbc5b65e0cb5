package command

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

func usage() Command {
	var by, from, to, unit string
	var q view.UsageQuery
	var waste, asCSV bool
	return Command{
		Synopsis: "Sum up who used which cards, and what was wasted",
		Usage:    "usage [options]",
		About: "Sums up the card time of gangs from the planner's ledger, the current hour included. Guaranteed and borrowed are the whole, divided by what the gang's queue is guaranteed; held and training are the whole, divided by whether the attempt's ranks had been launched. Lost is work that has to be done again: what an attempt that did not complete had done since its last checkpoint.\n\n" +
			"Times are UTC: a date, an RFC 3339 time, or how long ago, such as 36h or 7d. Usage is booked by the hour, so -from and -to are moved out to whole hours.\n\n" +
			"  muster usage -by queue,user,model -from 2026-03-01 -to 2026-04-01 -csv\n" +
			"  muster usage -by day -queue research -from 30d\n" +
			"  muster usage -waste -from 7d",
		API: true, Data: true,
		Flags: func(f *Flags) {
			f.StringVar(&by, "by", "queue", "`Dimensions` by commas: queue, user, model, gang, attempt, hour, day, month.")
			f.StringVar(&from, "from", "", "Begin; default a day before the end.")
			f.StringVar(&to, "to", "", "End; default now.")
			f.StringVar(&q.Queue, "queue", "", "Only of this `queue`.")
			f.StringVar(&q.User, "user", "", "Only of this `user`.")
			f.StringVar(&q.Model, "model", "", "Only of cards of this `model`.")
			f.StringVar(&q.Gang, "gang", "", "Only of this `gang`, namespace/job.")
			f.BoolVar(&waste, "waste", false, "What was held and not used: by queue, user and model, and the worst attempts.")
			f.BoolVar(&asCSV, "csv", false, "Print CSV with card-seconds.")
			f.StringVar(&unit, "unit", "h", "Unit of the table, `h|s`: card-hours or card-seconds.")
		},
		Run: func(c *Call, _ []string) error {
			if asCSV && (c.asJSON || c.template != "") {
				return errors.New("-csv, -json and -t exclude each other")
			}
			if unit != "h" && unit != "s" {
				return fmt.Errorf("-unit=%s is none of h, s", unit)
			}
			var err error
			if q.To, err = c.instant("to", to); err != nil {
				return err
			}
			if q.From, err = c.instant("from", from); err != nil {
				return err
			}
			if q.To.IsZero() {
				q.To = c.Now()
			}
			if q.From.IsZero() {
				q.From = q.To.Add(-24 * time.Hour)
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			if waste {
				w, err := api.Waste(c.Context, q.From, q.To)
				if err != nil {
					return err
				}
				c.tellProblems(w.Problems)
				if asCSV {
					return c.wasteCSV(w)
				}
				return c.print(w, func(s *screen) { s.waste(w, unit) })
			}
			for _, d := range strings.Split(by, ",") {
				if d = strings.TrimSpace(d); d != "" {
					q.By = append(q.By, d)
				}
			}
			u, err := api.Usage(c.Context, q)
			if err != nil {
				return err
			}
			c.tellProblems(u.Problems)
			if asCSV {
				return c.usageCSV(u)
			}
			return c.print(u, func(s *screen) { s.usage(u, unit) })
		},
	}
}

// tellProblems warns of what stands in the way of the books.
func (c *Call) tellProblems(problems []view.Problem) {
	for _, p := range problems {
		c.warn([]string{p.Object + ": " + p.Text + "; " + p.Hint})
	}
}

// instant reads a flag's time: a date, a time, or how long ago.
func (c *Call) instant(flag, text string) (time.Time, error) {
	if text == "" || text == "now" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 100_000 {
			return c.Now().AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return c.Now().Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("-%s=%s is neither a date (2026-03-01), nor a time (2026-03-01T12:00:00Z), nor how long ago (36h, 7d)", flag, text)
}

// columns of a line that the dimensions ask for.
func usageColumns(by []string) (heads []string, values func(l *view.UsageLine) []string) {
	layout := "2006-01"
	period := ""
	for _, d := range []string{"month", "day", "hour"} {
		if slices.Contains(by, d) {
			period = d
			layout = map[string]string{"month": "2006-01", "day": "2006-01-02", "hour": "2006-01-02T15:04Z"}[d]
		}
	}
	if period != "" {
		heads = append(heads, period)
	}
	gang := slices.Contains(by, "gang") || slices.Contains(by, "attempt")
	for _, d := range []string{"queue", "user", "model"} {
		if slices.Contains(by, d) {
			heads = append(heads, d)
		}
	}
	if gang {
		heads = append(heads, "gang")
	}
	if slices.Contains(by, "attempt") {
		heads = append(heads, "attempt")
	}
	return heads, func(l *view.UsageLine) (out []string) {
		for _, h := range heads {
			switch h {
			case "queue":
				out = append(out, l.Queue)
			case "user":
				out = append(out, l.User)
			case "model":
				out = append(out, l.Model)
			case "gang":
				out = append(out, l.Gang)
			case "attempt":
				out = append(out, strconv.Itoa(l.Attempt))
			default:
				out = append(out, l.Period.UTC().Format(layout))
			}
		}
		return out
	}
}

// amount writes card-seconds in the unit asked for.
func amount(n int64, unit string) string {
	if unit == "s" {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatFloat(float64(n)/3600, 'f', 2, 64)
}

func unitName(unit string) string {
	if unit == "s" {
		return "card-seconds"
	}
	return "card-hours"
}

func (s *screen) usage(u view.Usage, unit string) {
	s.line("%s to %s UTC, in %s", u.From.UTC().Format("2006-01-02 15:04"), u.To.UTC().Format("2006-01-02 15:04"), unitName(unit))
	if len(u.Lines) == 0 {
		s.line("No gang held a card in this time")
		return
	}
	heads, values := usageColumns(u.By)
	titles := make([]string, len(heads))
	for i, h := range heads {
		titles[i] = strings.ToUpper(h[:1]) + h[1:]
	}
	titles = append(titles, ">Total", ">Guaranteed", ">Borrowed", ">Held", ">Training", ">Lost", "Lost to")
	var rows [][]cell
	row := func(l *view.UsageLine, first []string) {
		rows = append(rows, plain(append(first, amount(l.CardSeconds, unit), amount(l.Guaranteed, unit), amount(l.Borrowed, unit), amount(l.Held, unit), amount(l.Training, unit), amount(l.LostTotal, unit), causes(l.Lost, unit))...))
	}
	for i := range u.Lines {
		row(&u.Lines[i], values(&u.Lines[i]))
	}
	if len(u.Lines) > 1 {
		first := make([]string, len(heads))
		if len(first) > 0 {
			first[0] = "(all)"
		}
		row(&u.Total, first)
	}
	s.table(titles, rows)
}

// causes of losses, the largest first.
func causes(lost map[string]int64, unit string) string {
	names := slices.SortedFunc(maps.Keys(lost), func(a, b string) int {
		if lost[a] != lost[b] {
			return int(min(max(lost[b]-lost[a], -1), 1))
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, n := range names {
		parts = append(parts, n+" "+amount(lost[n], unit))
	}
	return strings.Join(parts, ", ")
}

func (c *Call) usageCSV(u view.Usage) error {
	heads, values := usageColumns(u.By)
	all := map[string]bool{}
	for i := range u.Lines {
		for cause := range u.Lines[i].Lost {
			all[cause] = true
		}
	}
	losses := slices.Sorted(maps.Keys(all))
	head := append(slices.Clone(heads), "card_seconds", "guaranteed", "borrowed", "held", "training", "lost")
	for _, cause := range losses {
		head = append(head, "lost_"+strings.ReplaceAll(cause, "-", "_"))
	}
	w := csv.NewWriter(c.Stdout)
	if err := w.Write(head); err != nil {
		return err
	}
	for i := range u.Lines {
		l := &u.Lines[i]
		row := values(l)
		for _, n := range []int64{l.CardSeconds, l.Guaranteed, l.Borrowed, l.Held, l.Training, l.LostTotal} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		for _, cause := range losses {
			row = append(row, strconv.FormatInt(l.Lost[cause], 10))
		}
		if err := w.Write(safeCells(row)); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// safeCells keeps a spreadsheet from taking a name for a formula.
func safeCells(row []string) []string {
	for i, text := range row {
		if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
			if _, err := strconv.ParseInt(text, 10, 64); err != nil {
				row[i] = "'" + text
			}
		}
	}
	return row
}

func percent(s view.Share, of float64) string {
	if !s.Known {
		return ""
	}
	return fmt.Sprintf("%.0f%%", of*100)
}

func (s *screen) waste(w view.Waste, unit string) {
	s.line("%s to %s UTC, in %s", w.From.UTC().Format("2006-01-02 15:04"), w.To.UTC().Format("2006-01-02 15:04"), unitName(unit))
	if len(w.Lines) == 0 {
		s.line("No gang held a card in this time")
		return
	}
	var rows [][]cell
	for i := range w.Lines {
		l := &w.Lines[i]
		rows = append(rows, plain(l.Queue, l.User, l.Model, amount(l.CardSeconds, unit), amount(l.Held, unit), amount(l.Lost, unit), amount(l.Sampled, unit), amount(l.Idle, unit),
			percent(l.Activity, l.Activity.Mean), percent(l.Activity, l.Activity.P10), percent(l.Activity, l.Activity.P50), percent(l.Activity, l.Activity.P90), percent(l.Memory, l.Memory.Mean)))
	}
	s.table([]string{"Queue", "User", "Model", ">Total", ">Held", ">Lost", ">Sampled", ">Idle", ">Mean", ">p10", ">p50", ">p90", ">Memory"}, rows)
	if len(w.Worst) == 0 {
		return
	}
	s.title("Worst attempts")
	rows = nil
	for i := range w.Worst {
		a := &w.Worst[i]
		state := "ended"
		if a.Running {
			state = "runs"
		}
		rows = append(rows, plain(a.Gang, strconv.Itoa(a.Attempt), state, a.Queue, a.User, a.Model, amount(a.Wasted, unit), amount(a.Held, unit), amount(a.Idle, unit), fmt.Sprintf("%d of %d", a.NeverBusy, a.Cards),
			percent(a.Activity, a.Activity.Mean), percent(a.Memory, a.Memory.Mean), fmt.Sprintf("%.1f GiB", float64(a.UntouchedMiB)/1024)))
	}
	s.table([]string{"Gang", ">Attempt", "State", "Queue", "User", "Model", ">Wasted", ">Held", ">Idle", ">Never busy", ">Mean", ">Memory", ">Never touched"}, rows)
}

func (c *Call) wasteCSV(w view.Waste) error {
	out := csv.NewWriter(c.Stdout)
	rows := [][]string{{"gang", "attempt", "state", "queue", "user", "model", "wasted", "held", "sampled", "idle", "cards", "never_busy", "activity_mean", "activity_p50", "memory_mean", "untouched_mib"}}
	share := func(s view.Share, v float64) string {
		if !s.Known {
			return ""
		}
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	for i := range w.Worst {
		a := &w.Worst[i]
		state := "ended"
		if a.Running {
			state = "runs"
		}
		n := func(v int64) string { return strconv.FormatInt(v, 10) }
		rows = append(rows, safeCells([]string{a.Gang, strconv.Itoa(a.Attempt), state, a.Queue, a.User, a.Model, n(a.Wasted), n(a.Held), n(a.Sampled), n(a.Idle), strconv.Itoa(a.Cards), strconv.Itoa(a.NeverBusy),
			share(a.Activity, a.Activity.Mean), share(a.Activity, a.Activity.P50), share(a.Memory, a.Memory.Mean), n(a.UntouchedMiB)}))
	}
	if err := out.WriteAll(rows); err != nil {
		return err
	}
	return out.Error()
}
