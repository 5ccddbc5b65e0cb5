package chart

import (
	"math"
	"time"
)

// ticks of an axis from zero to about max: at most seven round values.
func ticks(s Scale, top float64) []float64 {
	var out []float64
	if s == LogSeconds {
		for _, v := range []float64{1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400} {
			if v <= top {
				out = append(out, v)
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10(top/5)))
	if s == Seconds && top > 300 {
		for _, v := range []float64{60, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 90 * 86400} {
			if step = v; top/v <= 6 {
				break
			}
		}
	} else {
		for _, m := range []float64{1, 2, 5, 10} {
			if top/(step*m) <= 6 {
				step *= m
				break
			}
		}
	}
	for i := 0; ; i++ {
		v := float64(i) * step
		if v > top+step*0.99 || i > 12 {
			return out
		}
		out = append(out, v)
	}
}

var timeSteps = []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour}

// timeTicks are at most nine round instants, and how to write them.
func timeTicks(from, to float64) (at []float64, layout string) {
	span := time.Duration((to - from) * float64(time.Second))
	var step time.Duration
	for _, step = range timeSteps {
		if span/step <= 8 {
			break
		}
	}
	layout = "15:04"
	switch {
	case step < time.Minute:
		layout = "15:04:05"
	case step >= 24*time.Hour:
		layout = "Jan 2"
	case span > 24*time.Hour:
		layout = "Jan 2 15:04"
	}
	if span/step > 12 { // years: the first of every n-th month
		layout = "Jan 2006"
		months := max(1, int(span.Hours()/24/30)/8)
		t := time.Unix(int64(from), 0).UTC()
		for t = time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC); float64(t.Unix()) <= to; t = t.AddDate(0, months, 0) {
			if float64(t.Unix()) >= from {
				at = append(at, float64(t.Unix()))
			}
		}
		return at, layout
	}
	s := step.Seconds()
	for v := math.Ceil(from/s) * s; v <= to; v += s {
		at = append(at, v)
	}
	return at, layout
}

func (p *painter) axes() {
	for _, v := range ticks(p.Y.Scale, p.y1) {
		if v > p.y1*1.0001 {
			break
		}
		y := p.y(v)
		p.put(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="var(--grid,#ddd)"/>`, px(p.f.left), px(p.f.right), px(y), px(y))
		p.put(`<text x="%s" y="%s" text-anchor="end">%s</text>`+"\n", px(p.f.left-6), px(y+4), p.Y.text(v))
	}
	p.put(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="var(--ink,#222)"/>`+"\n", px(p.f.left), px(p.f.right), px(p.f.bottom), px(p.f.bottom))
	below := p.f.bottom + 15
	switch {
	case p.Kind == Bars || p.Kind == Boxes:
		for i, l := range p.Labels {
			x, width := p.slot(i)
			if most := int(width / 6); len([]rune(l)) > most && most > 1 {
				l = string([]rune(l)[:most-1]) + "…"
			}
			p.put(`<text x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", px(x), px(below), esc(l))
		}
	case p.X.Scale == Time:
		at, layout := timeTicks(p.x0, p.x1)
		for _, v := range at {
			x := p.x(v)
			p.put(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="var(--ink,#222)"/>`, px(x), px(x), px(p.f.bottom), px(p.f.bottom+4))
			p.put(`<text x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", px(x), px(below), time.Unix(int64(v), 0).UTC().Format(layout))
		}
	default:
		for _, v := range ticks(p.X.Scale, p.x1-p.x0) {
			if p.x0+v > p.x1 {
				break
			}
			p.put(`<text x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", px(p.x(p.x0+v)), px(below), p.X.text(p.x0+v))
		}
	}
	if p.X.Label != "" {
		p.put(`<text x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", px((p.f.left+p.f.right)/2), px(below+16), esc(p.X.Label))
	}
	if p.Y.Label != "" {
		y := px((p.f.top + p.f.bottom) / 2)
		p.put(`<text x="12" y="%s" text-anchor="middle" transform="rotate(-90 12 %s)">%s</text>`+"\n", y, y, esc(p.Y.Label))
	}
}
