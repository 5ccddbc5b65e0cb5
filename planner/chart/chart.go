// Package chart draws plots as SVG: lines and steps over time, stacked areas,
// bars, and boxes of quantiles.
//
// A plot is one self-contained element. It reads in print and without colour:
// lines differ by dashes, areas and bars by hatching, and all are named in the
// plot. Colours and the font can be set from the page around it with the CSS
// variables --ink, --paper, --grid and --c1 to --c8; on its own it is dark on
// white. Every plot has a title and a description for those who cannot see it.
//
// It is ours because the libraries that draw SVG bring megabytes of fonts into
// a command line tool and read them at each start.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"
)

// Kind is how series are drawn.
type Kind int

// Kinds of plots.
const (
	Lines Kind = iota
	Steps      // a value holds until the next
	Areas      // stacked; all series have the same X
	Bars       // stacked, one bar for each of Labels; series have no X
	Boxes      // one box for each of Labels: Quantiles
)

// Plot is what to draw.
type Plot struct {
	Title  string
	About  string // what it shows, in a sentence
	Kind   Kind
	X, Y   Axis
	Series []Series
	Labels []string // of bars and boxes
	// Quantiles of Boxes by label, any of them nil: 5, 25, 50, 75 and 95 %.
	Quantiles [][]float64
	// Lines across the plot, such as a capacity.
	Marks  []Mark
	Width  int // [720]
	Height int // [280]
}

// Series is one line, area or part of each bar.
type Series struct {
	Name string
	X    []float64 // ascending; seconds since 1970 on a Time axis
	Y    []float64 // NaN: a gap
}

// Mark is a level with a name.
type Mark struct {
	Name string
	Y    float64
}

// Scale is what an axis counts.
type Scale int

// Scales.
const (
	Number     Scale = iota
	Percent          // 0..1 is written as 0 to 100 %
	Seconds          // durations
	Time             // instants, in UTC
	LogSeconds       // durations on a logarithmic scale, from a second on
)

// Axis is one of the two.
type Axis struct {
	Label string
	Scale Scale
	Max   float64 // at least; 0: as the data has it
}

// frame is the area that is drawn in, in pixels.
type frame struct{ left, top, right, bottom float64 }

// painter collects the elements.
type painter struct {
	*Plot
	b          strings.Builder
	f          frame
	x0, x1, y1 float64
	id         string
}

