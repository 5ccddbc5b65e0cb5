package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/buildinfo"
)

//go:embed page.html
var pageText string

var document = template.Must(template.New("page").Funcs(template.FuncMap{
	"date":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") },
	"hours": func(seconds int64) string { return grouped(float64(seconds) / 3600) },
	"share": func(v float64) string {
		if v < 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f %%", v*100)
	},
	"of": func(part, whole int64) string {
		if whole == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f %%", float64(part)/float64(whole)*100)
	},
	"span": span,
	"plot": func(r *Report, name string) template.HTML {
		for _, p := range r.Plots {
			if p.Name == name {
				return template.HTML(p.SVG) // planner/chart escapes all texts
			}
		}
		return ""
	},
	"all": func(q string) string {
		if q == "" {
			return "all queues"
		}
		return q
	},
	"version": func() string { return buildinfo.String() },
	"cause": func(s string) string {
		return strings.ReplaceAll(s, "-", " ")
	},
}).Parse(pageText))

// HTML writes the page.
func (r *Report) HTML(w io.Writer) error {
	if err := document.Execute(w, r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// grouped writes a number of hours: with thousands apart, and a decimal where it
// is small.
func grouped(v float64) string {
	if v < 100 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%.1f d", d.Hours()/24)
}
