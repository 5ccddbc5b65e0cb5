package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/utilisation"
	"github.com/nomad-muster/muster/planner/view"
)

// worstShown is how many attempts a list of waste names.
const worstShown = 20

// books is the ledger, or why there is none.
func (a *Agent) books(operation string) (*accounting.Ledger, error) {
	if l := a.meter.ledger.Load(); l != nil {
		return l, nil
	}
	cause := "the ledger is being opened"
	a.meter.mu.Lock()
	if a.meter.failed != nil {
		cause = a.meter.failed.Error()
	}
	a.meter.mu.Unlock()
	return nil, &view.Error{Code: view.CodeUnavailable, Operation: operation, Object: "ledger", Cause: cause, Hint: "try again in a moment; the planner's status and log tell what is wrong"}
}

// Usage implements httpapi.Books.
func (a *Agent) Usage(ctx context.Context, q view.UsageQuery) (view.Usage, error) {
	l, err := a.books("sum up usage")
	if err != nil {
		return view.Usage{}, err
	}
	u, err := l.Usage(ctx, accounting.Query{From: q.From, To: q.To, By: q.By, Queue: q.Queue, User: q.User, Model: q.Model, Gang: q.Gang})
	if err != nil {
		return view.Usage{}, err
	}
	out := view.Usage{From: u.From, To: u.To, By: append([]string{}, q.By...), Lines: []view.UsageLine{}, Total: view.UsageLine{Lost: map[string]int64{}}, Problems: append([]view.Problem{}, a.meterProblems()...)}
	for i := range u.Lines {
		n := usageLine(&u.Lines[i])
		out.Lines = append(out.Lines, n)
		t := &out.Total
		t.CardSeconds, t.Guaranteed, t.Borrowed, t.Held, t.Training, t.LostTotal = t.CardSeconds+n.CardSeconds, t.Guaranteed+n.Guaranteed, t.Borrowed+n.Borrowed, t.Held+n.Held, t.Training+n.Training, t.LostTotal+n.LostTotal
		for cause, lost := range n.Lost {
			t.Lost[cause] += lost
		}
	}
	return out, nil
}

func usageLine(n *accounting.Line) view.UsageLine {
	return view.UsageLine{Period: n.Period, Queue: n.Queue, User: n.User, Model: n.Model, Gang: n.Gang, Attempt: n.Attempt, CardSeconds: n.Total(),
		Guaranteed: n.Guaranteed, Borrowed: n.Borrowed, Held: n.Held, Training: n.Training, LostTotal: n.LostTotal(), Lost: n.Lost}
}

// Waste implements httpapi.Books.
func (a *Agent) Waste(ctx context.Context, from, to time.Time) (view.Waste, error) {
	l, err := a.books("find waste")
	if err != nil {
		return view.Waste{}, err
	}
	u, err := l.Usage(ctx, accounting.Query{From: from, To: to, By: []string{accounting.ByQueue, accounting.ByUser, accounting.ByModel}})
	if err != nil {
		return view.Waste{}, err
	}
	figures, err := l.Utilisation(ctx, from, to)
	if err != nil {
		return view.Waste{}, err
	}
	worst, err := l.Worst(ctx, from, to, a.live(time.Now()), worstShown)
	if err != nil {
		return view.Waste{}, err
	}
	out := view.Waste{From: u.From, To: u.To, Lines: []view.WasteLine{}, Worst: []view.WasteAttempt{}, Problems: append([]view.Problem{}, a.meterProblems()...)}
	for i := range u.Lines {
		n := &u.Lines[i]
		w := view.WasteLine{Queue: n.Queue, User: n.User, Model: n.Model, CardSeconds: n.Total(), Held: n.Held, Lost: n.LostTotal()}
		if f := figures[utilisation.Sum{Queue: n.Queue, User: n.User, Model: n.Model}]; f != nil {
			w.Sampled, w.Idle, w.Activity, w.Memory = f.Sampled/1000, f.Idle/1000, activity(f), memory(f)
		}
		out.Lines = append(out.Lines, w)
	}
	slices.SortStableFunc(out.Lines, func(x, y view.WasteLine) int { return cmp.Compare(y.Held+y.Lost+y.Idle, x.Held+x.Lost+x.Idle) })
	for i := range worst {
		w := &worst[i]
		out.Worst = append(out.Worst, view.WasteAttempt{Gang: w.Gang, Attempt: w.Number, Queue: w.Queue, User: w.User, Model: w.Model, Running: w.Running, Cards: w.Cards, NeverBusy: w.NeverBusy,
			Wasted: w.Total(), Held: w.Held, Sampled: w.Figures.Sampled / 1000, Idle: w.Figures.Idle / 1000, Activity: activity(&w.Figures), Memory: memory(&w.Figures), UntouchedMiB: w.Untouched})
	}
	return out, nil
}

func activity(f *utilisation.Figures) (s view.Share) {
	s.Mean, s.Known = f.Mean()
	s.P10, _ = f.Quantile(.1)
	s.P50, _ = f.Quantile(.5)
	s.P90, _ = f.Quantile(.9)
	return s
}

func memory(f *utilisation.Figures) (s view.Share) {
	s.Mean, s.Known = f.MemoryShare()
	return s
}

