// Package report makes one page of what a cluster did in a day, a week, a month
// or any other time: how long gangs waited, how busy the cards were, who used
// what, what was wasted, why attempts ended, and how good the expected starts
// were. It asks the ledger and adds nothing to it.
//
// The page is one HTML file without anything to load: tables, plots as SVG, and
// the figures behind each plot. It reads without scripts, in print and without
// colour.
package report

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/chart"
)

// Source is what the report asks; *accounting.Ledger answers.
type Source interface {
	Usage(context.Context, accounting.Query) (accounting.Usage, error)
	Waits(ctx context.Context, from, to time.Time) ([]accounting.Wait, error)
	Waiting(ctx context.Context, from, to time.Time) ([]accounting.Waiting, error)
	Foretold(ctx context.Context, from, to time.Time) (accounting.Foretold, error)
	Ends(ctx context.Context, from, to time.Time) ([]accounting.Ends, error)
	ClusterHours(ctx context.Context, from, to time.Time) ([]accounting.ClusterHour, error)
	Activity(ctx context.Context, from, to time.Time, byQueue bool) ([]accounting.Activity, error)
}

// Report of a time. Its JSON is the figures without the plots.
type Report struct {
	From     time.Time           `json:"from"`
	To       time.Time           `json:"to"`
	Made     time.Time           `json:"made"`
	Totals   Totals              `json:"totals"`
	Waits    []accounting.Wait   `json:"waits"`
	Foretold accounting.Foretold `json:"foretold"`
	Queues   []Queue             `json:"queues"`
	Users    []User              `json:"users"` // by card-seconds, the most first; at most 20
	Ends     []accounting.Ends   `json:"ends"`
	Plots    []Plot              `json:"-"`
	hours    []accounting.ClusterHour
}

// Totals of all queues. Shares are NaN-free: -1 is not known.
type Totals struct {
	Used        accounting.Amounts `json:"used"`        // card-seconds of gangs
	Lost        int64              `json:"lost"`        // card-seconds
	Allocated   float64            `json:"allocated"`   // share of the observed cards' time that anybody held
	Active      float64            `json:"active"`      // mean activity of the cards that gangs held
	Fragmented  float64            `json:"fragmented"`  // share of the free cards' time that waiting gangs could not use
	Unavailable float64            `json:"unavailable"` // share of the cards' time out of the pool
	Attempts    int                `json:"attempts"`    // that were placed
	Observed    time.Duration      `json:"observed"`    // of the time that the report is of
}

// Queue is one queue's use.
type Queue struct {
	Name   string             `json:"name"`
	Used   accounting.Amounts `json:"used"`
	Lost   int64              `json:"lost"`
	Active float64            `json:"active"` // -1: not sampled
	Idle   float64            `json:"idle"`   // share of the sampled card-seconds without any activity
	Memory float64            `json:"memory"` // used of held
}

// User is one user's use.
type User struct {
	Name string             `json:"name"`
	Used accounting.Amounts `json:"used"`
	Lost int64              `json:"lost"`
}

// Plot with its name as a file.
type Plot struct {
	Name string
	SVG  string
}

// Period is the whole day, week (from Monday) or month, in UTC, that ended last
// before now.
func Period(name string, now time.Time) (from, to time.Time, err error) {
	now = now.UTC()
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	switch name {
	case "day":
		return day.AddDate(0, 0, -1), day, nil
	case "week":
		monday := day.AddDate(0, 0, -(int(day.Weekday())+6)%7)
		return monday.AddDate(0, 0, -7), monday, nil
	case "month":
		first := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		return first.AddDate(0, -1, 0), first, nil
	}
	return from, to, fmt.Errorf("period %q is none of day, week, month", name)
}

// Make asks for everything that happened in [from, to).
func Make(ctx context.Context, s Source, from, to, now time.Time) (*Report, error) {
	if !to.After(from) {
		return nil, fmt.Errorf("make report: it ends at %s, not after it begins at %s", to.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339))
	}
	r := &Report{From: from.UTC(), To: to.UTC(), Made: now.UTC(), Queues: []Queue{}, Users: []User{}}
	fault := func(err error) error { return fmt.Errorf("make report: %w", err) }
	var err error
	if r.Waits, err = s.Waits(ctx, from, to); err != nil {
		return nil, fault(err)
	}
	if r.Foretold, err = s.Foretold(ctx, from, to); err != nil {
		return nil, fault(err)
	}
	if r.Ends, err = s.Ends(ctx, from, to); err != nil {
		return nil, fault(err)
	}
	if r.hours, err = s.ClusterHours(ctx, from, to); err != nil {
		return nil, fault(err)
	}
	queues, err := s.Usage(ctx, accounting.Query{From: from, To: to, By: []string{accounting.ByQueue}})
	if err != nil {
		return nil, fault(err)
	}
	users, err := s.Usage(ctx, accounting.Query{From: from, To: to, By: []string{accounting.ByUser}})
	if err != nil {
		return nil, fault(err)
	}
	active, err := s.Activity(ctx, from, to, true)
	if err != nil {
		return nil, fault(err)
	}
	byHour, err := s.Activity(ctx, from, to, false)
	if err != nil {
		return nil, fault(err)
	}
	waiting, err := s.Waiting(ctx, from, to)
	if err != nil {
		return nil, fault(err)
	}
	r.sums(queues, users, active)
	r.plots(waiting, byHour)
	return r, nil
}

