package chart

import (
	"math"
	"strings"
)

// palette is Okabe and Ito's, which the colour-blind tell apart.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a7a7a", "#333333"}

var dashes = []string{"", "6 3", "2 2", "8 3 2 3", "12 4", "4 2 1 2", "1 3", "10 2 4 2"}

func colour(i int) string {
	return "var(--c" + string(rune('1'+i%len(palette))) + "," + palette[i%len(palette)] + ")"
}

// patterns are the hatchings of areas and bars: of each the angle and the gap.
func (p *painter) patterns() {
	if p.Kind != Areas && p.Kind != Bars {
		return
	}
	p.put("<defs>")
	for i := range min(len(p.Series), len(palette)) {
		gap, angle := []string{"0", "6", "4", "8", "5", "10", "3", "7"}[i], []string{"0", "45", "-45", "0", "90", "30", "-30", "60"}[i]
		p.put(`<pattern id="%s-%d" width="%s" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(%s)"><rect width="12" height="8" fill="%s" fill-opacity="%s"/>`,
			p.id, i, max(gap, "1"), angle, colour(i), []string{".85", ".35", ".6", ".25", ".5", ".2", ".7", ".4"}[i])
		if gap != "0" {
			p.put(`<line x1="0" y1="0" x2="0" y2="8" stroke="%s" stroke-width="2"/>`, colour(i))
		}
		p.put("</pattern>")
	}
	p.put("</defs>\n")
}

func (p *painter) fill(i int) string {
	return "url(#" + p.id + "-" + string(rune('0'+i%len(palette))) + ")"
}

func (p *painter) legend() {
	if p.f.top < 40 {
		return
	}
	x := p.f.left
	entry := func(sample, name string) {
		p.put(`<g transform="translate(%s 28)">%s<text x="26" y="9">%s</text></g>`+"\n", px(x), sample, esc(name))
		x += 40 + 6.2*float64(len([]rune(name)))
	}
	for i, s := range p.Series {
		if p.Kind == Areas || p.Kind == Bars {
			entry(`<rect width="20" height="10" fill="`+p.fill(i)+`" stroke="`+colour(i)+`"/>`, s.Name)
		} else {
			entry(`<line x1="0" x2="20" y1="5" y2="5" stroke-width="2" stroke="`+colour(i)+`" stroke-dasharray="`+dashes[i%len(dashes)]+`"/>`, s.Name)
		}
	}
	for i, m := range p.Marks {
		entry(`<line x1="0" x2="20" y1="5" y2="5" stroke="var(--ink,#222)" stroke-dasharray="`+[]string{"8 3", "2 2", "8 3 2 3"}[i%3]+`"/>`, m.Name)
	}
}

func (p *painter) lines() {
	for i, s := range p.Series {
		var path strings.Builder
		pen, last := false, 0.0
		for k, v := range s.Y {
			if math.IsNaN(v) {
				pen = false
				continue
			}
			x, y := px(p.x(s.X[k])), px(p.y(v))
			switch {
			case !pen:
				path.WriteString("M" + x + " " + y)
			case p.Kind == Steps && last != v:
				path.WriteString("H" + x + "V" + y)
			case p.Kind == Steps:
				path.WriteString("H" + x)
			default:
				path.WriteString("L" + x + " " + y)
			}
			pen, last = true, v
		}
		p.put(`<path d="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-dasharray="%s"><title>%s</title></path>`+"\n", path.String(), colour(i), dashes[i%len(dashes)], esc(s.Name))
	}
}

func (p *painter) areas() {
	if len(p.Series) == 0 {
		return
	}
	base := make([]float64, len(p.Series[0].Y))
	for i, s := range p.Series {
		top := make([]float64, len(base))
		var path strings.Builder
		for k := range base {
			v := s.Y[k]
			if math.IsNaN(v) {
				v = 0
			}
			top[k] = base[k] + v
			x, y := px(p.x(s.X[k])), px(p.y(top[k]))
			switch {
			case k == 0:
				path.WriteString("M" + x + " " + y)
			default:
				path.WriteString("H" + x + "V" + y)
			}
		}
		for k := len(base) - 1; k >= 0; k-- {
			x, y := px(p.x(s.X[k])), px(p.y(base[k]))
			if k == len(base)-1 {
				path.WriteString("L" + x + " " + y)
				continue
			}
			path.WriteString("V" + y + "H" + x)
		}
		p.put(`<path d="%sZ" fill="%s" stroke="%s" stroke-width=".8"><title>%s</title></path>`+"\n", path.String(), p.fill(i), colour(i), esc(s.Name))
		base = top
	}
}

func (p *painter) bars() {
	for k, label := range p.Labels {
		x, width := p.slot(k)
		wide := min(width*0.7, 60)
		base := 0.0
		for i, s := range p.Series {
			if k >= len(s.Y) || math.IsNaN(s.Y[k]) || s.Y[k] == 0 {
				continue
			}
			top := p.y(base + s.Y[k])
			p.put(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s" stroke="%s"><title>%s</title></rect>`+"\n", px(x-wide/2), px(top), px(wide), px(p.y(base)-top), p.fill(i), colour(i),
				esc(label+", "+s.Name+": "+p.Y.text(s.Y[k])))
			base += s.Y[k]
		}
	}
}

func (p *painter) boxes() {
	for k, q := range p.Quantiles {
		if len(q) != 5 || k >= len(p.Labels) {
			continue
		}
		x, width := p.slot(k)
		half := min(width*0.3, 24)
		y := func(i int) string { return px(p.y(q[i])) }
		p.put(`<g stroke="%s" fill="none"><title>%s</title>`, colour(0), esc(p.Labels[k]+": median "+p.Y.text(q[2])+", half "+p.Y.text(q[1])+" to "+p.Y.text(q[3])+", 95 % below "+p.Y.text(q[4])))
		p.put(`<path d="M%s %sV%sM%s %sV%s"/>`, px(x), y(0), y(1), px(x), y(3), y(4))
		p.put(`<path d="M%s %sH%sM%s %sH%s"/>`, px(x-half/2), y(0), px(x+half/2), px(x-half/2), y(4), px(x+half/2))
		p.put(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s" fill-opacity=".25"/>`, px(x-half), y(3), px(2*half), px(p.y(q[1])-p.y(q[3])), colour(0))
		p.put(`<path d="M%s %sH%s" stroke-width="2.5"/></g>`+"\n", px(x-half), y(2), px(x+half))
	}
}
