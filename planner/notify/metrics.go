package notify

import "github.com/prometheus/client_golang/prometheus"

// Metrics are a Sender's figures, asked of it at each scrape.
func Metrics(status func() []Status) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("muster_webhook_"+name, help, []string{"webhook"}, nil)
	}
	return collector{status: status,
		pending:   desc("pending_events", "Events that a webhook has not accepted yet."),
		oldest:    desc("oldest_event_timestamp_seconds", "When the oldest of them happened; 0: none waits."),
		delivered: desc("delivered_events_total", "Events that a webhook accepted."),
		failed:    desc("failed_requests_total", "Requests that a webhook did not accept."),
		dropped:   desc("dropped_events_total", "Events given up: too old, or pushed out by newer ones."),
		disk:      desc("queue_on_disk", "1 if the events that wait would survive the planner, 0 if they are in memory alone."),
	}
}

type collector struct {
	status                                            func() []Status
	pending, oldest, delivered, failed, dropped, disk *prometheus.Desc
}

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.pending, c.oldest, c.delivered, c.failed, c.dropped, c.disk} {
		out <- d
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.status() {
		put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, s.Name)
		}
		put(c.pending, prometheus.GaugeValue, float64(s.Pending))
		oldest := 0.0
		if !s.Oldest.IsZero() {
			oldest = float64(s.Oldest.UnixNano()) / 1e9
		}
		put(c.oldest, prometheus.GaugeValue, oldest)
		put(c.delivered, prometheus.CounterValue, float64(s.Delivered))
		put(c.failed, prometheus.CounterValue, float64(s.Failed))
		put(c.dropped, prometheus.CounterValue, float64(s.Dropped))
		onDisk := 0.0
		if s.Durable {
			onDisk = 1
		}
		put(c.disk, prometheus.GaugeValue, onDisk)
	}
}
