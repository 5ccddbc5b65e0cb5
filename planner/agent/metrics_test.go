package agent_test

import (
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"
)

// /metrics has the queue and the stages.
func TestMetrics(t *testing.T) {
	t.Parallel()
	// The gauges are worked out at most for a hundredth of the time: seldom, on a
	// machine that is busy with other things.
	b := newBench(t, 2, 1).direct().within(3 * time.Minute)
	b.registry = prometheus.NewRegistry()
	b.start()
	// value sums up a metric (of a histogram: how many were seen) over those of
	// its series that have the labels.
	value := func(name string, labels map[string]string) (sum float64) {
		families, err := b.registry.Gather()
		must.NoError(t, err)
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
		series:
			for _, m := range f.GetMetric() {
				has := map[string]string{}
				for _, l := range m.GetLabel() {
					has[l.GetName()] = l.GetValue()
				}
				for k, v := range labels {
					if has[k] != v {
						continue series
					}
				}
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
	is := func(want float64, name string, labels map[string]string) {
		t.Helper()
		b.eventually(name, func() bool { return value(name, labels) == want })
	}
	b.submit(job{id: "runs", count: 2, cards: 1})
	b.stage("runs", contract.StageTraining)
	b.submit(job{id: "waits", count: 2, cards: 1, args: []string{"run=5ms"}})
	b.until("waits", "waiting", func(g view.Gang) bool { return g.Stage == contract.StageQueued && g.Reason != "" })
	is(1, "muster_pending_gangs", map[string]string{"queue": "default"})
	is(2, "muster_cards", map[string]string{"model": "H100", "state": "used"})
	is(1, "muster_release_seconds", nil)
	is(1, "muster_admission_wait_seconds", nil)
	must.Positive(t, value("muster_nomad_last_contact_timestamp_seconds", nil))
	must.Positive(t, value("muster_cycle_seconds", nil))
	must.Positive(t, value("muster_api_call_seconds", map[string]string{"service": "nomad"}))
	_, _, err := b.sim.Client().Jobs().Deregister("runs", false, nil)
	must.NoError(t, err)
	b.stage("waits", contract.StageComplete)
	is(0, "muster_pending_gangs", nil)
	is(0, "muster_cards", map[string]string{"state": "used"})
	is(2, "muster_cards", map[string]string{"state": "free"})
	is(1, "muster_gangs_ended_total", map[string]string{"queue": "default", "stage": string(contract.StageComplete)})
	is(1, "muster_gangs_ended_total", map[string]string{"queue": "default", "stage": string(contract.StageCancelled)})
	for _, s := range contract.Stages {
		if s != contract.StageTraining { // which the gang that was stopped was in
			b.eventually("stage "+string(s), func() bool { return value("muster_stage_seconds", map[string]string{"stage": string(s)}) > 0 })
		}
	}
}
