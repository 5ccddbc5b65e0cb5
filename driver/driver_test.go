package driver

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
)

func ranksConfig(t *testing.T, args ...string) map[string]any {
	list := []any{}
	for _, a := range args {
		list = append(list, a)
	}
	return map[string]any{"launcher": "ranks", "command": []any{allreduceRank(t)}, "args": list, "nproc_per_node": 2}
}

// The whole way: held, placed, released together, all-reduced, complete.
func TestGangOfRanksCompletes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 4, ranksConfig(t, "-steps", "5"))
	tr.start()
	for _, m := range tr.members {
		must.Less(t, time.Second, time.Since(m.started))
	}
	tr.place(1)
	tr.freeze()
	must.StrNotContains(t, tr.members[0].log.text(), "started", must.Sprint("a rank started before the release"))
	tr.planner.Write(tr.record)
	for i, m := range tr.members {
		r := tr.wait(i)
		must.Eq(t, 0, r.ExitCode)
		must.NoError(t, r.Err)
		must.Eq(t, contract.OutcomeComplete, tr.exit(i).Outcome)
		m.log.await(t, tr.ctx, "over 8 ranks, every sum right")
	}
	reports := tr.planner.Reports(1)
	must.Eq(t, 4, len(reports))
	for _, r := range reports {
		must.Eq(t, contract.StateEnded, r.State)
	}
	must.SliceEmpty(t, tr.planner.Services())
}
