package command_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
)

// A stop that waits for ranks says what for, until when, and how not to; on a
// terminal it counts on.
func TestStopTellsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const asked = "default/train: 2 members are asked to save and leave, and stopped at 12:05:00 (in 5m00s) if still there; muster job stop -now train does not wait for that\n"
	stop := func(t *testing.T, terminal bool, then func(s *shell, line string, cancel context.CancelCauseFunc)) result {
		s := newShell(t)
		s.terminal = terminal
		s.env["NO_COLOR"] = "1"
		s.planner.Set(gang("default", "train", contract.StageTraining), view.Event{})
		s.planner.StopFunc = func(_ httpapi.Caller, _, _ string, _ view.StopRequest) (view.Stopped, error) {
			out := view.Stopped{ID: "default/train", Stage: "training", Index: s.planner.Feed.Index()}
			s.planner.Change("default", "train", func(g *view.Gang) {
				left := view.Member{Index: 0, State: "ended", Exit: &contract.Exit{Outcome: contract.OutcomeCheckpointed}}
				g.Detail = &view.Detail{Asked: &view.Asked{At: noon.Add(-10 * time.Second), Until: noon.Add(5 * time.Minute), Kind: contract.AskStop, Why: "stopped"}, Members: []view.Member{left, {Index: 1, State: "training"}},
					Want: view.Want{CheckpointAt: noon.Add(-time.Second), CheckpointStep: 40}}
			})
			return out, nil
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		s.lines = func(line string) { then(s, line, cancel) }
		return s.runIn(ctx, "job", "stop", "train")
	}
	leaves := func(s *shell, line string, _ context.CancelCauseFunc) {
		if strings.Contains(line, "save and leave") {
			go s.planner.Change("default", "train", func(g *view.Gang) {
				g.Stage, g.Sentence = contract.StageCancelled, "stopped by anonymous; member 0: saved a checkpoint after it was asked to leave"
			})
		}
	}
	r := stop(t, false, leaves)
	must.Eq(t, result{0, "default/train cancelled: stopped by anonymous; member 0: saved a checkpoint after it was asked to leave\n", asked}, r)

	r = stop(t, true, leaves)
	must.Eq(t, 0, r.code)
	must.StrContains(t, r.stderr, asked)
	must.StrContains(t, r.stderr, "default/train · leaving since 10s · 1 of 2 members left · at most 5m00s more · saved at step 40")

	r = stop(t, false, func(_ *shell, line string, cancel context.CancelCauseFunc) {
		if strings.Contains(line, "save and leave") {
			cancel(command.ErrInterrupted)
		}
	})
	must.Eq(t, command.ExitInterrupted, r.code)
	must.StrContains(t, r.stderr, "gang default/train is being stopped (training); muster status train shows it, muster job stop -now train ends it at once")
}