func (p *painter) put(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// SVG draws the plot. The same plot is always the same text.
func (p Plot) SVG() string {
	if p.Width == 0 {
		p.Width = 720
	}
	if p.Height == 0 {
		p.Height = 280
	}
	w := &painter{Plot: &p, id: ident(p.Title)}
	legend := 0.0
	if len(p.Series) > 1 || len(p.Marks) > 0 {
		legend = 20
	}
	w.f = frame{left: 64, top: 30 + legend, right: float64(p.Width) - 16, bottom: float64(p.Height) - 42}
	w.bounds()
	w.put(`<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="%s-t %s-d">`+"\n", p.Width, p.Height, p.Width, p.Height, w.id, w.id)
	w.put(`<title id="%s-t">%s</title><desc id="%s-d">%s</desc>`+"\n", w.id, esc(p.Title), w.id, esc(p.describe()))
	w.patterns()
	w.put(`<rect width="100%%" height="100%%" fill="var(--paper,#fff)"/>` + "\n")
	w.put(`<g font-family="var(--font,system-ui,sans-serif)" font-size="11" fill="var(--ink,#222)">` + "\n")
	w.put(`<text x="%s" y="18" font-size="13" font-weight="600">%s</text>`+"\n", px(w.f.left), esc(p.Title))
	if w.empty() {
		w.put(`<text x="%s" y="%s" text-anchor="middle">no data</text></g></svg>`+"\n", px((w.f.left+w.f.right)/2), px((w.f.top+w.f.bottom)/2))
		return w.b.String()
	}
	w.legend()
	w.axes()
	switch p.Kind {
	case Areas:
		w.areas()
	case Bars:
		w.bars()
	case Boxes:
		w.boxes()
	default:
		w.lines()
	}
	for i, m := range p.Marks {
		y := w.y(m.Y)
		w.put(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="var(--ink,#222)" stroke-dasharray="%s"/>`+"\n", px(w.f.left), px(w.f.right), px(y), px(y), []string{"8 3", "2 2", "8 3 2 3"}[i%3])
	}
	w.put("</g></svg>\n")
	return w.b.String()
}

// describe is the plot in words: what it is about, and each series' end.
func (p *Plot) describe() string {
	var parts []string
	if p.About != "" {
		parts = append(parts, p.About)
	}
	for _, s := range p.Series {
		low, high, last, ok := math.Inf(1), math.Inf(-1), 0.0, false
		for _, v := range s.Y {
			if !math.IsNaN(v) {
				low, high, last, ok = min(low, v), max(high, v), v, true
			}
		}
		if ok {
			parts = append(parts, fmt.Sprintf("%s: %s to %s, last %s.", s.Name, p.Y.text(low), p.Y.text(high), p.Y.text(last)))
		}
	}
	for i, q := range p.Quantiles {
		if len(q) == 5 {
			parts = append(parts, fmt.Sprintf("%s: half of them %s to %s, median %s, 95%% below %s.", p.Labels[i], p.Y.text(q[1]), p.Y.text(q[3]), p.Y.text(q[2]), p.Y.text(q[4])))
		}
	}
	return strings.Join(parts, " ")
}

func (p *painter) empty() bool {
	if p.Kind == Boxes {
		for _, q := range p.Quantiles {
			if len(q) == 5 {
				return false
			}
		}
		return true
	}
	for _, s := range p.Series {
		for _, v := range s.Y {
			if !math.IsNaN(v) {
				return false
			}
		}
	}
	return true
}

// bounds finds the ranges of both axes; Y begins at zero.
func (p *painter) bounds() {
	p.x0, p.x1 = math.Inf(1), math.Inf(-1)
	p.y1 = p.Y.Max
	stack := map[int]float64{}
	for _, s := range p.Series {
		for i, v := range s.Y {
			if p.Kind == Bars || p.Kind == Areas {
				if !math.IsNaN(v) {
					stack[i] += v
				}
				v = stack[i]
			}
			if !math.IsNaN(v) {
				p.y1 = max(p.y1, v)
			}
		}
		if len(s.X) > 0 {
			p.x0, p.x1 = min(p.x0, s.X[0]), max(p.x1, s.X[len(s.X)-1])
		}
	}
	for _, q := range p.Quantiles {
		for _, v := range q {
			p.y1 = max(p.y1, v)
		}
	}
	for _, m := range p.Marks {
		p.y1 = max(p.y1, m.Y)
	}
	if p.y1 <= 0 {
		p.y1 = 1
	}
	if math.IsInf(p.x0, 0) {
		p.x0, p.x1 = 0, 1
	}
	if p.x1 <= p.x0 {
		p.x1 = p.x0 + 1
	}
	switch p.Y.Scale {
	case LogSeconds:
		p.y1 = max(p.y1, 60)
	case Percent:
		p.y1 = min(max(p.y1, 0.05), max(1, p.Y.Max))
	default:
		t := ticks(p.Y.Scale, p.y1)
		p.y1 = max(p.y1, t[len(t)-1])
	}
}

func (p *painter) x(v float64) float64 {
	return p.f.left + (v-p.x0)/(p.x1-p.x0)*(p.f.right-p.f.left)
}

func (p *painter) y(v float64) float64 {
	share := v / p.y1
	if p.Y.Scale == LogSeconds {
		share = math.Log(max(v, 1)) / math.Log(p.y1)
	}
	return p.f.bottom - min(max(share, 0), 1)*(p.f.bottom-p.f.top)
}

// slot is the middle and the width of the place of bar or box i.
func (p *painter) slot(i int) (middle, width float64) {
	width = (p.f.right - p.f.left) / float64(len(p.Labels))
	return p.f.left + (float64(i)+0.5)*width, width
}

func px(v float64) string {
	s := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(s, ".0")
}

// esc makes text safe inside an element, without the characters that XML does
// not have.
func esc(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0xfffe || r == 0xffff || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")))
}

func ident(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return "plot-" + strings.TrimSuffix(b.String(), "-")
}

// text writes a value as the axis counts it.
func (a Axis) text(v float64) string {
	switch a.Scale {
	case Percent:
		return trim(fmt.Sprintf("%.1f", v*100)) + " %"
	case Seconds, LogSeconds:
		return duration(v)
	case Time:
		return time.Unix(int64(v), 0).UTC().Format("2006-01-02 15:04")
	}
	switch {
	case v != 0 && math.Abs(v) < 1:
		return trim(fmt.Sprintf("%.3f", v))
	case math.Abs(v) >= 1e6:
		return trim(fmt.Sprintf("%.2f", v/1e6)) + " M"
	case math.Abs(v) >= 1e4:
		return trim(fmt.Sprintf("%.1f", v/1e3)) + " k"
	}
	return trim(fmt.Sprintf("%.1f", v))
}

func trim(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func duration(v float64) string {
	switch {
	case v < 60:
		return trim(fmt.Sprintf("%.1f", v)) + " s"
	case v < 3600:
		return trim(fmt.Sprintf("%.1f", v/60)) + " min"
	case v < 86400:
		return trim(fmt.Sprintf("%.1f", v/3600)) + " h"
	}
	return trim(fmt.Sprintf("%.1f", v/86400)) + " d"
}
