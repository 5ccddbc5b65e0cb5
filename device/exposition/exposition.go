// Package exposition publishes the cards' measurements for Prometheus under the
// names of NVIDIA's DCGM exporter (DCGM_FI_DEV_GPU_UTIL, ...) with its labels
// (gpu, UUID, pci_bus_id, device, modelName, Hostname), so that dashboards made
// for it work; and the cards' health under muster_card_....
//
// The number of series is bounded by the cards: no label holds text that a user
// or a line of a log can choose, and Xid codes that no catalogue lists share one
// label.
package exposition

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/contract"
)

// Cards is what is measured: a device.Monitor.
type Cards interface {
	Status() []device.Status
	Sample(ctx context.Context) map[string]card.Sample
	Unattributed() uint64
}

// Holders says who holds which card, by id. Nil: nobody knows.
type Holders func() map[string]contract.CardHolder

// labels of every series of a card. The gang's are empty while the card is free.
var labels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "GPU_I_ID", "gang", "queue", "attempt"}

// Collector reads the cards at each scrape.
type Collector struct {
	cards   Cards
	holders Holders
	host    string

	fields       []*prometheus.Desc
	lastXid      *prometheus.Desc
	xids         *prometheus.Desc
	state        *prometheus.Desc
	offered      *prometheus.Desc
	unattributed *prometheus.Desc
}

// New makes a collector; host is the node's name.
func New(cards Cards, holders Holders, host string) *Collector {
	c := &Collector{cards: cards, holders: holders, host: host}
	for _, f := range card.Fields {
		c.fields = append(c.fields, prometheus.NewDesc(metricName(f), f.Desc, labels, nil))
	}
	c.lastXid = prometheus.NewDesc("DCGM_FI_DEV_XID_ERRORS", "the last Xid that was told", labels, nil)
	c.xids = prometheus.NewDesc("muster_card_xids_total", "Xids that were told; codes that no catalogue lists have xid=\"unlisted\"", append(append([]string(nil), labels...), "xid"), nil)
	c.state = prometheus.NewDesc("muster_card_state", "1 for the card's state: healthy, suspect, draining or quarantined", append(append([]string(nil), labels...), "state"), nil)
	c.offered = prometheus.NewDesc("muster_card_offered", "0 for a card that is known but not allocatable as it is, such as one in MIG mode", labels, nil)
	c.unattributed = prometheus.NewDesc("muster_card_unattributed_faults_total", "faults of devices that this node does not know", nil, nil)
	return c
}

// metricName is DCGM's, or one of our own where it has none.
func metricName(f card.Field) string {
	if f.DCGM != "" {
		return f.DCGM
	}
	name := []byte("muster_card_" + f.Name)
	for i, c := range name {
		if c == '/' {
			name[i] = '_'
		}
	}
	if f.Counter {
		return string(name) + "_total"
	}
	return string(name)
}

// Describe tells the series' names.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range append([]*prometheus.Desc{c.lastXid, c.xids, c.state, c.offered, c.unattributed}, c.fields...) {
		out <- d
	}
}

// Collect measures the cards.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	samples := c.cards.Sample(ctx)
	var held map[string]contract.CardHolder
	if c.holders != nil {
		held = c.holders()
	}
	for _, s := range c.cards.Status() {
		values := c.values(s, held)
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append(append([]string(nil), values...), more...)...)
		}
		if sample, ok := samples[s.Card.ID]; ok {
			for i, f := range card.Fields {
				v, have := f.Value(&sample)
				if !have {
					continue
				}
				kind := prometheus.GaugeValue
				if f.Counter {
					kind = prometheus.CounterValue
				}
				out <- prometheus.MustNewConstMetric(c.fields[i], kind, v, values...)
			}
		}
		offered := 1.0
		if s.Card.Hidden != "" {
			offered = 0
		}
		gauge(c.offered, offered)
		for _, level := range []health.Level{health.Healthy, health.Suspect, health.Draining, health.Quarantined} {
			v := 0.0
			if s.Verdict.Level == level {
				v = 1
			}
			gauge(c.state, v, string(level))
		}
		if s.Card.IsNIC() {
			continue
		}
		gauge(c.lastXid, float64(s.Health.LastXid))
		counts := map[string]float64{}
		for code, n := range s.Health.Xids {
			label := "unlisted"
			if _, known := xid.Lookup(code); known {
				label = strconv.Itoa(code)
			}
			counts[label] += float64(n)
		}
		for label, n := range counts {
			out <- prometheus.MustNewConstMetric(c.xids, prometheus.CounterValue, n, append(append([]string(nil), values...), label)...)
		}
	}
	out <- prometheus.MustNewConstMetric(c.unattributed, prometheus.CounterValue, float64(c.cards.Unattributed()))
}

// values are a card's labels.
func (c *Collector) values(s device.Status, held map[string]contract.CardHolder) []string {
	name, instance := s.Card.Name, ""
	if name == "" {
		name = s.Card.Group.Vendor + strconv.Itoa(s.Card.Index)
	}
	if s.Card.GI >= 0 {
		instance = strconv.Itoa(s.Card.GI)
	}
	h, ok := held[s.Card.ID]
	attempt := ""
	if ok && h.Attempt > 0 {
		attempt = strconv.Itoa(h.Attempt)
	}
	return []string{strconv.Itoa(s.Card.Index), s.Card.ID, s.Card.Bus.String(), name, s.Card.Group.Model, c.host, instance, h.Gang, h.Queue, attempt}
}

// Serve answers /metrics on an address until ctx ends. An address that is taken
// is tried again: the plugin of an agent that was just restarted may hold it.
func Serve(ctx context.Context, address string, c *Collector, log hclog.Logger) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	said := false
	for ctx.Err() == nil {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			if !said {
				log.Error("metrics are not published: the address is tried again", "address", address, "error", err)
				said = true
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			continue
		}
		log.Info("metrics", "address", fmt.Sprintf("http://%s/metrics", listener.Addr()))
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving metrics ended", "error", err)
		}
		stop()
	}
}