// live is what the cards of running attempts did so far, and do.
func (a *Agent) live(now time.Time) []utilisation.Used {
	a.meter.samples.Lock()
	defer a.meter.samples.Unlock()
	return a.meter.use.Live(now)
}

// Top implements httpapi.Books.
func (a *Agent) Top() view.Top {
	now := time.Now()
	out := view.Top{At: now.UTC(), Gangs: []view.TopGang{}, Cards: []view.CardCount{}, Problems: append([]view.Problem{}, a.meterProblems()...)}
	used := map[utilisation.Attempt]map[string]utilisation.Used{}
	for _, u := range a.live(now) {
		if used[u.Attempt] == nil {
			used[u.Attempt] = map[string]utilisation.Used{}
		}
		used[u.Attempt][u.Model] = u
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := &a.state
	if s.set == nil {
		return out
	}
	out.Cards = append(out.Cards, s.cardCounts()...)
	for _, e := range s.byName() {
		saved := &e.gang.Saved
		if saved.Phase == lifecycle.Waiting || saved.Phase == lifecycle.Over || e.gang.User == nil {
			continue
		}
		held := map[string]int{}
		for _, alloc := range s.byJob[e.key] {
			if alloc.Terminal() || alloc.CreateIndex <= saved.Base {
				continue
			}
			_, cards := s.bookedAlloc(alloc)
			for model, ids := range cards {
				held[model] += len(ids)
			}
		}
		key := utilisation.Attempt{Gang: e.key.String(), Number: saved.Attempt, Base: saved.Base}
		for _, model := range sortedKeys(held) {
			g := view.TopGang{Gang: key.Gang, Attempt: key.Number, Queue: e.gang.QueueName(), User: e.gang.UserName(), Model: model, Cards: held[model]}
			if u, ok := used[key][model]; ok {
				g.Sampled, g.IdleNow, g.Watts = int(u.Now.Sampled/1000), int(u.Now.Idle/1000), float64(u.Now.Energy)/1000
				g.Activity, g.Memory, g.Mean = activity(&u.Now), memory(&u.Now), activity(&u.Figures)
				if u.Figures.Sampled > 0 {
					g.Idle = float64(u.Figures.Idle) / float64(u.Figures.Sampled)
				}
			}
			out.Gangs = append(out.Gangs, g)
		}
	}
	return out
}

// Demand implements httpapi.Books.
func (a *Agent) Demand() view.DemandList {
	a.mu.RLock()
	defer a.mu.RUnlock()
	out := view.DemandList{At: a.state.lastCycle.UTC(), Demand: []view.Demand{}}
	for _, d := range a.state.demand {
		out.Demand = append(out.Demand, view.Demand{Model: string(d.Model), Cards: d.Cards, Pool: d.Pool, Nodes: d.Nodes, Gangs: d.Gangs})
	}
	return out
}

// CheckLedger implements httpapi.Books: the books against themselves, and
// against every allocation that Nomad still has of gangs.
func (a *Agent) CheckLedger(ctx context.Context) (view.LedgerCheck, error) {
	l, err := a.books("check ledger")
	if err != nil {
		return view.LedgerCheck{}, err
	}
	a.look(l, time.Now())
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := l.Flush(bounded); err != nil {
		return view.LedgerCheck{}, &view.Error{Code: view.CodeUnavailable, Operation: "check ledger", Object: l.Path(), Cause: err.Error(), Hint: "free the disk or make it writable, and try again"}
	}
	r, err := l.Verify(ctx)
	if err != nil {
		return view.LedgerCheck{}, err
	}
	out := view.LedgerCheck{Path: r.Path, Schema: r.Schema, Booked: r.Booked, Attempts: r.Attempts, Allocations: r.Allocations, CardSeconds: r.CardSeconds, Inexact: r.Inexact, Findings: []string{}}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, f.What+": "+f.Text)
	}
	now := time.Now()
	var sights []sight
	a.mu.RLock()
	for _, e := range a.state.byName() {
		if v, ok := a.state.sight(e); ok {
			sights = append(sights, v)
		}
	}
	a.mu.RUnlock()
	for i := range sights {
		g := &sights[i].gang
		out.Unknown += len(g.Others)
		for k := range g.Attempts {
			for _, alloc := range g.Attempts[k].Allocs {
				for _, h := range alloc.Holds {
					out.NomadAllocations++
					end := alloc.Ended
					if end.IsZero() {
						end = now
					}
					ran := int64(h.Cards) * max(end.Unix()-alloc.Created.Unix(), 0)
					out.NomadCardSeconds += ran
					booked, known, err := l.Held(ctx, alloc.ID, h.Model, now)
					switch {
					case err != nil:
						return out, err
					case !known:
						out.Findings = append(out.Findings, fmt.Sprintf("allocation %s of %s is not in the books", alloc.ID, g.Name))
					case booked != ran:
						out.Findings = append(out.Findings, fmt.Sprintf("allocation %s of %s: Nomad ran %d card-seconds, the books have %d", alloc.ID, g.Name, ran, booked))
					}
				}
			}
		}
	}
	out.OK = len(out.Findings) == 0
	return out, nil
}
