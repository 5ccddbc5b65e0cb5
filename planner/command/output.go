package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/view"
)

// print shows a result: as JSON, through a template, or as text.
func (c *Call) print(v any, text func(w *screen)) error {
	switch {
	case c.asJSON:
		return c.json(v)
	case c.template != "":
		t, err := template.New("-t").Funcs(template.FuncMap{"json": toJSON, "join": strings.Join}).Parse(c.template)
		if err != nil {
			return fmt.Errorf("read template: %w", err)
		}
		var out strings.Builder
		if err := t.Execute(&out, v); err != nil {
			return fmt.Errorf("fill template: %w", err)
		}
		_, err = fmt.Fprintln(c.Stdout, out.String())
		return err
	}
	w := c.screen()
	text(w)
	_, err := io.WriteString(c.Stdout, w.b.String())
	return err
}

func toJSON(v any) (string, error) {
	out, err := json.Marshal(v)
	return string(out), err
}

// json prints the command's one document.
func (c *Call) json(v any) error {
	enc := json.NewEncoder(c.Stdout)
	enc.SetIndent("", "    ")
	enc.SetEscapeHTML(false)
	c.printedJSON = true
	return enc.Encode(v)
}

// failure is what -json prints where there is no result.
type failure struct {
	Error view.Error `json:"error"`
}

// finish tells an error and gives the exit code.
func (c *Call) finish(err error) int {
	code := exitCode(err)
	var exit *Exit
	if err == nil || errors.As(err, &exit) && exit.Err == nil {
		return code
	}
	c.say("%s", c.paint(c.ErrTerminal, red, "Error: ")+err.Error())
	if c.asJSON && !c.printedJSON {
		e := view.Error{Operation: "muster", Cause: err.Error(), Code: map[int]view.Code{ExitRejected: view.CodeRejected, ExitNoContact: view.CodeUnavailable}[code]}
		if e.Code == "" {
			e.Code = view.CodeInvalid
		}
		var refused *view.Error
		var faults config.Faults
		if errors.As(err, &refused) {
			e = *refused
		} else if errors.As(err, &faults) {
			e.Cause, e.Faults = fmt.Sprintf("%d faults", len(faults)), nil
			for _, f := range faults {
				e.Faults = append(e.Faults, view.Fault{Field: fmt.Sprintf("%s:%d", f.File, f.Line), Want: f.Text})
			}
		}
		if err := c.json(failure{e}); err != nil && code == ExitDone {
			return ExitError
		}
	}
	return code
}

// say writes a line to stderr.
func (c *Call) say(format string, args ...any) {
	fmt.Fprintln(c.Stderr, harmless(fmt.Sprintf(format, args...)))
}

// warn writes warnings to stderr.
func (c *Call) warn(warnings []string) {
	for _, w := range warnings {
		c.say("%s%s", c.paint(c.ErrTerminal, yellow, "Warning: "), w)
	}
}

// Colours, as terminals know them.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	dim    = "2"
)

// paint colours text for a terminal.
func (c *Call) paint(terminal bool, colour, text string) string {
	if !terminal || c.noColor || colour == "" || c.Getenv("NO_COLOR") != "" || c.Getenv("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// screen collects text for stdout.
type screen struct {
	b strings.Builder
	c *Call
}

func (c *Call) screen() *screen { return &screen{c: c} }

func (s *screen) line(format string, args ...any) {
	s.b.WriteString(harmless(fmt.Sprintf(format, args...)) + "\n")
}

// harmless is text that somebody else may have had a hand in (a job's id, what
// a rank printed last) as a terminal can be given it: of what steers a terminal
// only colours, tabs and line feeds are left.
func harmless(text string) string {
	if !strings.ContainsFunc(text, steers) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		if colour := colours.FindString(text); colour != "" {
			out.WriteString(colour)
			text = text[len(colour):]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		if steers(r) {
			r = '\uFFFD'
		}
		out.WriteRune(r)
		text = text[n:]
	}
	return out.String()
}

var colours = regexp.MustCompile(`^\x1b\[[0-9;]{0,16}m`)

func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || r >= 0x202A && r <= 0x202E || r >= 0x2066 && r <= 0x2069)
}

