package simulate

import (
	"slices"

	"github.com/nomad-muster/muster/planner/chart"
)

// Plot is a picture of results side by side, for a file of its name.
type Plot struct {
	Name string
	SVG  string
}

// Plots draws what happened over time, a line for each result: how many gangs
// waited, how much of the cluster was held, how much of what was free lay on
// nodes in use; and for each result the waits by the gangs' size.
func Plots(results ...*Result) []Plot {
	over := func(name, title, about, label string, scale chart.Scale, top float64, value func(*Sample) float64) Plot {
		p := chart.Plot{Title: title, About: about, Kind: chart.Steps, X: chart.Axis{Label: "since the trace began", Scale: chart.Seconds}, Y: chart.Axis{Label: label, Scale: scale, Max: top}}
		for _, r := range results {
			s := chart.Series{Name: r.Name}
			for i := range r.Samples {
				s.X, s.Y = append(s.X, r.Samples[i].At.Seconds()), append(s.Y, value(&r.Samples[i]))
			}
			p.Series = append(p.Series, s)
		}
		return Plot{name, p.SVG()}
	}
	out := []Plot{
		over("queue", "Gangs waiting", "How many gangs wait in queues.", "gangs", chart.Number, 1, func(s *Sample) float64 { return float64(s.Waiting) }),
		over("wanted", "Cards that waiting gangs ask for", "What the waiting gangs ask for together, as a share of all cards.", "of all cards", chart.Percent, 0, func(s *Sample) float64 { return s.Wanted }),
		over("utilisation", "Cards held", "The share of all cards that gangs hold.", "of all cards", chart.Percent, 1, func(s *Sample) float64 { return s.Used }),
		over("fragmentation", "Free cards on nodes in use", "The share of the free cards that lie on nodes of which others are held, so that no gang of whole nodes can have them.", "of free cards", chart.Percent, 1, func(s *Sample) float64 { return s.Stuck }),
	}
	for _, r := range results {
		name := "waits"
		if len(results) > 1 {
			name += "-" + fileName(r.Name)
		}
		out = append(out, Plot{name, r.waits().SVG()})
	}
	return out
}

// waits are the quantiles of waits by size.
func (r *Result) waits() chart.Plot {
	bySize := map[int64][]float64{}
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Done {
			size := sizeClass(o.Job.milli())
			bySize[size] = append(bySize[size], max(1, o.Waited.Seconds()))
		}
	}
	sizes := make([]int64, 0, len(bySize))
	for size := range bySize {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	p := chart.Plot{Title: "Waits by size: " + r.Name, About: "How long gangs of each size waited in queues, over all attempts: 5, 25, 50, 75 and 95 %. Waits below a second are drawn as one.", Kind: chart.Boxes,
		X: chart.Axis{Label: "cards of the gang, from"}, Y: chart.Axis{Label: "wait", Scale: chart.LogSeconds}}
	for _, size := range sizes {
		w := bySize[size]
		slices.Sort(w)
		p.Labels = append(p.Labels, sizeName(size))
		p.Quantiles = append(p.Quantiles, []float64{quantile(w, .05), quantile(w, .25), quantile(w, .5), quantile(w, .75), quantile(w, .95)})
	}
	return p
}

// fileName keeps what any file system takes.
func fileName(text string) string {
	out := []rune(text)
	for i, r := range out {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			out[i] = '-'
		}
	}
	return string(out)
}
