package chart

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

const noon = 1796040000 // 2026-11-30 12:00 UTC

func hours(n int) (x []float64) {
	for i := range n {
		x = append(x, noon+float64(i)*3600)
	}
	return x
}

var examples = map[string]Plot{
	"queues": {Title: "Gangs that wait", About: "How many gangs waited in each queue.", Kind: Steps, X: Axis{Scale: Time}, Y: Axis{Label: "gangs"},
		Series: []Series{{"research", hours(6), []float64{0, 3, 3, 7, 2, 2}}, {"production <b>", hours(6), []float64{0, 0, 1, math.NaN(), 1, 0}}}, Marks: []Mark{{"limit", 9}}},
	"cards": {Title: "Cards", Kind: Areas, X: Axis{Scale: Time}, Y: Axis{Label: "cards"},
		Series: []Series{{"used", hours(4), []float64{10, 20, 64, 30}}, {"other", hours(4), []float64{4, 4, 0, 4}}, {"free", hours(4), []float64{50, 40, 0, 30}}}},
	"usage": {Title: "Card-hours by queue", Kind: Bars, Y: Axis{Label: "card-hours"}, Labels: []string{"research", "production", "a queue with a very long name"},
		Series: []Series{{Name: "guaranteed", Y: []float64{1200, 800, 0}}, {Name: "borrowed", Y: []float64{300, 0, 51000}}}},
	"waits": {Title: "Waits by size", Kind: Boxes, Y: Axis{Scale: LogSeconds, Label: "wait"}, Labels: []string{"1", "2-8", "9-64", "65+"},
		Quantiles: [][]float64{{1, 2, 5, 30, 400}, {2, 10, 60, 900, 7200}, nil, {60, 3600, 20000, 90000, 400000}}},
	"share": {Title: "Utilisation", Kind: Lines, X: Axis{Scale: Time}, Y: Axis{Scale: Percent}, Series: []Series{{"activity", hours(3), []float64{.5, .92, .7}}}},
	"empty": {Title: "Nothing", Kind: Lines},
}

// wellFormed reads a document to its end.
func wellFormed(text string) error {
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		switch _, err := d.Token(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func TestExamples(t *testing.T) {
	for name, p := range examples {
		got := p.SVG()
		must.NoError(t, wellFormed(got))
		must.Eq(t, got, p.SVG())
		path := filepath.Join("testdata", name+".svg")
		if *rewrite {
			must.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, string(want), got, must.Sprintf("%s: look at it and run with -rewrite", name))
	}
}

// Whatever the figures and names are, the plot is well-formed and has no
// coordinate that is none.
func TestAnyFigures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Float64Range(0, 1e12), rapid.Just(math.NaN()), rapid.Just(0.0))
		n := rapid.IntRange(0, 20).Draw(t, "points")
		p := Plot{Title: rapid.String().Draw(t, "title"), Kind: Kind(rapid.IntRange(0, int(Boxes)).Draw(t, "kind")),
			Y: Axis{Scale: Scale(rapid.SampledFrom([]Scale{Number, Percent, Seconds, LogSeconds}).Draw(t, "scale"))}, X: Axis{Scale: Time}}
		x := []float64{}
		for i := range n {
			x = append(x, noon+float64(i)*rapid.Float64Range(1, 1e7).Draw(t, "gap"))
		}
		for range rapid.IntRange(0, 10).Draw(t, "series") {
			s := Series{Name: rapid.String().Draw(t, "name"), X: x}
			for range n {
				s.Y = append(s.Y, value.Draw(t, "y"))
			}
			p.Series = append(p.Series, s)
		}
		for range n {
			p.Labels = append(p.Labels, rapid.String().Draw(t, "label"))
			q := []float64{1, 2, 3, 4, rapid.Float64Range(4, 1e9).Draw(t, "q")}
			p.Quantiles = append(p.Quantiles, q)
		}
		text := p.SVG()
		if err := wellFormed(text); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Fatalf("a figure that is none: %s", text)
		}
	})
}

func TestTicks(t *testing.T) {
	must.Eq(t, []float64{0, 2, 4, 6, 8, 10}, ticks(Number, 9))
	must.Eq(t, []float64{0, 20, 40, 60, 80, 100}, ticks(Number, 100))
	must.Eq(t, []float64{0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5}, ticks(Number, 0.5))
	must.Eq(t, []float64{0, 600, 1200, 1800, 2400, 3000, 3600}, ticks(Seconds, 3600))
	must.Eq(t, []float64{1, 10, 60, 600, 3600}, ticks(LogSeconds, 4000))
	at, layout := timeTicks(noon, noon+6*3600)
	must.Eq(t, "15:04", layout)
	must.Eq(t, 7, len(at))
	at, layout = timeTicks(noon, noon+3*365*86400)
	must.Eq(t, "Jan 2006", layout)
	must.Between(t, 6, len(at), 12)
}
