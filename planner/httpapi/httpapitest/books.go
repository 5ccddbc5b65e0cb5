package httpapitest

import (
	"context"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// SetBooks puts answers in; times are those that were asked for.
func (p *Planner) SetBooks(usage view.Usage, waste view.Waste, top view.Top, demand []view.Demand, check view.LedgerCheck) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usage, p.waste, p.top, p.demand, p.check = usage, waste, top, demand, check
}

// Usage implements httpapi.Books.
func (p *Planner) Usage(_ context.Context, q view.UsageQuery) (view.Usage, error) {
	p.called("usage %s to %s by %s of queue %q user %q model %q gang %q", q.From.UTC().Format(time.RFC3339), q.To.UTC().Format(time.RFC3339), strings.Join(q.By, ","), q.Queue, q.User, q.Model, q.Gang)
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.usage
	u.From, u.To, u.By = q.From.UTC(), q.To.UTC(), q.By
	for i := range u.Lines {
		if u.Lines[i].Lost == nil {
			u.Lines[i].Lost = map[string]int64{}
		}
	}
	u.Lines, u.Problems = append([]view.UsageLine{}, u.Lines...), append([]view.Problem{}, u.Problems...)
	if u.Total.Lost == nil {
		u.Total.Lost = map[string]int64{}
	}
	return u, nil
}

// Waste implements httpapi.Books.
func (p *Planner) Waste(_ context.Context, from, to time.Time) (view.Waste, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.waste
	w.From, w.To = from.UTC(), to.UTC()
	w.Lines, w.Worst, w.Problems = append([]view.WasteLine{}, w.Lines...), append([]view.WasteAttempt{}, w.Worst...), append([]view.Problem{}, w.Problems...)
	return w, nil
}

// Top implements httpapi.Books.
func (p *Planner) Top() view.Top {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.top
	t.Gangs, t.Cards, t.Problems = append([]view.TopGang{}, t.Gangs...), append([]view.CardCount{}, t.Cards...), append([]view.Problem{}, t.Problems...)
	return t
}

// Demand implements httpapi.Books.
func (p *Planner) Demand() view.DemandList {
	p.mu.Lock()
	defer p.mu.Unlock()
	return view.DemandList{Demand: append([]view.Demand{}, p.demand...)}
}

// CheckLedger implements httpapi.Books.
func (p *Planner) CheckLedger(context.Context) (view.LedgerCheck, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.check
	c.Findings = append([]string{}, c.Findings...)
	return c, nil
}
