package agent

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/utilisation"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the planner's own figures; docs/metrics.md names all of them.
// Those that tell of this process are kept here; gauges of gangs, queues and
// cards come from the meter's figures, and what counts over restarts comes from
// the ledger: both are made anew at each scrape, so that no series outlives
// what it is of.
type metrics struct {
	release  prometheus.Histogram // from the last member placed to the ranks released
	cycle    prometheus.Histogram
	calls    *prometheus.HistogramVec // of Nomad and Consul
	failures *prometheus.CounterVec
	odd      *prometheus.GaugeVec // contradictions in the snapshot
}

func newMetrics(r prometheus.Registerer) *metrics {
	fast := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	m := &metrics{
		release:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "muster_release_seconds", Help: "Time from the placement of a gang's last member to the release of its ranks.", Buckets: fast}),
		cycle:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "muster_cycle_seconds", Help: "Time that one decision over all gangs took.", Buckets: fast}),
		calls:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "muster_api_call_seconds", Help: "Time of calls to Nomad and Consul.", Buckets: fast}, []string{"service", "operation"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "muster_api_errors_total", Help: "Calls to Nomad and Consul that failed."}, []string{"service", "operation"}),
		odd:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_contradictions", Help: "What contradicts itself in the last cycle's picture of the cluster, by kind of object: allocation, blast, card, gang, node, queue."}, []string{"object"}),
	}
	r.MustRegister(m.release, m.cycle, m.calls, m.failures, m.odd)
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

// entered times the release of a gang that has entered stages since it was
// last looked at.
func (m *metrics) entered(g *lifecycle.Gang, stages []lifecycle.Stage) {
	for i := 1; i < len(stages); i++ {
		if stages[i].Stage != contract.StageStarted {
			continue
		}
		for _, s := range slices.Backward(g.Saved.Stages) {
			if s.Stage == contract.StagePlaced {
				m.release.Observe(max(stages[i].At.Sub(s.At).Seconds(), 0))
				break
			}
		}
	}
}

// collector gives the meter's figures and the ledger's counts.
type collector struct {
	agent *Agent
	mu    sync.Mutex
	// usage is the highest that was shown of each counter of card-seconds: a
	// correction may take some back, and a counter does not go down.
	usage map[[3]string]int64
	descs map[string]*prometheus.Desc
}

