package lifecycle

import (
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// elasticGang submits a gang that may go on with one member while it runs.
func elasticGang(w *world, least string, elastic bool) {
	w.submit(func(job map[string]any) {
		job["Meta"] = map[string]string{"muster_queue": "q", contract.MetaMin: least}
		task := job["TaskGroups"].([]any)[0].(map[string]any)["Tasks"].([]any)[0].(map[string]any)
		task["Config"] = map[string]any{"script": "x.py", "nproc_per_node": 1, "elastic": elastic}
	})
}

// An elastic attempt that loses a member goes on in its next round, and is
// complete when those that are left are; whatever it cannot go on from stops it.
func TestElasticAttemptGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	elasticGang(w, "1", true)
	w.release()
	w.exit(1, contract.OutcomeLost, -1, false)
	w.log = nil
	w.settle()
	must.Eq(t, []string{"Save", "Publish"}, w.log, must.Sprint("the round is saved before it is published"))
	must.NoError(t, decode(w.record))
	must.Eq(t, 1, w.record.Round)
	must.Eq(t, 1, w.record.Attempt)
	must.Eq(t, contract.PhaseReleased, w.record.Phase)
	must.Len(t, 1, w.record.Members)
	must.Eq(t, []contract.World{{Name: "rank", Members: []int{0}, Host: "10.0.0.0", Port: 29500, HostMember: 0}}, w.record.Worlds)
	must.Len(t, 1, w.gang.Saved.Places)
	w.exit(0, contract.OutcomeComplete, 0, false)
	w.settle()
	must.Eq(t, contract.StageComplete, w.gang.Saved.End.Stage)

	for name, c := range map[string]struct {
		least   string
		elastic bool
		lost    int
	}{
		"fewer than min":      {"2", true, 1},
		"the host is gone":    {"1", true, 0},
		"only between rounds": {"1", false, 1},
	} {
		w := newWorld(t)
		elasticGang(w, c.least, c.elastic)
		w.release()
		w.exit(c.lost, contract.OutcomeLost, -1, false)
		w.settle()
		must.NotEq(t, Released, w.gang.Saved.Phase, must.Sprint(name))
	}
}