func (r *Report) sums(queues, users accounting.Usage, active []accounting.Activity) {
	of := map[string]accounting.Activity{}
	sampled, worked := int64(0), 0.0
	for _, a := range active {
		of[a.Queue] = a
		sampled += a.Sampled
		worked += a.Mean * float64(a.Sampled)
	}
	t := &r.Totals
	for i := range queues.Lines {
		l := &queues.Lines[i]
		q := Queue{Name: l.Queue, Used: l.Amounts, Lost: l.LostTotal(), Active: -1, Idle: -1, Memory: -1}
		if a := of[l.Queue]; a.Sampled > 0 {
			q.Active, q.Idle, q.Memory = a.Mean, float64(a.Idle)/float64(a.Sampled), a.Memory
		}
		r.Queues = append(r.Queues, q)
		t.Used.Guaranteed += l.Guaranteed
		t.Used.Borrowed += l.Borrowed
		t.Used.Held += l.Held
		t.Used.Training += l.Training
		t.Lost += q.Lost
	}
	for i := range users.Lines {
		l := &users.Lines[i]
		r.Users = append(r.Users, User{Name: l.User, Used: l.Amounts, Lost: l.LostTotal()})
	}
	slices.SortStableFunc(r.Users, func(a, b User) int { return cmp.Compare(b.Used.Total(), a.Used.Total()) })
	r.Users = r.Users[:min(len(r.Users), 20)]
	for _, w := range r.Waits {
		if w.Queue == "" {
			t.Attempts += w.Count
		}
	}
	var free, used, other, out, fragmented int64
	observed := map[time.Time]int64{}
	for _, h := range r.hours {
		free, used, other, out, fragmented = free+h.Free, used+h.Used, other+h.Other, out+h.Out, fragmented+h.Fragmented
		observed[h.Hour] = max(observed[h.Hour], h.Observed)
	}
	for _, seconds := range observed {
		t.Observed += time.Duration(seconds) * time.Second
	}
	share := func(part, whole int64) float64 {
		if whole == 0 {
			return -1
		}
		return float64(part) / float64(whole)
	}
	t.Allocated, t.Unavailable, t.Fragmented = share(used+other, free+used+other+out), share(out, free+used+other+out), share(fragmented, free)
	t.Active = -1
	if sampled > 0 {
		t.Active = worked / float64(sampled)
	}
}