func newCollector(a *Agent) *collector {
	c := &collector{agent: a, usage: map[[3]string]int64{}, descs: map[string]*prometheus.Desc{}}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"muster_pending_gangs", "Gangs that wait, by queue and by what is in their way first.", []string{"queue", "reason"}},
		{"muster_pending_oldest_seconds", "How long the longest waiting gang of the queue waits.", []string{"queue"}},
		{"muster_pending_cards", "Cards that waiting gangs ask for, by each model that would do.", []string{"model"}},
		{"muster_gangs", "Gangs that Nomad has, by phase.", []string{"phase"}},
		{"muster_stage_oldest_seconds", "How long the gang that is longest in a stage is in it; queued and training have no end that is to be expected and are left out.", []string{"stage"}},
		{"muster_cards", "Cards by model and state: free, used (by gangs), other (by jobs that are no gangs), out.", []string{"model", "state"}},
		{"muster_card_states", "Cards by model and verdict: healthy, suspect, draining, quarantined.", []string{"model", "state"}},
		{"muster_fragmentation_ratio", "Share of the model's free cards that the members of waiting gangs (where none waits: of running ones) cannot use.", []string{"model"}},
		{"muster_queue_guaranteed", "Cards that the queue can always get back.", []string{"queue", "model"}},
		{"muster_queue_max", "The most cards that the queue may hold, where that is limited.", []string{"queue", "model"}},
		{"muster_queue_used", "Cards that the queue's gangs hold, with those of queues below it.", []string{"queue", "model"}},
		{"muster_queue_borrowed", "Of the cards used, those above the guarantee.", []string{"queue", "model"}},
		{"muster_queue_budget_card_seconds", "Card-seconds that the queue may use in a period.", []string{"queue"}},
		{"muster_queue_budget_used_card_seconds", "Card-seconds that it has used in the current period.", []string{"queue"}},
		{"muster_queue_utilisation_ratio", "Mean activity now of the cards that the queue's gangs hold.", []string{"queue", "model"}},
		{"muster_queue_memory_ratio", "Share of their memory that is in use now.", []string{"queue", "model"}},
		{"muster_queue_sampled_cards", "Cards held by the queue's gangs of which samples come in.", []string{"queue", "model"}},
		{"muster_queue_idle_cards", "Of the sampled cards, those that do nothing now.", []string{"queue", "model"}},
		{"muster_queue_power_watts", "Power that the sampled cards draw now.", []string{"queue", "model"}},
		{"muster_demand_nodes", "Nodes of a shape that would let waiting gangs start.", []string{"model", "cards", "pool"}},
		{"muster_demand_gangs", "Gangs that would start on them.", []string{"model", "cards", "pool"}},
		{"muster_nomad_last_contact_timestamp_seconds", "When Nomad was last heard of.", nil},
		{"muster_nomad_connected", "1 while the picture of the cluster is whole and followed.", nil},
		{"muster_nomad_resyncs_total", "How often everything was listed anew, the start included.", nil},
		{"muster_ledger_up", "1 while the ledger is open and its last transaction reached the disk.", nil},
		{"muster_ledger_pending_records", "Records that wait to be written.", nil},
		{"muster_ledger_records_total", "Records written since the start.", nil},
		{"muster_ledger_dropped_records_total", "Records that found no room to wait; they are told again later.", nil},
		{"muster_ledger_refused_records_total", "Records that contradict what is booked.", nil},
		{"muster_clock_steps_total", "Steps of the machine's clock by more than two minutes.", nil},
		{"muster_samples_ignored_total", "Card reports that were repeated or late and were not measured by.", nil},
		{"muster_gangs_ended_total", "Gangs that ended, by queue and stage.", []string{"queue", "stage"}},
		{"muster_attempts_ended_total", "Attempts that ended, by queue and outcome.", []string{"queue", "outcome"}},
		{"muster_evictions_total", "Attempts that ended by eviction, by queue, kind and outcome.", []string{"queue", "kind", "outcome"}},
		{"muster_decisions_total", "Decisions that were booked, by action and reason.", []string{"action", "reason"}},
		{"muster_lost_card_seconds_total", "Card-seconds of work that has to be done again, by cause.", []string{"cause"}},
		{"muster_card_seconds_total", "Card-seconds of gangs, by queue, model and category: guaranteed and borrowed are the whole, and so are held and training.", []string{"queue", "model", "category"}},
		{"muster_stage_seconds", "Time that gangs spent in each stage.", []string{"stage"}},
		{"muster_admission_wait_seconds", "Time from a gang's entry into its queue to its placement, by queue and cards.", []string{"queue", "size"}},
		{"muster_eta_error_seconds", "How far starts were from the range that was foretold first, and on which side: early, within, late.", []string{"side"}},
	} {
		c.descs[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, v, labels...)
	}
	counter := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, v, labels...)
	}
	m := c.agent.meter
	if f := m.figures.Load(); f != nil {
		c.figures(f, gauge, counter)
	}
	m.samples.Lock()
	ignored := m.use.Ignored()
	m.samples.Unlock()
	counter("muster_samples_ignored_total", float64(ignored))
	l := m.ledger.Load()
	if l == nil {
		gauge("muster_ledger_up", 0)
		return
	}
	c.ledger(l, out, gauge, counter)
}

type emit func(name string, v float64, labels ...string)

