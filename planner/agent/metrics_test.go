package agent_test

import (
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shoenig/test/must"
)

// /metrics has the queue and the stages.
func TestMetrics(t *testing.T) {
	t.Parallel()
	// The gauges are worked out at most for a hundredth of the time: seldom, on a
	// machine that is busy with other things.
	b := newBench(t, 2, 1).direct()
	b.registry = prometheus.NewRegistry()
	b.start()
	value := b.metric
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

// metric sums up a metric (of a histogram: how many were seen) over those of
// its series that have the labels.
func (b *bench) metric(name string, labels map[string]string) (sum float64) {
	families, err := b.registry.Gather()
	must.NoError(b.t, err)
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

// What counts gangs goes on over a restart of the planner, and nothing is left
// of queues that the configuration has no more.
func TestMetricsGoOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1).direct()
	b.cfg.DataDir = t.TempDir()
	spare := core.DefaultQueue("spare")
	spare.Shared = true
	b.cfg.Core.Queues = append(b.cfg.Core.Queues, spare)
	b.registry = prometheus.NewRegistry()
	b.start()
	b.submit(job{id: "one", count: 1, cards: 1, args: []string{"run=1100ms"}})
	b.submit(job{id: "two", count: 1, cards: 1, args: []string{"run=10ms", "exit=3"}, meta: map[string]string{contract.MetaQueue: "spare"}})
	b.stage("one", contract.StageComplete)
	b.stage("two", contract.StageFailed)
	counted := map[string]float64{}
	b.eventually("both are counted", func() bool {
		for _, name := range []string{"muster_gangs_ended_total", "muster_attempts_ended_total", "muster_stage_seconds", "muster_admission_wait_seconds", "muster_card_seconds_total"} {
			counted[name] = b.metric(name, map[string]string{})
		}
		return counted["muster_gangs_ended_total"] == 2 && counted["muster_attempts_ended_total"] == 2 && counted["muster_admission_wait_seconds"] == 2 && counted["muster_card_seconds_total"] >= 2
	})
	must.Eq(t, 1, b.metric("muster_gangs_ended_total", map[string]string{"queue": "spare"}))
	b.stop()
	b.registry = prometheus.NewRegistry()
	b.start()
	b.eventually("they are counted still", func() bool {
		for name, n := range counted {
			if b.metric(name, map[string]string{}) < n { // the last seconds may have been booked since
				return false
			}
		}
		return b.metric("muster_gangs_ended_total", nil) == 2 && b.metric("muster_attempts_ended_total", nil) == 2
	})
	b.stop()
	b.cfg.Core.Queues = b.cfg.Core.Queues[:len(b.cfg.Core.Queues)-1]
	b.registry = prometheus.NewRegistry()
	b.start()
	b.eventually("the other queue's are there", func() bool { return b.metric("muster_gangs_ended_total", map[string]string{"queue": "default"}) == 1 })
	families, err := b.registry.Gather()
	must.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				must.NotEq(t, "spare", l.GetValue(), must.Sprint(f.GetName()))
			}
		}
	}
}
