package agent

import (
	"testing"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"
)

// The gauge follows the last plan, also back to nothing.
func TestContradictionsAreCounted(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(r)
	counts := func() map[string]float64 {
		out := map[string]float64{}
		families, err := r.Gather()
		must.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "muster_contradictions" {
				for _, g := range f.GetMetric() {
					out[g.GetLabel()[0].GetValue()] = g.GetGauge().GetValue()
				}
			}
		}
		return out
	}
	m.contradictions([]core.Notice{{Object: "card a"}, {Object: "card b"}, {Object: "queue c"}})
	must.Eq(t, map[string]float64{"card": 2, "queue": 1}, counts())
	m.contradictions(nil)
	must.MapEmpty(t, counts())
}
