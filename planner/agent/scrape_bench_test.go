package agent_test

import (
	"fmt"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/shoenig/test/must"
)

// A scrape of a planner with 10,000 nodes of eight cards, 50 queues, gangs that
// run and gangs that wait. Run with:
// go test ./planner/agent -run xxx -bench Scrape -benchtime 20x
func BenchmarkScrape(b *testing.B) {
	n := newBench(b, 10_000, 8).direct()
	n.registry = prometheus.NewRegistry()
	n.cfg.DataDir = b.TempDir()
	for i := range 50 {
		q := core.DefaultQueue(core.QueueName(fmt.Sprintf("team-%d", i)))
		q.Guaranteed = core.Amounts{Models: map[core.Model]int{"H100": 100}}
		q.Shared = true
		n.cfg.Core.Queues = append(n.cfg.Core.Queues, q)
	}
	n.start()
	warm(n)
	queue := func(i int) map[string]string {
		return map[string]string{contract.MetaQueue: fmt.Sprintf("team-%d", i%50)}
	}
	const running = 100
	for i := range running {
		n.submit(job{id: fmt.Sprintf("runs%03d", i), count: 8, cards: 8, meta: queue(i)})
	}
	n.submit(job{id: "waits", count: 10_000, cards: 8, meta: queue(1)})
	n.eventually("gangs run", func() bool {
		trained := 0
		for _, g := range n.agent.Gangs() {
			if g.Stage == contract.StageTraining {
				trained++
			}
		}
		return trained == running
	})
	n.until("waits", "decided", func(g view.Gang) bool { return g.Reason != "" })
	handler := promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{})
	var size int
	b.ResetTimer()
	for range b.N {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		must.Eq(b, 200, w.Code)
		body, err := io.ReadAll(w.Body)
		must.NoError(b, err)
		size = len(body)
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/scrape")
	b.ReportMetric(float64(size)/1024, "KiB/scrape")
}
