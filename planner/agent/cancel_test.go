package agent_test

import (
	"context"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// A gang that is stopped through the API saves and leaves before its job is
// stopped, whichever planner is there by then.
func TestStopAsksTheRanksFirst(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"signals", "channel"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1)
			if channel == "channel" {
				b.direct()
			}
			b.start()
			b.submit(job{id: "g", count: 2, cards: 1, args: []string{"save=slowly"}})
			b.stage("g", contract.StageTraining)
			stop := func(how view.StopRequest) {
				_, err := b.agent.Stop(context.Background(), httpapi.Caller{Name: "alice"}, "default", "g", how)
				must.NoError(t, err)
			}
			stop(view.StopRequest{GraceSeconds: 60, Reason: "enough"})
			g := b.until("g", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
			must.StrContains(t, g.Sentence, "stopped by alice: enough")
			must.Eq(t, 2, b.live("g"))
			must.False(t, b.jobInfo("g").Stop)

			b.stop()
			b.start()
			b.until("g", "still asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
			close(b.members.saved)
			g = b.stage("g", contract.StageCancelled)
			must.Eq(t, contract.OutcomeCheckpointed, g.Exit.Outcome)
			must.True(t, b.jobInfo("g").Stop)
			must.Eq(t, 0, b.live("g"))
		})
	}
}

// Who does not want to wait does not, also while the ranks are asked; and a
// purge comes last.
func TestStopNowAndPurge(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, 1).direct().start()
	for _, id := range []string{"now", "purged"} {
		b.submit(job{id: id, count: 2, cards: 1, args: []string{"save=slowly"}})
		b.stage(id, contract.StageTraining)
	}
	_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "now", view.StopRequest{GraceSeconds: 3600})
	must.NoError(t, err)
	b.until("now", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
	_, err = b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "now", view.StopRequest{Now: true})
	must.NoError(t, err)
	b.stage("now", contract.StageCancelled)

	_, err = b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "purged", view.StopRequest{Purge: true, GraceSeconds: 3600})
	must.NoError(t, err)
	b.until("purged", "asked", func(g view.Gang) bool { return g.Reason == core.ReasonEvicted })
	must.False(t, b.jobInfo("purged").Stop)
	close(b.members.saved)
	b.eventually("the gang is forgotten", func() bool { _, ok := b.agent.Gang("default", "purged"); return !ok })
}
