package httpapitest

import (
	"context"
	"time"

	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/report"
)

// MakeReport implements httpapi.Reporter: of empty books.
func (p *Planner) MakeReport(ctx context.Context, from, to time.Time) (*report.Report, error) {
	p.called("report %s %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
	return report.Make(ctx, books{}, from, to, to)
}

// books have nothing in them.
type books struct{}

func (books) Usage(context.Context, accounting.Query) (u accounting.Usage, err error)  { return }
func (books) Waits(_ context.Context, _, _ time.Time) (w []accounting.Wait, err error) { return }
func (books) Waiting(_ context.Context, _, _ time.Time) (w []accounting.Waiting, err error) {
	return
}
func (books) Foretold(_ context.Context, _, _ time.Time) (f accounting.Foretold, err error) { return }
func (books) Ends(_ context.Context, _, _ time.Time) (e []accounting.Ends, err error)       { return }
func (books) ClusterHours(_ context.Context, _, _ time.Time) (h []accounting.ClusterHour, err error) {
	return
}
func (books) Activity(_ context.Context, _, _ time.Time, _ bool) (a []accounting.Activity, err error) {
	return
}