func (c *collector) figures(f *figures, gauge, counter emit) {
	for k, n := range f.pending {
		gauge("muster_pending_gangs", float64(n), k[0], k[1])
	}
	for queue, since := range f.oldest {
		gauge("muster_pending_oldest_seconds", max(f.at.Sub(since).Seconds(), 0), queue)
	}
	for model, n := range f.wanted {
		gauge("muster_pending_cards", float64(n), model)
	}
	for phase, n := range f.phases {
		gauge("muster_gangs", float64(n), phase)
	}
	for stage, since := range f.stuck {
		gauge("muster_stage_oldest_seconds", max(f.at.Sub(since).Seconds(), 0), stage)
	}
	for _, n := range f.counts {
		gauge("muster_cards", float64(n.Free), n.Model, "free")
		gauge("muster_cards", float64(n.Used), n.Model, "used")
		gauge("muster_cards", float64(n.Other), n.Model, "other")
		gauge("muster_cards", float64(n.Out), n.Model, "out")
	}
	for k, n := range f.health {
		gauge("muster_card_states", float64(n), k[0], k[1])
	}
	for model, share := range f.fragmentation {
		gauge("muster_fragmentation_ratio", share, model)
	}
	for _, q := range f.queues {
		gauge("muster_queue_guaranteed", float64(q.guaranteed), q.queue, q.model)
		gauge("muster_queue_used", float64(q.used), q.queue, q.model)
		gauge("muster_queue_borrowed", float64(q.borrowed), q.queue, q.model)
		if q.max >= 0 {
			gauge("muster_queue_max", float64(q.max), q.queue, q.model)
		}
	}
	for queue, b := range f.budgets {
		gauge("muster_queue_budget_card_seconds", float64(b[0]), queue)
		gauge("muster_queue_budget_used_card_seconds", float64(b[1]), queue)
	}
	for k, u := range byQueue(f.used) {
		if mean, ok := u.Mean(); ok {
			// Each sampled card counts for a second.
			gauge("muster_queue_utilisation_ratio", mean, k[0], k[1])
			gauge("muster_queue_sampled_cards", float64(u.Sampled)/1000, k[0], k[1])
			gauge("muster_queue_idle_cards", float64(u.Idle)/1000, k[0], k[1])
			gauge("muster_queue_power_watts", float64(u.Energy)/1000, k[0], k[1])
		}
		if share, ok := u.MemoryShare(); ok {
			gauge("muster_queue_memory_ratio", share, k[0], k[1])
		}
	}
	for _, d := range f.demand {
		gauge("muster_demand_nodes", float64(d.Nodes), string(d.Model), strconv.Itoa(d.Cards), d.Pool)
		gauge("muster_demand_gangs", float64(d.Gangs), string(d.Model), strconv.Itoa(d.Cards), d.Pool)
	}
	if !f.contact.IsZero() {
		gauge("muster_nomad_last_contact_timestamp_seconds", float64(f.contact.UnixNano())/1e9)
	}
	connected := 0.0
	if f.connected {
		connected = 1
	}
	gauge("muster_nomad_connected", connected)
	counter("muster_nomad_resyncs_total", float64(f.resyncs))
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range f.usage {
		c.usage[k] = max(c.usage[k], n)
		counter("muster_card_seconds_total", float64(c.usage[k]), k[0], k[1], k[2])
	}
}

// byQueue sums up what cards do now.
func byQueue(used []utilisation.Used) map[[2]string]*utilisation.Figures {
	out := map[[2]string]*utilisation.Figures{}
	for i := range used {
		k := [2]string{used[i].Queue, used[i].Model}
		if out[k] == nil {
			out[k] = &utilisation.Figures{}
		}
		out[k].Add(&used[i].Now)
	}
	return out
}

func (c *collector) ledger(l *accounting.Ledger, out chan<- prometheus.Metric, gauge, counter emit) {
	h := l.Health()
	up := 0.0
	if h.OK {
		up = 1
	}
	gauge("muster_ledger_up", up)
	gauge("muster_ledger_pending_records", float64(h.Waiting))
	counter("muster_ledger_records_total", float64(h.Written))
	counter("muster_ledger_dropped_records_total", float64(h.Dropped))
	counter("muster_ledger_refused_records_total", float64(h.Refused))
	counter("muster_clock_steps_total", float64(h.Steps))
	// A queue that the configuration no longer has keeps its records and loses
	// its series.
	known := map[string]bool{}
	cfg := &c.agent.config.Current().Core
	for i := range cfg.Queues {
		known[string(cfg.Queues[i].Name)] = true
	}
	for _, t := range []struct {
		name, tally string
		queue       bool // the first label is one
		labels      int
	}{
		{"muster_gangs_ended_total", accounting.TallyEnds, true, 2},
		{"muster_attempts_ended_total", accounting.TallyAttempts, true, 2},
		{"muster_evictions_total", accounting.TallyEvictions, true, 3},
		{"muster_decisions_total", accounting.TallyDecisions, false, 2},
		{"muster_lost_card_seconds_total", accounting.TallyLost, false, 1},
	} {
		for _, v := range l.Tallies(t.tally) {
			if len(v.Labels) == t.labels && (!t.queue || known[v.Labels[0]]) {
				counter(t.name, float64(v.Value), v.Labels...)
			}
		}
	}
	for _, t := range []struct {
		name, tally string
		queue       bool
		labels      int
	}{
		{"muster_stage_seconds", accounting.TallyStage, false, 1},
		{"muster_admission_wait_seconds", accounting.TallyWait, true, 2},
		{"muster_eta_error_seconds", accounting.TallyETA, false, 1},
	} {
		for _, v := range l.Histograms(t.tally) {
			if len(v.Labels) != t.labels || t.queue && !known[v.Labels[0]] {
				continue
			}
			buckets, sum := map[float64]uint64{}, uint64(0)
			for i, bound := range accounting.Bounds {
				sum += uint64(v.Buckets[i])
				buckets[bound] = sum
			}
			out <- prometheus.MustNewConstHistogram(c.descs[t.name], uint64(v.Value), v.Sum.Seconds(), buckets, v.Labels...)
		}
	}
}
