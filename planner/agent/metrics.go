package agent

import (
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the planner's own figures.
type metrics struct {
	pending   *prometheus.GaugeVec     // gangs by queue and reason
	stage     *prometheus.HistogramVec // time spent in a stage
	admission prometheus.Histogram     // from queued to planned
	release   prometheus.Histogram     // from the last member placed to the ranks released
	cycle     prometheus.Histogram
	calls     *prometheus.HistogramVec // of Nomad and Consul
	failures  *prometheus.CounterVec
	cards     *prometheus.GaugeVec
	gangs     *prometheus.GaugeVec
	ends      *prometheus.CounterVec
	health    *prometheus.GaugeVec // cards by model and verdict
	event     prometheus.Gauge     // when Nomad was last heard of
	odd       *prometheus.GaugeVec // contradictions in the snapshot
}

func newMetrics(r prometheus.Registerer) *metrics {
	long := []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 1800, 7200, 28800, 86400, 604800}
	fast := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	m := &metrics{
		pending:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_pending_gangs", Help: "Gangs that wait, by queue and by what is in their way first."}, []string{"queue", "reason"}),
		stage:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "muster_stage_seconds", Help: "Time that gangs spent in each stage.", Buckets: long}, []string{"stage"}),
		admission: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "muster_admission_wait_seconds", Help: "Time from a gang's entry into its queue to its placement.", Buckets: long}),
		release:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "muster_release_seconds", Help: "Time from the placement of a gang's last member to the release of its ranks.", Buckets: fast}),
		cycle:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "muster_cycle_seconds", Help: "Time that one decision over all gangs took.", Buckets: fast}),
		calls:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "muster_api_call_seconds", Help: "Time of calls to Nomad and Consul.", Buckets: fast}, []string{"service", "operation"}),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "muster_api_errors_total", Help: "Calls to Nomad and Consul that failed."}, []string{"service", "operation"}),
		cards:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_cards", Help: "Cards by model and state: free, used (by gangs), other (by jobs that are no gangs), out."}, []string{"model", "state"}),
		gangs:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_gangs", Help: "Gangs that are not over, by phase."}, []string{"phase"}),
		ends:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "muster_gangs_ended_total", Help: "Gangs that ended, by queue and stage."}, []string{"queue", "stage"}),
		health:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_card_states", Help: "Cards by model and verdict: healthy, suspect, draining, quarantined."}, []string{"model", "state"}),
		event:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "muster_nomad_last_contact_timestamp_seconds", Help: "When Nomad was last heard of."}),
		odd:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_contradictions", Help: "What contradicts itself in the last cycle's picture of the cluster, by kind of object: allocation, blast, card, gang, node, queue."}, []string{"object"}),
	}
	r.MustRegister(m.pending, m.stage, m.admission, m.release, m.cycle, m.calls, m.failures, m.cards, m.gangs, m.ends, m.health, m.event, m.odd)
	return m
}

// reports are the figures of the nodes' reports and of the cards' breaker.
func (m *metrics) reports(r prometheus.Registerer, of *cards.Service) {
	counter := func(result string, value func(cards.Counts) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "muster_card_reports_total", Help: "Reports of nodes' device plugins, by what became of them.", ConstLabels: prometheus.Labels{"result": result}}, func() float64 {
			c, _, _ := of.Counts()
			return float64(value(c))
		})
	}
	r.MustRegister(counter("taken", func(c cards.Counts) uint64 { return c.Reports }), counter("repeated", func(c cards.Counts) uint64 { return c.Repeated }),
		counter("refused", func(c cards.Counts) uint64 { return c.Refused }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_card_reporters", Help: "Device plugins that report directly and are heard of."}, func() float64 {
			_, all, silent := of.Counts()
			return float64(all - silent)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_card_reporters_silent", Help: "Device plugins that have not reported for too long."}, func() float64 {
			_, _, silent := of.Counts()
			return float64(silent)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_card_breaker_open", Help: "1 while the cards' circuit breaker is open."}, func() float64 {
			if of.Breaker().Open {
				return 1
			}
			return 0
		}))
}

// contradictions counts the notices of a plan by the kind of their object.
func (m *metrics) contradictions(notices []core.Notice) {
	m.odd.Reset()
	for i := range notices {
		kind, _, _ := strings.Cut(notices[i].Object, " ")
		m.odd.WithLabelValues(kind).Inc()
	}
}

// called counts one service's calls.
func (m *metrics) called(service string) func(string, time.Duration, error) {
	return func(operation string, took time.Duration, err error) {
		m.calls.WithLabelValues(service, operation).Observe(took.Seconds())
		if err != nil {
			m.failures.WithLabelValues(service, operation).Inc()
		}
	}
}

// state renews the gauges.
func (m *metrics) state(s *state, now time.Time) {
	m.pending.Reset()
	m.gangs.Reset()
	for _, e := range s.gangs {
		phase := e.gang.Saved.Phase
		m.gangs.WithLabelValues(string(phase)).Inc()
		if phase == lifecycle.Waiting && e.decided {
			m.pending.WithLabelValues(e.gang.QueueName(), string(e.verdict.Reason)).Inc()
		}
	}
	if !s.contact.At.IsZero() && s.contact.OK {
		m.event.Set(float64(s.contact.At.UnixNano()) / 1e9)
	}
	if now.Sub(s.cardsAt) < 5*time.Second {
		return
	}
	s.cardsAt = now
	m.cards.Reset()
	m.health.Reset()
	for model, states := range s.cardStates() {
		for state, n := range states {
			m.health.WithLabelValues(model, cards.StateName(core.CardState(state))).Set(float64(n))
		}
	}
	for _, c := range s.cardCounts() {
		for state, n := range map[string]int{"free": c.Free, "used": c.Used, "other": c.Other, "out": c.Out} {
			m.cards.WithLabelValues(c.Model, state).Set(float64(n))
		}
	}
}

// entered books the time that a gang spent in the stage before the one that it
// enters now.
func (m *metrics) entered(g *lifecycle.Gang, stages []lifecycle.Stage) {
	for i := 1; i < len(stages); i++ {
		m.stage.WithLabelValues(string(stages[i-1].Stage)).Observe(max(stages[i].At.Sub(stages[i-1].At).Seconds(), 0))
		switch stages[i].Stage {
		case contract.StagePlanned:
			m.admission.Observe(max(stages[i].At.Sub(g.Saved.Queued).Seconds(), 0))
		case contract.StageStarted:
			for _, s := range slices.Backward(g.Saved.Stages) {
				if s.Stage == contract.StagePlaced {
					m.release.Observe(max(stages[i].At.Sub(s.At).Seconds(), 0))
					break
				}
			}
		case contract.StageComplete, contract.StageFailed, contract.StageCancelled:
			m.ends.WithLabelValues(g.QueueName(), string(stages[i].Stage)).Inc()
		}
	}
}
