package agent

import (
	"context"
	"time"

	"github.com/nomad-muster/muster/planner/report"
	"github.com/nomad-muster/muster/planner/view"
)

// MakeReport implements httpapi.Reporter.
func (a *Agent) MakeReport(ctx context.Context, from, to time.Time) (*report.Report, error) {
	l := a.meter.ledger.Load()
	if l == nil {
		a.meter.mu.Lock()
		defer a.meter.mu.Unlock()
		cause := "the ledger is not open yet"
		if a.meter.failed != nil {
			cause = a.meter.failed.Error()
		}
		return nil, &view.Error{Code: view.CodeUnavailable, Operation: "read report", Object: "ledger", Cause: cause, Hint: "muster status tells how the ledger is"}
	}
	return report.Make(ctx, l, from, to, time.Now())
}
