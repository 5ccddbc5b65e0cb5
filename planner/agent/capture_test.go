package agent_test

import (
	"bytes"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/capture"
	"github.com/nomad-muster/muster/planner/core/decide"
	"github.com/shoenig/test/must"
)

// What is captured of a running planner is decided again the same, elsewhere.
func TestCapture(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 4).start()
	b.submit(job{id: "small", count: 1, cards: 4, args: []string{"1h"}})
	b.submit(job{id: "huge", count: 9, cards: 4})
	b.stage("huge", contract.StageRefused)
	snap, plan, err := b.agent.Capture()
	must.NoError(t, err)
	must.Len(t, 2, plan.Verdicts)
	var file bytes.Buffer
	must.NoError(t, capture.Write(&file, snap, plan))
	d, err := capture.Read(&file)
	must.NoError(t, err)
	_, same, err := d.Replay(decide.New())
	must.NoError(t, err)
	must.True(t, same)
}