// plots in the order of the page.
func (r *Report) plots(waiting []accounting.Waiting, active []accounting.Activity) {
	add := func(name string, p chart.Plot) { r.Plots = append(r.Plots, Plot{name, p.SVG()}) }
	inTime := chart.Axis{Scale: chart.Time}

	boxes := chart.Plot{Title: "Waits by size", About: "Time from the queue to the placement, by the cards that a gang asks for: 5, 25, 50, 75 and 95 %.", Kind: chart.Boxes,
		X: chart.Axis{Label: "cards of the gang"}, Y: chart.Axis{Scale: chart.LogSeconds}}
	for _, size := range accounting.SizeClasses {
		var q []float64
		for _, w := range r.Waits {
			if w.Queue == "" && w.Size == size {
				for _, d := range w.Quantiles {
					q = append(q, d.Seconds())
				}
			}
		}
		boxes.Labels, boxes.Quantiles = append(boxes.Labels, size), append(boxes.Quantiles, q)
	}
	add("waits", boxes)

	queues := chart.Plot{Title: "Gangs that wait, by queue", About: "Of the gangs that were placed in the end.", Kind: chart.Steps, X: inTime, Y: chart.Axis{Label: "gangs"}}
	for _, w := range waiting {
		n := len(queues.Series)
		if n == 0 || queues.Series[n-1].Name != w.Queue {
			queues.Series = append(queues.Series, chart.Series{Name: w.Queue, X: []float64{unix(r.From)}, Y: []float64{0}})
			n++
		}
		s := &queues.Series[n-1]
		s.X, s.Y = append(s.X, unix(w.At)), append(s.Y, float64(w.Gangs))
	}
	for i := range queues.Series {
		s := &queues.Series[i]
		s.X, s.Y = append(s.X, unix(r.To)), append(s.Y, s.Y[len(s.Y)-1])
	}
	queues.Series = queues.Series[:min(len(queues.Series), 8)]
	add("queues", queues)

	cards := chart.Plot{Title: "Cards by state", About: "Means of each hour over all models.", Kind: chart.Areas, X: inTime, Y: chart.Axis{Label: "cards"}}
	fragments := chart.Plot{Title: "Fragmentation", About: "Share of the free cards that the gangs that waited could not use.", Kind: chart.Steps, X: inTime, Y: chart.Axis{Scale: chart.Percent}}
	var at []float64
	sums := map[string][]float64{}
	fragmented := chart.Series{Name: "fragmented"}
	names := []string{"held by gangs", "held by other jobs", "free", "out of the pool"}
	for i := 0; i < len(r.hours); {
		hour := r.hours[i].Hour
		var free, used, other, out, lost, observed float64
		for ; i < len(r.hours) && r.hours[i].Hour.Equal(hour); i++ {
			h := &r.hours[i]
			free, used, other, out, lost = free+float64(h.Free), used+float64(h.Used), other+float64(h.Other), out+float64(h.Out), lost+float64(h.Fragmented)
			observed = max(observed, float64(h.Observed))
		}
		if observed == 0 {
			continue
		}
		at = append(at, unix(hour))
		for k, v := range []float64{used, other, free, out} {
			sums[names[k]] = append(sums[names[k]], v/observed)
		}
		share := math.NaN()
		if free > 0 {
			share = lost / free
		}
		fragmented.Y = append(fragmented.Y, share)
	}
	for _, name := range names {
		cards.Series = append(cards.Series, chart.Series{Name: name, X: at, Y: sums[name]})
	}
	fragmented.X = at
	fragments.Series = []chart.Series{fragmented}
	add("cards", cards)

	busy := chart.Plot{Title: "Activity of the cards that gangs held", About: "Mean of each hour, as the cards' own counters tell it.", Kind: chart.Steps, X: inTime, Y: chart.Axis{Scale: chart.Percent, Max: 1}}
	chips, memory := chart.Series{Name: "chips at work"}, chart.Series{Name: "memory in use"}
	for _, a := range active {
		chips.X, chips.Y = append(chips.X, unix(a.Hour)), append(chips.Y, a.Mean)
		memory.X, memory.Y = append(memory.X, unix(a.Hour)), append(memory.Y, a.Memory)
	}
	busy.Series = []chart.Series{chips, memory}
	add("activity", busy)
	add("fragmentation", fragments)

	use := chart.Plot{Title: "Card-hours by queue", Kind: chart.Bars, Y: chart.Axis{Label: "card-hours"}}
	guaranteed, borrowed := chart.Series{Name: "guaranteed"}, chart.Series{Name: "borrowed"}
	waste := chart.Plot{Title: "Waste by queue", About: "Card-hours before the ranks started, and those of work that had to be done again.", Kind: chart.Bars, Y: chart.Axis{Label: "card-hours"}}
	held, lost := chart.Series{Name: "held before release"}, chart.Series{Name: "lost"}
	for _, q := range r.Queues {
		use.Labels, waste.Labels = append(use.Labels, q.Name), append(waste.Labels, q.Name)
		guaranteed.Y, borrowed.Y = append(guaranteed.Y, hours(q.Used.Guaranteed)), append(borrowed.Y, hours(q.Used.Borrowed))
		held.Y, lost.Y = append(held.Y, hours(q.Used.Held)), append(lost.Y, hours(q.Lost))
	}
	use.Series, waste.Series = []chart.Series{guaranteed, borrowed}, []chart.Series{held, lost}
	add("usage", use)
	add("waste", waste)

	ends := chart.Plot{Title: "Ends that lost work, by cause", Kind: chart.Bars, Y: chart.Axis{Label: "card-hours lost"}}
	causes := map[string]int64{}
	for _, e := range r.Ends {
		if e.Lost > 0 {
			causes[e.Cause] += e.Lost
		}
	}
	var series chart.Series
	for _, c := range byAmount(causes) {
		ends.Labels, series.Y = append(ends.Labels, c), append(series.Y, hours(causes[c]))
	}
	series.Name = "lost"
	ends.Series = []chart.Series{series}
	add("failures", ends)
}

func byAmount(m map[string]int64) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	return names
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func hours(seconds int64) float64 { return float64(seconds) / 3600 }