// oneLine keeps a table's row in its line.
func oneLine(text string) string {
	return harmless(strings.NewReplacer("\n", " ", "\t", " ").Replace(text))
}

// title starts a section.
func (s *screen) title(text string) {
	if s.b.Len() > 0 {
		s.b.WriteByte('\n')
	}
	s.b.WriteString(s.c.paint(s.c.Terminal, bold, text) + "\n")
}

// pairs prints names and values as Nomad does; empty values are left out.
func (s *screen) pairs(pairs ...string) {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			width = max(width, len(pairs[i]))
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			s.line("%-*s = %s", width, pairs[i], pairs[i+1])
		}
	}
}

// cell is a table's; a colour does not count for its width.
type cell struct{ text, colour string }

func plain(texts ...string) []cell {
	out := make([]cell, len(texts))
	for i, t := range texts {
		out[i] = cell{text: t}
	}
	return out
}

// table prints rows below a head. Columns whose head starts with ">" are
// aligned to the right. The last column is cut to the terminal's width.
func (s *screen) table(head []string, rows [][]cell) {
	right := make([]bool, len(head))
	width := make([]int, len(head))
	for i := range head {
		head[i], right[i] = strings.TrimPrefix(head[i], ">"), strings.HasPrefix(head[i], ">")
		width[i] = utf8.RuneCountInString(head[i])
		for _, row := range rows {
			if row[i].text = oneLine(row[i].text); row[i].text == "" {
				row[i].text = "-"
			}
			width[i] = max(width[i], utf8.RuneCountInString(row[i].text))
		}
	}
	row := func(cells []cell) {
		var line strings.Builder
		used := 0
		for i, c := range cells {
			text := c.text
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			last := i == len(cells)-1
			if last && s.c.Terminal && s.c.Width > used+10 {
				if runes := []rune(text); len(runes) > s.c.Width-used {
					text = string(runes[:s.c.Width-used-1]) + "…"
				}
			}
			used += width[i] + 2
			text = s.c.paint(s.c.Terminal, c.colour, text)
			switch {
			case right[i]:
				line.WriteString(pad + text)
			case last:
				line.WriteString(text)
			default:
				line.WriteString(text + pad)
			}
			if !last {
				line.WriteString("  ")
			}
		}
		s.line("%s", strings.TrimRight(line.String(), " "))
	}
	titles := make([]cell, len(head))
	for i := range head {
		titles[i] = cell{head[i], bold}
	}
	row(titles)
	for _, r := range rows {
		row(r)
	}
}

// duration writes a length of time as people read it: 40ms, 1.3s, 12s, 4m05s,
// 3h10m, 2d4h.
func duration(d time.Duration) string {
	if d < 0 {
		return "-" + duration(-d)
	}
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func seconds(s float64) string { return duration(time.Duration(s * float64(time.Second))) }

// ago is how long ago something was; "-" where it was not.
func (c *Call) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration(c.Now().Sub(t))
}

// clock is a time of day, with the date where it is not today.
func (c *Call) clock(t time.Time) string {
	now := c.Now()
	t = t.In(now.Location())
	if y, m, d := now.Date(); t.Year() == y && t.Month() == m && t.Day() == d {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04")
}

// when is a time as clock writes it; empty where it is not known.
func (c *Call) when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return c.clock(t)
}

// eta writes a range of times.
func (c *Call) eta(e *view.ETA) string {
	switch {
	case e == nil || e.From.IsZero():
		return "not known"
	case e.To.IsZero() || e.To.Equal(e.From):
		return c.clock(e.From)
	}
	return c.clock(e.From) + " to " + c.clock(e.To)
}

// bar draws a share: [####----].
func bar(used, of, width int) string {
	if of <= 0 {
		return ""
	}
	n := min(used*width/of, width)
	if used > 0 && n == 0 {
		n = 1
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat("-", width-n) + "]"
}
